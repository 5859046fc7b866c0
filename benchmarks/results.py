"""Print the README's tables of results from the records beside this script, or write them into the README.

.venv/bin/python benchmarks/results.py [--write]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ablation import ABLATED, PAPER_GAIN, PAPER_THROUGHPUT

FOLDER = Path(__file__).parent
README = FOLDER.parent / "README.md"
START, END = "<!-- benchmarks/results.py -->\n\n", "\n\n<!-- end -->\n"

Row = tuple[str, str, str]

NORMS = [(131072, 512), (16384, 7168)]
ROPES = [(4, 4096, 128), (4, 4096, 16)]
DECODES = [(1, 16, 8192), (16, 16, 8192), (128, 16, 4096), (1, 128, 8192), (128, 128, 4096)]  # B, H, T
MODELS = {"deepseek_v3": "DeepSeek-V3", "kimi_k2": "Kimi K2"}


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
    gpu = [*ceilings(), *norm_and_rope(), *layer(), *decode(), *paged(), *crossover(), *judged()]
    host = [*grading(), *demo()]
    return "\n\n".join(
        f"| on an {load(name)['device']} | ours | beside |\n|---|---|---|\n" + "\n".join(map(line, rows))
        for name, rows in {"ceilings_h100": gpu, "grading": host}.items()
    )


def line(row: Row) -> str:
    return f"| {' | '.join(row)} |"


def ceilings() -> list[Row]:
    """Return what the device reaches at best."""
    found = load("ceilings_h100")["ceilings"]
    copy, product = (found[key]["median"] for key in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    return [
        ("copy, read plus written", f"{copy / 1e9:,.0f} GB/s", ""),
        ("bfloat16 8192³ product", f"{product / 1e12:.0f} TFLOP/s", ""),
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
    gains = {name: rate[name] / rate["baseline"] - 1 for name in PAPER_GAIN}
    before, after, _ = PAPER_THROUGHPUT[ABLATED]
    others = [f"{name} {rate[name] / 1e3:,.0f}" for name in ("baseline", "DeepSeek's own") if name in rate]
    others.append(f"the report on an RTX 4090: {after / 1e3:.0f} over {before / 1e3:.0f}, {PAPER_GAIN['All']:+.1%}")
    alone = [name for name in PAPER_GAIN if name != "All"]
    return [
        (
            "MLA layer, all fusions, prefill {}×{}".format(*ABLATED),
            f"{rate['All'] / 1e3:,.0f} thousand tokens/s, {gains['All']:+.1%}",
            "; ".join(others),
        ),
        (
            "each fusion alone",
            ", ".join(f"{name} {gains[name]:+.1%}" for name in alone),
            "the report: " + ", ".join(f"{name} {PAPER_GAIN[name]:+.2%}" for name in alone),
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
            f"{name} {each['cold_us']:.1f} µs{' (quoted)' if each['source'] == 'quoted' else ''}"
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
    return [
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


def crossover() -> list[Row]:
    """Return from which batch on naive beats absorb, predicted and measured."""
    found = load("crossover_h100")
    rows = {MODELS[model]: each for model, each in found["shared"].items()}
    measured = ", ".join(f"{model} B = {each['crossover']:.0f}" for model, each in rows.items())
    predicted = next(iter(rows.values()))["predicted"]
    assert all(each["predicted"] == predicted for each in rows.values())
    beside = ", ".join(f"{value:.0f} by the {source}" for source, value in predicted.items())
    return [(f"naive beats absorb on a shared prefix of {found['context']} from", measured, f"roofline: {beside}")]


def judged() -> list[Row]:
    """Return the speed of lessons' own solutions, as the judge measures it and as it models it."""
    rows = []
    for lesson, found in load("judged_h100")["lessons"].items():
        ours, beside = (
            ", ".join(f"{name} {each['fraction']:.0%}" for name, each in speeds.items())
            for speeds in (found["speed"]["ada"], found["solution_modelled"])
        )
        rows.append((f"solutions of lesson {lesson[:2]}, share of the roofline", ours, f"modelled: {beside}"))
    return rows


def grading() -> list[Row]:
    """Return the judge's pace beside stock nbgrader's."""
    found = load("grading")
    rates = found["submissions_per_minute"]
    ours = rates.pop("mla-course grade")
    median = sorted(each["median"] for each in found["judge_seconds_per_exercise"].values())
    return [
        (
            "submissions graded a minute",
            f"{ours:.0f}",
            "; ".join(f"{name}: {each:.0f}" for name, each in rates.items()),
        ),
        ("judging one exercise", f"{1e3 * median[len(median) // 2]:.0f} ms", "median over exercises, right solutions"),
    ]


def demo() -> list[Row]:
    """Return how long a newcomer waits."""
    return [(f"`make demo`, {name}", f"{each:.0f} s", "") for name, each in load("demo")["seconds"].items()]


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
