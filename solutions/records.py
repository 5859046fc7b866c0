"""What the figures of several lessons take from the records in `benchmarks/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mla_ref.hardware.devices import DEVICES

H100 = DEVICES["h100"]


def pick(rows: list[dict[str, Any]], /, **size: Any) -> dict[str, Any]:
    """Return the row of a size. Raises LookupError unless there is exactly one."""
    found = [row for row in rows if all(row[name] == value for name, value in size.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} rows of {size}, expected one")
    return found[0]


def decode(record: Any, B: int, S: int, H: int, T: int) -> dict[str, Any]:
    """Return the calls of a decode step by name."""
    return pick(record("decode_h100")["decode"], B=B, S=S, H=H, T=T)["calls"]


def fitted(record: Any, task: str, size: str, variant: str) -> float:
    """Return the microseconds, in a CUDA graph, of a kernel that the grader's model is fitted to or validated with."""
    return pick(record("model_measured")["cases"], task=task, size=size, variant=variant)["graph"]["us"]


def launches(record: Any) -> tuple[float, float]:
    """Return the microseconds that the grader takes for a first launch, and for a further one."""
    constants = record("cost_constants")["constants"]
    return 1e6 * constants["launch"], 1e6 * constants["next_launch"]


def rounded(value: Any, digits: int) -> Any:
    """Return data with its floats rounded; to whole numbers for 0 digits."""
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(each, digits) for each in value)
    return round(value, digits or None) if isinstance(value, float) else value


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return cells of text as a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
