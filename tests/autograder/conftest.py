import contextlib
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: processes with several threads each would wait in turns

import pytest

from autograder.isolation.sandbox import Sandbox, default_isolation
from mla_ref.hardware import emulator

with contextlib.suppress(ImportError):
    emulator.prepare()  # before anything imports Triton


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
    """The tiny course, in a folder of its own."""
    from . import tiny_course

    return tiny_course.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def workers():
    """The two workers that modelling needs; they start on first use."""
    pytest.importorskip("triton")
    from autograder.kernels.workers import KernelWorkers

    with KernelWorkers() as started:
        yield started
