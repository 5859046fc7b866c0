"""The command line: exit statuses, JSON, and errors that say what to do."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from traitlets.config import Config

from autograder import cli
from autograder.classroom import record as records
from autograder.classroom.config import configure
from autograder.cli import commands, terminal
from autograder.course.course import Course
from autograder.course.sample import render, submissions

from . import tiny_course
from .tiny_course import RIGHT, hand_in, notebook

ROOT = Path(__file__).parents[2]
COURSE = Course.at(ROOT)
NAME = "00_start_here"
COMMANDS = (
    "build",
    "release",
    "check",
    "collect",
    "grade",
    "extension",
    "feedback",
    "export",
    "demo",
    "bench",
    "doctor",
    "progress",
)


def run(*arguments, cwd=None):
    command = [sys.executable, "-m", "autograder.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    for each in submissions(COURSE, NAME):
        (folder / each.student).mkdir()
        (folder / each.student / f"{NAME}.ipynb").write_bytes(render(COURSE.lesson(NAME), each))
    return folder


def test_help_lists_the_commands_and_each_has_its_own():
    from typer.testing import CliRunner

    from autograder.cli import app

    assert all(command in CliRunner().invoke(app, ["--help"]).output for command in COMMANDS)
    for command in COMMANDS:
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0
        assert "Usage" in result.output


@pytest.mark.thorough
def test_check_passes_a_right_notebook(notebooks):
    result = run("check", notebooks / "ada" / f"{NAME}.ipynb")
    assert result.returncode == 0, result.stderr
    assert "15 of 15 points" in result.stdout


@pytest.mark.thorough
def test_check_takes_several_notebooks(notebooks):
    paths = [str(notebooks / student / f"{NAME}.ipynb") for student in ("ada", "eli")]
    result = run("check", *paths)
    assert result.returncode == 1, result.stderr
    assert "ada" in result.stdout and "15 of 15 points" in result.stdout
    assert f"{paths[1]}, {NAME}: " in result.stdout


def test_check_says_what_is_wrong_and_exits_with_1(notebooks):
    result = run("check", notebooks / "eli" / f"{NAME}.ipynb", "--json")
    assert result.returncode == 1, result.stderr
    (found,) = json.loads(result.stdout).values()
    verdicts = {verdict["exercise"]: verdict for verdict in found}
    assert "elements" in verdicts["tensor_bytes"]["reason"]


@pytest.mark.thorough
def test_check_takes_the_lessons_name_for_a_file_of_another(notebooks, tmp_path):
    copy = tmp_path / "mine (1).ipynb"
    copy.write_bytes((notebooks / "ada" / f"{NAME}.ipynb").read_bytes())
    refused = run("check", copy)
    assert refused.returncode == 2
    assert f"--lesson NAME, one of {NAME}" in " ".join(refused.stderr.split())
    assert run("check", copy, "--lesson", NAME).returncode == 0


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("grade", "99_none"), "no lesson '99_none'"),
        (("check", "01_mha.ipynb"), "no notebook 01_mha.ipynb"),
        (("demo", "--classroom", "."), "--classroom"),
        (("check", "somebody's file"), "--lesson"),
    ],
)
def test_what_cannot_run_exits_with_2_and_a_sentence(arguments, says, tmp_path):
    (tmp_path / "somebody's file").touch()
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert says in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


@pytest.mark.thorough
def test_grade_says_what_submissions_run_under(notebooks, tmp_path):
    shutil.copytree(notebooks / "ada", tmp_path / "submitted" / "ada" / NAME)
    result = run("grade", "--classroom", tmp_path, "--isolation", "process", "--jobs", "1", "--json")
    assert result.returncode == 0, result.stderr
    assert "under process limits alone: your files and the network are open" in " ".join(result.stderr.split())
    assert json.loads(result.stdout)["isolation"] == "process"


@pytest.mark.parametrize(
    ("package", "extra"), [("distributed", "scale"), ("nbgrader", "grading"), ("psycopg2", "postgres")]
)
def test_a_package_that_is_missing_names_its_extra(package, extra, monkeypatch, capsys):
    def missing():
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(commands, "app", missing)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert f"pip install 'mla-course[{extra}]'" in capsys.readouterr().err


def _said_of(broken, folder, capsys, monkeypatch):
    """Return what `grade` says of a class whose gradebook fails by `broken`, on the way to a new student."""

    def command():
        with records.Records(COURSE, folder).gradebook() as gradebook:
            broken(gradebook)

    monkeypatch.setattr(commands, "app", command)
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    return " ".join(capsys.readouterr().err.split())


def test_a_gradebook_that_another_program_reads_is_a_sentence_for_a_new_student_too(tmp_path, capsys, monkeypatch):
    with records.Records(COURSE, tmp_path).gradebook():
        other = sqlite3.connect(tmp_path / "gradebook.db", isolation_level=None)

    def broken(gradebook):
        other.execute("BEGIN IMMEDIATE")
        gradebook.db.connection().exec_driver_sql("PRAGMA busy_timeout = 1")
        gradebook.add_student("dan")

    with closing(other):
        assert "cannot be used (database is locked): see to it" in _said_of(broken, tmp_path, capsys, monkeypatch)


def test_a_gradebook_of_an_older_nbgrader_is_told_how_to_bring_it_up_to_date(tmp_path, capsys, monkeypatch):
    def broken(gradebook):
        gradebook.db.connection().exec_driver_sql("ALTER TABLE student RENAME COLUMN email TO mail")
        list(gradebook.students)

    assert "by `nbgrader db upgrade`" in _said_of(broken, tmp_path, capsys, monkeypatch)


@pytest.mark.thorough
def test_a_folder_without_a_class_is_not_a_success(tmp_path):
    for command in ("grade", "feedback", "export"):
        result = run(command, *(["--classroom", tmp_path / "class"]), cwd=tmp_path)
        assert result.returncode == 2, command
        assert not (tmp_path / "class").exists()
        assert command != "grade" or "submitted/STUDENT/LESSON/LESSON.ipynb" in result.stderr.replace("\n", "")


def test_doctor_reports_every_part(tmp_path):
    findings = json.loads(run("doctor", "--json").stdout)
    assert {"Python", "PyTorch", "nbgrader", "isolation"} <= {finding["subject"] for finding in findings}


def test_ctrl_c_says_what_happens_next(capsys):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), terminal.stoppable("; rest"):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    assert "stopping after what is under way; again to stop at once; rest" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_that_others_swallow_stops_at_the_next_step():
    done = []

    def work(step):
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        done.append(step)

    with pytest.raises(KeyboardInterrupt), terminal.bars(True) as progress, terminal.stoppable():
        for step in range(3):
            work(step)
            progress("recording", step, 3)
    assert done == [0]
    with terminal.bars(True) as progress, terminal.stoppable():
        progress("recording", 3, 3)


def test_a_second_ctrl_c_stops_at_once():
    code = """
import os, signal
from autograder.cli.terminal import stoppable
with stoppable():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 130
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_modules_are_loaded_is_a_word_and_ends_it(module):
    code = f"""
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["mla-course", "doctor"]
from autograder.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "mla-course: stopped\n")


def test_a_system_without_utf8_is_refused_with_what_to_set(tmp_path):
    hand_in(tmp_path, Raúl=notebook(**RIGHT))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "autograder.cli", "grade", "--classroom", str(tmp_path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert "LC_ALL=C.UTF-8" in result.stderr and len(result.stderr.splitlines()) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["submitted"]


def test_nbgraders_own_commands_are_refused_without_utf8_too(tmp_path):
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "MLA_CLASSROOM": str(tmp_path / "class")}
    command = [Path(sys.executable).with_name("nbgrader"), "db", "student", "list"]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 1
    assert "LC_ALL=C.UTF-8" in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "class").exists()


def test_a_folder_that_was_removed_is_a_sentence(tmp_path):
    command = f"rmdir {tmp_path}/gone; exec {sys.executable} -m autograder.cli stats"
    (tmp_path / "gone").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    keys = {"shell": True, "cwd": tmp_path / "gone", "env": environment, "capture_output": True, "text": True}
    result = subprocess.run(command, **keys, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("mla-course: the folder that you are in was removed")
    assert len(result.stderr.splitlines()) == 1


def test_a_terminal_that_lacks_a_character_and_one_that_is_closed_stop_no_command(tmp_path):
    command = f"{sys.executable} -m autograder.cli progress {tmp_path}"
    for more in ("", " >&-", " 2>&-"):
        environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
        result = subprocess.run(
            command + more, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_in_a_build_is_a_word_and_no_traceback(tmp_path):
    code = f"""
import signal, sys
from nbgrader.converters import GenerateAssignment
from autograder.cli import main
GenerateAssignment.convert_single_notebook = lambda *_: signal.default_int_handler(signal.SIGINT, None)
sys.argv = ["mla-course", "--course", {str(tiny_course.FOLDER)!r}, "build", "--to", {str(tmp_path)!r}]
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 130
    assert result.stderr.splitlines()[-1] == "mla-course: stopped"
    assert "Traceback" not in result.stderr


def test_threads_that_report_at_once_share_a_bar(monkeypatch):
    added, real = [], terminal.Progress.add_task

    def slow(self, stage, **keys):
        added.append(stage)
        time.sleep(0.05)
        return real(self, stage, **keys)

    monkeypatch.setattr(terminal.Progress, "add_task", slow)
    with terminal.bars(True) as update:
        threads = [threading.Thread(target=update, args=("judging", n, 4)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert added == ["judging"]


def test_nbgrader_may_be_the_first_to_write_to_a_classroom(tmp_path):
    configure(Config(), COURSE, classroom=tmp_path / "new" / "class")
    assert (tmp_path / "new" / "class").is_dir()


def test_an_exchange_that_is_named_is_made_and_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLA_EXCHANGE", "exchange")
    config = configure(Config(), COURSE, classroom=tmp_path / "class")
    assert config.Exchange.root == str(tmp_path / "exchange")
    assert (tmp_path / "exchange").is_dir()
    monkeypatch.delenv("MLA_EXCHANGE")
    assert "Exchange" not in configure(Config(), COURSE, classroom=tmp_path / "class")
