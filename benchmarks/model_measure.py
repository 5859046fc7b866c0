"""Measure every variant of `model_variants.py` on this GPU: the other side of `model_validation.py`.

    PYTHONPATH=. python benchmarks/model_measure.py [TASK...]   # on the device itself, from the repository's root

Each figure is the median with the L2 emptied before every call. `graph` replays the launches from a CUDA graph: the
time of the device, which the model predicts. `eager` calls the launcher, and holds the host's time where that is
longer. All cases are measured in turn, three times over, and the middle median counts: now and then a whole median is
off, and its neighbours in time are not.
"""

from __future__ import annotations

import multiprocessing
import os
import sys

import model_variants as variants
import record
import torch

from mla_ref.hardware.timing import Timing, bench

COMPILERS = 12
SLOW = 5e-3
ROUNDS = 3


def arguments(task: str, size: str) -> dict[str, torch.Tensor]:
    """Return the task's arguments, drawn normal, on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    return {
        name: torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))
        for name, (shape, dtype) in variants.TASKS[task][size].items()
    }


def expected(task: str, given: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """Return the right answer in float32."""
    wide = {k: v.float() for k, v in given.items()}
    if task == "rms_norm":
        x = wide["x"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * wide["weight"]
    if task == "rope":
        x, cos, sin = wide["x"], wide["cos"], wide["sin"]
        if name == "angles in the kernel":
            t, _, d = x.shape
            theta = 10000.0 ** (-2 * torch.arange(d // 2, device="cuda") / d)
            angle = torch.arange(t, device="cuda")[:, None] * theta
            cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        cos, sin = cos[:, None], sin[:, None]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    if task == "softmax":
        return wide["x"].softmax(-1)
    if task == "add":
        return wide["a"] + wide["b"]
    if task == "transpose":
        return wide["x"].t()
    s = torch.einsum("bhr,btr->bht", wide["q"], wide["c"])
    if task == "scores":
        return s
    return torch.einsum("bht,btr->bhr", (s * 192**-0.5).softmax(-1), wide["c"][..., :512])


def compile_share(share: list[tuple]) -> None:
    """Run each case once, to fill Triton's cache."""
    for task, size, _, launcher, options in share:
        try:
            getattr(variants, launcher)(**arguments(task, size), **options)
            torch.cuda.synchronize()
        except Exception:
            pass  # the measuring process says what is wrong


def figures(*timings: Timing) -> dict[str, float]:
    """Return the microseconds of the middle timing, and its noise or, if larger, the spread of the timings."""
    ordered = sorted(timings, key=lambda timing: timing.median)
    middle = ordered[len(ordered) // 2]
    noise = max(middle.noise, (ordered[-1].median - ordered[0].median) / middle.median)
    return {"us": round(middle.median * 1e6, 3), "noise": round(noise, 4), "n": middle.n}


def error_of(task: str, size: str, name: str, launcher: str, options: dict) -> float:
    """Return the relative error of a variant."""
    given = arguments(task, size)
    ref = expected(task, given, name)
    out = getattr(variants, launcher)(**given, **options).float()
    return round((torch.linalg.vector_norm(out - ref) / torch.linalg.vector_norm(ref)).item(), 6)


def measure(task: str, size: str, name: str, launcher: str, options: dict) -> dict[str, Timing]:
    """Return one case's timings."""
    given = arguments(task, size)
    fn = lambda: getattr(variants, launcher)(**given, **options)
    fn()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    slow = bench(graph.replay, warmup=1, repeat=3).median > SLOW
    repeat = 7 if slow else 40
    timings = {"graph": bench(graph.replay, warmup=10, repeat=repeat), "eager": bench(fn, repeat=repeat)}
    torch.cuda.empty_cache()
    return timings


def main() -> None:
    """Measure the tasks that are asked for; write the record."""
    tasks = sys.argv[1:] or list(variants.TASKS)
    cases = [(v[0], size, *v[1:]) for v in variants.VARIANTS if v[0] in tasks for size in variants.TASKS[v[0]]]
    name = os.environ.get("MLA_BENCH_NAME", "model_measured")
    figures = {"unit": "microseconds a call, median, L2 emptied before it", "cases": rows(cases)}
    print(record.write(name, figures, ("triton",)))


def rows(cases: list[tuple]) -> list[dict]:
    """Compile in parallel, then measure one after the other. Cases are `(task, size, variant, launcher, options)`."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_share, args=(cases[n::COMPILERS],)) for n in range(COMPILERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    timings: dict[tuple, list[dict[str, Timing]]] = {case[:3]: [] for case in cases}
    for _ in range(ROUNDS):
        for case in cases:
            timings[case[:3]].append(measure(*case))
    measured = []
    for case in cases:
        found = timings[case[:3]]
        row = dict(zip(("task", "size", "variant"), case[:3], strict=True)) | {"error": error_of(*case)}
        measured.append(row | {kind: figures(*(each[kind] for each in found)) for kind in ("graph", "eager")})
        shown = measured[-1]
        print(*case[:3], shown["error"], shown["graph"], shown["eager"]["us"], file=sys.stderr, flush=True)
    return measured


if __name__ == "__main__":
    main()
