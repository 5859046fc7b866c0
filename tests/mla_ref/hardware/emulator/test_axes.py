"""What the emulator takes Triton's compiler to infer of addresses and masks, beside the machine code that it makes."""

import linecache
import re

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from mla_ref.hardware.emulator import axes  # noqa: E402
from mla_ref.hardware.emulator.backend import kernel_of  # noqa: E402

BLOCK = 256
# Offsets and masks of elements of 4 bytes; `n`, `m` and `p` are arguments, of which `n` is a multiple of 16, and `ids`
# numbers from memory.
OFFSETS = """
i
i + 1
i + 2
i + 4
i + n
i + m
i * 2
i * 1
i - n
n - i
i + n * 3
i + m * 4
i // 4 * 4 + i % 4
i % 8
i % 8 + i // 8 * 16
i % n
i % m
(i + n) % 16
(i - 256) % 8 + i // 8 * 8
i // 2
i % 48 % 32 + tl.program_id(0) * 4
(i << 1) + m
i << m
i << 0
i >> 1
(i >> 2 << 2) + (i & 3)
i | 16
tl.maximum(i, 16)
tl.minimum(i + n, n)
tl.where(i < 64, i, i + n)
tl.where(i < n, i, 0)
tl.where(n < 16, i, i + 16)
tl.max_contiguous(tl.multiple_of(ids, 16), 16)
tl.max_contiguous(ids, 8)
i.to(tl.int8).to(tl.int32)
i.to(tl.int64) + n
i + (i // 64) * 64
i + tl.where(i < 64, 0, 32)
tl.reshape(tl.arange(0, 256), [256])
tl.reshape(tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :], [256])
i + tl.sum(i)
i + tl.cast(p, tl.int32)
""".strip().splitlines()
MASKS = """
i < n
i < m
i < n + 2
n > i
i >= n
i <= n
i == n
(i < n) & (i % 4 < 2)
i % 4 < 2
i // 8 < n
(i - 256) % 8 < 0
i < 30
(i < n) | (i >= 128)
n < m
i + 2 < n
""".strip().splitlines()
ROWS = """
i * 4
i * n
i * m
i + m
n - i
n - 16 - i
i + i
i + 2 * i
i + ids * 16
i << 2
i << m
i % 48 % 32
i // 8 * 8
tl.where(i < 16, i, 0)
tl.where(i < n, i * 16, n)
tl.minimum(i, n) * 4
tl.multiple_of(tl.abs(ids), 16)
tl.multiple_of(ids, 16)
""".strip().splitlines()
HEAD = """
@triton.jit
def kernel(x_ptr, out_ptr, ids_ptr, n, m, p, BLOCK: tl.constexpr):
    i, j = tl.arange(0, BLOCK), tl.arange(0, 4)
    ids = tl.load(ids_ptr + i * 3)
    total = tl.zeros([BLOCK], tl.float32)
"""
LOOP = """
    at = i
    for turn in range(0, m):
        total += tl.load(x_ptr + at)
        at += {step}
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """Return what compiles a kernel of these lines: by its lines, the elements of an access in PTX, and as inferred."""

    def compile_lines(lines):
        path = tmp_path / "kernel_of_axes.py"
        source = f"import triton\nimport triton.language as tl\n{HEAD}{lines}    tl.store(out_ptr + i * 3, total)\n"
        path.write_text(source)
        found = {}
        exec(compile(source, str(path), "exec"), found)
        linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
        kinds = dict(x_ptr="*fp32", out_ptr="*fp32", ids_ptr="*i32", n="i32", m="i32", p="i32", BLOCK="constexpr")
        whole = {(k,): [["tt.divisibility", 16]] for k in (0, 1, 2, 3)}
        made = triton.compile(
            ASTSource(found["kernel"], kinds, {(6,): BLOCK}, whole), GPUTarget("cuda", 90, 32), {"num_warps": 1}
        )
        module = kernel_of(made.asm["source"], "kernel").module
        groups = axes.inferred(module, frozenset(range(4)))
        ops = {op.number: op for op in module.ops}
        inferred = {ops[n].line: max((c for _, c in g), default=1) for n, (g, _) in groups.items()}
        line, widths = 0, {}
        for text in made.asm["ptx"].splitlines():
            line = int(match[1]) if (match := re.search(r"\.loc\s+\d+ (\d+)", text)) else line
            if match := re.search(r"ld\.global(?:\.v(\d))?\.b32", text):
                widths[line] = max(widths.get(line, 1), int(match[1] or 1))
        return {n: (widths[n], inferred[n]) for n in widths if n in inferred}, source.splitlines()

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return compile_lines


def test_addresses_are_inferred_as_the_compiler_infers_them(compiled):
    found, lines = compiled("".join(f"    total += tl.load(x_ptr + ({each}))\n" for each in OFFSETS))
    assert len(found) >= len(OFFSETS) - 4  # those that are the same are loaded once
    assert {lines[n - 1].strip(): each for n, each in found.items() if each[0] != each[1]} == {}
    assert {each[1] for each in found.values()} == {1, 2, 4}


@pytest.mark.parametrize("at", ["({})[:, None] + j[None, :]", "tl.trans(({})[None, :] + j[:, None])"])
def test_what_divides_each_row_is_inferred_as_the_compiler_infers_it(compiled, at):
    lines = (f"    total += tl.sum(tl.load(x_ptr + {at.format(each)}), axis=1)\n" for each in ROWS)
    found, lines = compiled("".join(lines))
    assert len(found) >= len(ROWS) - 2
    assert {lines[n - 1].strip(): each for n, each in found.items() if each[0] != each[1]} == {}


def test_masks_are_inferred_as_the_compiler_infers_them(compiled):
    found, lines = compiled("".join(f"    total += tl.load(x_ptr + i, mask={each}, other=0.0)\n" for each in MASKS))
    assert {lines[n - 1].strip(): each for n, each in found.items() if each[0] != each[1]} == {}
    assert {each[1] for each in found.values()} == {1, 2, 4}


@pytest.mark.parametrize("step, width", [("BLOCK", 4), ("2", 2), ("n", 4), ("m", 1)])
def test_what_a_loop_carries_is_inferred_as_the_compiler_infers_it(compiled, step, width):
    found, lines = compiled(LOOP.format(step=step))
    (each,) = (each for n, each in found.items() if "x_ptr + at" in lines[n - 1])
    assert each == (width, width)


def test_regions_side_by_side_may_have_the_same_names(compiled):
    lines = (
        LOOP.format(step="BLOCK")
        + """
    for turn in range(0, n):
        total += tl.sum(tl.load(x_ptr + i[:, None] + tl.arange(0, 4)[None, :] * m), axis=1)
    if m > 2:
        total += tl.max(total, axis=0)
    if n > 2:
        total += tl.load(x_ptr + n // 4 * 4 + i)
"""
    )
    found, source = compiled(lines)
    widths = {
        source[n - 1].split("x_ptr + ")[1].split(")")[0]: each for n, each in found.items() if "x_ptr" in source[n - 1]
    }
    assert widths["at"] == (4, 4)
    assert widths["n // 4 * 4 + i"] == (4, 4)
