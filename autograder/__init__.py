"""The autograder: exercise specs, the checks in the notebook, the judge, the nbgrader plug-in, the command line."""

from typing import Any

__all__ = ["check", "check_speed"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autograder import checking

    return getattr(checking, name)
