"""Do the tensor cores for 8-bit numbers make decode of FP8 latents faster on an H100 or H200?

    PYTHONPATH=. python benchmarks/hopper_float8.py            # on the GPU itself, from the repository's root

The kernel in Triton turns latents in FP8 into numbers of 16 bits before it multiplies. It is compared with latents of
16 bits, and with two edits of its text: scores of 8-bit numbers, with queries in FP8, too, a scale a row; and besides,
weights and values of 8 bits, which the compiler transposes first. Every form is compared with float64 before it is
timed.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import record
import torch
from decode import R, exact_decode
from hopper_steps import Edits, edited, operands
from timings import cold, relative_error

from mla_ref import kernels, quantize_latent
from mla_ref.kernels import decode_tma

SHAPES = [(128, 128, 4096), (128, 64, 4096)]  # B, H, T
ERROR = 0.08  # of latents, queries and weights in FP8
QUERIES = """    q_scales = tl.max(tl.abs(q_latent.to(tl.float32)), 1) / 448 + 1e-30
    q_8 = (q_latent.to(tl.float32) / q_scales[:, None]).to(tl.float8e4nv)
    length = T if seq_lens_ptr"""
SCORES: Edits = [
    ("    length = T if seq_lens_ptr", QUERIES),
    ("c_kv, factors = _widened(", "c_8 = c_kv; c_kv, factors = _widened("),
    ("qk = _scores(q_latent, q_rope, c_kv,", "qk = _scores(q_8, q_scales, q_rope, c_8,"),
    ("def _scores(q_latent, q_rope, c_kv,", "def _scores(q_8, q_scales, q_rope, c_8,"),
    ("tl.dot(q_latent, tl.trans(c_kv)) * factor", "tl.dot(q_8, tl.trans(c_8)) * (factor * q_scales[:, None])"),
]
VALUES: Edits = [
    ("def _step(qk, c_kv,", "def _step(qk, c_8,"),
    ("_step(qk, c_kv, factors, acc", "_step(qk, c_8, factors, acc"),
    ("tl.dot(weights.to(c_kv.dtype), c_kv,", "tl.dot((weights * 256).to(tl.float8e4nv), c_8,"),
    ("out = (acc / l_i[:, None])", "out = (acc / (256 * l_i[:, None]))"),
]
FORMS: dict[str, Edits] = {
    "FP8, the kernel as it is": [],
    "FP8, scores of 8-bit numbers": SCORES,
    "FP8, all of 8-bit numbers": [*SCORES, *VALUES],
}


def measure(B: int, H: int, T: int) -> dict[str, Any]:
    """Check and time the forms."""
    given, options = operands(B=B, H=H, T=T)
    exact = exact_decode(*given[:2], torch.cat(given[2:4], -1)[given[4].long()].flatten(1, 2))
    in_8_bits = (*given[:2], quantize_latent(given[2].contiguous(), tile=R), *given[3:])
    calls = {"16 bits": functools.partial(kernels.paged_latent_attention_hopper, *given, **options)}
    for name, edits in FORMS.items():
        module = edited(Path(decode_tma.__file__).read_text(), edits, name)
        calls[name] = functools.partial(module.paged_latent_attention_tma, *in_8_bits, **options)
    errors = [relative_error(run()[0].view_as(exact), exact, ERROR, name) for name, run in calls.items()]
    found = {
        name: {**time, "relative_error": float(f"{error:.3g}")}
        for name, error, time in zip(calls, errors, cold(list(calls.values())), strict=True)
    }
    print(B, H, T, found, flush=True)
    return {"B": B, "H": H, "T": T, "calls": found}


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    print(record.write(f"hopper_float8_{record.gpu()}", {"decode": [measure(*shape) for shape in SHAPES]}, ("triton",)))


if __name__ == "__main__":
    main()
