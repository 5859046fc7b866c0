"""One product of MLA, timed in the two usual ways: lesson 00 shows how far apart they are.

PYTHONPATH=. python benchmarks/timing_traps.py      # on the GPU itself, from the repository's root
"""

from __future__ import annotations

import record
import torch
import triton

HEADS, NOPE, RANK = 128, 128, 512
BATCHES = (1, 16, 64, 128, 256)


def main() -> None:
    """Time `[B, Dn] @ [Dn, R]` for each head in float16: with the L2 flushed, and in a CUDA graph."""
    figures = {}
    for batch in BATCHES:
        q = torch.randn(HEADS, batch, NOPE, device="cuda", dtype=torch.float16)
        w = torch.randn(HEADS, NOPE, RANK, device="cuda", dtype=torch.float16)
        out = torch.empty(HEADS, batch, RANK, device="cuda", dtype=torch.float16)
        product = lambda q=q, w=w, out=out: torch.bmm(q, w, out=out)
        quantiles = [0.5, 0.2, 0.8]
        flushed = triton.testing.do_bench(product, warmup=50, rep=300, quantiles=quantiles)
        graph = triton.testing.do_bench_cudagraph(product, rep=100, quantiles=quantiles)
        figures[f"B={batch}"] = {
            "do_bench_l2_flushed_us": [round(1e3 * t, 2) for t in flushed],
            "cuda_graph_l2_warm_us": [round(1e3 * t, 2) for t in graph],
        }
        print(batch, figures[f"B={batch}"])
    setting = {"product": "bmm [128, B, 128] @ [128, 128, 512], float16, cuBLAS", "columns": ["median", "p20", "p80"]}
    print(record.write(f"timing_traps_{record.gpu()}", {**setting, "figures": figures}, ("triton",)))


if __name__ == "__main__":
    main()
