"""A kernel cut down to what its control flow hangs on: the operations that make conditions and bounds of loops.

These are mostly numbers. So all programs of a launch run together, and tell how often each runs which block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .machine import Kernel
from .ttir import Block, Function, Module, Op, Type, find_dead, pairs_of

CHUNK = 1 << 22  # elements of the widest block over all programs that run together: it has few operations
NOTHING = "%nothing"  # stands for a value that control flow does not hang on
NUMBER = Type((), "i32")
FLOW = ("scf.for", "scf.if", "scf.while")
UNKNOWN = ("tt.atomic", "tt.call")


def cut(kernel: Kernel) -> tuple[Kernel, dict[int, Block]] | None:
    """Return a kernel of the same control flow and nothing else, and which block each of its blocks is, by identity.

    None for a kernel in Gluon, and where control flow hangs on an atomic operation or a function that was not inlined.
    """
    main = kernel.module.main
    if kernel.shares or any(each is not None and each is not main for each in kernel.module.functions.values()):
        return None
    needed = _needed(main)
    if any(op.name.startswith(UNKNOWN) and needed.intersection(op.results) for op in _all(main)):
        return None
    was: dict[int, Block] = {}
    nothing = Op("arith.constant", [], [NOTHING], {"value": 0}, [], outs=[NUMBER])
    ops = [nothing]

    def lean(block: Block) -> Block:
        found = Block(block.name, block.args)
        was[id(found)] = block
        for op in block.ops:
            flows = op.name in FLOW
            if flows or op is block.ops[-1] or needed.intersection(op.results):
                given = [name if name in needed else NOTHING for name in op.operands]
                regions = [[lean(each) for each in region] for region in op.regions] if flows else op.regions
                kinds = [kind if name in needed else NUMBER for name, kind in zip(op.results, op.outs, strict=True)]
                found.ops.append(dataclasses.replace(op, operands=given, outs=kinds, regions=regions))
        ops.extend(found.ops)
        return found

    blocks = [lean(block) for block in main.blocks]
    blocks[0].ops.insert(0, nothing)
    for block in blocks:
        find_dead(block)
        for op in block.ops:  # blocks read each other's values
            op.dead = ()
    function = Function(main.name, True, blocks)
    return Kernel(Module(function, {main.name: function}, ops), kernel.name, CHUNK), was


def _needed(main: Function) -> set[str]:
    """Return the values that control flow hangs on."""
    ops, needed, before = [*_all(main)], set[str](), -1
    for op in ops:
        if op.name == "scf.for":
            needed.update(op.operands[:3])
        elif op.name in ("scf.if", "scf.condition"):
            needed.add(op.operands[0])
        elif op.successors:
            needed.update(op.operands)
    while len(needed) > before:
        before = len(needed)
        for op in reversed(ops):
            if op.name in FLOW:
                needed.update(value for pairs in pairs_of(op) for value, name in pairs if name in needed)
            elif needed.intersection(op.results):
                needed.update(op.operands, op.reads)
    return needed


def _all(main: Function) -> Iterator[Op]:
    """Yield all operations but those inside of reductions and the like."""

    def inside(block: Block) -> Iterator[Op]:
        for op in block.ops:
            yield op
            for each in (each for region in op.regions if op.name in FLOW for each in region):
                yield from inside(each)

    for block in main.blocks:
        yield from inside(block)
