"""The figures of this lesson, from `benchmarks/prefill_h200.json`."""

from mla_ref.hardware.devices import DEVICES

from ..records import pick, table

LONG, GSM8K = "B1 S8192 H128", "B256, GSM8K's prompts, H128"
CASES = {
    LONG: "one prompt of 8192, H = 128",
    "B1 S16384 H16": "one of 16384, H = 16",
    "B8 S2048 H128": "8 of 2048, H = 128",
    "B4 S512 T80K H16": "4 chunks of 512 behind 80K, H = 16",
    GSM8K: "256 of GSM8K's lengths, H = 128",
    "B256 S63 H128, as many tokens": "256 of 63, H = 128",
}
LONG_PROMPTS = tuple(CASES)[:4]
OURS, NARROW, CUDNN, PADDED = "ours", "ours, FP8", "cuDNN", "cuDNN, padded"
TOKEN, TILE = "FP8, a scale a token", "FP8, a scale for 128"


class Record:
    """The record, by what the lesson asks of it."""

    def __init__(self, record):
        self.record = record("prefill_h200")

    def prefill(self, case):
        return pick(self.record["prefill"], case=case)["calls"]

    def us(self, case, call):
        return self.prefill(case)[call]["cold_us"]

    def prefill_table(self):
        calls = list(dict.fromkeys(call for case in CASES for call in self.prefill(case)))
        rows = [
            (label, *(f"{found[call]['tflop_per_s']:,.0f}" if call in found else "" for call in calls))
            for case, label in CASES.items()
            for found in [self.prefill(case)]
        ]
        return table(("TFLOP/s", *calls), rows)

    def pack(self, tokens=8192, heads=128):
        return pick(self.record["pack"], tokens=tokens, H=heads)["calls"]

    def pack_table(self):
        cases = [(each["tokens"], each["H"], each["calls"]) for each in self.record["pack"]]
        rows = [
            (
                f"{tokens}, {heads}",
                *(f"{one['cold_us']:,.0f} µs, {one['gb_per_s']:,.0f} GB/s" for one in calls.values()),
                f"{100 * calls[OURS]['of_copy']:.0f} %",
            )
            for tokens, heads, calls in cases
        ]
        return table(("tokens, heads", *cases[0][2], "ours, of a copy's rate"), rows)

    def decode(self, n=0):
        return self.record["decode"][n]["calls"]

    def decode_table(self):
        rows = [
            (
                f"{each['B']}, {each['H']}, {each['T']}",
                *(f"{one['cold_us']:,.0f} µs, {100 * one['relative_error']:.1f} %" for one in each["calls"].values()),
            )
            for each in self.record["decode"]
        ]
        return table(("B, H, T: time, error", *self.decode()), rows)


def fastest(calls):
    return max(each["tflop_per_s"] for each in calls.values())


def percent(share):
    return f"{100 * share:.0f}"


def gsm8k_floor(found):
    """Microseconds for q, k, v and out, each once, of GSM8K's prompts."""
    tokens = pick(found.record["prefill"], case=GSM8K)["tokens"]
    return 1e6 * tokens * 128 * 2 * (192 + 128) * 2 / DEVICES["h200"].bandwidth()


def figures(record):
    found = Record(record)
    long, decode, packed = found.prefill(LONG), found.decode(), found.pack()
    shares = [calls[OURS]["tflop_per_s"] / fastest(calls) for calls in map(found.prefill, LONG_PROMPTS)]
    wide, cache, tiled = decode["bfloat16"], decode[TOKEN]["cache_bytes"], decode[TILE]["cache_bytes"]
    return {
        "prefill_table": found.prefill_table(),
        "long_share": f"{percent(min(shares))} to {percent(max(shares))}",
        "gsm8k_us": {call: round(each["cold_us"]) for call, each in found.prefill(GSM8K).items()},
        "padded_over_ours": f"{found.us(GSM8K, PADDED) / found.us(GSM8K, OURS):.1f}",
        "equal_us": f"{found.us('B256 S63 H128, as many tokens', OURS):,.0f}",
        "fp8_short": f"{found.us(GSM8K, NARROW) / found.us(GSM8K, OURS):.1f}",
        "fp8_long": f"{long[NARROW]['cold_us'] / long[OURS]['cold_us']:.1f}",
        "fp8_error": f"{100 * long[NARROW]['relative_error']:.0f}",
        "bf16_error": f"{100 * long[OURS]['relative_error']:.1f}",
        "pack_table": found.pack_table(),
        "eager_over_ours": f"{packed['PyTorch']['cold_us'] / packed[OURS]['cold_us']:.1f}",
        "decode_table": found.decode_table(),
        "cache_share": percent(cache / wide["cache_bytes"]),
        "capacity": f"{wide['cache_bytes'] / cache:.2f}",
        "cache_share_128": percent(tiled / wide["cache_bytes"]),
        "capacity_128": f"{wide['cache_bytes'] / tiled:.2f}",
        "decode_time": percent(decode[TOKEN]["cold_us"] / wide["cold_us"]),
        "decode_time_128": percent(decode[TILE]["cold_us"] / wide["cold_us"]),
    }


def claims(record):
    found = Record(record)
    errors = [[each["calls"][call]["relative_error"] for call in (TOKEN, TILE)] for each in found.record["decode"]]
    return {
        "far_from_floor": min(each["cold_us"] for each in found.prefill(GSM8K).values()) > 1.5 * gsm8k_floor(found),
        "not_twice": all(found.us(case, NARROW) > 0.55 * found.us(case, OURS) for case in CASES),
        "same_error": all(max(pair) < 1.25 * min(pair) for pair in errors),
    }
