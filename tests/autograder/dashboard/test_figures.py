"""What is counted of a class."""

from pathlib import Path

import numpy as np
import pytest

from autograder.dashboard import figures, snapshot
from autograder.judging.verdict import Outcome, PartVerdict, Verdict

LESSON = "01_x"


def _class(**verdicts):
    """Return the figures of a class of one lesson: verdicts by student."""
    entries = {s: ([snapshot.row_of(v.to_json()) for v in its], 0.0, []) for s, its in verdicts.items()}
    book = snapshot.Book(dict.fromkeys([*verdicts, "zoe"], ""))  # zoe hands in nothing
    return figures.gather(snapshot.Snapshot(Path("nowhere"), {LESSON: snapshot.sheet_of(entries)}, book, []))


def _verdict(score, outcome=None, name="k", points=2, **more):
    outcome = outcome or (Outcome.PASSED if score == points else Outcome.PARTIAL if score else Outcome.WRONG)
    return Verdict(name, points, score, outcome, **more)


@pytest.fixture
def group():
    half = PartVerdict("small", 1, 1.0), PartVerdict("large", 1, 0.0, "the sign is wrong", "n=70")
    return _class(
        ada=[_verdict(2.0)],
        ben=[_verdict(1.0, reason="the sign is wrong", mistake="sign", parts=half)],
        cat=[_verdict(0.0, reason="out is off by 0.31 (at n=5)", parts=(PartVerdict("small", 1, 0.0, "off", "n=5"),))],
        dan=[_verdict(0.0, reason="out is off by 0.77 (at n=6)", parts=(PartVerdict("small", 1, 0.0, "off", "n=5"),))],
        eve=[_verdict(0.0, Outcome.UNFINISHED)],
        fay=[_verdict(None, Outcome.FAULT, reason="the grader failed")],
    )


def test_shares_are_of_all_students_and_means_of_those_who_tried(group):
    (each,) = figures.overview(group)
    assert (each.students, each.submitted, each.nonzero, each.perfect) == (7, 0.5714, 0.2857, 0.1429)
    assert (each.mean, each.first_try) == (0.375, 0.25)


def test_mistakes_are_counted_by_name_and_other_reasons_by_what_they_say(group):
    each = figures.detailed(group, 0, figures.overview(group)[0])
    assert [(m["mistake"], m["students"], m["examples"]) for m in each.mistakes] == [
        ("sign", 1, [{"student": "ben", "reason": "the sign is wrong"}])
    ]
    assert [(m["students"], m["reason"]) for m in each.reasons] == [(2, "out is off by 0.31 (at n=5)")]
    assert each.cases == [
        {"part": "small", "case": "n=5", "students": 2},
        {"part": "large", "case": "n=70", "students": 1},
    ]
    assert each.histogram == [2, 0, 0, 0, 0, 1, 0, 0, 0, 1]


def test_a_fault_is_no_zero_and_an_empty_class_has_no_figures(group):
    assert np.isnan(group.score[group.number["fay"], 0])
    assert figures.operations(group)[0]["faults"] == 1
    (each,) = figures.overview(_class(eve=[_verdict(0.0, Outcome.ABSENT)]))
    assert (each.submitted, each.mean, each.discrimination, each.hours) == (0.0, None, None, None)


def test_discrimination_is_the_correlation_with_what_a_student_does_elsewhere():
    students = {
        f"s{n}": [_verdict(2.0 * (n > 4), name="tells"), _verdict(2.0 * (n % 2), name="odd")] for n in range(10)
    }
    for n, each in enumerate(students.values()):
        each += [_verdict(2.0 * (n > m), name=f"more{m}") for m in (2, 4, 6, 8)]
    tells, odd, *_ = figures.overview(_class(**students))
    assert tells.discrimination > 0.8
    assert abs(odd.discrimination) < 0.3


def test_speed_is_held_against_roofline_baseline_and_bars():
    def timed(fraction, score):
        speed = dict.fromkeys(snapshot.SPEED, 1.0)
        speed |= dict(
            how="modelled", device="H100", seconds=1e-5 / fraction, floor=1e-5, baseline=4e-5, fraction=fraction
        )
        part = PartVerdict("60% of the floor's speed, 2× the baseline's", 2, score)
        return [_verdict(2.0), _verdict(score, name="k:speed", speed=speed, parts=(part,))]

    pending = [_verdict(0.0), _verdict(0.0, name="k:speed", reason="counts once the answer is right")]
    group = _class(ada=timed(0.8, 2.0), ben=timed(0.2, 0.0), cat=timed(0.7, 2.0), dan=pending)
    of_speed = figures.overview(group)[1]
    assert of_speed.submitted == 0.6  # of five, with zoe: the speed of a wrong answer is nobody's try
    speed = figures.detailed(group, 1, of_speed).speed
    assert (speed["timed"], speed["floor"], speed["baseline"]) == (3, 1e-5, 4e-5)
    assert speed["fastest"] == pytest.approx(1e-5 / 0.8)
    assert speed["bars"] == [
        {"bar": "60% of the floor's speed, 2× the baseline's", "fraction": 0.6, "reached": 2, "of": 3}
    ]


@pytest.mark.thorough
def test_who_stopped_or_never_began_is_lost_and_who_is_doing_well_is_not(thousand):
    made, group = thousand
    found = {each.student: each.why for each in figures.lost(group)}
    assert found[made.lost] == "has not handed in the last 8 lessons"
    best = group.students[int(np.argmax(group.total))]
    assert best not in found
    assert len(found) < 0.15 * len(group.students)
    (zoe, *_) = figures.lost(_class(ada=[_verdict(2.0)], ben=[_verdict(2.0)]))
    assert (zoe.student, zoe.why) == ("zoe", "has handed in nothing")
