"""Pictures for the lessons: rooflines, bars, lines, boxes, pages. Each returns a Figure that a notebook shows once."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from .hardware.cost import Cost
from .hardware.devices import Device

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MARKERS = "osD^vPX*"

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
    with _figure(title) as (figure, axes):
        placed = {label: _place(point, devices[0], dtype, measured) for label, point in points.items()}
        ridges = [device.ridge(dtype, measured) for device in devices]
        seen = [*ridges, *(intensity for intensity, _ in placed.values())]
        span = np.geomspace(min(seen) / 4, max(seen) * 4, 200)
        for device, color in zip(devices, PALETTE, strict=False):
            axes.loglog(
                span,
                [device.attainable(x, dtype, measured) / 1e12 for x in span],
                color=color,
                label=device.name,
            )
        for number, (label, (intensity, rate)) in enumerate(placed.items()):
            color = PALETTE[(len(devices) + number) % len(PALETTE)]
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(intensity, rate / 1e12, marker, color=color, markersize=8, label=label)
        axes.set(xlabel="intensity (FLOP/byte)", ylabel="TFLOP/s")
        axes.legend(loc="lower right" if len(devices) == 1 else "best")
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
    return figure


def lines(
    x: Sequence[float],
    values: Mapping[str, Sequence[float]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    log: str = "",
    predicted: Mapping[str, Sequence[float]] | None = None,
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    horizontal: Mapping[str, float] | None = None,
    vertical: Mapping[str, float] | None = None,
) -> "Figure":
    """Draw values over x, a line with markers each (without them where there are more than 50).

    Parameters
    ----------
    x
        ``[n]``, for all lines.
    values
        ``label: [n]``.
    xlabel, ylabel, title
        Around the axes, with units.
    log
        The logarithmic axes: ``"x"``, to base 2, ``"y"`` or ``"xy"``.
    predicted
        ``label: [n]``: a dotted line beside that of the same label, in its colour.
    points
        ``label: ([m], [m])``: x and y of crosses.
    horizontal, vertical
        ``label: value``: dashed lines across.
    """
    with _figure(title, 3.4, 8.5) as (figure, axes):
        colors = dict(zip(values, PALETTE, strict=False))
        for (label, y), marker in zip(values.items(), MARKERS, strict=False):
            marker = marker if len(x) <= 50 else ""
            axes.plot(x, y, color=colors[label], marker=marker, markersize=5, label=label)
        for label, y in (predicted or {}).items():
            axes.plot(x, y, ":", color=colors[label], label=f"{label}, predicted")
        for label, (across, up) in (points or {}).items():
            axes.plot(across, up, "kx", markersize=8, label=label)
        for draw, marks in ((axes.axhline, horizontal or {}), (axes.axvline, vertical or {})):
            for (label, value), color in zip(marks.items(), PALETTE[len(colors) :], strict=False):
                draw(value, color=color, linestyle="--", label=f"{label}: {_number(value)}")
        if "x" in log:
            axes.set_xscale("log", base=2)
            if len(x) <= 16:
                axes.set_xticks(x, [f"{each:g}" for each in x])
        if "y" in log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0 if min(map(min, values.values())) >= 0 else None)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def stacked(values: Mapping[str, Mapping[str, float]], *, unit: str, title: str = "") -> "Figure":
    """Draw one horizontal bar per entry, first on top, made of parts one behind the other.

    Parameters
    ----------
    values
        ``label: {part: value}``, every entry with the same parts.
    unit
        Of the values.
    title
        Above the axes.
    """
    with _figure(title, height=1.0 + 0.3 * len(values)) as (figure, axes):
        start = np.zeros(len(values))
        for part, color in zip(next(iter(values.values())), (PALETTE[0], *PALETTE[4:]), strict=False):
            width = np.array([parts[part] for parts in values.values()])
            axes.barh(list(values), width, left=start, color=color, label=part)
            start += width
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(unit)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
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
    from matplotlib.patches import Patch

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
            for (row, column), text in np.ndenumerate(np.asarray((texts or {}).get(title, [[]]), dtype=object)):
                axes.text(column, row, str(text), ha="center", va="center", fontsize=9)
        handles = [Patch(facecolor=c, edgecolor="#BBBBBB", label=x) for c, x in zip(colors, labels, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
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
    color_of = {name: colors[group] for group, names in groups.items() for name in names}
    with _figure(title, size[1], size[0]) as (figure, axes):
        drawn = {}
        for name, (x, y, text) in boxes.items():
            look = {"boxstyle": "square,pad=0.4", "facecolor": color_of.get(name, "white"), "edgecolor": "#777777"}
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
            handles = [Patch(facecolor=color, edgecolor="#777777", label=label) for label, color in colors.items()]
            figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
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
        figure, axes = plt.subplots(1, len(panels), figsize=size, width_ratios=panels, layout="constrained")
        np.ravel(axes)[0].set_title(title)
        yield figure, axes
        plt.close(figure)  # or a notebook would show it twice


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _place(point, device, dtype, measured):
    if isinstance(point, Cost):
        return point.intensity, device.attainable(point.intensity, dtype, measured)
    cost, seconds = point
    return cost.intensity, cost.flops / seconds
