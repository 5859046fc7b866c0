"""Every kernel of the lessons' solutions compiles for five GPUs, at full size, within the shared memory of each.

Those in Gluon are for Hopper alone.
"""

import functools
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autograder.course.course import Course
from autograder.judging.program import Cell, build_program
from autograder.kernels.extract import GLUON_HEADER
from autograder.kernels.record import kernels_of, record
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware.devices import DEVICES

pytest.importorskip("triton", reason="kernels need Triton")

GPUS = ("t4", "a100_80gb", "h100", "b200", "mi300x")
COURSE = Course.at(Path(__file__).parents[1])
TIMED = [(lesson, each) for lesson in COURSE.lesson_names() for each in COURSE.exercises(lesson) if each.speed]
COMPILE = """
import json, pickle, sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.experimental.gluon._runtime import GluonASTSource
from autograder.kernels.worker import compiling
from autograder.isolation.worker import running

target, requests = pickle.load(sys.stdin.buffer)
for name, source, launch in requests:
    namespace = {"__name__": "kernels"}
    running.run_cell("kernels", source, namespace)
    function = namespace[launch["kernel"]]
    kind = GluonASTSource if function.is_gluon() else ASTSource
    source = kind(function, *compiling.specialise(function, launch["args"]))
    shared = compile(source, target=GPUTarget(*target), options=launch["options"]).metadata.shared
    print(json.dumps([name, launch["kernel"], shared]))
"""


@pytest.fixture(scope="module")
def recorded():
    """Return a function from a GPU to its launches, as the judge records them: [exercise, source, launch]."""
    with KernelWorkers(helpers=COURSE.helpers) as workers:
        yield functools.cache(functools.partial(launches, workers))


def launches(workers, shared_kib, dtype):
    found = {}
    for lesson, each in TIMED:
        plan, case = COURSE.lesson(lesson), dict(each.speed.case)
        if case.get("dtype") == torch.bfloat16:
            case["dtype"] = dtype
        setup = [*plan.setup, Cell("gpu", f"shared_kib = {shared_kib}", True)]  # what a launcher asks the GPU for
        own = [Cell(name, source) for name, source in plan.solutions.items()]
        program = build_program(setup, plan.references(each.needs), own, Cell(each.name, plan.solutions[each.name]))
        recording = record(workers, program, each.name, each.inputs(None, **case))
        source = kernels_of(program, recording).source
        for launch in recording.launches:
            signature = repr([launch["kernel"], launch["args"], launch["options"]])
            found[signature] = each.name, source, launch
    return list(found.values())


@pytest.mark.parametrize(
    "gpu", [each if each == "t4" else pytest.param(each, marks=pytest.mark.thorough) for each in GPUS]
)
def test_solutions_compile_within_the_shared_memory_of(gpu, recorded, tmp_path, thorough):
    device = DEVICES[gpu]
    requests = recorded(device.shared_bytes // 1024, getattr(torch, device.half_dtype))
    if "float8_e4m3fn" not in device.flops:  # Triton does not convert to E4M3 for this GPU
        requests = [each for each in requests if "fp8e4nv" not in json.dumps(each[2]["args"])]
    if device.target != DEVICES["h100"].target:
        requests = [each for each in requests if GLUON_HEADER not in each[1]]
    requests = requests[:: 1 if thorough else 3]
    assert requests
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        input=pickle.dumps((device.target, requests)),
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    compiled = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(compiled) == len(requests)
    assert [each for each in compiled if each[2] > device.shared_bytes] == [], f"more than {device.shared_bytes} bytes"
