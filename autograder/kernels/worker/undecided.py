"""What torch's operations leave open, and a GPU may decide otherwise than the CPU on which they are done again.

`torch.max(dim=...)`, `argmax` and their like are not among them: they promise the first of equals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker.layout import blank, window
from autograder.kernels.worker import hosting
from autograder.kernels.worker.hosting import MOVING, schema_of, views_in, written_by
from autograder.kernels.worker.recording import NAMED

ORDERING = ("sort", "argsort", "topk")
FILLING = ("fill_", "zero_")
AT_ONCE = "a CPU does that one after the other, a GPU all at once"


def is_open(step: Mapping[str, Any]) -> bool:
    """Return whether an operation leaves open in which order equal integers come, or all that it makes."""
    name, given = step["op"][0], _given(step)
    if name == "_unique2":
        return not given.get("sorted", True)
    return name in ORDERING and not given.get("stable") and all(map(_is_row, views_in(given["self"])))


def _given(step: Mapping[str, Any]) -> dict[str, Any]:
    names = (each.name for each in schema_of(step["op"]).arguments)
    return {**dict(zip(names, step["args"], strict=False)), **step["kwargs"]}


def _is_row(view: Mapping[str, Any]) -> bool:
    return bool(view["shape"]) and not NAMED[view["dtype"]].is_floating_point


def perform(
    step: Mapping[str, Any], view: Callable[[Mapping[str, Any]], torch.Tensor], chance: torch.Generator
) -> list[torch.Tensor]:
    """Do an operation again; `chance` decides on what it leaves open."""
    name, given = step["op"][0], _given(step)
    if not is_open(step):
        return hosting.perform(step, view)
    if name == "_unique2":
        return _in_another_order(hosting.perform(step, view), chance)
    (shown,), dim = views_in(given["self"]), given.get("dim", -1)
    numbers = view(shown)
    mixed = _mixed(numbers, dim, chance)
    made = hosting.perform(step, lambda each: numbers.gather(dim, mixed) if each is shown else view(each))
    first = 0 if name == "argsort" else 1
    made[first:] = [mixed.gather(dim, each) for each in made[first:]]
    if made and not given.get("sorted", True):  # of topk
        order = _mixed(made[0], dim, chance)
        made = [each.gather(dim, order) for each in made]
    return made


def _mixed(like: torch.Tensor, dim: int, chance: torch.Generator) -> torch.Tensor:
    """Return the numbers of the places along an axis in an order of chance, of each row another one."""
    return torch.rand(like.shape, generator=chance).argsort(dim)


def _in_another_order(made: list[torch.Tensor], chance: torch.Generator) -> list[torch.Tensor]:
    """Reorder distinct numbers, with the place of each given one among them and how many there are of each."""
    order = torch.randperm(len(made[0]) if made else 0, generator=chance)
    put = lambda n, each: order.argsort()[each] if n == 1 else each[order]
    return [put(n, each) if each.numel() else each for n, each in enumerate(made)]


def check_apart(step: Mapping[str, Any]) -> None:
    """Raise ValueError where an operation in place changes a place several times, or reads one that it changes.

    One number may fill a place several times. Whether values that are put in one place are alike shows when that is
    done (see `hosting.check_places`).
    """
    name = step["op"][0]
    by_places = bool(MOVING.get(name))
    for target in views_in(written_by(step["op"], step["args"], step["kwargs"])) if name not in FILLING else ():
        if name != "copy_" and not by_places and _overlaps_itself(target):
            raise ValueError(f"`{name}` of torch changes a place of its tensor several times: {AT_ONCE}")
        for view in (each for each in views_in(step["args"]) if each is not target):
            in_step = _layout(view) == _layout(target) and not by_places and name != "masked_scatter_"
            if not in_step and view["storage"] == target["storage"] and _meet(view, target):
                raise ValueError(f"`{name}` of torch changes what it reads for other places: {AT_ONCE}; clone it first")


def _layout(view: Mapping[str, Any]) -> tuple[Any, ...]:
    return view["dtype"], view["offset"], _axes(view)


def _axes(view: Mapping[str, Any]) -> list[tuple[int, int]]:
    return [(n, stride) for n, stride in zip(view["shape"], view["strides"], strict=True) if n != 1]


def _span(view: Mapping[str, Any]) -> tuple[int, int]:
    """Return the first byte of a view in its storage, and the one behind its last."""
    size = NAMED[view["dtype"]].itemsize
    last = view["offset"] + sum(max(n - 1, 0) * stride for n, stride in _axes(view))
    return view["offset"] * size, (last + 1) * size


def _overlaps_itself(view: Mapping[str, Any]) -> bool:
    (first, end), size, numbers = _span(view), NAMED[view["dtype"]].itemsize, math.prod(view["shape"])
    reach = 0
    for stride, n in sorted((stride, n) for n, stride in _axes(view)):
        if stride <= reach:
            break
        reach += (n - 1) * stride
    else:
        return False
    return numbers * size > end - first or np.count_nonzero(_marks(view)) < numbers * size


def _meet(view: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two views of one storage share a byte."""
    (first, end), (other_first, other_end) = _span(view), _span(other)
    if end <= other_first or other_end <= first:
        return False
    both = slice(max(first, other_first), min(end, other_end))
    return bool((_marks(view)[both] & _marks(other)[both]).any())


def _marks(view: Mapping[str, Any]) -> np.ndarray:
    """Return ones where the bytes of a view lie in its storage, and zeros in front of them and between."""
    (first, end), size = _span(view), NAMED[view["dtype"]].itemsize
    marks = blank(end)
    window(torch.from_numpy(marks)[first:], view["shape"], view["strides"], size).fill_(1)
    return marks
