"""nbgrader's exchange to the end: released, fetched, submitted, collected, graded, handed back."""

import json
import logging
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import default
from nbgrader.utils import notebook_hash

from autograder.classroom.build import build
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook

BOOK = f"{NAME}.ipynb"
CONFIG = """
from autograder.classroom.config import configure
c = configure(get_config())
c.Exchange.root = {exchange!r}
"""
STUDENT = """
import json, os, sys
from pathlib import Path
from nbgrader.auth import Authenticator
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import default
from traitlets.config import Config

user, student, exchange, course, lesson, *todo = json.loads(sys.argv[1])
if user:  # not before: the interpreter may lie where no other user may read
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])
c = Config()
c.CourseDirectory.course_id, c.CourseDirectory.assignment_id = course, lesson
if student:
    c.CourseDirectory.student_id = student
c.Exchange.root, c.Exchange.cache = exchange, str(Path("cache").resolve())
book = Path(lesson, f"{lesson}.ipynb")
for step in todo:
    if isinstance(step, dict):
        cells = json.loads(book.read_text())
        for cell in cells["cells"]:
            cell["source"] = step.get(cell["id"], cell["source"])
        book.write_text(json.dumps(cells))
        continue
    getattr(default, step)(coursedir=CourseDirectory(config=c), authenticator=Authenticator(config=c), config=c).start()
"""


@pytest.fixture(scope="module")
def place(tiny):
    """A folder that every user may enter, with the exchange in it and the tiny course released to it."""
    with tempfile.TemporaryDirectory(prefix="mla-exchange-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "exchange").mkdir()
        (folder / "exchange").chmod(0o777)
        (folder / "nbgrader_config.py").write_text(CONFIG.format(exchange=str(folder / "exchange")))
        build(tiny, tiny.root / "course")
        yield folder


class Student:
    """A student with a home of their own; where the tests run as root, a Unix user."""

    def __init__(self, place, course, name):
        self.place, self.course, self.name = place, course, name
        self.user = pwd.getpwnam(name)[2:4] if os.geteuid() == 0 else None
        self.home = place / name
        self.home.mkdir()
        if self.user:
            shutil.chown(self.home, name)

    def run(self, *todo):
        """Do these steps: classes of nbgrader's exchange, or sources to put into the notebook."""
        told = [self.user, "" if self.user else self.name, str(self.place / "exchange"), self.course.name, NAME, *todo]
        command = [sys.executable, "-c", STUDENT, json.dumps(told)]
        env = {**os.environ, "HOME": str(self.home), "JUPYTER_PREFER_ENV_PATH": "1"}
        _run(command, self.home, env)

    def feedback(self):
        """Return the pages that were fetched."""
        return [path.read_text() for path in sorted((self.home / NAME / "feedback").rglob("*.html"))]


def _nbgrader(place, course, room, command):
    env = {**os.environ, "MLA_COURSE": str(course.root), "MLA_CLASSROOM": str(room.folder)}
    return _run([sys.executable, "-m", "nbgrader", command, NAME], place, env)


def _run(command, folder, env):
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.thorough
def test_two_students_hand_in_and_get_their_feedback(place, tiny, judged_class, monkeypatch):
    monkeypatch.chdir(place)
    room = Classroom(tiny, shutil.copytree(judged_class, place / "class"))
    (place / "class").chmod(0o700)
    students = {name: Student(place, tiny, name) for name in ("games", "mail")}
    _nbgrader(place, tiny, room, "release_assignment")
    for name, sources in (("games", RIGHT), ("mail", WRONG)):
        students[name].run("ExchangeFetchAssignment", sources, "ExchangeSubmit")
    _nbgrader(place, tiny, room, "collect")
    local = room.submitted / "zoe" / NAME
    local.mkdir(parents=True)
    shutil.copy(room.submitted / "mail" / NAME / BOOK, local / BOOK)  # came by mail: there is no page to fetch
    assert {result.student: result.score for result in room.grade()} == {"games": 5, "mail": 2, "zoe": 2}
    assert len(write_feedback(room)[0]) == 3
    assert "no feedback is released: zoe" in _nbgrader(place, tiny, room, "release_feedback")
    for name, score in (("games", "5.0 / 5.0"), ("mail", "2.0 / 5.0")):
        students[name].run("ExchangeFetchFeedback")
        (page,) = students[name].feedback()
        assert f"Score: {score}" in page
        assert ("halved" in page) == (name == "mail")


def _inbound(room, root, student, time="2026-12-24 10:00:00 UTC"):
    folder = root / room.course.name / "inbound" / f"{student}+{NAME}+{time}+random"
    folder.mkdir(parents=True)
    (folder / "timestamp.txt").write_text(time)
    return folder


def _exchange(room, root, kind):
    config = room.records.config()
    config.Exchange.root, config.CourseDirectory.assignment_id = str(root), NAME
    config.ExchangeCollect.update = True
    log = logging.getLogger(str(root))  # by default an application's, which an earlier test may have left silent
    getattr(default, kind)(
        coursedir=CourseDirectory(config=config), authenticator=Authenticator(config=config), config=config, log=log
    ).start()


def test_a_link_in_the_exchange_hands_in_no_file_of_the_instructors(tiny_room, tmp_path):
    hand_in(tiny_room.folder, ada=notebook(**RIGHT))
    honest = tiny_room.submitted / "ada" / NAME / BOOK
    (_inbound(tiny_room, tmp_path, "eve") / BOOK).symlink_to(honest)
    os.mkfifo(_inbound(tiny_room, tmp_path, "dan") / "pipe")
    shutil.copy(honest, _inbound(tiny_room, tmp_path, "ben") / BOOK)
    _exchange(tiny_room, tmp_path, "ExchangeCollect")
    assert {result.student: result.score for result in tiny_room.grade()} == {"ada": 5, "ben": 5, "eve": 0, "dan": 0}


def test_the_path_of_an_exchange_means_itself_and_no_pattern(tiny_room, tmp_path):
    root = tmp_path / "Kurs [WS26] (a*b?)"
    (_inbound(tiny_room, root, "ada") / BOOK).write_text("{}")
    _exchange(tiny_room, root, "ExchangeCollect")
    assert (tiny_room.submitted / "ada" / NAME / BOOK).is_file()


def test_entries_of_the_exchange_that_are_no_submission_stop_nobody_else(tiny_room, tmp_path, caplog):
    ada = _inbound(tiny_room, tmp_path, "ada")
    time = "2026-12-24 10:00:00 UTC"
    for name, target in (("eve", ada), ("mal", tmp_path), ("dan", tmp_path / "nowhere")):
        ada.with_name(f"{name}+{NAME}+{time}+rnd").symlink_to(target)
    for name in (f"zed+{NAME}+tomorrow+rnd", f"+{NAME}+{time}+rnd", f"esc\x1b[31m+{NAME}+{time}+rnd"):
        ada.with_name(name).mkdir()
    locked = _inbound(tiny_room, tmp_path, "ben") / "more"
    locked.mkdir()
    (locked / "notes.txt").write_text("mine")
    locked.chmod(0o555)
    _exchange(tiny_room, tmp_path, "ExchangeCollect")
    assert sorted(each.name for each in tiny_room.submitted.iterdir()) == ["ada", "ben"]
    assert os.stat(tiny_room.submitted / "ben" / NAME / "more").st_mode & 0o700 == 0o700
    assert sum("Not collected" in line for line in caplog.messages) == 6
    assert "\x1b" not in caplog.text


def _sparse(folder, *sizes):
    for n, size in enumerate(sizes):
        with open(folder / f"{n}.bin", "wb") as file:
            file.truncate(size << 20)


def _notebook_is_a_pipe(folder):
    (folder / BOOK).rename(folder / "scratch.ipynb")
    os.mkfifo(folder / BOOK)


@pytest.mark.parametrize(
    ("make", "says", "taken"),
    [
        (lambda folder, deepen: os.mkfifo(folder / "core.sock"), "core.sock: it is not a file", True),
        (lambda folder, deepen: deepen(folder), "a/: its path has more than", True),
        (lambda folder, deepen: _sparse(folder, 200), "0.bin: it is larger than 100000 KB", True),
        (lambda folder, deepen: _sparse(folder, 40, 40, 40), "it is larger than 100000 KB", False),
        (lambda folder, deepen: _notebook_is_a_pipe(folder), f"{BOOK}: it is not a file", False),
        (lambda folder, deepen: [(folder / f"{n}").mkdir() for n in range(10_001)], "more than 10000 files", False),
    ],
    ids=["a pipe", "deep", "a large file", "large", "no notebook", "many"],
)
def test_what_cannot_be_copied_costs_no_earlier_hand_in_and_nobody_else(
    tiny_room, tmp_path, caplog, deepen, make, says, taken
):
    (_inbound(tiny_room, tmp_path, "ada") / BOOK).write_text("[]")
    _exchange(tiny_room, tmp_path, "ExchangeCollect")
    later = _inbound(tiny_room, tmp_path, "ada", "2026-12-25 10:00:00 UTC")
    (later / BOOK).write_text("{}")
    make(later, deepen)
    (_inbound(tiny_room, tmp_path, "zoe") / BOOK).write_text("{}")
    _exchange(tiny_room, tmp_path, "ExchangeCollect")
    ada, zoe = (tiny_room.submitted / student for student in ("ada", "zoe"))
    assert (ada / NAME / BOOK).read_text() == ("{}" if taken else "[]")
    assert (ada / NAME / "timestamp.txt").read_text() == f"2026-12-{25 if taken else 24} 10:00:00 UTC"
    assert (zoe / NAME / BOOK).is_file()
    (line,) = [line for line in caplog.messages if says in line]
    assert line.startswith("Left out of ada+" if taken else "Not collected: ada+")
    assert [each.name for each in ada.iterdir()] == [NAME]


def test_what_ends_while_it_is_put_in_its_place_costs_no_earlier_hand_in(tiny_room, tmp_path, monkeypatch):
    real = Path.rename

    def rename(path, target):
        if path.name == "new":
            raise KeyboardInterrupt
        return real(path, target)

    for day in (24, 25):
        (_inbound(tiny_room, tmp_path, "ada", f"2026-12-{day} 10:00:00 UTC") / BOOK).write_text(str(day))
        if day == 25:
            monkeypatch.setattr(Path, "rename", rename)
            with pytest.raises(KeyboardInterrupt):
                _exchange(tiny_room, tmp_path, "ExchangeCollect")
        else:
            _exchange(tiny_room, tmp_path, "ExchangeCollect")
    assert (tiny_room.submitted / "ada" / NAME / BOOK).read_text() == "24"


def test_feedback_goes_to_the_submission_that_was_graded_last(tiny_room, tmp_path):
    released = tmp_path / tiny_room.course.name / "feedback"
    for day, secret in ((24, "first"), (25, "second")):
        folder = _inbound(tiny_room, tmp_path, "ada", f"2026-12-{day} 10:00:00 UTC")
        (folder / BOOK).write_text(json.dumps(notebook(**RIGHT)))
        (folder / "submission_secret.txt").write_text(secret)
        _exchange(tiny_room, tmp_path, "ExchangeCollect")
        tiny_room.grade()
        write_feedback(tiny_room)
        _exchange(tiny_room, tmp_path, "ExchangeReleaseFeedback")
        assert (released / f"{notebook_hash(secret=secret, notebook_id=NAME)}.html").is_file()
