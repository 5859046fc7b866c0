"""What a Hugging Face configuration says of its attention, and a refusal of what this package does not compute."""

import math
from collections.abc import Collection, Mapping
from reprlib import repr as shortened
from typing import Any

from ._validate import check_numbers, check_positive

REQUIRED = (
    *("hidden_size", "num_attention_heads", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
)
OPTIONAL = (
    *("q_lora_rank", "rope_theta", "max_position_embeddings"),
    *("rope_interleave", "mla_use_nope", "mla_scale_q_lora", "mla_scale_kv_lora"),
)
YARN = ("factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")

# By model_type, what the code of a model does without asking its configuration.
MODELS: dict[str, dict[str, bool]] = {
    "axk1": {},
    "deepseek_v2": {"rope_interleave": True},
    "deepseek_v3": {},
    "glm4_moe_lite": {},
    "kimi_k2": {},
    "kimi_linear": {"mla_use_nope": True},
    "longcat_flash": {"rope_interleave": True, "mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    "minicpm3": {"rope_interleave": False},
    "youtu": {},
}
LONGCAT_THETA = 1e7  # where its configuration does not say

# Fields that do not reach the attention of any model above, or, as attention_dropout, only while it is trained.
HARMLESS = {
    "the file, and the object of transformers": """
        _attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
        _experts_implementation _experts_implementation_internal _name_or_path _output_attentions _post_init_done
        architectures auto_map base_model_ep_plan base_model_pp_plan base_model_tp_plan dtype finetuning_task
        gradient_checkpointing id2label ignore_keys_at_rope_validation
        is_decoder is_encoder_decoder keys_to_ignore_at_inference label2id lm_head model_type name_or_path
        output_attentions output_hidden_states problem_type quantization_config return_dict task_specific_params
        tf_legacy_loss tie_encoder_decoder tokenizer_class torch_dtype torchscript transformers_version
        unsloth_fixed use_bfloat16 use_cache
    """,
    "vocabulary and generation": """
        bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward decoder_start_token_id
        diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id
        exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id image_token_id length_penalty
        max_length max_new_tokens min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
        output_scores pad_token_id prefix remove_invalid_values repetition_penalty return_dict_in_generate
        sep_token_id suppress_tokens temperature tie_word_embeddings top_k top_p typical_p vocab_size
    """,
    "the rest of the model: residual stream, MLP, experts, more tokens, initialisation, parallelism": """
        aux_loss_alpha dim_model_base embedding_initializer_range ep_size expert_ffn_hidden_size ffn_hidden_size
        first_k_dense_replace hidden_act initializer_range intermediate_size mlp_bias mlp_layer_types
        moe_intermediate_size moe_layer_freq moe_renormalize moe_router_activation_func moe_router_dtype moe_topk
        mtp_loss_scaling_factor n_group n_routed_experts n_shared_experts norm_topk_prob num_expert_group num_experts
        num_experts_per_tok num_experts_per_token num_hidden_layers num_layers num_local_experts num_mtp_layers
        num_nextn_predict_layers num_shared_experts output_router_logits pretraining_tp rms_norm_eps
        routed_scaling_factor router_aux_loss_coef router_bias router_dtype scale_depth scale_emb scoring_func seq_aux
        swiglu_limit topk_group topk_method use_grouped_topk zero_expert_num zero_expert_type
    """,
    "attention: what follows from other fields, and what the linear layers of a hybrid have": """
        attention_dropout head_dim linear_attn_config linear_conv_kernel_dim linear_head_dim linear_num_heads
        model_max_length num_key_value_heads original_max_position_embeddings rope_parameters rope_scaling
    """,
}
HARMLESS_ROPE = frozenset(("rope_theta", "rope_type", "type", "max_position_embeddings"))
NESTED = ("text_config", "language_config")
KNOWN = {*REQUIRED, *OPTIONAL, *(name for names in HARMLESS.values() for name in names.split())}


def read(config: Any, ignore: Collection[str] = ()) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the values of :class:`mla_ref.MLAConfig`'s fields, and those of :class:`mla_ref.Yarn`'s or None.

    Raises
    ------
    TypeError
        Neither a mapping nor an object with fields, or a width that is no int.
    ValueError
        A field is missing, or is not known to leave attention alone. The sentence names it.
    """
    fields = {name: value for name, value in fields_of(config).items() if name not in ignore}
    for name in NESTED:
        if fields.get(name) is not None:
            return read(fields[name], ignore)
    missing = [name for name in REQUIRED if fields.get(name) is None]
    if missing:
        raise ValueError(f"config has no {', '.join(missing)}: is it an MLA model?")
    check_positive(**{name: fields[name] for name in REQUIRED if not isinstance(fields[name], int)})
    rope = {name: value for name, value in _rope(fields).items() if name not in ignore}
    strangers = [*_strangers(fields), *_rope_strangers(rope, fields)]
    if strangers:
        raise ValueError(
            f"mla_ref does not compute this attention: {'; '.join(strangers)}. "
            f"Name in ignore=(...) what does not change the attention, to read the rest"
        )

    model = fields.get("model_type")
    values = {name: fields[name] for name in (*REQUIRED, *OPTIONAL) if fields.get(name) is not None}
    values |= MODELS.get(model, {})
    if model == "longcat_flash":
        values.setdefault("rope_theta", LONGCAT_THETA)
    if rope.get("rope_theta") is not None:
        values["rope_theta"] = rope["rope_theta"]
    return values, _yarn(rope, fields)


def fields_of(config):
    """The fields of a mapping or an object, under the names that transformers gives them."""
    if isinstance(config, Mapping):
        fields = dict(config)
    elif isinstance(config, type) or not hasattr(config, "__dict__"):
        raise TypeError(
            f"config is {shortened(config)}, expected config.json's dict or a transformers configuration: "
            f"read one with json.load or AutoConfig.from_pretrained"
        )
    else:  # model_type stands in the class
        fields = {"model_type": getattr(config, "model_type", None), **vars(config)}
    aliases = {"max_position_embeddings": "model_max_length", **(getattr(config, "attribute_map", None) or {})}
    for name, stored in aliases.items():
        if fields.get(name) is None and fields.get(stored) is not None:
            fields[name] = fields[stored] if stored in KNOWN else fields.pop(stored)
    return fields


def _rope(fields):
    """The rotary settings, out of the field that has them and out of the layer types, where these agree."""
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    rope = fields.get(name) or {}
    if not isinstance(rope, Mapping):
        raise ValueError(f"{name} is {shortened(rope)}, expected a dict with rope_type, or None")
    nested = {kind: settings for kind, settings in rope.items() if isinstance(settings, Mapping)}
    if not nested:
        return rope
    first, *others = nested.values()
    if any(settings != first for settings in others):
        return rope
    return {kind: settings for kind, settings in rope.items() if kind not in nested} | first


def _strangers(fields):
    """Say of each field that is neither read nor known to be harmless what it is."""
    model = fields.get("model_type")
    expected = {
        "attention_bias": False,
        "attention_method": "MLA",
        "is_causal": True,
        "qk_head_dim": fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"],
        "qk_latent_layernorm": True,
        "use_mla": True,
        **MODELS.get(model, {}),
    }
    if model and model not in MODELS:
        yield f"model_type is {model!r}, expected one of {', '.join(MODELS)}"
    for name, value in fields.items():
        if _unset(value):
            continue
        if name == "layer_types":
            if other := {*value} - {"full_attention", "linear_attention"}:
                yield f"layer_types has {', '.join(sorted(other))}, expected full_attention and linear_attention alone"
        elif name == "partial_rotary_factor":
            yield from _partial_rotation(value, fields)
        elif name in expected:
            if value != expected[name]:
                yield f"{name} is {shortened(value)}, expected {expected[name]!r}"
        elif name not in KNOWN and value is not False:
            yield f"{name} is {shortened(value)}"


def _rope_strangers(rope, fields):
    """The same of the rotary settings."""
    kind = _kind(rope)
    if kind not in ("default", "yarn"):
        yield f"rope_type is {kind!r}, expected 'default' or 'yarn'"
        return
    expected = {"truncate": True, "llama_4_scaling_beta": 0}
    for name, value in rope.items():
        if _unset(value) or name in HARMLESS_ROPE or name in YARN:
            continue
        if isinstance(value, Mapping):
            yield f"the rotary settings have {name} layers apart, expected one for all layers"
        elif name == "partial_rotary_factor":
            yield from _partial_rotation(value, fields)
        elif name not in expected:
            yield f"{name} of the rotary settings is {shortened(value)}"
        elif value != expected[name]:
            yield f"{name} of the rotary settings is {shortened(value)}, expected {expected[name]!r}"


def _partial_rotation(factor, fields):
    """All of the rotary part turns, whether the factor is meant of it or of the whole head."""
    check_numbers(partial_rotary_factor=factor)
    part, head = fields["qk_rope_head_dim"], fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]
    if factor != 1 and not math.isclose(factor * head, part):
        yield f"partial_rotary_factor is {factor!r}, expected 1 or {part}/{head}"


def _unset(value):
    return value is None or (isinstance(value, str | Mapping | list | tuple) and not value)


def _kind(rope):
    return rope.get("rope_type") or rope.get("type") or "default"


def _yarn(rope, fields):
    if _kind(rope) == "default":
        return None
    values = {name: rope[name] for name in YARN if rope.get(name) is not None}
    length, original = (fields.get(name) for name in ("max_position_embeddings", "original_max_position_embeddings"))
    if original is not None:  # beside the rotary settings it has priority in transformers
        values["original_max_position_embeddings"] = original
    original = values.get("original_max_position_embeddings")
    if original is None:
        raise ValueError(
            "YaRN's settings have no original_max_position_embeddings, expected the context before the extension, "
            "in tokens: add it to rope_scaling"
        )
    if "factor" not in values:
        if length is None:
            raise ValueError("YaRN's settings have no factor, expected that of the extension: add it to rope_scaling")
        check_positive(max_position_embeddings=length, original_max_position_embeddings=original)
        values["factor"] = length / original
    return {"mscale": 0.0, **values}
