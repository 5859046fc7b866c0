"""Note what a student's function launches, with which arguments, and what the host does to tensors in between.

The notes are plain data and prove nothing: they come from the student's process. The judge extracts the kernels they
name, replays them in a clean process, and believes what it sees there.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.isolation.worker.layout import is_gapped
from autograder.isolation.worker.trees import by_name, tensors_in
from mla_ref.hardware.emulator.memory import Blanks

INDEX_BYTES = 1 << 20
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
NAMED = {short: dtype for dtype, short in DTYPES.items()}


class CannotRecord(TypeError):
    """A launch whose arguments the grader cannot carry to another process."""


class Recorder:
    """The events of one call in order, and the storages they touch. Made by `recording`."""

    def __init__(self, inputs: dict[str, Any], execute: bool):
        self.execute = execute
        self.events: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self._kept: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}
        self._known: dict[int, torch.Tensor] = {}
        self._gapped: dict[int, torch.Tensor] = {}
        self._inside = False
        self.blanks = Blanks()
        for name, tensor in by_name(inputs).items():
            number = self._number(tensor)
            self.storages[number]["input"] = name
            self._remember(number)

    def notes(self, result: Any) -> dict[str, Any]:
        """Return everything noted, with the places where the tensors of `result` live, as plain data."""
        views = [self._view(tensor) for tensor in tensors_in(result)]
        return {"events": self.events, "storages": self.storages, "result": views}

    def launch(self, function: Any, args: tuple, kwargs: dict[str, Any], grid: Any) -> None:
        """Note one launch of a kernel."""
        names = list(function.arg_names)
        signature = inspect.signature(function.fn)
        options = {k: v for k, v in kwargs.items() if k not in names}
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
        bound.apply_defaults()
        constants = {name for name, p in signature.parameters.items() if "constexpr" in str(p.annotation)}
        sizes = _grid(grid(dict(bound.arguments)) if callable(grid) else grid)
        self.events.append(
            {
                "kind": "launch",
                "kernel": function.fn.__name__,
                "grid": sizes + [1] * (3 - len(sizes)),
                "args": {n: self._argument(n, v, n in constants) for n, v in bound.arguments.items()},
                "options": {k: int(v) for k, v in options.items() if k in OPTIONS and v is not None},
                "content": self._changes(bound.arguments.values()),
            }
        )

    def launched(self, args: tuple, kwargs: dict[str, Any]) -> None:
        """Take what a launch left in its tensors as known."""
        for tensor in tensors_in([*args, *kwargs.values()]):
            self._remember(self._number(tensor))

    def host(self, name: str, reads: list[torch.Tensor], writes: list[torch.Tensor], flops: int) -> None:
        """Note one operation of torch."""
        self.events.append(
            {
                "kind": "host",
                "op": name,
                "reads": [[self._number(t), _bytes(t)] for t in reads],
                "writes": [[self._number(t), _bytes(t)] for t in writes],
                "flops": flops,
            }
        )

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self.storages)
            self.storages.append({"bytes": storage.nbytes()})
            self._kept.append(storage)  # while it is kept, no other storage gets its identity
            if is_gapped(tensor):
                self._gapped[self._numbers[storage._cdata]] = tensor
        return self._numbers[storage._cdata]

    def _view(self, tensor: torch.Tensor) -> dict[str, Any]:
        if tensor.dtype not in DTYPES:
            raise CannotRecord(f"tensors of {tensor.dtype} are not carried to another process")
        return {
            "storage": self._number(tensor),
            "offset": tensor.storage_offset(),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "dtype": DTYPES[tensor.dtype],
        }

    def _argument(self, name: str, value: Any, constant: bool) -> dict[str, Any]:
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(value, torch.Tensor):
            return {"tensor": self._view(value)}
        if type(value).__module__ == "triton.language.core" and type(value).__name__ == "dtype":
            return {"dtype": value.name}
        if value is None or isinstance(value, bool | int | float | str):
            return {"constant" if constant else "value": value}
        raise CannotRecord(f"argument {name} is a {type(value).__name__}; tensors, numbers and constants are supported")

    def _content(self, number: int) -> torch.Tensor:
        """Return a storage's bytes; of a gapped tensor's those of its elements."""
        if number in self._gapped:
            return self._gapped[number].contiguous().reshape(-1).view(torch.uint8)
        storage = self._kept[number]
        return (
            torch.empty(0, dtype=torch.uint8).set_(storage) if storage.nbytes() else torch.empty(0, dtype=torch.uint8)
        )

    def _remember(self, number: int) -> None:
        if self.execute:
            self._known[number] = self._content(number).clone()

    def _changes(self, values: Any) -> list[list[Any]]:
        """Return `[storage, bytes]` for the storages that hold what neither an input nor a launch left there.

        Where kernels do not run, these are the indices alone: what a kernel does depends on them.
        """
        changes = []
        for number in sorted({self._number(t) for t in tensors_in(list(values)) if self.execute or self._is_index(t)}):
            now, known = self._content(number), self._known.get(number)
            if known is None or not torch.equal(now, known):
                changes.append([number, now.clone()])
                self._known[number] = changes[-1][1]
        return changes

    def _is_index(self, tensor: torch.Tensor) -> bool:
        storage = self.storages[self._number(tensor)]
        return not tensor.is_floating_point() and "input" not in storage and storage["bytes"] <= INDEX_BYTES


class _HostWatch(TorchDispatchMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self.recorder._inside:
            self._note(func, args, kwargs, out)
        return out

    def _note(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        name = func.overloadpacket.__name__
        given, made = tensors_in([*args, *kwargs.values()]), tensors_in(out)
        self._look_after(name, given, made, func._schema.is_mutable)
        before = {t.untyped_storage()._cdata for t in given}
        fresh = [t for t in made if t.untyped_storage()._cdata not in before]
        changed = made if func._schema.is_mutable else fresh
        if not changed and made:  # a view
            return
        if (not given and "empty" in name) or name in ("empty_like", "new_empty", "new_empty_strided", "detach"):
            return
        self.recorder.host(name, given, changed, _flops(func, args, kwargs, out))

    def _look_after(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor], mutable: bool) -> None:
        """Note which storages hold nothing yet."""
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        for tensor in (*made, *(given if mutable else ())):
            fresh = tensor.untyped_storage().data_ptr() not in known
            if fresh and "empty" in name:
                self.recorder.blanks.add(tensor)
            elif fresh or mutable:
                self.recorder.blanks.fill(tensor)


@contextmanager
def recording(inputs: dict[str, Any], execute: bool) -> Iterator[Recorder]:
    """Note the launches made in the body of a `with`, on tensors of the CPU.

    Parameters
    ----------
    inputs
        The function's arguments by name: their storages are known by these names.
    execute
        Whether kernels run. If not, tensors may be of full size and are never touched by a kernel.
    """
    from triton import JITFunction

    recorder = Recorder(inputs, execute)
    original = JITFunction.run

    def run(self, *args, grid, warmup, **kwargs):
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        recorder._inside = True
        try:
            recorder.launch(self, args, kwargs, grid)
            if execute:
                found = original(self, *args, grid=grid, warmup=warmup, **kwargs)
                recorder.launched(args, kwargs)
                return found
        finally:
            recorder._inside = False
        return None

    JITFunction.run = run
    try:
        with recorder.blanks, _HostWatch(recorder):
            yield recorder
    finally:
        JITFunction.run = original


def _grid(sizes: Any) -> list[int]:
    if not isinstance(sizes, tuple):
        raise TypeError(f"the grid is {sizes!r}: write it as a tuple, such as (n,)")
    if not 1 <= len(sizes) <= 3 or not all(hasattr(n, "__index__") for n in sizes):
        raise TypeError(f"the grid is {sizes!r}, expected one to three whole numbers: triton.cdiv(a, b), not a / b")
    return [int(n) for n in sizes]


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes a view reaches, each once: an expanded tensor is no larger than what it shows."""
    distinct = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        distinct *= size if stride else 1
    return distinct * tensor.element_size()


def _flops(func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> int:
    from torch.utils.flop_counter import flop_registry

    count = flop_registry.get(func.overloadpacket)
    return int(count(*args, **kwargs, out_val=out)) if count else 0
