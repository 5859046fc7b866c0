"""The two products of the absorbed form on a GPU: cuBLAS, our kernels in half precision and with INT4 weights.

    PYTHONPATH=. python benchmarks/reconstruction.py    # on the GPU itself, from the repository's root

"The Hidden Bottleneck in MLA Serving" reports 35.6 us for them beside 23.0 us of attention, 61 % of both, and INT4 at
half the speed of cuBLAS. What such figures are depends on the clock: each call here has five, those of `timings.py` and

- `wall_us`: a call and the wait for it, by Python's clock;
- `events_us`: between two CUDA events around a call that starts on an idle GPU.

Both are medians, with the weights in L2 where they fit. Every output is compared with float64 first: that of INT4
weights with the product of what they hold, and their own error is a table of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import torch
from timings import cold, graph_cold_us, graph_us, relative_error
from torch import Tensor

import mla_ref
from mla_ref import Int4Weight, kernels, quantize_int4
from mla_ref.hardware.timing import measure_copy_bandwidth

H, D, R, DR, GROUP = 128, 128, 512, 64, 128
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BFLOAT16_BATCHES = (1, 16, 128)
CONTEXTS = (1024, 2048, 4096, 8192)
RANKS = (256, 512, 768, 1024, 1280, 1536, 1792, 2048, 3072, 4096)  # of float16 weights, 8 to 128 MiB
CLOCKS = ("wall_us", "events_us", "cold_us", "graph_us", "graph_cold_us")
ERROR, REPEAT = 4e-3, 200
# Kernel and twin, the axis of the weight that it sums over, and its sum as PyTorch users write it.
PRODUCTS = {"absorb_query": (1, "bshd,hdr->bshr"), "reconstruct_value": (2, "bshr,hvr->bshv")}


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    figures = {
        "copy_bytes_per_s": measure_copy_bandwidth("cuda"),
        "l2_bytes": torch.cuda.get_device_properties("cuda").L2_cache_size,
        "sizes": {"H": H, "Dn": D, "Dv": D, "R": R, "group": GROUP},
        "products": [
            row(name, batch, dtype)
            for dtype, batches in ((torch.float16, BATCHES), (torch.bfloat16, BFLOAT16_BATCHES))
            for name in PRODUCTS
            for batch in batches
        ],
    }
    figures["layer"] = layer([row for row in figures["products"] if row["B"] == 1 and row["dtype"] == "float16"])
    figures["sweep"] = [sweep(rank) for rank in RANKS]
    figures["errors"] = [errors(name, group) for name in PRODUCTS for group in (32, 64, 128)]
    print(record.write(f"reconstruction_{record.gpu()}", figures, ("triton",)))


def draw(name: str, batch: int, rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x ``[B, 1, H, K]`` and a weight ``[H, D, R]`` of a product."""
    x = torch.randn(batch, 1, H, D if PRODUCTS[name][0] == 1 else rank, device="cuda").to(dtype)
    return x, (torch.randn(H, D, rank, device="cuda") * 0.02).to(dtype)


def calls(name: str, x: Tensor, weight: Tensor, quantized: Int4Weight) -> dict[str, Callable[[], Tensor]]:
    """Return what to compare by name; each gives ``[B, 1, H, N]``."""
    (axis, formula), kernel = PRODUCTS[name], getattr(kernels, name)
    operand, heads_first = weight if axis == 1 else weight.mT, x[:, 0].transpose(0, 1).contiguous()
    product = x.new_empty(x.shape[2], len(x), operand.shape[2])
    out = x.new_empty(*x.shape[:3], operand.shape[2])
    return {
        "cuBLAS, bmm": lambda: torch.bmm(heads_first, operand, out=product).transpose(0, 1)[:, None],
        "cuBLAS, einsum": lambda: torch.einsum(formula, x, weight),
        "ours": lambda: kernel(x, weight, out=out),
        "ours, INT4": lambda: kernel(x, quantized, out=out),
    }


def row(name: str, batch: int, dtype: torch.dtype) -> dict[str, Any]:
    """Measure one product for ``batch`` rows by every clock."""
    x, weight = draw(name, batch, R, dtype)
    quantized = quantize_int4(weight, axis=PRODUCTS[name][0], group=GROUP)
    runs, twin = calls(name, x, weight, quantized), getattr(mla_ref, name)
    exact = {held: twin(x.double(), each.double()) for held, each in (("", weight), ("INT4", quantized.dequantize()))}
    found = {}
    for (each, run), timing in zip(runs.items(), clocks(list(runs.values())), strict=True):
        found[each] = {
            "bytes": x.nbytes + (quantized if "INT4" in each else weight).nbytes + run().nbytes,
            **timing,
            "relative_error": float(
                f"{relative_error(run(), exact['INT4' if 'INT4' in each else ''], ERROR, each):.3g}"
            ),
        }
    case = {"product": name, "B": batch, "dtype": str(dtype).removeprefix("torch.")}
    print(*case.values())
    for each, timing in found.items():
        print(f"  {each:16}", *(f"{clock} {timing[clock]:7.2f}" for clock in CLOCKS), flush=True)
    return {**case, "calls": found}


def clocks(runs: list[Callable[[], object]]) -> list[dict[str, float]]:
    """Return the times of calls by :data:`CLOCKS`."""
    flushed = cold(runs)
    return [
        {"wall_us": wall_us(run), "events_us": events_us(run), **each, "graph_us": graph_us(run)}
        | {"graph_cold_us": graph_cold_us(run)}
        for run, each in zip(runs, flushed, strict=True)
    ]


def wall_us(run: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEAT):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 2)


def events_us(run: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEAT):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return round(statistics.median(times) * 1e3, 2)


def layer(products: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the share of both products in the attention of a layer for one request, by every clock."""
    rows, decode = [], kernels.DECODERS[kernels.FASTEST].contiguous
    for context in CONTEXTS:
        q_latent, q_rope = (torch.randn(1, 1, H, width, device="cuda").half() for width in (R, DR))
        cache = torch.randn(1, context, R + DR, device="cuda").half()
        operands = q_latent, q_rope, cache[..., :R], cache[..., R:]
        out, lse = torch.empty_like(q_latent), torch.empty(1, 1, H, device="cuda")
        (attention,) = clocks([lambda o=operands, out=out, lse=lse: decode(*o, scale=192**-0.5, out=out, lse=lse)])
        shares = {
            each: {
                clock: share(sum(row["calls"][each][clock] for row in products), attention[clock]) for clock in CLOCKS
            }
            for each in products[0]["calls"]
        }
        rows.append({"B": 1, "T": context, "attention": attention, "share_of_products": shares})
        print(f"T={context}", attention, shares, flush=True)
    return rows


def share(products: float, attention: float) -> float:
    return round(products / (products + attention), 3)


def sweep(rank: int) -> dict[str, Any]:
    """Measure the product into the query of one row as the weights outgrow L2, in a graph that does not flush it."""
    x, weight = draw("absorb_query", 1, rank, torch.float16)
    quantized = quantize_int4(weight, axis=1, group=GROUP)
    runs = calls("absorb_query", x, weight, quantized)
    times = {each: graph_us(run) for each, run in runs.items() if "einsum" not in each}
    ratio = round(times["ours, INT4"] / times["cuBLAS, bmm"], 3)
    found = {"R": rank, "mib": weight.nbytes / 2**20, "mib_int4": round(quantized.nbytes / 2**20, 2)}
    found |= {"graph_us": times, "int4_over_cublas": ratio}
    print(found, flush=True)
    return found


def errors(name: str, group: int) -> dict[str, Any]:
    """Return the relative error of normally distributed weights, group by group, and of a product with them."""
    axis = PRODUCTS[name][0]
    x, weight = draw(name, 16, R, torch.float16)
    quantized = quantize_int4(weight, axis=axis, group=group)
    groups, held = (
        (each.mT if axis == 1 else each).double().unflatten(-1, (-1, group))
        for each in (weight, quantized.dequantize())
    )
    each = (held - groups).norm(dim=-1) / groups.norm(dim=-1)
    exact = getattr(mla_ref, name)(x.double(), weight.double())
    out = (getattr(kernels, name)(x, quantized).double() - exact).norm() / exact.norm()
    found = {"mean": each.mean(), "median": each.median(), "max": each.max(), "output": out}
    return {"product": name, "group": group, "bytes": quantized.nbytes} | {
        k: round(v.item(), 5) for k, v in found.items()
    }


if __name__ == "__main__":
    main()
