"""Show a kernel's speed: the steps of a call as a table, and its place under the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from autograder.kernels.advice import advice
from autograder.text import one_line, percent_below

# On each of them white text has a contrast of 4.5 or more, and each has 3 or more to a page in white or in #111. Text
# on the page has the page's own colour, as no other has 4.5 to both.
GREEN, AMBER, RED, GREY = "#1a7f37", "#9a6700", "#d1242f", "#656d76"
CELL = "style='text-align:left;vertical-align:top;padding:2px 12px 2px 0'"

COLUMNS = {
    "step": "step",
    "us": "µs",
    "bound": "bound by",
    "programs": "programs",
    "distinct_bytes": "distinct MB",
    "issued_bytes": "issued MB",
    "load_widths": "bytes a load",
    "registers": "registers",
    "spill_bytes": "spills, bytes",
    "shared_bytes": "shared, KiB",
    "tensor_instructions": "matrix instr.",
    "blocks_per_sm": "blocks per SM",
}


def speed_lines(speed: Mapping[str, Any], reached: bool = False) -> list[str]:
    """Return a time, what it is held against, and its steps, as lines of text. If `reached`, it has all points."""
    lines = [_speed_summary(speed)]
    rows = [[_entry(row, key) for key in COLUMNS] for row in speed["steps"]]
    used = [n for n, title in enumerate(COLUMNS.values()) if any(row[n] for row in rows)]
    table = [[list(COLUMNS.values())[n] for n in used], *([row[n] for n in used] for row in rows)]
    widths = [max(len(row[n]) for row in table) for n in range(len(used))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    return lines + ([_left(reached) + advice(speed)] if advice(speed) else [])


def speed_html(speed: Mapping[str, Any], reached: bool = False) -> str:
    """Return a time, what it is held against, its steps, and its place under the roofline, as HTML."""
    rows = [{key: _entry(row, key) for key in COLUMNS} for row in speed["steps"]]
    used = [key for key in COLUMNS if any(row[key] for row in rows)]
    head = "".join(f"<th {CELL}>{COLUMNS[key]}</th>" for key in used)
    body = "".join("<tr>" + "".join(f"<td {CELL}>{escape(row[key])}</td>" for key in used) + "</tr>" for row in rows)
    said = f"<p>{escape(_left(reached) + advice(speed))}</p>" if advice(speed) else ""
    return f"<p>{escape(_speed_summary(speed))}</p><table><tr>{head}</tr>{body}</table>{said}{roofline_picture(speed)}"


def _left(reached: bool) -> str:
    return "every bar is reached; beyond the bars: " if reached else ""


def _speed_summary(speed: Mapping[str, Any]) -> str:
    noise = ""
    if speed["noise"]:
        noise = f" ({speed['noise'][0] * 1e6:.4g} to {speed['noise'][1] * 1e6:.4g})"
    share = percent_below(speed["fraction"])
    us = {key: f"{speed[key] * 1e6:.4g} µs" for key in ("seconds", "floor", "baseline")}
    return (
        f"{speed['how']} on {speed['device']}: {us['seconds']}{noise}; floor {us['floor']}, {share} of "
        f"its speed reached; eager baseline {us['baseline']}, {speed['ratio']:.2g}× as fast"
    )


def _entry(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None or (key != "us" and value in (0, "", {})):
        return ""
    if key in ("distinct_bytes", "issued_bytes"):
        return f"{value / 1e6:.4g}"
    if key == "shared_bytes":
        return f"{value / 1024:.4g}"
    if key == "load_widths":
        return ", ".join(str(width) for width in sorted(map(int, value), reverse=True))
    return f"{value:.4g}" if isinstance(value, float) else one_line(value, 100)


def roofline_picture(speed: Mapping[str, Any], width: int = 420, height: int = 220) -> str:
    """Return an SVG of the device's roof, with the floor of this work on it and the kernel below."""
    if not speed["flops"] or not speed["bytes"]:
        return ""
    ridge, intensity = speed["rate"] / speed["bandwidth"], speed["flops"] / speed["bytes"]
    top, here = speed["flops"] / speed["floor"], speed["flops"] / speed["seconds"]
    left, right = math.log10(min(intensity, ridge) / 16), math.log10(max(intensity, ridge) * 8)
    low, high = math.log10(min(here, speed["bandwidth"] * 10**left) / 3), math.log10(speed["rate"] * 3)
    x0, x1, y0, y1 = 20, width - 10, height - 30, 10

    def x(value: float) -> float:
        return x0 + (x1 - x0) * (math.log10(value) - left) / (right - left)

    def y(value: float) -> float:
        return y0 - (y0 - y1) * (math.log10(value) - low) / (high - low)

    bend = f"{x(10**left):.1f},{y(speed['bandwidth'] * 10**left):.1f} {x(ridge):.1f},{y(speed['rate']):.1f}"
    at, floor, mine, share = x(intensity), y(top), y(here), percent_below(here / top)
    key = x0 + 14, y1 + 4  # at the top left, above the roof
    text = "font-family='sans-serif' font-size='11' fill='currentColor'"
    line = "fill='none' stroke='currentColor'"
    about = (
        f"Roofline, bending at {ridge:.0f} FLOP per byte. At {intensity:.3g} FLOP per byte the floor (circle) is at "
        f"{_rate(top)}, this kernel (square) at {_rate(here)}."
    )
    return (
        f"<svg width='{width}' height='{height}' role='img' aria-label='{about}'>"
        f"<polyline points='{x0},{y1} {x0},{y0} {x1},{y0}' {line} stroke-width='0.5'/>"
        f"<polyline points='{bend} {x1},{y(speed['rate']):.1f}' {line} stroke-width='1.5'/>"
        f"<line x1='{at:.1f}' x2='{at:.1f}' y1='{floor:.1f}' y2='{mine:.1f}' stroke='{RED}' stroke-dasharray='3 3'/>"
        f"{_square(at, mine)}{_circle(at, floor)}{_circle(*key)}{_square(key[0], key[1] + 18)}"
        f"<text x='{key[0] + 12}' y='{key[1] + 4}' {text}>floor: {_rate(top)}</text>"
        f"<text x='{key[0] + 12}' y='{key[1] + 22}' {text}>this kernel: {_rate(here)}, {share} of it</text>"
        f"<text transform='translate(12 {(y0 + y1) / 2:.0f}) rotate(-90)' text-anchor='middle' {text}>FLOP/s</text>"
        f"<text x='{x1}' y='{height - 12}' text-anchor='end' {text}>FLOP per byte; the roof bends at {ridge:.0f} "
        f"(both axes logarithmic)</text></svg>"
    )


def _circle(x: float, y: float) -> str:
    """Return the mark of the floor, in which that of a kernel as fast is seen."""
    return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='6' fill='none' stroke='{GREEN}' stroke-width='2'/>"


def _square(x: float, y: float) -> str:
    return f"<rect x='{x - 3:.1f}' y='{y - 3:.1f}' width='6' height='6' fill='{RED}'/>"


def _rate(flops: float) -> str:
    return f"{flops / 1e12:.3g} TFLOP/s" if flops >= 1e11 else f"{flops / 1e9:.3g} GFLOP/s"
