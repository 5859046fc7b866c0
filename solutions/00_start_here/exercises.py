"""Lesson 00: bytes, FLOPs and the roofline, on exercises easy enough to learn the grader by."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random

import torch

from autograder.judging.exercise import Exercise, Mistake, Part
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES

from ..drawing import as_given


def _size(shape: tuple[int, ...], itemsize: int) -> int:
    return torch.empty(shape, dtype=torch.uint8, device="meta").numel() * itemsize


def _only(right: dict[str, float], **wrong: float) -> dict[str, float | None]:
    """Expect these wrong entries and anything in the others; match nothing where they are right after all."""
    if all(right[entry] == value for entry, value in wrong.items()):
        return dict.fromkeys(right, math.nan)
    return {entry: wrong.get(entry) for entry in right}


def _whole(result: float, **_: float) -> str | None:
    return f"this is the float {result!r}, expected an int" if isinstance(result, float) else None


def _shape(r: Random) -> tuple[int, ...]:
    return tuple(r.randint(1, 40) for _ in range(r.randint(1, 5)))


TENSOR_BYTES = Exercise(
    name="tensor_bytes",
    title="bytes of a tensor",
    parts=(
        Part(
            "one byte an element",
            1,
            visible=[
                dict(shape=(2, 3, 5), itemsize=1),
                dict(shape=(4097, 4099), itemsize=1),  # odd and above 2²⁴, so no number of float32
            ],
            hidden=lambda r: [dict(shape=_shape(r), itemsize=1) for _ in range(3)],
        ),
        Part(
            "two bytes and more",
            1,
            visible=[
                dict(shape=(2, 3, 5), itemsize=4),
                dict(shape=(7,), itemsize=2),
                dict(shape=(61, 128, 131072, 1, 576), itemsize=2),  # too large to be made
            ],
            hidden=lambda r: [
                *(dict(shape=_shape(r), itemsize=r.choice([2, 4, 8])) for _ in range(3)),
                dict(shape=(r.randint(64, 128), 131072, 576), itemsize=2),
            ],
        ),
        Part(
            "no axes, empty axes",
            1,
            visible=[dict(shape=(), itemsize=4), dict(shape=(3, 0, 5), itemsize=4)],
            hidden=lambda r: [dict(shape=(), itemsize=r.choice([2, 8])), dict(shape=(0, *_shape(r)), itemsize=2)],
        ),
    ),
    inputs=as_given,
    oracle=_size,
    returns=("the number of bytes",),
    consistent=_whole,
    tolerance=1e-9,
    mistakes=(
        Mistake(
            "elements",
            "these are elements, expected bytes: multiply by itemsize",
            lambda shape, itemsize: _size(shape, 1),
        ),
        Mistake("bits", "these are bits, expected bytes", lambda shape, itemsize: _size(shape, 8 * itemsize)),
        Mistake(
            "no axes",
            "a tensor of shape () is a single number, so it holds one element, not none",
            lambda shape, itemsize: _size(shape, itemsize) if shape else 0,
        ),
    ),
)


def _product(m: int, n: int, k: int, itemsize: int) -> dict[str, float]:
    dots, moved = m * n, _size((m, k), itemsize) + _size((k, n), itemsize) + _size((m, n), itemsize)
    return {"flops": dots * 2 * k, "bytes": moved}


def _sizes(r: Random, **fixed: int) -> dict[str, int]:
    return dict(m=r.randint(2, 300), n=r.randint(2, 300), k=r.randint(2, 300), itemsize=r.choice([1, 2, 4])) | fixed


MATMUL_COST = Exercise(
    name="matmul_cost",
    title="FLOPs and compulsory bytes of a matrix product",
    parts=(
        Part(
            "matrix times matrix",
            2,
            visible=[dict(m=3, n=5, k=7, itemsize=2), dict(m=64, n=64, k=64, itemsize=4)],
            hidden=lambda r: [_sizes(r), _sizes(r), dict(m=8192, n=8192, k=8192, itemsize=2)],
        ),
        Part(
            "one row, one column, one product",
            1,
            visible=[dict(m=1, n=6, k=4, itemsize=2), dict(m=6, n=1, k=4, itemsize=2)],
            hidden=lambda r: [_sizes(r, m=1), _sizes(r, n=1), _sizes(r, k=1)],
        ),
    ),
    inputs=as_given,
    oracle=_product,
    returns=("cost",),
    mistakes=(
        Mistake(
            "MACs",
            "flops counts multiply-accumulates: each is two operations, a multiplication and an addition",
            lambda **a: _only(_product(**a), flops=a["m"] * a["n"] * a["k"]),
        ),
        Mistake(
            "one addition fewer",
            "flops counts k − 1 additions an entry: count two for each of the k multiply-accumulates, as is the custom",
            lambda **a: _only(_product(**a), flops=a["m"] * a["n"] * (2 * a["k"] - 1)),
        ),
        Mistake(
            "elements",
            "bytes counts elements: multiply by itemsize",
            lambda **a: _only(_product(**a), bytes=_product(**a | {"itemsize": 1})["bytes"]),
        ),
        Mistake(
            "output left out",
            "bytes counts the two inputs only: the output [m, n] is written, and that moves bytes too",
            lambda **a: _only(_product(**a), bytes=a["itemsize"] * a["k"] * (a["m"] + a["n"])),
        ),
        Mistake(
            "output read, too",
            "bytes counts the output twice: it is written and not read, so it moves once",
            lambda **a: _only(_product(**a), bytes=_product(**a)["bytes"] + a["itemsize"] * a["m"] * a["n"]),
        ),
        Mistake(
            "output in float32",
            "bytes counts 4 bytes an entry of the output: every element has itemsize bytes, those of the output too",
            lambda **a: _only(_product(**a), bytes=a["itemsize"] * a["k"] * (a["m"] + a["n"]) + 4 * a["m"] * a["n"]),
        ),
        Mistake(
            "no reuse",
            "bytes reads both factors again for every product: compulsory traffic reads each input once",
            lambda **a: _only(_product(**a), bytes=a["itemsize"] * a["m"] * a["n"] * (2 * a["k"] + 1)),
        ),
    ),
    needs=("tensor_bytes",),
)


def _times(flops: float, nbytes: float, peak_flops: float, bandwidth: float) -> tuple[Fraction, Fraction]:
    """Memory and compute time, exactly."""
    return Fraction(nbytes) / Fraction(bandwidth), Fraction(flops) / Fraction(peak_flops)


def _roofline(**work: float) -> tuple[float, str]:
    memory, compute = _times(**work)
    return float(max(memory, compute)), "compute" if compute > memory else "memory"


def _upside_down(flops: float, nbytes: float, peak_flops: float, bandwidth: float) -> tuple[float, str]:
    return _roofline(flops=peak_flops, nbytes=bandwidth, peak_flops=max(flops, 1e-30), bandwidth=max(nbytes, 1e-30))


def _swap(bound: str) -> str:
    return "memory" if bound == "compute" else "compute"


def _work(r: Random, ratio: float) -> dict[str, float]:
    """Work whose compute time is `ratio` times its memory time."""
    peak_flops, bandwidth, seconds = r.uniform(1e11, 1e15), r.uniform(1e10, 5e12), r.uniform(1e-5, 1e-2)
    return dict(
        flops=ratio * seconds * peak_flops, nbytes=seconds * bandwidth, peak_flops=peak_flops, bandwidth=bandwidth
    )


def _little(r: Random) -> float:
    """Return a share by which two times differ that are nearly equal."""
    return 10 ** r.uniform(-6, -2)


def _tie(r: Random) -> dict[str, float]:
    """Equal times, in powers of two so that they are equal in any arithmetic."""
    a, b, c = (2.0 ** r.randint(20, 40) for _ in range(3))
    return dict(flops=a * c, nbytes=b * c, peak_flops=a * 1024, bandwidth=b * 1024)


ROOFLINE_TIME = Exercise(
    name="roofline_time",
    title="least time of a piece of work, and what sets it",
    parts=(
        Part(
            "memory-bound",
            1,
            visible=[
                dict(flops=2000, nbytes=1000, peak_flops=100, bandwidth=10),
                dict(flops=50, nbytes=25, peak_flops=100, bandwidth=10),
                dict(flops=2 * 10**9, nbytes=3 * 10**9, peak_flops=989 * 10**12, bandwidth=3350 * 10**9),
                dict(flops=29999, nbytes=3000, peak_flops=100, bandwidth=10),  # just below the ridge
                dict(flops=295.1e6, nbytes=1e6, peak_flops=989e12, bandwidth=3.35e12),  # and of one of 295.2
            ],
            hidden=lambda r: [_work(r, r.uniform(0.1, 0.9)), _work(r, r.uniform(0.1, 0.9)), _work(r, 1 - _little(r))],
        ),
        Part(
            "compute-bound",
            1,
            visible=[
                dict(flops=30000, nbytes=1000, peak_flops=100, bandwidth=10),
                dict(flops=10**13, nbytes=10**9, peak_flops=989 * 10**12, bandwidth=3350 * 10**9),
                dict(flops=70, nbytes=5, peak_flops=100, bandwidth=10),
                dict(flops=2**19, nbytes=2**8, peak_flops=989 * 10**12, bandwidth=3350 * 10**9),  # less than 1 ns
                dict(flops=30001, nbytes=3000, peak_flops=100, bandwidth=10),  # just above the ridge
                dict(flops=295.3e6, nbytes=1e6, peak_flops=989e12, bandwidth=3.35e12),
            ],
            hidden=lambda r: [_work(r, r.uniform(1.1, 10)), _work(r, r.uniform(1.1, 10)), _work(r, 1 + _little(r))],
        ),
        Part(
            "both equal, and a copy",
            1,
            visible=[
                dict(flops=1000, nbytes=100, peak_flops=100, bandwidth=10),
                dict(flops=0, nbytes=1000, peak_flops=100, bandwidth=10),
                dict(flops=0.0, nbytes=1e6, peak_flops=989e12, bandwidth=3.35e12),
            ],
            hidden=lambda r: [_tie(r), _work(r, 0.0)],
        ),
    ),
    inputs=as_given,
    oracle=_roofline,
    returns=("seconds", "bound"),
    mistakes=(
        Mistake(
            "tie",
            'when both times are equal, bound is "memory"',
            lambda **a: (_roofline(**a)[0], "memory" if _times(**a)[0] > _times(**a)[1] else "compute"),
        ),
        Mistake(
            "added",
            "the two times are added: data moves while arithmetic runs, so the longer one decides alone",
            lambda **a: (float(sum(_times(**a))), "memory" if len({*_times(**a)}) == 1 else None),
        ),
        Mistake(
            "no time without FLOPs",
            "no FLOPs are taken for no time: the bytes still have to be moved, which takes nbytes / bandwidth",
            lambda **a: _roofline(**a) if a["flops"] else (0.0, None),
        ),
        Mistake(
            "the shorter time",
            "this is the shorter of the two times: the work is done when the longer one is over",
            lambda **a: (float(min(_times(**a))) or math.nan if len({*_times(**a)}) > 1 else math.nan, None),
            at_times=True,
        ),
        Mistake(
            "names swapped",
            'seconds is right and bound is not: it names what takes longer, and is "memory" when both are equal',
            lambda **a: (_roofline(**a)[0], _swap(_roofline(**a)[1])),
            at_times=True,
        ),
        Mistake(
            "rates exchanged",
            "the rates are exchanged: bytes are divided by the bandwidth, FLOPs by the peak rate",
            lambda flops, nbytes, peak_flops, bandwidth: (max(nbytes / peak_flops, flops / bandwidth), None),
        ),
        Mistake(
            "upside down",
            "the divisions are upside down: seconds are bytes over bytes/s, and FLOPs over FLOP/s",
            _upside_down,
        ),
    ),
)


def _h100(
    copied: int,
    size: int,
    *,
    peak: float = 989e12,
    passes: int = 2,
    unit: float = 1e6,
    longer: Callable[[tuple[float, float]], float] = max,
    measured: bool = False,
    itemsize: int = 2,
) -> dict[str, float]:
    """The two times. The keywords make the named mistakes."""
    product = Cost(bytes=3 * itemsize * size**2, flops=2 * size**3)
    bandwidth = DEVICES["h100"].bandwidth(measured)
    peak = DEVICES["h100"].rate("bfloat16", measured) if measured else peak
    return {
        "copy_us": unit * passes * copied / bandwidth,
        "matmul_us": unit * longer((product.bytes / bandwidth, product.flops / peak)),
    }


def _by_sparse_ridge(copied: int, size: int) -> float:
    """The time of the product if the ridge of the sparse peak says what it is bound by."""
    return _h100(copied, size, peak=math.inf if size / 3 < 1979 / 3.35 else 989e12)["matmul_us"]


PREDICT_H100 = Exercise(
    name="predict_h100",
    title="a copy and a matrix product on an H100",
    parts=(
        Part(
            "a large product",
            2,
            visible=[dict(copied=2**30, size=8192), dict(copied=2**30, size=950)],
            hidden=lambda r: [
                dict(copied=r.randint(2**28, 2**33), size=size)
                for size in (r.randint(4000, 16000), r.randint(1000, 4000), r.randint(900, 1000))
            ],
        ),
        Part(
            "a small product",
            1,
            visible=[dict(copied=2**20, size=512), dict(copied=2**20, size=800), dict(copied=2**20, size=64)],
            hidden=lambda r: [
                dict(copied=r.randint(2**20, 2**28), size=size) for size in (r.randint(64, 700), r.randint(700, 870))
            ],
        ),
    ),
    inputs=as_given,
    oracle=_h100,
    returns=("prediction",),
    tolerance=0.01,
    mistakes=(
        Mistake(
            "sparse peak",
            "the product takes half the time it should: 1979 TFLOP/s holds for sparse bfloat16 or for dense FP8, "
            "dense bfloat16 gets half; and a multiply-add counts as two FLOPs",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, peak=1979e12)["matmul_us"]),
        ),
        Mistake(
            "float32 peak",
            "67 TFLOP/s is the rate of float32 outside the Tensor Cores: take the line of bfloat16",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, peak=67e12)["matmul_us"]),
        ),
        Mistake(
            "one way",
            "the copy takes half the time it should: every byte is read and written, which makes two",
            lambda **a: _only(_h100(**a), copy_us=_h100(**a, passes=1)["copy_us"]),
        ),
        Mistake(
            "times added",
            "the two times of the product are added: data moves while arithmetic runs, so the longer one decides alone",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, longer=sum)["matmul_us"]),
        ),
        Mistake(
            "tera as 2⁴⁰",
            "the copy takes a tenth less than it should: tera is 10¹² in a data sheet, not 2⁴⁰",
            lambda **a: _only(_h100(**a), copy_us=_h100(**a)["copy_us"] * 1e12 / 2**40),
        ),
        Mistake("seconds", "these are seconds, expected microseconds", lambda **a: _h100(**a, unit=1.0)),
        Mistake(
            "milliseconds",
            "these are milliseconds, expected microseconds: your numbers are 1000 times too small",
            lambda **a: _h100(**a, unit=1e3),
        ),
        Mistake(
            "the shorter time",
            "this is the shorter of the product's two times: the longer one decides",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, longer=min)["matmul_us"]),
        ),
        Mistake(
            "always compute",
            "the product takes the time of its arithmetic alone: in bfloat16 one this small is memory-bound on an "
            "H100, and the longer of both times decides",
            lambda **a: _only(_h100(**a), matmul_us=2e6 * a["size"] ** 3 / 989e12),
        ),
        Mistake(
            "always memory",
            "a product this large is bound by compute on an H100: take the longer of both times",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, peak=math.inf)["matmul_us"]),
        ),
        Mistake(
            "ridge of the sparse peak",
            "memory is taken to decide up to 591 FLOP/byte, the ridge of the sparse peak: that of dense bfloat16 is "
            "half of it",
            lambda **a: _only(_h100(**a), matmul_us=_by_sparse_ridge(**a)),
        ),
        Mistake(
            "float32 entries",
            "the product's entries are counted at 4 bytes: those of bfloat16 take 2",
            lambda **a: _only(_h100(**a), matmul_us=_h100(**a, itemsize=4)["matmul_us"]),
        ),
        Mistake(
            "what was measured",
            "these are times by measured rates: asked are the least, by those of the data sheet",
            lambda **a: _h100(**a, measured=True),
        ),
        Mistake(
            "the rate that was measured",
            "this is a time by a measured rate: asked is the least, by that of the data sheet",
            lambda **a: _only(
                _h100(**a), matmul_us=_h100(**a, peak=DEVICES["h100"].rate("bfloat16", True))["matmul_us"]
            ),
        ),
    ),
    needs=("tensor_bytes", "matmul_cost", "roofline_time"),
)


def _equal(n: int, k: int, itemsize: int, peak_flops: float, bandwidth: float) -> Fraction:
    """The m at which 2·m·n·k/peak is (m·k + k·n + m·n)·itemsize/bandwidth."""
    ridge = Fraction(peak_flops) / Fraction(bandwidth) * itemsize
    return ridge * n * k / (2 * n * k - ridge * (n + k))


def _crossing(**layer: float) -> int:
    """The first m beyond that."""
    return math.floor(_equal(**layer)) + 1


def _without(what: str) -> Callable[..., int]:
    """Return the same without the m·k numbers of the "rows", or the m·n of the "results"."""

    def oracle(n: int, k: int, itemsize: int, peak_flops: float, bandwidth: float) -> int:
        left = k if what == "results" else n
        ridge = Fraction(peak_flops) / Fraction(bandwidth) * itemsize
        return math.floor(ridge * n * k / (2 * n * k - ridge * left)) + 1

    return oracle


def _layer(r: Random, itemsize: int, ridge: float) -> dict[str, float]:
    bandwidth = r.uniform(1e10, 4e12)
    n, k = r.randint(1024, 8192), r.randint(1024, 8192)
    return dict(n=n, k=k, itemsize=itemsize, peak_flops=ridge * bandwidth, bandwidth=bandwidth)


RIDGE_ROWS = Exercise(
    name="ridge_rows",
    title="rows from which a layer is compute-bound",
    parts=(
        Part(
            "a CPU in 32 bits",
            1,
            visible=[
                dict(n=256, k=160, itemsize=4, peak_flops=320 * 10**9, bandwidth=27 * 10**9),
                dict(n=2048, k=4096, itemsize=4, peak_flops=8 * 10**9, bandwidth=20 * 10**9),  # a slow one: 1 row
                dict(n=512, k=512, itemsize=4, peak_flops=300e9, bandwidth=25e9),  # 27: no power of 2
            ],
            hidden=lambda r: [_layer(r, 4, r.uniform(4, 40)), _layer(r, 4, r.uniform(4, 40)), _layer(r, 4, 0.4)],
        ),
        Part(
            "a GPU in 16 and 8 bits",
            2,
            visible=[
                dict(n=7168, k=2048, itemsize=1, peak_flops=1979 * 10**12, bandwidth=3350 * 10**9),
                dict(n=7168, k=7168, itemsize=2, peak_flops=989e12, bandwidth=3.35e12),
                dict(n=1024, k=1024, itemsize=2, peak_flops=256 * 10**12, bandwidth=10**12),  # 512 rows: equal times
                dict(n=8192, k=8192, itemsize=2, peak_flops=1340 * 10**12, bandwidth=10**12),  # 1992 rows
            ],
            hidden=lambda r: [
                _layer(r, 2, r.uniform(50, 300)),
                _layer(r, 1, r.uniform(100, 600)),
                # 1981 to 1999 rows
                dict(n=8192, k=8192, itemsize=2, peak_flops=r.randint(1335, 1343) * 10**12, bandwidth=10**12),
            ],
        ),
    ),
    inputs=as_given,
    oracle=_crossing,
    returns=("the number of rows",),
    consistent=_whole,
    mistakes=(
        Mistake(
            "results left out",
            "the bytes lack the results: m·n of them are written, beside the m·k rows and the weights that are read",
            _without("results"),
        ),
        Mistake(
            "rows left out",
            "the bytes lack the rows: m·k numbers of them are read, beside the weights and the m·n results",
            _without("rows"),
        ),
        Mistake(
            "one too few",
            "this is the last number of rows that is memory-bound, expected the first that is compute-bound",
            lambda **a: _crossing(**a) - 1,
            at_times=True,
        ),
        Mistake(
            "one too many",
            "one row fewer is compute-bound too: expected the first number of rows that is",
            lambda **a: _crossing(**a) + 1,
            at_times=True,
        ),
        Mistake(
            "weights only",
            "this counts the bytes of the weights only: the m rows are read and the m results written too",
            lambda itemsize, peak_flops, bandwidth, **_: math.ceil(peak_flops / bandwidth * itemsize / 2),
        ),
        Mistake(
            "the ridge itself",
            "this is the ridge in FLOP/byte, expected rows: the intensity of m rows depends on itemsize, n and k too",
            lambda itemsize, peak_flops, bandwidth, **_: math.ceil(peak_flops / bandwidth),
        ),
        Mistake(
            "not rounded",
            "at this number of rows both times are equal: expected an int, the first number above it",
            lambda **a: float(_equal(**a)),
        ),
    ),
    needs=("tensor_bytes", "matmul_cost", "roofline_time"),
)


EXERCISES = (TENSOR_BYTES, MATMUL_COST, ROOFLINE_TIME, PREDICT_H100, RIDGE_ROWS)
