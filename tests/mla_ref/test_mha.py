import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from mla_ref import MHA

HEADS = pytest.mark.parametrize(("heads", "kv_heads"), [(6, 6), (6, 2), (6, 1)], ids=["mha", "gqa", "mqa"])


@HEADS
def test_matches_transformers_llama(heads, kv_heads):
    config = LlamaConfig(
        hidden_size=42,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=10,
        attn_implementation="sdpa",
        rope_theta=5000.0,
    )
    hf = LlamaAttention(config, 0).eval()
    mha = MHA(42, heads, kv_heads, head_dim=10, rope_theta=5000.0, rope_interleave=False)
    mha.load_state_dict(hf.state_dict())
    x = torch.randn(2, 13, 42)
    tables = LlamaRotaryEmbedding(config)(x, torch.arange(13)[None])
    with torch.no_grad():
        expected, _ = hf(x, tables, None)
        torch.testing.assert_close(mha(x), expected, rtol=1e-5, atol=1e-6)


@HEADS
@pytest.mark.parametrize("theta", [None, 10000.0], ids=["no positions", "rope"])
@torch.no_grad()
def test_decoding_token_by_token_is_prefill(heads, kv_heads, theta):
    mha = MHA(48, heads, kv_heads, rope_theta=theta, dtype=torch.float64)
    x = torch.randn(2, 9, 48, dtype=torch.float64)
    cache = mha.make_cache(batch=2, capacity=9)
    steps = [mha(x[:, start:end], cache) for start, end in [(0, 4), (4, 5), (5, 6), (6, 6), (6, 9)]]
    torch.testing.assert_close(torch.cat(steps, 1), mha(x), rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_ragged_batches_are_their_sequences_alone():
    mha = MHA(48, 4, 2, rope_theta=10000.0, dtype=torch.float64)
    x = torch.randn(3, 6, 48, dtype=torch.float64)
    lengths = [4, 0, 2]
    cache = mha.make_cache(batch=3, capacity=8)
    prompt = mha(x[:, :5], cache, lengths=torch.tensor(lengths))
    token = mha(x[:, 5:], cache)
    without_cache = mha(x[:, :5], lengths=torch.tensor(lengths))
    torch.testing.assert_close(without_cache, prompt, rtol=1e-12, atol=1e-12)
    for b, length in enumerate(lengths):
        alone = mha(torch.cat([x[b : b + 1, :length], x[b : b + 1, 5:]], 1))[0]
        torch.testing.assert_close(prompt[b, :length], alone[:-1], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(token[b], alone[-1:], rtol=1e-12, atol=1e-12)
        assert prompt[b, length:].eq(0).all()


def test_cache_holds_key_heads_only():
    assert MHA(48, 6, 2).make_cache(1, 10).nbytes == 10 * 2 * 2 * 8 * 4


def test_gradients_flow_to_every_weight():
    mha = MHA(48, 6, 2, rope_theta=10000.0)
    mha(torch.randn(1, 3, 48)).sum().backward()
    assert all(weight.grad.abs().sum() > 0 for weight in mha.parameters())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 5}, "hidden_size 48 is no multiple of num_heads 5"),
        ({"num_heads": 6, "num_kv_heads": 4}, "num_heads is 6, expected a multiple of num_kv_heads = 4"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        MHA(48, **arguments)


def test_input_width_is_checked():
    with pytest.raises(ValueError, match=r"x has shape \[1, 3, 47\], expected \[B, S, D\] with D = 48"):
        MHA(48, 6)(torch.randn(1, 3, 47))
