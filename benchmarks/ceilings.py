"""What this device reaches at best: a copy, a matrix product, and reads served by the L2 cache.

    PYTHONPATH=. python benchmarks/ceilings.py          # on the device itself, from the repository's root

`mla_ref.hardware.devices` does not take its measured ceilings from here. Those of its H100 are fixed, as it says, and
other H100s differ from them by some per cent.
"""

from __future__ import annotations

import record
import torch
import triton
import triton.language as tl

from mla_ref.hardware.timing import bench, measure_copy_bandwidth, measure_matmul_rate

REPEATS = 5
L2_PASSES = 64


@triton.jit
def _read(x_ptr, out_ptr, blocks, steps, BLOCK: tl.constexpr):
    """Add up blocks of x, at any time other ones than the other programs; `.cg` passes the L1 by."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros([BLOCK], tl.float32)
    for step in range(steps):
        block = (program + step * programs) % blocks
        total += tl.load(x_ptr + block * BLOCK + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out_ptr + program, tl.sum(total))


def l2_bandwidth(nbytes: int) -> float:
    """Return bytes/s of repeated reads of `nbytes`, which should fit in the L2.

    Calls of two lengths: their difference leaves out the first pass, which comes from memory, and the launch.
    """
    programs, block = 8 * torch.cuda.get_device_properties(0).multi_processor_count, 4096
    blocks = nbytes // (4 * block)
    x, out = torch.rand(blocks * block, device="cuda"), torch.empty(programs, device="cuda")
    short, long = (times * L2_PASSES * blocks // programs for times in (1, 2))  # steps of a program
    first, both = (
        bench(lambda steps=steps: _read[(programs,)](x, out, blocks, steps, block, num_warps=8)).median
        for steps in (short, long)
    )
    return (long - short) * programs * block * 4 / (both - first)


def main() -> None:
    """Measure each ceiling several times; write medians and spreads."""
    figures = {}
    tasks = {
        "copy_bytes_per_s": lambda: measure_copy_bandwidth("cuda"),
        "matmul_bfloat16_flop_per_s": lambda: measure_matmul_rate("cuda", torch.bfloat16),
        **{f"l2_read_bytes_per_s_{mib}MiB": (lambda mib=mib: l2_bandwidth(mib << 20)) for mib in (8, 16, 24, 32, 40)},
    }
    for name, task in tasks.items():
        rates = sorted(task() for _ in range(REPEATS))
        figures[name] = {"median": rates[REPEATS // 2], "min": rates[0], "max": rates[-1]}
        print(f"{name}: {rates[REPEATS // 2]:.4g} ({rates[0]:.4g} to {rates[-1]:.4g})")
    print(record.write(f"ceilings_{record.gpu()}", {"repeats": REPEATS, "ceilings": figures}, ("triton",)))


if __name__ == "__main__":
    main()
