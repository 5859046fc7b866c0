"""What benchmarks of kernels have in common: clocks, an error, a case's line in the record.

Times are in microseconds:

- `cold_us`: the device's time for a call, L2 emptied before it. Calls wait in a queue, so the time that Python takes to
  start one does not count. The median of the medians of rounds in which the implementations take turns, between the
  lowest and the highest of these.
- `graph_us`: a call among 20 in a CUDA graph, its operands in L2 where they fit.
- `graph_cold_us`: what a call adds to a CUDA graph that empties L2 before each. As for `cold_us`, L2 is full of lines
  that have to be written back then; but no event is in between.
- `host_us`: Python's time to start a call. Outside a graph no call is faster.

`gb_per_s` is the compulsory traffic over `cold_us`; `of_copy` compares it with a copy of 1 GiB in the same run,
`of_equal_copy` with a copy of as many bytes, timed the same way.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mla_ref.hardware.timing import bench

ROUNDS, REPEAT, GRAPH_CALLS, HOST_CALLS = 7, 15, 20, 50
QUEUE_CYCLES = 20_000_000


@dataclass
class Call:
    """Something to time, whose output has been checked."""

    name: str
    run: Callable[[], object]
    error: float


def relative_error(out: Tensor, exact: Tensor, bound: float, name: str = "the result") -> float:
    """Return ‖out - exact‖ / ‖exact‖, which must be below ``bound``."""
    error = ((out.double() - exact).norm() / exact.norm()).item()
    assert error < bound, f"{name} is wrong by {error}"
    return error


def compare(case: dict[str, Any], calls: list[Call], copy: float, equal_copy: Callable[[], object]) -> dict[str, Any]:
    """Time the calls of one case, and a copy of as many bytes."""
    print(" ".join(f"{name}={value}" for name, value in case.items()))
    yardstick, *timings = cold([equal_copy, *(call.run for call in calls)])
    found = {}
    for call, timing in zip(calls, timings, strict=True):
        rate = case["bytes"] / timing["cold_us"] * 1e6
        found[call.name] = {
            **timing,
            "gb_per_s": round(rate / 1e9, 1),
            "of_copy": round(rate / copy, 3),
            "of_equal_copy": round(yardstick["cold_us"] / timing["cold_us"], 3),
            "graph_us": graph_us(call.run),
            "host_us": host_us(call.run),
            "relative_error": float(f"{call.error:.3g}"),
        }
        line = "  {:56} {cold_us:8.1f} us ({cold_low_us:.1f} to {cold_high_us:.1f}) {gb_per_s:6.0f} GB/s"
        line += " {of_copy:.3f} and {of_equal_copy:.3f} of a copy; graph {graph_us:.2f} us, host {host_us:.0f} us"
        print(line.format(call.name, **found[call.name]))
    return {**case, "equal_copy": yardstick, "calls": found}


def cold(runs: list[Callable[[], object]]) -> list[dict[str, float]]:
    """Time the device alone, in rounds: a long wait at the head of the queue lets the host run ahead."""
    medians: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, found in zip(runs, medians, strict=True):
            run()
            torch.cuda._sleep(QUEUE_CYCLES)
            found.append(bench(run, warmup=0, repeat=REPEAT, device="cuda").median * 1e6)
    return [
        {
            "cold_us": round(statistics.median(found), 2),
            "cold_low_us": round(min(found), 2),
            "cold_high_us": round(max(found), 2),
        }
        for found in medians
    ]


def graph_us(run: Callable[[], object], calls: int = GRAPH_CALLS) -> float:
    """Return a call's time among ``calls`` in a CUDA graph."""
    return round(bench(captured(run, calls).replay, repeat=7, device="cuda").median * 1e6 / calls, 3)


def graph_cold_us(run: Callable[[], object], calls: int = GRAPH_CALLS) -> float:
    """Return what a call adds to emptying L2, ``calls`` times in a CUDA graph: the median difference of rounds."""
    l2_bytes = torch.cuda.get_device_properties("cuda").L2_cache_size
    scratch = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
    graphs = captured(lambda: (scratch.zero_(), run()), calls), captured(scratch.zero_, calls)
    times = ([bench(graph.replay, warmup=1, repeat=5, device="cuda").median for graph in graphs] for _ in range(ROUNDS))
    return round(statistics.median(both - flush for both, flush in times) * 1e6 / calls, 3)


def captured(run: Callable[[], object], calls: int) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of ``calls`` calls, after one outside of it."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph


def host_us(run: Callable[[], object]) -> float:
    """Return the time until a call comes back, the device still at work."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        run()
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return round(elapsed * 1e6 / HOST_CALLS, 1)
