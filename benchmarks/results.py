"""Print the README's table of results from the records beside this script.

.venv/bin/python benchmarks/results.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def load(name: str) -> dict[str, Any]:
    """Return the record `NAME.json`."""
    return json.loads((FOLDER / f"{name}.json").read_text())


def table() -> str:
    """Return the results as a Markdown table, with what each was measured on."""
    kernels, ceilings, grading = load("norm_rope_h100"), load("ceilings_h100"), load("grading")
    copy, product = (ceilings["ceilings"][key]["median"] for key in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    rows = [
        ("copy, read plus written", f"{copy / 1e9:,.0f} GB/s", ""),
        ("bfloat16 8192³ product", f"{product / 1e12:.0f} TFLOP/s", ""),
    ]
    for case in kernels["rms_norm"][:3]:
        rows.append((f"`kernels.rms_norm` {case['rows']}×{case['width']}", *_beside(case["calls"], "kernels.rms_norm")))
    for case in kernels["rope"]:
        if case.get("S", 1) > 1 and not case.get("inside"):
            name = f"`kernels.apply_rope_qk` B={case['B']} S={case['S']} H={case['H']}"
            rows.append((name, *_beside(case["calls"], "kernels.apply_rope_qk")))
    first = f"| on an {kernels['device']} | ours | beside |\n|---|---|---|\n" + _lines(rows)
    rates = grading["submissions_per_minute"]
    ours = rates.pop("mla-course grade")
    rows = [("submissions graded a minute", f"{ours:.0f}", "; ".join(f"{k}: {v:.0f}" for k, v in rates.items()))]
    median = sorted(each["median"] for each in grading["judge_seconds_per_exercise"].values())
    rows.append(
        ("judging one exercise", f"{1e3 * median[len(median) // 2]:.0f} ms", "median over exercises, right solutions"),
    )
    for name, seconds in load("demo")["seconds"].items():
        rows.append((f"`make demo`, {name}", f"{seconds:.0f} s", ""))
    second = f"| on {grading['device']} | ours | beside |\n|---|---|---|\n" + _lines(rows)
    return f"{first}\n\n{second}"


def _beside(calls: dict[str, Any], ours: str) -> tuple[str, str]:
    others = [name for name in calls if name.startswith(("torch.compile", "Liger", "F."))]
    text = "; ".join(f"{name} {calls[name]['cold_us']:.1f} µs" for name in others)
    return f"{calls[ours]['cold_us']:.1f} µs, {calls[ours]['gb_per_s']:,.0f} GB/s", text


def _lines(rows: list[tuple[str, str, str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
