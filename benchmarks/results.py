"""Print the README's tables of results from the records beside this script, or write them into the README.

.venv/bin/python benchmarks/results.py [--write]
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from ablation import ABLATED, PAPER_GAIN, PAPER_THROUGHPUT

from mla_ref import DEVICES, Device, MLAConfig, break_even_batch

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
START, END = "<!-- benchmarks/results.py -->\n\n", "\n\n<!-- end -->\n"

Row = tuple[str, str, str]

NORMS = [(131072, 512), (16384, 7168)]
ROPES = [(4, 4096, 128), (4, 4096, 16)]
DECODES = [(1, 16, 8192), (16, 16, 8192), (128, 16, 4096), (1, 128, 8192), (128, 128, 4096)]  # B, H, T
MODELS = {"deepseek_v3": "DeepSeek-V3", "kimi_k2": "Kimi K2"}
CEILINGS = {"data sheet": "the data sheet", "measured ceilings": "the ceilings in `mla_ref.hardware.devices`"}
PACKAGES = {"torch": "torch", "triton": "Triton", "driver": "driver", "nbgrader": "nbgrader"}
PROMISED = {  # by promise: its name, its figure, and more of that; lists in the record are counted
    "cheats": ("no cheat passes", "{accepted} of {attacks} attacks accepted", "each a file in `tests/attacks`"),
    "honest": (
        "no honest student fails",
        "{rejected} rejections of {variants} variants on {seeds} seeds each",
        "prints and warnings included",
    ),
    "forged": (
        "no verdict by students' code",
        "{passed} of {replies:,} forged replies and {programs:,} forged programs passed",
        "{crashes} crashes of the judge",
    ),
    "stopping": (
        "it always ends",
        "{attacks} hangs and bombs decided at most {most_seconds_over_the_limit:.1f} s after the limit",
        "{survivors} processes left",
    ),
    "kills": (
        "no grade is lost",
        "{differing_grades} grades of {submissions} submissions differ after {kills} kills",
        "resumed until all were graded",
    ),
    "interference": (
        "no interference",
        "{differing} of {honest} submissions graded otherwise beside {hostile} hostile ones",
        "than alone, byte for byte",
    ),
    "leaks": (
        "no leaks",
        "{read_in_the_sandbox} of {canaries} canaries read in the sandbox",
        "{shown_in_feedback} shown in feedback",
    ),
    "triton_ran": (
        "Triton really ran",
        "{missed} of {fakes} fakes missed",
        "{flagged} of {honest_kernels} honest kernels flagged",
    ),
    "speed": (
        "speed is fair",
        "{same_grade_percent:g} % of {repeats} repetitions give one grade; twins that move 10 % more rank below in "
        "{slower_twin_below_percent:g} %",
        "{above_the_roofline} of {modelled} times above the roofline",
    ),
    "faults": ("faults are named", "{wrong_labels} of {faults} injected faults misnamed", "a grader's is never a zero"),
}
GPU_RECORDS = [
    f"{each}_h100" for each in ("ceilings", "norm_rope", "ablation", "decode", "paged", "crossover", "judged")
]


def main(arguments: list[str]) -> None:
    """Print the tables, or put them between the README's two comments."""
    if arguments != ["--write"]:
        print(tables())
        return
    head, _, rest = README.read_text().partition(START)
    _, end, tail = rest.partition(END)
    if not end:
        sys.exit(f"{README} has no pair of lines {START.strip()} and {END.strip()}, between which the tables go")
    README.write_text(f"{head}{START}{tables()}{END}{tail}")


def load(name: str) -> dict[str, Any]:
    """Return the record `NAME.json`."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def tables() -> str:
    """Return the results as Markdown tables, one for each machine that was measured."""
    parts = [(GPU_RECORDS, [*ceilings(), *norm_and_rope(), *layer(), *decode(), *paged(), *crossover(), *judged()])]
    others = {"prefix_h200": prefix, "reconstruction_h200": reconstruction, "prefill_h200": prefill}
    others |= {
        "hopper_decode_h200": hopper,
        "challenge_h200": challenge,
        "generation_h200": generation,
        "byte_model_h200": byte_model,
    }
    others |= {"perplexity": perplexity}
    others |= dict(
        grading=grading,
        emulator=emulator,
        verdicts=verdicts,
        demo=demo,
        promises=promises,
        mutation=mutation,
        model_validation=model,
    )
    for name, rows in ((each, rows()) for each, rows in others.items()):
        names, before = parts[-1]
        if device(names) == device([name]):
            parts[-1] = [*names, name], [*before, *rows]
        else:
            parts.append(([name], rows))
    return "\n\n".join(
        f"| on an {device(names)} | ours | beside |\n|---|---|---|\n" + "\n".join(map(line, [*rows, versions(names)]))
        for names, rows in parts
    )


def origins(names: list[str]) -> list[dict[str, Any]]:
    """Return what says date, device and versions: records, and parts of records that were measured apart."""
    records = [load(name) for name in names]
    parts = [part for each in records if isinstance(each.get("lessons"), dict) for part in each["lessons"].values()]
    return records + [part for part in parts if "device" in part]


def device(names: list[str]) -> str:
    """Return the device of the records, which must be one."""
    devices = {each["device"] for each in origins(names)}
    if len(devices) > 1:
        sys.exit(f"the records {', '.join(names)} are of several devices, expected one: {', '.join(sorted(devices))}")
    return devices.pop()


def versions(names: list[str]) -> Row:
    """Return with what the records were measured, and when."""
    found, dates = origins(names), sorted({each["date"] for each in origins(names)})
    used = {
        name: sorted({each["versions"][package] for each in found if package in each["versions"]})
        for package, name in PACKAGES.items()
    }
    with_ = ", ".join(f"{name} {' and '.join(each)}" for name, each in used.items() if each)
    return "measured with", with_, " to ".join(dict.fromkeys((dates[0], dates[-1])))


def line(row: Row) -> str:
    return f"| {' | '.join(row)} |"


def ceilings() -> list[Row]:
    """Return what the device reaches at best."""
    found = as_measured()
    return [
        ("copy, read plus written", f"{found.bandwidth(measured=True) / 1e9:,.0f} GB/s", ""),
        ("bfloat16 8192³ product", f"{found.rate(measured=True) / 1e12:.0f} TFLOP/s", ""),
    ]


def norm_and_rope() -> list[Row]:
    """Return RMSNorm and RoPE beside compilers and libraries."""
    found, rows = load("norm_rope_h100"), []
    for n, width in NORMS:
        calls = pick(found["rms_norm"], rows=n, width=width)["calls"]
        rows.append((f"`rms_norm` {n}×{width}", speed(calls["kernels.rms_norm"]), compiled(calls)))
    for B, S, H in ROPES:
        calls = pick(found["rope"], B=B, S=S, H=H)["calls"]
        rows.append((f"`apply_rope_qk` B={B} S={S} H={H}", speed(calls["kernels.apply_rope_qk"]), compiled(calls)))
    return rows


def layer() -> list[Row]:
    """Return Tables 2 and 3 of the report at one size: a prefill, its kernels fused all together and one by one."""
    layers = pick(load("ablation_h100")["sizes"], B=ABLATED[0], L=ABLATED[1])["layers"]
    rate = {name: each["tokens_per_s"] for name, each in layers.items() if each}
    gains = {name: each / rate["baseline"] - 1 for name, each in rate.items()}
    before, after, _ = PAPER_THROUGHPUT[ABLATED]
    others = [f"{name} {rate[name] / 1e3:,.0f}" for name in ("baseline", "DeepSeek's own") if name in rate]
    others.append(f"the report on an RTX 4090: {after / 1e3:.0f} over {before / 1e3:.0f}, {PAPER_GAIN['All']:+.1%}")
    alone = [name for name in PAPER_GAIN if name != "All"]
    own = [name for name in (*alone, "flash decoding") if name in rate]
    step = load("ablation_h100")["decode"][-1]
    spent = {name: f"{each['graph_us']:.0f} µs" for name, each in step["layers"].items()}
    fused = spent.pop("RF, RPEF and flash decoding")
    return [
        (
            "MLA layer, all fusions, prefill {}×{}".format(*ABLATED),
            f"{rate['All'] / 1e3:,.0f} thousand tokens/s, {gains['All']:+.1%}",
            "; ".join(others),
        ),
        (
            "each fusion alone",
            ", ".join(f"{name} {gains[name]:+.1%}" for name in own),
            "the report: " + ", ".join(f"{name} {PAPER_GAIN[name]:+.2%}" for name in alone),
        ),
        (
            f"MLA layer, one token more for {step['B']}×{step['T']}, in a CUDA graph",
            f"{fused} with RF, RPEF and flash decoding",
            ", ".join(f"{name} {time}" for name, time in spent.items()),
        ),
    ]


def decode() -> list[Row]:
    """Return absorbed decode: the best of our kernels over pages and over one buffer, and peers, over pages."""
    rows = []
    for B, H, T in DECODES:
        calls = pick(load("decode_h100")["decode"], B=B, S=1, H=H, T=T)["calls"]
        pages, buffer = (fastest(calls, f"kernels.{kind}latent_attention") for kind in ("paged_", ""))
        ours = f"pages {pages['cold_us']:.1f} µs; one buffer {speed(buffer)}, {buffer['tflop_per_s']:.0f} TFLOP/s"
        peers = [
            f"{name} {each['cold_us']:.1f} µs{each.get('note', '')}"
            for name, each in calls.items()
            if not name.startswith("kernels.")
        ]
        rows.append((f"MLA decode B={B} H={H} T={T}", ours, "; ".join(peers)))
    return rows


def paged() -> list[Row]:
    """Return the kernels of the paged cache, and Table 5 of the report."""
    found = load("paged_h100")
    update, gather = (pick(found["update"], B=128, S=1, page_size=64), pick(found["gather"], B=128, page_size=64))
    written, copied = update["calls"].pop("kernels.paged_update"), gather["calls"].pop("kernels.paged_gather")
    (other, writing), (select, copying) = (next(iter(each["calls"].items())) for each in (update, gather))
    basic, walked, batched = (
        [row["prefill"][name]["tokens_per_s"] for row in found["throughput"]]
        for name in ("basic", "batched kernels, table walked by the host", "batched kernels")
    )
    report = span([1 + row["gain_in_the_report_percent"] / 100 for row in found["throughput"]])
    rows = [
        (
            "`paged_update`, one token for each of 128 sequences, in a CUDA graph",
            f"{written['graph_us']:.1f} µs",
            f"{other} {writing['graph_us']:.1f} µs",
        ),
        ("`paged_gather` of 128×4096 tokens", speed(copied), f"{select} {copying['cold_us']:.1f} µs"),
        (
            "prefill over a paged cache, batched over token by token",
            f"{span(batched, basic)} times the tokens/s",
            f"the host asking the table about each token: {span(walked, basic)} times; the report: {report} times",
        ),
    ]
    last = found["throughput"][-1]
    steps = {name: f"{each['tokens_per_s']:,.0f}" for name, each in last["decode"].items()}
    if straight := steps.get("straight from the pages"):
        others = ("batched kernels, pages of 64", "contiguous, by slices, the same kernel", "basic")
        work = f"decode of a layer straight from the pages, {last['B']}×{last['L']}, by the host's clock"
        rows.append((work, f"{straight} tokens/s", "; ".join(f"{name}: {steps[name]}" for name in others)))
    return rows


def crossover() -> list[Row]:
    """Return from which batch on naive beats absorb, predicted and measured."""
    found = load("crossover_h100")
    rows = {MODELS[model]: each for model, each in found["shared"].items()}
    measured = ", ".join(f"{model} B = {each['crossover']:.0f}" for model, each in rows.items())
    predicted = next(iter(rows.values()))["predicted"]
    assert all(each["predicted"] == predicted for each in rows.values())
    above = break_even_batch(MLAConfig.preset("deepseek_v3"), as_measured(), measured=True)
    beside = ", ".join(f"{value:.0f} by {CEILINGS[source]}" for source, value in predicted.items())
    beside += f", {above:.0f} by those above"
    return [(f"naive beats absorb on a shared prefix of {found['context']} from", measured, f"roofline: {beside}")]


def prefix() -> list[Row]:
    """Return decode over shared prefixes beside absorb alone."""
    found, rows = load("prefix_h200"), []
    for model, name in MODELS.items():
        cases = [
            each for each in found["one_level"] if (each["model"], each["prompt"], each["data"]) == (model, "A", "mmlu")
        ]
        batches = ", ".join(f"B={each['B']} {each['speedup']:.2f}" for each in cases)
        in_graphs = ", ".join(f"{each['speedup_in_graphs']:.2f}" for each in cases)
        ours = f"times the speed of FlashMLA's absorb: {batches}"
        rows.append(
            (
                f"{name}, a shared prefix of {cases[0]['prefix_tokens']}, MMLU's contexts",
                ours,
                f"in CUDA graphs: {in_graphs}",
            )
        )
    speedups = [each["speedup"] for each in found["one_level"]]
    rows.append(
        (
            f"all {len(speedups)} cases: three prompts, B = 64 to 1024, two models",
            f"{min(speedups):.2f} to {max(speedups):.2f} times the better of FlashMLA and our absorb",
            f"in CUDA graphs {span([each['speedup_in_graphs'] for each in found['one_level']])}",
        )
    )
    for each in found["levels"]:
        shape = f"{each['root']} tokens under all {each['B']}, {each['branches']} branches of {each['branch']}"
        shape += f", own {each['own']}"
        beside = "; ".join(
            f"{speedup:.2f} times {other}" for other, speedup in each["speedups"].items() if other != "FlashMLA"
        )
        rows.append(
            (f"{MODELS[each['model']]}, a tree: {shape}", f"{each['speedups']['FlashMLA']:.2f} times FlashMLA", beside)
        )
    trees, switch = found["random_trees"], found["switch"]
    rows.append(
        (
            f"{trees['trees']} random trees, over absorb",
            f"{trees['least_ratio']:.2f} to {trees['most']:.2f} times its speed",
            f"{trees['with_naive_parts']} have naive parts, median {trees['median_ratio_with_naive_parts']:.2f}",
        )
    )
    measured = ", ".join(f"{MODELS[each['model']]} {each['tokens']}: B = {each['crossing']:.0f}" for each in switch)
    predicted = ", ".join(f"{value:.0f} by {CEILINGS[source]}" for source, value in switch[0]["predicted"].items())
    rows.append(("naive with absorb beats absorb alone from", measured, f"equation 1: {predicted}"))
    return rows


def reconstruction() -> list[Row]:
    """Return the two products of absorption beside cuBLAS, both together."""
    found, rows = load("reconstruction_h200")["products"], []
    for B in (1, 16, 128):
        cases = [each["calls"] for each in found if each["B"] == B and each["dtype"] == "float16"]
        names = {"ours": "ours", "ours, INT4": "INT4", "cuBLAS, bmm": "cuBLAS"}
        said = {
            name: " / ".join(
                f"{sum(calls[call][clock] for calls in cases):.1f}" for clock in ("graph_us", "graph_cold_us")
            )
            for call, name in names.items()
        }
        rows.append(
            (
                f"both products of absorption, B={B}, µs in a CUDA graph, weights in L2 / not",
                f"float16 {said['ours']}, INT4 {said['INT4']}",
                f"cuBLAS, float16: {said['cuBLAS']}",
            )
        )
    return rows


def prefill() -> list[Row]:
    """Return ragged prefill, packing and decode from FP8 beside others."""
    found, rows = load("prefill_h200"), []
    for case in found["prefill"]:
        said = {name: f"{call['tflop_per_s']:.0f}" for name, call in case["calls"].items()}
        ours = f"bfloat16 {said.pop('ours')}, FP8 {said.pop('ours, FP8')} TFLOP/s"
        rows.append((f"prefill 192/128, causal, {case['case']}", ours, named(said)))
    for case in found["pack"]:
        said = {name: f"{call['cold_us']:.0f} µs, {call['of_copy']:.0%}" for name, call in case["calls"].items()}
        name = f"`pack_kv` to FP8, {case['tokens']} tokens, H={case['H']}, share of a copy's speed"
        rows.append((name, said.pop("ours"), named(said)))
    for case in found["decode"]:
        said = {name: f"{call['cold_us']:.0f} µs" for name, call in case["calls"].items()}
        rows.append((f"decode from pages of latents, B={case['B']} H={case['H']} T={case['T']}", named(said), ""))
    return rows


def named(said: dict[str, str]) -> str:
    return "; ".join(f"{name} {each}" for name, each in said.items())


def hopper() -> list[Row]:
    """Return the decode kernel in Gluon beside FlashMLA, at the sizes that it is made for."""
    rows = []
    for case in load("hopper_decode_h200")["decode"]:
        names = ("paged_latent_attention_hopper", "paged_latent_attention_tma")
        ours, triton = (case["calls"][f"kernels.{name}"]["tflop_per_s"] for name in names)
        if ours > 1.05 * triton:  # elsewhere it leaves the work to the other
            size = f"B{case['B']} S{case['S']} H{case['H']} T{case['T']}"
            beside = f"FlashMLA {case['calls']['FlashMLA']['tflop_per_s']:.0f}; plain Triton {triton:.0f}"
            rows.append((f"decode over pages of 64, {size}, TFLOP/s", f"{ours:.0f}", beside))
    for case in load("hopper_decode_h200")["ragged"]:
        said = {name.rpartition("_")[2]: f"{call['cold_us']:.0f}" for name, call in case["calls"].items()}
        lengths = ", ".join(f"{n:,}" for n in case["seq_lens"])
        beside = f"FlashMLA {said['FlashMLA']}; plain Triton {said['tma']}"
        rows.append((f"decode of {lengths} tokens, S{case['S']} H{case['H']}, µs", said["hopper"], beside))
    fuzz = load("hopper_fuzz_h200")
    agree = ", ".join(f"{kind} {fuzz[kind]['agree']:,}" for kind in ("decode", "prefill"))
    rows.append(("random cases of the kernels in Gluon that agree with float64", agree, "all that were tried"))
    return rows


def challenge() -> list[Row]:
    """Return a step of the decode challenge's layer at its four lengths."""
    rows = []
    for step in load("challenge_h200")["steps"]:
        fused, plain = (step["calls"][name]["graph_us"] for name in ("fused", "absorb"))
        rows.append(
            (
                f"decode challenge, a step of the layer behind {step['length']} tokens, B=128, in a CUDA graph",
                f"{fused:.0f} µs, {step['calls']['fused']['of_floor']:.0%} of the roofline",
                f"absorbed PyTorch, no graph {plain:,.0f} µs",
            )
        )
    return rows


def generation() -> list[Row]:
    """Return tokens a second of a whole model, and what several tokens at once cost."""
    found, rows = load("generation_h200"), []
    for B in sorted({each["B"] for each in found["steps"]}):
        said = {each["attention"]: f"{each['tokens_per_s']:,}" for each in found["steps"] if each["B"] == B}
        ours = said.pop("triton, tma, pages")
        name = f"a model of 8 layers, width 2048, B={B}, T={found['T']}: tokens/s, each operation started by Python"
        rows.append((name, f"kernel, pages {ours}", named({each: said[each] for each in ("absorb", "naive")})))
    for each in found["verify"]:
        if each["B"] == 64 and each["of"].startswith("kernel"):
            two, four = each["over_one"][1:]
            rows.append(
                (f"2 and 4 tokens verified at once, B=64, decode {each['of']}", f"{two} and {four} times one", "")
            )
    return rows


def byte_model() -> list[Row]:
    """Return how the trained model does."""
    found = load("byte_model_h200")
    first = found["drafting"]["rows"][0]
    said = f"{found['bits_a_byte']['all']:.2f} bits a byte on files held out, {first['acceptance']:.0%} of drafts taken"
    return [(f"the course's model, {found['parameters']:,} parameters, trained for {found['seconds']:.0f} s", said, "")]


def perplexity() -> list[Row]:
    """Return what INT4 costs the trained model."""
    plain, *narrow = load("perplexity")["rows"]
    said = named({f"groups of {each['group']}": f"{each['bits_a_byte']:.3f}" for each in narrow})
    return [("the same, W_UK and W_UV in INT4, bits a byte", said, f"as trained {plain['bits_a_byte']:.3f}")]


def as_measured() -> Device:
    """Return the H100 with the ceilings on record."""
    found = load("ceilings_h100")["ceilings"]
    copy, product = (found[key]["median"] for key in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    return dataclasses.replace(DEVICES["h100"], measured_dram_bandwidth=copy, measured_flops={"bfloat16": product})


def judged() -> list[Row]:
    """Return the speed of lessons' own solutions, as the judge measures it and as it models it."""
    rows = []
    for lesson, found in load("judged_h100")["lessons"].items():
        ours, beside = (
            ", ".join(f"{name} {each['fraction']:.0%}" for name, each in speeds.items())
            for speeds in (found["speed"]["ada"], found["solution_modelled"])
        )
        beside = f"modelled: {beside}" if beside else "no modelled time: kernels in Gluon"
        rows.append((f"solutions of lesson {lesson[:2]}, share of the roofline", ours, beside))
    return rows


def grading() -> list[Row]:
    """Return the judge's pace beside stock nbgrader's."""
    found = load("grading")
    rates = found["submissions_per_minute"]
    ours = rates.pop("mla-course grade")
    median = sorted(each["median"] for each in found["judge_seconds_per_exercise"].values())
    lessons = f"lessons {found['lessons'][0][:2]} to {found['lessons'][-1][:2]}"
    return [
        (
            f"submissions graded a minute, {lessons}",
            f"{ours:.0f}",
            "; ".join(f"{name}: {each:.0f}" for name, each in rates.items()),
        ),
        (
            f"judging one exercise, {lessons}",
            f"{1e3 * median[len(median) // 2]:.0f} ms",
            "median over exercises, right solutions",
        ),
    ]


def emulator() -> list[Row]:
    """Return what a launch takes on the CPU."""
    found = load("emulator")
    times, ratio = sorted(case["ms"] for case in found["cases"].values()), found["times_as_fast"]
    return [
        (
            "a launch of a kernel of `mla_ref.kernels`, emulated",
            f"{times[0]:.0f} to {times[-1]:.0f} ms",
            f"Triton's interpreter: {ratio['least']:.0f} to {ratio['most']:.0f} times as long",
        ),
        (
            "the first launch of a specialisation takes longer by",
            f"at most {found['specialisation_ms']['specialisation']:.0f} ms",
            f"from the cache on disk: at most {found['specialisation_ms']['specialisation_cached']:.0f} ms",
        ),
    ]


def verdicts() -> list[Row]:
    """Return the judge's pace where there are kernels and no GPU."""
    found = load("verdicts")
    median, lessons = found["median_seconds"], sorted(found["classes"])
    where = f"lessons {lessons[0][:2]} to {lessons[-1][:2]}"
    return [
        (f"judging one kernel, {where}", f"{median['answers']:.1f} s", "median over exercises, right solutions"),
        (f"modelling the speed of one, {where}", f"{median['speed']:.1f} s", "the same"),
        (f"submissions graded a minute, {where}", f"{found['submissions_per_minute']:.0f}", "the sample class"),
    ]


def demo() -> list[Row]:
    """Return how long a newcomer waits."""
    return [(f"`make demo`, {name}", f"{each:.0f} s", "") for name, each in load("demo")["seconds"].items()]


def promises() -> list[Row]:
    """Return what the grader promises, and the figure that shows it."""
    rows, record = [], load("promises")
    for name, found in record["promises"].items():
        figures = {key: len(each) if isinstance(each, list) else each for key, each in found.items()}
        promise, *texts = PROMISED[name]
        ours, beside = (text.format(**figures) for text in texts)
        if any(found[key] != record[key] for key in ("date", "device")):
            beside = "; ".join(filter(None, (beside, f"on an {found['device']}, {found['date']}")))
        rows.append((f"promise: {promise}", ours, beside))
    return rows


def mutation() -> list[Row]:
    """Return how many small faults in the solutions the exercises' cases notice."""
    lessons = load("mutation")["lessons"].values()
    killed, same = (sum(each[key] for each in lessons) for key in ("killed", "equivalent"))
    others = sum(each["mutants"] for each in lessons) - same
    least = min(each["percent_of_the_others"] for each in lessons)
    beside = f"at least {least:g} % in each lesson; {same} more compute the same, each listed with its reason"
    return [("solutions with one small fault that lose points", f"{killed:,} of {others:,} mutants", beside)]


def model() -> list[Row]:
    """Return how far modelled times of kernels are off."""
    found = load("model_validation")
    there, origin = found["other_device"], found["measured"]["device"]
    best = max(0.0, there["best_tenth_behind_most"])
    beside = (
        f"an {origin}, which the constants are fitted to: {found['all']['median_error']:.1%}, halves of it held out "
        f"{found['other_splits']['median_error']['median']:.1%}"
    )
    rows = [
        (f"modelled times on an {there['measured']['device']}, median error", f"{there['median_error']:.1%}", beside)
    ]
    within = f"at least {there['spearman_least']:.3f} in each group of a kernel and a size"
    ranks = "rank correlation of variants there"
    rows.append((ranks, within, f"the best of the tenth modelled fastest is at most {best:.1%} behind the best"))
    for version, each in found["other_triton"].items():
        told = f"{each['other_device']['median_error']:.1%}, at least {each['other_device']['spearman_least']:.3f}"
        rows.append((f"the same, compiled with Triton {version}", told, f"the fit's is {found['compiled_with']}"))
    return rows


def pick(cases: list[dict[str, Any]], **size: int) -> dict[str, Any]:
    """Return the first case of a size."""
    return next(case for case in cases if all(case.get(name) == value for name, value in size.items()))


def fastest(calls: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the fastest of the calls whose names begin so."""
    return min((each for name, each in calls.items() if name.startswith(prefix)), key=lambda each: each["cold_us"])


def speed(call: dict[str, Any]) -> str:
    return f"{call['cold_us']:.1f} µs, {call['gb_per_s']:,.0f} GB/s"


def compiled(calls: dict[str, Any]) -> str:
    """Return what compilers and libraries take."""
    others = [name for name in calls if name.startswith(("torch.compile", "Liger", "F."))]
    return "; ".join(f"{name} {calls[name]['cold_us']:.1f} µs" for name in others)


def span(values: list[float], over: list[float] | None = None) -> str:
    """Return the least and the greatest value, or ratio."""
    ratios = [a / b for a, b in zip(values, over or [1.0] * len(values), strict=True)]
    low, high = (f"{each:.0f}" if each >= 10 else f"{each:.1f}" for each in (min(ratios), max(ratios)))
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main(sys.argv[1:])
