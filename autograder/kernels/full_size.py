"""Are the answers right at full size too? What the programs of a sample wrote there, beside the oracle.

No result is computed whole. The data is drawn where a kernel touches it, from a secret seed, which also chooses the
programs that run. The oracle gets the same numbers for a few rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from autograder.isolation.worker.trees import by_name, tensors_in
from autograder.judging.compare import difference
from autograder.judging.exercise import Arguments, Exercise, relative_tolerance, upcast
from autograder.kernels.record import Recording
from autograder.kernels.replay import Replayed
from autograder.kernels.worker.generated import Generated
from autograder.kernels.worker.hosting import control, is_fill, views_in
from autograder.kernels.worker.recording import DTYPES, NAMED

PICKS = (3, 12)  # parts of rows that are compared of each result, at least and at most
ENOUGH = 1 << 24  # numbers that the oracle gets in all
WITHIN = 2  # times the tolerance: a part of a row may differ by more than all of them
MOST = 1 << 16  # numbers that those of an argument are like, unless they are all that it has
WRITTEN = 1 - 1e-6  # of a result, at least: what a sample leaves open is counted as written
TABLE = "@"  # before the name of a block table, which names the entries along a first axis


class FullSize:
    """The data of an exercise's speed case, and what of the answers is to be compared.

    Parameters
    ----------
    seed
        Secret: it decides on the data, the programs and the rows.
    """

    def __init__(self, exercise: Exercise, seed: str):
        self.exercise, self.speed = exercise, exercise.speed
        self.arguments: Arguments = exercise.inputs(None, **self.speed.case)
        self.secret = hashlib.sha256(f"{seed}\0{exercise.name}\0full size".encode()).hexdigest()
        generator = torch.Generator().manual_seed(int(self.secret[:15], 16))
        small = by_name(exercise.inputs(generator, **{**self.speed.case, **(self.speed.small or {})}))
        like = {**small, **(self.speed.data(generator) if self.speed.data else {})}
        self.drawn: dict[str, list[Any]] = {}
        self.data: dict[str, Generated] = {}
        for name, tensor in by_name(self.arguments).items():
            if tensor.device.type == "meta":
                values = like[name].to(tensor.dtype).flatten()
                if len(values) != tensor.numel():
                    values = values[values.isfinite()][:MOST]
                self.drawn[name] = [DTYPES[tensor.dtype], tensor.numel(), values, f"{self.secret}{name}"]
        with torch.no_grad():
            self.shapes = [list(tensor.shape) for tensor in tensors_in(self.speed.baseline(*self.arguments.values()))]
        self._expected: dict[str, Any] = {}

    @property
    def options(self) -> dict[str, Any]:
        """What a replay of full size takes besides (see `replay.replay_request`)."""
        numbers = sum(t.numel() for t in tensors_in(self._part({letter: slice(0, 1) for letter in self._letters()})))
        return {"drawn": self.drawn, "secret": self.secret, "picks": min(max(PICKS[0], ENOUGH // numbers), PICKS[1])}

    def _letters(self) -> set[str]:
        return {letter for axes in self.speed.axes.values() if not axes.startswith(TABLE) for letter in axes} - {"_"}

    def _sizes(self) -> dict[str, int]:
        """Return the size of each axis by its letter."""
        axes = {name: letters for name, letters in self.speed.axes.items() if not letters.startswith(TABLE)}
        given = ((axes.get(name, ""), tensor) for name, tensor in self.arguments.items() if torch.is_tensor(tensor))
        return {letter: size for letters, tensor in given for letter, size in zip(letters, tensor.shape, strict=False)}

    def wrong(self, replayed: Replayed, recording: Recording) -> str | None:
        """Return what of a sample's results is not right or not there, or None."""
        if reason := self._another_form(recording):
            return reason
        wanted: dict[int, int] = {}
        for name, view in zip(self.exercise.returns, recording.result, strict=True):
            wanted[view["storage"]] = wanted.get(view["storage"], 0) + self._size(name, view)
        for name, view in zip(self.exercise.returns, recording.result, strict=True):
            share = _written(view["storage"], replayed, recording) / max(wanted[view["storage"]], 1)
            if share < WRITTEN:
                percent = f"{min(100 * share, 99.9):.3g} %"
                return f"the kernels write only {percent} of {name}, and what torch fills in does not count"
        for name, picks in zip(self.exercise.returns, replayed.picks, strict=True):
            for row, start, values, counts in picks:
                if found := self._differs(name, row, start, values, counts):
                    place = ", ".join(map(str, [*row, f"{start}:{start + len(values)}"]))
                    return f"{found}, in {name}[{place}]"
        for name, picks, view in zip(self.exercise.returns, replayed.picks, recording.result, strict=True):
            if not picks and view["shape"]:
                return f"no program of the sample wrote anything of {name}"
        return None

    def _size(self, name: str, view: Mapping[str, Any]) -> int:
        """Return how many bytes of a result a call writes: all of it, and of a pool what its sequences take."""
        number, axes = math.prod(view["shape"]), self.speed.axes[name]
        if axes.startswith(TABLE):
            first = {"b": slice(0, 1)}
            after, before = self._oracle(first), self._part(first, draw=True)[name]
            after = after[self.exercise.returns.index(name)] if isinstance(after, tuple) else after
            number = int((after != before.to(after.dtype)).sum()) * len(self.arguments[axes[1:]])
        return number * NAMED[view["dtype"]].itemsize

    def _another_form(self, recording: Recording) -> str | None:
        """Return what is wrong with the form of the results: how many there are, their shapes and dtypes."""
        names, form = self.exercise.returns, recording.form
        listed = list(form) if isinstance(form, list | tuple) else [form]
        if listed != [{"$view": n} for n in range(len(names))] or (len(names) == 1 and form != listed[0]):
            return f"something else than {', '.join(names)} is returned"
        likes = [*self.exercise.like, *[None] * len(names)]
        for name, view, shape, like in zip(names, recording.result, self.shapes, likes, strict=False):
            if view["shape"] != shape:
                return f"{name} has shape {view['shape']}, expected {shape}"
            wanted = self.arguments[like].dtype if isinstance(like, str) else like
            if wanted is not None and NAMED[view["dtype"]] != wanted:
                return f"{name} is {NAMED[view['dtype']]}, expected {wanted}".replace("torch.", "")
        return None

    def _differs(
        self, name: str, row: Sequence[int], start: int, values: torch.Tensor, counts: torch.Tensor
    ) -> str | None:
        axes, whole = self.speed.axes[name], slice(start, start + len(values))
        shapes = "it has another shape than was asked for"
        if axes.startswith(TABLE):
            if not row:
                return shapes
            held = (self.arguments[axes[1:]] == row[0]).nonzero().tolist()
            if not held:
                return "a page that no sequence holds was written"
            b, entry = held[0]
            bound, index = {"b": slice(b, b + 1)}, (entry, *row[1:], whole)
        else:
            letters = axes.ljust(len(row) + 1, "_")
            bound = {letter: slice(n, n + 1) for letter, n in zip(letters, row, strict=False) if letter != "_"}
            index = tuple(n if letter == "_" else 0 for letter, n in zip(letters, row, strict=False))
            if letters[len(row)] != "_":
                bound[letters[len(row)]] = whole
                whole = slice(None)
            index = (*index, whole)
            sizes = self._sizes()
            if any(part.stop > sizes.get(letter, part.stop) for letter, part in bound.items()):
                return shapes
        expected = self._oracle(bound)
        if isinstance(expected, tuple):
            expected = expected[self.exercise.returns.index(name)]
        beyond = any(isinstance(at, int) and at >= size for at, size in zip(index, expected.shape, strict=False))
        if expected.dim() != len(index) or beyond or expected[index].shape != values.shape:
            return shapes
        expected = expected[index]
        found = difference(
            torch.where(counts, values.to(expected.dtype), expected),
            expected,
            (name,),
            WITHIN * relative_tolerance(self.exercise, self.arguments),
        )
        return found.reason if found else None

    def _oracle(self, bound: Mapping[str, slice]) -> Any:
        key = repr(sorted(bound.items(), key=str))
        if key not in self._expected:
            self._expected[key] = self.exercise.oracle(**upcast(self._part(bound, draw=True)))
        return self._expected[key]

    def _part(self, bound: Mapping[str, slice], draw: bool = False) -> Arguments:
        """Return the arguments of a smaller problem: one index of each bound axis. Without `draw`, shapes alone."""
        found = dict(self.arguments)
        for name, tensor in self.arguments.items():
            if not isinstance(tensor, torch.Tensor):
                continue
            axes = self.speed.axes.get(name, "")
            if axes.startswith(TABLE):
                table = self.arguments[axes[1:]][bound["b"]]
                chosen = [table.flatten()]
                found[axes[1:]] = torch.arange(table.numel(), dtype=table.dtype).view(table.shape)
            else:
                chosen = [bound.get(letter, slice(None)) for letter in axes]
            if name in self.drawn and draw:
                if name not in self.data:
                    self.data[name] = Generated(tensor.dtype, *self.drawn[name][1:])
                found[name] = self.data[name].part(tensor.shape, chosen)
            elif TABLE + name not in self.speed.axes.values():
                found[name] = tensor[
                    tuple(each.to(tensor.device) if torch.is_tensor(each) else each for each in chosen)
                ]
        return found


def _written(number: int, replayed: Replayed, recording: Recording) -> float:
    """Return the bytes of results in a storage that are written, as far as a sample tells.

    What torch fills with a number of its own holds no answer: neither where it lies nor where torch moves it to.
    """
    known = {int(n): size for n, size in replayed.written.items()}
    given = {n for n, storage in enumerate(recording.storages) if "input" in storage}
    for event in recording.events:
        if event["kind"] != "host" or event["args"] is None or is_fill(event):
            continue
        places = [*control(event), *(views_in(event["args"][:1]) if event["op"][0] == "copy_" else ())]
        moved = [view for view in views_in(event["args"]) if not any(view is each for each in places)]
        sizes = [math.prod(view["shape"]) * NAMED[view["dtype"]].itemsize for view in moved]
        held = (
            size if view["storage"] in given else min(size, known.get(view["storage"], 0.0))
            for view, size in zip(moved, sizes, strict=True)
        )
        share = sum(held) / max(sum(sizes), 1)
        for n, size in event["writes"]:
            known[n] = known.get(n, 0.0) + share * size
    return known.get(number, 0.0)
