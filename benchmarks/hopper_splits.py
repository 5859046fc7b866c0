"""Which decode kernel, and how many splits of a sequence, take least on an H100 or H200?

    PYTHONPATH=. python benchmarks/hopper_splits.py            # on the GPU itself, from the repository's root

`mla_ref.kernels.decode_hopper` takes its constants from this. For one sequence, or a few: beside numbers of splits,
which every sequence has alike, are its own choice ("chosen"), parts of the whole batch that it plans on the device
("planned"), the kernel in Triton, and its own choice with the merging's blocks let in at the kernel's start ("merging
early") or once a part is summed up ("merging late"), as for batches of many heads, too. For batches of few heads: both
kernels. Every result is compared with float64 first.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import record
import torch
from decode import ERROR, PAGE_SIZE, SCALE, exact_decode
from edits import of_kernel
from hopper import RAGGED
from hopper_steps import operands
from timings import cold, graph_us, relative_error

from mla_ref import kernels
from mla_ref.kernels import decode_hopper
from mla_ref.testing import paged_case

Calls = dict[str, Callable[[], Any]]

# B, H, T
SHAPES = [(1, 128, 1024), (1, 128, 2048), (1, 128, 8192), (1, 128, 32768), (1, 32, 8192), (1, 64, 8192), (3, 64, 8192)]
FEW_ROWS = (1, 16, 8192)  # which the kernel in Triton does
MANY = [(128, 16, 4096), (64, 16, 4096), (32, 16, 4096), (64, 16, 16384), (512, 16, 1024), (128, 8, 4096)]
SPLITS = (8, 16, 24, 32, 48, 64, 96, 128)
MERGED = [(32, 128, 4096), (64, 64, 4096), (128, 128, 4096)]
# Where the kernel may let the merging's blocks in: at its start, or once a part is summed up
PLACES = {
    "merging early": "    rows = S * H\n    blocks = (rows",
    "merging late": "    l_parts.index(PART).store(l_i)\n",
}


def changed(name: str, call: Callable[[], Any]) -> Any:
    """Call with a constant of the launcher at 0."""
    before = getattr(decode_hopper, name)
    setattr(decode_hopper, name, 0)
    try:
        return call()
    finally:
        setattr(decode_hopper, name, before)


def timed(calls: Calls) -> dict[str, dict[str, float]]:
    """Time calls side by side, and each in a CUDA graph."""
    return {
        name: {**time, "graph_us": graph_us(run)}
        for (name, run), time in zip(calls.items(), cold(list(calls.values())), strict=True)
    }


def alike(B: int, H: int, T: int) -> dict[str, Any]:
    """Measure sequences of one length."""
    given, options = operands(B=B, H=H, T=T)
    triton = functools.partial(kernels.paged_latent_attention_tma, *given, **options)
    calls: Calls = {"Triton": triton}
    ours = functools.partial(kernels.paged_latent_attention_hopper, *given, **options)
    by_splits = triton if (B, H, T) == FEW_ROWS else ours
    if (B, H, T) in MANY:
        calls |= {"Gluon": functools.partial(changed, "MOST_ROWS_OF_TMA", ours), "chosen": ours}
    elif (B, H, T) not in MERGED:
        calls |= {f"{n} splits": functools.partial(by_splits, num_splits=n) for n in SPLITS if 64 * n <= T}
    if (B, H, T) in SHAPES:
        planned = functools.partial(changed, "LEAST_PROGRAMS", ours)
        calls |= {"chosen": ours, "planned": planned, **let_in(ours)}
    if (B, H, T) in MERGED:
        calls = {"chosen": ours, **let_in(ours)}
    exact = exact_decode(*given[:2], torch.cat(given[2:4], -1)[given[4].long()].flatten(1, 2))
    for name, run in calls.items():
        relative_error(run()[0].view_as(exact), exact, ERROR, name)
    found = timed(calls)
    for each in found.values():
        each["gb_per_s"] = round(B * T * 1152 / each["cold_us"] / 1e3, 1)
    return {"B": B, "H": H, "T": T, "calls": found}


def ragged(lengths: tuple[int, ...], S: int, H: int) -> dict[str, Any]:
    """Measure sequences of several lengths."""
    case = paged_case(
        seq_lens=list(lengths), num_queries=S, num_heads=H, page_size=PAGE_SIZE, dtype=torch.bfloat16, device="cuda"
    )
    case = dataclasses.replace(case, scale=SCALE)
    ours = functools.partial(kernels.paged_latent_attention_hopper, **case.inputs)
    calls: Calls = {"Triton": functools.partial(kernels.paged_latent_attention_tma, **case.inputs), "chosen": ours}
    calls |= {f"{n} splits": functools.partial(ours, num_splits=n) for n in SPLITS[1:]}
    calls |= let_in(ours)
    for run in calls.values():
        case.check(*run())
    return {"seq_lens": list(lengths), "S": S, "H": H, "calls": timed(calls)}


def let_in(ours: Callable[..., Any]) -> Calls:
    """Return the call with kernels that let the merging's blocks start before they are done, by name."""
    first = "from ._plan_hopper import"
    found = {}
    for name, place in PLACES.items():
        edits = [(first, f"from triton.language.extra import cuda\n\n{first}")]
        edits.append((place, f"    cuda.gdc_launch_dependents()\n{place}"))
        found[name] = of_kernel(decode_hopper, edits, name)(ours)
    return found


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    figures: dict[str, list[dict[str, Any]]] = {"decode": [], "ragged": []}
    for kind, measure, cases in (("decode", alike, (*SHAPES, FEW_ROWS, *MANY, *MERGED)), ("ragged", ragged, RAGGED)):
        for case in cases:
            figures[kind].append(measure(*case))
            print(*case, {name: each["cold_us"] for name, each in figures[kind][-1]["calls"].items()}, flush=True)
    print(record.write(f"hopper_splits_{record.gpu()}", figures, ("triton",)))


if __name__ == "__main__":
    main()
