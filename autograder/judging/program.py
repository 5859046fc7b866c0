"""Cut from a notebook the program that one exercise needs: set-up, the right predecessors, the student's own names.

The solution cell of the exercise runs whole. From the student's other cells only those top-level statements run that
bind a name the solution reads, or change it in place, directly or through another such statement, so an exploring cell
that is broken, slow or merely plots costs nothing. What stands behind the solution counts for names that nothing before
it binds: it ran later, or not at all. Omitted lines are left blank: line numbers in
tracebacks are those of the notebook.
"""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import json
import re
import sys
import threading
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

MAX_CODE = 1 << 17  # characters of a cell; what is longer is not parsed, and counts as broken
SHORT = 1 << 13  # characters of a cell that is kept as it was read
DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
BINDING = (
    *DEFINING,
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Try, ast.TryStar, ast.For, ast.While, ast.With, ast.Match),
    *([ast.TypeAlias] if sys.version_info >= (3, 12) else []),
)
# Methods that change what they are called on; `register` is singledispatch's
CHANGING = frozenset(["add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"])
CHANGING |= {"register", "remove", "reverse", "setdefault", "sort", "update"}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BUILTINS = frozenset(dir(builtins))
RUNS_ITS_BODY = ("time", "capture", "prun")  # in the notebook's namespace; `timeit` has one of its own
# What opens, closes or hides code in a line; an escaped character is one mark.
MARKS = re.compile(r"""\\.|'''|\"\"\"|['"#()\[\]{}]""")
PROMPT = re.compile(r"^(?:(?:>>>|\.\.\.)(?: |$)|In \[\d+\]: |\s*\.{3,}: ?)")  # IPython takes it off pasted code
TIMED = re.compile(r"%time\s+(.+)")
MAX_PARTS = 100  # of a dotted name; the parser takes as long as the square of their number
PARTS = re.compile(r"(?:\.(?:[ \t\f]|\\\r?\n)*\w+(?:[ \t\f]|\\\r?\n)*)+")
PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)
OUTSIDE = "<code from outside>"
_PARSING = threading.Lock()
# The parser's warnings quote the code as it is. By the name of the file: to mute all of them meanwhile would mute, and
# could leave muted, what other threads warn of.
warnings.filterwarnings("ignore", module=re.escape(OUTSIDE))


@dataclass(frozen=True)
class Cell:
    """A code cell that runs: its name in messages, its source, and whether the program ends if it fails.

    A cell that `gives` a name runs in a namespace of its own: of all it binds, the program sees that name alone.
    """

    name: str
    source: str
    required: bool = False
    gives: str = ""


def digest_of(program: Sequence[Cell]) -> str:
    """Return what tells a program from others: places that are drawn for it are of no use to another one."""
    return hashlib.sha256(json.dumps([asdict(cell) for cell in program]).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class _Statement:
    """Top-level statements that share a line: their lines, and the global names that they bind, change and read."""

    first: int
    last: int
    bound: frozenset[str]
    defined: frozenset[str]  # bound, by what does not read the name itself, as `f = faster(f)` does
    binds: frozenset[str]  # bound, or an item or attribute of it set; none if the statements are not kept
    reads: frozenset[str]
    star: bool


class _Code(NamedTuple):
    """A cell as the Python that IPython would run, and its statements; None if it does not parse."""

    source: str
    statements: tuple[_Statement, ...] | None


def build_program(
    setup: Sequence[Cell], references: Sequence[Cell], own: Sequence[Cell], solution: Cell, last: bool = False
) -> list[Cell]:
    """Return the cells to run: set-up, references, and the student's: the solution, after all that needs nothing of it.

    What stands below the solution ran before it, or is read later.

    Parameters
    ----------
    setup, references
        Trusted cells: the lesson's set-up, and solutions of the exercises that this one needs. Of names that the
        set-up reads and none of these binds, the student's own cells are asked, where the solution needs them.
    own
        The student's code cells in order, `solution` among them: cells of one name are the same cell.
    last
        Of a name that cells above and below bind, those below count, too: where they have run, theirs is the last.
    """
    trusted = [*setup, *references]
    given = _open_names(trusted)
    main = _code(solution.source)
    reads = {name for statement in main.statements or () for name in statement.reads}
    helpers = [
        (cell, code)
        for cell, code in zip(own, _codes(tuple(cell.source for cell in own)), strict=True)
        if cell.name != solution.name
    ]
    names = [cell.name for cell in own]
    before = len(names) if last else names.index(solution.name)
    picked = _pick([code for _, code in helpers], _missing(reads - _bound(main), given) - _bound(main), given, before)
    front: list[Cell] = []
    behind: list[Cell] = []
    late = _bound(main) - given.keys()  # names that are there only behind the solution
    for n, ((cell, code), statements) in enumerate(zip(helpers, picked, strict=True)):
        if not statements:
            continue
        reads, there = set(), set()
        for statement in sorted(statements, key=lambda s: s.first):
            reads |= statement.reads - there
            there |= statement.bound
        waits = n >= names.index(solution.name) and bool(reads & late)
        late |= {name for s in statements for name in s.bound | s.binds if waits}
        (behind if waits else front).append(Cell(cell.name, _keep(code.source, statements), cell.required))
    return [*trusted, *front, Cell(solution.name, main.source, required=True), *behind]


def _open_names(trusted: Sequence[Cell]) -> dict[str, set[str]]:
    """Return the names that trusted cells bind, each with what it needs besides and none of them binds."""
    reads: dict[str, set[str]] = {cell.gives: set() for cell in trusted if cell.gives}
    for cell in trusted:
        for statement in () if cell.gives else _code(cell.source).statements or ():
            for name in statement.bound:
                reads.setdefault(name, set()).update(statement.reads)
    needs = {}
    for name in reads:
        seen, waiting = {name}, [name]
        while waiting:
            fresh = reads.get(waiting.pop(), set()) - seen
            seen |= fresh
            waiting += fresh
        needs[name] = seen - reads.keys() - BUILTINS
    return needs


def _missing(names: Set[str], given: Mapping[str, Set[str]]) -> set[str]:
    """Return which of these names are not given, and what those that are need besides."""
    return (names - given.keys()).union(*(given[name] for name in names & given.keys()))


def _pick(
    codes: Sequence[_Code], needed: set[str], given: Mapping[str, Set[str]], before: int
) -> list[set[_Statement]]:
    """Return of each cell the statements that bind the needed names and what those need in turn.

    Of names that one of the first cells binds, as many as `before`, only these do.
    """
    chosen: list[set[_Statement]] = []
    binders: dict[str, list[tuple[int, _Statement]]] = defaultdict(list)
    for n, code in enumerate(codes):
        chosen.append({s for s in code.statements or () if s.star})
        for statement in code.statements or ():
            for name in statement.binds:
                binders[name].append((n, statement))
    seen, waiting, followed = set(needed), list(needed), set()
    while waiting:
        name = waiting.pop()
        first = any(n < before and name in statement.bound for n, statement in binders[name])
        for n, statement in binders[name]:
            if (n, statement) not in followed and (n < before or not first):
                followed.add((n, statement))
                chosen[n].add(statement)
                fresh = _missing(statement.reads, given) - seen
                seen |= fresh
                waiting += fresh
    return chosen


def _keep(source: str, statements: Iterable[_Statement]) -> str:
    kept = {line for s in statements for line in range(s.first, s.last + 1)}
    return "\n".join(text if n in kept else "" for n, text in enumerate(source.split("\n"), start=1))


def names_bound(source: str) -> set[str]:
    """Return the names that a cell binds at its top level; none if it does not parse."""
    return _bound(_Code(source, _statements(source)))


def bound_by(node: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a top-level statement binds, also by `:=` or `case`, and those that it changes in place."""
    top = _Scope()
    changed, _ = _walk([node], top)
    return top.bound, changed


def names_defined(source: str) -> set[str]:
    """Return the names that a cell binds, magics or not, but for those bound anew to what is made of them."""
    return {name for statement in _code(source).statements or () for name in statement.defined}


def defining(name: str, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells of a notebook that define a name, and so may hold the answer to the exercise of that name."""
    codes = _codes(tuple(cell.source for cell in cells))
    found = (any(name in statement.defined for statement in code.statements or ()) for code in codes)
    return [cell for cell, defines in zip(cells, found, strict=True) if defines]


def names_read(names: Sequence[str], own: Sequence[Cell], solution: Cell, setup: Sequence[Cell] = ()) -> list[str]:
    """Return which of these names a solution reads, or what it needs of the set-up and the other cells does.

    What binds them is left aside.
    """
    given = [Cell(name, "", gives=name) for name in names]
    cells = build_program((), given, [*setup, *own], solution, last=True)[len(given) :]
    read = {name for cell in cells for statement in _code(cell.source).statements or () for name in statement.reads}
    return [name for name in names if name in read]


def statements_beside(names: set[str], source: str) -> str:
    """Return the statements of a cell that bind or change other names than these, and of imports those of others."""
    code = _code(source)
    found = [s for s in code.statements or () if (s.bound | s.binds) - names]
    lines = _keep(code.source, [s for s in found if not s.bound & names]).split("\n")
    for each in found:
        if each.bound & names:
            lines[each.first - 1] = _line_beside(names, code.source.split("\n")[each.first - 1 : each.last])
    return "\n".join(lines).strip("\n")


def _line_beside(names: set[str], lines: Sequence[str]) -> str:
    """Return the statements of a line that bind or change other names than these, and of imports those of others."""
    kept, encoded = [], [line.encode() for line in lines]
    for node in getattr(parsed("\n".join(lines)), "body", []):
        if isinstance(node, ast.Import | ast.ImportFrom):
            node.names = [each for each in node.names if (each.asname or each.name).split(".")[0] not in names]
            kept += [ast.unparse(node)] if node.names else []
            continue
        found = _statement(0, 0, [node])
        if (found.bound | found.binds) - names:
            text = encoded[node.lineno - 1 : node.end_lineno]
            text[-1] = text[-1][: node.end_col_offset]
            text[0] = text[0][node.col_offset :]
            kept.append(b"\n".join(text).decode())
    return "; ".join(kept)


def is_broken(source: str) -> bool:
    """Return whether a cell does not parse, or is too long to be parsed."""
    return parsed(without_magics(source)) is None


def _bound(code: _Code) -> set[str]:
    return {name for statement in code.statements or () for name in statement.bound}


@functools.lru_cache(maxsize=4)  # notebooks: one is cut once for each exercise
def _codes(sources: tuple[str, ...]) -> list[_Code]:
    return [_code(source) for source in sources]


def _code(source: str) -> _Code:
    return _short_code(source) if len(source) <= SHORT else _read(source)


def _read(source: str) -> _Code:
    plain = without_magics(source)
    return _Code(plain, _statements(plain))


_short_code = functools.lru_cache(maxsize=128)(_read)  # the same cells come again: in a session, of a lesson


def parse(source: str, filename: str = "<unknown>", mode: Literal["exec", "eval"] = "exec") -> Any:
    """Return what `ast.parse` does, one thread at a time.

    CPython 3.11 keeps one count of the depth of the tree that it builds, for all threads. Where the collector of
    garbage lets a second thread in, which builds another tree, the first raises SystemError.
    """
    with _PARSING:
        return ast.parse(source, filename, mode)  # noqa: TID251


def parsed(source: str, most: int = MAX_CODE) -> ast.Module | None:
    """Return the tree of code from outside; None if it does not parse, or it or a name in it is too long to be parsed.

    `most` is how many characters it may have. Nothing is said of it on the terminal. Depth is bounded by the parser,
    whose limits raise.
    """
    try:
        if len(source) > most or any(found[0].count(".") > MAX_PARTS for found in PARTS.finditer(source)):
            return None
        return parse(source, OUTSIDE)
    except PARSE_ERRORS:
        return None


def _statements(source: str) -> tuple[_Statement, ...] | None:
    """Return the top-level statements; those that share a line count as one."""
    tree = parsed(source)
    if tree is None:
        return None
    groups: list[tuple[int, int, list[ast.stmt]]] = []
    for node in tree.body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        last = node.end_lineno or first
        if groups and first <= groups[-1][1]:
            first, before, nodes = groups.pop()
            last = max(last, before)
        else:
            nodes = []
        nodes.append(node)
        groups.append((first, last, nodes))
    return tuple(_statement(*group) for group in groups)


def _statement(first: int, last: int, nodes: Sequence[ast.stmt]) -> _Statement:
    top = _Scope()
    changed, star = _walk(nodes, top)
    binds = top.bound | changed if any(isinstance(node, BINDING) for node in nodes) else changed
    if not any(isinstance(node, DEFINING) for node in nodes):
        binds = binds - BUILTINS  # `sum = 0` in an exploring cell, not `def sum` in a helper's
    bound, reads = frozenset(top.bound), frozenset(_global_reads(top))
    alone = bound - reads
    defined = frozenset(name for node in nodes for name in _defined(node, nodes, alone))
    return _Statement(first, last, bound, defined, frozenset(binds), reads, star)


def _defined(node: ast.AST, nodes: Sequence[ast.AST], alone: Set[str]) -> Iterator[str]:
    """Yield the names that a statement binds without reading them, and of functions and classes in any case.

    `alone` are the former where it is the only one of its line.
    """
    if len(nodes) == 1:
        yield from alone
    else:
        scope = _Scope()
        _walk([node], scope)
        yield from scope.bound - _global_reads(scope)
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, (*BINDING, ast.ExceptHandler, ast.match_case)):
            waiting += ast.iter_child_nodes(each)


@dataclass(slots=True)
class _Scope:
    """A block of code with names of its own: the cell, or a function, a class or a comprehension in it."""

    parent: _Scope | None = None
    kind: type[ast.AST] = ast.Module
    bound: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)  # global here
    enclosing: set[str] = field(default_factory=set)  # nonlocal here
    reads: set[str] = field(default_factory=set)
    children: list[_Scope] = field(default_factory=list)

    def child(self, kind: type[ast.AST]) -> _Scope:
        self.children.append(_Scope(self, kind))
        return self.children[-1]


def _walk(nodes: Sequence[ast.AST], top: _Scope) -> tuple[set[str], bool]:
    """Enter in `top` and scopes below it what the statements bind and read, each node visited once.

    Returns the names that the cell's top level changes in place, by setting an item or an attribute or by a method, and
    whether it imports `*`, or from the future, which concerns the whole cell.
    """
    changed: set[str] = set()
    star = False
    waiting: list[tuple[ast.AST, _Scope]] = [(node, top) for node in nodes]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, ast.Name):
            (scope.reads if isinstance(node.ctx, ast.Load) else scope.bound).add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            scope.reads.add(node.target.id)  # before it binds it
            scope.bound.add(node.target.id)
            waiting.append((node.value, scope))
        elif isinstance(node, ast.Constant):
            continue
        elif isinstance(node, ast.Import | ast.ImportFrom):
            star |= node.names[0].name == "*" or getattr(node, "module", "") == "__future__"
            scope.bound.update(alias.asname or alias.name.split(".")[0] for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            arguments, inner = node.args, scope.child(ast.FunctionDef)
            given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            inner.bound |= {arg.arg for arg in given if arg}
            outer = [arg.annotation for arg in given if arg]
            outer += [*arguments.defaults, *arguments.kw_defaults]
            if isinstance(node, ast.Lambda):
                body = [node.body]
            else:
                scope.bound.add(node.name)
                body, outer = node.body, [*outer, node.returns, *node.decorator_list]
            waiting += [(each, scope) for each in outer if each]
            waiting += [(each, inner) for each in body]
        elif isinstance(node, ast.ClassDef):
            scope.bound.add(node.name)
            inner = scope.child(ast.ClassDef)
            waiting += [(each, scope) for each in (*node.bases, *node.keywords, *node.decorator_list)]
            waiting += [(each, inner) for each in node.body]
        elif isinstance(node, COMPREHENSIONS):
            inner = scope.child(ast.ListComp)
            first = node.generators[0].iter  # is read outside
            waiting += [(each, scope if each is first else inner) for each in _parts(node)]
        elif isinstance(node, ast.NamedExpr):
            home = scope
            while home.kind is ast.ListComp and home.parent is not None:
                home = home.parent
            home.bound.add(node.target.id)
            waiting.append((node.value, scope))
        elif isinstance(node, ast.Global):
            scope.elsewhere.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            scope.enclosing.update(node.names)
        else:
            if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping):
                name = node.rest if isinstance(node, ast.MatchMapping) else node.name
                scope.bound.update([name] if name else [])
            elif scope is top:
                for root in _changes(node):
                    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
                        root = root.func if isinstance(root, ast.Call) else root.value
                    changed.update([root.id] if isinstance(root, ast.Name) else [])
            waiting += [(each, scope) for each in _children(node)]
    return changed, star


def _changes(node: ast.AST) -> list[ast.AST]:
    """Return the expressions of which an expression changes what they stand for, by torch's methods in place, too."""
    if isinstance(node, ast.Call):
        return [each.value for each in node.keywords if each.arg == "out"]
    if not isinstance(node, ast.Attribute | ast.Subscript):
        return []
    named = node.attr if isinstance(node, ast.Attribute) else ""
    in_place = named in CHANGING or (named.endswith("_") and not named.endswith("__"))
    return [node.value] if in_place or isinstance(node.ctx, ast.Store) else []


def _children(node: ast.AST) -> list[ast.AST]:
    """Return the statements and expressions in a node: what may hold names."""
    children: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if type(value) is list:
            children += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and name not in ("ctx", "op"):
            children.append(value)
    return children


def _parts(node: ast.AST) -> list[ast.AST]:
    """Return the children of a comprehension, its generators taken apart."""
    parts: list[ast.AST] = []
    for child in _children(node):
        parts += _children(child) if isinstance(child, ast.comprehension) else [child]
    return parts


def _global_reads(top: _Scope) -> set[str]:
    """Return the names read in a scope and below it that are bound in no function around the reading."""
    if not top.children:
        return top.reads
    found: set[str] = set()
    local: dict[str, int] = defaultdict(int)  # name -> functions around that bind it
    waiting = [(top, True)]
    while waiting:
        scope, enters = waiting.pop()
        own = scope.bound - scope.elsewhere - scope.enclosing if scope is not top else set()
        if not enters:
            for name in own:
                local[name] -= 1
            continue
        reads = scope.reads
        if scope.kind is ast.ClassDef:
            reads = reads - own
        elif own:
            for name in own:
                local[name] += 1
            waiting.append((scope, False))
        found |= {name for name in reads if name in scope.elsewhere or not local.get(name)}
        waiting += [(child, True) for child in scope.children]
    return found


@functools.lru_cache(maxsize=32)
def without_magics(source: str) -> str:
    """Return a cell as the Python that IPython would run, line by line: magics and shell lines become `pass`.

    A cell that is indented as a whole moves to the left. What is no Python even so is left to fail.
    """
    if len(source) > MAX_CODE:
        return source
    lines = source.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return source
    if lines[first].startswith((">>> ", "In [")):
        lines = [PROMPT.sub("", line) for line in lines]
    if lines[first].startswith("%%"):
        if lines[first][2:].split(" ")[0] not in RUNS_ITS_BODY:
            return "\n" * (len(lines) - 1)
        lines[first] = ""
    indent = _indent(next((line for line in lines if line.strip()), ""))
    lines = [line.removeprefix(indent) for line in lines]
    plain = "\n".join(lines)
    if not any(mark in plain for mark in "%!?") or parsed(plain) is not None:
        return plain
    n, level, quote, goes_on = 0, 0, "", False
    while n < len(lines):
        if not (level or quote or goes_on) and _is_magic(lines[n]):
            goes_on = lines[n].endswith("\\")
            timed = TIMED.fullmatch(lines[n].strip())  # which runs, and binds what it binds
            lines[n] = _indent(lines[n]) + (timed[1] if timed and parsed(timed[1]) else "pass")
            while goes_on and n + 1 < len(lines):
                n += 1
                goes_on, lines[n] = lines[n].endswith("\\"), ""
            goes_on = False
        else:
            level, quote = _after(lines[n], level, quote)
            goes_on = lines[n].endswith("\\")
        n += 1
    return "\n".join(lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _is_magic(line: str) -> bool:
    """Return whether a line where a statement begins is a magic, a shell command or a question to IPython."""
    text = line.strip()
    if text.startswith(("%", "!", "?")):
        return True
    if text.endswith("?"):
        return not any(mark in text for mark in "#'\"")
    left, _, right = text.partition("=")
    return right.lstrip().startswith(("%", "!")) and all(c.isalnum() or c in "_,. []'\"" for c in left)


def _after(line: str, level: int, quote: str) -> tuple[int, str]:
    """Return how many brackets are open after a line, and the quote of the string that goes on, from those before."""
    for mark in MARKS.findall(line):
        if quote:
            quote = "" if mark.startswith(quote) else quote
        elif mark == "#":
            break
        elif mark[0] in "'\"":
            quote = mark
        elif mark in "([{":
            level += 1
        elif mark in ")]}":
            level = max(level - 1, 0)
    ended = len(quote) == 1 and not line.endswith("\\")
    return level, "" if ended else quote
