"""A gradebook in PostgreSQL: a private server of Debian's packages, reached by a socket in a folder of its own."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autograder.classroom.database import gradebook_url
from autograder.classroom.export import rows
from autograder.classroom.feedback import write_feedback
from autograder.classroom.grade import Classroom

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[-2]))


@pytest.fixture(scope="module")
def server():
    """The folder of a server's socket. PostgreSQL refuses to run as root, so then it runs as nobody."""
    pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")
    if not BINARIES and shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    tools = BINARIES[-1] if BINARIES else Path(shutil.which("initdb")).parent
    user = pwd.getpwnam("nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)
    with tempfile.TemporaryDirectory() as folder:  # short: the path of a socket has at most 107 bytes
        os.chown(folder, user.pw_uid, user.pw_gid)
        keys = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}, "stdout": subprocess.DEVNULL}
        if os.getuid() == 0:
            keys |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        subprocess.run([tools / "initdb", "-D", "data", "-U", "grader", "-A", "trust", "--no-sync"], check=True, **keys)
        settings = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}", "-c", "fsync=off"]
        process = subprocess.Popen([tools / "postgres", "-D", "data", *settings], **keys)
        try:
            yield folder
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


@pytest.fixture
def url(server, tmp_path, monkeypatch):
    """The address of an empty database, which the gradebook is to be in."""
    import psycopg

    name, deadline = f"class_{tmp_path.name}", time.monotonic() + 60
    while True:
        try:
            connection = psycopg.connect(host=server, user="grader", dbname="postgres", autocommit=True)
            break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    with connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    address = f"postgresql+psycopg://grader@/{name}?host={server}"
    monkeypatch.setenv("MLA_GRADEBOOK", address)
    return address


def test_a_class_is_graded_by_two_graders_in_turn(url, tiny, tmp_path):
    hand_in(tmp_path, ada=notebook(**RIGHT), ben=notebook(**WRONG))
    room = Classroom(tiny, tmp_path)
    assert [result.counts for result in room.grade()] == [5, 2]
    assert not (tmp_path / "gradebook.db").exists()
    hand_in(tmp_path, ben=notebook(**RIGHT), eve=b"{")
    command = [sys.executable, "-m", "autograder.cli", "--course", tiny.root, "grade", "--classroom", tmp_path]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 0
    results = room.grade()
    assert [(r.student, r.counts, r.fresh) for r in results] == [
        ("ada", 5, False),
        ("ben", 5, False),
        ("eve", 0, False),
    ]
    with room.records.gradebook() as gradebook:
        assert gradebook.engine.dialect.name == "postgresql"
        gradebook.find_grade("check-quad", NAME, NAME, "ada").manual_score = 0.5
        gradebook.db.commit()
    assert {row["student"]: (row["score"], row["status"]) for row in rows(room)} == {
        "ada": (3.5, "set by hand"),
        "ben": (5, "graded"),
        "eve": (0, "graded"),
    }
    pages, problems = write_feedback(room)
    assert (len(pages), problems) == (3, [])


@pytest.mark.thorough
def test_a_run_that_was_killed_is_finished_by_the_next(url, tiny, tmp_path):
    hand_in(tmp_path, **{f"s{n}": notebook(**RIGHT) for n in range(6)})
    command = [sys.executable, "-m", "autograder.cli", "--course", tiny.root, "grade", "--classroom", tmp_path]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list((tmp_path / "graded").glob("*/*.json")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    results = Classroom(tiny, tmp_path).grade()
    assert {result.student: (result.score, result.counts) for result in results} == {f"s{n}": (5, 5) for n in range(6)}
    assert not results[0].fresh, "what was recorded before stays"


@pytest.mark.thorough
def test_two_first_contacts_with_an_empty_database_both_succeed(url, tiny, tmp_path):
    rooms = [tmp_path / "one", tmp_path / "two"]
    for room, student in zip(rooms, ("ada", "ben"), strict=True):
        hand_in(room, **{student: notebook(**RIGHT)})
    command = [sys.executable, "-m", "autograder.cli", "--course", tiny.root, "grade", "--classroom"]
    keys = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    graders = [subprocess.Popen([*command, room], **keys) for room in rooms]
    said = [grader.communicate(timeout=300)[0] for grader in graders]
    assert [grader.returncode for grader in graders] == [0, 0], "".join(said)[-5000:]
    assert {row["student"]: row["score"] for row in rows(Classroom(tiny, rooms[0]))} == {"ada": 5, "ben": 5}


@pytest.mark.thorough
def test_many_may_open_an_empty_database_at_once(url):
    code = """
import sys
from autograder.classroom.guard import guard
from nbgrader.api import Gradebook
guard()
sys.stdin.readline()
Gradebook(sys.argv[1], "course").close()
"""
    keys = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    opened = [subprocess.Popen([sys.executable, "-c", code, url], **keys) for _ in range(4)]
    for process in opened:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=300)[1] for process in opened]
    assert [process.returncode for process in opened] == [0] * 4, said


def test_any_address_of_postgresql_takes_the_driver_of_the_extra(url, monkeypatch, tmp_path):
    for scheme in ("postgresql", "postgres", "postgresql+psycopg"):
        monkeypatch.setenv("MLA_GRADEBOOK", url.replace("postgresql+psycopg", scheme))
        assert gradebook_url(tmp_path) == url


@pytest.mark.thorough
def test_a_database_that_does_not_answer_is_a_sentence_without_the_password(tiny, tmp_path):
    hand_in(tmp_path, ada=notebook(**RIGHT))
    address = "postgresql://me:secret@127.0.0.1:1/none"
    done = _grade(tiny, tmp_path, {"MLA_GRADEBOOK": address})
    assert done.returncode == 2
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("mla-course: ")]
    assert "the gradebook postgresql://me:***@127.0.0.1:1/none cannot be used" in said
    assert "secret" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("missing", ["psycopg", "psycopg_binary"])
def test_a_missing_driver_names_its_extra(missing, tiny, tmp_path):
    hand_in(tmp_path, ada=notebook(**RIGHT))
    (tmp_path / "site").mkdir()
    gone = f"import sys\nsys.modules.update(dict.fromkeys(['{missing}', 'psycopg_c'], None))\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(gone + "import os\nos.environ['PSYCOPG_IMPL'] = 'binary'\n")
    path = f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = _grade(tiny, tmp_path, {"MLA_GRADEBOOK": "postgresql://me@127.0.0.1:1/none", "PYTHONPATH": path})
    assert done.returncode == 2
    assert "install the extra with `pip install 'mla-course[postgres]'`" in done.stderr
    assert "Traceback" not in done.stderr


def _grade(course, folder, variables):
    command = [sys.executable, "-m", "autograder.cli", "--course", course.root, "grade", "--classroom", folder]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=300)
