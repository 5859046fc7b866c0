"""Figures that lessons quote from measurements are those of the records in benchmarks/.

After a new measurement a failure says what the record says now, and in which line of which lesson it belongs.
"""

import ast
import functools
import json
import re
from pprint import pformat

import pytest

from autograder.cost_model import FITTED
from autograder.lesson import solutions_folder
from mla_ref import DEVICES

FOLDER = solutions_folder()
RECORDS = FOLDER.parent / "benchmarks"
H100 = DEVICES["h100"]

if not RECORDS.is_dir():
    pytest.skip("the records are in a checkout only", allow_module_level=True)


@functools.cache
def record(name):
    return json.loads((RECORDS / f"{name}.json").read_text())


@functools.cache
def source(lesson):
    return (FOLDER / f"{lesson}.py").read_text()


# What the records say


def model_measured(task, size, variant):
    """Microseconds in a CUDA graph."""
    cases = record("model_measured")["cases"]
    return next(c for c in cases if (c["task"], c["size"], c["variant"]) == (task, size, variant))["graph"]["us"]


FUSIONS = ("ASF", "SF", "RF", "RPEF")
WAYS = {"host": "host_us", "Python": "mean_us", "graph": "graph_us"}


def layers(B, L):
    return next(each["layers"] for each in record("ablation_h100")["sizes"] if (each["B"], each["L"]) == (B, L))


def passes():
    found = {f"4 prompts of {L}": layers(4, L) for L in (512, 1024, 4096)}
    found["decode, 4 at 4096"] = record("ablation_h100")["decode"][0]["layers"]
    return {
        work: {way: tuple(row[form][key] for form in ("baseline", *FUSIONS, "All")) for way, key in WAYS.items()}
        for work, row in found.items()
    }


def both_fused():
    return record("ablation_h100")["subsets"]["ASF+SF"]["graph_us"]


def step(name):
    return record("ablation_h100")["steps"][name]["us"]


def pieces():
    return {
        "scores": (step("PyTorch, two products"), step("kernels.attention_score")),
        "softmax": (step("PyTorch, masked softmax"), step("kernels.masked_softmax")),
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


def kernels(form):
    """Milliseconds of the kernels from 0.5 ms on, and of all others together."""
    ran = record("ablation_h100")["kernels"][form]
    label = lambda kernel: next((label for part, label in KERNELS.items() if part in kernel), kernel)
    large = [(label(each["kernel"]), each["us"] / 1e3) for each in ran if each["us"] > 500]
    return [*large, ("all others", sum(each["us"] for each in ran if each["us"] <= 500) / 1e3)]


def gains(way):
    """Of each work: the sum of the four gains, and the gain of all."""
    for times in passes().values():
        base, *each, fused = times[way]
        yield sum(base / time - 1 for time in each), base / fused - 1


def gain(work, way):
    """The gain of all."""
    return dict(zip(passes(), gains(way), strict=True))[work][1]


def decode(B, S, H, T, call, figure="cold_us"):
    rows = record("decode_h100")["decode"]
    return next(r for r in rows if (r["B"], r["S"], r["H"], r["T"]) == (B, S, H, T))["calls"][call][figure]


CALLS = ("kernels.latent_attention", "kernels.latent_attention_tma", "FlashMLA", "vLLM")


def decode_steps():
    steps = (128, 16, 4096), (128, 128, 4096), (1, 16, 8192), (16, 16, 8192)
    return {(B, H, T): {call.removeprefix("kernels."): decode(B, 1, H, T, call) for call in CALLS} for B, H, T in steps}


def by_splits():
    one, some = "16 heads, 64 tokens, 8 warps", "16 splits, 64 tokens, 8 warps"
    sizes = {8: "8x16x4096", 128: "128x16x1024"}
    return {
        B: {n: model_measured("decode", size, variant) for n, variant in ((1, one), (16, some))}
        for B, size in sizes.items()
    }


def tiles():
    variants = {"16 × 16, 1 warp": "16x16x16, 1 warp", "16 × 64": "16x64x64, 4 warps"}
    variants |= {"64 × 128": "64x128x64, 8 warps", "128 × 128": "128x128x64, 8 warps"}
    return {label: model_measured("scores", "32x128x1024", variant) for label, variant in variants.items()}


def shared(model, B):
    return next(row for row in record("crossover_h100")["shared"][model]["rows"] if row["B"] == B)


def shared_rows():
    models = {"DeepSeek-V3": "deepseek_v3", "Kimi K2": "kimi_k2"}
    rows = lambda model: record("crossover_h100")["shared"][model]["rows"]
    return {name: [[r["B"], r["naive_us"], r["absorb_us"]] for r in rows(model)] for name, model in models.items()}


def own_rows():
    rows = record("crossover_h100")["own"]["deepseek_v3"]["rows"]
    return {row["B"]: (row["naive_us"], row["absorb_us"]) for row in rows}


def folded(call):
    return shared("deepseek_v3", 128)["calls"][call]["cold_us"]


def ceiling(name):
    return record("ceilings_h100")["ceilings"][name]["median"]


def break_even(rate, bandwidth):
    """Of DeepSeek-V3 with one new token and words of two bytes."""
    return 2 * (128 + 64 + 128) / bandwidth / (2 * (2 * 512 + 64) / rate)


def predicted(ceilings):
    return record("crossover_h100")["shared"]["deepseek_v3"]["predicted"][ceilings]


def spread():
    """The largest distance of a fastest call's rounds, relative to the median."""
    for model in record("crossover_h100")["shared"].values():
        for row in model["rows"]:
            for best in (row["calls"][row["naive_best"]], row["calls"][row["absorb_best"]]):
                yield (best["cold_high_us"] - best["cold_low_us"]) / best["cold_us"]


def graph(form):
    return layers(4, 4096)[form]["graph_us"]


def saved_after():
    """By the fused softmax, in a layer whose scores are fused."""
    return graph("ASF") - both_fused()


def foretold_and_measured():
    saved = [eager - fused for eager, fused in pieces().values()]
    base = graph("baseline")
    return [(base - saved[0], graph("ASF")), (base - saved[1], graph("SF")), (base - sum(saved), both_fused())]


def waits_for_host(work, form):
    """Whether a pass takes as long as the host needs to start it, and the device less."""
    times = passes()[work]
    return times["Python"][form] < 1.05 * times["host"][form] and times["graph"][form] < 0.9 * times["host"][form]


def literal(lesson, name):
    """What a lesson assigns to a name."""
    (value,) = (
        node.value
        for node in ast.parse(source(lesson)).body
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == [name]
    )
    return ast.literal_eval(value)


def paged(part):
    """Rows of the record by batch and length."""
    return {(row["B"], row["L"]): row for row in record("paged_h100")[part]}


def held():
    names = "contiguous, 32 × 16384", "the report's pool, 564 pages of 1024"
    names += "a pool that grows, pages of 1024", "a pool that grows, pages of 64"
    return dict(zip(names, paged("memory")[4, 512]["held_bytes"].values(), strict=True))


def growth():
    found = record("paged_h100")["growth"].items()
    return {name: (row["held_bytes"], row["peak_bytes"]) for name, row in found if isinstance(row, dict)}


CACHES = "basic", "batched kernels, table walked by the host", "batched kernels"


def rates(phase):
    rows = paged("throughput").items()
    return {size: tuple(row[phase][name]["tokens_per_s"] for name in CACHES) for size, row in rows}


def token_us(cache):
    """Microseconds a token of the prefills takes."""
    return [1e6 / each[CACHES.index(cache)] for each in rates("prefill").values()]


def step_ms(cache):
    return paged("throughput")[8, 4096]["decode"][cache]["ms"]


def paging(kind, size, figure):
    """Of `paged_update` with a token for each of 128 sequences, or of `paged_gather` of 128 of 4096."""
    (row,) = (
        row
        for row in record("paged_h100")[kind]
        if (row["B"], row.get("S", 1), row.get("T", 4096), row["page_size"]) == (128, 1, 4096, size)
    )
    return row["calls"][f"kernels.paged_{kind}"][figure]


PAGE_SIZES = 1, 16, 64, 1024


def update_host_us():
    return [paging("update", size, "host_us") for size in PAGE_SIZES]


def with_and_without_pages():
    rows = {f"H = {H}, {way}": (H, end) for H in (16, 128) for way, end in (("per token", ""), ("ahead", "_tma"))}
    step = lambda kind, H, end: decode(128, 1, H, 4096, f"kernels.{kind}latent_attention{end}")
    return {name: tuple(step(kind, *row) for kind in ("", "paged_")) for name, row in rows.items()}


def cost_of_pages(way):
    """By the kernel that looks up pages in this way, relative to the same without a table: for H = 16 and 128."""
    return [paged / contiguous - 1 for name, (contiguous, paged) in with_and_without_pages().items() if way in name]


def flash_mla():
    return {H: decode(128, 1, H, 4096, "FlashMLA") for H in (16, 128)}


def behind_flash_mla(H):
    """Time of the kernel that looks ahead, relative to FlashMLA's."""
    return with_and_without_pages()[f"H = {H}, ahead"][1] / flash_mla()[H]


def gather_step():
    return {"gather": paging("gather", 64, "cold_us"), "decode": with_and_without_pages()["H = 16, ahead"][0]}


def report_gains():
    """Whether the rates copied from the report's Table 5 give the gains printed in it, and those are the record's."""
    gains = {size: row["gain_in_the_report_percent"] for size, row in paged("throughput").items()}
    copied = literal(PAGING, "REPORT")
    computed = (abs(100 * (after / before - 1) - gain) < 0.4 for before, after, gain in copied.values())
    return all(computed) and {size: gain for size, (_, _, gain) in copied.items()} == gains


ABLATION, ROOFLINE, DECODING = "05_fused_scores_softmax", "08_roofline", "06_flash_decoding"
PAGING = "07_paged_cache"

# Constants in the code: lesson, name, digits after the point, what the record says
CONSTANTS = (
    (ABLATION, "H100_TILES", 1, tiles),
    (ABLATION, "H100_PIECES", 1, pieces),
    (ABLATION, "H100_PASSES", 1, passes),
    (ABLATION, "H100_ASF_AND_SF", 1, both_fused),
    (ABLATION, "H100_KERNELS", 2, lambda: {form: kernels(form) for form in ("baseline", "All")}),
    (ABLATION, "H100_PEAK_MIB", 0, lambda: {form: layers(8, 4096)[form]["peak_mib"] for form in ("baseline", "All")}),
    (ABLATION, "H100_EXPANDED", 1, lambda: layers(4, 4096)["expanded, through cuDNN"]["mean_us"]),
    (DECODING, "H100_DECODE", 1, decode_steps),
    (DECODING, "H100_SPLITS", 0, by_splits),
    (
        PAGING,
        "PRINTED",
        2,
        lambda: {size: row["saving_in_the_report_percent"] for size, row in paged("memory").items()},
    ),
    (PAGING, "HELD", 0, held),
    (PAGING, "GROWTH", 0, growth),
    (PAGING, "PREFILL", 0, lambda: rates("prefill")),
    (PAGING, "DECODE", 2, lambda: rates("decode")),
    (PAGING, "UPDATE_US", 3, lambda: {size: paging("update", size, "graph_us") for size in PAGE_SIZES}),
    (PAGING, "GATHER_GB_PER_S", 1, lambda: {size: paging("gather", size, "gb_per_s") for size in PAGE_SIZES}),
    (PAGING, "STEP_US", 1, gather_step),
    (PAGING, "DECODE_US", 2, with_and_without_pages),
    (PAGING, "FLASHMLA_US", 2, flash_mla),
    (ROOFLINE, "H100_ROWS", 1, shared_rows),
    (ROOFLINE, "H100_OWN", 1, own_rows),
)

# Figures in the text: lesson, words, what the record says for each pair of braces
FIGURES = (
    (
        ABLATION,
        "A program per head, which multiplies without `tl.dot`, took {:.1f} µs",
        lambda: [model_measured("scores", "32x128x1024", "one head, no dot")],
    ),
    (
        ABLATION,
        "against three loops of 256: {:.0f} and {:.0f} µs",
        lambda: [
            model_measured("softmax", "8192x8000", variant)
            for variant in ("fused, 8 warps", "three passes of 256, 4 warps")
        ],
    ),
    (DECODING, "8 sequences of 4096 tokens, one program each, take {:.0f} µs", lambda: [by_splits()[8][1]]),
    (
        DECODING,
        "a program of 16 heads needs {:.1f} µs for a block of 64 tokens ({:.0f} µs for 64 blocks",
        lambda: [by_splits()[8][1] / 64, by_splits()[8][1]],
    ),
    (DECODING, "memory gives {:.1f} TB/s", lambda: [record("decode_h100")["copy_bytes_per_s"] / 1e12]),
    (
        DECODING,
        "a launch takes {:.1f} µs and a further one {:.1f} µs",
        lambda: [1e6 * json.loads(FITTED.read_text())["constants"][name] for name in ("launch", "next_launch")],
    ),
    (DECODING, "128 sequences are {:.1f} times as slow", lambda: [by_splits()[128][16] / by_splits()[128][1]]),
    (
        DECODING,
        "`latent_attention` takes {:.1f} µs. Here latency decides",
        lambda: [decode(1, 1, 16, 8192, "kernels.latent_attention", "graph_us")],
    ),
    (
        DECODING,
        "`latent_attention_tma` takes {:.0f} µs. The floor",
        lambda: [decode(4, 4, 16, 81920, "kernels.latent_attention_tma")],
    ),
    (
        PAGING,
        "The {:.1f} µs of launching are the GPU's",
        lambda: [1e6 * json.loads(FITTED.read_text())["constants"]["launch"]],
    ),
    (
        PAGING,
        "A gain of {:,.0f} % is not a better kernel",
        lambda: [round(max(100 * (fast / slow - 1) for slow, _, fast in rates("decode").values()), -3)],
    ),
    (
        PAGING,
        "the walked one here {:.0f} µs",
        lambda: [token_us(CACHES[1])[3]],
    ),
    (PAGING, "which takes about {:.0f} µs, and the GPU waits", lambda: [token_us("basic")[3] / 4]),
    (
        PAGING,
        "The same change gains {:.0f} to {:.0f} % here, because basic is slower: {:.0f} to {:.0f} µs a token",
        lambda: [
            *(f([100 * (walked / slow - 1) for slow, walked, _ in rates("prefill").values()]) for f in (min, max)),
            *(f(token_us("basic")) for f in (min, max)),
        ],
    ),
    (
        PAGING,
        "takes {:.2f} ms with batched kernels, and {:.2f} ms with a contiguous cache",
        lambda: [step_ms("batched kernels"), step_ms("contiguous, by slices")],
    ),
    (PAGING, "a single token are gathered at {:.2f} TB/s", lambda: [paging("gather", 1, "gb_per_s") / 1e3]),
    (PAGING, "A plain copy reaches {:.2f} TB/s", lambda: [record("paged_h100")["copy_bytes_per_s"] / 1e12]),
    (
        PAGING,
        "the same update takes {:.0f} to {:.0f} µs of the host's time",
        lambda: [min(update_host_us()), max(update_host_us())],
    ),
    (
        PAGING,
        "timed cold it takes {:.1f} to {:.1f} µs for every size",
        lambda: [f(paging("update", size, "cold_us") for size in PAGE_SIZES) for f in (min, max)],
    ),
    (
        PAGING,
        "pages add {:.0f} % for H = 16, and {:.0f} % for H = 128",
        lambda: [100 * cost for cost in cost_of_pages("per token")],
    ),
    (PAGING, "A gather in front adds {:.0f} %", lambda: [100 * gather_step()["gather"] / gather_step()["decode"]]),
    (
        PAGING,
        'is {:.0f} % slower than "ahead" for H = 16. For H = 128 it is {:.1f} times as fast',
        lambda: [100 * (1 / behind_flash_mla(16) - 1), behind_flash_mla(128)],
    ),
    (
        ROOFLINE,
        "| {:.0f} TFLOP/s, product of 8192³ | {:,.0f} GB/s, copy",
        lambda: [H100.rate(measured=True) / 1e12, H100.bandwidth(measured=True) / 1e9],
    ),
    (
        ROOFLINE,
        "came to {:.0f} TFLOP/s and {:,.0f} GB/s (`benchmarks/ceilings_h100.json`): {:.0f} instead of {:.0f}",
        lambda: [
            ceiling("matmul_bfloat16_flop_per_s") / 1e12,
            ceiling("copy_bytes_per_s") / 1e9,
            break_even(ceiling("matmul_bfloat16_flop_per_s"), ceiling("copy_bytes_per_s")),
            break_even(H100.rate(measured=True), H100.bandwidth(measured=True)),
        ],
    ),
    (
        ROOFLINE,
        "Predicted were {:.0f} by the data sheet and {:.0f} by measured ceilings",
        lambda: map(predicted, ("data sheet", "measured ceilings")),
    ),
    (
        ROOFLINE,
        "The clock shows {:.0f} µs for a kernel that does nothing",
        lambda: [record("crossover_h100")["empty_us"]],
    ),
    (
        ROOFLINE,
        "Measured: **{:.0f}** for DeepSeek-V3 and **{:.0f}** for Kimi K2",
        lambda: [record("crossover_h100")["shared"][model]["crossover"] for model in ("deepseek_v3", "kimi_k2")],
    ),
    (
        ROOFLINE,
        "the rate drops from {:.0f} to {:.0f} TFLOP/s. Far out it is {:.0f}",
        lambda: [shared("deepseek_v3", B)["absorb_tflop_per_s"] for B in (32, 48, 1024)],
    ),
    (ROOFLINE, "{:.0f} µs at B = 80, where the copy", lambda: [shared("kimi_k2", 80)["naive_us"]]),
    (ROOFLINE, "At B = 1 absorb takes {:.0f} µs", lambda: [shared("deepseek_v3", 1)["absorb_us"]]),
    (
        ROOFLINE,
        "It took {:.0f} µs where the same kernel with folded queries took {:.0f}",
        lambda: [folded("kernels.latent_attention, per sequence"), folded("kernels.latent_attention")],
    ),
    (
        ROOFLINE,
        "cuDNN's naive reached {:.0f} TFLOP/s at B = 1024, {:.0f} % of the data sheet's 989, and absorb {:.0f}",
        lambda: [
            shared("deepseek_v3", 1024)["naive_tflop_per_s"],
            shared("deepseek_v3", 1024)["naive_tflop_per_s"] * 1e14 / H100.rate(),
            shared("deepseek_v3", 1024)["absorb_tflop_per_s"],
        ],
    ),
    (ROOFLINE, "no more than {:.0f} of 744 TFLOP/s", lambda: [shared("deepseek_v3", 1024)["absorb_tflop_per_s"]]),
    (ROOFLINE, "{:.0f} times slower stays slower", lambda: [own_rows()[64][0] / own_rows()[64][1]]),
)

# What the text claims in words: lesson, words, whether the record bears them out
CLAIMS = (
    (
        ABLATION,
        "foretell what the layer gains: its time within 6 % for one fusion, within 12 % for both",
        lambda: all(
            abs(foretold / measured - 1) < bound
            for (foretold, measured), bound in zip(foretold_and_measured(), (0.06, 0.06, 0.12), strict=True)
        ),
    ),
    (
        ABLATION,
        "The fused softmax saves nearly the same time in both layers",
        lambda: 0.9 < saved_after() / (graph("baseline") - graph("SF")) < 1.1,
    ),
    (ABLATION, "more than half of a time saved", lambda: saved_after() > graph("ASF") / 2),
    (
        ABLATION,
        "their times saved, added up, come to a little more than was measured",
        lambda: (
            1 < sum(graph("baseline") - graph(each) for each in FUSIONS) / (graph("baseline") - graph("All")) < 1.05
        ),
    ),
    (ABLATION, "on the H100 the softmax gains most", lambda: graph("SF") < min(map(graph, ("ASF", "RF", "RPEF")))),
    (
        ABLATION,
        "The fused kernel takes about as long as the two products of cuBLAS",
        lambda: 0.85 < kernels("All")[0][1] / sum(time for _, time in kernels("baseline")[:2]) < 1.15,
    ),
    (
        ABLATION,
        "took about three times as long",
        lambda: 2.5 < dict(kernels("baseline"))["add the mask"] / (2 * 2.147e9 / H100.bandwidth() * 1e3) < 3.5,
    ),
    (
        ABLATION,
        "it takes less time than a copy of them would",
        lambda: step("kernels.masked_softmax") < step("copy of the scores"),
    ),
    (ABLATION, "In a graph, all gain more than the sum at every length", lambda: all(a > s for s, a in gains("graph"))),
    (
        ABLATION,
        "From Python all fused is faster at 1024 and 4096 tokens alone, and at 1024 by less than in a graph",
        lambda: (
            [gain > 0 for _, gain in gains("Python")] == [False, True, True, False]
            and gain("4 prompts of 1024", "Python") < gain("4 prompts of 1024", "graph")
        ),
    ),
    (
        ABLATION,
        "A pass takes as long as the host",
        lambda: all(waits_for_host(work, -1) for work in ("4 prompts of 512", "decode, 4 at 4096")),
    ),
    (
        ABLATION,
        "takes Python longer than one of PyTorch's own",
        lambda: all(
            passes()[work]["host"][-1] > passes()[work]["host"][0] for work in ("4 prompts of 512", "decode, 4 at 4096")
        ),
    ),
    (
        ABLATION,
        "With 1024 tokens the eager layer keeps the device busy",
        lambda: not waits_for_host("4 prompts of 1024", 0),
    ),
    (ABLATION, "so its gain ends at the host's time", lambda: waits_for_host("4 prompts of 1024", -1)),
    (
        ABLATION,
        "The best fusion of the wrong form loses to the right form",
        lambda: layers(4, 4096)["expanded, through cuDNN"]["mean_us"] < layers(4, 4096)["All"]["mean_us"],
    ),
    (DECODING, "With 16 heads all are near the floor", lambda: max(decode_steps()[128, 16, 4096].values()) < 1.4 * 181),
    (
        DECODING,
        "Eight sequences are six times as fast with 16 splits",
        lambda: 5.5 < by_splits()[8][1] / by_splits()[8][16] < 6.5,
    ),
    (
        PAGING,
        "Every printed digit is there",
        lambda: all(
            row["saving_printed_percent"] == row["saving_in_the_report_percent"] for row in paged("memory").values()
        ),
    ),
    (
        PAGING,
        "The pool that saves 99.29 % of itself holds 10 % more",
        lambda: paged("memory")[4, 512]["saving_held_percent"]["the report's pool"] == -10.16,
    ),
    (PAGING, "The report's Table 5 compares", report_gains),
    (
        PAGING,
        "The update takes a quarter longer with pages of 64 and more",
        lambda: all(
            1.2 < paging("update", large, "graph_us") / paging("update", small, "graph_us") < 1.3
            for small in PAGE_SIZES[:2]
            for large in PAGE_SIZES[2:]
        ),
    ),
    (
        PAGING,
        "for H = 128, where by pointers the contiguous twin is slow already",
        lambda: with_and_without_pages()["H = 128, per token"][0] > 3 * with_and_without_pages()["H = 128, ahead"][0],
    ),
    (
        PAGING,
        "Ahead and by descriptors they add 3 % at most",
        lambda: max(cost_of_pages("ahead")) <= 0.03,
    ),
    (PAGING, "by descriptors, paging costs 3 % at most", lambda: max(cost_of_pages("ahead")) <= 0.03),
    (ROOFLINE, "no rounds of a fastest call were more than 3 % apart", lambda: max(spread()) <= 0.03),
    (
        ROOFLINE,
        "Naive comes to 94 % of its roofline and better",
        lambda: (
            min(
                row["naive_floor_us"]["measured ceilings"] / row["naive_us"]
                for row in record("crossover_h100")["own"]["deepseek_v3"]["rows"]
            )
            > 0.935
        ),
    ),
)


# Comparing


def agrees(printed, recorded, digits):
    if isinstance(recorded, dict):
        same = isinstance(printed, dict) and list(printed) == list(recorded)
        return same and all(agrees(printed[key], recorded[key], digits) for key in recorded)
    if isinstance(recorded, list | tuple):
        return len(printed) == len(recorded) and all(map(agrees, printed, recorded, [digits] * len(recorded)))
    if isinstance(recorded, str):
        return printed == recorded
    return abs(printed - recorded) <= 0.5001 * 10**-digits


def rounded(value, digits):
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(each, digits) for each in value)
    return round(value, digits or None) if isinstance(value, float) else value


def place(lesson, offset):
    return f"solutions/{lesson}.py:{source(lesson).count(chr(10), 0, offset) + 1}"


def pattern(words):
    """Match the words in comments of a script, wherever lines break."""
    return r"(?:\s|#)+".join(words.split())


@pytest.mark.parametrize(("lesson", "name", "digits", "recorded"), CONSTANTS, ids=[each[1] for each in CONSTANTS])
def test_constants_are_those_of_the_record(lesson, name, digits, recorded):
    assigned = [
        node
        for node in ast.parse(source(lesson)).body
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == [name]
    ]
    assert len(assigned) == 1, f"{lesson}: expected one assignment to {name}"
    if not agrees(ast.literal_eval(assigned[0].value), recorded(), digits):
        text = pformat(rounded(recorded(), digits), width=110, sort_dicts=False, compact=True)
        pytest.fail(
            f"solutions/{lesson}.py:{assigned[0].lineno}: by the record it is now\n{name} = {text}", pytrace=False
        )


@pytest.mark.parametrize(("lesson", "words", "recorded"), FIGURES, ids=[each[1][:40] for each in FIGURES])
def test_figures_in_the_text_are_those_of_the_record(lesson, words, recorded):
    expected = words.format(*recorded())
    if re.search(pattern(re.escape(expected).replace(r"\ ", " ")), source(lesson)):
        return
    gaps = re.sub(r"\\\{.*?\\\}", r"[\\d.,]+", re.escape(words).replace(r"\ ", " "))
    found = re.search(pattern(gaps), source(lesson))
    where = place(lesson, found.start()) if found else f"solutions/{lesson}.py, which has no such words:"
    pytest.fail(f"{where} by the record: {expected}", pytrace=False)


@pytest.mark.parametrize(("lesson", "words", "holds"), CLAIMS, ids=[each[1][:40] for each in CLAIMS])
def test_claims_of_the_text_are_borne_out_by_the_record(lesson, words, holds):
    found = re.search(pattern(re.escape(words).replace(r"\ ", " ")), source(lesson))
    assert found, f"{lesson} has no such words: {words}"
    if not holds():
        pytest.fail(
            f"{place(lesson, found.start())} the record does not bear this out any more: {words}", pytrace=False
        )
