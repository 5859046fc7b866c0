"""What the top-level names of a student's cells stand for, read from the source: nothing of it runs.

A constant is worked out from numbers, strings, tuples and types of Triton, by operations that keep it small.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.judging.program import Cell, bound_by, parsed
from autograder.kernels.language import DTYPES, GLUON, MATH_CALLS, MATH_VALUES, MODULES

MAX_DEPTH = 100  # of an expression or a function, in nodes of its tree
MAX_BITS = 128  # of an integer
MAX_TEXT = 200  # characters of a string
MAX_ITEMS = 256  # of a tuple and the tuples in it
MAX_TUPLES = 8  # one in another

ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


JIT = ("triton.jit", "gluon.jit")
LAYOUTS = frozenset(f"gl.{name}" for name in GLUON if name.endswith("Layout"))
LAYOUTS |= {"gl.NVMMASharedLayout.get_default_for"}


@dataclass(frozen=True)
class _Layout:
    """A layout of Gluon, by its arguments: `(keyword, value)` each; the keyword is "" where there is none."""

    name: str
    args: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class _Dtype:
    name: str


@dataclass(frozen=True)
class _Constexpr:
    value: Any


class NoConstant(Exception):
    """An expression that is not worked out here: the node at which it stops."""

    def __init__(self, node: ast.AST):
        self.node = node


@dataclass(frozen=True)
class Binding:
    """What a top-level name was bound to: of "path", "constant" and "other" the value is a name, a constant, a node.

    Of "function" it is the bindings, at its def, of the names above its body: later ones do not change what they mean.
    """

    kind: str  # "function", "path", "constant", "other"
    cell: Cell
    node: ast.stmt
    value: Any = None


Bindings = dict[str, Binding]


def bindings_of(cells: Sequence[Cell]) -> Bindings:
    """Return what each top-level name of the cells was bound to last; constants are worked out in order.

    A name that a function declares as global is bound when that runs, so to nothing that is known here.
    """
    found: Bindings = {}
    changed: Bindings = {}
    for cell in cells:
        tree = parsed(cell.source)
        for node in tree.body if tree else ():
            _bind(node, cell, found)
        for node in ast.walk(tree) if tree else ():
            if isinstance(node, ast.Global):
                changed |= dict.fromkeys(node.names, Binding("other", cell, node))
    return found | changed


def _bind(node: ast.stmt, cell: Cell, found: Bindings) -> None:
    bound, changed = bound_by(node)
    other = Binding("other", cell, node)
    if isinstance(node, ast.Import | ast.ImportFrom):
        _import(node, cell, found)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        paths = {path_of(called(decorator), found) for decorator in node.decorator_list}
        triton = isinstance(node, ast.FunctionDef) and paths & {*JIT, "triton.autotune", "triton.heuristics"}
        found |= dict.fromkeys(bound - {node.name}, other)  # in its head
        kind, head = ("function", _head(node, found)) if triton else ("other", None)
        found[node.name] = Binding(kind, cell, node, head)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and not _walrus(node):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            value = node.value
            if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name):
                value = ast.BinOp(ast.Name(target.id, ast.Load()), node.op, value)
            if value is not None:
                _assign(target, value, node, cell, found)
    else:
        found |= dict.fromkeys(bound, other)
        imported: Bindings = {}
        for each in _own(node):
            if isinstance(each, ast.Import | ast.ImportFrom):
                _import(each, cell, imported)
        found |= imported
    constants = {name for name in changed if name in found and found[name].kind == "constant"}
    found |= dict.fromkeys(constants, other)


def _walrus(node: ast.AST) -> bool:
    return any(isinstance(each, ast.NamedExpr) for each in ast.walk(node))


def _head(node: ast.FunctionDef, found: Bindings) -> Bindings:
    parts = (each for part in (*node.decorator_list, node.args) for each in ast.walk(part))
    return {each.id: found[each.id] for each in parts if isinstance(each, ast.Name) and each.id in found}


def _assign(target: ast.expr, value: ast.expr, node: ast.stmt, cell: Cell, found: Bindings) -> None:
    if isinstance(target, ast.Name):
        found[target.id] = binding_of(value, node, cell, found)
    else:  # each name of several: `A, B = 1, 2`, worked out before any of them is bound
        other = Binding("other", cell, node)
        pairs = _pairs(target, value)
        found.update({name: binding_of(its, node, cell, found) if its else other for name, its in pairs})


def binding_of(value: ast.expr, node: ast.stmt, cell: Cell, found: Bindings) -> Binding:
    """Return what an expression of a statement stands for."""
    try:
        if is_deep(value):
            raise NoConstant(ast.Name("..."))
        return Binding("constant", cell, node, folded(value, found))
    except NoConstant as stop:
        path = path_of(value, found)
        if path and len(path) <= MAX_TEXT:
            return Binding("path", cell, node, path)
        return Binding("other", cell, node, stop.node)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    several = (ast.Tuple, ast.List)
    fits = isinstance(target, several) and isinstance(value, several) and len(target.elts) == len(value.elts)
    for n, each in enumerate(target.elts if isinstance(target, several) else []):
        if fits and isinstance(each, ast.Name):
            yield each.id, value.elts[n]
        else:
            for inner in ast.walk(each):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id, None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement but for those inside functions, classes and comprehensions."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        inner = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.comprehension)
        if not isinstance(node, inner):
            waiting += ast.iter_child_nodes(node)


def _import(node: ast.Import | ast.ImportFrom, cell: Cell, found: Bindings) -> None:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module, name = f"{'.' * node.level}{node.module or ''}.{alias.name}", alias.asname or alias.name
        else:
            module = alias.name if alias.asname else alias.name.split(".")[0]
            name = alias.asname or module
        known = module.split(".")[0] in ("triton", "math")
        found[name] = Binding("path", cell, node, _canonical(module)) if known else Binding("other", cell, node)


SHORT = {
    "triton.language": "tl",
    "triton.experimental.gluon.language.nvidia.hopper": "hopper",
    "gluon.language.nvidia.hopper": "hopper",
    "gl.nvidia.hopper": "hopper",
    "triton.experimental.gluon.language": "gl",
    "gluon.language": "gl",
    "triton.experimental.gluon": "gluon",
}


def _canonical(path: str) -> str:
    """Return a dotted name with `tl` for `triton.language`, and the short names of Gluon's modules."""
    for long, short in SHORT.items():
        if f"{path}.".startswith(f"{long}."):
            return short + path.removeprefix(long)
    return path


def path_of(node: ast.expr, bindings: Mapping[str, Binding], local: Collection[str] = ()) -> str | None:
    """Return the canonical dotted name of a module or of what is in one: "tl.load"; None for any other expression.

    A name in `local` is a value of a function's own.
    """
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id in local:
        return None
    binding = bindings.get(node.id)
    if binding is None:
        root = node.id if node.id in MODULES else None
    else:
        root = binding.value if binding.kind == "path" else None
    return _canonical(".".join([root, *reversed(names)])) if root else None


def called(node: ast.expr) -> ast.expr:
    """Return what a call calls: of a decorator with arguments the decorator; any other expression stays."""
    return node.func if isinstance(node, ast.Call) else node


# Constants


def is_deep(node: ast.AST) -> bool:
    """Return whether a tree is deeper than `MAX_DEPTH`."""
    depth, level = 0, [node]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [child for each in level for child in ast.iter_child_nodes(each)]
    return depth > MAX_DEPTH


def folded(node: ast.expr, bindings: Mapping[str, Binding]) -> Any:
    """Return the value of a constant: numbers, strings, tuples, types of Triton, and these in tl.constexpr.

    Raises NoConstant.
    """
    try:
        value = _value(node, bindings)
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        raise NoConstant(node) from None
    plain = _plain(value)
    small = (
        plain is None
        or isinstance(plain, bool | float | _Dtype)
        or (isinstance(plain, int) and plain.bit_length() <= MAX_BITS)
        or (isinstance(plain, str) and len(plain) <= MAX_TEXT)
        or (isinstance(plain, tuple) and _items(plain) <= MAX_ITEMS)
        or (isinstance(plain, _Layout) and _items(plain.args) <= MAX_ITEMS)
    )
    if not small:
        raise NoConstant(node)
    return value


def _value(node: ast.expr, bindings: Mapping[str, Binding]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        path = path_of(node, bindings)
        if path in CONSTANTS:
            return CONSTANTS[path]
        if isinstance(node, ast.Name) and node.id in bindings and bindings[node.id].kind == "constant":
            return bindings[node.id].value
        if isinstance(node, ast.Attribute) and node.attr == "value" and path is None:
            value = folded(node.value, bindings)
            if isinstance(value, _Constexpr):
                return value.value
    elif isinstance(node, ast.Tuple):
        if len(node.elts) <= MAX_ITEMS:
            return tuple(folded(each, bindings) for each in node.elts)
    elif isinstance(node, ast.Call) and path_of(node.func, bindings) in LAYOUTS:
        given = [*(("", each) for each in node.args), *((each.arg, each.value) for each in node.keywords)]
        if all(name is not None for name, _ in given):  # else it is **something
            listed = ((n, ast.Tuple(v.elts, ast.Load()) if isinstance(v, ast.List) else v) for n, v in given)
            args = tuple((name, _plain(folded(value, bindings))) for name, value in listed)
            return _Layout(path_of(node.func, bindings), args)
    elif isinstance(node, ast.UnaryOp):
        value = folded(node.operand, bindings)
        if isinstance(_plain(value), int | float) and type(node.op) in SIGNS:
            return _like(SIGNS[type(node.op)](_plain(value)), value)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = folded(node.left, bindings), folded(node.right, bindings)
        if _stays_small(node.op, _plain(left), _plain(right)):
            return _like(ARITHMETIC[type(node.op)](_plain(left), _plain(right)), left, right)
    elif isinstance(node, ast.Call) and not node.keywords:
        name = path_of(node.func, bindings)
        if name is None and isinstance(node.func, ast.Name) and node.func.id not in bindings:
            name = node.func.id
        if name in CALLS and len(node.args) <= MAX_ITEMS:
            return CALLS[name](*(folded(each, bindings) for each in node.args))
    raise NoConstant(node)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Constexpr) else value


def _like(result: Any, *values: Any) -> Any:
    """Return a result in tl.constexpr if one of the values that made it was."""
    return _Constexpr(result) if any(isinstance(value, _Constexpr) for value in values) else result


def _items(value: Any, level: int = 0) -> int:
    plain = _plain(value)
    if level > MAX_TUPLES:
        return MAX_ITEMS + 1
    plain = plain.args if isinstance(plain, _Layout) else plain
    return 1 + sum(_items(each, level + 1) for each in plain) if isinstance(plain, tuple) else 1


def _stays_small(op: ast.operator, left: Any, right: Any) -> bool:
    """Return whether an operation on two bounded constants is one of numbers or tuples and makes nothing huge."""
    if isinstance(left, tuple) or isinstance(right, tuple):
        if isinstance(op, ast.Add):
            return isinstance(left, tuple) and isinstance(right, tuple)
        times = right if isinstance(left, tuple) else left
        return isinstance(op, ast.Mult) and isinstance(times, int) and times <= MAX_ITEMS
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return False
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        return left.bit_length() * abs(right) <= MAX_BITS
    return not isinstance(op, ast.LShift) or right <= MAX_BITS


def _number(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any = 0) -> Any:
        if not isinstance(_plain(value), int | float | str) or (kind is int and isinstance(_plain(value), str)):
            raise TypeError
        return kind(_plain(value))

    return convert


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        if not all(isinstance(_plain(value), int | float) for value in values):
            raise TypeError
        return function(*map(_plain, values))

    return call


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        among = values[0] if len(values) == 1 else values
        if not all(isinstance(_plain(value), int | float) for value in among):
            raise TypeError
        return choose(among, key=_plain)

    return call


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


CONSTANTS: dict[str, Any] = {
    **{f"math.{name}": getattr(math, name) for name in MATH_VALUES},
    **{f"{module}.{name}": _Dtype(f"tl.{name}") for module in ("tl", "gl") for name in DTYPES},
}
CALLS: dict[str, Callable[..., Any]] = {
    "int": _number(int),
    "float": _number(float),
    "tuple": lambda value=(): tuple(value),
    "len": lambda value: len(value),
    "abs": _of_numbers(abs),
    "min": _extreme(min),
    "max": _extreme(max),
    **dict.fromkeys(("tl.constexpr", "gl.constexpr"), lambda value: _Constexpr(_plain(value))),
    **dict.fromkeys(("triton.cdiv", "tl.cdiv"), _of_numbers(lambda x, y: (x + y - 1) // y)),
    "triton.next_power_of_2": _of_numbers(_power_of_2),
    **{f"math.{name}": _of_numbers(getattr(math, name)) for name in MATH_CALLS},
}


def literal(value: Any) -> str:
    """Return the text that stands for a constant, as `folded` gives it."""
    if isinstance(value, _Dtype):
        return value.name
    if isinstance(value, _Constexpr):
        return f"tl.constexpr({literal(value.value)})"
    if isinstance(value, _Layout):
        listed = (
            (name, f"[{', '.join(map(literal, each))}]" if isinstance(each, tuple) else literal(each))
            for name, each in value.args
        )
        return f"{value.name}({', '.join(f'{name}={each}' if name else each for name, each in listed)})"
    if isinstance(value, tuple):
        return f"({''.join(literal(each) + ', ' for each in value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def plain(value: Any) -> Any:
    """Return a constant without tl.constexpr, in tuples, too."""
    value = _plain(value)
    return tuple(map(plain, value)) if isinstance(value, tuple) else value
