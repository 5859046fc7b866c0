"""Gluon's operations: shared memory, copies and products under way, barriers, and partitions of a program.

A value has all elements of its block, whichever thread holds them: layouts do not show here. The partitions of
`gl.warp_specialize` take turns, each until it waits. A copy by TMA or a product of `warpgroup_mma` is done at once, but
counts as done only for those who waited for it: each partition has a vector clock, which barriers hand on. Two accesses
of one place in shared memory, one of them writing, are a :class:`Race` unless the clocks order them, however the turns
fall. A wait counts for the earliest phase that could end it.

Not modelled: clusters, banks of shared memory, and the fence that a partition's store needs before TMA or a product of
the same partition reads it.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import blocks, faults
from .access import access as access_memory
from .arithmetic import storage_dtype
from .ttir import Op, Type

Machine = Any  # of machine.py, which imports this
Clock = dict[Hashable, int]  # how far of what each partition did, and of what is under way, is known to be done
Box = tuple[tuple[int, int], ...]  # of each axis of an allocation: first and end
COPY, STORE, PRODUCT = "a copy by TMA", "a store by TMA", "a product"
NUMBER = 20  # bits of an operation's number
POISON = 0x5A  # each byte of integers in fresh shared memory; floats are NaN


@dataclass(eq=False)
class Access:
    """One access of shared memory.

    Attributes
    ----------
    agent, tick
        It is done for those whose clock has at least this tick of the agent.
    what
        For messages.
    generic
        Whether threads did it, and not TMA or a product; False also once a fence made it known to these.
    was
        The allocation that it is in, if another one has got its place since; "" if not.
    """

    box: Box
    writes: bool
    agent: Hashable
    tick: int
    op: Op
    what: str
    generic: bool = False
    was: str = ""


@dataclass(eq=False)
class Allocation:
    """Shared memory that a kernel asked for in an operation: the same place each time that it asks.

    Another one may get the place once nothing uses it any more, although a copy or a product may still be under way.
    """

    name: str
    values: torch.Tensor
    op: Op
    log: list[Access] = field(default_factory=list)


@dataclass(eq=False)
class View:
    """A part of an allocation: its elements, its box there, and which axis of the allocation each of its axes is."""

    of: Allocation
    values: torch.Tensor
    box: Box
    axes: tuple[int, ...]

    @property
    def name(self) -> str:
        """The allocation's name, with the places of axes that are left out."""
        places = (str(low) for n, (low, _) in enumerate(self.box) if n not in self.axes)
        return self.of.name + "".join(f"[{each}]" for each in places)


@dataclass(eq=False)
class Barrier:
    """An mbarrier: arrivals and bytes that its phase still waits for, and what each phase that ended makes known.

    ``made`` says who initialised it, and at which tick; ``life`` is another one for each barrier at the same place.
    """

    name: str
    made: tuple[Hashable, int]
    count: int
    left: int
    bytes: int = 0
    clock: Clock = field(default_factory=dict)
    ended: list[Clock] = field(default_factory=list)
    life: int = field(default_factory=itertools.count().__next__)

    def settle(self) -> None:
        """End the phase if nothing is missing."""
        if self.left == 0 and self.bytes == 0:
            self.ended.append(dict(self.clock))
            self.left = self.count

    def missing(self) -> str:
        """Return what the phase waits for."""
        said = f"{self.count - self.left} of {self.count} arrivals came"
        if self.bytes:
            said += f", and {abs(self.bytes):,} bytes {'are missing' if self.bytes > 0 else 'more than expected'}"
        return said


@dataclass(eq=False)
class Pending:
    """The result of a product that is under way; ``number`` counts the products of its partition."""

    values: torch.Tensor
    number: int


@dataclass(frozen=True)
class Descriptor:
    """A tensor that TMA copies blocks of: the address of its first element, sizes and strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    fill: float

    @classmethod
    def at(cls, address: int, given: Any) -> Descriptor:
        """Return what a `TensorDescriptor` of Gluon says of the tensor at an address."""
        fill = math.nan if getattr(given, "padding", "zero") == "nan" else 0
        return cls(address, tuple(given.shape), tuple(given.strides), fill)

    def block(self, start: Sequence[int], shape: Sequence[int], itemsize: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return of each element of a block its address, and whether it lies in the tensor: ``[1, *shape]``."""
        address, inside = torch.full([1, *shape], self.address), torch.ones([1, *shape], dtype=torch.bool)
        for axis, (first, n, held, step) in enumerate(zip(start, shape, self.shape, self.strides, strict=True)):
            places = torch.arange(first, first + n).reshape(-1, *[1] * (len(shape) - 1 - axis))
            address += places * (step * itemsize)
            inside &= (places >= 0) & (places < held)
        return address, inside


class Partition:
    """Some warps of a program: what they know of the others, and what they have under way.

    Attributes
    ----------
    number
        What others know it by: its own in the program.
    clock
        Per agent, up to which tick what it did is done.
    issued
        Products and stores by TMA so far.
    turn
        Its place among those that take turns.
    """

    def __init__(self, number: int, clock: Clock, turns: Turns | None = None, turn: int = 0):
        self.number, self.turns, self.turn = number, turns, turn
        self.clock: Clock = {**clock, number: 1}
        self.issued: dict[str, int] = {PRODUCT: 0, STORE: 0}
        self.barriers: dict[tuple[int, int], Barrier] = {}
        # Of a storage in global memory, of each partition that read or wrote it: of each unit when, and by what
        self.touched: dict[tuple[int, bool], dict[int, torch.Tensor]] = {}

    def learn(self, clock: Clock) -> None:
        for agent, tick in clock.items():
            self.clock[agent] = max(tick, self.clock.get(agent, 0))

    def touch(self, storage: int, count: int, units: torch.Tensor, writes: bool, op: int) -> tuple[int, int] | None:
        """Note that threads touch units of a storage of so many in global memory.

        Returns the place of a unit that another partition touched, one of the two writing, with no barrier between, and
        the other's operation; None if there is none.
        """
        for way in (True, False)[: 1 + writes]:
            for agent, last in self.touched.get((storage, way), {}).items():
                late = last[units] >> NUMBER > self.clock.get(agent, 0)
                if agent != self.number and bool(late.any()):
                    at = int(late.to(torch.uint8).argmax())
                    return at, int(last[units[at]]) & (1 << NUMBER) - 1
        mine = self.touched.setdefault((storage, writes), {})
        last = mine.setdefault(self.number, torch.zeros(count, dtype=torch.int64))
        last[units] = self.clock[self.number] << NUMBER | op
        return None

    def told(self) -> Clock:
        """Return what others may know from here on."""
        found = dict(self.clock)
        self.clock[self.number] += 1
        return found


class Turns:
    """Has partitions run one at a time, each until it waits or ends.

    Parameters
    ----------
    count
        How many.
    backward
        Whether the last one begins.
    """

    def __init__(self, count: int, backward: bool):
        self.order = list(range(count))[:: -1 if backward else 1]
        self.now = self.order[0]
        self.waiting: dict[int, tuple[Callable[[], bool], Callable[[], str]]] = {}
        self.left = set(self.order)
        self.error: BaseException | None = None
        self.changed = threading.Condition()

    def look(self) -> None:
        """Raise Abandoned if another partition failed."""
        if self.error is not None:
            raise Abandoned

    def begin(self, me: int) -> None:
        """Return when it is this one's turn."""
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or self.now == me)
        self.look()

    def wait(self, me: int, ready: Callable[[], bool], said: Callable[[], str]) -> None:
        """Let others run until something holds. Raises Stuck if nobody can."""
        self.waiting[me] = ready, said
        self._next(me)
        self.begin(me)

    def end(self, me: int, error: BaseException | None = None) -> None:
        """Let others run for good, or stop all."""
        with self.changed:
            self.left.discard(me)
            if error is not None and self.error is None:
                self.error = error
                self.changed.notify_all()
        if self.error is None and self.left:
            self._next(me)

    def _next(self, me: int) -> None:
        start = self.order.index(me) + 1
        for each in self.order[start:] + self.order[:start]:
            if each in self.left and (each not in self.waiting or self.waiting[each][0]()):
                self.waiting.pop(each, None)
                with self.changed:
                    self.now = each
                    self.changed.notify_all()
                return
        raise Stuck("; ".join(f"partition {each} in {self.waiting[each][1]()}" for each in sorted(self.left)))


class Abandoned(BaseException):
    """Another partition failed."""


class Stuck(Exception):
    """Every partition waits."""


def mine(machine: Machine) -> Partition:
    """Return the partition that a machine runs; the whole program is one at first."""
    if machine.partition is None:
        machine.partition = Partition(0, {})
    return machine.partition


# Shared memory


def allocate(machine: Machine, op: Op, args: list[Any], env: Any) -> View:
    kind = op.outs[0]
    dtype = storage_dtype(kind.element)
    values = torch.empty(kind.shape, dtype=dtype)
    values.fill_(math.nan) if dtype.is_floating_point else values.view(torch.uint8).fill_(POISON)
    name, known, whole = op.results[0][1:], mine(machine).clock, tuple((0, n) for n in kind.shape)
    before = next((each for each in reversed(machine.allocations) if each.op is op), None)
    freed = machine.kernel.module.freed
    others = [
        each for each in machine.allocations if each.op is not op and freed.get(each.op.number, op.number) < op.number
    ]
    left = [each for each in before.log if each.tick > known.get(each.agent, 0)] if before else []
    left += [
        replace(access, box=whole, was=of.name)
        for of in others
        for access in of.log
        if access.tick > known.get(access.agent, 0)
    ]
    machine.allocations.append(Allocation("shared memory" if name.isdecimal() else name, values, op, left))
    view = View(machine.allocations[-1], values, whole, tuple(range(len(kind.shape))))
    if args:
        store(machine, op, [args[0], view], env)
    return view


def index(machine: Machine, op: Op, args: list[Any], env: Any) -> View:
    view, at = args[0], int(args[1])
    if not 0 <= at < view.values.shape[0]:
        machine.fail(faults.OutOfBounds, op, f"{view.name} is indexed by {at}, and has {view.values.shape[0]} parts")
    axis = view.axes[0]
    low = view.box[axis][0] + at
    box = (*view.box[:axis], (low, low + 1), *view.box[axis + 1 :])
    return View(view.of, view.values[at], box, view.axes[1:])


def subslice(machine: Machine, op: Op, args: list[Any], env: Any) -> View:
    view, box, values = args[0], list(args[0].box), args[0].values
    for n, (start, size) in enumerate(zip(op.attrs["offsets"], op.outs[0].shape, strict=True)):
        values = values.narrow(n, start, size)
        low = box[view.axes[n]][0] + start
        box[view.axes[n]] = low, low + size
    return View(view.of, values, tuple(box), view.axes)


def transpose(machine: Machine, op: Op, args: list[Any], env: Any) -> View:
    view, order = args[0], op.attrs["order"]
    return View(view.of, view.values.permute(order), view.box, tuple(view.axes[n] for n in order))


def load(machine: Machine, op: Op, args: list[Any], env: Any) -> torch.Tensor:
    touch(machine, op, args[0], False, "a load", generic=True)
    return args[0].values.clone()[None]


def store(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    value, view = args
    touch(machine, op, view, True, "a store", generic=True)
    view.values.copy_(machine.full(value, view.values.shape)[0])


def touch(
    machine: Machine, op: Op, view: View, writes: bool, what: str, under_way: tuple[Hashable, int] | None = None,
    generic: bool = False,
) -> None:  # fmt: skip
    """Note an access of shared memory; fail where it meets another that is not known to be done.

    ``under_way`` are agent and tick of what goes on after this. An access is forgotten once another one covers it: who
    meets the first meets the second, too.
    """
    me = mine(machine)
    agent, tick = under_way or (me.number, me.clock[me.number])
    now, kept, written = Access(view.box, writes, agent, tick, op, what, generic), [], writes
    for other in view.of.log:
        meets = all(a < d and c < b for (a, b), (c, d) in zip(view.box, other.box, strict=True))
        written |= meets and other.writes
        if meets and (writes or other.writes):
            if me.clock.get(other.agent, 0) < other.tick:
                _crossing(machine, op, view, now, other)
            if other.generic and other.writes and not (generic or writes) and other.agent != me.number:
                machine.fail(
                    faults.Race,
                    op,
                    f"{what} reads {view.name}, where line {other.op.line} stored{machine.source(other.op)}, and no "
                    f"fence_async_shared() stands between the store and what the other partition waits for",
                )
        covered = all(a <= c and d <= b for (a, b), (c, d) in zip(view.box, other.box, strict=True))
        if not covered or not (writes or (other.agent == agent and not other.writes)):
            kept.append(other)
    if not written:
        machine.fail(faults.Undefined, op, f"{what} reads {view.name}, where nothing has been written yet")
    view.of.log = [*kept, now]


def _crossing(machine: Machine, op: Op, view: View, now: Access, other: Access) -> None:
    """Fail for two accesses that nothing orders."""
    if not isinstance(other.agent, tuple):
        why = "no barrier stands between the two partitions"
    elif other.agent == (PRODUCT, mine(machine).number):
        why = "it is still under way: warpgroup_mma_wait comes too late"
    elif other.agent == (STORE, mine(machine).number):
        why = "it is still under way: tma.store_wait comes too late"
    elif other.agent[0] == COPY:
        why = "it is still under way: nothing has waited for the barrier that it arrives at"
    else:
        why = "it is still under way, for all that a barrier has told"
    machine.fail(
        faults.Race,
        op,
        f"{now.what} {'writes' if now.writes else 'reads'} {view.name} while {other.what} of line {other.op.line}"
        f"{machine.source(other.op)} {'writes' if other.writes else 'reads'} "
        f"{f'{other.was}, whose place it may have got' if other.was else 'it'} ({why}); program {machine.program(0)}",
    )


# Barriers


def _barrier(machine: Machine, op: Op, view: View) -> Barrier:
    found = mine(machine).barriers.get(_place(view))
    if found is None:
        machine.fail(faults.Undefined, op, f"the barrier {view.name} has not been initialised: mbarrier.init")
    agent, tick = found.made
    if mine(machine).clock.get(agent, 0) < tick:
        machine.fail(
            faults.Race, op, f"another partition initialises {view.name}, and nothing says that it has done so"
        )
    return found


def _place(view: View) -> tuple[int, int]:
    return id(view.of), view.values.storage_offset()


def init_barrier(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    me, count = mine(machine), op.attrs["count"]
    if _place(args[0]) in me.barriers:
        said = f"{args[0].name} is initialised a second time: mbarrier.invalidate comes before that"
        machine.fail(faults.Undefined, op, said)
    me.barriers[_place(args[0])] = Barrier(args[0].name, (me.number, me.clock[me.number]), count, count)


def invalidate_barrier(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    mine(machine).barriers.pop(_place(args[0]), None)


def _taken(args: Sequence[Any]) -> bool:
    """Return whether the last operand, if there is one, lets the operation happen."""
    return not args or bool(args[-1])


def _arrive(machine: Machine, op: Op, barrier: Barrier, count: int) -> None:
    if barrier.left < count:
        machine.fail(
            faults.Race, op, f"more arrivals at {barrier.name} than the {barrier.count} that its phase waits for"
        )
    barrier.left -= count
    me = mine(machine)
    for agent, tick in me.told().items():
        barrier.clock[agent] = max(tick, barrier.clock.get(agent, 0))


def arrive(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    if _taken(args[1:]):
        barrier = _barrier(machine, op, args[0])
        _arrive(machine, op, barrier, op.attrs.get("count", 1))
        barrier.settle()


def expect(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    if _taken(args[1:]):
        barrier = _barrier(machine, op, args[0])
        barrier.bytes += op.attrs["size"]
        _arrive(machine, op, barrier, 1)
        barrier.settle()


def wait(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    """Wait for the end of a phase of a parity: the first that this partition does not yet know to have ended."""
    taken = args[2] if len(args) > 2 else None
    if taken is not None and not bool(taken):
        return
    me, barrier, parity = mine(machine), _barrier(machine, op, args[0]), int(args[1])
    if parity not in (0, 1):
        said = f"{barrier.name} is waited for with phase {parity}: expected 0 or 1, as `turn & 1` is"
        machine.fail(faults.Undefined, op, said)
    known = me.clock.get(("phases", barrier.life), 0)
    phases = known if known % 2 != parity else known + 1  # the phase numbered -1 has ended, of parity 1
    ready = lambda: len(barrier.ended) >= phases and len(barrier.ended) % 2 != parity
    if not ready():

        def said() -> str:
            where = f"line {op.line} for parity {parity} of {barrier.name}"
            return f"{where} ({len(barrier.ended)} phases ended; of the next {barrier.missing()})"

        machine.at = op
        try:
            if me.turns is None:
                raise Stuck(said())
            me.turns.wait(me.turn, ready, said)
        except Stuck as stuck:
            _stuck(machine, op, str(stuck))
    if phases:
        me.learn(barrier.ended[phases - 1])
    me.clock["phases", barrier.life] = phases


def _stuck(machine: Machine, op: Op, said: str) -> None:
    machine.fail(
        faults.EndlessLoop, op, f"every partition that has not ended waits; program {machine.program(0)}: {said}"
    )


def fence(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    """Let TMA and products of others see the stores that are done for this partition."""
    me = mine(machine)
    for allocation in machine.allocations:
        for each in allocation.log:
            if each.generic and me.clock.get(each.agent, 0) >= each.tick:
                each.generic = False


# What is under way


def as_access(op: Op) -> Op:
    """Return the load or store that a copy by TMA is for global memory, and have the copy run it."""
    reads = op.name == COPIES[0]
    view = op.ins[-2 if reads else -1]
    pointer = Type(view.shape, "i64", view.element)
    operands = [pointer, Type(view.shape, "i1"), Type(view.shape, view.element)]
    attrs = {"operandSegmentSizes": (1, 1, 1), "boundaryCheck": (), "isVolatile": False} if reads else {}
    access = Op(
        "tt.load" if reads else "tt.store", op.operands, op.results, attrs, [], op.place, op.key,
        operands if reads else [operands[0], operands[2], operands[1]], operands[2:] if reads else [],
        number=op.number, roots=op.roots, described=True,
    )  # fmt: skip
    op.value = (functools.partial(copy_in if reads else copy_out, access),)
    return access


def copy_in(access: Op, machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    given, (bar, view, taken) = args[0], args[-3:]
    if not bool(taken):
        return
    start = [int(each) for each in args[1 : 1 + len(given.shape)]]
    barrier, values = _barrier(machine, op, bar), view.values
    phase = len(barrier.ended) + 1
    touch(machine, op, view, True, COPY, ((COPY, barrier.life), phase))
    address, inside = given.block(start, values.shape, values.dtype.itemsize)
    fill = torch.full([1] * address.dim(), given.fill).to(values.dtype)
    values.copy_(access_memory(machine, access, [address, inside, fill], env)[0])
    barrier.clock[COPY, barrier.life] = phase
    barrier.bytes -= values.numel() * values.dtype.itemsize
    barrier.settle()


def copy_out(access: Op, machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    given, *start, view = args
    me = mine(machine)
    me.issued[STORE] += 1
    touch(machine, op, view, False, STORE, ((STORE, me.number), me.issued[STORE]))
    address, inside = given.block([int(each) for each in start], view.values.shape, view.values.dtype.itemsize)
    access_memory(machine, access, [address, view.values[None], inside], env)


def wait_for_stores(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    me = mine(machine)
    me.clock[STORE, me.number] = me.issued[STORE] - op.attrs["pendings"]


def product(machine: Machine, op: Op, args: list[Any], env: Any) -> torch.Tensor | Pending:
    me = mine(machine)
    me.issued[PRODUCT] += 1
    number, under_way = me.issued[PRODUCT], (PRODUCT, me.number)
    for view in args[:2]:
        if isinstance(view, View):
            touch(machine, op, view, False, PRODUCT, (under_way, number))
    a, b = (x.values[None] if isinstance(x, View) else settled(machine, op, x) for x in args[:2])
    before = args[2].values if isinstance(args[2], Pending) else args[2]
    if len(args) > 3 and not bool(args[3]):
        before = torch.zeros_like(before)
    out = blocks.dot(machine, op, [a, b, before], env)
    if op.attrs.get("isAsync"):
        return Pending(out, number)
    me.clock[under_way] = number
    return out


def wait_for_products(machine: Machine, op: Op, args: list[Any], env: Any) -> list[Any]:
    me = mine(machine)
    done = me.issued[PRODUCT] - op.attrs["pendings"]
    me.clock[PRODUCT, me.number] = max(done, me.clock.get((PRODUCT, me.number), 0))
    return [x.values if isinstance(x, Pending) and x.number <= done else x for x in args]


def settled(machine: Machine, op: Op, value: Any) -> Any:
    """Return a value; fail if it is the result of a product that is still under way."""
    if isinstance(value, Pending):
        machine.fail(
            faults.Race, op, "what warpgroup_mma gives is used before a warpgroup_mma_wait that names it in deps and "
            "leaves none of its products under way"
        )  # fmt: skip
    return value


def checked(rule: Any, machine: Machine, op: Op, args: list[Any], env: Any) -> Any:
    """Run an operation of other kinds, none of whose operands may be under way."""
    for each in args:
        settled(machine, op, each)
    return rule[0](machine, op, args, env) if rule.__class__ is tuple else rule(*args)


# Partitions


def finish(machine: Machine) -> None:
    """Fail if a program ends while a copy by TMA still writes its shared memory, or a store by TMA still reads it."""
    known = mine(machine).clock
    for of, each in ((allocation, each) for allocation in machine.allocations for each in allocation.log):
        if isinstance(each.agent, tuple) and each.what in (COPY, STORE) and each.tick > known.get(each.agent, 0):
            does, wait = ("writes", "a wait for its barrier") if each.writes else ("reads", "tma.store_wait(0)")
            said = f"the program ends while this still {does} {of.name}, which is then another's: it takes {wait}"
            machine.fail(faults.Race, each.op, f"{said} before; program {machine.program(0)}")


def specialize(machine: Machine, op: Op, args: list[Any], env: dict[str, Any]) -> list[Any]:
    """Run the partitions of a program, each in a thread of its own, one at a time."""
    inner = op.regions[1][0].ops[0]
    given = [env[name] for name in (*op.operands, *inner.operands)]
    whole = mine(machine)
    start = whole.told()
    turns, first = Turns(1 + len(inner.regions), machine.backward), 1 + max(n for n in start if isinstance(n, int))
    found: list[Any] = []
    machines = [machine, *(machine.beside() for _ in inner.regions)]
    for turn, each in enumerate(machines):
        each.partition = Partition(first + turn, start, turns, turn)
        each.partition.barriers, each.partition.touched = whole.barriers, whole.touched

    def run(number: int) -> None:
        try:
            turns.begin(number)
            region = op.regions[0] if number == 0 else inner.regions[number - 1]
            values = {name: value for (name, _), value in zip(region[0].args, given, strict=False)}
            out = machines[number].block(region[0], {**env, **values})
            if number == 0:
                found.extend(out)
            turns.end(number)
        except Abandoned:
            pass
        except Stuck as stuck:  # those that are left
            waits = machines[min(turns.waiting)]
            turns.end(number, _failure(waits, waits.at, str(stuck)))
        except BaseException as error:
            turns.end(number, error)

    grad = torch.is_grad_enabled()

    def thread(number: int) -> None:
        with torch.set_grad_enabled(grad):
            run(number)

    others = [threading.Thread(target=thread, args=(number,), daemon=True) for number in range(1, len(machines))]
    for each in others:
        each.start()
    run(0)
    for each in others:
        each.join()
    if turns.error is not None:
        raise turns.error
    for each in machines:
        whole.learn(each.partition.told())
    machine.partition = whole
    return found


def _failure(machine: Machine, op: Op, said: str) -> BaseException:
    try:
        _stuck(machine, op, said)
    except faults.KernelFault as fault:
        return fault
    raise AssertionError


def same(machine: Machine, op: Op, args: list[Any], env: Any) -> Any:
    """Return the operand: another layout of the same elements."""
    return settled(machine, op, args[0])


def nothing(machine: Machine, op: Op, args: list[Any], env: Any) -> None:
    """Do nothing: what is ordered or freed here is so already."""


ENDS = ("ttg.warp_yield", "ttg.warp_return")
COPIES = ("ttng.async_tma_copy_global_to_local", "ttng.async_tma_copy_local_to_global")
RULES: dict[str, Callable] = {
    "ttg.convert_layout": same,
    "ttg.local_alloc": allocate,
    "ttg.local_dealloc": nothing,
    "ttg.local_load": load,
    "ttg.local_store": store,
    "ttg.memdesc_index": index,
    "ttg.memdesc_subslice": subslice,
    "ttg.memdesc_trans": transpose,
    "ttg.warp_specialize": specialize,
    "ttng.arrive_barrier": arrive,
    "ttng.async_tma_store_wait": wait_for_stores,
    "ttng.barrier_expect": expect,
    "ttng.fence_async_shared": fence,
    "ttng.init_barrier": init_barrier,
    "ttng.inval_barrier": invalidate_barrier,
    "ttng.wait_barrier": wait,
    "ttng.warp_group_dot": product,
    "ttng.warp_group_dot_wait": wait_for_products,
}
