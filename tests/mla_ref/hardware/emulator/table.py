"""A case of the test bed: a small kernel, its arguments, and what NumPy says that it computes."""

import functools
import itertools
import linecache
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

INTEGERS = {
    name: getattr(torch, name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
}
FLOATS = {name: getattr(torch, name) for name in ("float16", "bfloat16", "float32", "float64")}
FP8 = {"float8e4nv": torch.float8_e4m3fn, "float8e5": torch.float8_e5m2}
BOOL = {"int1": torch.bool}
ALL = {**INTEGERS, **FLOATS, **FP8, **BOOL}
# Of a float: bits of the significand, the least exponent of a normal number, the largest number
FORMATS = {
    torch.float16: (11, -14, 65504.0),
    torch.bfloat16: (8, -126, 3.3895313892515355e38),
    torch.float32: (24, -126, 3.4028234663852886e38),
    torch.float8_e4m3fn: (4, -6, 448.0),
    torch.float8_e5m2: (3, -14, 57344.0),
}
# Functions that a GPU approximates, to a few units in the last place
ROUGHLY = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 4e-6, torch.float64: 1e-14}


@dataclass(frozen=True)
class Case:
    """A kernel to launch with ``args``, of which it changes those numbered ``outs``.

    ``oracle`` gets the arguments as they were before and returns what those become. Where ``rtol`` is None they must be
    equal bit by bit, but for the bits of a NaN and, unless ``zeros``, the sign of a zero. ``gpu`` tells whether a GPU
    gives the same: to the bit, or to the tolerance.
    """

    id: str
    kernel: Any
    args: tuple
    outs: tuple[int, ...]
    oracle: Callable[..., Any]
    rtol: float | None = None
    atol: float = 0.0
    grid: tuple[int, ...] = (1,)
    zeros: bool = True
    gpu: bool = True
    options: tuple[tuple[str, Any], ...] = ()

    def run(self, device: str) -> list[torch.Tensor]:
        """Launch the kernel with copies of the arguments on a device; return the outputs on the CPU."""
        args = [x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in self.args]
        self.kernel[self.grid](*args, **dict(self.options))
        return [args[n].cpu() for n in self.outs]

    def expected(self) -> list[np.ndarray]:
        found = self.oracle(*(number(x) if isinstance(x, torch.Tensor) else x for x in self.args))
        return list(found) if isinstance(found, tuple) else [found]

    def check(self, device: str) -> None:
        """Run and compare with the oracle."""
        for got, want in zip(self.run(device), self.expected(), strict=True):
            assert tuple(got.shape) == np.shape(want), f"shape {tuple(got.shape)}, expected {np.shape(want)}"
            compare(number(got), rounded(want, got.dtype), self.rtol, self.atol, self.zeros)


def number(x: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array: floats as float64, which holds each of them."""
    if x.dtype.is_floating_point:
        return x.double().numpy()
    return x.numpy()


def rounded(x: Any, dtype: torch.dtype) -> np.ndarray:
    """Return numbers as a dtype holds them: integers modulo 2**bits, floats to nearest, ties to even."""
    if dtype == torch.bool:
        return np.asarray(x).astype(bool)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        wrap = np.frompyfunc(lambda n: (int(n) - info.min) % (1 << info.bits) + info.min, 1, 1)
        return np.asarray(wrap(np.asarray(x).astype(object))).astype(str(dtype)[6:])
    x = np.asarray(x, dtype=np.float64)
    if dtype not in FORMATS:
        return x
    digits, least, most = FORMATS[dtype]
    with np.errstate(all="ignore"):
        exponent = np.maximum(np.frexp(x)[1] - 1, least)
        unit = np.ldexp(1.0, exponent - digits + 1)
        out = np.where(np.isfinite(x) & (x != 0), np.rint(x / unit) * unit, x)
    beyond = most if dtype in FP8.values() else np.inf
    return np.where(np.abs(out) > most, np.copysign(beyond, out), out)


def compare(got: np.ndarray, want: np.ndarray, rtol: float | None, atol: float = 0.0, zeros: bool = True) -> None:
    """Fail with the first place that differs."""
    if got.dtype.kind != "f":
        same = got == want
    else:
        with np.errstate(all="ignore"):
            same = (got == want) | (np.isnan(got) & np.isnan(want))
            if rtol is not None:
                same |= np.abs(got - want) <= atol + rtol * np.abs(want)
            elif zeros:
                same &= (np.signbit(got) == np.signbit(want)) | np.isnan(want)
    if not same.all():
        at = tuple(int(n) for n in np.argwhere(~same)[0])
        raise AssertionError(f"{(~same).sum()} of {same.size} differ; at {at}: {got[at]!r}, expected {want[at]!r}")


@dataclass(frozen=True)
class Text:
    """The kernel of a source text, made when it is launched: most of the table's are for another worker."""

    source: str
    name: str

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return self._kernel[grid]

    @functools.cached_property
    def _kernel(self) -> Any:
        return jit(self.source, self.name)


def jit(source: str, name: str) -> Any:
    """Return the kernel of a source text."""
    file = f"/nowhere/{name.replace('/', '-')}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    scope = {"triton": triton, "tl": tl, "__name__": "tests.mla_ref.hardware.emulator.generated"}
    exec(compile(source, file, "exec"), scope)
    return scope["kernel"]


def seeded(name: str) -> np.random.Generator:
    """Return random numbers that depend on a name only."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return values as a tensor, rounded as the oracle rounds."""
    return torch.from_numpy(np.ascontiguousarray(rounded(values, dtype))).to(dtype)


def blank(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of bytes that no result is likely to have."""
    return (
        torch.full((int(np.prod(shape)) * dtype.itemsize,), 1 if dtype == torch.bool else 0xA7, dtype=torch.uint8)
        .view(dtype)
        .reshape(shape)
    )


def edges(dtype: torch.dtype, count: int = 8) -> list:
    """Return numbers where mistakes show."""
    if dtype == torch.bool:
        return [False, True] * (count // 2)
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return [0, 1, info.max, info.min, 3, info.max - 1, info.min + 7, 100, -5 if info.min else 200][:count]
    info = torch.finfo(dtype)
    if dtype in FP8.values():
        return [0.0, -0.0, 1.0, -1.5, info.max, info.tiny, np.nan, info.smallest_normal / 2, 3.5][:count]
    return [0.0, -0.0, 1.0, -2.75, info.max, np.nan, -np.inf, np.inf, info.tiny, 5.5][:count]


def numbers(dtype: torch.dtype, *shape: int, seed: str = "", span: float = 4.0) -> torch.Tensor:
    """Return random numbers, of floats normal ones, of integers such as differ from each other mostly."""
    random = seeded(f"{dtype}{shape}{seed}")
    if dtype == torch.bool:
        return torch.from_numpy(random.random(shape) < 0.5)
    if dtype.is_floating_point:
        return tensor(random.standard_normal(shape) * span / 2, dtype)
    info = torch.iinfo(dtype)
    low, high = (info.min, info.max) if info.bits < 64 else (-(2**62) if info.min else 0, 2**62)
    return tensor(random.integers(low, high, shape, endpoint=True), dtype)


def pairs(dtype: torch.dtype, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each of the edges against each, as two vectors."""
    both = np.array(list(itertools.product(edges(dtype, count), repeat=2)), dtype=object)
    return tensor(both[:, 0], dtype), tensor(both[:, 1], dtype)


def vectors(
    name: str, expression: str, inputs: tuple[torch.Tensor, ...], out: torch.dtype, oracle: Callable, **more: Any
) -> Case:
    """Return the case of an expression of `a`, `b`, `c`, one-dimensional blocks, element by element."""
    count = len(inputs[0])
    letters = "abcd"[: len(inputs)]
    lines = [
        "@triton.jit",
        f"def kernel({', '.join(f'{x}_ptr' for x in letters)}, out_ptr):",
        f"    i = tl.arange(0, {count})",
        *(f"    {x} = tl.load({x}_ptr + i)" for x in letters),
        *(f"    {line}" for line in f"y = {expression}".splitlines()),
        "    tl.store(out_ptr + i, y)",
    ]

    def whole(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return oracle(*(exact(x) for x in args[:-1]))

    args = (*inputs, blank(count, dtype=out))
    return Case(name, Text("\n".join(lines) + "\n", name), args, (len(inputs),), whole, **more)


def exact(x: np.ndarray) -> np.ndarray:
    """Return integers as Python's, which do not wrap."""
    return x.astype(object) if x.dtype.kind in "iu" else x


FORMS = ("loaded", "constant", "line", "column")


def blocks(
    name: str,
    lines: str,
    inputs: tuple[torch.Tensor, ...],
    outs: tuple,
    oracle: Callable,
    form: str = "loaded",
    helpers: str = "",
    **more: Any,
) -> Case:
    """Return the case of a kernel of two programs on blocks of any shape.

    Inputs are ``[2, *shape]``, one block a program. ``lines`` make `y` of `a`, `b`, …, or with several outputs `y0`,
    `y1`, …; ``outs`` are their shapes and dtypes. ``oracle`` gets the blocks of one program. ``form`` varies the inputs
    only in part: "constant" is one number for both programs, "line" repeats a line of the last axis, "column" repeats
    the first element of each.
    """
    letters = "abcdefgh"[: len(inputs)]
    pointers = ", ".join([*(f"{x}_ptr" for x in letters), *(f"y{n}_ptr" for n in range(len(outs)))])
    text = ["@triton.jit", f"def kernel({pointers}):", "    p = tl.program_id(0)"]
    for x, each in zip(letters, inputs, strict=True):
        text.append(f"    {x} = {_loaded(f'{x}_ptr', tuple(each.shape[1:]), form)}")
    text += [f"    {line}" for line in lines.strip().splitlines()]
    for n, (shape, _) in enumerate(outs):
        y = "y" if len(outs) == 1 else f"y{n}"
        text.append(f"    tl.store(y{n}_ptr + p * {int(np.prod(shape))} + {_offsets(shape)}, {y})")

    def whole(*args: Any) -> tuple:
        found = []
        for p in range(2):
            with np.errstate(all="ignore"):
                out = oracle(*(_formed(x, p, form) for x in args[: len(inputs)]))
            found.append(out if isinstance(out, tuple) else (out,))
        return tuple(np.stack([np.asarray(each) for each in both]) for both in zip(*found, strict=True))

    args = (*inputs, *(blank(2, *shape, dtype=dtype) for shape, dtype in outs))
    numbers_of = tuple(range(len(inputs), len(args)))
    return Case(name, Text(helpers + "\n".join(text) + "\n", name), args, numbers_of, whole, grid=(2,), **more)


def _offsets(shape: tuple[int, ...]) -> str:
    """Return the expression of the offsets of a block in row-major order."""
    if not shape:
        return "0"
    terms, stride = [], 1
    for axis in reversed(range(len(shape))):
        index = (
            "".join(f"[{', '.join(':' if n == axis else 'None' for n in range(len(shape)))}]") if len(shape) > 1 else ""
        )
        terms.append(f"tl.arange(0, {shape[axis]}){index} * {stride}")
        stride *= shape[axis]
    return " + ".join(terms)


def _loaded(pointer: str, shape: tuple[int, ...], form: str) -> str:
    count, dims = int(np.prod(shape)), list(shape)
    if form == "constant":
        return f"tl.broadcast_to(tl.load({pointer}), {dims})" if shape else f"tl.load({pointer})"
    if form == "line":
        line = [*[1] * (len(shape) - 1), shape[-1]]
        return f"tl.broadcast_to(tl.load({pointer} + p * {count} + tl.arange(0, {shape[-1]})).reshape({line}), {dims})"
    if form == "column":
        column, step = [*shape[:-1], 1], shape[-1]
        heads = f"tl.load({pointer} + p * {count} + tl.arange(0, {count // step}) * {step})"
        return f"tl.broadcast_to({heads}.reshape({column}), {dims})"
    return f"tl.load({pointer} + p * {count} + {_offsets(shape)})"


def _formed(x: np.ndarray, p: int, form: str) -> np.ndarray:
    block = x[p]
    if form == "constant":
        return np.broadcast_to(x.reshape(-1)[0], block.shape)
    if form == "line":
        return np.broadcast_to(block.reshape(-1, block.shape[-1])[0], block.shape)
    if form == "column":
        return np.broadcast_to(block[..., :1], block.shape)
    return block
