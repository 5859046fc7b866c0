"""Bad exercises are found, each for its reason; good ones are left alone."""

import numpy as np
import pytest

from autograder.dashboard import figures, flags
from autograder.judging.verdict import PartVerdict

from . import simulated


def _found(made, group):
    return {(flag.lesson, flag.exercise.removesuffix(":speed")): flag.kind for flag in flags.flags(group, made.shapes)}


def test_five_bad_exercises_of_eighty_are_found_among_a_thousand_students_and_no_good_one(thousand):
    made, group = thousand
    assert sorted(made.bad.values()) == sorted(simulated.KINDS)
    assert _found(made, group) == made.bad


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_they_are_found_among_two_hundred_too(seed):
    made = simulated.make(200, 80, seed=seed)
    assert _found(made, figures.gather(simulated.as_snapshot(made))) == made.bad


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(("students", "seed"), [(12, 4), (30, 5), (60, 6), (300, 7)])
def test_a_class_without_bad_exercises_gets_no_flag(students, seed):
    made = simulated.make(students, 80, seed=seed, bad=False)
    assert _found(made, figures.gather(simulated.as_snapshot(made))) == {}


def test_a_flag_tells_what_the_class_did(thousand):
    made, group = thousand
    told = {flag.kind: flag.reason for flag in flags.flags(group, made.shapes)}
    assert "one and the same other answer" in told["wrong oracle"]
    assert "out is off by 0.4143" in told["ambiguous"]
    assert "first hand-in" in told["too easy"]
    assert "2% of the floor's speed" in told["slow bar"]
    assert "the lesson's own solution" in told["leaked"]


def test_a_bar_that_nobody_reaches_is_flagged():
    made = simulated.make(60, 12, 2, seed=8, bad=False)
    speeds = {v.exercise for each in made.verdicts.values() for v in each if v.speed}
    name = min(speeds)
    for key, verdicts in made.verdicts.items():
        for n, verdict in enumerate(verdicts):
            if verdict.exercise == name and verdict.speed:
                part = PartVerdict("99% of the floor's speed", 2, 0.0, "too slow")
                made.verdicts[key][n] = type(verdict)(**{**vars(verdict), "score": 0.0, "parts": (part,)})
    found = flags.flags(figures.gather(simulated.as_snapshot(made)), made.shapes)
    assert [(flag.exercise, flag.kind) for flag in found] == [(name, "slow bar")]
    assert "out of reach" in found[0].reason


def test_a_mistake_that_the_weak_make_is_no_flaw_of_the_exercise():
    """The most common answer of an exercise may be wrong: what tells is who gives it."""
    made = simulated.make(300, 24, 3, seed=9, bad=False)
    group = figures.gather(simulated.as_snapshot(made))
    common = [max((m["students"] for m in each.mistakes), default=0) for each in _all(group)]
    assert np.max(common) > 30
    assert flags.flags(group, made.shapes) == []


def _all(group):
    return [figures.detailed(group, n, each) for n, each in enumerate(figures.overview(group))]
