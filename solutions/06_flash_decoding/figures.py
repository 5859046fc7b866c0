"""The figures of this lesson, from the records in `benchmarks/`."""

from math import ceil

from mla_ref.hardware.cost import Cost

from ..records import H100, decode, fitted, launches, rounded

CALLS = ("kernels.latent_attention", "kernels.latent_attention_tma", "FlashMLA", "vLLM")
STEPS = (128, 16, 4096), (128, 128, 4096), (1, 16, 8192), (16, 16, 8192)  # B, H, T


def steps(record):
    """Microseconds of a decode step by B, H, T and call."""
    return {
        (B, H, T): {call.removeprefix("kernels."): decode(record, B, 1, H, T)[call]["cold_us"] for call in CALLS}
        for B, H, T in STEPS
    }


def floor(B, T):
    """Microseconds to read a cache once."""
    return 1e6 * Cost(bytes=B * T * 1152).time(H100)


def by_splits(record):
    """Microseconds by batch and number of splits, 16 heads."""
    one, some = "16 heads, 64 tokens, 8 warps", "16 splits, 64 tokens, 8 warps"
    sizes = {8: "8x16x4096", 128: "128x16x1024"}
    return {
        B: {n: fitted(record, "decode", size, variant) for n, variant in ((1, one), (16, some))}
        for B, size in sizes.items()
    }


def rough(B, H, T, num_splits, block_us, tb_per_s, launch_us, next_launch_us):
    """Microseconds by the rough model of the lesson, its `step_time`."""
    programs, partial = B * -(-H // 16) * num_splits, (num_splits > 1) * num_splits * B * H * 513 * 4
    chain = -(-programs // 264) * (1 + block_us * ceil(ceil(T / num_splits) / 64))
    us = lambda moved: moved / (tb_per_s * 1e12) * 1e6
    combine = next_launch_us + 2 + us(partial) if num_splits > 1 else 0
    return launch_us + max(us(B * T * 1152 + partial), chain) + combine


def off_by(record, constants):
    """The rough model over what was measured, less 1, by batch and number of splits."""
    measured, tokens = rounded(by_splits(record), 0), {8: 4096, 128: 1024}  # as the lesson shows them
    return [rough(B, 16, tokens[B], n, *constants) / us - 1 for B, each in measured.items() for n, us in each.items()]


def figures(record):
    splits, (launch, next_launch) = by_splits(record), launches(record)
    constants = {
        "block_us": round(splits[8][1] / 64, 1),
        "copy_tb_per_s": round(record("decode_h100")["copy_bytes_per_s"] / 1e12, 1),
        "launch_us": round(launch, 1),
        "next_launch_us": round(next_launch, 1),
    }
    above = [100 * (us / floor(128, 4096) - 1) for us in steps(record)[128, 16, 4096].values()]
    off = sorted(100 * abs(each) for each in off_by(record, constants.values()))
    return constants | {
        "one_program_us": f"{splits[8][1]:.0f}",
        "off_by": f"{off[0]:.0f} to {off[-1]:.0f} %",
        "above_the_floor": f"{min(above):.0f} to {max(above):.0f} %",
        "best_16_us": f"{min(steps(record)[16, 16, 8192].values()):.0f}",
        "floor_16_us": f"{floor(16, 8192):.0f}",
        "steps": rounded(steps(record), 1),
        "splits": rounded(splits, 0),
        "slower": f"{splits[128][16] / splits[128][1]:.1f}",
        "graph_us": f"{decode(record, 1, 1, 16, 8192)['kernels.latent_attention']['graph_us']:.1f}",
        "folded_us": f"{decode(record, 4, 4, 16, 81920)['kernels.latent_attention_tma']['cold_us']:.0f}",
    }


def claims(record):
    times, splits = steps(record), by_splits(record)
    single = decode(record, 1, 1, 16, 8192)
    return {
        "six_times": 5.5 < splits[8][1] / splits[8][16] < 6.5,
        "earlier_run": "earlier run" in single["vLLM"].get("note", ""),
        "far_from_the_floor": min(times[1, 16, 8192].values()) > 5 * floor(1, 8192),
    }
