import math

import pytest
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from mla_ref import MLAConfig, Yarn, presets

YARN = {
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
FIELDS = {
    "hidden_size": 40,
    "num_attention_heads": 3,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
}


def test_presets_have_the_published_shapes():
    assert presets() == ("deepseek_v3", "kimi_k2", "deepseek_v2_lite", "report", "tiny")
    v3 = MLAConfig.preset("deepseek_v3")
    assert (v3.hidden_size, v3.num_attention_heads, v3.q_lora_rank) == (7168, 128, 1536)
    assert (v3.qk_head_dim, v3.latent_head_dim, v3.v_head_dim) == (192, 576, 128)
    assert MLAConfig.preset("kimi_k2").num_attention_heads == 64
    assert MLAConfig.preset("deepseek_v2_lite").q_lora_rank is None
    report = MLAConfig.preset("report")
    assert (report.hidden_size, report.num_attention_heads, report.q_lora_rank) == (2048, 16, 512)


def test_softmax_scale_counts_the_query_width_and_yarns_gain():
    assert MLAConfig.preset("report").softmax_scale == pytest.approx(1 / math.sqrt(192))
    v3 = MLAConfig.preset("deepseek_v3")
    assert v3.softmax_scale * math.sqrt(192) == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert v3.softmax_scale * math.sqrt(192) == pytest.approx(1.87, abs=5e-3)


@pytest.mark.parametrize("preset", ["deepseek_v3", "kimi_k2", "deepseek_v2_lite"])
def test_published_yarn_leaves_cos_and_sin_alone(preset):
    assert MLAConfig.preset(preset).rope_scaling.attention_factor == 1


@pytest.mark.parametrize("yarn", [None, YARN, {**YARN, "mscale": 0.707, "mscale_all_dim": 0.4, "factor": 8}])
def test_from_hf_reads_what_transformers_computes(yarn):
    hf = DeepseekV3Config(**FIELDS, q_lora_rank=16, rope_theta=5e4, num_key_value_heads=3)
    if yarn:
        hf = DeepseekV3Config(
            **FIELDS, q_lora_rank=16, rope_theta=5e4, rope_scaling={"type": "yarn", **yarn}, num_key_value_heads=3
        )
    config = MLAConfig.from_hf(hf)
    assert config.q_lora_rank == 16
    assert config.rope_theta == 5e4
    assert config.rope_scaling == (Yarn(**yarn) if yarn else None)
    assert config.softmax_scale == pytest.approx(DeepseekV3Attention(hf, 0).scaling)


def test_from_hf_reads_both_spellings_of_a_dict():
    old = {**FIELDS, "rope_theta": 5e4, "rope_scaling": {"type": "yarn", **YARN}, "q_lora_rank": None}
    new = {**FIELDS, "rope_parameters": {"rope_type": "yarn", "rope_theta": 5e4, **YARN}}
    assert MLAConfig.from_hf(old) == MLAConfig.from_hf(new)
    assert MLAConfig.from_hf({**FIELDS, "rope_scaling": None}) == MLAConfig(**FIELDS)


def test_from_hf_reads_deepseek_v2_lite():
    lite = MLAConfig.preset("deepseek_v2_lite")
    hf = DeepseekV2Config(
        hidden_size=2048,
        num_attention_heads=16,
        q_lora_rank=None,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        max_position_embeddings=163840,
        rope_scaling={"type": "yarn", **YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    )
    assert MLAConfig.from_hf(hf) == lite


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": None}, "config has no kv_lora_rank"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3'"),
        ({"rope_scaling": {"type": "yarn", **YARN, "attention_factor": 1.2}}, "attention_factor"),
    ],
)
def test_from_hf_refuses_what_is_not_implemented(change, message):
    with pytest.raises(ValueError, match=message):
        MLAConfig.from_hf({**FIELDS, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"qk_rope_head_dim": 7}, ValueError, "qk_rope_head_dim is 7, expected an even"),
        ({"num_attention_heads": 0}, ValueError, "num_attention_heads is 0"),
        ({"v_head_dim": 12.0}, TypeError, "v_head_dim is 12.0"),
        ({"q_lora_rank": -1}, ValueError, "q_lora_rank is -1"),
        ({"rope_theta": 0}, ValueError, "rope_theta is 0"),
        ({"rms_norm_eps": 0}, ValueError, "rms_norm_eps is 0"),
        ({"rope_scaling": {"factor": 40}}, TypeError, "rope_scaling is"),
    ],
)
def test_impossible_fields_are_refused_by_name(change, error, message):
    with pytest.raises(error, match=message):
        MLAConfig(**{**FIELDS, **change})


def test_unknown_preset_lists_the_known():
    with pytest.raises(ValueError, match="deepseek_v3, kimi_k2"):
        MLAConfig.preset("deepseek_r1")


@pytest.mark.parametrize(("change", "message"), [({"factor": 0.5}, "factor is 0.5"), ({"beta_slow": 40}, "beta_slow")])
def test_impossible_yarn_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Yarn(**{**YARN, **change})
