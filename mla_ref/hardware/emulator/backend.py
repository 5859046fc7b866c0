"""The emulator as a backend of Triton: a kernel is compiled as far as TTIR, and a launch runs that.

The front end, its errors, its specialisation of arguments and its cache on disk are Triton's own. What is compiled is
what the passes for an NVIDIA GPU make of a kernel before its blocks are laid out, with tensor descriptors turned into
pointers and masks.
"""

from __future__ import annotations

import functools
import hashlib
import math
import numbers
import re
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends import Backend, backends
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.backends.nvidia.compiler import CUDABackend, CUDAOptions

from .gluon import Descriptor
from .machine import STAGES, WARPS, Kernel
from .memory import Memory, Region, tensors
from .ttir import DESCRIBED, SUFFIX, generic_text, parse

NAME = "emulator"
CAPABILITY = 80  # without TMA: descriptors become pointers
HOPPER = 90  # of kernels in Gluon, which name TMA themselves
TARGET = GPUTarget(NAME, CAPABILITY, 32)
MADE = re.compile(
    r"^( *)%(\w+) = tt\.make_tensor_descriptor (%[\w#]+), \[[^]]*\], \[([^]]*)\].*? : .*?<(\w+)>.* (loc\(#\w+\))$",
    re.MULTILINE,
)
USED = re.compile(r"^( *(?:%[\w#:]+ = )?tt\.descriptor_\w+ .*) loc\((.*)\)$", re.MULTILINE)
ALIGNED = 16  # bytes
ROWS = re.compile(r"tt\.descriptor_(gather|scatter) ")
UNEVEN = "a tensor descriptor of which the start or a stride is no multiple of 16 bytes"
LARGEST_GRID = (2**31 - 1, 65535, 65535)
LARGEST = {"num_warps": 32, "num_stages": 64, "num_ctas": 16, "maxnreg": 1024}  # 32 warps are 1024 threads
CONSTANT = "constexpr"
one_at_a_time = threading.Lock()  # or updates by atomic operations of two launches would be lost
UNKNOWN = 1  # a kernel's registers and bytes of shared memory: who computes an occupancy divides by them


@dataclass(frozen=True)
class Options(CUDAOptions):
    """NVIDIA's, and AMD's, without effect: what kernels are launched with where the backend is not called "cuda"."""

    allow_flush_denorm: bool = False
    kpack: int = 1
    matrix_instr_nonkdim: int = 0
    schedule_hint: str = "none"
    waves_per_eu: int = 0


AMD_OPTIONS = Options.__dataclass_fields__.keys() - CUDAOptions.__dataclass_fields__.keys()


class Compiler(CUDABackend):
    """Stops at TTIR, which it writes in generic form."""

    binary_ext = "generic"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target.backend == NAME

    def __init__(self, target: GPUTarget):
        super().__init__(target)
        self.binary_ext = "generic"

    def parse_options(self, opts: dict[str, Any]) -> Any:
        for name, value in opts.items():
            check_option(name, value)
        own = {"arch": f"sm{CAPABILITY}", "num_ctas": 1}  # more than one take a later capability
        if opts.get("num_warps") is not None:
            own["num_warps"] = int(opts["num_warps"])
        opts = {"supported_fp8_dtypes": ("fp8e4nv", "fp8e5"), **opts, **own}
        given = {name: opts[name] for name in AMD_OPTIONS if name in opts}
        return Options(**vars(super().parse_options(opts)), **given)

    @staticmethod
    def parse_attr(desc: str) -> list[Any]:
        return []  # alignment decides nothing here, and each kind of it would be compiled anew

    def hash(self) -> str:
        return f"{NAME}-{_digest()}"

    def get_target_name(self, options: Any) -> str:
        return f"cuda:{HOPPER}"  # only Gluon asks

    def add_stages(self, stages: dict[str, Callable], options: Any, language: Any = None) -> None:
        if getattr(language, "name", "") == "GLUON":
            lowered = functools.partial(self.gluon_to_ttgir, options=options, capability=HOPPER)
            stages["ttgir"] = lowered
            stages["generic"] = self.make_generic
            return
        stages["ttir"] = lambda module, metadata: self.make_ttir(module, metadata, options, CAPABILITY)
        stages["generic"] = self.make_generic

    @staticmethod
    def make_ttir(module: Any, *given: Any) -> Any:
        module = CUDABackend.make_ttir(with_descriptors_checked(module), *given)
        from triton._C.libtriton import ir, passes

        manager = ir.pass_manager(module.context)  # as later on its way to a GPU: what never runs is gone
        passes.ttir.add_loop_aware_cse(manager)
        passes.common.add_sccp(manager)
        passes.common.add_cse(manager)
        passes.common.add_canonicalizer(manager)
        manager.run(module, "make_ttir")
        return module

    @staticmethod
    def make_generic(module: Any, metadata: dict[str, Any]) -> bytes:
        metadata["shared"] = UNKNOWN
        metadata["name"] = module.get_entry_func_name()
        return generic_text(module).encode()


def with_descriptors_checked(module: Any) -> Any:
    """Return a module in which whatever makes a tensor descriptor stops at what TMA does not take.

    What becomes of accesses by one can be told from others by its location.
    """
    text = module.str()
    if not (MADE.search(text) or USED.search(text)):
        return module
    if rows := ROWS.search(text):
        raise ValueError(f"{rows[1]} by a tensor descriptor takes a GPU later than Hopper: use pointers")
    places: list[str] = []

    def named(found: re.Match) -> str:
        places.append(f'#described{len(places)} = loc("{DESCRIBED}"({found[2]}))\n')
        return f"{found[1]} loc(#described{len(places) - 1})"

    text = USED.sub(named, MADE.sub(_checked, text))
    return _parsed("".join([text, *places]), module.context)


def _checked(found: re.Match) -> str:
    indent, name, base, strides, element, location = found.groups()
    name = f"made_{name}"
    size = int(re.search(r"\d+", element)[0]) // 8
    *outer, _ = (each.strip() for each in strides.split(","))  # the last is 1: the front end sees to it
    lines = [f"%{name}_unit = arith.constant {ALIGNED} : i64", f"%{name}_none = arith.constant 0 : i64"]
    lines.append(f"%{name}_size = arith.constant {size} : i64")
    lines.append(f"%{name}_start = tt.ptr_to_int {base} : !tt.ptr<{element}> -> i64")
    lines += [f"%{name}_{n} = arith.muli {stride}, %{name}_size : i64" for n, stride in enumerate(outer)]
    for n, what in enumerate(("start", *map(str, range(len(outer))))):
        lines.append(f"%{name}_rest{n} = arith.remui %{name}_{what}, %{name}_unit : i64")
        lines.append(f"%{name}_fits{n} = arith.cmpi eq, %{name}_rest{n}, %{name}_none : i64")
        lines.append(f'tt.assert %{name}_fits{n}, "{UNEVEN}" : i1')
    return "\n".join(f"{indent}{line} {location}" for line in lines) + "\n" + found.group()


def _parsed(text: str, context: Any) -> Any:
    """Return the module of a text."""
    from triton._C.libtriton import ir

    with tempfile.NamedTemporaryFile("w", suffix=SUFFIX) as file:
        file.write(text)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    return module


@functools.cache
def _digest() -> str:
    files = (Path(__file__), Path(__file__).with_name("ttir.py"))
    triton_itself = f"{triton.__version__} {triton.__file__}"  # lines of its own functions are in what is kept
    return hashlib.sha256(b"".join([triton_itself.encode(), *(file.read_bytes() for file in files)])).hexdigest()


@functools.lru_cache(512)
def loaded(text: str, name: str, file: str) -> Kernel:
    """Return a compiled module of a kernel in a file, ready to run.

    The text may come from the cache on disk, written when the same kernel lay in another file: a cell of another
    session, say.
    """
    module = parse(text)
    mine = next(op for op in module.ops if op.name == "tt.func" and op.attrs["sym_name"] == module.main.name)
    written = mine.place[0]
    for op in module.ops:
        if op.place[0] == written:
            op.place = (file, *op.place[1:])
    return Kernel(module, name)


class Launcher:
    """Runs one compiled kernel: what Triton calls with a grid and arguments."""

    def __init__(self, src: Any, metadata: Any):
        signature = src.signature
        names = list(getattr(src.fn, "arg_names", signature))
        function = getattr(src.fn, "fn", None)
        self.name = getattr(function, "__name__", metadata.name)
        self.options = {"warps": metadata.num_warps, "stages": metadata.num_stages}
        self.file = function.__code__.co_filename if function else ""
        self.plain = [(i, name, signature[name]) for i, name in enumerate(names)]

    def __call__(self, x: int, y: int, z: int, stream: int, text: str, *rest: Any) -> None:
        *_, metadata, enter, leave = rest[:4]
        arguments = rest[4:]
        given = [each for i, name, kind in self.plain for each in _flat(name, arguments[i], kind)]
        if enter is not None:
            enter(metadata)
        launch(loaded(text, self.name, self.file), (x, y, z), given, **self.options)
        if leave is not None:
            leave(metadata)


def launch(
    kernel: Kernel, grid: Sequence[int], given: Sequence[tuple[str, Any]], warps: int = WARPS, stages: int = STAGES
) -> None:
    """Run a kernel over a grid with arguments by name, tensors and numbers.

    Raises
    ------
    ValueError
        A grid that no GPU takes, a tensor that is not in the CPU's memory.
    KernelFault
        What goes wrong in the kernel.
    """
    name = kernel.name
    check_grid(name, grid)
    if not math.prod(grid):
        _warn(f"{name}: the grid {tuple(grid)} has no programs, so nothing runs")
    regions, values = {}, []
    kinds = kernel.kinds
    flat = flattened(given, kinds)
    for number, ((parameter, value), kind) in enumerate(zip(flat, kinds, strict=True)):
        described = hasattr(value, "block_shape")
        if kind.pointee is None and not described:
            values.append(value)
            continue
        tensor = value.base if described else value
        _check_tensor(name, parameter, tensor)
        regions[number] = Region.of(parameter, tensor)
        values.append(Descriptor.at(tensor.data_ptr(), value) if described else tensor.data_ptr())
    if math.prod(grid):
        memory = Memory(regions)
        memory.others = tensors
        with one_at_a_time:
            kernel.launch(grid, values, memory, warps=warps, stages=stages)


def check_grid(name: str, grid: Sequence[int]) -> None:
    """Raise ValueError for a grid that no GPU takes."""
    for size, most, axis in zip(grid, LARGEST_GRID, "xyz", strict=True):
        if not 0 <= size <= most:
            raise ValueError(f"{name}: the grid {tuple(grid)} has {size} programs along {axis}, expected 0 to {most}")


def check_option(name: str, value: Any) -> None:
    """Raise TypeError or ValueError for an option of a launch that no GPU takes; None stands for Triton's default."""
    if value is None or name not in LARGEST:
        return
    whole = numbers.Integral if name == "num_warps" else int  # the others stay in JSON: none of NumPy's
    if isinstance(value, bool) or not isinstance(value, whole):
        how = "int(n)" if hasattr(value, "__index__") else "`//`, not `/`"
        raise TypeError(f"{name} is {value!r}: give a whole number ({how})")
    most = LARGEST[name]
    if name == "num_warps" and value not in (1 << n for n in range(most.bit_length())):
        raise ValueError(f"num_warps is {value}, expected 1, 2, 4, 8, 16 or 32{_kept_within(value, most)}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value}, expected 1 to {most}{_kept_within(value, most)}")


def _kept_within(value: int, most: int) -> str:
    """Return what keeps a number from 1 to `most`, where it is not."""
    if value < 1:
        return ": max(1, n) where n may come to 0"
    return f": min({most}, n) where n may be larger" if value > most else ""


def _warn(message: str) -> None:
    """Warn where a kernel is launched: by whom Triton was called first, whatever stands between."""
    own = (str(Path(__file__).parent), str(Path(triton.__file__).parent))
    frame, level, launching = sys._getframe(1), 2, 2
    while frame is not None:
        level += 1
        launching = level if frame.f_code.co_filename.startswith(own) else launching
        frame = frame.f_back
    warnings.warn(message, stacklevel=launching)


def _check_tensor(name: str, parameter: str, tensor: Any) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(
            f"{name}: {parameter} is on {tensor.device}, and kernels run on the CPU here: move it with .cpu()"
        )
    if tensor.requires_grad and torch.is_grad_enabled():
        _warn(
            f"{name}: {parameter} requires a gradient, and none passes through a kernel: launch it in the forward of "
            f"a torch.autograd.Function, or under torch.no_grad()"
        )


def _flat(name: str, value: Any, kind: Any) -> list[tuple[str, Any]]:
    """Return an argument by name; those of a tuple by name and number; without those that are constants."""
    if kind == CONSTANT:
        return []
    if isinstance(kind, tuple):
        pairs = enumerate(zip(value, kind, strict=True))
        return [each for n, (inner, inner_kind) in pairs for each in _flat(f"{name}[{n}]", inner, inner_kind)]
    base = getattr(value, "base", None)
    under_another_dtype = isinstance(base, torch.Tensor) and not hasattr(value, "block_shape")
    return [(name, base if under_another_dtype else value)]


def flattened(given: Sequence[tuple[str, Any]], kinds: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return arguments by name, each tensor descriptor as the compiler passes it to parameters of these types.

    That is: pointer, sizes, strides, flags (padding with NaN, rounding to TF32; how many depends on Triton's version),
    and once more sizes and strides.
    """
    found: list[tuple[str, Any]] = []
    for name, value in given:
        if not hasattr(value, "block_shape"):
            found.append((name, value))
            continue
        if kinds[len(found)].element.startswith("!tt.tensordesc"):
            found += [(name, each) for each in (value, *value.shape, *value.strides)]
            continue
        found += [(name, each) for each in (value.base, *value.shape, *value.strides)]
        flags = 0
        while kinds[len(found) + flags].element == "i1":
            flags += 1
        found += [(name, each) for each in (getattr(value, "padding", "zero") == "nan", False)[:flags]]
        found += [(name, each) for each in (*value.shape, *value.strides)]
    return found


class _Utils:
    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple:
        return None, kernel.decode(), UNKNOWN, 0, 1 << 20

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return those of an H100, for which times are modelled: kernels choose grids and blocks by them."""
        return {"max_shared_mem": 227 << 10, "max_num_regs": 1 << 16, "multiprocessor_count": 132, "warpSize": 32}


class Driver(DriverBase):
    """Stands for the CPU among Triton's devices."""

    launcher_cls, utils = Launcher, _Utils()

    @classmethod
    def is_active(cls) -> bool:
        return False  # Triton is not to choose it by itself

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return -1  # no GPU has this number, under which Triton keeps compiled kernels

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass

    def get_benchmarker(self) -> Callable:
        def bench(call: Callable, *, quantiles: Sequence[float] | None = None, **_: Any) -> Any:
            started = time.perf_counter()
            call()
            milliseconds = 1e3 * (time.perf_counter() - started)
            return [milliseconds] * len(quantiles) if quantiles else milliseconds

        return bench


def register() -> None:
    """Make the backend known to Triton."""
    backends.setdefault(NAME, Backend(Compiler, Driver))
    _refuse_what_ends_the_process()


@functools.cache
def _refuse_what_ends_the_process() -> None:
    """Have an error raised for a first factor of `warpgroup_mma` at which the compiler would end Python, too."""
    try:
        from triton._C.libtriton import gluon_ir

        start = gluon_ir.GluonOpBuilder.create_warpgroup_mma
    except (ImportError, AttributeError):  # of another version of Triton
        return

    def checked(builder: Any, first: Any, *rest: Any) -> Any:
        layout = str(first.get_type())
        if layout.startswith("tensor<") and "dot_op" not in layout:
            raise ValueError(
                "the first factor of warpgroup_mma lies in registers as a result does: "
                "gl.convert_layout(x, gl.DotOperandLayout(0, layout of acc, 2)) makes a factor of it"
            )
        return start(builder, first, *rest)

    gluon_ir.GluonOpBuilder.create_warpgroup_mma = checked


def compile_kernel(
    function: Any, signature: dict[str, str], constants: dict, attributes: dict, options: dict
) -> Kernel:
    """Return a `@triton.jit` or `@gluon.jit` function compiled for arguments of the given types, without running it.

    Parameters are as of `triton.compiler.ASTSource`. Raises what the front end raises.
    """
    from triton.compiler import ASTSource, compile

    register()
    if function.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=attributes)
    compiled = compile(source, target=TARGET, options=options)
    return loaded(compiled.asm["generic"].decode(), function.fn.__name__, function.fn.__code__.co_filename)


def kernel_of(text: str, name: str, places: Sequence[Sequence[int]] | None = None) -> Kernel:
    """Return a kernel from the module that Triton's front end made of it for some GPU: `asm["source"]`.

    With the `places` of a module that was numbered (see `ttir.numbered`), its operations have their own lines again.

    Raises RuntimeError for text that is no such module.
    """
    from triton._C.libtriton import ir

    register()
    compiler, context = Compiler(TARGET), ir.context()
    ir.load_dialects(context)
    compiler.load_dialects(context)
    module = _parsed(text, context)
    found = parse(generic_text(compiler.make_ttir(module, {}, compiler.parse_options({}), CAPABILITY)))
    for op in found.ops:
        if places is not None:
            op.place = (op.place[0], *(places[op.key - 1] if 0 < op.key <= len(places) else (0, 0)))
    return Kernel(found, name)
