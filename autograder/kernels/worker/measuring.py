"""Call a student's function on the GPU at the judge's word, or launch its kernels again without it.

The judge puts inputs into shared memory, says how many calls to make, and looks at the clock; the answers go back
through the same memory. Every call has data of its own in buffers that stay where they are. What a call launches is
noted, with the copies, casts and fills that prepare it: a log (see `recording`). A process that runs nothing else of
the student's launches the logs again, on other data; whatever else torch computed is missing there.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autograder.isolation.worker import running, wire
from autograder.isolation.worker.trees import by_name, mapped
from autograder.kernels.worker import hosting
from autograder.kernels.worker.recording import NAMED, recording

DEVICE = "cuda"
PLACE = ("$at",)  # what stands in for a tensor in shared memory


def warm_up() -> None:
    """Build what Triton needs to launch, once for all processes to come; no CUDA context, which a fork would break."""
    from triton.backends.nvidia.driver import CudaUtils

    with tempfile.TemporaryDirectory(prefix="triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        CudaUtils()


def converse(channel: socket.socket, request: dict[str, Any], entry: Callable | None) -> None:
    """Do what the judge says until it ends the process: `load` data, `run` calls, `fetch` the results."""
    _, (file,), _, _ = socket.recv_fds(channel, 1, 1)
    memory = torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    runner: CallRunner | None = None
    command: dict[str, Any] | None = {"do": "start"}
    while command is not None:
        try:
            if runner is None:
                torch.cuda.set_per_process_memory_fraction(request["share"])
                runner = CallRunner(Student(entry, request) if entry else Relauncher(request["source"]))
                reply = {}
            else:
                reply = {"load": runner.load, "run": runner.run, "fetch": runner.fetch}[command["do"]](memory, command)
            data = wire.encode({"event": "done", **reply})
        except BaseException as error:
            data = wire.encode({"event": "failed", "error": running.describe_error(error)})
        channel.sendall(data)
        command = wire.receive(channel)


class CallRunner:
    """Where calls are made: the data of a round, the buffers in which each call finds its own, and what came of it.

    `caller.prepare(arguments, log)` returns a function without arguments that makes the call and returns its result.
    """

    def __init__(self, caller: Any):
        import triton

        self.caller = caller
        self.buffers: dict[tuple, torch.Tensor] = {}
        self.calls: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], Callable[[], Any]]] = []
        self.results: list[Any] = []
        self.seconds: list[float] = []
        # A kernel that makes tensor descriptors itself needs memory for them; a notebook may say where it comes from.
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        size = torch.cuda.get_device_properties(0).L2_cache_size
        self.l2 = torch.empty(2 * size, dtype=torch.uint8, device="cuda")

    def load(self, memory: torch.Tensor, command: Mapping[str, Any]) -> dict[str, Any]:
        """Take the data of the next calls from shared memory."""
        sets = [mapped(each, lambda leaf: read(memory, leaf).cuda(), stand_ins=PLACE) for each in command["sets"]]
        self.place(sets, command["logs"])
        torch.cuda.synchronize()
        return {}

    def place(self, sets: Sequence[dict[str, Any]], logs: Sequence[Any]) -> None:
        """Make each of the sets the data of one call."""
        self.calls, self.results = [], []
        for data, log in zip(sets, logs, strict=True):
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            arguments = mapped(data, lambda leaf, pairs=pairs: self._buffer(leaf, pairs))
            self.calls.append((pairs, self.caller.prepare(arguments, log)))

    def _buffer(self, data: torch.Tensor, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        key = (len(pairs), data.shape, data.dtype)
        if key not in self.buffers:
            self.buffers[key] = torch.empty_like(data)
        pairs.append((self.buffers[key], data))
        return self.buffers[key]

    def run(self, memory: torch.Tensor | None, command: Mapping[str, Any]) -> dict[str, Any]:
        """Make the calls, `passes` times over, and wait for the whole device.

        Each call has fresh data and an empty L2. The GPU sleeps before it, so that its launches are in the queue when
        the GPU wakes: what is timed is the device.
        """
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in self.calls]
        for _ in range(command["passes"]):
            self.results = []
            for (pairs, call), (start, end) in zip(self.calls, events, strict=True):
                for buffer, data in pairs:
                    buffer.copy_(data)
                self.l2.zero_()
                torch.cuda._sleep(command["sleep"])
                start.record()
                result = call()
                end.record()
                self.results.append(mapped(result, lambda leaf: leaf.detach().clone()))
        torch.cuda.synchronize()
        self.seconds = [start.elapsed_time(end) * 1e-3 for start, end in events]
        return {}

    def fetch(self, memory: torch.Tensor, command: Mapping[str, Any]) -> dict[str, Any]:
        """Put the results into shared memory; say where, and what else is known of the calls of the last pass."""
        write = Writer(memory)
        last = enumerate(self.calls[-1][0])  # whose data is still in the buffers
        alike = lambda buffer, data: torch.equal(wire.bytes_of(buffer), wire.bytes_of(data))
        changed = [number for number, pair in last if not alike(*pair)]
        results = [mapped(result, write) for result in self.results]
        logs = list(self.caller.notes[-len(self.calls) :]) or [None] * len(self.calls)
        return {"results": results, "seconds": self.seconds, "changed": changed, "logs": logs}


class Student:
    """Makes the calls of a student's function, and notes what they launch."""

    def __init__(self, entry: Callable, request: dict[str, Any]):
        self.entry, self.driver = entry, running.DRIVERS[request["driver"]]
        self.notes: list[dict[str, Any]] = []

    def prepare(self, arguments: dict[str, Any], log: None) -> Callable[[], Any]:
        """Return the call."""

        def call() -> Any:
            with recording(arguments, execute=True) as recorder:
                result = self.driver(self.entry, arguments)
            self.notes.append(recorder.notes(result))
            return result

        return call


class Relauncher:
    """Launches the kernels of logs again."""

    notes: Sequence[dict[str, Any]] = ()

    def __init__(self, source: str):
        self.namespace: dict[str, Any] = {"__name__": "kernels"}
        running.run_cell("kernels", source, self.namespace)

    def prepare(self, arguments: dict[str, Any], log: Mapping[str, Any]) -> Callable[[], list[torch.Tensor]]:
        """Return the call. Storages that neither the arguments nor a step of the log gives hold NaN."""
        inputs = by_name(arguments)
        steps = log["events"]
        made = {view["storage"] for step in steps if step["args"] is not None for view in step.get("out", [])}
        storages: dict[int, torch.Tensor] = {}
        for number, storage in enumerate(log["storages"]):
            if "input" in storage:
                storages[number] = wire.bytes_of(inputs[storage["input"]])
            elif "content" in storage:
                storages[number] = storage["content"].to(DEVICE)
            elif number not in made:
                storages[number] = torch.full((storage["bytes"],), 0xFF, dtype=torch.uint8, device=DEVICE)

        def call() -> list[torch.Tensor]:
            for step in steps:
                if step["args"] is None:  # what it made does not count
                    for number, _ in step["writes"]:
                        storages[number].fill_(0xFF)
                elif step["kind"] == "host":
                    found = hosting.perform(step, lambda view: _view(view, storages), DEVICE)
                    for view, tensor in zip(step["out"], found, strict=True):
                        raw = torch.empty(0, dtype=torch.uint8, device=DEVICE)
                        storages[view["storage"]] = raw.set_(tensor.untyped_storage())
                else:
                    args = {name: _launchable(arg, storages) for name, arg in step["args"].items()}
                    self.namespace[step["kernel"]][tuple(step["grid"])](**args, **step["options"])
            return [_view(view, storages) for view in log["result"]]

        return call


def _launchable(arg: Mapping[str, Any], storages: Mapping[int, torch.Tensor]) -> Any:
    if "descriptor" in arg:
        return _descriptor(_view(arg["tensor"], storages), **arg["descriptor"])
    if "tensor" in arg:
        return _view(arg["tensor"], storages)
    if "dtype" in arg:
        import triton.language as tl

        return tl.core.dtype(arg["dtype"])
    return arg.get("constant", arg.get("value"))


def _descriptor(base: torch.Tensor, *, gluon: bool, **described: Any) -> Any:
    if not gluon:
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(base, **described)
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    dtype = getattr(gl, str(base.dtype).removeprefix("torch."))
    return TensorDescriptor(
        base, layout=gl.NVMMASharedLayout.get_default_for(described["block_shape"], dtype), **described
    )


def _view(view: Mapping[str, Any], storages: Mapping[int, torch.Tensor]) -> torch.Tensor:
    dtype = NAMED[view["dtype"]]
    raw = storages[view["storage"]]
    return (
        raw[: len(raw) // dtype.itemsize * dtype.itemsize]
        .view(dtype)
        .as_strided(view["shape"], view["strides"], view["offset"])
    )


# Shared memory


class Writer:
    """Puts tensors into shared memory one after the other, and returns where each lies."""

    def __init__(self, memory: torch.Tensor):
        self.memory, self.used = memory, 0

    def __call__(self, tensor: torch.Tensor) -> dict[str, Any]:
        raw = wire.bytes_of(tensor)
        first, self.used = self.used, self.used + -(-len(raw) // 16) * 16
        if self.used > len(self.memory):
            raise ValueError("the results are larger than they should be")
        self.memory[first : first + len(raw)].copy_(raw)
        return {"$at": [first, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]}


def read(memory: torch.Tensor, leaf: Mapping[str, Any]) -> torch.Tensor:
    """Return the tensor at a place that a Writer gave."""
    first, name, shape = leaf["$at"]
    dtype, count = wire.DTYPES[name], math.prod(shape)
    if min(first, *shape, 0) < 0 or first + count * dtype.itemsize > len(memory):
        raise wire.WireError("a tensor that lies outside of the shared memory")
    return memory[first : first + count * dtype.itemsize].view(dtype).view(shape)
