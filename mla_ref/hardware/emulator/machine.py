"""Run a kernel's module over a grid: all programs at once, operation by operation, with torch.

A value has the programs in front, ``[P or 1, *block]``, and any axis is 1 where the value does not vary along it. Where
programs part ways, both ways run, each under the mask of its programs. Programs run together as many as keep the widest
block below ``CHUNK`` elements; in a kernel that waits in a loop for another program, one after the other.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import axes, blocks, carried, faults, gluon
from .access import ACQUIRE, ACQUIRE_RELEASE, EXCHANGE, KINDS, RMW, access, barrier, is_known, undefined
from .arithmetic import BITS, dtype_of, elementwise, storage_dtype
from .faults import raise_in
from .memory import Fills, Memory, Region
from .races import Shadow
from .ttir import Block, Function, Module, Op, Type, pairs_of

CHUNK = 1 << 17  # elements of the widest block over all programs that run together
STUCK = 1 << 10  # turns of a loop after which it is looked at whether they change anything
PATIENCE = 1 << 2  # the same where another program may run instead
GROUPS = 64  # one after the other in reversed order, at least
WARPS, STAGES = 4, 3  # of a launch that does not say
# What may give numbers where it is given NaN
DROPS_NAN = {"arith.cmpf", "arith.maxnumf", "arith.minnumf", "arith.fptosi", "arith.fptoui"}
DROPS_NAN |= {"tt.clampf", "tt.bitcast", "tt.atomic_rmw"}
# For which threads may hand elements to one another
EXCHANGES = {"tt.reshape", "tt.trans", "tt.gather", "tt.join", "tt.split", "tt.cat", "tt.histogram", "tt.dot"}
EXCHANGES |= {"tt.reduce", "tt.scan"}
PER_BLOCK = ("tt.map_elementwise", "tt.reduce", "tt.scan")  # have regions and are no control flow
ORDERS = ("forward", "reversed", "shuffled")
OF_FLOATS = {
    RMW.index("minui") + 1: RMW.index("maxsi") + 1,
    RMW.index("maxui") + 1: RMW.index("minsi") + 1,
}  # of two signs


Touched = tuple[Region, torch.Tensor, torch.Tensor | None]


class Watch:
    """What sees the operations of a launch as they run. By itself it sees nothing.

    Programs run in groups; `begin` and `end` enclose each. In reversed order a program that waits begins anew later.
    """

    def begin(self, machine: Machine) -> None:
        """See programs start: `machine.numbers`."""

    def end(self, machine: Machine) -> None:
        """See them end."""

    def access(self, machine: Machine, op: Op, mask: torch.Tensor | None, touched: Sequence[Touched]) -> None:
        """See an access about to happen.

        Parameters
        ----------
        mask
            Which elements of which programs take part; None if all do.
        touched
            Regions, each with int64 indices into it, in elements, and which of these count; None if all do. Tensors
            are to be broadcast to ``[P, *block]``.
        """

    def block(self, machine: Machine, block: Block) -> None:
        """See the operations of a block about to run, for the programs of `machine.active`."""

    def product(self, machine: Machine, op: Op) -> None:
        """See a `tl.dot`."""

    def exchange(self, machine: Machine, op: Op) -> None:
        """See a reduction, a scan or the like, for which threads exchange values."""

    def barrier(self, machine: Machine, op: Op) -> None:
        """See a barrier that the kernel asks for."""


@dataclass(frozen=True)
class Ahead:
    """What the compiler may do turns ahead in a loop.

    Attributes
    ----------
    stages
        For how many turns loads are on their way; None if the launch says so.
    loads
        The numbers of these.
    keeps
        Loops and barriers in it, any of which keeps the compiler from it; but it may find that one never runs.
    """

    stages: int | None
    loads: frozenset[int]
    keeps: frozenset[int]


@dataclass
class Kernel:
    """A module ready to run.

    Attributes
    ----------
    chunk
        Elements of the widest block over all programs that run together.
    sizes
        Bytes of each access, with the parameters that it may reach; None if these are not known.
    stored
        The parameters through which it stores, atomic operations included; None if that is not known.
    plain
        Those through which it loads or stores, but for atomic operations.
    ordered
        Whether it has atomic operations that order programs.
    least
        Bytes of the narrowest element of all blocks of a shape that it loads, stores or updates.
    widest
        Elements of its largest block.
    waits
        Whether it waits in a loop for what another program does.
    shares
        Whether it names shared memory, as kernels in Gluon do: its programs run one after the other.
    depends
        Whether a program reads what an atomic operation found or left, and so depends on which programs came before.
    programs_ordered
        Whether results may differ between orders of programs beyond rounding: it depends on who came before, or has
        atomic operations that do not commute. If not, they differ by races alone, and one launch shows these.
    order_matters
        Whether that is so, or functions of its own combine the elements of blocks.
    ahead
        The loops whose loads the compiler may do turns ahead, by number.
    flattened
        The loops within others that the compiler is asked to make one loop of, by the numbers of these.
    branched
        The accesses in branches, and those that come to be in one where two loops become one.
    spread
        The loads of which larger blocks, control flow or other threads use what they read: all threads do, if they are
        more than numbers.
    asked, unasked
        The atomic operations of which something uses the result; the others by kind, if there are several.
    drops_nan
        Whether NaN that it is given may not show in what it stores.
    described
        The accesses by tensor descriptors, if what a program stores may cross with one: which no barrier orders.
    awaited
        The shifts by too many bits that are harmless where a select or a mask leaves out what they give, by number.
    doubted
        Those that the launch under way looks at before it believes what the compiler infers (see `axes.doubted`).
    """

    module: Module
    name: str
    chunk: int = CHUNK

    def __post_init__(self):
        self.doubted: dict[int, axes.Groups] = {}
        self._doubts: dict[frozenset[int], dict[int, axes.Groups]] = {}
        accesses = [op for op in self.module.ops if op.name in KINDS]
        accesses += [gluon.as_access(op) for op in self.module.ops if op.name in gluon.COPIES]
        known = [op for op in accesses if is_known(op.ins[0].pointee)]
        self.taken_as = {(op.roots, storage_dtype(op.ins[0].pointee)) for op in known}
        self.sizes = {(storage_dtype(op.ins[0].pointee).itemsize, op.roots) for op in known}
        self.stored = _together(op.roots for op in accesses if op.name != "tt.load")
        self.plain = _together(op.roots for op in accesses if op.name in ("tt.load", "tt.store"))
        self.least: dict[tuple[int, ...], int] = {}
        for op in (each for each in known if not each.described):
            shape, size = tuple(op.ins[0].shape), storage_dtype(op.ins[0].pointee).itemsize
            self.least[shape] = min(size, self.least.get(shape, size))
        self.widest = max((math.prod(kind.shape) for op in self.module.ops for kind in op.outs), default=1)
        self.waits = any(op.name == "scf.while" and _has_atomic(op) for op in self.module.ops)
        self.shares = any(op.name in gluon.RULES for op in self.module.ops)
        for op in self.module.ops if self.shares else ():
            if not (op.value or op.name in gluon.RULES or op.name.startswith("scf.") or prepare(op) is PASS):
                op.value = (functools.partial(gluon.checked, op.value),)
        self.awaited, ways = carried.find(self.module)
        for op in ways:
            op.value = (functools.partial(carried.carried, op.value or prepare(op)),)
        atomics = [op for op in self.module.ops if op.name.startswith("tt.atomic")]
        read = {name for op in self.module.ops for name in op.operands}
        polls = bool(atomics) and any(op.attrs.get("isVolatile") for op in accesses)
        self.asked = {op.number for op in atomics if read.intersection(op.results)}
        alone: dict[Any, list[int]] = defaultdict(list)
        for op in atomics:
            if op.number not in self.asked and op.name == "tt.atomic_rmw":
                kind = op.attrs["atomic_rmw_op"]
                alone[OF_FLOATS.get(kind, kind)].append(op.number)
        self.unasked = [*alone.values()] if len(alone) > 1 else []
        self.depends = self.waits or polls or bool(self.asked)
        acquires = any(op.attrs.get("sem", ACQUIRE_RELEASE) in (ACQUIRE, ACQUIRE_RELEASE) for op in atomics)
        self.ordered = self.depends and acquires
        kinds = {op.attrs.get("atomic_rmw_op", EXCHANGE) for op in atomics}
        self.programs_ordered = self.depends or len(kinds) > 1 or EXCHANGE in kinds
        combined = (op for op in self.module.ops if op.name in ("tt.reduce", "tt.scan"))
        self.order_matters = self.shares or self.programs_ordered or not all(map(blocks.is_plain, combined))
        self.drops_nan = any(op.name in DROPS_NAN for op in self.module.ops)
        self.described = frozenset(op.number for op in accesses if op.described)
        loops = [op for op in self.module.ops if op.name == "scf.for"]
        within = {op.number: [each for each in op.regions[0][0].ops if each.name == "scf.for"] for op in loops}
        flat = {op.number: op for op in loops if "tt.flatten" in op.attrs}
        self.flattened = {number: {each.number for each in within[number]} for number in flat}
        around = {each.number: op for number, op in flat.items() for each in within[number]}
        ahead = {op.number: _ahead(op, around.get(op.number, op)) for op in loops}
        self.ahead = {number: each for number, each in ahead.items() if each.loads}
        self.spread = self._spread()
        branches = (op for op in self.module.ops if op.name == "scf.if")
        late = [inner for op in branches for inner in _inside(op)]
        for op in flat.values():
            outer = [each for each in op.regions[0][0].ops if each.name != "scf.for"]
            late += [inner for each in outer for inner in (each, *_inside(each))]
        self.branched = {op.number for op in late if op.name in KINDS}

    def doubts(self, aligned: frozenset[int]) -> dict[int, axes.Groups]:
        """Return the accesses to be looked at in a launch of which these parameters are multiples of 16."""
        if aligned not in self._doubts:
            self._doubts[aligned] = axes.doubted(self.module, aligned)
        return self._doubts[aligned]

    def _spread(self) -> set[int]:
        names: set[str] = set()
        before = -1
        while len(names) > before:
            before = len(names)
            for op in reversed(self.module.ops):
                names.update(name for values in pairs_of(op) for name, value in values if value in names)
                if op.name == "scf.condition":
                    names.add(op.operands[0])
                if op.name in ("tt.store", "scf.yield", "scf.condition"):
                    continue
                used = not names.isdisjoint(op.results) or op.name in EXCHANGES
                used |= bool(op.regions or op.successors) and op.name not in PER_BLOCK
                most = max((math.prod(kind.shape) for kind in op.outs), default=0)
                pairs = zip(op.operands, op.ins, strict=False)
                names.update(name for name, kind in pairs if used or most > math.prod(kind.shape))
        return {op.number for op in self.module.ops if op.name == "tt.load" and names.intersection(op.results)}

    def grain(self, op: Op) -> int:
        """Return the bytes of the elements by which the compiler spreads an access over the threads: 0 if not known.

        Those that it stores are its own. Those that it loads are the narrowest of all blocks of that shape.
        """
        if op.name.startswith("tt.atomic"):
            return 0
        own = storage_dtype(op.ins[0].pointee).itemsize
        return self.least.get(tuple(op.ins[0].shape), own) if op.name == "tt.load" else own

    @property
    def kinds(self) -> list[Type]:
        """The types of the parameters."""
        return [kind for _, kind in self.module.main.blocks[0].args]

    def launch(
        self,
        grid: Sequence[int],
        values: Sequence[Any],
        memory: Memory,
        programs: Iterable[int] | None = None,
        watch: Watch | None = None,
        races: bool = True,
        order: str = "forward",
        warps: int = WARPS,
        stages: int = STAGES,
        seed: int = 0,
    ) -> None:
        """Run programs of a grid.

        Programs run side by side and take their turns at an atomic operation in order. In reversed order, where that
        matters, they run one after the other, in a large grid some at a time, and their threads take other turns, too.
        In shuffled order those that run side by side are chosen by a seed, in two halves at least, and where they part
        ways, who goes on by `else` comes first. Of a kernel that waits in a loop threads take other turns then, too, so
        that this order tells all that the reversed one does.

        Where a kernel waits in a loop, they run one after the other always. One that waits in vain is a fault; in
        reversed order it begins anew when another has run, for on a GPU programs that wait for earlier ones are right.

        Parameters
        ----------
        grid
            Programs along x, y and z.
        values
            Of each parameter a number; of a pointer its address.
        memory
            What pointers may reach.
        programs
            Numbers of those to run, x + gx·(y + gy·z); all by default.
        watch
            Sees the operations.
        races
            Whether to raise where two programs touch one element, one of them writing, and nothing orders them.
        order
            "forward", "reversed" or "shuffled": a kernel is nondeterministic if its results differ. They do not unless
            the kernel's `order_matters`, or its `programs_ordered` for the last one.
        warps, stages
            Of a program, and of a loop that does not say how many: what threads may do to one another hangs on them.
        seed
            Of a shuffled order.

        Raises
        ------
        KernelFault
        ValueError
            Another order.
        """
        if Fills.current is not None:  # in Gluon the order of turns hardly matters, and each run takes long
            Fills.current.ordered |= self.order_matters and not self.shares
            Fills.current.drops_nan |= self.drops_nan
            for roots, kind in self.taken_as:
                for region in memory.candidates(roots):
                    Fills.current.kinds[region.low].add(kind)
        if order not in ORDERS:
            raise ValueError(f"the order of programs is {order!r}, expected one of {', '.join(ORDERS)}")
        whole = [n for n, value in enumerate(values) if isinstance(value, int) and value % axes.WIDEST == 0]
        self.doubted = self.doubts(frozenset(whole))
        total = math.prod(grid)
        chosen = range(total) if programs is None else list(programs)
        if order == "shuffled":
            chosen = random.Random(seed).sample(chosen, total if programs is None else len(chosen))
        elif order == "reversed":
            chosen = chosen[::-1]
        size = 1 if self.waits or self.shares else max(1, self.chunk // self.widest)
        if order == "reversed" and self.programs_ordered:
            size = min(size, -(-total // GROUPS))
        if order == "shuffled":
            size = min(size, -(-total // 2))
        of_kernel = self.described, self.unasked
        shadow = Shadow(total, memory, self.sizes, self.ordered, warps, stages, *of_kernel) if races else None
        kinds = [kind for _, kind in self.module.main.blocks[0].args]
        args = [
            value if isinstance(value, gluon.Descriptor) else _number(value, dtype_of(kind))
            for kind, value in zip(kinds, values, strict=True)
        ]

        def machine(first: int) -> Machine:
            numbers = torch.tensor(chosen[first : first + size], dtype=torch.int64)
            return Machine(self, grid, numbers, memory, shadow, watch, order)

        waiting: list[int] = []
        for first in range(0, len(chosen), size):
            if order == "forward" or not self.waits:
                machine(first).run(args)
            elif not machine(first).try_to_run(args):
                waiting.append(first)
            else:
                while waiting and machine(waiting[-1]).try_to_run(args):
                    waiting.pop()
        while waiting:
            done = next((first for first in reversed(waiting) if machine(first).try_to_run(args)), None)
            if done is None:
                machine(waiting[-1]).run(args)
            waiting.remove(done)


class Machine:
    """Some programs of a launch on their way through a kernel.

    Attributes
    ----------
    numbers
        int64 ``[P]``, the programs' numbers in the grid.
    active
        bool ``[P]``: who takes part in what runs now; None if all do.
    order
        Of programs. In "reversed" order the elements of a block come in another one, where a GPU takes them in any; so
        they do in "shuffled" order in a kernel that waits.
    """

    def __init__(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        numbers: torch.Tensor,
        memory: Memory,
        shadow: Shadow | None,
        watch: Watch | None,
        order: str = "forward",
    ):
        self.kernel, self.grid, self.numbers, self.order = kernel, tuple(grid), numbers, order
        self.backward = order == "reversed" or (order == "shuffled" and kernel.waits)
        self.memory, self.shadow, self.watch = memory, shadow, watch
        self.size = len(numbers)
        x, y, _ = self.grid
        self.ids = [i.to(torch.int32) for i in (numbers % x, numbers // x % y, numbers // (x * y))]
        self.active: torch.Tensor | None = None
        self.changes = 0  # of memory
        self.turning = 0  # loops that may turn without end, around what runs now
        self.at: Op | None = None
        self.patience, self.stuck = STUCK, False
        self.ahead: Ahead | None = None  # of the loop that turns now
        self.journal: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] | None = None
        self.undefined: dict[str, tuple[torch.Tensor, Op]] = {}  # where elements of a value are, and by which shift
        self.partition: gluon.Partition | None = None
        self.allocations: list[gluon.Allocation] = []  # of shared memory

    def try_to_run(self, args: Sequence[torch.Tensor]) -> bool:
        """Run the kernel, or return False and leave memory as it was if it waits for another program."""
        self.journal, self.patience = [], PATIENCE
        try:
            self.run(args)
        except faults.EndlessLoop:
            if not self.stuck:
                raise
            for flat, index, before in reversed(self.journal):
                flat[index] = before
            if self.shadow is not None:
                self.shadow.wait(self.numbers + 1)  # what it stored is gone
        return not self.stuck

    def remember(self, flat: torch.Tensor, index: torch.Tensor) -> None:
        """Note elements that are about to be written, if that may have to be undone."""
        if self.journal is not None:
            self.journal.append((flat, index, flat[index]))

    def run(self, args: Sequence[torch.Tensor]) -> None:
        """Run the kernel; raise a fault where it is."""
        try:
            if self.watch is not None:
                self.watch.begin(self)
            self.call(self.kernel.module.main, args)
            if self.partition is not None:
                gluon.finish(self)
            if self.watch is not None:
                self.watch.end(self)
        except faults.KernelFault:
            raise
        except KeyboardInterrupt as interrupt:
            if self.at is not None:
                interrupt.add_note(f"{self.kernel.name} was interrupted in line {self.at.line}{self.source(self.at)}")
            raise
        except (MemoryError, RuntimeError) as error:
            if self.at is not None and ("alloc" in str(error) or isinstance(error, MemoryError)):
                self.fail(faults.OutOfMemory, self.at, f"the blocks need more memory than there is ({error})")
            raise

    def call(self, function: Function, args: Sequence[torch.Tensor], outer: Any = ()) -> list[torch.Tensor]:
        """Run a function; return its results. ``outer`` are values by name that it sees besides its arguments."""
        first = function.blocks[0]
        env = {**dict(outer), **{name: value for (name, _), value in zip(first.args, args, strict=True)}}
        if len(function.blocks) == 1:
            return self.block(first, env)
        # Early returns make blocks that only lead onward: each runs under the mask of the programs that reach it.
        whole, found = self.active, None
        everyone = torch.ones(self.size, dtype=torch.bool) if whole is None else whole
        reach = {first.name: everyone}
        blocks = {block.name: block for block in function.blocks}
        for block in _in_order(function.blocks):
            on = reach.get(block.name)
            if on is None or not bool(on.any()):
                continue
            self.active = None if bool(on.all()) else on
            passed = self.block(block, env)
            tail = block.ops[-1]
            if tail.name == "tt.return":
                found = passed if found is None else self.merged(on, passed, found)
                continue
            ways = [(on, tail.successors[0], passed)]
            if tail.name == "cf.cond_br":
                _, to_first, _ = tail.attrs["operandSegmentSizes"]
                yes = self.programs(passed[0])
                ways = [(on & yes, tail.successors[0], passed[1 : 1 + to_first]),
                        (on & ~yes, tail.successors[1], passed[1 + to_first :])]  # fmt: skip
            for taken, name, values in ways:
                before = reach.get(name)
                reach[name] = taken if before is None else before | taken
                for (target, _), value in zip(blocks[name].args, values, strict=True):
                    env[target] = value if before is None else self.merged(taken, [value], [env[target]])[0]
        self.active = whole
        return found or []

    def block(self, block: Block, env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Run the operations of a block; return the operands of its last one."""
        if self.watch is not None:
            self.watch.block(self, block)
        for op in block.ops:
            run = op.value or prepare(op)
            args = [env[name] for name in op.operands]
            if run is PASS:
                return args
            if run.__class__ is tuple:  # looks at what surrounds it
                self.at = op
                out = run[0](self, op, args, env)
                if len(op.results) == 1:
                    out = out[0] if out.__class__ is list else out
                elif op.results:
                    env.update(zip(op.results, out, strict=True))
                    out = None
            else:
                try:
                    out = run(*args)
                except (MemoryError, RuntimeError) as error:
                    self.at = op
                    raise error
            if op.results and out is not None:
                env[op.results[0]] = out
            for name in op.dead:
                env.pop(name, None)
        return []

    # What others ask

    def programs(self, value: torch.Tensor) -> torch.Tensor:
        """Return a scalar of each program, ``[P]``."""
        return value.reshape(-1).expand(self.size)

    def full(self, x: torch.Tensor, shape: Sequence[int], programs: bool = False) -> torch.Tensor:
        """Return a value with all elements of its block, and on request of all programs."""
        return x.expand(self.size if programs else x.shape[0], *shape)

    def merged(self, on: torch.Tensor, new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the new values where programs are on, else the old."""
        if self.size == 1:
            return list(new)
        return [n if n is o else torch.where(on.reshape(-1, *[1] * (n.dim() - 1)), n, o)
                for n, o in zip(new, old, strict=True)]  # fmt: skip

    def program(self, index: int) -> str:
        """Return the ids of the program at an index, as a GPU counts them."""
        return str(tuple(int(ids[index]) for ids in self.ids))

    def source(self, op: Op) -> str:
        """Return the text of an operation's line, if it is known."""
        text = linecache.getline(op.place[0], op.line).strip()
        return f" (`{text[:120]}`)" if text else ""

    def fail(self, kind: type[faults.KernelFault], op: Op, said: str) -> None:
        """Raise a fault in the kernel's line."""
        raise_in(kind(said, self.kernel.name, op.place))

    # Control flow

    def loop(self, op: Op, args: list[torch.Tensor], env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        low, high, step, *carried = args
        steps, turns, distance = step.long(), high > low, high.long() - low
        distance = torch.where(turns & (distance < 0), 1 << 62, distance)  # more than 64 bits hold
        trips = torch.where(turns, (distance + steps - 1) // steps.clamp(min=1), 0).reshape(-1)
        stuck = (turns & (steps <= 0)).reshape(-1) & self.programs_on()
        if bool(stuck.any()):
            who = self.program(int(stuck.to(torch.uint8).argmax()))
            self.fail(faults.EndlessLoop, op, f"the loop turns without end: its step is not above 0; program {who}")
        most = (1 << BITS[low.dtype] - 1) - 1
        beyond = trips * steps.reshape(-1) - distance.reshape(-1)  # of what the last turn adds
        wraps = (turns & (high >= 0)).reshape(-1) & (beyond > most - high.long().reshape(-1)) & self.programs_on()
        if bool(wraps.any()):
            who = self.program(int(wraps.to(torch.uint8).argmax()))
            said = f"the loop turns without end: its next number is beyond {most}, the largest, and wraps"
            self.fail(faults.EndlessLoop, op, f"{said}; program {who}")
        if self.shadow is None or not bool(((trips > 0) & self.programs_on()).any()):
            return self.turns(op, 0, trips, low, step, carried, env)
        before, self.ahead = self.ahead, self.kernel.ahead.get(op.number)
        self.shadow.ran.add(op.number)
        for part in self.kernel.flattened.get(op.number, ()):
            self.shadow.begun.pop(part, None)
        if self.ahead:
            part = any(op.number in each for each in self.kernel.flattened.values())
            self.shadow.begin_loop(self.ahead.stages, op.number if part else None)
        found = self.turns(op, 0, trips, low, step, carried, env)
        if self.ahead:
            self.shadow.end_loop()
        self.ahead = before
        return found

    def turns(
        self, op: Op, first: int, trips: torch.Tensor, low: torch.Tensor, step: torch.Tensor,
        carried: list[torch.Tensor], env: dict[str, torch.Tensor],
    ) -> list[torch.Tensor]:  # fmt: skip
        """Run the turns of a loop from the first one on; ``trips`` tells how many each program takes."""
        body = op.regions[0][0]
        (counter, _), *names = body.args
        whole = self.active
        counted = trips if whole is None or len(trips) == 1 else trips[whole]
        least, most = int(counted.min()), int(counted.max())
        for turn in range(first, most):
            if turn >= least:  # some have ended
                trips = self.programs(trips)
                self.active = trips > turn if whole is None else (trips > turn) & whole
                if self.few(self.active):
                    places, inner = self.alone(self.active)
                    mine = {name: _picked(env[name], places) for name in op.reads if name in env}
                    bounds = [_picked(x, places) for x in (trips, low, step)]
                    new = inner.turns(op, turn, *bounds, [_picked(x, places) for x in carried], mine)
                    carried = self.rejoined(inner, places, new, carried)
                    break
            if self.ahead:
                self.shadow.turn_loop()
            self.look()
            env[counter] = low + turn * step
            env.update((name, value) for (name, _), value in zip(names, carried, strict=True))
            try:
                new = self.block(body, env)
            except TimeoutError as error:
                self.fail(faults.EndlessLoop, op, f"the loop was in turn {turn + 1} of {most} when {error}")
            carried = new if turn < least else self.merged(self.active, new, carried)
        self.active = whole
        return carried

    def look(self) -> None:
        """Stop if another partition of the program failed: a loop may turn for long."""
        if self.partition is not None and self.partition.turns is not None:
            self.partition.turns.look()

    def few(self, on: torch.Tensor) -> bool:
        """Return whether it pays to go on with some programs alone."""
        return self.size > 1 and 2 * int(torch.count_nonzero(on)) <= self.size

    def alone(self, on: torch.Tensor) -> tuple[torch.Tensor, Machine]:
        """Return the places of the programs that are on, and a machine of them."""
        places = on.nonzero().squeeze(1)
        shared = self.memory, self.shadow, self.watch, self.order
        inner = Machine(self.kernel, self.grid, self.numbers[places], *shared)
        inner.turning, inner.ahead = self.turning, self.ahead
        return places, inner

    def beside(self) -> Machine:
        """Return a machine for more warps of the same program."""
        shared = self.memory, self.shadow, self.watch, self.order
        other = Machine(self.kernel, self.grid, self.numbers, *shared)
        other.active, other.journal, other.allocations = self.active, self.journal, self.allocations
        return other

    def per_element(self, count: int) -> Machine:
        """Return a machine in which each program stands for as many as its blocks have elements."""
        return Machine(self.kernel, self.grid, self.numbers.repeat_interleave(count), self.memory, None, None)

    def rejoined(
        self, inner: Machine, places: torch.Tensor, new: Sequence[torch.Tensor], old: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return old values with those that some programs went on with alone."""
        self.changes += inner.changes
        found = []
        for n, o in zip(new, old, strict=True):
            shape = [*map(max, n.shape[1:], o.shape[1:])]
            found.append(o.expand(self.size, *shape).clone())
            found[-1][places] = n.expand(len(places), *shape)
        return found

    def programs_on(self) -> torch.Tensor:
        """Return who takes part, ``[P]``."""
        return torch.ones(self.size, dtype=torch.bool) if self.active is None else self.active

    def branch(self, op: Op, args: list[torch.Tensor], env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        whole, condition = self.active, args[0].reshape(-1)
        sides = [condition, ~condition]
        if whole is not None:
            sides = [side & whole for side in sides]
        if condition.numel() == 1 and whole is None:
            taken = [bool(side) for side in sides]
        else:
            taken = [bool(side.any()) for side in sides]
        found = []
        ways = [*zip(sides, taken, op.regions, strict=False)]
        for side, any_on, region in ways[::-1] if self.order == "shuffled" else ways:
            if any_on and region[0].ops:
                self.active = whole if not all(taken) else side
                found.append((side, self.block(region[0], env)))
        self.active = whole
        if not op.results:
            return []
        if len(found) == 2:
            return self.merged(found[0][0], found[0][1], found[1][1])
        return found[0][1]

    def repeat(self, op: Op, args: list[torch.Tensor], env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        try:
            return self._repeat(op, args, env)
        except TimeoutError as error:
            self.fail(faults.EndlessLoop, op, f"the loop had not ended when {error}")

    def _repeat(self, op: Op, args: list[torch.Tensor], env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        before, after = op.regions[0][0], op.regions[1][0]
        whole, on, carried, found = self.active, self.programs_on(), args, None
        self.turning += 1
        for turn in itertools.count():
            if found is not None and self.few(on):
                places, inner = self.alone(on)
                mine = {name: _picked(env[name], places) for name in op.reads if name in env}
                self.active = whole
                self.turning -= 1
                new = inner.repeat(op, [_picked(x, places) for x in carried], mine)
                return self.rejoined(inner, places, new, found)
            self.look()
            self.active = None if bool(on.all()) else on
            changes = self.changes
            env.update((name, value) for (name, _), value in zip(before.args, carried, strict=True))
            condition, *values = self.block(before, env)
            found = values if found is None else self.merged(on, values, found)
            on = on & self.programs(condition)
            if not bool(on.any()):
                self.active = whole
                self.turning -= 1
                return found
            if self.shadow is not None:
                self.shadow.ran.add(op.number)
            self.active = None if bool(on.all()) else on
            env.update((name, value) for (name, _), value in zip(after.args, values, strict=True))
            new = self.merged(on, self.block(after, env), carried)
            self.at = op
            if turn % self.patience == self.patience - 1 and changes == self.changes and all(map(_same, new, carried)):
                self._stuck(op, on, turn + 1)
            carried = new
        raise AssertionError

    def _stuck(self, op: Op, on: torch.Tensor, turns: int) -> None:
        self.stuck = True
        said = f"the loop turns without end: {turns} turns have changed neither a variable nor memory; program "
        said += self.program(int(on.to(torch.uint8).argmax()))
        if self.kernel.waits:
            said += ". It waits for another program, which may never run at the same time"
        self.fail(faults.EndlessLoop, op, said)


# What each operation does


def prepare(op: Op) -> Any:
    """Return what runs an operation, and note it there.

    That is a function of its operands, or, in a tuple, one of the machine, the operation, operands and all values.
    """
    op.value = _prepared(op)
    if op.name in blocks.UNDEFINED and op.value.__class__ is not tuple:
        op.value = (functools.partial(blocks.defined, op.value),)
    if len(op.results) == 1 and not axes.HINTS.keys().isdisjoint(op.attrs):
        op.value = (functools.partial(blocks.hinted, op.value),)
    return op.value


def PASS() -> None:
    """Stand for the end of a block, which passes its operands on."""


ENDS = ("tt.return", "cf.br", "cf.cond_br", "scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return",
        "tt.map_elementwise.return", *gluon.ENDS)  # fmt: skip
BARRIERS = ("gpu.barrier", "ttg.barrier")
SURROUNDED: dict[str, Callable] = {
    **gluon.RULES,
    **dict.fromkeys(KINDS, access),
    **dict.fromkeys(BARRIERS, barrier),
    "llvm.intr.assume": blocks.check,
    "scf.for": Machine.loop,
    "scf.if": Machine.branch,
    "scf.while": Machine.repeat,
    "tt.assert": blocks.check,
    "tt.call": blocks.called,
    "tt.dot": blocks.dot,
    "tt.gather": blocks.gather,
    "tt.get_num_programs": blocks.num_programs,
    "tt.get_program_id": blocks.program_id,
    "tt.histogram": blocks.histogram,
    "tt.map_elementwise": blocks.mapped,
    "tt.print": blocks.show,
    "tt.reduce": blocks.reduce,
    "tt.scan": blocks.scan,
    "tt.split": blocks.split,
    "ub.poison": undefined,
}


def _prepared(op: Op) -> Any:
    name = op.name
    if name in ENDS:
        return PASS
    if name in SURROUNDED:
        if name in KINDS and not is_known(op.ins[0].pointee):
            return (blocks.unknown,)
        return (SURROUNDED[name],)
    try:
        if name == "arith.constant":
            found = blocks.constant(op)
            return lambda: found
        if rule := elementwise(op) or blocks.shaping(op):
            return rule
    except KeyError:  # a type that is not known
        pass
    return (blocks.unknown,)


def _picked(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return a value of some programs."""
    return x if len(x) == 1 else x.index_select(0, places)


def _same(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Return whether two values are the same, a NaN being the same as a NaN."""
    return new is old or (isinstance(new, torch.Tensor) and bool(((new == old) | ((new != new) & (old != old))).all()))


def _number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """Return a kernel's number; an unsigned integer has the bits of a signed one."""
    bits = BITS.get(dtype, 1)
    wraps = isinstance(value, int) and bits > 1 and value >= 1 << bits - 1
    return torch.tensor([value - (1 << bits) if wraps else value], dtype=dtype)


def _has_atomic(op: Op) -> bool:
    return any(
        inner.name.startswith("tt.atomic")
        or inner.name == "tt.call"
        or inner.attrs.get("isVolatile")
        or _has_atomic(inner)
        for region in op.regions
        for block in region
        for inner in block.ops
    )


def _inside(op: Op) -> Iterator[Op]:
    """Yield the operations in the regions of one."""
    for inner in (each for region in op.regions for block in region for each in block.ops):
        yield inner
        yield from _inside(inner)


def _ahead(loop: Op, around: Op) -> Ahead:
    """Return the loads that the compiler may do turns ahead of the others' work.

    In a loop that says how many turns are on their way these are all, but for those in branches; in others those that a
    product of matrices needs. A barrier keeps it from that. `around` is the loop of which it may become a part.
    """
    said = [each.attrs["tt.num_stages"] for each in (loop, around) if "tt.num_stages" in each.attrs]
    stages, body = max(said, default=None), loop.regions[0][0].ops
    inner = [op for op in body if op.name in ("scf.for", "scf.while")]
    keeps = frozenset(op.number for op in (*inner, *_inside(around)) if op in inner or op.name in BARRIERS)
    if any(op.name in BARRIERS for op in (*body, *around.regions[0][0].ops)):
        return Ahead(stages, frozenset(), keeps)
    wanted: set[str] = set()
    for op in reversed(body):
        if op.name == "tt.dot":
            wanted.update(op.operands[:2])
        if wanted.intersection(op.results):
            wanted.update(op.operands, op.reads)
    loads = (op for op in body if op.name == "tt.load")
    found = frozenset(op.number for op in loads if stages is not None or wanted.intersection(op.results))
    return Ahead(stages, found, keeps)


def _together(roots: Iterable[frozenset[int] | None]) -> frozenset[int] | None:
    """Return the parameters of all accesses; None if those of one are not known."""
    each = list(roots)
    return None if None in each else frozenset().union(*each)


def _in_order(blocks: Sequence[Block]) -> list[Block]:
    """Return blocks so that each comes after those that lead to it."""
    by_name, found, seen = {block.name: block for block in blocks}, [], set()

    def visit(block: Block) -> None:
        if block.name in seen:
            return
        seen.add(block.name)
        for name in block.ops[-1].successors:
            visit(by_name[name])
        found.append(block)

    visit(blocks[0])
    return found[::-1]
