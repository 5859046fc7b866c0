"""Ragged prefill, packing to FP8, and decode from FP8 latents on a GPU, beside what others offer.

    PYTHONPATH=. python benchmarks/prefill.py           # on the GPU itself, from the repository's root

- `prefill`: causal attention of widths 192 and 128. Equal lengths beside cuDNN; lengths of GSM8K's prompts, and chunks
  of 512 over a context of 80K, beside cuDNN on the padded batch. `tflop_per_s` counts pairs that are seen.
- `pack`: keys and values to FP8, beside torch.compile of the two lines that say the same, and PyTorch without it.
- `decode`: from pages of latents in FP8, with a scale a token and with one for 128 elements, beside bfloat16.

FlashAttention-4 takes part where `flash_attn.cute` can be imported; elsewhere its times of the last run that had it
stay in the record, named with that run's date. Every output is compared with float64 first, that of prefill on two
heads. Times are `cold_us` of `timings.py`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import record
import torch
import torch.nn.functional as F
from timings import cold, relative_error
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import mla_ref
from mla_ref import WORKLOADS, kernels, quantize_latent, to_float8
from mla_ref.hardware.timing import measure_copy_bandwidth

D, DV, DN, R, DR, PAGE_SIZE = 192, 128, 128, 512, 64, 64
LONG = 80 * 1024
# Heads; of each sequence the queries and keys.
CASES: dict[str, tuple[int, list[int], list[int]]] = {
    "B1 S8192 H128": (128, [8192], [8192]),
    "B1 S16384 H16": (16, [16384], [16384]),
    "B8 S2048 H128": (128, [2048] * 8, [2048] * 8),
    "B4 S512 T80K H16": (16, [512] * 4, [LONG] * 4),
}
PACKED = (8192, 128), (2048, 128), (8192, 16)
DECODES = (128, 16, 4096), (128, 128, 4096), (16, 16, 8192)  # B, H, T
ERROR = {torch.bfloat16: 4e-3, torch.float8_e4m3fn: 6e-2}
FLASH_ATTENTION_4 = importlib.util.find_spec("flash_attn") is not None


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    copy = measure_copy_bandwidth("cuda")
    figures = {
        "copy_bytes_per_s": copy,
        "widths": {"D": D, "Dv": DV},
        "prefill": with_earlier([prefill(name, *case) for name, case in {**CASES, **ragged()}.items()]),
        "pack": [pack(*case, copy) for case in PACKED],
        "decode": [decode(*case) for case in DECODES],
    }
    packages = ("triton", "flash-attn-4") if FLASH_ATTENTION_4 else ("triton",)
    print(record.write(f"prefill_{record.gpu()}", figures, packages))


def with_earlier(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add what the record that is there says of FlashAttention-4, if it cannot be measured here."""
    before = record.earlier(f"prefill_{record.gpu()}")
    if FLASH_ATTENTION_4 or not before:
        return cases
    known = {each["case"]: each["calls"] for each in before["prefill"]}
    for each in cases:
        for name, timing in known.get(each["case"], {}).items():
            if name.startswith("FlashAttention-4"):
                each["calls"][name if "(" in name else f"{name} ({before['date']})"] = timing
    return cases


def ragged() -> dict[str, tuple[int, list[int], list[int]]]:
    """Return a case of GSM8K's prompts behind a system prompt's cache, and one of their lengths made equal."""
    lengths = WORKLOADS["deepseek_v3", "gsm8k"].draw(256, np.random.default_rng(0))[0].tolist()
    mean = round(sum(lengths) / len(lengths))
    return {
        "B256, GSM8K's prompts, H128": (128, lengths, lengths),
        f"B256 S{mean} H128, as many tokens": (128, [mean] * 256, [mean] * 256),
    }


def prefill(name: str, heads: int, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> dict[str, Any]:
    """Measure one case of attention."""
    q, k, v, cu_q, cu_kv = draw(heads, lengths_q, lengths_kv)
    runs = prefill_calls(q, k, v, cu_q, cu_kv, lengths_q, lengths_kv)
    some = [0, heads - 1]
    exact, _ = mla_ref.ragged_attention(*(x[:, some].double() for x in (q, k, v)), cu_q, cu_kv)
    pairs = sum(S * T - S * (S - 1) // 2 for S, T in zip(lengths_q, lengths_kv, strict=True))
    found = {}
    for (each, run), timing in zip(runs.items(), cold(list(runs.values())), strict=True):
        narrow = torch.float8_e4m3fn if "FP8" in each else torch.bfloat16
        error = relative_error(run()[:, some], exact, ERROR[narrow], each)
        rate = 2 * pairs * heads * (D + DV) / timing["cold_us"] / 1e6
        found[each] = {**timing, "tflop_per_s": round(rate, 1), "relative_error": float(f"{error:.3g}")}
        print(f"{name:36} {each:28} {timing['cold_us']:10.1f} us {rate:6.0f} TFLOP/s", flush=True)
    return {"case": name, "H": heads, "tokens": sum(lengths_q), "pairs": pairs, "calls": found}


def draw(heads: int, lengths_q: Sequence[int], lengths_kv: Sequence[int]) -> tuple[Tensor, ...]:
    """Return q, k, v and both offsets."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = (
        torch.randn(sum(lengths), heads, width, device=device, dtype=torch.bfloat16)
        for lengths, width in ((lengths_q, D), (lengths_kv, D), (lengths_kv, DV))
    )
    cu_q, cu_kv = (
        torch.tensor([0, *lengths], device=device).cumsum(0, dtype=torch.int32) for lengths in (lengths_q, lengths_kv)
    )
    return q, k, v, cu_q, cu_kv


def prefill_calls(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_kv: Tensor, lengths_q: Sequence[int], lengths_kv: Sequence[int]
) -> dict[str, Callable[[], Tensor]]:
    """Return what to compare by name; each gives ``[Nq, H, Dv]``."""
    q8, k8, v8 = (to_float8(x, scale=4 / 448) for x in (q, k, v))
    scales = dict.fromkeys(("q_scale", "k_scale", "v_scale"), 4 / 448)
    runs = {
        "ours": lambda: kernels.ragged_attention(q, k, v, cu_q, cu_kv)[0],
        "ours, FP8": lambda: kernels.ragged_attention(q8, k8, v8, cu_q, cu_kv, **scales)[0],
    }
    S, T = max(lengths_q), max(lengths_kv)
    rows = torch.cat([torch.arange(n) + b * S for b, n in enumerate(lengths_q)]).to(q.device)
    tokens = torch.cat([torch.arange(n) + b * T for b, n in enumerate(lengths_kv)]).to(q.device)

    def padded(x: Tensor, places: Tensor, length: int) -> Tensor:
        return x.new_zeros(len(lengths_q) * length, *x.shape[1:]).index_copy(0, places, x).unflatten(0, (-1, length))

    if S == T and q.is_cuda:  # PyTorch's flag aligns the first query with the first key
        dense = [padded(x, places, S).transpose(1, 2) for x, places in ((q, rows), (k, tokens), (v, tokens))]

        def cudnn() -> Tensor:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return F.scaled_dot_product_attention(*dense, is_causal=True)

        whole = len(rows) == len(lengths_q) * S
        runs["cuDNN" if whole else "cuDNN, padded"] = lambda: (
            cudnn().transpose(1, 2).flatten(0, 1)[slice(None) if whole else rows]
        )
    if FLASH_ATTENTION_4:
        from flash_attn.cute import flash_attn_varlen_func

        options = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_kv, "max_seqlen_q": S, "max_seqlen_k": T, "causal": True}
        runs["FlashAttention-4"] = lambda: flash_attn_varlen_func(q, k, v, **options)[0]
    return runs


def pack(tokens: int, heads: int, copy: float) -> dict[str, Any]:
    """Measure one case of packing: keys and values are slices of one product, as the layer has them."""
    kv = torch.randn(tokens, heads, DN + DV, device="cuda", dtype=torch.bfloat16)
    rope = torch.randn(tokens, DR, device="cuda", dtype=torch.bfloat16)
    runs = pack_calls(kv, rope)
    expected = [x.view(torch.uint8) for x in mla_ref.pack_kv(kv[..., :DN], rope, kv[..., DN:])]
    found, moved = {}, kv.nbytes + rope.nbytes + sum(x.nbytes for x in expected)
    for (each, run), timing in zip(runs.items(), cold(list(runs.values())), strict=True):
        assert all(torch.equal(x.view(torch.uint8), y) for x, y in zip(run(), expected, strict=True)), each
        rate = moved / timing["cold_us"] * 1e6
        found[each] = {**timing, "gb_per_s": round(rate / 1e9, 1), "of_copy": round(rate / copy, 3)}
        print(f"pack {tokens}x{heads} {each:28} {timing['cold_us']:10.1f} us {rate / copy:.3f} of a copy", flush=True)
    return {"tokens": tokens, "H": heads, "bytes": moved, "calls": found}


def pack_calls(kv: Tensor, rope: Tensor) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """Return what to compare by name; each gives k and v."""

    def two_lines(kv: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        k = torch.cat((kv[..., :DN], rope[:, None].expand(-1, kv.shape[1], -1)), -1)
        return k.to(torch.float8_e4m3fn), kv[..., DN:].to(torch.float8_e4m3fn)

    compiled = torch.compile(two_lines, dynamic=False)
    return {
        "ours": lambda: kernels.pack_kv(kv[..., :DN], rope, kv[..., DN:]),
        "torch.compile": lambda: compiled(kv, rope),
        "PyTorch": lambda: two_lines(kv, rope),
    }


def decode(batch: int, heads: int, context: int) -> dict[str, Any]:
    """Measure one case of decoding from pages."""
    runs, exact = decode_calls(batch, heads, context, "cuda")
    found = {}
    for (each, (run, moved)), timing in zip(runs.items(), cold([run for run, _ in runs.values()]), strict=True):
        error = relative_error(run(), exact, 6e-2, each)
        gb_per_s = round(moved / timing["cold_us"] / 1e3, 1)
        found[each] = {**timing, "cache_bytes": moved, "gb_per_s": gb_per_s, "relative_error": float(f"{error:.3g}")}
        print(
            f"decode B{batch} H{heads} T{context} {each:28} {timing['cold_us']:10.1f} us, error {error:.2g}", flush=True
        )
    return {"B": batch, "H": heads, "T": context, "calls": found}


def decode_calls(
    batch: int, heads: int, context: int, device: str
) -> tuple[dict[str, tuple[Callable[[], Tensor], int]], Tensor]:
    """Return what to compare, with the bytes of each cache, and the right output from the latents before quantising."""
    q_latent, q_rope = (torch.randn(batch, 1, heads, width, device=device, dtype=torch.bfloat16) for width in (R, DR))
    count = batch * (context // PAGE_SIZE)
    c_kv, k_rope = (torch.randn(count, PAGE_SIZE, width, device=device, dtype=torch.bfloat16) for width in (R, DR))
    table = torch.randperm(count, device=device).int().view(batch, -1)
    seq_lens = torch.full((batch,), context, dtype=torch.int32, device=device)
    options = {"scale": D**-0.5, "seq_lens": seq_lens}
    kernel = kernels.DECODERS[kernels.FASTEST].paged
    caches = {"bfloat16": c_kv, "FP8, a scale a token": quantize_latent(c_kv)}
    caches["FP8, a scale for 128"] = quantize_latent(c_kv, tile=128)
    exact = torch.cat(
        [
            mla_ref.paged_latent_attention(
                q_latent[[b]].double(), q_rope[[b]].double(), c_kv[table[b]].double(), k_rope[table[b]].double(),
                torch.arange(table.shape[1], device=device).int()[None], scale=D**-0.5, seq_lens=seq_lens[[b]],
            )[0]
            for b in range(batch)
        ]
    )  # fmt: skip
    runs = {}
    for name, cache in caches.items():
        runs[name] = (
            lambda cache=cache: kernel(q_latent, q_rope, cache, k_rope, table, **options)[0],
            cache.nbytes + k_rope.nbytes,
        )
    return runs, exact


if __name__ == "__main__":
    main()
