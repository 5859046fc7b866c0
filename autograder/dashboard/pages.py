"""What the dashboard shows, as HTML. All text of students' is escaped; nothing is told by colour alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from autograder.dashboard import figures
from autograder.dashboard.figures import FAULT, NOTHING, UNTRIED, Figures, Group
from autograder.dashboard.flags import Flag
from autograder.dashboard.integrity import Alike, AsOwn, Refused
from autograder.dashboard.snapshot import (
    MISTAKE,
    NAME,
    OUTCOME,
    POINTS,
    SCORE,
    WHY,
    graded_notebook,
    history,
    source_in,
)
from autograder.judging.verdict import Outcome
from autograder.text import one_line, visible

# A mark, its word, and its class in `STYLE`
MARKS = {
    "full": ("✓", "all points"),
    "part": ("½", "some points"),
    "zero": ("✗", "no points"),
    "none": ("–", "not handed in, or as it was handed out"),
    "open": ("?", "open: grader fault"),
}
FAST = {"full": "»", "part": "›", "zero": "·", "none": " ", "open": "?"}
ROWS = 25  # of a page of the class's table
SOURCE = 6000  # characters of a source that are shown
STYLE = """<style>
.mla { color: #1b1f24; background: #fff; font: 14px/1.45 system-ui, sans-serif; }
.mla h2 { font-size: 19px; margin: 14px 0 6px } .mla h3 { font-size: 16px; margin: 12px 0 4px }
.mla table { border-collapse: collapse; margin: 6px 0 12px }
.mla th, .mla td { border: 1px solid #b7bec7; padding: 2px 8px; text-align: left; vertical-align: top }
.mla th { background: #eef1f4; font-weight: 600 } .mla td.n { text-align: right; font-variant-numeric: tabular-nums }
.mla .full { background: #d7f0dd } .mla .part { background: #fff2c4 } .mla .zero { background: #fbdcd8 }
.mla .none { background: #eceff2 } .mla .open { background: #e6dcf7 }
.mla .marks { font-family: ui-monospace, monospace; white-space: pre }
.mla .wide { overflow-x: auto } .mla a { color: #0b4fa8 }
.mla pre { white-space: pre-wrap; margin: 0; font: 12px/1.4 ui-monospace, monospace }
.mla img { max-width: 100%; height: auto } .mla .flag { border-left: 4px solid #8a3d00; padding-left: 8px }
.mla .pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 12px }
.mla .pair > div { border: 1px solid #b7bec7; padding: 6px; overflow: auto; max-height: 420px }
.mla code { background: #eef1f4; padding: 0 3px } .mla caption { text-align: left; font-weight: 600; padding: 2px 0 }
</style>"""


@dataclass(frozen=True)
class Look:
    """How things are shown: names or numbers, and the address of the server that has formgrader."""

    group: Group
    hidden: bool = False
    formgrader: str = ""

    def name(self, student: str) -> str:
        """Return a student's name as HTML."""
        return escape(one_line(self.group.shown(student, self.hidden), 100))

    def link(self, path: Sequence[str], text: str) -> str:
        """Return a link into formgrader, or the text alone where names are hidden: its pages show them."""
        if self.hidden or not self.formgrader:
            return escape(text)
        to = "/".join([self.formgrader.rstrip("/"), "formgrader", *(quote(each, safe="") for each in path)])
        return f"<a href='{escape(to)}' target='_blank' rel='noopener'>{escape(text)}</a>"


def page(*parts: str) -> str:
    """Return parts of a page as one."""
    return f"<div class='mla'>{''.join(parts)}</div>"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "", none: str = "none") -> str:
    """Return a table. Text is escaped; numbers are set right; what is HTML already comes as `Raw`."""
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    titles = "".join(f"<th scope='col'>{escape(each)}</th>" for each in head)
    said = f"<caption>{escape(caption)}</caption>" if caption else ""
    if not body:
        return f"<p>{escape(caption)}{': ' if caption else ''}{escape(none)}</p>"
    scroll = f"tabindex='0' role='region' aria-label='{escape(caption or head[0])}'"
    return (
        f"<div class='wide' {scroll}><table>{said}<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


class Raw(str):
    """HTML that is to stay as it is; `kind` is the class of its cell."""

    kind = ""

    def of(self, kind: str) -> Raw:
        """Give its cell a class."""
        self.kind = kind
        return self


def _cell(value: Any) -> str:
    if isinstance(value, Raw):
        return f"<td class='{value.kind}'>{value}</td>" if value.kind else f"<td>{value}</td>"
    if value is None:
        return "<td class='n'>–</td>"
    if isinstance(value, bool | str):
        return f"<td>{escape(one_line(value, 700))}</td>"
    return f"<td class='n'>{value:.4g}</td>" if isinstance(value, float) else f"<td class='n'>{value}</td>"


def percent(value: float | None) -> str:
    """Return a share as a percentage."""
    return "–" if value is None or np.isnan(value) else f"{value:.0%}"


def kind_of(group: Group, student: int, item: int) -> str:
    """Return which of `MARKS` a verdict gets."""
    code = group.outcome[student, item]
    if code == FAULT or (code != NOTHING and np.isnan(group.score[student, item])):
        return "open"
    if group.score[student, item] >= group.points[item]:
        return "full"
    if code == NOTHING or code in UNTRIED:
        return "none"
    return "part" if group.score[student, item] > 0 else "zero"


# Class


def summary(look: Look, waiting: int | None) -> str:
    """Return the class in a few lines."""
    group, (score, points) = look.group, look.group.by_lesson
    handed = int((~np.isnan(score)).sum())
    share = group.total / points.sum() if points.sum() else group.total
    told = f"{len(group.students)} students, {len(group.lessons)} lessons, {handed} graded submissions"
    if waiting is not None:
        told += f", {waiting} waiting to be graded"
    if len(group.students):
        told += f". Half the class has {percent(float(np.median(share)))} of the points or more"
    problems = "".join(f"<li>{escape(each)}</li>" for each in group.snapshot.problems[:20])
    return page(f"<p>{escape(told)}.</p>", f"<ul>{problems}</ul>" if problems else "")


def class_table(look: Look, students: Sequence[int], lesson: str | None) -> str:
    """Return students by exercises: of one lesson with points, of all with a mark each."""
    group = look.group
    score, points = group.by_lesson
    rows = []
    if lesson:
        items = group.of_lesson(lesson)
        at = group.lessons.index(lesson)
        head = ["student", "points", *(_head(group, n) for n in items)]
        for n in students:
            total = None if np.isnan(score[n, at]) else float(score[n, at])
            cells = [_mark(group, n, item) for item in items]
            rows.append([Raw(look.name(group.students[n])), total, *cells])
        caption = f"{lesson}, of {points[at]:g} points"
    else:
        head = ["student", "points", *group.lessons]
        for n in students:
            cells = [_marks(group, n, at, lesson_) for at, lesson_ in enumerate(group.lessons)]
            rows.append([Raw(look.name(group.students[n])), float(group.total[n]), *cells])
        caption = f"all lessons, of {points.sum():g} points: a mark an exercise, below it how fast"
    legend = ", ".join(f"{mark} {word}" for mark, word in MARKS.values())
    legend += "; speed: » all points, › some, · none"
    return page(table(head, rows, caption, "nobody fits"), f"<p>{escape(legend)}</p>")


def _head(group: Group, n: int) -> str:
    item = group.items[n]
    return f"{item.exercise}{', speed' if item.of_speed else ''} ({item.points:g})"


def _mark(group: Group, n: int, item: int) -> Raw:
    kind = kind_of(group, n, item)
    told = MARKS[kind][0]
    if kind in ("part", "zero", "full"):
        told = f"{told} {group.score[n, item]:g}"
    return Raw(escape(told)).of(kind)


def _marks(group: Group, n: int, at: int, lesson: str) -> Raw:
    """Return a lesson's marks for one student: a line for the answers, one for their speed."""
    score, points = group.by_lesson
    if np.isnan(score[n, at]):
        return Raw("–").of("none")
    items = group.of_lesson(lesson)
    right = [item for item in items if not group.items[item].of_speed]
    fast = {group.items[item].exercise: item for item in items if group.items[item].of_speed}
    first = "".join(MARKS[kind_of(group, n, item)][0] for item in right)
    speeds = [fast.get(group.items[item].exercise) for item in right]
    second = "".join(" " if item is None else FAST[kind_of(group, n, item)] for item in speeds)
    share = score[n, at] / points[at] if points[at] else 0.0
    kind = "full" if share >= 0.9 else "part" if share >= 0.5 else "zero"
    lines = f"{first}\n{second}" if second.strip() else first
    return Raw(f"{percent(share)}<div class='marks'>{escape(lines)}</div>").of(kind)


# Exercise


def exercises_table(found: Sequence[Figures], flagged: Sequence[Flag], caption: str) -> str:
    """Return the figures of these exercises."""
    kinds = {(flag.lesson, flag.exercise): flag.kind for flag in flagged}
    rows = []
    for each in found:
        name = each.exercise + (figures.OF_SPEED if each.of_speed else "")
        shares = [percent(value) for value in (each.submitted, each.nonzero, each.perfect, each.mean, each.first_try)]
        flag = kinds.get((each.lesson, name))
        rows.append(
            [
                each.lesson,
                each.exercise,
                "speed" if each.of_speed else "answer",
                *(Raw(share).of("n") for share in shares),
                each.discrimination,
                each.attempts,
                each.hours,
                Raw(f"⚑ {escape(flag)}" if flag else ""),
            ]
        )
    head = ["lesson", "exercise", "of", "submitted", "non-zero", "perfect", "mean", "at once"]
    return page(table([*head, "discrimination", "attempts", "hours", "look"], rows, caption))


NOTES = (
    "Shares are of all students; mean and “at once” (all points at the first hand-in) of those who tried it. "
    "Discrimination is the correlation with the share of the points elsewhere: below 0.2 an exercise tells little. "
    "Attempts count up to the one with all points; hours run from the lesson's first hand-in of the class to that."
)


def exercise_page(look: Look, each: Figures, flag: Flag | None, picture: str) -> str:
    """Return all that is known of one exercise, or of its speed."""
    of, point = " speed" if each.of_speed else "", "point" if each.points == 1 else "points"
    parts = [f"<h2>{escape(each.exercise)}{of}, {escape(each.lesson)}, {each.points:g} {point}</h2>"]
    if flag:
        parts.append(f"<p class='flag'><b>⚑ {escape(flag.kind)}.</b> {escape(flag.reason)}</p>")
    parts.append(f"<p>{look.link(['gradebook', each.lesson, each.lesson], 'Submissions in formgrader')}</p>")
    parts += [exercises_table([each], [flag] if flag else [], "in figures"), f"<p>{escape(NOTES)}</p>", picture]
    bins = figures.BINS
    heads = [f"{n / bins:.0%} to {(n + 1) / bins:.0%}" for n in range(bins)]
    parts.append(table(heads, [each.histogram], "students by share of the points") if each.histogram else "")
    parts.append(table(["outcome", "students"], each.outcomes.items(), "outcomes"))

    def examples(found: Mapping[str, Any]) -> Raw:
        return Raw(", ".join(look.name(example["student"]) for example in found["examples"]))

    rows = [[m["mistake"], m["students"], m["reason"], examples(m)] for m in each.mistakes]
    parts.append(table(["mistake", "students", "what the judge says", "for example"], rows, "named mistakes"))
    rows = [[m["students"], m["reason"], examples(m)] for m in each.reasons]
    parts.append(table(["students", "what the judge says", "for example"], rows, "other reasons, the like together"))
    rows = [[case["part"], case["case"], case["students"]] for case in each.cases]
    parts.append(table(["part", "case", "students who fail it first"], rows, "hardest cases"))
    if each.speed:
        speed = each.speed
        us = [speed[key] * 1e6 for key in ("fastest", "median", "slowest", "floor", "baseline")]
        where = f"{', '.join(speed['how'])} on {', '.join(speed['device'])}"
        heads = ["timed", "fastest, µs", "median, µs", "slowest, µs", "roofline, µs", "baseline, µs"]
        parts.append(table(heads, [[speed["timed"], *us]], f"speed of right answers, {where}"))
        rows = [[bar["bar"], f"{bar['reached']} of {bar['of']}"] for bar in speed["bars"]]
        parts.append(table(["bar", "reached by"], rows, "bars"))
    return page(*parts)


# Student


def student_page(look: Look, student: str, lost: str, picture: str, kernels: Sequence[Sequence[Any]]) -> str:
    """Return all that is known of one student; `kernels` are rows beside the picture of the roofline."""
    group, n = look.group, look.group.number[student]
    score, points = group.by_lesson
    parts = [f"<h2>{look.name(student)}</h2>"]
    if lost:
        parts.append(f"<p class='flag'>⚑ {escape(lost)}</p>")
    if not look.hidden:
        parts.append(f"<p>{look.link(['manage_students', student], 'This student in formgrader')}</p>")
    rows = []
    tries = {
        (lesson, name): count
        for lesson, sheet in group.snapshot.lessons.items()
        for name, count in zip(sheet.students, sheet.times, strict=True)
    }
    for at, lesson in enumerate(group.lessons):
        handed = group.snapshot.book.handed_in.get((lesson, student))
        attempts = tries.get((lesson, student), 0)
        cell = _marks(group, n, at, lesson)
        link = group.snapshot.book.ids.get((lesson, student))
        shown = look.link(["submissions", link], "open") if link and not look.hidden else ""
        got = None if np.isnan(score[n, at]) else float(score[n, at])
        rows.append(
            [lesson, cell, got, float(points[at]), handed or None, max(attempts, int(got is not None)), Raw(shown)]
        )
    heads = ["lesson", "marks", "points", "of", "handed in (UTC)", "attempts", "in formgrader"]
    parts.append(table(heads, rows, "lessons"))
    parts += [picture, table(["number", "kernel", *KERNEL], kernels, "kernels under the roofline") if kernels else ""]
    for lesson in group.lessons:
        if np.isnan(score[n, group.lessons.index(lesson)]):
            continue
        rows = [_verdict(row) for row in group.snapshot.record(lesson, student)]
        parts.append(table(["exercise", "points", "outcome", "mistake", "what the judge says"], rows, lesson))
        before = history(group.snapshot.folder, lesson, student)
        if len(before) > 1:
            parts.append(_history(lesson, before))
    return page(*parts)


KERNEL = ("µs", "share of the roofline's speed", "× baseline", "bytes", "FLOP", "where")


def kernel_row(n: int, name: str, at: Mapping[str, Any]) -> list[Any]:
    """Return the row of a kernel in the table beside the roofline."""
    share, where = Raw(percent(at["fraction"])).of("n"), f"{at['how']} on {at['device']}"
    return [n, name, at["seconds"] * 1e6, share, float(at["ratio"]), float(at["bytes"]), float(at["flops"]), where]


def _verdict(row: Sequence[Any]) -> list[Any]:
    points = "open" if row[SCORE] is None else f"{row[SCORE]:g} of {row[POINTS]:g}"
    kind = "open" if row[SCORE] is None else "full" if row[SCORE] >= row[POINTS] else "part" if row[SCORE] else "zero"
    told = Raw(f"{MARKS[kind][0]} {escape(row[OUTCOME])}").of(kind)
    return [row[NAME], Raw(points).of("n"), told, row[MISTAKE] or "", row[WHY]]


def _history(lesson: str, attempts: Sequence[Mapping[str, Any]]) -> str:
    """Return the attempts at a lesson, oldest first: points, and what changed from the one before."""
    rows, before = [], {}
    for number, each in enumerate(attempts, start=1):
        now = {row[NAME]: row for row in each["rows"]}
        told = [
            f"{name}: {before[name][OUTCOME] if name in before else 'new'} → {row[OUTCOME]}"
            for name, row in now.items()
            if name not in before or before[name][SCORE] != row[SCORE]
        ]
        points = sum(row[SCORE] or 0 for row in each["rows"])
        rows.append([number, each.get("submitted") or None, points, "; ".join(told) if before else "first hand-in"])
        before = now
    return table(["attempt", "handed in", "points", "what changed"], rows, f"{lesson}: history")


# Integrity


def integrity_page(
    look: Look, groups: Sequence[Alike], own: Sequence[AsOwn], refused: Sequence[Refused], most: int = 200
) -> str:
    """Return who is alike, who has the lesson's own solution, and what the judge refused."""
    rows = []
    for number, each in enumerate(groups[:most], start=1):
        shown = Raw(
            ", ".join(look.name(student) for student in each.students[:12]) + (" …" if len(each.students) > 12 else "")
        )
        where = "; ".join(f"{exercise} (same {what})" for _, exercise, what in each.exercises[:6])
        more = f" and {len(each.exercises) - 6} more" if len(each.exercises) > 6 else ""
        first = Raw(look.name(each.first)) if each.first else "not known"
        rows.append([number, shown, each.sure, each.bits, where + more, first])
    head = ["group", "students", "how sure", "bits beyond chance", "in", "handed in first"]
    parts = [
        "<h2>Integrity</h2><p>These are grounds to ask, not findings. Names, comments and layout are taken out before "
        "answers are compared; what the lesson hands out and what its own solution has in common with many says "
        "nothing. A group with b bits comes up by chance in one of 2<sup>b</sup> classes like this one. Who handed in "
        "first is by the first graded attempt that has the answer they share.</p>",
        table(head, rows, "answers alike beyond chance"),
    ]
    if len(groups) > most:
        parts.append(f"<p>{len(groups) - most} more groups: <code>mla-course stats --json</code> has them all.</p>")
    rows = [
        [each.lesson, each.exercise, f"{len(each.students)} of {each.of}", each.tokens,
         Raw(", ".join(look.name(student) for student in each.students[:8]) + (" …" if len(each.students) > 8 else ""))]
        for each in own[:most]
    ]  # fmt: skip
    parts.append(
        table(["lesson", "exercise", "students", "tokens", "who"], rows, "the lesson's own solution, names aside")
    )
    rows = [
        [each.lesson, each.exercise, Raw(look.name(each.student)), each.what, each.evidence] for each in refused[:most]
    ]
    head = ["lesson", "exercise", "student", "what was done", "evidence: the judge's words"]
    parts.append(table(head, rows, "answers that the judge refused; an honest misunderstanding can look the same"))
    return page(*parts)


def side_by_side(look: Look, group: Alike) -> str:
    """Return the answers of the first two students of a group to the exercise that they share most plainly."""
    if not group.exercises:
        return ""
    lesson, exercise, _ = max(group.exercises, key=lambda each: each[2] == "text")
    shown = []
    for student in group.students[:2]:
        source = escape(visible(source_of(look.group.snapshot.folder, lesson, student, exercise)[:SOURCE]))
        shown.append(f"<div tabindex='0'><b>{look.name(student)}</b><pre>{source}</pre></div>")
    return page(f"<h3>{escape(exercise)}, {escape(lesson)}</h3><div class='pair'>{''.join(shown)}</div>")


def source_of(folder: Path, lesson: str, student: str, exercise: str) -> str:
    """Return a student's solution cell as it was graded, or why there is none."""
    source = source_in(graded_notebook(folder, lesson, student), exercise)
    return "the graded notebook is not here" if source is None else source


# Operations


def operations_page(look: Look, waiting: Sequence[tuple[str, str, str]], most: int = 200) -> str:
    """Return what waits to be graded, limits that were met, grader faults, and the seconds that lessons took."""
    group = look.group
    work = figures.operations(group)
    rows = [
        [
            each["lesson"],
            each["submissions"],
            each["seconds"],
            each["median"],
            each["most"],
            *each["limits"].values(),
            each["faults"],
        ]
        for each in work
    ]
    heads = [
        "lesson",
        "submissions",
        "seconds of judging",
        "median, s",
        "most, s",
        *map(str, figures.LIMITS),
        "grader faults",
    ]
    parts = ["<h2>Operations</h2>", table(heads, rows, "lessons")]
    told = [
        [lesson, Raw(look.name(student)) if student in group.number else student, why]
        for lesson, student, why in waiting[:most]
    ]
    parts.append(
        table(
            ["lesson", "student", "why"],
            told,
            f"waiting for mla-course grade: {len(waiting)}" if told else "waiting for mla-course grade",
        )
    )
    for caption, outcomes in (
        ("grader faults: no score, to be graded by a person", [Outcome.FAULT]),
        ("limits met", figures.LIMITS),
    ):
        found = figures.verdicts_with(group, outcomes, most)
        rows = [
            [lesson, row[NAME], Raw(look.name(student)), row[OUTCOME], row[WHY]]
            for lesson, student, row in found[:most]
        ]
        parts.append(table(["lesson", "exercise", "student", "outcome", "reason"], rows, caption))
    return page(*parts)
