"""The kernels in Gluon: that they compile everywhere without spilling, what they compute on a Hopper GPU."""

import functools
import itertools
import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mla_ref
from mla_ref.hardware import emulator
from mla_ref.testing import paged_case

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels import (
    decode_hopper,
    latent_attention_hopper,
    paged_latent_attention_hopper,
    ragged_attention,
    ragged_hopper,
)
from mla_ref.kernels._decode import check_decode, limits

ROOT = Path(mla_ref.__file__).parent.parent
HOPPER = not emulator.active() and torch.cuda.get_device_capability() == (9, 0)
DEVICE = "cuda" if HOPPER else "cpu"
here = pytest.mark.skipif(
    not HOPPER and not emulator.active(), reason="the kernel needs an H100, an H200 or the emulator"
)
on_hopper = pytest.mark.skipif(not HOPPER, reason="CUDA graphs take a GPU, an H100 or H200 here")
more = functools.partial(pytest.param, marks=() if HOPPER else pytest.mark.thorough)
MULTIPROCESSORS = 6  # of the emulator, here: enough that a batch has parts
COMPILE = """
import subprocess
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from mla_ref.kernels._decode_hopper import latent_attention_hopper as kernel

POINTEES = {"seq_lens_ptr": "i32", "block_table_ptr": "i32", "lse_ptr": "fp32", "begin_ptr": "i32"}
POINTEES |= {"part_ptr": "fp32", "part_lse_ptr": "fp32"}
for dtype, width, fold, paged in (("bf16", gl.bfloat16, True, True), ("fp16", gl.float16, False, False)):
    constants = {"CAUSAL": True, "FOLD": fold, "PAGE_SIZE": 64 if paged else 0, "stride_rd": 1, "stride_od": 1}
    constants |= {"stride_tp": 1, "ALIGNED": paged, "BLOCK_B": 1024 if paged else 0}
    constants |= {} if paged else {"block_table_ptr": None, "seq_lens_ptr": None}
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_desc"):
            columns = 64 if name == "k_rope_desc" else 256
            layout = gl.NVMMASharedLayout.get_default_for([64, columns], width)
            signature[name] = f"tensordesc<{dtype}[64, {columns}],{layout!r}>"
        else:
            signature[name] = "*" + POINTEES.get(name, dtype) if name.endswith("_ptr") else "i32"
            signature["scale"] = "fp32"
            if name.endswith("_ptr") or name.startswith("stride"):
                attributes[(i,)] = [["tt.divisibility", 16]]
    indices = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, indices, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.metadata.shared <= 227 * 1024
    ptx = "kernel.ptx"
    open(ptx, "w").write(compiled.asm["ptx"])
    command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", ptx, "-o", "kernel.cubin"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    command = [triton.knobs.nvidia.cuobjdump.path, "-sass", "kernel.cubin"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
"""


def compiled(script, tmp_path):
    """What a script prints that compiles without a GPU."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path}
    file = tmp_path / "compile_hopper.py"
    file.write_text(script)
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.thorough
def test_its_loops_spill_no_registers_and_no_product_waits_for_another(tmp_path):
    printed = compiled(COMPILE, tmp_path)
    for warning in ("instructions are serialized", "warpgroup.wait is injected"):
        assert warning not in printed
    # A loop has products of 16 columns of scores and then of 256 columns of values, once in each warpgroup.
    kinds = re.findall(r"HGMMA\.(64x64|64x256)|\b(STL|LDL)\b", printed)
    order = [scores_or_values or spill for scores_or_values, spill in kinds]
    groups = itertools.groupby(order, lambda kind: kind in ("STL", "LDL"))
    loops = [list(group) for spilled, group in groups if not spilled]
    assert [loop.count("64x64") for loop in loops] == [36] * 4, order
    assert [loop.count("64x256") for loop in loops] == [8] * 4, order


def drawn(seed):
    """A case of any shape that the kernel takes, its number of splits, and how it is called."""
    choose = random.Random(seed)
    S, H = choose.choice([(1, 17), (1, 40), (1, 64), (1, 128), (2, 16), (2, 128), (3, 20), (4, 16), (4, 128)])
    page_size = choose.choice([64, 128, 192])
    edges = (0, 1, 63, 64, 65, 127, 128, 129, 192)
    seq_lens = [choose.choice([choose.choice(edges), choose.randrange(1500)]) for _ in range(choose.randrange(1, 6))]
    dtype, causal = choose.choice([torch.float16, torch.bfloat16]), choose.random() < 0.7
    case = paged_case(
        seq_lens=seq_lens, num_queries=S, num_heads=H, page_size=page_size, dtype=dtype, causal=causal,
        device=DEVICE, seed=seed,
    )  # fmt: skip
    return case, choose.choice([None, None, 1, 2, 3, 7])


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    """Have the emulator stand for a GPU of a few multiprocessors, and choose the kernel as on a GPU."""
    if emulator.active():
        small = replace(limits(torch.device("cpu")), multiprocessors=MULTIPROCESSORS)
        for module in (decode_hopper, ragged_hopper):
            monkeypatch.setattr(module, "limits", lambda device: small)
        monkeypatch.setattr(ragged_hopper, "fits", ragged_hopper.takes)


def fits(case):
    inputs = dict(case.inputs)
    names = "q_latent", "q_rope", "c_kv", "k_rope", "seq_lens", "block_table", "scale", "causal"
    return decode_hopper.takes(check_decode(*(inputs[name] for name in names), paged=True))


@pytest.mark.thorough(but=2)
@here
@pytest.mark.parametrize("seed", [*range(6), *map(more, range(6, 60 if HOPPER else 15))])
def test_any_shape_over_pages(seed):
    case, num_splits = drawn(seed)
    assert fits(case)
    case.check(*paged_latent_attention_hopper(**case.inputs, num_splits=num_splits))


def lengths_of_a_batch(B, kind, choose):
    of = {
        "short": lambda: choose.randrange(300),
        "a few long": lambda: choose.randrange(6000) if choose.random() < 0.02 else choose.randrange(200),
        "the same": lambda: 1000,
        "any": lambda: choose.randrange(2500),
    }
    return [of[kind]() for _ in range(B)]


@pytest.mark.thorough(but=1)
@here
@pytest.mark.parametrize("kind", ["short", "a few long", "the same", "any"])
@pytest.mark.parametrize("B", [1, 33, 67, 133, 700] if HOPPER else [1, 13])
@pytest.mark.parametrize(("S", "H"), [(1, 64), more(2, 128)])
def test_parts_of_a_batch_are_those_of_one_sequence_after_the_other(kind, B, S, H):
    seq_lens = lengths_of_a_batch(B, kind, random.Random(B))
    case = paged_case(seq_lens=seq_lens, num_queries=S, num_heads=H, dtype=torch.bfloat16, device=DEVICE, seed=B)
    case.check(*paged_latent_attention_hopper(**case.inputs))


@pytest.mark.thorough(but=1)
@here
@pytest.mark.parametrize("seed", range(4))
def test_the_same_bits_each_time(seed):
    case, num_splits = drawn(100 + seed)
    first, *others = (
        paged_latent_attention_hopper(**case.inputs, num_splits=num_splits) for _ in range(20 if HOPPER else 2)
    )
    assert all(torch.equal(x, y) for each in others for x, y in zip(first, each, strict=True))


@pytest.mark.thorough(but=1)
@here
@pytest.mark.parametrize(("S", "H"), [(1, 128), (2, 16)])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_with_splits_given_a_sequence_has_the_same_bits_whatever_else_is_in_the_batch(S, H, num_splits):
    lengths = [1000, 64, 65, 3, 700]
    case = paged_case(seq_lens=lengths, num_queries=S, num_heads=H, dtype=torch.bfloat16, device=DEVICE)
    together = paged_latent_attention_hopper(**case.inputs, num_splits=num_splits)
    for b in range(len(lengths)):
        mine = {name: case.inputs[name][b : b + 1] for name in ("q_latent", "q_rope", "block_table", "seq_lens")}
        alone = paged_latent_attention_hopper(**case.inputs | mine, num_splits=num_splits)
        assert all(torch.equal(x[b : b + 1], y) for x, y in zip(together, alone, strict=True))


@pytest.mark.thorough(but=2)
@here
@pytest.mark.parametrize("T", [1, 64, 100, 300])
@pytest.mark.parametrize("ragged", [False, True])
def test_one_buffer(T, ragged):
    q_latent, q_rope = (torch.randn(3, 1, 128, width, device=DEVICE).bfloat16() for width in (512, 64))
    cache = torch.randn(3, T, 576, device=DEVICE).bfloat16()
    seq_lens = torch.tensor([T, 1, T // 2], device=DEVICE) if ragged else None
    exact, exact_lse = mla_ref.latent_attention(
        *(x.double() for x in (q_latent, q_rope, cache[..., :512], cache[..., 512:])), scale=0.07, seq_lens=seq_lens
    )
    for b, length in enumerate(seq_lens.tolist() if ragged else ()):
        cache[b, length:] = float("nan")
    out, lse = latent_attention_hopper(
        q_latent, q_rope, cache[..., :512], cache[..., 512:], scale=0.07, seq_lens=seq_lens
    )
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("B", "S"), [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize(
    "layout", ["one after the other", "by heads", "a part of wider ones", "by dimensions", "not aligned", "repeated"]
)
def test_a_block_of_queries_is_where_a_matrix_has_it(layout, B, S, dtype):
    H, R = 5, 512
    x = torch.randn(B, S, H, R).to(dtype)
    q = {
        "one after the other": x,
        "by heads": x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
        "a part of wider ones": torch.cat((x, x), -1)[..., R:],
        "by dimensions": x.transpose(2, 3).contiguous().transpose(2, 3),
        "not aligned": torch.cat((x.flatten()[:1], x.flatten()))[1:].view_as(x),
        "repeated": x[:, :, :1].expand(B, S, H, R),
    }[layout]
    matrix, rows, columns = decode_hopper._queries(q)
    assert matrix.stride(0) >= R
    assert matrix.stride(0) % 8 == 0
    assert matrix.stride(1) == 1
    assert matrix.data_ptr() % 16 == 0
    for b in range(B):
        found = matrix[b * rows : b * rows + S * H, b * columns : b * columns + R]
        assert torch.equal(found.reshape(S, H, R), q[b])


@on_hopper
def test_it_can_be_captured_in_a_cuda_graph():
    case, _ = drawn(7)
    out, lse = torch.empty_like(case.q_latent), torch.empty(case.q_latent.shape[:3], device=DEVICE)
    paged_latent_attention_hopper(**case.inputs, out=out, lse=lse)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_latent_attention_hopper(**case.inputs, out=out, lse=lse)
    out.fill_(float("nan"))
    graph.replay()
    case.check(out, lse)


# Ragged prefill

COMPILE_RAGGED = """
import subprocess
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from mla_ref.kernels._ragged_hopper import ragged_attention_hopper as kernel

BLOCKS = {"q_desc": [64, 128], "q_rest_desc": [64, 64], "k_desc": [128, 128], "k_rest_desc": [128, 64]}
BLOCKS["v_desc"] = [128, 128]
POINTEES = dict.fromkeys(("cu_rows_ptr", "q_starts_ptr", "kv_starts_ptr", "kv_ends_ptr"), "i32") | {"lse_ptr": "fp32"}
for dtype, width, causal in (("bf16", gl.bfloat16, True), ("fp16", gl.float16, False)):
    constants = {"CAUSAL": causal, "BOTTOM_RIGHT": True, "BLOCK_B": 32, "ALIGNED": causal, "stride_od": 1}
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in BLOCKS:
            layout = gl.NVMMASharedLayout.get_default_for(BLOCKS[name], width)
            signature[name] = f"tensordesc<{dtype}{BLOCKS[name]},{layout!r}>"
        else:
            signature[name] = "*" + POINTEES.get(name, dtype) if name.endswith("_ptr") else "i32"
            signature["scale"] = "fp32"
            if name.endswith("_ptr") or name.startswith("stride"):
                attributes[(i,)] = [["tt.divisibility", 16]]
    indices = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(kernel, signature, indices, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.metadata.shared <= 227 * 1024
    ptx = "kernel.ptx"
    open(ptx, "w").write(compiled.asm["ptx"])
    command = [triton.knobs.nvidia.ptxas.path, "-v", "--gpu-name=sm_90a", ptx, "-o", "kernel.cubin"]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
"""
LENGTHS = (0, 1, 5, 63, 64, 65, 127, 128, 129, 130, 255, 256, 300, 1100)


@pytest.mark.thorough
def test_the_one_for_prefill_compiles_and_spills_no_block(tmp_path):
    """A few strides are spilled, which it needs once a tile; a block would take hundreds of bytes."""
    printed = compiled(COMPILE_RAGGED, tmp_path)
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", printed)]
    assert len(spilled) == 2
    assert max(spilled) < 64
    assert "wgmma.mma_async instructions are serialized" not in printed


def packed(seed):
    """Return q, k, v and offsets of sequences of any lengths, some of another one's heads, and how they are called."""
    choose = random.Random(seed)
    B, H, same = (
        choose.choice([1, 2, 3, 7, 40] if HOPPER else [1, 2, 3]),
        choose.choice([1, 2, 3, 16]),
        choose.random() < 0.4,
    )
    lengths_kv = [choose.choice(LENGTHS) for _ in range(B - 1)] + [choose.randrange(1, 1200)]
    lengths_q = lengths_kv if same else [choose.choice(LENGTHS) for _ in range(B - 1)] + [choose.randrange(1, 300)]
    dtype, room = choose.choice([torch.float16, torch.bfloat16]), choose.choice([0, 8, 64])
    torch.manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), H, width + room, device=DEVICE).to(dtype)[..., :width]
        for lengths, width in ((lengths_q, 192), (lengths_kv, 192), (lengths_kv, 128))
    )
    offsets = [torch.tensor([0, *each], device=DEVICE).cumsum(0) for each in (lengths_q, lengths_kv)]
    return (q, k, v, *offsets), {"causal": choose.random() < 0.7, "bottom_right": choose.random() < 0.7}


@pytest.mark.thorough(but=1)
@here
@pytest.mark.parametrize("seed", [*range(1, 5), *map(more, (0, *range(5, 40 if HOPPER else 15)))])
def test_packed_sequences_of_any_lengths(seed):
    args, options = packed(seed)
    assert ragged_hopper.takes(*args[:3], 1.0, len(args[3]) - 1)
    out, lse = ragged_attention(*args, **options)
    exact, exact_lse = mla_ref.ragged_attention(*(x.double() for x in args[:3]), *args[3:], **options)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-4)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm()
    again, _ = ragged_attention(*args, **options)
    assert torch.equal(out, again)


@here
@pytest.mark.parametrize("length", [1, 100, 128, 200])
def test_what_lies_behind_a_sequence_does_not_count(length):
    q, k, v = (torch.randn(2 * length, 2, width, device=DEVICE).bfloat16() for width in (192, 192, 128))
    cu = torch.tensor([0, length, 2 * length], device=DEVICE, dtype=torch.int32)
    alone, _ = ragged_attention(q[:length], k[:length], v[:length], cu[:2], cu[:2])
    k[length:], v[length:] = float("nan"), float("nan")
    beside, _ = ragged_attention(q, k, v, cu, cu)
    assert torch.equal(alone, beside[:length])


@here
@pytest.mark.parametrize(("H", "lengths"), [(128, [1500]), (64, [1100, 0, 7])])
def test_a_few_long_sequences_are_split_evenly(H, lengths, monkeypatch):
    """The number of splits comes from the most tokens, which the host knows, and not from the lengths."""
    splits, launch = [], decode_hopper._launch
    monkeypatch.setattr(decode_hopper, "_launch", lambda *given: (splits.append(given[-1]), launch(*given)))
    case = paged_case(seq_lens=lengths, num_queries=1, num_heads=H, dtype=torch.bfloat16, device=DEVICE)
    case.check(*paged_latent_attention_hopper(**case.inputs))
    assert len(splits) == 1
    assert 1 < splits[0] <= 12


@here
@pytest.mark.parametrize(("S", "H"), [(1, 16), (2, 4)])
def test_few_rows_of_many_long_sequences(S, H, monkeypatch):
    case = paged_case(seq_lens=[700, 0, 130, 64], num_queries=S, num_heads=H, dtype=torch.bfloat16, device=DEVICE)
    assert not fits(case)
    monkeypatch.setattr(decode_hopper, "LONG", 512)
    monkeypatch.setattr(decode_hopper, "MUCH", 2048)
    assert fits(case)
    case.check(*paged_latent_attention_hopper(**case.inputs))


def test_the_choices_are_near_the_best_that_was_measured():
    record = json.loads((ROOT / "benchmarks" / "hopper_splits_h200.json").read_text())
    for each in record["decode"]:
        times = {name: call["cold_us"] for name, call in each["calls"].items()}
        if "chosen" in times:
            assert times["chosen"] < 1.06 * min(times.values()), each
