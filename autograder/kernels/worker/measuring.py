"""Call a student's function on the GPU at the judge's word, or launch its kernels again without it.

The judge puts inputs into shared memory, says how many calls to make, and looks at the clock; the answers go back
through the same memory. Every call has data of its own in buffers that stay where they are. What a call launches is
noted, with the copies, casts and fills that prepare it: a log. A process that runs nothing else of the student's
launches the logs again; whatever else torch computed is missing there.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.isolation.worker import running, wire
from autograder.isolation.worker.trees import by_name, mapped, tensors_in
from autograder.kernels.worker.recording import NAMED, CannotRecord, Recorder

DEVICE = "cuda"
PLACE = ("$at",)  # what stands in for a tensor in shared memory


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What torch may prepare for a kernel: it moves data and computes none, but for integers.
PREPARING = _words(
    """_to_copy arange cat clone constant_pad_nd copy_ fill_ full full_like gather index index_select new_full new_ones
    new_zeros ones ones_like repeat scalar_tensor stack zero_ zeros zeros_like"""
)
ON_INTEGERS = _words("add amax amin cumsum div eq floor_divide ge gt le lt max min mul ne remainder sub sum")


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
        self.caller = caller
        self.buffers: dict[tuple, torch.Tensor] = {}
        self.calls: list[tuple[list[tuple[torch.Tensor, torch.Tensor]], Callable[[], Any]]] = []
        self.results: list[Any] = []
        self.seconds: list[float] = []
        self.last: tuple[dict[str, Any], Any] = {}, None
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
            self.last = arguments, log

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
        changed = [number for number, (buffer, data) in last if not torch.equal(_bytes(buffer), _bytes(data))]
        results = [mapped(result, write) for result in self.results]
        logs = list(self.caller.notes[-len(self.calls) :]) or [None] * len(self.calls)
        by_torch = self.caller.by_torch(*self.last, self.results[-1])
        return {"results": results, "seconds": self.seconds, "changed": changed, "logs": logs, "by_torch": by_torch}


class Student:
    """Makes the calls of a student's function, and notes what they launch."""

    def __init__(self, entry: Callable, request: dict[str, Any]):
        self.entry, self.forbidden = entry, request["forbidden"]
        self.driver = running.DRIVERS[request["driver"]]
        self.notes: list[dict[str, Any]] = []

    def prepare(self, arguments: dict[str, Any], log: None) -> Callable[[], Any]:
        """Return the call."""

        def call() -> Any:
            with running.forbidding(self.forbidden), logging_calls(arguments) as recorder:
                result = self.driver(self.entry, arguments)
            self.notes.append(recorder.notes(result))
            return result

        return call

    def by_torch(self, arguments: dict[str, Any], log: None, result: Any) -> None:
        """Say nothing: see Relauncher."""


class Relauncher:
    """Launches the kernels of logs again."""

    notes: Sequence[dict[str, Any]] = ()

    def __init__(self, source: str):
        self.namespace: dict[str, Any] = {"__name__": "kernels"}
        running.run_cell("kernels", source, self.namespace)

    def prepare(
        self, arguments: dict[str, Any], log: Mapping[str, Any], launch: bool = True
    ) -> Callable[[], list[torch.Tensor]]:
        """Return the call. Storages that neither the arguments nor a step of the log gives hold NaN."""
        inputs = by_name(arguments)
        made = {view["storage"] for step in log["events"] if step["kind"] == "made" for view in step["out"]}
        storages: dict[int, torch.Tensor] = {}
        for number, storage in enumerate(log["storages"]):
            if "input" in storage:
                storages[number] = _bytes(inputs[storage["input"]])
            elif number not in made:
                storages[number] = torch.full((storage["bytes"],), 0xFF, dtype=torch.uint8, device=DEVICE)

        def call() -> list[torch.Tensor]:
            for step in log["events"]:
                if step["kind"] == "made":
                    _make(step, storages)
                elif launch:
                    args = {name: _launchable(arg, storages) for name, arg in step["args"].items()}
                    self.namespace[step["kernel"]][tuple(step["grid"])](**args, **step["options"])
            return [_view(view, storages) for view in log["result"]]

        return call

    def by_torch(self, arguments: dict[str, Any], log: Mapping[str, Any], result: Sequence[torch.Tensor]) -> float:
        """Return the share of a result's numbers other than 0 that are there before any kernel runs.

        Of several results, the largest share.
        """
        bare = self.prepare(arguments, log, launch=False)()
        own = [i for i, view in enumerate(log["result"]) if "input" not in log["storages"][view["storage"]]]
        return max((((bare[i] == result[i]) & (result[i] != 0)).float().mean().item() for i in own), default=0.0)


# Logs


class CallLog(Recorder):
    """The launches of one call, and of torch's operations those that move data; the names of the others."""

    def __init__(self, inputs: dict[str, Any]):
        super().__init__(inputs, execute=False)
        self.left_out: list[str] = []

    def notes(self, result: Any) -> dict[str, Any]:
        """Return the log as plain data."""
        return {**super().notes(result), "left_out": self.left_out}

    def _changes(self, values: Any) -> list[list[Any]]:
        """Return nothing: the log makes again what torch made."""
        return []

    def operation(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Note one operation of torch."""
        name, given, made = func.overloadpacket.__name__, tensors_in([*args, *kwargs.values()]), tensors_in(out)
        before = {t.untyped_storage()._cdata for t in given}
        changes = func._schema.is_mutable
        if not changes and all(t.untyped_storage()._cdata in before for t in made):  # a view
            return
        if name.startswith(("empty", "new_empty")):
            return
        integers = not any(t.is_floating_point() or t.is_complex() for t in [*given, *made])
        try:
            if name not in PREPARING and not (integers and name in ON_INTEGERS):
                raise CannotRecord(name)
            step = {"op": [name, func._overloadname], "args": self._pack(args), "kwargs": self._pack(kwargs)}
            self.events.append({"kind": "made", **step, "out": [] if changes else [self._view(t) for t in made]})
        except CannotRecord:
            self.left_out.append(name)

    def _pack(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != DEVICE:
                raise CannotRecord(f"a tensor on {value.device}")
            return {"tensor": self._view(value)}
        if isinstance(value, list | tuple):
            return [self._pack(v) for v in value]
        if isinstance(value, dict):
            return {k: self._pack(v) for k, v in value.items() if k not in ("device", "layout", "pin_memory")}
        if isinstance(value, torch.dtype | torch.memory_format):
            return {"torch": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, bool | int | float):
            return value
        raise CannotRecord(f"a {type(value).__name__}")


class _Watch(TorchDispatchMode):
    def __init__(self, log: CallLog):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.log.operation(func, args, kwargs or {}, out)
        return out


@contextmanager
def logging_calls(inputs: dict[str, Any]) -> Iterator[CallLog]:
    """Note what the body of a `with` launches on the GPU."""
    from triton.runtime.jit import JITFunction

    log = CallLog(inputs)
    original = JITFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        kernel = original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if not warmup:
            log.launch(self, args, kwargs, grid)
        return kernel

    JITFunction.run = run
    try:
        with _Watch(log):
            yield log
    finally:
        JITFunction.run = original


def _make(step: Mapping[str, Any], storages: dict[int, torch.Tensor]) -> None:
    """Do again what torch prepared."""
    name, overload = step["op"]
    if name not in PREPARING | ON_INTEGERS:
        raise ValueError(f"{name} may not prepare data for a kernel")
    kwargs = _unpacked(step["kwargs"], storages)
    function = getattr(getattr(torch.ops.aten, name), overload)
    if any(argument.name == "device" for argument in function._schema.arguments):
        kwargs["device"] = torch.device(DEVICE)
    out = tensors_in(function(*_unpacked(step["args"], storages), **kwargs))
    floats = any(t.is_floating_point() for t in [*out, *tensors_in(_unpacked(step["args"], storages))])
    if floats and name not in PREPARING:
        raise ValueError(f"{name} may prepare integers only")
    for view, tensor in zip(step["out"], out if step["out"] else [], strict=True):
        storages[view["storage"]] = torch.empty(0, dtype=torch.uint8, device=DEVICE).set_(tensor.untyped_storage())


def _unpacked(value: Any, storages: Mapping[int, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(v, storages) for v in value]
    if isinstance(value, dict) and value.keys() == {"tensor"}:
        return _view(value["tensor"], storages)
    if isinstance(value, dict) and value.keys() == {"torch"}:
        found = getattr(torch, value["torch"])
        if not isinstance(found, torch.dtype | torch.memory_format):
            raise ValueError("neither a dtype nor a memory format")
        return found
    return {k: _unpacked(v, storages) for k, v in value.items()} if isinstance(value, dict) else value


def _launchable(arg: Mapping[str, Any], storages: Mapping[int, torch.Tensor]) -> Any:
    if "tensor" in arg:
        return _view(arg["tensor"], storages)
    if "dtype" in arg:
        import triton.language as tl

        return tl.core.dtype(arg["dtype"])
    return arg.get("constant", arg.get("value"))


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
        raw = _bytes(tensor.contiguous())
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


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
