"""The dashboard: widgets over a class's figures. It runs in a kernel of Voilà's and reads; it never grades."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import numpy as np
from IPython.display import display

from autograder.dashboard import figures, findings, flags, pages, pictures, snapshot
from autograder.dashboard.pages import ROWS, Look, page
from autograder.text import listed, one_line

VIEWS = ("Class", "Exercise", "Student", "Integrity", "Operations")
MOST = 200  # groups to choose from
HARDEST = 3
SHORT = 6  # of what needs a look, of each kind, on the first page
EVERY = 5.0  # seconds between looks at whether something was graded
WIDE = widgets.Layout(width="auto", max_width="100%")
ALL = "all lessons"
SORTS = ("needs help first", "name", "most points", "fewest points", "last hand-in")
SHOWS = ("everyone", "need help", "handed in nothing yet", "grader fault", "alike beyond chance")


class Dashboard:
    """The app on one classroom.

    Parameters
    ----------
    folder
        The classroom.
    formgrader
        Address of the server that has formgrader, for links; "" for none.

    Raises FileNotFoundError if nothing is graded there.
    """

    def __init__(self, folder: Path, formgrader: str = ""):
        self.folder, self.formgrader = folder, formgrader
        self.busy = False  # while widgets are set by the program and not by a person
        self.lock = threading.RLock()  # what is graded meanwhile is read by a thread of its own
        self._read()
        self._build()
        self._fill()

    # What is read

    def _read(self) -> None:
        self.stamp = _stamp(self.folder)
        self.group = figures.gather(snapshot.read(self.folder))
        self.findings = findings.find(self.group)
        self.flagged, self.alike = self.findings.flags, self.findings.alike
        self.lost = {each.student: each for each in figures.lost(self.group)}
        self.figures = figures.overview(self.group)
        self.when = time.strftime("%H:%M:%S")
        self._waiting: list[tuple[str, str, str]] | None = None

    @property
    def waiting(self) -> list[tuple[str, str, str]]:
        """Submissions that wait to be graded."""
        if self._waiting is None:
            self._waiting = snapshot.queue(self.group.snapshot)
        return self._waiting

    @property
    def look(self) -> Look:
        """How things are shown now."""
        return Look(self.group, self.hide.value, self.formgrader)

    # What is shown

    def _build(self) -> None:
        def box(kind: Any, change: Callable[[], None], **options: Any) -> Any:
            made = kind(**{"style": {"description_width": "initial"}, **options})
            made.observe(lambda _: None if self.busy else self._alone(change), "value")
            return made

        self.view = box(widgets.ToggleButtons, self._show, options=VIEWS)
        self.hide = box(widgets.Checkbox, self._fill, description="hide names", indent=False)
        self.hide.layout.width = "130px"
        self.again = widgets.Button(
            description="Read again", tooltip="Read the classroom again, and compare new answers"
        )
        self.again.on_click(lambda _: self.refresh(compare=True))
        self.told = widgets.HTML()
        self.summary, self.needs = widgets.HTML(layout=WIDE), widgets.Box(layout=WIDE)
        self.needs.add_class("mla-flow")
        self.search = box(widgets.Text, self._first_page, description="Search", placeholder="name or id")
        self.lesson = box(widgets.Dropdown, self._first_page, description="Lesson")
        self.sort = box(widgets.Dropdown, self._first_page, description="Sort", options=SORTS)
        self.only = box(widgets.Dropdown, self._first_page, description="Show", options=SHOWS)
        self.page = box(widgets.BoundedIntText, self._class, description="Page", min=1, value=1, max=1)
        self.page.layout.width = "130px"
        self.open = box(widgets.Select, lambda: self._to_student(self.open.value), description="Open", rows=ROWS)
        self.open.layout.width = "240px"
        self.table = widgets.HTML(layout=widgets.Layout(flex="1 1 480px", min_width="0"))
        self.exercise = box(widgets.Dropdown, self._exercise, description="Exercise")
        self.exercise.layout.width = "560px"
        self.student = box(widgets.Dropdown, self._student, description="Student")
        self.student.layout.width = "420px"
        self.pair = box(widgets.Dropdown, self._pair, description="Side by side")
        self.pair.layout.width = "560px"
        self.one, self.two, self.work = (widgets.HTML(layout=WIDE) for _ in range(3))
        self.beside, self.grounds = widgets.HTML(layout=WIDE), widgets.HTML(layout=WIDE)

        def flow(*parts: Any) -> Any:
            made = widgets.HBox(parts, layout=WIDE)
            made.add_class("mla-flow")
            return made

        filters = flow(self.search, self.lesson, self.sort, self.only, self.page)
        self.bodies = {
            "Class": [self.summary, self.needs, filters, flow(self.open, self.table)],
            "Exercise": [self.exercise, self.one],
            "Student": [self.student, self.two],
            "Integrity": [self.pair, self.beside, self.grounds],
            "Operations": [self.work],
        }
        self.body = widgets.VBox(layout=WIDE)
        head = widgets.HTML(page("<h1 style='font-size:22px;margin:6px 0'>Dashboard</h1>"))
        style = widgets.HTML(pages.STYLE)
        tools = flow(self.again, self.hide, self.told)
        self.whole = widgets.VBox([style, head, self.view, tools, self.body], layout=WIDE)

    def _fill(self) -> None:
        """Show what was read anew, in whatever view."""
        group, shown = self.group, self.look
        self.busy = True
        self.told.value = page(f"<span>as of {self.when}</span>")
        lesson, exercise, student = self.lesson.value, self.exercise.value, self.student.value
        self.lesson.options = [ALL, *group.lessons]
        self.lesson.value = lesson if lesson in self.lesson.options else ALL
        marks = {(flag.lesson, flag.exercise): f"⚑ {flag.kind}: " for flag in self.flagged}
        self.exercise.options = [
            (f"{marks.get((i.lesson, i.name), '')}{i.lesson} / {i.exercise}{' (speed)' if i.of_speed else ''}", n)
            for n, i in enumerate(group.items)
        ]
        names = [(self._named(each), each) for each in group.students]
        self.student.options = names
        flagged = [group.place[flag.lesson, flag.exercise] for flag in self.flagged]
        known = exercise is not None and exercise < len(group.items)
        self.exercise.value = exercise if known else next(iter(flagged), 0 if group.items else None)
        self.student.value = student if student in group.number else next(iter([*self.lost, *group.students]), None)
        self.busy = False
        self.summary.value = pages.summary(shown, None if self._waiting is None else len(self._waiting))
        self.needs.children = [
            self._list("Students who need a look", [
                (f"{self._named(each.student)}: {each.why}", lambda s=each.student: self._to_student(s))
                for each in self.lost.values()
            ]),
            self._list("Exercises that need a look", [
                (f"⚑ {flag.exercise}: {flag.kind}", lambda f=flag: self._to_exercise(f)) for flag in self.flagged
            ]),
            self._list("Answers alike", [
                (f"{listed([*map(self._named, each.students)], 3)}: {each.sure}", lambda n=n: self._to_pair(n))
                for n, each in enumerate(self.alike)
            ]),
            self._list("Hardest exercises", [
                (f"{each.exercise}{figures.OF_SPEED if each.of_speed else ''}: {each.mean:.0%} of its points, "
                 f"{each.lesson}", lambda e=each: self._to_figures(e))
                for each in figures.hardest(self.figures)[:HARDEST] if each.mean is not None
            ]),
        ]  # fmt: skip
        self._show()

    def _named(self, student: str) -> str:
        return one_line(self.group.shown(student, self.hide.value), 60)

    def _alone(self, act: Callable[[], None]) -> None:
        with self.lock:
            act()

    def _list(self, title: str, entries: Sequence[tuple[str, Callable[[], None]]]) -> widgets.VBox:
        made = []
        for text, act in entries[:SHORT]:
            button = widgets.Button(description=one_line(text, 120), layout=widgets.Layout(width="auto"))
            button.on_click(lambda _, act=act: self._alone(act))
            made.append(button)
        rest = f", the first {SHORT} of {len(entries)}" if len(entries) > SHORT else "" if entries else ": none"
        head = widgets.HTML(page(f"<h2>{title}{rest}</h2>"))
        box = widgets.VBox([head, *made], layout=widgets.Layout(flex="1 1 300px", min_width="0"))
        box.add_class("mla-look")
        return box

    def _show(self) -> None:
        view = self.view.value
        {
            "Class": self._class,
            "Exercise": self._exercise,
            "Student": self._student,
            "Integrity": self._integrity,
            "Operations": self._operations,
        }[view]()
        self.body.children = self.bodies[view]

    def _first_page(self) -> None:
        self.busy = True
        self.page.value = 1
        self.busy = False
        self._class()

    def found(self) -> list[int]:
        """Return the places of the students that search and filter leave, in the order asked for."""
        group, words = self.group, self.search.value.strip().casefold()
        lesson = None if self.lesson.value == ALL else self.lesson.value
        score = group.by_lesson[0][:, group.lessons.index(lesson)] if lesson else group.total
        there = range(len(group.students))
        if words:
            names = group.snapshot.book.students
            keep = self.hide.value  # a hidden name is not found by letters of it either
            there = [
                n
                for n in there
                if words
                in (
                    self._named(group.students[n])
                    if keep
                    else f"{group.students[n]} {names.get(group.students[n], '')}"
                ).casefold()
            ]
        if (only := self.only.value) != SHOWS[0]:
            alike = {student for each in self.alike for student in each.students} if only == SHOWS[4] else set()
            its = group.of_lesson(lesson) if lesson else list(group.range)
            test = {
                SHOWS[1]: lambda n: group.students[n] in self.lost,
                SHOWS[2]: lambda n: bool((group.outcome[n, its] == figures.NOTHING).all()),
                SHOWS[3]: lambda n: bool((group.outcome[n, its] == figures.FAULT).any()),
                SHOWS[4]: lambda n: group.students[n] in alike,
            }[only]
            there = [n for n in there if test(n)]
        rank = {student: place for place, student in enumerate(self.lost)}
        points = np.nan_to_num(score, nan=-1.0)
        key = {
            SORTS[0]: lambda n: (rank.get(group.students[n], len(rank)), points[n]),
            SORTS[1]: lambda n: self._named(group.students[n]).casefold() if not self.hide.value else n,
            SORTS[2]: lambda n: -points[n],
            SORTS[3]: lambda n: points[n],
            SORTS[4]: lambda n: -self._last(group.students[n], lesson),
        }[self.sort.value]
        return sorted(there, key=key)

    def _last(self, student: str, lesson: str | None) -> float:
        times = self.group.snapshot.book.handed_in
        lessons = [lesson] if lesson else self.group.lessons
        return max(figures.seconds_of(times.get((each, student))) or 0.0 for each in lessons)

    def _class(self) -> None:
        found = self.found()
        last = max(1, -(-len(found) // ROWS))
        self.busy = True
        self.page.max = last
        first = (min(self.page.value, last) - 1) * ROWS
        shown = found[first : first + ROWS]
        self.open.options = [(self._named(self.group.students[n]), self.group.students[n]) for n in shown]
        self.open.value = None
        self.busy = False
        lesson = None if self.lesson.value == ALL else self.lesson.value
        count = page(f"<p>{len(found)} students; page {first // ROWS + 1} of {last}</p>")
        self.table.value = count + pages.class_table(self.look, shown, lesson)

    def _exercise(self) -> None:
        if (n := self.exercise.value) is None:
            return
        item, each = self.group.items[n], figures.detailed(self.group, n, self.figures[n])
        flag = next((f for f in self.flagged if (f.lesson, f.exercise) == (item.lesson, item.name)), None)
        picture = pictures.exercise(each.histogram, each.speed)
        whole = pages.exercises_table(figures.hardest(self.figures), self.flagged, "all exercises, the hardest first")
        self.one.value = pages.exercise_page(self.look, each, flag, picture) + whole

    def _student(self) -> None:
        if (student := self.student.value) is None:
            return
        kernels = [
            (row[snapshot.NAME].removesuffix(figures.OF_SPEED), at)
            for lesson in self.group.lessons
            if not np.isnan(self.group.by_lesson[0][self.group.number[student], self.group.lessons.index(lesson)])
            for row in self.group.snapshot.record(lesson, student)
            if (at := figures.attained(row))
        ]
        rows = [pages.kernel_row(n, name, at) for n, (name, at) in enumerate(kernels, start=1)]
        why = self.lost[student].why if student in self.lost else ""
        picture = pictures.roofline(kernels) if kernels else ""
        self.two.value = pages.student_page(self.look, student, why, picture, rows)

    def _integrity(self) -> None:
        self.grounds.value = pages.integrity_page(self.look, self.alike, self.findings.own, self.findings.refused)
        chosen = self.pair.value
        self.busy = True
        self.pair.options = [
            (f"{n + 1}: {', '.join(map(self._named, each.students[:4]))}", n)
            for n, each in enumerate(self.alike[:MOST])
        ]
        last = min(len(self.alike), MOST) - 1
        self.pair.value = min(chosen or 0, last) if last >= 0 else None
        self.busy = False
        self._pair()

    def _pair(self) -> None:
        n = self.pair.value
        self.beside.value = "" if n is None else pages.side_by_side(self.look, self.alike[n])

    def _operations(self) -> None:
        self.work.value = pages.operations_page(self.look, self.waiting)

    # What leads elsewhere

    def _to(self, view: str, choice: Any, value: Any) -> None:
        self.busy = True
        self.view.value = view
        if view == "Integrity":
            self._integrity()
            self.busy = True
        choice.value = value
        self.busy = False
        self._show()

    def _to_student(self, student: str | None) -> None:
        if student is not None:
            self._to("Student", self.student, student)

    def _to_exercise(self, flag: flags.Flag) -> None:
        self._to("Exercise", self.exercise, self.group.place[flag.lesson, flag.exercise])

    def _to_figures(self, each: figures.Figures) -> None:
        name = each.exercise + (figures.OF_SPEED if each.of_speed else "")
        self._to("Exercise", self.exercise, self.group.place[each.lesson, name])

    def _to_pair(self, n: int) -> None:
        self._to("Integrity", self.pair, n)

    # What changes meanwhile

    def refresh(self, compare: bool = False) -> None:
        """Read again; if asked, compare answers that are new too, which takes the lessons and some time.

        Where that cannot be done now, say why, and go on showing what was read before.
        """
        try:
            if compare:
                from autograder.course.course import find_course

                self.told.value = page("<span role='status'>comparing answers…</span>")
                snapshot.read_shapes(self.folder, find_course())
            with self.lock:
                self._read()
                self._fill()
        except Exception as error:  # a record half gone in a restart of the grader, a folder taken away
            self._not_read(error)

    def _not_read(self, error: Exception) -> None:
        why = escape(one_line(f"{type(error).__name__}: {error}", 300))
        self.told.value = page(f"<span role='status'>not up to date: {why}</span>")

    def _count(self) -> None:
        """Count what waits, for which all that was handed in is looked through."""
        self.summary.value = pages.summary(self.look, len(self.waiting))

    def watch(self) -> None:
        """Read again whenever something was graded, in the background; and import what the plots need."""

        def look() -> None:
            import matplotlib.figure  # noqa: F401  which takes a second, and no view waits for it

            self._count()
            while True:
                time.sleep(EVERY)
                try:
                    if _stamp(self.folder) != self.stamp:
                        self.refresh()
                        self._count()
                except Exception as error:  # look again later
                    self._not_read(error)

        threading.Thread(target=look, daemon=True).start()


def _stamp(folder: Path) -> list[int]:
    """Return when something was last recorded: a record is put in place whole, which its folder's time tells."""
    places = [folder / "gradebook.db", *sorted((folder / "graded").glob("*"))]
    return [os.stat(each).st_mtime_ns for each in places if each.exists()]


def show(folder: str, formgrader: str = "") -> None:
    """Show the dashboard of a classroom here, in a notebook or by Voilà."""
    app = Dashboard(Path(folder), formgrader)
    display(app.whole)
    app.watch()
