"""Cut from a student's cells the program that holds their kernels and nothing else.

What comes out is written anew, from a closed grammar: Triton functions whose names of `triton`, `tl` and `math` are on
the lists of `language`, constants as the literal values that `bindings` works out, and one fixed import of each module.
It runs in the processes that compile and replay the launches, beside no other code of the student's.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autograder.judging.program import MAX_CODE, Cell, parse, parsed
from autograder.kernels.bindings import (
    MAX_BITS,
    MAX_TEXT,
    Binding,
    Bindings,
    NoConstant,
    binding_of,
    bindings_of,
    called,
    folded,
    is_deep,
    literal,
    path_of,
    plain,
)
from autograder.kernels.language import (
    ALLOWED,
    BUILTINS,
    DTYPES,
    FRONT_END,
    GLUON_MODULES,
    GLUON_REFUSED,
    LANGUAGE_MATH,
    LANGUAGE_REFUSED,
    LIBDEVICE,
    MESSAGES,
    MODULES,
    OPTIONS,
    VALUE_ATTRIBUTES,
)
from autograder.kernels.worker import uses

HEADER = "import math\n\nimport triton\nimport triton.language as tl\n"
GLUON_HEADER = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
"""
MAX_SOURCE = 2 * MAX_CODE  # characters of all cells
MAX_NODES = 20_000  # of all functions
HEURISTICS = "triton.heuristics"
FOR_PROFILERS = ("launch_metadata", "repr")  # options that name launches, and change nothing else
NOINLINE = "has noinline: what a kernel calls is graded as a part of it, and Triton gives no block to such a helper"
Import = ast.Import | ast.ImportFrom
BRANCHES = ast.If | ast.Try | ast.For | ast.While | ast.With | ast.Match
TYPE = re.compile(r"[\w.* ]{1,40}")  # an annotation that may name a type
MAX_HELPERS = 30  # that call one another in a chain

BLOCKS = ": torch's functions take no blocks, nor do NumPy's, and a kernel uses those of tl"


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
        """Return a sentence about this program with the student's lines, and their text where it has the line's."""

        def line(match: re.Match[str]) -> str:
            if int(match[1]) not in self.lines:
                return match[0]
            _, number, source = self.lines[int(match[1])]
            return f"line {number}" + (f" (`{source.strip()}`)" if match[2] else "")

        return re.sub(r"\bline (\d{1,6})\b( \(`[^`]*`\))?", line, text)


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


def check_definitions(cells: Sequence[Cell], launched: Iterable[tuple[str, str, int]]) -> None:
    """Raise NotAKernel if a kernel that was launched is not the last one that the cells define by its name.

    Of each are given its name, and the cell and the line in which it begins; "" stands for some cell.
    """
    _check_length(cells)
    defined: dict[str, list[tuple[str, int, int]]] = {}
    for each in cells:
        for node in ast.walk(parsed(each.source) or ast.Module([], [])):
            if isinstance(node, ast.FunctionDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                defined.setdefault(node.name, []).append((each.name, first, node.lineno))
    for name, cell, line in launched:
        found = defined.get(name, [])
        here = [n for n, (where, first, _) in enumerate(found) if first == line and cell in ("", where)]
        if here and here[-1] != len(found) - 1:
            raise NotAKernel(
                f"{name} is defined {len(found)} times, and the one in line {found[here[-1]][2]} is launched, which is "
                "not the last: give each kernel a name of its own"
            )


def check_uses(cells: Sequence[Cell], noted: Sequence[Mapping[str, Any]]) -> None:
    """Raise NotAKernel if a function is not what the cells say when its kernel is launched, by what was noted of it.

    What the student's process says of itself proves nothing. It tells of what is done where the source does not show
    it, such as `globals()["F"] = 5.0`.
    """
    if sum(map(len, {use["source"] for use in noted})) > MAX_SOURCE:
        raise NotAKernel(f"the kernels' sources have more than {MAX_SOURCE >> 10} KiB when they are launched")
    meaning = functools.cache(_meaning)
    for use in noted:
        _check_use(_bindings(tuple(cells)), use, meaning)


def _check_use(bindings: Bindings, use: Mapping[str, Any], meaning: Callable[[str], str | None]) -> None:
    when = f"when {use['kernel']} is launched"
    changed = next((name for name in use["names"] if name in ALLOWED), None)
    if changed:
        raise NotAKernel(
            f"{changed} is {use['names'][changed][0]} {when}: leave what Triton and Python define as it is"
        )
    found = [(name, texts, _said(bindings[name])) for name, texts in use["names"].items() if name in bindings]
    binding = bindings.get(use["function"])
    if binding and binding.kind == "function" and _said(binding) == uses.function_text(*use["defined"]):
        text, now = _source_of(binding), use["source"]
        if now.strip() != text.strip() and (meaning(now) is None or meaning(now) != meaning(text)):
            raise NotAKernel(f"the source of {use['function']} is another {when} than in its cell: change it there")
        for name, default in _defaults(binding.node.args):
            said = _said(binding_of(default, binding.node, binding.cell, binding.value))
            texts = use["defaults"].get(name, ["unbound"])
            found.append((f"the default of {name} in {use['function']}", texts, said))
    for name, texts, said in found:
        if said and said not in texts:
            why = f"{name} is {texts[0]} {when}, and {said} where the notebook defines it"
            raise NotAKernel(re.sub(r"cell own-\d+", "a cell of your own", f"{why}: bind it there, and nowhere else"))


def _meaning(source: str) -> str | None:
    """Return what is alike in sources that mean the same; None if this one does not parse, or is nested too deeply."""
    tree = parsed(source)
    return None if tree is None or is_deep(tree) else ast.dump(tree)


def _source_of(binding: Binding) -> str:
    """Return the source of a function, without its decorators, as Triton has it."""
    node = binding.node
    lines = [*_lines(binding.cell.source)[node.lineno - 1 : node.end_lineno]]
    lines[-1] = lines[-1].encode()[: node.end_col_offset].decode()
    lines[0] = lines[0].encode()[node.col_offset :].decode()
    return textwrap.dedent("".join(lines))


@functools.lru_cache(maxsize=8)
def _lines(source: str) -> tuple[str, ...]:
    return tuple(io.StringIO(source, newline=""))


def _said(binding: Binding) -> str | None:
    """Return the text by which `worker.uses` names what a name is bound to, if that is known."""
    if binding.kind == "function":
        first = min(each.lineno for each in (*_decorators(binding.node), binding.node))
        return uses.function_text(binding.cell.name, first)
    if binding.kind == "path":
        return binding.value if binding.value in (*ALLOWED, *uses.MODULES) else None
    text = literal(plain(binding.value)) if binding.kind == "constant" else ""
    return None if "Layout" in text else text[: uses.LONGEST]


def _defaults(node: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    last = [*node.posonlyargs, *node.args][::-1]
    pairs = [*zip(last, node.defaults[::-1], strict=False), *zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    yield from ((arg.arg, default) for arg, default in pairs if default)


_bindings = functools.lru_cache(maxsize=8)(bindings_of)


def _check_length(cells: Sequence[Cell]) -> None:
    if sum(len(cell.source) for cell in cells) > MAX_SOURCE:
        raise NotAKernel(f"the cells hold more than {MAX_SOURCE >> 10} KiB of code: take out what is not needed")


@functools.lru_cache(maxsize=8)
def _cut(cells: tuple[Cell, ...], kernels: tuple[str, ...]) -> Kernels:
    _check_length(cells)
    bindings = _bindings(cells)
    parts: dict[str, ast.stmt] = {}
    left = MAX_NODES
    for name in kernels:
        if name not in bindings and (inside := _inside(name, cells)):
            raise NotAKernel(f"{name} was launched, which is defined inside of {inside}: write its def outside")
        before = len(parts)
        _visit(name, bindings, parts, ())
        left -= sum(1 for part in itertools.islice(parts.values(), before, None) for _ in ast.walk(part))
        if left < 0:
            raise NotAKernel(f"{name} and what goes with it is too long: split the work over shorter kernels")
        if bindings[name].kind != "function":
            raise NotAKernel(f"{name} was launched, but the cells define no @triton.jit function of that name")
    header = HEADER + (GLUON_HEADER if any(_in_gluon(bindings[name]) for name in parts) else "")
    text, above = [header], header.count("\n")
    lines: dict[int, tuple[str, int, str]] = {}
    there = {cell: cell.source.split("\n") for cell in {bindings[name].cell for name in parts}}
    for name, node in parts.items():
        cell, gap, written = bindings[name].cell, "\n" if isinstance(node, ast.Assign) else "\n\n", _written(node, name)
        for here, line in _origins(written, node, name):
            said = there[cell][line - 1].strip() if line <= len(there[cell]) else ""
            lines[above + len(gap) + here] = (cell.name, line, said)
        text.append(f"{gap}{written}\n")
        above += text[-1].count("\n")
    return Kernels("".join(text), lines)


def _inside(name: str, cells: Sequence[Cell]) -> str | None:
    """Return the class or function of the top level in which a kernel is defined."""
    for node in (each for cell in cells for each in getattr(parsed(cell.source), "body", ())):
        kind = {ast.ClassDef: "class", ast.FunctionDef: "function"}.get(type(node))
        if kind and any(isinstance(each, ast.FunctionDef) and each.name == name for each in ast.walk(node)):
            return f"the {kind} {node.name}"
    return None


def _written(node: ast.stmt, name: str) -> str:
    try:
        return ast.unparse(node)
    except (ValueError, RecursionError):
        raise NotAKernel(f"{name} cannot be written out: put its strings and f-strings more simply") from None


def _origins(written: str, node: ast.stmt, name: str) -> Iterator[tuple[int, int]]:
    """Yield (line written, line in the cell) of each statement, after a look that what is written is what was meant."""
    tree = parsed(written)
    if tree is None:  # letters of another script spell a keyword, which to Python is a name until it is written out
        raise NotAKernel(f"{name} cannot be written out: spell its names in plain letters, and no keyword")
    again = tree.body
    if len(again) != 1 or ast.dump(again[0]) != ast.dump(node):
        raise NotAKernel(f"{name} cannot be written out: put its strings and f-strings more simply")
    for new, old in zip(ast.walk(again[0]), ast.walk(node), strict=True):
        if isinstance(new, ast.stmt):
            yield new.lineno, old.lineno
            yield from ((d.lineno, o.lineno) for d, o in zip(_decorators(new), _decorators(old), strict=True))


def _in_gluon(binding: Binding) -> bool:
    return any(path_of(called(each), binding.value) == "gluon.jit" for each in _decorators(binding.node))


def _decorators(node: ast.stmt) -> list[ast.expr]:
    return getattr(node, "decorator_list", [])


def _visit(name: str, bindings: Bindings, parts: dict[str, ast.stmt], above: tuple[str, ...]) -> None:
    """Enter in `parts`, by name, what `name` needs, and then its own definition as it is written out."""
    if name in parts:
        return
    binding = bindings.get(name)
    user = f"{above[-1]} uses {name}" if above else f"{name} was launched"
    if binding is None:
        raise NotAKernel(f"{user}, which no cell defines at its top level")
    if name in above:
        raise NotAKernel(f"{name} needs itself: a kernel that does is not graded, to no depth; write a loop")
    if len(above) > MAX_HELPERS:
        raise NotAKernel(f"{user}: more than {MAX_HELPERS} helpers call one another in a chain")
    called_too = binding.value if isinstance(binding.value, ast.Name) else None
    if called_too is not None and getattr(bindings.get(called_too.id), "kind", "") == "function":
        raise NotAKernel(f"{name} is another name of the kernel {called_too.id}: call that by its own")
    if isinstance(binding.value, ast.AST) and not above:
        raise NotAKernel(
            f"the kernel {name} is what `{_text(binding.value)}` gives: write its def in a cell of its own"
        )
    if isinstance(binding.value, ast.AST):
        raise NotAKernel(f"the constant {name} holds `{_text(binding.value)}`: write out its value, as 64 or True")
    if binding.kind in ("other", "path"):
        if isinstance(binding.node, ast.Global):
            raise NotAKernel(f"{user}, which a function binds by `global`: bind it once, outside of functions")
        if isinstance(binding.node, ast.FunctionDef) and binding.node.name == name:
            for path in (path_of(called(each), bindings) for each in binding.node.decorator_list):
                if path is not None:
                    said = "the grader replays @triton.jit functions alone"
                    said += ": write what it gives in the kernel" * (path == "triton.constexpr_function")
                    raise NotAKernel(f"{user}, a function with @{path}: {said}")
            raise NotAKernel(f"{user}, a function without @triton.jit: write @triton.jit above its def")
        said = f"{user}, which is neither a @triton.jit function nor a constant nor an import of Triton"
        if isinstance(binding.node, ast.Import | ast.ImportFrom):
            said += BLOCKS
        elif isinstance(binding.node, ast.stmt):
            said += f": line {binding.node.lineno} binds or changes it"
            if isinstance(binding.node, BRANCHES):
                said += f", inside of `{type(binding.node).__name__.lower()}`: bind it once, outside"
        raise NotAKernel(said)
    if name.startswith("__") or name in MODULES:
        raise NotAKernel(f"{user}: give it another name")
    if binding.kind == "constant":
        value = _expression(literal(binding.value), binding.node)
        assignment = ast.Assign([ast.Name(name, ast.Store())], value, lineno=binding.node.lineno)
        parts[name] = ast.copy_location(assignment, binding.node)
        return
    writer = _Writer(binding, bindings)
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

    def __init__(self, binding: Binding, bindings: Bindings):
        self.name = binding.node.name
        self.bindings = bindings
        self.head: Bindings = binding.value  # what is above the body is worked out once, at the def
        self.modules = (*MODULES, *GLUON_MODULES) if _in_gluon(binding) else MODULES
        self.needs: set[str] = set()
        self.local: set[str] = set()

    def refuse(self, what: str) -> NotAKernel:
        return NotAKernel(f"{self.name} {what}")

    def function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if is_deep(node):
            raise self.refuse("is nested too deeply: write it in shorter expressions")
        if getattr(node, "type_params", None):
            raise self.refuse("takes type parameters, which kernels cannot")
        decorator = self.decorator(node)
        arguments = self.arguments(node.args)
        names = (each for statement in node.body for each in ast.walk(statement) if isinstance(each, ast.Name))
        self.local |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
        body = self.block(node.body)
        return _copy(node, decorator_list=[decorator], args=arguments, returns=None, body=body)

    def decorator(self, node: ast.FunctionDef) -> ast.expr:
        paths = {each: path_of(called(each), self.head) for each in node.decorator_list}
        name = "gluon.jit" if "gluon.jit" in paths.values() else "triton.jit"
        if "triton.autotune" in paths.values():
            how = "leave that out, and pass the values of one configuration at the launch"
            raise self.refuse(f"is decorated with @triton.autotune: {how}")
        others = [each for each, path in paths.items() if path not in (name, HEURISTICS)]  # of these launches have all
        if others:
            raise self.refuse(f"is decorated with `@{_text(others[0])}` besides @{name}: leave that out")
        decorators = [each for each, path in paths.items() if path == name]
        if len(decorators) != 1:
            raise self.refuse(f"has not one @{name} above its def")
        decorator = decorators[0]
        jit = _expression(name, decorator)
        if not isinstance(decorator, ast.Call):
            return jit
        if any(each.arg == "noinline" for each in decorator.keywords):
            raise self.refuse(NOINLINE)
        options = [self.option(each) for each in decorator.keywords if each.arg not in FOR_PROFILERS]
        if decorator.args or None in options:
            taken = f"of its options {', '.join(sorted(OPTIONS))} are taken, each with a literal"
            raise self.refuse(f"has the decorator `{_text(decorator)}`: {taken}")
        return _copy(decorator, func=jit, args=[], keywords=options)

    def option(self, node: ast.keyword) -> ast.keyword | None:
        value = ast.Tuple(node.value.elts, ast.Load()) if isinstance(node.value, ast.List) else node.value
        try:
            return _copy(node, value=_expression(literal(folded(value, {})), node)) if node.arg in OPTIONS else None
        except NoConstant:
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
        said = self.annotation(node.annotation) if node.annotation else ""
        if "constexpr" in said:  # so does Triton look for it
            annotation = _expression("tl.constexpr", node)
        elif TYPE.fullmatch(said):
            annotation = ast.copy_location(ast.Constant(said), node)
        else:
            annotation = None
        return _copy(node, annotation=annotation, type_comment=None)

    def annotation(self, node: ast.expr) -> str:
        """Return what Triton reads in an annotation: the name of a type, if it is one, decides the parameter's type."""
        path = path_of(node, self.head)
        if path is not None:
            return path.rpartition(".")[2]
        try:
            return literal(folded(node, self.head)).strip("\"'").removeprefix("tl.")
        except NoConstant:
            pass
        if isinstance(node, ast.BinOp | ast.Subscript):  # int | None, list[int]: a text that names no type
            return ""
        if isinstance(node, ast.Call) and path_of(node.func, self.head) == "tl.pointer_type" and len(node.args) == 1:
            return f"*{self.annotation(node.args[0])}"
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value
        binding = self.head.get(first.id) if isinstance(first, ast.Name) else None
        if not isinstance(first, ast.Name) or not isinstance(getattr(binding, "node", None), Import | None):
            raise self.refuse(f"annotates a parameter with `{_text(node)}`: leave that out, or write a type of tl")
        if node is first:
            names = {each.asname: each.name for each in binding.node.names} if binding else {}
            return names.get(node.id, node.id)
        return node.attr

    def default(self, node: ast.expr) -> ast.expr:
        try:
            return _expression(literal(folded(node, self.head)), node)
        except NoConstant:
            raise NotAKernel(f"{self.name}: the default `{_text(node)}` is not a literal") from None

    def is_constexpr(self, annotation: ast.expr) -> bool:
        return path_of(annotation, self.bindings, self.local) in ("tl.constexpr", "gl.constexpr")

    def bind(self, name: str) -> None:
        if name.startswith("__") or name in FRONT_END or name in self.modules:
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
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                why = "a kernel has no dictionaries, and what they hold is passed as an argument, of type tl.constexpr"
                raise self.refuse(f"looks up `{_text(node)}`: {why}")
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
        path = path_of(node, self.bindings, self.local)
        if path is not None:
            return self.language(path, node)
        if isinstance(node, ast.Name):
            return self.own_name(node)
        if node.attr.startswith("_"):
            raise self.refuse(f"asks for .{node.attr}")
        base = node.value
        if isinstance(base, ast.Name) and base.id not in self.local:
            self.no_class(base)
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
        if base.partition(".")[2] in DTYPES and base.startswith(("tl.", "gl.")) and name in VALUE_ATTRIBUTES:
            return _expression(path, node)
        if re.fullmatch(r"(tl|gl)\.extra\.(\w+\.)?libdevice", base):
            twin = LIBDEVICE.get(name) or (f"tl.{name}" if name in LANGUAGE_MATH else "")
            raise self.refuse(f"uses libdevice's {name}, which is not emulated" + (f": write {twin}" if twin else ""))
        refused = {"tl": LANGUAGE_REFUSED, "gl": GLUON_REFUSED}.get(path.split(".")[0], {})
        why = refused.get(path.split(".")[1]) if "." in path else None
        if refused and base in ("tl", "gl") and not why:
            mean = ": tl.sum(x) / n is the mean" if name == "mean" else ""
            raise self.refuse(f"uses {path}, which Triton does not have{mean}")
        raise self.refuse(f"uses {path}, which the grader does not replay" + (f": it is {why}" if why else ""))

    def no_class(self, node: ast.Name) -> None:
        found = None if node.id in self.local else self.bindings.get(node.id)
        if found is not None and isinstance(found.node, ast.ClassDef) and found.node.name == node.id:
            raise self.refuse(f"uses the class {node.id}, and classes are not graded: pass what it holds one by one")

    def own_name(self, node: ast.Name) -> ast.Name:
        name = node.id
        if name.startswith("__"):
            raise self.refuse(f"uses {name}")
        self.no_class(node)
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


def _expression(text: str, at: ast.AST) -> ast.expr:
    node = parse(text, mode="eval").body
    for each in ast.walk(node):
        ast.copy_location(each, at)
    return node


def _copy(node: Any, **changes: Any) -> Any:
    """Return a node with other fields; no node of the cells' trees is changed."""
    fields = {name: getattr(node, name) for name in node._fields if hasattr(node, name)}
    return ast.copy_location(type(node)(**{**fields, **changes}), node)
