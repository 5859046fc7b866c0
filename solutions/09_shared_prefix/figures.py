"""The figures of this lesson: prefixes and trees of prefixes, measured on an H200."""

import itertools
import math

from mla_ref.hardware.devices import DEVICES
from mla_ref.serving import SYSTEM_PROMPTS as PROMPTS

from ..records import pick, rounded, table

MODELS = {"kimi_k2": ("Kimi K2", 64), "deepseek_v3": ("DeepSeek-V3", 128)}  # and their heads
NAIVE, ABSORB = 320, 1088  # MACs of a pair of query head and token
# The paper's attention, ms, and its kToken/s: FlashMLA, TyphoonMLA
TABLE_3 = {"A": (99.1, 58.1, 1.01, 1.48), "B": (34.5, 25.9, 2.04, 2.37), "C": (26.9, 22.0, 2.33, 2.56)}
OTHER_MS, LAYERS = 28.1, 61


class Prefix:
    """The record of the H200."""

    def __init__(self, record):
        self.record = record("prefix_h200")

    def one(self, model, prompt, B, data="mmlu"):
        return pick(self.record["one_level"], model=model, prompt=prompt, data=data, B=B)

    def us(self, call, *size):
        return self.one(*size)["calls"][call]["cold_us"]

    def work(self, model, prompt, B):
        """FLOPs of attention by absorb alone, and with the prefix naive."""
        row = self.one(model, prompt, B)
        tokens, shared = row["prefix_tokens"] + row["own_tokens_mean"], row["naive_tokens"]
        pairs = 2 * B * MODELS[model][1]
        return pairs * tokens * ABSORB, pairs * (shared * NAIVE + (tokens - shared) * ABSORB)

    def rates(self, model, prompt, B):
        """FLOP/s of FlashMLA, and of the prefix kernel with its merge."""
        absorb, mixed = self.work(model, prompt, B)
        return (
            absorb / self.us("FlashMLA", model, prompt, B) * 1e6,
            mixed / self.us("prefix", model, prompt, B) * 1e6,
        )


def switch(found):
    """A table: predicted and measured switch points."""
    rows = [
        (
            MODELS[each["model"]][0],
            f"{each['tokens']:,}",
            f"{each['predicted']['data sheet']:.0f}",
            f"{each['predicted']['measured ceilings']:.0f}",
            f"**{each['crossing']:.0f}**",
        )
        for each in found.record["switch"]
    ]
    return table(("model", "tokens of the prefix", "B_θ, data sheet", "B_θ, measured ceilings", "lines cross at"), rows)


def levels(found):
    """A table: a tree of prefixes."""
    rows = [
        (
            f"{each['B']:,}",
            f"{each['root']:,}",
            f"{each['branches']} × {each['branch']:,}",
            f"{each['own']}",
            *(f"{each['calls'][call]['cold_us']:,.0f}" for call in ("tree", "root alone", "absorb", "FlashMLA")),
            f"{each['speedups']['FlashMLA']:.1f}",
            f"{each['speedups']['root alone']:.2f}",
        )
        for each in found.record["levels"]
    ]
    head = (
        "B",
        "root",
        "branches",
        "own",
        "tree, µs",
        "root alone",
        "absorb",
        "FlashMLA",
        "over FlashMLA",
        "over the root alone",
    )
    return table(head, rows)


def token_rates(found):
    """Table 3: the paper's, and what this record gives with the same time besides attention."""
    rows = []
    for prompt, paper in TABLE_3.items():
        mine = [LAYERS / 1e3 * found.us(call, "deepseek_v3", prompt, 128) for call in ("FlashMLA", "prefix")]
        mine += [128 / (ms + OTHER_MS) for ms in mine]
        for where, (old, new, *rates) in (("paper", paper), ("H200", mine)):
            gain = (old + OTHER_MS) / (new + OTHER_MS)
            rows.append((prompt, where, f"{old:.1f}", f"{new:.1f}", *(f"{rate:.2f}" for rate in rates), f"{gain:.2f}"))
    head = (
        "prompt",
        "measured",
        "FlashMLA's attention, ms",
        "shared prefix's attention, ms",
        "FlashMLA, kToken/s",
        "shared prefix, kToken/s",
        "gain",
    )
    return table(head, rows)


def least(found):
    """The row of the smallest gain."""
    return min(found.record["one_level"], key=lambda row: row["speedup"])


def gain_of_table(row):
    """The gain by the whole microseconds that the lesson prints."""
    us = {call: round(each["cold_us"]) for call, each in row["calls"].items()}
    return min(us["absorb"], us["FlashMLA"]) / us["prefix"]


def figures(record):
    found = Prefix(record)
    best, lowest, trees = found.one("kimi_k2", "A", 1024), least(found), found.record["random_trees"]
    absorb, mixed = found.work("kimi_k2", "A", 1024)
    flash_rate, prefix_rate = found.rates("kimi_k2", "A", 1024)
    parts = found.record["apart"]["calls"]
    rows = lambda model, prompt: [
        [row["B"], *(row["calls"][call]["cold_us"] for call in ("prefix", "absorb", "FlashMLA"))]
        for row in found.record["one_level"]
        if (row["model"], row["prompt"], row["data"]) == (model, prompt, "mmlu")
    ]
    device = DEVICES["h200"]
    times = [row["calls"] for row in found.record["one_level"]]
    others = [(each["FlashMLA"]["cold_us"], each["absorb"]["cold_us"]) for each in times]
    switches = found.record["switch"]
    owns = [row["own_tokens_mean"] for row in found.record["one_level"] if row["data"] == "mmlu"]
    ceilings = [(each["predicted"]["measured ceilings"], each["crossing"]) for each in switches]
    crossings = {(each["model"], each["tokens"]): each["crossing"] for each in switches}
    lengths = [(crossings[model, PROMPTS["A"]], crossings[model, PROMPTS["C"]]) for model in MODELS]
    return {
        "switch": switch(found),
        "switch_rows": rounded(
            {
                f"{MODELS[each['model']][0]}, {each['tokens']} tokens": [list(row.values()) for row in each["rows"]]
                for each in found.record["switch"]
                if each["tokens"] == PROMPTS["A"]
            },
            0,
        ),
        "rate": f"{device.rate(measured=True) / 1e12:.0f}",
        "bandwidth": f"{device.bandwidth(measured=True) / 1e12:.2f}",
        "one_level": rounded(
            {f"{MODELS[model][0]}, prompt {prompt}": rows(model, prompt) for model in MODELS for prompt in PROMPTS}, 0
        ),
        "prompts": "A of {:,}, B of {:,} and C of {:,}".format(*PROMPTS.values()),
        "gain": f"{best['speedup']:.1f}",
        "gain_in_graphs": f"{best['speedup_in_graphs']:.1f}",
        "absorb_gain": f"{best['calls']['absorb']['cold_us'] / best['calls']['prefix']['cold_us']:.1f}",
        "flash_gain": f"{best['calls']['FlashMLA']['cold_us'] / best['calls']['prefix']['cold_us']:.1f}",
        "others_within": f"{math.ceil(100 * max(abs(other / each - 1) for each, other in others))}",
        "work": f"{absorb / mixed:.1f}",
        "flash_rate": f"{flash_rate / 1e12:.0f}",
        "prefix_rate": f"{prefix_rate / 1e12:.0f}",
        "alone_rate": f"{parts['prefix']['tflops']:.0f}",
        "alone_us": f"{parts['prefix']['cold_us']:,.0f}",
        "own_us": f"{parts['own']['cold_us']:,.0f}",
        "own_tokens": f"{min(owns):.0f} to {max(owns):.0f}",
        "whole_pages": f"{best['naive_tokens']:,}",
        "left_tokens": f"{best['prefix_tokens'] - best['naive_tokens']}",
        "own_share": f"{100 * found.record['apart']['share_of_own']:.1f}",
        "step_us": f"{parts['step']['cold_us']:,.0f}",
        "beside_us": f"{best['calls']['prefix']['cold_us']:,.0f}",
        "least_gain": f"{gain_of_table(lowest):.2f}",
        "least_where": f"{MODELS[lowest['model']][0]}, prompt {lowest['prompt']}, B = {lowest['B']}",
        "off": f"{math.ceil(100 * max(abs(b / a - 1) for a, b in ceilings))}",
        "by_length": f"{math.ceil(100 * max(abs(b / a - 1) for a, b in lengths))}",
        "expanded_gb": f"{found.one('deepseek_v3', 'A', 128)['expanded_bytes'] / 1e9:.1f}",
        "all_layers_gb": f"{LAYERS * found.one('deepseek_v3', 'A', 128)['expanded_bytes'] / 1e9:.0f}",
        "levels": levels(found),
        "trees": f"{trees['trees']}",
        "planned": f"{trees['with_naive_parts']}",
        "worst_planned": f"{trees['least_ratio_with_naive_parts']:.2f}",
        "median_tree": f"{trees['median_ratio_with_naive_parts']:.1f}",
        "best_tree": f"{trees['most']:.1f}",
        "other": f"{OTHER_MS}",
        "token_rates": token_rates(found),
    }


def claims(record):
    found = Prefix(record)
    gain = lambda model, prompt: found.one(model, prompt, 1024)["speedup"]
    flash_rate, prefix_rate = found.rates("kimi_k2", "A", 1024)
    return {
        "below_sheet": all(each["crossing"] < each["predicted"]["data sheet"] for each in found.record["switch"]),
        "longer_gains": all(gain(m, "A") > gain(m, "B") > gain(m, "C") for m in MODELS),
        "flash_faster": least(found)["calls"]["FlashMLA"]["cold_us"] < least(found)["calls"]["absorb"]["cold_us"],
        "flash_rate_higher": flash_rate > prefix_rate,
        "tree_wins": all(
            min(each["speedups"][n] for n in ("absorb", "FlashMLA")) > 1.5 for each in found.record["levels"]
        ),
        "branches_pay": all(
            long["speedups"]["root alone"] > short["speedups"]["root alone"] > 1
            for long, short in itertools.pairwise(sorted(found.record["levels"], key=lambda each: -each["branch"]))
        ),
    }
