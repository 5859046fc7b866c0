"""Cut from a notebook the program that one exercise needs: set-up, the right predecessors, the student's own names.

The solution cell of the exercise runs whole. From the student's other cells only those top-level statements run that
bind a name the solution reads, directly or through another such statement, so an exploring cell that is broken, slow or
merely plots costs nothing. Omitted lines are left blank: line numbers in tracebacks are those of the notebook.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from IPython.core.inputtransformer2 import TransformerManager

BINDING = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Try),
)
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


@dataclass(frozen=True)
class Cell:
    """A code cell that runs: its name in messages, its source, and whether the program ends if it fails."""

    name: str
    source: str
    required: bool = False


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
    given = set().union(*(names_bound(cell.source) for cell in trusted), dir(builtins))
    cells = [Cell(cell.name, without_magics(cell.source), cell.required) for cell in own]
    main = Cell(solution.name, without_magics(solution.source), required=True)
    helpers = [cell for cell in cells if cell.name != main.name]
    picked = _pick(helpers, _reads(main.source) - names_bound(main.source) - given, given)
    student = [main if cell.name == main.name else picked.get(cell.name) for cell in cells]
    return [*trusted, *(cell for cell in student if cell is not None)]


def _pick(cells: Sequence[Cell], needed: set[str], given: set[str]) -> dict[str, Cell]:
    """Return, by name, the cells reduced to the statements that bind the needed names and what those need in turn."""
    statements = {cell.name: _statements(cell.source) for cell in cells}
    chosen: dict[str, set[_Statement]] = {name: {s for s in found if s.star} for name, found in statements.items()}
    needed, wanted = set(needed), set()
    while needed - wanted:
        wanted |= needed
        for name, found in statements.items():
            for statement in found:
                if statement.binds & wanted and statement not in chosen[name]:
                    chosen[name].add(statement)
                    needed |= statement.reads - given
    return {cell.name: Cell(cell.name, _keep(cell.source, chosen[cell.name])) for cell in cells if chosen[cell.name]}


def _keep(source: str, statements: Iterable[_Statement]) -> str:
    kept = {line for s in statements for line in range(s.first, s.last + 1)}
    return "\n".join(text if n in kept else "" for n, text in enumerate(source.split("\n"), start=1))


def _statements(source: str) -> list[_Statement]:
    """Return the top-level statements that bind names; those that share a line count as one."""
    try:
        body = ast.parse(source).body
    except PARSE_ERRORS:
        return []
    spans: list[list[int]] = []
    stars: set[int] = set()
    for node in body:
        if not isinstance(node, BINDING):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], node.end_lineno or first)
        else:
            spans.append([first, node.end_lineno or first])
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            stars.add(spans[-1][0])
    lines = source.split("\n")
    found = []
    for first, last in spans:
        text = "\n".join(lines[first - 1 : last])
        found.append(_Statement(first, last, frozenset(names_bound(text)), frozenset(_reads(text)), first in stars))
    return found


def names_bound(source: str) -> set[str]:
    """Return the names that a cell binds at its top level; none if it does not parse."""
    table = _symbols(source)
    return {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()} if table else set()


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


def without_magics(source: str) -> str:
    """Return a cell's source with IPython's magics and shell lines left blank; as it is where that cannot be told."""
    if not any(mark in source for mark in "%!?"):
        return source
    try:
        plain = TransformerManager().transform_cell(source).removesuffix("\n")
        body = ast.parse(plain).body
    except PARSE_ERRORS:
        return source
    lines = plain.split("\n")
    for node in body:
        if isinstance(node, ast.Expr) and "get_ipython()" in lines[node.lineno - 1]:
            for n in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[n - 1] = ""
    return "\n".join(lines)
