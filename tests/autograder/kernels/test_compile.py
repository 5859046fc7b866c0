"""What the compiler says of a kernel for GPUs that are not here."""

import re

import pytest
import torch

from autograder.judging.program import Cell
from autograder.kernels.compile import compile_launches
from autograder.kernels.record import kernels_of, record
from autograder.kernels.workers import KernelFailure

pytestmark = pytest.mark.xdist_group("workers")

PROGRAM = [
    Cell(
        "kernels",
        """
import torch
import triton
import triton.language as tl

@triton.jit
def square_rows(x_ptr, out_ptr, D, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * D + cols, mask=cols < D, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * D + cols, x * tl.sum(x * x), mask=cols < D)

@triton.jit
def product(a_ptr, b_ptr, out_ptr, K, M: tl.constexpr, BLOCK: tl.constexpr):
    rows, inner = tl.arange(0, M)[:, None], tl.arange(0, BLOCK)
    acc = tl.zeros([M, M], tl.float32)
    for start in range(0, K, BLOCK):
        a = tl.load(a_ptr + rows * K + start + inner[None, :])
        b = tl.load(b_ptr + (start + inner[:, None]) * M + tl.arange(0, M)[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rows * M + tl.arange(0, M)[None, :], acc)

@triton.jit
def read(x_ptr, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    return tl.load(x_ptr + cols, mask=cols < n, other=0.0)

@triton.jit
def with_a_helper(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store(out_ptr, tl.sum(read(x_ptr, n, BLOCK)))

@triton.jit
def calls_torch(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr + tl.arange(0, BLOCK)))

@triton.jit
def kept_and_not(x_ptr, BLOCK: tl.constexpr):
    at = x_ptr + tl.arange(0, BLOCK)
    tl.store(at, 2 * tl.load(at, cache_modifier=".cg", eviction_policy="evict_first"))

def rows(x, block, warps):
    out = torch.empty_like(x)
    square_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=block, num_warps=warps)
    return out

def products(a, b, block):
    m, k = a.shape
    out = torch.empty(m, m)
    product[(1,)](a, b, out, k, M=m, BLOCK=block)
    return out

def helped(x):
    out = torch.empty(1)
    with_a_helper[(1,)](x, out, x.numel(), BLOCK=1024)
    return out

def refused(x):
    kept_and_not[(1,)](x, BLOCK=1024)
    return x

def broken(x):
    calls_torch[(1,)](x, BLOCK=64)
    return x
""",
        required=True,
    )
]


def compiled(workers, entry, arguments, device="h100"):
    recording = record(workers, PROGRAM, entry, arguments)
    return compile_launches(workers, kernels_of(PROGRAM, recording), recording, device)[0]


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.thorough(but=3)
@pytest.mark.parametrize("device", ["t4", "a100_80gb", "l4", "rtx4090", "h100", "b200", "mi300x"])
def test_compiles_for_every_named_gpu(workers, device):
    found = compiled(workers, "rows", {"x": meta(64, 1024, dtype=torch.float16), "block": 1024, "warps": 4}, device)
    assert 8 <= found["registers"] <= 128 and found["stack_bytes"] == 0 and found["instructions"]["barrier"] >= 1
    assert found["widths"]["load"] and found["widths"]["store"]


def test_loads_are_as_wide_as_shapes_allow(workers):
    wide = compiled(workers, "rows", {"x": meta(64, 1024), "block": 1024, "warps": 4})
    narrow = compiled(workers, "rows", {"x": meta(64, 1001), "block": 1024, "warps": 4})
    assert set(wide["widths"]["load"]) == {"16"} and set(narrow["widths"]["load"]) == {"2"}


def test_accesses_of_helpers_are_found_where_they_stand(workers):
    found = compiled(workers, "helped", {"x": meta(1024, dtype=torch.float32)})
    (load,) = [site for site in found["sites"] if site["kind"] == "load"]
    assert load["shape"] == [1024] and load["width"] == 16 and len(load["bases"]["lane"]) == 5


def test_a_huge_block_spills(workers):
    found = compiled(workers, "rows", {"x": meta(64, 16384), "block": 16384, "warps": 1})
    assert found["stack_bytes"] > 0 and found["instructions"]["spill"] > 0


def test_matrix_units_are_seen(workers):
    found = compiled(workers, "products", {"a": meta(64, 256), "b": meta(256, 64), "block": 32})
    assert found["instructions"]["tensor"] > 0 and found["shared"] > 0


def test_the_limit_of_shared_memory_is_each_gpu_s(workers):
    arguments = {"a": meta(128, 512, dtype=torch.float16), "b": meta(512, 128, dtype=torch.float16), "block": 128}
    assert compiled(workers, "products", arguments, "h100")["shared"] > 99 << 10
    with pytest.raises(KernelFailure, match=r"product: it needs \d+ KiB of shared memory.*NVIDIA L4|L4.*99 KiB"):
        compiled(workers, "products", arguments, "l4")


def test_a_kernel_that_does_not_compile_says_why(workers):
    with pytest.raises(KernelFailure, match="calls_torch does not compile"):
        compiled(workers, "broken", {"x": meta(64)})


def test_what_the_assembler_refuses_is_told_with_the_line_of_the_kernel(workers):
    with pytest.raises(KernelFailure) as error:
        compiled(workers, "refused", {"x": meta(1024)})
    assert re.search(r"line 38 \(`tl.store\(at, 2 .*Modifier '.evict_first' cannot be comb[^,;]*$", str(error.value))
