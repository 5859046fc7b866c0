"""Read TTIR, the form that Triton's front end gives a kernel, from MLIR's generic text.

The generic form writes every operation alike: ``%r = "dialect.name"(%operands) <{attributes}> ({regions}) : types``,
with its location. MLIR prints it for a module that its verifier refuses; :func:`generic_text` has it refused.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAME_MEMORY = {
    f"tt.{name}" for name in ["addptr", "splat", "unsplat", "broadcast", "expand_dims", "reshape", "trans", "bitcast"]
} | {"ttg.convert_layout"}
# What gives a number of which no bit is known if one of the given ones is such, and if all are
AS_UNKNOWN = {f"arith.{name}" for name in ("addi", "subi", "xori", "addf", "subf", "mulf", "divf")}
WIDER = {"arith.extsi", "arith.extui"}
SAME_BITS = SAME_MEMORY | WIDER | {f"arith.{name}" for name in ("trunci", "extf", "truncf", "sitofp", "uitofp")}
DIVISIONS = {f"arith.{name}" for name in ("divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi")}
TRITON = str(Path(importlib.util.find_spec("triton").origin).parent)
DTYPE_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64}


Place = tuple[str, int, int]  # file, line, column
NOWHERE: Place = ("", 0, 0)
SUFFIX = ".emulated.ttir"  # of a file that a module is read from: what had no place gets one in its text
DESCRIBED = "by a descriptor"  # the name of a location, and so of what becomes of an operation that has it


@dataclass(frozen=True)
class Type:
    """The type of a value: a block ``shape``, ``()`` of a scalar; its ``element``, "i64" for a pointer; its pointee."""

    shape: tuple[int, ...]
    element: str
    pointee: str | None = None


@dataclass(slots=True)
class Op:
    """One operation.

    ``place`` is file, line and column, in the innermost function where it was inlined; ``key`` is the line that the
    module's text gives, which in a :func:`numbered` one no other operation has.
    """

    name: str
    operands: list[str]
    results: list[str]
    attrs: dict[str, Any]
    successors: list[str]
    place: Place = NOWHERE
    key: int = 0
    ins: list[Type] = field(default_factory=list)
    outs: list[Type] = field(default_factory=list)
    regions: list[list[Block]] = field(default_factory=list)
    number: int = 0
    reads: tuple[str, ...] = ()  # values from outside that its regions read
    dead: tuple[str, ...] = ()  # values of this block that nothing reads afterwards
    roots: frozenset[int] | None = None  # of an access: the parameters its pointer may come from; None if unknown
    described: bool = False  # of an access: whether the kernel makes it by a tensor descriptor
    value: Any = None  # what an executor computes once: the tensor of a constant

    @property
    def line(self) -> int:
        return self.place[1]


@dataclass(slots=True)
class Block:
    """Operations in order; ``args`` are the names and types of the values that it is entered with."""

    name: str
    args: list[tuple[str, Type]]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Function:
    """A kernel, or a function that it calls and that was not inlined."""

    name: str
    public: bool
    blocks: list[Block]


@dataclass
class Module:
    """The functions of a kernel's module, of which ``main`` is the kernel."""

    main: Function
    functions: dict[str, Function]
    ops: list[Op]

    @functools.cached_property
    def from_memory(self) -> frozenset[str]:
        """The values that memory has a part in; those of functions that are called all may."""
        found: set[str] = set()
        for function in self.functions.values():
            if function is not None and function is not self.main:
                found.update(name for block in function.blocks for name in _values(block))
        before = -1
        while len(found) > before:
            before = len(found)
            for op in self.ops:
                inner = [block for region in op.regions for block in region if block.ops]
                given = {*op.operands, *(name for block in inner for name in block.ops[-1].operands)}
                if op.name == "tt.func":
                    continue
                if op.name.startswith(("tt.load", "tt.atomic", "tt.call")) or found & given:
                    found.update(op.results, (name for block in inner for name, _ in block.args))
            for block in self.main.blocks[1:]:
                found.update(name for name, _ in block.args)
        return frozenset(found)

    @functools.cached_property
    def loaded(self) -> frozenset[str]:
        """Those of them of which a compiler knows nothing, not even one bit."""
        found = {
            name for op in self.ops if op.name.startswith(("tt.load", "tt.atomic", "tt.call")) for name in op.results
        }
        before = -1
        while len(found) > before:
            before = len(found)
            for op in self.ops:
                unknown = [name for name in op.operands if name in found]
                others = [name for name in op.operands if name not in found]
                alone = len(unknown) == 1 and self.from_memory.isdisjoint(others)  # x - x is 0
                if unknown and (op.name in SAME_BITS if not others else op.name in AS_UNKNOWN and alone):
                    found.update(op.results)
        return frozenset(found)

    @functools.cached_property
    def told_of_zero(self) -> frozenset[str]:
        """The divisors of which more than quotients are made, which may tell where one is 0."""
        moved = SAME_MEMORY | WIDER
        made = {op.results[0]: op.operands[0] for op in self.ops if op.name in moved}
        uses: dict[str, list[Op]] = {}
        for op in self.ops:
            for name in set(op.operands):
                uses.setdefault(name, []).append(op)

        def tells(name: str, op: Op) -> bool:
            if op.name in moved and op.operands[0] == name:
                return any(tells(op.results[0], each) for each in uses.get(op.results[0], ()))
            return op.name not in DIVISIONS or op.operands[0] == name

        found = set()
        for divisor in {op.operands[1] for op in self.ops if op.name in DIVISIONS}:
            start = divisor
            while start in made:
                start = made[start]
            if any(tells(start, op) for op in uses[start]):
                found.add(divisor)
        return frozenset(found)

    @functools.cached_property
    def freed(self) -> dict[int, int]:
        """The number of the last operation that may use it, for each of the kernel's allocations of shared memory."""
        of: dict[str, set[int]] = {}
        last: dict[int, int] = {}

        def visit(op: Op) -> int:
            inner = [visit(each) for region in op.regions for block in region for each in block.ops]
            end = max(inner, default=op.number)
            if op.name == "ttg.local_alloc":
                of[op.results[0]], last[op.number] = {op.number}, op.number
            used = set().union(*(of.get(name, ()) for name in (*op.operands, *op.reads)))
            last.update((number, max(last[number], end)) for number in used)
            if op.name.startswith("ttg.memdesc"):  # another view of it
                of.update((name, used) for name in op.results)
            return end

        for block in self.main.blocks:
            for op in block.ops:
                visit(op)
        return last


def _values(block: Block) -> Iterator[str]:
    yield from (name for name, _ in block.args)
    for op in block.ops:
        yield from op.results
        for region in op.regions:
            for inner in region:
                yield from _values(inner)


def pairs_of(op: Op) -> Iterator[Iterator[tuple[str, str]]]:
    """Yield what an operation hands into its regions, on in them and out: pairs of a value and its next name."""
    blocks = [block for region in op.regions for block in region if block.ops and op.name != "tt.func"]
    given = [op.operands, *(block.ops[-1].operands for block in blocks)]
    taken = [op.results, *([name for name, _ in block.args] for block in blocks)]
    for values, names in itertools.product(given, taken) if blocks else ():
        yield zip(reversed(values), reversed(names), strict=False)  # a loop's bounds come first


def generic_text(module: Any) -> str:
    """Return a module of Triton's bindings in generic form, with locations."""
    from triton._C.libtriton import ir

    module.set_attr("generic", ir.builder(module.context).get_unit_attr())  # without a dialect's prefix: refused
    return module.str()


def parse(text: str) -> Module:
    """Return the module that MLIR's generic text describes."""
    return _Parser(text).module()


@functools.lru_cache(4096)
def parse_type(text: str) -> Type:
    """Return a type: ``tensor<16x64x!tt.ptr<f16>>``, ``i32``, ``!tt.ptr<f32>``, ``!ttg.memdesc<64x64xbf16, ...>``."""
    shape: tuple[int, ...] = ()
    if match := re.match(r"(?:tensor|!ttg\.memdesc)<((?:\d+x)*)(.*)>$", text):
        shape, text = tuple(int(n) for n in match[1].split("x")[:-1]), _split(match[2])[0]  # layouts come behind
    if match := re.match(r"!tt\.ptr<(.*?)(?:, \d+)?>$", text):
        return Type(shape, "i64", match[1])
    return Type(shape, text)


class Locations:
    """The places that the locations of a module's text stand for."""

    def __init__(self, text: str):
        self.raw = dict(re.findall(r"^#(loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self.known: dict[str, Place] = {}

    def place(self, text: str, depth: int = 0) -> Place:
        """Return the place of a location: of a callsite that of the callee, but for Triton's own functions."""
        if text in self.known:
            return self.known[text]
        found = NOWHERE
        if match := re.match(r'"(.*)":(\d+):(\d+)', text):
            found = NOWHERE if match[1].endswith(SUFFIX) else (match[1], int(match[2]), int(match[3]))
        elif depth < 50:  # of a callsite the callee comes first
            for name in re.findall(r"#(loc\d*)", text):
                place = self.place(self.raw.get(name, ""), depth + 1)
                found = found if found[1] and not found[0].startswith(TRITON) else place
        self.known[text] = found
        return found

    def is_described(self, text: str, depth: int = 0) -> bool:
        """Return whether a location has the name `DESCRIBED`, or holds one that has."""
        inner = (self.raw.get(name, "") for name in re.findall(r"#(loc\d*)", text)) if depth < 50 else ()
        return f'"{DESCRIBED}"' in text or any(self.is_described(each, depth + 1) for each in inner)


def numbered(text: str) -> tuple[str, list[list[int]]]:
    """Return a module's text with a line of its own for each operation, from 1, and for each line and column before.

    So machine code says from which operation it comes, also where one line of a kernel was inlined in several places.
    """
    locations, lines, places = Locations(text), [], []
    for line in text.splitlines():
        if (match := re.search(r" loc\((#loc\d*)\)$", line)) and not line.startswith("#"):
            file, *place = locations.place(match[1])
            places.append(place)
            line = f'{line[: match.start()]} loc("{file or "unknown"}":{len(places)}:1)'
        lines.append(line)
    return "\n".join(lines), places


class _Parser:
    HEAD = re.compile(r'(?:(%[\w$.-]+)(?::(\d+))? = )?"([\w.]+)"\(([^()]*)\)(?:\[([^\]]*)\])?(.*)$')
    STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')

    def __init__(self, text: str):
        self.lines = text.splitlines()
        self.locations = Locations(text)
        self.described = f'"{DESCRIBED}"' in text
        self.strings: list[str] = []
        self.ops: list[Op] = []

    def module(self) -> Module:
        root = Op("", [], [], {}, [], regions=[[Block("", [])]])
        stack = [root]
        for raw in self.lines:
            text = raw.strip()
            if not text or raw.startswith(("#", "{-#")):
                continue
            location = ""
            if not text.startswith("^") and (cut := text.rfind(" loc(")) > 0:
                location, text = text[cut + 5 : -1], text[:cut]
            if text.startswith("^"):
                self._enter(stack[-1].regions[-1], text)
            elif text.startswith("}, {"):
                stack[-1].regions.append([Block("", [])])
            elif text.startswith("})"):
                self._finish(stack.pop(), self._hidden(text[2:]), location)
            else:
                self._begin(stack, text, location)
        module = next(op for op in root.regions[0][0].ops if op.name == "builtin.module")
        functions = {}
        for op in module.regions[0][0].ops:
            name = op.attrs["sym_name"]
            public = op.attrs.get("sym_visibility", "public") == "public"
            functions[name] = Function(name, public, [b for b in op.regions[0] if b.ops]) if op.regions else None
        main = next(each for each in functions.values() if each and each.public)
        for each in filter(None, functions.values()):
            for block in each.blocks:
                find_dead(block)
                for op in block.ops if len(each.blocks) > 1 else ():  # blocks read each other's values
                    op.dead = ()
        _find_roots(main)
        _find_roots_of_called(main, self.ops)
        return Module(main, functions, self.ops)

    def _enter(self, region: list[Block], text: str) -> None:
        args = text[text.index("(") + 1 : text.rindex(")")] if "(" in text else ""
        pairs = [each.split(":", 1) for each in _split(args)]
        typed = [(name.strip(), parse_type(re.sub(r" loc\(.*", "", kind).strip())) for name, kind in pairs]
        if region and not region[-1].args and not region[-1].ops:
            region.pop()
        region.append(Block(re.match(r"\^\w+", text)[0], typed))

    def _begin(self, stack: list[Op], text: str, location: str) -> None:
        match = self.HEAD.match(text)
        if not match:
            raise SyntaxError(f"a line of TTIR that is not known: {text[:200]}")
        count = int(match[2] or 1) if match[1] else 0
        names = [match[1]] if count == 1 and not match[2] else [f"{match[1]}#{n}" for n in range(count)]
        op = Op(match[3], _split(match[4]), names, {}, _split(match[5] or ""), number=len(self.ops))
        self.ops.append(op)
        stack[-1].regions[-1][-1].ops.append(op)
        rest = self._hidden(match[6])
        if attributes := re.match(r" <\{(.*?)\}>(?= :| \(\{| \{|$)", rest):
            op.attrs = self._attributes(attributes[1])
            rest = rest[attributes.end() :]
        if rest.endswith("({"):
            op.regions.append([Block("", [])])
            stack.append(op)
        else:
            self._finish(op, rest, location)

    def _finish(self, op: Op, rest: str, location: str) -> None:
        op.place = self.locations.place(location)
        op.key = op.place[1]
        if self.described and op.name.startswith(("tt.load", "tt.store", "tt.atomic")):
            op.described = self.locations.is_described(location)
        if attributes := re.match(r" \{(.*?)\} :", rest):
            op.attrs |= self._attributes(attributes[1])
        ins, outs = rest[rest.index(" : (") + 3 :].split(" -> ", 1) if " : (" in rest else ("()", "()")
        op.ins = [parse_type(each) for each in _split(ins.strip()[1:-1])]
        op.outs = [parse_type(each) for each in _split(outs.strip()[1:-1] if outs.startswith("(") else outs)]

    def _hidden(self, text: str) -> str:
        """Return the text with a number for each string in it: they may hold brackets and commas."""

        def hide(match: re.Match) -> str:
            self.strings.append(match[1])
            return f'"{len(self.strings) - 1}"'

        return self.STRING.sub(hide, text)

    def _attributes(self, text: str) -> dict[str, Any]:
        pairs = (each.partition("=") for each in _split(text))
        return {name.strip(): self._value(value.strip()) if equals else True for name, equals, value in pairs}

    def _value(self, text: str) -> Any:
        if text.startswith('"'):
            raw = self.strings[int(text[1:-1])]
            return re.sub(r"\\([0-9A-F]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], raw)
        if match := re.fullmatch(r"array<\w+(?:: (.*))?>", text):
            return tuple(int(each) for each in (match[1] or "").split(",") if each.strip() not in ("", "true", "false"))
        if match := re.fullmatch(r"(-?\d+) : i\d+", text):
            return int(match[1])
        if text.startswith('@"'):
            return self.strings[int(text[2:-1])]
        return {"true": True, "false": False, "unit": True}.get(text, text.removeprefix("@"))


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    if not any(c in text for c in "<([{"):
        return [each.strip() for each in text.split(",")] if text.strip() else []
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<([{":
            depth += 1
        elif c in ")]}" or (c == ">" and text[i - 1] != "-"):
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    return [*found, text[start:].strip()] if text.strip() else found


def parse_constant(text: str | int | bool, element: str) -> Any:
    """Return the value of a constant's attribute: a number, or a list where the elements of a block differ."""
    if not isinstance(text, str):
        return text
    value = text.rpartition(" : ")[0] or text
    if match := re.fullmatch(r"dense<(.*)>", value):
        value = match[1]
    if value.startswith("["):
        return [_number(each, element) for each in re.findall(r"[^\[\],\s]+", value)]
    return _number(value, element)


def _number(text: str, element: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    if element.startswith("i"):
        return int(text, 0)
    if not text.startswith("0x"):
        return float(text)
    bits = int(text, 16)
    if element == "f8E5M2":  # half of an f16
        element, bits = "f16", bits << 8
    if element == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    if element in ("f16", "f32", "f64"):
        size = DTYPE_BITS[element] // 8
        return struct.unpack({2: "<e", 4: "<f", 8: "<d"}[size], bits.to_bytes(size, "little"))[0]
    return math.nan


def find_dead(block: Block) -> set[str]:
    """Note at each operation which values of its block nothing reads after it; return what the block reads."""
    own = {name for name, _ in block.args}.union(*(op.results for op in block.ops))
    read: set[str] = set()
    for op in reversed(block.ops):
        op.reads = tuple(set().union(*(find_dead(inner) for region in op.regions for inner in region)))
        uses = {*op.operands, *op.reads}
        unread = {name for name in op.results if name not in read}
        op.dead = tuple((uses - read) & own | unread)
        read |= uses
    for op in block.ops:  # what a loop carries is read again by the next turn's, and results of a region by its owner
        if op.name.endswith((".yield", ".return", "scf.condition", "cf.br", "cf.cond_br")):
            op.dead = ()
    return read - own


def _find_roots(main: Function) -> None:
    """Note at each access which parameters its pointer may come from.

    A pointer that comes from elsewhere, an integer or memory, has None: it may come from any.
    """
    roots: dict[str, frozenset[int] | None] = {}
    for number, (name, kind) in enumerate(main.blocks[0].args):
        points = kind.pointee is not None or kind.element.startswith("!tt.tensordesc")
        roots[name] = frozenset([number]) if points else frozenset()
    changed = True

    def join(name: str, found: frozenset[int] | None) -> None:
        nonlocal changed
        before = roots.get(name, frozenset())
        after = None if before is None or found is None else before | found
        if name not in roots or after != before:
            roots[name], changed = after, True

    def visit(block: Block, targets: list[str]) -> None:
        for op in block.ops:
            given = [roots.get(name, frozenset()) for name in op.operands]
            if op.name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas") or "async_tma_copy" in op.name:
                op.roots = given[0]
                for name, kind in zip(op.results, op.outs, strict=True):
                    join(name, None if kind.pointee is not None else frozenset())
                continue
            if op.name == "scf.for":
                for (name, _), found in zip(op.regions[0][0].args[1:], given[3:], strict=True):
                    join(name, found)
            elif op.name == "scf.while":
                for (name, _), found in zip(op.regions[0][0].args, given, strict=True):
                    join(name, found)
            elif op.name.startswith("ttg.warp_specialize") and op.operands:
                inner = op if op.name.endswith("partitions") else op.regions[1][0].ops[0]
                for region in inner.regions:
                    for (name, _), found in zip(region[0].args, given, strict=True):
                        join(name, found)
            for number, region in enumerate(op.regions):
                for inner in region:
                    into = op.results
                    if op.name == "scf.for":
                        into = [name for name, _ in inner.args[1:]]
                    elif op.name == "scf.while":  # from the condition to the body, and from there back
                        into = [name for name, _ in op.regions[1 - number][0].args]
                    visit(inner, into)
            if op.name in ("scf.yield", "scf.condition"):
                for name, found in zip(targets, given[op.name == "scf.condition" :], strict=False):
                    join(name, found)
            carried = []
            if op.name in ("scf.for", "scf.while"):
                names = op.regions[-1][0].args[op.name == "scf.for" :]
                carried = [roots.get(name, frozenset()) for name, _ in names]
            for number, (name, kind) in enumerate(zip(op.results, op.outs, strict=True)):
                if kind.pointee is None:
                    join(name, frozenset())
                elif op.name in SAME_MEMORY:
                    join(name, given[0])
                elif op.name == "arith.select":
                    join(name, None if None in given[1:] else given[1] | given[2])
                elif carried:
                    join(name, carried[number])
                elif op.name != "scf.if":  # joined at its yields
                    join(name, None)

    for block in main.blocks[1:]:
        for name, kind in block.args:
            roots[name] = None if kind.pointee is not None else frozenset()
    while changed:
        changed = False
        for block in main.blocks:
            visit(block, [])


def _find_roots_of_called(main: Function, ops: list[Op]) -> None:
    """Note at each access of a function that is called that its pointer comes from some parameter of the kernel."""
    pointers = frozenset(n for n, (_, kind) in enumerate(main.blocks[0].args) if kind.pointee is not None)
    own = {op.number for op in _all_ops(main)}
    for op in ops:
        if op.number not in own and op.name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
            op.roots = pointers


def _all_ops(function: Function) -> Iterator[Op]:
    waiting = list(function.blocks)
    while waiting:
        for op in waiting.pop().ops:
            yield op
            waiting += [block for region in op.regions for block in region]
