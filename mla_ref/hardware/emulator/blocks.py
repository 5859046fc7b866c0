"""Operations on whole blocks: making and reshaping them, products, reductions, scans; and printing them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from . import faults
from .arithmetic import BITS, dtype_of, signed_zeros, storage_dtype
from .axes import HINTS, hints
from .ttir import Block, Function, Op, parse_constant

Machine = Any  # of machine.py, which imports this
TF32 = 0  # the precision of a tl.dot of float32 that asks for none
IN_A_THREAD = 4  # elements of an axis that a thread may hold
ORDERED = 1e-2  # of the largest number: what two orders of a reduction may differ by
MEMORY = ("tt.load", "tt.store", "tt.atomic")
# Operations on two elements that give the same in any order of a block's, but for rounding
PLAIN = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "addi", "andi", "maximumf", "maxnumf", "maxsi", "maxui", "minimumf", "minnumf", "minsi", "minui"),
        *("mulf", "muli", "ori", "xori"),
    )
)
UNKNOWN = {
    "tt.elementwise_inline_asm": "inline assembly runs on a GPU only",
    "tt.extern_elementwise": "a function of libdevice runs on a GPU only",
    "tt.dot_scaled": "tl.dot_scaled is not emulated: use tl.dot",
}


def called(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> list[torch.Tensor]:
    return machine.call(machine.kernel.module.functions[op.attrs["callee"]], args)


def program_id(machine: Machine, op: Op, args: Any, env: Any) -> torch.Tensor:
    return machine.ids[op.attrs["axis"]]


def num_programs(machine: Machine, op: Op, args: Any, env: Any) -> torch.Tensor:
    return torch.tensor([machine.grid[op.attrs["axis"]]], dtype=torch.int32)


def dot(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    if machine.watch is not None:
        machine.watch.product(machine, op)
    a, b = (machine.full(x, kind.shape) for x, kind in zip(args[:2], op.ins, strict=False))
    to = dtype_of(op.outs[0])
    if a.dtype == torch.float32 and op.attrs.get("inputPrecision", TF32) == TF32:
        a, b = map(_cut_to_tf32, (a, b))
    wide = torch.float64 if a.dtype in (torch.float64, torch.int8) else torch.float32
    out = torch.matmul(a.to(wide), b.to(wide))
    return out.to(to) + args[2] if to in (torch.int32, torch.float64) else (out + args[2]).to(to)


def _cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return float32 with 10 bits of mantissa: matrix units leave out the others, NVIDIA's with no rounding."""
    return torch.where(x.isfinite(), (x.view(torch.int32) & ~0x1FFF).view(torch.float32), x)


def is_plain(op: Op) -> bool:
    """Return whether a reduction or a scan is of one operation that gives the same in any order, but for rounding."""
    region = op.regions[0][0]
    names = {name for name, _ in region.args}
    return len(region.ops) == 2 and region.ops[0].name in PLAIN and set(region.ops[0].operands) == names


def _check_simple(machine: Machine, op: Op) -> None:
    if any(inner.name.startswith(MEMORY) for region in op.regions for block in region for inner in block.ops):
        machine.fail(
            faults.Unsupported, op, "a function of elements reads or writes memory: nothing says for which it runs"
        )
    if len(op.regions[0]) > 1 or any(inner.regions for inner in op.regions[0][0].ops):
        machine.fail(
            faults.Unsupported, op, "the function that combines two elements has branches or loops: no GPU takes it"
        )


def reduce(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> list[torch.Tensor]:
    _check_simple(machine, op)
    if machine.watch is not None:
        machine.watch.exchange(machine, op)
    axis, region = op.attrs["axis"] + 1, op.regions[0][0]
    args = [machine.full(x, kind.shape) for x, kind in zip(args, op.ins, strict=True)]
    quick = _quick_reduction(region) if len(args) == 1 else None
    if quick is not None and (out := quick(args[0], axis)) is not None:
        return [out]
    whole, machine.active = machine.active, None
    halves, pairs = lambda x: x.chunk(2, axis), lambda x: x.unflatten(axis, (-1, 2)).unbind(axis + 1)[::-1]
    plain = is_plain(op)
    found = _combined(machine, region, args, env, axis, pairs if machine.backward and not plain else halves)
    strange = None
    if not plain and machine.order == "forward":  # others come after it
        watch, machine.watch = machine.watch, None
        again = _combined(machine, region, args, env, axis, pairs)
        in_threads = _one_by_one(_function(machine, region, env), args, axis)[-1]
        third = _combined(machine, region, in_threads, env, axis, halves)
        machine.watch = watch
        others = ((x, y, given) for other in (again, third) for x, y, given in zip(found, other, args, strict=True))
        strange = [_differ(x, y, given, axis) for x, y, given in others]
    machine.active = whole
    if strange is not None and any(_of_active(machine, each) for each in strange):
        machine.fail(
            faults.Undefined,
            op,
            "the function of tl.reduce gives something else where its two arguments, or the elements, come in another "
            "order: a GPU takes them in any",
        )
    return found


def _combined(
    machine: Machine, region: Block, args: list[torch.Tensor], env: Any, axis: int, parted: Callable[..., Any]
) -> list[torch.Tensor]:
    """Return what a function of two elements makes of an axis, two halves of it at a time."""
    names = [name for name, _ in region.args]
    while args[0].shape[axis] > 1:
        halves = [parted(x) for x in args]
        inner = zip(names, [h[0] for h in halves] + [h[1] for h in halves], strict=True)
        args = machine.block(region, {**env, **dict(inner)})  # constants lie outside of the region
    return [x.squeeze(axis) for x in args]


def _function(machine: Machine, region: Block, env: Any) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Return the function of a reduction or a scan, of the values of two elements in one list."""
    names = [name for name, _ in region.args]
    return lambda both: machine.block(region, {**env, **dict(zip(names, both, strict=True))})


def _one_by_one(combine: Callable[..., Any], args: list[torch.Tensor], axis: int) -> list[list[torch.Tensor]]:
    """Return what a function makes of each element of a group with those before it, as a thread takes its own.

    Element n of each group, of IN_A_THREAD at most, is in item n.
    """
    count = min(IN_A_THREAD, args[0].shape[axis])
    parts = [x.unflatten(axis, (-1, count)).unbind(axis + 1) for x in args]
    found = [[x[0] for x in parts]]
    for n in range(1, count):
        found.append(combine(found[-1] + [x[n] for x in parts]))
    return found


def _differ(x: torch.Tensor, y: torch.Tensor, given: torch.Tensor, axis: int, keep: bool = False) -> torch.Tensor:
    """Return where two results are not the same; of floats where they differ by more than rounding what is `given`."""
    if not x.is_floating_point():
        return x != y
    largest = torch.where(given.isfinite(), given, 0).abs().amax(axis, keepdim=keep)
    for each in (x, y):
        largest = torch.maximum(largest, torch.where(each.isfinite(), each, 0).abs())
    room = max(ORDERED, 64 * torch.finfo(x.dtype).eps) * largest.double()
    return ~((x == y) | (x.isnan() & y.isnan()) | ((x.double() - y.double()).abs() <= room))


def _of_active(machine: Machine, programs: torch.Tensor) -> bool:
    """Return whether something is so, bool [P, ...], in a program that takes part."""
    found = programs.reshape(len(programs), -1).any(1)
    return bool((found if machine.active is None else found & machine.active).any())


def scan(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> list[torch.Tensor]:
    _check_simple(machine, op)
    if machine.watch is not None:
        machine.watch.exchange(machine, op)
    axis, region, step = op.attrs["axis"] + 1, op.regions[0][0], 1
    names, count = [name for name, _ in region.args], op.ins[0].shape[axis - 1]
    args = [machine.full(x, kind.shape) for x, kind in zip(args, op.ins, strict=True)]
    back = op.attrs.get("reverse", False)
    if back:
        args = [x.flip(axis) for x in args]
    given, again, third = args, None, None
    whole, machine.active = machine.active, None
    if not is_plain(op):
        watch, machine.watch = machine.watch, None
        combine = _function(machine, region, env)
        again = _scanned_by_pairs(combine, args, axis)
        if machine.order == "forward":  # others come after it
            third = _scanned_by_threads(combine, args, axis)
        machine.watch = watch
    while step < count:
        left = [x.narrow(axis, 0, count - step) for x in args]
        right = [x.narrow(axis, step, count - step) for x in args]
        new = machine.block(region, {**env, **dict(zip(names, left + right, strict=True))})
        args = [torch.cat([x.narrow(axis, 0, step), y], axis) for x, y in zip(args, new, strict=True)]
        step *= 2
    machine.active = whole
    pairs = ((x, y, x0) for other in (again, third) for x, y, x0 in zip(args, other or (), given, strict=False))
    if any(_of_active(machine, _differ(x, y, x0, axis, keep=True)) for x, y, x0 in pairs):
        machine.fail(
            faults.Undefined,
            op,
            "the function of tl.associative_scan gives something else where elements are grouped in another way: it is "
            "not associative, and a GPU groups them as it likes",
        )
    args = again if machine.backward and again is not None else args
    return [x.flip(axis) for x in args] if back else args


def _scanned_by_pairs(combine: Callable[..., Any], args: list[torch.Tensor], axis: int) -> list[torch.Tensor]:
    """Return the scan of an axis from that of its pairs, each even element joined to all before it."""
    if args[0].shape[axis] == 1:
        return args
    even, odd = ([x.unflatten(axis, (-1, 2)).select(axis + 1, n) for x in args] for n in range(2))
    ends = _scanned_by_pairs(combine, combine(even + odd), axis)
    count = even[0].shape[axis]
    before, after = [x.narrow(axis, 0, count - 1) for x in ends], [x.narrow(axis, 1, count - 1) for x in even]
    rest = combine(before + after) if count > 1 else after
    starts = [torch.cat([x.narrow(axis, 0, 1), y], axis) for x, y in zip(even, rest, strict=True)]
    return [torch.stack([x, y], axis + 1).flatten(axis, axis + 1) for x, y in zip(starts, ends, strict=True)]


def _scanned_by_threads(combine: Callable[..., Any], args: list[torch.Tensor], axis: int) -> list[torch.Tensor]:
    """Return the scan of an axis from that of what threads find one by one, each joined to all before it."""
    parts = _one_by_one(combine, args, axis)
    ends = _scanned_by_pairs(combine, parts[-1], axis)
    count = ends[0].shape[axis]
    if count > 1:
        before = [x.narrow(axis, 0, count - 1) for x in ends]
        for n, part in enumerate(parts):
            joined = combine(before + [x.narrow(axis, 1, count - 1) for x in part])
            parts[n] = [torch.cat([x.narrow(axis, 0, 1), y], axis) for x, y in zip(part, joined, strict=True)]
    return [torch.stack(each, axis + 1).flatten(axis, axis + 1) for each in zip(*parts, strict=True)]


def split(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> list[torch.Tensor]:
    return list(machine.full(args[0], op.ins[0].shape).unbind(-1))


def histogram(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    if machine.watch is not None:
        machine.watch.exchange(machine, op)
    bins = op.outs[0].shape[0]
    x = machine.full(args[0], op.ins[0].shape).to(torch.int64)
    counted = torch.ones_like(x, dtype=torch.bool)
    if len(args) > 1:
        counted = machine.full(args[1], op.ins[1].shape)
    out = torch.zeros(max(x.shape[0], counted.shape[0]), bins, dtype=torch.int32)
    counted, x = counted.expand(len(out), -1), x.expand(len(out), -1)
    beyond = counted & ((x < 0) | (x >= bins))
    if _of_active(machine, beyond):
        machine.fail(
            faults.OutOfBounds, op, f"tl.histogram meets {int(x[beyond][0])}, expected numbers from 0 to {bins - 1}"
        )
    counted = counted & (x >= 0) & (x < bins)
    return out.scatter_add_(1, torch.where(counted, x, 0), counted.to(torch.int32))


def gather(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    axis = op.attrs["axis"] + 1
    programs = max(args[0].shape[0], args[1].shape[0])
    source, index = (x.expand(programs, *kind.shape) for x, kind in zip(args, op.ins, strict=True))
    index = index.to(torch.int64)
    if machine.active is not None:
        index = torch.where(machine.active.reshape(-1, *[1] * len(op.ins[0].shape)), index, 0)
    low, high = torch.aminmax(index)
    if int(low) < 0 or int(high) >= source.shape[axis]:
        bad = int(low) if int(low) < 0 else int(high)
        machine.fail(faults.OutOfBounds, op, f"tl.gather asks for element {bad} of an axis of {source.shape[axis]}")
    return torch.gather(source, axis, index)


def mapped(machine: Machine, op: Op, args: list[torch.Tensor], env: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Run a region on every element: each is a program of its own meanwhile."""
    pack, shape = op.attrs.get("pack", 1), op.ins[0].shape
    args = [machine.full(x, shape, programs=True).reshape(-1, pack) for x in args]
    inner = machine.per_element(math.prod(shape) // pack)
    if machine.active is not None:
        inner.active = machine.active.repeat_interleave(math.prod(shape) // pack)
    region = Function("", False, op.regions[0])
    constants = [(name, value) for name, value in env.items() if value.numel() == 1]

    def run(args: list[torch.Tensor]) -> list[torch.Tensor]:
        out = inner.call(region, [x[:, n] for x in args for n in range(pack)], constants)
        columns = [out[n : n + pack] for n in range(0, len(out), pack)]
        return [torch.stack([x.expand(inner.size) for x in each], 1) for each in columns]

    found = run(args)
    if pack > 1:  # which elements a call gets together is the compiler's choice
        turned = [_turned(x, machine.size) for x in args]
        again = [_turned(x, machine.size, back=True) for x in run(turned)]
        same = [((x == y) | (x != x) & (y != y)).reshape(machine.size, -1) for x, y in zip(found, again, strict=True)]
        if any(_of_active(machine, ~each) for each in same):
            machine.fail(
                faults.Undefined,
                op,
                "the function of tl.map_elementwise gives an element something else beside other elements: a GPU puts "
                "any together",
            )
    return [x.reshape(machine.size, *shape) for x in found]


def _turned(x: torch.Tensor, programs: int, back: bool = False) -> torch.Tensor:
    """Return the elements of blocks, in groups, in other places of other groups; or where they were."""
    groups = x.reshape(programs, -1, x.shape[1])
    if back:
        return torch.stack([groups[..., n].roll(-n, 1) for n in range(x.shape[1])], -1).flip(-1).reshape(x.shape)
    groups = groups.flip(-1)
    return torch.stack([groups[..., n].roll(n, 1) for n in range(x.shape[1])], -1).reshape(x.shape)


def show(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> None:
    values = [machine.full(x, kind.shape, programs=True) for x, kind in zip(args, op.ins, strict=True)]
    prefix = op.attrs["prefix"]
    for index in torch.nonzero(machine.programs_on()).reshape(-1).tolist():
        pid = machine.program(index)
        if not values:
            print(f"pid {pid}{prefix}")
        for number, value in enumerate(values):
            operand = f"(operand {number}) " if len(values) > 1 else ""
            form = hex if op.attrs.get("hex") else lambda x: f"{x:f}" if isinstance(x, float) else str(x)
            for place in itertools.product(*map(range, value.shape[1:])):
                at = f" idx ({', '.join(map(str, place))})" if place else ""
                print(f"pid {pid}{at}{prefix}{operand}{form(value[(index, *place)].item())}")


def check(machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> None:
    holds = machine.full(args[0], op.ins[0].shape, programs=True).reshape(machine.size, -1).all(1)
    wrong = machine.programs_on() & ~holds
    if bool(wrong.any()):
        who = machine.program(int(wrong.to(torch.uint8).argmax()))
        said = op.attrs.get("message", "tl.assume does not hold")
        machine.fail(faults.DeviceAssertion, op, f"{said}; program {who}")


def hinted(rule: Any, machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    """Run an operation; fail where its result is not what a hint tells the compiler that it is.

    Multiples are the first elements of the groups of a hint on contiguity, or else of runs of numbers that follow one
    another. What a remainder or the number of a `tl.where` puts in the place of indices beyond an end does not count.
    """
    out = rule[0](machine, op, args, env) if rule.__class__ is tuple else rule(*args)
    kind = op.outs[0]
    x = machine.full(out, kind.shape, programs=True).reshape(machine.size, *kind.shape or (1,))
    axes, step = range(1, x.dim()), 1 if kind.pointee is None else storage_dtype(kind.pointee).itemsize
    said = hints(op)
    counts, bad = torch.ones_like(x, dtype=torch.bool), {}
    if op.name == "arith.select" and args[2].numel() == 1 and args[0].dim() == x.dim():
        counts = args[0].expand_as(x)
    elif op.name in ("arith.remsi", "arith.remui") and args[0].dim() == x.dim():
        counts = (args[0] == out).expand_as(x)
    first = counts
    for axis in axes:
        places = torch.arange(x.shape[axis])
        upright = [-1, *[1] * (x.dim() - 1 - axis)]
        for name, more in (("tt.contiguity", step), ("tt.constancy", 0)):
            if (group := said.get(name, [1] * axis)[axis - 1]) > 1:
                start = x.index_select(axis, places // group * group)
                bad[name] = bad.get(name, False) | (counts & (x != start + (places % group * more).reshape(upright)))
            if name == "tt.contiguity":
                before = x.index_select(axis, (places - 1).clamp(min=0))
                first = first & ((places % group == 0).reshape(upright) if group > 1 else x != before + step)
    for value in said.get("tt.divisibility", ()):
        value = value if kind.pointee is None else min(value, 16)  # of addresses the compiler asks no more
        bad["tt.divisibility"] = bad.get("tt.divisibility", False) | (first & (x % max(1, value) != 0))
    for name, where in bad.items():
        wrong = machine.programs_on() & where.flatten(1).any(1)
        if bool(wrong.any()):
            who = machine.program(int(wrong.to(torch.uint8).argmax()))
            machine.fail(
                faults.DeviceAssertion, op, f"tl.{HINTS[name]} with {[*said[name]]} does not hold; program {who}"
            )
    return out


def _shift(machine: Machine, op: Op, args: list[torch.Tensor]) -> torch.Tensor | None:
    if op.operands[1] in machine.kernel.module.loaded:
        return None
    bits = BITS[dtype_of(op.ins[1])]
    return (args[1] < 0) | (args[1] >= bits)


def _divisor(machine: Machine, op: Op, args: list[torch.Tensor]) -> torch.Tensor | None:
    """Return where a divisor is 0, of which a compiler knows; fail where one is and more than quotients is made of it.

    A compiler takes a divisor for another number than 0 wherever else it stands.
    """
    bad, module = args[1] == 0, machine.kernel.module
    if op.operands[1] in module.told_of_zero and bool(bad.any()):
        wrong = bad.reshape(len(bad), -1).any(1) & machine.programs_on()
        if bool(wrong.any()):
            who = machine.program(int(wrong.to(torch.uint8).argmax()))
            said = "a division by 0: the compiler takes the divisor for another number wherever else it stands. Divide "
            machine.fail(
                faults.Undefined, op, f"{said}by one that is never 0, as by tl.maximum(divisor, 1); program {who}"
            )
    return bad if op.operands[1] not in module.loaded else None


def _quotient(machine: Machine, op: Op, args: list[torch.Tensor]) -> torch.Tensor | None:
    """Return where a divisor is 0, or -1 of the least integer: its quotient is beyond the largest."""
    bad = _divisor(machine, op, args)
    return None if bad is None else bad | ((args[1] == -1) & (args[0] == -(1 << BITS[args[0].dtype] - 1)))


def _range(machine: Machine, op: Op, args: list[torch.Tensor]) -> torch.Tensor | None:
    if op.operands[0] in machine.kernel.module.loaded or op.outs[0].element == "i1":
        return None
    bits, signed = BITS[dtype_of(op.outs[0])], op.name == "arith.fptosi"
    low, high = (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1)) if signed else (0.0, 2.0**bits)
    x = args[0].double().trunc()
    return ~((x >= low) & (x < high))


# Operations that have no result for some operands: what tells which, whether one such element of a block is enough, and
# what is said. A compiler knows it of all programs, and not from memory, where it leaves out what depends on it.
UNDEFINED: dict[str, tuple[Callable, bool, str]] = {
    **dict.fromkeys(
        ("arith.shli", "arith.shrsi", "arith.shrui"),
        (_shift, True, "a shift by as many bits as the number has, or more"),
    ),
    **dict.fromkeys(("arith.divui", "arith.remui"), (_divisor, False, "a division by 0")),
    **dict.fromkeys(
        ("arith.divsi", "arith.remsi", "arith.ceildivsi", "arith.floordivsi"),
        (_quotient, False, "a division by 0, or of the least integer by -1"),
    ),
    **dict.fromkeys(
        ("arith.fptosi", "arith.fptoui"), (_range, False, "a cast of a float that is beyond the integers of that type")
    ),
}


def defined(rule: Any, machine: Machine, op: Op, args: list[torch.Tensor], env: Any) -> torch.Tensor:
    """Run an operation; fail where it has no result, unless something may leave out such elements afterwards."""
    tells, one, _ = UNDEFINED[op.name]
    bad = tells(machine, op, args)
    if bad is not None and bool(bad.any()):
        flat = bad.reshape(len(bad), -1)
        if op.number in machine.kernel.awaited:
            machine.undefined[op.results[0]] = bad, op
        elif one:
            fail_undefined(machine, op, flat.any(1))
        elif torch.equal(flat.all(1) & machine.programs_on(), machine.programs_on()):
            fail_undefined(machine, op, flat.all(1))
    return rule(*args)


def fail_undefined(machine: Machine, op: Op, programs: torch.Tensor) -> None:
    """Fail in an operation that has no result in some programs, bool [P], if one of them takes part."""
    wrong = programs & machine.programs_on()
    if bool(wrong.any()):
        who = machine.program(int(wrong.to(torch.uint8).argmax()))
        said = f"{UNDEFINED[op.name][2]}, of which nothing says what it gives"
        machine.fail(faults.Undefined, op, f"{said}; program {who}")


def unknown(machine: Machine, op: Op, args: Any, env: Any) -> None:
    machine.fail(faults.Unsupported, op, UNKNOWN.get(op.name, f"{op.name} is not emulated"))


# Blocks out of nothing, and out of others


def constant(op: Op) -> torch.Tensor:
    kind = op.outs[0]
    value, dtype = parse_constant(op.attrs["value"], kind.element), dtype_of(kind)
    if isinstance(value, list):
        found = torch.tensor(value, dtype=torch.float64 if dtype.is_floating_point else dtype)
        return found.to(dtype).reshape(1, *kind.shape)
    if BITS.get(dtype) == 64 and value > torch.iinfo(torch.int64).max:
        value -= 1 << 64
    wide = torch.float64 if dtype.is_floating_point else dtype  # the text of the largest float32 is a little larger
    return torch.full([1] * (1 + len(kind.shape)), value, dtype=wide).to(dtype)


def shaping(op: Op) -> Callable[..., Any] | None:
    """Return the function of an operation that moves elements or makes them out of nothing."""
    name, attrs = op.name, op.attrs
    source = op.ins[0].shape if op.ins else ()
    target = op.outs[0].shape if op.outs else ()
    full = lambda x: x.expand(x.shape[0], *source)
    if name == "tt.make_range":
        steps = torch.arange(attrs["start"], attrs["end"], dtype=torch.int32)[None]
        return lambda: steps
    if name == "tt.splat":
        return lambda x: x.reshape(-1, *[1] * len(target))
    if name == "tt.broadcast":
        return lambda x: x
    if name == "tt.expand_dims":
        axis = attrs["axis"] + 1
        return lambda x: x.unsqueeze(axis)
    if name in ("tt.reshape", "tt.unsplat"):
        free = attrs.get("allow_reorder") and source != target
        moved = _any_order(math.prod(target), op.number) if free else slice(None)
        return lambda x: full(x).reshape(len(x), -1)[:, moved].reshape(-1, *target)
    if name == "tt.trans":
        order = [0, *(n + 1 for n in attrs["order"])]
        return lambda x: x.permute(order)
    if name == "tt.cat":
        moved = _any_order(math.prod(target), op.number)
        return lambda x, y: torch.cat(_together(full(x), y.expand(y.shape[0], *op.ins[1].shape)), 1)[:, moved]
    if name == "tt.join":
        return lambda x, y: torch.stack(torch.broadcast_tensors(x, y), -1)
    if name == "tt.addptr":
        size = storage_dtype(op.outs[0].pointee).itemsize
        return lambda x, steps: torch.add(x, steps, alpha=size)  # in 64 bits
    return None


@functools.cache
def _any_order(size: int, number: int) -> torch.Tensor:
    """Return the places that elements come from where the compiler may choose, for each operation others."""
    return torch.randperm(size, generator=torch.Generator().manual_seed(size + (number << 20)))


def _together(*values: torch.Tensor) -> list[torch.Tensor]:
    programs = max(len(x) for x in values)
    return [x.expand(programs, *x.shape[1:]) for x in values]


# Reductions


def _quick_reduction(region: Block) -> Callable[[torch.Tensor, int], torch.Tensor | None] | None:
    """Return one function of torch for a region of one operation on both its arguments."""
    if len(region.ops) != 2 or set(region.ops[0].operands) != {name for name, _ in region.args}:
        return None
    return QUICK.get(region.ops[0].name)


def _sum(x: torch.Tensor, axis: int) -> torch.Tensor | None:
    if x.dtype in (torch.float16, torch.bfloat16, torch.bool):  # which round at each step
        return None
    return x.sum(axis).to(x.dtype)


def _extreme(method: str, least: float) -> Callable[[torch.Tensor, int], torch.Tensor | None]:
    def found(x: torch.Tensor, axis: int) -> torch.Tensor | None:
        if x.dtype == torch.bool:
            return None
        nan = x.isnan()
        some = bool(nan.any())
        out = getattr(torch, method)(torch.where(nan, least, x) if some else x, axis)
        out = signed_zeros(x, out, axis, method == "amax")
        return torch.where(nan.all(axis), torch.nan, out) if some else out

    return found


def _integers(method: str) -> Callable[[torch.Tensor, int], torch.Tensor | None]:
    def found(x: torch.Tensor, axis: int) -> torch.Tensor | None:
        if x.dtype == torch.bool:
            return None
        return signed_zeros(x, getattr(torch, method)(x, axis), axis, method == "amax")

    return found


def _bools(method: str) -> Callable[[torch.Tensor, int], torch.Tensor | None]:
    return lambda x, axis: getattr(torch, method)(x, axis) if x.dtype == torch.bool else None


QUICK = {
    "arith.addf": _sum,
    "arith.addi": _sum,
    "arith.andi": _bools("all"),
    "arith.maximumf": _integers("amax"),
    "arith.maxnumf": _extreme("amax", -math.inf),
    "arith.maxsi": _integers("amax"),
    "arith.minimumf": _integers("amin"),
    "arith.minnumf": _extreme("amin", math.inf),
    "arith.minsi": _integers("amin"),
    "arith.ori": _bools("any"),
}
