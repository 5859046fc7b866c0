"""How much arithmetic with floats a kernel's blocks hold: what its machine code has to do at the least.

A compiler leaves out what it takes for known, or what nothing defines, where the emulator computes. Then the machine
code has less to do than what ran. What compilers may save is not counted: a number that is the same along an axis is
computed once along it, and one that is the same in each turn of a loop once for all turns.
"""

from __future__ import annotations

import math

from mla_ref.hardware.emulator.ttir import Block, Module, Op, Type

PLAIN = ("addf", "divf", "maximumf", "maxnumf", "minimumf", "minnumf", "mulf", "subf")
# Instructions at least for each element, and those of them that go to the unit of special functions. An instruction
# takes four of the plain operations at most: a product and a sum, of two 16-bit numbers each.
COSTS: dict[str, tuple[float, float]] = {
    **{f"arith.{name}": (0.25, 0.0) for name in PLAIN},
    **{f"math.{name}": (1.0, 1.0) for name in ("exp", "exp2", "rsqrt")},
    **{f"math.{name}": (1.0, 0.0) for name in ("cos", "erf", "log", "log2", "sin", "sqrt")},
    **{f"tt.precise_{name}": (1.0, 0.0) for name in ("divf", "sqrt")},
    "math.fma": (0.5, 0.0),
    "tt.clampf": (0.5, 0.0),
}
LOOPS = ("scf.for", "scf.while")
Axes = frozenset[int]  # along which a value differs from element to element
# By the block that they stand in, and the block that they may be moved to: instructions, those of the unit of special
# functions, and FLOPs of products of matrices.
Amounts = tuple[float, float, float]
Work = dict[int, dict[int, Amounts]]
PASSES = 4  # over a function: what a loop carries may come to differ along an axis in a later turn


def work_of(module: Module) -> Work:
    """Return the work in each block of a module, by the identity of blocks."""
    found: Work = {}
    for function in filter(None, module.functions.values()):
        reader = _Reader(found)
        for _ in range(PASSES):
            known = dict(reader.axes)
            for block in function.blocks:
                first = block is function.blocks[0]
                reader.enter(block, [_all_axes(kind) if first else frozenset() for _, kind in block.args], 0)
                reader.read(block, [block])
            if known == reader.axes:
                break
    return found


class _Reader:
    """Goes through blocks; knows of each value by name the axes, and how many loops are around what it comes from."""

    def __init__(self, found: Work):
        self.found = found
        self.axes: dict[str, Axes] = {}
        self.depth: dict[str, int] = {}

    def enter(self, block: Block, axes: list[Axes], depth: int) -> None:
        for (name, _), each in zip(block.args, axes, strict=False):
            self.axes[name] = self.axes.get(name, frozenset()) | each
            self.depth[name] = depth

    def read(self, block: Block, homes: list[Block]) -> None:
        """Read a block; `homes` are the outermost one and the bodies of the loops around, the innermost last."""
        work = self.found[id(block)] = {}
        for op in block.ops:
            given = [self.axes.get(name, frozenset()) for name in op.operands]
            depth = max((self.depth.get(name, 0) for name in op.operands), default=0)
            if op.regions and op.name in (*LOOPS, "scf.if"):
                made, depth = self._inside(op, given, homes), len(homes) - 1
            else:
                made = [_made(op, given, kind) for kind in op.outs]
            if op.name.startswith(("tt.atomic", "tt.call")):
                depth = len(homes) - 1
            for name, axes in zip(op.results, made, strict=False):
                self.axes[name] = self.axes.get(name, frozenset()) | axes
                self.depth[name] = depth
            cost = _cost(op, self.axes.get(op.results[0], frozenset()) if op.results else frozenset())
            if any(cost):
                home = id(block if depth >= len(homes) - 1 else homes[depth])
                before = work.get(home, (0.0, 0.0, 0.0))
                work[home] = tuple(a + b for a, b in zip(before, cost, strict=True))

    def _inside(self, op: Op, given: list[Axes], homes: list[Block]) -> list[Axes]:
        """Read the regions of a loop or a branch; return the axes of its results."""
        loops, counter = op.name in LOOPS, [frozenset()] if op.name == "scf.for" else []
        inner = [block for region in op.regions for block in region]
        carried = given[3:] if counter else given
        made: list[Axes] = [frozenset() for _ in op.outs]
        for block in inner:
            if loops:
                self.enter(block, counter + carried, len(homes))
            self.read(block, [*homes, block] if loops else homes)
            passed = [self.axes.get(name, frozenset()) for name in block.ops[-1].operands] if block.ops else []
            passed = passed[1:] if block.ops and block.ops[-1].name == "scf.condition" else passed
            for each in inner if loops else ():
                self.enter(each, counter + passed, len(homes))
            made = [axes | more for axes, more in zip(made, passed, strict=False)] or made
        return made


def _cost(op: Op, axes: Axes) -> Amounts:
    if op.name == "tt.dot":
        return 0.0, 0.0, 2.0 * math.prod(op.ins[0].shape) * op.ins[1].shape[-1]
    plain, special = COSTS.get(op.name, (0.0, 0.0))
    if not plain:
        return 0.0, 0.0, 0.0
    elements = math.prod(op.outs[0].shape[axis] for axis in axes)
    return plain * elements, special * elements * (op.outs[0].element != "f64"), 0.0


def _all_axes(kind: Type) -> Axes:
    return frozenset(range(len(kind.shape)))


def _made(op: Op, given: list[Axes], kind: Type) -> Axes:
    """Return along which axes a result differs; none where that is not known."""
    every = _all_axes(kind)
    if op.name in ("tt.call", "tt.dot", "tt.make_range"):
        return every
    if not given or not any(given):
        return frozenset()
    if op.name == "tt.expand_dims":
        return frozenset(axis + (axis >= op.attrs["axis"]) for axis in given[0])
    if op.name == "tt.trans":
        return frozenset(n for n, axis in enumerate(op.attrs["order"]) if axis in given[0])
    if op.name == "tt.reduce":
        rest = (axis for axis in given[0] if axis != op.attrs["axis"])
        return frozenset(axis - (axis > op.attrs["axis"]) for axis in rest) & every
    if op.name == "tt.broadcast":
        return frozenset(axis for axis in given[0] if op.ins[0].shape[axis] > 1)
    if op.name in ("tt.reshape", "tt.join", "tt.cat", "tt.split"):
        whole = all(len(axes) == sum(n > 1 for n in at.shape) for axes, at in zip(given, op.ins, strict=True))
        return every if whole else frozenset()
    same = [axes for axes, at in zip(given, op.ins, strict=True) if at.shape == kind.shape]
    return frozenset().union(*same)
