"""The shape of an answer: its program without names, comments and layout, to tell copies from coincidence."""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autograder.judging.program import Cell, build_program, parsed, without_magics

if TYPE_CHECKING:
    from autograder.course.lesson import Lesson

GRAM, WINDOW = 8, 4  # tokens of a passage; of so many passages in a row one is kept
MOST = 20_000  # tokens of an answer that are looked at
SKIPPED = (ast.expr_context, ast.type_ignore, ast.Import, ast.ImportFrom)  # nodes that say nothing of what is done


@dataclass(frozen=True)
class Shape:
    """An answer's shape.

    Attributes
    ----------
    shape, text
        Digests: of the program with names numbered as they come up, and of the source as it was typed, without spaces
        at the ends of lines.
    tokens
        Of the program.
    passages
        Digests of some of its passages, chosen as MOSS does: what two programs share in `GRAM + WINDOW` tokens in a
        row, they share here. Names do not count in them.
    """

    shape: str
    text: str
    tokens: int
    passages: tuple[int, ...]


def shape_of(lesson: Lesson, exercise: str, cells: Sequence[Cell]) -> Shape | None:
    """Return the shape of an answer with what it needs of the student's other cells; None if it does not parse.

    `cells` are the student's code cells in order, that of the exercise among them (`classroom.restore.code_cells`).
    What the lesson itself gives, its set-up and the right answers to earlier exercises, is left out.
    """
    solution = next((cell for cell in cells if cell.name == exercise), None)
    if solution is None:
        return None
    given = [*lesson.setup, *lesson.references(lesson.exercise(exercise).needs)]
    program = build_program(given, (), cells, solution)[len(given) :]
    return shape_of_source("\n".join(cell.source for cell in program), exercise)


def shape_of_source(source: str, keep: str = "") -> Shape | None:
    """Return the shape of Python code, in which the name `keep` is not the student's choice; None if it is none."""
    tree = parsed(without_magics(source), len(source))
    if tree is None:
        return None
    _strip(tree)
    tokens = list(_tokens(tree, keep))
    nameless = ["name" if token.startswith("\0") else token for token in tokens]
    plain = "\n".join(stripped for line in source.splitlines() if (stripped := line.rstrip()))
    return Shape(_digest("\n".join(tokens)), _digest(plain), len(tokens), tuple(_passages(nameless)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _strip(tree: ast.Module) -> None:
    """Take out of a tree what does nothing: annotations of types, `pass`, and values that stand alone."""
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if field in ("returns", "type_comment", "type_params") or (field == "annotation" and _is_type(value)):
                setattr(node, field, None)
            elif isinstance(value, list):
                value[:] = [each for each in value if not _is_idle(each)]


def _tokens(tree: ast.Module, keep: str) -> Iterator[str]:
    """Yield a token a node, from the top down; a name of the student's begins with a zero byte."""
    own = _bound(tree) - {keep}
    fields = _fields(tree)
    modules = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.asname
    }
    numbers: dict[str, str] = {}
    stack: list[ast.AST] = [tree]
    count = 0

    def named(name: str) -> str:
        if name in modules:
            return modules[name]
        return numbers.setdefault(name, f"\0{len(numbers)}") if name in own else name

    while stack and count < MOST:
        node = stack.pop()
        if isinstance(node, SKIPPED):
            continue
        count += 1
        yield "Assign" if isinstance(node, ast.AnnAssign) else type(node).__name__
        for name in _names_in(node):
            yield named(name)
        if isinstance(node, ast.Constant):
            # in hexadecimal, since Python writes out no longer integers than of 4,300 digits
            yield (hex if type(node.value) is int else repr)(node.value)[:100]
        elif isinstance(node, ast.Attribute):
            yield numbers.setdefault(f".{node.attr}", f"\0{len(numbers)}") if node.attr in fields else node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield named(node.arg) if node.arg in own else node.arg
        stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _names_in(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield from node.names
    elif isinstance(node, ast.ExceptHandler) and node.name:
        yield node.name


def _is_type(value: object) -> bool:
    """Return whether an annotation says nothing to Triton, for which `tl.constexpr` does."""
    return not (isinstance(value, ast.Attribute) and value.attr == "constexpr")


def _is_idle(node: object) -> bool:
    """Return whether a statement does nothing, such as a docstring or the declaration of a type."""
    alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    declared = isinstance(node, ast.AnnAssign) and node.value is None
    return alone or declared or isinstance(node, ast.Pass)


def _bound(tree: ast.AST) -> set[str]:
    """Return the names that the code gives to something."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                found.add(node.id)
        else:
            found.update(_names_in(node))
    return found


def _fields(tree: ast.AST) -> set[str]:
    """Return the names of attributes that the code sets, and of the methods that it defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            found.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            found.update(each.name for each in node.body if isinstance(each, ast.FunctionDef))
    return found


def _passages(tokens: Sequence[str]) -> Iterator[int]:
    """Yield the digests that winnowing keeps: of each `WINDOW` passages the one with the smallest digest, once."""
    grams = [
        int.from_bytes(
            hashlib.blake2b("\n".join(tokens[n : n + GRAM]).encode(errors="replace"), digest_size=6).digest()
        )
        for n in range(max(1, len(tokens) - GRAM + 1))
    ]
    yield from sorted({min(grams[n : n + WINDOW]) for n in range(max(1, len(grams) - WINDOW + 1))})


def tokens_of(passages: Collection[int]) -> int:
    """Return about how many tokens these passages stand for: winnowing keeps two of `WINDOW + 1`."""
    return len(passages) * (WINDOW + 1) // 2


# Near relatives

ALIKE = 0.6  # of the rare passages of both are shared by near relatives
RARE = 4, 0.05  # a passage is rare in so many shapes, or in that share of them
LEAST = 6  # rare passages without which two shapes are not compared


def families(shapes: Mapping[str, Iterable[int]], common: Sequence[Iterable[int]]) -> dict[str, str]:
    """Return for each shape that has near relatives the one that stands for them all.

    Of the passages of each shape, those in `common` (the starter's and the lesson's own solution's) say nothing, nor do
    those that many shapes have: that is how the exercise is solved. Shapes that sixty students handed in count once.
    """
    given = {passage for each in common for passage in each}
    count = Counter(passage for each in shapes.values() for passage in set(each) - given)
    most = max(RARE[0], RARE[1] * len(shapes))
    rare = {name: {p for p in each if p not in given and count[p] <= most} for name, each in shapes.items()}
    # Two sets that are alike share one of their rarest `1 - ALIKE`: who has only passages of their own there has none.
    index: dict[int, list[str]] = defaultdict(list)
    for name, passages in sorted(rare.items()):
        first = sorted(passages, key=lambda p: (count[p], p))[: int((1 - ALIKE) * len(passages)) + 1]
        if len(passages) >= LEAST:
            for passage in first:
                if count[passage] > 1:
                    index[passage].append(name)
    stands: dict[str, str] = {}

    def head(name: str) -> str:
        while stands.get(name, name) != name:
            name = stands[name]
        return name

    for one, other in {pair for names in index.values() for pair in itertools.combinations(names, 2)}:
        if len(rare[one] & rare[other]) >= ALIKE * len(rare[one] | rare[other]):
            low, high = sorted((head(one), head(other)))
            stands[high] = low
            stands.setdefault(low, low)
    return {name: head(name) for name in stands}
