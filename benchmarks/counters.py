"""What the hardware counts while our kernels for Hopper run, and FlashMLA beside them: where the time goes.

    PYTHONPATH=. python benchmarks/counters.py            # on the GPU itself, from the repository's root; takes ncu

Each kernel of a call is counted once, after calls that warm it up; Nsight Compute runs it several times to read all
counters, flushes the caches before each and leaves the clocks alone.
"""

from __future__ import annotations

import csv
import functools
import importlib.util
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import record
import torch

from mla_ref import kernels

SHAPES = {"decode B128 H128 T4096": (128, 1, 128, 4096), "decode B1 H128 T8192": (1, 1, 128, 8192)}
WIDTHS = (512, 64)
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats", "Occupancy")
NAMES = {
    "Duration": "duration_ns",
    "SM Frequency": "clock_hz",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor_cores_busy_percent",
    "DRAM Throughput": "dram_busy_percent",
    "Memory Throughput": "dram_bytes_per_s",
    "L2 Hit Rate": "l2_hits_percent",
    "No Eligible": "cycles_without_a_ready_warp_percent",
    "Registers Per Thread": "registers_per_thread",
    "Dynamic Shared Memory Per Block": "shared_bytes",
    "Grid Size": "programs",
    "Block Size": "threads",
}
TENSOR = next(name for name in NAMES if name.startswith("sm__"))


def calls() -> dict[str, Callable[[], Any]]:
    """Return what is counted, by name."""
    found = {}
    for name, (B, S, H, T) in SHAPES.items():
        latent, rope = (torch.randn(B, S, H, width, device="cuda").bfloat16() for width in WIDTHS)
        pages = torch.randn(B * T // 64, 64, sum(WIDTHS), device="cuda").bfloat16()
        table = torch.randperm(len(pages), device="cuda").view(B, -1).int()
        lens = torch.full((B,), T, dtype=torch.int32, device="cuda")
        given = (latent, rope, pages[..., : WIDTHS[0]], pages[..., WIDTHS[0] :], table)
        options = {"scale": 192**-0.5, "seq_lens": lens}
        found[f"{name}, ours"] = functools.partial(kernels.paged_latent_attention_hopper, *given, **options)
        if importlib.util.find_spec("flash_mla"):
            from decode import flash_mla

            found[f"{name}, FlashMLA"] = flash_mla(torch.cat((latent, rope), -1), pages, table, lens)
    H, T = 128, 8192
    q, k, v = (torch.randn(T, H, width, device="cuda").bfloat16() for width in (192, 192, 128))
    ends = torch.tensor([0, T], device="cuda")
    found["prefill B1 S8192 H128, ours"] = lambda: kernels.ragged_attention(q, k, v, ends, ends)
    return found


def run(named: dict[str, Callable[[], Any]]) -> None:
    """Make the calls that are counted: what the profiler starts."""
    for name, call in named.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(name)
        torch.cuda.cudart().cudaProfilerStart()
        call()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        torch.cuda.nvtx.range_pop()


def counted(script: str) -> list[dict[str, Any]]:
    """Return what is counted of each kernel of the calls that `script --run` makes, by `run`. Exits without ncu."""
    command = ["ncu", "--csv", "--page", "details", "--clock-control", "none", "--profile-from-start", "off", "--nvtx"]
    command += [each for section in SECTIONS for each in ("--section", section)]
    command += ["--metrics", TENSOR, sys.executable, script, "--run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout[done.stdout.find('"ID"') :]
    if not text.startswith('"ID"'):
        sys.exit(f"ncu counted nothing:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    found: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        if row["Metric Name"] in NAMES:
            called = next(value for key, value in row.items() if "Push/Pop_Range" in key)
            start = {"call": called.split(">:")[1].split(":none")[0], "kernel": row["Kernel Name"][:80]}
            figure = float(row["Metric Value"].replace(",", ""))
            found.setdefault(row["ID"], start)[NAMES[row["Metric Name"]]] = figure
    return list(found.values())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    if "--run" in sys.argv:
        run(calls())
    else:
        print(record.write(f"counters_{record.gpu()}", {"kernels": counted(__file__)}, ("triton",)))
