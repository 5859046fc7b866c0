"""What Triton's compiler infers of the numbers in a block, by which it makes one access of several neighbours'.

Of each integer and pointer it knows, along each axis of the block, how many neighbours follow one another or are alike,
and a power of two that divides the first of each run. Some rules do not hold for all numbers: a kernel that relies on
one is right as it is written, and wrong on a GPU. Values that such a rule had a part in are told here, and an access by
them is looked at before it is believed. Of the others nothing is looked at.

Source: Triton 3.7, `lib/Analysis/AxisInfo.cpp`, and `LoadStoreOpToLLVM.cpp` on the width of an access. Of sums Triton
3.6 infers more than holds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton

from . import faults
from .arithmetic import storage_dtype
from .ttir import DTYPE_BITS, Block, Function, Module, Op, Type, parse_constant

Machine = Any  # of machine.py, which imports this
MOST = 1 << 62  # what divides 0
TRUE_OF_SUMS = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7)
WIDEST = 16  # bytes of an access of one thread, and what the compiler knows of an aligned argument
ACCESSES = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")
HINTS = {"tt.contiguity": "max_contiguous", "tt.constancy": "max_constancy", "tt.divisibility": "multiple_of"}
LESS, NOT_LESS = (2, 6), (5, 9)  # predicates of a comparison, signed and unsigned
GREATER, NOT_GREATER = (4, 8), (3, 7)
# What is said of the operations to blame, and what to do
CAUSES = {
    **dict.fromkeys(
        ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui"),
        ("a quotient or a remainder", "Take it of numbers above zero that count up by 1"),
    ),
    "tt.bitcast": (
        "a block of pointers that is cast to numbers of another width",
        "Cast the pointer before the offsets are added",
    ),
    "arith.shli": ("a shift by a number that is no constant", "Multiply, or shift by a tl.constexpr"),
}
OTHERS = "numbers that count up in parts", "Write the offsets as sums of tl.arange and of one number"


@dataclass(frozen=True, slots=True)
class Axes:
    """What is inferred of a value.

    Attributes
    ----------
    contiguity, divisibility, constancy
        Along each axis; a scalar has one: of how many neighbours each group counts up by 1, by which power of two the
        first of each run can be divided, and of how many neighbours each group is alike.
    value
        The constant that all are.
    doubts
        The numbers of the operations by rules that do not hold for all numbers.
    """

    contiguity: tuple[int, ...]
    divisibility: tuple[int, ...]
    constancy: tuple[int, ...]
    value: int | None = None
    doubts: frozenset[int] = frozenset()

    @property
    def each(self) -> Iterator[tuple[int, int, int]]:
        """Contiguity, divisibility and constancy, axis by axis."""
        return zip(self.contiguity, self.divisibility, self.constancy, strict=True)


def _step(kind: Type) -> int:
    """Return the bytes from one element behind a pointer to the next; 1 of an integer or an unknown type."""
    try:
        return storage_dtype(kind.pointee).itemsize if kind.pointee else 1
    except KeyError:
        return 1


def _dividing(value: int) -> int:
    return min(value & -value, MOST) if value else MOST


def _known(value: int, constancy: Sequence[int], doubts: frozenset[int] = frozenset()) -> Axes:
    count = len(constancy)
    return Axes((1,) * count, (_dividing(value),) * count, tuple(constancy), value, doubts)


def _nothing(kind: Type) -> Axes:
    ones = (1,) * max(1, len(kind.shape))
    return Axes(ones, ones, ones)


def _made(axes: Sequence[tuple[int, int, int]], op: Op, doubtful: bool, *given: Axes) -> Axes:
    doubts = frozenset().union(*(each.doubts for each in given), {op.number} if doubtful else ())
    return Axes(*zip(*axes, strict=True), None, doubts)


# The rules, by operation


def _sum(op: Op, x: Axes, y: Axes) -> Axes:
    step, less = _step(op.ins[0]), op.name == "arith.subi"
    doubtful, axes = False, []
    for (cx, dx, kx), (cy, dy, ky) in zip(x.each, y.each, strict=True):
        runs = math.gcd(cx, ky) if less else max(math.gcd(kx, cy), math.gcd(cx, ky))
        by = math.gcd(dx, min(dy * step, MOST))
        true = by  # parts of a run begin at other numbers than it does
        if cx > 1 and cy > 1:
            true = by if less and cx == cy else math.gcd(by, 2)
        elif cx > 1 or cy > 1:
            true = math.gcd(by, runs * step)
        doubtful |= by > true and not TRUE_OF_SUMS
        axes.append((runs, true if TRUE_OF_SUMS else by, math.gcd(kx, ky)))
    return _made(axes, op, doubtful, x, y)


def _product(op: Op, x: Axes, y: Axes) -> Axes:
    axes = []
    for (cx, dx, kx), (cy, dy, ky) in zip(x.each, y.each, strict=True):
        runs = max(cx if y.value == 1 else 1, cy if x.value == 1 else 1)
        by = (1 if cx > 1 and y.value != 1 else dx) * (1 if cy > 1 and x.value != 1 else dy)
        axes.append((runs, min(by, MOST), math.gcd(kx, ky)))
    return _made(axes, op, False, x, y)


def _quotient(op: Op, x: Axes, y: Axes) -> Axes:
    axes, shape = [], op.outs[0].shape
    for axis, ((cx, dx, kx), (_, dy, ky)) in enumerate(zip(x.each, y.each, strict=True)):
        alike = math.gcd(kx, ky) if shape else 1
        if shape and cx == shape[axis] and ky == shape[axis]:
            alike = max(alike, math.gcd(cx, dx, dy))
        by = dx if y.value == 1 or x.value == 0 else 1
        if y.value and y.value != 1 and abs(y.value).bit_count() == 1 and cx == 1:
            by = max(1, dx // abs(y.value))
        axes.append((cx if y.value == 1 else 1, by, alike))
    return _made(axes, op, True, x, y)


def _remainder(op: Op, x: Axes, y: Axes) -> Axes:
    axes, shape = [], op.outs[0].shape
    for axis, ((cx, dx, kx), (_, dy, ky)) in enumerate(zip(x.each, y.each, strict=True)):
        whole = shape and cx == shape[axis] and ky == shape[axis]
        alike = (shape[axis] if y.value == 1 else math.gcd(kx, ky)) if shape else 1
        axes.append((math.gcd(cx, dx, dy) if whole else 1, math.gcd(dx, dy) if ky > 1 else 1, alike))
    return _made(axes, op, True, x, y)


def _shifted_left(op: Op, x: Axes, y: Axes) -> Axes:
    axes, shift = [], y.value or 0
    for (cx, dx, kx), (_, _, ky) in zip(x.each, y.each, strict=True):
        by = 1 if cx > 1 and shift else dx
        axes.append((cx if y.value == 0 else 1, min(by << min(max(shift, 0), 62), MOST), math.gcd(kx, ky)))
    return _made(axes, op, y.value is None, x, y)


def _shifted_right(op: Op, x: Axes, y: Axes) -> Axes:
    axes, shift = [], y.value
    for (cx, dx, kx), (_, _, ky) in zip(x.each, y.each, strict=True):
        by = 1 if shift is None or (cx > 1 and shift) else max(1, dx >> min(max(shift, 0), 63))
        axes.append((cx if shift == 0 else 1, by, math.gcd(kx, ky)))
    return _made(axes, op, False, x, y)


def _bits(op: Op, x: Axes, y: Axes) -> Axes:
    return _made([(1, 1, math.gcd(kx, ky)) for kx, ky in zip(x.constancy, y.constancy, strict=True)], op, False, x, y)


def _first_of_runs(cx: int, dx: int, cy: int, dy: int) -> int:
    """What divides the first of each run of numbers that are of one value or another."""
    return math.gcd(dx, dy) if cx == cy else math.gcd(dx, dy, cx, cy)


def _larger(op: Op, x: Axes, y: Axes) -> Axes:
    axes = [
        (math.gcd(cx, cy), _first_of_runs(cx, dx, cy, dy), math.gcd(kx, ky))
        for (cx, dx, kx), (cy, dy, ky) in zip(x.each, y.each, strict=True)
    ]
    return _made(axes, op, False, x, y)


def _chosen(op: Op, on: Axes, x: Axes, y: Axes) -> Axes:
    if on.value is not None:
        found = x if on.value else y
        return replace(found, doubts=found.doubts | on.doubts)
    groups = on.constancy if op.ins[0].shape else (0,) * len(x.contiguity)
    doubtful, axes = False, []
    for k, (cx, dx, kx), (cy, dy, ky) in zip(groups, x.each, y.each, strict=True):
        runs, by = math.gcd(cx, cy, k), _first_of_runs(cx, dx, cy, dy)
        doubtful |= runs < math.gcd(cx, cy) and by > runs
        axes.append((runs, by, math.gcd(kx, ky, k)))
    found = _made(axes, op, doubtful, on, x, y)
    return replace(found, value=x.value) if x.value is not None and x.value == y.value else found


def _compared(op: Op, x: Axes, y: Axes) -> Axes:
    axes, shape, how = [], op.outs[0].shape, op.attrs["predicate"]
    for axis, ((cx, dx, kx), (cy, dy, ky)) in enumerate(zip(x.each, y.each, strict=True)):
        alike = math.gcd(kx, ky)
        if shape and how in GREATER + NOT_GREATER and kx == shape[axis]:
            alike = max(alike, math.gcd(cy, dx, dy))
        elif shape and how in LESS + NOT_LESS and ky == shape[axis]:
            alike = max(alike, math.gcd(cx, dx, dy))
        axes.append((1, 1, alike if shape else 1))
    return _made(axes, op, False, x, y)


def _loaded(op: Op, address: Axes, *rest: Axes) -> Axes:
    mask = rest[0].constancy if rest else (0,) * len(address.constancy)
    axes = [(1, 1, math.gcd(k, m)) for k, m in zip(address.constancy, mask, strict=True)]
    others = rest[1].constancy if len(rest) > 1 else ()
    doubtful = any(math.gcd(k, o) < k for (_, _, k), o in zip(axes, others, strict=False))
    return _made(axes, op, doubtful, address, *rest)


def _cast(op: Op, x: Axes) -> Axes:
    steps = [_step(kind) for kind in (op.ins[0], op.outs[0])]
    wraps = op.name in ("arith.trunci", "arith.extui") and max(x.contiguity) > 1
    doubtful = wraps or (steps[0] != steps[1] and max(x.contiguity) > 1)
    return replace(x, doubts=x.doubts | {op.number}) if doubtful else x


def _counted(op: Op) -> Axes:
    start, end = op.attrs["start"], op.attrs["end"]
    return Axes((end - start,), (_dividing(start),), (1,))


def _constant(op: Op) -> Axes:
    value, kind = parse_constant(op.attrs["value"], op.outs[0].element), op.outs[0]
    if isinstance(value, list) or not kind.element.startswith("i"):
        return _nothing(kind)
    return _known(int(value) % (1 << DTYPE_BITS[kind.element]), kind.shape or (1,))


def _splat(op: Op, x: Axes) -> Axes:
    shape = op.outs[0].shape
    return Axes((1,) * len(shape), x.divisibility[:1] * len(shape), tuple(shape), x.value, x.doubts)


def _with_axis(op: Op, x: Axes) -> Axes:
    at = op.attrs["axis"]
    by = math.gcd(*(1 if c > 1 else d for c, d, _ in x.each)) if x.value is None else _dividing(x.value)
    wider = [(*each[:at], one, *each[at:]) for each, one in ((x.contiguity, 1), (x.divisibility, by), (x.constancy, 1))]
    return Axes(*wider, x.value, x.doubts)


def _turned(op: Op, x: Axes) -> Axes:
    turned = [tuple(each[n] for n in op.attrs["order"]) for each in (x.contiguity, x.divisibility, x.constancy)]
    return Axes(*turned, x.value, x.doubts)


def _broadcast(op: Op, x: Axes) -> Axes:
    axes = zip(x.each, op.ins[0].shape, op.outs[0].shape, strict=True)
    found = [(1, d, to) if of == 1 else (c, d, k) for (c, d, k), of, to in axes]
    return Axes(*zip(*found, strict=True), x.value, x.doubts)


OF_CONSTANTS: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda x, y: x + y,
    "arith.subi": lambda x, y: x - y,
    "arith.muli": lambda x, y: x * y,
    "arith.andi": lambda x, y: x & y,
    "arith.ori": lambda x, y: x | y,
    "arith.xori": lambda x, y: x ^ y,
}
RULES: dict[str, Callable[..., Axes]] = {
    **dict.fromkeys(("tt.addptr", "arith.addi", "arith.subi"), _sum),
    "arith.muli": _product,
    **dict.fromkeys(("arith.divsi", "arith.divui"), _quotient),
    **dict.fromkeys(("arith.remsi", "arith.remui"), _remainder),
    "arith.shli": _shifted_left,
    **dict.fromkeys(("arith.shrsi", "arith.shrui"), _shifted_right),
    **dict.fromkeys(("arith.andi", "arith.ori", "arith.xori"), _bits),
    **dict.fromkeys(("arith.maxsi", "arith.maxui", "arith.minsi", "arith.minui"), _larger),
    "arith.select": _chosen,
    "arith.cmpi": _compared,
    "tt.load": _loaded,
    **dict.fromkeys(("arith.extsi", "arith.extui", "arith.trunci", "tt.bitcast", "ttg.convert_layout"), _cast),
    "tt.make_range": _counted,
    "arith.constant": _constant,
    "tt.splat": _splat,
    "tt.expand_dims": _with_axis,
    "tt.broadcast": _broadcast,
    "tt.trans": _turned,
}


def hints(op: Op) -> dict[str, tuple[int, ...]]:
    """Return what a kernel says of an operation's result by name: a number for each axis."""
    said = {name: re.findall(r"-?\d+", op.attrs[name].partition(" : ")[0]) for name in HINTS if name in op.attrs}
    rank = max(1, len(op.outs[0].shape)) if op.outs else 1
    return {name: tuple(map(int, found * rank if len(found) == 1 else found)) for name, found in said.items()}


def _inferred(op: Op, given: Sequence[Axes]) -> Axes:
    """Return what is inferred of an operation's result."""
    kind = op.outs[0]
    rule = RULES[op.name]
    if kind.pointee is None and not kind.element.startswith("i"):
        return _nothing(kind)
    if op.name in OF_CONSTANTS and None not in (given[0].value, given[1].value):
        value = OF_CONSTANTS[op.name](given[0].value, given[1].value)
        alike = map(max, given[0].constancy, given[1].constancy)
        found = _known(value, tuple(alike), given[0].doubts | given[1].doubts)
    else:
        found = rule(op, *given)
    return _hinted(op, found)


def _hinted(op: Op, found: Axes) -> Axes:
    """Return what a kernel says of a result in place of what is inferred. It was seen to hold, but of a `tl.where`."""
    said = {name.removeprefix("tt."): values for name, values in hints(op).items()}
    doubts = {op.number} if said and op.name == "arith.select" else ()
    return replace(found, **said, doubts=found.doubts.union(doubts)) if said else found


def _joined(x: Axes | None, y: Axes | None) -> Axes | None:
    """Return what is known of a value that is one or the other; None stands for one that does not come."""
    if x is None or y is None:
        return x or y
    axes = [
        (math.gcd(cx, cy), _first_of_runs(cx, dx, cy, dy), math.gcd(kx, ky))
        for (cx, dx, kx), (cy, dy, ky) in zip(x.each, y.each, strict=True)
    ]
    value = x.value if x.value == y.value else None
    return Axes(*zip(*axes, strict=True), value, x.doubts | y.doubts)


# Over a whole module

Key = tuple[int, str]  # the scope that a name is of, as regions side by side may have the same names, and the name


class Analysis:
    """What is inferred of all values of a module, whose `aligned` parameters are multiples of 16.

    Attributes
    ----------
    given
        Of each operation that was reached, by number, what is known of its operands; None of what never comes.
    """

    def __init__(self, module: Module, aligned: frozenset[int]):
        self.found: dict[Key, Axes] = {}
        self.given: dict[int, list[Axes | None]] = {}
        self.functions, self.names, self.captured, self.changed = module.functions, {}, [], True
        for number, (key, (_, kind)) in enumerate(
            zip(self._args(module.main), module.main.blocks[0].args, strict=True)
        ):
            known = _nothing(kind)
            self.found[key] = replace(known, divisibility=(WIDEST,)) if number in aligned else known
        while self.changed:
            self.changed = False
            for function in filter(None, module.functions.values()):
                scope = id(function)
                targets = {each.name: [(scope, name) for name, _ in each.args] for each in function.blocks}
                self.names = {name: (scope, name) for each in function.blocks for name in _bound(each)}
                for block in function.blocks:
                    self._visit(block, [], scope)
                    self._branch(block.ops[-1], targets)

    def _args(self, owner: Function | Block) -> list[Key]:
        block = owner if isinstance(owner, Block) else owner.blocks[0]
        return [(id(owner), name) for name, _ in block.args]

    def _known(self, name: str) -> Axes | None:
        return self.found.get(self.names.get(name, (0, name)))

    def _join(self, key: Key, more: Axes | None) -> None:
        before = self.found.get(key)
        after = _joined(before, more)
        if after is not None and after != before:
            self.found[key], self.changed = after, True

    def _into(self, keys: Sequence[Key], given: Sequence[str]) -> None:
        for key, name in zip(keys, given, strict=False):
            self._join(key, self._known(name))

    def _branch(self, tail: Op, targets: dict[str, list[Key]]) -> None:
        """Join what the end of a block passes on to others: an early return makes such."""
        if tail.name == "cf.br":
            self._into(targets[tail.successors[0]], tail.operands)
        elif tail.name == "cf.cond_br":
            _, to_first, _ = tail.attrs["operandSegmentSizes"]
            self._into(targets[tail.successors[0]], tail.operands[1 : 1 + to_first])
            self._into(targets[tail.successors[1]], tail.operands[1 + to_first :])

    def _enter(self, block: Block, targets: Sequence[Sequence[Key]] = ()) -> None:
        """Go through a block of a region, of which what the last operation passes on goes to the targets."""
        before, self.names = self.names, self.names | {name: (id(block), name) for name in _bound(block)}
        self._visit(block, targets, id(block))
        self.names = before

    def _visit(self, block: Block, targets: Sequence[Sequence[Key]], scope: int) -> None:
        for op in block.ops:
            results = [(scope, name) for name in op.results]
            first = [region[0] for region in op.regions]
            if op.name == "scf.for":
                self._loop(op, first[0], results)
            elif op.name == "scf.while":
                self._into(self._args(first[0]), op.operands)
                self._enter(first[0], [self._args(first[1]), results])
                self._enter(first[1], [self._args(first[0])])
            elif op.name == "scf.if":
                for each in first:
                    self._enter(each, [results])
            elif op.name in ("scf.yield", "scf.condition"):
                for keys in targets:
                    self._into(keys, op.operands[op.name == "scf.condition" :])
            elif op.regions:
                self._others(op)
                self._give_up(op, results)
            elif op.name in RULES or op.name in ACCESSES:
                given = self.given[op.number] = [self._known(name) for name in op.operands]
                if op.name in RULES and None not in given:
                    self._join(results[0], _inferred(op, given))
                elif op.name not in RULES:
                    self._give_up(op, results)
            else:
                callee = self.functions.get(op.attrs.get("callee")) if op.name == "tt.call" else None
                self._into(self._args(callee) if callee else [], op.operands)
                self._give_up(op, results)

    def _loop(self, op: Op, body: Block, results: Sequence[Key]) -> None:
        low, _, step, *first = op.operands
        (counter, *carried), bounds = self._args(body), [self._known(low), self._known(step)]
        if None not in bounds:
            by = math.gcd(*(each.divisibility[0] for each in bounds))
            self._join(counter, Axes((1,), (by,), (1,), None, bounds[0].doubts | bounds[1].doubts))
        self._into(carried, first)
        self._into(results, first)
        self._enter(body, [carried, results])

    def _others(self, op: Op) -> None:
        """Go through an operation with regions that is no control flow: a reduction, or warps of several kinds."""
        warps = op.name.startswith("ttg.warp_specialize")
        if warps:
            self.captured = op.operands or self.captured  # in some versions they are the outer of two operations'
        for block in (each for region in op.regions for each in region):
            if warps:
                self._into(self._args(block), self.captured)
            for key, (_, kind) in zip(self._args(block), () if warps else block.args, strict=False):
                self._join(key, _nothing(kind))
            self._enter(block)

    def _give_up(self, op: Op, results: Sequence[Key]) -> None:
        for key, kind in zip(results, op.outs, strict=True):
            self._join(key, _hinted(op, _nothing(kind)) if len(results) == 1 else _nothing(kind))


def _bound(block: Block) -> list[str]:
    return [name for name, _ in block.args] + [name for op in block.ops for name in op.results]


# Of an access the axes along which one thread takes several neighbours at once, and how many; and who is to blame
Groups = tuple[list[tuple[int, int]], frozenset[int]]


def inferred(module: Module, aligned: frozenset[int] = frozenset()) -> dict[int, Groups]:
    """Return what the compiler infers of each access to a block, by number, if these parameters are multiples of 16."""
    known, found = Analysis(module, aligned).given, {}
    for op in module.ops:
        if op.name not in ACCESSES or not op.ins[0].shape or (given := known.get(op.number, [None]))[0] is None:
            continue
        address, mask = given[0], dict(enumerate(given)).get(_mask_of(op))
        size, groups = _step(op.ins[0]), []
        for axis, (runs, by, _) in enumerate(address.each):
            count = min(runs, max(1, by // size), WIDEST // size, op.ins[0].shape[axis])
            count = min(count, mask.constancy[axis]) if mask else count
            if count > 1:
                groups.append((axis, 1 << count.bit_length() - 1))
        found[op.number] = groups, address.doubts | (mask.doubts if mask else frozenset())
    return found


def doubted(module: Module, aligned: frozenset[int]) -> dict[int, Groups]:
    """Return those of which it infers it by a rule that does not hold for all numbers."""
    return {number: each for number, each in inferred(module, aligned).items() if all(each)}


def _mask_of(op: Op) -> int | None:
    """Return which operand of an access is its mask, if it has one; atomic exchanges by comparison have none."""
    return {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}.get(op.name)


def look(machine: Machine, op: Op, address: torch.Tensor, mask: torch.Tensor | None) -> None:
    """Fail if the compiler makes one access of elements that are no neighbours, or of which a mask leaves some out."""
    shape, size = op.ins[0].shape, _step(op.ins[0])
    address = machine.full(address, shape)
    groups, doubts = machine.kernel.doubted[op.number]
    for axis, count in groups:
        places = address.unflatten(axis + 1, (-1, count)).movedim(axis + 2, -1)
        first, steps = places[..., :1], size * torch.arange(count)
        wrong = ((places != first + steps) | (first % (size * count) != 0)).any(-1)
        if mask is not None:
            on = mask.expand(len(mask), *shape).unflatten(axis + 1, (-1, count)).movedim(axis + 2, -1)
            wrong = (wrong & on.any(-1)) | (on.any(-1) & ~on.all(-1))
        wrong = wrong.flatten(1).any(1) & machine.programs_on()
        if bool(wrong.any()):
            blamed = max((each for each in machine.kernel.module.ops if each.number in doubts), key=lambda o: o.number)
            (cause, advice), who = CAUSES.get(blamed.name, OTHERS), int(wrong.to(torch.uint8).argmax())
            said = (
                f"from {cause}{machine.source(blamed)} Triton's compiler infers that each {count} elements here are "
                f"aligned neighbours under one mask, and they are not: a GPU takes others. {advice}"
            )
            machine.fail(faults.Miscompiled, op, f"{said}; program {machine.program(who)}")
