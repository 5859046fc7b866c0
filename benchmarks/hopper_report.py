"""Print the tables of docs/hopper.md from the records beside this script, or write them into it.

.venv/bin/python benchmarks/hopper_report.py [--write]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from results import FOLDER, line, load

PAGE = FOLDER.parent / "docs" / "hopper.md"
MARKED = r"(?<=<!-- {name} -->\n\n).*?(?=\n\n<!-- end -->)"
OURS, PEER = "kernels.paged_latent_attention_hopper", "FlashMLA"
RATES = [(128, 128, 4096, 1.03), (64, 128, 16384, 1.05), (32, 128, 4096, 1.03), (64, 64, 4096, 1.03)]  # B, H, T, goal


def pick(rows: Sequence[dict[str, Any]], **size: Any) -> dict[str, Any]:
    """Return the one row of a size."""
    (found,) = [row for row in rows if all(row[name] == value for name, value in size.items())]
    return found


def goals() -> Iterator[tuple[str, ...]]:
    """Yield work, what is held beside it, the goal, what is reached, and whether that is enough."""
    decode, splits = load("hopper_decode_h200"), load("hopper_splits_h200")["decode"]
    prefill, prefix = load("prefill_h200"), load("prefix_h200")

    def row(work: str, beside: str, goal: str, reached: str, enough: bool) -> tuple[str, ...]:
        return work, beside, goal, reached, "reached" if enough else "missed"

    yield "work", "beside", "goal", "measured", ""
    yield ("---",) * 5
    for B, H, T, goal in RATES:
        calls = pick(decode["decode"], B=B, S=1, H=H, T=T)["calls"]
        ours, peer = calls[OURS]["tflop_per_s"], calls[PEER]["tflop_per_s"]
        yield row(
            f"decode B{B} H{H} T{T}",
            f"FlashMLA {peer:.0f} TFLOP/s",
            f"{goal:g} times",
            f"{ours:.0f}: {ours / peer:.2f} times",
            ours >= goal * peer,
        )
    few = pick(splits, B=128, H=16, T=4096)["calls"]["chosen"]["gb_per_s"]
    peer = pick(decode["decode"], B=128, S=1, H=16, T=4096)["calls"][PEER]["gb_per_s"]
    work = "decode B128 H16 T4096"
    yield row(work, f"FlashMLA {peer:,.0f} GB/s, in another run", "3,800 GB/s", f"{few:,.0f}", few >= 3800)
    for H, goal, name in ((16, 12, "Triton"), (128, 18, "chosen")):
        one = pick(splits, B=1, H=H, T=8192)["calls"][name]
        peer = pick(decode["decode"], B=1, S=1, H=H, T=8192)["calls"][PEER]["cold_us"]
        reached = f"{one['cold_us']:.1f}; in a CUDA graph {one['graph_us']:.1f}"
        beside = f"FlashMLA {peer:.1f} µs, in another run"
        yield row(f"decode B1 H{H} T8192", beside, f"{goal} µs", reached, one["cold_us"] <= goal)
    (ragged,) = decode["ragged"]
    lengths = ", ".join(f"{n:,}" for n in ragged["seq_lens"])
    ours, peer = (ragged["calls"][name] for name in ("kernels.paged_latent_attention_hopper", PEER))
    reached = f"{ours['cold_us']:.1f}; in a CUDA graph {ours['graph_us']:.1f}"
    work = f"decode of {lengths} tokens, S{ragged['S']} H{ragged['H']}"
    yield row(work, f"FlashMLA {peer['cold_us']:.1f} µs", "35 µs", reached, ours["cold_us"] <= 35)
    for case, goal in (("B1 S8192 H128", 1.02), ("B1 S16384 H16", 1.02), ("B256, GSM8K's prompts, H128", 1.1)):
        calls = dict(pick(prefill["prefill"], case=case)["calls"])
        ours = calls.pop("ours")["tflop_per_s"]
        calls.pop("ours, FP8", None)
        name, best = max(((name, call["tflop_per_s"]) for name, call in calls.items()), key=lambda each: each[1])
        reached = f"{ours:.0f}: {ours / best:.2f} times"
        yield row(f"prefill {case}", f"{name} {best:.0f} TFLOP/s", f"{goal:g} times", reached, ours >= goal * best)
    most = pick(prefix["one_level"], model="kimi_k2", prompt="A", data="mmlu", B=1024)
    reached = f"{most['speedup']:.2f}; in CUDA graphs {most['speedup_in_graphs']:.2f}"
    work = "shared prefix, Kimi K2, prompt A, B1024"
    yield row(work, most["fastest_other"], "3.6 times", reached, most["speedup"] >= 3.6)
    pack = pick(prefill["pack"], tokens=8192, H=128)["calls"]
    beside = f"torch.compile {pack['torch.compile']['of_copy']:.0%} of a copy's speed"
    reached = pack["ours"]["of_copy"]
    yield row("pack and FP8, 8192 tokens, H128", beside, "95 %", f"{reached:.0%}", reached >= 0.95)


def steps() -> Iterator[tuple[str, ...]]:
    """Yield what a step that is taken back alone costs, by kernel, with counters of its first launch."""
    found, counters = load("hopper_steps_h200"), {}
    for each in found["counters"]:
        counters.setdefault(each["call"], each)
    yield "kernel", "form", "µs", "TFLOP/s", "tensor cores busy", "clock, GHz", "L2 hits"
    yield ("---",) * 7
    for each in found["forms"]:
        counted = counters[f"{each['kernel']}, {each['form']}"]
        yield (
            each["kernel"],
            each["form"],
            f"{each['cold_us']:,.1f} ({each['cold_low_us']:,.1f} to {each['cold_high_us']:,.1f})",
            f"{each['tflop_per_s']:.0f}",
            f"{counted['tensor_cores_busy_percent']:.0f} %",
            f"{counted['clock_hz'] / 1e9:.2f}",
            f"{counted['l2_hits_percent']:.0f} %",
        )


def choices() -> Iterator[tuple[str, ...]]:
    """Yield what each number of splits, and each kernel, takes."""
    yield "B, H, T", "chosen, µs", "others, µs"
    yield ("---",) * 3
    found = load("hopper_splits_h200")
    for each in (*found["decode"], *found["ragged"]):
        times = {name: f"{call['cold_us']:.1f}" for name, call in each["calls"].items()}
        chosen = times.pop("chosen", None) or times.pop("Triton")
        yield _size(each), chosen, "; ".join(f"{name} {time}" for name, time in times.items())


def lettings() -> Iterator[tuple[str, ...]]:
    """Yield what it takes to let the merging in before the parts are found."""
    names = "chosen", "merging early", "merging late"
    yield "B, H, T", *(f"{name}, µs" for name in names)
    yield ("---",) * 4
    found = load("hopper_splits_h100")
    for each in (*found["decode"], *found["ragged"]):
        if "merging late" in (calls := each["calls"]):
            times = (calls[name] for name in names)
            told = (f"{t['cold_us']:.1f} ({t['cold_low_us']:.1f} to {t['cold_high_us']:.1f})" for t in times)
            yield _size(each), *told


def _size(case: dict[str, Any]) -> str:
    lengths = case["T"] if "T" in case else f"{' and '.join(map(str, case['seq_lens']))}, S {case['S']}"
    return f"{case.get('B') or len(case['seq_lens'])}, {case['H']}, {lengths}"


def in_8_bits() -> Iterator[tuple[str, ...]]:
    """Yield what decode takes with products of 8-bit numbers."""
    yield "B, H, T", "form", "µs", "error"
    yield ("---",) * 4
    for each in load("hopper_float8_h200")["decode"]:
        for name, call in each["calls"].items():
            time = f"{call['cold_us']:,.1f} ({call['cold_low_us']:,.1f} to {call['cold_high_us']:,.1f})"
            yield f"{each['B']}, {each['H']}, {each['T']}", name, time, f"{call['relative_error']:.2g}"


def parts() -> Iterator[tuple[str, ...]]:
    """Yield what a step over a shared prefix is made of."""
    yield "part", "µs", "TFLOP/s"
    yield ("---",) * 3
    names = {"step": "the step", "prefix": "the prefix alone, by prefill", "own": "what is not shared alone, by decode"}
    for name, each in load("prefix_h200")["apart"]["calls"].items():
        yield names[name], f"{each['cold_us']:,.0f}", f"{each['tflops']:.0f}"


def counted() -> Iterator[tuple[str, ...]]:
    """Yield what the hardware counts of our kernels and their peers', PyTorch's small ones of a call together."""
    yield "call", "kernel", "µs", "programs", "multiprocessors at work", "tensor cores busy", "DRAM busy", "clock, GHz"
    yield ("---",) * 8
    for gpu in ("h100", "h200"):
        found, small = load(f"counters_{gpu}"), dict[str, list[float]]()
        if empty := found.get("two_empty_kernels"):
            told = f"by the clock of the goals; in a CUDA graph {empty['graph_us']:.1f}"
            yield f"{gpu.upper()}: two empty kernels", told, f"{empty['cold_us']:.1f}", *[""] * 5
        for each in found["kernels"]:
            kernel, time = re.sub(r"^void |<.*|_knob.*|_obj.*", "", each["kernel"]), each["duration_ns"] / 1e3
            if kernel.startswith("at::"):
                small.setdefault(each["call"], []).append(time)
                continue
            at_work = f"{each['cycles_at_work'] / each['cycles']:.0%}".replace("%", " %") if "cycles" in each else ""
            busy = (f"{each[name]:.0f} %" for name in ("tensor_cores_busy_percent", "dram_busy_percent"))
            name, clock = f"{gpu.upper()}: {each['call']}", f"{each['clock_hz'] / 1e9:.2f}"
            yield name, f"`{kernel}`", f"{time:,.1f}", f"{each['programs']:,.0f}", at_work, *busy, clock
        for call, times in small.items():
            yield f"{gpu.upper()}: {call}", f"PyTorch's for indices, {len(times)}", f"{sum(times):,.1f}", *[""] * 5


def reported() -> Iterator[tuple[str, ...]]:
    """Yield how much each tool of compute-sanitizer reports of each kernel, by GPU and version."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for gpu in ("h200", "h100"):
        for each in load(f"hopper_sanitizer_{gpu}")["runs"]:
            asked = found.setdefault((f"`{each['kernel']}`", each["tool"]), {})
            asked[f"{gpu.upper()}, {each['version']}"] = each["reports"]
    columns = sorted({column for asked in found.values() for column in asked}, reverse=True)
    yield "kernel", "tool", *columns
    yield ("---",) * (2 + len(columns))
    for what, asked in found.items():
        yield *what, *(str(asked.get(column, "")) for column in columns)


TABLES: dict[str, Callable[[], Iterator[tuple[str, ...]]]] = {
    "goals": goals,
    "counters": counted,
    "steps": steps,
    "choices": choices,
    "merging": lettings,
    "parts": parts,
    "float8": in_8_bits,
    "sanitizer": reported,
}


def filled(page: str) -> str:
    """Return the page with its tables as the records have them."""
    for name, rows in TABLES.items():
        table = "\n".join(map(line, rows()))
        page, count = re.subn(MARKED.format(name=name), lambda _, table=table: table, page, flags=re.DOTALL)
        if count != 1:
            sys.exit(f"{PAGE} has no lines <!-- {name} --> and <!-- end -->, between which a table goes")
    return page


def main(arguments: list[str]) -> None:
    """Print the tables, or put them into the page."""
    if arguments == ["--write"]:
        PAGE.write_text(filled(PAGE.read_text()))
    else:
        print("\n\n".join("\n".join(map(line, rows())) for rows in TABLES.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
