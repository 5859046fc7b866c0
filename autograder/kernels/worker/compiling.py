"""Compile kernels for GPUs that are not here, and read from the result what costs time.

Registers, spills and shared memory come from the compiler's tables; instruction counts, loops and access widths from
the machine code; and from Triton's intermediate form, which thread of the block touches which element.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from autograder.isolation.worker import running
from autograder.kernels.worker.diagnostics import CompilationError, diagnosed
from autograder.kernels.worker.overlap import copy_loops, product_loops
from mla_ref.hardware.emulator.ttir import Locations, numbered

UNITS = {"load": "load", "async": "load", "store": "store", "atomic": "atomic"}
KINDS = {
    "tt.load": "load",
    "tt.store": "store",
    "tt.atomic_rmw": "atomic",
    "tt.atomic_cas": "atomic",
    "ttg.async_copy_global_to_local": "async",
    "tt.descriptor_load": "load",
    "tt.descriptor_store": "store",
    "ttng.async_tma_copy_global_to_local": "async",
    "ttng.async_tma_copy_local_to_global": "store",
}
# Of regions of machine code: issue slots, bytes, instructions of the matrix units, and those that `_units` tells of
MEASURES = ("count", "spill", "shared", "passes", "tensor", "mufu", "alu", "imad", "descriptor", "box")
NO_HINT = ("u1", "fp", "bf")  # of types that a parameter is annotated with
ALIGNED = [["tt.divisibility", 16]]


def compile_launches(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Compile each of `request["launches"]` in `request["source"]` for `request["target"]`; return what was found.

    A launch that does not compile gives `{"error": sentence}`. Launches that are one kernel to the compiler are
    compiled once.
    """
    from triton.backends.compiler import GPUTarget

    os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-")
    namespace: dict[str, Any] = {"__name__": "kernels"}
    running.run_cell("kernels", request["source"], namespace)
    target = request["target"]
    gpu = GPUTarget(target["backend"], target["arch"], target["warp_size"])
    known: dict[str, Callable[[], dict[str, Any]]] = {}
    found = []
    for launch in request["launches"]:
        function = namespace[launch["kernel"]]
        options = {**launch["options"], "debug": launch["options"].get("debug", bool(function.debug))}
        try:
            signature, constants, attributes = specialise(function, launch["args"])
            key = repr((launch["kernel"], signature, constants, attributes, sorted(options.items())))
            if key not in known:
                kind = _gluon_source() if function.is_gluon() else _numbered_source()
                source = kind(function, signature=signature, constexprs=constants, attrs=attributes)
                with diagnosed():
                    known[key] = functools.cache(_compile(source, gpu, options, passed(signature)))
            found.append(known[key])
        except Exception as error:
            found.append(functools.partial(dict, error=_sentence(error)))
    return [each() for each in found]


@functools.cache
def _numbered_source() -> type:
    """Return a source of which the module has one line for each operation, once functions are inlined: `places`."""
    from triton._C.libtriton import ir, passes
    from triton.compiler import ASTSource

    class Numbered(ASTSource):
        def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
            module = super().make_ir(target, options, codegen_fns, module_map, context)
            inliner = ir.pass_manager(context)
            passes.common.add_inliner(inliner)
            inliner.run(module, "inline")
            text, self.places = numbered(module.str())
            with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
                file.write(text)
                file.flush()
                module = ir.parse_mlir_module(file.name, context)
            module.context = context
            return module

    return Numbered


@functools.cache
def _gluon_source() -> type:
    """Return a source of a kernel in Gluon, the operations of which are not counted."""
    from triton.experimental.gluon._runtime import GluonASTSource

    return type("Plain", (GluonASTSource,), {"places": None})


def _compile(source: Any, gpu: Any, options: dict[str, Any], parameters: list[str]) -> Callable[[], dict[str, Any]]:
    """Return what reads the compiled kernel. NVIDIA's tools take long to start: meanwhile the next may be compiled.

    With that comes the module from which it was compiled, and the parameters that are no constants in it.
    """
    from triton.compiler import compile

    try:
        kernel = compile(source, target=gpu, options=options)
    except Exception as error:
        raise _of_assembler(str(error), source.places) or error from None
    tools = _Tools(kernel.asm["cubin"]) if gpu.backend == "cuda" else None
    module = {"module": kernel.asm["source"], "places": source.places, "parameters": parameters, "lanes": gpu.warp_size}
    return lambda: {**_read(kernel, tools), **module}


def _of_assembler(text: str, places: list[list[int]] | None) -> CompilationError | None:
    """Return the first error of ptxas in a message, with the line of the kernel, if it is one and that is known."""
    found, file = re.search(r"\.ptx, line (\d+); error\s*: (.*)", text), re.search(r"(\S+\.ptx) -o ", text)
    if not (found and file and places and os.path.exists(file[1])):
        return None
    with open(file[1]) as lines:
        before = "".join(itertools.islice(lines, int(found[1])))
    known = [int(number) for number in re.findall(r"^\s*\.loc\s+\d+\s+(\d+)", before, re.MULTILINE)]
    line = places[known[-1] - 1][0] if known and 0 < known[-1] <= len(places) else 0
    return CompilationError(running.CELL.format("kernels"), line, f"ptxas says: {found[2].strip()}") if line else None


def _read(kernel: Any, tools: _Tools | None) -> dict[str, Any]:
    sites = _sites(kernel.asm["ttgir"])
    places = {f"{site['kind']}:{site['line']}" for site in sites}
    found = _read_cuda(tools, places) if tools else _read_amd(kernel, places)
    found |= {"shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps, "sites": sites}
    widths = found.pop("widths_by_line")
    for site in sites:
        here = widths.get((site["kind"], site["line"]), {})
        site["width"] = max(here, key=lambda width: (here[width], width), default=0)
    for site in found["sites"]:
        site["unroll"] = _unroll(site, found)
    return found


def _unroll(site: dict[str, Any], found: dict[str, Any]) -> int:
    """Return how many executions of an access stand side by side in the machine code, in a loop or out of one."""
    if site["bases"] is None or not site["width"]:
        return 1
    key = f"{site['kind']}:{site['line']}"
    together = max((region["lines"].get(key, 0) for region in found["regions"]), default=0)
    here = [s for s in found["sites"] if (s["kind"], s["line"]) == (site["kind"], site["line"]) and s["bases"]]
    each = sum(
        max(1, (1 << len(s["bases"]["register"])) * s["itemsize"] // max(s["width"], s["itemsize"])) for s in here
    )
    return max(1, together // max(1, each))


def _descriptor_type(dtype: str, descriptor: dict[str, Any]) -> str:
    block = descriptor["block_shape"]
    if not descriptor["gluon"]:
        return f"tensordesc<{dtype}{block}>"
    import triton.language as tl
    from triton.experimental.gluon import language as gl

    layout = gl.NVMMASharedLayout.get_default_for(block, tl.core.dtype(_triton_name(dtype)))
    return f"tensordesc<{dtype}{block},{layout!r}>"


def specialise(function: Any, args: dict[str, Any]) -> tuple[dict[str, Any], dict[tuple, Any], dict[tuple, list]]:
    """Return signature, constants and attributes, as a launch on a GPU with these arguments would have them.

    Of a parameter that is given a tuple the signature has a tuple; constants and attributes go by places.
    """
    constants, attributes = {}, {}

    def kind(parameter: Any, name: str, place: tuple[int, ...]) -> Any:
        parts = {key[len(name) + 1 :].split(".")[0] for key in args if key.startswith(f"{name}.")}
        if parts:
            return tuple(kind(parameter, f"{name}.{n}", (*place, n)) for n in range(len(parts)))
        found, constant, aligned = _specialised(parameter, name, args[name])
        if found == "constexpr":
            constants[place] = constant
        if aligned and not parameter.do_not_specialize and not parameter.do_not_specialize_on_alignment:
            attributes[place] = ALIGNED
        return found

    signature = {each.name: kind(each, each.name, (index,)) for index, each in enumerate(function.params)}
    return signature, constants, attributes


def passed(signature: dict[str, Any]) -> list[str]:
    """Return the names of the arguments that are no constants, those of a tuple's parts by name and place."""

    def names(name: str, kind: Any) -> Iterator[str]:
        if isinstance(kind, tuple):
            for place, each in enumerate(kind):
                yield from names(f"{name}.{place}", each)
        elif kind != "constexpr":
            yield name

    return [each for name, kind in signature.items() for each in names(name, kind)]


def _specialised(parameter: Any, name: str, arg: dict[str, Any]) -> tuple[str, Any, bool]:
    """Return the type of an argument, its value if it is a constant, and whether it is a multiple of 16."""
    import triton.language as tl

    plain = not parameter.do_not_specialize
    declared = parameter.annotation_type  # what the parameter is annotated with, if that is a type
    if "tensor" in arg:
        tensor = arg["tensor"]
        if "descriptor" in arg:
            return _descriptor_type(tensor["dtype"], arg["descriptor"]), None, False
        kind = ("*k" if parameter.is_const else "*") + tensor["dtype"]
        if declared and declared.replace("u1", "i1") != kind:
            raise TypeError(f"{name} is annotated as {declared}, and a tensor of {tensor['dtype']} was given")
        size = tl.core.dtype(_triton_name(tensor["dtype"])).primitive_bitwidth // 8 or 1
        return kind, None, tensor["offset"] * size % 16 == 0
    value = tl.core.dtype(arg["dtype"]) if "dtype" in arg else arg.get("constant", arg.get("value"))
    if parameter.is_constexpr or value is None or "dtype" in arg or isinstance(value, str):
        return "constexpr", value, False
    if declared:
        _check_number(name, declared, value)
        aligned = isinstance(value, int) and value is not False and value % 16 == 0 and declared[:2] not in NO_HINT
        return declared, None, aligned
    if isinstance(value, bool):
        return "i1" if plain else "u1", None, False
    if isinstance(value, float):
        return "fp32", None, False
    if value == 1 and plain:
        return "constexpr", value, False
    return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64", None, value % 16 == 0


def _check_number(name: str, declared: str, value: float) -> None:
    """Raise TypeError for a number that a parameter of a declared type does not take."""
    bits, signed = int(declared.lstrip("iu")) if declared[0] in "iu" else 0, declared[0] == "i"
    fits = not bits or (isinstance(value, int) and -(2 ** (bits - 1)) * signed <= value < 2 ** (bits - signed))
    if not fits or declared[0] in "*v":
        raise TypeError(f"{name} is annotated as {declared}, and {value!r} was given")


def _triton_name(short: str) -> str:
    return {"i": "int", "u": "uint"}.get(short[0], "") + short[1:] if short[0] in "iu" else short


def _sentence(error: BaseException) -> str:
    """Return what a compilation error says, with its line if it is one of the kernel's, without paths."""
    if hasattr(error, "node") or hasattr(error, "at"):
        found = running.describe_error(error)
        if where := found["where"]:
            return f"{found['type']} in line {where['line']} (`{where['source']}`): {found['message']}"[:1000]
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).split("Repro command:")[0].strip() or type(error).__name__
    if shown := re.match(r"at \d+:\d+:\n(?:.*\n)?(.*)\n *\^\n?(.*)", text, re.DOTALL):  # the lines up to the place
        line, said = shown[1].rpartition("\n")[2].strip(), shown[2].strip()
        inner = re.fullmatch(r"\w+\((['\"])(.*)\1\)", said, re.DOTALL)
        text = f"`{line}`: {inner[2] if inner else said}"
    return re.sub(r"/[\w./-]*/", "", f"{type(error).__name__}: {text}")[:1000]


# The machine code of NVIDIA's GPUs


class _Tools:
    """NVIDIA's tools at work on a kernel's machine code."""

    def __init__(self, cubin: bytes):
        from triton import knobs

        self.file = tempfile.NamedTemporaryFile(suffix=".cubin")  # noqa: SIM115 (until they are done)
        self.file.write(cubin)
        self.file.flush()
        self.usage = self._start(knobs.nvidia.cuobjdump.path, "--dump-resource-usage")
        self.code = self._start(knobs.nvidia.nvdisasm.path, "-g", "-c", "-hex")

    def _start(self, *command: str) -> subprocess.Popen:
        return subprocess.Popen([*command, self.file.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @staticmethod
    def output(process: subprocess.Popen) -> str:
        """Return what a tool writes; raise CalledProcessError, TimeoutExpired."""
        said, complaint = process.communicate(timeout=120)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args, said, complaint)
        return said


def _read_cuda(tools: _Tools, places: set[str]) -> dict[str, Any]:
    usage, code = tools.output(tools.usage), tools.output(tools.code)
    tools.file.close()
    table = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage.split("Function")[-1])}
    lines, labels = _instructions(code)
    found = _summary(lines, labels, _cuda_class, _units, places)
    texts = [text for text, _ in lines]
    controls = [int(upper, 16) for upper in re.findall(r"^\s*/\* 0x([0-9a-f]{16}) \*/$", code, re.MULTILINE)]
    found["product_loops"] = product_loops(texts, labels, controls)
    found["copy_loops"] = copy_loops(texts, labels, controls)
    return found | {"registers": table.get("REG", 0), "stack_bytes": table.get("STACK", 0) + table.get("LOCAL", 0)}


def _instructions(code: str) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Return `(instruction, source line)` in order, and the position of each label."""
    found: list[tuple[str, int]] = []
    labels: dict[str, int] = {}
    line, inlined = 0, False
    for text in code.splitlines():
        if match := re.match(r"\s*//## File .*?, line (\d+)(.*)", text):
            if not inlined:  # else it is the caller of the line before
                line = int(match[1])
            inlined = "inlined at" in match[2]
        elif match := re.match(r"(\.L_\w+|\$__internal\w+\$\w+):", text):
            labels[match[1]] = len(found)
        elif match := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", text):
            found.append((match[1], line))
    return found, labels


def _cuda_class(instruction: str) -> tuple[str, int]:
    """Return the class of an instruction, and the bytes that a thread moves with it."""
    name = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0]
    parts = name.split(".")
    width = next((int(p) // 8 for p in parts if p in ("128", "64")), 4)
    if parts[0] in ("LDSM", "STSM"):
        width = 4 * int(parts[-1]) if parts[-1] in "124" else 4
    width = 2 if "U16" in parts or "S16" in parts else 1 if "U8" in parts or "S8" in parts else width
    kinds = {"LDG": "load", "LDGSTS": "load", "STG": "store", "RED": "atomic", "REDG": "atomic", "ATOM": "atomic"}
    kinds |= {
        "ATOMG": "atomic",
        "LDL": "spill",
        "STL": "spill",
        "BAR": "barrier",
        "UTMALDG": "load",
        "UTMASTG": "store",
    }
    kinds |= {
        "HMMA": "tensor",
        "DMMA": "tensor",
        "HGMMA": "tensor",
        "IMMA": "tensor",
        "QGMMA": "tensor",
        "IGMMA": "tensor",
        "MUFU": "mufu",
    }
    kinds |= {"LDS": "shared", "STS": "shared", "LDSM": "shared", "STSM": "shared", "ATOMS": "shared"}
    kinds |= {"UTCHMMA": "tensor", "UTCQMMA": "tensor", "QMMA": "tensor", "OMMA": "tensor"}
    kinds |= dict.fromkeys(("DADD", "DFMA", "DMUL", "DSETP"), "double")
    return kinds.get(parts[0], "other"), width


# By unit, as benchmarks/model_corners.py found them on an H200: one that takes 16 threads in a cycle, and one of 64
SPECIAL = {"BREV", "F2F", "F2I", "FLO", "FRND", "I2F", "MUFU", "POPC", "REDUX"}
INTEGER = {*re.findall(
    r"\w+",
    """BMSK CSEL F2FP FMNMX FMNMX3 FSEL FSET FSETP I2FP IABS IADD IADD3 IMNMX ISETP LEA LOP LOP3 P2R PLOP3 PRMT R2P SEL
    SGXT SHF SHL SHR VIADDMNMX VIMNMX VIMNMX3""",
)}  # fmt: skip


def _units(instruction: str) -> dict[str, int]:
    """Return what an instruction for NVIDIA's GPUs takes of the units that are slower than it is issued."""
    name, *parts = re.sub(r"^@!?U?P\w+\s+", "", instruction).split()[0].split(".")
    if name in SPECIAL:
        return {"mufu": 1}
    if name in INTEGER:
        return {"alu": 1}
    if name == "IMAD":
        return {"imad": 2 if {"WIDE", "HI"} & {*parts} else 1}
    if name == "SHFL":  # goes through the load and store units
        return {"passes": 1}
    if name in ("UTMALDG", "UTMASTG", "UTMAREDG"):
        return {"box": 1}
    return {"descriptor": 1} if name == "UTMACCTL" and "IV" in parts else {}


def _summary(
    lines: list[tuple[str, int]], labels: dict[str, int], classify: Any, units: Any, places: set[str]
) -> dict[str, Any]:
    """Return instructions by loop and class, and the widths of global accesses.

    `classify` and `units` tell of an instruction its class and width, and what it takes of slow units. `places` are the
    accesses that the kernel itself makes. A loop that reads a table of the compiler's into a local array is the
    reduction of large angles for sine and cosine. What can be jumped over around it is left out: all that comes of the
    same operation, or else the least. A function of the compiler's counts wherever it is called, but for those that few
    numbers need, the slow paths: these count once.
    """
    loops, skips = [], []
    for position, (text, _) in enumerate(lines):
        for label in re.findall(r"\.L_\w+|\bLBB\w+", text):
            to = labels.get(label, position)
            if to < position - 1:
                loops.append((to, position))
            elif to > position + 1 and not text.startswith("BRA"):
                skips.append((position + 1, to - 1))
    last_real = max(
        (n for n, (text, _) in enumerate(lines) if re.search(r"\bEXIT\b|s_endpgm", text)), default=len(lines)
    )
    loops = sorted(set(loops))
    kinds = [f"{classify(text)[0]}:{line}" for text, line in lines]
    own = [n for n, kind in enumerate(kinds) if kind in places]
    innermost = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    rare: set[int] = set()
    for first, last in innermost:
        if not {"load", "spill"} <= {kind.split(":")[0] for kind in kinds[first : last + 1]}:
            continue
        its = {line for _, line in lines[first : last + 1]}
        around = sorted(((a, b) for a, b in skips if a <= first and last <= b), key=lambda skip: skip[1] - skip[0])
        whole = [(a, b) for a, b in around if {line for _, line in lines[a : b + 1]} <= its]
        first, last = (whole[-1:] or around[:1] or [(1, 0)])[0]
        if not any(first <= n <= last for n in own):
            rare |= set(range(first, last + 1))
    lines = _rehomed(lines, kinds, places, rare)
    regions: dict[int, dict[str, Any]] = {}
    widths: dict[str, dict[str, int]] = {"load": {}, "store": {}, "atomic": {}}
    by_line: dict[tuple[str, int], dict[int, int]] = {}
    total: dict[str, int] = {}
    bodies, run = _bodies(lines, labels), []
    apart = {n for body in bodies.values() for n in body}
    for position, (text, line) in enumerate(lines):
        called = next((body for name, body in bodies.items() if f"({name})" in text), ())
        if position not in apart:
            run += [(position, text, line), *((position, lines[n][0], line) for n in called)]
    for position, text, line in run:
        if text.startswith(("NOP", "s_nop", "s_code_end")) or (position > last_real and "BRA" in text):
            continue
        if position in rare:
            continue
        inside = [n for n, (first, last) in enumerate(loops) if first <= position <= last]
        region = min(inside, key=lambda n: loops[n][1] - loops[n][0], default=-1)
        counts = regions.setdefault(region, {**dict.fromkeys(MEASURES, 0), "lines": {}, "source": {}})
        kind, width = classify(text)
        of_line = counts["source"].setdefault(str(line), {})
        total[kind] = total.get(kind, 0) + 1
        takes = {"count": 2 if kind == "double" else 1, **units(text)}  # one of 64 bits takes the issue slots of two
        shared = {"shared": width, "passes": max(1, width / 4)}  # of 128 bytes a warp, or of less
        takes |= {"spill": {"spill": width}, "shared": shared, "tensor": {"tensor": 1}}.get(kind, {})
        for measure, amount in takes.items():
            counts[measure] += amount
            of_line[measure] = of_line.get(measure, 0) + amount
        if kind in widths:
            widths[kind][str(width)] = widths[kind].get(str(width), 0) + 1
            at = by_line.setdefault((kind, line), {})
            at[width] = at.get(width, 0) + 1
            key = f"{kind}:{line}"
            counts["lines"][key] = counts["lines"].get(key, 0) + 1
    return {
        "regions": [{"loop": region >= 0, **counts} for region, counts in sorted(regions.items())],
        "widths": widths,
        "instructions": total,
        "widths_by_line": by_line,
    }


def _bodies(lines: list[tuple[str, int]], labels: dict[str, int]) -> dict[str, range]:
    """Return the positions of the compiler's functions by name, without slow paths."""
    found = sorted((to, name) for name, to in labels.items() if name.startswith("$"))
    returns = [n for n, (text, _) in enumerate(lines) if "RET." in text]
    ends = [*(to for to, _ in found), len(lines)][1:]
    bodies = {
        name: range(to, max((n for n in returns if to <= n < end), default=to - 1) + 1)
        for (to, name), end in zip(found, ends, strict=True)
    }
    return {name: body for name, body in bodies.items() if not re.search("slowpath|mediumpath|_full", name)}


def _rehomed(lines: list[tuple[str, int]], kinds: list[str], places: set[str], rare: set[int]) -> list[tuple[str, int]]:
    """Return the lines with the source lines of moved accesses mended.

    The compiler may give an access another line than the kernel has it on. It then gets the first line of the kernel
    that has an access of its kind in the source and none in the machine code.
    """
    bare = sorted(places.difference(kinds))
    homes = {place.split(":")[0]: int(place.split(":")[1]) for place in reversed(bare)}
    stray = {n for n, kind in enumerate(kinds) if kind not in places and kind.split(":")[0] in homes} - rare
    return [(text, homes[kinds[n].split(":")[0]] if n in stray else line) for n, (text, line) in enumerate(lines)]


# AMD: the assembly text that the compiler writes


def _read_amd(kernel: Any, places: set[str]) -> dict[str, Any]:
    text = kernel.asm["amdgcn"]
    fields = {
        k: int(v) for k, v in re.findall(r"\.(vgpr_count|vgpr_spill_count|private_segment_fixed_size):\s+(\d+)", text)
    }
    found: list[tuple[str, int]] = []
    labels: dict[str, int] = {}
    line = 0
    for row in text.split("; -- End function")[0].splitlines():
        if match := re.match(r"\s*\.loc\s+\d+\s+(\d+)", row):
            line = int(match[1])
        elif match := re.match(r"\.?(LBB\w+):", row):
            labels[match[1]] = len(found)
        elif match := re.match(r"\t([a-z]\w+.*)", row):
            found.append((match[1], line))
    summary = _summary(found, labels, _amd_class, lambda text: {}, places)
    return summary | {
        "registers": fields.get("vgpr_count", 0),
        "stack_bytes": fields.get("private_segment_fixed_size", 0) or 4 * fields.get("vgpr_spill_count", 0),
    }


def _amd_class(instruction: str) -> tuple[str, int]:
    name = instruction.split()[0]
    width = 4 * int(match[1]) if (match := re.search(r"dwordx(\d)", name)) else 4
    width = 2 if "short" in name or "_u16" in name or "d16" in name else 1 if "byte" in name else width
    for prefix, kind in (("load", "load"), ("store", "store"), ("atomic", "atomic")):
        if re.match(rf"(global|buffer|flat)_{prefix}", name):
            return kind, width
    if name.startswith("scratch_"):
        return "spill", width
    if name.startswith("ds_"):
        return "shared", 16 if "128" in name else 8 if "64" in name else 4
    return ("tensor" if "mfma" in name else "barrier" if name == "s_barrier" else "other"), width


# Which thread touches which element


def _sites(ttgir: str) -> list[dict[str, Any]]:
    """Return the accesses to global memory by kind and line, with the layout of their block.

    A layout is given by its bases: the coordinates of register 1, 2, 4, …, of lane 1, 2, 4, … and of warp 1, 2, 4, ….
    """
    places, bases = Locations(ttgir), iter(_bases(ttgir))
    found: dict[tuple, dict[str, Any]] = {}
    for text in ttgir.splitlines():
        operation = next((name for name in KINDS if re.match(rf"(?:%\S+ = )?{re.escape(name)}\b", text.strip())), None)
        if operation is None:
            continue
        layout = next(bases)  # the operations come in the order of the text
        place = re.search(r"loc\((#loc\d*)\)\s*(\{.*)?$", text)
        line = places.place(place[1])[1] if place else 0
        kind = KINDS[operation]
        tensor = re.search(r"tensor<([\dx]+)x!tt\.ptr<(\w+)>", text)
        shape = [int(n) for n in tensor[1].split("x")] if tensor else []
        unit = UNITS[kind]
        key = (unit, line, tuple(shape))
        if key not in found or kind == "async":
            found[key] = {
                "kind": unit,
                "line": line,
                "shape": shape,
                "bases": layout,
                "itemsize": _itemsize(tensor[2]) if tensor else 0,
                "async": kind == "async",
            }
    return [found[key] for key in sorted(found)]


def _itemsize(name: str) -> int:
    """Return the bytes of a type of the intermediate form: bf16, f32, i8, i1, f8E4M3FN."""
    return max(1, int(re.search(r"\d+", name)[0]) // 8)


def _bases(ttgir: str) -> list[dict[str, list[list[int]]] | None]:
    """Return the bases of each access to global memory, in order; None where its block has no layout of threads.

    Triton's own reading of its layouts: through Gluon's builder to a linear layout.
    """
    from triton._C.libtriton import gluon_ir, ir

    context = ir.context()
    ir.load_dialects(context)
    for backend in ("nvidia", "amd"):
        importlib.import_module(f"triton._C.libtriton.{backend}").load_dialects(context)
    builder = gluon_ir.GluonOpBuilder(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    found: list[dict[str, list[list[int]]] | None] = []

    def visit(operation: Any) -> None:
        if operation.get_name() not in KINDS:
            return
        pointers = operation.get_operand(0)
        shape = _shape(str(pointers.get_type()))
        if not shape:
            found.append(None)
            return
        layout = builder.get_gluon_layout_from_tensor(pointers)._to_ir(builder)
        linear = builder.to_linear_layout(layout, shape)
        register = [base for base in linear.reg_bases if any(base)]
        found.append({"register": register, "lane": linear.lane_bases, "warp": linear.warp_bases})

    module.walk(visit)
    return found


def _shape(kind: str) -> list[int]:
    """Return the shape of a type of the intermediate form that is a block of pointers; none for others."""
    match = re.match(r"tensor<([\dx]+)x!tt\.ptr<", kind)
    return [int(n) for n in match[1].split("x")] if match else []
