import math

import pytest
import torch

from mla_ref import (
    DEVICES,
    Cost,
    MLAConfig,
    absorb_projection_cost,
    attention_cost,
    break_even_batch,
    cache_bytes_per_token,
    combine_cost,
    expansion_cost,
    kv_cache_elements,
    operand_cost,
    prefix_footprint,
    tokens_that_fit,
)

V3 = MLAConfig.preset("deepseek_v3")
KIMI = MLAConfig.preset("kimi_k2")
H100 = DEVICES["h100"]


@pytest.mark.parametrize(
    ("kind", "macs", "words"),
    [
        ("naive", lambda B, Ls, Ln: 40 * B * (Ls + Ln), lambda B, Ls, Ln: 40 * (Ls + B * Ln)),
        ("absorb", lambda B, Ls, Ln: 136 * B * (Ls + Ln), lambda B, Ls, Ln: 0.5625 * (Ls + B * Ln)),
        ("mixed", lambda B, Ls, Ln: B * (40 * Ls + 136 * Ln), lambda B, Ls, Ln: 40 * Ls + 0.5625 * B * Ln),
    ],
)
@pytest.mark.parametrize(("B", "Ls", "Ln"), [(1, 0, 1), (64, 26472, 256), (1024, 4759, 0), (3, 0, 0)])
def test_table_1_of_typhoonmla(kind, macs, words, B, Ls, Ln):
    cost = attention_cost(kind, V3, batch=B, context=Ls + Ln, shared_prefix=Ls)
    assert cost.flops / 2 == 1024 * macs(B, Ls, Ln)
    assert cost.bytes / 2 == 1024 * words(B, Ls, Ln)
    twice = attention_cost(kind, V3, batch=B, context=Ls + Ln, shared_prefix=Ls, q_len=2, dtype_bytes=1)
    assert (twice.flops, twice.bytes) == (2 * cost.flops, cost.bytes / 2)


@pytest.mark.parametrize(
    ("device", "measured", "batch"),
    [("ascend_910b", False, 61), ("h100", False, 87), ("h100", True, 72)],
)
def test_equation_1_of_typhoonmla(device, measured, batch):
    assert round(break_even_batch(V3, DEVICES[device], measured=measured)) == batch
    assert break_even_batch(V3, DEVICES[device], q_len=2, measured=measured) == pytest.approx(batch / 2, abs=0.3)


@pytest.mark.parametrize("config", [V3, KIMI], ids=["deepseek_v3", "kimi_k2"])
def test_break_even_is_where_the_two_times_cross(config):
    batch = break_even_batch(config, H100)
    for count, faster, slower in [(math.floor(batch), "absorb", "mixed"), (math.ceil(batch), "mixed", "absorb")]:
        times = {
            kind: attention_cost(kind, config, batch=count, context=10000, shared_prefix=10000).time(H100)
            for kind in (faster, slower)
        }
        assert times[faster] < times[slower]


def test_cache_of_each_attention():
    assert kv_cache_elements("mha", V3) == 2 * 128 * 128
    assert kv_cache_elements("gqa", V3, num_kv_heads=8) == 2 * 8 * 128
    assert kv_cache_elements("mqa", V3) == 2 * 128
    assert kv_cache_elements("naive", V3) == 40 * 1024
    assert kv_cache_elements("absorb", V3) == 576
    assert cache_bytes_per_token("absorb", V3, layers=61) == 61 * 576 * 2
    assert tokens_that_fit("absorb", V3, 61 * 576 * 2 * 10 + 1, layers=61) == 10


def test_sevenfold_compression_is_that_of_sixteen_heads():
    lite = MLAConfig.preset("deepseek_v2_lite")
    assert kv_cache_elements("mha", lite) / kv_cache_elements("absorb", lite) == pytest.approx(7.1, abs=0.05)
    assert kv_cache_elements("mha", V3) / kv_cache_elements("absorb", V3) == pytest.approx(56.9, abs=0.05)


@pytest.mark.parametrize(
    ("heads", "batch", "context", "microseconds", "gigabytes", "teraflops"),
    [(16, 128, 4096, 231.6, 2608, None), (16, 16, 8192, 72.7, 2077, None), (128, 128, 4096, 265.1, 2279, 551)],
)
def test_counts_give_the_rates_published_with_measured_times(heads, batch, context, microseconds, gigabytes, teraflops):
    config = MLAConfig.preset("report") if heads == 16 else V3
    cost = attention_cost("absorb", config, batch=batch, context=context)
    seconds = microseconds * 1e-6
    assert cost.bytes / seconds / 1e9 == pytest.approx(gigabytes, rel=1e-3)
    if teraflops:
        assert cost.flops / seconds / 1e12 == pytest.approx(teraflops, rel=1e-3)
    assert cost.time(H100, measured=True) < seconds


def test_absorbing_reads_sixteen_mebibytes_per_product():
    weights = absorb_projection_cost(V3, batch=0)
    assert weights.bytes == 2 * 16 * 2**20
    per_token = absorb_projection_cost(V3, batch=3, q_len=2)
    assert per_token.flops == 2 * 6 * 128 * 512 * (128 + 128)
    assert per_token.bytes - weights.bytes == 2 * 6 * 128 * (128 + 512 + 512 + 128)


def test_side_costs():
    assert combine_cost(V3, batch=2).flops == 2 * (2 * 2 * 128 * 128)
    assert combine_cost(V3, batch=2).bytes == 3 * 2 * 128 * 128 * 2
    assert expansion_cost(V3, tokens=10).flops == 2 * 10 * 128 * 256 * 512
    assert operand_cost("absorb", V3, batch=1).bytes == 128 * ((576 + 512) * 2 + 4)
    assert operand_cost("naive", V3, batch=1, q_len=3, lse=False).bytes == 3 * 128 * (192 + 128) * 2


def test_costs_add_and_repeat():
    cost = Cost(bytes=10, flops=30)
    assert cost + Cost(1, 2) == Cost(11, 32)
    assert 61 * cost == cost * 61 == Cost(610, 1830)
    assert sum([cost, cost], Cost()) == 2 * cost
    assert cost.intensity == 3
    assert Cost(flops=1).intensity == math.inf


def test_time_is_the_slower_of_two_pipes():
    assert H100.ridge() == pytest.approx(295, abs=0.5)
    light, heavy = Cost(3.35e12, 3.35e12 * 200), Cost(3.35e12, 3.35e12 * 400)
    assert light.time(H100) == pytest.approx(1)
    assert light.bound(H100) == "memory"
    assert heavy.time(H100) == pytest.approx(400 * 3.35 / 989)
    assert heavy.bound(H100, torch.bfloat16) == "compute"
    assert light.time(H100, measured=True) == pytest.approx(3.35 / 3.019)
    assert H100.attainable(1) == 3.35e12
    assert H100.attainable(1e4, "bfloat16") == 989e12


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_cost("flash", V3, batch=1, context=1), "kind is 'flash', expected one of naive"),
        (lambda: attention_cost("mixed", V3, batch=1, context=5, shared_prefix=6), "shared_prefix is 6, expected 0 to"),
        (lambda: kv_cache_elements("gqa", V3), "num_kv_heads is None for kind 'gqa'"),
        (lambda: kv_cache_elements("mha", V3, num_kv_heads=2), "num_kv_heads is 2 for kind 'mha'"),
        (lambda: kv_cache_elements("mla", V3), "kind is 'mla', expected one of gqa, mha"),
        (lambda: operand_cost("mixed", V3, batch=1), "kind is 'mixed'"),
        (lambda: attention_cost("absorb", V3, batch=-3, context=1), "batch is -3, expected at least 0"),
        (lambda: operand_cost("absorb", V3, batch=1, q_len=-1), "q_len is -1, expected at least 0"),
        (lambda: expansion_cost(V3, tokens=-1), "tokens is -1, expected at least 0"),
    ],
)
def test_errors_list_what_would_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_footprint_of_a_shared_prefix_is_counted_by_hand():
    config = MLAConfig.preset("deepseek_v3")
    found = prefix_footprint(
        config, batch=4, context=100, shared_prefix=60, layers=3, weight_bytes=1e6, replicas=2, dtype_bytes=2
    )
    assert found.weights == 1e6
    assert found.latent == 2 * 3 * 576 * (2 * 60 + 4 * 40)
    assert found.expanded == 2 * 3 * 128 * 320 * 2 * 60
    assert found.overhead == pytest.approx(found.expanded / (found.weights + found.latent))
    with pytest.raises(ValueError, match="shared_prefix is 101, expected 0 to context = 100"):
        prefix_footprint(config, batch=4, context=100, shared_prefix=101, layers=3, weight_bytes=0)
