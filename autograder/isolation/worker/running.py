"""Run a student's program and call what it defines. The same code serves the notebook and the sandbox."""

from __future__ import annotations

import builtins
import functools
import linecache
import re
import resource
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.isolation.worker import wire
from autograder.isolation.worker.trees import mapped, tensors_in

CELL = "<cell {}>"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int16, torch.int32, torch.int64)  # of lengths, indices and offsets: data are packed in bytes
SHARE = 0.71  # of the floats of a call: what an earlier one had
TIME_IS_UP = "the time was up"
FURTHER_IS_UP = "the time for other orders was up"
LAST = 1  # second of a process: to say where it was when its time was up
PATIENCE = 4.0  # times the seconds of a limit, by the clock: a busy machine gives a process a share of itself
SHORTEST = 0.1  # seconds of a call, though the time be up
AGAIN = 0.001  # seconds until what could not be stopped is looked at once more
BESIDE = "beside "  # begins the name of a method that a session calls on the object that it built beside
REFERENCE = " (reference)"  # ends the names of cells with supplied solutions
AS_ASKED = "_{}_as_asked"  # what makes of a function of the student's one that is called like the supplied one


def new_namespace() -> dict[str, Any]:
    """Return the namespace of a fresh `__main__` with what a notebook adds to Python's own names."""
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(module).update(display=print, get_ipython=lambda: None)
    return vars(module)


def run_cell(name: str, source: str, namespace: dict[str, Any]) -> None:
    """Execute a cell in `namespace`, with its lines known to tracebacks and `inspect` (so to `@triton.jit`)."""
    filename = CELL.format(name)
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(builtins.compile(source, filename, "exec", dont_inherit=True), namespace)


def call(entry: Callable, arguments: dict[str, Any]) -> Any:
    """Call a function with the arguments in order."""
    return entry(*arguments.values())


def session(entry: Callable, arguments: dict[str, Any]) -> list[Any]:
    """Build an object and call methods on it in turn: `{"init": [...], "steps": [[method, [argument, ...]], ...]}`.

    Returns one result a step. A step that raises ValueError gives a string that begins with that word, so that refusals
    can be asked for, and goes on with its place and message. An attribute that is not a method raises TypeError, and so
    does a method that returns an exception. A step without a method gives None. It builds another object beside, whose
    methods are called by names that begin with BESIDE, or turns the signs of the arguments of those steps that it
    names, which are their caller's.
    """
    instance = beside = entry(*arguments["init"])
    results = []
    for number, (method, values) in enumerate(arguments["steps"]):
        try:
            if not method:
                for earlier in values:
                    mapped(arguments["steps"][earlier][1], torch.Tensor.neg_)
                if not values:
                    beside = entry(*arguments["init"])
                results.append(None)
                continue
            owner, method = (beside if method.startswith(BESIDE) else instance), method.removeprefix(BESIDE)
            called = getattr(owner, method)
            if not callable(called):
                raise TypeError(_why_no_method(owner, method))
            result = called(*values)
            if isinstance(result, BaseException):
                raise TypeError(f"{method} returns a {type(result).__name__}: write raise in place of return")
            results.append(f"the text {result}" if isinstance(result, str) else result)  # no word stands for raising
        except ValueError as error:
            found = describe_error(error)
            place = in_words(**found["where"], own=getattr(entry, "__name__", "")) if found["where"] else ""
            results.append(f"ValueError{place}: {found['message'][:200]}")
        except BaseException as error:
            with suppress(AttributeError):
                error.step = number
            raise
    return results


def _why_no_method(instance: Any, name: str) -> str:
    if isinstance(getattr(type(instance), name, None), property | functools.cached_property):
        return f"the decorator above {name} makes it an attribute, expected a method: leave the decorator out"
    return f"self.{name} hides the method {name}: store it under another name"


def in_words(line: Any, cell: str, source: str, own: str) -> str:
    """Return a place in words, with its cell unless that is the exercise's `own`, and its line if known."""
    theirs = "a cell of your own" if re.fullmatch(r"own-\d+", cell) else f"cell {cell}"
    place = f" in line {line}" + (f" of {theirs}" if cell not in ("", own) else "")
    return f"{place} (`{source}`)" if source else place


DRIVERS: dict[str, Callable[[Callable, dict[str, Any]], Any]] = {"call": call, "session": session}


def entry_of(request: dict[str, Any], send: Callable[[bytes], None]) -> Callable | None:
    """Run the program and return what it defines as the entry; None, and a message sent, if there is none."""
    namespace = new_namespace()
    apart: dict[str, Any] | None = None
    for cell in request["program"]:
        try:
            with stopped_in_time():
                if cell["gives"]:
                    apart = dict(namespace) if apart is None else apart
                    run_cell(cell["name"], cell["source"], apart)
                    namespace[cell["gives"]] = apart[cell["gives"]]
                else:
                    run_cell(cell["name"], cell["source"], namespace)
        except BaseException as error:
            send(wire.encode({"event": "cell", "cell": cell["name"], "error": describe_error(error)}))
            if cell["required"] or TIME_IS_UP in said_by(error):
                return None
    entry = namespace.get(request["entry"])
    if not callable(entry):
        send(wire.encode({"event": "missing"}))
        return None
    return entry


def case(request: dict[str, Any], message: dict[str, Any], entry: Callable, arguments: dict[str, Any]) -> bytes:
    """Call the entry; return the message of the case: its result or what was raised, and what changed.

    Before the first of all it is called with other floats in the same shapes, so that it shows what is kept of them.
    """
    given, result = copied(arguments), None
    try:
        if message["index"] == 0 and any(tensor.dtype in FLOATS for tensor in tensors_in(arguments)):
            with stopped_in_time(), unheeded(), forbidding(request["forbidden"]):
                DRIVERS[request["driver"]](entry, copied(earlier(arguments, SHARE)))
        with stopped_in_time(), forbidding(request["forbidden"]), counting(*request.get("counted", ())) as calls:
            result = DRIVERS[request["driver"]](entry, arguments)
        said = {"result": result, "calls": calls, "changed": changed(given, arguments)}
        return wire.encode({**message, **said})
    except wire.WireError as error:
        found = {"unsupported": wire.refusal(error, result)}
    except BaseException as error:
        found = {"error": describe_error(error)}
    return wire.encode({**message, **found, "changed": changed(given, arguments)})


@contextmanager
def counting(cell: str = "", function: str = "", argument: str = "", filename: str = "") -> Iterator[list[list[int]]]:
    """Note the numbers in an argument of each call of a cell's function, whatever name it is called by.

    `filename` is where the function was compiled, if not as that cell.
    """
    calls: list[list[int]] = []
    place = filename or CELL.format(cell), function

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and (frame.f_code.co_filename, frame.f_code.co_name) == place:
            calls.append(torch.as_tensor(frame.f_locals[argument]).long().flatten().tolist())

    before = sys.getprofile()
    if cell:
        sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)


class ForbiddenCall(RuntimeError):
    """An operation that the exercise asks the student to write was called instead."""


def forbidden_word(name: str, words: Iterable[str]) -> str | None:
    """Return which of the words stands in an operation's name, whole: `cat` does in `_chunk_cat`, not in `scatter`."""
    return next((word for word in words if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", name)), None)


def _refuse(name: str, forbidden: tuple[str, ...], by: str = "") -> None:
    if forbidden_word(name, forbidden):
        named, by = name.strip("_"), by.strip("_")
        called = f"{by}, which calls {named}" if by and by != named else named
        raise ForbiddenCall(f"this exercise may not call {called}: write it out")


class _ForbidFunction(TorchFunctionMode):
    """Sees functions as they are called in Python, before torch takes them apart."""

    def __init__(self, forbidden: tuple[str, ...]):
        super().__init__()
        self.forbidden = forbidden
        self.called = ""  # what the student wrote, of which operators are parts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        _refuse(name, self.forbidden)
        outer, self.called = self.called, name
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.called = outer


class DispatchMode(TorchDispatchMode):
    """A mode that torch does not keep from its compiler: to do so it would import that, which takes seconds."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class _ForbidOperator(DispatchMode):
    """Sees operators as they run, however they were reached."""

    def __init__(self, functions: _ForbidFunction):
        super().__init__()
        self.functions = functions

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        _refuse(func.overloadpacket.__name__, self.functions.forbidden, self.functions.called)
        return func(*args, **(kwargs or {}))


@contextmanager
def forbidding(words: list[str] | tuple[str, ...]) -> Iterator[None]:
    """Raise ForbiddenCall when a torch function or operator of which the name has one of `words` is called."""
    if not words:
        yield
        return
    with _ForbidFunction(tuple(words)) as functions, _ForbidOperator(functions):
        yield


@contextmanager
def stopped_after(seconds: float, clock: int = signal.ITIMER_REAL) -> Iterator[None]:
    """Raise TimeoutError in the body of a `with` when its time is up; without effect beside the main thread.

    Where a `with` of ours begins or ends just then, it first does so: half done it would last beyond the call.
    `clock` may be signal.ITIMER_PROF, the time that the process has of the processor. Else it is this thread's share of
    the processor, up to `PATIENCE` times as many seconds by the clock.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    began, ends = time.thread_time(), time.monotonic() + PATIENCE * seconds

    def stop(_: int, frame: types.FrameType | None) -> None:
        left = min(seconds + began - time.thread_time(), ends - time.monotonic())
        if clock == signal.ITIMER_REAL and left > AGAIN:
            signal.setitimer(clock, left)
            return
        while frame is not None and not is_theirs(frame.f_code.co_filename):
            if frame.f_code.co_name in ("__enter__", "__exit__"):
                signal.setitimer(clock, AGAIN)
                return
            frame = frame.f_back
        raise TimeoutError(TIME_IS_UP)

    rings = signal.SIGPROF if clock == signal.ITIMER_PROF else signal.SIGALRM
    before = signal.signal(rings, stop)
    signal.setitimer(clock, seconds)
    try:
        yield
    finally:
        signal.setitimer(clock, 0.0)
        signal.signal(rings, before)


def stopped_in_time(share: float = 1.0) -> AbstractContextManager[None]:
    """Stop the body of a `with` (see `stopped_after`) when a share of what this process may use of the processor is."""
    limit, _ = resource.getrlimit(resource.RLIMIT_CPU)
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    left = share * (limit - LAST) - used if limit > 0 else 3600.0
    return stopped_after(max(left, SHORTEST), signal.ITIMER_PROF)


@contextmanager
def poisoned() -> Iterator[None]:
    """Let memory that torch hands out hold NaN, so that what a kernel does not write shows."""
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("warn")  # what else asks for it imports torch's compiler first
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)


def copied(value: Any) -> Any:
    """Return a copy of nested arguments, tensors included. Of gapped ones (see `layout`) the copy is dense."""
    return mapped(value, torch.clone)


def earlier(arguments: dict[str, Any], share: float = 1.0) -> dict[str, Any]:
    """Return arguments of an earlier call, of the same shapes: integers halved, a share of each float.

    Lengths, indices and offsets are valid that way, too.
    """

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype in INTEGERS:
            return tensor // 2
        return (tensor * share).to(tensor.dtype) if share != 1.0 and tensor.dtype in FLOATS else tensor

    return mapped(arguments, other)


@contextmanager
def unheeded() -> Iterator[None]:
    """Leave out what the body of a `with` raises, if it is not that the time was up."""
    try:
        yield
    except TimeoutError:
        raise
    except Exception:
        pass


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the arguments in which a call changed something in place."""
    return [name for name, value in before.items() if not _same(value, after[name])]


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, torch.Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        dense = (x.resolve_conj().contiguous().reshape(-1) for x in (before, after))
        return torch.equal(*(x.view(torch.uint8) for x in dense))  # bits: NaN is the same as NaN
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(v, after[k]) for k, v in before.items())
    if isinstance(before, list | tuple):
        return len(before) == len(after) and all(map(_same, before, after))
    return bool(before == after or (before != before and after != after))


NO_GPU = "no GPU grades here: leave this out"
# In place of messages of Python's, and of those of Triton's front end that speak of its insides, by what they and
# their line say
SENTENCES = (
    (r"^AssertionError: .*\bassert\b.*(\.is_cuda\b|['\"]cuda)", NO_GPU),
    (r"^TypeError: .*'NoneType'.*\bcuda\.(set_)?device\(", NO_GPU),  # of which a tensor on the CPU has no number
    (r"^SystemExit", "this ends the whole session: return a value, or raise an error"),
    (r"^AssertionError:  assert\b", "what this line asserts does not hold"),
    (
        r"HigherOrderOperator triton_kernel_wrapper",
        "torch.library.wrap_triton is not graded: launch the kernel itself, kernel[grid](...)",
    ),
    (
        r"'(int|float)' object is not (iterable|subscriptable)|cannot unpack non-iterable (int|float)",
        "one number stands where several belong: range(n) counts to n, (n,) is a tuple",
    ),
)
OF_KERNELS = (
    (r"^CompileTimeAssertionFailure: ?(?: |$)", "what this line asserts does not hold"),
    (
        r"warpgroup_mma_accumulator",
        "this product is under way: warpgroup_mma_wait(0, deps=(acc,)) returns the block that it makes",
    ),
    (r"is not string", 'the first argument of tl.device_print is a text: tl.device_print("x", x)'),
    (r"^AssertionError: .*\bsplit\(", "tl.split takes a block whose last axis has 2 elements, and returns two blocks"),
    (r"^AssertionError:  .*\bdot\(", "the accumulator of tl.dot has the product's shape, and dtype tl.float32"),
    (r"'\w+' object is not iterable", "shapes, strides and offsets are tuples, those of one axis too: (BLOCK,)"),
    (
        r"'str' object has no attribute '(to_ir|scalar|primitive_bitwidth)'|type object '\w+' has no attribute",
        "a dtype in a kernel is one of tl's: tl.float32",
    ),
    (r"`_semantic` argument must be provided.*\[", "an address is no list: tl.load(x_ptr + offsets, mask=mask)"),
    (r"'str' object has no attribute", "a string takes part in this: is an argument of the launch one?"),
    (r"'NoneType' object has no attribute", "None takes part in this: is it an argument of the launch or a result?"),
    (r"'Name' object has no attribute 'func'", "a loop in a kernel is over range(n) or tl.static_range(n)"),
    (r"'tensor' object has no attribute 'values'", "one value is unpacked into several names: take them one by one"),
    (
        r"unsupported tensor index",
        "a block has no elements to pick and no parts: load what is needed, or choose with tl.where; x[:, None] adds "
        "an axis",
    ),
    (r"Cannot evaluate f-string", 'a kernel prints by tl.device_print("x", x), with no values in the text'),
    (
        r"must be real number, not tensor|'tensor' has no len|argument must be a string.* not 'tensor'",
        "Python's own functions take no blocks: use those of tl, as tl.exp(x) or x.to(tl.float32)",
    ),
    (
        r"'constexpr' object has no attribute 'handle' while\b",
        "the condition of `while` is one that the kernel computes",
    ),
    (r"'constexpr_type' object has no attribute", "a number stands where a block belongs: tl.full makes one"),
    (r"'MatMult' object has no attribute", "a kernel has no @: write tl.dot(x, y)"),
    (
        r"'(int|float|bool)' object has no attribute '\w+'",
        "a number that is known when the kernel is translated has no methods, and Triton takes an argument of 1 for "
        "such a number: call them on what was loaded, or write tl.cast(n, tl.int64), which takes both",
    ),
    (r"'tuple' object has no attribute", "a list or tuple stands where one block belongs"),
    (
        r"cannot convert BoundJITMethod|'BoundJITMethod' object",
        "a method is named and not called: it lacks its parentheses",
    ),
    (r"cannot convert .* of type <class 'str'> to tensor", "a string stands where a number belongs"),
    (
        r"cannot convert .* of type <class '[\w.]*\.tuple'> to tensor",
        "a tuple or a shape stands where a number belongs: pass one of its numbers, as x.shape[1]",
    ),
    (r"'function' object has no attribute '(arg_names|fn)'", "this takes a function with @triton.jit"),
    (r"unsupported AST node type: (?!Raise)", "Triton's kernels have no such statement: use masks, tl.where, `while`"),
    (
        r"Cannot access global variable",
        "a kernel sees a constant of the notebook only as tl.constexpr: NAME = tl.constexpr(1e-6), or pass it",
    ),
    (r"^RuntimeError: Not implemented .*_ptr\.dtype", "this is the type of a pointer: x_ptr.dtype.element_ty is x's"),
    (r"got multiple values for argument '_semantic'", "this call has more arguments than the function takes"),
    (r"invalid function identifier", "Triton takes letters of English, digits and _ in a kernel's name: name it so"),
    (r"^\w+:  ", "Triton does not take this with these types and shapes"),
)
# What to do about errors of Triton's compiler that speak of its insides, by what they and their line say.
HINTS = (
    (
        r"Unsupported function referenced|must be Tensor, not tensor",
        "torch's functions take no blocks, nor do NumPy's: a kernel uses those of tl",
    ),
    (
        r"Boolean value of Tensor with more than one value|'scf\.condition' op operand #0",
        "a block is neither true nor false, and `if` and `while` want one number: choose by element with tl.where or a "
        "mask, or make one number of the block, as tl.max does",
    ),
    (
        r"PassManager::run failed",
        "Triton gives up on this kernel, as it does on block pointers in a `while` loop or given to a function that the"
        " compiler drops (take pointers and masks), tl.sum over a product of two blocks of 16 bits (take tl.dot), and"
        " loads and stores in a function of tl.map_elementwise (do them outside)",
    ),
    (
        r"simultaneous multiple comparison",
        "put each comparison into parentheses and join them by &, which binds more tightly: (0 <= x) & (x < n)",
    ),
    (r"num_warps must be a power of 2", "1, 2, 4, 8, 16 or 32"),
    (r"must be a power of 2", "triton.next_power_of_2(n) is the next one"),
    (
        r"(?<!between them)(?<!in the loop): nothing says which comes first",
        "do the offsets contain tl.program_id, and has each program places of its own?",
    ),
    (r"unsupported AST node type: Raise", "this kernel is not written yet"),
    (r"'function' object is not subscriptable .*\]\(", "is @triton.jit missing above the kernel?"),
    (r"^InterpreterError", "TRITON_INTERPRET asks for Triton's interpreter, which does not grade: leave that line out"),
    (r"outside of the scope of a kernel", "a launch has a grid, kernel[(programs,)](...)"),
    (
        r"must be of type tl\.constexpr",
        "declare it with its type, as in BLOCK: tl.constexpr, and leave out by a mask what is beyond the data",
    ),
    (r"Unsupported ptr type", "the first argument is an address: a pointer that the kernel is given, plus offsets"),
    (
        r"invalid operands of type pointer<.* triton\.language\.float",
        "an offset is a whole number: // in place of /; and a tensor of the launch is an address: pass a number, or "
        "tl.load it",
    ),
    (r"\b(np|numpy|math) is not defined", "a kernel has its functions from tl: tl.exp, tl.sqrt"),
    (r"triton\.language' has no attribute 'mean'", "tl.sum(x) / n is the mean"),
    (r"arange\(\) missing 1 required positional argument: 'end'", "it begins at 0: tl.arange(0, BLOCK)"),
    (r"program_id\(\) missing", "the grid's first axis: tl.program_id(0)"),
    (
        r"Shape element \d+ must have type",
        "a shape is known when the kernel is translated: of tl.constexpr arguments and of numbers",
    ),
    (
        r"Cannot make_shape_compatible.* tl\.store\(",
        "addresses, values and mask have one shape: x[:, None] adds an axis, and after tl.join tl.reshape takes the "
        "last two as one",
    ),
    (r"Cannot make_shape_compatible", "x[:, None] and x[None, :] say which axis is which"),
    (r"argument to have shape .* but got", "addresses, values and mask have one shape: x[None, :] adds an axis"),
    (
        r"Value argument cannot be block type",
        "a block takes as many addresses, out_ptr + tl.arange(0, BLOCK); tl.sum and tl.max make one number of it",
    ),
    (
        r"cannot reassign constexpr|changed type, was <class '\S+tensor'> but is now <class '\S+constexpr'>",
        "a helper whose result is used must return it, and one number is no block: tl.full makes one of it",
    ),
    (r"view size is not compatible", ".reshape makes a copy, and what is written into a copy is lost"),
    (r"no attribute '__r?pow__'", "a block has no **: write x * x"),
    (r"'tensor' object has no attribute", "a block has few methods: use the functions of tl"),
    (r"(CUDA enabled|NVIDIA driver|requires CUDA support|accelerator device when none).*\bsynchronize\(", NO_GPU),
    (
        r"CUDA enabled|NVIDIA driver|cudaGetDeviceCount|Expected a cuda device|dummy base class|requires CUDA support"
        r"|accelerator device when none|NVTX functions",
        "no GPU grades here: use the device of the arguments",
    ),
    (
        r"element -\d+ of .*, which holds \d{10}",
        "Offsets from 2³¹ on do not fit into 32 bits: make an index tl.int64 before it is multiplied",
    ),
)


def said_by(error: BaseException) -> str:
    """Return what an exception says; nothing, if saying it raises another."""
    try:
        return str(error)
    except Exception:
        return ""


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return the type, message and place of an exception: the last line of the student's own that it passed through.

    Where the time was up it is the last line of the cell that was called first: what a loop calls is not the loop.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_students(frame.filename)]
    if isinstance(error, TimeoutError) and said_by(error) == TIME_IS_UP:
        frames = [frame for frame in frames if frame.filename == frames[0].filename]
    where = _place(frames[-1].filename, frames[-1].lineno, frames[-1].line) if frames else None
    kind, message = type(error).__name__, error.msg if isinstance(error, SyntaxError) else said_by(error)
    if where is None and isinstance(error, SyntaxError):
        where = _place(error.filename, error.lineno, error.text)
    message = getattr(error, "said", message)  # of a kernel's fault, which knows its line
    where = _place(*error.at) if hasattr(error, "at") else where
    if hasattr(error, "error_message") and hasattr(error, "node"):
        kind, message, place = _compilation_error(error)
        where = place or where
    elif "Unsupported function referenced" in message:
        message, where = re.sub(r" at 0x\w+", "", message), _reference(error) or where
    said = f"{kind}: {message} {where['source'] if where else ''}"
    sentences = OF_KERNELS if hasattr(error, "node") else SENTENCES
    message = next((sentence for pattern, sentence in sentences if re.search(pattern, said)), message)
    message = message.removesuffix(" Use .reshape(...) instead.")
    message = _undecorated(said) or message
    hint = next((hint for pattern, hint in HINTS if re.search(pattern, said)), "") if message in said else ""
    message = (" " if message.endswith("?") else ": ").join(filter(None, (message.removesuffix("."), hint)))
    found = {"type": kind, "message": message[:2000], "where": where, "supplied": _supplied(error, said)}
    return found | {name: getattr(error, name) for name in ("kernel", "step") if hasattr(error, name)}


def _supplied(error: BaseException, said: str) -> list[str]:
    """Return what an error speaks of by its name that stands in the place of a student's own."""
    own = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_students(frame.f_code.co_filename)]
    names = own[-1].f_globals if own else {}
    return [
        name
        for name in sorted({*re.findall(r"\w+", said)} & names.keys())
        if AS_ASKED.format(name) in names or _is_reference(names[name])
    ]


def _is_reference(value: Any) -> bool:
    parts = [value, *vars(value).values()] if isinstance(value, type | types.FunctionType) else []
    files = [part.__code__.co_filename for part in parts if isinstance(part, types.FunctionType)]
    return any(is_theirs(name) and not is_students(name) for name in files)


def _undecorated(said: str) -> str:
    """Return a sentence on a function of a cell that a kernel calls without its being one of Triton's, if it is one."""
    match = re.search(r"Unsupported function referenced: <function (?:\w+\.)*(\w+)|global variable (\w+) from", said)
    name = match and (match[1] or match[2])
    own = (entry[2] for file, entry in list(linecache.cache.items()) if is_students(file) and len(entry) > 2)
    if not name or not any(line.startswith(f"def {name}(") for lines in own for line in lines):
        return ""
    return f"a kernel calls {name}, which is no function of kernels: write @triton.jit above its def"


def _compilation_error(error: BaseException) -> tuple[str, str, dict[str, Any] | None]:
    """Return what an error of Triton's front end says, and the last line of the student's own that it is about."""
    where, kind, message = None, type(error).__name__, ""
    while error is not None:
        if hasattr(error, "node"):
            where = _line_of(error.src, getattr(error.node, "lineno", 0)) or where
            message = error.error_message or message or (error.src if isinstance(error.node, str) else "")
        else:
            kind, message = type(error).__name__, said_by(error)
        error = error.__cause__
    if match := re.fullmatch(r"\w+\((['\"])(.*)\1,?\)", message, re.DOTALL):  # the repr of an exception
        message = match[2]
    return kind, " ".join(message.split()), where


def _reference(error: BaseException) -> dict[str, Any] | None:
    """Return the line in which a kernel names a function that is none of Triton's: Triton's own frames know it."""
    function, line = None, 0
    for frame, _ in traceback.walk_tb(error.__traceback__):
        names = frame.f_locals
        function = getattr(names.get("self"), "src", None) or function
        line = getattr(names.get("node"), "lineno", line)
    return _line_of(function, line) if isinstance(function, str) else None


def _line_of(function: str | None, line: int) -> dict[str, Any] | None:
    """Return the place of a line of a function's source, which is looked for in the cells."""
    for name, entry in list(linecache.cache.items()):
        if not function or len(entry) < 3 or not is_theirs(name) or name.endswith(f"{REFERENCE}>"):
            continue
        if (at := "".join(entry[2]).find(function.rstrip())) >= 0:
            number = "".join(entry[2]).count("\n", 0, at) + line
            return _place(name, number, entry[2][number - 1])
    return None


def is_theirs(filename: str) -> bool:
    """Return whether code is a cell's: of a program, of Jupyter's kernel, of IPython's (as in Colab)."""
    return filename.startswith("<cell ") or "ipykernel_" in filename or "ipython-input-" in filename


def is_students(filename: str) -> bool:
    """Return whether code is a cell's, and none that was supplied: a supplied solution is not shown."""
    return is_theirs(filename) and not filename.endswith(f"{REFERENCE}>")


def cell_of(filename: str | None) -> str:
    """Return the name of the cell that code is of, in a program of ours; "" elsewhere."""
    return filename[6:-1] if filename and filename.startswith("<cell ") else ""


def _place(filename: str | None, line: int | None, source: str | None) -> dict[str, Any]:
    return {"cell": cell_of(filename), "line": line or 0, "source": (source or "").strip()[:200]}
