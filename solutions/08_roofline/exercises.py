"""Lesson 08: naive against absorb by the roofline. Costs with a shared prefix, the break-even, which form where."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import torch

from autograder.judging.exercise import Arguments, Exercise, Mistake, Part
from mla_ref.config import MLAConfig
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES
from mla_ref.roofline import attention_cost, break_even_batch

from ..drawing import V3, as_given, config, widths
from ..oracles import altered, slips

KIMI = V3 | dict(H=64)
FORMS = ("naive", "absorb")
H100, ASCEND = DEVICES["h100"], DEVICES["ascend_910b"]
H100_SHEET = dict(rate=H100.rate(), bandwidth=H100.bandwidth())


def _layer(r: Random) -> dict[str, int]:
    return dict(H=r.randint(3, 96)) | widths(r)


def _machine(r: Random) -> dict[str, float]:
    """Ceilings whose ridge, 60 to 400 FLOP per byte, is that of an accelerator."""
    bandwidth = r.uniform(0.3e12, 8e12)
    return dict(rate=bandwidth * r.uniform(60, 400), bandwidth=bandwidth)


# prefix_costs


def _cost(form: str, *, B: int, S: int, T: int, L: int, itemsize: float = 2, **sizes: int) -> Cost:
    return attention_cost(form, config(**sizes), batch=B, q_len=S, context=T, shared_prefix=L, dtype_bytes=itemsize)


def _prefix(**a: int) -> dict[str, float]:
    costs = {form: _cost(form, itemsize=1, **a) for form in FORMS}
    macs = {f"{form}_macs": cost.flops / 2 for form, cost in costs.items()}
    return macs | {f"{form}_words": cost.bytes for form, cost in costs.items()}


def _prefix_wrong(
    B, S, T, L, H, Dn, Dr, Dv, R, *, macs=None, words=None, pairs=None, tokens=None, factor=(1, 1)
) -> dict[str, float]:
    """Table 1 from counts of its own. The keywords make the named mistakes.

    `macs` and `words` are pairs, of the naive form and of the absorbed one: MACs of a query token and a context token,
    and words of a context token. `pairs` counts the query and context tokens that meet. `tokens` counts the context
    tokens that are read. `factor` multiplies MACs and words.
    """
    macs = macs or (H * (Dn + Dr + Dv), H * (2 * R + Dr))
    words = words or (H * (Dn + Dr + Dv), R + Dr)
    pairs = B * S * T if pairs is None else pairs
    tokens = L + B * (T - L) if tokens is None else tokens
    return {
        **{f"{form}_macs": factor[0] * pairs * each for form, each in zip(FORMS, macs, strict=True)},
        **{f"{form}_words": factor[1] * tokens * each for form, each in zip(FORMS, words, strict=True)},
    }


_prefix_slip = slips(_prefix_wrong)


PREFIX_COSTS = Exercise(
    name="prefix_costs",
    title="MACs and words of both forms, with a shared prefix",
    parts=(
        Part(
            "no shared prefix",
            1,
            visible=[dict(B=3, S=1, T=100, L=0, **V3), dict(B=1, S=1, T=1, L=0, H=3, Dn=16, Dr=8, Dv=12, R=32)],
            hidden=lambda r: [dict(B=r.randint(2, 9), S=1, T=r.randint(2, 999), L=0, **_layer(r)) for _ in range(2)],
        ),
        Part(
            "a shared prefix",
            2,
            visible=[
                dict(B=5, S=1, T=70, L=40, **V3),
                dict(B=7, S=1, T=64, L=64, **KIMI),
                dict(B=1, S=1, T=70, L=40, **V3),
                dict(B=99, S=1, T=999, L=40, **V3),  # all but absorb's words pass 2³¹
            ],
            hidden=lambda r: [
                *(dict(B=r.randint(2, 99), S=1, T=r.randint(500, 999), L=r.randint(2, 499), **_layer(r)) for _ in "ab"),
                dict(B=r.randint(2, 99), S=1, T=(T := r.randint(2, 99)), L=T, **_layer(r)),
            ],
        ),
        Part(
            "several new tokens",
            1,
            visible=[dict(B=5, S=3, T=70, L=40, **V3), dict(B=99, S=9, T=999, L=40, **V3)],
            hidden=lambda r: [
                dict(B=r.randint(2, 99), S=r.randint(2, 9), T=r.randint(500, 999), L=r.randint(10, 499), **_layer(r))
                for _ in range(2)
            ],
        ),
    ),
    inputs=as_given,
    oracle=_prefix,
    returns=("costs",),
    tolerance=1e-6,
    mistakes=(
        _prefix_slip(
            "FLOPs for MACs",
            "these are FLOPs: one multiply-accumulate is one MAC and two FLOPs, and MACs are asked for",
            factor=(2, 1),
        ),
        _prefix_slip(
            "bytes for words",
            "these are bytes of a 16-bit cache: words are asked for, so leave the 2 out",
            factor=(1, 2),
        ),
        _prefix_slip(
            "prefix read per sequence",
            "the words of the shared prefix are counted for each of the B sequences: it is stored once, and read once",
            lambda B, T, **_: dict(tokens=B * T),
        ),
        _prefix_slip(
            "one context for the batch",
            "the words count one context for the whole batch: only L tokens are shared, each sequence has T − L of its "
            "own",
            lambda T, **_: dict(tokens=T),
        ),
        _prefix_slip(
            "prefix computed once",
            "the MACs over the shared prefix lack the batch: what is read once is still multiplied with every query",
            lambda B, S, T, L, **_: dict(pairs=S * (L + B * (T - L))),
        ),
        _prefix_slip(
            "prefix on top of T",
            "each sequence is given T tokens of its own beside the prefix: T includes the prefix, so T − L are its own",
            lambda B, S, T, L, **_: dict(pairs=B * S * (L + T), tokens=L + B * T),
        ),
        _prefix_slip(
            "q_len forgotten",
            "the MACs lack S: each of a sequence's S query tokens meets the whole context",
            lambda B, T, **_: dict(pairs=B * T),
        ),
        _prefix_slip(
            "words per query",
            "the words are counted again for each of the S query tokens: a cached token is read once, for all of them",
            lambda B, S, T, L, **_: dict(tokens=S * (L + B * (T - L))),
        ),
        _prefix_slip(
            "key of 576 only",
            "absorb's MACs count the key alone, R+Dr wide: the weighted sum multiplies with a value, R wide, as well",
            lambda H, Dn, Dr, Dv, R, **_: dict(macs=(H * (Dn + Dr + Dv), H * (R + Dr))),
        ),
        _prefix_slip(
            "weighted sum left out",
            "only the scores are counted, in both forms: the weighted sum takes as many MACs as a value is wide",
            lambda H, Dn, Dr, R, **_: dict(macs=(H * (Dn + Dr), H * (R + Dr))),
        ),
        _prefix_slip(
            "RoPE part left out",
            "the RoPE part is missing: Dr counts once in the width of a query and a key, and is cached too",
            lambda H, Dn, Dv, R, **_: dict(macs=(H * (Dn + Dv), H * 2 * R), words=(H * (Dn + Dv), R)),
        ),
        _prefix_slip(
            "one query head",
            "absorb's MACs are counted for one head: one key serves all heads, but each of the H query heads "
            "multiplies with it",
            lambda H, Dn, Dr, Dv, R, **_: dict(macs=(H * (Dn + Dr + Dv), 2 * R + Dr)),
        ),
        _prefix_slip(
            "rotated key once",
            "naive's words count the rotated key once for all heads: stored expanded, each head has a copy",
            lambda H, Dn, Dr, Dv, R, **_: dict(words=(H * (Dn + Dv) + Dr, R + Dr)),
        ),
        _prefix_slip(
            "latent read per head",
            "absorb's words are counted once per head: all H heads read the same R+Dr words of a token",
            lambda H, Dn, Dr, Dv, R, **_: dict(words=(H * (Dn + Dr + Dv), H * (R + Dr))),
        ),
        _prefix_slip(
            "latent cached twice",
            "absorb's words count the latent twice, as key and as value: it is stored once, and the value is the first "
            "R words of the key",
            lambda H, Dn, Dr, Dv, R, **_: dict(words=(H * (Dn + Dr + Dv), 2 * R + Dr)),
        ),
        _prefix_slip(
            "new tokens on top of T",
            "the S new tokens are added to T once more: T includes them",
            lambda B, S, T, L, **_: dict(pairs=B * S * (T + S), tokens=L + B * (T + S - L)),
        ),
        _prefix_slip(
            "new tokens left out",
            "the S new tokens are taken off T, which includes them: the step reads them, and multiplies with them",
            lambda B, S, T, L, **_: dict(pairs=B * S * (T - S), tokens=L + B * (T - S - L)),
        ),
        _prefix_slip(
            "what the mask leaves",
            "the MACs leave out what a new token does not see of the others: counted are all S · T pairs",
            lambda B, S, T, **_: dict(pairs=B * (S * T - S * (S - 1) / 2)),
        ),
        _prefix_slip(
            "own tokens alone",
            "only a sequence's own T − L tokens are counted: the L tokens of the prefix belong to its context, too",
            lambda B, S, T, L, **_: dict(pairs=B * S * (T - L), tokens=B * (T - L)),
        ),
        _prefix_slip(
            "words of new tokens on top of T",
            "the words count the S new tokens once more: T includes them",
            lambda B, S, T, L, **_: dict(tokens=L + B * (T + S - L)),
        ),
        _prefix_slip(
            "words of new tokens left out",
            "the words lack the S new tokens: T includes them, and the step reads them as well",
            lambda B, S, T, L, **_: dict(tokens=L + B * (T - S - L)),
        ),
        _prefix_slip(
            "words of own tokens alone",
            "the words are those of the sequences' own T − L tokens alone: the prefix is read, too, once",
            lambda B, T, L, **_: dict(tokens=B * (T - L)),
        ),
        _prefix_slip(
            "the rest shared",
            "the words count L for each sequence and T − L once: it is the L tokens of the prefix that are shared",
            lambda B, T, L, **_: dict(tokens=B * L + T - L),
        ),
        _prefix_slip(
            "naive reads latents",
            "naive's words are those of latents: the naive form has keys and values stored expanded, for every head",
            lambda R, Dr, **_: dict(words=(R + Dr, R + Dr)),
        ),
        _prefix_slip(
            "words of the other form",
            "the words of the two forms are exchanged: naive reads keys and values of every head, absorb latents",
            lambda H, Dn, Dr, Dv, R, **_: dict(words=(R + Dr, H * (Dn + Dr + Dv))),
        ),
        _prefix_slip(
            "absorb weighs values",
            "absorb's weighted sum is counted Dv wide: it is one of latents, R wide, and W_UV comes after it",
            lambda H, Dn, Dr, Dv, R, **_: dict(macs=(H * (Dn + Dr + Dv), H * (R + Dr + Dv))),
        ),
        _prefix_slip(
            "value of a key's width",
            "naive's value is counted as wide as a key, Dn + Dr: it is Dv wide, and nothing of it is rotated",
            lambda H, Dn, Dr, R, **_: dict(
                macs=(H * 2 * (Dn + Dr), H * (2 * R + Dr)), words=(H * 2 * (Dn + Dr), R + Dr)
            ),
        ),
        _prefix_slip(
            "absorb's value rotated",
            "absorb's value is counted R + Dr wide: it is the latent alone, R wide",
            lambda H, Dn, Dr, Dv, R, **_: dict(macs=(H * (Dn + Dr + Dv), H * 2 * (R + Dr))),
        ),
        _prefix_slip(
            "rotated key not read",
            "the words lack the rotated key, which is cached as well: Dr for each of naive's heads, Dr for absorb",
            lambda H, Dn, Dv, R, **_: dict(words=(H * (Dn + Dv), R)),
        ),
    ),
)


# break_even and predict_crossovers


def _break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    """Where the two rooflines over a shared token cross, by bisection of their times. Eq. 1 is not used."""

    def late(batch):
        naive, absorb = (_pipes(form, batch, S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth) for form in FORMS)
        return naive[0] < absorb[1]  # memory of the one, arithmetic of the other

    low, high = 0.0, 1.0
    while not late(high):
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if late(middle) else (middle, high)
    return high


def _pipes(form, batch, S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    cost = _cost(form, B=1, S=S, T=1, L=1, itemsize=itemsize, H=H, Dn=Dn, Dr=Dr, Dv=Dv, R=R)
    return cost.bytes / bandwidth, batch * cost.flops / rate


def _ratio(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth, *, words=None, macs=None, flops=2):
    """Bytes over FLOPs per head, times the ridge. The keywords make the named mistakes."""
    words, macs = words or Dn + Dr + Dv, macs or 2 * R + Dr
    return words * itemsize / (flops * macs * S) * rate / bandwidth


_ratio_slip = slips(_ratio)


def _asked(r: Random, **fixed: Any) -> dict[str, Any]:
    return dict(S=1) | _layer(r) | dict(itemsize=2) | _machine(r) | fixed


BREAK_EVEN = Exercise(
    name="break_even",
    needs=("prefix_costs",),
    title="the batch from which naive wins, on any device",
    parts=(
        Part(
            "16-bit words, one new token",
            1,
            visible=[dict(S=1, **V3, itemsize=2, rate=ASCEND.rate(), bandwidth=ASCEND.bandwidth())],
            hidden=lambda r: [_asked(r), _asked(r), dict(S=1, **V3, itemsize=2, **_machine(r))],
        ),
        Part(
            "several new tokens",
            1,
            visible=[dict(S=3, **V3, itemsize=2, **H100_SHEET)],
            hidden=lambda r: [_asked(r, S=r.randint(2, 9)), _asked(r, S=r.randint(2, 9))],
        ),
        Part(
            "other words",
            1,
            visible=[
                dict(S=1, H=5, Dn=48, Dr=16, Dv=40, R=128, itemsize=4, rate=50e9, bandwidth=10e9),
                dict(S=3, **KIMI, itemsize=1, rate=H100.rate("float8_e4m3fn"), bandwidth=H100.bandwidth()),
            ],
            hidden=lambda r: [_asked(r, itemsize=1, S=r.choice((3, 4))), _asked(r, itemsize=4)],
        ),
    ),
    inputs=as_given,
    oracle=_break_even,
    returns=("the batch",),
    tolerance=1e-6,
    mistakes=(
        _ratio_slip(
            "MACs for FLOPs",
            "twice as many: the rate is in FLOP/s, and absorb's arithmetic is counted in MACs; one MAC is two FLOPs",
            flops=1,
        ),
        _ratio_slip(
            "words for bytes",
            "the bandwidth is in bytes/s, and naive's prefix is counted in words: multiply by itemsize",
            itemsize=1,
        ),
        _ratio_slip(
            "Eq. 1 as printed",
            "right for words of two bytes only: in the printed equation the two bytes of a word cancel against the two "
            "FLOPs of a MAC; here a word has itemsize bytes",
            itemsize=1,
            flops=1,
        ),
        _ratio_slip(
            "q_len forgotten",
            "this is the batch times S: S query tokens per sequence multiply with what is read once",
            S=1,
        ),
        _ratio_slip(
            "key of 576 only",
            "absorb's arithmetic counts the key alone, R+Dr: the value, R wide, is multiplied as well",
            lambda R, Dr, **_: dict(macs=R + Dr),
        ),
        _ratio_slip(
            "RoPE part left out",
            "the RoPE part is missing: Dr counts in naive's keys and in absorb's",
            lambda Dn, Dv, R, **_: dict(words=Dn + Dv, macs=2 * R),
        ),
        _ratio_slip(
            "heads on one side",
            "H times too many: each of the H query heads multiplies, in absorb too, so H cancels",
            lambda H, Dn, Dr, Dv, **_: dict(words=H * (Dn + Dr + Dv)),
        ),
        _ratio_slip(
            "the other two pipes",
            "this equates absorb's width with naive's arithmetic: naive reads Dn+Dr+Dv words a head, absorb computes "
            "2R+Dr MACs",
            lambda Dn, Dr, Dv, R, **_: dict(words=2 * R + Dr, macs=Dn + Dr + Dv),
        ),
        _ratio_slip(
            "naive's own ridge",
            "this is where naive itself stops being bound by memory; asked is where its reading takes as long as "
            "absorb's arithmetic",
            lambda Dn, Dr, Dv, **_: dict(macs=Dn + Dr + Dv),
        ),
        _ratio_slip(
            "absorb's own ridge",
            "this is where absorb itself becomes bound by compute; asked is where naive's reading takes as long as "
            "absorb's arithmetic",
            lambda H, R, Dr, **_: dict(words=(R + Dr) / H),
        ),
        _ratio_slip(
            "q_len on the other side",
            "S is on the wrong side: it multiplies absorb's arithmetic, so that a batch S times smaller is enough",
            lambda S, **_: dict(flops=2 / S**2),
        ),
        _ratio_slip(
            "absorb without RoPE",
            "absorb's arithmetic lacks the RoPE part: its key is R+Dr wide, and its value R",
            lambda R, **_: dict(macs=2 * R),
        ),
        _ratio_slip(
            "absorb's value rotated",
            "absorb's arithmetic counts Dr twice: its key is R+Dr wide, and its value R",
            lambda R, Dr, **_: dict(macs=2 * (R + Dr)),
        ),
        _ratio_slip(
            "naive without RoPE",
            "naive's words lack the RoPE part: its key is Dn+Dr wide, and its value Dv",
            lambda Dn, Dv, **_: dict(words=Dn + Dv),
        ),
        _ratio_slip(
            "naive's value rotated",
            "naive's words count Dr twice: its key is Dn+Dr wide, and its value Dv",
            lambda Dn, Dr, Dv, **_: dict(words=Dn + Dv + 2 * Dr),
        ),
        _ratio_slip(
            "reading of both",
            "absorb's reading is taken off naive's: asked is where naive's reading alone takes as long as absorb's "
            "arithmetic",
            lambda H, Dn, Dr, Dv, R, **_: dict(words=Dn + Dr + Dv - (R + Dr) / H),
        ),
        _ratio_slip(
            "arithmetic of both",
            "naive's arithmetic is taken off absorb's: asked is where naive's reading takes as long as absorb's "
            "arithmetic alone",
            lambda Dn, Dv, R, **_: dict(macs=2 * R - Dn - Dv),
        ),
        Mistake(
            "upside down",
            "this is one over the batch: naive's reading time over absorb's arithmetic for one sequence",
            lambda **a: 1 / _ratio(**a),
        ),
    ),
)

SPARSE, TEBI = 2.0, 2**40 / 1e12
DEVICE_KEYS = ("ascend", "h100_data_sheet", "h100_measured")


def _crossovers() -> dict[str, float]:
    v3 = MLAConfig.preset("deepseek_v3")
    asked = ((ASCEND, False), (H100, False), (H100, True))
    return {
        key: break_even_batch(v3, device, measured=measured)
        for key, (device, measured) in zip(DEVICE_KEYS, asked, strict=True)
    }


def _crossover_slip(name: str, message: str, change: Callable[[Mapping[str, float]], Mapping[str, float]]) -> Mistake:
    return Mistake(name, message, altered(_crossovers, change))


PREDICT_CROSSOVERS = Exercise(
    name="predict_crossovers",
    title="break-even on the paper's NPU and on an H100, twice",
    parts=(Part("three devices", 3, visible=[{}]),),
    inputs=as_given,
    oracle=_crossovers,
    returns=("prediction",),
    tolerance=0.02,
    mistakes=(
        _crossover_slip(
            "sparse rate",
            "h100_data_sheet takes 1979 TFLOP/s, which is the rate with structured sparsity: a dense product reaches "
            "half of it at best",
            lambda right: {"h100_data_sheet": SPARSE * right["h100_data_sheet"]},
        ),
        _crossover_slip(
            "sheet and measured swapped",
            "the two figures of the H100 are swapped: the measured rate falls short of its data sheet by more than the "
            "bandwidth does, so the measured break-even is the smaller one",
            lambda right: dict(h100_data_sheet=right["h100_measured"], h100_measured=right["h100_data_sheet"]),
        ),
        _crossover_slip(
            "data sheet twice",
            "h100_measured is the data sheet's figure: take the measured rate and the measured bandwidth",
            lambda right: {"h100_measured": right["h100_data_sheet"]},
        ),
        _crossover_slip(
            "measured rate, bandwidth of the data sheet",
            "h100_measured mixes the measured rate with the data sheet's bandwidth: take both from one row",
            lambda right: {"h100_measured": H100.rate(measured=True) / H100.bandwidth() * 320 / 1088},
        ),
        _crossover_slip(
            "measured bandwidth, rate of the data sheet",
            "h100_measured mixes the measured bandwidth with the data sheet's rate: take both from one row",
            lambda right: {"h100_measured": H100.rate() / H100.bandwidth(measured=True) * 320 / 1088},
        ),
        _crossover_slip(
            "copy counted one way",
            "h100_measured halves the bandwidth: the copy's 3019 GB/s count bytes read plus bytes written, and both "
            "pass through the memory's pins",
            lambda right: {"h100_measured": 2 * right["h100_measured"]},
        ),
        _crossover_slip(
            "TB as 2^40",
            "the bandwidths are multiplied by 2^40: a TB/s is 10^12 bytes/s, in data sheets and in this course",
            lambda right: {key: value / TEBI for key, value in right.items()},
        ),
        _crossover_slip(
            "ridges",
            "these are the devices' ridges, rate over bandwidth: a batch is asked for, that of break_even",
            lambda right: {key: value * 1088 / 320 for key, value in right.items()},
        ),
        replace(
            _crossover_slip(
                "MACs for FLOPs",
                "all three are twice as large: the rates are FLOP/s, and one MAC is two FLOPs",
                lambda right: {key: 2 * value for key, value in right.items()},
            ),
            whole=True,
        ),
    ),
    needs=("break_even",),
)


# step_time


def _step(
    form, B, S, T, L, sizes, itemsize, rate, bandwidth, *, macs=1, join=max, bounds=("memory", "compute"), tokens=None
):
    """Time, bound and throughput of a step. The keywords make the named mistakes."""
    cost = _cost(form, B=B, S=S, T=T, L=L, itemsize=itemsize, **sizes)
    memory, compute = cost.bytes / bandwidth, macs * cost.flops / rate
    seconds = join(memory, compute)
    return {
        "seconds": seconds,
        "bound": bounds[0] if memory >= compute else bounds[1],
        "tokens_per_s": (tokens or B * S) / seconds,
    }


_step_slip = slips(_step)


def _drawn_step(r: Random, form: str, bound: str) -> dict[str, Any]:
    """A step of that form, far enough from the ridge to be bound so, whatever else is drawn."""
    while True:
        T = r.randint(500, 9999)
        case = dict(form=form, B=r.randint(2, 300), S=r.randint(1, 5), T=T, L=r.choice([0, r.randint(1, T), T]))
        case |= dict(sizes=_layer(r), itemsize=r.choice([1, 2, 4]), **_machine(r))
        cost = _cost(**{k: v for k, v in case.items() if k not in ("sizes", "rate", "bandwidth")}, **case["sizes"])
        excess = cost.flops / case["rate"] / (cost.bytes / case["bandwidth"])
        if excess > 1.2 if bound == "compute" else excess < 0.8:
            return case


ON_H100 = dict(itemsize=2, **H100_SHEET)
SMALL = dict(H=20, Dn=48, Dr=32, Dv=64, R=256)

STEP_TIME = Exercise(
    name="step_time",
    title="time and bound of a decode step, by the roofline",
    parts=(
        Part(
            "bound by memory",
            1,
            visible=[
                dict(form="naive", B=3, S=2, T=5000, L=4096, sizes=V3, **ON_H100),
                dict(form="absorb", B=3, S=1, T=5000, L=0, sizes=KIMI, **ON_H100),
                dict(form="naive", B=3, S=1, T=5000, L=0, sizes=KIMI, **{**ON_H100, "itemsize": 1}),
                dict(form="naive", B=3, S=2, T=4096, L=4096, sizes=V3, **ON_H100),
            ],
            hidden=lambda r: [_drawn_step(r, form, "memory") for form in FORMS],
        ),
        Part(
            "bound by compute",
            2,
            visible=[
                dict(form="absorb", B=64, S=2, T=5000, L=4096, sizes=V3, **ON_H100),
                dict(form="naive", B=500, S=1, T=4096, L=4096, sizes=KIMI, **ON_H100),
                dict(form="absorb", B=8, S=1, T=900, L=0, sizes=V3, itemsize=2, rate=65e12, bandwidth=1e12),
                dict(form="absorb", B=40, S=3, T=2000, L=1500, sizes=SMALL, itemsize=1, rate=5e13, bandwidth=1e12),
                dict(form="absorb", B=1, S=1, T=5000, L=0, sizes=V3, **{**ON_H100, "itemsize": 1}),
            ],
            hidden=lambda r: (
                [_drawn_step(r, form, "compute") for form in FORMS]
                + [dict(form="absorb", B=8, S=1, T=900, L=0, sizes=V3, itemsize=2, rate=50e12, bandwidth=1e12)]
            ),
        ),
    ),
    inputs=as_given,
    oracle=_step,
    returns=("the step",),
    tolerance=1e-6,
    mistakes=(
        _step_slip(
            "MACs for FLOPs",
            "the arithmetic takes half as long as it should: prefix_costs counts MACs, the rate is in FLOP/s, and one "
            "MAC is two FLOPs",
            macs=0.5,
        ),
        _step_slip(
            "itemsize in the arithmetic",
            "itemsize stands in the time of the arithmetic: one MAC is two FLOPs, however many bytes a word has",
            lambda itemsize, **_: dict(macs=itemsize / 2),
        ),
        _step_slip(
            "words for bytes", "the bytes are words: multiply by itemsize, the bandwidth is in bytes/s", itemsize=1
        ),
        _step_slip(
            "words of 2 bytes", "a word is counted at 2 bytes whatever the call says: it has itemsize", itemsize=2
        ),
        _step_slip(
            "times added",
            "seconds adds the two times: a roofline lets reading and computing overlap, so the longer one counts",
            join=lambda memory, compute: memory + compute,
        ),
        *(
            _step_slip(
                "form ignored",
                'the step takes the same form whatever `form` says: costs has f"{form}_macs" and f"{form}_words"',
                form=form,
            )
            for form in FORMS
        ),
        _step_slip("the shorter time", "seconds is the shorter of the two times: the longer one decides", join=min),
        _step_slip(
            "bound swapped",
            "the bound is the wrong way round: it is what takes longer",
            bounds=("compute", "memory"),
        ),
        _step_slip(
            "one token per sequence",
            "tokens_per_s lacks S: a step serves S query tokens in each of B sequences",
            lambda B, **_: dict(tokens=B),
        ),
        _step_slip(
            "batch left out",
            "tokens_per_s lacks the batch: a step serves S query tokens in each of B sequences",
            lambda S, **_: dict(tokens=S),
        ),
        _step_slip(
            "context tokens",
            "tokens_per_s counts context tokens: query tokens are asked for, S in each of B sequences",
            lambda B, T, **_: dict(tokens=B * T),
        ),
        _step_slip(
            "steps for tokens",
            "tokens_per_s counts steps: a step serves S query tokens in each of B sequences",
            tokens=1,
        ),
        Mistake(
            "seconds per token",
            "tokens_per_s is upside down: these are the seconds that a token takes",
            altered(_step, lambda right: {"tokens_per_s": 1 / right["tokens_per_s"]}),
        ),
        _step_slip(
            "prefix not shared", "the step reads the prefix for each sequence: L tokens of it are shared by all B", L=0
        ),
        _step_slip(
            "prefix on top",
            "the step has T + L tokens of context: T includes the L of the prefix",
            lambda T, L, **_: dict(T=T + L),
        ),
        _step_slip(
            "FLOPs doubled",
            "the arithmetic takes twice as long as it should: one MAC is two FLOPs, not four",
            macs=2,
        ),
    ),
    needs=("prefix_costs",),
)


# choose_forms


def _parts(
    B, S, T, L, sizes, itemsize, rate, bandwidth, *, own=None, common=0, whole=None, prefix=None
) -> dict[str, dict[str, float]]:
    """Seconds of each part in each form; none for a part without tokens."""

    def seconds(form, tokens, shared):
        case = dict(B=B, S=S, T=tokens, L=shared, sizes=sizes, itemsize=itemsize, rate=rate, bandwidth=bandwidth)
        return _step(form, **case)["seconds"] if tokens else 0.0

    own = T - L if own is None else own
    return {
        "shared": {form: seconds(form, whole or L, L if prefix is None else prefix) for form in FORMS},
        "own": {form: seconds(form, own, common) for form in FORMS},
    }


def _choice(B, S, T, L, sizes, itemsize, rate, bandwidth, *, pick=None, join=sum, **wrong) -> dict[str, Any]:
    """The forms and the time. `pick(part, times)` chooses instead of the faster form."""
    parts = _parts(B, S, T, L, sizes, itemsize, rate, bandwidth, **wrong)
    pick = pick or (lambda part, times: "naive" if times["naive"] < times["absorb"] else "absorb")
    forms = {part: pick(part, times) for part, times in parts.items()}
    return {**forms, "seconds": join([parts[part][form] for part, form in forms.items()])}


_choice_slip = slips(_choice)


def _by_batch(B, S, T, L, sizes, itemsize, rate, bandwidth):
    """The shared part by B against the break-even of one query token."""
    batch = _ratio(S=1, **sizes, itemsize=itemsize, rate=rate, bandwidth=bandwidth)
    return dict(pick=lambda part, times: "naive" if part == "shared" and times["naive"] and batch < B else "absorb")


def _by_break_even(B, S, T, L, sizes, itemsize, rate, bandwidth):
    """Each part by the sequences that share it against the break-even, which holds for many heads."""
    batch = _ratio(S=S, **sizes, itemsize=itemsize, rate=rate, bandwidth=bandwidth)
    return dict(
        pick=lambda part, times: "naive" if times["naive"] and batch < (B if part == "shared" else 1) else "absorb"
    )


def _as_shared(**a):
    """Both parts in the form that suits the shared one."""
    return dict(pick=lambda part, _, form=_choice(**a)["shared"]: form)


def _whole(**a) -> dict[str, Any]:
    """One form, and its time, for the whole step."""
    times = {form: _step(form, **a)["seconds"] for form in FORMS}
    form = "naive" if times["naive"] < times["absorb"] else "absorb"
    return {"shared": form, "own": form, "seconds": times[form]}


def _drawn_choice(r: Random, wanted: tuple[str, str], **fixed: Any) -> dict[str, Any]:
    """A case whose parts ask for these forms, neither a close call."""
    while True:
        S = r.randint(300, 900) if wanted[1] == "naive" else r.randint(1, 6)
        T = r.randint(2000, 9999)
        case = dict(B=r.randint(1, 400), S=S, T=T, L=r.randint(100, T - 1000)) | fixed
        case |= dict(sizes=_layer(r), itemsize=r.choice([1, 2]), **_machine(r))
        clear = all(
            not 0.8 < each["naive"] / each["absorb"] < 1.25 for each in _parts(**case).values() if each["naive"]
        )
        chosen = _choice(**case)
        if clear and (chosen["shared"], chosen["own"]) == wanted:
            return case


EQUAL = dict(  # both forms take equally long over the prefix, to the last bit
    B=2, S=1, T=1280, L=1024, sizes=dict(H=8, Dn=32, Dr=16, Dv=16, R=56), itemsize=2, rate=2.0**32, bandwidth=2.0**30
)  # fmt: skip

CHOOSE_FORMS = Exercise(
    name="choose_forms",
    title="which form for which part of the context",
    parts=(
        Part(
            "one new token",
            1,
            visible=[
                dict(B=32, S=1, T=4352, L=4096, sizes=V3, **ON_H100),
                dict(B=256, S=1, T=4352, L=4096, sizes=V3, **ON_H100),
                dict(B=256, S=1, T=4097, L=4096, sizes=V3, **ON_H100),  # one token of its own
                dict(B=256, S=1, T=300, L=1, sizes=V3, **ON_H100),
                EQUAL,
            ],
            hidden=lambda r: [_drawn_choice(r, ("naive", "absorb"), S=1), _drawn_choice(r, ("absorb", "absorb"), S=1)],
        ),
        Part(
            "several new tokens",
            1,
            visible=[
                dict(B=32, S=4, T=4352, L=4096, sizes=V3, **ON_H100),
                dict(B=90, S=3, T=2000, L=1500, sizes=SMALL, itemsize=1, rate=5e13, bandwidth=1e12),
            ],
            hidden=lambda r: [_drawn_choice(r, ("naive", "absorb")), _drawn_choice(r, ("absorb", "absorb"))],
        ),
        Part(
            "hundreds of new tokens, or a single head",
            1,
            visible=[
                dict(B=2, S=512, T=8192, L=4096, sizes=KIMI, **ON_H100),
                dict(B=8, S=200, T=8192, L=4096, sizes=KIMI, **ON_H100),  # both naive, and one waits for memory
                dict(B=8, S=1, T=4352, L=4096, sizes=V3 | dict(H=1), **ON_H100),  # naive has fewer words, too
            ],
            hidden=lambda r: [_drawn_choice(r, ("naive", "naive"))],
        ),
        Part(
            "a part that is empty",
            1,
            visible=[
                dict(B=256, S=1, T=4096, L=0, sizes=V3, **ON_H100),
                dict(B=256, S=1, T=4096, L=4096, sizes=V3, **ON_H100),
            ],
            hidden=lambda r: [
                dict(_drawn_choice(r, ("absorb", "absorb"), S=1), L=0),
                (case := _drawn_choice(r, ("naive", "absorb"), S=1)) | dict(T=case["L"]),
            ],
        ),
    ),
    inputs=as_given,
    oracle=_choice,
    returns=("the choice",),
    tolerance=1e-6,
    mistakes=(
        _choice_slip(
            "one form for both",
            "the own part has the form that suits the shared one: the tokens of one sequence serve its own S queries "
            "only, so choose again",
            _as_shared,
        ),
        _choice_slip(
            "q_len forgotten",
            "the shared part is chosen by B alone: what counts is B times S, the query tokens that share what is read",
            _by_batch,
        ),
        _choice_slip(
            "by the break-even",
            "the form follows the break-even, which leaves out what absorb reads: with few heads that is more than "
            "naive reads. Compare the two times",
            _by_break_even,
        ),
        *(
            _choice_slip(
                "the slower form",
                "the slower form is chosen: take the one with fewer seconds, or with more tokens_per_s",
                pick=pick,
            )
            for pick in (
                lambda part, times: "naive" if times["naive"] > times["absorb"] else "absorb",
                lambda part, times: "naive" if times["naive"] >= times["absorb"] > 0 else "absorb",
            )
        ),
        *(
            replace(
                _choice_slip(
                    "by MACs",
                    "the form with fewer MACs is chosen, which is always naive: compare times, since small batches "
                    "wait for memory",
                    pick=pick,
                ),
                at_times=True,
            )
            for pick in (lambda part, times: "naive" if times["naive"] else "absorb", lambda part, _: "naive")
        ),
        _choice_slip(
            "by words",
            "the form with fewer words is chosen, which is always absorb: compare times, since large batches wait for "
            "the arithmetic",
            pick=lambda part, _: "absorb",
        ),
        _choice_slip(
            "own part always absorb",
            "the own part is absorb whatever S is: with several hundred query tokens a sequence reuses its own tokens "
            "enough for naive",
            pick=lambda part, times: "naive" if part == "shared" and times["naive"] < times["absorb"] else "absorb",
        ),
        _choice_slip(
            "own part of T tokens",
            "the own part is timed over T tokens: T includes the prefix, T − L remain",
            lambda T, **_: dict(own=T),
        ),
        *(
            _choice_slip(
                "shared part of T tokens",
                "the shared part is timed over all T tokens: it has L, and the T − L of the own part are timed apart",
                lambda T, L, without=without, **_: dict(whole=T if L or without else 0),
            )
            for without in (True, False)  # whether it is timed without a prefix, too
        ),
        _choice_slip(
            "own part with the prefix",
            "the own part is timed over T tokens, L of them shared: T − L are its own, and none of them is shared",
            lambda T, L, **_: dict(own=T, common=L),
        ),
        _choice_slip(
            "own part shared",
            "the own part is timed as if all sequences shared its tokens: each of the B has T − L of its own",
            lambda T, L, **_: dict(common=T - L),
        ),
        _choice_slip(
            "prefix not shared",
            "the shared part is timed as if each sequence had a prefix of its own: all L tokens of it are shared",
            prefix=0,
        ),
        Mistake(
            "one form for the whole step",
            "one form is chosen for the whole step: time the prefix and what each sequence has of its own apart, "
            "choose for each, and add",
            _whole,
        ),
        _choice_slip(
            "seconds of the prefix",
            "seconds is that of the shared part alone: the own part comes after it, and adds its time",
            join=lambda times: times[0],
        ),
        _choice_slip(
            "parts overlap",
            "seconds is the longer of the two parts: they are two kernels, one after the other, so their times add",
            join=max,
        ),
        _choice_slip(
            "equal times",
            "both forms take equally long over a part, and naive is chosen: absorb where both are equal",
            pick=lambda part, times: "naive" if 0 < times["naive"] <= times["absorb"] else "absorb",
        ),
        replace(
            _choice_slip(
                "empty part naive",
                "a part without tokens takes no time in either form, and counts as absorb: nothing is expanded for it",
                pick=lambda part, times: "naive" if times["naive"] <= times["absorb"] else "absorb",
            ),
            at_times=True,
        ),
    ),
    needs=("prefix_costs", "step_time"),
)


# read_measurements


def _rows(
    _: torch.Generator,
    batches: list[int],
    S: int,
    L: int,
    sizes: dict,
    itemsize: int,
    gbps: float,
    tflops: float,
    slow_ends: float = 1.0,
) -> Arguments:
    """A table of the times of two kernels: one that reads at `gbps` GB/s, one that computes at `tflops` TFLOP/s.

    What launches and caches add is no straight line, so it matters between which rows one interpolates. Naive in the
    first row and absorb in the last take `slow_ends` times as long, so that other rows have the best rates.
    """
    rows = []
    for B in batches:
        naive, absorb = (_cost(form, B=B, S=S, T=L, L=L, itemsize=itemsize, **sizes) for form in FORMS)
        naive_s = naive.bytes / gbps / 1e9 + 0.1 * naive.flops / tflops / 1e12
        rows.append([B, 1e6 * naive_s + 3 * math.sqrt(B), 1e6 * absorb.flops / tflops / 1e12 + 7])
    rows[0][1] *= slow_ends
    rows[-1][2] *= slow_ends
    return dict(rows=rows, S=S, L=L, sizes=sizes, itemsize=itemsize)


def _crossing(before, behind) -> float:
    """The batch at which the lines between two rows cross."""
    (low, *early), (high, *late) = before, behind
    ahead, after = early[0] - early[1], late[1] - late[0]
    return low + (high - low) * ahead / (ahead + after)


def _reading(
    rows,
    S,
    L,
    sizes,
    itemsize,
    *,
    at=None,
    naive_row=0,
    absorb_row=-1,
    time_row=None,
    work=FORMS,
    columns=(1, 2),
    readers=1,
    B=None,
    macs=1,
    giga=1e9,
    tera=1e12,
):
    """What a table says. The keywords make the named mistakes."""
    after = next(i for i, (_, naive, absorb) in enumerate(rows) if naive < absorb)
    (low, naive_low, absorb_low), (high, naive_high, absorb_high) = rows[after - 1 : after + 1]
    behind, ahead = naive_low - absorb_low, absorb_high - naive_high
    crossings = {
        "between": low + (high - low) * behind / (behind + ahead),
        "first": high,
        "last": low,
        "middle": (low + high) / 2,
        "mirrored": low + (high - low) * ahead / (behind + ahead),
        "signs": low + (high - low) * behind / (behind - ahead) if behind != ahead else math.nan,
        "ends": _crossing(rows[0], rows[-1]),
    }
    first, last = rows[naive_row], rows[absorb_row]
    read = readers * _cost(work[0], B=1, S=S, T=L, L=L, itemsize=itemsize, **sizes).bytes
    flops = macs * _cost(work[1], B=B or last[0], S=S, T=L, L=L, **sizes).flops
    naive_us, absorb_us = first[columns[0]], (last if time_row is None else rows[time_row])[columns[1]]
    return {
        "crossover": crossings[at or "between"],
        "naive_gb_per_s": read / (naive_us * 1e-6) / giga,
        "absorb_tflop_per_s": flops / (absorb_us * 1e-6) / tera,
    }


_reading_slip = slips(_reading)


def _drawn_table(r: Random, **fixed: Any) -> dict[str, Any]:
    """A table that starts with naive behind and ends with it ahead."""
    while True:
        start = r.randint(2, 5)
        case = dict(batches=[start * 3**n for n in range(r.randint(4, 6))], S=1, L=r.randint(2000, 9000))
        case |= dict(sizes=_layer(r), itemsize=2, gbps=r.uniform(800, 3000), tflops=r.uniform(100, 600)) | fixed
        rows = _rows(None, **case)["rows"]
        signs = [naive < absorb for _, naive, absorb in rows]
        if not signs[0] and signs[-1] and sorted(signs) == signs and signs.count(True) not in (0, len(signs)):
            return case


READ_MEASUREMENTS = Exercise(
    name="read_measurements",
    title="crossover and rates from a measured table",
    parts=(
        Part(
            "the crossover, and rates of 16-bit words",
            2,
            visible=[
                dict(batches=[2, 8, 32, 128, 512], S=1, L=4096, sizes=V3, itemsize=2, gbps=2750.0, tflops=430.0),
                dict(batches=[3, 50, 60], S=1, L=1000, sizes=KIMI, itemsize=2, gbps=900.0, tflops=100.0),
                dict(
                    batches=[4, 16, 64, 256],
                    S=1,
                    L=4096,
                    sizes=V3,
                    itemsize=2,
                    gbps=2750.0,
                    tflops=430.0,
                    slow_ends=1.3,
                ),
            ],
            hidden=lambda r: [_drawn_table(r), _drawn_table(r)],
        ),
        Part(
            "several new tokens, other words",
            1,
            visible=[
                dict(batches=[3, 9, 40, 99], S=3, L=4096, sizes=SMALL, itemsize=1, gbps=2000.0, tflops=500.0),
            ],
            hidden=lambda r: [_drawn_table(r, S=r.randint(2, 4), itemsize=size) for size in (1, 4)],
        ),
    ),
    inputs=_rows,
    oracle=_reading,
    returns=("the reading",),
    tolerance=1e-6,
    mistakes=(
        _reading_slip(
            "first row that naive wins",
            "crossover is the first batch of the table at which naive is faster: the lines cross before it, so "
            "interpolate between that row and the one above",
            at="first",
        ),
        _reading_slip(
            "last row that absorb wins",
            "crossover is the last batch of the table at which absorb is faster: the lines cross after it, so "
            "interpolate between that row and the next",
            at="last",
        ),
        _reading_slip(
            "half way",
            "crossover is half way between two rows: the lines cross nearer to the row at which the times differ less",
            at="middle",
        ),
        _reading_slip(
            "shares exchanged",
            "crossover is as far from the row below as it should be from the row above: the way from the first row is "
            "its own difference of times over the sum of both",
            at="mirrored",
        ),
        _reading_slip(
            "differences subtracted",
            "crossover divides by the difference of two differences of times: one of them is negative, so add their "
            "sizes",
            at="signs",
        ),
        _reading_slip(
            "between the ends",
            "crossover lies on lines from the first row of the table to the last: take the two rows between which "
            "naive gets ahead",
            at="ends",
        ),
        Mistake(
            "rates upside down",
            "the rates are times per work: divide the bytes, and the FLOPs, by the time",
            altered(_reading, lambda right: {name: 1 / right[name] for name in list(right)[1:]}),
        ),
        _reading_slip(
            "powers of two",
            "the rates are in GiB/s and 2^40 FLOP/s: GB/s and TFLOP/s are 10^9 and 10^12",
            giga=2**30,
            tera=2**40,
        ),
        _reading_slip("TiFLOP", "absorb_tflop_per_s is in 2^40 FLOP/s: a TFLOP is 10^12", tera=2**40),
        _reading_slip("GiB", "naive_gb_per_s is in GiB/s: a GB is 10^9 bytes", giga=2**30),
        _reading_slip(
            "times in ms",
            "both rates are off by a factor of 1000: the times in the table are microseconds",
            giga=1e12,
            tera=1e15,
        ),
        _reading_slip("MACs for FLOPs", "absorb_tflop_per_s counts MACs: one MAC is two FLOPs", macs=0.5),
        _reading_slip("words for bytes", "naive_gb_per_s counts words: multiply by itemsize", itemsize=1),
        _reading_slip(
            "words of two bytes", "naive_gb_per_s takes words of two bytes: multiply by itemsize", itemsize=2
        ),
        _reading_slip(
            "prefix read per sequence",
            "naive_gb_per_s counts the prefix once per sequence: all of it is shared, and read once",
            lambda rows, **_: dict(readers=rows[0][0]),
        ),
        _reading_slip(
            "one sequence computed",
            "absorb_tflop_per_s lacks the batch: every sequence's queries multiply with the whole prefix",
            B=1,
        ),
        _reading_slip(
            "key of 576 only",
            "absorb_tflop_per_s counts the key alone, R+Dr: the value, R wide, is multiplied as well",
            lambda sizes, **_: dict(macs=(sizes["R"] + sizes["Dr"]) / (2 * sizes["R"] + sizes["Dr"])),
        ),
        _reading_slip(
            "q_len forgotten",
            "absorb_tflop_per_s lacks S: each of a sequence's S query tokens multiplies with the prefix",
            S=1,
        ),
        _reading_slip(
            "rows swapped",
            "the rates are those of the wrong rows: naive's bandwidth shows at the smallest batch, absorb's rate at "
            "the largest",
            naive_row=-1,
            absorb_row=0,
        ),
        _reading_slip(
            "batch of the first row",
            "absorb_tflop_per_s has the batch of the first row, and the time of the last: take both from the last",
            lambda rows, **_: dict(B=rows[0][0]),
        ),
        _reading_slip(
            "time of the first row",
            "absorb_tflop_per_s has the batch of the last row, and the time of the first: take both from the last",
            time_row=0,
        ),
        *(
            _reading_slip(
                "work of the other form",
                "a rate has the work of the other form: naive_gb_per_s takes naive's words, absorb_tflop_per_s "
                "absorb's MACs",
                work=work,
            )
            for work in (("absorb", "naive"), ("naive", "naive"), ("absorb", "absorb"))
        ),
        *(
            _reading_slip(
                "times of the other form",
                "a rate has the time of the other form: a row holds the batch, naive's time and absorb's time",
                columns=columns,
            )
            for columns in ((2, 1), (1, 1), (2, 2))
        ),
        _reading_slip(
            "best bandwidth",
            "naive_gb_per_s is the best of the table: that of the first row is asked for",
            lambda rows, **_: dict(naive_row=min(range(len(rows)), key=lambda n: rows[n][1])),
        ),
        _reading_slip(
            "best rate",
            "absorb_tflop_per_s is the best of the table: that of the last row is asked for",
            lambda rows, **_: dict(absorb_row=max(range(len(rows)), key=lambda n: rows[n][0] / rows[n][2])),
        ),
    ),
    needs=("prefix_costs",),
)

EXERCISES = (PREFIX_COSTS, BREAK_EVEN, PREDICT_CROSSOVERS, STEP_TIME, CHOOSE_FORMS, READ_MEASUREMENTS)
