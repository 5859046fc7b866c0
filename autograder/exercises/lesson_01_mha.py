"""Lesson 01: multi-head attention, its cache, and what the cache costs."""

from __future__ import annotations

import math
from random import Random

import torch

from autograder.exercise import Arguments, Exercise, Mistake, Part, randn


def _qkv(g: torch.Generator, B: int, S: int, T: int, H: int, D: int, scale: float = 1.0) -> Arguments:
    return {
        "q": randn(g, B, S, H, D, scale=scale),
        "k": randn(g, B, T, H, D, scale=scale),
        "v": randn(g, B, T, H, D),
    }


def _attention(q, k, v, *, scale=None, causal=True, shift=None, log=math.e, stable=True):
    """Attention in float64, with the knobs that the named mistakes turn."""
    S, T = q.shape[1], k.shape[1]
    scores = torch.einsum("bshd,bthd->bsht", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        shift = T - S if shift is None else shift
        future = torch.arange(T) > torch.arange(S)[:, None] + shift
        scores = scores.masked_fill(future[:, None, :], -math.inf)
    if not stable:
        scores = scores.float()
        weights = scores.exp()
        total = weights.sum(-1)
        return torch.einsum("bsht,bthd->bshd", weights / total[..., None], v.float()), total.log()
    lse = torch.logsumexp(scores, dim=-1)
    return torch.einsum("bsht,bthd->bshd", (scores - lse[..., None]).exp(), v), lse / math.log(log)


ATTENTION = Exercise(
    name="attention",
    title="causal attention and its log-sum-exp",
    parts=(
        Part(
            "one new token",
            2,
            visible=[dict(B=1, S=1, T=5, H=2, D=8), dict(B=2, S=1, T=17, H=3, D=16)],
            hidden=lambda r: [_shape(r, S=1), dict(B=1, S=1, T=1, H=1, D=4)],
        ),
        Part(
            "several new tokens",
            2,
            visible=[dict(B=1, S=4, T=4, H=2, D=8), dict(B=2, S=3, T=10, H=2, D=8)],
            hidden=lambda r: [_shape(r, S=r.randint(2, 7)), _shape(r, S=r.randint(2, 7))],
        ),
        Part(
            "large scores",
            1,
            visible=[dict(B=1, S=2, T=9, H=2, D=8, scale=15.0)],
            hidden=lambda r: [_shape(r, S=r.randint(1, 4)) | dict(scale=r.uniform(20, 40))],
        ),
    ),
    inputs=_qkv,
    oracle=_attention,
    returns=("out", "lse"),
    tolerance=2e-5,
    mistakes=(
        Mistake("no scale", "the scores are not scaled: expected q·k/√D", lambda **a: _attention(**a, scale=1.0)),
        Mistake(
            "scale 1/D",
            "the scores are scaled by 1/D, expected 1/√D",
            lambda **a: _attention(**a, scale=1 / a["q"].shape[-1]),
        ),
        Mistake(
            "no mask",
            "no causal mask: a query sees tokens that come after it",
            lambda **a: _attention(**a, causal=False),
        ),
        Mistake(
            "mask top-left",
            "the causal mask is aligned top-left: query s of S stands at position T−S+s, not at s",
            lambda **a: _attention(**a, shift=0),
        ),
        Mistake(
            "lse base 2", "lse is a logarithm to base 2, expected the natural one", lambda **a: _attention(**a, log=2.0)
        ),
        Mistake(
            "overflow",
            "exp overflows: subtract each row's maximum before the exponent",
            lambda **a: _attention(**a, stable=False),
        ),
    ),
    forbidden=("scaled_dot_product",),
)


def _shape(r: Random, S: int) -> dict[str, int]:
    return dict(B=r.randint(1, 3), S=S, T=S + r.randint(0, 40), H=r.randint(1, 5), D=r.choice([4, 8, 24]))


EXERCISES = (ATTENTION,)
