"""What arithmetic means on a GPU: dialects arith and math, and the casts of tt, on blocks as torch tensors.

Integers wrap. 16-bit floats are computed in float32 and rounded once. `exp2`, `sqrt`, `rsqrt`, `floor`, `ceil`, `sin`
and `erf` of float32 flush subnormals to zero, as on NVIDIA's GPUs. A division of float32 is a product with the rounded
reciprocal. Integers become bfloat16 in one rounding, as on Hopper. Not modelled: the last bits of approximate functions
and reciprocals, the order of sums, and the fusing of a product with a sum.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from .ttir import Op, Type

Values = Callable[..., torch.Tensor]

DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
}
BITS = {torch.bool: 1, torch.int8: 8, torch.int16: 16, torch.int32: 32, torch.int64: 64}
TINY = torch.finfo(torch.float32).tiny
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
INVERTED = 2.0**125  # the largest number of float32, nearly, whose reciprocal is no subnormal
EXACT = 1 << 53  # the integers up to here are floats of 64 bits


def dtype_of(kind: Type) -> torch.dtype:
    """Return torch's dtype of a type's elements; raise KeyError for one that is not known."""
    return DTYPES[kind.element]


def storage_dtype(pointee: str) -> torch.dtype:
    """Return the dtype of what a pointer points to: of a bool a byte, of a pointer an address."""
    return torch.int64 if pointee.startswith("!tt.ptr") else torch.int8 if pointee == "i1" else DTYPES[pointee]


# Integers


def unsigned(x: torch.Tensor) -> torch.Tensor:
    """Return int64 with the unsigned value; of int64 itself, whose large values do not fit, the same bits."""
    if x.dtype == torch.int64:
        return x
    if x.dtype == torch.bool:
        return x.to(torch.int64)
    return x.to(torch.int64) & ((1 << BITS[x.dtype]) - 1)


def signed(x: torch.Tensor) -> torch.Tensor:
    """Return a bool as int8, where true is -1; others as they are."""
    return -x.to(torch.int8) if x.dtype == torch.bool else x


def _flip(x: torch.Tensor) -> torch.Tensor:
    """Return integers whose signed order is the unsigned order of x."""
    return x ^ torch.iinfo(torch.int64).min if x.dtype == torch.int64 else unsigned(x)


def _in_numpy(function: Callable) -> Values:
    """Return a function of int64 blocks, computed on their bits as uint64 or int64 of NumPy."""

    def computed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x, y = np.broadcast_arrays(a.numpy(), b.numpy())
        return torch.from_numpy(np.array(function(x, y)))

    return computed


def _is_safe(divisor: torch.Tensor) -> bool:
    """Return whether a divisor is one number, by which division is what torch's is."""
    return divisor.numel() == 1 and int(divisor) not in (0, -1)


def _divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if _is_safe(b):
        return torch.div(a, b, rounding_mode="trunc")
    safe = torch.where((b == 0) | (b == -1), 1, b)
    out = torch.div(a, safe, rounding_mode="trunc")
    return torch.where(b == -1, -a, torch.where(b == 0, -1, out)).to(a.dtype)


def _remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if _is_safe(b):
        return torch.fmod(a, b)
    safe = torch.where((b == 0) | (b == -1), 1, b)
    out = torch.fmod(a, safe)
    return torch.where(b == -1, 0, torch.where(b == 0, a, out)).to(a.dtype)


def _unsigned_division(quotient: bool) -> Values:
    def divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = x.view(np.uint64), y.view(np.uint64)
        safe = np.where(y == 0, np.uint64(1), y)
        out = x // safe if quotient else x % safe
        return np.where(y == 0, ~np.uint64(0) if quotient else x, out).view(np.int64)

    wide = _in_numpy(lambda x, y: divide(np.ascontiguousarray(x), np.ascontiguousarray(y)))

    def divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.dtype == torch.int64:
            return wide(a, b)
        x, y = unsigned(a), unsigned(b)
        out = (_divided if quotient else _remainder)(x, y)
        return out.to(a.dtype)

    return divided


def _rounded_division(up: bool) -> Values:
    def divided(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        quotient = _divided(a, b)
        inexact = (quotient * b != a) & (((a < 0) == (b < 0)) == up)
        return quotient + inexact if up else quotient - inexact.to(quotient.dtype)

    return divided


def _shifted_right(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Shift in zeros."""
    bits = BITS[a.dtype]
    if a.dtype != torch.int64:
        return torch.bitwise_right_shift(unsigned(a), unsigned(b)).to(a.dtype)
    keep = torch.where(b == 0, -1, ~torch.bitwise_left_shift(torch.full_like(b, -1), bits - b))
    return torch.where((b < 0) | (b >= bits), 0, torch.bitwise_right_shift(a, b) & keep)


def _amount(shift: Values) -> Values:
    """Return a shift that takes the low 32 bits of an amount of 64, as PTX's do."""
    return lambda a, b: shift(a, b & 0xFFFFFFFF if b.dtype == torch.int64 else b)


def _high_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the upper half of the unsigned product."""
    if a.dtype != torch.int64:
        return (unsigned(a) * unsigned(b) >> BITS[a.dtype]).to(a.dtype)
    low, half = (1 << 32) - 1, lambda x: (x >> 32) & ((1 << 32) - 1)
    carry = (a & low) * (b & low)
    middle = half(a) * (b & low) + half(carry)
    other = (a & low) * half(b) + (middle & low)
    return half(a) * half(b) + half(middle) + half(other)


# Floats


def flushed(x: torch.Tensor) -> torch.Tensor:
    """Return float32 with subnormals as zeros of their sign; other types as they are."""
    return torch.where(x.abs() < TINY, x * 0.0, x) if x.dtype == torch.float32 else x


def _flushing(function: Values) -> Values:
    return lambda x: flushed(function(flushed(x)))


def _quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a quotient as a GPU has it: of float32 the rounded reciprocal times a, so that x / x need not be 1."""
    if a.dtype == torch.float64:
        return torch.div(a, b)
    if a.dtype != torch.float32:
        return _quotient(a.float(), b.float()).to(a.dtype)
    size = b.abs()
    plain = (size < INVERTED) & (size > 1 / INVERTED)
    found = a * torch.reciprocal(b)
    return found if bool(plain.all()) else torch.where(plain, found, torch.div(a, b))


def _square_root(x: torch.Tensor) -> torch.Tensor:
    """Return the nearest number, from which torch's may differ in the last bit."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.sqrt(x.numpy()))


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    if a.dtype == torch.float64:
        return torch.addcmul(c, a, b)
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _float_remainder(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return what is left of a number by its rounded quotient: of large quotients no exact remainder."""
    if a.dtype == torch.float64:
        left = a - (a / b).trunc() * b
    else:
        quotient = (a.float() / b.float()).trunc()
        left = (a.double() - quotient.double() * b.double()).to(torch.float32).to(a.dtype)
    return torch.where(b.isinf(), a, left)


def _clamped(op: Op) -> Values:
    nan = op.attrs.get("propagateNan") in (0xFFFF, "all")
    larger, smaller = (torch.maximum, torch.minimum) if nan else (torch.fmax, torch.fmin)

    def clamped(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
        out, strange = smaller(larger(x, low), high), low > high  # of which nothing says what it gives
        if not nan and bool(x.isnan().any()):
            strange = strange | (x.isnan() & (low == -high))  # one end or the other, by the kind of GPU
        return torch.where(strange, torch.nan, out) if bool(strange.any()) else out

    return clamped


def _extreme(function: Values, largest: bool) -> Values:
    """Return the larger or smaller of two, of zeros that by its sign: torch takes either."""

    def found(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = function(a, b)
        zero = out == 0
        if not bool(zero.any()):
            return out
        both = zero & (a == 0) & (b == 0)
        return torch.where(both, a + b if largest else -(-a - b), out)

    return found


def signed_zeros(x: torch.Tensor, out: torch.Tensor, axis: int, largest: bool) -> torch.Tensor:
    """Return the largest or smallest along an axis, of zeros that by its sign."""
    if not x.is_floating_point() or not bool((out == 0).any()):
        return out
    found = ((x == 0) & (x.signbit() != largest)).any(axis)
    return torch.where(out == 0, torch.where(found == largest, 0.0, -0.0).to(out.dtype), out)


# Casts


def to_float(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to nearest even; to 8 bits, what is too large becomes the largest."""
    if x.dtype == torch.float64 and dtype.itemsize < 4:
        x = _odd(x)
    if dtype not in LARGEST:
        return x.to(dtype)
    most = LARGEST[dtype]
    return x.to(torch.float32).clamp(-most, most).to(dtype)


def _odd(x: torch.Tensor) -> torch.Tensor:
    """Return float64 as float32, the last bit set where it is not exact: to round once more then does no harm."""
    near = x.to(torch.float32)
    inexact = (near.double() != x) & near.isfinite() & (near.view(torch.int32) % 2 == 0)
    toward = torch.where(x > near, torch.inf, -torch.inf).to(torch.float32)
    return torch.where(inexact, torch.nextafter(near, toward), near)


def to_float_toward_zero(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Cut off the digits that do not fit."""
    near = to_float(x, dtype)
    bits = near.view({1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize])
    cut = (bits - (near.to(x.dtype).abs() > x.abs()).to(bits.dtype)).view(dtype)
    if dtype != torch.float8_e5m2 or not bool((endless := x.isinf()).any()):
        return cut
    return torch.where(endless, x.to(dtype).view(torch.int8), cut.view(torch.int8)).view(dtype)


def to_integer(x: torch.Tensor, dtype: torch.dtype, as_unsigned: bool = False) -> torch.Tensor:
    """Cut off the fraction; what is too large becomes the largest, of 8 bits the low ones of the largest of 16.

    NaN becomes 0; from 64 bits or to 64 bits, the integer of which the upper bit alone is set.
    """
    bits = max(BITS[dtype], 16) if dtype != torch.bool else 1
    if bits == 1:
        return x.trunc() != 0
    low, high = (0, (1 << bits) - 1) if as_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    nan = 0 if x.dtype != torch.float64 and bits < 64 else 1 << bits - 1 if as_unsigned else low
    wide = x.to(torch.float64).nan_to_num(nan, torch.inf, -torch.inf)
    if bits < 64:
        return wide.clamp(low, high).to(torch.int64).to(dtype)
    if as_unsigned:
        found = wide.clamp(0, None).numpy()
        large = found >= 2.0**64
        return torch.from_numpy(
            np.where(large, ~np.uint64(0), np.where(large, 0, found).astype(np.uint64)).view(np.int64)
        )
    exact = torch.where(wide.abs() < 2.0**63, wide, 0.0).to(torch.int64)
    return torch.where(wide >= 2.0**63, high, torch.where(wide <= -(2.0**63), low, exact))


def from_signed(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return integers as floats, rounded once."""
    if dtype != torch.bfloat16 or x.dtype not in (torch.int32, torch.int64):
        return signed(x).to(dtype)
    if x.dtype == torch.int64:  # what does not fit in a float of 64 bits leaves a last bit that says so
        x = torch.where((x >= EXACT) | (x <= -EXACT), x & ~0x7FF | ((x & 0x7FF != 0).long() << 11), x)
    return to_float(x.double(), dtype)


def from_unsigned(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the unsigned value as a float, rounded once."""
    if x.dtype != torch.int64:
        return from_signed(unsigned(x), dtype)
    if dtype == torch.bfloat16:
        half = from_signed(x >> 1 & torch.iinfo(torch.int64).max | x & 1, dtype)
        return torch.where(x < 0, half * 2, from_signed(x, dtype))
    if dtype in (torch.float32, torch.float64):
        kind = np.float32 if dtype == torch.float32 else np.float64
        return torch.from_numpy(np.ascontiguousarray(x.numpy()).view(np.uint64).astype(kind))
    return from_unsigned(x, torch.float32).to(dtype)


def bitcast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the same bits as another type of the same width."""
    if x.dtype == dtype:
        return x
    return x.contiguous().view(dtype)


def _truncated(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (x & 1).bool() if dtype == torch.bool else x.to(dtype)


CASTS: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "arith.extsi": lambda x, dtype: signed(x).to(dtype),
    "arith.extui": lambda x, dtype: unsigned(x).to(dtype),
    "arith.trunci": _truncated,
    "arith.extf": to_float,
    "arith.truncf": to_float,
    "tt.fp_to_fp": to_float,
    "arith.sitofp": from_signed,
    "arith.uitofp": from_unsigned,
    "arith.fptosi": to_integer,
    "arith.fptoui": lambda x, dtype: to_integer(x, dtype, True),
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "tt.ptr_to_int": bitcast,
    "tt.int_to_ptr": bitcast,
    "arith.index_cast": lambda x, dtype: x.to(dtype),
}
UNARY: dict[str, Values] = {
    "arith.negf": torch.neg,
    "math.absf": torch.abs,
    "math.absi": torch.abs,
    "math.ceil": _flushing(torch.ceil),
    "math.cos": torch.cos,
    "math.erf": _flushing(torch.erf),
    "math.exp": torch.exp,
    "math.exp2": _flushing(torch.exp2),
    "math.floor": _flushing(torch.floor),
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.rsqrt": _flushing(torch.rsqrt),
    "math.sin": _flushing(torch.sin),
    "math.sqrt": _flushing(torch.sqrt),
    "math.tanh": torch.tanh,
    "tt.precise_sqrt": _square_root,
}
BINARY: dict[str, Values] = {
    "arith.addf": torch.add,
    "arith.addi": torch.add,
    "arith.andi": torch.bitwise_and,
    "arith.ceildivsi": _rounded_division(True),
    "arith.divf": _quotient,
    "arith.divsi": _divided,
    "arith.divui": _unsigned_division(True),
    "arith.floordivsi": _rounded_division(False),
    "arith.maximumf": _extreme(torch.maximum, True),
    "arith.maxnumf": _extreme(torch.fmax, True),
    "arith.maxsi": torch.maximum,
    "arith.maxui": lambda a, b: torch.where(_flip(a) >= _flip(b), a, b),
    "arith.minimumf": _extreme(torch.minimum, False),
    "arith.minnumf": _extreme(torch.fmin, False),
    "arith.minsi": torch.minimum,
    "arith.minui": lambda a, b: torch.where(_flip(a) <= _flip(b), a, b),
    "arith.mulf": torch.mul,
    "arith.muli": torch.mul,
    "arith.ori": torch.bitwise_or,
    "arith.remf": _float_remainder,
    "arith.remsi": _remainder,
    "arith.remui": _unsigned_division(False),
    "arith.shli": _amount(torch.bitwise_left_shift),
    "arith.shrsi": _amount(torch.bitwise_right_shift),
    "arith.shrui": _amount(_shifted_right),
    "arith.subf": torch.sub,
    "arith.subi": torch.sub,
    "arith.xori": torch.bitwise_xor,
    "tt.mulhiui": _high_product,
    "tt.precise_divf": torch.div,
}
ON_BOOLS: dict[str, Values] = {
    "arith.addi": torch.bitwise_xor,
    "arith.subi": torch.bitwise_xor,
    "arith.muli": torch.bitwise_and,
    "arith.maxsi": torch.bitwise_and,  # true is -1
    "arith.minsi": torch.bitwise_or,
    "arith.maxui": torch.bitwise_or,
    "arith.minui": torch.bitwise_and,
}
COMPARISONS = (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)


def _comparison_of_integers(op: Op) -> Values:
    predicate = op.attrs["predicate"]
    if predicate < 2:
        return COMPARISONS[predicate]
    if predicate >= 6:
        compare = COMPARISONS[predicate - 4]
        return lambda a, b: compare(_flip(a), _flip(b))
    compare = COMPARISONS[predicate]
    return (lambda a, b: compare(signed(a), signed(b))) if op.ins[0].element == "i1" else compare


def _comparison_of_floats(op: Op) -> Values:
    predicate = op.attrs["predicate"]
    ordered = {1: torch.eq, 2: torch.gt, 3: torch.ge, 4: torch.lt, 5: torch.le, 13: torch.ne}
    if predicate in ordered:
        return ordered[predicate]
    nan = lambda a, b: (a != a) | (b != b)
    negated = {
        8: lambda a, b: (a != b) & ~nan(a, b),
        9: torch.le,
        10: torch.lt,
        11: torch.ge,
        12: torch.gt,
    }  # or one is NaN
    if predicate in negated:
        return lambda a, b: ~negated[predicate](a, b)
    rest = {
        0: lambda a, b: torch.zeros_like(a == b),
        6: lambda a, b: (a != b) & ~nan(a, b),
        7: lambda a, b: ~nan(a, b),
        14: nan,
        15: lambda a, b: torch.ones_like(a == b),
    }
    return rest[predicate]


def _selected(condition: torch.Tensor, yes: torch.Tensor, no: torch.Tensor) -> torch.Tensor:
    if condition.dim() < yes.dim():
        condition = condition.reshape(-1, *[1] * (yes.dim() - 1))
    return torch.where(condition, yes, no)


def elementwise(op: Op) -> Values | None:
    """Return the function of the operands that an operation stands for, or None if it is no such operation.

    Raises KeyError for a type that is not known.
    """
    name = op.name
    if name in CASTS:
        cast = to_float_toward_zero if op.attrs.get("rounding") == 0 else CASTS[name]
        dtype = torch.int64 if op.outs[0].pointee is not None else dtype_of(op.outs[0])
        return lambda x: cast(x, dtype)
    if name in ON_BOOLS and op.ins[0].element == "i1":
        return ON_BOOLS[name]
    if name in BINARY:
        return BINARY[name]
    if name in UNARY:
        return UNARY[name]
    rules = {
        "arith.cmpi": _comparison_of_integers,
        "arith.cmpf": _comparison_of_floats,
        "arith.select": lambda op: _selected,
        "math.fma": lambda op: _fused,
        "tt.clampf": _clamped,
    }
    return rules[name](op) if name in rules else None
