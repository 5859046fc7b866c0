"""What the cost model pays for the attacks on it and for their honest twins, beside what a GPU pays for them.

    PYTHONPATH=. python benchmarks/model_attacks.py [NAME...]     # on a GPU; all by default, 11 s each
    PYTHONPATH=. python benchmarks/model_attacks.py --modelled    # anywhere: model anew what the records have

A row for each file of `tests/attacks` that is after points for speed. What the model refuses is not measured. Answers
are not judged here: an attack on them has its time too. Rows that are not asked for stay as they are.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import record

from autograder.classroom.grader import Grader
from autograder.judging.verdict import Outcome, Verdict
from autograder.kernels.measure import GpuWorker
from autograder.kernels.speed import judge_speed
from autograder.kernels.workers import KernelWorkers
from tests.attacks.test_attacks import ATTACKS, COURSE, HONEST, jobs_of, name, read

NAME = "model_attacks"


def verdict(path: Path, worker: KernelWorkers | GpuWorker) -> Verdict:
    """Return the verdict on the speed of a file's cell."""
    with Grader(COURSE, None, modelled=True) as grader:
        _, (job, *_) = jobs_of(grader, read(path))
    return judge_speed(job.exercise, job.program, worker)


def modelled(path: Path) -> Verdict:
    """Return the verdict of the cost model, by a worker of its own."""
    with KernelWorkers() as worker:
        return verdict(path, worker)


def figures(judged: Verdict) -> dict[str, Any]:
    """Return points and time of a verdict on speed; no time where the machine code's facts earn the points."""
    if judged.outcome not in (Outcome.PASSED, Outcome.PARTIAL, Outcome.SLOW):
        return {"refused": judged.reason.partition("\n")[0][:120]}
    found: dict[str, Any] = {"score": judged.score}
    if judged.speed:
        found["us"] = round(judged.speed["seconds"] * 1e6, 2)
        if judged.speed["noise"]:
            found["between_us"] = [round(each * 1e6, 2) for each in judged.speed["noise"]]
    return found


def main(names: list[str]) -> None:
    """Model all files at once, measure one by one those that are not refused, and write the record after each."""
    paths = [path for path in [*HONEST, *ATTACKS] if read(path).speed and (not names or name(path) in names)]
    target = f"{NAME}_{record.gpu()}"
    rows = record.earlier(target).get("files", {})
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool, GpuWorker() as gpu:
        for path, judged in zip(paths, pool.map(modelled, paths), strict=True):
            row = {"exercise": read(path).exercise, "points": judged.points, "modelled": figures(judged)}
            if "refused" not in row["modelled"]:
                row["measured"] = figures(verdict(path, gpu))
            rows[name(path)] = row
            print(name(path), row, flush=True)
            record.write(target, {"files": dict(sorted(rows.items()))}, ("triton",))


def remodel() -> None:
    """Put into every record what the cost model says now; what was measured stays."""
    for target in sorted(record.FOLDER.glob(f"{NAME}_*.json")):
        found = json.loads(target.read_text())
        paths = [path for path in [*HONEST, *ATTACKS] if name(path) in found["files"]]
        with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
            for path, judged in zip(paths, pool.map(modelled, paths), strict=True):
                found["files"][name(path)]["modelled"] = figures(judged)
                print(name(path), found["files"][name(path)], flush=True)
        target.write_text(record.dumps(found))


if __name__ == "__main__":
    remodel() if sys.argv[1:] == ["--modelled"] else main(sys.argv[1:])
