"""`check(name)` of a lesson's kernel, whether a CPU or a GPU runs it: the judge has the last word."""

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
