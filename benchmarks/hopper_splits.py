"""Which decode kernel, and how many splits of a sequence, take least on an H100 or H200?

    PYTHONPATH=. python benchmarks/hopper_splits.py            # on the GPU itself, from the repository's root

`mla_ref.kernels.decode_hopper` takes its constants from this. For one sequence, or a few: beside numbers of splits,
which every sequence has alike, are its own choice ("chosen"), parts of the whole batch that it plans on the device
("planned"), and the kernel in Triton. For batches of few heads: both kernels. Every result is compared with float64
first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import record
import torch
from decode import ERROR, exact_decode
from hopper_steps import operands
from timings import cold, graph_us, relative_error

from mla_ref import kernels
from mla_ref.kernels import decode_hopper

# B, H, T
SHAPES = [(1, 128, 1024), (1, 128, 2048), (1, 128, 8192), (1, 128, 32768), (1, 32, 8192), (1, 64, 8192), (3, 64, 8192)]
FEW_ROWS = (1, 16, 8192)  # which the kernel in Triton does
MANY = [(128, 16, 4096), (64, 16, 4096), (32, 16, 4096), (64, 16, 16384), (512, 16, 1024), (128, 8, 4096)]
SPLITS = (8, 16, 24, 32, 48, 64, 96, 128)


def changed(name: str, call: Callable[[], Any]) -> Any:
    """Call with a constant of the launcher at 0."""
    before = getattr(decode_hopper, name)
    setattr(decode_hopper, name, 0)
    try:
        return call()
    finally:
        setattr(decode_hopper, name, before)


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    rows = []
    for B, H, T in (*SHAPES, FEW_ROWS, *MANY):
        given, options = operands(B=B, H=H, T=T)
        triton = functools.partial(kernels.paged_latent_attention_tma, *given, **options)
        calls: dict[str, Callable[[], Any]] = {"Triton": triton}
        ours = functools.partial(kernels.paged_latent_attention_hopper, *given, **options)
        by_splits = triton if (B, H, T) == FEW_ROWS else ours
        if (B, H, T) in MANY:
            calls |= {"Gluon": functools.partial(changed, "MOST_ROWS_OF_TMA", ours), "chosen": ours}
        else:
            calls |= {f"{n} splits": functools.partial(by_splits, num_splits=n) for n in SPLITS if 64 * n <= T}
        if (B, H, T) in SHAPES:
            calls |= {"chosen": ours, "planned": functools.partial(changed, "LEAST_PROGRAMS", ours)}
        exact = exact_decode(*given[:2], torch.cat(given[2:4], -1)[given[4].long()].flatten(1, 2))
        for name, run in calls.items():
            relative_error(run()[0].view_as(exact), exact, ERROR, name)
        times = cold(list(calls.values()))
        found = {
            name: {**time, "gb_per_s": round(B * T * 1152 / time["cold_us"] / 1e3, 1), "graph_us": graph_us(run)}
            for (name, run), time in zip(calls.items(), times, strict=True)
        }
        print(B, H, T, {name: each["cold_us"] for name, each in found.items()}, flush=True)
        rows.append({"B": B, "H": H, "T": T, "calls": found})
    print(record.write(f"hopper_splits_{record.gpu()}", {"decode": rows}, ("triton",)))


if __name__ == "__main__":
    main()
