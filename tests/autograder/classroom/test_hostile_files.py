"""Whatever one student hands in, the others are graded to the end, and one line says what is wrong with it."""

import csv
import io
import os
import resource
import shutil
import signal
import unicodedata
from pathlib import Path

import pytest

from autograder.classroom import grade
from autograder.classroom.export import export, rows
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom
from autograder.classroom.record import submissions_of
from autograder.classroom.scoreboard import print_scoreboard
from autograder.cli.terminal import Terminal
from autograder.judging.verdict import Outcome, PartVerdict, Verdict

from ..tiny_course import NAME, RIGHT, hand_in, notebook

pytestmark = pytest.mark.xdist_group("hostile files")  # which are handed in once

HONEST = ("ada", "ben", "cleo")
BOOK = f"{NAME}.ipynb"
HUGE = 8 << 30
ESCAPES = "\x1b[2J\x1b[31m\x9b1m\a\u202e\u200b\nada 5 of 5"


def _folder(submitted, student="eve", lesson=NAME):
    path = submitted / student / lesson
    path.mkdir(parents=True)
    return path


def _right(folder, name=BOOK):
    honest = folder.parents[1] / "ada" / NAME / BOOK
    shutil.copy(honest, folder / name)
    return folder / name


def student_not_utf8(submitted):
    Path(os.fsdecode(os.fsencode(submitted) + b"/eve\xff\xfe")).touch()


def student_of_240_bytes(submitted):
    _right(_folder(submitted, "eve" + "é" * 118))


def student_with_escapes(submitted):
    (submitted / f"eve{ESCAPES}").mkdir()


def student_not_normal(submitted):
    name = "eve\N{ANGSTROM SIGN}"
    assert not unicodedata.is_normalized("NFC", name)
    _right(_folder(submitted, name))


def student_is_a_pipe(submitted):
    os.mkfifo(submitted / "eve")


def student_is_a_link(submitted):
    (submitted / "eve").symlink_to(submitted / "ada")


def lesson_not_utf8(submitted):
    os.mkdir(os.fsencode(_folder(submitted).parent) + b"/\xff\xfe")
    _right(submitted / "eve" / NAME)


def lesson_with_escapes(submitted):
    (submitted / "eve" / ESCAPES).mkdir(parents=True)


def lesson_is_a_link(submitted):
    (submitted / "eve").mkdir()
    (submitted / "eve" / NAME).symlink_to(submitted / "ada" / NAME)


def notebook_is_a_link(submitted):
    (_folder(submitted) / BOOK).symlink_to(submitted / "ada" / NAME / BOOK)


def lessons_by_the_thousand(submitted):
    _right(_folder(submitted))
    for n in range(3000):
        (submitted / "eve" / f"{n}").touch()


def notebook_is_a_pipe(submitted):
    os.mkfifo(_folder(submitted) / BOOK)


def notebook_is_a_folder(submitted):
    (_folder(submitted) / BOOK).mkdir()


def notebook_of_8_gb(submitted):
    with open(_folder(submitted) / BOOK, "wb") as file:
        file.truncate(HUGE)


def notebooks_not_utf8(submitted):
    folder = os.fsencode(_folder(submitted))
    for name in (b"\xff.ipynb", b"\xfe.ipynb"):
        Path(os.fsdecode(folder + b"/" + name)).write_text("{}")


def notebooks_with_escapes(submitted):
    for n in range(2):
        (_folder(submitted) if not n else submitted / "eve" / NAME).joinpath(f"{n}{ESCAPES}.ipynb").write_text("{}")


def notebook_not_utf8_beside(submitted):
    _right(_folder(submitted), os.fsdecode(b"\xff\xfe.ipynb"))
    _right(submitted / "eve" / NAME)


def notebooks_by_the_thousand(submitted):
    folder = _folder(submitted)
    for n in range(3000):
        (folder / f"{n}.ipynb").touch()


def time_that_the_parser_trips_over(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("2026-12-25 24:" + "9" * 40)


def time_that_overflows(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("0001-01-01 00:00:00 80000")


def time_of_8_gb(submitted):
    with open(_right(_folder(submitted)).with_name("timestamp.txt"), "wb") as file:
        file.truncate(HUGE)


def time_is_no_time(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("garbage\x1b[31m")


def time_before_all_others(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("0001-01-01 00:00:00 UTC")


def time_after_all_others(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("9999-12-31 23:59:59 UTC")


def time_is_a_pipe(submitted):
    os.mkfifo(_right(_folder(submitted)).with_name("timestamp.txt"))


def time_is_a_folder(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").mkdir()


def time_is_a_link(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").symlink_to("/dev/zero")


def time_zone_is_a_file(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("2026-12-25 10:00:00 /etc/localtime")


def time_zone_is_a_file_after_a_colon(submitted):
    _right(_folder(submitted)).with_name("timestamp.txt").write_text("2026-12-25 10:00:00 :/etc/localtime")


KINDS = ("student_", "lesson_", "lessons_", "notebook_", "notebooks_", "time_")
BAD = [each for name, each in list(globals().items()) if name.startswith(KINDS)]


def _report(room, results):
    """Return the lines that `mla-course grade` prints above and below its table."""
    text = io.StringIO()
    terminal = Terminal(file=text, width=500)
    print_scoreboard(terminal, results, everything=False)
    for line in room.found()[1]:
        terminal.print(line, soft_wrap=True)
    return [line for line in text.getvalue().splitlines() if not line.startswith(("│", "┃"))]


@pytest.fixture(scope="module")
def honest(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest") / "class"
    hand_in(folder, **{student: notebook(**RIGHT) for student in HONEST})
    Classroom(tiny, folder).grade()
    return folder


@pytest.fixture
def room(tiny, honest, tmp_path):
    return Classroom(tiny, shutil.copytree(honest, tmp_path / "class"))


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("plant", BAD, ids=lambda each: each.__name__)
def test_a_bad_hand_in_costs_its_own_student_alone_and_one_line_says_so(room, plant):
    plant(room.submitted)
    results = room.grade()
    told = _report(room, results)
    (line,) = [line for line in told if "eve" in line]
    assert line.isprintable(), line
    assert not [line for line in told if line.startswith("ada")]
    assert len(line) < 600, line
    scores = {result.student: result.score for result in results}
    assert [scores[student] for student in HONEST] == [results[0].points] * 3
    pages, problems = write_feedback(room)
    assert (len(pages), problems) == (len(results), [])


def test_a_folder_that_may_not_be_read_asks_for_a_person(room, monkeypatch):
    real = os.scandir
    _right(_folder(room.submitted))
    _folder(room.submitted, "eva")

    def scandir(path):
        if not isinstance(path, int) and Path(path) in (room.submitted / "eve" / NAME, room.submitted / "eva"):
            raise PermissionError(13, "Permission denied", str(path))  # a test may be run by root, who may read all
        return real(path)

    monkeypatch.setattr(grade.os, "scandir", scandir)
    results = {result.student: result for result in room.grade()}
    assert set(results) == {*HONEST, "eve"}
    assert results["eve"].score is None
    assert {verdict.outcome for verdict in results["eve"].verdicts} == {Outcome.FAULT}
    strange = room.found()[1]
    assert [line for line in strange if "submitted/eva cannot be read" in line]
    assert [line for line in strange if f"submitted/eve/{NAME} cannot be read" in line]


@pytest.mark.parametrize(
    "plant", [notebook_is_a_link, lesson_is_a_link, student_is_a_link], ids=lambda each: each.__name__
)
def test_the_button_in_formgrader_gives_nobody_anothers_work(room, plant):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    plant(room.submitted)
    config = room.records.config()
    answer = NbGraderAPI(CourseDirectory(config=config), config=config).autograde(NAME, "eve", force=True)
    assert answer["success"], answer
    with room.records.gradebook() as gradebook:
        scores = {each.student_id: each.score for each in submissions_of(gradebook, NAME)}
    assert scores["eve"] == 0 < scores["ada"]


def big_is_a_link(submitted):
    _right(_folder(submitted)).with_name("big").symlink_to("/dev/zero")


def seed_is_linked(submitted):
    _right(_folder(submitted)).with_name("data.txt").symlink_to(submitted.parent / "seed")


def notebook_is_in_a_folder_elsewhere(submitted):
    elsewhere = submitted.parent / "elsewhere"
    shutil.copytree(submitted / "ada" / NAME, elsewhere)
    (elsewhere / "data.txt").write_text("not for students")
    (submitted / "eve").mkdir()
    (submitted / "eve" / NAME).symlink_to(elsewhere)


def page_and_pipe(submitted):
    folder = _right(_folder(submitted)).parent
    (folder / "evil.html").write_text("<script>alert(1)</script>")
    os.mkfifo(folder / "pipe")


def notebook_is_broken(submitted):
    (_folder(submitted) / BOOK).write_text("{")


BESIDE = [
    *(big_is_a_link, seed_is_linked, page_and_pipe),
    *(notebook_is_in_a_folder_elsewhere, notebook_is_broken, notebook_is_a_pipe),
]


@pytest.fixture
def small():
    """No file of this process may grow beyond 16 MiB, and nothing may take more than a minute."""

    def stop(*_):
        raise TimeoutError("it waits for a pipe, or reads without an end")

    before, on_size = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    on_alarm = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16 << 20, before[1]))
    signal.alarm(60)
    yield
    signal.alarm(0)
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, on_size)
    signal.signal(signal.SIGALRM, on_alarm)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("plant", BESIDE, ids=lambda each: each.__name__)
def test_the_button_in_formgrader_copies_nothing_that_lies_beside_the_notebook(room, small, plant):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    plant(room.submitted)
    (room.submitted / "eve" / NAME / "timestamp.txt").write_text("2026-12-25 10:00:00 UTC")
    config = room.records.config()
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for answer in (api.autograde(NAME, "eve"), api.generate_feedback(NAME, "eve")):
        assert answer["success"], answer
    for step, page in (("autograded", BOOK), ("feedback", f"{NAME}.html")):
        there = [path for path in (room.folder / step / "eve").rglob("*") if not path.is_dir() or path.is_symlink()]
        assert sorted(path.name for path in there) == [page, "timestamp.txt"]
    with room.records.gradebook() as gradebook:
        scores = {each.student_id: each.score for each in submissions_of(gradebook, NAME)}
    assert scores["eve"] == (0 if plant.__name__.startswith("notebook_") else scores["ada"])


TIMES = [each for each in BAD if each.__name__.startswith("time_")]


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("plant", TIMES, ids=lambda each: each.__name__)
def test_formgrader_lists_the_class_whatever_one_student_says_the_time_is(room, plant, zone):
    from nbgrader.apps import NbGraderAPI
    from nbgrader.coursedir import CourseDirectory

    plant(room.submitted)
    config = room.records.config()
    config.NbGraderAPI.timezone = zone
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    assert [each["student"] for each in api.get_submissions(NAME)] == sorted([*HONEST, "eve"])
    answer = api.autograde(NAME, "eve")
    assert answer["success"], answer
    (eve,) = [each for each in api.get_submissions(NAME) if each["student"] == "eve"]
    assert (eve["autograded"], eve["score"], eve["timestamp"]) == (True, eve["max_score"], None)


def test_feedback_copies_nothing_that_an_earlier_grading_has_copied(room):
    (room.folder / "autograded" / "ada" / NAME / "evil.html").write_text("<script>alert(1)</script>")
    write_feedback(room)
    assert [path.name for path in (room.folder / "feedback" / "ada" / NAME).iterdir()] == [f"{NAME}.html"]


def test_a_class_of_3_with_every_bad_hand_in_at_once_is_graded(room):
    for n, plant in enumerate(BAD):
        stage = room.folder / f"stage-{n}"
        shutil.copytree(room.submitted / "ada", stage / "ada")
        plant(stage)
        for path in stage.iterdir():
            if path.name != "ada":
                path.rename(room.submitted / (path.name if path.name != "eve" else f"eve-{n}"))
        shutil.rmtree(stage)
    results = room.grade()
    scores = {result.student: result.score for result in results}
    assert [scores[student] for student in HONEST] == [results[0].points] * 3
    assert not any(result.problem for result in results)


def test_the_longest_name_is_graded(room):
    name = "n" * 128
    _right(_folder(room.submitted, name))
    results = room.grade()
    assert {result.student: result.score for result in results}[name] == results[0].points
    assert not write_feedback(room)[1]


def test_names_like_options_and_formulas_are_students_and_no_formulas_in_the_table(room, tmp_path):
    names = ["-rf", "--help", "@SUM", "+1"]
    for name in names:
        _right(_folder(room.submitted, name))
    room.grade()
    export(room, tmp_path / "grades.csv")
    rows = list(csv.DictReader((tmp_path / "grades.csv").read_text().splitlines()))
    assert {row["student"] for row in rows} == {*(f"'{name}" for name in names), *HONEST}
    assert all(row["score"] == row["max_score"] for row in rows)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1"])
def test_no_text_in_the_table_is_run(room, tmp_path, monkeypatch, text):
    there = [dict(row, student=text, score=-1.0) for row in rows(room)[:1]]
    monkeypatch.setattr("autograder.classroom.export.rows", lambda *rest: there)
    export(room, tmp_path / "grades.csv")
    with open(tmp_path / "grades.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["student"].startswith("'")
    assert (row["student"].replace("'", ""), row["score"]) == (text, "-1.0")


def test_a_terminal_obeys_nothing_that_a_verdict_quotes():
    part = PartVerdict("part", 1, 0, ESCAPES, ESCAPES)
    verdict = Verdict("each", 1, 0.0, Outcome.ERROR, ESCAPES, parts=(part,), notes=(ESCAPES, "\ud800"))
    for text in (verdict.reason, part.reason, part.case, *verdict.notes):
        assert text.isprintable()
        text.encode()
    assert verdict.notes[0].endswith(" ada 5 of 5"), "on the same line"


def test_a_terminal_obeys_no_text():
    text = io.StringIO()
    Terminal(file=text, force_terminal=True, color_system=None).print(
        f"[red]one[/x]:code:\n{ESCAPES[:-10]}\ud800", style="red"
    )
    assert text.getvalue().startswith("[red]one[/x]:code:\n")
    assert all(line.isprintable() for line in text.getvalue().split("\n"))
