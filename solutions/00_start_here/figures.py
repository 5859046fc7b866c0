"""The figures of this lesson, from the records in `benchmarks/` and from `mla_ref.DEVICES`."""

from ..records import H100

SPARSE = 1979e12  # FLOP/s, as printed in the data sheet


def replayed(record):
    """Microseconds of the product, timed with caches flushed, and replayed from a CUDA graph."""
    found = record("timing_traps_h100")["figures"]["B=1"]
    return found["do_bench_l2_flushed_us"][0], found["cuda_graph_l2_warm_us"][0]


def figures(record):
    ceilings = record("ceilings_h100")["ceilings"]
    copy, product = (ceilings[name]["median"] for name in ("copy_bytes_per_s", "matmul_bfloat16_flop_per_s"))
    copy_share = round(100 * H100.bandwidth(measured=True) / H100.bandwidth())
    product_share = round(100 * H100.rate(measured=True) / H100.rate())
    flushed, graph = replayed(record)
    return {
        "copy_share": copy_share,
        "copy_gap": 100 - copy_share,
        "product_share": product_share,
        "product_gap": 100 - product_share,
        "sparse_share": round(100 * H100.rate(measured=True) / SPARSE),
        "copy_gb_per_s": f"{copy / 1e9:,.0f}",
        "product_tflop_per_s": f"{product / 1e12:.0f}",
        "kept_gb_per_s": f"{H100.bandwidth(measured=True) / 1e9:,.0f}",
        "kept_tflop_per_s": f"{H100.rate(measured=True) / 1e12:.0f}",
        "flushed_us": flushed,
        "graph_us": graph,
    }


def claims(record):
    nbytes = 128 * 2 * (128 + 128 * 512 + 512)
    return {"below_the_floor": replayed(record)[1] < 1e6 * nbytes / H100.bandwidth()}
