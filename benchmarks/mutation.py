"""Do the cases of each exercise notice a small fault? Mutants of the lessons' solutions, judged on their answers.

    PYTHONPATH=. .venv/bin/python benchmarks/mutation.py [LESSON or EXERCISE ...] [--most N]

A mutant is a solution with one change: an operator, a bound, a number, a mask, a dtype, an axis, an order of arguments,
a line left out. It is killed if it loses a point. One that computes the same as the solution, or something that the
exercise leaves open, is equivalent: it stands with its reason in `equivalent_mutants.toml`, by the statement before and
after the change. Everything else that survives is a case that is missing. `--most` takes so many of each exercise,
evenly spread. The record is written after each lesson that was judged whole; the others keep their lines.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import multiprocessing
import os
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import record

from autograder.course.lesson import without_marks
from autograder.judging.program import parse
from autograder.judging.verdict import Outcome
from tests.attacks.test_attacks import COURSE, Entry

EQUIVALENT = record.FOLDER / "equivalent_mutants.toml"

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "sum": "max",
    "exp": "exp2",
    "log": "log2",
    "float32": "float16",
    "float64": "float32",
    "int64": "int32",
    "zeros": "empty",
    "zeros_like": "empty_like",
}
CASTS = ("to", "float", "double", "long", "clone", "contiguous")
IN_ANY_ORDER = ("min", "max", "minimum", "maximum")
OPTIONS = ("num_warps", "num_stages", "maxnreg")  # which change no answer
LEFT_OUT = ("mask", "other")


@dataclass(frozen=True)
class Mutant:
    """A changed solution: the cell, and the statement before and after."""

    exercise: str
    cell: str
    before: str
    after: str


def mutants(exercise: str, cell: str) -> list[Mutant]:
    """Return the mutants of a solution, in the order of its lines."""
    tree = parse(cell)
    whole = ast.unparse(tree)
    found = {}
    for statement, parent, field, index, new in changes(tree):
        before = _line(statement)
        held = getattr(parent, field)
        old = held if index is None else held[index]
        _put(parent, field, index, new)
        after, changed = (_line(new) if old is statement else _line(statement)), ast.unparse(tree)
        _put(parent, field, index, old)
        if changed != whole:
            found.setdefault(changed, Mutant(exercise, changed, before, after))
    assert ast.unparse(tree) == whole
    return list(found.values())


def _line(statement: ast.stmt) -> str:
    """Return a statement without the block below it."""
    if hasattr(statement, "body"):
        statement = copy.copy(statement)
        statement.body, statement.orelse = [ast.Expr(ast.Constant(...))], []
        statement.decorator_list = []
    return ast.unparse(statement).split("\n")[0]


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


Change = tuple[ast.stmt, ast.AST, str, int | None, ast.AST]


def changes(tree: ast.Module) -> Iterator[Change]:
    """Yield each change: the statement it is in, the place, and the node that goes there."""
    idle = _of_options(tree)
    for function in tree.body:
        yield from (each for each in _below(function, function, set()) if not _names_stored(each[0]) & idle)


def _of_options(tree: ast.Module) -> set[str]:
    """Return the names that nothing but options of launches are given."""
    options = {
        each
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword) and node.arg in OPTIONS
        for each in ast.walk(node)
    }
    loads = [each for each in ast.walk(tree) if isinstance(each, ast.Name) and not _is_stored(each)]
    return {each.id for each in loads if each in options} - {each.id for each in loads if each not in options}


def _names_stored(statement: ast.stmt) -> set[str]:
    if hasattr(statement, "body"):
        return set()
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and _is_stored(each)}


def _below(node: ast.AST, statement: ast.stmt, assigned: set[str]) -> Iterator[Change]:
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "annotation", "returns"):
            continue
        several = isinstance(value, list)
        for index, child in enumerate(value if several else [value]):
            place = index if several else None
            if not isinstance(child, ast.AST) or (isinstance(child, ast.keyword) and child.arg in OPTIONS):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # a docstring
            inner = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.stmt):
                yield from ((inner, node, field, place, new) for new in _statements(child, assigned))
                assigned = assigned | {n.id for n in ast.walk(child) if isinstance(n, ast.Name) and _is_stored(n)}
            elif isinstance(child, ast.keyword) and child.arg in LEFT_OUT:
                kept = [each for each in value if each is not child]
                yield inner, node, field, None, kept
            else:
                yield from ((inner, node, field, place, new) for new in _expressions(child))
            yield from _below(child, inner, assigned)


def _is_stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _statements(node: ast.stmt, assigned: set[str]) -> Iterator[ast.stmt]:
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
        yield ast.Assign([node.target], node.value, lineno=0)
    elif isinstance(node, ast.Expr | ast.If | ast.Raise) or (
        isinstance(node, ast.Assign) and _names_stored(node) <= assigned
    ):
        yield ast.Pass()


def _expressions(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield node.left  # a stride or a size left out
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
        yield _with(node, ops=[OPERATORS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and not (
        isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
    ):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _numbers(node.value)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield _with(node, attr=NAMES[node.attr])
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Slice):
        yield from (_with(node, **{end: None}) for end in ("lower", "upper") if getattr(node, end))
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _numbers(value: object) -> Iterator[ast.Constant]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        yield ast.Constant(value + 1)
    elif isinstance(value, float):
        yield ast.Constant(2 * value if value else 1.0)


def _calls(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if isinstance(node.func, ast.Name) and name in NAMES:
        yield _with(node, func=ast.Name(NAMES[name], ast.Load()))
    if name == "float" and node.args and isinstance(node.args[0], ast.Constant):
        yield ast.Constant(0.0)  # float("-inf")
    elif name in CASTS and isinstance(node.func, ast.Attribute):
        yield node.func.value
    elif name == "cdiv":
        yield ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])
    pairs = zip(node.args, node.args[1:], strict=False) if name not in IN_ANY_ORDER else ()
    for n, (first, second) in enumerate(pairs):
        if ast.dump(first) != ast.dump(second) and not isinstance(first, ast.Starred):
            yield _with(node, args=[*node.args[:n], second, first, *node.args[n + 2 :]])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def equivalent() -> dict[tuple[str, str, str], str]:
    """Return the reasons of the mutants that are known to be equivalent, by exercise and statements."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("mutant", []) if EQUIVALENT.is_file() else []
    return {(each["exercise"], each["before"], each["after"]): each["because"] for each in listed}


def survives(mutant: Mutant) -> bool:
    """Return whether a mutant earns every point for its answers."""
    from promises import grader

    from tests.attacks.test_attacks import judged

    (verdict,) = judged(grader("of mutants"), Entry("", mutant.cell, mutant.exercise))
    assert verdict.outcome is not Outcome.FAULT, verdict
    return verdict.score == verdict.points


def main() -> None:
    """Judge the mutants, print those that survive, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="LESSON or EXERCISE")
    parser.add_argument("--most", type=int, help="mutants of an exercise")
    options = parser.parse_args()
    known, lessons = equivalent(), record.earlier("mutation").get("lessons", {})
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for name in COURSE.lesson_names():
            lesson = COURSE.lesson(name)
            work = []
            for exercise, source in lesson.solutions.items():
                if not options.names or {name, exercise} & {*options.names}:
                    every = mutants(exercise, without_marks(source))
                    step = max(1, len(every) // options.most) if options.most else 1
                    work += every[::step]
            if not work:
                continue
            left = [mutant for mutant, alive in zip(work, pool.map(survives, work), strict=True) if alive]
            same = [each for each in left if (each.exercise, each.before, each.after) in known]
            missed = [each for each in left if each not in same]
            killed = len(work) - len(left)
            found = {
                "mutants": len(work),
                "killed": killed,
                "equivalent": len(same),
                "percent_of_the_others": round(100 * killed / max(1, len(work) - len(same)), 1),
                "survived": [f"{each.exercise}: {each.before} -> {each.after}" for each in missed],
            }
            print(name, json.dumps(found, indent=1), flush=True)
            if not options.most and (not options.names or name in options.names):
                lessons[name] = found
                kept = {each: lessons[each] for each in COURSE.lesson_names() if each in lessons}
                record.write("mutation", {"lessons": kept}, ("triton",))


if __name__ == "__main__":
    main()
