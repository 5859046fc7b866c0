import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding

from mla_ref import MLAConfig, Yarn, apply_rope, rope_cos_sin, rope_frequencies


def rotate(x, positions, theta=10000.0):
    """Multiply the pairs of x [..., S, Dr] as complex numbers by exp(i·angle)."""
    dim = x.shape[-1]
    angle = positions[:, None].double() * theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


@pytest.mark.parametrize("dim", [2, 6, 64])
def test_interleaved_pairs_are_complex_numbers(dim):
    positions = torch.tensor([0, 1, 300, 163839])
    x = torch.randn(2, 4, dim, dtype=torch.float64)
    cos, sin = rope_cos_sin(positions, dim, dtype=torch.float64)
    torch.testing.assert_close(apply_rope(x, cos, sin), rotate(x, positions), rtol=1e-12, atol=1e-12)


def test_halves_are_interleaved_pairs_in_another_order():
    x = torch.randn(2, 5, 3, 10, dtype=torch.float64)
    cos, sin = rope_cos_sin(torch.arange(5), 10, dtype=torch.float64)
    order = torch.tensor([0, 2, 4, 6, 8, 1, 3, 5, 7, 9])
    halves = apply_rope(x[..., order], cos, sin, interleaved=False)
    torch.testing.assert_close(halves, apply_rope(x, cos, sin)[..., order])
    assert not torch.allclose(apply_rope(x, cos, sin, interleaved=False), apply_rope(x, cos, sin))


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.booleans())
def test_scores_depend_on_distance_only(i, j, shift, interleaved):
    q, k = torch.randn(2, 1, 1, 8, dtype=torch.float64)

    def score(a, b):
        tables = [rope_cos_sin(torch.tensor([p]), 8, dtype=torch.float64) for p in (a, b)]
        q_rope, k_rope = (apply_rope(x, *t, interleaved) for x, t in zip((q, k), tables, strict=True))
        return (q_rope * k_rope).sum()

    torch.testing.assert_close(score(i, j), score(i + shift, j + shift), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 5, 8)])
def test_sequences_may_stand_at_different_positions(shape):
    x = torch.randn(shape)
    positions = torch.tensor([[0, 1, 2], [7, 8, 9]])
    together = apply_rope(x, *rope_cos_sin(positions, 8))
    for b in range(2):
        alone = apply_rope(x[b : b + 1], *rope_cos_sin(positions[b], 8))
        torch.testing.assert_close(together[b : b + 1], alone)


def test_low_precision_tables_still_tell_late_positions_apart():
    cos, _ = rope_cos_sin(torch.tensor([1000, 1001, 1002, 1003]), 64, dtype=torch.bfloat16)
    assert cos.dtype == torch.bfloat16
    assert len(cos[:, 0].unique()) == 4
    exact, _ = rope_cos_sin(torch.tensor([1000, 1001, 1002, 1003]), 64, dtype=torch.float64)
    assert (cos.double() - exact).abs().max() < 2**-8


def test_half_input_is_rounded_once():
    x = torch.randn(1, 9, 64).bfloat16()
    positions = torch.arange(500, 509)
    out = apply_rope(x, *rope_cos_sin(positions, 64))
    exact = rotate(x.double(), positions)
    assert out.dtype == torch.bfloat16
    assert ((out.double() - exact).abs() <= exact.abs() * 2**-8 + 1e-6).all()


@pytest.mark.parametrize(
    "yarn",
    [
        MLAConfig.preset("deepseek_v3").rope_scaling,
        MLAConfig.preset("kimi_k2").rope_scaling,
        Yarn(factor=4.0, original_max_position_embeddings=100, mscale=0.9, mscale_all_dim=0.5),
        Yarn(factor=16.0, original_max_position_embeddings=2048),
    ],
    ids=["deepseek_v3", "kimi_k2", "two gains", "one gain"],
)
@pytest.mark.parametrize("dim", [6, 64])
def test_yarn_matches_transformers(yarn, dim):
    scaling = {
        "type": "yarn",
        "factor": yarn.factor,
        "original_max_position_embeddings": yarn.original_max_position_embeddings,
        "beta_fast": yarn.beta_fast,
        "beta_slow": yarn.beta_slow,
        "mscale": yarn.mscale,
        "mscale_all_dim": yarn.mscale_all_dim,
    }
    hf = DeepseekV3RotaryEmbedding(DeepseekV3Config(qk_rope_head_dim=dim, rope_scaling=scaling))
    torch.testing.assert_close(rope_frequencies(dim, scaling=yarn), hf.inv_freq.double(), rtol=1e-6, atol=0)
    positions = torch.tensor([0, 1, 17, 500])
    cos, sin = rope_cos_sin(positions, dim, scaling=yarn)
    hf_cos, hf_sin = hf(torch.zeros(1), positions[None])
    torch.testing.assert_close(cos, hf_cos[0, :, : dim // 2], rtol=0, atol=1e-4)
    torch.testing.assert_close(sin, hf_sin[0, :, : dim // 2], rtol=0, atol=1e-4)


def test_errors_say_what_came():
    x = torch.randn(2, 3, 5, 8)
    cos, sin = rope_cos_sin(torch.arange(4), 8)
    with pytest.raises(ValueError, match=r"cos has shape \[4, 4\], expected \[3, 4\]"):
        apply_rope(x, cos, sin)
    with pytest.raises(TypeError, match=r"x is a list, expected a torch.Tensor"):
        apply_rope([1.0], cos, sin)
    with pytest.raises(TypeError, match=r"cos is a NoneType, expected a torch.Tensor"):
        apply_rope(x, None, sin)
    for interleaved in (True, False):
        with pytest.raises(ValueError, match=r"x has shape \[2, 3, 5, 7\], expected an even width"):
            apply_rope(x[..., :7], cos[:3, :3], sin[:3, :3], interleaved)
    with pytest.raises(TypeError, match=r"positions has dtype torch.bfloat16"):
        rope_cos_sin(torch.arange(4).bfloat16(), 8)
    with pytest.raises(ValueError, match="dim is 7"):
        rope_frequencies(7)
