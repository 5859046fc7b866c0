"""Copies are found, coincidences are not."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from autograder.course.lesson import without_marks
from autograder.course.sample import render, sample_lessons, submissions
from autograder.dashboard import figures, integrity, snapshot
from autograder.dashboard.shapes import families, shape_of_source, tokens_of
from autograder.judging.verdict import Outcome, Verdict

from ...test_other_solutions import COURSE, OTHERS, whole
from . import simulated

ROOT = Path(__file__).parents[3]
LONG = """
def attention(q, k, v):
    scores = (q @ k.mT) / math.sqrt(q.shape[-1])
    rows, columns = scores.shape[-2:]
    mask = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    scores = scores.masked_fill(~mask, -torch.inf)
    peak = scores.amax(-1, keepdim=True)
    weights = (scores - peak).exp()
    return (weights / weights.sum(-1, keepdim=True)) @ v, peak.squeeze(-1) + weights.sum(-1).log()
"""


def test_names_comments_and_layout_are_no_difference():
    renamed = re.sub(r"\bscores\b", "s", LONG).replace("peak", "biggest")
    renamed = renamed.replace("    rows,", '    """Mine."""\n\n    # by myself\n    rows,')
    one, other = (shape_of_source(source, "attention") for source in (LONG, renamed))
    assert one.shape == other.shape
    assert one.text != other.text
    assert shape_of_source(LONG.replace("tril", "triu"), "attention").shape != one.shape
    assert shape_of_source("def attention(:", "attention") is None
    assert shape_of_source(f"{LONG}\nBIG = 0x{'f' * 5000}\n", "attention")  # too long to be written in decimal


@pytest.mark.parametrize(
    ("was", "disguised"),
    [
        ("    rows,", "    pass\n    rows,"),
        ("    rows,", "    ...\n    rows,"),
        ("    scores = (", "    scores: torch.Tensor = ("),
        ("    scores = (", "    scores: Tensor\n    scores = ("),
        ("attention(q, k, v):", "attention(q: Tensor, k: 'Tensor', v: Tensor | None) -> tuple[Tensor, Tensor]:"),
        ("\ndef", "\ntorch: Any\nmath: Any\ndef"),
        ("    rows,", "    scores.shape: tuple\n    rows,"),
        ("    rows,", '    """Attention."""\n    rows,'),
        ("\ndef", '\n"""By me."""\ndef'),
    ],
)
def test_statements_that_do_nothing_and_types_make_no_other_answer_of_a_copy(was, disguised):
    assert was in LONG
    one, other = (shape_of_source(source, "attention") for source in (LONG, LONG.replace(was, disguised)))
    assert (one.shape, one.passages) == (other.shape, other.passages)


def test_what_an_annotation_says_to_triton_is_part_of_an_answer():
    plain = "@triton.jit\ndef kernel(x, BLOCK):\n    tl.store(x, BLOCK)\n"
    constant = plain.replace("BLOCK):", "BLOCK: tl.constexpr):")
    assert shape_of_source(plain).shape != shape_of_source(constant).shape


def test_attributes_and_methods_of_the_students_own_are_names_too():
    source = """
class Cache:
    def __init__(self, size):
        self.data, self.used = torch.empty(size), 0

    def fits(self, x):
        return self.used + x.numel() <= self.data.numel()

    def append(self, x):
        assert self.fits(x)
        self.used += x.numel()
"""
    renamed = re.sub(r"\bused\b", "n", source).replace("fits", "has_room").replace("data", "storage")
    one, other = (shape_of_source(each, "Cache") for each in (source, renamed))
    assert one.shape == other.shape and one.passages == other.passages
    assert shape_of_source(source.replace("torch.empty", "torch.zeros"), "Cache").shape != one.shape


def test_a_copy_with_a_few_changes_is_family_and_another_answer_is_not():
    changed = LONG.replace(
        "    weights = (scores - peak).exp()\n", "    scores = scores - peak\n    weights = scores.exp()\n"
    )
    other = """
def attention(query, key, value):
    out, lse = [], []
    for position in range(query.shape[-2]):
        seen = key.shape[-2] - query.shape[-2] + position + 1
        row = torch.einsum("...d,...td->...t", query[..., position, :], key[..., :seen, :]) * query.shape[-1] ** -0.5
        lse.append(torch.logsumexp(row, dim=-1))
        out.append(torch.einsum("...t,...td->...d", torch.softmax(row, -1), value[..., :seen, :]))
    return torch.stack(out, -2), torch.stack(lse, -1)
"""
    sources = {"one": LONG, "two": changed, "three": other}
    found = families({name: shape_of_source(source, "attention").passages for name, source in sources.items()}, [])
    assert found.get("one") == found.get("two") is not None
    assert "three" not in found


@pytest.mark.thorough
@pytest.mark.parametrize(("students", "seed"), [(30, 2), (300, 3)])
def test_a_copied_pair_and_a_ring_are_found_and_who_was_first(students, seed):
    made = simulated.make(students, 80, seed=seed)
    group = figures.gather(simulated.as_snapshot(made))
    found = integrity.alike(group, made.shapes)
    sure = {tuple(sorted(each.students)): each for each in found if each.bits >= 15}
    assert set(sure) == set(map(tuple, made.copied))
    for each in sure.values():
        lessons = {lesson for lesson, _, _ in each.exercises}
        times = {s: min(made.attempts[x, s][0]["submitted"] for x in lessons) for s in each.students}
        assert each.first == min(times, key=times.get)


def test_a_pair_of_a_thousand_is_found(thousand):
    made, group = thousand
    found = integrity.alike(group, made.shapes)
    assert made.copied[0] in [tuple(sorted(each.students)) for each in found]
    assert all(set(each.students) in [set(copied) for copied in made.copied] for each in found if each.bits >= 15)


@pytest.mark.parametrize(("students", "seed"), [(20, 1), (200, 2)])
def test_a_class_that_copies_nothing_has_no_likely_group(students, seed):
    made = simulated.make(students, 80, seed=seed, bad=False, copies=False)
    found = integrity.alike(figures.gather(simulated.as_snapshot(made)), made.shapes)
    assert [each for each in found if each.bits >= 15] == []


SOURCES = {}  # right answers to the real exercises, by lesson and exercise
for _exercise, _, _source in OTHERS:
    _key = COURSE.locate(_exercise)[0], _exercise
    SOURCES.setdefault(_key, [without_marks(COURSE.lesson(_key[0]).solutions[_exercise])]).append(
        whole(_exercise, _source)
    )


def _honest(students, seed):
    """Return a class that solves the real exercises: each student takes a way for each, out of those that are known."""
    pick = random.Random(seed)
    names = [f"s{n:02d}" for n in range(students)]
    shapes = snapshot.Shapes()
    for (lesson, exercise), sources in SOURCES.items():
        starter = shape_of_source(COURSE.lesson(lesson).starter(exercise), exercise)
        made = [shape_of_source(source, exercise) for source in sources]
        key = lesson, exercise
        shapes.starter[key], shapes.own[key] = starter.tokens, made[0].shape
        given = {*starter.passages, *made[0].passages}
        shapes.tokens |= {
            each.shape: min(each.tokens, starter.tokens + tokens_of(set(each.passages) - given)) for each in made[1:]
        }
        shapes.tokens[made[0].shape] = made[0].tokens
        shapes.answers[key] = {}
        for name in names:
            way = pick.randrange(len(made))
            shapes.answers[key][name] = [made[way].shape, f"{exercise} {way} in the words of {name}"]
        others = {each.shape: each.passages for each in made[1:]}
        shapes.family[key] = families(others, [starter.passages, made[0].passages])
    verdict = snapshot.row_of(Verdict("x", 1, 1.0, Outcome.PASSED).to_json())
    sheets = {"01_x": snapshot.sheet_of({name: ([verdict], 0.0, []) for name in names})}
    book = snapshot.Book({name: name for name in names})
    return figures.gather(snapshot.Snapshot(Path("nowhere"), sheets, book, [])), shapes


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("seed", range(3))
def test_honest_students_of_the_real_course_are_not_accused_and_a_copy_among_them_is(seed):
    """Where each exercise has some six ways, two of them often meet: that is how few ways there are."""
    group, shapes = _honest(40, seed)
    assert [each for each in integrity.alike(group, shapes) if each.bits >= 5] == []
    for key, answers in shapes.answers.items():
        if key[0] == "06_flash_decoding":  # in which every way is one more to have hit by chance
            shapes.tokens["of his own"] = 300
            answers["s07"] = ["of his own", "as s07 wrote it"]
            answers["s23"] = ["of his own", "renamed by s23"]
    assert [sorted(each.students) for each in integrity.alike(group, shapes)] == [["s07", "s23"]]


EARLY = LONG.replace("    peak =", "    scores = scores.float()\n    peak =")


def _cells(source):
    return json.dumps({"cells": [{"cell_type": "code", "id": "attention", "metadata": {}, "source": source}]})


def _handed_in(folder, student, *attempts):
    """Write a student's graded attempts at a lesson, as (time, source); the last one counts."""
    verdicts = [Verdict("attention", 1, 1.0, Outcome.PASSED).to_json()]
    kept = folder / "history" / "02_x"
    book = folder / "autograded" / student / "02_x" / "02_x.ipynb"
    files = {folder / "graded" / "02_x" / f"{student}.json": json.dumps({"verdicts": verdicts})}
    lines = []
    for n, (time, source) in enumerate(attempts):
        lines.append(json.dumps({"submitted": time, "graded": "", "digest": str(n), "verdicts": verdicts}) + "\n")
        files[kept / ".cells" / student / f"{n}.ipynb"] = files[book] = _cells(source)
    for path, text in {**files, kept / f"{student}.jsonl": "".join(lines)}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _told(folder):
    """Return what is said of a class in which ada and ben share an answer that is long, and eighteen have their own."""
    names = ["ada", "ben", *(f"s{n:02d}" for n in range(18))]
    for name in names[2:]:
        _handed_in(folder, name, ("2026-09-01 10:00:00 UTC", "x = 1"))
    shapes, key = snapshot.Shapes(), ("02_x", "attention")
    shapes.starter[key], shapes.own[key] = 10, "own"
    shapes.answers[key] = {name: ["shared" if name in ("ada", "ben") else name, f"by {name}"] for name in names}
    shapes.tokens = dict.fromkeys([*names, "shared"], 300)
    read = snapshot.read(folder)
    read.book.handed_in = {("02_x", "ada"): "2026-09-30 10:00:00", ("02_x", "ben"): "2026-09-20 10:00:00"}
    (found,) = integrity.alike(figures.gather(read), shapes)
    assert sorted(found.students) == ["ada", "ben"]
    return found


def test_who_hands_in_another_exercise_later_is_still_who_had_the_shared_answer_first(tmp_path):
    _handed_in(tmp_path, "ada", ("2026-09-10 10:00:00 UTC", LONG), ("2026-09-30 10:00:00 UTC", LONG))
    _handed_in(tmp_path, "ben", ("2026-09-20 10:00:00 UTC", LONG.replace("peak", "most")))
    found = _told(tmp_path)
    assert (found.first, found.students) == ("ada", ("ada", "ben"))


def test_an_early_attempt_without_the_shared_answer_makes_nobody_the_first(tmp_path):
    _handed_in(tmp_path, "ada", ("2026-09-10 10:00:00 UTC", LONG))
    _handed_in(tmp_path, "ben", ("2026-09-01 10:00:00 UTC", "attention = None"), ("2026-09-20 10:00:00 UTC", LONG))
    assert _told(tmp_path).first == "ada"


def test_who_improves_the_answer_after_it_was_copied_is_still_the_first(tmp_path):
    _handed_in(tmp_path, "ada", ("2026-09-10 10:00:00 UTC", EARLY), ("2026-09-30 10:00:00 UTC", LONG))
    _handed_in(tmp_path, "ben", ("2026-09-20 10:00:00 UTC", EARLY))
    assert _told(tmp_path).first == "ada"


def test_without_the_code_of_attempts_the_first_attempt_says_who_was_first(tmp_path):
    _handed_in(tmp_path, "ada", ("2026-09-10 10:00:00 UTC", LONG), ("2026-09-30 10:00:00 UTC", LONG))
    _handed_in(tmp_path, "ben", ("2026-09-20 10:00:00 UTC", LONG))
    shutil.rmtree(tmp_path / "history" / "02_x" / ".cells")
    assert _told(tmp_path).first == "ada"


@pytest.mark.parametrize("kept", [True, False])
def test_where_no_time_of_a_students_attempts_is_known_nobody_is_the_first(tmp_path, kept):
    _handed_in(tmp_path, "ada", (None, LONG), ("2026-09-30 10:00:00 UTC", LONG) if kept else (None, LONG))
    _handed_in(tmp_path, "ben", ("2026-09-20 10:00:00 UTC", LONG))
    if not kept:
        shutil.rmtree(tmp_path / "history")
    assert _told(tmp_path).first is None


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("telling", [True, False])
def test_of_the_sample_class_the_copied_pair_is_told_and_nobody_else(telling, tmp_path):
    """In the demo's class, and in the whole one. Their answers come from the lessons' solutions, but for a few: in the
    whole class many differ in a line from each other, so that a shared shape says less."""
    verdict = {"verdicts": [Verdict("x", 1, 1.0, Outcome.PASSED).to_json()]}
    for lesson in sample_lessons(COURSE):
        for each in submissions(COURSE, lesson, telling):
            record = tmp_path / "graded" / lesson / f"{each.student}.json"
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(json.dumps(verdict))
            if content := render(COURSE.lesson(lesson), each):
                book = tmp_path / "autograded" / each.student / lesson / f"{lesson}.ipynb"
                book.parent.mkdir(parents=True)
                book.write_bytes(content)
    shapes = snapshot.read_shapes(tmp_path, COURSE)
    (found,) = integrity.alike(figures.gather(snapshot.read(tmp_path)), shapes)
    assert sorted(found.students) == ["kira", "milo"]
    assert found.sure == "almost certain" or (not telling and found.sure == "very likely")
    assert {exercise for _, exercise, _ in found.exercises} == {"attention", "grouped_attention", "KVCache"}


def test_sixty_identical_submissions_are_one_group():
    made = simulated.make(200, 40, 5, seed=5, bad=False, copies=False)
    ring, lesson = made.students[20:80], "02_lesson"
    for name in made.lessons[lesson]:
        answers = made.shapes.answers[lesson, name]
        for student in ring:
            answers[student] = [f"{name} of the ring", "to the letter"]
        made.shapes.tokens[f"{name} of the ring"] = 200
    first = integrity.alike(figures.gather(simulated.as_snapshot(made)), made.shapes)[0]
    assert set(first.students) == set(ring)
    assert first.sure == "almost certain"


def test_refused_answers_are_told_with_the_judges_words():
    rows = {
        "ada": Verdict(
            "k", 1, 0.0, Outcome.ERROR, "the result is what torch computes from data outside the kernels: `mm`"
        ),
        "ben": Verdict("k", 1, 0.0, Outcome.WRONG, "out is off by 0.3"),
        "eve": Verdict("k", 1, 1.0, Outcome.PASSED),
    }
    sheet = snapshot.sheet_of({s: ([snapshot.row_of(v.to_json())], 0.0, []) for s, v in rows.items()})
    group = figures.gather(snapshot.Snapshot(Path("nowhere"), {"04_x": sheet}, snapshot.Book(), []))
    (found,) = integrity.refused(group)
    assert (found.student, found.what) == ("ada", "had torch compute in place of a kernel")
    assert "`mm`" in found.evidence


@pytest.mark.parametrize("words", integrity.REFUSED)
def test_the_judge_still_says_these_words(words):
    """They are looked for in its reasons: who changes one there changes it in `integrity.REFUSED` too."""
    folders = (ROOT / "autograder" / name for name in ("judging", "kernels", "isolation"))
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    assert any(words in source for source in sources)
