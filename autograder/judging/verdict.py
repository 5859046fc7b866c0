"""A verdict, and the folder where verdicts are kept."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.files import write_whole
from autograder.text import one_line


class Outcome(enum.StrEnum):
    """What happened to an exercise. Only FAULT is not the student's: it is never a zero."""

    PASSED = "passed"
    PARTIAL = "partial"
    WRONG = "wrong"
    SLOW = "slow"
    ERROR = "error"
    UNFINISHED = "unfinished"
    MISSING = "missing"
    TIME = "time limit"
    MEMORY = "memory limit"
    ENDED = "ended early"
    UNREADABLE = "unreadable"
    ABSENT = "absent"
    OTHER = "other lesson"
    FAULT = "grader fault"


@dataclass(frozen=True)
class PartVerdict:
    """The points of one part, and the reason if they were not earned."""

    name: str
    points: float
    score: float
    reason: str = ""
    case: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))
        object.__setattr__(self, "case", one_line(self.case))


@dataclass(frozen=True)
class Verdict:
    """The verdict on one exercise, or on its speed. `score` is None for a grader fault, else between 0 and `points`.

    Reasons and notes may quote a submission: they are lines that may be shown anywhere (see `text.one_line`).
    `speed` holds what `kernels.speed.as_dict` made of the time, where there is one. `isolation` is what the program ran
    under, "bubblewrap" or "process"; empty where nothing had to run.
    """

    exercise: str
    points: float
    score: float | None
    outcome: Outcome
    reason: str = ""
    mistake: str | None = None
    parts: tuple[PartVerdict, ...] = ()
    notes: tuple[str, ...] = ()
    speed: Mapping[str, Any] | None = None
    seconds: float = field(default=0.0, compare=False)
    isolation: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", one_line(self.reason))
        object.__setattr__(self, "notes", tuple(one_line(note) for note in self.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Verdict:
        """Return the verdict that `to_json` wrote."""
        parts = tuple(PartVerdict(**part) for part in data["parts"])
        return cls(**{**data, "outcome": Outcome(data["outcome"]), "parts": parts, "notes": tuple(data["notes"])})


class VerdictStore:
    """Verdicts as files, one a key, written whole or not at all."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, key: str) -> Verdict | None:
        """Return the verdict kept under `key`, or None. A damaged file counts as none."""
        try:
            return Verdict.from_json(json.loads(self._path(key).read_text()))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict. Grader faults are not kept: they are tried again."""
        if verdict.outcome is not Outcome.FAULT:
            write_whole(self._path(key), json.dumps(verdict.to_json(), indent=1) + "\n")

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
