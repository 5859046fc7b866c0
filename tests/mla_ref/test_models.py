"""Whole models against transformers: the same logits, and the same tokens by every attention and cache."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import mla_ref
from mla_ref.attached import attach
from mla_ref.hardware import emulator
from mla_ref.models import Model, ModelConfig, generate, load

transformers = pytest.importorskip("transformers")
DEVICE = "cpu" if emulator.active() else "cuda"
WIDTHS = dict(
    vocab_size=97, hidden_size=48, intermediate_size=64, moe_intermediate_size=24, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
    v_head_dim=16, n_shared_experts=2, n_routed_experts=8, num_experts_per_tok=3, first_k_dense_replace=1,
    max_position_embeddings=128, rms_norm_eps=1e-5, initializer_range=0.3, eos_token_id=None,
)  # fmt: skip
V3 = dict(n_group=4, topk_group=2, q_lora_rank=20, routed_scaling_factor=2.5, num_nextn_predict_layers=0)
V2 = dict(q_lora_rank=None, n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
YARN |= {"mscale": 1.0, "mscale_all_dim": 1.0}
KINDS = {
    "DeepSeek-V3": lambda: transformers.DeepseekV3Config(**WIDTHS, **V3),
    "DeepSeek-V3, YaRN": lambda: transformers.DeepseekV3Config(**WIDTHS, **V3, rope_parameters=YARN),
    "DeepSeek-V3, tied, dense": lambda: transformers.DeepseekV3Config(
        **{**WIDTHS, **V3, "tie_word_embeddings": True, "first_k_dense_replace": 3}
    ),
    "DeepSeek-V2": lambda: transformers.DeepseekV2Config(**WIDTHS, **V2),
    "DeepSeek-V2-Lite": lambda: transformers.DeepseekV2Config(**{**WIDTHS, **V2, "topk_method": "greedy"}),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """A random model of transformers, and the folder that it saved itself to."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(KINDS[request.param](), attn_implementation="eager")
    for name, each in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            each.uniform_(0, 0.3)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return model.to(DEVICE).eval(), folder


@pytest.fixture(scope="module")
def deepseek_v3(tmp_path_factory):
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(KINDS["DeepSeek-V3"]())
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return folder


def prompt(length=9, batch=1):
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(1)).to(DEVICE)


def by_transformers(model, tokens, count):
    mask = torch.ones_like(tokens)
    found = model.generate(tokens, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return found[:, tokens.shape[1] :].tolist()


@torch.no_grad()
def test_logits_are_those_of_transformers(pair):
    theirs, folder = pair
    ours = load(folder, device=DEVICE)
    tokens = prompt(batch=2)
    expected = theirs(tokens).logits
    for impl in ("naive", "absorb"):
        torch.testing.assert_close(ours(tokens, impl=impl), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(tokens, last=True), expected[:, -1], rtol=1e-4, atol=1e-4)


WAYS = {
    "naive": ({}, 64),
    "absorb": ({}, 64),
    "absorb, paged": ({"page_size": 4}, 64),
    "prefix, paged": ({"page_size": 4}, 64),
    "triton": ({}, 4),  # emulated, which takes its time
    "triton, paged": ({"page_size": 8}, 4),
}


@pytest.mark.thorough(but=4)
@pytest.mark.parametrize("way", WAYS)
def test_each_attention_and_cache_gives_transformers_tokens(pair, way):
    theirs, folder = pair
    options, count = WAYS[way]
    impl = way.split(",")[0]
    tokens = prompt()
    assert generate(load(folder, device=DEVICE, impl=impl), tokens.tolist(), count, **options) == by_transformers(
        theirs, tokens, count
    )


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("impl", ["naive", "absorb"])
def test_our_attention_in_a_model_of_transformers_gives_its_tokens(pair, impl):
    theirs, folder = pair
    tokens = prompt(batch=2)
    expected = by_transformers(theirs, tokens, 24)
    ours = attach(transformers.AutoModelForCausalLM.from_pretrained(folder).to(DEVICE).eval(), impl)
    assert by_transformers(ours, tokens, 24) == expected


def test_prompts_of_any_lengths_go_on_as_each_would_alone(deepseek_v3):
    model = load(deepseek_v3, device=DEVICE)
    prompts = [prompt(length).tolist()[0] for length in (3, 11, 7)]
    alone = [generate(model, [each], 12)[0] for each in prompts]
    for options in ({}, {"page_size": 4}):
        assert generate(model, prompts, 12, **options) == alone


def test_a_shared_prefix_changes_no_token_and_is_stored_once(deepseek_v3, monkeypatch):
    model = load(deepseek_v3, device=DEVICE)
    prefix, prompts = prompt(18).tolist()[0], [[1, 2], [3], [], [4, 5, 6]]
    plain = [generate(model, [prefix + each], 8)[0] for each in prompts]
    pages = []
    fork = mla_ref.PagedCache.fork
    monkeypatch.setattr(mla_ref.PagedCache, "fork", lambda cache, *pair: (pages.append(cache), fork(cache, *pair)))
    for options in ({}, {"page_size": 4}, {"page_size": 4, "impl": "prefix"}):
        assert generate(model, prompts, 8, prefix=prefix, **options) == plain
    whole, own = 17 // 4, -(-(17 % 4 + 4 + 8) // 4)
    assert pages[0].used_pages <= whole + 4 * own


def test_a_text_ends_with_a_stop_token_and_the_others_go_on(deepseek_v3):
    model = load(deepseek_v3, device=DEVICE)
    prompts = [prompt(5).tolist()[0], [7, 8]]
    free = generate(model, prompts, 10)
    stop = free[0][3]
    ended = generate(model, prompts, 10, stop=[stop])
    assert ended[0] == free[0][: free[0].index(stop) + 1]
    assert ended[1] == (free[1][: free[1].index(stop) + 1] if stop in free[1] else free[1])


def test_drawing_follows_the_probabilities(deepseek_v3):
    model = load(deepseek_v3, device=DEVICE)
    text = prompt(4).tolist()

    def draw(**options):
        torch_generator = torch.Generator(DEVICE).manual_seed(3)
        return [each[0] for each in generate(model, text * 400, 1, generator=torch_generator, **options)]

    with torch.no_grad():
        shares = (model(torch.tensor(text, device=DEVICE))[0, -1] / 2).softmax(-1)
    counts = torch.bincount(torch.tensor(draw(temperature=2.0)), minlength=97) / 400
    assert (counts - shares.cpu()).abs().max() < 0.1
    best = shares.sort(descending=True)
    kept = set(best.indices[: int((best.values.cumsum(0) < 0.5).sum()) + 1].tolist())
    assert set(draw(temperature=2.0, top_p=0.5)) <= kept
    assert draw(temperature=2.0) == draw(temperature=2.0)
    assert set(draw(temperature=2.0, top_p=1e-6)) == {int(best.indices[0])}


def changed(folder, tmp_path, config=(), tensors=lambda state: state):
    """A copy of a model's folder, with other fields and other tensors."""
    fields = json.loads((folder / "config.json").read_text()) | dict(config)
    (tmp_path / "config.json").write_text(json.dumps(fields))
    state = tensors(load_file(folder / "model.safetensors"))
    save_file(state, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": "youtu"}, "model_type is 'youtu', expected one of"),
        ({"kv_lora_rank": None}, "config has no kv_lora_rank"),
        ({"vocab_size": None}, "config has no vocab_size"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy', expected noaux_tc"),
        ({"num_hidden_layers": 4}, r"the files have no model\.layers\.3\.\S+, .* and \d+ more"),
        ({"num_hidden_layers": 2, "n_routed_experts": 7}, r"mlp\.gate\.weight has shape \[8, 48\], expected \[7, 48\]"),
        ({"num_hidden_layers": 2}, r"the files hold model\.layers\.2\.\S+, .* which no model of this config"),
        ({"n_routed_experts": 0}, r"the files have no model\.layers\.1\.mlp\.gate_proj"),
    ],
)
def test_a_configuration_of_another_model_is_one_sentence(deepseek_v3, tmp_path, config, words):
    with pytest.raises(ValueError, match=words) as caught:
        load(changed(deepseek_v3, tmp_path, config))
    assert "\n" not in str(caught.value)


def test_tensors_that_do_not_fit_are_one_sentence(deepseek_v3, tmp_path):
    def without(state):
        del state["model.norm.weight"]
        return state

    with pytest.raises(ValueError, match=r"the files have no model\.norm\.weight, expected"):
        load(changed(deepseek_v3, tmp_path, tensors=without))
    with pytest.raises(ValueError, match=r"the files hold model\.strange, which"):
        load(changed(deepseek_v3, tmp_path, tensors=lambda state: state | {"model.strange": torch.zeros(2)}))
    narrow = {"model.norm.weight": torch.ones(48).to(torch.float8_e4m3fn)}
    with pytest.raises(ValueError, match="holds weights of F8_E4M3, expected"):
        load(changed(deepseek_v3, tmp_path, tensors=lambda state: state | narrow))
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        (([[1] * 120], 20), {}, r"prompts\[0\] would get 140 tokens long with 20 new ones, expected at most 128"),
        (([[1], [2]], 20), {"prefix": [1] * 108}, "prompts.0. would get 129 tokens"),
        (([[1], [97]], 2), {}, r"prompts\[1\] has 97, expected tokens from 0 to 96"),
        (([[1], []], 2), {}, r"prompts\[1\] is empty"),
        (([], 2), {}, "prompts is empty"),
        (([[1]], 0), {}, "max_new_tokens is 0"),
        (([[1]], 1), {"top_p": 0.0}, "top_p 0.0"),
        (([[1]], 1), {"temperature": -1}, "temperature is -1"),
    ],
)
def test_what_cannot_be_generated_is_one_sentence(deepseek_v3, arguments, options, words):
    with pytest.raises(ValueError, match=words):
        generate(load(deepseek_v3), *arguments, **options)


def test_other_models_of_transformers_are_refused(deepseek_v3):
    with pytest.raises((TypeError, ValueError), match="MLA model"):
        attach(transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=12)))
    model = transformers.DeepseekV3ForCausalLM.from_pretrained(deepseek_v3)
    with pytest.raises(ValueError, match="no implementation 'fast'"):
        attach(model, "fast")
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    with pytest.raises(ValueError, match="without padding"):
        attach(model)(torch.ones(2, 3, dtype=torch.long), attention_mask=mask)


def test_a_random_model_can_be_trained(deepseek_v3):
    config = ModelConfig.from_hf(json.loads((deepseek_v3 / "config.json").read_text()))
    torch.manual_seed(0)
    model, tokens = Model(config), torch.randint(0, 97, (2, 12))
    first = None
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        first = first or loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first
