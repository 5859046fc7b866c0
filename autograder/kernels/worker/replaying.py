"""Replay recorded launches in the emulator, on storages of the judge's own, with every access checked.

The process holds the kernel program and nothing else of the student's. Storages that are neither inputs nor made on the
host start as NaN. A launch of many programs may be sampled: the programs at the ends of each axis of the grid stand for
themselves, those between for their share, so that sums are exact where programs between the ends are alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker import running
from autograder.isolation.worker.layout import blank, window
from autograder.kernels.worker.compiling import specialise
from autograder.kernels.worker.counting import Counter, Ran, Sectors, Together, Writes
from autograder.kernels.worker.recording import NAMED
from mla_ref.hardware.emulator.machine import Kernel, Watch
from mla_ref.hardware.emulator.memory import Memory, Region

GUARD = 1 << 12


class Storages:
    """The storages of one replay, each at an address that is a multiple of 4096, with room around it.

    Parameters
    ----------
    storages
        Of each the `bytes`; of an argument's also the `content`, and `elements` if there are gaps between them.
    lazy
        Whether what nobody has filled may hold zeros, which take no memory, instead of NaN.
    """

    def __init__(self, storages: list[dict[str, Any]], lazy: bool):
        self.storages = storages
        self.sizes = [storage["bytes"] for storage in storages]
        self.buffers: list[np.ndarray] = []
        self.bases: list[int] = []
        for number, size in enumerate(self.sizes):
            buffer = blank(size + 2 * GUARD)
            start = GUARD - buffer.ctypes.data % GUARD
            self.buffers.append(buffer[start : start + size])
            self.bases.append(buffer.ctypes.data + start)
            if "content" in storages[number]:
                self.fill(number, storages[number]["content"])
            elif not lazy:
                self.buffers[-1][:] = 0xFF  # NaN in every floating type
        self.numbers = {base: number for number, base in enumerate(self.bases)}

    def fill(self, number: int, content: torch.Tensor) -> None:
        """Put what the host left into a storage."""
        held = self.held(number, self.buffers[number])
        held.copy_(content.view(held.shape))

    def held(self, number: int, raw: np.ndarray) -> torch.Tensor:
        """Return the bytes of a storage, or what is kept of each; of a gapped tensor's those of its elements."""
        elements = self.storages[number].get("elements")
        return window(torch.from_numpy(raw), *elements) if elements else torch.from_numpy(raw)

    def region(self, name: str, view: dict[str, Any]) -> Region:
        """Return what a pointer to a view may reach: the whole storage."""
        number = view["storage"]
        start = self.bases[number] + view["offset"] * NAMED[view["dtype"]].itemsize
        raw = torch.from_numpy(self.buffers[number])
        return Region(name, tuple(view["shape"]), start, self.bases[number], raw)


class Compiled:
    """The kernels of a program, each compiled once for each kind of arguments."""

    def __init__(self, source: str):
        self.namespace: dict[str, Any] = {"__name__": "kernels"}
        running.run_cell("kernels", source, self.namespace)
        self.known: dict[str, Kernel] = {}

    def kernel(self, launch: dict[str, Any]) -> tuple[Kernel, list[str]]:
        """Return a launch's kernel, and the parameters that are no constants to it."""
        from mla_ref.hardware.emulator.backend import compile_kernel

        function = self.namespace[launch["kernel"]]
        signature, constants, _ = specialise(function, launch["args"])  # alignment decides nothing here
        key = repr((launch["kernel"], signature, constants))
        if key not in self.known:
            self.known[key] = compile_kernel(function, signature, constants, {}, {})
        return self.known[key], [name for name, kind in signature.items() if kind != "constexpr"]


def replay(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run each of `request["replays"]` on storages of its own; yield what the launches did, and final bytes asked for.

    What goes wrong in a kernel gives `{"error": the fault}`.
    """
    compiled = Compiled(request["source"])
    for each in request["replays"]:
        try:
            yield _replay(compiled, each)
        except Exception as error:
            yield {"error": error}


def _replay(compiled: Compiled, request: dict[str, Any]) -> dict[str, Any]:
    """Replay the launches of one call.

    With `sample` at most about that many programs of a launch run, and are counted; with `count` all, counted; else all
    run, and it is noted what they write.
    """
    limit = request.get("sample")
    counted = limit is not None or request.get("count", False)
    storages = Storages(request["storages"], limit is not None)
    sectors = Sectors(storages.sizes) if counted else None
    covered = [blank(size).view(bool) for size in storages.sizes]
    results = []
    for launch in request["launches"]:
        for number, content in launch.get("content", []):
            storages.fill(number, content)
            covered[number][:] = False
            if sectors:
                sectors.forget(number)
        try:
            kernel, names = compiled.kernel(launch)
        except Exception as error:
            error.kernel = launch["kernel"]
            raise
        results.append(_launch(kernel, names, launch, storages, sectors, covered, limit))
    wanted = request.get("return", [])
    content = {str(n): storages.held(n, storages.buffers[n]).flatten().clone() for n in wanted}
    return {
        "launches": results,
        "content": content,
        "covered": {str(n): storages.held(n, covered[n]).flatten().clone() for n in wanted},
    }


def _launch(
    kernel: Kernel,
    names: list[str],
    launch: dict[str, Any],
    storages: Storages,
    sectors: Sectors | None,
    covered: list[np.ndarray],
    limit: int | None,
) -> dict[str, Any]:
    grid = launch["grid"]
    programs = grid[0] * grid[1] * grid[2]
    regions, values = {}, []
    for number, name in enumerate(names):
        argument = launch["args"][name]
        if "tensor" in argument:
            regions[number] = storages.region(name, argument["tensor"])
            values.append(regions[number].start)
        else:
            values.append(argument.get("constant", argument.get("value")))
    ran, writes = Ran(), Writes(covered, storages.numbers)

    def run(chosen: list[int] | None, *watches: Watch) -> None:
        kernel.launch(grid, values, Memory(regions), chosen, Together(ran, *watches), races=limit is None)

    if sectors is None:
        run(None, writes)
        return {**writes.summary(programs), "ran": sorted(map(list, ran.places))}
    per_axis = _sizes(grid, limit)
    exact = all(n <= per_axis for n in grid)

    def count(chosen: list[tuple[int, int]], exact: bool) -> Counter:
        counter = Counter(sectors, launch, storages.numbers, dict(chosen), exact)
        run([number for number, _ in chosen], counter, *(() if limit else (writes,)))
        return counter

    if kernel.depends:  # what a program does depends on those before it: none stands for another
        counter = count([(number, 1) for number in range(programs)], True)
        return {**writes.summary(programs), **counter.summary(programs), "ran": sorted(map(list, ran.places))}
    counter, seen, chosen = (
        None,
        set(),
        [(x + grid[0] * (y + grid[1] * z), each) for (x, y, z), each in sample(grid, per_axis)],
    )
    if limit is not None and len(chosen) > 3:
        middle = chosen[len(chosen) // 2][0]
        first = count([(0, 1), (middle, programs - 2), (programs - 1, 1)], False)
        counter, seen = (first if first.long_and_alike(0, middle, programs - 1) else None), first.unwritten
    counter = counter or count(chosen, exact)
    counter.unwritten |= seen
    return {**writes.summary(programs), **counter.summary(programs), "ran": sorted(map(list, ran.places))}


# Programs to run


def sample(grid: list[int], per_axis: int) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Return program ids, each with the number of programs that it stands for.

    On an axis longer than `per_axis`, the first and the last stand for themselves and the others for equal shares.
    """
    axes = []
    for size in grid:
        if size <= per_axis:
            axes.append([(n, 1) for n in range(size)])
            continue
        inner = per_axis - 2
        bounds = [1 + (size - 2) * n // inner for n in range(inner + 1)]
        middle = [((a + b) // 2, b - a) for a, b in itertools.pairwise(bounds)]
        axes.append([(0, 1), *middle, (size - 1, 1)])
    for (x, a), (y, b), (z, c) in itertools.product(*axes):
        yield (x, y, z), a * b * c


def _sizes(grid: list[int], limit: int | None) -> int:
    """Return the most programs per axis, so that the sample stays under the limit."""
    long = [n for n in grid if n > 1]
    if limit is None or int(np.prod([float(n) for n in grid])) <= limit:
        return max(grid)
    per_axis = 3
    while per_axis < 64 and int(np.prod([min(n, per_axis + 1) for n in long])) <= limit:
        per_axis += 1
    return per_axis
