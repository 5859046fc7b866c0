"""The figures of this lesson, from the records in `benchmarks/`."""

import numpy as np

from mla_ref.hardware.devices import DEVICES

from ..records import H100, fitted, pick, rounded, table

FUSIONS = ("ASF", "SF", "RF", "RPEF")
FORMS = ("baseline", *FUSIONS, "All")
WAYS = {"host": "host_us", "Python": "mean_us", "graph": "graph_us"}
SHORT = "4 prompts of 512", "decode, 4 at 4096"
PUBLISHED = {"ASF": 0.4623, "SF": 0.0937, "RF": 0.0025, "RPEF": 0.0061, "All": 0.7302}  # the report's Table 3
LENGTHS = 512, 1024, 2048, 4096
THROUGHPUT = {"eager": (7.25e5, 4.83e5, 2.88e5, 1.53e5), "fused": (10.2e5, 7.41e5, 4.67e5, 2.65e5)}  # its Table 2

TILES = {  # as named in the lesson -> in the record
    "16 × 16, 1 warp": "16x16x16, 1 warp",
    "16 × 64": "16x64x64, 4 warps",
    "64 × 128": "64x128x64, 8 warps",
    "128 × 128": "128x128x64, 8 warps",
}
KERNELS = {  # part of a kernel's name -> what the lesson calls it
    "nvjet": "matrix product",
    "vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add": "sum of the products",
    "AUnaryFunctor": "times scale",
    "gpu_kernel_impl_nocast<at::native::CUDAFunct": "add the mask",
    "SoftMax": "softmax, to float32",
    "float16_copy": "to float16",
    "_attention_score": "fused scores",
    "_whole_rows": "fused softmax",
}


class Ablation:
    """The record of the ablation, in microseconds."""

    def __init__(self, record):
        self.record = record("ablation_h100")

    def layers(self, B, L):
        return pick(self.record["sizes"], B=B, L=L)["layers"]

    def faster(self, length):
        """Whether all fusions beat the baseline, started from Python, with 4 prompts of a length."""
        layers = self.layers(4, length)
        return layers["All"]["mean_us"] < layers["baseline"]["mean_us"]

    def graph(self, form):
        return self.layers(4, 4096)[form]["graph_us"]

    def step(self, name):
        return self.record["steps"][name]["us"]

    def both(self):
        return self.record["subsets"]["ASF+SF"]["graph_us"]

    def passes(self):
        """Of each work, by way of starting, the times of all forms."""
        found = {f"4 prompts of {L}": self.layers(4, L) for L in (512, 1024, 4096)}
        found["decode, 4 at 4096"] = self.record["decode"][0]["layers"]
        return {
            work: {way: tuple(row[form][key] for form in FORMS) for way, key in WAYS.items()}
            for work, row in found.items()
        }

    def pieces(self):
        """Scores and softmax by themselves: eager, fused."""
        return {
            "scores": (self.step("PyTorch, two products"), self.step("kernels.attention_score")),
            "softmax": (self.step("PyTorch, masked softmax"), self.step("kernels.masked_softmax")),
        }

    def kernels(self, form):
        """Milliseconds of the kernels from 0.5 ms on, and of all others together."""
        ran = self.record["kernels"][form]
        label = lambda kernel: next((label for part, label in KERNELS.items() if part in kernel), kernel)
        large = [(label(each["kernel"]), each["us"] / 1e3) for each in ran if each["us"] > 500]
        return [*large, ("all others", sum(each["us"] for each in ran if each["us"] <= 500) / 1e3)]

    def gains(self, way):
        """Of each work: the sum of the four gains, and the gain of all."""
        for work, times in self.passes().items():
            base, *each, fused = times[way]
            yield work, (sum(base / time - 1 for time in each), base / fused - 1)

    def waits_for_host(self, work, form):
        """Whether a pass takes as long as the host needs to start it, and the device less."""
        times, at = self.passes()[work], FORMS.index(form)
        return times["Python"][at] < 1.05 * times["host"][at] and times["graph"][at] < 0.9 * times["host"][at]

    def saved_after_scores(self):
        """By the fused softmax, in a layer whose scores are fused."""
        return self.graph("ASF") - self.both()

    def foretold(self):
        """Time foretold from the pieces over the measured one: one fusion, the other, both."""
        base, saved = self.graph("baseline"), [eager - fused for eager, fused in self.pieces().values()]
        measured = self.graph("ASF"), self.graph("SF"), self.both()
        return [(base - less) / time for less, time in zip((*saved, sum(saved)), measured, strict=True)]


def line(form):
    """Of Table 2: microseconds that a token takes, and nanoseconds for each position of its context."""
    slope, start = np.polyfit(LENGTHS, 1e6 / np.array(THROUGHPUT[form]), 1)
    return start, 1e3 * slope


def pairs():
    """A table: nanoseconds of a pair of tokens by the data sheet of the RTX 4090, and by Table 2."""
    device, flops = DEVICES["rtx4090"], 2 * 16 * (512 + 64 + 512)
    ns = lambda dtype, itemsize, passes: (
        1e9 * (passes * 16 * itemsize / device.bandwidth() + flops / device.rate(dtype))
    )
    rows = [(dtype, ns(dtype, size, 12), ns(dtype, size, 4)) for dtype, size in (("float16", 2), ("float32", 4))]
    rows.append(("Table 2", line("eager")[1], line("fused")[1]))
    return table(("ns", "eager", "fused"), [(name, *(f"{each:.2f}" for each in times)) for name, *times in rows])


def by_bytes(saved_passes):
    """Per cent that the report's layer would gain from fewer passes in float32."""
    total, one_pass = 4 * 4096 / THROUGHPUT["eager"][-1], 4 * 16 * 4096**2 * 4 / DEVICES["rtx4090"].bandwidth()
    return f"{100 * (total / (total - saved_passes * one_pass) - 1):.0f}"


def ablation(found):
    """The layer's forms: milliseconds, gain, gain foretold from the pieces, and the report's."""
    base = found.graph("baseline")
    saved = {name: eager - fused for name, (eager, fused) in zip(("ASF", "SF"), found.pieces().values(), strict=True)}
    saved["ASF and SF"] = sum(saved.values())
    rows = []
    for form, time in {**{form: found.graph(form) for form in FORMS}, "ASF and SF": found.both()}.items():
        foretold = f"{base / (base - saved[form]) - 1:.0%}" if form in saved else ""
        gain = "" if form == "baseline" else f"{base / time - 1:z.1%}"
        rows.append((form, f"{time / 1e3:.2f}", gain, foretold, f"{PUBLISHED[form]:.1%}" if form in PUBLISHED else ""))
    return table(("", "ms", "gain", "foretold", "the report"), rows)


def hosts(found):
    """Each work: the host's share, and gains started from Python and in a graph."""
    gains, rows = {way: dict(found.gains(way)) for way in ("Python", "graph")}, []
    for work, ways in found.passes().items():
        both = [f"{gain:.0%}" for way in gains for gain in gains[way][work]]
        rows.append((work, f"{ways['host'][-1]:.0f}", f"{ways['graph'][-1]:.0f}", *both))
    head = "", "host, µs", "device, µs", "Python: sum", "all", "graph: sum", "all"
    return table(head, rows)


def figures(record):
    found = Ablation(record)
    softmax = lambda variant: f"{fitted(record, 'softmax', '8192x8000', variant):.0f}"
    scores = lambda variant: fitted(record, "scores", "32x128x1024", variant)
    percent = lambda way: f"{100 * dict(found.gains(way))['4 prompts of 1024'][1]:.0f} %"
    return {
        "tiles": rounded({label: scores(variant) for label, variant in TILES.items()}, 1),
        "one_stage_us": f"{scores('16x64x64, 4 warps, 1 stage'):.0f}",
        "three_stages_us": f"{scores('16x64x64, 4 warps'):.0f}",
        "one_head_us": f"{scores('one head, no dot'):.1f}",
        "one_block_us": softmax("fused, 8 warps"),
        "three_loops_us": softmax("three passes of 256, 4 warps"),
        "ablation": ablation(found),
        "sum_of_gains": f"{dict(found.gains('graph'))['4 prompts of 4096'][0]:.0%}",
        "all_gain": f"{dict(found.gains('graph'))['4 prompts of 4096'][1]:.0%}",
        "softmax_saves": " and ".join(
            f"{(old - new) / 1e3:.1f} of {old / 1e3:.1f} ms"
            for old, new in ((found.graph("baseline"), found.graph("SF")), (found.graph("ASF"), found.both()))
        ),
        "expanded_ms": f"{found.layers(4, 4096)['expanded, through cuDNN']['mean_us'] / 1e3:.1f}",
        "all_ms": f"{found.layers(4, 4096)['All']['mean_us'] / 1e3:.1f}",
        "line_eager": "{:.2f} µs and {:.2f} ns for each position of its context".format(*line("eager")),
        "line_fused": "{:.2f} µs and {:.2f} ns".format(*line("fused")),
        "most": f"{100 * (line('eager')[1] / line('fused')[1] - 1):.0f}",
        "pairs": pairs(),
        "asf_by_bytes": by_bytes(6),
        "sf_by_bytes": by_bytes(2),
        "hosts": hosts(found),
        "from_python": percent("Python"),
        "in_a_graph": percent("graph"),
        "peak": " and ".join(f"{gib:.1f} GiB {form}" for form, gib in peaks(found).items()),
    }


def peaks(found):
    """GiB allocated in a pass of 8 prompts of 4096 tokens, in float16."""
    forms = {"in the eager form": "baseline", "with all fusions": "All"}
    return {label: found.layers(8, 4096)[form]["peak_mib"] / 1024 for label, form in forms.items()}


def claims(record):
    found = Ablation(record)
    eager_gib, fused_gib = peaks(found).values()
    graph, passes, gains = found.graph, found.passes(), {way: dict(found.gains(way)) for way in WAYS}
    alone, saved = graph("baseline") - graph("SF"), found.saved_after_scores()
    products = sum(time for _, time in found.kernels("baseline")[:2])
    mask_floor_ms = 2 * 2.147e9 / H100.bandwidth() * 1e3
    return {
        "within_6": all(abs(ratio - 1) < 0.06 for ratio in found.foretold()[:2]),
        "within_12": abs(found.foretold()[2] - 1) < 0.12,
        "the_same_time": 0.9 < saved / alone < 1.1,
        "more_than_half": saved > graph("ASF") / 2,
        "a_little_more": (
            1 < sum(graph("baseline") - graph(each) for each in FUSIONS) / (graph("baseline") - graph("All")) < 1.05
        ),
        "softmax_gains_most": graph("SF") < min(map(graph, ("ASF", "RF", "RPEF"))),
        "as_two_products": 0.85 < found.kernels("All")[0][1] / products < 1.15,
        "three_times": 2.5 < dict(found.kernels("baseline"))["add the mask"] / mask_floor_ms < 3.5,
        "less_than_a_copy": found.step("kernels.masked_softmax") < found.step("copy of the scores"),
        "at_every_length": all(fused > summed for summed, fused in gains["graph"].values()),
        "from_1024_faster": [length for length in LENGTHS if found.faster(length)] == [1024, 2048, 4096],
        "as_the_host": all(found.waits_for_host(work, "All") for work in SHORT),
        "triton_starts_slower": all(passes[work]["host"][-1] > passes[work]["host"][0] for work in SHORT),
        "kept_busy": not found.waits_for_host("4 prompts of 1024", "baseline"),
        "ends_at_the_host": found.waits_for_host("4 prompts of 1024", "All"),
        "fused_would_fit": 2 * fused_gib < 24 < 2 * eager_gib,
        "loses": found.layers(4, 4096)["expanded, through cuDNN"]["mean_us"] < found.layers(4, 4096)["All"]["mean_us"],
    }
