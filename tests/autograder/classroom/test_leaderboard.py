"""The leaderboard: right first, then times; ties and what is no time are said to be so."""

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.classroom import leaderboard
from autograder.classroom.leaderboard import Result, Time, rank
from autograder.cli import app
from autograder.course.course import Course, UnknownExercise
from autograder.course.lesson import LessonError
from autograder.course.sample import render, submissions
from autograder.isolation import sandbox
from autograder.isolation.sandbox import SandboxError

COURSE = Course.at(Path(__file__).parents[3])
LESSON, EXERCISE = "12_decode_challenge", "rotating_decode"


def result(student, *seconds, noise=0.0, how="measured", device="H200"):
    times = (Time(s, s * (1 - noise), s * (1 + noise), how, device) for s in seconds)
    return Result(student, tuple(times))


def test_the_geometric_mean_decides():
    tables, rest = rank([result("even", 4e-4, 4e-4), result("split", 1e-4, 9e-4), result("slow", 1e-3, 1e-3)])
    ((key, places),) = tables.items()
    assert key == ("measured", "H200") and rest == []
    assert [(each.place, each.tied, each.student) for each in places] == [
        (1, False, "split"),
        (2, False, "even"),
        (3, False, "slow"),
    ]
    assert places[0].mean == pytest.approx(3e-4)


def test_who_lies_within_the_noise_of_the_first_of_a_place_shares_it():
    times = [100e-6, 101e-6, 102.5e-6, 103e-6]
    tables, _ = rank([result(name, us, us, noise=0.01) for name, us in zip("abcd", times, strict=True)])
    places = tables["measured", "H200"]
    # c overlaps with b, but not with a, whose place that is; d shares c's
    assert [(each.place, each.tied) for each in places] == [(1, True), (1, True), (3, True), (3, True)]
    assert "1, tied" in leaderboard.as_text(EXERCISE, tables, [])


@pytest.mark.parametrize("seconds", [0.0, -1e-6, 5e-324, math.nan, math.inf])
def test_what_no_clock_gives_is_a_fault_and_no_rank(seconds):
    broken = Result(
        "broken", (Time(1e-4, 1e-4, 1e-4, "measured", "H200"), Time(seconds, *(seconds,) * 2, "measured", "H200"))
    )
    tables, rest = rank([broken, result("right", 1e-3, 1e-3)])
    assert [each.student for each in tables["measured", "H200"]] == ["right"]
    assert [(each.student, each.fault) for each in rest] == [("broken", True)] and "time it again" in rest[0].why


def test_percentiles_that_do_not_hold_the_median_are_a_fault():
    _, rest = rank([Result("a", (Time(2e-4, 3e-4, 4e-4, "measured", "H200"),))])
    assert rest[0].fault


def test_modelled_and_measured_times_share_no_table():
    mixed = Result("mixed", (*result("", 1e-4).times, *result("", 1e-4, how="modelled", device="H100").times))
    clocked, modelled = result("clocked", 1e-3), result("modelled", 1e-4, how="modelled", device="H100")
    tables, rest = rank([clocked, modelled, mixed, result("other", 1e-4, device="A100")])
    assert {key: [each.student for each in places] for key, places in tables.items()} == {
        ("measured", "H200"): ["clocked"],
        ("modelled", "H100"): ["modelled"],
        ("measured", "A100"): ["other"],
    }
    assert all(each.place == 1 and not each.tied for places in tables.values() for each in places)
    assert [each.student for each in rest] == ["mixed"] and rest[0].fault
    assert "no clock has seen it" in leaderboard.as_text(EXERCISE, tables, rest)


def test_a_page_shows_names_as_text():
    tables, rest = rank([result("<b>ann</b>", 1e-4), Result("bob", (), "wrong: <script>")])
    page = leaderboard.as_html(EXERCISE, tables, rest)
    assert "&lt;b&gt;ann&lt;/b&gt;" in page and "<script>" not in page and "100.0 µs" in page


def test_aliases_stand_for_all_names_or_for_none(tmp_path):
    path, found = tmp_path / "aliases.csv", [result("ann", 1e-4), result("bob", 2e-4)]
    path.write_text("student,alias\nann,fox\nbob,owl\n")
    assert [each.student for each in leaderboard.renamed(found, path)] == ["fox", "owl"]
    for text, says in (
        ("student,alias\nann,fox\n", "no alias for bob"),
        ("student,alias\nann,fox\nbob,fox\n", "several students the alias fox"),
        ("name;alias\n", r"expected student and alias"),
    ):
        path.write_text(text)
        with pytest.raises(LessonError, match=says):
            leaderboard.renamed(found, path)


def test_only_an_exercise_that_names_cases_is_ranked():
    assert leaderboard.ranked_exercise(COURSE) == EXERCISE
    with pytest.raises(UnknownExercise, match=f"latent_decode has no leaderboard; those that have one are {EXERCISE}"):
        leaderboard.ranked_exercise(COURSE, "latent_decode")
    assert len(COURSE.locate(EXERCISE)[1].speed.ranked) == 4


@pytest.fixture
def small_cases():
    """Cases of the exercise that are modelled in little time."""
    timed = COURSE.locate(EXERCISE)[1].speed
    before = timed.ranked
    object.__setattr__(
        timed,
        "ranked",
        tuple({**case, "B": 1, "H": 16, "length": n} for case, n in zip(before[:2], (65, 130), strict=True)),
    )
    yield
    object.__setattr__(timed, "ranked", before)


def test_a_class_is_judged_timed_and_ranked(tmp_path, small_cases):
    pytest.importorskip("triton", reason="the exercise is a kernel")
    for each in submissions(COURSE, LESSON):
        if each.student in ("ada", "eli"):
            path = tmp_path / "submitted" / each.student / LESSON / f"{LESSON}.ipynb"
            path.parent.mkdir(parents=True)
            path.write_bytes(render(COURSE.lesson(LESSON), each))
    (tmp_path / "aliases.csv").write_text("student,alias\nada,fox\neli,owl\n")
    arguments = ["--course", COURSE.root, "leaderboard", "--classroom", tmp_path, "--modelled"]
    shown = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    found = json.loads(shown.stdout)
    (table,) = found["tables"]
    assert shown.exit_code == 0 and table["how"] == "modelled"
    assert [(each["place"], each["student"], len(each["times"])) for each in table["places"]] == [(1, "ada", 2)]
    assert [(each["student"], each["fault"]) for each in found["unranked"]] == [("eli", False)]
    arguments += ["--aliases", tmp_path / "aliases.csv", "--html", tmp_path / "board.html"]
    text = CliRunner().invoke(app, list(map(str, arguments))).stdout
    page = (tmp_path / "board.html").read_text()
    assert "fox" in text and "fox" in page and "ada" not in text + page and "eli" not in text + page


def test_strangers_code_does_not_run_without_bubblewrap_unless_that_is_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="the exercise is a kernel")
    path = tmp_path / "submitted" / "eve" / LESSON / f"{LESSON}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(render(COURSE.lesson(LESSON), submissions(COURSE, LESSON)[0]))
    monkeypatch.setattr(sandbox, "default_isolation", lambda: "process")
    monkeypatch.delenv("MLA_ISOLATION", raising=False)
    with pytest.raises(SandboxError, match="is a stranger's code, and bubblewrap does not work"):
        leaderboard.collect(COURSE, tmp_path, EXERCISE, modelled=True)
