"""The figures of this lesson: the challenge's layer on an H200, where it has been measured, and decode on an H100."""

from ..records import decode, rounded

CALLS = {"naive": "naive", "absorb": "absorbed, PyTorch", "fused": "mla_ref's kernels"}


def measured(record):
    """The record of the challenge, or None where there is none yet."""
    try:
        return record("challenge_h200")
    except Exception:
        return None


def right(call):
    """Whether a form ran and was right: other times are worth nothing."""
    return call is not None and not call["off"]


def steps(record):
    """Microseconds in a CUDA graph by tokens before the step and form; None for what does not fit."""
    found = measured(record)
    if found is None:
        return None
    return {
        step["length"]: {
            label: round(step["calls"][name]["graph_us"], 1) if right(step["calls"][name]) else None
            for name, label in CALLS.items()
        }
        | {"floor": round(step["floor_us"], 1)}
        for step in found["steps"]
    }


def parts(record):
    """Microseconds of each launch of the fused step, by tokens before it."""
    found = measured(record)
    if found is None:
        return None
    return {
        step["length"]: rounded({name: us for name, us in step["parts"].items() if "if first" not in name}, 1)
        for step in found["steps"]
    }


def off_with_exact_angles(record):
    """Shares of the output that exact angles put beyond the tolerance, by tokens before the step."""
    found = measured(record)
    return found and {step["length"]: step["off_with_exact_angles"] for step in found["steps"]}


def figures(record):
    calls = decode(record, 128, 1, 128, 4096)
    return {
        "steps": steps(record),
        "parts": parts(record),
        "off": off_with_exact_angles(record),
        "pointers_us": f"{calls['kernels.latent_attention']['cold_us']:,.0f}",
        "tma_us": f"{calls['kernels.latent_attention_tma']['cold_us']:,.0f}",
    }


def claims(record):
    calls = decode(record, 128, 1, 128, 4096)
    times = [calls[f"kernels.latent_attention{kind}"]["cold_us"] for kind in ("", "_tma")]
    return {"descriptors_faster": times[0] > 2 * times[1]}
