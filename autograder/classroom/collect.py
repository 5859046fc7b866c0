"""Put what a learning platform's download holds where `grade` looks, and say of each file where it went, or why not."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from autograder.classroom.archives import HIDDEN, File, files, is_litter, of_system, repack
from autograder.classroom.grade import SECRET, Classroom, read_time
from autograder.classroom.restore import (
    MAX_BYTES,
    SubmissionError,
    is_letter,
    lesson_of,
    read_cells,
    read_file,
    safe_name,
)
from autograder.course.course import Course
from autograder.files import composed, disk_trouble, spelling, write_whole
from autograder.text import listed, one_line

# Moodle has a space for each _ of a name, and Canvas a - for those around a number: the first number is the student's.
MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<number>\d+)_assignsubmission_[a-z]+(_(?P<file>.*))?", re.DOTALL)
CANVAS = re.compile(r"(?P<name>.+?)_(?P<late>LATE_)?(?P<number>\d+)_(?P<upload>\d+)_(?P<file>.+)", re.DOTALL)
NUMBERED = re.compile(r"(?=_(\d+)_\d+_)")  # where a name of Canvas could be read as a student's
ACCENTS = range(0x300, 0x370)  # marks that platforms leave out; those of other scripts are letters of a name
MOST = 100  # lines on what was not taken of a source
LONGEST = 200  # characters of a folder's or a file's name that may say the lesson
AT_ONCE = timedelta(minutes=10)  # within which a platform writes an archive
IDS = ("student_id", "sis login id", "username", "id number", "sis user id", "email address", "email")
NUMBERS = ("number", "identifier", "id")
NAMES = ("name", "full name", "student")


class CollectError(ValueError):
    """What was given cannot be collected from: a sentence with what to do."""


@dataclass(frozen=True)
class Taken:
    """What became of a file: `what` is "new", "replaced", "unchanged" or "refused"; `why` also has remarks."""

    file: str
    what: str
    student: str = ""
    lesson: str = ""
    to: str = ""
    why: str = ""
    remark: bool = field(default=False)  # whether `why` is something to see to

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    @property
    def good(self) -> bool:
        """Whether there is nothing to see to."""
        return self.what != "refused" and not self.remark


@dataclass(frozen=True)
class Owner:
    """Whose file it is, by the platform's naming. `steady` is whether the number is the student's in every lesson."""

    name: str
    number: str = ""
    steady: bool = False
    others: frozenset[str] = field(default=frozenset(), compare=False)  # numbers further on, which a name may hold


@dataclass
class Candidate:
    """A notebook that was handed in, put aside until it is known which of a student's counts."""

    file: str
    parts: tuple[str, ...]
    name: str  # of the notebook, as the student had it
    path: Path
    time: datetime | None
    upload: int = 0
    late: bool = False
    owner: Owner | None = None
    student: str = ""
    lesson: str = ""
    own: str | None = None  # the lesson whose notebook it is
    around: tuple[str, ...] = ()  # folders around one student's work, of which one may be the student's
    remarks: list[str] = field(default_factory=list)

    @property
    def rank(self) -> tuple[Any, ...]:
        """What makes it the one that counts: the right lesson, the later attempt, the lesson's name."""
        stem = Path(self.name).stem
        attempt = re.search(r"-(\d+)$", stem) if self.owner and self.owner.steady else None
        return self.own == self.lesson, int(attempt[1]) if attempt else 0, self.upload, stem == self.lesson


class Collected:
    """The platform's number that each student's submission came under, in the classroom's `collected.json`.

    Raises CollectError if the file is damaged.
    """

    def __init__(self, folder: Path):
        self.path, self.numbers = folder / "collected.json", {}
        try:
            found = json.loads(self.path.read_text())
            self.numbers = {(n, s): str(number) for n, by_student in found.items() for s, number in by_student.items()}
        except FileNotFoundError:
            pass
        except (ValueError, AttributeError, RecursionError) as error:
            raise CollectError(f"{self.path} is damaged ({one_line(error, 200)}): mend or remove it") from None

    def note(self, candidates: Iterable[Candidate]) -> None:
        """Note the numbers of these."""
        new = {(c.lesson, c.student): c.owner.number for c in candidates if c.owner and c.owner.number}
        if new.items() <= self.numbers.items():
            return
        self.numbers |= new
        plain: dict[str, dict[str, str]] = defaultdict(dict)
        for (lesson, student), number in sorted(self.numbers.items()):
            plain[lesson][student] = number
        write_whole(self.path, json.dumps(plain, indent=1) + "\n")


class Students:
    """Who is who: by a file of the instructor's, else by the gradebook, else by a name made of what the platform says.

    The file is a CSV with a column `student_id` and one of `number` and `name`. The grading worksheet of Moodle and the
    grades that Canvas exports are such files too.

    Raises CollectError for a file that is none, and for a damaged one of what was collected before.
    """

    def __init__(self, room: Classroom, mapping: Path | None):
        self.submitted, self.collected = room.submitted, Collected(room.folder)
        self.known, self.named = _Names(), _Names()
        self.numbers: dict[str, set[str]] = defaultdict(set)
        self.given: dict[str, set[str]] = defaultdict(set)
        for student, number, name in _mapping(mapping) if mapping else ():
            self.named.add(name, student)
            if number:
                self.given[number].add(student)
        with room.records.gradebook() as gradebook:
            for each in gradebook.students:
                first, last = each.first_name or "", each.last_name or ""
                for name in (each.id, first + last, last + first, (each.email or "").partition("@")[0]):
                    self.known.add(name, each.id)
                if each.lms_user_id:
                    self.numbers[str(each.lms_user_id)].add(each.id)

    def has(self, name: str) -> bool:
        """Return whether somebody of the class is called so: by the instructor's file, or in the gradebook."""
        return bool(self.named.find(name) or self.known.find(name))

    def numbered(self, number: str) -> bool:
        """Return whether a number is known to be somebody's."""
        return bool(self.given.get(number) or self.numbers.get(number))

    def find(self, owner: Owner) -> tuple[str, bool]:
        """Return the student's name in the class, and whether the mapping has the number, or the name of who has none.

        Raises CollectError where two fit.
        """
        given = self.given.get(owner.number, set()) or self.named.find(owner.name)
        found = given or (self.numbers.get(owner.number, set()) if owner.steady else set())
        found = found or self.known.find(owner.name)
        if len(found) > 1:
            names = listed(sorted(found))
            raise CollectError(f"{one_line(owner.name, 100)} may be {names}: say which by --mapping")
        made = _id_of(owner)
        if not found and not safe_name(made):
            raise CollectError(f"no student's name can be made of {one_line(owner.name, 100)}: use --mapping")
        student = min(found, default=made)
        if not safe_name(student):
            source = "by --mapping" if given else "in the gradebook"
            who = f"{one_line(student, 100)}, who {one_line(owner.name, 100)} is {source},"
            raise CollectError(f"{who} cannot be a student's name: give one of letters, digits, _ @ + - . by --mapping")
        if owner.steady and not given and student != made and student.endswith(f"_{owner.number}"):
            raise CollectError(f"{one_line(owner.name, 100)} has the number of {student}: say who it is by --mapping")
        return student, bool(self.given.get(owner.number)) or (bool(given) and not owner.number)

    def refuse_namesake(self, student: str, owner: Owner, lesson: str) -> None:
        """Raise CollectError where the submission that is there came from another of the platform's students."""
        number, there = owner.number, self.submitted / student / lesson / f"{lesson}.ipynb"
        before = self.collected.numbers.get((lesson, student), number)
        known = self.given.get(number, set()) | (self.numbers.get(number, set()) if owner.steady else set())
        if number and before != number and student not in known and os.path.lexists(there):
            raise CollectError(
                f"{one_line(owner.name, 100)} with the number {number} may be another than the one with the number "
                f"{one_line(before, 20)}, whose {lesson} is there as {student}: say by --mapping which student each "
                "number is"
            )


def collect(
    room: Classroom,
    sources: Sequence[Path],
    lesson: str | None = None,
    mapping: Path | None = None,
    timestamps: bool = False,
    dry: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> list[Taken]:
    """Put the notebooks of archives and folders into `submitted/`, and return what became of each file.

    Parameters
    ----------
    lesson
        What they were handed in as; by default what a file's name, a folder's, or its cells say.
    mapping
        A file that says which student is which (see `Students`).
    timestamps
        Take the files' times for those of handing in.
    dry
        Only say what would become of them.

    Raises
    ------
    OSError
        A source is absent or no archive.
    CollectError, LessonError
        The mapping is none; there is no such lesson.
    """
    if lesson:
        room.course.folder(lesson)
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f"there is no {source}")
    room.folder.mkdir(parents=True, exist_ok=True)
    taken: list[Taken] = []
    with room.locked():
        students = Students(room, mapping)
        for source in sources:
            with TemporaryDirectory(prefix=".staging-", dir=room.folder) as stage:
                found = _read(room.course, source, Path(stage), lesson, students, progress)
                candidates = [each for each in found if isinstance(each, Candidate)]
                told = [each for each in found if isinstance(each, Taken)]
                if timestamps and _of_the_archive(candidates):
                    why = "all its files have times within minutes: they are of the archive, so that none was taken"
                    told.append(Taken(one_line(source, 300), "refused", why=why))
                    candidates = [_untimed(each) for each in candidates]
                told += _name(students, candidates)
                _remember(room, [each for each in candidates if each.student and not dry])
                placed = _place(room, [each for each in candidates if each.student], timestamps, dry)
                good = {(each.student, each.lesson) for each in placed if each.what != "refused" and not dry}
                students.collected.note(each for each in candidates if (each.student, each.lesson) in good)
                told += placed
                taken += _fewer(sorted(told, key=lambda each: each.file))
    return taken


def _read(
    course: Course,
    source: Path,
    stage: Path,
    lesson: str | None,
    students: Students,
    progress: Callable[[str, int, int], None],
) -> list[Candidate | Taken]:
    """Return the notebooks of a source, put aside in `stage`, and what was left out."""
    found: list[Candidate] = []
    left: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for number, file in enumerate(files(source), start=1):
        progress(f"reading {one_line(source.name, 40)}", number, number)
        if file.content is None:
            place = _place_of(file)
            left[file.problem, place].append("/".join(file.parts[len(place) :]) or file.parts[-1])
        else:
            path = stage / f"{number}.ipynb"
            path.write_bytes(file.content)
            found.append(Candidate(file.shown, file.parts, file.parts[-1], path, file.time))
    if not found and not left:
        return [Taken(one_line(source.name, 300), "refused", why="it holds no files")]
    names, paths = course.lesson_names(), [each.parts for each in found]
    level, shift = _platform(paths, students), _wrappers(paths, names, students)
    depth = shift if level is None else level
    alone = len({_place_of(each)[: depth + 1] for each in found}) == 1
    for each in found:
        each.owner = _of_folder(each, shift, names) if level is None else _of_platform(each, level)
        each.around = each.parts[:depth] if alone else ()
        _lesson(course, each, lesson)
    return [*found, *_left(left, {_place_of(each) for each in found})]


def _fewer(told: Sequence[Taken]) -> list[Taken]:
    """Return what became of files without the refused ones of a student beyond the first MOST, which a line counts."""
    kept, refused = [], defaultdict(int)
    for each in told:
        number = refused[each.student] = refused[each.student] + (each.what == "refused" and bool(each.student))
        if each.what != "refused" or number <= MOST:
            kept.append(each)
    more = {student: number - MOST for student, number in refused.items() if number > MOST}
    return kept + [Taken(f"{n} files more", "refused", student, why="as above") for student, n in sorted(more.items())]


def _rename(names: Sequence[str]) -> str:
    """Return what to do with files that may be notebooks under another name, or may hold some."""
    if any(name.lower().endswith((".ipynb.txt", ".ipynb.json", ".json")) for name in names):
        return ": if one is, give it a name that ends in .ipynb"
    return repack(names)


def _left(left: dict[tuple[str, tuple[str, ...]], list[str]], places: set[tuple[str, ...]]) -> list[Taken]:
    """Return what was not read, and what holds no notebook, a line a place; not what lies beside a notebook."""
    around = {place[:n] for place in places for n in range(len(place) + 1)}
    told = []
    for (problem, place), files_there in sorted(left.items()):
        beside = place in around or any(place[:n] in places for n in range(len(place)))
        if not beside or problem not in ("", HIDDEN):
            shown = "/".join((one_line("/".join(place), 200), listed(sorted(files_there))))
            told.append(
                Taken(shown.lstrip("/"), "refused", why=problem or f"nothing of it is a notebook{_rename(files_there)}")
            )
    if len(told) > MOST:
        more = Taken(f"{len(told) - MOST} places more", "refused", why="as above")
        told = [*told[:MOST], more]
    return told


def _submission(part: str) -> bool:
    return bool(MOODLE.fullmatch(part) or CANVAS.fullmatch(part))


def _place_of(file: File | Candidate) -> tuple[str, ...]:
    """Return what files of one submission have in common; of what is hidden, the folder in sight."""
    for n, part in enumerate(file.parts):
        if of_system(part):  # of a Mac's, whose names below are those of the files that it belongs to
            return file.parts[:n]
        if found := MOODLE.fullmatch(part) or CANVAS.fullmatch(part):
            return *file.parts[:n], f"{found['name']}_{found['number']}"
    hidden = next((n for n, part in enumerate(file.parts) if is_litter(part)), len(file.parts) - 1)
    return file.parts[:hidden]


def _platform(paths: Sequence[tuple[str, ...]], students: Students) -> int | None:
    """Return where in these paths a platform says whose a file is; None where it does not.

    That is below folders that all share and that are no student's, and most say so there: what is further down, a
    student has named.
    """
    level = 0
    while paths and all(len(parts) > level for parts in paths):
        if 2 * sum(_submission(parts[level]) for parts in paths) > len(paths):
            return level
        if len({parts[level] for parts in paths}) > 1 or students.has(_stem(paths[0][level])):
            return None
        level += 1
    return None


def _of_platform(each: Candidate, level: int) -> Owner | None:
    """Return whose a notebook is by its platform's naming, and note what else that says."""
    part = each.parts[level]
    if found := MOODLE.fullmatch(part):
        each.name = found["file"] or each.name
        return Owner(found["name"], found["number"])
    if found := CANVAS.fullmatch(part):
        each.upload, each.late = int(found["upload"][:18]), bool(found["late"])
        each.name = found["file"] if part == each.parts[-1] else each.name
        others = frozenset(NUMBERED.findall(part)[1:]) - {found["number"]}
        return Owner(found["name"], found["number"], steady=True, others=others)
    return None


def _wrappers(paths: Sequence[tuple[str, ...]], lessons: Sequence[str], students: Students) -> int:
    """Return how many folders stand around the students' folders. None of them is called like a student."""
    shift = 0
    while paths and all(len(parts) > shift + 2 and parts[shift + 1] not in lessons for parts in paths):
        if len({parts[shift] for parts in paths}) > 1 or students.has(_stem(paths[0][shift])):
            break
        shift += 1
    return shift


def _stem(part: str) -> str:
    return re.sub(r"\.zip$", "", part, flags=re.IGNORECASE)


def _of_folder(each: Candidate, shift: int, lessons: Sequence[str]) -> Owner | None:
    """Return whose a notebook is by its folder, or its archive."""
    folders = [part for part in each.parts[shift:-1] if part not in lessons]
    return Owner(_stem(folders[0])) if folders else None


def _lesson(course: Course, each: Candidate, given: str | None) -> None:
    """Say of which lesson a notebook is, and of which it was handed in."""
    try:
        cells = read_cells(each.path)
        each.own = lesson_of(course, cells)
    except SubmissionError:
        each.remarks.append("it is no notebook that can be read, as `grade` will tell the student")
    plain = [_plain(Path(part).stem[:LONGEST]) for part in (*each.parts[:-1], each.name)]
    within = [name for name in course.lesson_names() if any(_plain(name) in part for part in plain)]
    each.lesson = given or (max(within, key=len) if within else None) or each.own or ""
    if each.own and each.own != each.lesson:
        each.remarks.append(f"it is the notebook of {each.own}, handed in as {each.lesson}")


def _of_the_archive(candidates: Sequence[Candidate]) -> bool:
    """Return whether the times of these are those of the archive, and not of handing in."""
    times = [each.time for each in candidates if each.time]
    return len({_place_of(each) for each in candidates}) > 2 and bool(times) and max(times) - min(times) < AT_ONCE


def _untimed(each: Candidate) -> Candidate:
    each.time = None
    return each


def _name(students: Students, candidates: Iterable[Candidate]) -> list[Taken]:
    """Say which student each notebook is of; return those of which that cannot be said."""
    refused, owners = [], defaultdict(set)
    called = defaultdict(set)  # by number
    for owner in (each.owner for each in candidates if each.owner and each.owner.steady):
        called[owner.number].add(owner.name)
    for each in candidates:
        try:
            if each.owner is None:
                raise CollectError("its path does not say whose it is: put it in a folder of the student's name")
            if other := next((n for n in sorted(each.owner.others) if n in called or students.numbered(n)), None):
                raise CollectError(f"its name has the numbers {each.owner.number} and {other}, each of a student's")
            if len(names := called[each.owner.number]) > 1:
                shown = listed(sorted(one_line(name, 100) for name in names))
                raise CollectError(f"the platform's number {each.owner.number} is of {shown}: it cannot be of several")
            if each.around:
                names = " or ".join(one_line(_stem(part), 100) for part in (*each.around, each.owner.name))
                raise CollectError(
                    f"one student's work alone, of {names}: unpack it, and collect the folder around the student's"
                )
            student, given = students.find(each.owner)
            students.refuse_namesake(student, each.owner, each.lesson)
            each.student = student
            if not given:
                owners[each.student].add(each.owner)
        except CollectError as error:
            refused.append(Taken(each.file, "refused", lesson=each.lesson, why=str(error)))
    for each in candidates:
        if len(owners.get(each.student, ())) > 1:
            why = f"several of the platform's students would be {each.student}: tell them apart by --mapping"
            refused.append(Taken(each.file, "refused", lesson=each.lesson, why=why))
            each.student = ""
    return refused


def _remember(room: Classroom, candidates: Iterable[Candidate]) -> None:
    """Enter in the gradebook the numbers that Canvas's names have, which its import of grades asks for."""
    numbers = {each.student: each.owner.number for each in candidates if each.owner and each.owner.steady}
    with room.records.gradebook() as gradebook:
        known = {each.id for each in gradebook.students if each.lms_user_id}
        for student, number in sorted(numbers.items()):
            if student not in known:
                gradebook.update_or_create_student(student, lms_user_id=number)


def hand_back(
    room: Classroom, source: Path, target: Path, lesson: str | None = None, mapping: Path | None = None
) -> list[Taken]:
    """Write the feedback pages on a platform's download to an archive, under the names that the notebooks have there.

    Platforms take such an archive and give each student their page. Returns what became of each notebook, a page's name
    in the archive in `to`. Raises as `collect`, and BlockingIOError while another run is at work in the classroom.
    """
    if not source.exists():
        raise FileNotFoundError(f"there is no {source}")
    with room.locked():  # whoever holds the lock clears away the stages of others
        students = Students(room, mapping)
        with TemporaryDirectory(prefix=".staging-", dir=room.folder) as stage:
            found = _read(room.course, source, Path(stage), lesson, students, lambda stage, done, total: None)
            candidates = [each for each in found if isinstance(each, Candidate)]
            told = _name(students, candidates)
        counts = {
            (each.student, each.lesson): each for each in sorted(candidates, key=lambda c: c.rank) if each.student
        }
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            for (student, name), each in sorted(counts.items()):
                page = room.folder / "feedback" / student / name / f"{name}.html"
                if page.is_file() and not _other(page.parents[1]):
                    to = _page_name(each).encode(errors="replace").decode()  # of a file whose name is no text
                    while to in archive.namelist():  # the platform's name has no folders of the student's
                        to = f"{to.removesuffix('.html')}-{name}.html"
                    archive.write(page, to)
                    told.append(Taken(each.file, "new", student, name, to))
                else:
                    why = f"there is no page for {student} in {name or 'a lesson'}: collect and grade it first"
                    told.append(Taken(each.file, "refused", student, name, why=why))
        write_whole(target, content.getvalue())
    return sorted(told, key=lambda each: each.file)


def _page_name(each: Candidate) -> str:
    """Return what a page is called in an archive for the platform: as the notebook is in the download."""
    for n, part in enumerate(each.parts):
        if found := MOODLE.fullmatch(part) or CANVAS.fullmatch(part):
            last = part if found["file"] else f"{part}/{each.parts[-1]}"
            return str(PurePosixPath(*each.parts[:n], last).with_suffix(".html"))
    return str(PurePosixPath(*each.parts).with_suffix(".html"))


def _place(room: Classroom, candidates: Sequence[Candidate], timestamps: bool, dry: bool) -> list[Taken]:
    """Put of each student's notebooks for a lesson the one that counts where `grade` looks."""
    taken, groups = [], defaultdict(list)
    for each in candidates:
        if each.lesson:
            groups[each.student, each.lesson].append(each)
        else:
            why = "neither its name nor its cells say of which lesson it is: give --lesson"
            taken.append(Taken(each.file, "refused", each.student, why=why))
    for (student, lesson), group in sorted(groups.items()):
        group.sort(key=lambda each: each.rank)
        last, others = group[-1], group[:-1]
        if len({sha256(each.path.read_bytes()).digest() for each in group if each.rank == last.rank}) > 1:
            why = f"it is one of {len(group)} for {lesson}: leave the one that counts, or call it {lesson}.ipynb"
            taken += [Taken(each.file, "refused", student, lesson, why=why) for each in group]
            continue
        try:
            taken.append(_put(room, last, timestamps, dry))
        except OSError as error:
            if disk_trouble(error):
                raise
            where = one_line(error.filename or "", 300)
            why = f"submitted/{student}/{lesson} cannot be written, see to {where}: {error.strerror}"
            taken.append(Taken(last.file, "refused", student, lesson, why=why))
        why = f"{last.file} counts in its place"
        taken += [Taken(each.file, "unchanged", student, lesson, why=why) for each in others]
    return taken


def _put(room: Classroom, each: Candidate, timestamps: bool, dry: bool) -> Taken:
    """Put a notebook in its place, with its time; of what it replaces a hidden copy stays.

    What it replaces keeps its own time until then: without, it would count as in time.
    """
    from nbgrader.utils import parse_utc

    folder = room.submitted / each.student / each.lesson
    book, clock = folder / f"{each.lesson}.ipynb", folder / "timestamp.txt"
    shown = book.relative_to(room.folder).as_posix()
    content, remarks = each.path.read_bytes(), list(each.remarks)
    time = f"{each.time:%Y-%m-%d %H:%M:%S} UTC" if timestamps and each.time else None
    if any(path.is_symlink() for path in (folder.parent, folder, book)):
        return Taken(each.file, "refused", each.student, each.lesson, why=f"{shown} is a link: remove it")
    if other := _other(folder.parent):
        why = f"{each.student} and {other} are one folder here: by --mapping give them names that differ by letters"
        return Taken(each.file, "refused", each.student, each.lesson, why=why)
    there = read_time(folder)[0]
    if time and there and parse_utc(there) > parse_utc(time):
        why = f"{shown} was handed in later, at {there}"
        return Taken(each.file, "unchanged", each.student, each.lesson, shown, why)
    try:
        before = read_file(book, MAX_BYTES + 1)
    except FileNotFoundError:
        before = None
    what = "new" if before is None else "unchanged" if before == content else "replaced"
    if each.late and not time:
        remarks.append("Canvas calls it late, and not by how much: see to its timestamp.txt")
    if not dry:
        if what == "replaced":
            write_whole(folder / f".{each.lesson}.{sha256(before).hexdigest()[:8]}.ipynb", before)
        if what != "unchanged":
            notes = clock, folder / SECRET  # of what it replaces
            for note in notes:
                if note.is_dir():
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(note))
            write_whole(book, content, public=True)
            for note in notes[bool(time) :]:
                note.unlink(missing_ok=True)
        if time and time != there:
            write_whole(clock, time + "\n", public=True)
    return Taken(each.file, what, each.student, each.lesson, shown, "; ".join(remarks), bool(remarks))


def _other(folder: Path) -> str | None:
    """Return the student whose folder this is under another name: to some file systems upper case is lower."""
    there = composed(spelling(folder, os.listdir(folder.parent))) if os.path.lexists(folder) else folder.name
    return there if there != folder.name else None


class _Names:
    """Who is called how. A name without accents is that of who has some, and two that have differ by them."""

    def __init__(self) -> None:
        self.students: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def add(self, name: str, student: str) -> None:
        if plain := _plain(name):
            self.students[plain].add((_spelt(name), student))

    def find(self, name: str) -> set[str]:
        """Return those who are called so, else those who are but for accents that one of the two lacks."""
        plain, spelt = _plain(name), _spelt(name)
        there = self.students.get(plain, ())
        exact = {student for other, student in there if other == spelt}
        return exact or {student for other, student in there if plain in (other, spelt)}


def _spelt(name: str) -> str:
    """Return a name without what platforms change in any: case, spaces and what is no letter."""
    return "".join(letter for letter in unicodedata.normalize("NFKD", name).casefold() if is_letter(letter, "_"))


def _id_of(owner: Owner) -> str:
    """Return a student's name made of what the platform says."""
    letters = unicodedata.normalize("NFC", owner.name)
    made = re.sub("_+", "_", "".join(x if is_letter(x) or x in "@.-" else "_" for x in letters)).strip("_.")
    made = made.encode()[:100].decode(errors="ignore") or "student"
    return f"{made}_{owner.number}" if owner.steady else made


def _plain(name: str) -> str:
    """Return a name without accents, either, which some platforms leave out."""
    return "".join(letter for letter in _spelt(name) if ord(letter) not in ACCENTS)


def _mapping(path: Path) -> list[tuple[str, str, str]]:
    """Return a file's students, each with number and name, "" where it has none. Raises CollectError if it is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except ValueError:
        raise CollectError(f"{path} is no text in UTF-8: save it as CSV in UTF-8") from None
    head = text.partition("\n")[0]
    csv.field_size_limit(max(len(text), csv.field_size_limit()))  # Moodle's has a column of what students wrote
    lines = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    try:
        columns = {str(name).strip().lower(): name for name in lines.fieldnames or ()}
        if not set(columns) & set(IDS) or not set(columns) & {*NUMBERS, *NAMES}:
            raise CollectError(
                f"{path} does not say who is who: expected a column student_id, and number or name; the first line is "
                f"{one_line(head, 200)}"
            )
        found = []
        for line in lines:
            student, number, name = (
                next((str(line[columns[c]]).strip() for c in kind if c in columns and line[columns[c]]), "")
                for kind in (IDS, NUMBERS, NAMES)
            )
            if student:
                digits = re.search(r"\d+", number)
                found.append((student, digits[0] if digits else "", name))
    except csv.Error as error:
        raise CollectError(f"{path} cannot be read as CSV: {one_line(error, 200)}") from None
    return found
