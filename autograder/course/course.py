"""A course: a folder with `solutions/NN_lesson/{lesson,exercises,sample_class}.py`, and what belongs to it.

    solutions/course.toml       its name, and what a student's code may import while it is judged
    solutions/NN_lesson/        one folder a lesson
    course/, classroom/         made from it: the students' notebooks, an instructor's working folder
    benchmarks/                 records that lessons quote
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import sys
import tomllib
import types
from pathlib import Path

from autograder.course.colab import opening_cells
from autograder.course.lesson import Lesson, LessonError, load, load_handed_out
from autograder.judging.exercise import Exercise

PACKAGE = Path(__file__).resolve().parents[1]
VARIABLE = "MLA_COURSE"
PROJECT = "mla-course"  # as pip knows it
HANDED_OUT = "handed_out.ipynb"  # in a lesson's folder: its notebook as students get it, in place of its script
PUBLISHED = {"repository": re.compile(r"[\w-]+/[\w.-]+", re.ASCII), "tag": re.compile(r"\w[\w./-]*", re.ASCII)}


class CourseError(LessonError):
    """A folder that is no course, or a file in it that cannot be used: a sentence that names it."""


class UnknownExercise(KeyError):
    """No lesson has an exercise of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


class Course:
    """The lessons below one folder.

    Parameters
    ----------
    root
        The folder that holds `solutions/`.

    Attributes
    ----------
    name : str
        From `course.toml`; the folder's name by default.
    helpers : tuple of str
        Packages that a student's code may import while it is judged, beside PyTorch, NumPy, Triton and
        `mla_ref.hardware`. Of a package with `HELPER_MODULES`, those modules alone.
    plots : tuple of str
        Modules of pictures: cells of a lesson that call their functions arrive collapsed.
    demo : tuple of str
        Lessons that `mla-course demo` grades; all that have a sample class if none are named.
    repository, tag : str
        Where the course is published: OWNER/NAME on GitHub, and a tag or branch there. Notebooks open in Colab from
        there; empty for a course that does not.

    Raises
    ------
    CourseError
        There is no `solutions/` with lessons in it, or `course.toml` cannot be read.
    """

    def __init__(self, root: Path):
        self.root = root.resolve()
        self.solutions = self.root / "solutions"
        if not self.lesson_names():
            raise CourseError(
                f"{self.root} is no course: expected lessons in {self.solutions}/NN_name/, each with an exercises.py"
            )
        settings = _settings(self.solutions / "course.toml")
        self.name: str = settings.get("name", self.root.name)
        self.helpers: tuple[str, ...] = tuple(settings.get("helpers", ()))
        self.plots: tuple[str, ...] = tuple(settings.get("plots", ()))
        self.demo: tuple[str, ...] = tuple(settings.get("demo", ()))
        self.repository, self.tag = settings.get("repository", ""), settings.get("tag", "")
        self._package = f"course_{hashlib.sha256(str(self.root).encode()).hexdigest()[:12]}"

    @classmethod
    def at(cls, root: str | Path) -> Course:
        """Return the course of a folder, the same object each time."""
        return cls._at(Path(root).resolve())

    @classmethod
    @functools.cache
    def _at(cls, root: Path) -> Course:
        return cls(root)

    @property
    def home(self) -> Path:
        """Where notebooks and a classroom go by default: beside the lessons.

        For the course that came along it is this folder, unless that lies in the course or `MLA_COURSE` is set.
        """
        here = Path.cwd()
        elsewhere = self.root in (PACKAGE.parent, PACKAGE / "_course") and not here.is_relative_to(self.root)
        return here if elsewhere and not os.environ.get(VARIABLE) else self.root

    @property
    def records(self) -> tuple[Path, ...]:
        """Folders of the records that lessons may quote: the course's, and the constants of the cost model."""
        return self.root / "benchmarks", PACKAGE / "kernels"

    def lesson_names(self) -> list[str]:
        """Return the lessons' names in order, such as "01_mha"."""
        return sorted(path.name for path in self.solutions.glob("[0-9][0-9]_*") if _is_lesson(path))

    def folder(self, lesson: str) -> Path:
        """Return a lesson's folder. Raises LessonError, naming the lessons there are, if there is none of that name."""
        folder = self.solutions / lesson
        if not re.fullmatch(r"\d\d_[^/]*", lesson) or not _is_lesson(folder):
            raise LessonError(f"there is no lesson {lesson!r}; the lessons are {', '.join(self.lesson_names())}")
        return folder

    def lesson(self, name: str) -> Lesson:
        """Return a lesson, read anew when its script or a record has changed.

        Where its script is not here, but the notebook that students get is, as in a release, it is made of that.

        Raises
        ------
        LessonError
            There is no such lesson, its script is not here, or it is not well formed.
        """
        folder = self.folder(name)
        script = folder / "lesson.py"
        if not script.is_file() and (folder / HANDED_OUT).is_file():
            return load_handed_out(folder / HANDED_OUT, self.exercises(name))
        if not script.is_file():
            raise LessonError(f"{script} is missing: lessons' scripts and solutions come with a checkout only")
        files = (script, *(path for place in self.records for path in sorted(place.glob("*.json"))))
        return self._lesson(name, tuple(path.stat().st_mtime_ns for path in files))

    @functools.cache  # noqa: B019  a course lives as long as its process
    def _lesson(self, name: str, _modified: tuple[int, ...]) -> Lesson:
        figures = self.module(name, "figures") if self.has(name, "figures") else None
        found = load(self.solutions / name / "lesson.py", self.exercises(name), figures, self.records, self.plots)
        if self.repository:
            found.notebook.cells[:0] = opening_cells(PROJECT, self.repository, self.tag, name)
        return found

    def exercises(self, lesson: str) -> tuple[Exercise, ...]:
        """Return the exercises of a lesson, in order.

        Raises
        ------
        CourseError
            Its exercises.py is absent, cannot be imported, holds no exercises, or one of them needs one that there is
            not.
        """
        file = self.folder(lesson) / "exercises.py"
        found = getattr(self.module(lesson, "exercises"), "EXERCISES", None)
        if not isinstance(found, tuple) or not found or not all(isinstance(each, Exercise) for each in found):
            raise CourseError(f"{file} has no exercises: expected EXERCISES, a tuple of at least one Exercise")
        names = [each.name for each in found]
        for each in found:
            if unknown := [need for need in each.needs if need not in names]:
                raise CourseError(f"{file}: {each.name} needs {unknown[0]!r}, which is no exercise of the lesson")
        return found

    def locate(self, name: str) -> tuple[str, Exercise]:
        """Return the lesson and the exercise of that name; names are unique in a course. Raises UnknownExercise."""
        known = []
        for lesson in self.lesson_names():
            for exercise in self.exercises(lesson):
                if exercise.name == name:
                    return lesson, exercise
                known.append(exercise.name)
        raise UnknownExercise(f"there is no exercise {name!r}; there are {', '.join(known)}")

    def has(self, lesson: str, kind: str) -> bool:
        """Return whether a lesson's folder has `KIND.py`."""
        return (self.folder(lesson) / f"{kind}.py").is_file()

    def module(self, lesson: str, kind: str) -> types.ModuleType:
        """Import `KIND.py` of a lesson's folder. Its relative imports find what lies beside it in `solutions/`.

        Raises CourseError if it is absent or cannot be imported.
        """
        file = self.folder(lesson) / f"{kind}.py"
        if not file.is_file():
            raise CourseError(f"{file} is missing")
        if self._package not in sys.modules:
            package = types.ModuleType(self._package)
            package.__path__ = [str(self.solutions)]
            sys.modules[self._package] = package
        try:
            return importlib.import_module(f"{self._package}.{lesson}.{kind}")
        except Exception as error:
            message = " ".join(str(error).split())
            raise CourseError(f"{file} cannot be imported: {type(error).__name__}: {message}") from error


def _is_lesson(folder: Path) -> bool:
    return any((folder / f"{kind}.py").exists() for kind in ("exercises", "lesson"))


def _settings(file: Path) -> dict:
    try:
        found = tomllib.loads(file.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CourseError(f"{file} cannot be read: {error}") from None
    lists = [found.get(key, []) for key in ("helpers", "plots", "demo")]
    fit = all(isinstance(names, list) and all(isinstance(each, str) for each in names) for names in lists)
    if not isinstance(found.get("name", ""), str) or not fit:
        raise CourseError(f"{file}: expected name, a text, and helpers, plots and demo, lists of names")
    if found.keys() & PUBLISHED.keys() and not all(
        isinstance(text := found.get(key), str) and form.fullmatch(text) for key, form in PUBLISHED.items()
    ):
        raise CourseError(f'{file}: expected repository, as "OWNER/NAME" on GitHub, and tag, as "v1.0", or neither')
    return found


def find_course() -> Course:
    """Return the course at work: `MLA_COURSE` names it, or this folder lies in it; else the one that came along.

    Raises CourseError if there is none.
    """
    if named := os.environ.get(VARIABLE):
        return Course.at(Path(named).resolve())
    for folder in (Path.cwd(), *Path.cwd().parents):
        if next(folder.glob("solutions/[0-9][0-9]_*/exercises.py"), None):
            return Course.at(folder.resolve())
    root = PACKAGE.parent if (PACKAGE.parent / "solutions").is_dir() else PACKAGE / "_course"
    return Course.at(root)
