"""The autograder of a course: lessons read, answers judged, kernels proved and timed, classes graded."""

import sys
from importlib import import_module
from typing import Any

# nbformat's jsonschema would make a parser of IRIs from its grammar, which takes longer than all other imports but
# torch, for a format that no notebook's schema has.
sys.modules.setdefault("rfc3987_syntax", None)

_MODULE_OF = {"check": "checking", "check_speed": "checking"}  # loaded when first used
__all__ = ["check", "check_speed"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
