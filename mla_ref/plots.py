"""Pictures for the lessons: rooflines, bars, matrices. Each returns a Figure that a notebook shows once."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from .devices import Device
from .roofline import Cost

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
        axes.legend(loc="lower right")
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


@contextmanager
def _figure(title, height=4.0):
    import matplotlib.pyplot as plt

    plt.draw_if_interactive()  # a backend that is loaded inside rc_context loses its interactive mode on leaving it
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, height), layout="constrained")
        axes.set_title(title)
        yield figure, axes
        plt.close(figure)  # or a notebook would show it twice


def _number(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _place(point, device, dtype, measured):
    if isinstance(point, Cost):
        return point.intensity, device.attainable(point.intensity, dtype, measured)
    cost, seconds = point
    return cost.intensity, cost.flops / seconds
