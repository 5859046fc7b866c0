import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mla_ref
from mla_ref import MLA, FusedMLA, MLAConfig, Yarn, latent_attention
from mla_ref.fused import FUSIONS
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref import kernels

DEVICE = "cpu" if emulator.active() else "cuda"
ROOT = Path(mla_ref.__file__).parent.parent
TINY = MLAConfig.preset("tiny")
CONFIGS = {
    "tiny": TINY,
    "direct query": replace(TINY, q_lora_rank=None, num_attention_heads=3),
    "yarn": replace(TINY, rope_scaling=Yarn(factor=8.0, original_max_position_embeddings=16, mscale_all_dim=0.6)),
    "no position": replace(TINY, mla_use_nope=True),
    "scaled": replace(TINY, mla_scale_q_lora=True, mla_scale_kv_lora=True),
}
REPORTED = ("ASF", "SF", "RF", "RPEF")
SUBSETS = [names for n in range(len(REPORTED) + 1) for names in itertools.combinations(REPORTED, n)]
SUBSETS += [("FD",), ("RF", "RPEF", "FD"), tuple(FUSIONS)]
CHUNKS = [(0, 7), (7, 8), (8, 12)]


def in_float64(mla):
    wide = MLA(mla.config, device=DEVICE, dtype=torch.float64)
    wide.load_state_dict(mla.state_dict())
    return wide


@torch.no_grad()
def check(layer, tolerance=1e-6, batch=2):
    """Prefill, a decode step and a chunk: outputs and cache against the plain layer in float64."""
    mla, wide = layer.mla, in_float64(layer.mla)
    weight = mla.o_proj.weight
    x = torch.randn(batch, 12, mla.config.hidden_size, device=DEVICE).to(weight.dtype)
    cache, exact_cache = mla.make_cache(batch, 14), wide.make_cache(batch, 14)
    for start, end in CHUNKS:
        out = layer(x[:, start:end], cache.c_kv, cache.k_rope, layer.step(start, end - start))
        exact = wide(x[:, start:end].double(), exact_cache)
        assert out.dtype == weight.dtype and not out.requires_grad
        assert (out.double() - exact).norm() <= tolerance * exact.norm()
    for filled, exact in zip((cache.c_kv, cache.k_rope), (exact_cache.c_kv, exact_cache.k_rope), strict=True):
        assert (filled.double() - exact).norm() <= tolerance * exact.norm()


@pytest.mark.parametrize("fusions", SUBSETS, ids=lambda names: "+".join(names) or "baseline")
def test_every_combination_is_the_same_layer(fusions):
    check(FusedMLA.of(MLA(TINY, device=DEVICE), *fusions))


@pytest.mark.parametrize("fusions", [(), tuple(FUSIONS)], ids=["baseline", "all"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_configuration(config, fusions):
    check(FusedMLA.of(MLA(config, device=DEVICE), *fusions))


@pytest.mark.parametrize("fusions", [(), tuple(FUSIONS)], ids=["baseline", "all"])
def test_half_precision(fusions):
    check(FusedMLA.of(MLA(TINY, device=DEVICE, dtype=torch.float16), *fusions), tolerance=3e-3)


def test_attention_can_be_one_function():
    asked = []

    def attend(*operands, **options):
        asked.append([each.shape[1] for each in operands])
        return latent_attention(*operands, **options)

    check(FusedMLA(MLA(TINY, device=DEVICE), attend=attend))
    assert asked == [[end - start, end - start, end, end] for start, end in CHUNKS]


def test_steps_can_be_anybodys():
    counts = dict.fromkeys(("score", "softmax", "rms_norm", "rope"), 0)

    def counted(step, kernel):
        def call(*args, **options):
            counts[step] += 1
            return kernel(*args, **options)

        return call

    steps = {step: counted(step, choose(kernels)) for step, choose in map(FUSIONS.get, REPORTED)}
    check(FusedMLA(MLA(TINY, device=DEVICE), **steps))
    assert counts == {"score": 3, "softmax": 3, "rms_norm": 6, "rope": 3}


def test_tiles_behind_the_diagonal_may_be_skipped():
    check(FusedMLA(MLA(TINY, device=DEVICE), score=kernels.attention_score, softmax=kernels.masked_softmax))


@pytest.mark.parametrize("change", [{"kv_lora_rank": 33}, {"qk_nope_head_dim": 7}, {"v_head_dim": 5}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_widths_may_be_odd(change, dtype):
    mla = MLA(replace(TINY, **change), device=DEVICE, dtype=dtype)
    layer, x = FusedMLA(mla), torch.randn(2, 5, 64, device=DEVICE, dtype=dtype)
    cache = mla.make_cache(2, 5)
    steps = [(slice(0, 4), layer.step(0, 4)), (slice(4, 5), layer.step(4, 1))]
    found = [layer(x[:, tokens], cache.c_kv, cache.k_rope, step) for tokens, step in steps]
    with torch.no_grad():
        torch.testing.assert_close(torch.cat(found, 1), mla(x), rtol=1e-4, atol=1e-5)


def test_weights_are_shared():
    mla = MLA(TINY, device=DEVICE)
    layer, x = FusedMLA(mla), torch.randn(1, 3, 64, device=DEVICE)
    cache, step = mla.make_cache(1, 3), layer.step(0, 3)
    assert layer(x, cache.c_kv, cache.k_rope, step).any()
    mla.o_proj.weight.data.zero_()
    assert not layer(x, cache.c_kv, cache.k_rope, step).any()


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match="expected interleaved RoPE"):
        FusedMLA(MLA(replace(TINY, rope_interleave=False)))
    mla = MLA(TINY, device=DEVICE)
    layer, x, cache = FusedMLA(mla), torch.randn(2, 3, 64, device=DEVICE), mla.make_cache(2, 4)
    with pytest.raises(ValueError, match="x has 3 tokens a sequence, expected 1 as the step"):
        layer(x, cache.c_kv, cache.k_rope, layer.step(0, 1))
    with pytest.raises(ValueError, match="c_kv and k_rope have room for 4 tokens, expected 5 or more"):
        layer(x, cache.c_kv, cache.k_rope, layer.step(2, 3))
    for start, size in [(-1, 1), (0, 0), (3, -1)]:
        with pytest.raises(ValueError, match=f"start is {start} and size {size}, expected start >= 0 and size >= 1"):
            layer.step(start, size)
    with pytest.raises(ValueError, match="no fusion 'FLASH', expected one of ASF, SF, RF, RPEF, FD"):
        FusedMLA.of(mla, "FLASH")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.ones(1, 3, 64)}, ValueError, r"c_kv has shape .* with B = 1 from x"),
        ({"x": torch.ones(2, 3, 63)}, ValueError, r"x has shape .* with D = 64 from weight"),
        ({"c_kv": torch.zeros(2, 4, 31)}, ValueError, r"c_kv has shape \[2, 4, 31\]"),
        ({"k_rope": torch.zeros(3, 4, 8)}, ValueError, r"k_rope has shape .* with B = 2 from x"),
        ({"k_rope": torch.zeros(2, 3, 8)}, ValueError, r"k_rope has shape .* with capacity = 4 from c_kv"),
        ({"k_rope": torch.zeros(2, 4, 8).half()}, TypeError, r"k_rope has dtype torch.float16"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(change, error, message):
    layer = FusedMLA(MLA(TINY, device=DEVICE))
    given = {"x": torch.ones(2, 3, 64), "c_kv": torch.zeros(2, 4, 32), "k_rope": torch.zeros(2, 4, 8), **change}
    given = {name: x.to(DEVICE) for name, x in given.items()}
    with pytest.raises(error, match=message):
        layer(**given, step=layer.step(0, 3))
    assert not given["c_kv"].any() and not given["k_rope"].any()


def test_the_baseline_needs_no_triton():
    code = """
import sys
sys.modules["triton"] = None
import torch
from mla_ref import MLA, FusedMLA, MLAConfig
mla = MLA(MLAConfig.preset("tiny"))
cache, layer = mla.make_cache(1, 3), FusedMLA.of(mla)
print(layer(torch.randn(1, 3, 64), cache.c_kv, cache.k_rope, layer.step(0, 3)).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "torch.Size([1, 3, 64])\n", done.stderr


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("fusions", [(), tuple(FUSIONS)], ids=["baseline", "all"])
def test_in_a_cuda_graph_without_waiting(fusions):
    mla = MLA(MLAConfig.preset("report"), device=DEVICE, dtype=torch.float16)
    layer, x, cache = FusedMLA.of(mla, *fusions), torch.randn(2, 9, 2048, device=DEVICE).half(), mla.make_cache(2, 30)
    step = layer.step(21, 9)
    cache.c_kv.normal_(), cache.k_rope.normal_()
    layer(x, cache.c_kv, cache.k_rope, step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x, cache.c_kv, cache.k_rope, step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x.normal_()
    out.fill_(float("nan"))
    graph.replay()
    expected = layer(x, cache.c_kv, cache.k_rope, step)
    assert (out - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_reports_layer(dtype):
    check(FusedMLA.of(MLA(MLAConfig.preset("report"), device=DEVICE, dtype=dtype), *FUSIONS), tolerance=2e-2, batch=3)
