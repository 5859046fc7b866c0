"""The history of attempts: what a student handed in over time is neither lost nor counted twice."""

import pytest

from autograder.classroom import grader
from autograder.classroom.export import rows

from ..tiny_course import LESSON, NAME, RIGHT, WRONG, cell, hand_in, notebook, own_cell


@pytest.fixture
def room(tiny_room):
    return tiny_room


def _hand_in(room, time=None, **sources):
    hand_in(room.folder, ada=notebook(**sources))
    if time:
        (room.submitted / "ada" / NAME / "timestamp.txt").write_text(time)


def _scores(room):
    return [attempt.score for attempt in room.records.history("ada", NAME)]


def test_every_attempt_is_kept_oldest_first_with_its_verdicts(room):
    _hand_in(room, "2026-12-24 10:00:00 UTC", **WRONG)
    room.grade()
    _hand_in(room, "2026-12-25 10:00:00 UTC", **RIGHT)
    room.grade()
    first, second = room.records.history("ada", NAME)
    assert (first.submitted, second.submitted) == ("2026-12-24 10:00:00 UTC", "2026-12-25 10:00:00 UTC")
    assert (first.score, second.score) == (2, 5)
    assert "halved" in first.verdicts[0].reason
    assert first.graded <= second.graded


def test_the_code_of_an_attempt_can_be_shown(room):
    helped = notebook(double="def double(x): return helper(x)", quad=RIGHT["quad"])
    helped["cells"].insert(0, own_cell("def helper(x): return 2 * x"))
    hand_in(room.folder, ada=helped)
    room.grade()
    _hand_in(room, **WRONG)
    room.grade()
    first, _ = room.records.history("ada", NAME)
    shown, _ = room.records.attempts.notebook("ada", LESSON, first.digest)
    assert cell(shown, "double").source == "def double(x): return helper(x)"
    assert any(each.source == "def helper(x): return 2 * x" for each in shown.cells)


def test_what_is_graded_again_is_no_further_attempt(room):
    _hand_in(room, **WRONG)
    room.grade()
    room.grade(again=True)
    assert _scores(room) == [2]


def test_an_earlier_attempt_that_is_handed_in_again_is_the_last_one(room):
    for sources in (WRONG, RIGHT, WRONG):
        _hand_in(room, **sources)
        room.grade()
    assert _scores(room) == [5, 2]


def test_a_change_of_a_helper_is_an_attempt_and_one_of_a_note_is_none(room):
    for own in ("def helper(x): return x", "def helper(x): return 2 * x", "def helper(x): return 2 * x"):
        book = notebook(double="def double(x): return helper(x)", quad=RIGHT["quad"])
        book["cells"].insert(0, own_cell(own))
        book["cells"].append(own_cell(f"print({len(_scores(room))})"))
        hand_in(room.folder, ada=book)
        room.grade()
    assert _scores(room) == [2, 5]


def test_a_history_that_was_lost_begins_again_and_a_damaged_line_costs_itself(room):
    file = room.folder / "history" / NAME / "ada.jsonl"
    for damage in (b"{", b'{"x": "\xff"}', b"[" * 100_000):
        file.unlink(missing_ok=True)
        for sources in (WRONG, RIGHT):
            _hand_in(room, **sources)
            room.grade()
        file.write_bytes(damage + b"\n" + file.read_bytes().splitlines()[1] + b"\n")
        assert _scores(room) == [5]
        _hand_in(room, **WRONG)
        room.grade()
        assert _scores(room) == [5, 2], "what is handed in next replaces no attempt"
        file.write_bytes(file.read_bytes() + damage + b"\n")
        room.grade()
        assert _scores(room) == [5, 2]
    file.unlink()
    assert [result.fresh for result in room.grade()] == [True]
    assert _scores(room) == [2]


def test_what_is_no_notebook_is_an_attempt_of_no_points(room):
    hand_in(room.folder, ada=b"{")
    room.grade()
    _hand_in(room, **RIGHT)
    room.grade()
    _hand_in(room, **{name: LESSON.starter(name) for name in RIGHT})
    room.grade()
    assert _scores(room) == [0, 5, 0]
    first = room.records.history("ada", NAME)[0]
    assert room.records.attempts.notebook("ada", LESSON, first.digest) is None


def test_a_run_that_is_killed_before_the_record_leaves_one_attempt(room, monkeypatch):
    _hand_in(room, **RIGHT)
    with monkeypatch.context() as patched:
        patched.setattr(
            "autograder.classroom.record.Records.note", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            room.grade()
    assert [result.fresh for result in room.grade()] == [True]
    assert _scores(room) == [5]


def test_a_damaged_record_is_written_anew_and_a_damaged_seed_is_told(room):
    _hand_in(room, **RIGHT)
    room.grade()
    record = room.folder / "graded" / NAME / "ada.json"
    for damage in (b"\xff", b"[" * 100_000):
        record.write_bytes(damage)
        assert [row["score"] for row in rows(room)] == [5]
        assert [(result.score, result.fresh) for result in room.grade()] == [(5, True)]
    grader.shared.cache_clear()
    (room.folder / "seed").write_bytes(b"\xff")
    with pytest.raises(OSError, match="seed is damaged: restore it, or remove it"):
        room.grade()
    assert (room.folder / "seed").read_bytes() == b"\xff"
