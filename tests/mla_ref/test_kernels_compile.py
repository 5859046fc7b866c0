"""Every kernel compiles to machine code for every GPU: what the emulator runs is compiled only as far as TTIR."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import mla_ref

pytest.importorskip("triton", reason="kernels need Triton")

ROOT = Path(mla_ref.__file__).parent.parent
COMPILE = """
import sys
from types import SimpleNamespace
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import mla_ref.kernels
import mla_ref.kernels.decode_rotating
from mla_ref.kernels._decode import Limits

POINTEES = {"cos_ptr": "fp32", "sin_ptr": "fp32", "table_ptr": "i32", "starts_ptr": "i32", "lengths_ptr": "i32"}
POINTEES |= {"seq_lens_ptr": "i32", "lse_ptr": "fp32", "part_lses_ptr": "fp32", "parts_ptr": "fp32"}
POINTEES |= {"scales_ptr": "fp32", "block_table_ptr": "i32", "words_ptr": "i32", "packed_ptr": "u8"}
POINTEES |= {"users_ptr": "i32", "work_ptr": "i32", "counts_ptr": "i32", "rest_lse_ptr": "fp32"}
POINTEES |= {"found_ptr": "fp32", "found_lse_ptr": "fp32", "begin_ptr": "i32"}
POINTEES |= {"cu_q_ptr": "i32", "cu_kv_ptr": "i32", "packed_v_ptr": "fp8e4nv"}
PREFIX_DESCRIPTORS = "k_nope_desc", "k_rope_desc", "v_desc"
RAGGED_DESCRIPTORS = "k_desc", "k_rest_desc", "v_desc"
DESCRIPTORS = {"c_kv_desc": "R", "k_rope_desc": "DR", "k_nope_desc": "DN", "v_desc": "DV"}
DESCRIPTORS |= {"k_desc": "D", "k_rest_desc": "REST"}
TARGETS = [("cuda", sm, 32) for sm in (75, 80, 89, 90, 100)] + [("hip", "gfx942", 64)]
SHARED_KIB = {75: 64, 80: 163, 89: 99, 90: 227, 100: 227, "gfx942": 64}

def compile(module, kernel, dtype, target, constants, contiguous=True, pointees=POINTEES, **options):
    kernel = getattr(sys.modules["mla_ref.kernels." + module], kernel)
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif contiguous and name.startswith("stride_") and name.endswith("d"):
            signature[name], constants = "constexpr", {**constants, name: 1}
        elif name == "zero":
            signature[name] = "i32"
        elif name in ("eps", "scale", "v_scale", "k_inverse", "v_inverse"):
            signature[name] = "fp32"
        elif name in DESCRIPTORS:
            of = pointees.get(name.replace("_desc", "_ptr"), dtype)
            signature[name] = f"tensordesc<{of}[{constants['BLOCK_N']}, {constants[DESCRIPTORS[name]]}]>"
        else:
            signature[name] = "*" + pointees.get(name, dtype) if name.endswith("_ptr") else "i64"
            if contiguous:
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): c for n, c in constants.items()}, attributes)
    compiled = triton.compile(source, target=GPUTarget(*target), options={"num_warps": 4, **options})
    assert compiled.metadata.shared <= SHARED_KIB[target[1]] * 1024, (kernel, target)

def tile_for(module, target, heads, R, paged, scales=None):
    # Blocks and options that the launcher would choose on this GPU
    module, nvidia = sys.modules["mla_ref.kernels." + module], target[0] == "cuda"
    capability = divmod(target[1], 10) if nvidia else (9, 4)
    module.limits = lambda device: Limits(1, SHARED_KIB[target[1]] * 1024, nvidia, capability)
    table = torch.empty(1, 1) if paged else None
    caches = {"c_kv": torch.empty(1, 1, R).half(), "k_rope": torch.empty(1, 1, 64).half()}
    operands = SimpleNamespace(S=1, H=heads, R=R, Dr=64, block_table=table, scales=scales, **caches)
    tile = module.choose_tile(operands)
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    return blocks, {"num_warps": tile.num_warps, "num_stages": tile.num_stages}

def tile_for_prefill(target, rows, dtype=torch.float16):
    module, nvidia = sys.modules["mla_ref.kernels.ragged_attention"], target[0] == "cuda"
    capability = divmod(target[1], 10) if nvidia else (9, 4)
    module.limits = lambda device: Limits(1, SHARED_KIB[target[1]] * 1024, nvidia, capability)
    tile = module.choose_tile(torch.empty(1, dtype=dtype), 192, 128, rows)
    return {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}, {
        "num_warps": tile.num_warps, "num_stages": tile.num_stages
    }

def product_tiles(target, M, K, N, dtype):
    # Kernels, blocks and options that the launcher of the products would choose on this GPU
    module, nvidia = sys.modules["mla_ref.kernels.reconstruct"], target[0] == "cuda"
    module.limits = lambda device: Limits(1, SHARED_KIB[target[1]] * 1024, nvidia, (9, 0))
    x, out = (torch.empty(M, 1, 1, width, dtype=dtype) for width in (K, N))
    for suffix, choose in ("", module.choose_tile), ("_int4", module.choose_tile_int4):
        tile = choose(x, out)
        blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "BLOCK_K": tile.block_k}
        options = {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
        yield ("_many_rows" if tile.dot else "_one_row") + suffix, "reconstruct" + suffix, blocks, options

for target in [TARGETS[int(sys.argv[1])]]:
    for dtype, contiguous in ("fp16", False), ("bf16", True):
        compile("rms_norm", "_rms_norm", dtype, target, {"BLOCK_D": 512}, contiguous)
        compile("rms_norm_rows", "_rms_norm_rows", dtype, target, {"BLOCK_M": 4, "BLOCK_D": 512}, contiguous)
        for interleaved in (True, False):
            blocks = {"INTERLEAVED": interleaved, "BLOCK_H": 16, "BLOCK_P": 32}
            compile("rope", "_rope", dtype, target, {**blocks, "BLOCK_N": 64 if contiguous else 1}, contiguous)
            compile("rope_qk", "_rope_qk", dtype, target, blocks, contiguous)
        for none, block in (False, 16), (True, 1):
            blocks = {"BLOCK_S": block, "BLOCK_R": 512, "BLOCK_DR": 64, **({"lengths_ptr": None} if none else {})}
            compile("paged_update", "_paged_update", dtype, target, blocks, contiguous)
            blocks = {"BLOCK_N": block, "BLOCK_R": 512, "BLOCK_DR": 64, **({"starts_ptr": None} if none else {})}
            compile("paged_gather", "_paged_gather", dtype, target, blocks, contiguous)
        side, depth, warps = (64, 32, 4) if target[1] == 75 else (128, 64, 8)
        blocks = {"H": 16, "CAUSAL": contiguous, "BLOCK_M": side, "BLOCK_N": side, "BLOCK_D": depth}
        compile("attention_score", "_attention_score", dtype, target, blocks, contiguous, num_warps=warps, num_stages=3)
        for kernel, block in ("_whole_rows", 16384), ("_long_rows", 4096):
            blocks = {"CAUSAL": contiguous, "RAGGED": contiguous, "BLOCK_M": 1, "BLOCK_N": block}
            blocks |= {} if contiguous else {"seq_lens_ptr": None}
            compile("masked_softmax", kernel, dtype, target, blocks, contiguous, num_warps=8)
        combining = {"OVERLAP": target[1] in (90, 100), "BLOCK_P": 8, "BLOCK_D": 512}
        compile("combine", "_combine", dtype, target, combining, contiguous)
        half = torch.float16 if dtype == "fp16" else torch.bfloat16
        widths = {"K": 128, "stride_wn": 1} if contiguous else {"K": 512}
        for M in (1, 16, 64) if contiguous else (1, 32, 128):
            for kernel, module, blocks, options in product_tiles(target, M, widths["K"], 640 - widths["K"], half):
                blocks |= {"OVERLAP": target[1] in (90, 100), "GROUP": 128 if contiguous else 32, **widths}
                compile(module, kernel, dtype, target, blocks, contiguous, **options)
        kernels = [("decode", "_latent_attention", 512)]
        if target[1] in (80, 89):  # blocks that are smaller than for 512
            kernels.append(("decode", "_latent_attention", 520))
        if target[1] in (90, 100):
            kernels.append(("decode_tma", "_latent_attention_tma", 512))
            merging = {"R": 512, "OVERLAP": True, "BORDERS": contiguous, "PARTS": 64 if contiguous else 0, "ROWS": 2}
            compile("_merge_parts", "_merge", dtype, target, {**merging, "BLOCK_P": 4, "BLOCK_D": 512}, contiguous)
            for heads in (16, 128) if contiguous else ():
                tile = tile_for("decode_rotating", target, heads, 512, paged=False)
                blocks = {"R": 512, "HALF": 32, "OVERLAP": True, **tile[0]}
                compile("decode_rotating", "_rotating_attention", dtype, target, blocks, contiguous, **tile[1])
        for module, kernel, R in kernels:
            tile = tile_for(module, target, 128 if contiguous else 16, R, paged=not contiguous)
            blocks = {"CAUSAL": contiguous, "R": R, "DR": 64, "OVERLAP": target[1] in (90, 100), **tile[0]}
            blocks |= {"PAGE_SIZE": 0 if contiguous else 64, "BLOCK_R": 512 if R == 512 else 1024, "BLOCK_DR": 64}
            blocks |= {"FOLD": not contiguous, **({"block_table_ptr": None} if contiguous else {})}
            compile(module, kernel, dtype, target, {**blocks, "TILE": 0, "scales_ptr": None}, contiguous, **tile[1])
            if contiguous and R == 512 and target[1] not in (75, 80):  # which have no FP8
                tile = tile_for(module, target, 128, R, paged=False, scales=torch.empty(1))
                narrow = {**POINTEES, "c_kv_ptr": "fp8e4nv"}
                compile(module, kernel, dtype, target, {**blocks, "TILE": R, **tile[0]}, True, narrow, **tile[1])
        tile, options = tile_for_prefill(target, 1024 if contiguous else 2)
        widths = {"DN": 128, "DR": 64, "DV": 128, "BLOCK_DN": 128, "BLOCK_DR": 64, "BLOCK_DV": 128}
        tma = contiguous and target[1] in (90, 100)
        blocks = {**widths, **tile, "TMA": tma, **({} if tma else dict.fromkeys(PREFIX_DESCRIPTORS))}
        compile("prefix_attention", "_prefix_attention", dtype, target, blocks, contiguous, **options)
        compile("prefix_attention", "_merge", dtype, target, {"DV": 128, "BLOCK_R": 16, "BLOCK_DV": 128}, contiguous)
        widths = {"D": 128, "REST": 64, "DV": 128, "BLOCK_D": 128, "BLOCK_REST": 64, "BLOCK_DV": 128, "BLOCK_B": 8}
        blocks = {**widths, **tile, "CAUSAL": True, "BOTTOM_RIGHT": contiguous, "SHIFT": 0, "TMA": tma}
        blocks |= {} if tma else dict.fromkeys(RAGGED_DESCRIPTORS)
        compile("ragged_attention", "_ragged_attention", dtype, target, blocks, contiguous, **options)
        if not contiguous or target[1] in (75, 80):
            continue
        widths = {"DN": 128, "DR": 64, "DV": 128, "BLOCK_DN": 128, "BLOCK_DR": 64, "BLOCK_DV": 128}
        packed = {**POINTEES, "k_ptr": "fp8e4nv"}
        blocks = {**widths, "BLOCK_H": 16, "LARGEST": 448.0}
        compile("pack_kv", "_pack_kv", dtype, target, blocks, contiguous, packed)
        tile, options = tile_for_prefill(target, 1024, torch.float8_e4m3fn)
        blocks = {**widths, **tile, "CAUSAL": True, "BOTTOM_RIGHT": True, "SHIFT": 8, "TMA": tma}
        blocks |= {"D": 128, "REST": 64, "BLOCK_D": 128, "BLOCK_REST": 64, "BLOCK_B": 8}
        blocks |= {} if tma else dict.fromkeys(RAGGED_DESCRIPTORS)
        narrow = {**POINTEES, "out_ptr": dtype}
        compile("ragged_attention", "_ragged_attention", "fp8e4nv", target, blocks, contiguous, narrow, **options)
    print(*target)
"""


TARGETS = ["sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "gfx942"]


@pytest.mark.thorough
@pytest.mark.parametrize("target", range(len(TARGETS)), ids=TARGETS)
def test_every_kernel_compiles_for_every_gpu(target, tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "compile_kernels.py"
    script.write_text(COMPILE)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, str(script), str(target)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 1
