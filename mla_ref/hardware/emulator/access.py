"""Loads, stores and atomic operations, checked: does each lie in its tensor, and who else was there?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from . import axes, faults
from .arithmetic import BINARY, bitcast, dtype_of, flushed, storage_dtype
from .memory import Fills, Region
from .races import POLL, READ, UPDATE, WRITE, Kept
from .ttir import Op

Machine = Any  # of machine.py, which imports this
KINDS = {"tt.load": "load", "tt.store": "store", "tt.atomic_rmw": "atomic", "tt.atomic_cas": "atomic"}
TMA = "ttng.async_tma_copy_local_to_global"
NAMES = {"tt.atomic_rmw": "an atomic operation", "tt.atomic_cas": "tl.atomic_cas", TMA: "a store by TMA"}
VERBS = {
    "tt.load": "reads",
    "tt.store": "writes",
    "tt.atomic_rmw": "updates",
    "tt.atomic_cas": "updates",
    TMA: "writes",
}
# What tl.atomic_* does, in the order of Triton's enumeration; the last one exchanges
RMW = ("andi", "ori", "xori", "addi", "addf", "maxsi", "minsi", "maxui", "minui", None)
EXCHANGE = len(RMW)
RELAXED, ACQUIRE, RELEASE, ACQUIRE_RELEASE = range(1, 5)  # `sem` of an atomic operation
CTA, SYSTEM = 2, 3  # its `scope`, if that is one program, or all of the machine and not the GPU alone
LEFT_OUT = b"\x5a"  # each byte of an integer that a mask leaves out of a load
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def access(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor | None:
    """Load, store or update memory, checked."""
    kind, address = op.ins[0], args[0]
    shape, dtype = kind.shape, storage_dtype(kind.pointee)
    mask, other, value = None, None, None
    if op.name == "tt.load":
        _, has_mask, has_other = op.attrs["operandSegmentSizes"]
        mask = args[1] if has_mask else None
        other = args[2] if has_other else None
    elif op.name == "tt.atomic_cas":
        value = args[2]
    else:
        value, mask = args[1], args[2] if len(args) > 2 else None
    if machine.active is not None:
        on = machine.active.reshape(-1, *[1] * len(shape))
        mask = on if mask is None else mask & on
    count = 1 if mask is None else int(torch.count_nonzero(mask))  # faster than any() and all()
    if mask is not None and count == mask.numel():
        mask = None
    regions = machine.memory.candidates(op.roots)
    nothing = count == 0
    if op.number in machine.kernel.doubted and not nothing:
        axes.look(machine, op, address, mask)
    where = [] if nothing else _find(machine, op, regions, address, mask, dtype)
    if machine.watch is not None:
        machine.watch.access(machine, op, mask, where)
    if machine.partition is not None and machine.shadow is not None:
        _beside_partitions(machine, op, where)
    if op.name == "tt.load":
        return _load(machine, op, where, mask, other, dtype, address)
    if op.name == "tt.store":
        if not nothing:
            _store(machine, op, where, value, dtype, shape)
        return None
    rest = _left_out(machine, op, args, dtype) if op.number in machine.kernel.asked else 0
    if nothing:
        return torch.full([1] * (1 + len(shape)), rest, dtype=dtype)
    return _update(machine, op, where, args, dtype, shape, rest)


def _find(
    machine: Machine,
    op: Op,
    regions: list[Region],
    address: torch.Tensor,
    mask: torch.Tensor | None,
    dtype: torch.dtype,
) -> list[tuple[Region, torch.Tensor, torch.Tensor | None]]:
    """Return regions with the indices of the elements touched there, and which those are: None means all."""
    size = dtype.itemsize  # a power of 2: shifts are many times as fast as divisions
    for region in regions:  # mostly they all lie in one, those that are masked too
        offset = address - region.low
        inside = _spans(offset, size, region)
        if not inside and mask is not None:
            offset = torch.where(mask, offset, 0)
            inside = _spans(offset, size, region)
        if not inside:
            continue
        if size > 1 and int((offset & size - 1).max()):
            uneven = offset & size - 1 if mask is None else torch.where(mask, offset & size - 1, 0)
            if bool(uneven.any()):
                _misaligned(machine, op, region, address, uneven, size)
        return [(region, offset >> size.bit_length() - 1, mask)]
    shape = address.shape if mask is None else [*map(max, address.shape, mask.shape)]
    address, left = (
        address.expand(shape),
        torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape),
    )
    found = []
    for region in regions:
        here = left & (address >= region.low) & (address + size <= region.high)
        if bool(here.any()):
            offset = torch.where(here, address - region.low, 0)
            if bool((offset % size).any()):
                _misaligned(machine, op, region, address, offset % size, size)
            found.append((region, offset // size, here))
            left = left & ~here
    if bool(left.any()):
        if op.roots is None and machine.memory.discover(address[left]):
            return _find(machine, op, machine.memory.candidates(None), address, mask, dtype)
        _outside(machine, op, regions, address, left, size)
    return found


def _misaligned(
    machine: Machine, op: Op, region: Region, address: torch.Tensor, uneven: torch.Tensor, size: int
) -> None:
    spot = [int(n) for n in torch.nonzero(uneven)[0]]
    machine.fail(faults.Misaligned, op, f"{_named(op)} of {size} bytes at an address that is no multiple of {size}, in "
              f"{region.name}; program {machine.program(spot[0] if len(uneven) > 1 else 0)}")  # fmt: skip


def _outside(
    machine: Machine, op: Op, regions: list[Region], address: torch.Tensor, left: torch.Tensor, size: int
) -> None:
    spot = [int(n) for n in torch.nonzero(left)[0]]
    at = int(address[tuple(spot)])
    who = spot[0]
    if address.shape[0] == 1 and machine.active is not None:
        who = int(machine.active.to(torch.uint8).argmax())
    if op.roots is None and (load := _load_of_an_address(machine)):
        table = f"what is loaded in line {load.line}{machine.source(load)} is taken for addresses"
        why = f"{table}, and those that the host put into a tensor mean nothing here: pass the tensors themselves"
        said = f"{_named(op)} {VERBS[op.name]} an address that belongs to no argument"
        machine.fail(faults.OutOfBounds, op, f"{said}: {why}")
    if not regions:
        machine.fail(faults.OutOfBounds, op, f"{_named(op)} {VERBS[op.name]} an address that belongs to no argument; "
                  f"program {machine.program(who)}{_perhaps(machine, op)}")  # fmt: skip
    known = op.roots is not None and len(op.roots) == 1
    region = machine.memory.regions.get(next(iter(op.roots))) if known else None
    owner = region or min(regions, key=lambda each: max(each.low - at, at - each.high))
    index, count = (at - owner.start) // size, (owner.high - owner.start) // size
    where = "" if known else "an address that belongs to no argument; the nearest is "
    machine.fail(faults.OutOfBounds, op, f"{_named(op)} {VERBS[op.name]} {where}element {index} of {owner.name}, which "
              f"holds {count} (shape {'x'.join(map(str, owner.shape))}); program {machine.program(who)}: is the mask "
              f"missing, an offset wrong, or the grid too large?{_perhaps(machine, op)}")  # fmt: skip


def _perhaps(machine: Machine, op: Op) -> str:
    """Return a sentence on a load whose mask leaves out what this access depends on, if there was one."""
    fills = Fills.current
    loads = sorted(fills.integers - set(fills.zero)) if fills else []
    if load := _load_of_the_mask(machine, op):
        return (
            f" Its mask depends on what is loaded in line {load.line}{machine.source(load)}: where the mask of that "
            "load is false it gives `other`"
        )
    return next((f" Perhaps it is {fills.loads[key]}" for key in loads if key[0] == machine.kernel.name), "")


def _load_of_the_mask(machine: Machine, op: Op) -> Op | None:
    """Return a load with a mask and `other` on whose result the mask of an access depends, if there is one."""
    place = {"tt.load": 1, "tt.store": 2}.get(op.name)
    loads = _loads_of(machine, op.operands[place : place + 1] if place else ())
    return next((each for each in loads if all(each.attrs["operandSegmentSizes"])), None)


def _load_of_an_address(machine: Machine) -> Op | None:
    """Return a load of integers that the kernel takes for addresses, if there is one."""
    casts = (each for each in machine.kernel.module.ops if each.name == "tt.int_to_ptr")
    return next((load for each in casts for load in _loads_of(machine, each.operands)), None)


def _loads_of(machine: Machine, names: Sequence[str]) -> Iterator[Op]:
    """Yield the loads on whose results values depend, unless by the address of an argument."""
    makers = {name: each for each in machine.kernel.module.ops for name in each.results}
    waiting, seen = list(names), set()
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is None or id(maker) in seen or maker.name == "tt.ptr_to_int":
            continue
        seen.add(id(maker))
        if maker.name == "tt.load":
            yield maker
        waiting += maker.operands


def _load(
    machine: Machine, op: Op, where: list, mask: torch.Tensor | None, other: torch.Tensor | None, dtype: torch.dtype,
    address: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    plain = torch.int8 if dtype.itemsize == 1 else dtype
    if not where:
        found = torch.zeros([1] * address.dim(), dtype=plain)
    for number, (region, index, here) in enumerate(where):
        part = region.view(plain).index_select(0, index.reshape(-1)).view(index.shape)
        found = part if not number else torch.where(here, part, found)
        if region.written is not None:
            _check_written(machine, op, region, index, here, dtype)
        if machine.shadow is not None and _may_reach(machine, region, machine.kernel.stored):
            full = (machine.size, *op.ins[0].shape)
            places, chosen = index.expand(full).reshape(-1), None
            if here is not None:
                chosen = here.expand(full).reshape(-1).nonzero().squeeze(1)
                places = places.index_select(0, chosen)
            _note(machine, op, region, POLL if op.attrs.get("isVolatile") else READ, places, chosen)
    if mask is not None:
        fill = other
        if fill is None:
            fill = torch.full((), _undefined(machine, op, dtype), dtype=plain)
            if Fills.current is not None and Fills.current.other and op.attrs["operandSegmentSizes"][1]:
                fill = Fills.current.other(torch.broadcast_tensors(found, mask)[0].shape, dtype).view(plain)
        elif fill.dtype != plain:
            fill = fill.view(plain)
        found = torch.where(mask, found, fill)
    return found if plain == dtype else found.view(dtype)


def _undefined(machine: Machine, op: Op, dtype: torch.dtype) -> float:
    """Return what a load gives where its mask leaves places out and it says nothing of them; note that it did."""
    _, has_mask, _ = op.attrs["operandSegmentSizes"]
    other = "padding_option" if "boundary_check" in machine.source(op) else "other"
    what = f"the mask leaves places out of this load, which has no `{other}`. What they hold"
    return _filling(machine, op, dtype, bool(has_mask), what)


def _left_out(machine: Machine, op: Op, args: list[torch.Tensor], dtype: torch.dtype) -> float:
    """Return what an atomic operation gives where its mask leaves places out; note that it did."""
    if op.name == "tt.atomic_cas" or len(args) < 3:
        return 0
    out = ~machine.full(args[2], op.ins[0].shape, programs=True).reshape(machine.size, -1).all(1)
    what = "the mask leaves places out of this operation, whose result is used. What they hold"
    return _filling(machine, op, dtype, True, what) if bool((out & machine.programs_on()).any()) else 0


def _filling(machine: Machine, op: Op, dtype: torch.dtype, has_mask: bool, what: str) -> float:
    """Return what stands where a mask leaves places out, say; note that it did."""
    fills = Fills.current
    value: float = math.nan
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        value = 0x7F  # NaN
    elif not dtype.is_floating_point:
        value = int.from_bytes(LEFT_OUT * dtype.itemsize) if has_mask else 0
    if fills is None or not has_mask:
        return value
    key = machine.kernel.name, op.place
    known = "NaN" if dtype.is_floating_point else f"{value}"
    said = f"{what} is undefined, here {known}"
    fills.loads.setdefault(key, f"{machine.kernel.name} in line {op.line}{machine.source(op)}: {said}")
    if not dtype.is_floating_point:
        fills.integers.add(key)
    if key in fills.zero:
        return 0
    return fills.other((), dtype).view(INTEGERS[1] if dtype.itemsize == 1 else dtype).item() if fills.other else value


def undefined(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    """Return what a function gives that ends without a return, where others of its ways return something."""
    dtype, what = dtype_of(op.outs[0]), "a function ends without a return: what it gives"
    value = _filling(machine, op, dtype, True, what)
    if Fills.current is not None and Fills.current.other:
        return Fills.current.other((1, *op.outs[0].shape), dtype)
    plain = torch.int8 if dtype.itemsize == 1 else dtype
    return torch.full([1] * (1 + len(op.outs[0].shape)), value, dtype=plain).view(dtype)


def _check_written(
    machine: Machine, op: Op, region: Region, index: torch.Tensor, here: torch.Tensor | None, dtype: torch.dtype
) -> None:
    known = region.written[: len(region.written) // dtype.itemsize * dtype.itemsize].view(INTEGERS[dtype.itemsize])
    every = int.from_bytes(b"\1" * dtype.itemsize)
    found = known.index_select(0, index.reshape(-1)).view(index.shape)
    if int(found.min()) == every:
        return
    bad = found != every if here is None else here & (found != every)
    if not bool(bad.any()):
        return
    spot = [int(n) for n in torch.nonzero(bad)[0]]
    at = region.low + int(index.expand(bad.shape)[tuple(spot)]) * dtype.itemsize
    element = (at - region.start) // dtype.itemsize
    said = f"{_named(op)} reads element {element} of {region.name}, which nothing wrote; "
    said += f"program {machine.program(spot[0])}"
    told = f"{machine.kernel.name} in line {op.line}{machine.source(op)}: {said}"
    if Fills.current is not None:
        Fills.current.asked = True
    if told not in region.reports:
        region.reports.append(told)


def barrier(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> None:
    """Have all threads of the programs wait for one another."""
    if machine.watch is not None:
        machine.watch.barrier(machine, op)
    _wait(machine, op)


def _wait(machine: Machine, op: Op) -> None:
    if machine.shadow is not None:
        numbers = machine.numbers if machine.active is None else machine.numbers[machine.active]
        machine.shadow.wait(numbers + 1)
        machine.shadow.ran.add(op.number)


def _may_reach(machine: Machine, region: Region, roots: frozenset[int] | None) -> bool:
    """Return whether pointers from these parameters, of any if None, may lead to a region."""
    return roots is None or any(each.low == region.low for each in machine.memory.candidates(roots))


def _store(
    machine: Machine, op: Op, where: list, value: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    plain = torch.int8 if dtype.itemsize == 1 else dtype
    if value.dtype != plain:
        value = value.view(plain) if value.dtype.itemsize == 1 else value.to(plain)
    full = (machine.size, *shape)
    for region, index, here in where:
        flat, index, spread = region.view(plain), index.expand(full).reshape(-1), value.expand(full).reshape(-1)
        chosen = None
        if here is not None:
            chosen = here.expand(full).reshape(-1).nonzero().squeeze(1)
            index, spread = index.index_select(0, chosen), spread.index_select(0, chosen)
        if machine.turning:
            machine.changes += int(not torch.equal(bits(flat[index]), bits(spread)))
        machine.remember(flat, index)
        if machine.shadow is not None:
            _note_store(machine, op, region, index, chosen, flat, spread)
        else:
            flat.index_copy_(0, index, spread)
        if region.written is not None:
            bytes_of = region.written[: len(region.written) // dtype.itemsize * dtype.itemsize]
            bytes_of.view(-1, dtype.itemsize)[index] = True


def _units(
    machine: Machine, op: Op, region: Region, index: torch.Tensor, chosen: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return the units of elements that are touched, the programs that do, from 1 on, and the units of an element.

    ``index`` holds the elements, ``chosen`` their numbers among those of all programs' blocks.
    """
    block, size = math.prod(op.ins[0].shape), storage_dtype(op.ins[0].pointee).itemsize
    programs = machine.numbers + 1
    if chosen is None:
        programs = programs[:, None].expand(-1, block).reshape(-1)
    else:
        programs = programs.index_select(0, chosen >> block.bit_length() - 1)  # blocks are powers of 2
    units, repeat = index, size // machine.shadow.unit(region)
    if repeat > 1:
        units = (index[:, None] * repeat + torch.arange(repeat)).reshape(-1)
        programs = programs[:, None].expand(-1, repeat).reshape(-1)
    return units, programs, repeat


def _note(
    machine: Machine, op: Op, region: Region, kind: int, index: torch.Tensor, chosen: torch.Tensor | None,
    kept: Kept | None = None, held: Kept | None = None, time: int | None = None, alone: bool = False,
) -> None:  # fmt: skip
    """Look for races with what other programs did; the arguments are those of `_units` and `Shadow.touch`."""
    units, programs, repeat = _units(machine, op, region, index, chosen)
    each = lambda same: same and (lambda: same()[:, None].expand(-1, repeat).reshape(-1))
    alone = alone or not op.ins[0].shape or kind == READ
    spots = lambda: _spots(machine, op, programs, chosen, repeat)
    ahead = machine.ahead is not None and op.number in machine.ahead.loads
    if (
        ahead
        and not machine.ahead.keeps & machine.shadow.ran
        and (found := machine.shadow.missed(region, units, programs))
    ):
        at, mine, earlier = found
        _race(machine, op, _element(machine, op, region, int(units[at])), mine, mine, earlier, ahead=True)
    found = machine.shadow.touch(kind, region, units, programs, op.number, each(kept), each(held), time, spots, alone)
    if found is not None:
        spot, other, earlier = found
        mine = int(programs[spot])
        _race(machine, op, _element(machine, op, region, int(units[spot])), mine, other, earlier)
    if machine.kernel.ahead and kind in (WRITE, UPDATE):
        changed = ~each(kept)() if kept else torch.ones_like(units, dtype=torch.bool)
        machine.shadow.change(region, units, programs, changed, op.number in machine.kernel.branched)


def _spots(machine: Machine, op: Op, programs: torch.Tensor, chosen: torch.Tensor | None, repeat: int) -> torch.Tensor:
    """Return what `Shadow.spots_of` does of the units of `_units`."""
    shape, spread = tuple(op.ins[0].shape), op.number in machine.kernel.spread
    block = math.prod(shape)
    places = torch.arange(block).repeat(machine.size) if chosen is None else chosen & block - 1
    places = places[:, None].expand(-1, repeat).reshape(-1)
    return machine.shadow.spots_of(shape, programs, places, spread, machine.kernel.grain(op))


def _beside_partitions(machine: Machine, op: Op, where: list) -> None:
    """Look for races of plain loads and stores with those of the program's other partitions."""
    if op.described or op.name not in ("tt.load", "tt.store"):
        return
    for region, index, here in where:
        unit, whole = machine.shadow.unit(region), [*map(max, index.shape, (index if here is None else here).shape)]
        places = index.expand(whole)
        places = places.reshape(-1) if here is None else places[here.expand(whole)]
        repeat = storage_dtype(op.ins[0].pointee).itemsize // unit
        units = (places[:, None] * repeat + torch.arange(repeat)).reshape(-1)
        writes, count = op.name == "tt.store", -(-region.raw.numel() // unit)
        if found := machine.partition.touch(region.low, count, units, writes, op.number):
            element, before = _element(machine, op, region, int(units[found[0]])), machine.kernel.module.ops[found[1]]
            machine.fail(
                faults.Race,
                op,
                f"{_named(op)} {VERBS[op.name]} {element}, which {_named(before)} in line {before.line}"
                f"{machine.source(before)} {VERBS[before.name]} (no barrier stands between the two partitions)",
            )


def _element(machine: Machine, op: Op, region: Region, unit: int) -> str:
    size = storage_dtype(op.ins[0].pointee).itemsize
    return f"element {(region.low + unit * machine.shadow.unit(region) - region.start) // size} of {region.name}"


def _note_store(
    machine: Machine, op: Op, region: Region, index: torch.Tensor, chosen: torch.Tensor | None, flat: torch.Tensor,
    value: torch.Tensor,
) -> None:  # fmt: skip
    """Do a store, and look for its races."""
    memory, wanted = bits(flat), bits(value)
    before = memory.index_select(0, index)
    flat.index_copy_(0, index, value)
    kept, held = lambda: before == wanted, lambda: memory.index_select(0, index) == wanted
    _note(machine, op, region, WRITE, index, chosen, kept, held)
    if not (same := held()).all():  # of one program, as others' were looked at
        element = int(index[int((~same).to(torch.uint8).argmax())]) - (region.start - region.low) // flat.itemsize
        said = f"{_named(op)} writes several values to element {element} of {region.name}: nothing says which one stays"
        machine.fail(faults.Race, op, said)


def _race(machine: Machine, op: Op, element: str, mine: int, other: int, earlier: int, ahead: bool = False) -> None:
    """Raise for a race with an earlier operation of another program, of many if that is below 0, or of the same.

    `ahead` says that it is one of a load that the compiler may do turns ahead.
    """
    before, (x, y, _) = machine.kernel.module.ops[earlier], machine.grid
    me, them = ((n % x, n // x % y, n // (x * y)) for n in (mine - 1, other - 1))
    who = "other programs" if other < 0 else "the same" if other == mine else f"program {them}"
    threads = ": another thread does, and no tl.debug_barrier() is between them" if other == mine else ""
    if other != mine and machine.shadow.order is not None:
        threads = ", and an atomic operation orders what one thread did (is a tl.debug_barrier() before it?)"
    if before.name == TMA and other != mine:
        threads = ", and nothing waits until it has arrived in memory: take two launches"
    if other == mine and (op.described or before.described or before.name == TMA):
        threads = ", one of the two by a tensor descriptor, for which no barrier waits: take two launches"
    if ahead:
        threads = " in this loop: the compiler may do the load turns ahead, unless a tl.debug_barrier() is in the loop"
    machine.fail(
        faults.Race,
        op,
        f"{_named(op)} of program {me} {VERBS[op.name]} {element}, which {_named(before)} in line {before.line} of "
        f"{who} {VERBS[before.name]}{threads}: nothing says which comes first",
    )


def _update(
    machine: Machine, op: Op, where: list, args: list[torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...],
    rest: float,
) -> torch.Tensor:  # fmt: skip
    """Update memory in the order of programs and elements; return what was there before each, and else `rest`."""
    full = (machine.size, *shape)
    axes = [*range(1, len(full))] if machine.backward else []
    given = lambda x: x.expand(full).flip(axes)
    out = torch.full(full, rest, dtype=dtype)
    compare = given(args[1]) if op.name == "tt.atomic_cas" else None
    value = given(args[2 if compare is not None else 1])
    for region, index, here in where:
        flat = region.view(dtype)
        keep = torch.ones(full, dtype=torch.bool) if here is None else given(here)
        places, new = given(index)[keep], value[keep]
        if region.written is not None and op.attrs.get("atomic_rmw_op") != EXCHANGE:
            _check_written(machine, op, region, index, here, dtype)
        machine.remember(flat, places)
        old = _one_by_one(flat, places, new, None if compare is None else compare[keep], op.attrs.get("atomic_rmw_op"))
        changed = bits(old) != bits(flat[places])
        machine.changes += int(bool(changed.any()))
        out[keep] = old
        if region.written is not None:
            region.written[: flat.numel() * dtype.itemsize].view(-1, dtype.itemsize)[places] = True
        if machine.shadow is not None:
            written = torch.ones_like(changed) if compare is None else bits(old) == bits(compare[keep])
            chosen = torch.arange(keep.numel()).view(full).flip(axes)[keep]
            _note_update(machine, op, region, places, chosen, changed, written)
    if op.number in machine.kernel.asked and machine.shadow is not None and math.prod(shape) < machine.shadow.threads:
        _wait(machine, op)  # each thread gets what few of them found
    return out.flip(axes)


def _note_update(
    machine: Machine, op: Op, region: Region, index: torch.Tensor, chosen: torch.Tensor, changed: torch.Tensor,
    written: torch.Tensor,
) -> None:  # fmt: skip
    """Look for races of an atomic operation, and note what it orders.

    ``changed`` tells which elements it changes, ``written`` which ones it writes.
    """
    if op.attrs.get("scope") == CTA:
        _note(machine, op, region, WRITE, index, chosen, held=lambda: torch.zeros_like(changed))
        return
    sem, order = op.attrs.get("sem", ACQUIRE_RELEASE), machine.shadow.order
    time = order.now if order is not None else None
    if machine.kernel.unasked:
        units, programs, _ = _units(machine, op, region, index, chosen)
        if found := machine.shadow.clash(region, units, programs, op.number):
            spot, other, earlier = found
            _race(machine, op, _element(machine, op, region, int(units[spot])), int(programs[spot]), other, earlier)
    if order is not None and sem != RELAXED:
        releases = written & (sem != ACQUIRE)
        for part in (releases, ~releases):
            if bool(part.any()):
                units, programs, _ = _units(machine, op, region, index[part], chosen[part])
                machine.shadow.sync(region, units, programs, sem != RELEASE, part is releases)
    for kind, part in ((UPDATE, changed), (POLL, ~changed)):
        if bool(part.any()) and (machine.kernel.unasked or _may_reach(machine, region, machine.kernel.plain)):
            _note(machine, op, region, kind, index[part], chosen[part], time=time, alone=sem != RELAXED)


def _one_by_one(
    flat: torch.Tensor, places: torch.Tensor, new: torch.Tensor, compare: torch.Tensor | None, which: int | None
) -> torch.Tensor:
    """Update elements one after the other, also where places repeat; return what each found."""
    if which is not None:
        name = RMW[which - 1]
        combine = (lambda old, new: new) if name is None else BINARY[f"arith.{name}"]
        if name == "addf":  # in global memory float32 always loses its subnormals
            combine = lambda old, new: flushed(flushed(old) + flushed(new))
    else:
        combine = None
    order = torch.argsort(places, stable=True)
    ordered = places[order]
    starts = torch.ones(len(ordered), dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first = torch.cummax(torch.where(starts, torch.arange(len(ordered)), 0), 0)[0]
    rank = torch.arange(len(ordered)) - first
    old = torch.empty_like(new)
    for turn in range(int(rank.max()) + 1 if len(rank) else 0):
        chosen = order if len(order) == 1 else order[rank == turn]
        at = places[chosen]
        before = flat[at]
        if combine is None:
            after = torch.where(bits(before) == bits(compare[chosen]), new[chosen], before)
        else:
            after = combine(before, new[chosen])
        flat[at] = after
        old[chosen] = before
    return old


def bits(x: torch.Tensor) -> torch.Tensor:
    return bitcast(x, INTEGERS[x.dtype.itemsize])


def _spans(offset: torch.Tensor, size: int, region: Region) -> bool:
    """Return whether elements of a size at all these bytes lie in a region."""
    low, high = torch.aminmax(offset)
    return int(low) >= 0 and int(high) + size <= region.raw.numel()


def _named(op: Op) -> str:
    return NAMES.get(op.name, op.name.replace("tt.", "tl."))


def is_known(pointee: str) -> bool:
    try:
        storage_dtype(pointee)
    except KeyError:
        return False
    return True
