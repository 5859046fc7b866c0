"""Which cells arrive collapsed."""

import pytest

from autograder.course.course import Course

from ..tiny_course import NAME, write

OWN = 'print("the lesson\'s own words")'
PLOTS = 'name = "tiny"\nplots = ["mla_ref.plots"]\n'


def collapsed(folder, source):
    """Return the ids of the cells that arrive collapsed if this is the source of the lesson's own cell."""
    course = write(folder, "lesson", {OWN: source})
    (course.solutions / "course.toml").write_text(PLOTS)
    cells = Course(course.root).lesson(NAME).notebook.cells
    hidden = [cell["id"] for cell in cells if cell.metadata.get("jupyter", {}).get("source_hidden")]
    assert hidden == [cell["id"] for cell in cells if cell.metadata.get("cellView") == "form"]
    return hidden


@pytest.mark.parametrize(
    "source",
    [
        "from mla_ref import plots\nplots.bars({}, unit='')",
        "from mla_ref.plots import bars as draw\nx = 1\ndraw({}, unit='')",
        "import mla_ref.plots as p\ndef show():\n    return p.bars({}, unit='')",
        "%matplotlib inline\nimport mla_ref\nmla_ref.plots.bars({}, unit='')",
        "import math\n# %%\nfrom mla_ref import plots\n# %%\nplots.bars({}, unit='')",
    ],
)
def test_a_cell_that_draws_does(tmp_path, source):
    assert len(collapsed(tmp_path, source)) == 1


@pytest.mark.parametrize("source", ["from mla_ref import plots", "plots.bars({})", "bars({})", "def broken(", OWN])
def test_another_does_not(tmp_path, source):
    assert collapsed(tmp_path, source) == []


def test_a_cell_with_a_role_does_not(tmp_path):
    setup = "import torch\nfrom autograder import check"
    course = write(tmp_path, "lesson", {setup: f"{setup}\nfrom mla_ref import plots\nplots.bars({{}}, unit='')"})
    (course.solutions / "course.toml").write_text(PLOTS)
    cells = Course(course.root).lesson(NAME).notebook.cells
    assert not any("jupyter" in cell.metadata for cell in cells)
