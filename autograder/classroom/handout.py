"""What students get: the notebooks, and what `check` needs, in a folder that installs. No solutions.

FOLDER/course/                   the notebooks
FOLDER/autograder/, mla_ref/     `check`, and of the course's helpers what notebooks and exercises import
FOLDER/autograder/_course/       how answers are judged: the lessons' exercises.py, without scripts and samples, and the
                                 notebooks once more, around which `mla-course check` puts what a student wrote
FOLDER/benchmarks/               the measurements that notebooks name
FOLDER/jupyter_server_config.py  what JupyterLab opens, and where its terminals find `mla-course`
FOLDER/pyproject.toml, ...       as in the repository
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nbformat

from autograder.classroom.build import BuildError, build
from autograder.course.colab import UNPUBLISHED
from autograder.course.course import HANDED_OUT, PACKAGE, Course
from autograder.course.digest import OWN, imported, transitive
from autograder.course.lesson import BEGIN, END
from autograder.files import write_whole
from autograder.text import listed

LIST = ".handed-out"  # in the folder: what a release wrote there
PLAIN = ("LICENSE", "constraints.txt", "pyproject.toml", ".gitignore")
README = """\
# {name}

The notebooks are in `course/`; begin with `course/{first}/{first}.ipynb`. On Linux, with Python 3.11 to 3.13:

```
python3 -m venv .venv
.venv/bin/pip install --constraint constraints.txt ".[lab]"
.venv/bin/jupyter lab --config=jupyter_server_config.py
```

With conda: `conda env create -f environment.yml`, `conda activate mla-course`, and the last line without `.venv/bin/`.
Start JupyterLab from this folder, by that line: it opens the first lesson, lists the others, and its terminals find
`mla-course`.{colab}

`check("name")` under an exercise says at once what is wrong. In a terminal of JupyterLab's,
`mla-course check course/LESSON/LESSON.ipynb` judges the notebook on data that you have not seen; elsewhere the command
is `.venv/bin/mla-course`. Hand in the notebook, under the name that it has.
"""
LAB = """\
# What JupyterLab reads: what it opens, and where its terminals find `mla-course`.
import os
import sys

c = get_config()  # noqa: F821
c.LabApp.default_url = "/lab/tree/course/{first}/{first}.ipynb"
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
"""


COLAB = " Each notebook also opens in Google Colab, by the badge at its top."


def hand_out(course: Course, folder: Path, step: Callable[[str], None] = lambda name: None) -> list[str]:
    """Write what students get to `folder`; return the paths in it, in order.

    What an earlier call wrote there, and this one does not, is removed.

    Raises
    ------
    FileExistsError
        It would write over a file that no earlier call wrote.
    FileNotFoundError
        This is no checkout: pyproject.toml and the like are not beside `autograder/`.
    BuildError
        A lesson cannot be built, or a solution would be handed out.
    """
    root = PACKAGE.parent
    for name in (*PLAIN, "environment.yml"):
        if not (root / name).is_file():
            raise FileNotFoundError(f"there is no {root / name}: run this command from a checkout of the repository")
    with tempfile.TemporaryDirectory(prefix="mla-release-") as scratch:
        stage = Path(scratch)
        build(course, stage / "course", step)
        for source, target in _files(course, stage / "course"):
            (stage / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, stage / target)
        for name in PLAIN:
            shutil.copyfile(root / name, stage / name)
        environment = (root / "environment.yml").read_text()
        (stage / "environment.yml").write_text(re.sub(r"\.\[.*\]", ".[lab]", environment))
        colab = COLAB if is_published(course) else ""
        first = course.lesson_names()[0]
        (stage / "README.md").write_text(README.format(name=course.name, first=first, colab=colab))
        (stage / "jupyter_server_config.py").write_text(LAB.format(first=first))
        for name in _records(stage / "course"):
            if (root / name).is_file():
                (stage / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(root / name, stage / name)
        if found := solutions_in(course, stage):
            raise BuildError(f"nothing is handed out, as it would hold solutions: {listed(found)}")
        for name in course.lesson_names():
            handed_out = stage / "autograder" / "_course" / "solutions" / name / HANDED_OUT
            shutil.copyfile(stage / "course" / name / f"{name}.ipynb", handed_out)
        return _put(stage, folder)


def is_published(course: Course) -> bool:
    """Return whether its notebooks open in Colab from a repository that there may be."""
    return bool(course.repository) and not course.repository.startswith(UNPUBLISHED)


def solutions_in(course: Course, folder: Path) -> list[str]:
    """Return the exercises whose solutions stand in a file of `folder`, with the file: layout and comments aside."""
    wanted = {
        name: code
        for lesson in course.lesson_names()
        for name, source in course.lesson(lesson).solutions.items()
        for code in _regions(source)
    }
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = "\n".join(_code(path))
        found += [f"{name} in {path.relative_to(folder)}" for name, code in wanted.items() if code in text]
    return found


def _regions(source: str) -> Iterator[str]:
    """Yield what stands between the marks of a solution cell, normalised."""
    for part in source.split(BEGIN)[1:]:
        yield _normal(part.split(END)[0])


def _normal(text: str) -> str:
    """Return lines of code without indentation, blank lines and comments."""
    lines = (line.partition("  #")[0].strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line and not line.startswith("#")) + "\n"


def _code(path: Path) -> Iterator[str]:
    """Yield the texts of a file, a notebook's cells one by one."""
    if path.suffix == ".ipynb":
        for cell in nbformat.read(path, as_version=4).cells:
            yield _normal(cell.source)
    else:
        yield _normal(path.read_text(errors="replace"))


def _files(course: Course, notebooks: Path) -> Iterator[tuple[Path, str]]:
    """Yield each file that is copied, with its path in the folder."""
    roots = {name: Path(importlib.util.find_spec(name).origin).resolve().parent for name in OWN}
    used = {path.resolve() for path in PACKAGE.rglob("*.*") if not {"__pycache__", "_course"} & {*path.parts}}
    for kind in ("exercises", "submission"):
        used |= {course.folder(name) / f"{kind}.py" for name in course.lesson_names() if course.has(name, kind)}
    for module in importlib.import_module("mla_ref").HELPER_MODULES:  # which are copied into sandboxes
        path = roots["mla_ref"] / module
        used |= {*path.rglob("*.py")} if path.is_dir() else {path.with_suffix(".py")}
    for path in notebooks.rglob("*.ipynb"):
        for cell in nbformat.read(path, as_version=4).cells:
            used.update(imported(cell.source, OWN) if cell.cell_type == "code" else ())
    roots["autograder/_course/solutions"] = course.solutions
    modules = transitive(used)
    for path in sorted({*modules, *_data(modules), course.solutions / "course.toml"}):
        for name, root in roots.items():
            if path.is_file() and path.is_relative_to(root):
                yield path, f"{name}/{path.relative_to(root)}"


def _records(notebooks: Path) -> set[str]:
    """Return the paths of the measurements that notebooks name."""
    books = (nbformat.read(path, as_version=4) for path in notebooks.rglob("*.ipynb"))
    named = {name for book in books for cell in book.cells for name in re.findall(r"\b\w+\.json\b", cell.source)}
    return {f"benchmarks/{name}" for name in named}


def _data(modules: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of folders that a module beside them names, and that hold no modules: a model's, for example."""
    for module in modules:
        for folder in module.parent.iterdir():
            if folder.is_dir() and folder.name[0] not in "_." and f'"{folder.name}"' in module.read_text():
                files = [path for path in folder.rglob("*") if path.is_file()]
                yield from () if any(path.suffix == ".py" for path in files) else files


def _put(stage: Path, folder: Path) -> list[str]:
    """Bring a folder to the state of another one; return the paths in it."""
    wanted = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
    before = set((folder / LIST).read_text().splitlines()) if (folder / LIST).is_file() else set()
    if strange := [name for name in wanted if name not in before and (folder / name).exists()]:
        raise FileExistsError(f"{folder} holds {listed(strange)}, which no release wrote there: give another folder")
    write_whole(
        folder / LIST, "\n".join(sorted({*wanted, *before})) + "\n", public=True
    )  # an interrupted release goes on
    for name in wanted:
        content = (stage / name).read_bytes()
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            write_whole(folder / name, content, public=True)
    for name in before - {*wanted}:
        (folder / name).unlink(missing_ok=True)
    write_whole(folder / LIST, "\n".join(wanted) + "\n", public=True)
    return wanted
