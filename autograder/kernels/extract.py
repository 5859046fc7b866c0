"""Cut from a student's cells the program that holds their kernels and nothing else.

What comes out is written anew, from a closed grammar: Triton functions whose names of `triton`, `tl` and `math` are on
a list, constants as literal values that are worked out here, and one fixed import of each module. It runs in the
processes that compile and replay the launches, beside no other code of the student's.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.judging.program import MAX_CODE, PARSE_ERRORS, Cell

HEADER = "import math\n\nimport triton\nimport triton.language as tl\n"
MODULES = ("triton", "tl", "math")
MAX_SOURCE = 2 * MAX_CODE  # characters of all cells
MAX_DEPTH = 100  # of an expression or a function, in nodes of its tree
MAX_NODES = 20_000  # of all functions
MAX_HELPERS = 30  # that call one another in a chain
MAX_BITS = 128  # of an integer
MAX_TEXT = 200  # characters of a string
MAX_ITEMS = 256  # of a tuple and the tuples in it
MAX_TUPLES = 8  # one in another


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _words("range min max abs int float bool len tuple print")
# What Triton's front end knows without being told, beside BUILTINS: no name of a kernel may stand for it.
FRONT_END = _words("getattr hasattr isinstance list")

DTYPES = _words(
    """bfloat16 float16 float32 float64 float8e4b15 float8e4b8 float8e4nv float8e5 float8e5b16 int1 int16 int32 int64
    int8 uint16 uint32 uint64 uint8 void pi32_t"""
)
# What `triton.language` offers to kernels.
LANGUAGE = DTYPES | _words(
    """TRITON_MAX_TENSOR_NUMEL abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and
    atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor bitonic_merge broadcast broadcast_to cast cat
    cdiv ceil clamp condition const constexpr cos cumprod cumsum debug_barrier device_assert device_print div_rn dot
    dot_scaled erf exp exp2 expand_dims fdiv flip floor fma full gather histogram interleave join load
    load_tensor_descriptor log log2 make_block_ptr make_tensor_descriptor map_elementwise max max_constancy
    max_contiguous maximum min minimum mul multiple_of num_programs pair_uniform_to_normal permute philox philox_impl
    pointer_type program_id rand rand4x randint randint4x randn randn4x range ravel reduce reduce_or reshape rsqrt
    sigmoid sin softmax sort split sqrt sqrt_rn squeeze static_assert static_print static_range store
    store_tensor_descriptor sub sum swizzle2d to_tensor topk trans tuple uint_to_uniform_float umulhi unsqueeze view
    where xor_sum zeros zeros_like"""
)
# What it holds besides. A name on neither list is refused too; the lists are compared with the Triton that is there.
LANGUAGE_REFUSED = {
    **dict.fromkeys(_words("core semantic standard random target_info experimental math"), "a module"),
    **dict.fromkeys(_words("extra inline_asm_elementwise"), "code of one GPU that the model does not see"),
    **dict.fromkeys(_words("builtin ir str_to_ty"), "the compiler's own"),
    **dict.fromkeys(
        _words(
            """PropagateNan block_type constexpr_type dtype slice tensor tensor_descriptor
            tensor_descriptor_type tuple_type"""
        ),
        "a class of the compiler's values",
    ),
}
LANGUAGE_MATH = _words("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi")
MATH_VALUES = _words("pi e tau inf nan")
MATH_CALLS = _words("ceil exp floor log log10 log2 sqrt")
ALLOWED = frozenset(
    [
        *("triton.cdiv", "triton.next_power_of_2", "tl.PropagateNan.ALL", "tl.PropagateNan.NONE"),
        *(f"tl.{name}" for name in LANGUAGE),
        *(f"tl.math.{name}" for name in LANGUAGE_MATH),
        *(f"math.{name}" for name in MATH_VALUES | MATH_CALLS),
    ]
)
OPTIONS = _words("do_not_specialize do_not_specialize_on_alignment noinline debug")
# These take a message, which may be an f-string.
MESSAGES = _words("print tl.device_assert tl.device_print tl.static_assert tl.static_print")

BLOCKS = ": torch's functions take no blocks, nor do NumPy's, and a kernel uses those of tl"

# What a value inside a kernel (a tensor, a pointer, a descriptor, a type) may be asked for.
VALUE_ATTRIBUTES = _words(
    """T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor broadcast_to cast ceil cos cumprod cumsum dtype element_ty erf exp exp2 expand_dims flip
    floor gather is_block is_ptr is_floating is_int load log log2 logical_and logical_or logsumexp max min nbytes numel
    permute primitive_bitwidth ravel reduce reshape rsqrt scalar scatter shape sigmoid sin softmax sort split sqrt
    sqrt_rn store sum to trans type value view xor_sum"""
)

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


class NotAKernel(ValueError):
    """Why the cells hold no program of kernels: a sentence for the student."""

    def __init__(self, message: str):
        super().__init__(message if len(message) <= 400 else message[:397] + "...")


@dataclass(frozen=True)
class Kernels:
    """A program of kernels alone, and of its lines, from 1, the student's: the cell's name, line and text."""

    source: str
    lines: Mapping[int, tuple[str, int, str]]

    def in_cells(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return an error of this program, as a worker describes it, with the student's lines."""
        found, where = dict(error), error.get("where") or {}
        if (line := where.get("line")) in self.lines:
            found["where"] = dict(zip(("cell", "line", "source"), self.lines[line], strict=True))
        return found | {"message": self.told(found.get("message", ""))}

    def told(self, text: str) -> str:
        """Return a sentence about this program with the student's lines."""
        line = lambda match: f"line {self.lines[int(match[1])][1]}" if int(match[1]) in self.lines else match[0]
        return re.sub(r"\bline (\d{1,6})\b", line, text)


@dataclass(frozen=True)
class _Dtype:
    name: str


@dataclass(frozen=True)
class _Constexpr:
    value: Any


class _NoConstant(Exception):
    """An expression that is not worked out here: the node at which it stops."""

    def __init__(self, node: ast.AST):
        self.node = node


@dataclass(frozen=True)
class _Binding:
    """What a top-level name was bound to: of "path", "constant" and "other" the value is a name, a constant, a node."""

    kind: str  # "function", "path", "constant", "other"
    cell: Cell
    node: ast.stmt
    value: Any = None


Bindings = dict[str, _Binding]


def cut_kernels(cells: Sequence[Cell], kernels: Iterable[str]) -> Kernels:
    """Return the program that defines `kernels`, from the cells of a student's program in order.

    Raises
    ------
    NotAKernel
        Something the kernels need is not a Triton function, a constant or an import of Triton, or a kernel holds what
        the grader does not carry to another process.
    """
    try:
        return _cut(tuple(cells), tuple(dict.fromkeys(kernels)))
    except RecursionError:
        raise NotAKernel("the kernels are nested too deeply: write them in shorter expressions") from None


@functools.lru_cache(maxsize=8)
def _cut(cells: tuple[Cell, ...], kernels: tuple[str, ...]) -> Kernels:
    if sum(len(cell.source) for cell in cells) > MAX_SOURCE:
        raise NotAKernel(f"the cells hold more than {MAX_SOURCE >> 10} KiB of code: take out what is not needed")
    bindings = _bindings(cells)
    parts: dict[str, ast.stmt] = {}
    for name in kernels:
        _visit(name, bindings, parts, ())
        if bindings[name].kind != "function":
            raise NotAKernel(f"{name} was launched, but the cells define no @triton.jit function of that name")
    text, above, left = [HEADER], HEADER.count("\n"), MAX_NODES
    lines: dict[int, tuple[str, int, str]] = {}
    there = {cell: cell.source.split("\n") for cell in {bindings[name].cell for name in parts}}
    for name, node in parts.items():
        left -= sum(1 for _ in ast.walk(node))
        if left < 0:
            raise NotAKernel(f"{name} and what goes with it is too long: split the work over shorter kernels")
        cell, gap, written = bindings[name].cell, "\n" if isinstance(node, ast.Assign) else "\n\n", _written(node, name)
        for here, line in _origins(written, node, name):
            said = there[cell][line - 1].strip() if line <= len(there[cell]) else ""
            lines[above + len(gap) + here] = (cell.name, line, said)
        text.append(f"{gap}{written}\n")
        above += text[-1].count("\n")
    return Kernels("".join(text), lines)


def _written(node: ast.stmt, name: str) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        raise NotAKernel(f"{name} cannot be written out: put its strings and f-strings more simply") from None


def _origins(written: str, node: ast.stmt, name: str) -> Iterator[tuple[int, int]]:
    """Yield (line written, line in the cell) of each statement, after a look that what is written is what was meant."""
    try:
        again = ast.parse(written).body
    except PARSE_ERRORS:  # letters of another script spell a keyword, which to Python is a name until it is written out
        raise NotAKernel(f"{name} cannot be written out: spell its names in plain letters, and no keyword") from None
    if len(again) != 1 or ast.dump(again[0]) != ast.dump(node):
        raise NotAKernel(f"{name} cannot be written out: put its strings and f-strings more simply")
    for new, old in zip(ast.walk(again[0]), ast.walk(node), strict=True):
        if isinstance(new, ast.stmt):
            yield new.lineno, old.lineno
            yield from ((d.lineno, o.lineno) for d, o in zip(_decorators(new), _decorators(old), strict=True))


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


# What the cells bind


def _bindings(cells: Sequence[Cell]) -> Bindings:
    """Return what each top-level name of the cells was bound to last; constants are worked out in order."""
    found: Bindings = {}
    for cell in cells:
        try:
            body = ast.parse(cell.source).body
        except PARSE_ERRORS:
            continue
        for node in body:
            _bind(node, cell, found)
    return found


def _bind(node: ast.stmt, cell: Cell, found: Bindings) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        _import(node, cell, found)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        paths = {_path(_called(decorator), (), found) for decorator in node.decorator_list}
        triton = isinstance(node, ast.FunctionDef) and paths & {"triton.jit", "triton.autotune", "triton.heuristics"}
        found[node.name] = _Binding("function" if triton else "other", cell, node)
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            value = node.value
            if isinstance(node, ast.AugAssign) and isinstance(target, ast.Name):
                value = ast.BinOp(ast.Name(target.id, ast.Load()), node.op, value)
            if value is not None:
                _assign(target, value, node, cell, found)
    else:
        imported: Bindings = {}
        for each in _own(node):
            if isinstance(each, ast.Import | ast.ImportFrom):
                _import(each, cell, imported)
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[each.name] = _Binding("other", cell, node)
            elif isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load):
                found[each.id] = _Binding("other", cell, node)
        found |= imported


def _assign(target: ast.expr, value: ast.expr, node: ast.stmt, cell: Cell, found: Bindings) -> None:
    if isinstance(target, ast.Name):
        found[target.id] = _binding(value, node, cell, found)
    else:  # each name of several: `A, B = 1, 2`, worked out before any of them is bound
        other = _Binding("other", cell, node)
        pairs = _pairs(target, value)
        found.update({name: _binding(its, node, cell, found) if its else other for name, its in pairs})


def _binding(value: ast.expr, node: ast.stmt, cell: Cell, found: Bindings) -> _Binding:
    try:
        _bounded(value)
        return _Binding("constant", cell, node, _fold(value, found))
    except _NoConstant as stop:
        path = _path(value, (), found)
        if path and len(path) <= MAX_TEXT:
            return _Binding("path", cell, node, path)
        return _Binding("other", cell, node, stop.node)


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
        found[name] = _Binding("path", cell, node, _canonical(module)) if known else _Binding("other", cell, node)


def _canonical(path: str) -> str:
    """Return a dotted name with `tl` for `triton.language`."""
    return "tl" + path.removeprefix("triton.language") if f"{path}.".startswith("triton.language.") else path


def _path(node: ast.expr, local: Iterable[str], bindings: Mapping[str, _Binding]) -> str | None:
    """Return the canonical dotted name of a module or of what is in one: "tl.load"; None for any other expression."""
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


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


# Constants


def _bounded(node: ast.AST) -> None:
    """Raise _NoConstant if a tree is deeper than `MAX_DEPTH`."""
    depth, level = 0, [node]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise _NoConstant(ast.Name("..."))
        level = [child for each in level for child in ast.iter_child_nodes(each)]


def _fold(node: ast.expr, bindings: Mapping[str, _Binding]) -> Any:
    """Return the value of a constant: numbers, strings, tuples, types of Triton, and these in tl.constexpr.

    Raises _NoConstant.
    """
    try:
        value = _value(node, bindings)
    except (ArithmeticError, TypeError, ValueError, AttributeError):
        raise _NoConstant(node) from None
    plain = _plain(value)
    small = (
        plain is None
        or isinstance(plain, bool | float | _Dtype)
        or (isinstance(plain, int) and plain.bit_length() <= MAX_BITS)
        or (isinstance(plain, str) and len(plain) <= MAX_TEXT)
        or (isinstance(plain, tuple) and _items(plain) <= MAX_ITEMS)
    )
    if not small:
        raise _NoConstant(node)
    return value


def _value(node: ast.expr, bindings: Mapping[str, _Binding]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        path = _path(node, (), bindings)
        if path in CONSTANTS:
            return CONSTANTS[path]
        if isinstance(node, ast.Name) and node.id in bindings and bindings[node.id].kind == "constant":
            return bindings[node.id].value
        if isinstance(node, ast.Attribute) and node.attr == "value" and path is None:
            value = _fold(node.value, bindings)
            if isinstance(value, _Constexpr):
                return value.value
    elif isinstance(node, ast.Tuple):
        if len(node.elts) <= MAX_ITEMS:
            return tuple(_fold(each, bindings) for each in node.elts)
    elif isinstance(node, ast.UnaryOp):
        value = _fold(node.operand, bindings)
        if isinstance(_plain(value), int | float) and type(node.op) in SIGNS:
            return _like(SIGNS[type(node.op)](_plain(value)), value)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        left, right = _fold(node.left, bindings), _fold(node.right, bindings)
        if _stays_small(node.op, _plain(left), _plain(right)):
            return _like(ARITHMETIC[type(node.op)](_plain(left), _plain(right)), left, right)
    elif isinstance(node, ast.Call) and not node.keywords:
        name = _path(node.func, (), bindings)
        if name is None and isinstance(node.func, ast.Name) and node.func.id not in bindings:
            name = node.func.id
        if name in CALLS and len(node.args) <= MAX_ITEMS:
            return CALLS[name](*(_fold(each, bindings) for each in node.args))
    raise _NoConstant(node)


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Constexpr) else value


def _like(result: Any, *values: Any) -> Any:
    """Return a result in tl.constexpr if one of the values that made it was."""
    return _Constexpr(result) if any(isinstance(value, _Constexpr) for value in values) else result


def _items(value: Any, level: int = 0) -> int:
    plain = _plain(value)
    if level > MAX_TUPLES:
        return MAX_ITEMS + 1
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
    **{f"tl.{name}": _Dtype(f"tl.{name}") for name in DTYPES},
}
CALLS: dict[str, Callable[..., Any]] = {
    "int": _number(int),
    "float": _number(float),
    "tuple": lambda value=(): tuple(value),
    "len": lambda value: len(value),
    "abs": _of_numbers(abs),
    "min": _extreme(min),
    "max": _extreme(max),
    "tl.constexpr": lambda value: _Constexpr(_plain(value)),
    **dict.fromkeys(("triton.cdiv", "tl.cdiv"), _of_numbers(lambda x, y: (x + y - 1) // y)),
    "triton.next_power_of_2": _of_numbers(_power_of_2),
    **{f"math.{name}": _of_numbers(getattr(math, name)) for name in MATH_CALLS},
}


def _literal(value: Any) -> str:
    """Return the text that stands for a constant."""
    if isinstance(value, _Dtype):
        return value.name
    if isinstance(value, _Constexpr):
        return f"tl.constexpr({_literal(value.value)})"
    if isinstance(value, tuple):
        return f"({''.join(_literal(each) + ', ' for each in value)})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def _expression(text: str, at: ast.AST) -> ast.expr:
    node = ast.parse(text, mode="eval").body
    for each in ast.walk(node):
        ast.copy_location(each, at)
    return node


# Functions


def _visit(name: str, bindings: Bindings, parts: dict[str, ast.stmt], above: tuple[str, ...]) -> None:
    """Enter in `parts`, by name, what `name` needs, and then its own definition as it is written out."""
    if name in parts:
        return
    binding = bindings.get(name)
    user = f"{above[-1]} uses {name}" if above else f"{name} was launched"
    if binding is None:
        raise NotAKernel(f"{user}, which the cells do not define")
    if name in above:
        raise NotAKernel(f"{name} needs itself: kernels cannot recurse")
    if len(above) > MAX_HELPERS:
        raise NotAKernel(f"{user}: more than {MAX_HELPERS} helpers call one another in a chain")
    if isinstance(binding.value, ast.AST):
        raise NotAKernel(f"the constant {name} holds `{_text(binding.value)}`: write it as a number")
    if binding.kind in ("other", "path"):
        said = f"{user}, which is neither a @triton.jit function nor a constant nor an import of Triton"
        if isinstance(binding.node, ast.Import | ast.ImportFrom):
            said += BLOCKS
        raise NotAKernel(said)
    if name.startswith("__") or name in MODULES:
        raise NotAKernel(f"{user}: give it another name")
    if binding.kind == "constant":
        value = _expression(_literal(binding.value), binding.node)
        assignment = ast.Assign([ast.Name(name, ast.Store())], value, lineno=binding.node.lineno)
        parts[name] = ast.copy_location(assignment, binding.node)
        return
    writer = _Writer(binding.node, bindings)
    node = writer.function(binding.node)
    for needed in sorted(writer.needs):
        _visit(needed, bindings, parts, (*above, name))
    parts[name] = node


def _text(node: ast.AST) -> str:
    try:
        text = ast.unparse(node)
    except (ValueError, RecursionError, AttributeError):
        text = type(node).__name__
    return text if len(text) <= 80 else text[:77] + "..."


class _Writer:
    """Writes one Triton function anew, node by node, and notes the kernels and constants that it `needs`."""

    def __init__(self, node: ast.FunctionDef, bindings: Bindings):
        self.name = node.name
        self.bindings = bindings
        self.needs: set[str] = set()
        self.local: set[str] = set()

    def refuse(self, what: str) -> NotAKernel:
        return NotAKernel(f"{self.name} {what}")

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        try:
            _bounded(node)
        except _NoConstant:
            raise self.refuse("is nested too deeply: write it in shorter expressions") from None
        if getattr(node, "type_params", None):
            raise self.refuse("takes type parameters, which kernels cannot")
        decorator = self.decorator(node)
        arguments = self.arguments(node.args)
        names = (each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Name))
        self.local |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
        body = self.block(node.body)
        return _copy(node, decorator_list=[decorator], args=arguments, returns=None, body=body)

    def decorator(self, node: ast.FunctionDef) -> ast.expr:
        decorator = node.decorator_list[0]
        if len(node.decorator_list) != 1 or _path(_called(decorator), (), self.bindings) != "triton.jit":
            raise self.refuse("is decorated with something else than @triton.jit: settle on one configuration")
        jit = _expression("triton.jit", decorator)
        if not isinstance(decorator, ast.Call):
            return jit
        options = [self.option(each) for each in decorator.keywords]
        if decorator.args or None in options:
            raise self.refuse(f"has the decorator `{_text(decorator)}`: @triton.jit takes literal options only")
        return _copy(decorator, func=jit, args=[], keywords=options)

    def option(self, node: ast.keyword) -> ast.keyword | None:
        value = ast.Tuple(node.value.elts, ast.Load()) if isinstance(node.value, ast.List) else node.value
        try:
            return _copy(node, value=_expression(_literal(_fold(value, {})), node)) if node.arg in OPTIONS else None
        except _NoConstant:
            return None

    def arguments(self, node: ast.arguments) -> ast.arguments:
        if node.vararg or node.kwarg:
            raise self.refuse("takes *args or **kwargs, which kernels cannot")
        new = {}
        for group in ("posonlyargs", "args", "kwonlyargs"):
            new[group] = [self.parameter(each) for each in getattr(node, group)]
        for group in ("defaults", "kw_defaults"):
            new[group] = [each and self.default(each) for each in getattr(node, group)]
        return _copy(node, **new)

    def parameter(self, node: ast.arg) -> ast.arg:
        self.bind(node.arg)
        self.local.add(node.arg)
        constant = node.annotation is not None and self.is_constexpr(node.annotation)
        return _copy(node, annotation=_expression("tl.constexpr", node) if constant else None, type_comment=None)

    def default(self, node: ast.expr) -> ast.expr:
        try:
            return _expression(_literal(_fold(node, {})), node)
        except _NoConstant:
            raise NotAKernel(f"{self.name}: the default `{_text(node)}` is not a literal") from None

    def is_constexpr(self, annotation: ast.expr) -> bool:
        if isinstance(annotation, ast.Constant):
            return isinstance(annotation.value, str) and annotation.value.split(".")[-1].strip() == "constexpr"
        name = annotation.attr if isinstance(annotation, ast.Attribute) else getattr(annotation, "id", "")
        return name == "constexpr" or _path(annotation, (), self.bindings) == "tl.constexpr"

    def bind(self, name: str) -> None:
        if name.startswith("__") or name in FRONT_END or name in MODULES:
            raise self.refuse(f"uses {name} for a value of its own: give it another name")

    # Statements

    def block(self, nodes: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [self.statement(node) for node in nodes]

    def statement(self, node: ast.stmt) -> ast.stmt:
        if isinstance(node, ast.Pass | ast.Break | ast.Continue):
            return _copy(node)
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):  # a docstring
                return ast.copy_location(ast.Pass(), node)
            return _copy(node, value=self.expression(node.value))
        if isinstance(node, ast.Assign):
            targets = [self.target(each) for each in node.targets]
            return _copy(node, targets=targets, value=self.expression(node.value, text=True), type_comment=None)
        if isinstance(node, ast.AugAssign):
            return _copy(node, target=self.target(node.target), value=self.expression(node.value))
        if isinstance(node, ast.AnnAssign):
            target = self.target(node.target)
            if node.value is None:
                return ast.copy_location(ast.Pass(), node)
            value = self.expression(node.value, text=True)
            if self.is_constexpr(node.annotation):
                return _copy(node, target=target, annotation=_expression("tl.constexpr", node), value=value, simple=1)
            return ast.copy_location(ast.Assign([target], value), node)
        if isinstance(node, ast.For):
            target, iterator = self.target(node.target), self.expression(node.iter)
            body, orelse = self.block(node.body), self.block(node.orelse)
            return _copy(node, target=target, iter=iterator, body=body, orelse=orelse, type_comment=None)
        if isinstance(node, ast.While | ast.If):
            return _copy(
                node, test=self.expression(node.test), body=self.block(node.body), orelse=self.block(node.orelse)
            )
        if isinstance(node, ast.Return):
            return _copy(node, value=node.value and self.expression(node.value))
        if isinstance(node, ast.Assert):
            message = node.msg and self.expression(node.msg, text=True, message=True)
            return _copy(node, test=self.expression(node.test), msg=message)
        raise self.holds(node)

    def target(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Name):
            self.bind(node.id)
            return _copy(node)
        if isinstance(node, ast.Tuple | ast.List):
            return _copy(node, elts=[self.target(each) for each in node.elts])
        raise self.refuse(f"assigns to `{_text(node)}`: a kernel keeps nothing but its own names")

    def holds(self, node: ast.AST) -> NotAKernel:
        return self.refuse(f"holds a {type(node).__name__}, which kernels are not graded with: `{_text(node)}`")

    # Expressions

    def expression(self, node: ast.expr, text: bool = False, message: bool = False) -> ast.expr:
        """Return an expression written anew; strings pass with `text`, f-strings with `message`."""
        if isinstance(node, ast.Constant):
            return self.constant(node, text)
        if isinstance(node, ast.Name | ast.Attribute):
            return self.name_of(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.BinOp):
            return _copy(node, left=self.expression(node.left), right=self.expression(node.right))
        if isinstance(node, ast.UnaryOp):
            return _copy(node, operand=self.expression(node.operand))
        if isinstance(node, ast.BoolOp):
            return _copy(node, values=[self.expression(each) for each in node.values])
        if isinstance(node, ast.Compare):
            return self.comparison(node)
        if isinstance(node, ast.IfExp):
            body, orelse = (self.expression(each, text, message) for each in (node.body, node.orelse))
            return _copy(node, test=self.expression(node.test), body=body, orelse=orelse)
        if isinstance(node, ast.Tuple | ast.List):
            return _copy(node, elts=[self.expression(each, text=True) for each in node.elts])
        if isinstance(node, ast.Subscript):
            return _copy(node, value=self.expression(node.value), slice=self.expression(node.slice))
        if isinstance(node, ast.Slice):
            bounds = {n: (each := getattr(node, n)) and self.expression(each) for n in ("lower", "upper", "step")}
            return _copy(node, **bounds)
        if isinstance(node, ast.JoinedStr):
            if not message:
                raise self.refuse(f"computes with the f-string `{_text(node)}`: only messages may be f-strings")
            return _copy(node, values=[self.piece(each) for each in node.values])
        raise self.holds(node)

    def constant(self, node: ast.Constant, text: bool) -> ast.Constant:
        value = node.value
        if isinstance(value, str) and not (text and len(value) <= MAX_TEXT):
            raise self.refuse("computes with a string, or holds a very long one: strings are arguments of functions")
        if not (value is None or isinstance(value, bool | int | float | str)):
            raise self.refuse(f"holds `{_text(node)}`, which is no number")
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise self.refuse(f"holds a number of more than {MAX_BITS} bits")
        return _copy(node, kind=None)

    def piece(self, node: ast.expr) -> ast.expr:
        """Return a piece of an f-string; its format is left out, as Triton's compiler does."""
        if isinstance(node, ast.FormattedValue):
            return _copy(node, value=self.expression(node.value), format_spec=None)
        return self.constant(node, text=True)

    def name_of(self, node: ast.Name | ast.Attribute) -> ast.expr:
        """Return a name, a name of Triton's language or an attribute of a value."""
        path = _path(node, self.local, self.bindings)
        if path is not None:
            return self.language(path, node)
        if isinstance(node, ast.Name):
            return self.own_name(node)
        if node.attr.startswith("_"):
            raise self.refuse(f"asks for .{node.attr}")
        base = node.value
        if isinstance(base, ast.Name) and base.id not in self.local:
            binding = self.bindings.get(base.id)
            if binding is not None and binding.kind == "function":
                raise self.refuse(f"asks the kernel {base.id} for .{node.attr}: kernels are called, and nothing else")
            if binding is not None and isinstance(binding.node, ast.Import | ast.ImportFrom):
                raise self.refuse(f"uses {_text(node)}{BLOCKS}")
        if node.attr not in VALUE_ATTRIBUTES:
            raise self.refuse(f"asks {_text(base)} for .{node.attr}, which Triton's tensors do not have or need")
        return _copy(node, value=self.expression(base))

    def language(self, path: str, node: ast.expr) -> ast.expr:
        if path in ALLOWED:
            return _expression(path, node)
        base, _, name = path.rpartition(".")
        if base.removeprefix("tl.") in DTYPES and base.startswith("tl.") and name in VALUE_ATTRIBUTES:
            return _expression(path, node)
        why = LANGUAGE_REFUSED.get(path.split(".")[1]) if path.startswith("tl.") else None
        raise self.refuse(f"uses {path}, which the grader does not replay" + (f": it is {why}" if why else ""))

    def own_name(self, node: ast.Name) -> ast.Name:
        name = node.id
        if name.startswith("__"):
            raise self.refuse(f"uses {name}")
        if name not in self.local and (name in self.bindings or name not in BUILTINS):
            self.needs.add(name)
        return _copy(node)

    def call(self, node: ast.Call) -> ast.Call:
        called = node.func
        if not isinstance(called, ast.Name | ast.Attribute):
            raise self.refuse(f"calls `{_text(called)}`")
        if any(keyword.arg is None for keyword in node.keywords):
            raise self.refuse(f"calls {_text(called)} with **")
        function = self.name_of(called)
        message = ast.unparse(function) in MESSAGES
        arguments = [
            _copy(each, value=self.expression(each.value))
            if isinstance(each, ast.Starred)
            else self.expression(each, text=True, message=message)
            for each in node.args
        ]
        keywords = [_copy(each, value=self.expression(each.value, True, message)) for each in node.keywords]
        return _copy(node, func=function, args=arguments, keywords=keywords)

    def comparison(self, node: ast.Compare) -> ast.Compare:
        """Refuse `is` but for None: it asks about objects of Python, of which a compiled kernel has none."""
        for comparing, right in zip(node.ops, node.comparators, strict=True):
            none = isinstance(right, ast.Constant) and right.value is None
            if isinstance(comparing, ast.Is | ast.IsNot) and not none:
                raise self.refuse("compares with `is`: write ==")
        operands = [self.expression(each, text=True) for each in node.comparators]
        return _copy(node, left=self.expression(node.left, text=True), comparators=operands)


def _copy(node: Any, **changes: Any) -> Any:
    """Return a node with other fields; no node of the cells' trees is changed."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **changes}), node)
