"""Stands in for `autograder` inside the sandbox: cells that import or call `check` run, and nothing is checked."""


def check(name: str, **options) -> None:
    """Do nothing: the verdict is reached elsewhere."""


def check_speed(name: str, **options) -> None:
    """Do nothing: the verdict is reached elsewhere."""


def progress() -> None:
    """Do nothing: there is nothing to show."""
