"""Absorbed MLA decode on a GPU: our kernels beside FlashMLA and vLLM's Triton kernel.

    PYTHONPATH=. python benchmarks/decode.py            # on the GPU itself, from the repository's root

Peers are measured where they can be imported, and left out elsewhere; they take pages of 64 tokens as we do, in random
order. vLLM gets the best of its numbers of splits, FlashMLA its schedule in advance. Every output is compared with
float64 first, whole. Times are those of `timings.py`, the merging of splits included; `gb_per_s` is the bytes of the
cache over `cold_us`, `tflop_per_s` the operations of the two products over it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import record
import torch
from timings import cold, graph_us, host_us, relative_error
from torch import Tensor

from mla_ref import kernels
from mla_ref.hardware.timing import measure_copy_bandwidth

# B, S, H, T
SHAPES = [
    (1, 1, 16, 8192),
    (16, 1, 16, 8192),
    (128, 1, 16, 4096),
    (1, 1, 128, 8192),
    (16, 1, 128, 8192),
    (32, 1, 128, 4096),
    (64, 1, 64, 4096),
    (128, 1, 64, 4096),
    (128, 1, 128, 4096),
    (128, 1, 128, 6144),
    (4, 4, 16, 81920),
]
R, DR, PAGE_SIZE, SCALE, ERROR = 512, 64, 64, 192**-0.5, 2.5e-3
VLLM, FLASH_MLA = (importlib.util.find_spec(name) is not None for name in ("vllm", "flash_mla"))
VLLM_SPLITS = (1, 2, 4, 8, 16, 32)
OURS = "mla_ref.kernels"


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    copy = measure_copy_bandwidth("cuda")
    figures = {
        "copy_bytes_per_s": copy,
        "dtype": "bfloat16",
        "page_size": PAGE_SIZE,
        "flash_mla": importlib.import_module("flash_mla").__version__ if FLASH_MLA else None,
        "decode": [decode(*shape) for shape in SHAPES],
        "copy_bytes_per_s_at_the_end": measure_copy_bandwidth("cuda"),
    }
    print(record.write(f"decode_{record.gpu()}", figures, ("triton",)))


def decode(
    B: int, S: int, H: int, T: int, others: Mapping[str, Callable[..., Any]] | None = None, show: bool = True
) -> dict[str, Any]:
    """Measure every decode at one size: ours over one buffer and over pages, and its peers.

    With `others`, by name, these are measured beside the fastest of ours alone: see `peers.py`.
    """
    q_latent, q_rope = (torch.randn(B, S, H, width, device="cuda").bfloat16() for width in (R, DR))
    cache = torch.randn(B, T, R + DR, device="cuda").bfloat16()
    order = torch.randperm(B * T // PAGE_SIZE, device="cuda")
    pages = torch.empty(len(order), PAGE_SIZE, R + DR, device="cuda", dtype=cache.dtype)
    pages[order] = cache.view_as(pages)
    table = order.view(B, -1).int()
    seq_lens = torch.full((B,), T, dtype=torch.int32, device="cuda")
    out, lse = torch.full_like(q_latent, float("nan")), torch.full(q_latent.shape[:3], float("nan"), device="cuda")

    contiguous = (q_latent, q_rope, cache[..., :R], cache[..., R:])
    paged = (q_latent, q_rope, pages[..., :R], pages[..., R:], table)
    options = {"scale": SCALE, "seq_lens": seq_lens, "out": out, "lse": lse}
    arguments = {each.contiguous: contiguous for each in kernels.DECODERS.values()}
    arguments |= {each.paged: paged for each in kernels.DECODERS.values()}
    calls = {
        f"kernels.{kernel.__name__}": lambda kernel=kernel, given=given: kernel(*given, **options)[0]
        for kernel, given in arguments.items()
    }
    if others is not None:
        fastest = kernels.DECODERS[kernels.FASTEST].paged
        named = dict(zip(("q_latent", "q_rope", "c_kv", "k_rope", "block_table"), paged, strict=True))
        named |= {"scale": SCALE, "seq_lens": seq_lens, "causal": True}
        calls = {OURS: calls[f"kernels.{fastest.__name__}"]}
        calls |= {name: lambda peer=peer: first(peer(**named)) for name, peer in others.items()}
    elif VLLM and S == 1:
        calls["vLLM"] = vllm(torch.cat((q_latent, q_rope), -1)[:, 0], pages, table, seq_lens)

    if FLASH_MLA and others is None:
        calls["FlashMLA"] = flash_mla(torch.cat((q_latent, q_rope), -1), pages, table, seq_lens)

    exact = exact_decode(q_latent, q_rope, cache)
    errors = {}
    for name, run in calls.items():
        out.fill_(float("nan"))
        errors[name] = relative_error(run().view_as(exact), exact, ERROR, name)
    del exact
    nbytes, operations = cache.nbytes, 2 * B * S * H * T * (2 * R + DR)
    if show:
        print(f"B={B} S={S} H={H} T={T}")
    found = {}
    for (name, run), timing in zip(calls.items(), cold(list(calls.values())), strict=True):
        found[name] = {
            **timing,
            **rates(nbytes, operations, timing["cold_us"]),
            "graph_us": graph_us(run),
            "host_us": host_us(run),
            "relative_error": float(f"{errors[name]:.3g}"),
        }
    for name, figures in found.items() if show else ():
        line = "  {:36} {cold_us:8.1f} us {gb_per_s:6.0f} GB/s {tflop_per_s:6.1f} TFLOP/s".format(name, **figures)
        print(line, "graph {graph_us} us, error {relative_error}".format_map(figures), flush=True)
    return {"B": B, "S": S, "H": H, "T": T, "cache_bytes": nbytes, "flop": operations, "calls": found}


def first(found: Any) -> Tensor:
    """Return the output of what a decode returned: that, or the output and the LSE."""
    return found[0] if isinstance(found, tuple) else found


def rates(nbytes: int, operations: int, time: float) -> dict[str, float]:
    return {"gb_per_s": round(nbytes / time / 1e3, 1), "tflop_per_s": round(operations / time / 1e6, 1)}


def vllm(q: Tensor, pages: Tensor, table: Tensor, seq_lens: Tensor) -> Callable[[], Tensor]:
    """Return vLLM's decode with the number of splits that is fastest here."""
    from vllm.attention.ops.triton_decode_attention import decode_attention_fwd

    keys, out = pages.unsqueeze(2), torch.empty_like(q[..., :R])

    def with_splits(splits):
        parts = torch.empty(*q.shape[:2], splits, R + 1, dtype=torch.float32, device="cuda")

        def run():
            decode_attention_fwd(
                q, keys, keys[..., :R], out, table, seq_lens, parts, splits, SCALE, page_size=PAGE_SIZE
            )
            return out

        return run

    runs = [with_splits(splits) for splits in VLLM_SPLITS]
    times = [timing["cold_us"] for timing in cold(runs)]  # of the device: a slow host would hide the differences
    return runs[times.index(min(times))]


def flash_mla(q: Tensor, pages: Tensor, table: Tensor, seq_lens: Tensor) -> Callable[[], Tensor]:
    """Return FlashMLA's decode; the first call makes the schedule, as serving does once for all layers."""
    from flash_mla import flash_mla_with_kvcache, get_mla_metadata

    schedule, keys = get_mla_metadata()[0], pages.unsqueeze(2)

    def run():
        return flash_mla_with_kvcache(q, keys, table, seq_lens, R, schedule, softmax_scale=SCALE, causal=True)[0]

    return run


def exact_decode(q_latent: Tensor, q_rope: Tensor, cache: Tensor) -> Tensor:
    """Decode in float64, one sequence at a time; every query stands at its own position."""
    B, S = q_latent.shape[:2]
    T = cache.shape[1]
    query = torch.cat((q_latent, q_rope), -1)
    hidden = torch.arange(T, device="cuda") > T - S + torch.arange(S, device="cuda")[:, None]
    out = torch.empty_like(q_latent, dtype=torch.float64)
    for b in range(B):
        tokens = cache[b].double()
        scores = query[b].double() @ tokens.T * SCALE  # [S, H, T]
        out[b] = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1) @ tokens[:, :R]
    return out


if __name__ == "__main__":
    main()
