"""The figures of this lesson, from the records in `benchmarks/`."""

from ..records import decode, launches, pick, rounded, table

CACHES = "basic", "batched kernels, table walked by the host", "batched kernels"
HELD = {  # as named in the lesson -> in the record
    "contiguous, 32 × 16384": "contiguous",
    "the report's pool, 564 pages of 1024": "the report's pool",
    "a pool that grows, pages of 1024": "growing, pages of 1024",
    "a pool that grows, pages of 64": "growing, pages of 64",
}
PAGE_SIZES = 1, 16, 64, 1024

REPORT = {  # its Table 5, tokens/s of its basic and its optimised cache, and the gain in per cent as printed
    (4, 512): (43200, 56600, 30.91), (4, 1024): (43600, 56600, 29.95), (4, 2048): (43700, 56200, 28.59),
    (4, 4096): (43200, 55200, 27.92), (8, 512): (43500, 56800, 30.55), (8, 1024): (43800, 56700, 29.56),
    (8, 2048): (43700, 56200, 28.60), (8, 4096): (43000, 55400, 28.99),
}  # fmt: skip


class Paged:
    """The record of pages."""

    def __init__(self, record):
        self.record = record("paged_h100")

    def rows(self, part):
        """By batch and length."""
        return {(row["B"], row["L"]): row for row in self.record[part]}

    def held(self):
        found = self.rows("memory")[4, 512]["held_bytes"]
        return {label: found[name] for label, name in HELD.items()}

    def growth(self):
        """Bytes at the end and at most, by way of growing."""
        found = self.record["growth"].items()
        return {name: (row["held_bytes"], row["peak_bytes"]) for name, row in found if isinstance(row, dict)}

    def rates(self, phase):
        """Tokens per second of each cache, by batch and length; whole numbers where the record has them."""
        whole = lambda rate: int(rate) if rate == int(rate) else rate
        rows = self.rows("throughput").items()
        return {size: tuple(whole(row[phase][name]["tokens_per_s"]) for name in CACHES) for size, row in rows}

    def token_us(self, cache):
        """Microseconds that a token of the prefills takes."""
        return [1e6 / each[CACHES.index(cache)] for each in self.rates("prefill").values()]

    def gains(self, phase, cache):
        """In per cent over the basic cache."""
        return [100 * (each[CACHES.index(cache)] / each[0] - 1) for each in self.rates(phase).values()]

    def paging(self, kind, page_size, figure):
        """Of `paged_update` with a token for each of 128 sequences, or of `paged_gather` of 128 of 4096."""
        size = dict(B=128, page_size=page_size) | (dict(S=1) if kind == "update" else dict(T=4096))
        return pick(self.record[kind], **size)["calls"][f"kernels.paged_{kind}"][figure]

    def updates(self, figure):
        return {size: self.paging("update", size, figure) for size in PAGE_SIZES}


def with_and_without_pages(record):
    """Microseconds of a decode step, contiguous and from pages, by name."""
    rows = {f"H = {H}, {way}": (H, end) for H in (16, 128) for way, end in (("per token", ""), ("ahead", "_tma"))}
    step = lambda kind, H, end: decode(record, 128, 1, H, 4096)[f"kernels.{kind}latent_attention{end}"]["cold_us"]
    return {name: tuple(step(kind, *row) for kind in ("", "paged_")) for name, row in rows.items()}


def cost_of_pages(record, way):
    """In per cent, by the kernel that looks up pages in this way: for H = 16 and 128."""
    times = with_and_without_pages(record).items()
    return [100 * (paged / contiguous - 1) for name, (contiguous, paged) in times if way in name]


def flash_mla(record):
    return {H: decode(record, 128, 1, H, 4096)["FlashMLA"]["cold_us"] for H in (16, 128)}


def gather_step(record):
    """Microseconds of a gather, and of the step that it is for."""
    return {
        "gather": Paged(record).paging("gather", 64, "cold_us"),
        "decode": with_and_without_pages(record)["H = 16, ahead"][0],
    }


def span(values):
    """The least and the greatest, as whole numbers."""
    return f"{min(values):.0f} to {max(values):.0f}"


def page_sizes(found):
    """A table: update and gather by page size."""
    update, gather = found.updates("graph_us"), {size: found.paging("gather", size, "gb_per_s") for size in PAGE_SIZES}
    rows = [(str(size), f"{update[size]:.2f}", f"{gather[size] / 1e3:.2f}") for size in PAGE_SIZES]
    return table(("page size", "update, µs", "gather, TB/s"), rows)


def decode_steps(record):
    """A table: decode steps, contiguous and from pages."""
    rows = [
        (name, f"{contiguous:.1f}", f"{paged:.1f}", f"{100 * (paged / contiguous - 1):+.1f} %")
        for name, (contiguous, paged) in with_and_without_pages(record).items()
    ]
    rows += [(f"H = {H}, FlashMLA", "", f"{us:.1f}", "") for H, us in flash_mla(record).items()]
    return table(("", "contiguous, µs", "paged, µs", ""), rows)


def table_5(found):
    """A table: gains over the basic cache, in the report and on an H100."""
    gains = lambda phase, size: [
        f"{100 * (rate / found.rates(phase)[size][0] - 1):+,.0f} %" for rate in found.rates(phase)[size][1:]
    ]
    rows = [
        (str(B), str(L), f"{printed:+.2f} %", *gains("prefill", (B, L)), *gains("decode", (B, L)))
        for (B, L), (_, _, printed) in REPORT.items()
    ]
    ways = "walked", "batched"
    return table(
        ("B", "L", "the report", *(f"{phase}, {way}" for phase in ("prefill", "decode") for way in ways)), rows
    )


def per_token(found):
    """A table: microseconds of a token in the prefill of 4 sequences of 4096."""
    (basic, walked, batched), (first, second, _) = found.rates("prefill")[4, 4096], REPORT[4, 4096]
    us = lambda rate: f"{1e6 / rate:.1f}"
    rows = [("the report", us(first), us(second), ""), ("H100", us(basic), us(walked), us(batched))]
    return table(("µs a token", "basic", "walked", "batched"), rows)


def growth(found):
    """A table: megabytes held at the end and at most, by way of growing."""
    rows = [(name, f"{held / 1e6:.1f}", f"{peak / 1e6:.1f}") for name, (held, peak) in found.growth().items()]
    return table(("", "MB at the end", "MB at most"), rows)


def figures(record):
    found, step, pages, other = Paged(record), gather_step(record), with_and_without_pages(record), flash_mla(record)
    step_ms = lambda cache: f"{found.rows('throughput')[8, 4096]['decode'][cache]['ms']:.2f}"
    held = found.held()
    added_16, added_128 = cost_of_pages(record, "per token")
    return {
        "printed": {size: row["saving_in_the_report_percent"] for size, row in found.rows("memory").items()},
        "held": held,
        "growing_share": f"{100 * held['a pool that grows, pages of 1024'] / held['contiguous, 32 × 16384']:.1f}",
        "growth": growth(found),
        "launch_us": f"{launches(record)[0]:.1f}",
        "step_us": rounded(step, 1),
        "table_5": table_5(found),
        "per_token": per_token(found),
        "page_sizes": page_sizes(found),
        "decode_steps": decode_steps(record),
        "most_gained": f"{round(max(found.gains('decode', 'batched kernels')), -3):,.0f}",
        "copy_us": f"{found.token_us('basic')[3] / 4:.0f}",
        "gained": span(found.gains("prefill", CACHES[1])),
        "basic_us": span(found.token_us("basic")),
        "batched_ms": step_ms("batched kernels"),
        "slices_ms": step_ms("contiguous, by slices"),
        "copy_tb_per_s": f"{found.record['copy_bytes_per_s'] / 1e12:.2f}",
        "host_us": span(found.updates("host_us").values()),
        "added_16": f"{added_16:.0f}",
        "added_128": f"{added_128:.0f}",
        "gather_adds": f"{100 * step['gather'] / step['decode']:.0f}",
        "flash_mla_slower": f"{100 * (other[16] / pages['H = 16, ahead'][1] - 1):.0f}",
        "flash_mla_faster": f"{pages['H = 128, ahead'][1] / other[128]:.1f}",
    }


def claims(record):
    found, pages, step = Paged(record), with_and_without_pages(record), gather_step(record)
    memory, rates = found.rows("memory"), found.rates("decode")
    held, update, cold = list(found.held().values()), found.updates("graph_us"), found.updates("cold_us")
    in_the_report = {size: row["gain_in_the_report_percent"] for size, row in found.rows("throughput").items()}
    ahead = cost_of_pages(record, "ahead")
    return {
        "every_digit": all(
            row["saving_printed_percent"] == row["saving_in_the_report_percent"] for row in memory.values()
        ),
        "ten_more": -10.5 < memory[4, 512]["saving_held_percent"]["the report's pool"] < -9.5,
        "half_of_that": 0.48 < held[3] / held[2] < 0.53,
        "twice_as_long": 1.8 < step["gather"] / step["decode"] < 2.2,
        "table_5": in_the_report == {size: gain for size, (_, _, gain) in REPORT.items()}
        and all(abs(100 * (after / before - 1) - gain) < 0.4 for before, after, gain in REPORT.values()),
        "halves": all(1.8 < rates[B, L][0] / rates[B, 2 * L][0] < 2.4 for B in (4, 8) for L in (512, 1024, 2048)),
        "a_quarter_longer": all(1.2 < update[large] / update[small] < 1.3 for small in (1, 16) for large in (64, 1024)),
        "two_at_most": max(cold.values()) < 1.025 * min(cold.values()),
        "ten_times": all(8 < time / launches(record)[0] < 12 for time in found.updates("host_us").values()),
        "slow_already": pages["H = 128, per token"][0] > 3 * pages["H = 128, ahead"][0],
        "three_at_most": max(ahead) <= 3,
        "by_descriptors": max(ahead) <= 3,
    }
