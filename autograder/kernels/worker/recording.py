"""Note what a call does as a program: torch's operations on tensors and the launches of kernels, in order.

A program is plain data. It comes from the student's process and proves nothing: the judge runs it again, on data that
this process never saw, and believes what comes of that (see `autograder.kernels.answers`).
"""

from __future__ import annotations

import inspect
import linecache
import numbers
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker import running
from autograder.isolation.worker.layout import is_gapped
from autograder.isolation.worker.trees import by_name, holds, mapped, tensors_in
from autograder.kernels.worker.diagnostics import diagnosed
from autograder.kernels.worker.hosting import ALIKE, EMPTY, changed_by, is_known
from autograder.kernels.worker.uses import definition, uses
from mla_ref.hardware.emulator.memory import Blanks, Fills

MAX_LAUNCHES = 4096
MOST = 8192  # storages and events in the notes of a call
LARGEST_CONSTANT = 1 << 24  # bytes of a tensor that was there before the call
MAX_AXES = 16  # of a tensor
OPTIONS = ("num_warps", "num_stages", "maxnreg", "debug", "enable_fp_fusion")
OWN = ("aten", "prim", "prims", "profiler")  # the namespaces of operators that torch brings along
# What changes how a tensor looks at memory, or at which, and no more; torch's product of a vector and a matrix ends so
RESHAPING = frozenset((
    "as_strided_", "detach_", "resize_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_",
))  # fmt: skip
OF_FACTORIES = {"dtype", "layout", "device", "pin_memory"}  # which an `out` has already
WITHOUT_EFFECT = ("sanitize_overflow",)  # on what a right kernel gives here
DTYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.bool: "i1",
    torch.complex64: "c64",  # torch's alone: no kernel takes it
    torch.complex128: "c128",
}
NUMBERS = {"int": numbers.Integral, "float": numbers.Real, "bool": np.bool_}  # Triton takes Python's own alone
NAMED = {short: dtype for dtype, short in DTYPES.items()}


class TooMany(ValueError):
    """More launches or operations in a call than are graded."""


class CannotRecord(TypeError):
    """A launch whose arguments the grader cannot carry to another process."""


class Recorder:
    """The events of one call in order, and the storages they touch. Made by `recording`.

    A storage is an argument's (`input`), holds what was there before the call (`content`), or is made in it. Of what
    was there `before` is the number that it had in the call before.
    """

    def __init__(self, inputs: dict[str, Any], earlier: Recorder | None = None):
        self.earlier = earlier
        self.events: list[dict[str, Any]] = []
        self.storages: list[dict[str, Any]] = []
        self.uses: list[dict[str, Any]] = []  # of the kernels, each that differs
        self._kept: list[torch.UntypedStorage] = []
        self._numbers: dict[int, int] = {}
        self.blanks = Blanks()
        self.inside = False
        for name, tensor in by_name(inputs).items():
            self.storages[self._number(tensor, made=True)]["input"] = name

    def notes(self, result: Any) -> dict[str, Any]:
        """Return everything noted as plain data, with the places where the tensors of `result` live.

        In `form`, which is the result, `{"$view": n}` stands for each tensor.

        Raises TooMany, and TypeError if the result holds arrays of NumPy, what they hold is of no operation, or a
        tensor that is not what its memory holds.
        """
        launches = sum(event["kind"] == "launch" for event in self.events)
        if launches > MAX_LAUNCHES:
            raise TooMany(f"one call launches {launches} kernels; at most {MAX_LAUNCHES} are graded")
        if len(self.events) > MOST:
            raise TooMany(f"one call has {len(self.events)} operations and launches; at most {MOST} are graded")
        result = _with_plain_integers(result)
        if holds(result, (np.ndarray, np.generic)):
            kind = "an array" if holds(result, (np.ndarray,)) else "a number"
            raise TypeError(f"{kind} of NumPy is returned, expected torch's tensor or a number of Python's")
        views = [self._view(_as_stored(tensor)) for tensor in tensors_in(result)]
        numbers = iter(range(len(views)))
        form = mapped(result, lambda _: {"$view": next(numbers)})
        found = {"events": self.events, "storages": self.storages, "uses": self.uses}
        return {**found, "result": views, "form": form}

    def launch(self, function: Any, args: tuple, kwargs: dict[str, Any], grid: Any) -> None:
        """Note one launch of a kernel."""
        names = list(function.arg_names)
        signature = inspect.signature(function.fn)
        if function.pre_run_hooks:
            what = f"{function.fn.__name__}.add_pre_run_hook"
            raise CannotRecord(f"{what} is not graded: do in front of the launch what the hook does")
        # Triton takes the name of a parameter that an option has as both
        options = {k: v for k, v in kwargs.items() if k not in names or _is_option(k)}
        bound = signature.bind(*args, **{k: v for k, v in kwargs.items() if k in names})
        bound.apply_defaults()
        constants = {name for name, p in signature.parameters.items() if "constexpr" in str(p.annotation)}
        _check_options(options)
        self.uses += [each for each in uses(function) if each not in self.uses]
        sizes = _grid(grid(dict(bound.arguments)) if callable(grid) else grid)
        self.events.append(
            {
                "kind": "launch",
                "kernel": function.fn.__name__,
                "defined": definition(function),
                "grid": sizes + [1] * (3 - len(sizes)),
                "args": dict(
                    argument
                    for name, value in bound.arguments.items()
                    for argument in self._arguments(name, value, name in constants)
                ),
                "options": {k: int(v) for k, v in options.items() if k in OPTIONS and v is not None},
            }
        )

    def before(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        """Note what an operation is about to change, as long as that holds what it held before the call."""
        name = func.overloadpacket.__name__
        for tensor in tensors_in(changed_by(func._schema, args, kwargs)):
            if name == "resize_":  # what it had of memory may be another's then
                self.blanks.written.pop(tensor.untyped_storage().data_ptr(), None)
            elif name not in RESHAPING:
                self._number(tensor)

    def operation(self, func: Any, args: tuple, kwargs: dict[str, Any], out: Any) -> None:
        """Note one operation of torch; one that only looks at memory in another way is none."""
        name, given, made = func.overloadpacket.__name__, tensors_in([*args, *kwargs.values()]), tensors_in(out)
        if any(each.is_nested or each.layout is not torch.strided for each in (*given, *made)):
            raise TypeError("sparse and nested tensors are not graded: their numbers do not lie in one piece of memory")
        before = {t.untyped_storage()._cdata for t in given}
        if name in RESHAPING:
            return
        changed = tensors_in(changed_by(func._schema, args, kwargs))
        mutable = func._schema.is_mutable or bool(changed)
        self._look_after(name, given, made, mutable)
        fresh = [t for t in made if t.untyped_storage()._cdata not in before]
        if not mutable and ((made and not fresh) or name in EMPTY):
            for tensor in fresh:
                self._number(tensor, made=True)
            return
        step = {
            "op": [name, func._overloadname or "default"],
            "line": _line(),
            "flops": _flops(func, args, kwargs, out),
        }
        try:
            if not is_known(*step["op"]):
                raise CannotRecord(name)
            step |= {"args": self._pack(args), "kwargs": self._pack(kwargs)}
            step["out"] = [self._view(t, made=True) for t in fresh]
        except CannotRecord:
            step |= {"args": None, "kwargs": {}, "out": []}
        self.events.append(
            {
                "kind": "host",
                **step,
                "reads": [[self._number(t), _bytes(t)] for t in given],
                "writes": [[self._number(t, made=True), _bytes(t)] for t in (*changed, *fresh)],
            }
        )

    def _look_after(self, name: str, given: list[torch.Tensor], made: list[torch.Tensor], mutable: bool) -> None:
        """Note which storages hold nothing yet."""
        if Fills.current is not None and name not in (*EMPTY, *ALIKE):
            Fills.current.asked |= any(map(self.blanks.lacks, given[mutable:]))
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        for tensor in (*made, *(given if mutable else ())):
            fresh = tensor.untyped_storage().data_ptr() not in known
            if fresh and name in EMPTY:
                self.blanks.add(tensor)
            elif fresh or mutable:
                self.blanks.fill(tensor)

    def _number(self, tensor: torch.Tensor, made: bool = False) -> int:
        """Return the number of a tensor's storage; what is in one that nothing here made was there before."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = len(self.storages)
            self.storages.append({"bytes": storage.nbytes()})
            self._kept.append(storage)  # while it is kept, no other storage gets its identity
            if not made:
                self.storages[-1] |= _content(tensor)
                if self.earlier and storage._cdata in self.earlier._numbers:
                    self.storages[-1]["before"] = self.earlier._numbers[storage._cdata]
        number = self._numbers[storage._cdata]
        if not {"input", "content"} & self.storages[number].keys():  # it may have been made larger
            self.storages[number]["bytes"] = max(self.storages[number]["bytes"], storage.nbytes())
        return number

    def _view(self, tensor: torch.Tensor, made: bool = False) -> dict[str, Any]:
        if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
            raise CannotRecord(f"tensors of {tensor.dtype} are not carried to another process")
        if tensor.dim() > MAX_AXES:
            raise CannotRecord(f"a tensor has {tensor.dim()} axes; at most {MAX_AXES} are graded")
        return {
            "storage": self._number(tensor, made),
            "offset": tensor.storage_offset(),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "dtype": DTYPES[tensor.dtype],
        }

    def _pack(self, value: Any) -> Any:
        """Return an operation's arguments as plain data; where its tensors live is left out."""
        if isinstance(value, torch.Tensor):
            return {"tensor": self._view(value)}
        if isinstance(value, list | tuple):
            return [self._pack(v) for v in value]
        if isinstance(value, dict):
            return {k: self._pack(v) for k, v in value.items() if k not in ("device", "layout", "pin_memory")}
        if isinstance(value, torch.dtype | torch.memory_format):
            return {"torch": str(value).removeprefix("torch.")}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise CannotRecord(f"a {type(value).__name__}")

    def _arguments(self, name: str, value: Any, constant: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield an argument by its name; of a tuple each part, by name and place: `sizes.0`."""
        if type(value) in (tuple, torch.Size) and value:
            for place, each in enumerate(value):
                yield from self._arguments(f"{name}.{place}", each, constant)
        else:
            yield name, self._argument(name, value, constant)

    def _argument(self, name: str, value: Any, constant: bool) -> dict[str, Any]:
        from triton.tools.tensor_descriptor import TensorDescriptor

        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        if isinstance(value, torch.Tensor):
            return {"tensor": self._view(value)}
        in_gluon = type(value).__name__ == "TensorDescriptor" and hasattr(value, "layout")
        if isinstance(value, TensorDescriptor) or in_gluon:
            if in_gluon and value.layout != _usual_layout(value):
                raise CannotRecord(f"argument {name} has another layout than NVMMASharedLayout.get_default_for gives")
            if getattr(value, "round_f32_to_tf32", False):  # Triton 3.6 has no such option
                raise CannotRecord(f"argument {name} rounds to TF32 as it is loaded: round in the kernel")
            sizes = {key: [int(n) for n in getattr(value, key)] for key in ("shape", "strides", "block_shape")}
            described = {**sizes, "padding": value.padding, "gluon": in_gluon}
            return {"tensor": self._view(value.base), "descriptor": described}
        if type(value).__module__ == "triton.language.core" and type(value).__name__ == "dtype":
            return {"dtype": value.name}
        if value is None or isinstance(value, bool | int | float | str):
            return {"constant" if constant else "value": value}
        known = "tensors, tensor descriptors, numbers, constants and tuples of these are supported"
        plain = next((f": pass {kind}(…)" for kind, abstract in NUMBERS.items() if isinstance(value, abstract)), "")
        if isinstance(value, tuple):
            plain = ": pass tuple(…), whose parts the kernel has by number"
        elif type(value).__name__ in ("JITFunction", "GluonJITFunction"):
            plain = f": the kernel may call {value.__name__} by its name"
        raise CannotRecord(f"argument {name} is a {type(value).__name__}; {known}{plain}")


def _with_plain_integers(value: Any) -> Any:
    """Return a nested value with Python's integers in place of NumPy's."""
    if isinstance(value, dict):
        return {key: _with_plain_integers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (tuple if isinstance(value, tuple) else list)(map(_with_plain_integers, value))
    return int(value) if isinstance(value, np.integer) else value


def _as_stored(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a result; raise TypeError if its numbers are not those of its memory."""
    if tensor.is_neg() or tensor.is_conj():
        raise TypeError(
            "a tensor is returned that torch has still to negate: return tensor.resolve_conj().resolve_neg()"
        )
    if tensor.is_meta or tensor._is_zerotensor():
        raise TypeError(f"a tensor without memory is returned, on device {str(tensor.device)!r}")
    size = tensor.untyped_storage().nbytes()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() and (due := (tensor.storage_offset() + last + 1) * tensor.element_size()) > size:
        raise TypeError(f"a tensor of {due} bytes is returned, and its storage has {size}: it was resized")
    return tensor


def _usual_layout(descriptor: Any) -> Any:
    from triton.experimental.gluon import language as gl

    dtype = getattr(gl, str(descriptor.base.dtype).removeprefix("torch."), None)
    return gl.NVMMASharedLayout.get_default_for(list(descriptor.block_shape), dtype) if dtype else None


def _content(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what a storage holds that is no argument's and was not made in the call; of a large one that it is so."""
    storage = tensor.untyped_storage()
    if tensor.dtype not in DTYPES or tensor.is_meta or is_gapped(tensor) or storage.nbytes() > LARGEST_CONSTANT:
        return {"unknown": True}
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    raw = raw.set_(storage).cpu().clone() if storage.nbytes() else raw.cpu()
    return {"content": raw, "dtype": DTYPES[tensor.dtype]}


class _Watch(running.DispatchMode):
    def __init__(self, recorder: Recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not self.recorder.inside:
            if getattr(func, "namespace", OWN[0]) not in OWN:
                raise TypeError(
                    f"`{func}` is no operator of PyTorch's own, and shows nothing of what it does: "
                    "call the function itself"
                )
            for apart in (_in_parts, _one_by_one, _into):
                with self:
                    found = apart(func, args, kwargs)
                if found is not NotImplemented:
                    return found
        if self.recorder.inside:
            return func(*args, **kwargs)
        with self._inside():
            self.recorder.before(func, args, kwargs)
        out = func(*args, **kwargs)
        with self._inside():
            self.recorder.operation(func, args, kwargs, out)
        return out

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self.recorder.inside = True
        try:
            yield
        finally:
            self.recorder.inside = False


def _in_parts(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Do what an operation is made of, where torch has not taken it apart itself: in its inference mode."""
    return func.decompose(*args, **kwargs) if torch.is_inference_mode_enabled() else NotImplemented


def _one_by_one(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Do an operation on lists of tensors as one on each, as torch itself does where it has no kernel for lists."""
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    listed = func.overloadpacket.__name__.startswith("_foreach_") and func.has_kernel_for_dispatch_key(key)
    return func._op_dk(key, *args, **kwargs) if listed else NotImplemented


def _into(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Do an operation that puts its result into `out=` as one that makes it, and a copy."""
    targets = [each.name for each in func._schema.arguments if each.is_out]
    if len(targets) != 1 or targets[0] not in kwargs:
        return NotImplemented
    wanted = {each.name: str(each.type) for each in func._schema.arguments if not each.is_out}
    target = kwargs[targets[0]]
    for plain in (getattr(func.overloadpacket, each) for each in func.overloadpacket.overloads()):
        taken = {each.name: str(each.type) for each in plain._schema.arguments}
        more = taken.keys() - wanted.keys()
        if more <= OF_FACTORIES and {name: kind for name, kind in taken.items() if name not in more} == wanted:
            kind = {name: getattr(target, name) for name in ("dtype", "device") if name in more}
            made = plain(*args, **{key: x for key, x in kwargs.items() if key not in targets}, **kind)
            return (target if made.shape == target.shape else target.resize_(made.shape)).copy_(made)
    return NotImplemented


@contextmanager
def recording(inputs: dict[str, Any], execute: bool = False, earlier: Recorder | None = None) -> Iterator[Recorder]:
    """Note what the body of a `with` does.

    Parameters
    ----------
    inputs
        The function's arguments by name: their storages are known by these names.
    execute
        Whether kernels run. If not, tensors may be of full size, and their memory is touched by torch alone.
    earlier
        What has noted the call before.
    """
    from triton.compiler import CompiledKernel
    from triton.runtime.jit import JITFunction

    recorder = Recorder(inputs, earlier)
    original, compiled = JITFunction.run, CompiledKernel.__getitem__

    def run(self, *args, grid, warmup, **kwargs):
        if warmup:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        if recorder.inside:
            return None
        recorder.inside = True
        try:
            recorder.launch(self, args, kwargs, grid)
            if execute:
                with diagnosed():
                    return original(self, *args, grid=grid, warmup=warmup, **kwargs)
            return None
        finally:
            recorder.inside = False

    def of_warmup(self, grid):
        name = self.src.fn.__name__
        raise CannotRecord(f"what {name}.warmup compiled is launched: launch the kernel itself, {name}[grid](...)")

    JITFunction.run, CompiledKernel.__getitem__ = run, of_warmup
    try:
        with recorder.blanks, _Watch(recorder):
            yield recorder
    finally:
        JITFunction.run, CompiledKernel.__getitem__ = original, compiled


def _is_option(name: str) -> bool:
    """Return whether a launch has an option of a name."""
    from mla_ref.hardware.emulator.backend import Options

    return name in Options.__dataclass_fields__


def _check_options(options: dict[str, Any]) -> None:
    """Raise CannotRecord for an option of a launch that Triton does not know, or that makes it another launch.

    Raises TypeError and ValueError for values that no GPU takes.
    """
    from mla_ref.hardware.emulator.backend import AMD_OPTIONS, Options, check_option

    known = Options.__dataclass_fields__
    for name, value in options.items():
        if name not in known:
            raise CannotRecord(f"{name} is neither a parameter of the kernel nor an option of a launch")
        check_option(name, value)
        if name == "num_ctas" and value not in (None, 1):
            raise CannotRecord(f"num_ctas is {value}: programs that share several blocks are not graded")
        free = name in (*OPTIONS, *WITHOUT_EFFECT, *AMD_OPTIONS)
        if not free and value is not None and value != known[name].default:
            instead = "programs cannot wait for one another here, so make two launches of it" * ("cooperative" in name)
            raise CannotRecord(f"a launch with {name} is not graded: {instead or 'leave it out'}")


def _grid(sizes: Any) -> list[int]:
    if not isinstance(sizes, tuple | list):
        raise TypeError(f"the grid is {sizes!r}: write it as a tuple, such as (n,)")
    if not 1 <= len(sizes) <= 3 or not all(hasattr(n, "__index__") for n in sizes):
        raise TypeError(f"the grid is {sizes!r}, expected one to three whole numbers: triton.cdiv(a, b), not a / b")
    return [int(n) for n in sizes]


def _line() -> str:
    """Return the student's line that is running, with its number."""
    frame = sys._getframe(2)
    while frame is not None and not running.is_theirs(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return f"line {frame.f_lineno} (`{text[:120]}`)"


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
