"""The exercises of each lesson. `exercises/lesson_01_mha.py` holds those of `solutions/01_mha.py` as `EXERCISES`."""

from __future__ import annotations

import importlib
import pkgutil

from autograder.exercise import Exercise


class UnknownExercise(KeyError):
    """No lesson has an exercise of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


def exercises(lesson: str) -> tuple[Exercise, ...]:
    """Return the exercises of a lesson, in order; none for a lesson that has no module here."""
    if f"lesson_{lesson}" not in _modules():
        return ()
    return importlib.import_module(f"{__name__}.lesson_{lesson}").EXERCISES


def find(lesson: str, name: str) -> Exercise:
    """Return one exercise of a lesson. Raises UnknownExercise, with the names there are."""
    for exercise in exercises(lesson):
        if exercise.name == name:
            return exercise
    names = ", ".join(exercise.name for exercise in exercises(lesson)) or "none"
    raise UnknownExercise(f"lesson {lesson} has no exercise {name!r}; it has {names}")


def locate(name: str) -> tuple[str, Exercise]:
    """Return the lesson and the exercise of that name; names are unique across lessons. Raises UnknownExercise."""
    known = []
    for module in _modules():
        lesson = module.removeprefix("lesson_")
        for exercise in exercises(lesson):
            if exercise.name == name:
                return lesson, exercise
            known.append(exercise.name)
    raise UnknownExercise(f"there is no exercise {name!r}; there are {', '.join(known)}")


def _modules() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name.startswith("lesson_"))
