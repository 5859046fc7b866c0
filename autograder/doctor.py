"""Look at the machine: what is there, what is missing, what follows."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass

import torch

from autograder.isolation.sandbox import default_isolation


@dataclass(frozen=True)
class Finding:
    """One thing looked at; `status` is "ok", "note" (works with less) or "missing" (does not work)."""

    status: str
    subject: str
    detail: str


def examine() -> list[Finding]:
    """Return what was found."""
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    detail = platform.python_version() + ("" if supported else ": 3.11 to 3.13 are supported")
    findings = [Finding("ok" if supported else "missing", "Python", detail), _torch()]
    findings += [_package("triton", "exercises on kernels need it; it exists for Linux")]
    findings += [_package("jupyterlab", "notebooks: pip install 'mla-course[lab]'")]
    findings += [_package("nbgrader", "grading: pip install 'mla-course[grading]'")]
    return [*findings, _isolation()]


def describe_device() -> str:
    """Return in a sentence what kernels run on here, and which 16-bit type that takes."""
    if not torch.cuda.is_available():
        return "No GPU: kernels are emulated on the CPU, and their speed is modelled."
    name, old = torch.cuda.get_device_name(), torch.cuda.get_device_capability() < (8, 0)
    return f"{name}: kernels run on it, " + (
        "in float16, as it has no bfloat16." if old else "in float16 and bfloat16."
    )


def _torch() -> Finding:
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU only"
    return Finding("ok", "PyTorch", f"{torch.__version__}, {where}")


def _package(name: str, need: str) -> Finding:
    try:
        return Finding("ok", name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding("note", name, f"not installed; {need}")


def _isolation() -> Finding:
    if default_isolation() == "bubblewrap":
        return Finding(
            "ok", "isolation", "bubblewrap: submissions run without network, files or other processes in sight"
        )
    detail = "process limits only, so `grade` refuses strangers' code: run `apt install bubblewrap`"
    return Finding("note", "isolation", detail)
