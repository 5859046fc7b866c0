"""What the counts of a call say of its time: one sentence on what to look at first, or that little is left to win."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autograder.text import one_line

AT_THE_LIMIT = 1.15  # times what a copy of the compulsory bytes takes
MUCH = 0.2  # of the time
MOST_WARPS = 32  # of a program: 1024 threads
WIDEST = 16  # bytes that a thread loads at once
AGAIN = 1.5  # times as many bytes loaded as there are distinct ones: some are loaded again
TILES = 4  # the same: they are loaded again and again
AGAIN_AND_AGAIN = 12  # the same: the tile is too small, whatever else is
NEAR = 1.15  # times the floor's bytes: no fewer can be moved
FEW = 0.75  # programs for each multiprocessor
BESIDE = 0.5  # of the longest of the times that compete: the next one counts too
MATTER = 0.2  # of the time for the bytes: products that take so long want matrix units

BY_BOUND = {
    "DRAM": "bytes from and to memory bound it",
    "L2": "requests to the L2 cache bound it: load less again, or in wider pieces that lie side by side",
    "load and store units": "the number of loads and stores bounds it: take more (tokens, columns) in a turn",
    "instructions": "arithmetic and addresses bound it: do less of them per byte",
    "special functions": "exponentials, roots and their like bound it: compute fewer",
    "barriers": "barriers bound it: have the threads of a program wait for one another less often",
    "fences": "what orders its atomic operations bounds it: make them fewer, or `sem='relaxed'` where no order matters",
    "boxes": "the boxes of tensor descriptors bound it: take larger ones",
    "descriptors": "making tensor descriptors bounds it: make each once, before the loop",
    "matrix units": "the matrix products bound it",
    "waiting": (
        "waiting bounds it: let a program ask for more bytes at once, by larger blocks, more warps or stages, or more "
        "programs run at a time"
    ),
    "handing out blocks": "the number of programs bounds it: let each do more",
}


def advice(speed: Mapping[str, Any]) -> str:
    """Return a sentence on a time, from its table of steps; nothing for a table without what bounds the steps.

    `speed` is an `autograder.kernels.speed.Attained` as plain data.
    """
    steps = [row for row in speed["steps"] if row.get("bound")]
    if not steps:
        return ""
    total = speed["seconds"] * 1e6
    if speed.get("copy") and total <= AT_THE_LIMIT * speed["copy"] * 1e6:
        return (
            f"at the limit: a copy of the {_mb(speed['bytes'])} that the work has to move takes "
            f"{speed['copy'] * 1e6:.3g} µs. Little more can be won here"
        )
    launches = next((row for row in speed["steps"] if row["step"] == "launching"), {})
    hosts = [row for row in steps if row.get("host")]
    took = sum(row["us"] + launches.get("further", 0.0) for row in hosts)
    if took > MUCH * total:
        row = max(hosts, key=lambda row: row["us"])
        where = f" in {one_line(row['line'], 150)}" if row.get("line") else ""
        more = f" and {len(hosts) - 1} more of its passes take" if len(hosts) > 1 else " takes"
        launched = ", launching included" if launches else ""
        return f"torch's {row['step']}{where}{more} {took:.3g} of {total:.3g} µs{launched}: do it in the kernel"
    launching = launches.get("us", 0.0)
    if launching > sum(row["us"] for row in steps):
        if len(steps) > 1:
            return f"{len(steps)} launches and passes take more time than what they do: make them fewer"
        return "launching takes more time than what the kernel does, and one launch is the least"
    row = max(steps, key=lambda row: row["us"])
    name = f"{one_line(row['step'], 100)}: " if len(steps) > 1 else ""
    return name + (_of_launch(row, speed, sum(each.get("distinct_bytes", 0) for each in steps)))


def _of_launch(row: Mapping[str, Any], speed: Mapping[str, Any], moved: float) -> str:
    """Return what the counts of the longest step say; `moved` are the distinct bytes of all steps."""
    us = speed["seconds"] * 1e6
    bound, programs, units = row["bound"], row.get("programs", 0), row.get("multiprocessors", 0)
    loaded, distinct = row.get("loaded_bytes", 0), row.get("distinct_loaded_bytes", 0)
    widths = {int(width): count for width, count in (row.get("load_widths") or {}).items()}
    width = max(widths, key=lambda width: width * widths[width], default=WIDEST)
    name, took = row.get("next") or ("", 0.0)
    beside = f"; after that, {BY_BOUND[name]}" if bound == "DRAM" and took > BESIDE * row["us"] else ""
    if row.get("spill_bytes"):
        more = "" if row.get("warps") == MOST_WARPS else ", or more warps for one"
        return f"registers spill to memory: take smaller blocks{more}"
    if programs and programs < FEW * units:
        idle = f"{programs} programs run on {units} multiprocessors, and the others idle"
        return f"{idle}: divide the work further, where the task leaves it to you"
    products = speed["flops"] / speed["rate"] > MATTER * speed["bytes"] / speed["bandwidth"]
    if products and programs and not row.get("tensor_instructions") and bound not in ("DRAM", "matrix units"):
        return "no matrix units ran: multiply tiles by tl.dot"
    if bound == "DRAM" and row.get("again_bytes", 0) < (NEAR - 1) * distinct:
        loaded = distinct  # what is loaded again lies in the L2, which has time to spare
    if bound in ("L2", "load and store units", "waiting", "DRAM"):
        if distinct and loaded > AGAIN_AND_AGAIN * distinct:
            return _tiles(loaded, distinct)
        if width < WIDEST and bound != "DRAM":
            return (
                f"most of what is loaded comes {width} bytes at a time, and {WIDEST} are possible: have the last axis "
                f"of a block run along neighbours in memory, and write its mask as `offs < n`; or have each thread "
                f"load more numbers, by larger blocks or fewer warps"
            )
        tiled = loaded > (AGAIN if row.get("tensor_instructions") else TILES) * distinct
        if distinct and tiled and bound != "waiting":
            return _tiles(loaded, distinct)
    if bound == "DRAM" and moved > NEAR * speed["bytes"]:
        return (
            f"{_mb(moved)} pass between chip and memory where {_mb(speed['bytes'])} have to: what more than one launch "
            f"or pass reads or writes, or a wider type, is the rest"
        )
    if bound in ("L2", "load and store units", "DRAM") and distinct and loaded > AGAIN * distinct:
        return (
            f"{_mb(loaded)} are loaded of {_mb(distinct)}: some is read again. Keep it where it fits, or pass over it "
            f"fewer times{beside}"
        )
    if bound == "DRAM" and beside:
        return f"the bytes are about the floor's, {_mb(speed['bytes'])}{beside}"
    if bound == "DRAM":
        took = f"{row['bound_us']:.3g} of {us:.3g} µs"
        return f"the bytes are about the floor's, {_mb(speed['bytes'])}, and moving them takes {took}"
    return BY_BOUND.get(bound, "")


def _tiles(loaded: float, distinct: float) -> str:
    return f"{_mb(loaded)} are loaded of {_mb(distinct)}: take larger tiles, so that less is loaded again"


def _mb(count: float) -> str:
    return f"{count / 1e6:.4g} MB"
