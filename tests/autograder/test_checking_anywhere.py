"""`check(name)` of a lesson's kernel, whether a CPU or a GPU runs it: the judge has the last word."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autograder import checking
from autograder.course.course import Course
from autograder.course.lesson import without_marks

pytest.importorskip("triton", reason="kernels need it")
pytestmark = pytest.mark.xdist_group("workers")
COURSE = Course.at(Path(__file__).parents[2])
BY_TORCH = "def scale_add(x, y, alpha):\n    return alpha * x + y\n"
BEHIND = "\nplain = scale_add\ndef scale_add(x, y, alpha):\n    return plain(x, y, alpha) + 0 * (alpha * x)\n"


@pytest.mark.parametrize(
    ("change", "says"), [("", ""), (BY_TORCH, "no Triton kernel"), (BEHIND, "torch computes from data")]
)
def test_the_judge_has_the_last_word(change, says, monkeypatch, capsys):
    monkeypatch.setenv("MLA_COURSE", str(COURSE.root))
    lesson = COURSE.lesson(COURSE.locate("scale_add")[0])
    solution = without_marks(lesson.solutions["scale_add"])
    cells = [*(cell.source for cell in lesson.setup), change if change is BY_TORCH else solution + change]
    namespace = {"__name__": "notebook", "check": checking.check, "In": cells}
    for n, source in enumerate(cells):
        checking.running.run_cell(f"cell {n}", source, namespace)
    if says:
        with pytest.raises(checking.CheckFailed, match=says):
            exec("check('scale_add')", namespace)
    else:
        exec("check('scale_add')", namespace)
        assert "scale_add: passed" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_first_check_of_a_session_does_not_wait_for_the_import_of_torchs_compiler():
    """That takes seconds, of the few that an exercise has."""
    lesson = COURSE.lesson(COURSE.locate("scale_add")[0])
    cells = [*(cell.source for cell in lesson.setup), without_marks(lesson.solutions["scale_add"])]
    script = (
        "import json, sys\nfrom autograder import checking\n"
        'namespace = {"__name__": "notebook", "check": checking.check}\n'
        "for n, source in enumerate(json.load(sys.stdin)):\n"
        '    checking.running.run_cell(f"cell {n}", source, namespace)\n'
        "exec(\"check('scale_add')\", namespace)\n"
        'sys.exit("torch._dynamo" in sys.modules)\n'
    )
    environment = os.environ | {"MLA_COURSE": str(COURSE.root)}
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, input=json.dumps(cells), text=True, capture_output=True, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
