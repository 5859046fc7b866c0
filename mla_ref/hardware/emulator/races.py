"""Who touched what in a launch, and what atomic operations order: where do two programs race?"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import torch

from .memory import Memory, Region

MANY = -1  # programs
DENSE, PAGE = 1 << 24, 1 << 12  # bytes of a storage from which on it is kept by pages; units of one
BITS = 20  # of an operation's number: with a program's it makes one number
OPS = 1 << BITS
LANES = 32  # threads of a warp
VECTOR = 16  # bytes that a thread loads or stores at once
VIEWS = 64  # programs of which it is kept what they know
SPOT, SHAPE = 32, 22  # bits below a program's waits, and below the number of a block's shape: a spot among its threads
# Ways to touch: plain reads and writes, atomic operations that change what is there, and those (and volatile loads)
# that do not. With each those that it races with.
READ, WRITE, UPDATE, POLL = range(4)
RIVALS = {READ: (WRITE, UPDATE), WRITE: (WRITE, READ, UPDATE, POLL), UPDATE: (WRITE, READ), POLL: (WRITE,)}
NOTHING = -1, -1
Kept = Callable[[], torch.Tensor]


class Shadow:
    """Who touched the units of the storages in one launch and how, to find races.

    Two programs race where both touch a byte, one of them writes it, not both by atomic operations, and nothing orders
    them. So do two that update it by atomic operations of two kinds, an exchange and a sum say, whose results nobody
    uses: what is there afterwards hangs on who came first. One comes before the other if it releases by an atomic
    operation after its access, and the other acquires before its own by an atomic operation on the same element that
    comes later, or if a chain of such pairs leads from one to the other. Relaxed operations order nothing; in a kernel
    that uses no result of an atomic operation none does, for its programs cannot know who came first. Those of scope
    "cta" are plain writes to other programs.

    Within a program a thread touches what another one stored, or touches plainly what another one updated, with no
    barrier between, where an access has an element elsewhere in its block than the one before had it, or in a block of
    another shape, or where threads hold more neighbours, as they do of narrower elements. Of a block of fewer elements
    than there are threads, one stores each element, and all of them read it. An atomic operation waits for no other
    thread: what a program releases by it is what came before the last barrier, and what single numbers were touched by
    since. There is one behind it where few threads find what all ask.

    In some loops the compiler does loads turns ahead. They race with what the program wrote in the turns between.

    What does not count: a write of the value that is there, and so writes of one value by several programs, each of
    which may read it back. What is not seen: stores of a program to what another of its threads still has to read;
    races of programs that an order by atomic operations happens to separate in this order of programs, though not in
    each.

    Parameters
    ----------
    programs
        Of the grid. They are numbered from 1 here.
    memory, sizes
        The regions, and the bytes of each access with the parameters that it may reach: bytes of a storage that are
        always touched together are looked at as one unit.
    ordered
        Whether atomic operations may order programs.
    warps, stages
        Of a program, and of a loop that does not say how many turns' loads are on their way.
    described
        The numbers of accesses by tensor descriptors. These go another way to memory than others, and no barrier of
        threads waits for what is stored there.
    unasked
        The atomic operations of which nothing uses the result, by kinds of which each takes any order of its own.
    """

    def __init__(
        self,
        programs: int,
        memory: Memory,
        sizes: Collection[tuple[int, frozenset[int] | None]],
        ordered: bool,
        warps: int = 4,
        stages: int = 3,
        described: Collection[int] = (),
        unasked: Collection[Collection[int]] = (),
    ):
        self.memory, self.sizes = memory, sizes
        self.units: dict[int, int] = {}
        self.noted: list[dict[int, torch.Tensor]] = [{} for _ in RIVALS]  # who came last, and by which operation
        self.times: list[dict[int, torch.Tensor]] = [{} for _ in RIVALS]
        self.crowds: dict[tuple[int, int], list[tuple[torch.Tensor, ...]]] = {}  # units, who, time where many came
        self.pages: dict[int, tuple[torch.Tensor, int]] = {}
        self.heads: dict[int, torch.Tensor] = {}  # 1 + the last step that released by a unit
        # From where in its program a unit was stored, and updated, last
        self.spots: dict[int, dict[int, torch.Tensor]] = {WRITE: {}, UPDATE: {}}
        self.shapes: dict[tuple[int, ...], int] = {}
        self.waits = torch.zeros(programs + 1, dtype=torch.int64)  # of each program, for all of its threads
        self.order = Order(programs, alone=warps == 1) if ordered else None
        self.strange = {  # for each such operation those of other kinds
            op: torch.tensor([each for other in unasked if other is not kind for each in other])
            for kind in unasked
            for op in kind
        }
        self.described, self.described_ops = described, torch.tensor(sorted(described))
        self.threads, self.stages = LANES * warps if warps > 1 else 1, stages  # those of a warp go side by side
        self.clock = 0  # turns of loops with loads ahead
        # Of each such loop that turns: turns between a load and its own, and at which turns of all its own began
        self.loops: list[tuple[int, list[int]]] = []
        self.begun: dict[int, tuple[int, list[int]]] = {}
        self.ran: set[int] = set()  # barriers, and loops that turned
        self.changed: dict[int, torch.Tensor] = {}  # who changed a unit last, and in which turn

    def begin_loop(self, stages: int | None, part: int | None = None) -> None:
        """Note that a loop begins of which loads are done turns ahead, by default as many as the launch says.

        One that is a part of the loop around it, with a number, goes on from where it was once it has `begun`.
        """
        if part is None or part not in self.begun:
            self.clock += 1  # what the last turn before wrote late came before
            self.loops.append(((self.stages if stages is None else stages) - 2, [self.clock + 1]))
            if part is not None:
                self.begun[part] = self.loops[-1]
        else:
            self.loops.append(self.begun[part])

    def turn_loop(self) -> None:
        """Note that its next turn begins."""
        self.clock += 1
        self.loops[-1][1].append(self.clock)

    def end_loop(self) -> None:
        self.loops.pop()

    def missed(self, region: Region, units: torch.Tensor, programs: torch.Tensor) -> tuple[int, int, int] | None:
        """Return a race as `touch` does, of loads that were done ahead with what their programs wrote meanwhile."""
        lead, turns = self.loops[-1]
        if region.low not in self.changed or lead < 0:
            return None
        units = self._packed(region, units)
        last = self._of(self.changed, region).index_select(0, units)
        wrong = (last >> SPOT == programs) & (last & (1 << SPOT) - 1 >= turns[max(0, len(turns) - 1 - lead)])
        if not wrong.any():
            return None
        at = int(wrong.to(torch.uint8).argmax())
        noted = (
            self._of(self.noted[kind], region)[units[at]] for kind in (WRITE, UPDATE) if region.low in self.noted[kind]
        )
        ops = [int(each) % OPS for each in noted if int(each) >> BITS == int(programs[at])]
        return at, int(programs[at]), ops[0] if ops else 0

    def change(
        self, region: Region, units: torch.Tensor, programs: torch.Tensor, changed: torch.Tensor, late: bool
    ) -> None:
        """Note what programs change, for loads of later turns; in a branch that is late in a turn."""
        units = self._packed(region, units)
        self._of(self.changed, region)[units[changed]] = (programs << SPOT | self.clock + late)[changed]

    def wait(self, programs: torch.Tensor) -> None:
        """Note that all threads of programs wait for one another."""
        self.waits[programs] += 1
        if self.order is not None:
            self.order.wait(programs.tolist())

    def spots_of(
        self, shape: tuple[int, ...], programs: torch.Tensor, places: torch.Tensor, spread: bool, size: int
    ) -> torch.Tensor:
        """Return where in their programs, at this time, elements are at places of a block of a shape.

        `spread` says that all threads go on with what they read of it, and not only those that would store it. A thread
        holds as many neighbours as make 16 bytes where an element has that size, which is 0 of an atomic operation.
        """
        count = math.prod(shape)
        beside = min(VECTOR // size, max(count // self.threads, 1)) if size else 0
        number = self.shapes.setdefault((*shape, beside, spread and count < self.threads), len(self.shapes))
        return self.waits[programs] << SPOT | number << SHAPE | places

    def unit(self, region: Region) -> int:
        """Return the bytes of a storage's unit: those of the smallest access that may reach it."""
        if region.low not in self.units:
            reaches = lambda roots: any(each.low == region.low for each in self.memory.candidates(roots))
            self.units[region.low] = min(size for size, roots in self.sizes if roots is None or reaches(roots))
        return self.units[region.low]

    def _of(self, store: dict[int, torch.Tensor], region: Region) -> torch.Tensor:
        """Return what is known of each unit of a storage, or of its pages that were touched."""
        known, pages = store.get(region.low), self.pages.get(region.low)
        if known is not None and pages is None:
            return known
        count = -(-region.raw.numel() // self.unit(region)) if pages is None else pages[1] * PAGE
        if known is None:
            store[region.low] = torch.zeros(count, dtype=torch.int64)
        elif len(known) < count:
            more = torch.zeros(max(count, 2 * len(known)) - len(known), dtype=torch.int64)
            store[region.low] = torch.cat([known, more])
        return store[region.low]

    def _packed(self, region: Region, units: torch.Tensor) -> torch.Tensor:
        """Return where units of a storage are kept: of a large one only the pages that are touched are."""
        if region.raw.numel() <= DENSE:
            return units
        table, used = self.pages.get(region.low) or (torch.full([region.raw.numel() // PAGE + 1], -1), 0)
        pages = units // PAGE
        fresh = pages[table[pages] < 0].unique()
        table[fresh] = used + torch.arange(len(fresh))
        self.pages[region.low] = table, used + len(fresh)
        return table[pages] * PAGE + units % PAGE

    def touch(
        self,
        kind: int,
        region: Region,
        units: torch.Tensor,
        programs: torch.Tensor,
        op: int,
        kept: Kept | None = None,
        held: Kept | None = None,
        time: int | None = None,
        spots: Kept | None = None,
        alone: bool = False,
    ) -> tuple[int, int, int] | None:
        """Note that programs touch units; return place, other program and other operation of a race, or None.

        Of a plain write, which is done already, ``kept`` and ``held`` tell at which places memory held the value before
        and holds it now. ``time`` is that before an atomic operation, which `sync` has noted. ``spots`` gives those
        of `spots_of`. ``alone`` says that what the program releases next covers the access with no barrier between.
        """
        time = 2 * (time if time is not None else self.order.now if self.order else 0) + (not alone)
        units, crowd, before = self._packed(region, units), None, None
        lasts: dict[int, torch.Tensor] = {}
        if self.described and (crossed := self._crossed(region, units, programs, op, kept)):
            return crossed
        for other in (WRITE, UPDATE) if kind in (READ, WRITE) else (WRITE,):
            if spots is None or region.low not in self.spots[other]:
                continue
            last = lasts[other] = self._of(self.noted[other], region).index_select(0, units)
            own = last >> BITS == programs
            if int(last.min()) < 0:
                own |= self._among(other, region, units, last, programs)
            if not own.any():
                continue
            left, here = self._of(self.spots[other], region).index_select(0, units), spots()
            wrong = own & (left != here) & (left >> SPOT == here >> SPOT)
            if wrong.any() and (kept is None or (wrong := wrong & ~kept()).any()):
                at = int(wrong.to(torch.uint8).argmax())
                return at, int(programs[at]), int(last[at]) % OPS
        for other in (*RIVALS[kind], *(() if kind == WRITE else (kind,))):
            if region.low not in self.noted[other]:
                continue
            last = lasts[other] if other in lasts else self._of(self.noted[other], region).index_select(0, units)
            if not torch.count_nonzero(last):  # mostly nothing was there
                continue
            wrong, rivals = self._beside(other, region, units, last, programs, kind in (READ, POLL))
            if other == kind:
                crowd, before = wrong, last
            if other in RIVALS[kind] and wrong.any():
                if kept is not None:
                    wrong = wrong & ~kept()
                    if not wrong.any():
                        continue
                at = int(wrong.to(torch.uint8).argmax())
                return at, int(rivals[at]) >> BITS, int(rivals[at]) % OPS
        noted, mine = self._of(self.noted[kind], region), programs * OPS + op
        marks = mine if crowd is None else torch.where(crowd, MANY * OPS + op, mine)
        noted.scatter_(0, units, marks)
        after = noted.index_select(0, units)
        if shared := not torch.equal(after, marks):
            lost = after != marks
            if held is not None and (wrong := lost & ~held()).any():
                at = int(wrong.to(torch.uint8).argmax())
                return at, int(after[at]) >> BITS, op
            noted[units[lost]] = MANY * OPS + op
        if spots is not None and kind in self.spots:
            self._of(self.spots[kind], region)[units] = spots()
        if self.order is None and kind != WRITE:
            return None
        if shared or (crowd is not None and crowd.any()):
            self._keep(kind, region, units, mine, before, time)
        if self.order is not None:
            self._of(self.times[kind], region)[units] = time
        return None

    def clash(
        self, region: Region, units: torch.Tensor, programs: torch.Tensor, op: int
    ) -> tuple[int, int, int] | None:
        """Return a race as `touch` does, of an update with updates of another kind, before `sync` notes its own."""
        if op not in self.strange or region.low not in self.noted[UPDATE]:
            return None
        units = self._packed(region, units)
        last = self._of(self.noted[UPDATE], region).index_select(0, units)
        wrong, rivals = self._beside(UPDATE, region, units, last, programs, False)
        wrong = wrong & torch.isin(rivals % OPS, self.strange[op])
        if not wrong.any():
            return None
        at = int(wrong.to(torch.uint8).argmax())
        return at, int(rivals[at]) >> BITS, int(rivals[at]) % OPS

    def _crossed(
        self, region: Region, units: torch.Tensor, programs: torch.Tensor, op: int, kept: Kept | None
    ) -> tuple[int, int, int] | None:
        """Return a race as `touch` does, with what the same program stored, if either goes by a tensor descriptor."""
        if region.low not in self.noted[WRITE]:
            return None
        last = self._of(self.noted[WRITE], region).index_select(0, units)
        wrong = last >> BITS == programs
        if op not in self.described:
            wrong = wrong & torch.isin(last % OPS, self.described_ops)
        if not wrong.any() or (kept is not None and not (wrong := wrong & ~kept()).any()):
            return None
        at = int(wrong.to(torch.uint8).argmax())
        return at, int(programs[at]), int(last[at]) % OPS

    def _among(
        self, kind: int, region: Region, units: torch.Tensor, last: torch.Tensor, programs: torch.Tensor
    ) -> torch.Tensor:
        """Return where a program is one of several that touched a unit."""
        log, found = self.crowds.get((kind, region.low)), last < 0
        if log is None or not bool(found.any()):
            return torch.zeros_like(found)
        known, whose, _ = map(torch.cat, zip(*log, strict=True))
        count = len(self.waits)
        return found & torch.isin(units * count + programs, known * count + (whose >> BITS))

    def _keep(
        self, kind: int, region: Region, units: torch.Tensor, mine: torch.Tensor, before: torch.Tensor | None, time: int
    ) -> None:
        """Keep who touched units that several programs did."""
        log = self.crowds.setdefault((kind, region.low), [])
        many = self._of(self.noted[kind], region).index_select(0, units) < 0
        if before is not None:
            single = many & (before > 0)
            log.append((units[single], before[single], self._of(self.times[kind], region)[units[single]]))
        log.append((units[many], mine[many], torch.full_like(mine[many], time)))

    def _beside(
        self, kind: int, region: Region, units: torch.Tensor, last: torch.Tensor, programs: torch.Tensor, reads: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where another program touched units in a way and does not come before, and which operation of which.

        What several wrote is one value: who reads it may be any of them, or come after any.
        """
        who = last >> BITS
        beside = (who != 0) & (who != programs)
        log = self.crowds.get((kind, region.low))
        if (self.order is None and log is None) or not beside.any():
            return beside, last
        spots = beside.nonzero().squeeze(1)
        rivals, times = last[spots], self._of(self.times[kind], region)[units[spots]]
        crowd = rivals < 0
        if crowd.any():
            known, whose, when = map(torch.cat, zip(*log, strict=True))
            turn, wanted = known.argsort(), units[spots[crowd]]
            first, end = (torch.searchsorted(known[turn], wanted, right=right) for right in (False, True))
            count = end - first
            all_of = torch.arange(int(count.sum())) + (first + count - count.cumsum(0)).repeat_interleave(count)
            spots = torch.cat([spots[~crowd], spots[crowd].repeat_interleave(count)])
            rivals = torch.cat([rivals[~crowd], whose[turn[all_of]]])
            times = torch.cat([times[~crowd], when[turn[all_of]]])
        fine = rivals >> BITS == programs[spots]
        if self.order is not None:
            fine |= self.order.before(rivals >> BITS, times, programs[spots])
        if fine.all():
            return torch.zeros_like(beside), last
        if kind == WRITE and reads:
            beside[spots[fine]] = False
        else:
            beside = torch.zeros_like(beside)
            beside[spots[~fine]] = True
        return beside, last.index_put((spots[~fine],), rivals[~fine])

    def sync(self, region: Region, units: torch.Tensor, programs: torch.Tensor, acquires: bool, releases: bool) -> None:
        """Note an atomic operation of programs on units, which take their turns in order."""
        units, order = self._packed(region, units), self.order
        heads, (people, number) = self._of(self.heads, region), torch.unique_consecutive(programs, return_inverse=True)
        steps, turn = number + order.now, torch.argsort(units, stable=True)
        units, after = units[turn], steps[turn]
        earlier = heads[units] - 1
        if releases:
            again = units[1:] == units[:-1]
            earlier[1:] = torch.where(again, after[:-1], earlier[1:])
            heads.scatter_reduce_(0, units, after + 1, "amax")
        size = order.now + len(people)
        links = (after * size + earlier)[(earlier >= 0) & (earlier != after)].unique().tolist()
        order.add(people.tolist(), [divmod(link, size) for link in links], acquires)


class Order:
    """What programs know of each other by atomic operations, each of which is a step that earlier ones lead to.

    Attributes
    ----------
    now
        Steps so far, by which time is counted.
    """

    def __init__(self, programs: int, alone: bool = False):
        self.alone = alone  # whether a program has the threads of one warp, which go side by side
        self.waited = [-1] * (programs + 1)  # step at which all threads waited, which is none's
        self.covers: list[int] = []  # of each step the one up to which it releases what all threads did
        self.last = [-1] * (programs + 1)  # step that acquired
        self.whose: list[int] = []
        self.leads: list[list[int]] = []
        self.views: dict[int, tuple[int, int, dict[int, tuple[int, int]]]] = {}

    @property
    def now(self) -> int:
        return len(self.whose)

    def add(self, programs: list[int], links: list[tuple[int, int]], acquires: bool) -> None:
        """Add a step of each program, with links from such a step to an earlier one."""
        first = self.now
        self.covers += [first + n if self.alone else self.waited[program] for n, program in enumerate(programs)]
        self.leads += [[self.last[program]] for program in programs]
        self.whose += programs
        for step, earlier in links:
            self.leads[step].append(earlier)
        if acquires:
            for step, program in enumerate(programs, first):
                self.last[program] = step

    def wait(self, programs: list[int]) -> None:
        """Note that all threads of each program wait for one another: a step that leads nowhere."""
        for program in programs:
            self.waited[program] = self.now
        self.whose.append(0)
        self.leads.append([])
        self.covers.append(-1)

    def before(self, who: torch.Tensor, times: torch.Tensor, programs: torch.Tensor) -> torch.Tensor:
        """Return where what others did at a time comes before what programs do now.

        Of twice the time the last bit says whether all threads did it, and not the one that releases.
        """
        if not len(who):
            return torch.zeros(0, dtype=torch.bool)
        count, size, floor = len(self.last), 2 * (self.now + 1), int(times.min()) // 2
        keys, back = ((programs * count + who) * size + times).unique_consecutive(return_inverse=True)
        keys, each = keys.unique(return_inverse=True)  # of far fewer
        found = []
        for key in keys.tolist():
            pair, time = divmod(key, size)
            mine, other = divmod(pair, count)
            found.append(self._known(mine, floor).get(other, NOTHING)[time % 2] >= time // 2)
        return torch.tensor(found)[each][back]

    def _known(self, program: int, floor: int) -> dict[int, tuple[int, int]]:
        """Return the last step of each other program that leads to where a program is, of those from a time on.

        With it comes the last step up to which all threads are known to be.
        """
        top = self.last[program]
        at, low, known = self.views.get(program, (None, 0, {}))
        if at == top and low <= floor:
            return known
        known, todo, seen = {}, [top], {top}
        while todo:
            step = todo.pop()
            if step >= floor:
                one, every = known.get(self.whose[step], NOTHING)
                known[self.whose[step]] = max(step, one), max(self.covers[step], every)
                todo += (new := set(self.leads[step]) - seen)
                seen |= new
        if len(self.views) >= VIEWS:
            self.views.clear()
        self.views[program] = top, floor, known
        return known
