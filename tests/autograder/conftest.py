import contextlib
import os
import shutil
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: processes with several threads each would wait in turns

import pytest

from autograder.sandbox import Sandbox, default_isolation
from mla_ref import interpreter

with contextlib.suppress(ImportError):
    interpreter.prepare()  # before anything imports Triton

sys.path.insert(0, str(Path(__file__).parent))  # for `tiny_course`


def _isolated(isolation):
    if isolation == "bubblewrap" and default_isolation() != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here (bwrap is {shutil.which('bwrap') or 'not installed'})")
    return isolation


@pytest.fixture(scope="session", params=["bubblewrap", "process"])
def box(request):
    """A sandbox, of either kind."""
    with Sandbox(_isolated(request.param)) as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def bubble():
    """A sandbox that hides files, processes and the network."""
    with Sandbox(_isolated("bubblewrap")) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tiny course in place of the real one; the folder of its scripts."""
    import tiny_course

    with tiny_course.course(tmp_path_factory.mktemp("tiny")) as scripts:
        yield scripts


@pytest.fixture(scope="session")
def bench():
    """The two workers that modelling needs; they start on first use."""
    pytest.importorskip("triton")
    from autograder.cost import Bench

    with Bench() as started:
        yield started
