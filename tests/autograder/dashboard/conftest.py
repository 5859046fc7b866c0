import pytest

from autograder.dashboard import figures

from . import simulated


def pytest_collection_modifyitems(items):
    """One worker has the tests on a large class, which takes long to make."""
    for item in items:
        if {"thousand", "hundred"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("large class"))
        if "thousand" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def thousand():
    """A class of 1,000 students and 80 exercises, five of them bad: what was made, and its figures."""
    made = simulated.make(1000, 80)
    return made, figures.gather(simulated.as_snapshot(made))


@pytest.fixture(scope="session")
def hundred(tmp_path_factory):
    """A class of 100 students on disk: what was made, and its folder."""
    made = simulated.make(100, 24, 4, seed=1)
    return made, simulated.write(made, tmp_path_factory.mktemp("class"))
