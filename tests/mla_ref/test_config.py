import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import transformers
from transformers import DeepseekV2Config, DeepseekV3Config, LongcatFlashConfig, PretrainedConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

from mla_ref import MLAConfig, Yarn, presets
from mla_ref._from_hf import MODELS

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


# What published config.json files say of their attention, beside what they all have.
PUBLISHED = {
    "DeepSeek-V3": """{"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
        "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "max_position_embeddings": 163840, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}}""",
    "DeepSeek-V2-Lite": """{"model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "max_position_embeddings": 163840, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}}""",
    "Kimi-K2.5": """{"model_type": "kimi_k2", "hidden_size": 7168, "num_attention_heads": 64,
        "num_key_value_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
        "max_position_embeddings": 262144, "rope_scaling": {"type": "yarn", "factor": 64.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}}""",
    "Moonlight": """{"model_type": "deepseek_v3", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
        "max_position_embeddings": 8192}""",
    "GLM-4.7-Flash": """{"model_type": "glm4_moe_lite", "hidden_size": 2048, "num_attention_heads": 20,
        "num_key_value_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64, "v_head_dim": 256, "rms_norm_eps": 1e-5, "rope_theta": 1000000,
        "max_position_embeddings": 202752, "rope_scaling": null, "partial_rotary_factor": 1.0, "dtype": "bfloat16"}""",
    "LongCat-Flash-Chat": """{"hidden_size": 6144, "num_attention_heads": 64, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "mla_scale_q_lora": true, "mla_scale_kv_lora": true, "attention_method": "MLA", "rms_norm_eps": 1e-5,
        "rope_theta": 10000000.0, "max_position_embeddings": 131072, "num_layers": 28, "zero_expert_num": 256,
        "zero_expert_type": "identity", "moe_topk": 12, "expert_ffn_hidden_size": 2048, "router_bias": false}""",
    "Kimi-Linear": """{"model_type": "kimi_linear", "hidden_size": 2304, "num_attention_heads": 32,
        "num_key_value_heads": 32, "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 72, "mla_use_nope": true, "rms_norm_eps": 1e-5,
        "rope_scaling": null, "rope_theta": 10000.0, "model_max_length": 1048576, "linear_attn_config":
        {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 32, "head_dim": 128}}""",
}
COMMON = """{"architectures": ["A"], "attention_bias": false, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "a"},
    "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": [1, 2], "ep_size": 1, "first_k_dense_replace": 1,
    "hidden_act": "silu", "initializer_range": 0.02, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": true,
    "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "quantization_config": {"quant_method": "fp8"}, "routed_scaling_factor": 1.0, "scoring_func": "softmax",
    "seq_aux": true, "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "transformers_version": "4.39.3", "use_cache": true, "vocab_size": 102400}"""
# What an object of transformers 4 dumps beside that, as in Kimi-K2.5's text_config.
DUMPED = """{"add_cross_attention": false, "chunk_size_feed_forward": 0, "diversity_penalty": 0.0, "is_decoder": false,
    "id2label": {"0": "LABEL_0"}, "length_penalty": 1.0, "max_length": 20, "min_length": 0, "num_beams": 1,
    "pruned_heads": {}, "return_dict": true, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0}"""


def mla_configs():
    """The class of each configuration of the installed transformers that has a latent."""
    for file in sorted(Path(transformers.__file__).parent.glob("models/*/configuration_*.py")):
        if "kv_lora_rank" in file.read_text():
            module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
            for name in module.__all__:
                if "kv_lora_rank" in vars(getattr(module, name)()):
                    yield getattr(module, name)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load(name):
    fields = json.loads(PUBLISHED[name])
    config = MLAConfig.from_hf({**json.loads(COMMON), **fields})
    for field in ("hidden_size", "num_attention_heads", "q_lora_rank", "kv_lora_rank", "v_head_dim", "rope_theta"):
        assert getattr(config, field) == fields[field]
    yarn = dict(fields.get("rope_scaling") or {})
    assert config.rope_scaling == (Yarn(**yarn) if yarn.pop("type", None) else None)
    assert config.max_position_embeddings == fields.get("max_position_embeddings", 1048576)
    assert (config.mla_use_nope, config.mla_scale_kv_lora) == (name == "Kimi-Linear", "LongCat" in name)
    nested = {"model_type": "kimi_k25", "text_config": {**json.loads(COMMON), **json.loads(DUMPED), **fields}}
    assert MLAConfig.from_hf(nested) == config


def test_presets_are_the_published_configurations():
    for preset, name in {"deepseek_v3": "DeepSeek-V3", "deepseek_v2_lite": "DeepSeek-V2-Lite"}.items():
        assert MLAConfig.preset(preset) == MLAConfig.from_hf(json.loads(PUBLISHED[name]))


@pytest.mark.parametrize("kind", list(mla_configs()), ids=lambda kind: kind.__name__)
def test_each_mla_model_of_transformers_loads_as_object_and_as_file_or_is_refused(kind):
    hf = kind()
    if hf.model_type in MODELS:
        assert MLAConfig.from_hf(hf) == MLAConfig.from_hf(json.loads(hf.to_json_string(use_diff=False)))
    else:
        for config in (hf, hf.to_dict(), SimpleNamespace(text_config=hf)):
            with pytest.raises(ValueError, match=f"model_type is '{hf.model_type}', expected one of axk1, deepseek_v2"):
                MLAConfig.from_hf(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_lora_rank": None}, "config has no kv_lora_rank"),
        ({"attention_bias": True}, "attention_bias is True, expected False"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type is 'llama3', expected 'default' or 'yarn'"),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, "rope_type is 'longrope'"),
        ({"rope_scaling": {"type": "yarn", **YARN, "attention_factor": 1.2}}, "attention_factor of the rotary"),
        ({"rope_scaling": {"type": "yarn", **YARN, "truncate": False}}, "truncate of .* is False, expected True"),
        # DeepSeek-V3.2, GLM-5, LongCat with sparse attention
        ({"index_topk": 2048, "index_n_heads": 64}, "index_topk is 2048; index_n_heads is 64"),
        ({"attention_method": "LSA"}, "attention_method is 'LSA', expected 'MLA'"),
        # Mistral 4, and Large 3 as vLLM writes it
        ({"rope_parameters": {"type": "yarn", **YARN, "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta of"),
        ({"llama_4_scaling": {"beta": 0.1}}, "llama_4_scaling is {'beta': 0.1}"),
        # gates and sinks: Kimi K3, HY-V4, Ling
        ({"mla_use_output_gate": True}, "mla_use_output_gate is True"),
        ({"learnable_sink_init": 0.0}, "learnable_sink_init is 0.0"),
        ({"kda_safe_gate": True}, "kda_safe_gate is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_attention"),
        ({"sliding_window": 4096}, "sliding_window is 4096"),
        # TransMLA, DeepSeek-VL2-tiny
        ({"qk_latent_layernorm": False}, "qk_latent_layernorm is False, expected True"),
        ({"use_mla": False}, "use_mla is False, expected True"),
        ({"is_causal": False}, "is_causal is False, expected True"),
        ({"qk_head_dim": 24}, "qk_head_dim is 24, expected 18"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1 or 6/18"),
        ({"model_type": "minicpm3", "rope_interleave": True}, "rope_interleave is True, expected False"),
        ({"model_type": "longcat_flash", "mla_scale_q_lora": False}, "mla_scale_q_lora is False, expected True"),
        ({"model_type": "deepseek_v9"}, "model_type is 'deepseek_v9'"),
    ],
)
def test_what_computes_something_else_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        MLAConfig.from_hf({**FIELDS, **change})


def test_what_is_off_is_no_reason_to_refuse():
    off = {"sliding_window": None, "use_qk_norm": False, "index_topk": None, "layer_types": ["full_attention"] * 3}
    assert MLAConfig.from_hf({**FIELDS, **off, "use_mla": 1, "qk_head_dim": 18}) == MLAConfig(**FIELDS)


def test_fields_can_be_ignored_by_name():
    sparse = {**FIELDS, "model_type": "deepseek_v32", "index_topk": 2048}
    assert MLAConfig.from_hf(sparse, ignore=["model_type", "index_topk"]) == MLAConfig(**FIELDS)
    with pytest.raises(ValueError, match=r"attention: index_topk is 2048\. Name in ignore"):
        MLAConfig.from_hf(sparse, ignore="model_type")
    scaled = {**FIELDS, "rope_scaling": {"type": "yarn", **YARN, "llama_4_scaling_beta": 0.1}}
    assert MLAConfig.from_hf(scaled, ignore=["llama_4_scaling_beta"]).rope_scaling == Yarn(**YARN)


@pytest.mark.parametrize(
    ("config", "what"),
    [("deepseek-ai/DeepSeek-V3", "'deepseek-ai/DeepSeek-V3'"), (None, "None"), (DeepseekV3Config, "<class")],
)
def test_what_is_no_configuration_is_refused_with_what_to_do(config, what):
    with pytest.raises(TypeError, match=rf"config is {what}.*expected config.json's dict.*AutoConfig.from_pretrained"):
        MLAConfig.from_hf(config)


def test_a_width_in_quotes_is_named():
    with pytest.raises(TypeError, match="qk_nope_head_dim is '12', expected a positive int"):
        MLAConfig.from_hf({**FIELDS, "qk_nope_head_dim": "12"})


def test_from_hf_reads_names_that_transformers_maps():
    class Mapped(PretrainedConfig):
        attribute_map: ClassVar = {
            "hidden_size": "d_model",
            "num_attention_heads": "n_head",
            "num_hidden_layers": "n_layer",
        }

    fields = {**FIELDS, "d_model": 40, "n_head": 3, "n_layer": 2}
    del fields["hidden_size"], fields["num_attention_heads"]
    assert MLAConfig.from_hf(Mapped(**fields)) == MLAConfig(**FIELDS)


def test_latent_norms_have_the_epsilon_of_transformers_layer():
    hf = DeepseekV3Config(**FIELDS, rms_norm_eps=1e-5, num_key_value_heads=3)
    assert MLAConfig.from_hf(hf).rms_norm_eps == DeepseekV3Attention(hf, 0).kv_a_layernorm.variance_epsilon == 1e-6


def test_rope_parameters_by_layer_type_keep_yarn():
    yarn = {"rope_type": "yarn", "rope_theta": 5e4, **YARN}
    expected = MLAConfig(**FIELDS, rope_theta=5e4, rope_scaling=Yarn(**YARN))
    for rope in ({"full_attention": yarn}, {"full_attention": yarn, "linear_attention": None}):
        assert MLAConfig.from_hf({**FIELDS, "rope_parameters": rope}) == expected
    apart = {"full_attention": yarn, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(ValueError, match="settings have full_attention layers apart, expected one for all"):
        MLAConfig.from_hf({**FIELDS, "rope_parameters": apart})
    with pytest.raises(ValueError, match="rope_scaling is 'yarn', expected a dict"):
        MLAConfig.from_hf({**FIELDS, "rope_scaling": "yarn"})


def test_what_the_rotary_settings_leave_open_is_what_transformers_takes():
    no_mscale = {"rope_type": "yarn", **YARN}
    del no_mscale["mscale"]
    for rope in (
        {"rope_scaling": no_mscale},
        {"rope_scaling": no_mscale, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    ):
        hf = DeepseekV3Config(**FIELDS, num_key_value_heads=3, **json.loads(json.dumps(rope)))
        config = MLAConfig.from_hf({**FIELDS, **rope})
        assert config.rope_scaling == MLAConfig.from_hf(hf).rope_scaling
        assert config.rope_scaling.attention_factor == DeepseekV3RotaryEmbedding(hf).attention_scaling > 1
    longcat = MLAConfig.from_hf({**FIELDS, "q_lora_rank": 16, "model_type": "longcat_flash"})
    assert longcat == MLAConfig.from_hf(LongcatFlashConfig(**FIELDS, q_lora_rank=16, max_position_embeddings=4096))


def test_yarn_says_what_it_lacks_or_takes_it_from_the_context():
    def read(without, **fields):
        lacking = {name: value for name, value in YARN.items() if name != without}
        return MLAConfig.from_hf({**FIELDS, "rope_scaling": {"type": "yarn", **lacking}, **fields}).rope_scaling

    assert read("factor", max_position_embeddings=163840) == Yarn(**YARN)
    assert read("original_max_position_embeddings", original_max_position_embeddings=4096) == Yarn(**YARN)
    with pytest.raises(ValueError, match=r"no factor, expected .* add it to rope_scaling"):
        read("factor")
    with pytest.raises(ValueError, match="no original_max_position_embeddings, expected the context before"):
        read("original_max_position_embeddings", max_position_embeddings=163840)


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
        ({"rope_theta": "1e4"}, TypeError, "rope_theta is '1e4', expected a number"),
        ({"rope_interleave": "no"}, TypeError, "rope_interleave is 'no', expected True or False"),
        ({"mla_scale_q_lora": True}, ValueError, "mla_scale_q_lora is True, expected a q_lora_rank"),
        (
            {"mla_use_nope": True, "rope_scaling": Yarn(2, 64)},
            ValueError,
            "mla_use_nope is True, expected rope_scaling",
        ),
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
