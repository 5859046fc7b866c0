"""The longest tests come first, so that no worker is left with one of them at the end."""

import os

import pytest

from autograder.files import write_whole

SEED = "seed 9"  # the same cases in each run; under it a signed copy of a single number is the number
FIRST = ("test_lessons.py", "test_kernels_compile.py", "test_solution_kernels.py", "test_second_course.py")


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="run also what make test leaves to make test-all")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("thorough"):
        for item in more_of_the_same(items):
            item.add_marker(pytest.mark.skip(reason="more of the same kind: make test-all runs it"))
    items.sort(key=lambda item: FIRST.index(item.path.name) if item.path.name in FIRST else len(FIRST))


def more_of_the_same(items):
    """Return what is marked as thorough, but for so many of a test's parameters as its mark says, spread evenly."""
    found, some = [], {}
    for item in items:
        marks = list(item.iter_markers("thorough"))
        if any(not mark.kwargs for mark in marks):
            found.append(item)
        elif marks:
            some.setdefault((item.path, item.parent.name, item.originalname, marks[0].kwargs["but"]), []).append(item)
    for (*_, but), kind in some.items():
        kept = {n * len(kind) // but for n in range(but)}
        found += [item for n, item in enumerate(kind) if n not in kept]
    return found


@pytest.fixture(scope="session")
def thorough(request):
    """Whether this is `make test-all`."""
    return request.config.getoption("thorough")


@pytest.fixture(scope="session", autouse=True)
def isolation():
    """Where there is no bubblewrap, say that the tests' own submissions may run without."""
    from autograder.isolation.sandbox import default_isolation

    if default_isolation() == "process":
        os.environ["MLA_ISOLATION"] = "process"


@pytest.fixture(scope="session")
def judged(tmp_path_factory):
    """A classroom for the graders of all workers, with one seed: each lesson's own solution is judged once."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "judged"
    folder.mkdir(exist_ok=True)
    write_whole(folder / "seed", SEED)
    return folder
