"""Cut from a notebook the program that one exercise needs: set-up, the right predecessors, the student's own names.

The solution cell of the exercise runs whole. From the student's other cells only those top-level statements run that
bind a name the solution reads, or an item or attribute of one, directly or through another such statement, so an
exploring cell that is broken, slow or merely plots costs nothing. Omitted lines are left blank: line numbers in
tracebacks are those of the notebook.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import symtable
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BINDING = (
    *DEFINING,
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Try, ast.For, ast.While, ast.With, ast.Match),
)
BUILTINS = frozenset(dir(builtins))
MAGIC = re.compile(r"\s*(?:[%!?]|[\w, .]+=\s*[%!]|.*\?\s*$)")
RUNS_ITS_BODY = ("time", "timeit", "capture", "prun")
MAX_MAGICS = 100
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Cell:
    """A code cell that runs: its name in messages, its source, and whether the program ends if it fails.

    A cell that `gives` a name runs in a namespace of its own: of all it binds, the program sees that name alone.
    """

    name: str
    source: str
    required: bool = False
    gives: str = ""


@dataclass(frozen=True)
class _Statement:
    first: int
    last: int
    binds: frozenset[str]
    reads: frozenset[str]
    star: bool


def build_program(setup: Sequence[Cell], references: Sequence[Cell], own: Sequence[Cell], solution: Cell) -> list[Cell]:
    """Return the cells to run, in order: set-up, references, then the student's in the order of the notebook.

    Parameters
    ----------
    setup, references
        Trusted cells: the lesson's set-up, and solutions of the exercises that this one needs.
    own
        The student's code cells in order, `solution` among them: cells of one name are the same cell.
    """
    trusted = [*setup, *references]
    given = {name for cell in trusted for name in ([cell.gives] if cell.gives else names_bound(cell.source))}
    cells = [Cell(cell.name, without_magics(cell.source), cell.required) for cell in own]
    main = Cell(solution.name, without_magics(solution.source), required=True)
    helpers = [cell for cell in cells if cell.name != main.name]
    picked = _pick(helpers, _reads(main.source) - names_bound(main.source) - given, given)
    student = [main if cell.name == main.name else picked.get(cell.name) for cell in cells]
    return [*trusted, *(cell for cell in student if cell is not None)]


def _pick(cells: Sequence[Cell], needed: set[str], given: set[str]) -> dict[str, Cell]:
    """Return, by name, the cells reduced to the statements that bind the needed names and what those need in turn."""
    chosen: dict[str, set[_Statement]] = {}
    binders: dict[str, list[tuple[str, _Statement]]] = defaultdict(list)
    for cell in cells:
        found = _statements(cell.source)
        chosen[cell.name] = {s for s in found if s.star}
        for statement in found:
            for name in statement.binds:
                binders[name].append((cell.name, statement))
    seen, waiting = set(needed), list(needed)
    while waiting:
        for cell_name, statement in binders[waiting.pop()]:
            chosen[cell_name].add(statement)
            fresh = statement.reads - given - seen
            seen |= fresh
            waiting += fresh
    return {cell.name: Cell(cell.name, _keep(cell.source, chosen[cell.name])) for cell in cells if chosen[cell.name]}


def _keep(source: str, statements: Iterable[_Statement]) -> str:
    kept = {line for s in statements for line in range(s.first, s.last + 1)}
    return "\n".join(text if n in kept else "" for n, text in enumerate(source.split("\n"), start=1))


@functools.lru_cache(maxsize=256)
def _statements(source: str) -> tuple[_Statement, ...]:
    """Return the top-level statements that bind names; those that share a line count as one."""
    try:
        body = ast.parse(source).body
    except PARSE_ERRORS:
        return ()
    groups: list[tuple[int, int, list[ast.stmt]]] = []
    for node in body:
        if not isinstance(node, BINDING):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last, nodes = node.end_lineno or first, [node]
        if groups and first <= groups[-1][1]:
            first, before, earlier = groups.pop()
            last, nodes = max(last, before), [*earlier, *nodes]
        groups.append((first, last, nodes))
    lines = source.split("\n")
    return tuple(_statement(first, last, nodes, "\n".join(lines[first - 1 : last])) for first, last, nodes in groups)


def _statement(first: int, last: int, nodes: Sequence[ast.stmt], text: str) -> _Statement:
    binds = names_bound(text).union(*map(_changed, nodes))
    if not any(isinstance(node, DEFINING) for node in nodes):
        binds -= BUILTINS  # `sum = 0` in an exploring cell, not `def sum` in a helper's
    star = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in nodes)
    return _Statement(first, last, frozenset(binds), frozenset(_reads(text)), star)


def _changed(node: ast.AST) -> Iterator[str]:
    """Yield the names of which a statement sets an item or an attribute."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
            while isinstance(node, ast.Attribute | ast.Subscript):
                node = node.value
            if isinstance(node, ast.Name):
                yield node.id
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def names_bound(source: str) -> set[str]:
    """Return the names that a cell binds at its top level; none if it does not parse."""
    table = _symbols(source)
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()} if table else set()


def is_broken(source: str) -> bool:
    """Return whether a cell does not parse."""
    return _symbols(without_magics(source)) is None


def _reads(source: str) -> set[str]:
    """Return the global names that a cell reads, in functions and classes too."""
    found: set[str] = set()
    tables = [table] if (table := _symbols(source)) else []
    while tables:
        table = tables.pop()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
        tables += table.get_children()
    return found


def _symbols(source: str) -> symtable.SymbolTable | None:
    try:
        return symtable.symtable(source, "<cell>", "exec")
    except PARSE_ERRORS:
        return None


@functools.lru_cache(maxsize=256)
def without_magics(source: str) -> str:
    """Return a cell as the Python that IPython would run, line by line: magics and shell lines become `pass`.

    A cell that is indented as a whole moves to the left. What is no Python even so is left to fail.
    """
    lines = source.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return source
    if lines[first].startswith("%%"):
        if lines[first][2:].split(" ")[0] not in RUNS_ITS_BODY:
            return "\n" * (len(lines) - 1)
        lines[first] = ""
    indent = re.match(r"\s*", next((line for line in lines if line.strip()), "")).group()
    lines = [line.removeprefix(indent) for line in lines]
    for _ in range(MAX_MAGICS):
        try:
            ast.parse("\n".join(lines))
            break
        except SyntaxError as error:
            n = (error.lineno or 0) - 1
            if not 0 <= n < len(lines) or not MAGIC.match(lines[n]):
                break
            goes_on = lines[n].endswith("\\")
            lines[n] = re.match(r"\s*", lines[n]).group() + "pass"
            while goes_on and n + 1 < len(lines):
                n += 1
                goes_on, lines[n] = lines[n].endswith("\\"), ""
        except PARSE_ERRORS:
            break
    return "\n".join(lines)
