"""The dashboard's widgets, without a browser: what a click leads to."""

import shutil
import time

import pytest

from autograder.dashboard import snapshot
from autograder.judging.verdict import Outcome, Verdict

from . import simulated

app = pytest.importorskip("autograder.dashboard.app", reason="no ipywidgets here: pip install 'mla-course[dashboard]'")
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.fixture
def board(hundred):
    return app.Dashboard(hundred[1], "http://localhost:8888")


def _buttons(board, number):
    """Return the buttons of a list on the first page: students, exercises, groups."""
    return {button.description: button for button in board.needs.children[number].children[1:]}


def _click(board, number, words):
    next(button for text, button in _buttons(board, number).items() if words in text).click()


def _shown(board):
    """Return all HTML that the view in front holds."""
    found, stack = [], [board.body]
    while stack:
        widget = stack.pop()
        stack += getattr(widget, "children", ())
        if isinstance(widget, app.widgets.HTML):
            found.append(widget.value)
    return "".join(found)


def test_a_lost_student_is_one_click_away(board, hundred):
    name = board.group.shown(hundred[0].lost)
    _click(board, 0, name)
    assert board.view.value == "Student"
    assert f"<h2>{name}</h2>" in _shown(board)
    assert "has not handed in the last" in _shown(board)


def test_a_broken_exercise_is_one_click_away_with_its_reason(board, hundred):
    for (_, exercise), kind in hundred[0].bad.items():
        board.view.value = "Class"
        _click(board, 1, exercise)
        assert board.view.value == "Exercise"
        assert f"⚑ {kind}." in _shown(board)
        assert f"<h2>{exercise}" in _shown(board)


def test_a_copied_pair_is_one_click_away_side_by_side(board, hundred):
    pair = [board.group.shown(student) for student in hundred[0].copied[0]]
    text = next(t for t in _buttons(board, 2) if all(name in t for name in pair))
    _buttons(board, 2)[text].click()
    assert board.view.value == "Integrity"
    assert "class='pair'" in board.beside.value
    assert all(name in board.beside.value for name in pair)


def test_code_side_by_side_is_shown_in_the_order_in_which_it_is_read(board, monkeypatch):
    monkeypatch.setattr("autograder.dashboard.pages.source_of", lambda *which: "# \u202etxet")
    next(iter(_buttons(board, 2).values())).click()
    assert board.beside.value.count("# \ufffdtxet") == 2


def test_the_hardest_exercise_is_one_click_away(board, hundred):
    means = {(each.lesson, each.exercise, each.of_speed): each.mean for each in board.figures if each.mean is not None}
    lesson, exercise, of_speed = min(means, key=means.get)
    next(iter(_buttons(board, 3).values())).click()
    assert board.view.value == "Exercise"
    assert f"<h2>{exercise}{' speed' if of_speed else ''}, {lesson}" in _shown(board)
    whole = _shown(board).partition("the hardest first")[2]
    assert f"<td>{exercise}</td>" in whole.partition("<tbody>")[2].partition("</tr>")[0]


def test_a_student_with_a_slow_kernel_is_told_what_bounds_it(tmp_path):
    made = simulated.make(30, 8, 2, seed=3, bad=False)
    key, at = next(
        (key, n) for key, its in made.verdicts.items() for n, v in enumerate(its) if v.outcome is Outcome.SLOW
    )
    slow = made.verdicts[key][at]
    step = {"step": "kernel", "us": slow.speed["seconds"] * 1e6, "bound": "waiting", "bound_us": 1.0}
    verdicts = [*made.verdicts[key]]
    verdicts[at] = Verdict(**{**vars(slow), "speed": {**slow.speed, "steps": [step]}})
    made.verdicts[key] = verdicts
    simulated.write(made, tmp_path / "room")
    found = app.Dashboard(tmp_path / "room")
    found._to_student(key[1])
    assert "let a program ask for more bytes at once" in _shown(found)


def test_search_sort_filter_and_pages(board):
    everyone = board.found()
    assert len(everyone) == 100
    assert len(board.open.options) == app.ROWS
    first = board.open.options[0]
    board.page.value = 2
    assert board.open.options[0] != first
    board.search.value = "UP 0007"
    assert [board.group.students[n] for n in board.found()] == ["s0007"]
    assert board.page.value == 1
    board.search.value = ""
    board.sort.value = "most points"
    totals = [board.group.total[n] for n in board.found()]
    assert totals == sorted(totals, reverse=True)
    board.only.value = "need help"
    assert 0 < len(board.found()) < 100
    board.lesson.value = "03_lesson"
    assert "exercise_03_0" in board.table.value
    board.only.value = "handed in nothing yet"
    assert [board.group.students[n] for n in board.found()] == [simulated.make(100, 24, 4, seed=1).lost]


def test_choosing_a_student_in_the_list_opens_them(board):
    board.open.value = "s0003"
    assert (board.view.value, board.student.value) == ("Student", "s0003")


def test_hidden_names_are_nowhere(board):
    board.hide.value = True
    for view in app.VIEWS:
        board.view.value = view
        text = _shown(board)
        for widget in (board.open, board.student, board.pair):
            text += str([label for label, _ in widget.options])
        text += str([button for n in range(4) for button in _buttons(board, n)])
        assert "Made Up" not in text, view
        assert not [student for student in board.group.students if f"{student}<" in text], view


def test_nothing_of_a_students_is_markup(tmp_path):
    room = tmp_path / "room"
    made = simulated.make(30, 8, 2, seed=3, bad=False)
    for key, verdicts in made.verdicts.items():
        made.verdicts[key] = [
            v
            if v.outcome is Outcome.PASSED
            else Verdict(**{**vars(v), "reason": HOSTILE, "mistake": HOSTILE, "notes": ()})
            for v in verdicts
        ]
    simulated.write(made, room)
    import sqlite3

    with sqlite3.connect(room / "gradebook.db") as book:
        book.execute("UPDATE student SET first_name = ?, last_name = ''", (HOSTILE,))
    board = app.Dashboard(room)
    for view in app.VIEWS:
        board.view.value = view
        assert "<script" not in _shown(board), view
        assert "<img src=x" not in _shown(board), view
        assert view == "Operations" or "&lt;script&gt;" in _shown(board)


def test_what_is_graded_meanwhile_appears(hundred, tmp_path):
    room = tmp_path / "room"
    shutil.copytree(hundred[1], room)
    board = app.Dashboard(room)
    student = hundred[0].lost
    before = float(board.group.total[board.group.number[student]])
    made = hundred[0].verdicts["03_lesson", "s0001"]
    other = simulated.Made([student], {"03_lesson": []}, {("03_lesson", student): made}, {("03_lesson", student): []})
    for (lesson, name), verdicts in other.verdicts.items():
        simulated.put_record(room, lesson, name, verdicts)
    board.refresh()
    assert board.group.total[board.group.number[student]] > before


def test_what_cannot_be_read_again_is_said_and_what_was_read_stays(hundred, tmp_path, monkeypatch):
    room = shutil.copytree(hundred[1], tmp_path / "room")
    monkeypatch.setattr(snapshot, "read_shapes", lambda *args: None)  # which takes the lessons
    board = app.Dashboard(room)
    shown = _shown(board)
    shutil.move(room / "graded", tmp_path / "away")
    board.again.click()
    assert "not up to date: FileNotFoundError: nothing is graded in" in board.told.value
    assert _shown(board) == shown
    shutil.move(tmp_path / "away", room / "graded")
    board.again.click()
    assert "as of" in board.told.value


def test_a_filter_is_quick_enough_to_be_one(board):
    """No time is asserted; what is, is that a filter reads nothing from the disk."""
    shutil.move(board.folder, str(board.folder) + " away")
    try:
        started = time.monotonic()
        board.search.value = "0001"
        print(f"a filter of 100 students: {time.monotonic() - started:.3f} s")
        assert len(board.found()) == 1
    finally:
        shutil.move(str(board.folder) + " away", board.folder)


def test_every_picture_has_a_text_in_its_place(board):
    seen = 0
    for view in ("Exercise", "Student"):
        board.view.value = view
        for option in board.exercise.options[:4] if view == "Exercise" else [(None, "s0001")]:
            (board.exercise if view == "Exercise" else board.student).value = option[1]
            page = _shown(board)
            seen += page.count("<img")
            assert page.count("<img") == page.count("<img alt='")
            assert "<img alt=''" not in page
    assert seen >= 5


def test_nothing_graded_is_a_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run `mla-course grade` first"):
        app.Dashboard(tmp_path)
    assert not (tmp_path / snapshot.CACHE).exists()
