"""RMSNorm and RoPE on a GPU: our kernels beside PyTorch, torch.compile and Liger-Kernel, as fractions of a copy.

    PYTHONPATH=. python benchmarks/norm_rope.py         # on the GPU itself, from the repository's root

Liger-Kernel is measured where it can be imported: its sources on PYTHONPATH are enough. Every output is compared with
float64 first. The columns are those of `timings.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import record
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from timings import Call, compare, relative_error
from torch import Tensor

from mla_ref import apply_rope, kernels, rms_norm, rope_cos_sin
from mla_ref.hardware.timing import measure_copy_bandwidth

NORM_SHAPES = [(131072, 512), (16384, 2048), (16384, 7168), (16384, 512), (16384, 1536), (128, 7168), (128, 512)]
NORM_ODD_SHAPES = [(4099, 511), (1000, 7169), (3, 1)]
ROPE_SIZES = [(4, 4096, 128), (4, 4096, 16), *((B, 1, H) for H in (16, 128) for B in (4, 32, 128))]
DR, EPS, ERROR = 64, 1e-6, 3e-3
LIGER = importlib.util.find_spec("liger_kernel") is not None


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    copy = measure_copy_bandwidth("cuda")
    figures = {
        "copy_bytes_per_s": copy,
        "rms_norm": [norm(shape, copy) for shape in NORM_SHAPES],
        "rms_norm_odd": [norm_odd(shape) for shape in NORM_ODD_SHAPES],
        "rope": [rope(*size, copy) for size in ROPE_SIZES],
        "copy_bytes_per_s_at_the_end": measure_copy_bandwidth("cuda"),
    }
    print(f"copy: {copy / 1e9:.0f} GB/s, at the end {figures['copy_bytes_per_s_at_the_end'] / 1e9:.0f}")
    print(record.write(f"norm_rope_{record.gpu()}", figures, ("triton",)))


def norm(shape: tuple[int, int], copy: float) -> dict[str, Any]:
    """Measure every RMSNorm of bfloat16 at one size."""
    x, weight = torch.randn(shape, device="cuda").bfloat16(), torch.rand(shape[1], device="cuda").bfloat16() + 0.5
    out = torch.full_like(x, float("nan"))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: F.rms_norm(x, w.shape, w, EPS), dynamic=False)
    compiled_twin = torch.compile(lambda x, w: rms_norm(x, w, EPS), dynamic=False)
    calls = {
        "kernels.rms_norm": lambda: kernels.rms_norm(x, weight, EPS, out=out),
        "kernels.rms_norm_rows": lambda: kernels.rms_norm_rows(x, weight, EPS, out=out),
        "torch.compile F.rms_norm": lambda: compiled(x, weight),
        "torch.compile mla_ref.rms_norm": lambda: compiled_twin(x, weight),
        "F.rms_norm": lambda: F.rms_norm(x, weight.shape, weight, EPS),
        "mla_ref.rms_norm": lambda: rms_norm(x, weight, EPS),
    }
    if LIGER:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        calls["Liger-Kernel"] = lambda: LigerRMSNormFunction.apply(x, weight, EPS, 0.0, "llama", False)
    exact = exact_norm(x, weight)
    # Liger-Kernel rounds before it multiplies by the weight, as Llama does.
    checked = []
    for name, run in calls.items():
        out.fill_(torch.nan)
        checked.append(Call(name, run, relative_error(run(), exact, ERROR, name)))
    del exact
    case = {"rows": shape[0], "width": shape[1], "dtype": "bfloat16", "bytes": 2 * x.nbytes + weight.nbytes}
    return compare(case, checked, copy, lambda: out.copy_(x))


def norm_odd(shape: tuple[int, int]) -> dict[str, Any]:
    """Return the errors of our kernels at a size and a layout that fit nothing."""
    rows, width = shape
    weight = torch.randn(width, device="cuda").bfloat16()
    wider = torch.randn(rows, width + 9, device="cuda").bfloat16()
    errors = {
        f"kernels.{kernel.__name__}, {layout}": relative_error(kernel(x, weight, EPS), exact_norm(x, weight), ERROR)
        for layout, x in {"contiguous": wider[:, :width].contiguous(), "strided": wider[:, 5 : 5 + width]}.items()
        for kernel in (kernels.rms_norm, kernels.rms_norm_rows)
    }
    return {"rows": rows, "width": width, "dtype": "bfloat16", "relative_errors": errors}


def rope(B: int, S: int, H: int, copy: float) -> dict[str, Any]:
    """Measure every rotation of bfloat16 queries and their shared key at one size."""
    q, k = torch.randn(B, S, H, DR, device="cuda").bfloat16(), torch.randn(B, S, DR, device="cuda").bfloat16()
    positions = torch.arange(1000, 1000 + S, device="cuda")
    exact = {halves: [exact_rope(x, positions, halves) for x in (q, k)] for halves in (False, True)}
    outs, checked = (torch.empty_like(q), torch.empty_like(k)), []
    for name, run in rope_calls(q, k, *rope_cos_sin(positions, DR), outs).items():
        for out in outs:
            out.fill_(torch.nan)
        pairs = zip(run(), exact["halves" in name], strict=True)
        checked.append(
            Call(name, run, max(relative_error(out.view_as(want), want, ERROR, name) for out, want in pairs))
        )
    del exact
    tables = 2 * S * DR // 2 * 4
    case = {"B": B, "S": S, "H": H, "Dr": DR, "dtype": "bfloat16", "bytes": 2 * (q.nbytes + k.nbytes) + tables}
    source = torch.cat((q.flatten(), k.flatten()))
    target = torch.empty_like(source)
    return compare(case, checked, copy, lambda: target.copy_(source))


def rope_calls(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, outs: tuple[Tensor, Tensor]
) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    """Return what to compare by name; the ones in place have copies of their own, the others share ``outs``."""
    q_out, k_out = outs
    q_own, k_own = q.clone(), k.clone()
    query = torch.zeros(*q.shape[:3], 128 + DR, device="cuda", dtype=q.dtype)
    q_slice, k_too = query[..., 128:].copy_(q), k.clone()
    turn = torch.complex(cos, sin)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k: (apply_rope(q, cos, sin), apply_rope(k, cos, sin)), dynamic=False)

    def complex_numbers(x):
        pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        turned = pairs * (turn[:, None] if x.ndim == 4 else turn)
        return torch.view_as_real(turned).flatten(-2).to(x.dtype)

    calls = {
        "kernels.apply_rope_qk": lambda: kernels.apply_rope_qk(q, k, cos, sin, out=outs),
        "kernels.apply_rope_qk, in place": lambda: kernels.apply_rope_qk(q_own, k_own, cos, sin, out=(q_own, k_own)),
        "kernels.apply_rope_qk, in place in a query of width 192": lambda: kernels.apply_rope_qk(
            q_slice, k_too, cos, sin, out=(q_slice, k_too)
        ),
        "kernels.apply_rope, two launches": lambda: (
            kernels.apply_rope(q, cos, sin, out=q_out),
            kernels.apply_rope(k, cos, sin, out=k_out),
        ),
        "Triton, loads of every other value, two launches": lambda: (
            every_other(q, cos, sin, q_out),
            every_other(k, cos, sin, k_out),
        ),
        "torch.compile mla_ref.apply_rope": lambda: compiled(q, k),
        "torch complex numbers": lambda: (complex_numbers(q), complex_numbers(k)),
        "mla_ref.apply_rope": lambda: (apply_rope(q, cos, sin), apply_rope(k, cos, sin)),
    }
    if LIGER:
        from liger_kernel.ops.llama4_rope import llama4_rope_forward
        from liger_kernel.ops.rope import rope_forward

        full_cos, full_sin = cos.repeat(1, 2)[None], sin.repeat(1, 2)[None]
        q_halves, k_halves = q.clone().transpose(1, 2), k.clone().unsqueeze(2).transpose(1, 2)
        q_pairs, k_pairs = q.clone(), k.clone().unsqueeze(2)
        calls["Liger-Kernel rope, in place, halves"] = lambda: tuple(
            x.transpose(1, 2) for x in rope_forward(q_halves, k_halves, full_cos, full_sin)[:2]
        )
        calls["Liger-Kernel llama4_rope, in place"] = lambda: llama4_rope_forward(q_pairs, k_pairs, turn)[:2]
    return calls


@triton.jit
def _rope_every_other(x_ptr, cos_ptr, sin_ptr, out_ptr, S, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr):
    """RoPE as one would write it first: two loads, each of every other value."""
    token = tl.program_id(0).to(tl.int64)
    h, p = tl.arange(0, BLOCK_H)[:, None], tl.arange(0, BLOCK_P)[None, :]
    cos = tl.load(cos_ptr + token % S * BLOCK_P + p)
    sin = tl.load(sin_ptr + token % S * BLOCK_P + p)
    at = token * (2 * BLOCK_H * BLOCK_P) + h * (2 * BLOCK_P) + 2 * p
    x, y = tl.load(x_ptr + at).to(tl.float32), tl.load(x_ptr + at + 1).to(tl.float32)
    tl.store(out_ptr + at, (x * cos - y * sin).to(out_ptr.dtype.element_ty))
    tl.store(out_ptr + at + 1, (y * cos + x * sin).to(out_ptr.dtype.element_ty))


def every_other(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    B, S, H = (*x.shape[:2], 1) if x.ndim == 3 else x.shape[:3]
    _rope_every_other[(B * S,)](x, cos, sin, out, S, H, DR // 2, num_warps=4)
    return out


def exact_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def exact_rope(x: Tensor, positions: Tensor, halves: bool) -> Tensor:
    angle = positions[:, None].double() * 10000.0 ** (-torch.arange(0, DR, 2, device="cuda").double() / DR)
    cos, sin = ((each[:, None] if x.ndim == 4 else each) for each in (angle.cos(), angle.sin()))
    first, second = (slice(DR // 2), slice(DR // 2, None)) if halves else (slice(0, None, 2), slice(1, None, 2))
    a, b = x[..., first].double(), x[..., second].double()
    out = torch.empty_like(x, dtype=torch.float64)
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


if __name__ == "__main__":
    main()
