"""The figures of this lesson, from the records in `benchmarks/`."""

from ..records import decode


def figures(record):
    return {"flash_mla_ms": f"{decode(record, 128, 1, 128, 4096)['FlashMLA']['cold_us'] / 1e3:.3f}"}
