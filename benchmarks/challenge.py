"""The layer of the decode challenge on a GPU, from naive to fused: a step at four lengths, and where its time goes.

    PYTHONPATH=. python benchmarks/challenge.py          # on the GPU itself, from the repository's root
    PYTHONPATH=. python benchmarks/challenge.py --dry    # anywhere, at tiny sizes; prints the record

Sizes are those of the challenge: 128 sequences, D = 7168, H = 128, and 512 to 6144 tokens before the step. A step is
the whole layer, from x to its output, and the cache has the new token. Before the clock starts, output and cache are
compared with `mla_ref.challenge.challenge_oracle`, float64 and in chunks, by the challenge's own tolerance: `off`
counts the elements beyond it, and figures of a call with any are worth nothing.

- `naive`, `absorb`: PyTorch. A form that does not fit into the GPU's memory is null.
- `rotated first`: our kernels, with a pass that rotates all cached keys in front of the attention.
- `fused`: `challenge_decode(impl="triton")`: on an H100 or H200 as `rotated first`, elsewhere as `in one launch`.
- `in one launch`: the attention in plain Triton that rotates the keys as it reads them.
- `eager_us` is one call, between events and with the L2 emptied before it; the others are in a CUDA graph. `low_us` and
  `high_us` are the 20th and 80th percentile of `graph_us`. PyTorch's forms fill the memory and take milliseconds: their
  `graph_us` is their `eager_us`.
- `floor_us`: all bytes at the data sheet's bandwidth or all FLOPs at its rate, the longer one; `of_floor` is its part
  of `graph_us`. `parts` are the launches of `fused`, each alone in a CUDA graph of 20.
- `off_with_exact_angles`: elements of the output beyond the tolerance if the angles are exact, not bfloat16.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import record
import torch
import torch.nn.functional as F
from timings import GRAPH_CALLS, captured
from torch import Tensor

from mla_ref import DEVICES, Cost, apply_rope, find_device, kernels, rope_cos_sin
from mla_ref.challenge import (
    ABSOLUTE,
    BATCH,
    PREFILLS,
    RELATIVE,
    ChallengeLayer,
    bfloat16_angles,
    challenge_decode,
    challenge_oracle,
)
from mla_ref.hardware.timing import bench
from mla_ref.kernels import decode_rotating
from mla_ref.kernels.decode_rotating import rotating_latent_attention

SIZES = dict(B=BATCH, D=7168, H=128, Rq=1536, R=512, Dn=128, Dr=64, Dv=128, capacity=8192)
TINY = dict(B=2, D=64, H=4, Rq=48, R=32, Dn=16, Dr=32, Dv=16, capacity=320)


def main(dry: bool = False) -> dict[str, Any]:
    """Measure everything; write the record, or print it if ``dry``."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    sizes, lengths = (TINY, (5, 300)) if dry else (SIZES, PREFILLS)
    layer, angles = draw(**sizes)
    steps = []
    for length in lengths:
        steps.append(step(layer, angles, length, sizes, dry))
        print(json.dumps(steps[-1]), flush=True)
    figures = {"sizes": sizes, "tolerance": [RELATIVE, ABSOLUTE], "steps": steps}
    if dry:
        print(record.dumps(figures))
    else:
        print(record.write(f"challenge_{record.gpu()}", figures, ("triton",)))
    return figures


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def draw(
    *, D: int, H: int, Rq: int, R: int, Dn: int, Dr: int, Dv: int, capacity: int, **_: int
) -> tuple[ChallengeLayer, tuple[Tensor, Tensor]]:
    """Return a layer with the challenge's weights, normal over the square root of their inputs, and its angles."""
    shapes = (Rq, D), (H * (Dn + Dr), Rq), (R + Dr, D), (H * (Dn + Dv), R), (D, H * Dv)
    weights = ((torch.randn(shape, device=device()) / shape[1] ** 0.5).bfloat16() for shape in shapes)
    layer = ChallengeLayer(*weights, heads=H, qk_rope_head_dim=Dr, v_head_dim=Dv)
    return layer, bfloat16_angles(torch.arange(capacity, device=device()), Dr)


def step(
    layer: ChallengeLayer, angles: tuple[Tensor, Tensor], length: int, sizes: dict[str, int], dry: bool
) -> dict[str, Any]:
    """Check and measure a step behind ``length`` tokens."""
    B, D, width = sizes["B"], sizes["D"], sizes["R"] + sizes["Dr"]
    x = torch.randn(B, 1, D, device=device()).bfloat16()
    cache = torch.randn(B, sizes["capacity"], width, device=device()).bfloat16()
    wanted = cache.clone()
    expected = challenge_oracle(layer, x, wanted, length)
    calls: dict[str, Callable[[], Tensor]] = {
        name: lambda impl=impl: challenge_decode(layer, x, cache, length, impl, angles=angles)
        for name, impl in (("naive", "naive"), ("absorb", "absorb"), ("fused", "triton"))
    }
    calls["rotated first"] = lambda: rotated_first(layer, x, cache, length, angles)
    calls["in one launch"] = lambda: in_one_launch(calls["fused"])

    found: dict[str, Any] = {}
    for name, run in calls.items():
        try:
            checked = compare(run(), expected, cache, wanted)
            if checked["off"]:
                print(f"{name} behind {length} tokens is wrong: {checked}", file=sys.stderr)
            found[name] = checked | clocks(run, dry, slow=name in ("naive", "absorb"))
        except torch.cuda.OutOfMemoryError:
            found[name] = None
        free()
    exact = rope_cos_sin(torch.arange(sizes["capacity"], device=device()), sizes["Dr"], dtype=torch.bfloat16)
    off = compare(challenge_decode(layer, x, cache, length, angles=exact), expected, cache, wanted)["off"]

    cost = costs(length, **sizes)
    gpu = DEVICES["h200" if dry else find_device(record.device())]
    floor = 1e6 * cost.time(gpu)
    for each in filter(None, found.values()):
        each["of_floor"] = round(floor / each["graph_us"], 3)
    return {
        "length": length,
        "bytes": cost.bytes,
        "flops": cost.flops,
        "floor_us": round(floor, 2),
        "calls": found,
        "parts": parts(layer, x, cache, length, angles, dry),
        "off_with_exact_angles": round(off / expected.numel(), 4),
    }


def in_one_launch(run: Callable[[], Tensor]) -> Tensor:
    """Return what ``run`` returns, by the kernel that rotates keys as it reads them."""
    with mock.patch.object(decode_rotating, "hopper_fits", lambda decode: False):
        return run()


def rotated_first(
    layer: ChallengeLayer, x: Tensor, cache: Tensor, length: int, angles: tuple[Tensor, Tensor]
) -> Tensor:
    """Return the layer's output by our kernels, the keys of the whole cache rotated before they are attended to."""
    runs = launches(layer, x, cache, length, angles)
    q_nope, q_rope = runs["query"]()
    runs["append"]()
    q_rope = runs["rotate the query"](q_rope)
    cos, sin = (each[: length + 1] for each in angles)
    c_kv, keys = cache[:, : length + 1].split((layer.kv_lora_rank, layer.qk_rope_head_dim), -1)
    rotated = kernels.apply_rope(keys, cos, sin, interleaved=False)
    q_latent = runs["into the latent"](q_nope)
    attend = kernels.DECODERS[kernels.FASTEST].contiguous
    found, _ = attend(q_latent, q_rope, c_kv, rotated, scale=scale(layer))
    return runs["output"](runs["values"](found))


def launches(
    layer: ChallengeLayer, x: Tensor, cache: Tensor, length: int, angles: tuple[Tensor, Tensor]
) -> dict[str, Callable[..., Any]]:
    """Return the parts of `fused` in their order; those behind the append take what the one before gives."""
    cos, sin = (each[: length + 1] for each in angles)
    widths = layer.qk_nope_head_dim, layer.qk_rope_head_dim
    w_uk, w_uv = layer.up_projections

    def query():
        q = F.linear(F.linear(x, layer.q_down), layer.q_up)
        return q.unflatten(-1, (layer.heads, sum(widths))).split(widths, -1)

    def append():
        cache[:, length] = F.linear(x, layer.kv_down)[:, 0]

    def attend(q_latent, q_rope):
        return rotating_latent_attention(q_latent, q_rope, cache[:, : length + 1], cos, sin, scale=scale(layer))[0]

    return {
        "query": query,
        "append": append,
        "rotate the query": lambda q: kernels.apply_rope(q, cos[length:], sin[length:], interleaved=False),
        "into the latent": lambda q: kernels.absorb_query(q, w_uk),
        "attention": attend,
        "values": lambda found: kernels.reconstruct_value(found, w_uv),
        "output": lambda out: F.linear(out.flatten(2), layer.out),
    }


def scale(layer: ChallengeLayer) -> float:
    return (layer.qk_nope_head_dim + layer.qk_rope_head_dim) ** -0.5


def parts(
    layer: ChallengeLayer, x: Tensor, cache: Tensor, length: int, angles: tuple[Tensor, Tensor], dry: bool
) -> dict[str, float]:
    """Return the microseconds of each launch of `fused`, and of the pass that `rotated first` has besides."""
    runs = launches(layer, x, cache, length, angles)
    q_nope, q_rope = runs["query"]()
    q_rope = runs["rotate the query"](q_rope)
    q_latent = runs["into the latent"](q_nope)
    found = runs["attention"](q_latent, q_rope)
    given = {
        "rotate the query": (q_rope,),
        "into the latent": (q_nope,),
        "attention": (q_latent, q_rope),
        "values": (found,),
        "output": (runs["values"](found),),
    }
    times = {name: in_graph(lambda run=run, name=name: run(*given.get(name, ())), dry)[0] for name, run in runs.items()}
    keys = cache[:, : length + 1, layer.kv_lora_rank :]
    cos, sin = (each[: length + 1] for each in angles)
    rotate = kernels.apply_rope if not dry else apply_rope
    times["rotate all keys, if first"] = in_graph(lambda: rotate(keys, cos, sin, interleaved=False), dry)[0]
    return times


def compare(out: Tensor, expected: Tensor, cache: Tensor, wanted: Tensor) -> dict[str, Any]:
    """Count elements of output and cache beyond the tolerance."""
    off = sum(
        (~torch.isclose(x.to(y.dtype), y, rtol=RELATIVE, atol=ABSOLUTE)).sum().item()
        for x, y in ((out, expected), (cache, wanted))
    )
    error = ((out.double() - expected).norm() / expected.norm()).item()
    return {"off": off, "relative_error": float(f"{error:.3g}")}


def clocks(run: Callable[[], object], dry: bool, slow: bool) -> dict[str, float]:
    timing = bench(run, warmup=0, repeat=1 if dry else 5 if slow else 15)
    if slow:
        graph, low, high = (round(1e6 * each, 2) for each in (timing.median, timing.p20, timing.p80))
    else:
        graph, low, high = in_graph(run, dry, calls=5)
    return {"eager_us": round(1e6 * timing.median, 2), "graph_us": graph, "low_us": low, "high_us": high}


def in_graph(run: Callable[[], object], dry: bool, calls: int = GRAPH_CALLS) -> tuple[float, float, float]:
    """Return median, 20th and 80th percentile of a call's microseconds in a CUDA graph; by the wall clock if dry."""
    if dry:
        timing, calls = bench(run, warmup=0, repeat=1), 1
    else:
        timing = bench(captured(run, calls).replay, warmup=1, repeat=9, device="cuda")
    return tuple(round(1e6 * each / calls, 3) for each in (timing.median, timing.p20, timing.p80))


def free() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def costs(length: int, B: int, D: int, H: int, Rq: int, R: int, Dn: int, Dr: int, Dv: int, **_: int) -> Cost:
    """Return the compulsory bytes and FLOPs of an absorbed step."""
    weights = D * (Rq + R + Dr) + Rq * H * (Dn + Dr) + H * R * (Dn + Dv) + H * Dv * D
    context = B * (length + 1)
    return Cost(
        bytes=2 * (weights + context * (R + Dr) + 2 * B * D), flops=2 * B * weights + 2 * context * H * (2 * R + Dr)
    )


if __name__ == "__main__":
    main(dry="--dry" in sys.argv[1:])
