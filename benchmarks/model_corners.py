"""Where a kernel could mislead the modelled time: barriers, integers, descriptors, and what torch moves the hard way.

    PYTHONPATH=. python benchmarks/model_corners.py            # on a GPU: measure
    PYTHONPATH=. python benchmarks/model_corners.py --modelled # anywhere: what the cost model says, beside each record

Each corner is a launcher with an amount of the one thing that it is about. `measured_us` is the time of the device,
from a CUDA graph, with the L2 emptied before each call.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import corner_variants as variants
import record
import torch
import triton

from autograder.isolation.sandbox import Limits
from autograder.judging.program import Cell
from autograder.kernels.cost_model import Constants, total_time
from autograder.kernels.model import model_call
from autograder.kernels.record import record as record_call
from autograder.kernels.workers import KernelWorkers
from mla_ref.hardware.cost import Cost
from mla_ref.hardware.devices import DEVICES
from mla_ref.hardware.timing import bench

NAME = "model_corners"


def drawn(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """Return a tensor on the GPU: normal, or integers."""
    generator = torch.Generator("cuda").manual_seed(0)
    if dtype.startswith("int"):
        return torch.randint(1 << 20, shape, generator=generator, device="cuda", dtype=getattr(torch, dtype))
    return torch.randn(shape, generator=generator, device="cuda").to(getattr(torch, dtype))


def measured(launcher: Callable, given: dict[str, Any]) -> dict[str, float]:
    """Return the microseconds of a call, and their noise: from a CUDA graph, unless it waits for the GPU."""
    call = lambda: launcher(**given)
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    timed = call
    if launcher.__name__ not in variants.WAIT:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        timed = graph.replay
    found = [bench(timed, warmup=2, repeat=15) for _ in range(2)]
    best = min(found, key=lambda each: each.median)
    noise = max(best.noise, abs(found[0].median - found[1].median) / best.median)
    return {"measured_us": round(best.median * 1e6, 2), "noise": round(noise, 3)}


def measure() -> None:
    """Measure each corner, and write the record."""
    triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
    rows = {}
    for corner, launcher, shapes, options in variants.CORNERS:
        given = {name: drawn(*each) for name, each in shapes.items()}
        rows[corner] = measured(getattr(variants, launcher), given | options)
        print(corner, rows[corner], flush=True)
        del given
        torch.cuda.empty_cache()
    print(record.write(f"{NAME}_{record.gpu()}", {"corners": rows}, ("triton",)))


def model(only: str) -> None:
    """Put beside each record that there is what the cost model says of its corners."""
    program = [Cell("corners", Path(variants.__file__).read_text(), required=True)]
    with KernelWorkers(limits=Limits(seconds=300.0, memory=8 << 30)) as workers:
        for path in sorted(record.FOLDER.glob(f"{NAME}_*.json")):
            found = json.loads(path.read_text())
            device = path.stem.removeprefix(f"{NAME}_")
            for corner, launcher, shapes, options in variants.CORNERS:
                row = found["corners"].get(corner)
                if row is None or only not in corner:
                    continue
                given = {n: torch.empty(s, dtype=getattr(torch, d), device="meta") for n, (s, d) in shapes.items()}
                recording = record_call(workers, program, launcher, given | options)
                if recording.launches:
                    call = model_call(workers, program, launcher, given | options, Cost(), device)
                    seconds, steps = call.seconds, call.steps
                else:
                    events = [(each["op"][0], each, None) for each in recording.events]
                    sizes = [each["bytes"] for each in recording.storages]
                    seconds, steps = total_time(events, DEVICES[device], Constants.load(device), sizes)
                row["modelled_us"], row["bound"] = round(seconds * 1e6, 2), steps[0].bound
                row["off"] = round(row["modelled_us"] / row["measured_us"] - 1, 3)
                print(corner, row, flush=True)
            path.write_text(record.dumps(found))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--modelled", action="store_true", help="model the corners that were measured")
    parser.add_argument("--only", default="", help="of the corners, those with this in their names")
    options = parser.parse_args()
    model(options.only) if options.modelled else measure()
