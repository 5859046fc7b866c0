"""All that needs a look in a class, found once: the cache keeps it as long as nothing is graded."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.dashboard import flags, integrity
from autograder.dashboard.figures import Group, gather
from autograder.dashboard.flags import Flag
from autograder.dashboard.integrity import Alike, AsOwn, Refused
from autograder.dashboard.snapshot import CACHE, Progress, load, read, read_shapes, save

if TYPE_CHECKING:
    from autograder.course.course import Course


@dataclass(frozen=True)
class Findings:
    """What needs a look: exercises, groups whose answers are alike, answers that are the lesson's own or refused."""

    flags: list[Flag]
    alike: list[Alike]
    own: list[AsOwn]
    refused: list[Refused]


KINDS: dict[str, Any] = {"flags": Flag, "alike": Alike, "own": AsOwn, "refused": Refused}


def find(group: Group) -> Findings:
    """Return what needs a look, from the cache if that is of this very state of the class and of the compared answers.

    Only answers that are in the cache of shapes are compared: `snapshot.read_shapes` with a course puts them there.
    """
    snapshot = group.snapshot
    path = snapshot.folder / CACHE / "findings.json"
    digest = [
        snapshot.digest,
        [[each.name, each.stat().st_mtime_ns] for each in sorted(path.parent.glob("*.shapes.json"))],
    ]
    known = load(path)
    if known.get("digest") == digest:
        with contextlib.suppress(TypeError, KeyError):
            return Findings(**{name: [_made(kind, each) for each in known[name]] for name, kind in KINDS.items()})
    shapes = read_shapes(snapshot.folder)
    alike = integrity.alike(group, shapes)
    found = Findings(flags.flags(group, shapes), alike, integrity.as_own(shapes), integrity.refused(group))
    save(path, {"digest": digest, **{name: [asdict(each) for each in getattr(found, name)] for name in KINDS}})
    return found


def sum_up(course: Course, folder: Path, progress: Progress = lambda stage, done, total: None) -> Group:
    """Bring the cache up to date, so that a dashboard opens at once, and return the class.

    Raises FileNotFoundError if nothing is graded.
    """
    group = gather(read(folder, progress))
    read_shapes(folder, course, progress)
    find(group)
    return group


def _made(kind: Any, data: dict[str, Any]) -> Any:
    return kind(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
