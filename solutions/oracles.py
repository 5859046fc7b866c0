"""Right answers of several lessons, and the mistakes that several lessons name.

The letters are those of `drawing`. An oracle takes the exercise's arguments by name, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.judging.exercise import Arguments, Mistake
from mla_ref.attention import latent_attention
from mla_ref.hardware.cost import Cost
from mla_ref.rope import apply_rope

from .drawing import EPS

Oracle = Callable[..., Any]
INF = math.inf

# --- wrong oracles from right ones ------------------------------------------------------------------------------------


def slips(oracle: Oracle) -> Callable[..., Mistake]:
    """Return what makes mistakes of an oracle: `mistake(name, message, slip, **wrong)`.

    `wrong` and what `slip(**arguments)` returns are put in place of arguments, or are keywords that the answer does
    without.
    """

    def mistake(name: str, message: str, slip: Callable[..., dict[str, Any]] | None = None, **wrong: Any) -> Mistake:
        return Mistake(name, message, lambda **a: oracle(**(a | (slip(**a) if slip else {}) | wrong)))

    return mistake


def altered(oracle: Oracle, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Oracle:
    """Return the oracle with other values for some entries of its dict: those of `change(right)`."""

    def wrong(**given: Any) -> dict[str, Any]:
        right = oracle(**given)
        return {**right, **change(right)}

    return wrong


def upside_down(right: dict[str, Any]) -> dict[str, float]:
    """Change the ratio into its reciprocal, for `altered`."""
    return {"ratio": 1 / right["ratio"]}


def after(oracle: Oracle, change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Oracle:
    """Return the oracle with its results changed, which are out and lse."""
    return lambda **given: change(*oracle(**given))


def base_2(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Change lse to base 2."""
    return out, lse / math.log(2)


def nan_where_empty(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Change out to NaN in the rows that see nothing."""
    return out.masked_fill((lse == -INF)[..., None], math.nan), lse


def all_nan_where_empty(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Change out and lse to NaN in the rows that see nothing."""
    return nan_where_empty(out, lse)[0], lse.masked_fill(lse == -INF, math.nan)


def lse_where_empty(value: float) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return the change of lse to a value in the rows that see nothing."""
    return lambda out, lse: (out, lse.masked_fill(lse == -INF, value))


# --- RMSNorm ----------------------------------------------------------------------------------------------------------


def norm_mistakes(norm: Oracle) -> dict[str, Mistake]:
    """Return mistakes of an RMSNorm by name. `norm(x, weight, eps, mean=True)` subtracts the mean."""

    def eps_outside(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        x = x[..., : len(weight)]
        return x / (x.square().mean(-1, keepdim=True).sqrt() + eps) * weight

    def times_root(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        x = x[..., : len(weight)]
        return x * (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def no_root(x: Tensor, weight: Tensor, eps: float = EPS) -> Tensor:
        x = x[..., : len(weight)]
        return x / (x.square().mean(-1, keepdim=True) + eps) * weight

    found = (
        Mistake(
            "mean subtracted",
            "the mean is subtracted: that is LayerNorm, RMSNorm does not centre",
            lambda **a: norm(**a, mean=True),
        ),
        Mistake(
            "no weight",
            "the result is not multiplied by weight",
            lambda x, weight, eps=EPS: norm(x, torch.ones_like(weight), eps),
        ),
        Mistake(
            "times the root",
            "the rows are multiplied by the root of the mean square, expected divided by it: rsqrt is 1 / sqrt",
            times_root,
        ),
        Mistake("no root", "the rows are divided by the mean square, expected its square root", no_root),
        Mistake(
            "1 + weight",
            "the result is multiplied by 1 + weight, as Gemma's is: here weight is the whole factor",
            lambda x, weight, eps=EPS: norm(x, 1 + weight, eps),
        ),
        Mistake(
            "no eps",
            "eps is missing under the root: expected √(mean square + eps)",
            lambda x, weight, **_: norm(x, weight, 0.0),
        ),
        Mistake("eps outside", "eps is added to the root, expected inside it: √(mean square + eps)", eps_outside),
        Mistake(
            "eps fixed",
            f"eps is {EPS:g} whatever the call says: take the argument",
            lambda x, weight, **_: norm(x, weight, EPS),
        ),
    )
    return {each.name: each for each in found}


def other_defaults(norm: Oracle) -> list[Mistake]:
    """Return mistakes of an RMSNorm that takes another eps where the call has none."""
    return [
        Mistake(
            "another default eps",
            f"without eps in the call it is {eps:g}, expected {EPS:g}: keep the default of the signature",
            lambda x, weight, eps=eps: norm(x, weight, eps),
        )
        for eps in (1e-5, 1e-8, 1e-12)
    ]


# --- RoPE: x [B, S, H, Dr], cos and sin [S, Dr/2] ---------------------------------------------------------------------


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbours as complex numbers, times e^{i angle}: equation 5 of the report that lesson 02 follows."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.complex(cos, sin)[:, None]).flatten(-2)


def halves_layout(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The right pairs, stored as two halves."""
    return rotated(x, cos, sin).unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def overwritten(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The second element of a pair made from the first one after its turn."""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = cos[:, None], sin[:, None]
    a = a * cos - b * sin
    return torch.stack((a, a * sin + b * cos), -1).flatten(-2)


def _pairs(first: Tensor, second: Tensor) -> Tensor:
    """Pairs of the one's first elements and the other's second ones."""
    return torch.stack((first[..., 0::2], second[..., 1::2]), -1).flatten(-2)


TURN = "expected (a·cos − b·sin, a·sin + b·cos)"
TURN_MISTAKES = (
    Mistake(
        "half rotation",
        "element i is paired with i + Dr/2: expected neighbours, (0, 1), (2, 3), …",
        lambda x, cos, sin: apply_rope(x, cos, sin, interleaved=False),
    ),
    Mistake(
        "halves taken for pairs",
        "element i is paired with i + Dr/2 and stored beside it: the pairs are neighbours in x too, (0, 1), …",
        lambda x, cos, sin: rotated(x.unflatten(-1, (2, -1)).mT.flatten(-2), cos, sin),
    ),
    Mistake("wrong sign", f"the pairs turn backwards: {TURN}", lambda x, cos, sin: rotated(x, cos, -sin)),
    Mistake("cos and sin exchanged", f"cos and sin are exchanged: {TURN}", lambda x, cos, sin: rotated(x, sin, cos)),
    Mistake(
        "sign of the first",
        f"the first of each pair is a·cos + b·sin: {TURN}",
        lambda x, cos, sin: _pairs(rotated(x, cos, -sin), rotated(x, cos, sin)),
    ),
    Mistake(
        "sign of the second",
        f"the second of each pair is a·sin − b·cos: {TURN}",
        lambda x, cos, sin: _pairs(rotated(x, cos, sin), -rotated(x, cos, -sin)),
    ),
    Mistake(
        "sine of the second",
        f"the second of each pair is b·cos − a·sin: {TURN}",
        lambda x, cos, sin: _pairs(rotated(x, cos, sin), rotated(x, cos, -sin)),
    ),
    Mistake(
        "halves layout",
        "the pairs are turned rightly but laid out as two halves: put each pair back where it was",
        halves_layout,
    ),
    Mistake(
        "new value used",
        "the second element is made from the first one's new value: both need the old a and b",
        overwritten,
    ),
    Mistake(
        "a and b exchanged",
        "a and b are exchanged: a is the first element of a pair, and b the second",
        lambda x, cos, sin: rotated(x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2), cos, sin),
    ),
    Mistake(
        "angle of token 0",
        "every token turns by the angle of token 0: row s of cos and sin belongs to token s",
        lambda x, cos, sin: rotated(x, cos[:1].expand_as(cos), sin[:1].expand_as(sin)),
    ),
)

# --- causal attention -------------------------------------------------------------------------------------------------


def causal(scores: Tensor, shift: int | None = None, inverted: bool = False, added: float | None = None) -> Tensor:
    """Return scores [B, S, H, T] with −inf where a query may not look; `inverted`, where it may.

    `added`, if any, is added there in place of it. Query s sees the positions up to s + `shift`, by default T − S: the
    queries are the last tokens.
    """
    S, T = scores.shape[1], scores.shape[-1]
    future = torch.arange(T) > torch.arange(S)[:, None] + (T - S if shift is None else shift)
    hidden = (future ^ inverted)[:, None, :]
    return scores.masked_fill(hidden, -INF) if added is None else scores + added * hidden


WEIGHTS = "the weights of one query and head sum to 1"


def mask_mistakes(attention: Oracle, query: str, key: str) -> tuple[Mistake, ...]:
    """Return mistakes of the causal mask. `query` and `key` name the arguments [B, S, …] and [B, T, …].

    `attention` takes a `shift` and whether the mask is `inverted`, as `causal` does.
    """

    def shifted(by: Callable[[int, int], int]) -> Oracle:
        return lambda **a: attention(**a, shift=by(a[query].shape[1], a[key].shape[1]))

    def masked_late(**a: Any) -> tuple[Tensor, None]:
        (out, lse), (_, of_all) = attention(**a), attention(**a, shift=a[key].shape[1])
        return out * (lse - of_all).exp()[..., None], None  # any lse

    return (
        Mistake("no mask", "no causal mask: a query sees tokens that come after it", shifted(lambda S, T: T)),
        Mistake(
            "mask top-left",
            "the causal mask is aligned top-left: query s of S stands at position T−S+s, not at s",
            shifted(lambda S, T: 0),
        ),
        Mistake(
            "own token hidden",
            "the causal mask hides a query's own token: position T−S+s itself is seen",
            shifted(lambda S, T: T - S - 1),
        ),
        Mistake(
            "next token seen",
            "the causal mask is one place too far right: position T−S+s is the last that query s sees",
            shifted(lambda S, T: T - S + 1),
        ),
        Mistake(
            "mask inverted",
            "the causal mask is inverted: it hides what a query may see, and the last one sees nothing",
            lambda **a: attention(**a, inverted=True),
        ),
        Mistake(
            "lse before the mask",
            "lse counts the scores of hidden tokens: take it after the mask",
            lambda **a: (attention(**a)[0], attention(**a, shift=a[key].shape[1])[1]),
        ),
        Mistake(
            "mask after the softmax",
            "the mask comes after the softmax: hidden tokens have taken their share of the weights, mask the scores",
            masked_late,
        ),
    )


def axis_mistakes(attention: Oracle) -> tuple[Mistake, ...]:
    """Return mistakes of the softmax. `attention` takes its `axis` in scores [B, S, H, T]."""
    return tuple(
        Mistake(
            f"softmax over the {along}",
            f"the softmax runs over the {along}, expected over the keys: {WEIGHTS}",
            lambda axis=axis, **a: (attention(**a, axis=axis)[0], None),
        )
        for axis, along in ((2, "heads"), (1, "queries"))
    )


def weighed(scores: Tensor, axis: int = -1, slip: str = "") -> tuple[Tensor, Tensor]:
    """Return the softmax of scores along `axis`, and their log-sum-exp; `slip` makes one of `sum_mistakes`."""
    maximum, lse = scores.amax(-1), scores.logsumexp(-1)
    powers = {"powers": scores.exp(), "shifted powers": (scores - maximum[..., None]).exp()}
    sums = {"maximum": maximum, "no maximum": lse - maximum, "no logarithm": lse.float().exp()}
    sums["weights"] = torch.zeros_like(lse)
    return powers.get(slip, scores.softmax(axis)), sums.get(slip, lse)


def sum_mistakes(attention: Oracle) -> tuple[Mistake, ...]:
    """Return mistakes of the sum of the weights. `attention` takes a `slip`, as `weighed` does."""
    undivided = "out is the sum of exp(score)·v: divide it by the sum of exp(score), as torch.softmax does"
    return (
        *(
            Mistake("not normalised", undivided, lambda slip=slip, **a: (attention(**a, slip=slip)[0], None))  # any lse
            for slip in ("powers", "shifted powers")
        ),
        *(
            Mistake(name, message, lambda slip=slip, **a: attention(**a, slip=slip))
            for name, message, slip in (
                (
                    "lse is the maximum",
                    "lse is the largest score: add the logarithm of the sum of exp(score − maximum)",
                    "maximum",
                ),
                (
                    "maximum not added back",
                    "lse lacks the row's maximum: after log(sum(exp(score − maximum))), add the maximum back",
                    "no maximum",
                ),
                (
                    "no logarithm",
                    "lse is the sum of exp(score) itself: its natural logarithm is missing, use torch.logsumexp",
                    "no logarithm",
                ),
                (
                    "lse of the weights",
                    "lse is taken of the weights, of which the sum is 1 and its logarithm 0: take it of the scores",
                    "weights",
                ),
            )
        ),
    )


def constants(*squares: int) -> dict[str, Callable[[Arguments], float]]:
    """Return scales that are one number in every call: those of a layer that somebody has in mind."""
    return {f"1/√{each} in every call": lambda a, each=each: each**-0.5 for each in squares}


MLA_SCALES: dict[str, Callable[[Arguments], float]] = {  # which are none of MLA's, by its expanded operands
    "1/√Dv": lambda a: a["w_uv"].shape[1] ** -0.5,
    "1/√Dr": lambda a: a["q_rope"].shape[-1] ** -0.5,
    "1/√R": lambda a: a["c_kv"].shape[-1] ** -0.5,
    "1/√T": lambda a: a["c_kv"].shape[1] ** -0.5,
    "1/√(H·(Dn+Dr))": lambda a: (a["q_nope"].shape[2] * (a["q_nope"].shape[-1] + a["q_rope"].shape[-1])) ** -0.5,
    "1/(√Dn + √Dr)": lambda a: 1 / (a["q_nope"].shape[-1] ** 0.5 + a["q_rope"].shape[-1] ** 0.5),
    **constants(192, 128, 576),
}


def other_scales(oracle: Oracle, right: str, scales: Mapping[str, Callable[[Arguments], float]]) -> Iterator[Mistake]:
    """Return mistakes of the softmax scale, by how each is written; `oracle` takes it as `scale`. `right` is right."""

    def scaled_by(scale: Callable[[Arguments], float]) -> Oracle:
        return lambda **given: oracle(**{**given, "scale": scale(given)})

    for told, scale in scales.items():
        yield Mistake("another scale", f"the scores are scaled by {told}, expected {right}", scaled_by(scale))


CROSSED = "query and key hold their two parts in different orders: join them in one order in both"
HIDDEN = -10000.0  # what is taken for −∞
FINITE = (
    "where all scores are far below 0 none of them counts: masked scores are −inf, and so is the first maximum, no "
    "finite number"
)
ZERO_IS_SEEN = "hidden scores are set to 0, and exp(0) is 1, a weight like any other: set them to −inf"


def hidden_mistakes(filled: Oracle, added: Oracle) -> tuple[Mistake, ...]:
    """Return the mistakes of a finite number for −∞: hidden scores set to it, or it added to them."""
    set_to = "hidden scores are set to a finite number, and the scores that are seen may be lower"
    lowered = "a finite number is added to hidden scores, which may stay above those that are seen"
    return tuple(
        Mistake(
            "future not hidden", f"{message}: set the hidden ones to −inf", after(oracle, lambda out, lse: (out, None))
        )
        for message, oracle in ((set_to, filled), (lowered, added))
    )


def base_2_mistake(attention: Oracle) -> Mistake:
    """Return the mistake of an lse to base 2."""
    return Mistake("lse base 2", "lse is a logarithm to base 2, expected the natural one", after(attention, base_2))


# --- a decode step over a latent cache --------------------------------------------------------------------------------
# q_latent [B, H, R], q_rope [B, H, Dr], c_kv [B, T, R], k_rope [B, T, Dr], seq_lens [B] -> out [B, H, R], lse [B, H]


def up_to_length(x: Tensor, seq_lens: Tensor) -> Tensor:
    """Return a cache [B, T, width] with 0 behind the lengths, where it may hold NaN."""
    return x.masked_fill((torch.arange(x.shape[1]) >= seq_lens[:, None])[..., None], 0)


def decoded(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, scale: float) -> Any:
    """The answer: the reference in float64, for one query token."""
    c_kv, k_rope = (up_to_length(x, seq_lens) for x in (c_kv, k_rope))
    out, lse = latent_attention(
        q_latent[:, None], q_rope[:, None], c_kv, k_rope, scale=scale, seq_lens=seq_lens, causal=False
    )
    return out[:, 0], lse[:, 0]


def decoded_with(change: Callable[[Arguments], Arguments]) -> Oracle:
    """Return an oracle that takes other arguments, those of `change(given)`."""
    return lambda **given: decoded(**{**given, **change(given)})


def decode_scores(q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, scale: float) -> Tensor:
    """The scores, [B, H, T]."""
    return (q_latent @ c_kv.mT + q_rope @ k_rope.mT) * scale


def blockwise(block: int, keep_acc: bool = True, keep_sum: bool = True, tail: bool = True) -> Oracle:
    """Return online softmax in blocks of tokens.

    Without `keep_acc` the accumulator is not rescaled. Without `keep_sum` the sum is not. Without `tail` the zeros
    behind the length count.
    """

    def oracle(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
        out, lse = torch.zeros_like(q_latent), torch.full_like(q_latent[..., 0], -INF)
        for b, length in enumerate(seq_lens.tolist()):
            padding = (0, 0, 0, -length % block)
            c, k = (torch.nn.functional.pad(x[b, :length], padding) for x in (c_kv, k_rope))
            qk = decode_scores(q_latent[b], q_rope[b], c, k, scale)
            if not length:
                continue
            if tail:
                qk[:, length:] = -INF
            m_i = torch.full_like(lse[b], -INF)
            l_i, acc = torch.zeros_like(m_i), torch.zeros_like(out[b])
            for s, v in zip(qk.split(block, -1), c.split(block), strict=True):
                m_new = torch.maximum(m_i, s.amax(-1))
                alpha, p = (m_i - m_new).exp(), (s - m_new[:, None]).exp()
                l_i = l_i * (alpha if keep_sum else 1) + p.sum(-1)
                acc = acc * (alpha[:, None] if keep_acc else 1) + p @ v
                m_i = m_new
            out[b], lse[b] = acc / l_i[:, None], m_i + l_i.log()
        return out, lse

    return oracle


BLOCKS = (16, 32, 64, 128)  # tokens


def in_blocks(
    name: str, message: str, oracle: Callable[[int], Oracle], blocks: Sequence[int] = BLOCKS
) -> Iterator[Mistake]:
    """Return a mistake once for each number of tokens in a block, as what it gives may depend on it."""
    return (Mistake(name, message, oracle(block)) for block in blocks)


BASE_2 = "lse is a base-2 logarithm: expected the natural one, divide tl.log2 by log2(e) or take tl.log"


def _with_sum(**given: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return out, lse, and the sum of the weights, which are relative to the largest score that counts."""
    out, lse = decoded(**given)
    scores = decode_scores(*(given[name] for name in ("q_latent", "q_rope", "c_kv", "k_rope", "scale")))
    beyond = torch.arange(scores.shape[-1]) >= given["seq_lens"][:, None, None]
    m_i = scores.masked_fill(beyond, -INF).amax(-1)
    return out, lse, (lse - m_i.masked_fill(m_i == -INF, 0)).exp()


def _not_normalised(**given: Any) -> tuple[Tensor, Tensor]:
    out, lse, total = _with_sum(**given)
    return out * total[..., None], lse


def _lse_without_maximum(**given: Any) -> tuple[Tensor, Tensor]:
    out, _, total = _with_sum(**given)
    return out, total.log()


def _lse_of_two_bases(**given: Any) -> tuple[Tensor, Tensor]:
    out, lse, total = _with_sum(**given)
    total = total.where(total > 0, 1.0)
    return out, lse - total.log() + total.log2()


def _lse_is_maximum(**given: Any) -> tuple[Tensor, Tensor]:
    out, lse, total = _with_sum(**given)
    return out, lse - total.where(total > 0, 1.0).log()


def _powers_of_2(base_2: bool) -> Callable[..., Any]:
    """Return an oracle whose weights are powers of 2, and the logarithm of their sum to base 2 or a natural one."""

    def wrong(**given: Any) -> tuple[Tensor, Tensor]:
        out, lse, total = _with_sum(**given | {"scale": given["scale"] * math.log(2)})
        total = total.where(total > 0, 1.0)
        return out, (lse - total.log()) / math.log(2) + (total.log2() if base_2 else total.log())

    return wrong


ROPE_MISSING = Mistake(
    "RoPE part missing", "the scores lack q_rope · k_rope", decoded_with(lambda a: {"q_rope": 0 * a["q_rope"]})
)
SCALE_OF_THE_LATENT = Mistake(
    "scale of the latent",
    "the softmax scale is 1/√(R+Dr), 1/√576 in DeepSeek-V3: take the argument, which is 1/√192 there",
    decoded_with(lambda a: {"scale": (a["q_latent"].shape[-1] + a["q_rope"].shape[-1]) ** -0.5}),
)
SCALE_MISSING = Mistake(
    "scale missing", "the scores are not multiplied by scale", decoded_with(lambda a: {"scale": 1.0})
)
NOT_NORMALISED = Mistake("not normalised", "out is not divided by the sum of the weights", _not_normalised)
LSE_WITHOUT_MAXIMUM = Mistake(
    "lse without the maximum",
    "lse is the logarithm of the sum alone: add the maximum that was subtracted",
    _lse_without_maximum,
)
SUM_TO_BASE_2 = Mistake(
    "sum to base 2",
    "lse adds a base-2 logarithm of the sum to a maximum that is natural: take tl.log",
    _lse_of_two_bases,
)
LSE_IS_MAXIMUM = Mistake(
    "lse is the maximum",
    "lse is the largest score: add the logarithm of the sum of the weights",
    _lse_is_maximum,
)
POWERS_OF_2 = tuple(
    Mistake(
        "powers of 2",
        "the weights are powers of 2: take tl.exp, or multiply the scores by log2(e) for tl.exp2",
        _powers_of_2(base_2),
    )
    for base_2 in (True, False)
)
LENGTH_OF_0 = Mistake(
    "length of sequence 0",
    "every sequence has the length of sequence 0: load seq_lens_ptr + b",
    decoded_with(lambda a: {"seq_lens": a["seq_lens"][:1].expand_as(a["seq_lens"])}),
)
DECODED_IN_BASE_2 = Mistake("lse base 2", BASE_2, after(decoded, base_2))
NOT_RESCALED = (
    *in_blocks(
        "accumulator not rescaled",
        "acc is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks weigh too much",
        lambda block: blockwise(block, keep_acc=False),
    ),
    *in_blocks(
        "sum not rescaled",
        "l_i is not multiplied by exp(m_i − m_new) when the maximum grows: earlier blocks count too much",
        lambda block: blockwise(block, keep_sum=False),
    ),
)

OF_A_STEP = (  # the mistakes of every decode step, however its tokens are read
    ROPE_MISSING,
    Mistake(
        "latent product missing",
        "the scores lack q_latent · c_kv: the second tl.dot adds to what the first gave, as its third argument",
        decoded_with(lambda a: {"q_latent": 0 * a["q_latent"]}),
    ),
    SCALE_MISSING,
    Mistake(
        "scale twice",
        "the scores are multiplied by scale twice: once, where both products are added up",
        decoded_with(lambda a: {"scale": a["scale"] ** 2}),
    ),
    SCALE_OF_THE_LATENT,
    Mistake(
        "scale of the RoPE product alone",
        "only q_rope · k_rope is multiplied by scale: it belongs to the sum of both products",
        decoded_with(lambda a: {"q_latent": a["q_latent"] / a["scale"]}),
    ),
    Mistake(
        "scale of the latent product alone",
        "only q_latent · c_kv is multiplied by scale: it belongs to the sum of both products",
        decoded_with(lambda a: {"q_rope": a["q_rope"] / a["scale"]}),
    ),
    Mistake(
        "scale of the latent product twice",
        "q_latent · c_kv is multiplied by scale twice: once, where both products are added up",
        decoded_with(lambda a: {"q_latent": a["q_latent"] * a["scale"]}),
    ),
    NOT_NORMALISED,
    DECODED_IN_BASE_2,
    LSE_WITHOUT_MAXIMUM,
    SUM_TO_BASE_2,
    LSE_IS_MAXIMUM,
    *POWERS_OF_2,
    *NOT_RESCALED,
)


def maximum_not_kept(block: int) -> Oracle:
    """Return online softmax in blocks of tokens whose maximum stays −inf from block to block."""

    def oracle(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
        last = [slice(max(n - 1, 0) // block * block, n) for n in seq_lens.tolist()]
        out = torch.zeros_like(q_latent)
        for b, place in enumerate(last):
            one, count = slice(b, b + 1), torch.tensor([place.stop - place.start])
            if place.stop:
                out[b] = decoded(q_latent[one], q_rope[one], c_kv[one, place], k_rope[one, place], count, scale)[0][0]
        return out, torch.full_like(q_latent[..., 0], -INF)

    return oracle


def empty_mistakes(name: str, oracle: Oracle, outputs: str = "out 0 and lse −inf") -> tuple[Mistake, ...]:
    """Return the mistakes of a NaN for what is empty, in out alone or in lse too, and of an lse of 0.

    ``name`` begins the message.
    """
    said = f"{name} gives NaN, by 0/0 or by −inf − (−inf): expected {outputs}"
    from_0 = f"{name} has an lse of 0, expected −inf: let the maximum begin at −inf, not at 0"
    changes = {nan_where_empty: said, all_nan_where_empty: said, lse_where_empty(0): from_0}
    return tuple(Mistake("empty", message, after(oracle, change)) for change, message in changes.items())


def finite_mask(oracle: Oracle) -> Mistake:
    """Return the mistake of −10000, or more, in place of −∞: rows of lower scores are 0."""

    def wrong(**given: Any) -> tuple[Tensor, None]:
        out, lse = oracle(**given)
        return out.masked_fill((lse < HIDDEN)[..., None], 0), None  # any lse

    return Mistake("finite mask", FINITE, wrong)


def softmax_from(least: float, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax and lse by powers of float32, relative to a maximum that begins at `least`."""
    top = scores.amax(-1).clamp(min=least)
    powers = (scores - top[..., None]).float().exp()
    total = powers.sum(-1)
    return (powers / total[..., None]).double(), top + total.log()


def eager_decode(
    q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, seq_lens: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The `eager_decode` of lesson 06: the scores in memory, a pass for each operation."""
    scores = (q_latent @ c_kv.mT + q_rope @ k_rope.mT).float() * scale
    beyond = torch.arange(c_kv.shape[1], device=scores.device) >= seq_lens.to(scores.device)[:, None, None]
    scores = scores.masked_fill(beyond, -INF)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().to(c_kv.dtype) @ c_kv, lse


def decode_floor(
    B: int, H: int, T: int, dtype: torch.dtype, R: int, Dr: int, S: int = 1, out_bytes: float | None = None
) -> Cost:
    """Cache and queries are read once, out and lse are written. Out has the dtype of the query, or `out_bytes`."""
    rows = B * S * H
    out_bytes = rows * (R * dtype.itemsize + 4) if out_bytes is None else out_bytes
    read = (B * T + rows) * (R + Dr) * dtype.itemsize
    return Cost(bytes=read + out_bytes, flops=2 * rows * T * (2 * R + Dr))
