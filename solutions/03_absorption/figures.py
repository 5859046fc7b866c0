"""The figures of this lesson, from the records in `benchmarks/`."""

from mla_ref import MLAConfig, attention_cost, operand_cost

from ..records import H100, decode


def flash_mla(record):
    """Microseconds of FlashMLA by batch: 128 heads, 4096 tokens."""
    return {B: decode(record, B, 1, 128, 4096)["FlashMLA"]["cold_us"] for B in (32, 128)}


def figures(record):
    times = flash_mla(record)
    return {
        "us_32": f"{times[32]:.1f}",
        "crosses": [round(time, 1) for time in times.values()],
    }


def claims(record):
    v3 = MLAConfig.preset("deepseek_v3")
    whole = lambda B: attention_cost("absorb", v3, batch=B, context=4096) + operand_cost("absorb", v3, batch=B)
    return {"above_the_line": all(time > 1e6 * whole(B).time(H100) for B, time in flash_mla(record).items())}
