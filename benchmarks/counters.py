"""What the hardware counts while our kernels for Hopper run, and their peers beside them: where the time goes.

    PYTHONPATH=. python benchmarks/counters.py            # on the GPU itself, from the repository's root; takes ncu

Each kernel of a call is counted once, after calls that warm it up; Nsight Compute runs it several times to read all
counters, flushes the caches before each, leaves the clocks alone, and lets no kernel run beside another. Peers are
those that can be imported. Two kernels that do nothing are counted, and timed as `timings.py` does, for what starting
takes.
"""

from __future__ import annotations

import csv
import functools
import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import hopper
import prefill
import record
import torch
import triton
from decode import FLASH_MLA, flash_mla
from prefix import own_contexts, parts_of_step
from timings import cold, graph_us

from mla_ref import SYSTEM_PROMPTS, MLAConfig, kernels

# B, H, T
SHAPES = [(128, 128, 4096), (64, 128, 16384), (32, 128, 4096), (64, 64, 4096), (1, 128, 8192), (1, 16, 8192)]
WIDTHS = (512, 64)
PREFILLS = ("B1 S8192 H128", "B1 S16384 H16")
OURS = "kernels.paged_latent_attention_hopper"
MODEL, PROMPT, DATA, BATCH = "kimi_k2", "A", "mmlu", 1024  # of the step over a shared prefix
PARTS = {"step": "the step", "prefix": "the prefix alone", "own": "what is not shared alone"}
SECTIONS = ("SpeedOfLight", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats", "LaunchStats", "Occupancy")
NAMES = {
    "Duration": "duration_ns",
    "SM Frequency": "clock_hz",
    "Elapsed Cycles": "cycles",
    "SM Active Cycles": "cycles_at_work",
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


@triton.jit
def _nothing():
    pass


def two_empty_kernels() -> None:
    """Start two kernels that do nothing, the second as our merging is: when the first has started everywhere."""
    for _ in range(2):
        _nothing[(132,)](launch_pdl=True)


def calls() -> dict[str, Callable[[], Any]]:
    """Return what is counted, by name."""
    found: dict[str, Callable[[], Any]] = {"two empty kernels": two_empty_kernels}
    for B, H, T in SHAPES:
        name = f"decode B{B} H{H} T{T}"
        latent, rope = (torch.randn(B, 1, H, width, device="cuda").bfloat16() for width in WIDTHS)
        pages = torch.randn(B * T // 64, 64, sum(WIDTHS), device="cuda").bfloat16()
        table = torch.randperm(len(pages), device="cuda").view(B, -1).int()
        lens = torch.full((B,), T, dtype=torch.int32, device="cuda")
        given = (latent, rope, pages[..., : WIDTHS[0]], pages[..., WIDTHS[0] :], table)
        options = {"scale": 192**-0.5, "seq_lens": lens}
        found[f"{name}, ours"] = functools.partial(kernels.paged_latent_attention_hopper, *given, **options)
        if FLASH_MLA:
            found[f"{name}, FlashMLA"] = flash_mla(torch.cat((latent, rope), -1), pages, table, lens)
    for lengths, S, H in hopper.RAGGED:
        named = hopper.ragged_calls(lengths, S, H)
        name = f"decode of {', '.join(map(str, lengths))} tokens S{S} H{H}"
        found[f"{name}, ours"] = named.pop(OURS)
        found |= {f"{name}, {each}": call for each, call in named.items() if each == "FlashMLA"}
    for case in PREFILLS:
        heads, *lengths = prefill.CASES[case]
        named = prefill.prefill_calls(*prefill.draw(heads, *lengths), *lengths)
        found |= {f"prefill {case}, {name}": call for name, call in named.items() if "FP8" not in name}
    own = own_contexts(MODEL, DATA, BATCH)
    step, _ = parts_of_step(MLAConfig.preset(MODEL), SYSTEM_PROMPTS[PROMPT], own)
    return found | {f"shared prefix, {PARTS[name]}": call for name, call in step.items()}


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
        empty = {**cold([two_empty_kernels])[0], "graph_us": graph_us(two_empty_kernels)}
        figures = {"two_empty_kernels": empty, "kernels": counted(__file__)}
        peers = ("flash-attn-4",) if prefill.FLASH_ATTENTION_4 else ()
        print(record.write(f"counters_{record.gpu()}", figures, ("triton", *peers)))
