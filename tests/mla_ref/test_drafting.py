"""Multi-token prediction against transformers' own, and drafts that change no token."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mla_ref import LatentCache, PagedCache
from mla_ref.drafting import generate_drafted
from mla_ref.hardware import emulator
from mla_ref.models import Model, ModelConfig, generate, load

transformers = pytest.importorskip("transformers")
modeling_layers = pytest.importorskip("transformers.modeling_layers")
DEVICE = "cpu" if emulator.active() else "cuda"
FIELDS = dict(
    model_type="deepseek_v3", vocab_size=97, hidden_size=48, intermediate_size=64, moe_intermediate_size=24,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=32,
    qk_rope_head_dim=16, qk_nope_head_dim=16,
    v_head_dim=16, n_shared_experts=1, n_routed_experts=8, num_experts_per_tok=3, first_k_dense_replace=1,
    max_position_embeddings=128, rms_norm_eps=1e-5, n_group=4, topk_group=2, q_lora_rank=20,
    routed_scaling_factor=2.5, num_nextn_predict_layers=1, rope_theta=10000.0,
)  # fmt: skip
PROMPTS = [[1, 2, 3], [5] * 9, [7, 8, 9, 10, 11]]


def saved(model, folder, extra=(), **fields):
    (folder / "config.json").write_text(json.dumps(FIELDS | fields))
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state | dict(extra), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def model():
    """One that is trained a little to count upwards, so that some drafts are right, and not all."""
    torch.manual_seed(0)
    model = Model(ModelConfig.from_hf(FIELDS), device=DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(15):
        first = torch.randint(0, 97, (8, 1), device=DEVICE)
        tokens = (first + torch.arange(18, device=DEVICE)) % 97
        noise = torch.rand(tokens.shape, device=DEVICE) < 0.1
        tokens = torch.where(noise, torch.randint_like(tokens, 97), tokens)
        hidden = model.hidden(tokens[:, :-2])
        further = model.predict_further(hidden, tokens[:, 1:-1])
        loss = sum(
            torch.nn.functional.cross_entropy(model.lm_head(x).flatten(0, 1), target.flatten())
            for x, target in ((hidden, tokens[:, 1:-1]), (further, tokens[:, 2:]))
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def test_further_predictions_are_those_of_transformers(model, tmp_path, monkeypatch):
    if not hasattr(modeling_layers.MtpModel, "forward_layer"):
        pytest.skip(f"transformers {transformers.__version__} cannot run one layer of multi-token prediction")
    folder = saved(model, tmp_path)
    monkeypatch.setattr(transformers.DeepseekV3PreTrainedModel, "_keys_to_ignore_on_load_unexpected", [r"layers\.2\."])
    main = transformers.DeepseekV3ForCausalLM.from_pretrained(folder, attn_implementation="eager").to(DEVICE).eval()
    theirs = modeling_layers.MtpModel.from_pretrained(main).to(DEVICE).eval()
    tokens = torch.tensor([[3, 1, 4, 15, 92, 65, 35, 89]], device=DEVICE)
    ours = load(folder, device=DEVICE)
    hidden = main(tokens[:, :-1], output_hidden_states=True).hidden_states[-1]
    torch.testing.assert_close(ours.hidden(tokens[:, :-1]), hidden, rtol=1e-4, atol=1e-4)
    positions = torch.arange(1, 8, device=DEVICE)[None]
    cache = transformers.cache_utils.MtpCache(config=main.config.get_mtp_config())
    expected = theirs.forward_layer(0, hidden, positions, cache, input_ids=tokens[:, 1:])
    found = ours.predict_further(hidden, tokens[:, 1:])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize("draft", [1, 2, 5])
@pytest.mark.parametrize(
    "options",
    [{}, {"page_size": 4}, {"page_size": 4, "prefix": [3, 4, 5, 6, 7]}, {"page_size": 4, "impl": "prefix"}],
    ids=["contiguous", "paged", "shared prefix", "impl prefix"],
)
def test_drafts_change_no_token(model, draft, options):
    plain = generate(model, PROMPTS, 40, **options)
    found = generate_drafted(model, PROMPTS, 40, draft=draft, **options)
    assert found.tokens == plain
    assert 0 < found.acceptance < 1 and len(found.accepted) == draft
    assert list(found.accepted) == sorted(found.accepted, reverse=True)
    assert sum(map(len, plain)) <= len(PROMPTS) + found.rounds + sum(found.accepted)
    assert found.steps < 40


def test_a_drafted_text_ends_where_the_plain_one_does(model):
    plain = generate(model, PROMPTS, 20)
    stop = {plain[0][4], plain[2][7]}
    assert generate_drafted(model, PROMPTS, 20, draft=3, stop=stop).tokens == generate(model, PROMPTS, 20, stop=stop)
    assert generate_drafted(model, PROMPTS, 1, draft=3).tokens == generate(model, PROMPTS, 1)


def test_files_with_and_without_the_layer_are_read(model, tmp_path):
    tokens = torch.tensor([[3, 1, 4]], device=DEVICE)
    repeated = {
        "model.layers.2.embed_tokens.weight": model.model.embed_tokens.weight.detach().clone(),
        "model.layers.2.shared_head.head.weight": model.lm_head.weight.detach().clone(),
    }
    second = {"model.layers.3.enorm.weight": torch.ones(48)}  # of which only the first is kept
    folder = saved(model, tmp_path, repeated | second, num_nextn_predict_layers=2)
    assert torch.equal(load(folder, device=DEVICE).predictor.eh_proj.weight, model.predictor.eh_proj.weight)
    state = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in state.items() if ".layers.2." not in k}, folder / "model.safetensors")
    plain = load(folder, device=DEVICE)
    torch.testing.assert_close(plain(tokens), model(tokens))
    with pytest.raises(ValueError, match="no layer that predicts further tokens"):
        generate_drafted(plain, PROMPTS, 4)
    save_file({k: v for k, v in state.items() if "layers.2.enorm" not in k}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"the files have no model\.layers\.2\.enorm\.weight, expected"):
        load(folder)


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
def test_a_cache_cut_back_goes_on_as_if_the_rest_had_never_been(paged):
    def make():
        return PagedCache(3, 12, 4, 2, page_size=4) if paged else LatentCache(3, 12, 4, 2)

    torch.manual_seed(0)
    c_kv, k_rope = torch.randn(3, 9, 4), torch.randn(3, 9, 2)
    cache, expected = make(), make()
    cache.append(c_kv, k_rope, lengths=torch.tensor([9, 7, 3]))
    cache.truncate(torch.tensor([5, 7, 0]))
    expected.append(c_kv, k_rope, lengths=torch.tensor([5, 7, 0]))
    more = torch.randn(3, 2, 4), torch.randn(3, 2, 2)
    for each in (cache, expected):
        each.append(*more)
    assert cache.seq_lens.tolist() == expected.seq_lens.tolist() == [7, 9, 2]
    for found, wanted in zip(cache.filled(), expected.filled(), strict=True):
        for b, length in enumerate([7, 9, 2]):
            assert torch.equal(found[b, :length], wanted[b, :length])
    with pytest.raises(ValueError, match=r"lengths\[1\] is 9, expected at most|lengths\[0\] is 8, expected at most 7"):
        cache.truncate(torch.tensor([8, 9, 2]))
    with pytest.raises(ValueError, match=r"lengths\[2\] is -1"):
        cache.truncate(torch.tensor([1, 1, -1]))
    assert cache.seq_lens.tolist() == [7, 9, 2]


def test_pages_cut_off_return_to_the_pool_unless_another_sequence_holds_them():
    cache = PagedCache(2, 12, 4, 2, page_size=4)
    cache.append(torch.randn(2, 10, 4), torch.randn(2, 10, 2), lengths=torch.tensor([10, 0]))
    cache.fork(0, 1)
    cache.truncate(torch.tensor([5, 10]))
    assert cache.used_pages == 3 and cache.block_table[0].tolist()[2:] == [-1]
    kept = cache.c_kv[cache.block_table[1].long()].clone()
    cache.append(torch.randn(2, 1, 4), torch.randn(2, 1, 2), lengths=torch.tensor([1, 0]))
    assert torch.equal(cache.c_kv[cache.block_table[1].long()], kept)
    cache.truncate(torch.tensor([0, 4]))
    assert cache.used_pages == 1
