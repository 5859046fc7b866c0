"""The cells that open a lesson in Google Colab: a badge, and what installs the course there.

Who published the course, and where, stands in `course.toml` alone: `repository`, OWNER/NAME on GitHub, and `tag`.
"""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode

UNPUBLISHED = "NOT_YET_PUBLISHED"  # an owner that cannot be: GitHub's names have no such underscores
OPENING = BADGE, INSTALL = "open-in-colab", "on-colab"  # ids of the cells
_INSTALL = """\
# In Colab this installs the course and leaves Colab's own packages as they are. Elsewhere it does nothing.
import sys

if "google.colab" in sys.modules:
    from importlib import metadata

    own = "torch", "triton", "numpy", "ipython", "ipywidgets"
    kept = [f"{{d.name}}=={{d.version}}" for d in metadata.distributions() if d.name.lower() in own]
    with open("/tmp/kept.txt", "w") as file:
        print(*kept, sep="\\n", file=file)
    %pip install --quiet --constraint /tmp/kept.txt "{package} @ git+https://github.com/{repository}@{tag}"
    from autograder.doctor import describe_device

    print(describe_device())"""


def opening_cells(package: str, repository: str, tag: str, lesson: str) -> list[NotebookNode]:
    """Return the cells that come before a lesson's own: the badge, and the cell that installs `package` in Colab.

    The latter is locked: nothing of it is part of a student's program.
    """
    address = f"https://colab.research.google.com/github/{repository}/blob/{tag}/course/{lesson}/{lesson}.ipynb"
    badge = f"[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({address})"
    source = _INSTALL.format(package=package, repository=repository, tag=tag)
    marks = {"schema_version": 3, "grade_id": INSTALL, "task": False, "grade": False, "solution": False, "locked": True}
    return [
        nbformat.v4.new_markdown_cell(badge, id=BADGE),
        nbformat.v4.new_code_cell(source, id=INSTALL, metadata={"nbgrader": marks}),
    ]
