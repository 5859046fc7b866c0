"""A digest of the code that decides a verdict: some files, what they import of ours, and what that imports in turn.

Comments and layout decide nothing and do not count. Other people's packages count by their versions, elsewhere.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from autograder.judging.program import parse, parsed

OWN = ("autograder", "mla_ref")


def digest(files: Iterable[Path], packages: Sequence[str] = OWN) -> str:
    """Return a digest of these files and all that they import of these packages, directly or not."""
    found = transitive(files, packages)
    contents = sorted(_content(path, path.stat().st_mtime_ns) for path in found)  # wherever the files lie
    return hashlib.sha256("".join(contents).encode()).hexdigest()


def transitive(files: Iterable[Path], packages: Sequence[str] = OWN) -> set[Path]:
    """Return the files, and those of the packages, or beside them, that they import, directly or not."""
    packages, found = tuple(packages), set()
    waiting = [path.resolve() for path in files]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            if path.suffix == ".py":
                waiting += _imports(path, path.stat().st_mtime_ns, packages)
    return found


@functools.cache
def _content(path: Path, _modified: int) -> str:
    """Return a digest of one file's content."""
    text = path.read_text()
    return hashlib.sha256((ast.dump(parse(text)) if path.suffix == ".py" else text).encode()).hexdigest()


@functools.cache
def _imports(path: Path, _modified: int, packages: tuple[str, ...]) -> tuple[Path, ...]:
    return imported(path.read_text(), packages, path)


@functools.lru_cache(4096)
def imported(source: str, packages: tuple[str, ...], path: Path | None = None) -> tuple[Path, ...]:
    """Return the files of these packages that a source imports itself; and those beside it, if it lies at `path`.

    What does not parse imports nothing if it is from outside. SyntaxError for a file of ours.
    """
    tree = parse(source) if path else parsed(source)
    if tree is None:
        return ()
    found: list[Path] = []
    asked: dict[str, set[str]] = {}  # of each module, the names; "" for itself
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                asked.setdefault(alias.name, set()).add("")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            asked.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and path is not None:
            folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                found += [*_file(folder), *_file(folder / alias.name)]
    for module, names in asked.items():
        found += _reached(module, names, packages)
    return tuple(dict.fromkeys(found))


def _reached(module: str, names: set[str], packages: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files that an import of these names from a module runs: also those of the packages above."""
    top, *rest = module.split(".")
    if top not in packages or not (files := _files(top)):
        return
    deepest = max(map(len, files))  # a name from outside may have any length and depth
    lazily = _lazily(module, packages)
    wanted = {lazily.get(name, name) for name in names}
    if "" in names:
        wanted.update(lazily.values())  # any of them may be asked for
    for name in ("", *wanted):
        parts = (*rest[:deepest], *name.split("."))
        for depth in range(min(len(parts), deepest) + 1):
            if parts[:depth] in files:
                yield files[parts[:depth]]


def _files(package: str) -> dict[tuple[str, ...], Path]:
    """Return the file of each module of a package by the parts of its name behind the package's; {} if there is none."""
    spec = importlib.util.find_spec(package)
    return {} if spec is None or spec.origin is None else _listed(Path(spec.origin).resolve())


@functools.cache
def _listed(origin: Path) -> dict[tuple[str, ...], Path]:
    if origin.name != "__init__.py":
        return {(): origin}
    files = sorted(file for file in origin.parent.rglob("*.py") if file.name != "__init__.py")
    found = {file.relative_to(origin.parent).with_suffix("").parts: file.resolve() for file in files}
    packages = origin.parent.rglob("__init__.py")  # a package goes before a module of its name
    return found | {file.parent.relative_to(origin.parent).parts: file.resolve() for file in packages}


def _lazily(name: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Return, of a package that loads names when they are used, the module of each."""
    if name not in packages or importlib.util.find_spec(name) is None:
        return {}
    return getattr(importlib.import_module(name), "_MODULE_OF", {})


def _file(path: Path) -> list[Path]:
    """Return the file of a module or package at that path without its suffix; none if there is none."""
    candidates = (path / "__init__.py", path.with_name(f"{path.name}.py"))
    return [each.resolve() for each in candidates if each.is_file()]
