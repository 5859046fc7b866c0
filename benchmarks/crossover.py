"""Naive against absorb on a GPU: over a prefix that all sequences share, and over contexts of their own.

    PYTHONPATH=. python benchmarks/crossover.py         # on the GPU itself, from the repository's root

Attention alone, one new token per sequence, bfloat16: keys and values of the naive form lie expanded, queries of the
absorbed form come absorbed, and its outputs stay latent. Each case draws inputs of its own. Before the clock starts,
the outputs of the first and the last sequence are compared with `mla_ref.naive` in float64.

Times are those of `timings.cold`: the device's, L2 emptied before each call, the median of rounds in which the
calls take turns. `naive_us` and `absorb_us` are the fastest call of each form. The crossover lies between the rows
where they change places, interpolated.

Over a shared prefix the B queries fold into one sequence, so that what is read once serves all of them. The calls:

- `cuDNN`: PyTorch's scaled_dot_product_attention; `in N parts` splits the context for more programs, and merges by LSE;
- `kernels.…`: the decode kernels of `mla_ref`; `per sequence` is one that does not know that the prefix is shared;
- `two products`: cuBLAS, PyTorch's softmax, cuBLAS, with all scores in memory.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import record
import torch
import torch.nn.functional as F
from timings import cold, relative_error
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import mla_ref
from mla_ref import DEVICES, MLAConfig, attention_cost, break_even_batch, find_device, kernels

L = T = 4096
MODELS = ("deepseek_v3", "kimi_k2")
SHARED_BATCHES = (1, 4, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512, 1024)
OWN_BATCHES = (4, 16, 64)
BOUND = 2e-2  # bfloat16 keys and values, or queries: lesson 03 finds 1 %
DECODE = {each.contiguous.__name__: each.contiguous for each in kernels.DECODERS.values()}
SIMPLEST = next(iter(DECODE))

Call = Callable[[], tuple[Tensor, bool]]


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    figures: dict[str, Any] = {"context": L, "dtype": "bfloat16", "empty_us": empty(), "shared": {}, "own": {}}
    for name in MODELS:
        config = MLAConfig.preset(name)
        rows = [case(config, B, shared=True) for B in SHARED_BATCHES]
        figures["shared"][name] = {
            "rows": rows,
            "crossover": crossover(rows),
            "predicted": predicted(functools.partial(break_even_batch, config), digits=1),
        }
        print(name, "crosses at", figures["shared"][name]["crossover"], figures["shared"][name]["predicted"])
    config = MLAConfig.preset("deepseek_v3")
    figures["own"]["deepseek_v3"] = {"rows": [case(config, B, shared=False) for B in OWN_BATCHES]}
    print(record.write(f"crossover_{record.gpu()}", figures, ("triton",)))


def case(config: MLAConfig, B: int, *, shared: bool) -> dict[str, Any]:
    """Measure every call of both forms at one batch size."""
    latents = draw(config, B, 1 if shared else B)
    naive, absorb = naive_calls(config, B, latents, shared), absorb_calls(config, B, latents, shared)
    exact = exact_outputs(config, latents, shared)
    errors = {name: check(run, exact, latents["w_uv"]) for name, run in (naive | absorb).items()}
    timings = dict(zip(errors, cold([*naive.values(), *absorb.values()]), strict=True))
    row: dict[str, Any] = {"B": B}
    for form, calls in (("naive", naive), ("absorb", absorb)):
        cost = attention_cost(form, config, batch=B, context=T, shared_prefix=T * shared)
        best = min(calls, key=lambda name: timings[name]["cold_us"])
        micros = timings[best]["cold_us"]
        row |= {
            f"{form}_us": micros,
            f"{form}_best": best,
            f"{form}_floor_us": predicted(cost.time, scale=1e6, digits=2),
            f"{form}_gb_per_s": round(cost.bytes / micros / 1e3, 1),
            f"{form}_tflop_per_s": round(cost.flops / micros / 1e6, 1),
        }
    row["calls"] = {name: {**timings[name], "relative_error": float(f"{errors[name]:.3g}")} for name in errors}
    print({k: v for k, v in row.items() if k != "calls"}, flush=True)
    for name, timing in row["calls"].items():
        print("   ", name, timing, flush=True)
    return row


def predicted(of: Callable[..., float], *, scale: float = 1.0, digits: int) -> dict[str, float]:
    """Return what ``of`` says of this GPU by its data sheet and, where they are known, by its measured ceilings."""
    key = find_device(record.device())
    if key is None:
        sys.exit(f"no data sheet of {record.device()}: add it to mla_ref.DEVICES")
    device = DEVICES[key]
    kinds = {"data sheet": False} | ({"measured ceilings": True} if device.measured_flops else {})
    return {kind: round(of(device, measured=measured) * scale, digits) for kind, measured in kinds.items()}


def draw(config: MLAConfig, B: int, contexts: int) -> dict[str, Tensor]:
    """Return random queries, latents and weights in bfloat16; one context, or one for each sequence."""
    H, R, Dn = config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim
    Dr, Dv = config.qk_rope_head_dim, config.v_head_dim
    shapes = {
        "q_nope": (B, 1, H, Dn),
        "q_rope": (B, 1, H, Dr),
        "c_kv": (contexts, T, R),
        "k_rope": (contexts, T, Dr),
        "w_uk": (H, Dn, R),
        "w_uv": (H, Dv, R),
    }
    drawn = {name: torch.randn(shape, device="cuda").bfloat16() for name, shape in shapes.items()}
    return drawn | {name: drawn[name] / math.sqrt(R) for name in ("w_uk", "w_uv")}


def naive_calls(config: MLAConfig, B: int, latents: dict[str, Tensor], shared: bool) -> dict[str, Call]:
    """Return multi-head attention over expanded keys and values; each call gives ``out[B, H, Dv]`` and False."""
    H = config.num_attention_heads
    k = latents["c_kv"].new_empty(len(latents["c_kv"]), H, T, config.qk_head_dim)
    v = k.new_empty(*k.shape[:3], config.v_head_dim)
    for c_kv, k_rope, k_out, v_out in zip(latents["c_kv"], latents["k_rope"], k, v, strict=True):
        torch.matmul(c_kv, latents["w_uk"].mT, out=k_out[..., : config.qk_nope_head_dim])
        k_out[..., config.qk_nope_head_dim :] = k_rope
        torch.matmul(c_kv, latents["w_uv"].mT, out=v_out)
    q = torch.cat((latents["q_nope"], latents["q_rope"]), -1)  # [B, 1, H, Dn+Dr]
    q = q.permute(1, 2, 0, 3).contiguous() if shared else q.transpose(1, 2).contiguous()
    scale = config.qk_head_dim**-0.5

    def unfolded(out):  # [1, H, B, Dv] or [B, H, 1, Dv]
        return (out[0].transpose(0, 1) if shared else out[:, :, 0]), False

    def whole():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return unfolded(F.scaled_dot_product_attention(q, k, v, scale=scale))

    def split(parts):
        k_parts, v_parts = (x[0].unflatten(1, (parts, -1)).transpose(0, 1) for x in (k, v))  # [parts, H, L/parts, ·]
        q_parts = q.repeat(parts, 1, 1, 1)  # [parts, H, B, Dn+Dr]

        def run():
            found = torch.ops.aten._scaled_dot_product_cudnn_attention(
                q_parts, k_parts, v_parts, None, True, 0.0, False, False, scale=scale
            )
            outs, lses = found[0].transpose(1, 2), found[1].reshape(parts, H, B).transpose(1, 2)
            return kernels.combine(outs[:, :, None], lses[:, :, None])[0][:, 0], False

        return run

    calls = {"cuDNN": whole}
    if shared and B <= 128:  # beyond, there are programs for every multiprocessor, and merging costs more
        calls |= {f"cuDNN, in {parts} parts": split(parts) for parts in (2, 4)}
    return calls


def absorb_calls(config: MLAConfig, B: int, latents: dict[str, Tensor], shared: bool) -> dict[str, Call]:
    """Return multi-query attention over the latents; each call gives ``out[B, H, R]`` and True."""
    q_latent = torch.einsum("bshd,hdr->bshr", latents["q_nope"], latents["w_uk"])
    operands = q_latent, latents["q_rope"]
    cache = torch.cat((latents["c_kv"], latents["k_rope"]), -1)  # [contexts, T, R+Dr]
    views = cache[..., : config.kv_lora_rank], cache[..., config.kv_lora_rank :]
    scale = config.qk_head_dim**-0.5
    folded = [x.transpose(0, 1) for x in operands] if shared else operands  # [1, B, H, ·]

    def kernel(name, q, cached):
        out, _ = DECODE[name](*q, *cached, scale=scale, causal=False)
        return out.flatten(0, 1), True

    def two_products():
        q = torch.cat(folded, -1).flatten(1, 2)
        scores = torch.baddbmm(q.new_zeros(()), q, cache.mT, beta=0, alpha=scale)
        return torch.bmm(scores.softmax(-1), views[0]).unflatten(1, (-1, q_latent.shape[2])).flatten(0, 1), True

    calls = {f"kernels.{name}": functools.partial(kernel, name, folded, views) for name in DECODE}
    if shared:
        alike = tuple(x.expand(B, -1, -1) for x in views)
        calls |= {f"kernels.{SIMPLEST}, per sequence": functools.partial(kernel, SIMPLEST, operands, alike)}
    return calls | {"two products": two_products}


def exact_outputs(config: MLAConfig, latents: dict[str, Tensor], shared: bool) -> Tensor:
    """Return ``out[2, H, Dv]`` of the first and the last sequence in float64."""
    ends = [0, -1]
    contexts = [0, 0] if shared else ends
    q = [latents[name][ends].double() for name in ("q_nope", "q_rope")]
    cached = [latents[name][contexts].double() for name in ("c_kv", "k_rope")]
    weights = [latents[name].double() for name in ("w_uk", "w_uv")]
    outs = [
        mla_ref.naive(*(x[i : i + 1] for x in (*q, *cached)), *weights, scale=config.qk_head_dim**-0.5)[0]
        for i in range(2)
    ]
    return torch.cat(outs)[:, 0]


def check(run: Call, exact: Tensor, w_uv: Tensor) -> float:
    """Return the relative error of a call's first and last sequence; it must be within `BOUND`."""
    out, latent = run()
    out = out[[0, -1]].double()
    if latent:
        out = torch.einsum("bhr,hvr->bhv", out, w_uv.double())
    return relative_error(out, exact, BOUND)


def crossover(rows: list[dict[str, Any]]) -> float | None:
    """Return the batch at which the two lines of fastest calls cross, interpolated between rows."""
    for low, high in itertools.pairwise(rows):
        behind, ahead = low["naive_us"] - low["absorb_us"], high["absorb_us"] - high["naive_us"]
        if behind >= 0 and ahead > 0:
            return round(low["B"] + (high["B"] - low["B"]) * behind / (behind + ahead), 1)
    return None


def empty() -> float:
    """Return what the clock shows for a kernel that adds one number."""
    one = torch.ones(1, device="cuda")
    return cold([lambda: one.add_(1)])[0]["cold_us"]


if __name__ == "__main__":
    main()
