"""The dashboard's plots, as images with a text in their place. What lines are is told by dash and label too."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

INK, MARK, LINE = "#1b1f24", "#0b4fa8", "#8a3d00"


def image(figure: Any, text: str) -> str:
    """Return a figure as an HTML image with `text` in its place."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    source = base64.b64encode(data.getvalue()).decode()
    return f"<img alt='{escape(text)}' src='data:image/png;base64,{source}'>"


def exercise(histogram: Sequence[int], speed: Mapping[str, Any] | None) -> str:
    """Return students by share of the points, and for speed the share of the roofline's speed that answers reach."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2 if speed else 5, 2.8))
    axes = figure.subplots(1, 2 if speed else 1, squeeze=False)[0]
    places = (np.arange(len(histogram)) + 0.5) / len(histogram)
    axes[0].bar(places, histogram, width=0.9 / len(histogram), color=MARK, edgecolor=INK)
    axes[0].set(xlabel="share of the points", ylabel="students", xlim=(0, 1))
    told = f"Students by share of the points, in tenths from none to all: {', '.join(map(str, histogram))}."
    if speed:
        fractions = np.array(speed["fractions"])
        axes[1].plot(
            fractions, np.arange(1, len(fractions) + 1), color=MARK, drawstyle="steps-post", label="right answers"
        )
        baseline = speed["floor"] / speed["baseline"] if speed["baseline"] else 0.0
        axes[1].axvline(baseline, color=INK, linestyle=":", label="eager baseline")
        axes[1].axvline(1, color=INK, label="roofline")
        dashes = ["--", "-.", (0, (1, 3)), (0, (6, 2))]
        for bar, dash in zip([b for b in speed["bars"] if b["fraction"]], dashes, strict=False):
            axes[1].axvline(bar["fraction"], color=LINE, linestyle=dash, label=f"bar at {bar['fraction']:.0%}")
        axes[1].set(xlabel="share of the roofline's speed", ylabel="answers up to here", xlim=(0, 1.05))
        axes[1].legend(fontsize=8, loc="best")
        told += (
            f" Speed of {speed['timed']} right answers: from {fractions[0]:.0%} to {fractions[-1]:.0%} of the "
            f"roofline's, half of them at {np.median(fractions):.0%} or more; the baseline is at {baseline:.0%}."
        )
    return image(figure, told)


def roofline(kernels: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return kernels, numbered as in the table beside, under the roof of the device that most ran on."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.4))
    axes = figure.subplots()
    drawn = [(n, name, at) for n, (name, at) in enumerate(kernels, start=1) if at["flops"] and at["bytes"]]
    if not drawn:
        return ""
    roofs = {at["device"]: (at["bandwidth"], at["rate"]) for _, _, at in drawn}
    xs = [at["flops"] / at["bytes"] for _, _, at in drawn]
    span = np.geomspace(min(xs) / 4, max([*xs, *(rate / width for width, rate in roofs.values())]) * 4)
    for (device, (bandwidth, rate)), dash in zip(roofs.items(), ["-", "--", "-.", ":"], strict=False):
        axes.plot(span, np.minimum(span * bandwidth, rate) / 1e9, color=INK, linestyle=dash, label=f"roof of {device}")
    for (n, _, at), x in zip(drawn, xs, strict=True):
        axes.plot(x, at["flops"] / at["seconds"] / 1e9, "o", color=MARK, markersize=5)
        axes.annotate(
            str(n), (x, at["flops"] / at["seconds"] / 1e9), xytext=(5, 3), textcoords="offset points", fontsize=9
        )
    axes.set(xscale="log", yscale="log", xlabel="FLOP a byte", ylabel="GFLOP/s")
    axes.legend(fontsize=8)
    told = "; ".join(f"{n} {name}: {at['fraction']:.0%} of the roofline's speed" for n, name, at in drawn)
    return image(figure, f"Kernels under the roofline. {told}.")
