"""The figures of this lesson, from the records in `benchmarks/` and from `mla_ref.DEVICES`."""

from mla_ref.hardware.devices import DEVICES
from mla_ref.kernels._decode import choose_splits

from ..records import H100, decode, pick, rounded, table

MODELS = {"DeepSeek-V3": "deepseek_v3", "Kimi K2": "kimi_k2"}


def break_even(rate, bandwidth):
    """Of DeepSeek-V3 with one new token and words of two bytes."""
    return 2 * (128 + 64 + 128) / bandwidth / (2 * (2 * 512 + 64) / rate)


KEPT = break_even(H100.rate(measured=True), H100.bandwidth(measured=True))


class Crossover:
    """The record of naive and absorb over one prefix."""

    def __init__(self, record):
        self.record = record("crossover_h100")

    def rows(self, model):
        return self.record["shared"][model]["rows"]

    def shared(self, model, B):
        return pick(self.rows(model), B=B)

    def own(self):
        return self.record["own"]["deepseek_v3"]["rows"]

    def crossing(self, model):
        return self.record["shared"][model]["crossover"]

    def predicted(self, ceilings):
        return self.record["shared"]["deepseek_v3"]["predicted"][ceilings]

    def spread(self):
        """The largest distance of a fastest call's rounds, relative to the median."""
        rows = [row for model in MODELS.values() for row in self.rows(model)]
        best = [row["calls"][row[f"{form}_best"]] for row in rows for form in ("naive", "absorb")]
        return max((call["cold_high_us"] - call["cold_low_us"]) / call["cold_us"] for call in best)


def flash_mla(record, figure="cold_us"):
    """Of FlashMLA by batch: 128 heads, 4096 tokens that are each sequence's own."""
    return {B: decode(record, B, 1, 128, 4096)["FlashMLA"][figure] for B in (32, 128)}


def crossing_with_flash_mla(record):
    """The batch at which it meets the naive form, on a straight line."""
    found, (low, high) = Crossover(record), sorted(flash_mla(record))
    ahead = {B: found.shared("deepseek_v3", B)["naive_us"] - us for B, us in flash_mla(record).items()}
    return low + (high - low) * ahead[low] / (ahead[low] - ahead[high])


NAIVE, ABSORB = 320, 1088  # MACs of a pair of query head and token
PAPER_MS = {"naive, prefix": 1.63, "absorb, prefix": 5.37, "absorb, own": 1.06}  # the TyphoonMLA paper, figure 4


def npu_ms():
    """The roofline of figure 4: Kimi K2, 4096 shared and 512 own tokens, 1024 sequences, on the paper's NPU."""
    device = DEVICES["ascend_910b"]
    rate, bandwidth = device.rate(), device.bandwidth()
    step = lambda words, macs: 1e3 * max(2 * words / bandwidth, 2 * macs / rate)
    pairs = 64 * 1024
    times = (
        step(4096 * 64 * NAIVE, 4096 * pairs * NAIVE),
        step(4096 * 576, 4096 * pairs * ABSORB),
        step(1024 * 512 * 576, 512 * pairs * ABSORB),
    )
    return dict(zip(PAPER_MS, times, strict=True))


def gains(times):
    """Of naive over the prefix alone, and with the own part."""
    naive, absorb, own = times.values()
    return absorb / naive, (absorb + own) / (naive + own)


def npu():
    """A table: what the paper measured, and the roofline."""
    rows = [
        (name, f"{PAPER_MS[name]:.2f}", f"{model:.2f}", f"{100 * model / PAPER_MS[name]:.0f} %")
        for name, model in npu_ms().items()
    ]
    return table(("ms", "the paper", "roofline", "reached"), rows)


def own_contexts(found):
    """A table: decode steps without sharing, beside the roofline of measured ceilings."""
    rows = []
    for row in found.own():
        for form in ("naive", "absorb"):
            us, floor = row[f"{form}_us"], row[f"{form}_floor_us"]["measured ceilings"]
            rows.append((str(row["B"]), form, f"{us:,.1f}", f"{floor:,.4g}", f"{100 * floor / us:.0f} %"))
    return table(("B", "form", "measured, µs", "roofline, µs", "reached"), rows)


def figures(record):
    found, ceilings = Crossover(record), record("ceilings_h100")["ceilings"]
    copy, product = (ceilings[name]["median"] for name in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    v3 = lambda B: found.shared("deepseek_v3", B)
    reached = v3(1024)["absorb_tflop_per_s"]
    own = {row["B"]: (row["naive_us"], row["absorb_us"]) for row in found.own()}
    folded = {name: v3(128)["calls"][name]["cold_us"] for name in v3(128)["calls"]}
    h20_s = 2 * 128 * 3 * 8192 * 64 * ABSORB / 148e12  # FlashMLA#30; its bytes take less at 4 TB/s
    launching = decode(record, 1, 1, 128, 8192)["kernels.latent_attention_tma"]
    return {
        "rate": f"{H100.rate(measured=True) / 1e12:.0f}",
        "copy": f"{H100.bandwidth(measured=True) / 1e9:,.0f}",
        "ridge": f"{H100.ridge(measured=True):.0f}",
        "again_rate": f"{product / 1e12:.0f}",
        "again_bandwidth": f"{copy / 1e9:,.0f}",
        "again_batch": f"{break_even(product, copy):.0f}",
        "batch": f"{KEPT:.0f}",
        "sheet_batch": f"{found.predicted('data sheet'):.0f}",
        "host_us": f"{launching['host_us']:.0f}",
        "device_us": f"{launching['cold_us']:.0f}",
        "empty_us": f"{found.record['empty_us']:.0f}",
        "rows": rounded(
            {
                name: [[r["B"], r["naive_us"], r["absorb_us"]] for r in found.rows(model)]
                for name, model in MODELS.items()
            },
            1,
        ),
        "v3_crossing": f"{found.crossing('deepseek_v3'):.0f}",
        "k2_crossing": f"{found.crossing('kimi_k2'):.0f}",
        "reached_batch": f"{break_even(reached * 1e12, v3(1)['naive_gb_per_s'] * 1e9):.0f}",
        "rate_32": f"{v3(32)['absorb_tflop_per_s']:.0f}",
        "rate_48": f"{v3(48)['absorb_tflop_per_s']:.0f}",
        "rate_128": f"{v3(128)['absorb_tflop_per_s']:.0f}",
        "reached": f"{reached:.0f}",
        "absorb_1_us": f"{v3(1)['absorb_us']:.0f}",
        "each_us": f"{folded['kernels.latent_attention, per sequence']:.0f}",
        "folded_us": f"{folded['kernels.latent_attention']:.0f}",
        "tma_us": f"{folded['kernels.latent_attention_tma']:.0f}",
        "exp_naive": f"{100 * H100.rate() / 3.9e12 / (2 * NAIVE):.0f}",
        "exp_absorb": f"{100 * H100.rate() / 3.9e12 / (2 * ABSORB):.0f}",
        "npu": npu(),
        "npu_prefix": f"{gains(npu_ms())[0]:.1f} by the model, {gains(PAPER_MS)[0]:.1f} with that estimate",
        "npu_both": f"{gains(npu_ms())[1]:.1f} by the model, {gains(PAPER_MS)[1]:.1f} measured",
        "h20_ms": f"{1e3 * h20_s:.2f}",
        "h20_gb": f"{128 * 8192 * 576 * 2 / h20_s / 1e9:.0f}",
        "h20_share": f"{100 * h20_s / 3.407e-3:.0f}",
        "h20_batch": f"{break_even(148e12, 4e12):.0f}",
        "padded_4": f"{KEPT / 4:.0f}",
        "padded_8": f"{KEPT / 8:.0f}",
        "own_64": f"{own[64][1]:.0f}",
        "shared_64": f"{v3(64)['absorb_us']:.0f}",
        "naive_own_64": f"{own[64][0]:,.0f}",
        "naive_shared_64": f"{v3(64)['naive_us']:.0f}",
        "flash_mla_rate": f"{flash_mla(record, 'tflop_per_s')[128]:.0f}",
        "flash_mla_32_us": f"{flash_mla(record)[32]:.0f}",
        "flash_mla_128_us": f"{flash_mla(record)[128]:.0f}",
        "naive_32_us": f"{v3(32)['naive_us']:.0f}",
        "naive_128_us": f"{v3(128)['naive_us']:.0f}",
        "flash_mla_crossing": f"{crossing_with_flash_mla(record):.0f}",
        "own": own_contexts(found),
        "own_ratio": f"{own[64][0] / own[64][1]:.0f}",
    }


def claims(record):
    found = Crossover(record)
    v3 = lambda B: found.shared("deepseek_v3", B)
    folded = lambda name: v3(128)["calls"][name]["cold_us"]
    below_128 = [row["naive_us"] for row in found.rows("deepseek_v3") if row["B"] <= 128]
    crossings = [found.crossing(model) for model in MODELS.values()]
    absorb_share = v3(1024)["absorb_tflop_per_s"] * 1e12 / H100.rate(measured=True)
    naive_share = v3(1)["naive_gb_per_s"] * 1e9 / H100.bandwidth(measured=True)
    return {
        "ceilings_say_so": abs(found.predicted("measured ceilings") - KEPT) < 0.1,
        "further_short": absorb_share < naive_share,
        "rounds_together": found.spread() <= 0.03,
        "between_32_and_48": all(32 < batch < 48 for batch in crossings),
        "in_between": all(32 < batch < 48 for batch in crossings),
        "nearly_as_64": 0.95 < v3(48)["absorb_us"] / v3(64)["absorb_us"] < 1,
        "rounds": [choose_splits(2 * B, 4096 // 64, 132) for B in (32, 48, 64)] == [2, 4, 1],
        "same_time": max(below_128) < 1.1 * min(below_128),
        "less_than_2": v3(1)["absorb_floor_us"]["measured ceilings"] < 2,
        "nearly_alike": 0.97
        < folded("kernels.latent_attention") / folded("kernels.latent_attention, per sequence")
        < 1,
        "nearer": crossings[0] < crossing_with_flash_mla(record) < KEPT,
        "ninety_four": min(row["naive_floor_us"]["measured ceilings"] / row["naive_us"] for row in found.own()) > 0.935,
    }
