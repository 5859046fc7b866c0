"""Full and read-only disks: a sentence and exit status 2, nothing half-written, and the next run goes on.

bubblewrap makes the disks: a small tmpfs, a mount that is read-only. Neither takes root.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..tiny_course import NAME, RIGHT, WRONG, hand_in, notebook, write
from .test_demo import SAMPLE

ROOT = Path(__file__).parents[3]
SIZE = 64 << 20
WRITING = {"build", "collect", "demo", "export", "extension", "feedback", "grade", "release"}
COMMON = """
import contextlib, io, json, os, shutil, sys
from pathlib import Path
from autograder import cli

disk, course, given = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
told = []


def run(free, *arguments):
    sys.argv = ["mla-course", "--course", course, *map(str, arguments)]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
    sentences = [line for line in said.getvalue().splitlines() if line.startswith("mla-course: ")]
    told.append(dict(command=arguments[0], free=free, status=status, sentences=sentences, said=said.getvalue()))


def damaged(folder):
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".ipynb"):
            try:
                json.loads(path.read_text())
            except ValueError:
                yield str(path)
        elif path.name.startswith(".grades") or path.suffix == ".csv" and "ada" not in path.read_text():
            yield str(path)
"""
FULL = """
def only(free):
    (disk / "ballast").unlink(missing_ok=True)
    place = os.statvfs(disk)
    with open(disk / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(1, place.f_bavail * place.f_frsize - free))


broken = []
for free in (120_000, 220_000):  # in the middle of the gradebook's tables, of a submission
    room = disk / f"class-{free}"
    shutil.copytree(given, room)
    only(free)
    run(free, "grade", "--classroom", room)
    broken += damaged(room)
    (disk / "ballast").unlink()
    run(None, "grade", "--classroom", room)
    run(None, "export", "--classroom", room)
    grades = (room / "grades.csv").read_text()
    broken += [grades] if [line.split(",")[2] for line in grades.splitlines()] != ["score", "5.0", "2.0"] else []
only(0)
run(0, "feedback", "--classroom", room)
run(0, "build", "--to", disk / "course")
run(0, "demo", "--classroom", disk / "demo")
run(0, "release", disk / "release")
run(0, "collect", Path(given) / "submitted", "--classroom", disk / "collected")
run(0, "extension", "ada", "90_tiny", "2", "--classroom", room)
run(0, "export", room / "again.csv", "--classroom", room)
broken += map(str, room.glob("*again.csv*"))
(disk / "ballast").unlink()
run(None, "feedback", "--classroom", room)
run(None, "build", "--to", disk / "course")
run(None, "demo", "--classroom", disk / "demo")
run(None, "release", disk / "release")
run(None, "collect", Path(given) / "submitted", "--classroom", disk / "collected")
run(None, "export", "--classroom", room)
broken += damaged(disk)
print(json.dumps([told, broken]))
"""
READ_ONLY = """
for command in ("grade", "feedback", "export"):
    run("read-only", command, "--classroom", disk)
run("read-only", "demo", "--classroom", disk / "demo")
run("read-only", "build", "--to", disk / "course")
run("read-only", "release", disk / "release")
run("read-only", "collect", given, "--classroom", disk)
run("read-only", "extension", "ada", "90_tiny", "2", "--classroom", disk)
print(json.dumps(told))
"""


@pytest.fixture
def course(tmp_path):
    found = write(tmp_path)
    (found.folder(NAME) / "sample_class.py").write_text(SAMPLE)
    return found


def inside(mounts, script, *arguments):
    """Run a script where these mounts are made; return what it prints, parsed."""
    command = ["bwrap", "--dev-bind", "/", "/", *map(str, mounts), sys.executable, "-c", COMMON + script]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "MLA_ISOLATION": "process"}
    done = subprocess.run([*command, *map(str, arguments)], env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(autouse=True)
def bubblewrap():
    if not shutil.which("bwrap") or subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"], check=False).returncode:
        pytest.skip("bubblewrap, which makes the disks here, does not work")


@pytest.mark.thorough
def test_a_full_disk_is_a_sentence_and_status_2_and_loses_nothing(course, tmp_path):
    hand_in(tmp_path / "class", ada=notebook(**RIGHT), ben=notebook(**WRONG))
    disk = tmp_path / "disk"
    disk.mkdir()
    told, broken = inside(["--size", SIZE, "--tmpfs", disk], FULL, disk, course.root, tmp_path / "class")
    stopped = [each for each in told if each["status"] == 2]
    assert {each["command"] for each in stopped} == WRITING
    for each in told:
        shown = textwrap.shorten(str(each), 3000)
        assert each["status"] in ((0,) if each["free"] is None else (0, 2)), shown
        assert len(each["sentences"]) == (each["status"] == 2), shown
        assert "Traceback" not in each["said"], shown
        assert all("disk" in sentence for sentence in each["sentences"]), shown
    assert broken == []


def test_a_read_only_disk_is_a_sentence_and_status_2(course, tmp_path):
    room = tmp_path / "class"
    hand_in(room, ada=notebook(**RIGHT))
    from autograder.classroom.grade import Classroom

    Classroom(course, room).grade()
    hand_in(room, ada=notebook(**WRONG))
    before = {path: path.is_file() and path.read_bytes() for path in room.rglob("*")}
    (tmp_path / "more" / "cid" / NAME).mkdir(parents=True)
    (tmp_path / "more" / "cid" / NAME / f"{NAME}.ipynb").write_text(json.dumps(notebook(**RIGHT)))
    told = inside(["--ro-bind", room, room], READ_ONLY, room, course.root, tmp_path / "more")
    assert {each["command"] for each in told} == WRITING
    for each in told:
        assert (each["status"], len(each["sentences"])) == (2, 1), each
    assert {path: path.is_file() and path.read_bytes() for path in room.rglob("*")} == before


def test_a_folder_of_the_class_that_is_read_only_is_named_and_no_record_is_lost(tiny_room):
    room, course = tiny_room.folder, tiny_room.course
    hand_in(room, ada=notebook(**RIGHT))
    tiny_room.grade()
    (room / "feedback").mkdir()
    hand_in(room, ada=notebook(**WRONG))
    mounts = [part for name in ("autograded", "feedback") for part in ("--ro-bind", room / name, room / name)]
    script = """
for command in ("grade", "feedback"):
    run("read-only", command, "--classroom", disk)
print(json.dumps(told))
"""
    graded, written = inside(mounts, script, room, course.root, room)
    for each, folder in ((graded, "autograded"), (written, "feedback")):
        assert (each["status"], len(each["sentences"])) == (2, 1), each
        assert f"at {room / folder} (Read-only file system)" in each["said"], each
    assert (room / "graded" / NAME / "ada.json").exists()
