"""Pictures for the lessons: rooflines, bars, curves, matrices, pages. A notebook shows each Figure once.

What a picture shows, its attribute ``alt`` says in words: a notebook gives it to who cannot see the picture. Lines
differ by dash or marker, areas by hatching, a sign or a number, and not by colour alone.
"""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from io import BytesIO
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from .hardware.cost import Cost
from .hardware.devices import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = "osD^vPX*"
DASHES = "-", "--", "-.", ":"
HATCHES = "", "///", "...", "xx", "\\\\\\", "oo", "++", "**"

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "font.size": 10,
    "legend.frameon": False,
    "figure.dpi": 110,
}


def roofline(
    devices: Device | Sequence[Device],
    points: Mapping[str, Cost | tuple[Cost, float]],
    *,
    dtype: str | None = None,
    measured: bool = False,
    title: str = "",
) -> "Figure":
    """Draw each device's roofline, and work on it.

    Parameters
    ----------
    devices
        One or several.
    points
        ``label: cost`` stands on the first device's roof; ``label: (cost, seconds)`` stands where the time
        puts it.
    dtype, measured
        Which ceilings, as in :meth:`mla_ref.Cost.time`.
    title
        Above the axes.
    """
    devices = (devices,) if isinstance(devices, Device) else tuple(devices)
    with _figure(title, width=7.0 if len(devices) == 1 else 9.0) as (figure, axes):
        placed = {label: _place(point, devices[0], dtype, measured) for label, point in points.items()}
        ridges = [device.ridge(dtype, measured) for device in devices]
        seen = [*ridges, *(intensity for intensity, _ in placed.values())]
        span = np.geomspace(min(seen) / 4, max(seen) * 4, 200)
        for number, device in enumerate(devices):
            axes.loglog(
                span,
                [device.attainable(x, dtype, measured) / 1e12 for x in span],
                DASHES[number % len(DASHES)],
                color=PALETTE[number % len(PALETTE)],
                label=device.name,
            )
        for number, (label, (intensity, rate)) in enumerate(placed.items()):
            color = PALETTE[(len(devices) + number) % len(PALETTE)]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(intensity, rate / 1e12, marker, color=color, markersize=8, label=label)
        axes.set(xlabel="intensity (FLOP/byte)", ylabel="TFLOP/s")
        if len(devices) == 1:
            axes.legend(loc="lower right")
        else:  # no corner is free of every roof
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        roofs = zip(devices, ridges, strict=True)
        figure.tell(
            title or "Roofline",
            (
                f"Roof of {d.name}: flat at {_number(d.attainable(x, dtype, measured) / 1e12)} TFLOP/s from "
                f"{_number(x)} FLOP/byte on"
                for d, x in roofs
            ),
            (
                f"{label}: {_number(rate / 1e12)} TFLOP/s at {_number(x)} FLOP/byte"
                for label, (x, rate) in placed.items()
            ),
        )
    return figure


def bars(
    values: Mapping[str, float],
    *,
    unit: str,
    title: str = "",
    log: bool = False,
    reference: float | None = None,
) -> "Figure":
    """Draw one horizontal bar per entry, first on top, with its value.

    Parameters
    ----------
    values
        ``label: value``.
    unit
        Of the values.
    title
        Above the axes.
    log
        Logarithmic axis.
    reference
        Draws a dashed line at this value.
    """
    with _figure(title, height=0.8 + 0.4 * len(values)) as (figure, axes):
        drawn = axes.barh(list(values), list(values.values()), color=PALETTE[0])
        labels = axes.bar_label(drawn, [_number(value) for value in values.values()], padding=4)
        for label in labels:
            label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # above the dashed line
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.15)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter("")  # labels within a decade would overlap
        if reference is not None:
            axes.axvline(reference, color=PALETTE[1], linestyle="--")
        axes.set_xlabel(unit)
        line = [] if reference is None else [f"Dashed line at {_number(reference)}"]
        figure.tell(title, [f"Bars in {unit}"], (f"{x}: {_number(value)}" for x, value in values.items()), line)
    return figure


def matrix(
    values: Sequence[Sequence[float]],
    *,
    title: str = "",
    xlabel: str = "key position",
    ylabel: str = "query",
    annotate: bool = False,
) -> "Figure":
    """Draw a matrix as a heat map: an attention mask, a table of weights.

    Parameters
    ----------
    values
        ``[rows, columns]``: nested sequences, an array, or a CPU tensor; booleans show as 0 and 1.
    title, xlabel, ylabel
        Around the axes.
    annotate
        Write each value into its cell.

    Raises
    ------
    ValueError
        Another number of dimensions than two.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 2:
        raise ValueError(f"values has {values.ndim} dimensions, expected 2")
    with _figure(title) as (figure, axes):
        axes.imshow(values, cmap="cividis", aspect="equal", interpolation="nearest")
        axes.grid(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if annotate:
            middle = (values.min() + values.max()) / 2
            for (row, column), value in np.ndenumerate(values):
                color = "white" if value <= middle else "black"
                axes.text(column, row, f"{value:.2g}", ha="center", va="center", color=color)
        rows = (f"Row {n}: {', '.join(f'{value:.2g}' for value in row)}" for n, row in enumerate(values))
        size, span = "{} × {}".format(*values.shape), f"{_number(values.min())} to {_number(values.max())}"
        figure.tell(title, [f"Heat map of {size} values from {span}, {ylabel} by {xlabel}"], rows if annotate else ())
    return figure


def squares(
    panels: Mapping[str, Sequence[Sequence[int]]],
    labels: Sequence[str],
    *,
    xlabel: str = "",
    ylabel: str = "",
    texts: Mapping[str, Sequence[Sequence[object]]] | None = None,
) -> "Figure":
    """Draw tables of small whole numbers as coloured squares, side by side.

    Parameters
    ----------
    panels
        ``title: [rows, columns]``, whole numbers from 0.
    labels
        What 0, 1, … mean, for the legend; 0 is white.
    xlabel, ylabel
        Around each table.
    texts
        ``title: [rows, columns]``, to write into the squares.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    texts = texts or {}
    signed = any(title not in texts for title in panels)
    signs = ("", ".", "x", "+", "s")[: len(labels)] if signed else ("",) * len(labels)
    colors = ("white", PALETTE[5], PALETTE[1], PALETTE[2], PALETTE[4])[: len(labels)]
    tables = {title: np.asarray(table) for title, table in panels.items()}
    rows, columns = max(len(table) for table in tables.values()), sum(table.shape[1] for table in tables.values())
    width = 9.5 if columns > 16 else 7.0
    height = 1.2 + width / (columns + 2) * rows
    with _figure("", height, width, [table.shape[1] for table in tables.values()]) as (figure, panes):
        for axes, (title, table) in zip(np.ravel(panes), tables.items(), strict=True):
            axes.imshow(table, cmap=ListedColormap(colors), vmin=0, vmax=len(colors) - 1)
            axes.set_xticks(np.arange(-0.5, table.shape[1]), minor=True)
            axes.set_yticks(np.arange(-0.5, table.shape[0]), minor=True)
            axes.set_xticks(range(table.shape[1]))
            axes.set_yticks(range(table.shape[0]))
            axes.tick_params(which="both", length=0)
            axes.grid(False)
            axes.grid(which="minor", color="#BBBBBB", linewidth=1)
            axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
            for (row, column), text in np.ndenumerate(np.asarray(texts.get(title, [[]]), dtype=object)):
                axes.text(column, row, str(text), ha="center", va="center", fontsize=9)
            for value, sign in enumerate(signs):
                if sign and title not in texts:
                    places = np.nonzero(table == value)[::-1]
                    axes.plot(*places, sign, color="black", markersize=min(5, 90 / columns))
        handles = [
            (
                Patch(facecolor=color, edgecolor="#BBBBBB"),
                Line2D([], [], color="black", marker=sign, linestyle="", markersize=4 * bool(sign)),
            )
            for color, sign in zip(colors, signs, strict=True)
        ]
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
        counts = (
            (title, [f"{int((table == n).sum())} {label}" for n, label in enumerate(labels)])
            for title, table in tables.items()
        )
        sizes = {title: "{} × {}".format(*table.shape) for title, table in tables.items()}
        figure.tell(f"Squares, {ylabel} by {xlabel}", (f"{t}: {sizes[t]}, of them {', '.join(c)}" for t, c in counts))
    return figure


def flow(
    boxes: Mapping[str, tuple[float, float, str]],
    arrows: Sequence[tuple[str, str] | tuple[str, str, str]],
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
    size: tuple[float, float] = (10.0, 5.0),
) -> "Figure":
    """Draw what is computed from what: boxes with arrows between them.

    Parameters
    ----------
    boxes
        ``name: (x, y, text)``, the middle of the box in units of your own, y upwards.
    arrows
        ``(from, to)`` or ``(from, to, text)``, names of boxes.
    groups
        ``label: names``: boxes of one colour, with the label in the legend. The others are white.
    title
        Above the drawing.
    size
        Width and height in inches.
    """
    from matplotlib.patches import Patch

    groups = groups or {}
    colors = dict(zip(groups, ("#F5C9A3", "#A9CCE3", "#BFE3D3", "#E8E8E8"), strict=False))
    dashes = dict(zip(groups, DASHES, strict=False))
    group_of = {name: group for group, names in groups.items() for name in names}
    with _figure(title, size[1], size[0]) as (figure, axes):
        drawn = {}
        for name, (x, y, text) in boxes.items():
            group = group_of.get(name)
            look = {"boxstyle": "square,pad=0.4", "facecolor": colors.get(group, "white"), "edgecolor": "#555555"}
            look["linestyle"] = dashes.get(group, "-")
            drawn[name] = axes.text(x, y, text, ha="center", va="center", fontsize=9, bbox=look, zorder=3)
        for start, end, *text in arrows:
            (x0, y0, _), (x1, y1, _) = boxes[start], boxes[end]
            look = {"arrowstyle": "-|>", "color": "#777777", "shrinkA": 0, "shrinkB": 0}
            ends = {"patchA": drawn[start].get_bbox_patch(), "patchB": drawn[end].get_bbox_patch()}
            axes.annotate("", (x1, y1), (x0, y0), arrowprops=look | ends, zorder=1)
            if text:
                white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
                axes.text((x0 + x1) / 2, (y0 + y1) / 2, *text, ha="center", va="center", fontsize=9, bbox=white)
        places = np.array([(x, y) for x, y, _ in boxes.values()])
        (left, bottom), (right, top) = places.min(0), places.max(0)
        axes.set(xlim=(left - 0.8, right + 0.8), ylim=(bottom - 0.6, top + 0.6))
        axes.axis("off")
        if groups:
            handles = [
                Patch(facecolor=color, edgecolor="#555555", linestyle=dashes[label], label=label)
                for label, color in colors.items()
            ]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        names = {name: " ".join(text.split()) for name, (_, _, text) in boxes.items()}
        arrows_told = (f"{names[a]} → {names[b]}" + "".join(f" ({x})" for x in text) for a, b, *text in arrows)
        held = (f"{group}: {', '.join(names[name] for name in members)}" for group, members in groups.items())
        figure.tell(title or "Diagram", arrows_told, held)
    return figure


def page_table(
    tables: Sequence[Sequence[int]], lengths: Sequence[int], page_size: int, num_pages: int, *, title: str = ""
) -> "Figure":
    """Draw the pages of sequences in the order of their tokens, and beside them the pool they lie in.

    Parameters
    ----------
    tables
        Pages of each sequence, in order; one that several hold is drawn in the pool as the last one's.
    lengths
        Tokens of each sequence: the slots that are coloured.
    page_size, num_pages
        Of the pool.
    title
        Above the sequences.

    Raises
    ------
    ValueError
        A page that the pool does not have, or more tokens than the pages have slots.
    """
    for b, (pages, length) in enumerate(zip(tables, lengths, strict=True)):
        if not all(0 <= page < num_pages for page in pages):
            raise ValueError(f"sequence {b} holds pages {list(pages)}, expected 0 <= page < {num_pages}")
        if length > len(pages) * page_size:
            raise ValueError(f"sequence {b} has {length} tokens and {len(pages)} pages of {page_size}")
    columns = min(4, num_pages)
    rows = max(len(tables), -(-num_pages // columns))
    longest = max([len(pages) for pages in tables] + [columns])
    with _figure(title, 0.6 + 0.45 * rows, 9.5, (longest + 2, columns)) as (figure, (left, right)):
        right.set_title(f"pool of {num_pages} pages")
        pool = dict.fromkeys(range(num_pages), (0, "white"))
        for b, (pages, length) in enumerate(zip(tables, lengths, strict=True)):
            left.text(-0.1, b + 0.35, f"sequence {b}, length {length}", ha="right", va="center")
            for entry, page in enumerate(pages):
                filled = min(max(length - entry * page_size, 0), page_size)
                pool[page] = filled, PALETTE[b % len(PALETTE)]
                _page(left, entry, b, page, page_size, *pool[page])
        for page, look in pool.items():
            _page(right, page % columns, page // columns, page, page_size, *look)
        for axes, first, last in ((left, -2, longest), (right, 0, columns)):
            axes.set(xlim=(first, last), ylim=(rows - 0.1, -0.3))
            axes.axis("off")
        told = (
            f"Sequence {b}, length {length}: " + (f"pages {', '.join(map(str, pages))}" if pages else "no page")
            for b, (pages, length) in enumerate(zip(tables, lengths, strict=True))
        )
        free = [str(page) for page in range(num_pages) if not any(page in pages for pages in tables)]
        pool_told = f"Pool of {num_pages} pages of {page_size} tokens, free: {', '.join(free) or 'none'}"
        figure.tell(title or "Page table", told, [pool_told])
    return figure


def stacked(rows: Mapping[str, Mapping[str, float]], *, unit: str, title: str = "", log: bool = False) -> "Figure":
    """Draw one horizontal bar per row, first on top, of parts end to end, with their sum behind it.

    Parameters
    ----------
    rows
        ``row: {part: value}``; a part has one colour in all rows.
    unit
        Of the values.
    title
        Above the axes.
    log
        Whether the axis is logarithmic. Lengths do not add up on one: each part has a bar of its own there, and the sum
        stands below the name.
    """
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    with _figure(title, height=1.1 + (0.25 * len(parts) if log else 0.35) * len(rows), width=8.5) as (figure, axes):
        start, places = np.zeros(len(rows)), np.arange(len(rows))
        high = 0.8 / len(parts) if log else 0.8
        for n, (part, color, hatch) in enumerate(zip(parts, PALETTE, HATCHES, strict=False)):
            values = np.array([row.get(part, 0.0) for row in rows.values()])
            left, at = (0.0, places + high * (n - (len(parts) - 1) / 2)) if log else (start, places)
            bars = axes.barh(at, values, high, left=left, color=color, label=part, hatch=hatch, edgecolor="white")
            if log:
                axes.bar_label(bars, [_number(value) for value in values], padding=4)
            start = start + values
        for place, end in zip(places, start, strict=True):
            if not log:
                axes.text(end, place, f"  {_number(end)}", va="center")
        sums = [f"{name}\nin all {_number(end)}" for name, end in zip(rows, start, strict=True)]
        axes.set_yticks(places, sums if log else list(rows))
        if log:
            axes.set_xscale("log")
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.12)
        axes.set_xlabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        told = (
            f"{name}: {', '.join(f'{part} {_number(value)}' for part, value in row.items())}; in all {_number(end)}"
            for (name, row), end in zip(rows.items(), start, strict=True)
        )
        figure.tell(title, [f"Stacked bars in {unit}"], told)
    return figure


def curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    *,
    xlabel: str,
    ylabel: str,
    log: str = "",
    dotted: Sequence[str] = (),
    points: Sequence[str] = (),
    verticals: Mapping[str, float] | None = None,
) -> "Figure":
    """Draw lines through points, in panels side by side that share the vertical axis.

    Parameters
    ----------
    panels
        ``title: {label: (x, y)}``, x and y: [n]. Labels that are alike up to a comma have one colour and one marker;
        their lines differ by their dashes.
    xlabel, ylabel
        Of all panels, units included.
    log
        The logarithmic axes: ``""``, ``"x"``, ``"y"`` or ``"xy"``; x in powers of two.
    dotted, points
        Labels that are drawn as a dotted line on top of the others, and as points without a line.
    verticals
        ``label: x`` of vertical lines in every panel.
    """
    names = dict.fromkeys(label.partition(",")[0] for lines in panels.values() for label in lines)
    looks = dict(zip(names, cycle(zip(PALETTE, MARKERS, strict=True)), strict=False))
    stars = dict(zip(points, cycle("*PXD"), strict=False))
    dash = {}
    for label in dict.fromkeys(label for lines in panels.values() for label in lines):
        alike = [
            known for known in dash if known.partition(",")[0] == label.partition(",")[0] and dash[known] in DASHES[:3]
        ]
        dash[label] = "" if label in points else ":" if label in dotted else DASHES[len(alike) % 3]
    width = 6.5 if len(panels) == 1 else 10
    told = [*dash, *(verticals or {})]
    beside = max(map(len, told)) <= 3 * width  # letters; longer labels leave the panels too little of the width
    columns = max(1, int(12 * width / (max(map(len, told)) + 8)))
    with _figure("", 3.6 + (not beside) * 0.25 * -(-len(told) // columns), width, (1,) * len(panels)) as (
        figure,
        drawn,
    ):
        drawn = np.ravel(drawn)
        for axes, (title, lines) in zip(drawn, panels.items(), strict=True):
            if axes is not drawn[0]:
                axes.sharey(drawn[0])
            for label, (x, y) in lines.items():
                color, marker = looks[label.partition(",")[0]]
                marker, size = (stars[label], 11) if label in points else (marker, 4)
                look = dict(color=color, marker=marker, markersize=size)
                if label in dotted:
                    look |= dict(markerfacecolor="none", zorder=2.1)
                axes.plot(x, y, linestyle=dash[label], label=label, **look)
            for (label, x), dashes in zip((verticals or {}).items(), ((6, 2), (1, 2), (6, 2, 1, 2)), strict=False):
                axes.axvline(x, color="#555555", linestyle=(0, dashes), linewidth=1.2, label=label)
            if "x" in log:
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
                axes.xaxis.get_major_locator().set_params(numticks=6)  # more run into each other
            if "y" in log:
                axes.set_yscale("log")
            axes.set(title=title, xlabel=xlabel)
        drawn[0].set_ylabel(ylabel)
        if beside:
            drawn[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        else:
            figure.legend(*drawn[-1].get_legend_handles_labels(), loc="outside lower center", ncols=columns)
        lines_told = (
            (title, (f"{label}: {_extent(x, y)}" for label, (x, y) in lines.items())) for title, lines in panels.items()
        )
        marks = (f"Vertical line at {_number(x)}: {label}" for label, x in (verticals or {}).items())
        figure.tell(
            f"{ylabel} over {xlabel}", *((f"{t}. " * bool(t) + "; ".join(each),) for t, each in lines_told), marks
        )
    return figure


def matrices(
    shown: Mapping[str, tuple[int, int, Sequence[tuple[int, int, int, int, str, str]]]], *, title: str = ""
) -> "Figure":
    """Draw matrices side by side, to one scale, with blocks in them.

    Parameters
    ----------
    shown
        ``name: (rows, columns, blocks)``. A block is ``(row, column, rows, columns, color, text)``, counted from the
        upper left corner; the last of two that overlap is on top.
    title
        Above them all.
    """
    left, tallest = 0.0, max(rows for rows, _, _ in shown.values())
    total = sum(columns + 2 for _, columns, _ in shown.values())
    with _figure(title, 0.9 + 9.5 * (tallest + 1.5) / total, 9.5) as (figure, axes):
        for name, (rows, columns, blocks) in shown.items():
            axes.text(left + columns / 2, -0.3, name, ha="center", va="bottom", fontsize=9)
            for y, x, height, width, color, text in ((0, 0, rows, columns, "#EDEDED", ""), *blocks):
                axes.bar(left + x, height, width, y, align="edge", color=color, edgecolor="#555555", linewidth=0.7)
                axes.text(left + x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=8)
            left += columns + 2
        axes.set(xlim=(-0.2, left - 1.8), ylim=(tallest + 0.2, -1.3), aspect="equal")
        axes.axis("off")
        told = (
            f"{name}: {rows} × {columns}"
            + "".join(f"; {h} × {w} at ({y}, {x}) {text}" for y, x, h, w, _, text in blocks)
            for name, (rows, columns, blocks) in shown.items()
        )
        figure.tell(title or "Matrices, blocks by their upper left corners", told)
    return figure


def processors(programs: Mapping[str, int], *, total: int = 132) -> "Figure":
    """Draw a square for each multiprocessor of a GPU, coloured if it has a program.

    Parameters
    ----------
    programs
        ``title: count``: one panel each.
    total
        Multiprocessors of the GPU.
    """
    with _figure("", 2.6, 2.5 * len(programs), (1,) * len(programs)) as (figure, panels):
        for axes, (title, count) in zip(np.ravel(panels), programs.items(), strict=True):
            row, column = np.divmod(np.arange(total), 12)
            colors = [PALETTE[0] if number < count else "#EDEDED" for number in range(total)]
            axes.bar(column, 0.86, 0.86, row, color=colors)
            axes.set(aspect="equal", title=f"{title}\n{count} program" + "s" * (count != 1))
            axes.invert_yaxis()
            axes.axis("off")
        busy = (f"{title}: {min(count, total)} of {total}" for title, count in programs.items())
        figure.tell("Multiprocessors that have a program", busy)
    return figure


def rescaling(scores: Sequence[float], block: int, *, title: str = "") -> "Figure":
    """Draw an online softmax: the weights exp(score - maximum so far) after each block, one panel each.

    Parameters
    ----------
    scores
        [n], natural logarithms of weights.
    block
        Scores that arrive at a time. Those of the newest block are coloured, and where the maximum has risen the
        height of older ones before it is dashed.
    title
        Above the first panel.
    """
    scores = np.asarray(scores, dtype=float)
    ends = range(block, len(scores) + block, block)
    told = []
    with _figure(title, 2.9, 9.5, (1,) * len(ends)) as (figure, panels):
        old = -np.inf
        for axes, end in zip(np.ravel(panels), ends, strict=True):
            seen = scores[:end]
            m, known = seen.max(), end - block
            alpha, sum_ = np.exp(old - m), np.exp(seen - m).sum()
            if known:
                axes.bar(np.arange(known), np.exp(seen[:known] - old), fill=False, edgecolor="#999999", linestyle="--")
            colors = ["#BBBBBB"] * known + [PALETTE[1]] * (len(seen) - known)
            axes.bar(np.arange(len(seen)), np.exp(seen - m), color=colors)
            axes.set(xlim=(-0.7, len(scores) - 0.3), ylim=(0, 1.05), xlabel="token")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.text(0, -0.42, f"m = {m:.2f}, α = {alpha:.2f}, ℓ = {sum_:.2f}", transform=axes.transAxes)
            told.append(f"After {len(seen)} tokens m = {m:.2f}, α = {alpha:.2f}, ℓ = {sum_:.2f}")
            old = m
        np.ravel(panels)[0].set_ylabel("weight under m")
        figure.tell(title or "Weights of an online softmax", told)
    return figure


def timeline(panels: Mapping[str, Sequence[tuple[str, int, float, float]]]) -> "Figure":
    """Draw what runs when: lanes of bars over one axis of time, one group under the other.

    Parameters
    ----------
    panels
        ``title: bars``. A bar is ``(text, lane, start, length)``; bars whose text has the same first line have one
        colour, and lane 0 is on top.
    """
    names = dict.fromkeys(text.partition("\n")[0] for bars_ in panels.values() for text, *_ in bars_)
    colors = dict(zip(names, PALETTE[4:7] + PALETTE[3::-1], strict=False))  # no black: no text is seen on it
    lanes = [1 + max(lane for _, lane, _, _ in bars_) for bars_ in panels.values()]
    with _figure("", 0.6 + 0.55 * (sum(lanes) + len(lanes)), 9.5) as (figure, axes):
        top = 0.0
        for (title, bars_), count in zip(panels.items(), lanes, strict=True):
            place = {"xycoords": axes.get_yaxis_transform(), "xytext": (5, 0), "textcoords": "offset points"}
            axes.annotate(title, (0, top + 0.7), **place)
            for text, lane, start, length in bars_:
                row = top + 1.3 + lane
                axes.barh(row, length, 0.85, start, color=colors[text.partition("\n")[0]], edgecolor="white")
                axes.text(start + length / 2, row, text, ha="center", va="center", fontsize=7)
            top += count + 1
        axes.set(xlabel="time →", xticks=[], yticks=[], ylim=(top + 0.2, 0.3))
        axes.grid(visible=False)
        shown = ((title, sorted(bars_, key=lambda each: each[2])) for title, bars_ in panels.items())
        what = lambda text, lane, start, length: f"{' '.join(text.split())} {start:g} to {start + length:g}"
        figure.tell("What runs when", (f"{title}: {', '.join(what(*bar) for bar in bars_)}" for title, bars_ in shown))
    return figure


def _page(axes, column, row, page, page_size, filled, color):
    """Draw one page with its number, as slots side by side."""
    width = 0.74 / page_size
    left = [column + 0.2 + slot * width for slot in range(page_size)]
    colors = [color] * filled + ["white"] * (page_size - filled)
    axes.barh([row + 0.35] * page_size, width, 0.7, left, color=colors, edgecolor="#777777", linewidth=0.6)
    axes.text(column + 0.17, row + 0.35, page, ha="right", va="center", fontsize=8, color="#444444")


@contextmanager
def _figure(title, height=4.0, width=7.0, panels=(1,)):
    import matplotlib.pyplot as plt

    plt.draw_if_interactive()  # a backend that is loaded inside rc_context loses its interactive mode on leaving it
    with plt.rc_context(STYLE):
        size = width, height
        look = {"figsize": size, "width_ratios": panels, "layout": "constrained"}
        figure, axes = plt.subplots(1, len(panels), FigureClass=_picture(), **look)
        np.ravel(axes)[0].set_title(title)
        try:
            yield figure, axes
        finally:
            plt.close(figure)  # or a notebook would show it twice


@cache
def _picture():
    from matplotlib.figure import Figure

    class Picture(Figure):
        """A Figure that a notebook shows with a text for who cannot see it."""

        alt = ""

        def tell(self, *sentences: str | Iterable[str]) -> None:
            """Set the text, from sentences and lists of them."""
            lists = [[each] if isinstance(each, str) else each for each in sentences]
            plain = [
                re.sub(r"\$([^$]*)\$", lambda found: re.sub(r"[{}\\]", "", found[1]), x) for xs in lists for x in xs
            ]
            self.alt = " ".join(" ".join(each.split()).rstrip(".") + "." for each in plain if each.strip())

        def _ipython_display_(self):
            from IPython.display import display

            file = BytesIO()
            self.savefig(file, format="png", bbox_inches="tight")
            data = base64.b64encode(file.getvalue()).decode()
            image = f'<img src="data:image/png;base64,{data}" alt="{escape(self.alt)}">'
            display({"text/html": image, "text/plain": self.alt}, raw=True)

    return Picture


def _extent(x, y):
    """Return where a line begins and ends, and its extremes if they lie between."""
    x, y = (np.asarray(values, dtype=float) for values in (x, y))
    ends = dict.fromkeys((0, int(y.argmin()), int(y.argmax()), len(y) - 1)) if len(y) else ()
    return ", ".join(f"{_number(y[n])} at {_number(x[n])}" for n in sorted(ends))


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _place(point, device, dtype, measured):
    if isinstance(point, Cost):
        return point.intensity, device.attainable(point.intensity, dtype, measured)
    cost, seconds = point
    return cost.intensity, cost.flops / seconds
