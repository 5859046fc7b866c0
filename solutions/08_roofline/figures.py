"""The figures of this lesson, from the records in `benchmarks/` and from `mla_ref.DEVICES`."""

from ..records import H100, decode, pick, rounded

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


def figures(record):
    found, ceilings = Crossover(record), record("ceilings_h100")["ceilings"]
    copy, product = (ceilings[name]["median"] for name in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    v3 = lambda B: found.shared("deepseek_v3", B)
    reached = v3(1024)["absorb_tflop_per_s"]
    own = {row["B"]: (row["naive_us"], row["absorb_us"]) for row in found.own()}
    folded = {name: v3(128)["calls"][name]["cold_us"] for name in v3(128)["calls"]}
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
        "reached": f"{reached:.0f}",
        "k2_naive_us": f"{found.shared('kimi_k2', 80)['naive_us']:.0f}",
        "absorb_1_us": f"{v3(1)['absorb_us']:.0f}",
        "each_us": f"{folded['kernels.latent_attention, per sequence']:.0f}",
        "folded_us": f"{folded['kernels.latent_attention']:.0f}",
        "cudnn": f"{v3(1024)['naive_tflop_per_s']:.0f}",
        "cudnn_share": f"{100 * v3(1024)['naive_tflop_per_s'] * 1e12 / H100.rate():.0f}",
        "flash_mla": rounded(flash_mla(record), 1),
        "flash_mla_rate": f"{flash_mla(record, 'tflop_per_s')[128]:.0f}",
        "flash_mla_crossing": f"{crossing_with_flash_mla(record):.0f}",
        "own": rounded(own, 1),
        "own_ratio": f"{own[64][0] / own[64][1]:.0f}",
    }


def claims(record):
    found = Crossover(record)
    v3 = lambda B: found.shared("deepseek_v3", B)
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
        "same_time": max(below_128) < 1.1 * min(below_128),
        "less_than_2": v3(1)["absorb_floor_us"]["measured ceilings"] < 2,
        "loses_at_32": flash_mla(record)[32] < v3(32)["naive_us"],
        "wins_at_128": flash_mla(record)[128] > v3(128)["naive_us"],
        "nearer": crossings[0] < crossing_with_flash_mla(record) < KEPT,
        "ninety_four": min(row["naive_floor_us"]["measured ceilings"] / row["naive_us"] for row in found.own()) > 0.935,
    }
