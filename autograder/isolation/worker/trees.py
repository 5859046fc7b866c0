"""Nested arguments and results: what to do with the tensors in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

PLAIN = frozenset((type(None), bool, int, float, str))  # types that hold nothing else


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value, in order."""
    found: list[torch.Tensor] = []
    mapped(value, found.append)
    return found


def holds(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a nested value is or holds one of these types."""
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, kinds) or (isinstance(value, list | tuple) and any(holds(each, kinds) for each in value))


def by_name(value: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors of nested arguments: `x`, `pair[0]`, `table[key]`."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = enumerate(value) if isinstance(value, list | tuple) else value.items() if isinstance(value, dict) else ()
    found = {}
    for key, each in items:
        found |= by_name(each, f"{name}[{key}]" if name else str(key))
    return found


def mapped(value: Any, leaf: Callable[[Any], Any], stand_ins: tuple[str, ...] = ()) -> Any:
    """Return a nested value with `leaf` applied to its tensors.

    With `stand_ins`, apply `leaf` to each dict whose only key is one of these, in place of tensors.
    """
    if type(value) in PLAIN:  # nearly all there is
        return value
    found = isinstance(value, dict) and len(value) == 1 and next(iter(value)) in stand_ins
    if found if stand_ins else isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, dict):
        return {k: mapped(v, leaf, stand_ins) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(mapped(v, leaf, stand_ins) for v in value)
    return value
