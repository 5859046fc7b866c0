"""What the engine knows of the course: nothing but the hardware."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autograder

ENGINE = Path(autograder.__file__).parent
LESSONS = ("_course",)  # in an installed package, a course lies in the engine's folder


def imported(path):
    """Yield the full names that a module imports of other packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_engine_imports_of_mla_ref_its_hardware_alone():
    files = [path for path in ENGINE.rglob("*.py") if path.relative_to(ENGINE).parts[0] not in LESSONS]
    assert len(files) > 40
    found = {(path.relative_to(ENGINE).as_posix(), name) for path in files for name in imported(path)}
    ours = {(path, name) for path, name in found if name.split(".")[0] == "mla_ref"}
    assert ours, "else nothing was looked at"
    assert {each for each in ours if not f"{each[1]}.".startswith("mla_ref.hardware.")} == set()


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("command", [["--help"], ["check", "--help"], ["check", "absent.ipynb"]])
def test_commands_for_students_need_no_extra(command):
    """They run in Colab, and wherever `pip install` brought what `check` needs alone."""
    extras = (
        "nbgrader",
        "nbconvert",
        "sqlalchemy",
        "alembic",
        "jupyterlab",
        "jupytext",
        "distributed",
        "sphinx",
        "voila",
    )
    code = f"import sys; sys.modules |= dict.fromkeys({extras}); from autograder.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert result.returncode == (2 if "absent.ipynb" in command else 0), result.stderr


def test_a_command_starts_without_what_only_takes_time():
    slow = {"lark", "matplotlib", "nbgrader", "pandas", "triton"}
    code = f"import sys, autograder.cli.commands; print(*{slow} & {{*sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
