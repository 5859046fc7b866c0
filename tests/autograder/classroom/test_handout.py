"""What students get installs, answers `check`, and holds no solution."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import nbformat
import pytest

from autograder.classroom.build import BuildError
from autograder.classroom.handout import _data, hand_out, solutions_in
from autograder.course.course import Course
from autograder.course.lesson import without_marks

from ...browser.conftest import free_port, wait_for
from ..tiny_course import FOLDER, NAME, write

pytestmark = pytest.mark.xdist_group("release")  # which is written once

ROOT = Path(__file__).parents[3]
OURS = Course.at(ROOT)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The course, released."""
    folder = tmp_path_factory.mktemp("released") / "class"
    hand_out(OURS, folder)
    return folder


def test_no_solution_is_in_any_file_of_a_release(released):
    assert solutions_in(OURS, released) == []
    lessons = {path.name for path in (released / "autograder" / "_course").rglob("*.py")}
    assert lessons == {"exercises.py", "drawing.py", "oracles.py", "submission.py"}
    assert not {"solutions", "tests"} & {path.name for path in released.iterdir()}
    measured = {path.name for path in (released / "benchmarks").iterdir()}
    others = {name for name in measured if not (name.endswith("00.json") or name.startswith("model_"))}
    assert others == {"perplexity.json"}  # none with mutants or verdicts, which hold solutions
    assert {"crossover_h100.json", "ceilings_h100.json"} <= measured


def test_no_solution_is_in_what_pip_installs_of_the_repository(tmp_path):
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for pattern in wheel["include"]:
        for path in ROOT.glob(pattern.lstrip("/")):
            target = tmp_path / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target)
    assert solutions_in(OURS, tmp_path) == []


def test_a_solution_is_found_wherever_and_however_it_stands(tmp_path):
    source = OURS.lesson("01_mha").solutions["grouped_attention"]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.md").write_text("    " + source.replace("\n", "\n    # mine\n\n    "))
    assert [each for each in solutions_in(OURS, tmp_path) if each.startswith("grouped_attention in a/notes.md")]
    shutil.copytree(ROOT / "solutions" / "02_naive_mla", tmp_path / "b")
    found = {each.partition(" ")[0] for each in solutions_in(OURS, tmp_path / "b")}
    assert found >= {each.name for each in OURS.exercises("02_naive_mla")}


def test_a_lesson_that_tells_its_solution_is_not_handed_out(tmp_path):
    course = write(tmp_path, "lesson", {'print("the lesson\'s own words")': "def _twice(x):\n    return 2 * x"})
    body = "return _twice(x)\n\n\ndef _twice(x):\n    return 2 * x"
    lesson = course.folder(NAME) / "lesson.py"
    lesson.write_text(lesson.read_text().replace("Some words on the matter.", body.replace("\n", "\n# ")))
    with pytest.raises(BuildError, match="would hold solutions: double in course"):
        hand_out(course, tmp_path / "class")
    assert not (tmp_path / "class").exists()


def test_what_was_released_answers_check_by_itself(released, tmp_path):
    """As where it is installed: nothing else of ours is in reach."""
    done = _ran(released, "from autograder import check\nfrom mla_ref import plots\n", tmp_path)
    assert done.returncode == 0, done.stderr
    source = OURS.lesson("01_mha").solutions["predict_cache_bytes"]
    code = f"import math, torch\nfrom autograder import check\n{source}\ncheck('predict_cache_bytes')"
    done = _ran(released, code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predict_cache_bytes: passed" in done.stdout


@pytest.mark.thorough
def test_check_in_a_release_says_that_it_calls_the_students_own(released, tmp_path):
    right = {name: without_marks(cell) for name, cell in OURS.lesson("02_naive_mla").solutions.items()}
    wrong = right["rms_normalize"].replace(" + eps", " + 0.1")
    assert wrong != right["rms_normalize"]
    code = "import math, torch\nfrom autograder import check\n"
    for first, own in ((right["rms_normalize"], False), (wrong, True)):
        cells = f"{code}{first}\n{right['rotate_pairs']}\n{right['latent_kv']}\n"
        cells += f"In = [{first!r}, {right['rotate_pairs']!r}, {right['latent_kv']!r}]\ncheck('latent_kv')\n"
        done = _ran(released, cells, tmp_path)
        assert "Your own rms_normalize and rotate_pairs were used here" in done.stdout, done.stdout + done.stderr
        assert ("where one of yours is wrong" in done.stdout) == own, done.stdout


@pytest.mark.thorough
def test_the_trained_model_writes_in_a_release(released, tmp_path):
    done = _ran(released, "from mla_ref import playground\nplayground.write('class A:', new=2)", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the same text\n")


@pytest.mark.thorough
def test_a_student_gets_the_judges_verdict_on_a_notebook_of_a_release(released, tmp_path):
    """With their own earlier answers, as the lessons' solutions are not there, and a word on that."""
    solutions = OURS.lesson("01_mha").solutions
    book = nbformat.read(released / "course" / "01_mha" / "01_mha.ipynb", as_version=4)
    for cell in book.cells:
        if cell["id"] in ("attention", "grouped_attention", "KVCache", "CachedAttention"):
            cell.source = without_marks(solutions[cell["id"]])
        if cell["id"] == "KVCache":
            cell.source = cell.source.replace("return self.k[:, :total], self.v[:, :total]", "return k, v")
    nbformat.write(book, tmp_path / "01_mha.ipynb")
    code = "from autograder.cli import main\nimport sys\nsys.argv = ['mla-course', 'check', '01_mha.ipynb']\nmain()"
    done = _ran(released, code, tmp_path)
    assert done.returncode == 1, done.stderr
    assert "attention: passed, 5 of 5 points" in done.stdout
    assert "predict_cache_bytes: unfinished, 0 of 2 points" in done.stdout
    assert "KVCache: wrong" in done.stdout and "only the tokens it was given" in done.stdout
    assert "CachedAttention: partial" in done.stdout  # with this cache
    assert "Your own KVCache was used here. The grader uses its own: where yours is wrong" in done.stdout
    assert "solutions are not here" in done.stdout


def test_everything_that_the_notebooks_import_is_in_a_release(released, tmp_path):
    lines = set()
    for path in (released / "course").rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            lines |= {
                line.strip()
                for line in cell.source.split("\n")
                if cell.cell_type == "code"
                and line.strip().startswith(("from mla_ref", "from autograder"))
                and line.strip()[-1] != "("
            }
    assert len(lines) > 20
    done = _ran(released, "\n".join(sorted(lines)), tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_measurements_that_notebooks_name_are_in_a_release(released):
    text = "".join(path.read_text() for path in (released / "course").rglob("*.ipynb"))
    named = set(re.findall(r"benchmarks/\w+\.json", text))
    assert len(named) > 5
    assert {name for name in named if not (released / name).is_file()} == set()


def test_a_second_release_brings_the_first_up_to_date_and_keeps_what_is_not_its_own(tmp_path):
    folder = tmp_path / "class"
    first = hand_out(Course.at(FOLDER), folder)
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {*first, ".handed-out"}
    (folder / "syllabus.md").write_text("Mondays")
    (folder / ".handed-out").write_text("\n".join([*first, "course/old/old.ipynb"]))
    (folder / "course" / "old").mkdir()
    (folder / "course" / "old" / "old.ipynb").touch()
    assert hand_out(Course.at(FOLDER), folder) == first
    assert (folder / "syllabus.md").exists() and not (folder / "course" / "old" / "old.ipynb").exists()


def test_a_file_of_somebody_elses_is_not_written_over(tmp_path):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match=r"README\.md, which no release wrote"):
        hand_out(Course.at(FOLDER), tmp_path / "class")
    assert [path.name for path in (tmp_path / "class").iterdir()] == ["README.md"]


def test_the_environment_of_a_student_has_no_tools_of_an_instructor(released):
    assert "--editable .[lab]\n" in (released / "environment.yml").read_text()
    assert (released / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()


def test_jupyterlab_as_the_readme_starts_it_opens_a_lesson_lists_all_and_finds_the_command(released, tmp_path):
    """The command where its terminals look, though no environment is activated."""
    line = next(each for each in (released / "README.md").read_text().split("\n") if "jupyter lab" in each)
    assert line.startswith(".venv/bin/jupyter lab")
    port, token = free_port(), "t"
    command = [Path(sys.executable).parent / "jupyter", *line.split()[1:], "--no-browser", "--allow-root"]
    home = {name: str(tmp_path) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    environment = {**os.environ, **home, "JUPYTER_TOKEN": token, "PATH": "/usr/bin:/bin"}
    with open(tmp_path / "log", "w") as log, ExitStack() as ending:
        options = [f"--port={port}", "--ServerApp.port_retries=0"]
        server = subprocess.Popen([*command, *options], cwd=released, env=environment, stdout=log, stderr=log)
        ending.callback(server.wait, 60)
        ending.callback(server.terminate)

        def ask(path, **how):
            request = Request(f"http://127.0.0.1:{port}/{path}", headers={"Authorization": f"token {token}"}, **how)
            return urlopen(request, timeout=60)

        wait_for(f"http://127.0.0.1:{port}/api", server, tmp_path / "log")
        first = OURS.lesson_names()[0]
        assert ask("").geturl().partition("?")[0].endswith(f"/lab/tree/course/{first}/{first}.ipynb")
        listed = {each["name"] for each in json.load(ask("api/contents/course"))["content"]}
        assert listed >= {*OURS.lesson_names()}
        ask("api/terminals", data=b"{}").close()
        shell = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()[-1]
        variables = Path(f"/proc/{shell}/environ").read_bytes().decode().split("\0")
        path = next(each for each in variables if each.startswith("PATH=")).removeprefix("PATH=")
        assert shutil.which("mla-course", path=path)


def _ran(released, code, elsewhere):
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("MLA_", "PYTHON"))}
    variables |= {"PYTHONPATH": str(released), "MPLBACKEND": "agg"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=elsewhere, env=variables, capture_output=True, text=True, timeout=300)


def test_data_goes_with_the_module_that_names_its_folder():
    weights = ROOT / "mla_ref" / "byte_model" / "model.safetensors"
    assert weights in _data([ROOT / "mla_ref" / "models.py"])
    assert weights not in _data([ROOT / "mla_ref" / "config.py"])
