"""The figures of this lesson, from `benchmarks/{reconstruction_h200,perplexity}.json`."""

import itertools

from ..records import pick, rounded

CLOCKS = {"wall": "wall_us", "events": "events_us", "graph": "graph_us", "flushed": "graph_cold_us"}
CUBLAS, INT4 = "cuBLAS, bmm", "ours, INT4"
PRODUCTS = ("absorb_query", "reconstruct_value")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LAYERS, MIB = 61, 2**20
CACHE = 2 * 4096 * (512 + 64)  # bytes that the attention of one request reads, T = 4096
WEIGHTS_AND_ROWS = 2 * (2 * 128 * 128 * 512 + 2 * 128 * (128 + 512))  # bytes of both products, one request
# The article's, for its H100.
ARTICLE = {"products": 35.6, "attention": 23.0, "ratio_16": 1.86, "ratio_128": 1.08}


def clocked(times):
    """Return a call's times by the lesson's names for the clocks."""
    return {name: round(times[key], 2) for name, key in CLOCKS.items()}


class Record:
    """The record, by what the lesson asks of it."""

    def __init__(self, record):
        self.record = record("reconstruction_h200")

    def times(self, product, B, call=CUBLAS):
        return pick(self.record["products"], product=product, B=B, dtype="float16")["calls"][call]

    def both(self, clock, call=CUBLAS, B=1):
        """Both products by one clock."""
        return sum(self.times(product, B, call)[CLOCKS[clock]] for product in PRODUCTS)

    def attention(self, T):
        return pick(self.record["layer"], T=T)["attention"]

    def share(self, T, clock, call=CUBLAS):
        both = self.both(clock, call)
        return both / (both + self.attention(T)[CLOCKS[clock]])

    def batches(self, product="absorb_query"):
        """Lines over the batch, microseconds."""
        found = {}
        for label, call in (("cuBLAS, 16 bits", CUBLAS), ("ours, INT4", INT4)):
            for how in ("graph", "flushed"):
                found[f"{label}, {how}"] = [round(self.times(product, B, call)[CLOCKS[how]], 1) for B in BATCHES]
        return found

    def sweep(self, call):
        return [[int(row["mib"] * MIB), round(row["graph_us"][call], 2)] for row in self.record["sweep"]]

    def over_cublas(self):
        """The time of INT4 over cuBLAS's by MiB of the 16-bit weights."""
        return {row["mib"]: row["int4_over_cublas"] for row in self.record["sweep"]}

    def gain(self, B, clock):
        """How many times as fast as cuBLAS the INT4 kernel is, into the query."""
        return self.times("absorb_query", B)[CLOCKS[clock]] / self.times("absorb_query", B, INT4)[CLOCKS[clock]]

    def printed_gain(self, how):
        """That of one request, by the tenths of microseconds in the lesson's lines."""
        lines = self.batches()
        return lines[f"cuBLAS, 16 bits, {how}"][0] / lines[f"ours, INT4, {how}"][0]

    def wins_up_to(self, clock):
        """The largest batch up to which the INT4 kernel is faster than cuBLAS by this clock, into the query."""
        return max(B for n, B in enumerate(BATCHES) if all(self.gain(each, clock) > 1 for each in BATCHES[: n + 1]))

    def loses_from(self):
        """The smallest batch from which on the INT4 kernel is slower by both graphs."""
        slower = lambda B: max(self.gain(B, clock) for clock in ("graph", "flushed")) < 1
        return min(B for n, B in enumerate(BATCHES) if all(map(slower, BATCHES[n:])))

    def over_ours(self):
        """The time of INT4 over that of our own 16 bits, by MiB of the 16-bit weights."""
        return {row["mib"]: row["graph_us"][INT4] / row["graph_us"]["ours"] for row in self.record["sweep"]}

    def knee(self):
        """MiB in front of the first step that is slower than a copy, and behind it."""
        for (low, start), (high, end) in itertools.pairwise(self.sweep("ours")):
            if (high - low) / (end - start) * 1e6 < self.record["copy_bytes_per_s"]:
                return low // MIB, high // MIB
        raise LookupError("no step of the sweep is slower than a copy")

    def error(self, group):
        return pick(self.record["errors"], product="absorb_query", group=group)


def percent(share):
    return f"{100 * share:.0f}"


def figures(record):
    found = Record(record)
    one = found.times("absorb_query", 1)
    ratios, own, (knee, behind_knee) = found.over_cublas(), found.over_ours(), found.knee()
    graded = {call: found.times("absorb_query", 16, call)["cold_us"] for call in (CUBLAS, INT4)}
    traps = record("timing_traps_h100")["figures"]["B=1"]
    quality = record("perplexity")["rows"]
    return {
        "do_bench": f"{traps['do_bench_l2_flushed_us'][0]:.1f}",
        "in_graph": f"{traps['cuda_graph_l2_warm_us'][0]:.1f}",
        "wall_again": f"{one['wall_us']:.0f}",
        "products": {product: clocked(found.times(product, 1)) for product in PRODUCTS},
        "attention": {T: clocked(found.attention(T)) for T in (1024, 4096, 8192)},
        "copy": f"{found.record['copy_bytes_per_s'] / 1e9:,.0f}",
        "copy_tb": round(found.record["copy_bytes_per_s"] / 1e12, 3),
        "knee": knee,
        "behind_knee": behind_knee,
        "own_16": f"{own[16.0]:.2f}",
        "own_32": f"{own[32.0]:.2f}",
        "own_128": f"{own[128.0]:.2f}",
        "own_fall": f"{own[16.0] / own[128.0]:.1f}",
        "events_one": f"{one['events_us']:.0f}",
        "bytes_share": percent(WEIGHTS_AND_ROWS / (WEIGHTS_AND_ROWS + CACHE)),
        "cache_mb": f"{CACHE / 1e6:.1f}",
        "cache_us": f"{1e6 * CACHE / found.record['copy_bytes_per_s']:.0f}",
        "flushed_attention": f"{found.attention(4096)[CLOCKS['flushed']]:.0f}",
        "l2_mib": f"{found.record['l2_bytes'] / MIB:.0f}",
        "l2_mib_again": round(found.record["l2_bytes"] / MIB),
        "wall_one": f"{one['wall_us']:.0f}",
        "graph_one": f"{one['graph_us']:.1f}",
        "wall_attention": f"{found.attention(4096)['wall_us']:.0f}",
        "graph_attention": f"{found.attention(4096)['graph_us']:.0f}",
        "wall_share": percent(found.share(4096, "wall")),
        "events_share": percent(found.share(4096, "events")),
        "graph_share": percent(found.share(4096, "graph")),
        "flushed_share": percent(found.share(4096, "flushed")),
        "flushed_short": percent(found.share(1024, "flushed")),
        "flushed_long": percent(found.share(8192, "flushed")),
        "int4_flushed_share": percent(found.share(4096, "flushed", INT4)),
        "mixed_share": percent(found.both("wall") / (found.both("wall") + found.attention(4096)[CLOCKS["flushed"]])),
        "model_ms": f"{LAYERS * found.both('flushed') / 1e3:.2f}",
        "int4_model_ms": f"{LAYERS * found.both('flushed', INT4) / 1e3:.2f}",
        "batches": list(BATCHES),
        "lines": found.batches(),
        "warm_gain": f"{found.printed_gain('graph'):.1f}",
        "flushed_gain": f"{found.printed_gain('flushed'):.1f}",
        "graded_gain": f"{graded[CUBLAS] / graded[INT4]:.1f}",
        "wins_up_to": found.wins_up_to("flushed"),
        "warm_wins_up_to": found.wins_up_to("graph"),
        "loses_from": found.loses_from(),
        "value_loses": min(
            B
            for B in BATCHES
            if found.times(PRODUCTS[1], B)["graph_us"] < found.times(PRODUCTS[1], B, INT4)["graph_us"]
        ),
        "sweep_16": found.sweep("ours"),
        "sweep_4": found.sweep(INT4),
        "ratios": rounded(ratios, 2),
        "article_fall": f"{ARTICLE['ratio_16'] / ARTICLE['ratio_128']:.1f}",
        "error": percent(found.error(128)["output"]),
        "error_32": percent(found.error(32)["output"]),
        "bits_plain": f"{pick(quality, weights='as trained')['bits_a_byte']:.3f}",
        "bits_32": f"{pick(quality, weights='INT4', group=32)['bits_a_byte']:.3f}",
    }


def claims(record):
    found = Record(record)
    times = lambda clock: [found.times(product, 1)[CLOCKS[clock]] for product in PRODUCTS]
    own, clock = found.over_ours(), lambda clock: found.share(4096, clock)
    shares = [found.share(T, "flushed") for T in (1024, 4096, 8192)]
    return {
        "events_as_wall": all(0.8 < e / w < 1.25 for e, w in zip(times("events"), times("wall"), strict=True)),
        "four_times": all(w > 3.5 * g for w, g in zip(times("wall"), times("graph"), strict=True)),
        "about_half": all(0.35 < share < 0.62 for share in shares),
        "falls_with_context": shares == sorted(shares, reverse=True),
        "wall_lowest": max(map(clock, ("wall", "events"))) < clock("graph") < clock("flushed"),
        "int4_faster": min(found.gain(1, clock) for clock in ("graph", "flushed")) > 1,
        "more_when_flushed": found.gain(1, "flushed") > found.gain(1, "graph"),
        "loses_at_256": found.gain(256, "flushed") < 1,
        "falls_too": own[16.0] > 1.25 * own[32.0] and own[32.0] > 1.25 * own[128.0],
        "knee_below_l2": found.knee()[1] < 0.8 * found.record["l2_bytes"] / MIB,
        "attention_waits": found.attention(4096)[CLOCKS["flushed"]] > 10 * 1e6 * CACHE / 4.8e12,
    }
