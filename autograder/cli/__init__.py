"""The command line `mla-course`. Exit status: 0 fine, 1 problems were found, 2 it could not run, 130 after Ctrl-C.

Nothing is loaded before `main` has seen to it that Ctrl-C, and text, are what the rest takes them for.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

STOPPED = 130  # the exit status after Ctrl-C, of which typer says nothing
NO_FOLDER = "mla-course: the folder that you are in was removed: change to another, and run the command again"


def main() -> None:
    """Run the command line."""
    _complete_streams()
    if sys.getfilesystemencoding() != "utf-8":
        from autograder.text import NO_UTF8

        print(NO_UTF8.format(sys.getfilesystemencoding()), file=sys.stderr)
        sys.exit(2)
    try:
        os.getcwd()
    except FileNotFoundError:  # else PyTorch's libraries are not found either
        print(NO_FOLDER, file=sys.stderr)
        sys.exit(2)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    run = import_module("autograder.cli.commands").run
    signal.signal(signal.SIGINT, before)
    run()


def _complete_streams() -> None:
    """Have the streams that this process was started without be there, and take any character."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # the next file would take its place
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _leave(*_: Any) -> NoReturn:
    """End at once what has only begun to load: KeyboardInterrupt is swallowed where C code imports."""
    os.write(2, b"mla-course: stopped\n")
    os._exit(STOPPED)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("autograder.cli.commands").app
