"""Triton's interpreter, without work that it does again and again.

It patches the language at each launch, and again for every function that a kernel calls, `tl.sum` among them: a third
of its time. It widens integers to look for overflows, and reports none; and it builds a table for each type it names.

One thing it lets pass is refused: to it every block is true, so that an `if` on one would be taken.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from autograder.worker import running


@contextmanager
def patched_once() -> Iterator[None]:
    """Let launches in the body of a `with` patch each module of the language once, and take it all back at the end."""
    from triton.language import tensor
    from triton.runtime import interpreter

    patch_language, named = interpreter._patch_lang, interpreter._get_np_dtype
    builder = interpreter.interpreter_builder
    options, patched, scopes = builder.options, set(), []
    kept = SimpleNamespace(restore=lambda: None)

    def patch(function: Any) -> Any:
        modules = frozenset(id(value) for value in function.__globals__.values() if inspect.ismodule(value))
        if modules not in patched:
            patched.add(modules)
            scopes.append(patch_language(function))
            scopes[-1].set_attr(tensor, "__bool__", _truth(tensor.__bool__))
        return kept

    types: dict[str, Any] = {}

    def type_of(dtype: Any) -> Any:
        if dtype.name not in types:
            types[dtype.name] = named(dtype)
        return types[dtype.name]

    interpreter._patch_lang, interpreter._get_np_dtype = patch, type_of
    builder.options = dataclasses.replace(options, sanitize_overflow=False)
    try:
        yield
    finally:
        interpreter._patch_lang, interpreter._get_np_dtype = patch_language, named
        builder.options = options
        for scope in reversed(scopes):
            scope.restore()


def _truth(original: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def truth(block: Any) -> bool:
        asked_by = sys._getframe(1).f_code.co_filename  # Triton's own functions may ask
        shape = list(block.handle.data.shape)
        if block.handle.data.size > 1 and running.is_theirs(asked_by):
            raise TypeError(
                f"a block of {shape} is neither true nor false: choose by element with tl.where or a mask (& for and), "
                f"or make one number of it, as tl.max does"
            )
        return original(block)

    return truth
