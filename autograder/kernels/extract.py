"""Cut from a student's cells the program that holds their kernels and nothing else.

What comes out is Triton functions, constants and canonical imports. It runs in the processes that compile and replay
the launches, beside no other code of the student's, so it is held to a short list: no statement that a kernel does not
need, no attribute that leads out of Triton's language.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MODULES = {"triton": "triton", "triton.language": "tl", "math": "math"}
HEADER = "import math\n\nimport triton\nimport triton.language as tl\n"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _words("range min max abs int float bool len tuple print")
CONSTANT_CALLS = _words("int float tuple len min max abs")

# What a value inside a kernel (a tensor, a pointer, a descriptor, a type) may be asked for.
VALUE_ATTRIBUTES = _words(
    """T abs advance argmax argmin associative_scan atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or
    atomic_xchg atomic_xor broadcast_to cast ceil cos cumprod cumsum dtype element_ty erf exp exp2 expand_dims flip
    floor gather is_block is_ptr is_floating is_int load log log2 logical_and logical_or logsumexp max min nbytes numel
    permute primitive_bitwidth ravel reduce reshape rsqrt scalar scatter shape sigmoid sin softmax sort split sqrt
    sqrt_rn store sum to trans type value view xor_sum"""
)
# What of `triton.language` leads out of the language, or is of no use in a kernel.
LANGUAGE_REFUSED = _words(
    "core semantic standard random extra target_info experimental inline_asm_elementwise builtin ir"
)

STATEMENTS = (
    *(ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Pass, ast.Assert),
    *(ast.Break, ast.Continue),
)
EXPRESSIONS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare),
    *(ast.IfExp, ast.Tuple, ast.List, ast.Subscript, ast.Slice, ast.Starred, ast.JoinedStr, ast.FormattedValue),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)


class NotAKernel(ValueError):
    """Why the cells hold no program of kernels: a sentence for the student."""


@dataclass(frozen=True)
class _Binding:
    node: ast.stmt
    kind: str  # "function", "constant", "module"
    module: str = ""


def kernel_program(sources: Sequence[str], kernels: Iterable[str]) -> str:
    """Return the program that defines `kernels`, from the cells `sources` in order.

    Raises
    ------
    NotAKernel
        Something the kernels need is not a Triton function, a constant or an import of Triton, or a kernel holds what
        the grader does not carry to another process.
    """
    bindings = _bindings(sources)
    order: list[str] = []
    for name in dict.fromkeys(kernels):
        _visit(name, bindings, order, ())
        if bindings[name].kind != "function":
            raise NotAKernel(f"{name} was launched, but the cells define no @triton.jit function of that name")
    modules = [f"{n} = {MODULES[b.module]}" for n in sorted(bindings) if (b := bindings[n]).kind == "module"]
    modules = [line for line in modules if line.split(" = ")[0] != line.split(" = ")[1]]
    parts = [HEADER, "\n".join(modules), *(ast.unparse(bindings[name].node) for name in order)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _bindings(sources: Sequence[str]) -> dict[str, _Binding]:
    """Return what each top-level name of the cells was bound to last."""
    found: dict[str, _Binding] = {}
    for source in sources:
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        for node in body:
            if isinstance(node, ast.FunctionDef) and any(_is_jit(d) for d in node.decorator_list):
                found[node.name] = _Binding(node, "function")
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= _imports(node)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = _Binding(ast.Assign([target], node.value, lineno=0), "constant")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found[node.name] = _Binding(node, "other")
    return found


def _imports(node: ast.Import | ast.ImportFrom) -> dict[str, _Binding]:
    found = {}
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module, name = f"{node.module}.{alias.name}", alias.asname or alias.name
        else:
            module = alias.name if alias.asname else alias.name.split(".")[0]
            name = alias.asname or module
        found[name] = _Binding(node, "module" if module in MODULES else "other", module)
    return found


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in ("triton.jit", "jit", "triton.autotune", "triton.heuristics")


def _visit(name: str, bindings: dict[str, _Binding], order: list[str], above: tuple[str, ...]) -> None:
    if name in order:
        return
    binding = bindings.get(name)
    user = f"{above[-1]} uses {name}" if above else f"{name} was launched"
    if binding is None:
        raise NotAKernel(f"{user}, which the cells do not define")
    if name in above:
        raise NotAKernel(f"{name} needs itself: kernels cannot recurse")
    if binding.kind == "other":
        raise NotAKernel(f"{user}, which is neither a @triton.jit function nor a constant nor an import of Triton")
    if binding.kind == "module":
        return
    needs = _check_function(binding.node, bindings) if binding.kind == "function" else _check_constant(name, binding)
    for needed in sorted(needs):
        _visit(needed, bindings, order, (*above, name))
    order.append(name)


def _check_constant(name: str, binding: _Binding) -> set[str]:
    value = binding.node.value
    allowed = (*(ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List),)
    needs = set()
    for node in ast.walk(value):
        if not isinstance(node, (*allowed, ast.operator, ast.unaryop, ast.expr_context)):
            raise NotAKernel(f"the constant {name} holds `{ast.unparse(node)}`: write it as a number")
        if isinstance(node, ast.Attribute):
            _check_attribute(node, name, set(), {})
        if isinstance(node, ast.Call):
            _check_call(node, name, CONSTANT_CALLS)
        if isinstance(node, ast.Name) and node.id not in CONSTANT_CALLS:
            needs.add(node.id)
    return needs


def _check_function(function: ast.FunctionDef, bindings: dict[str, _Binding]) -> set[str]:
    name = function.name
    if len(function.decorator_list) != 1 or ast.unparse(_called(function.decorator_list[0])) not in (
        "triton.jit",
        "jit",
    ):
        raise NotAKernel(f"{name} is decorated with something else than @triton.jit: settle on one configuration")
    decorator = function.decorator_list[0]
    if isinstance(decorator, ast.Call):
        if decorator.args or not all(_is_literal(k.value) and k.arg for k in decorator.keywords):
            raise NotAKernel(f"{name}: @triton.jit takes literal options only")
        decorator.func = ast.parse("triton.jit", mode="eval").body
    else:
        function.decorator_list = [ast.parse("triton.jit", mode="eval").body]
    arguments = function.args
    if arguments.vararg or arguments.kwarg:
        raise NotAKernel(f"{name} takes *args or **kwargs, which kernels cannot")
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for parameter in parameters:
        text = ast.unparse(parameter.annotation) if parameter.annotation else ""
        constant = text.strip("'\"").split(".")[-1] == "constexpr"
        parameter.annotation = ast.parse("tl.constexpr", mode="eval").body if constant else None
    for default in [*arguments.defaults, *(d for d in arguments.kw_defaults if d)]:
        if not _is_literal(default):
            raise NotAKernel(f"{name}: the default `{ast.unparse(default)}` is not a literal")
    function.returns = None
    local = {p.arg for p in parameters}
    body = [node for statement in function.body for node in ast.walk(statement)]
    local |= {node.id for node in body if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    needs = set()
    for node in body:
        if not isinstance(node, (*STATEMENTS, *EXPRESSIONS)):
            raise NotAKernel(f"{name} holds a {type(node).__name__}, which kernels are not graded with")
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            raise NotAKernel(f"{name} assigns to `{ast.unparse(node)}`: a kernel keeps nothing but its own names")
        if isinstance(node, ast.Attribute):
            _check_attribute(node, name, local, bindings)
        elif isinstance(node, ast.Compare):
            _check_comparison(node, name)
        elif isinstance(node, ast.Call):
            _check_call(node, name, BUILTINS)
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.parse("tl.constexpr", mode="eval").body
        elif isinstance(node, ast.Name):
            if node.id.startswith("__"):
                raise NotAKernel(f"{name} uses {node.id}")
            if isinstance(node.ctx, ast.Load) and node.id not in local and node.id not in BUILTINS:
                needs.add(node.id)
    return needs - {"tl", "triton", "math"} | {n for n in needs & {"tl", "triton", "math"} if n in bindings}


def _called(decorator: ast.expr) -> ast.expr:
    return decorator.func if isinstance(decorator, ast.Call) else decorator


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return ast.unparse(node) in ("float('inf')", "float('-inf')")
    return True


def _check_attribute(node: ast.Attribute, where: str, local: set[str], bindings: dict[str, _Binding]) -> None:
    """Refuse attributes that lead out of Triton's language: `tl.name` and `tl.math.name`, else those of values."""
    name = node.attr
    if name.startswith("_"):
        raise NotAKernel(f"{where} asks for .{name}")
    base = node.value
    if isinstance(base, ast.Name) and base.id not in local:
        if name in LANGUAGE_REFUSED:
            raise NotAKernel(f"{where} uses {base.id}.{name}, which the grader does not replay")
        if base.id in bindings and bindings[base.id].kind == "function":
            raise NotAKernel(f"{where} asks the kernel {base.id} for .{name}: kernels are called, and nothing else")
        return  # of a module or a constant: anything public
    if isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id not in local:
        if base.attr in ("math", "language"):
            if name in LANGUAGE_REFUSED:
                raise NotAKernel(f"{where} uses {ast.unparse(node)}, which the grader does not replay")
            return
        if ast.unparse(base.value) == "triton" and base.attr != "language":
            raise NotAKernel(f"{where} uses {ast.unparse(node)}, which is not for kernels")
    if name not in VALUE_ATTRIBUTES:
        raise NotAKernel(f"{where} asks a value for .{name}, which Triton's tensors do not have or need")


def _check_comparison(node: ast.Compare, where: str) -> None:
    """Refuse `is` but for None: it asks about objects of Python, of which a compiled kernel has none."""
    for operator, right in zip(node.ops, node.comparators, strict=True):
        none = isinstance(right, ast.Constant) and right.value is None
        if isinstance(operator, ast.Is | ast.IsNot) and not none:
            raise NotAKernel(f"{where} compares with `is`: write ==")


def _check_call(node: ast.Call, where: str, builtins: frozenset[str]) -> None:
    if not isinstance(node.func, ast.Name | ast.Attribute):
        raise NotAKernel(f"{where} calls `{ast.unparse(node.func)}`")
    if any(keyword.arg is None for keyword in node.keywords):
        raise NotAKernel(f"{where} calls {ast.unparse(node.func)} with **")
