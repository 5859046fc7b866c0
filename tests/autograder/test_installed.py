"""What `pip install` brings, without a repository on disk, is enough for `check`."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
SESSION = """
from autograder import check
from autograder.checking import session_program
from autograder.course.course import find_course

def tensor_bytes(shape, itemsize):
    total = itemsize
    for n in shape:
        total *= n
    return total

def matmul_cost(m, n, k, itemsize):
    moved = sum(tensor_bytes(shape, itemsize) for shape in ((m, k), (k, n), (m, n)))
    return {"flops": 2 * m * n * k, "bytes": moved}

course = find_course()
assert course.root.is_relative_to(WHERE), course.root
assert not any(course.has(name, kind) for name in course.lesson_names() for kind in ("lesson", "sample_class"))
check("matmul_cost")  # needs tensor_bytes: the session's own, for lack of the right one
cells = ["import torch", "def tensor_bytes(s, i): return 8", "def matmul_cost(*a): return tensor_bytes(a, 1)"]
program = session_program({"In": cells}, course, *course.locate("matmul_cost"))
assert [cell.source for cell in program] == cells[1:], program
"""


@pytest.fixture
def installed(tmp_path):
    """A folder with what the wheel holds."""
    site = tmp_path / "site"
    (inside,) = WHEEL["sources"].items()
    for pattern in WHEEL["include"]:
        for path in ROOT.glob(pattern.lstrip("/")):
            where = path.relative_to(ROOT).as_posix()
            target = site / where.replace(*inside, 1) if where.startswith("solutions/") else site / where
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    return site


def test_an_answer_is_checked_where_no_lesson_is(installed, tmp_path):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLA_")}
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", f"WHERE = {str(installed)!r}\n{SESSION}"],
        cwd=tmp_path / "elsewhere",
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "matmul_cost: passed" in done.stdout


@pytest.mark.thorough
def test_the_trained_model_comes_along(installed, tmp_path):
    session = "import mla_ref; from mla_ref.models import load_byte_model; load_byte_model(); print(mla_ref.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", session]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed))
    notice = (installed / "mla_ref/byte_model/README.md").read_text()
    assert "Python Software Foundation" in notice and "License" in notice
