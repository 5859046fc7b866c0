"""Lesson 14: the last factor of two. A product and an attention in Gluon that keep Hopper's tensor cores busy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.isolation.sandbox import Limits
from autograder.judging.exercise import Arguments, Exercise, Fact, Part, Speed, randn
from mla_ref.hardware.cost import Cost

from ..drawing import BF16
from ..oracles import in_blocks, slips

Compiled = Sequence[Mapping[str, Any]]

# --- what the machine code shows --------------------------------------------------------------------------------------


def _of_loops(said: Callable[[Mapping[str, Any]], str]) -> Callable[[Compiled], str]:
    """Return what is missing in the first loop with products of which something is; "" if nothing is."""
    return lambda compiled: next(filter(None, (said(loop) for each in compiled for loop in each["product_loops"])), "")


def _no_loop(compiled: Compiled) -> str:
    """The products are started by a loop, of wgmma's instructions."""
    if any(each["product_loops"] for each in compiled):
        return ""
    return "no loop of the machine code starts products by wgmma: go over the blocks in a loop, with warpgroup_mma"


def _not_carried(loop: Mapping[str, Any]) -> str:
    """A product is under way when the next one is waited for, and the tiles that are fetched come meanwhile."""
    if not loop["carried"]:
        return (
            "a turn of the loop waits for its own product, and the tensor cores for the next turn: wait until one "
            "product is left under way, and fetch into the place of the one before it"
        )
    under_way, copies = loop["copies"]
    return "" if under_way == copies else "tiles are fetched where no product is under way: start the product first"


def _not_two(loop: Mapping[str, Any]) -> str:
    """Products of two blocks are under way at once."""
    if loop["most"] >= 2:
        return ""
    return (
        "a loop starts a product and waits for it before it starts the next: start the scores of a block and the "
        "product of the weights before with their values, then wait until one product is left"
    )


def _spills(loop: Mapping[str, Any]) -> str:
    """What the loop works with stays in registers."""
    count = loop["spills"][1]
    return f"{count} instructions of the loop move registers to memory and back: it holds too many values" * (count > 0)


def _not_shared(compiled: Compiled) -> str:
    """Two warpgroups compute, and neither of them copies."""
    loops = [loop for each in compiled for loop in each["product_loops"]]
    if len(loops) < 2:
        return "one loop alone has products: two partitions of 4 warps compute, each with a half of the rows"
    if any(loop["copies"][1] for loop in loops):
        return "a loop with products copies, too: leave the copies to the loader"
    return ""


def _not_split(loop: Mapping[str, Any]) -> str:
    """Who computes has most of the registers."""
    if loop["registers"] >= ENOUGH:
        return ""
    has = f"{loop['registers']} registers a thread" if loop["registers"] else "registers that nobody set"
    return (
        f"a loop with products has {has}: the last list of warp_specialize has those of the second partition, which "
        f"computes, and of the third, the loader"
    )


ENOUGH = 200  # registers: scores and acc of 64 rows take 128, the weights 32
IN_REGISTERS = "what the loop holds is in registers"
ON_TENSOR_CORES = "the products are the tensor cores'"

# --- piped_product ----------------------------------------------------------------------------------------------------


def _factors(g: torch.Generator | None, M: int, N: int, K: int) -> Arguments:
    return {"a": randn(g, M, K, dtype=BF16), "b": randn(g, N, K, dtype=BF16)}


def _product(a: Tensor, b: Tensor, *, skip: int = 0, most: int | None = None) -> Tensor:
    """Return a·bᵀ, of the columns between two."""
    here = slice(skip, most)
    return a[:, here] @ b[:, here].T


_product_slip = slips(_product)
BLOCK_K = 64


def _whole_blocks(a: Tensor, b: Tensor) -> dict[str, int]:
    return {"most": a.shape[1] // BLOCK_K * BLOCK_K}


def _all_but_last(a: Tensor, b: Tensor) -> dict[str, int]:
    return {"most": -(-a.shape[1] // BLOCK_K) * BLOCK_K - BLOCK_K}


PRODUCT = Exercise(
    name="piped_product",
    title="a product with the next one under way",
    parts=(
        Part("three blocks", 1, visible=[dict(M=64, N=256, K=192)], hidden=lambda r: [dict(M=128, N=256, K=192)]),
        Part(
            "round the ring",
            1,
            visible=[dict(M=64, N=256, K=768), dict(M=128, N=512, K=320), dict(M=64, N=256, K=64)],
            hidden=lambda r: [dict(M=64, N=256, K=64 * n) for n in (1, 2, 4, r.randint(5, 14))],
        ),
        Part(
            "tails",
            1,
            visible=[dict(M=1, N=8, K=8), dict(M=72, N=264, K=200), dict(M=140, N=24, K=8)],
            hidden=lambda r: [
                dict(M=r.randint(1, 63), N=8 * r.randint(1, 31), K=8 * r.randint(1, 7)),
                dict(M=r.randint(65, 200), N=8 * r.randint(33, 60), K=8 * r.randint(9, 80)),
                dict(M=65, N=8 * r.randint(1, 31), K=520),  # one beyond whole tiles, and eight blocks
                dict(M=r.randint(1, 8), N=2056, K=8),
            ],
        ),
    ),
    inputs=_factors,
    oracle=_product,
    returns=("c",),
    like=("a",),
    mistakes=(
        _product_slip("tail of K left out", "the columns behind the last whole block of K are left out", _whole_blocks),
        _product_slip(
            "a block too few",
            "the last block of K is left out: the loop has as many turns as there are blocks, the tail among them",
            _all_but_last,
        ),
        _product_slip("first block left out", "the first block of K is left out", skip=BLOCK_K),
        _product_slip(
            "only the last block",
            "the result is that of the last block of K alone: warpgroup_mma adds to the acc that it is given",
            lambda a, b: {"skip": (a.shape[1] - 1) // BLOCK_K * BLOCK_K},
        ),
    ),
    kernel=True,
    launches=1,
    limits=Limits(seconds=30.0),  # programs of several warpgroups run one after the other
    speed=Speed(
        points=3,
        case=dict(M=4096, N=4096, K=4096),
        small=dict(M=256, N=512, K=640),
        floor=lambda M, N, K: Cost(bytes=2 * (M * K + N * K + M * N), flops=2 * M * N * K),
        bars=((0.4, 0.5), (0.57, 1.0)),
        baseline=lambda a, b: a @ b.T,
        facts=(
            Fact(ON_TENSOR_CORES, 0.25, _no_loop),
            Fact("a product is under way from one turn to the next", 0.5, _of_loops(_not_carried)),
            Fact(IN_REGISTERS, 0.25, _of_loops(_spills)),
        ),
    ),
)  # fmt: skip

# --- two_warpgroups --------------------------------------------------------------------------------------------------

D = 128


def _heads(
    g: torch.Generator | None,
    H: int,
    S: int,
    T: int,
    size: float = 1.0,
    rising: float = 0.0,
    level: float = 0.0,
    scale: float = D**-0.5,
) -> Arguments:
    """Draw queries, keys and values of H heads.

    With `rising` the scores of later tokens are higher, of all queries; `level` raises all of them, or lowers them.
    """
    q, k = randn(g, H, S, D, scale=size), randn(g, H, T, D)
    if g is not None and (rising or level):
        q[..., 0] = size
        k[..., 0] += level + rising * torch.arange(T) / T
    return {"q": q.to(BF16), "k": k.to(BF16), "v": randn(g, H, T, D, dtype=BF16), "scale": scale}


def _attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, base: float = math.e, divide: bool = True, shift: int = 0
) -> Tensor:
    """Return softmax(q·kᵀ·scale)·v. With `shift` the weights are those of tokens so many places before."""
    scores = q @ k.mT * (scale * math.log(base))
    weights = scores.softmax(-1) if divide else (scores - scores.amax(-1, keepdim=True)).exp()
    return weights @ (v.roll(shift, -2) if shift else v)


def _blocks(block: int, acc: bool = True, total: bool = True, most: int | None = None) -> Callable[..., Tensor]:
    """Return online softmax in blocks: with an accumulator, or a sum, that is not rescaled; without the last values."""

    def oracle(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        m_i = torch.full_like(q[..., :1], -math.inf)
        l_i, out = torch.zeros_like(m_i), torch.zeros_like(q)
        starts = range(0, k.shape[1], block)
        for start in starts:
            here = slice(start, start + block)
            scores = q @ k[:, here].mT * scale
            m_new = torch.maximum(m_i, scores.amax(-1, keepdim=True))
            alpha, p = (m_i - m_new).exp(), (scores - m_new).exp()
            l_i = l_i * (alpha if total else 1) + p.sum(-1, keepdim=True)
            out = out * (alpha if acc else 1)
            if most is None or start < starts[most]:
                out = out + p @ v[:, here]
            m_i = m_new
        return out / l_i

    return oracle


_attention_slip = slips(_attention)
BLOCKS = (64, 128)

ATTENTION = Exercise(
    name="two_warpgroups",
    title="attention by two warpgroups and a loader",
    parts=(
        Part("one block", 1, visible=[dict(H=1, S=128, T=128)], hidden=lambda r: [dict(H=2, S=128, T=128)]),
        Part(
            "several blocks",
            1,
            visible=[dict(H=1, S=128, T=384, scale=0.2), dict(H=2, S=256, T=384), dict(H=1, S=384, T=640)],
            hidden=lambda r: [
                dict(H=1, S=128, T=128 * r.randint(4, 6), scale=0.05),
                dict(H=r.randint(2, 3), S=128 * (n := r.randint(1, 2)), T=128 * (n + 1)),
            ],
        ),
        Part(
            "large scores, low ones, and maxima that grow",
            1,
            visible=[
                dict(H=1, S=128, T=384, size=16.0),
                dict(H=1, S=128, T=384, size=4.0, rising=12.0),
                dict(H=1, S=128, T=256, size=16.0, level=-200.0),
            ],
            hidden=lambda r: [
                dict(H=1, S=128, T=512, size=r.uniform(16, 64)),
                dict(H=1, S=128, T=512, size=r.uniform(3, 6), rising=r.choice([-16.0, 16.0])),
                dict(H=1, S=128, T=256, size=16.0, level=-r.uniform(300, 20000)),
            ],
        ),
    ),
    inputs=_heads,
    oracle=_attention,
    like=("q",),
    mistakes=(
        _attention_slip(
            "not divided", "the result is not divided by the sum of the weights, l_i", divide=False
        ),
        _attention_slip(
            "scale of base e", "the scores are powers of 2 of scale·(q·k): the scale for exp2 is scale times log2(e)",
            base=2.0,
        ),
        _attention_slip(
            "scale twice to base 2",
            "the scale is multiplied by log2(e) twice: two_warpgroups has done it once, before the launch",
            base=math.exp(math.log2(math.e)),
        ),
        *in_blocks(
            "accumulator not rescaled",
            "acc is not multiplied by alpha when the maximum grows: earlier blocks weigh too much",
            lambda block: _blocks(block, acc=False), BLOCKS,
        ),
        *in_blocks(
            "sum not rescaled",
            "l_i is not multiplied by alpha when the maximum grows: earlier blocks count too much",
            lambda block: _blocks(block, total=False), BLOCKS,
        ),
        *in_blocks(
            "last values left out",
            "the values of the last block are left out",
            lambda block: _blocks(block, most=-1), BLOCKS,
        ),
    ),
    kernel=True,
    launches=1,
    limits=Limits(seconds=30.0),  # programs of several warpgroups run one after the other
    speed=Speed(
        points=3,
        case=dict(H=16, S=4096, T=4096),
        small=dict(H=2, S=256, T=512),
        floor=lambda H, S, T: Cost(bytes=2 * 2 * H * (S + T) * D, flops=4 * H * S * T * D),
        bars=((0.45, 0.5), (0.59, 1.0)),
        baseline=lambda q, k, v, scale: ((q @ k.mT).float() * scale).softmax(-1).to(v.dtype) @ v,
        facts=(
            Fact(ON_TENSOR_CORES, 0.125, _no_loop),
            Fact("two warpgroups compute, and neither copies", 0.125, _not_shared),
            Fact("who computes has most of the registers", 0.25, _of_loops(_not_split)),
            Fact(IN_REGISTERS, 0.125, _of_loops(_spills)),
            Fact("two products are under way at once", 0.375, _of_loops(_not_two)),
        ),
    ),
)  # fmt: skip

EXERCISES = (PRODUCT, ATTENTION)
