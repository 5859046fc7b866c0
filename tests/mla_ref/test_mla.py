import importlib
import inspect
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import DeepseekV3Config, DynamicCache
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from mla_ref import (
    IMPLEMENTATIONS,
    MLA,
    LatentCache,
    MLAConfig,
    Yarn,
    _from_hf,
    absorb,
    apply_rope,
    naive,
    rope_cos_sin,
)
from mla_ref.testing import shuffle_pages

TINY = MLAConfig.preset("tiny")
YARN = Yarn(factor=8.0, original_max_position_embeddings=16, mscale=0.9, mscale_all_dim=0.6)
ODD = MLAConfig(
    hidden_size=37,
    num_attention_heads=3,
    q_lora_rank=11,
    kv_lora_rank=13,
    qk_nope_head_dim=7,
    qk_rope_head_dim=6,
    v_head_dim=5,
    rope_theta=5000.0,
)
DEEPSEEK = {
    "tiny": TINY,
    "odd": ODD,
    "direct query": replace(ODD, q_lora_rank=None),
    "yarn": replace(TINY, rope_scaling=YARN),
    "halves": replace(ODD, rope_interleave=False, rope_scaling=YARN),
    "one head": replace(TINY, num_attention_heads=1),
}
CONFIGS = {
    **DEEPSEEK,
    "no position": replace(ODD, q_lora_rank=None, mla_use_nope=True),
    "scaled": replace(ODD, mla_scale_q_lora=True, mla_scale_kv_lora=True, rope_scaling=YARN),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
impls = pytest.mark.parametrize("impl", ["naive", "absorb"])


# The models of transformers whose layer MLAConfig.from_hf claims to read, by the name of their classes.
MODELS = {
    "axk1": "AXK1Attention",
    "deepseek_v2": "DeepseekV2Attention",
    "deepseek_v3": "DeepseekV3Attention",
    "glm4_moe_lite": "Glm4MoeLiteAttention",
    "kimi_linear": "KimiLinearAttention",
    "longcat_flash": "LongcatFlashMLA",
    "minicpm3": "MiniCPM3Attention",
    "youtu": "YoutuAttention",
}


def transformers_layer(config):
    """The same layer from transformers, and its rotary tables by position."""
    fields = {name: getattr(config, name) for name in vars(config) if name != "rope_scaling"}
    yarn = config.rope_scaling
    hf_config = DeepseekV3Config(
        **fields,
        num_key_value_heads=config.num_attention_heads,
        attn_implementation="eager",
        rope_scaling=yarn and {"type": "yarn", **vars(yarn)},
    )
    rotary = DeepseekV3RotaryEmbedding(hf_config)
    return DeepseekV3Attention(hf_config, 0).eval(), lambda positions: rotary(torch.zeros(1), positions[None])


def causal_bias(new, context):
    return torch.full((new, context), -math.inf).triu(context - new + 1)[None, None]


@pytest.mark.parametrize(
    ("model", "yarn"),
    [(model, yarn) for model in MODELS for yarn in (None, YARN) if not (model == "kimi_linear" and yarn)],
    ids=lambda value: value if isinstance(value, str) else "yarn" if value else "plain",
)
@torch.no_grad()
def test_from_hf_computes_what_each_model_of_transformers_computes(model, yarn):
    modeling = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    prefix = MODELS[model].removesuffix("Attention").removesuffix("MLA")
    settings = importlib.import_module(f"transformers.models.{model}.configuration_{model}")
    hf_config = getattr(settings, f"{prefix}Config")(
        **{name: getattr(TINY, name) for name in vars(TINY) if "head" in name or "rank" in name or "size" in name},
        num_key_value_heads=TINY.num_attention_heads,
        head_dim=TINY.qk_rope_head_dim,  # LongCat's would stay 64
        max_position_embeddings=128,
        rms_norm_eps=1e-2,  # which the norms on the latents do not have
        attn_implementation="eager",
        **({"rope_scaling": {"type": "yarn", **vars(yarn)}} if yarn else {}),
    )
    hf = getattr(modeling, MODELS[model])(hf_config, 0).eval()
    for weight in hf.parameters():
        weight.uniform_(0.5, 1.5) if weight.ndim == 1 else weight.normal_(std=weight.shape[1] ** -0.5)
    mla = MLA(MLAConfig.from_hf(hf_config))
    mla.load_state_dict(hf.state_dict())

    x = torch.randn(2, 19, TINY.hidden_size)
    x[0] *= 0.1  # an epsilon shows where values are small
    hf_cache, cache = DynamicCache(), mla.make_cache(batch=2, capacity=19)
    for start, end in [(0, 13), (13, 14), (14, 19)]:
        options = {"attention_mask": causal_bias(end - start, end), "past_key_values": hf_cache}
        if "position_embeddings" in inspect.signature(hf.forward).parameters:
            rotary = getattr(modeling, f"{prefix}RotaryEmbedding")(hf_config)
            options["position_embeddings"] = rotary(torch.zeros(1), torch.arange(start, end)[None])
        expected = hf(x[:, start:end], **options)[0]
        torch.testing.assert_close(mla(x[:, start:end], cache), expected, rtol=1e-4, atol=5e-6)
    torch.testing.assert_close(cache.filled()[0], hf_cache.layers[0].keys[:, 0], rtol=1e-4, atol=1e-5)


def test_no_model_is_read_that_is_not_compared():
    assert {*MODELS, "kimi_k2"} == set(_from_hf.MODELS)  # Kimi K2 runs DeepSeek-V3's code


@pytest.mark.parametrize("config", DEEPSEEK.values(), ids=DEEPSEEK)
@impls
@torch.no_grad()
def test_matches_transformers_in_prefill_and_decode(config, impl):
    hf, tables = transformers_layer(config)
    mla = MLA(config, impl=impl)
    mla.load_state_dict(hf.state_dict())
    for norm in (module for module in hf.modules() if hasattr(module, "variance_epsilon")):
        norm.weight.uniform_(0.5, 1.5)
    mla.load_state_dict(hf.state_dict())

    x = torch.randn(2, 19, config.hidden_size)
    hf_cache, cache = DynamicCache(), mla.make_cache(batch=2, capacity=19)
    for start, end in [(0, 13), (13, 14), (14, 15), (15, 19)]:
        chunk = x[:, start:end]
        expected, _ = hf(
            chunk, tables(torch.arange(start, end)), causal_bias(end - start, end), past_key_values=hf_cache
        )
        torch.testing.assert_close(mla(chunk, cache), expected, rtol=1e-4, atol=2e-6)

    c_kv, k_rope = cache.filled()
    torch.testing.assert_close(c_kv, hf_cache.layers[0].keys[:, 0], rtol=1e-4, atol=1e-5)
    if config.rope_interleave:
        k_rope = torch.cat((k_rope[..., 0::2], k_rope[..., 1::2]), -1)
    torch.testing.assert_close(k_rope, hf_cache.layers[0].values[:, 0], rtol=1e-4, atol=1e-5)


@configs
@torch.no_grad()
def test_both_forms_and_any_chunking_are_one_layer(config):
    mla = MLA(config, dtype=torch.float64)
    x = torch.randn(2, 11, config.hidden_size, dtype=torch.float64)
    expected = mla(x, impl="naive")
    torch.testing.assert_close(mla(x), expected, rtol=1e-10, atol=1e-10)
    cache = mla.make_cache(batch=2, capacity=11)
    steps = [mla(x[:, start:end], cache) for start, end in [(0, 1), (1, 1), (1, 6), (6, 10), (10, 11)]]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("page_size", [None, 4])
@torch.no_grad()
def test_every_implementation_is_one_layer(impl, page_size):
    if impl not in ("naive", "absorb"):
        pytest.importorskip("triton", reason="kernels need Triton")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mla = MLA(TINY, impl=impl, device=device)
    x = torch.randn(2, 7, 64, device=device)
    cache = mla.make_cache(2, 7, page_size)
    if page_size is not None:
        shuffle_pages(cache)
    steps = [mla(x[:, start:end], cache) for start, end in [(0, 5), (5, 6), (6, 7)]]
    torch.testing.assert_close(torch.cat(steps, 1), mla(x, impl="naive"), rtol=1e-4, atol=1e-5)


@impls
@torch.no_grad()
def test_ragged_batches_are_their_sequences_alone(impl):
    mla = MLA(TINY, impl=impl, dtype=torch.float64)
    x = torch.randn(4, 10, 64, dtype=torch.float64)
    first, second = [5, 0, 3, 1], [2, 4, 0, 1]
    cache = mla.make_cache(batch=4, capacity=10)
    outs = [
        mla(x[:, :6], cache, lengths=torch.tensor(first)),
        mla(x[:, 6:], cache, lengths=torch.tensor(second)),
    ]
    assert cache.seq_lens.tolist() == [7, 4, 3, 2]
    for b, (m, n) in enumerate(zip(first, second, strict=True)):
        alone = mla(torch.cat([x[b : b + 1, :m], x[b : b + 1, 6 : 6 + n]], 1))[0]
        torch.testing.assert_close(outs[0][b, :m], alone[:m], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(outs[1][b, :n], alone[m:], rtol=1e-10, atol=1e-10)
        assert outs[0][b, m:].eq(0).all() and outs[1][b, n:].eq(0).all()


@impls
@torch.no_grad()
def test_bfloat16_stays_within_its_rounding(impl):
    mla = MLA(TINY, impl=impl, dtype=torch.bfloat16)
    exact = MLA(TINY, impl=impl, dtype=torch.float64)
    exact.load_state_dict(mla.state_dict())
    x = torch.randn(2, 33, 64).bfloat16()
    out, expected = mla(x), exact(x.double())
    assert out.dtype == torch.bfloat16
    assert (out.double() - expected).norm() / expected.norm() < 4 * 2**-8


def test_up_projections_are_views_of_one_weight():
    mla = MLA(ODD)
    assert mla.w_uk.shape == (3, 7, 13)
    assert mla.w_uv.shape == (3, 5, 13)
    with torch.no_grad():
        mla.w_uv[2] = 7
    assert mla.kv_b_proj.weight[-5:].eq(7).all()


@configs
@impls
def test_gradients_flow_to_every_weight(config, impl):
    mla = MLA(config, impl=impl)
    mla(torch.randn(2, 5, config.hidden_size)).square().sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in mla.parameters())


def test_a_cache_refuses_gradients():
    mla = MLA(TINY)
    cache = mla.make_cache(batch=1, capacity=4)
    with pytest.raises(RuntimeError, match=r"c_kv requires a gradient.*torch.no_grad"):
        mla(torch.randn(1, 2, 64), cache)
    assert cache.seq_lens.tolist() == [0]


@torch.no_grad()
def test_impl_may_be_any_function_of_the_shared_signature():
    seen = {}

    def spy(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, seq_lens=None, scale=None, causal=True):
        seen.update(c_kv=c_kv.shape, seq_lens=seq_lens.tolist(), scale=scale)
        return naive(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, scale=scale, causal=causal)

    config = CONFIGS["yarn"]
    mla = MLA(config)
    x = torch.randn(2, 3, 64)
    out = mla(x, mla.make_cache(2, 8), impl=spy)
    torch.testing.assert_close(out, mla(x))
    assert seen == {"c_kv": (2, 3, 32), "seq_lens": [3, 3], "scale": config.softmax_scale}


def test_errors_say_what_came():
    with pytest.raises(ValueError, match=rf"no implementation 'fast', expected .* one of {', '.join(IMPLEMENTATIONS)}"):
        MLA(TINY, impl="fast")
    mla = MLA(TINY)
    with torch.no_grad():
        with pytest.raises(ValueError, match="no implementation 'flash'"):
            mla(torch.randn(1, 2, 64), impl="flash")
        with pytest.raises(ValueError, match=r"x has shape \[1, 2, 63\], expected \[B, S, D\] with D = 64"):
            mla(torch.randn(1, 2, 63))
        with pytest.raises(ValueError, match="no room"):
            mla(torch.randn(1, 5, 64), mla.make_cache(1, 4))
        with pytest.raises(ValueError, match=r"lengths\[0\] is 3"):
            mla(torch.randn(1, 2, 64), lengths=torch.tensor([3]))


class ChallengeLayer(nn.Module):
    """The public decode challenge: half rotation, keys cached before rotation, angles in the dtype given."""

    def __init__(self, config, angle_dtype):
        super().__init__()
        c, self.config, heads = config, config, config.num_attention_heads
        self.q_down = nn.Linear(c.hidden_size, c.q_lora_rank, bias=False)
        self.kv_down = nn.Linear(c.hidden_size, c.kv_lora_rank + c.qk_rope_head_dim, bias=False)
        self.q_up = nn.Linear(c.q_lora_rank, heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), bias=False)
        self.kv_up = nn.Linear(c.kv_lora_rank, heads * (c.qk_nope_head_dim + c.v_head_dim), bias=False)
        self.wo = nn.Linear(heads * c.v_head_dim, c.hidden_size, bias=False)
        half = c.qk_rope_head_dim // 2
        self.theta = 10000 ** (-torch.arange(0, half, dtype=angle_dtype) / half)

    def rope(self, x, start):
        positions = torch.arange(start, start + x.shape[-2])
        angles = torch.einsum("s,d->sd", positions.to(self.theta.dtype), self.theta).repeat(1, 2).to(x.dtype)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    def forward(self, x, cache):
        """x [B, 1, D], cache [B, T-1, R+Dr] before rotation; returns the output and the longer cache."""
        c, (batch, _, _) = self.config, x.shape
        cache = torch.cat((cache, self.kv_down(x)), 1)
        context = cache.shape[1]
        q = self.q_up(self.q_down(x)).view(batch, c.num_attention_heads, 1, -1)
        q_nope, q_rope = q.split((c.qk_nope_head_dim, c.qk_rope_head_dim), -1)
        latent, k_rope = cache.split((c.kv_lora_rank, c.qk_rope_head_dim), -1)
        kv = self.kv_up(latent).view(batch, context, c.num_attention_heads, -1).transpose(1, 2)
        k_nope, v = kv.split((c.qk_nope_head_dim, c.v_head_dim), -1)
        k_rope = self.rope(k_rope, 0)[:, None].expand(-1, c.num_attention_heads, -1, -1)
        q = torch.cat((q_nope, self.rope(q_rope, context - 1)), -1)
        k = torch.cat((k_nope, k_rope), -1)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.wo((weights @ v).transpose(1, 2).reshape(batch, 1, -1)), cache


def challenge_decode(layer, x, cache, attend):
    """The challenge's step out of mla_ref's parts: no norms, half rotation, and keys rotated as they are appended."""
    c, heads = layer.config, layer.config.num_attention_heads

    def rotated(t, positions):
        return apply_rope(t, *rope_cos_sin(positions, c.qk_rope_head_dim, dtype=t.dtype), interleaved=False)

    here = cache.seq_lens[:, None]
    q = layer.q_up(layer.q_down(x)).unflatten(-1, (heads, -1))
    q_nope, q_rope = q.split((c.qk_nope_head_dim, c.qk_rope_head_dim), -1)
    c_kv, k_rope = layer.kv_down(x).split((c.kv_lora_rank, c.qk_rope_head_dim), -1)
    cache.append(c_kv, rotated(k_rope, here))
    w_uk, w_uv = layer.kv_up.weight.unflatten(0, (heads, -1)).split((c.qk_nope_head_dim, c.v_head_dim), 1)
    out, _ = attend(q_nope, rotated(q_rope, here), *cache.filled(), w_uk, w_uv, seq_lens=cache.seq_lens)
    return layer.wo(out.flatten(2))


@pytest.mark.parametrize("attend", [naive, absorb])
@pytest.mark.parametrize("config", [TINY, ODD], ids=["tiny", "odd"])
@torch.no_grad()
def test_decode_challenge_is_made_of_the_same_parts(attend, config):
    layer = ChallengeLayer(config, torch.float64).double()
    old = torch.zeros(2, 0, config.latent_head_dim, dtype=torch.float64)
    cache = LatentCache(2, 6, config.kv_lora_rank, config.qk_rope_head_dim, dtype=torch.float64)
    for _ in range(6):
        x = torch.randn(2, 1, config.hidden_size, dtype=torch.float64)
        expected, old = layer(x, old)
        out = challenge_decode(layer, x, cache, attend)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_decode_challenge_rounds_positions_above_256():
    x = torch.randn(1, 1, TINY.hidden_size, dtype=torch.float64)
    old = torch.randn(1, 300, TINY.latent_head_dim, dtype=torch.float64)
    exact = ChallengeLayer(TINY, torch.float64).double()
    rounded = ChallengeLayer(TINY, torch.bfloat16).double()
    rounded.load_state_dict(exact.state_dict())
    assert torch.tensor(257).bfloat16() == 256
    assert not torch.allclose(exact(x, old)[0], rounded(x, old)[0], rtol=1e-3)
