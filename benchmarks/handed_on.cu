// Right kernels of a few lines, which racecheck reports all the same, for benchmarks/hopper_sanitizer.py.
//
// `handed_on`: one group of 128 threads hands values on to another through shared memory.
// ONE: a group's threads meet at its barrier, then one of them arrives at the mbarrier for all, as compiled Gluon does.
// EACH: every thread arrives itself. NONE: nobody waits, which is a race.
//
// `met`: the two groups meet at a barrier of all threads between a store and the load, as in what Triton makes of
// `warp_specialize`. ALONE: that is their only barrier. BESIDE: before it, one group meets at a barrier of its own.
// Racecheck 2025.3 reports this, and 2026.4 does not.

#include <cstdint>
#include <cstdio>
#include <cstring>

enum Form { ONE, EACH, NONE, ALONE, BESIDE };

__device__ uint32_t address(uint64_t *bar) { return (uint32_t)__cvta_generic_to_shared(bar); }

__device__ void init(uint64_t *bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(bar)), "r"(count));
}

template <Form FORM> __device__ void arrive(uint64_t *bar, int group, int thread) {
  if (FORM == ONE) asm volatile("bar.sync %0, 128;" ::"r"(group) : "memory");
  if (FORM == EACH || (FORM == ONE && thread == 0))
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}

template <Form FORM> __device__ void wait(uint64_t *bar, int phase) {
  if (FORM == NONE) return;
  asm volatile("{\n.reg .pred complete;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
               "@!complete bra.uni again;\n}" ::"r"(address(bar)), "r"(phase) : "memory");
}

template <Form FORM> __global__ void __launch_bounds__(256, 1) handed_on(float *sums, int turns) {
  __shared__ float values[128];
  __shared__ uint64_t full, empty;
  int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init(&full, FORM == EACH ? 128 : 1);
    init(&empty, FORM == EACH ? 128 : 1);
  }
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < turns; ++i) {
    if (group == 0) {
      wait<FORM>(&empty, (i & 1) ^ 1);
      values[thread] = i + thread;
      arrive<FORM>(&full, 1, thread);
    } else {
      wait<FORM>(&full, i & 1);
      sum += values[(thread + 1) % 128];
      arrive<FORM>(&empty, 2, thread);
    }
  }
  if (group == 1) sums[thread] = sum;
}

template <Form FORM> __global__ void __launch_bounds__(256, 1) met(float *sums) {
  __shared__ float value;
  int thread = threadIdx.x % 128, group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  if (group == 0) {
    if (FORM == BESIDE) asm volatile("bar.sync 1, 128;" ::: "memory");
    *(volatile float *)&value = 7;
    asm volatile("barrier.sync 0;" ::: "memory");
  } else {
    asm volatile("barrier.sync 0;" ::: "memory");
    sums[blockIdx.x * 128 + thread] = *(volatile float *)&value;
  }
}

int main(int, char **argv) {
  const int turns = 8, blocks = 132;
  static float host[128 * blocks];
  float *sums;
  cudaMalloc(&sums, sizeof host);
  if (!strcmp(argv[1], "one")) handed_on<ONE><<<1, 256>>>(sums, turns);
  if (!strcmp(argv[1], "each")) handed_on<EACH><<<1, 256>>>(sums, turns);
  if (!strcmp(argv[1], "none")) handed_on<NONE><<<1, 256>>>(sums, turns);
  if (!strcmp(argv[1], "alone")) met<ALONE><<<blocks, 256>>>(sums);
  if (!strcmp(argv[1], "beside")) met<BESIDE><<<blocks, 256>>>(sums);
  if (cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return 2;
  const bool meeting = !strcmp(argv[1], "alone") || !strcmp(argv[1], "beside");
  for (int t = 0; t < (meeting ? 128 * blocks : 128); ++t)
    if (host[t] != (meeting ? 7 : turns * (turns - 1) / 2 + turns * ((t + 1) % 128))) return 1;
  return 0;
}
