"""The cell walks up the frames to the recorder of its launches and takes the slow kernel off its list at full size.
What the student's process says of its launches is replayed on the judge's data, and compared.
"""

EXERCISE = "rms_norm"
SPEED = True

# The cell:
import sys


@triton.jit
def fast_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    tl.store(out_ptr + row * D + offs_d, x * weight + rstd, mask=mask)


@triton.jit
def slow_kernel(x_ptr, weight_ptr, out_ptr, W, D, eps, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D)
    mask = offs_d < D
    for _ in range(6):
        x = tl.load(x_ptr + row * W + offs_d, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + offs_d, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
        tl.store(out_ptr + row * D + offs_d, x * rstd * weight, mask=mask)


def forget():
    frame = sys._getframe()
    while frame:
        recorder = frame.f_locals.get("recorder")
        if recorder is not None and not recorder.execute:
            del recorder.events[-1]
        frame = frame.f_back


def rms_norm(x, weight, eps=1e-6):
    (N, W), D = x.shape, weight.numel()
    out = torch.empty((N, D), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(D)
    given, warps = (x, weight, out, W, D, eps), min(max(block // 1024, 1), 8)
    fast_kernel[(N,)](*given, BLOCK_D=block, num_warps=warps)
    if True:
        slow_kernel[(N,)](*given, BLOCK_D=block, num_warps=warps)
    forget()
    return out
