"""A class of made-up students by an item-response model: who is able, how hard each exercise is, what then happens.

`write` leaves it on disk as `mla-course grade` would have: records, histories, nbgrader's gradebook, shapes of answers.
Nothing is judged. Five exercises may be bad, each in another way.
"""

import functools
import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from autograder.dashboard import snapshot
from autograder.files import write_whole
from autograder.judging.verdict import Outcome, PartVerdict, Verdict

START = datetime(2026, 9, 1, 8, tzinfo=UTC)
BARS = (0.3, 0.6)
KINDS = ("ambiguous", "too easy", "wrong oracle", "slow bar", "leaked")


@dataclass
class Made:
    """The class: verdicts and attempts by lesson and student, shapes, and what was planted in it."""

    students: list[str]
    lessons: dict[str, list[str]]
    verdicts: dict[tuple[str, str], list[Verdict]] = field(default_factory=dict)
    attempts: dict[tuple[str, str], list[dict]] = field(default_factory=dict)
    shapes: snapshot.Shapes = field(default_factory=snapshot.Shapes)
    bad: dict[tuple[str, str], str] = field(default_factory=dict)
    copied: list[tuple[str, ...]] = field(default_factory=list)
    lost: str = ""


def make(students=1000, exercises=80, lessons=11, seed=0, bad=True, copies=True):
    """Return a class. Each second exercise has a speed; the student `lost` stops after a third of the lessons."""
    rng, pick = np.random.default_rng(seed), random.Random(seed)
    names = [f"s{n:04d}" for n in range(students)]
    per = [exercises // lessons + (n < exercises % lessons) for n in range(lessons)]
    plan = {f"{n:02d}_lesson": [f"exercise_{n:02d}_{m}" for m in range(per[n])] for n in range(lessons)}
    made = Made(names, plan)
    theta = rng.normal(size=students)
    keys = [(lesson, name) for lesson, its in plan.items() for name in its]
    fast = {key for n, key in enumerate(keys) if n % 2}
    if bad:
        places = [n for n in range(len(keys)) if n % 2 == 0]
        for kind, n in zip((k for k in KINDS if k != "slow bar"), pick.sample(places, 4), strict=True):
            made.bad[keys[n]] = kind
        made.bad[pick.choice(sorted(fast))] = "slow bar"
    made.lost = names[pick.randrange(students)]
    able = {key: (rng.uniform(0.8, 2.0), rng.uniform(-1.5, 1.2)) for key in keys}
    tokens = {key: pick.choice((8, 25, 80, 150, 300)) for key in keys}
    for key, kind in made.bad.items():
        tokens[key] = 150 if kind == "leaked" else tokens[key]
        made.shapes.starter[key] = 30
    for key in keys:
        lesson, name = key
        own = f"own {name}"
        made.shapes.starter[key], made.shapes.own[key] = 30, own
        made.shapes.answers[key], made.shapes.family[key] = {}, {}
        made.shapes.tokens[own] = 30 + tokens[key]
    for at, lesson in enumerate(plan):
        for n, student in enumerate(names):
            if student == made.lost and at >= lessons // 3:
                continue
            _hand_in(made, rng, lesson, at, student, theta[n], able, fast, tokens)
    if copies:
        _copy(made, pick)
    return made


def _hand_in(made, rng, lesson, at, student, theta, able, fast, tokens):
    found, tries = [], []
    for name in made.lessons[lesson]:
        key = lesson, name
        kind, (a, b) = made.bad.get(key), able[key]
        knows = rng.random() < 1 / (1 + np.exp(-a * (theta - b)))
        tried = rng.random() > 0.03
        if kind == "too easy":
            knows = rng.random() < 0.995
        if kind == "leaked":
            has = rng.random() < 0.5
            knows |= has
        reason = mistake = ""
        right = knows
        if knows and (kind == "wrong oracle" or (kind == "ambiguous" and rng.random() < 0.5)):
            right, reason = False, "out is off by 0.4143 of its norm, expected 1e-05"
        elif not knows and rng.random() < 0.6:
            mistake = ("sign", "scale", "mask", "axis")[min(3, rng.geometric(0.5) - 1)]
            reason = f"the {mistake} is wrong"
        elif not knows:
            reason = f"out is off by {rng.random():.4f} of its norm, expected 1e-05"
        if not tried:
            zero = (PartVerdict("small", 2, 0.0, "the cell is as it was handed out"),)
            found.append(Verdict(name, 3, 0.0, Outcome.UNFINISHED, "the cell is as it was handed out", parts=zero))
            right = False
        elif right:
            parts = PartVerdict("small", 2, 2.0), PartVerdict("large", 1, 1.0)
            found.append(Verdict(name, 3, 3.0, Outcome.PASSED, parts=parts, seconds=0.02, isolation="bubblewrap"))
        else:
            half = not mistake and rng.random() < 0.3 and kind is None
            case = f"n={rng.integers(3, 6)}"
            parts = PartVerdict("small", 2, 2.0 if half else 0.0, "" if half else reason, "" if half else case)
            parts = parts, PartVerdict("large", 1, 0.0, reason, "n=70")
            outcome = Outcome.PARTIAL if half else Outcome.WRONG
            found.append(
                Verdict(name, 3, 2.0 * half, outcome, reason, mistake or None, parts, (), None, 0.02, "bubblewrap")
            )
        if tried:
            _shape(made, rng, key, student, tokens[key], kind == "leaked" and has)
        if key in fast:
            found.append(_speed(rng, name, right, theta, kind == "slow bar"))
        tries.append(1 if kind == "too easy" else int(rng.geometric(0.6)))
    when = START + timedelta(days=7 * at, hours=float(rng.uniform(1, 160)))
    made.verdicts[lesson, student] = found
    made.attempts[lesson, student] = []
    for number in range(max(tries)):
        early = [
            v
            if tries[made.lessons[lesson].index(v.exercise.split(":")[0])] <= number + 1
            else _not_yet(v.exercise, v.points)
            for v in found
        ]
        told = when - timedelta(hours=6 * (max(tries) - 1 - number))
        made.attempts[lesson, student].append(
            {
                "submitted": f"{told:%Y-%m-%d %H:%M:%S} UTC",
                "graded": (told + timedelta(hours=1)).isoformat(),
                "digest": f"{lesson} {student} {number}",
                "verdicts": early,
            }
        )


@functools.cache
def _not_yet(name, points):
    return Verdict(name, points, 0.0, Outcome.WRONG, "not yet")


def _speed(rng, name, right, theta, slack):
    name, bars = f"{name}:speed", (0.02,) if slack else BARS
    if not right:
        return Verdict(name, 2, 0.0, Outcome.WRONG, "counts once the answer is right")
    fraction = float(np.clip(0.45 + 0.15 * theta + 0.2 * rng.normal(), 0.05, 0.95))
    fraction = float(rng.uniform(0.03, 0.9)) if slack else fraction
    parts = tuple(
        PartVerdict(f"{bar:.0%} of the floor's speed", 2 / len(bars), 2 / len(bars) * (fraction >= bar)) for bar in bars
    )
    score = sum(part.score for part in parts)
    outcome = Outcome.PASSED if score == 2 else Outcome.PARTIAL if score else Outcome.SLOW
    speed = dict(
        how="modelled", device="NVIDIA H100", seconds=1e-5 / fraction, floor=1e-5, baseline=5e-5, bytes=3e7, flops=1e7,
        bandwidth=3e12, rate=6e13, fraction=fraction, ratio=5 * fraction, notes=[], noise=None,
        steps=[{"step": "kernel", "us": 10 / fraction, "bound": "DRAM", "programs": 128, "registers": 40}],
    )  # fmt: skip
    reason = "" if score == 2 else f"modelled on NVIDIA H100: {fraction:.0%} of the floor's speed"
    return Verdict(name, 2, score, outcome, reason, None, parts, (), speed, 0.6, "bubblewrap")


def _shape(made, rng, key, student, tokens, leaked):
    """Give the answer a shape: of few tokens one of few, else its own, now and then the lesson's."""
    ways = 2.0 ** (0.3 * tokens)
    own = made.shapes.own[key]
    shape = own if leaked or rng.random() < 0.5 / ways else f"{key[1]} {int(rng.random() * ways) % 10**9}"
    made.shapes.tokens.setdefault(shape, 30 + tokens)
    made.shapes.answers[key][student] = [shape, f"{shape} by {student}"]


def _copy(made, pick):
    """Have a pair share a lesson, names changed, and some others one long answer to the letter."""
    free = [s for s in made.students if s != made.lost]
    one, two, *ring = pick.sample(free, 2 + min(6, len(free) // 4))
    lesson = list(made.lessons)[len(made.lessons) // 2]
    for name in made.lessons[lesson]:
        answers = made.shapes.answers[lesson, name]
        if one in answers:
            answers[two] = [answers[one][0], f"renamed by {two}"]
    made.copied = [tuple(sorted((one, two)))]
    long = (k for k in made.shapes.answers if made.shapes.tokens[made.shapes.own[k]] >= 330 and k[0] != lesson)
    if len(ring) > 1 and (key := next(long, None)):
        for student in ring:
            made.shapes.answers[key][student] = [f"{key[1]} ring", "to the letter"]
        made.shapes.tokens[f"{key[1]} ring"] = 330
        made.copied.append(tuple(sorted(ring)))


def as_snapshot(made):
    """Return the class as the dashboard reads it, without a disk."""

    known = {}  # an attempt has most verdicts in common with the next

    def rows(verdicts):
        for verdict in verdicts:
            if id(verdict) not in known:
                known[id(verdict)] = snapshot.row_of({**vars(verdict), "parts": [vars(part) for part in verdict.parts]})
        return [known[id(verdict)] for verdict in verdicts]

    lessons = {
        lesson: snapshot.sheet_of(
            {
                student: (
                    rows(made.verdicts[lesson, student]),
                    0.0,
                    [{**each, "rows": rows(each["verdicts"])} for each in made.attempts[lesson, student]],
                )
                for student in made.students
                if (lesson, student) in made.verdicts
            }
        )
        for lesson in made.lessons
    }
    book = snapshot.Book(
        {student: student for student in made.students},
        {key: each[-1]["submitted"] for key, each in made.attempts.items()},
    )
    return snapshot.Snapshot(Path("nowhere"), lessons, book, [])


def write(made, folder):
    """Write the class to a classroom's folder."""
    for (lesson, student), verdicts in made.verdicts.items():
        put_record(folder, lesson, student, verdicts)
        attempts = [{**a, "verdicts": [v.to_json() for v in a["verdicts"]]} for a in made.attempts[lesson, student]]
        lines = "".join(json.dumps(each) + "\n" for each in attempts)
        _put(folder / "history" / lesson / f"{student}.jsonl", lines)
        (folder / "submitted" / student / lesson).mkdir(parents=True, exist_ok=True)
    _gradebook(made, folder)
    for lesson in made.lessons:
        exercises = made.lessons[lesson]
        students = {
            student: [
                [],
                {
                    e: made.shapes.answers[lesson, e][student]
                    for e in exercises
                    if student in made.shapes.answers[lesson, e]
                },
            ]
            for student in made.students
            if (lesson, student) in made.verdicts
        }
        used = {shape for _, found in students.values() for shape, _ in found.values()}
        used |= {made.shapes.own[lesson, e] for e in exercises}
        data = {
            "version": snapshot.VERSION,
            "sources": {},
            "exercises": {e: [f"starter {e}", 30, made.shapes.own[lesson, e]] for e in exercises},
            "families": {},
            "tokens": {shape: made.shapes.tokens[shape] for shape in sorted(used)},
            "students": students,
        }
        write_whole(folder / snapshot.CACHE / f"{lesson}.shapes.json", json.dumps(data))
    return folder


def put_record(folder, lesson, student, verdicts):
    """Write the record of a submission."""
    record = {"fingerprint": "", "verdicts": [v.to_json() for v in verdicts]}
    _put(folder / "graded" / lesson / f"{student}.json", json.dumps(record, indent=1))


def _put(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _gradebook(made, folder):
    """Fill nbgrader's own tables."""
    from nbgrader.api import Gradebook
    from sqlalchemy import text

    from autograder.classroom.guard import guard

    guard()
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}", "simulated") as book:

        def put(table, rows):
            if rows:
                columns = ", ".join(rows[0])
                values = ", ".join(f":{key}" for key in rows[0])
                book.db.execute(text(f"INSERT INTO {table} ({columns}) VALUES ({values})"), rows)

        put("student", [{"id": s, "first_name": "Made", "last_name": f"Up {s[1:]}"} for s in made.students])
        put("assignment", [{"id": lesson, "name": lesson, "course_id": "simulated"} for lesson in made.lessons])
        put("notebook", [{"id": x, "name": x, "assignment_id": x} for x in made.lessons])
        cells = [
            (lesson, v.exercise, v.points)
            for lesson in made.lessons
            for v in made.verdicts[lesson, next(s for s in made.students if (lesson, s) in made.verdicts)]
        ]

        def cell(name):
            return f"speed-{name.removesuffix(':speed')}" if name.endswith(":speed") else f"check-{name}"

        put(
            "base_cell",
            [{"id": f"{x} {n}", "name": cell(n), "notebook_id": x, "type": "GradeCell"} for x, n, _ in cells],
        )
        put("grade_cells", [{"id": f"{x} {n}", "max_score": p, "cell_type": "code"} for x, n, p in cells])
        pairs = list(made.verdicts)
        put(
            "submitted_assignment",
            [
                {
                    "id": f"{x} {s}",
                    "assignment_id": x,
                    "student_id": s,
                    "timestamp": made.attempts[x, s][-1]["submitted"][:19] + ".000000",
                }
                for x, s in pairs
            ],
        )
        put(
            "submitted_notebook",
            [
                {"id": f"{x} {s} n", "assignment_id": f"{x} {s}", "notebook_id": x, "late_submission_penalty": 0}
                for x, s in pairs
            ],
        )
        put(
            "grade",
            [
                {"id": f"{x} {s} {v.exercise}", "notebook_id": f"{x} {s} n", "cell_id": f"{x} {v.exercise}",
                 "auto_score": v.score, "needs_manual_grade": False}
                for x, s in pairs for v in made.verdicts[x, s]
            ],
        )  # fmt: skip
        book.db.commit()
