"""Lesson 05: fused attention scores and masked softmax, and what fusing each and all of them gains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part, Speed, randn
from mla_ref.hardware.cost import Cost

from ..drawing import BF16, FLOAT, HALF, as_given, latent_operands
from ..oracles import altered, causal

LONG_BLOCK = 4096  # as the lesson sets it

# --- predict_score_bytes ----------------------------------------------------------------------------------------------

PASSES = {"eager_bytes": 11, "score_fused_bytes": 5, "softmax_fused_bytes": 9, "both_fused_bytes": 3}
WRITES = {"eager_bytes": 6, "score_fused_bytes": 3, "softmax_fused_bytes": 5, "both_fused_bytes": 2}
KERNEL_ALONE = {**PASSES, "score_fused_bytes": 1, "softmax_fused_bytes": 2}
MASK_READ = {**PASSES, "eager_bytes": 12, "score_fused_bytes": 6}
MASK_READ_EVERYWHERE = {"eager_bytes": 12, "score_fused_bytes": 6, "softmax_fused_bytes": 10, "both_fused_bytes": 4}
SUM_READS_ONE = {**PASSES, "eager_bytes": 10, "softmax_fused_bytes": 8}
MASK_FREE = {**PASSES, "eager_bytes": 9, "score_fused_bytes": 3}  # adding the mask
SOFTMAX_HALF = {**PASSES, "eager_bytes": 10, "score_fused_bytes": 4}
FUSED_SOFTMAX_HALF = {**PASSES, "softmax_fused_bytes": 8, "both_fused_bytes": 2}
BOTH_SOFTMAX_HALF = {"eager_bytes": 10, "score_fused_bytes": 4, "softmax_fused_bytes": 8, "both_fused_bytes": 2}
MASK_COUNTED = "the mask is counted: it has [S, T] numbers, is not of the size of the scores, and is left out"
PRODUCTS_FREE = {"eager_bytes": 9, "score_fused_bytes": 4, "softmax_fused_bytes": 7, "both_fused_bytes": 2}


def _traffic(passes: dict[str, int], itemsize: int | None = None, heads: bool = True) -> Callable[..., Any]:
    """Return an oracle from passes over the scores. An `itemsize` here takes the place of the right one."""

    def oracle(B: int, S: int, H: int, T: int, R: int, Dr: int, **given: int) -> dict[str, float]:
        size = itemsize or given["itemsize"]
        scores = B * S * (H if heads else 1) * T * size
        return {**{name: count * scores for name, count in passes.items()}, "cache_bytes": B * T * (R + Dr) * size}

    return oracle


def _mask_counted(itemsize: int, S: int, T: int, **sizes: int) -> dict[str, float]:
    right = _traffic(PASSES)(S=S, T=T, itemsize=itemsize, **sizes)
    return {name: count + (S * T * itemsize if name in PASSES else 0) for name, count in right.items()}


def _masks_where_added(itemsize: int, S: int, T: int, **sizes: int) -> dict[str, float]:
    right = _traffic(PASSES)(S=S, T=T, itemsize=itemsize, **sizes)
    return right | {name: right[name] + S * T * itemsize for name in ("eager_bytes", "score_fused_bytes")}


def _operands_counted(fused: Sequence[str]) -> Callable[..., Any]:
    """Return an oracle that counts what the products read: queries and cache, in `eager_bytes` and in `fused`."""

    def oracle(B: int, S: int, H: int, T: int, R: int, Dr: int, itemsize: int) -> dict[str, float]:
        right = _traffic(PASSES)(B, S, H, T, R, Dr, itemsize=itemsize)
        operands = B * (S * H + T) * (R + Dr) * itemsize
        return right | {name: right[name] + operands for name in ("eager_bytes", *fused)}

    return oracle


def _cache_per_head(B: int, S: int, H: int, T: int, R: int, Dr: int, itemsize: int) -> dict[str, float]:
    right = _traffic(PASSES)(B, S, H, T, R, Dr, itemsize=itemsize)
    return {**right, "cache_bytes": H * right["cache_bytes"]}


PREDICT_BYTES = Exercise(
    name="predict_score_bytes",
    title="prediction: bytes of scores and softmax",
    parts=(
        Part("the report's layer", 1, visible=[dict(B=4, S=4096, H=16, T=4096, R=512, Dr=64, itemsize=2)]),
        Part(
            "any size",
            1,
            visible=[dict(B=3, S=1, H=5, T=77, R=24, Dr=8, itemsize=4)],
            hidden=lambda r: [
                dict(
                    B=r.randint(1, 99),
                    S=r.randint(1, 999),
                    H=r.randint(1, 128),
                    T=r.randint(1000, 9999),
                    R=r.randint(8, 600),
                    Dr=r.randint(2, 99),
                    itemsize=r.choice([1, 2, 4]),
                )
                for _ in range(3)
            ],
        ),
    ),
    inputs=as_given,
    oracle=_traffic(PASSES),
    returns=("prediction",),
    mistakes=(
        Mistake("elements", "these are numbers, not bytes: multiply by itemsize", _traffic(PASSES, itemsize=1)),
        Mistake(
            "one head",
            "the scores of one head are counted: every head has a row of T scores for each query",
            _traffic(PASSES, heads=False),
        ),
        Mistake(
            "numbers of 4 bytes", "numbers are counted at 4 bytes: they have itemsize", _traffic(PASSES, itemsize=4)
        ),
        Mistake(
            "fused kernel alone",
            "the passes of the fused kernel alone are counted: add those of the part that stays eager",
            _traffic(KERNEL_ALONE),
        ),
        Mistake("writes only", "only writes are counted: most operations read the scores as well", _traffic(WRITES)),
        *(
            Mistake(
                "a pass too many",
                "eager_softmax has a pass too many: its softmax takes 2, a read and a write, and the mask is not as "
                "large as the scores: its [S, T] numbers are left out",
                _traffic(passes),
            )
            for passes in (MASK_READ, MASK_READ_EVERYWHERE)
        ),
        Mistake("mask counted", MASK_COUNTED, _mask_counted),
        Mistake("mask counted where it is added", MASK_COUNTED, _masks_where_added),
        *(
            Mistake(
                "operands counted",
                "queries and cache are counted: only what has the size of the scores, [B, S, H, T], is",
                _operands_counted(fused),
            )
            for fused in ((), ("softmax_fused_bytes",), tuple(PASSES))
        ),
        Mistake(
            "sum reads one",
            "eager_scores lacks a pass: the sum reads both products and writes, the scale reads and writes",
            _traffic(SUM_READS_ONE),
        ),
        Mistake(
            "softmax one pass short",
            "eager_softmax lacks a pass: adding the mask reads and writes the scores, and so does the softmax",
            _traffic(SOFTMAX_HALF),
        ),
        Mistake(
            "softmax without the mask",
            "eager_softmax lacks two passes: adding the mask is an operation of its own, which reads and writes the "
            "scores",
            _traffic(MASK_FREE),
        ),
        *(
            Mistake(
                "fused softmax one pass short",
                "the fused softmax counts one pass: it reads the scores and writes the weights",
                _traffic(passes),
            )
            for passes in (FUSED_SOFTMAX_HALF, BOTH_SOFTMAX_HALF)
        ),
        Mistake(
            "products not written",
            "the products' own results are left out: each matrix product writes a tensor of scores, fused or not",
            _traffic(PRODUCTS_FREE),
        ),
        Mistake(
            "cache of every head", "cache_bytes counts a cache for each head: all heads share one", _cache_per_head
        ),
    ),
)

# --- scaled_matmul ----------------------------------------------------------------------------------------------------


def _matrices(
    g: torch.Generator | None,
    M: int,
    N: int,
    K: int,
    scale: float = 0.25,
    large: bool = False,
    rest: float = 0.0,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Return two matrices. With `large`, their products exceed float16 before they are scaled.

    With a `rest`, the column in the middle makes most of each sum. All others add this share of it, each little.
    """
    if rest:
        x, y = (0.5 + 0.5 * _uniform(g, rows, K, dtype) for rows in (M, N))
        x[:, K // 2] = y[:, K // 2] = math.sqrt(9 / 16 * K / rest)
        return {"x": x, "y": y, "scale": scale}
    if large:
        return {"x": 60 + 9 * _uniform(g, M, K, dtype), "y": 60 + 9 * _uniform(g, N, K, dtype), "scale": scale}
    return {"x": randn(g, M, K, dtype=dtype), "y": randn(g, N, K, dtype=dtype), "scale": scale}


def _uniform(g: torch.Generator, *shape_and_dtype: Any) -> Tensor:
    *shape, dtype = shape_and_dtype
    return torch.rand(shape, generator=g, dtype=torch.float64).to(dtype)


def _matmul(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.einsum("mk,nk->mn", x, y) * scale


def _unscaled(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return _matmul(x, y, 1.0)


def _transposed(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """What reaches [M, N] when each tile is stored as one of [N, M]."""
    return _matmul(y, x, scale).reshape(len(x), len(y))


def _overflowing(oracle: Callable[..., Tensor], sums: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the oracle with infinity where the sums exceed float16."""
    return lambda **given: oracle(**given).masked_fill(sums(**given).abs() > 65504, math.inf)


def _cut(x: Tensor) -> Tensor:
    """Return float32 with the 10 bits of mantissa that TF32 has; numbers of 16 bits have no more."""
    return (x.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(x.dtype)


def _first_block(block: int) -> Callable[..., Tensor]:
    """Return an oracle whose every turn of the loop over K multiplies the first `block` columns."""
    return lambda x, y, scale: _matmul(x[:, :block], y[:, :block], scale * math.ceil(x.shape[1] / block))


def _doubled(turns: Tensor) -> Tensor:
    """Return how often a column counts, by its turn, where each turn adds the accumulator once more."""
    return 2.0 ** (turns.max() - turns)


def _first_turn(block: int) -> Callable[..., Tensor]:
    return lambda x, y, scale: _matmul(x[:, :block], y[:, :block], scale)


def _first_turns(block: int) -> Callable[..., Tensor]:
    """Return the oracle whose two products have their first `block` columns alone."""
    return lambda Dn, q_rope, **given: _right_scores(
        q_rope=q_rope[..., :block],
        **{name: each[..., :block] for name, each in given.items()},
        Dn=Dn + q_rope.shape[-1] - q_rope[..., :block].shape[-1],  # the scale is the whole width's
    )


def _scaled_in_turns(block: int) -> Callable[..., Tensor]:
    """Return an oracle that multiplies the accumulator by scale in every turn of the loop over K."""

    def oracle(x: Tensor, y: Tensor, scale: float) -> Tensor:
        turns = torch.arange(x.shape[1]) // block
        return _matmul(x * scale ** (turns.max() - turns), y, scale)

    return oracle


def _summed_in(dtype: torch.dtype, block: int) -> Callable[..., Tensor]:
    def oracle(x: Tensor, y: Tensor, scale: float) -> Tensor:
        acc = x.new_zeros(len(x), len(y))
        for a, b in zip(x.split(block, 1), y.split(block, 1), strict=True):
            acc = (acc + _matmul(a, b, scale)).to(dtype).double()
        return acc

    return oracle


def _added_twice(block: int) -> Callable[..., Tensor]:
    return lambda x, y, scale: _matmul(x * _doubled(torch.arange(x.shape[1]) // block), y, scale)


def _scores_added_twice(block: int) -> Callable[..., Tensor]:
    def oracle(q_latent: Tensor, q_rope: Tensor, **given: Any) -> Tensor:
        widths = q_latent.shape[-1], q_rope.shape[-1]
        latent, rope = (torch.arange(width) // block for width in widths)
        counts = _doubled(torch.cat((latent, rope + 1 + latent.max()))).split(widths)
        return _right_scores(q_latent * counts[0], q_rope * counts[1], **given)

    return oracle


def _one_turn(oracle: Callable[[int], Callable[..., Tensor]]) -> tuple[Mistake, ...]:
    return tuple(
        Mistake(
            "first turn alone",
            "only the first block of columns is multiplied: the loop takes turns up to the whole width",
            oracle(block),
        )
        for block in (16, 32, 64, 128)
    )


def _twice(oracle: Callable[[int], Callable[..., Tensor]]) -> tuple[Mistake, ...]:
    return tuple(
        Mistake(
            "accumulator added twice",
            "the accumulator is added twice: tl.dot(x, y, acc) has it in its result, so write acc = tl.dot(…, acc)",
            oracle(block),
        )
        for block in (16, 32, 64, 128)
    )


FIRST_BLOCK = tuple(
    Mistake(
        "the first block of K in every turn",
        "every turn of the loop over K multiplies the first columns: those of a turn begin at its start, "
        "start + tl.arange(0, BLOCK_K)",
        _first_block(block),
    )
    for block in (16, 32, 64, 128)
)
IN_TF32 = (
    'float32 operands are multiplied in TF32, with 10 bits of mantissa: give tl.dot input_precision="ieee" (Triton '
    "also turns a tl.sum over a product of two blocks into a tl.dot, in TF32)"
)
SUM_OF_16_BITS = (
    "the sum is rounded to 16 bits in every turn of the loop over K, and what is small beside it is lost: keep it in "
    "tl.float32"
)
FLOAT16_SUM = "the sums overflow float16 (65504) before they are scaled: accumulate in tl.float32, scale, then store"

MATMUL = Exercise(
    name="scaled_matmul",
    title="a tile of a matrix product",
    parts=(
        Part(
            "one tile",
            1,
            visible=[
                dict(M=16, N=16, K=32),
                dict(M=16, N=64, K=16, scale=-1.4142),
                dict(M=3, N=5, K=7),
                dict(M=1, N=1, K=1),
            ],
            hidden=lambda r: [
                dict(M=r.randint(1, 16), N=r.randint(1, 16), K=r.randint(1, 16), scale=r.uniform(-2, 2)),
                dict(M=r.randint(2, 16), N=r.randint(2, 16), K=r.randint(9, 16), dtype=HALF),
            ],
        ),
        Part(
            "any size",
            1,
            visible=[
                dict(M=20, N=33, K=80),
                dict(M=150, N=333, K=150),
                dict(M=17, N=20, K=48, scale=0.01, large=True, dtype=HALF),
                dict(M=17, N=20, K=48, dtype=BF16),
                dict(M=3, N=5, K=1100),
                dict(M=2, N=3, K=8000, rest=0.12, dtype=BF16),
                dict(M=2, N=3, K=8000, rest=0.015, scale=0.01, dtype=HALF),
                dict(M=255, N=250, K=16),  # even numbers of tiles on both sides
                dict(M=2101, N=150, K=5),  # in groups of 8 tiles the last one is not full
                dict(M=17301, N=20, K=5),
                dict(M=20, N=17301, K=5),
            ],
            hidden=lambda r: [
                dict(M=r.randint(1, 40), N=r.randint(100, 300), K=r.randint(65, 200), scale=r.uniform(-2, 2)),
                dict(M=r.randint(129, 200), N=r.randint(1, 40), K=r.randint(1, 70), dtype=HALF),
                dict(M=r.randint(260, 300), N=r.randint(260, 300), K=r.randint(17, 40)),
                dict(M=r.randint(241, 255), N=r.randint(241, 255), K=20),
                dict(M=r.randint(2, 9), N=r.randint(2, 9), K=r.randint(129, 200), scale=0.01, large=True, dtype=HALF),
            ],
        ),
    ),
    inputs=_matrices,
    oracle=_matmul,
    like=("x",),
    mistakes=(
        Mistake("no scale", "the result is not multiplied by scale", _unscaled),
        Mistake(
            "y not turned",
            "y is read as if its rows were columns: number k of row n of y lies at n·K + k",
            lambda x, y, scale: x @ y.reshape(y.shape[::-1]) * scale,
        ),
        Mistake(
            "stored by columns",
            "the result is stored by columns: number n of row m of out belongs at m·N + n",
            _transposed,
        ),
        Mistake(
            "tail of K left out",
            "columns that do not fill a turn are left out: the loop over K needs a turn for the tail, masked",
            lambda x, y, scale: _matmul(x[:, : x.shape[1] // 64 * 64], y[:, : y.shape[1] // 64 * 64], scale),
        ),
        Mistake(
            "accumulator overwritten",
            "only the last turn of the loop over K is left: pass the accumulator to tl.dot, or add to it",
            lambda x, y, scale: _matmul(x[:, 64:], y[:, 64:], scale) if x.shape[1] > 64 else _matmul(x, y, scale),
        ),
        *(
            Mistake("sum in 16 bits", SUM_OF_16_BITS, _summed_in(dtype, block), at_times=True)
            for dtype in (HALF, BF16)
            for block in (16, 32, 64, 128)
        ),
        *_twice(_added_twice),
        *_one_turn(_first_turn),
        *(
            Mistake(
                "scaled in every turn",
                "the accumulator is multiplied by scale in every turn of the loop over K: once is enough, behind it",
                _scaled_in_turns(block),
            )
            for block in (16, 32, 64, 128)
        ),
        *FIRST_BLOCK,
        Mistake("TF32", IN_TF32, lambda x, y, scale: _matmul(_cut(x), _cut(y), scale)),
        Mistake("float16 accumulator", FLOAT16_SUM, _overflowing(_matmul, _unscaled), apart=True),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=1,
        case=dict(M=128, N=65536, K=512, dtype=BF16),
        small=dict(M=128, N=256),
        axes=dict(x="m", y="n", out="mn"),
        floor=lambda M, N, K, dtype: Cost(bytes=(M * K + N * K + M * N) * dtype.itemsize, flops=2 * M * N * K),
        bars=((0.25, 0.5), (0.45, 1.0)),
        baseline=lambda x, y, scale: x @ y.T * scale,
    ),
)

# --- attention_score --------------------------------------------------------------------------------------------------


def _operands(
    g: torch.Generator | None,
    B: int,
    S: int,
    H: int,
    T: int,
    R: int,
    Dr: int,
    Dn: int = 56,
    large: bool = False,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Return absorbed queries and a cache. With `large`, sums exceed float16 before they are scaled."""
    tensors = latent_operands(None if large else g, B, S, T, H, Dr, R, dtype=dtype)
    if large:
        tensors = {name: 40 + 9 * _uniform(g, *x.shape, dtype) for name, x in tensors.items()}
    return {**tensors, "Dn": Dn}


def _scores(
    latent: Callable[[int, int, int], float] = lambda Dn, R, Dr: (Dn + Dr) ** -0.5,
    rope: Callable[[int, int, int], float] | None = None,
) -> Callable[..., Tensor]:
    """Return an oracle with these factors of the two products."""
    rope = rope or latent

    def oracle(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, Dn: int) -> Tensor:
        sizes = Dn, q_latent.shape[-1], q_rope.shape[-1]
        keys = torch.cat((c_kv * latent(*sizes), k_rope * rope(*sizes)), -1)  # the scale on the keys
        return torch.cat((q_latent, q_rope), -1) @ keys[:, None].transpose(-1, -2)

    return oracle


def _right_scale(Dn: int, R: int, Dr: int) -> float:
    return (Dn + Dr) ** -0.5


def _one(Dn: int, R: int, Dr: int) -> float:
    return 1.0


def _none(Dn: int, R: int, Dr: int) -> float:
    return 0.0


_right_scores = _scores()


def _masked_scores(**given: Any) -> Tensor:
    return causal(_right_scores(**given))


def _masked_by_row(**given: Any) -> Tensor:
    scores = _right_scores(**given)
    return causal(scores.flatten(1, 2)[:, :, None]).view_as(scores)


def _first_cache(*names: str) -> Callable[..., Tensor]:
    """Return an oracle in which every sequence meets these tensors of sequence 0."""
    return lambda **given: _right_scores(**given | {name: given[name][:1].expand_as(given[name]) for name in names})


def _narrow(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, Dn: int) -> Tensor:
    """The latents of a sequence read as rows that are as wide as those of the RoPE parts; NaN where these are wider."""
    Dr = q_rope.shape[-1]
    if Dr > c_kv.shape[-1]:
        return _right_scores(q_latent * math.nan, q_rope, c_kv, k_rope, Dn)
    given = (each.flatten(1)[:, : math.prod(each.shape[1:-1]) * Dr] for each in (q_latent, c_kv))
    q_latent, c_kv = (each.reshape(*like.shape[:-1], Dr) for each, like in zip(given, (q_latent, c_kv), strict=True))
    return _right_scores(q_latent, q_rope, c_kv, k_rope, Dn)


def _rows_by_head(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, Dn: int) -> Tensor:
    right = _right_scores(q_latent, q_rope, c_kv, k_rope, Dn)
    return right.transpose(1, 2).reshape(right.shape)


def _eager_scores(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, Dn: int) -> Tensor:
    """The lesson's `eager_scores`: a pass over the scores for each operation."""
    nope = torch.einsum("bshr,btr->bsht", q_latent, c_kv)
    return (nope + torch.einsum("bshr,btr->bsht", q_rope, k_rope)) * (Dn + q_rope.shape[-1]) ** -0.5


SCORE = Exercise(
    name="attention_score",
    title="fused attention scores",
    parts=(
        Part(
            "one query",
            1,
            visible=[
                dict(B=1, S=1, H=3, T=20, R=32, Dr=8),
                dict(B=1, S=1, H=1, T=9, R=8, Dr=1),
                dict(B=9, S=1, H=1, T=1, R=8, Dr=1),
            ],
            hidden=lambda r: [
                dict(B=1, S=1, H=r.randint(1, 40), T=r.randint(9, 200), R=32, Dr=16, Dn=r.randint(8, 200)),
                dict(B=9, S=1, H=r.choice([1, 17]), T=1, R=r.randint(2, 32), Dr=r.randint(1, 9)),
            ],
        ),
        Part(
            "several sequences and queries",
            1,
            visible=[
                dict(B=2, S=3, H=5, T=37, R=64, Dr=12),
                dict(B=2, S=2, H=70, T=140, R=16, Dr=16, dtype=HALF),
                dict(B=2, S=2, H=3, T=40, R=16, Dr=16, dtype=BF16),
                dict(B=1, S=17, H=121, T=150, R=16, Dr=16, dtype=HALF),
                dict(B=281, S=2, H=3, T=4, R=16, Dr=16, dtype=BF16),
                dict(B=1, S=2, H=3, T=17301, R=16, Dr=16, dtype=BF16),
            ],
            hidden=lambda r: [
                dict(B=r.randint(2, 3), S=r.randint(2, 9), H=r.randint(1, 9), T=r.randint(20, 150), R=32, Dr=8),
                dict(B=2, S=2, H=r.randint(65, 90), T=r.randint(2, 20), R=16, Dr=16, dtype=HALF),
            ],
        ),
        Part(
            "widths that are no multiple of a block",
            1,
            visible=[
                dict(B=2, S=1, H=4, T=150, R=80, Dr=20, Dn=28),
                dict(B=2, S=2, H=3, T=70, R=150, Dr=70, Dn=150),
                dict(B=1, S=1, H=3, T=20, R=530, Dr=270),
            ],
            hidden=lambda r: [
                dict(B=2, S=2, H=4, T=r.randint(130, 200), R=r.randint(129, 200), Dr=r.randint(65, 90)),
                dict(B=2, S=1, H=3, T=r.randint(3, 60), R=512, Dr=64, Dn=128, dtype=HALF),
            ],
        ),
        Part(
            "float16, large sums",
            1,
            visible=[dict(B=1, S=1, H=4, T=20, R=64, Dr=8, large=True, dtype=HALF)],
            hidden=lambda r: [
                dict(B=2, S=1, H=r.randint(1, 9), T=r.randint(3, 60), R=80, Dr=r.randint(2, 9), large=True, dtype=HALF)
            ],
        ),
    ),
    inputs=_operands,
    oracle=_right_scores,
    returns=("scores",),
    like=("q_latent",),
    mistakes=(
        Mistake(
            "scale 1/√(R+Dr)",
            "the scale is 1/√(R+Dr), the absorbed width: expected 1/√(Dn+Dr), as absorption changes no score",
            _scores(lambda Dn, R, Dr: (R + Dr) ** -0.5),
        ),
        Mistake("scale 1/√R", "the scale is 1/√R: expected 1/√(Dn+Dr)", _scores(lambda Dn, R, Dr: R**-0.5)),
        Mistake(
            "scale 1/√Dn",
            "the scale is 1/√Dn: the RoPE part belongs to the width too, expected 1/√(Dn+Dr)",
            _scores(lambda Dn, R, Dr: Dn**-0.5),
        ),
        Mistake("no scale", "the scores are not scaled: expected 1/√(Dn+Dr)", _scores(_one)),
        Mistake(
            "RoPE part not scaled",
            "only the latent product is scaled: the scale belongs to the sum of both",
            _scores(_right_scale, _one),
        ),
        Mistake(
            "latent part not scaled",
            "only the RoPE product is scaled: the scale belongs to the sum of both",
            _scores(_one, _right_scale),
        ),
        Mistake(
            "RoPE part missing",
            "the RoPE product is missing: expected q_latent·c_kv + q_rope·k_rope (Dr may be smaller than a turn)",
            _scores(_right_scale, _none),
        ),
        Mistake(
            "latent part missing",
            "the latent product is missing: the second product must add to the accumulator",
            _scores(_none, _right_scale),
        ),
        Mistake(
            "turns left out",
            "a width that is smaller than a turn of the loop adds nothing: it needs a turn for the tail, masked",
            _scores(_none),
        ),
        *(
            Mistake(
                "cache of sequence 0",
                f"every sequence meets the {what} of sequence 0: those of sequence b begin at {where}",
                _first_cache(*names),
            )
            for what, where, names in (
                ("latents and rotated keys", "row b·T", ("c_kv", "k_rope")),
                ("latents", "b·T·R", ("c_kv",)),
                ("rotated keys", "b·T·Dr", ("k_rope",)),
            )
        ),
        *_twice(_scores_added_twice),
        *_one_turn(_first_turns),
        *(
            Mistake(
                "masked",
                "places that a query does not see are masked: scores stay as they are here, the softmax masks",
                oracle,
            )
            for oracle in (_masked_scores, _masked_by_row)
        ),
        Mistake("latents Dr wide", "the first product takes rows Dr wide: latents have R columns", _narrow),
        Mistake(
            "rows by head",
            "the rows are stored head by head: row s·H + h of a sequence belongs to query s, head h",
            _rows_by_head,
        ),
        Mistake("TF32", IN_TF32, lambda Dn, **tensors: _right_scores(*map(_cut, tensors.values()), Dn)),
        Mistake("float16 accumulator", FLOAT16_SUM, _overflowing(_right_scores, _scores(_one)), apart=True),
    ),
    kernel=True,
    speed=Speed(
        points=3,
        case=dict(B=32, S=1, H=128, T=4096, R=512, Dr=64, Dn=128, dtype=BF16),
        small=dict(B=1, T=256),
        axes=dict(q_latent="bsh", q_rope="bsh", c_kv="bt", k_rope="bt", scores="bsht"),
        floor=lambda B, S, H, T, R, Dr, Dn, dtype: Cost(
            bytes=B * (T * (R + Dr) + S * H * (R + Dr + T)) * dtype.itemsize, flops=2 * B * S * H * T * (R + Dr)
        ),
        bars=((0.3, 0.5), (0.5, 1.0)),
        baseline=_eager_scores,
        ratio=1.5,
    ),
)

# --- masked_softmax ---------------------------------------------------------------------------------------------------

POISON = 2e4  # where nothing is to be read
UNDERFLOW = -104.0  # exp of less is 0 in float32


def _rows(
    g: torch.Generator | None,
    lens: Sequence[int],
    S: int,
    H: int,
    T: int,
    scale: float = 2.0,
    slope: float = 0.0,
    level: float = 0.0,
    poison: float = POISON,
    dtype: torch.dtype = FLOAT,
) -> Arguments:
    """Scores around `level`, rising by `slope` along a row, with `poison` at the positions that a row does not see."""
    scores = randn(g, len(lens), S, H, T, scale=scale, dtype=dtype)
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    if g is not None:
        scores += torch.linspace(level, level + slope, T).to(dtype)
        scores = scores.masked_fill(~_seen(T, _limits(seq_lens, S)), poison)
    return {"scores": scores, "seq_lens": seq_lens}


def _limits(seq_lens: Tensor, S: int) -> Tensor:
    """Return how many positions each query sees, [B, S]."""
    return seq_lens[:, None].long() - torch.arange(S - 1, -1, -1)


def _seen(T: int, limits: Tensor) -> Tensor:
    return (torch.arange(T) < limits[..., None])[:, :, None]  # [B, S, 1, T]


def _weights(scores: Tensor, limits: Tensor) -> Tensor:
    """Return each row's weights over the first `limits` positions, [B, S]; rows without any are zeros."""
    seen = _seen(scores.shape[-1], limits)
    hidden = scores.masked_fill(~seen, -math.inf)
    return (hidden - hidden.logsumexp(-1, keepdim=True)).exp().where(seen, 0.0)


def _softmax(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _weights(scores, _limits(seq_lens, scores.shape[1]))


def _over_heads(scores: Tensor, seq_lens: Tensor) -> Tensor:
    seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
    return scores.masked_fill(~seen, -math.inf).softmax(2).where(seen, 0.0)


def _block_counted(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """Places that are not seen count as scores of 0. So do those between T and the block."""
    T = scores.shape[-1]
    block = 1 << max(T - 1, 1).bit_length()
    scores = scores.where(_seen(T, _limits(seq_lens, scores.shape[1])), 0.0)
    return torch.nn.functional.pad(scores, (0, block - T)).softmax(-1)[..., :T]


def _no_maximum(low: float, empty: float) -> Callable[..., Tensor]:
    """Return an oracle of powers of float32: `low` where all of a row are 0, `empty` where it sees nothing."""

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
        powers = scores.float().exp().where(seen, 0.0)
        total = powers.sum(-1, keepdim=True)
        weights = (powers / total).masked_fill(total == 0, low)
        return weights.masked_fill(~seen.any(-1, keepdim=True), empty)

    return oracle


def _maximum_from_0(value: float) -> Callable[..., Tensor]:
    """Return an oracle whose rows hold `value` where every power of float32 is 0 unless the maximum is subtracted."""

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        limits = _limits(seq_lens, scores.shape[1])
        hidden = scores.masked_fill(~_seen(scores.shape[-1], limits), -math.inf)
        low = (hidden.amax(-1) < UNDERFLOW) & (limits > 0)[..., None]
        return _weights(scores, limits).masked_fill(low[..., None], value)

    return oracle


def _late_mask(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """The maximum over all T: where it lies at a place that is not seen, every power is 0."""
    limits = _limits(seq_lens, scores.shape[1])
    partly = (limits < scores.shape[-1])[:, :, None, None]
    return _weights(scores, limits).masked_fill(partly, math.nan)


def _late_mask_zeros(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """The same, where a sum of 0 is replaced by 1."""
    return _late_mask(scores, seq_lens).nan_to_num(0.0)


def _mask_added(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """A mask of 0 and -inf added to the scores: NaN stays NaN."""
    seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
    return _softmax(scores, seq_lens).masked_fill((scores.isnan() & ~seen).any(-1, keepdim=True), math.nan)


def _lengths_ignored(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _softmax(scores, torch.full_like(seq_lens, scores.shape[-1]))


def _not_causal(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _weights(scores, seq_lens[:, None].long().expand(-1, scores.shape[1]))


def _strict(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _weights(scores, _limits(seq_lens, scores.shape[1]) - 1)


def _top_left(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _weights(scores, torch.minimum(torch.arange(1, scores.shape[1] + 1), seq_lens[:, None].long()))


def _less_s(scores: Tensor, seq_lens: Tensor) -> Tensor:
    return _weights(scores, seq_lens[:, None].long() - torch.arange(scores.shape[1]))


def _logarithms(scores: Tensor, seq_lens: Tensor) -> Tensor:
    seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
    hidden = scores.masked_fill(~seen, -math.inf)
    return (hidden - hidden.logsumexp(-1, keepdim=True)).where(seen, -math.inf)


def _sum_unshifted(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """Powers relative to the row's maximum, over a sum of those that are not, where float32 holds it."""
    seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
    hidden = scores.float().masked_fill(~seen, -math.inf)
    m_i, l_i = hidden.amax(-1, keepdim=True), hidden.exp().sum(-1, keepdim=True)
    return ((hidden - m_i).exp() / l_i).where(l_i.isfinite() & (l_i > 0), _softmax(scores, seq_lens).float())


def _query_of_the_row(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """Row n of a sequence sees what query n % S sees, as if the heads came before the queries."""
    (B, S, H, T), limits = scores.shape, _limits(seq_lens, scores.shape[1])
    return _weights(scores.view(B, S * H, 1, T), limits.repeat(1, H)).view_as(scores)


def _undivided(shifted: bool) -> Callable[..., Tensor]:
    """Return an oracle of powers that are not divided by their sum, relative to the row's maximum where `shifted`."""

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        weights = _softmax(scores, seq_lens)
        if shifted:
            return weights / weights.amax(-1, keepdim=True).clamp(min=1e-300)
        seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
        low = scores.masked_fill(~seen, -math.inf).amax(-1, keepdim=True) < UNDERFLOW
        return weights.where(low, scores.exp().where(seen, 0.0))  # zeros have many causes

    return oracle


def _empty_rows(value: Callable[[int], float]) -> Callable[..., Tensor]:
    """Return an oracle whose rows that see nothing hold `value(T)`."""

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        empty = (_limits(seq_lens, scores.shape[1]) <= 0)[:, :, None, None]
        return _softmax(scores, seq_lens).masked_fill(empty, value(scores.shape[-1]))

    return oracle


def _eager_softmax(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """The lesson's `eager_softmax`, with the mask made here: a pass to add it, a pass for the softmax."""
    B, S, _, T = scores.shape
    positions = torch.arange(T, device=scores.device)
    limits = seq_lens.to(scores.device)[:, None] - torch.arange(S - 1, -1, -1, device=scores.device)
    mask = torch.zeros(B, S, T, dtype=scores.dtype, device=scores.device)
    mask = mask.masked_fill(positions >= limits[..., None], -math.inf)
    return (scores + mask[:, :, None]).softmax(-1)


def _softmax_floor(lens: Sequence[int], S: int, H: int, T: int, dtype: torch.dtype) -> Cost:
    """Every score that is seen read once, every weight written once."""
    seen = H * sum(max(0, length - s) for length in lens for s in range(S))
    written = len(lens) * S * H * T
    return Cost(bytes=(seen + written) * dtype.itemsize, flops=4 * seen)


NOTHING_SEEN = "rows that see nothing are NaN (0/0, or −inf minus −inf): expected zeros"
COUNTED = "places that are not seen, or beyond T, count as scores of 0, or of another number: load them as -inf"
LATE_MASK = "the maximum is taken over positions that are not seen: mask first, with -inf"
# Where a sum of 0 is replaced by 1 the weights are 0, and NaN elsewhere.
FROM_0 = tuple(
    Mistake(
        "maximum from 0",
        "rows whose scores are all far below 0 get no weights: a maximum that begins at 0 is not theirs, begin at -inf",
        _maximum_from_0(value),
        apart=True,
    )
    for value in (0.0, math.nan)
)
LENGTHS_IGNORED = Mistake(
    "lengths ignored",
    "rows run over all T positions: only the first seq_lens[b] of a sequence are real",
    _lengths_ignored,
)

LENGTH_OF_0 = Mistake(
    "length of sequence 0",
    "every row has the length of sequence 0: row n belongs to sequence n // (S · H), load seq_lens_ptr + b",
    lambda scores, seq_lens: _softmax(scores, seq_lens[:1].expand_as(seq_lens)),
)
MASKS = (
    Mistake("not causal", "every query sees the whole sequence: query s sees S−1−s positions less", _not_causal),
    Mistake(
        "off by one", "queries do not see their own position: query s sees seq_lens[b] − (S−1−s) positions", _strict
    ),
    Mistake(
        "aligned top left",
        "query s sees s + 1 positions: the S queries are the last of the sequence, so it is seq_lens[b] − (S−1−s)",
        _top_left,
    ),
    Mistake(
        "less s",
        "query s sees seq_lens[b] − s positions: the last query sees all, so it is seq_lens[b] − (S−1−s)",
        _less_s,
    ),
)
SUMS = (
    *(
        Mistake("not normalised", "the weights are not divided by their sum: those of a row add up to 1", oracle)
        for oracle in (_undivided(False), _undivided(True))
    ),
    Mistake(
        "powers of 2",
        "the weights are powers of 2: take tl.exp, or multiply the scores by log2(e) for tl.exp2",
        lambda scores, seq_lens: _softmax(scores * math.log(2), seq_lens),
    ),
    Mistake("logarithms", "these are the logarithms of the weights: take tl.exp of them", _logarithms),
    Mistake(
        "sum without the maximum",
        "the sum is that of exp(x), and the powers are exp(x − maximum): subtract the maximum in the sum, too",
        _sum_unshifted,
    ),
)
NO_MAXIMUM = tuple(
    Mistake(
        "no maximum",
        "exp of the scores overflows, or is 0 throughout a row: subtract the row's maximum first",
        _no_maximum(*values),
        apart=True,
    )
    for values in ((0.0, 0.0), (math.nan, 0.0), (math.nan, math.nan))
)

SOFTMAX = Exercise(
    name="masked_softmax",
    title="fused masked softmax",
    parts=(
        Part(
            "rows that see everything",
            1,
            visible=[
                dict(lens=(33, 33), S=1, H=3, T=33),
                dict(lens=(40,), S=1, H=2, T=40, scale=300.0),
                dict(lens=(40,), S=1, H=2, T=40, level=-150.0),
                dict(lens=(50,), S=1, H=2, T=50, dtype=HALF),
                dict(lens=(50,), S=1, H=2, T=50, dtype=BF16),
                dict(lens=(9000,), S=1, H=1, T=9000),
                dict(lens=(300,), S=1, H=1, T=300, scale=0.0, level=-1e9),
                dict(lens=(1,), S=1, H=1, T=1),
            ],
            hidden=lambda r: (
                [
                    dict(lens=(n, n), S=1, H=r.randint(1, 4), T=n, scale=r.choice([1.0, 300.0]), level=level)
                    # exp of the level is 0 in float32; exp2(x · log2 e) is still within the tolerance
                    for n, level in ((1, 0.0), (r.randint(500, 1100), -150.0))
                ]
                + [dict(lens=(n,), S=1, H=1, T=n) for n in (r.randint(8193, 16384),)]
                + [dict(lens=(n,), S=1, H=2, T=n, scale=0.0, level=-r.uniform(1e8, 1e9)) for n in (r.randint(20, 90),)]
            ),
        ),
        Part(
            "sequences of several lengths",
            1,
            visible=[
                dict(lens=(17, 40, 1), S=1, H=2, T=40),
                dict(lens=(30, 9), S=1, H=1, T=40, poison=math.nan),
                dict(lens=[1 + n % 33 for n in range(281)], S=1, H=3, T=33),
            ],
            hidden=lambda r: [
                dict(lens=tuple(r.randint(1, 63) for _ in range(4)), S=1, H=3, T=63, poison=math.nan),
                dict(lens=(r.randint(1, 30), 129), S=1, H=2, T=129, dtype=HALF),
            ],
        ),
        Part(
            "several queries",
            1,
            visible=[
                dict(lens=(34, 130), S=3, H=2, T=130),
                dict(lens=(9,), S=9, H=2, T=9),
                dict(lens=(39, 50), S=37, H=13, T=50),
            ],
            hidden=lambda r: [
                dict(lens=(n, r.randint(5, n)), S=r.randint(2, 5), H=r.randint(1, 3), T=n)
                for n in (r.randint(33, 63), 64)
            ],
        ),
        Part(
            "rows that see nothing",
            1,
            visible=[dict(lens=(64, 0), S=1, H=2, T=64), dict(lens=(2, 9), S=4, H=1, T=64)],
            hidden=lambda r: [
                dict(lens=(0, r.randint(0, 3), 3), S=r.randint(2, 4), H=r.randint(1, 3), T=r.randint(33, 63)),
                dict(lens=(0,), S=1, H=2, T=r.randint(33, 63), poison=math.nan, dtype=HALF),
            ],
        ),
    ),
    inputs=_rows,
    oracle=_softmax,
    returns=("weights",),
    like=("scores",),
    mistakes=(
        Mistake("NaN rows", NOTHING_SEEN, _empty_rows(lambda T: math.nan)),
        Mistake(
            "uniform rows",
            "rows that see nothing get equal weights, expected zeros: all their scores are alike, 0 or a large "
            "negative number in place of -inf",
            _empty_rows(lambda T: 1 / T),
        ),
        Mistake(
            "wrong axis",
            "the weights of the heads add up to 1, expected those of the T positions of a row",
            _over_heads,
        ),
        Mistake("block counted", COUNTED, _block_counted),
        *NO_MAXIMUM,
        *FROM_0,
        Mistake(
            "mask added",
            "scores that are not seen may be NaN, and NaN + -inf is NaN: do not add the mask, choose with tl.where or "
            "by the mask of the load",
            _mask_added,
        ),
        LENGTHS_IGNORED,
        LENGTH_OF_0,
        Mistake("mask after the maximum", LATE_MASK, _late_mask),
        Mistake("mask after the maximum, sums of 0 replaced", LATE_MASK, _late_mask_zeros),
        Mistake(
            "order of the rows",
            "row n of a sequence is taken for query n % S: its rows are query by query, and heads within, n // H",
            _query_of_the_row,
        ),
        *MASKS,
        *SUMS,
    ),
    kernel=True,
    speed=Speed(
        points=3,
        case=dict(lens=(2500, 4096), S=1024, H=16, T=4096, dtype=BF16),
        small=dict(S=8, H=16),
        data=lambda g: {"scores": randn(g, 1 << 16, scale=2.0, dtype=BF16)},
        axes=dict(scores="b_h", seq_lens="b", weights="b_h"),
        floor=_softmax_floor,
        bars=((0.4, 0.5), (0.55, 1.0)),
        baseline=_eager_softmax,
        ratio=2.0,
    ),
)

# --- long_softmax -----------------------------------------------------------------------------------------------------


def _by_block(scores: Tensor, seq_lens: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return the scores with -inf where nothing is seen, and maximum and sum of exponentials of each block."""
    seen = _seen(scores.shape[-1], _limits(seq_lens, scores.shape[1]))
    hidden = scores.masked_fill(~seen, -math.inf)
    blocks = hidden.split(LONG_BLOCK, -1)
    maxima = [block.amax(-1, keepdim=True) for block in blocks]
    sums = [
        (block - m_i).exp().nan_to_num(0.0).sum(-1, keepdim=True) for block, m_i in zip(blocks, maxima, strict=True)
    ]
    return hidden, maxima, sums


def _each_block(scores: Tensor, seq_lens: Tensor) -> Tensor:
    hidden, _, _ = _by_block(scores, seq_lens)
    return torch.cat([block.softmax(-1) for block in hidden.split(LONG_BLOCK, -1)], -1).nan_to_num(0.0)


def _not_rescaled(scores: Tensor, seq_lens: Tensor) -> Tensor:
    hidden, maxima, _ = _by_block(scores, seq_lens)
    running = torch.stack(maxima).cummax(0).values
    blocks = zip(hidden.split(LONG_BLOCK, -1), running, strict=True)
    l_i = sum((block - m_i).exp().nan_to_num(0.0).sum(-1, keepdim=True) for block, m_i in blocks)
    return ((hidden - running[-1]).exp() / l_i).nan_to_num(0.0)


def _last_sum(scores: Tensor, seq_lens: Tensor) -> Tensor:
    hidden, maxima, sums = _by_block(scores, seq_lens)
    m_i = torch.stack(maxima).amax(0)
    l_i = sums[-1] * (maxima[-1] - m_i).exp()
    return ((hidden - m_i).exp() / l_i).nan_to_num(0.0)


def _own_maxima(scores: Tensor, seq_lens: Tensor, rescaled: bool = True, running: bool = False) -> Tensor:
    """What holds in the end is the last block's own maximum, in float32: exp overflows where that falls by over 88.

    A turn's sum is relative to that, too, or to the larger of it and of the block before, where that is `running`.
    """
    hidden, maxima, sums = _by_block(scores.float(), seq_lens)
    limits = _limits(seq_lens, scores.shape[1])[:, :, None, None]
    m_i, l_i = maxima[0], sums[0]
    for n, (own, total) in enumerate(zip(maxima[1:], sums[1:], strict=True), 1):
        visited = n * LONG_BLOCK < limits
        m_new = torch.maximum(m_i, own) if running else own
        alpha = (m_i - m_new).exp() if rescaled else 1.0
        l_i = torch.where(visited, l_i * alpha + total * (own - m_new).exp(), l_i)
        m_i = torch.where(visited, own, m_i)
    return ((hidden - m_i).exp() / l_i).where(limits > 0, 0.0)


def _zeros_counted(to: str, written: bool) -> Callable[..., Tensor]:
    """Return an oracle in which places that are not seen are scores of 0.

    In maximum and sum these are the places up to the last block of what is `seen`, or of all "T", or none. They have a
    weight of their own where they are `written`.
    """

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        T, limits = scores.shape[-1], _limits(seq_lens, scores.shape[1])
        seen = _seen(T, limits)
        ends = {"seen": limits.clamp(min=0), "T": torch.full_like(limits, T), "": torch.zeros_like(limits)}[to]
        zeros = (-(-ends // LONG_BLOCK) * LONG_BLOCK - limits.clamp(min=0)).clamp(min=0)[:, :, None, None]
        lse = torch.logaddexp(
            scores.masked_fill(~seen, -math.inf).logsumexp(-1, keepdim=True), zeros.to(scores.dtype).log()
        )
        lse = lse.masked_fill(lse == -math.inf, 0.0)
        return (scores.where(seen, 0.0) - lse).exp().where(seen | written, 0.0)

    return oracle


def _masked_by_T(written: bool) -> Callable[..., Tensor]:
    """Return an oracle whose blocks up to the last one that is seen count all of their positions.

    Those that are not seen have a weight where they are `written`.
    """

    def oracle(scores: Tensor, seq_lens: Tensor) -> Tensor:
        T, limits = scores.shape[-1], _limits(seq_lens, scores.shape[1])
        counted = _seen(T, (-(-limits.clamp(min=0) // LONG_BLOCK) * LONG_BLOCK).clamp(max=T))
        lse = scores.masked_fill(~counted, -math.inf).logsumexp(-1, keepdim=True)
        lse = lse.where((limits > 0)[:, :, None, None], 0.0)
        return (scores - lse).exp().where(_seen(T, limits) | written, 0.0)

    return oracle


def _without_tail(scores: Tensor, seq_lens: Tensor) -> Tensor:
    """Maximum and sum of whole blocks, weights of all that is seen."""
    limits = _limits(seq_lens, scores.shape[1])
    whole = scores.masked_fill(~_seen(scores.shape[-1], limits // LONG_BLOCK * LONG_BLOCK), -math.inf)
    seen = _seen(scores.shape[-1], limits)
    return (scores - whole.logsumexp(-1, keepdim=True)).exp().where(seen, 0.0)


LONG = Exercise(
    name="long_softmax",
    title="masked softmax over rows longer than a block",
    parts=(
        Part(
            "two blocks and a tail",
            1,
            visible=[dict(lens=(8200,), S=1, H=2, T=8200, slope=9.0), dict(lens=(100,), S=1, H=1, T=100)],
            hidden=lambda r: [
                # large scores in one block alone: how far the maxima of blocks lie apart is the third part's question
                dict(lens=(n,), S=1, H=1, T=n, slope=r.choice([-9.0, 9.0]), scale=scale)
                for n, scale in (
                    (r.randint(4097, 9000), 1.0),
                    (4096, 300.0),
                    (8192, 1.0),
                    (r.randint(12289, 14000), 1.0),
                )
            ],
        ),
        Part(
            "lengths and several queries",
            1,
            visible=[
                dict(lens=(8300, 4100), S=2, H=1, T=8300),
                dict(lens=(0, 5000), S=1, H=1, T=5000, dtype=HALF),
                dict(lens=(4100,), S=1, H=1, T=5000, dtype=BF16),
                dict(lens=(4100,), S=1, H=1, T=4100, level=-150.0),
                dict(lens=(4100,), S=1, H=1, T=4100, scale=0.0, level=-1e9),
                dict(lens=(5000, 40), S=2, H=2, T=5000, poison=math.nan),
                dict(lens=(13000,), S=1, H=1, T=13000),
                dict(lens=(70000,), S=1, H=1, T=70000),
                dict(lens=((1 << 20) + 9,), S=1, H=1, T=(1 << 20) + 9),  # no block is as long
                dict(lens=(5, 7), S=1, H=68, T=7),
            ],
            hidden=lambda r: [
                dict(lens=(r.randint(0, 2), r.randint(4096, 4100)), S=3, H=1, T=r.randint(4101, 9000), poison=math.nan),
                dict(lens=(r.randint(4097, 8000),), S=r.randint(1, 3), H=1, T=8001, dtype=HALF),
                dict(lens=(r.randint(4097, 8000),), S=2, H=3, T=8001),
                dict(lens=(1, 2), S=1, H=2, T=4097, level=-300.0),
                dict(lens=(1, 2), S=1, H=2, T=4097, level=300.0),
                dict(lens=(4097,), S=1, H=1, T=4097, scale=0.0, level=-1e9),  # alike: exp2(x · log2 e) is exact, too
            ],
        ),
        Part(
            "a maximum in the first block, or in the last",
            1,
            # the steep ones rise or fall by more from block to block than float32's exp can hold
            visible=[dict(lens=(9000,), S=1, H=1, T=9000, slope=slope) for slope in (20.0, -20.0, 200.0, -200.0)],
            hidden=lambda r: [
                dict(lens=(n,), S=1, H=1, T=n, slope=slope * r.uniform(*steep))
                for steep in ((15, 25), (160, 240))
                for n, slope in ((9001, 1), (12000, -1))
            ],
        ),
    ),
    inputs=_rows,
    oracle=_softmax,
    returns=("weights",),
    like=("scores",),
    mistakes=(
        Mistake(
            "each block alone",
            "the weights of each block of 4096 add up to 1: maximum and sum belong to the row",
            _each_block,
        ),
        Mistake(
            "not rescaled",
            "sums of earlier blocks are relative to a smaller maximum: multiply the sum so far by "
            "exp(old maximum − new maximum)",
            _not_rescaled,
        ),
        Mistake(
            "sum of the last block", "the row is divided by the sum of its last block: add the blocks up", _last_sum
        ),
        Mistake(
            "no running maximum",
            "exp overflows where a block's maximum is far below an earlier one: use tl.maximum(m_i, tl.max(x))",
            _own_maxima,
        ),
        Mistake(
            "each block's own maximum",
            "the sum adds up what is relative to each block's own maximum: keep a running one, "
            "tl.maximum(m_i, tl.max(x)), and multiply the sum so far by exp(m_i − m_new)",
            lambda **a: _own_maxima(**a, rescaled=False),
        ),
        Mistake(
            "maximum of the last block",
            "m_i is the last block's maximum, and no running one: end each turn with m_i = m_new",
            lambda **a: _own_maxima(**a, running=True),
        ),
        *(
            Mistake("block counted", COUNTED, _zeros_counted(to, written))
            for to in ("seen", "T", "")
            for written in (True, False)
            if to or written
        ),
        LENGTHS_IGNORED,
        LENGTH_OF_0,
        *MASKS,
        *SUMS,
        Mistake(
            "tail left out",
            "scores behind the last whole block are left out of the sum: the loop needs a turn for the tail, masked",
            _without_tail,
        ),
        *NO_MAXIMUM,
        *FROM_0,
        *(
            Mistake(
                "mask of T",
                "maximum and sum take in positions that are not seen: the mask of the loads is offs_n < seen",
                _masked_by_T(written),
            )
            for written in (True, False)
        ),
        Mistake("NaN rows", NOTHING_SEEN, _empty_rows(lambda T: math.nan)),
    ),
    kernel=True,
    launches=1,
    speed=Speed(
        points=2,
        case=dict(lens=(98304, 49152, 86016, 97000), S=1, H=128, T=98304, dtype=FLOAT),
        small=dict(lens=(32768, 9000), H=4, T=32768),
        data=lambda g: {"scores": randn(g, 1 << 16, scale=2.0)},
        axes=dict(scores="b_h", seq_lens="b", weights="b_h"),
        floor=_softmax_floor,
        bars=((0.35, 0.5), (0.5, 1.0)),
        baseline=_eager_softmax,
        ratio=1.3,
    ),
)

# --- predict_ablation -------------------------------------------------------------------------------------------------


def _pieces(_: torch.Generator, total: float, before: Sequence[float], after: Sequence[float]) -> Arguments:
    return {"total": total, "before": list(before), "after": list(after)}


def _ablation(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    faster = [total - b + a for b, a in zip(before, after, strict=True)]
    gains = [total / time - 1 for time in faster]
    return {
        "gains": gains,
        "sum_of_gains": math.fsum(gains),
        "combined_gain": total / (total - math.fsum(before) + math.fsum(after)) - 1,
    }


def _shares(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    shares = [(b - a) / total for b, a in zip(before, after, strict=True)]
    return {"gains": shares, "sum_of_gains": math.fsum(shares), "combined_gain": math.fsum(shares)}


def _own_gains(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    gains = [b / a - 1 for b, a in zip(before, after, strict=True)]
    return {**_ablation(total, before, after), "gains": gains, "sum_of_gains": math.fsum(gains)}


def _ratios(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    right = _ablation(total, before, after)
    ratios = [1 + gain for gain in right["gains"]]
    return {"gains": ratios, "sum_of_gains": math.fsum(ratios), "combined_gain": 1 + right["combined_gain"]}


def _per_cent(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    right = _ablation(total, before, after)
    return {
        "gains": [100 * gain for gain in right["gains"]],
        "sum_of_gains": 100 * right["sum_of_gains"],
        "combined_gain": 100 * right["combined_gain"],
    }


def _less_1_of_100(total: float, before: list[float], after: list[float]) -> dict[str, Any]:
    right = _ablation(total, before, after)
    gains = [100 * (1 + gain) - 1 for gain in right["gains"]]
    return {**right, "gains": gains, "sum_of_gains": math.fsum(gains)}


PREDICT_ABLATION = Exercise(
    name="predict_ablation",
    title="prediction: what each fusion gains, and all of them",
    parts=(
        Part("two pieces", 1, visible=[dict(total=100.0, before=[40.0, 20.0], after=[10.0, 8.0])]),
        Part(
            "any pieces",
            1,
            visible=[dict(total=37.0, before=[9.0, 5.0, 0.5], after=[2.0, 3.0, 0.25])],
            hidden=lambda r: [
                dict(total=float(r.randint(60, 90)), before=before, after=[r.uniform(0.1, 0.9) * b for b in before])
                for before in ([r.uniform(1, 14) for _ in range(n)] for n in (1, 3, 4))
            ],
        ),
    ),
    inputs=_pieces,
    oracle=_ablation,
    returns=("prediction",),
    tolerance=1e-5,  # numbers of a float32 tensor pass
    mistakes=(
        Mistake(
            "gains added",
            "combined_gain adds the gains: times saved add up, gains in throughput do not",
            altered(_ablation, lambda right: {"combined_gain": math.fsum(right["gains"])}),
        ),
        Mistake(
            "gains multiplied",
            "combined_gain multiplies the gains: that holds if each makes the whole layer faster by a factor; here "
            "each saves time of its own, and these times add up",
            altered(_ablation, lambda right: {"combined_gain": math.prod(1 + gain for gain in right["gains"]) - 1}),
        ),
        Mistake(
            "shares of the time",
            "these are shares of the time saved: the gain in throughput is old time over new time, less 1",
            _shares,
        ),
        Mistake(
            "the piece's own gain",
            "gains compare each piece with itself: expected the whole layer's throughput, with that piece exchanged",
            _own_gains,
        ),
        Mistake(
            "after forgotten",
            "the fused pieces take no time here: the layer still spends `after` on them",
            lambda total, before, after: _ablation(total, before, [0.0] * len(before)),
        ),
        Mistake("per cent", "these are per cent: expected fractions, 0.1 for 10 %", _per_cent),
        Mistake(
            "gains in per cent",
            "gains are in per cent: expected fractions, 0.1 for 10 %",
            lambda **given: _per_cent(**given) | {"combined_gain": _ablation(**given)["combined_gain"]},
        ),
        Mistake(
            "per cent of ratios",
            "1 is subtracted from 100 times the ratio: the gain is the ratio less 1, a fraction",
            _less_1_of_100,
        ),
        Mistake("ratios", "these are ratios of throughput: the gain is the ratio less 1", _ratios),
    ),
)

EXERCISES = (PREDICT_BYTES, MATMUL, SCORE, SOFTMAX, LONG, PREDICT_ABLATION)
