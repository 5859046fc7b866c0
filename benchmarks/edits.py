"""Kernels with their text edited: what a step takes that is taken back, or what a tool says of another form."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Edits = Sequence[tuple[str, str]]


def edited(text: str, edits: Edits, name: str) -> ModuleType:
    """Return the module of a text with edits, each of which must find its place."""
    for old, new in edits:
        if old not in text:
            raise ValueError(f"{name}: the text no longer has {old!r}")
        text = text.replace(old, new)
    path = Path(tempfile.mkdtemp(prefix="steps-")) / "edited.py"
    for here, package in ((r"\.\.", "mla_ref."), (r"\.(?=\w)", "mla_ref.kernels."), (r"\. ", "mla_ref.kernels ")):
        text = re.sub(f"^from {here}", f"from {package}", text, flags=re.MULTILINE)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(f"edited_{abs(hash(name))}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_kernel(launcher: ModuleType, edits: Edits, name: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Return what has a call of ours start a kernel of which the text is edited."""
    path = Path(launcher.__file__)
    module = edited(path.with_name(f"_{path.name}").read_text(), edits, name)

    def change(call: Callable[..., Any]) -> Callable[..., Any]:
        def run() -> Any:
            before, launcher._gluon = launcher._gluon, lambda: module
            try:
                return call()
            finally:
                launcher._gluon = before

        return run

    return change
