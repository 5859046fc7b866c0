"""The interpreter runs what the compiler refuses, a variable that changes its shape in a branch for one."""

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
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import mla_ref.kernels

def compile(module, kernel, dtype, target, constants, contiguous=True):
    kernel = getattr(sys.modules["mla_ref.kernels." + module], kernel)
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif contiguous and name.startswith("stride_") and name.endswith("d"):
            signature[name], constants = "constexpr", {**constants, name: 1}
        elif name == "eps":
            signature[name] = "fp32"
        else:
            table = name in ("cos_ptr", "sin_ptr")
            signature[name] = "i64" if not name.endswith("_ptr") else "*fp32" if table else "*" + dtype
            if contiguous:
                attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(n),): c for n, c in constants.items()}, attributes)
    triton.compile(source, target=GPUTarget(*target), options={"num_warps": 4})

for target in ("cuda", 75, 32), ("cuda", 80, 32), ("cuda", 89, 32), ("cuda", 90, 32), ("cuda", 100, 32), \\
        ("hip", "gfx942", 64):
    for dtype, contiguous in ("fp16", False), ("bf16", True):
        compile("rms_norm", "_rms_norm", dtype, target, {"BLOCK_D": 512}, contiguous)
        compile("rms_norm_rows", "_rms_norm_rows", dtype, target, {"BLOCK_N": 4, "BLOCK_D": 512}, contiguous)
        for interleaved in (True, False):
            blocks = {"INTERLEAVED": interleaved, "BLOCK_H": 16, "BLOCK_P": 32}
            compile("rope", "_rope", dtype, target, blocks, contiguous)
            compile("rope_qk", "_rope_qk", dtype, target, blocks, contiguous)
    print(*target)
"""


def test_every_kernel_compiles_for_every_gpu(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "compile_kernels.py"
    script.write_text(COMPILE)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == 6
