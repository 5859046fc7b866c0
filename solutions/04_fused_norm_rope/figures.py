"""The figures of this lesson, from the records in `benchmarks/`."""

from ..records import H100, decode, fitted, launches, pick

PREFILL, STEP = dict(B=4, S=4096, H=128), dict(B=128, S=1, H=128)  # of RoPE

ROPES = {  # as named in the record -> in the lesson
    "mla_ref.apply_rope": "eager PyTorch",
    "Triton, loads of every other value, two launches": "Triton, every other number, two launches",
    "torch complex numbers": "PyTorch, complex numbers",
    "torch.compile mla_ref.apply_rope": "torch.compile of eager",
    "kernels.apply_rope, two launches": "Triton, rows as they lie, two launches",
    "kernels.apply_rope_qk": "the same, one launch",
}


def norms(record, rows, width):
    """Microseconds of RMSNorm by call, and of a copy of as many bytes; in a CUDA graph by call."""
    found = pick(record("norm_rope_h100")["rms_norm"], rows=rows, width=width)
    times = {name: call["cold_us"] for name, call in found["calls"].items()}
    return times | {"copy": found["equal_copy"]["cold_us"]}, {n: call["graph_us"] for n, call in found["calls"].items()}


def ropes(record, size, figure="cold_us"):
    """Microseconds of RoPE by call."""
    found = pick(record("norm_rope_h100")["rope"], **size)
    return {name: call[figure] for name, call in found["calls"].items()}


def saved_in_a_step(record):
    """Microseconds, in a CUDA graph, of a decode step: eager less fused."""
    norm, rope = norms(record, 128, 512)[1], ropes(record, STEP, "graph_us")
    return norm["mla_ref.rms_norm"] - norm["kernels.rms_norm"] + rope["mla_ref.apply_rope"] - rope[ONE]


ONE, EACH, EAGER = "kernels.apply_rope_qk", "kernels.apply_rope, two launches", "mla_ref.apply_rope"
LOOP = dict(task="rms_norm", size="16384x7168")


def figures(record):
    norm, rope, copied = norms(record, 16384, 7168)[0], ropes(record, PREFILL), record("norm_rope_h100")
    step, graph, host = (ropes(record, STEP, figure) for figure in ("cold_us", "graph_us", "host_us"))
    step_norm = norms(record, 128, 512)[1]
    validated = record("model_validation")
    launch, next_launch = launches(record)
    copy = pick(copied["rope"], **PREFILL)["equal_copy"]["cold_us"]
    return {
        "copy_share": round(100 * copied["copy_bytes_per_s"] / H100.bandwidth()),
        "launch_us": f"{launch:.1f}",
        "next_us": f"{next_launch:.1f}",
        "norm_eager_us": round(norm["mla_ref.rms_norm"]),
        "norm_torch_us": round(norm["F.rms_norm"]),
        "norm_fused_us": round(norm["kernels.rms_norm"]),
        "norm_copy_us": round(norm["copy"]),
        "norm_gain": f"{norm['mla_ref.rms_norm'] / norm['kernels.rms_norm']:.0f}",
        "rope_us": {label: round(rope[name]) for name, label in ROPES.items()} | {"copy of as many bytes": round(copy)},
        "rope_gain": f"{rope[EAGER] / rope[EACH]:.0f}",
        "rope_gain_one": f"{rope[EAGER] / rope[ONE]:.0f}",
        "every_other": f"{rope['Triton, loads of every other value, two launches'] / rope[EACH]:.0f}",
        "llama4_us": f"{rope['Liger-Kernel llama4_rope, in place']:.0f}",
        "halves_us": f"{rope['Liger-Kernel rope, in place, halves']:.0f}",
        "one_us": f"{step[ONE]:.1f}",
        "one_graph_us": f"{graph[ONE]:.1f}",
        "each_us": f"{step[EACH]:.1f}",
        "each_graph_us": f"{graph[EACH]:.1f}",
        "eager_us": f"{step[EAGER]:.1f}",
        "eager_graph_us": f"{graph[EAGER]:.1f}",
        "more_us": f"{step[EACH] - step[ONE]:.0f}",
        "host_us": f"{host[ONE]:.0f}",
        "step_norm_eager_us": f"{step_norm['mla_ref.rms_norm']:.1f}",
        "step_norm_us": f"{step_norm['kernels.rms_norm']:.1f}",
        "saved_us": f"{saved_in_a_step(record):.1f}",
        "attention_us": f"{decode(record, 128, 1, 128, 4096)['FlashMLA']['cold_us']:.0f}",
        "cases": validated["all"]["cases"],
        "splits": validated["other_splits"]["splits"],
        "median_error": f"{100 * validated['other_splits']['median_error']['median']:.1f}",
        "spearman": f"{validated['other_splits']['spearman_mean']['median']:.2f}",
        "other_error": f"{100 * validated['other_device']['median_error']:.0f}",
        "one_block_us": f"{fitted(record, variant='row, 8 warps', **LOOP):.0f}",
        "loop_us": f"{fitted(record, variant='loop of 1024, 4 warps', **LOOP):.0f}",
    }


def claims(record):
    norm, validated = norms(record, 16384, 7168)[0], record("model_validation")
    launch, _ = launches(record)
    attention = decode(record, 128, 1, 128, 4096)["FlashMLA"]["cold_us"]
    return {
        "like_a_copy": 0.97 < norm["kernels.rms_norm"] / norm["copy"] < 1.03,
        "by_triton_3_6": record("norm_rope_h100")["versions"]["triton"].startswith("3.6."),
        "more_than_bytes": launch > 1e6 * pick(record("norm_rope_h100")["rope"], **STEP)["bytes"] / H100.bandwidth(),
        "more_than_a_fifth": 0.2 < saved_in_a_step(record) / attention < 0.24,
        "longer_than_the_kernel": ropes(record, STEP, "host_us")[ONE] > ropes(record, STEP)[ONE],
        "none_inverted": not validated["all"]["pairs_2x_inverted"],
    }
