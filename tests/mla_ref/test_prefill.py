"""Ragged attention and the packing of FP8 keys and values, against PyTorch's own functions and float64."""

import math

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings

import mla_ref
from mla_ref import combine, pack_kv, quantize_latent, ragged_attention, to_float8
from mla_ref.hardware import emulator

kernels = pytest.importorskip("mla_ref.kernels", reason="kernels need Triton")
DEVICE = "cpu" if emulator.active() else "cuda"
FP8 = torch.float8_e4m3fn
FORMS = {"twin": ragged_attention, "kernel": kernels.ragged_attention}
PACKING = {"twin": pack_kv, "kernel": kernels.pack_kv}
both_forms = pytest.mark.parametrize("attend", FORMS.values(), ids=FORMS)
# Relative, of the whole result: weights are rounded to the dtype of the values before they meet them, and the result.
BOUND = {torch.float64: 1e-13, torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3, FP8: 3e-2}


def offsets(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths], dtype=dtype, device=DEVICE).cumsum(0, dtype=dtype)


def drawn(lengths_q, lengths_kv, H=2, D=24, Dv=16, dtype=torch.float32):
    """q, k, v and both offsets; k and v are slices of one buffer."""
    torch.manual_seed(0)
    q = torch.randn(sum(lengths_q), H, D, device=DEVICE).to(dtype)
    kv = torch.randn(sum(lengths_kv), H, D + Dv, device=DEVICE).to(dtype)
    return q, kv[..., :D], kv[..., D:], offsets(lengths_q), offsets(lengths_kv)


def by_pytorch(q, k, v, cu_q, cu_kv, causal=True, bottom_right=True, scale=None):
    """The same by PyTorch's own attention in float64, a sequence at a time, with a mask written out; and the LSE."""
    outs, lses = [], []
    scale = q.shape[2] ** -0.5 if scale is None else scale
    for b in range(len(cu_q) - 1):
        rows, tokens = slice(cu_q[b], cu_q[b + 1]), slice(cu_kv[b], cu_kv[b + 1])
        q_b, k_b, v_b = (x.double().transpose(0, 1) for x in (q[rows], k[tokens], v[tokens]))
        S, T = q_b.shape[1], k_b.shape[1]
        position = torch.arange(S, device=DEVICE)[:, None] + (T - S if bottom_right else 0)
        mask = torch.arange(T, device=DEVICE)[None] <= (position if causal else T)
        scores = (q_b @ k_b.mT * scale).masked_fill(~mask, -math.inf)
        lse = scores.logsumexp(-1)
        out = F.scaled_dot_product_attention(q_b, k_b, v_b, attn_mask=mask, scale=scale)
        outs.append(out.masked_fill(lse[..., None] == -math.inf, 0).transpose(0, 1))
        lses.append(lse.transpose(0, 1))
    return torch.cat(outs), torch.cat(lses)


def check(found, expected, dtype):
    (out, lse), (exact, exact_lse) = found, expected
    assert out.dtype == (torch.bfloat16 if dtype == FP8 else dtype)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(lse == -math.inf, exact_lse == -math.inf)
    assert not out[exact_lse == -math.inf].any()
    assert (out.double() - exact).norm() <= BOUND[dtype] * exact.norm()
    close = 1e-3 if dtype == FP8 and lse.is_cuda else 1e-5  # Hopper adds products of FP8 up with 14 bits
    torch.testing.assert_close(lse.double(), exact_lse, atol=close, rtol=close)


LENGTHS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 40)), min_size=1, max_size=5)


def test_any_lengths_give_what_pytorch_gives():
    @settings(max_examples=60, deadline=None)
    @given(LENGTHS, st.booleans(), st.booleans())
    def run(lengths, causal, bottom_right):
        operands = drawn(*zip(*lengths, strict=True), dtype=torch.float64)
        options = {"causal": causal, "bottom_right": bottom_right}
        check(ragged_attention(*operands, **options), by_pytorch(*operands, **options), torch.float64)

    run()


def test_the_kernel_gives_the_same_for_any_lengths():
    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(LENGTHS, st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
    def run(lengths, causal, bottom_right, dtype):
        operands = drawn(*zip(*lengths, strict=True), dtype=dtype)
        options = {"causal": causal, "bottom_right": bottom_right}
        check(kernels.ragged_attention(*operands, **options), by_pytorch(*operands, **options), dtype)

    run()


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, FP8])
@pytest.mark.parametrize("causal", [True, False])
def test_deepseeks_widths_over_several_blocks(attend, dtype, causal):
    operands = drawn([130, 1, 0, 70], [200, 65, 3, 20], D=192, Dv=128, dtype=dtype)
    check(attend(*operands, causal=causal), by_pytorch(*operands, causal=causal), dtype)


@both_forms
@pytest.mark.parametrize("widths", [(16, 16), (8, 10), (40, 33), (64, 128), (200, 24)])
def test_other_widths(attend, widths):
    operands = drawn([3, 66], [5, 70], D=widths[0], Dv=widths[1])
    check(attend(*operands), by_pytorch(*operands), torch.float32)


@both_forms
def test_a_scale_and_the_factors_of_fp8(attend):
    operands = drawn([5, 9], [7, 9], dtype=torch.float32)
    out, lse = attend(*operands, scale=0.1, q_scale=2.0, k_scale=0.5, v_scale=3.0)
    exact, exact_lse = by_pytorch(*operands, scale=0.1)
    check((out, lse), (3 * exact, exact_lse), torch.float32)


@both_forms
def test_a_sequence_sees_nothing_of_its_neighbours(attend):
    q, k, v, cu_q, cu_kv = drawn([9, 17, 5], [30, 17, 40])
    expected = by_pytorch(q, k, v, cu_q, cu_kv)
    for x, cu in ((q, cu_q), (k, cu_kv), (v, cu_kv)):
        x[: cu[1]] = x[cu[2] :] = math.nan
    found = [x[cu_q[1] : cu_q[2]] for x in attend(q, k, v, cu_q, cu_kv)]
    check(found, [x[cu_q[1] : cu_q[2]] for x in expected], torch.float32)


@both_forms
def test_large_scores_neither_overflow_nor_lose_the_sum(attend):
    q, k, v, cu_q, cu_kv = drawn([20], [20])
    found = attend(1000 * q, k, v, cu_q, cu_kv)
    check(found, by_pytorch(1000 * q, k, v, cu_q, cu_kv), torch.float32)


@both_forms
def test_a_prompt_in_chunks_is_merged_by_the_lses(attend):
    lengths, first = [12, 7], [20, 3]
    q, k, v, cu_q, cu_kv = drawn(lengths, [a + b for a, b in zip(first, lengths, strict=True)])
    early = torch.cat([torch.arange(cu_kv[b], cu_kv[b] + first[b]) for b in range(2)]).to(DEVICE)
    late = torch.cat([torch.arange(cu_kv[b] + first[b], cu_kv[b + 1]) for b in range(2)]).to(DEVICE)
    parts = [
        attend(q, k[early], v[early], cu_q, offsets(first), causal=False),
        attend(q, k[late], v[late], cu_q, offsets(lengths)),
    ]
    out, lse = combine(*([part[i][None] for part in parts] for i in range(2)))
    check((out[0], lse[0]), by_pytorch(q, k, v, cu_q, cu_kv), torch.float32)


def test_the_kernel_writes_where_it_is_told():
    operands = drawn([5, 0, 8], [6, 2, 8])
    out = torch.full((2, 13, 16), math.nan, device=DEVICE).transpose(0, 1)
    lse = torch.full((2, 13), math.nan, device=DEVICE).T
    found = kernels.ragged_attention(*operands, out=out, lse=lse)
    assert found[0] is out and found[1] is lse
    check(found, by_pytorch(*operands), torch.float32)


@both_forms
def test_heads_may_lie_outside_of_tokens(attend):
    q, k, v, *cu = drawn([70], [70], D=192, Dv=128, dtype=torch.bfloat16)
    apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in (q, k, v)]
    check(attend(*apart, *cu), by_pytorch(q, k, v, *cu), torch.bfloat16)


@both_forms
def test_a_batch_of_nothing(attend):
    out, lse = attend(*drawn([], []))
    assert out.shape == (0, 2, 16) and lse.shape == (0, 2)
    out, lse = attend(*drawn([2], [0]))
    assert not out.any() and (lse == -math.inf).all()


@both_forms
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"cu_seqlens_q": [0, 3]}, ValueError, "goes from 0 to 3, expected 0 to 5"),
        ({"cu_seqlens_q": [1, 5]}, ValueError, "goes from 1 to 5, expected 0 to 5"),
        ({"cu_seqlens_q": [0, 6, 5], "cu_seqlens_kv": [0, 1, 7]}, ValueError, r"\[2\] is 5 after 6"),
        ({"cu_seqlens_q": [0, 2, 5]}, ValueError, r"cu_seqlens_kv has shape \[2\], expected \[ends\] with ends = 3"),
        ({"cu_seqlens_kv": [0.0, 7.0]}, TypeError, "expected an int32 or int64 tensor"),
        ({"cu_seqlens_q": [], "cu_seqlens_kv": []}, (TypeError, ValueError), "expected"),
        ({"k": torch.zeros(7, 3, 24)}, ValueError, r"k has shape \[7, 3, 24\], expected \[Nkv, H, D\] with H = 2"),
        ({"v": torch.zeros(6, 2, 16)}, ValueError, "Nkv = 7"),
        ({"k": torch.zeros(7, 2, 24).half()}, TypeError, "expected torch.float32 as q has"),
        ({"v_scale": "1"}, TypeError, "v_scale is '1', expected a number"),
    ],
)
def test_what_does_not_fit_together_is_named(attend, change, error, words):
    operands = dict(zip(("q", "k", "v", "cu_seqlens_q", "cu_seqlens_kv"), drawn([5], [7]), strict=True))
    for name, value in change.items():
        value = torch.tensor(value) if isinstance(value, list) else value
        operands[name] = value.to(DEVICE) if torch.is_tensor(value) else value
    if DEVICE == "cuda" and attend is kernels.ragged_attention and ("goes from" in words or "after" in words):
        pytest.skip("on a GPU the kernel does not read the offsets")
    with pytest.raises(error, match=words):
        attend(**operands)


# Packing


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [(5, 2, 16, 8, 16), (3, 17, 128, 64, 128), (1, 128, 12, 10, 20), (0, 4, 8, 8, 8)])
def test_packing_is_cat_and_casts_to_the_last_bit(size, dtype):
    N, H, Dn, Dr, Dv = size
    torch.manual_seed(0)
    kv = 30 * torch.randn(N, H, Dn + Dv, device=DEVICE).to(dtype)
    rope = 30 * torch.randn(N, 2 * Dr, device=DEVICE).to(dtype)[:, ::2]
    expected = torch.cat((kv[..., :Dn], rope[:, None].expand(N, H, Dr)), -1).to(FP8), kv[..., Dn:].to(FP8)
    for pack in PACKING.values():
        k, v = pack(kv[..., :Dn], rope, kv[..., Dn:])
        assert k.dtype == v.dtype == FP8
        assert torch.equal(k.view(torch.uint8), expected[0].view(torch.uint8))
        assert torch.equal(v.view(torch.uint8), expected[1].view(torch.uint8))


def test_both_forms_of_packing_agree_on_scales_and_on_what_fp8_does_not_hold():
    edges = [0.0, -0.0, 448.0, 464.0, 465.0, -1e30, math.inf, -math.inf, math.nan, 2**-9, 2**-10, 3 * 2**-11, 1e-30]
    x = torch.tensor(edges, device=DEVICE).view(1, 1, -1)
    random = torch.randn(64, 3, 13, device=DEVICE) * 10.0 ** torch.randint(-8, 8, (64, 3, 13), device=DEVICE)
    for k_scale, v_scale in ((1.0, 1.0), (0.037, 113.0)):
        for each in (x, random):
            rope = each[:, 0]
            found = [pack(each, rope, each, k_scale=k_scale, v_scale=v_scale) for pack in PACKING.values()]
            for ours, twin in zip(*reversed(found), strict=True):
                same = ours.view(torch.uint8) == twin.view(torch.uint8)
                assert (same | (ours.float().isnan() & twin.float().isnan())).all()
    k, _ = kernels.pack_kv(x, x[:, 0], x)
    assert k.float()[0, 0, :8].tolist() == [0, 0, 448, 448, 448, -448, 448, -448]
    assert k.float()[0, 0, 8].isnan()


def test_packing_writes_into_buffers_that_are_there():
    kv, rope = torch.randn(6, 3, 32, device=DEVICE), torch.randn(6, 8, device=DEVICE)
    buffer = torch.zeros(6, 3, 64, device=DEVICE).to(FP8)
    out = buffer[..., :24], buffer[..., 40:56]
    found = kernels.pack_kv(kv[..., :16], rope, kv[..., 16:], out=out)
    assert found[0] is out[0] and found[1] is out[1]
    for ours, twin in zip(out, pack_kv(kv[..., :16], rope, kv[..., 16:]), strict=True):
        assert torch.equal(ours.float(), twin.float())
    assert not buffer.float()[..., 24:40].any() and not buffer.float()[..., 56:].any()


@pytest.mark.parametrize("pack", PACKING.values(), ids=PACKING)
def test_packing_names_what_does_not_fit(pack):
    k_nope, k_rope, v = (torch.zeros(shape, device=DEVICE) for shape in ((4, 2, 16), (4, 8), (4, 2, 16)))
    with pytest.raises(ValueError, match=r"k_rope has shape \[4, 1, 8\], expected 2 dimensions"):
        pack(k_nope, k_rope[:, None], v)
    with pytest.raises(ValueError, match="v_scale is 0, expected a positive number"):
        pack(k_nope, k_rope, v, v_scale=0)
    with pytest.raises(TypeError, match="k_scale is None"):
        pack(k_nope, k_rope, v, k_scale=None)


def test_prefill_in_fp8_from_packed_keys_is_close_to_float64():
    torch.manual_seed(0)
    kv, rope = torch.randn(90, 2, 256, device=DEVICE), torch.randn(90, 64, device=DEVICE)
    q, cu = torch.randn(90, 2, 192, device=DEVICE), offsets([50, 40])
    k = torch.cat((kv[..., :128], rope[:, None].expand(-1, 2, -1)), -1)
    exact, _ = by_pytorch(q, k, kv[..., 128:], cu, cu)
    factors = {name: float(x.abs().max()) / 448 for name, x in (("q", q), ("k", k), ("v", kv[..., 128:]))}
    k8, v8 = kernels.pack_kv(kv[..., :128], rope, kv[..., 128:], k_scale=factors["k"], v_scale=factors["v"])
    q8 = to_float8(q, scale=factors["q"])
    named = {f"{name}_scale": factor for name, factor in factors.items()}
    out, _ = kernels.ragged_attention(q8, k8, v8, cu, cu, **named)
    assert (out.double() - exact).norm() <= 0.06 * exact.norm()


# Latents in FP8


@pytest.mark.parametrize("tile", [None, 16, 64])
def test_latents_come_back_within_a_sixteenth(tile):
    torch.manual_seed(0)
    c_kv = torch.randn(3, 5, 64, device=DEVICE) * 10.0 ** torch.randint(-6, 6, (3, 5, 1), device=DEVICE)
    c_kv[0, 0] = 0
    found = quantize_latent(c_kv, tile=tile)
    assert found.tile == (tile or 64)
    assert found.nbytes == 3 * 5 * (64 + 4 * 64 // found.tile)
    error = (found.dequantize() - c_kv).abs()
    step = found.scales.repeat_interleave(found.tile, -1) * 2**-10
    assert (error <= torch.maximum(c_kv.abs() / 16, step) * 1.00001).all()
    assert not found.dequantize()[0, 0].any()


def test_what_is_no_fp8_latent_is_refused():
    with pytest.raises(ValueError, match="tile is 24, expected a divisor of R = 64"):
        quantize_latent(torch.zeros(2, 64), tile=24)
    good = quantize_latent(torch.zeros(2, 64))
    with pytest.raises(TypeError, match=r"values has dtype torch.float32"):
        mla_ref.Float8Latent(torch.zeros(2, 64), good.scales)
    with pytest.raises(ValueError, match=r"expected \[..., R\] and \[..., R/tile\]"):
        mla_ref.Float8Latent(good.values, good.scales[:1])
