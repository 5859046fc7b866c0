"""Elements that a shift by too many bits left undefined: they are harmless where nothing chooses them."""

from __future__ import annotations

from typing import Any

import torch

from .arithmetic import BINARY, CASTS, UNARY
from .blocks import fail_undefined, shaping
from .ttir import DIVISIONS, Module, Op

Machine = Any  # of machine.py, which imports this
SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")
MOVES = ("tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.splat", "tt.trans")
ON_ELEMENTS = {*BINARY, *UNARY, *CASTS, "arith.cmpf", "arith.cmpi", "math.fma", "tt.addptr", "tt.clampf"}
MASKS = {"tt.load": 1, "tt.store": 2}  # which operand is it


def find(module: Module) -> tuple[frozenset[int], list[Op]]:
    """Return the shifts by what is not known of which selects and masks alone see the results, by number; and the ways.

    These are the operations from there to the selects and the accesses, all of them included.
    """
    known = {name for op in module.ops if op.name == "arith.constant" for name in op.results} | module.loaded
    shifts = [op for op in module.ops if op.name in SHIFTS and op.operands[1] not in known]
    seen: set[str] = set()  # by others
    before = -1
    while shifts and len(seen) > before:
        before = len(seen)
        for op in reversed(module.ops):
            leads = not seen.issuperset(op.results)
            mine = {name for name in op.operands if _may_leave_out(op, name) or (leads and _hands_on(op, name))}
            seen.update({*op.operands, *op.reads}.difference(mine), op.reads)
    kept = frozenset(op.number for op in shifts if op.results[0] not in seen)
    names = {op.results[0] for op in shifts if op.number in kept}
    ways: dict[int, Op] = {}
    before = -1
    while len(ways) > before:
        before = len(ways)
        for op in module.ops:
            if op.number in kept or not names.isdisjoint(op.operands):
                ways[op.number] = op
                names.update(op.results if any(_hands_on(op, name) for name in names.intersection(op.operands)) else ())
    return kept, [*ways.values()]


def _hands_on(op: Op, name: str) -> bool:
    return op.name in MOVES or (op.name in ON_ELEMENTS and not (op.name in DIVISIONS and op.operands[1] == name))


def _may_leave_out(op: Op, name: str) -> bool:
    if op.name == "arith.select":
        return op.operands[0] != name
    place = MASKS.get(op.name)
    if place is None or name in op.operands[place:]:
        return False
    return bool(op.attrs["operandSegmentSizes"][1]) if op.name == "tt.load" else len(op.operands) > place


def carried(rule: Any, machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> Any:
    """Run an operation on the way; fail where it chooses what is undefined."""
    given = [machine.undefined.get(name) for name in op.operands]
    ends = op.name == "arith.select" or op.name in MASKS
    for found, chosen in zip(given, _chosen(op, args), strict=True) if ends else ():
        if found is not None:
            where, shift = found
            fail_undefined(machine, shift, _of_programs(where & chosen))
    for name in op.results:
        machine.undefined.pop(name, None)
    out = rule[0](machine, op, args, env) if rule.__class__ is tuple else rule(*args)
    for where, shift in [] if ends else filter(None, given):
        where = shaping(op)(where) if op.name in MOVES else where
        before, _ = machine.undefined.get(op.results[0], (where, shift))
        machine.undefined[op.results[0]] = where | before, shift
    return out


def _chosen(op: Op, args: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return of each operand which of its elements a select or a mask lets through."""
    if op.name != "arith.select":
        return [args[MASKS[op.name]]] * len(args)
    condition = args[0].reshape(*args[0].shape, *[1] * (args[1].dim() - args[0].dim()))
    return [condition, condition, ~condition]


def _of_programs(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(len(x), -1).any(1)
