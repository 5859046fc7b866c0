"""The autograder: exercise specs, the check in the notebook, the judge, the nbgrader plug-in, the command line."""

from typing import Any

__all__ = ["check"]


def __getattr__(name: str) -> Any:
    if name != "check":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autograder.checking import check

    return check
