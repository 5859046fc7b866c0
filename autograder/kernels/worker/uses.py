"""What Triton takes a kernel for when it is launched: its source, and what the names that it reads stand for."""

from __future__ import annotations

import dis
import functools
import importlib
import math
import types
from collections.abc import Iterator
from typing import Any

from autograder.isolation.worker.running import cell_of, is_theirs

LONGEST, MOST = 1000, 16  # characters of a text, texts of a value
MODULES = {
    "tl": "triton.language",
    "tl.math": "triton.language.math",
    "gl": "triton.experimental.gluon.language",
    "gluon": "triton.experimental.gluon",
    "hopper": "triton.experimental.gluon.language.nvidia.hopper",
    "hopper.mbarrier": "triton.experimental.gluon.language.nvidia.hopper.mbarrier",
    "hopper.tma": "triton.experimental.gluon.language.nvidia.hopper.tma",
    "math": "math",
    "triton": "triton",
}
NOWHERE = object()


def uses(kernel: Any) -> Iterator[dict[str, Any]]:
    """Yield these of a kernel and each of its helpers.

    A value is given by the texts that stand for it: "1.0", or "tl.exp" and "tl.math.exp". Names of Triton's and
    Python's own are there if they stand for something else than they did.
    """
    changed = {}
    for short, before in originals().items():
        now = vars(_modules()[short])
        changed |= {f"{short}.{n}": _texts(now.get(n, NOWHERE)) for n in before if now.get(n, NOWHERE) is not before[n]}
    waiting, seen = [kernel], []
    while waiting:
        function = waiting.pop()
        if any(function is each for each in seen):
            continue
        seen.append(function)
        names = {name: function.__globals__.get(name, NOWHERE) for name in _reads(function.fn.__code__)}
        yield {
            "kernel": kernel.fn.__name__,
            "function": function.fn.__name__,
            "defined": definition(function),
            "source": function.src,
            "names": {name: _texts(value) for name, value in names.items()} | changed,
            "defaults": {name: _texts(value) for name, value in _defaults(function.fn)},
        }
        waiting += [value for value in names.values() if _is_own(value)]


def definition(function: Any) -> list[Any]:
    """Return the cell that defines a kernel, where the judge runs it, and the line in which it begins."""
    return [cell_of(function.fn.__code__.co_filename), function.fn.__code__.co_firstlineno]


def function_text(cell: str, line: int) -> str:
    """Return the text that stands for a function by its definition."""
    return f"the function in line {line} of cell {cell}"


@functools.cache
def originals() -> dict[str, dict[str, Any]]:
    """Return what each of `MODULES` offers; asked first before a program runs."""
    return {short: {n: x for n, x in vars(each).items() if n[0] != "_"} for short, each in _modules().items()}


@functools.cache
def _paths() -> dict[int, list[str]]:
    """Return by identity the names of what `originals` keeps."""
    found: dict[int, list[str]] = {}
    for short, offered in originals().items():
        for n, value in offered.items():
            found.setdefault(id(value), []).append(f"{short}.{n}")
    return found


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    return {short: importlib.import_module(module) for short, module in MODULES.items()}


@functools.lru_cache(maxsize=256)
def _reads(code: types.CodeType) -> frozenset[str]:
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname == "LOAD_GLOBAL")


def _defaults(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    given, code = function.__defaults__ or (), function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _is_own(value: Any) -> bool:
    from triton.runtime.jit import JITFunction

    return isinstance(value, JITFunction) and is_theirs(value.fn.__code__.co_filename)


def _texts(value: Any) -> list[str]:
    while type(value).__name__ == "constexpr":
        value = value.value
    if _is_own(value):
        return [function_text(*definition(value))]
    if isinstance(value, types.ModuleType):
        return [short for short, module in _modules().items() if module is value] or [f"the module {value.__name__}"]
    if type(value) is tuple:
        return [f"({''.join(f'{_texts(each)[0]}, ' for each in value)})"[:LONGEST]]
    texts = []
    if isinstance(value, float) and not math.isfinite(value):
        texts = [f"float('{value}')"]
    elif value is None or isinstance(value, bool | int | float | str):
        texts = [repr(value)[:LONGEST]]
    texts += _paths().get(id(value), ())
    return texts[:MOST] or ["unbound" if value is NOWHERE else f"a {type(value).__name__}"]
