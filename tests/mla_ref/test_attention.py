import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from mla_ref import (
    IMPLEMENTATIONS,
    MHA,
    MLA,
    MLAConfig,
    absorb,
    attention_mask,
    combine,
    latent_attention,
    masked_softmax,
    naive,
    paged_latent_attention,
    sdpa,
)

FORMS = [naive, absorb]
KERNEL_FORMS = {"triton": IMPLEMENTATIONS["triton"]}
kernel_forms = pytest.mark.parametrize("form", KERNEL_FORMS.values(), ids=KERNEL_FORMS)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def mla_inputs(B=2, S=3, T=7, H=3, Dn=5, Dr=4, Dv=6, R=9, dtype=torch.float64):
    shapes = {
        "q_nope": (B, S, H, Dn),
        "q_rope": (B, S, H, Dr),
        "c_kv": (B, T, R),
        "k_rope": (B, T, Dr),
        "w_uk": (H, Dn, R),
        "w_uv": (H, Dv, R),
    }
    return {name: torch.randn(shape, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def mla_by_rows(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens, scale=None, causal=True):
    """MLA one query, head and position at a time, in float64."""
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv = (x.double() for x in (q_nope, q_rope, c_kv, k_rope, w_uk, w_uv))
    B, S, H, Dn = q_nope.shape
    scale = scale or 1 / math.sqrt(Dn + q_rope.shape[-1])
    out = torch.zeros(B, S, H, w_uv.shape[1], dtype=torch.float64)
    lse = torch.full((B, S, H), -math.inf, dtype=torch.float64)
    for b in range(B):
        length = int(seq_lens[b])
        for s in range(S):
            end = length - S + s + 1 if causal else length
            if end < 1:
                continue
            for h in range(H):
                keys = c_kv[b, :end] @ w_uk[h].T
                scores = scale * (keys @ q_nope[b, s, h] + k_rope[b, :end] @ q_rope[b, s, h])
                lse[b, s, h] = torch.logsumexp(scores, 0)
                out[b, s, h] = scores.softmax(0) @ (c_kv[b, :end] @ w_uv[h].T)
    return out, lse


@st.composite
def ragged_shapes(draw):
    B, S = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    T = draw(st.integers(S, 9))
    seq_lens = torch.tensor(draw(st.lists(st.integers(0, T), min_size=B, max_size=B)))
    width = st.integers(1, 6)
    return {"B": B, "S": S, "T": T, "H": draw(width), "Dn": draw(width), "Dv": draw(width), "R": draw(width)}, seq_lens


@given(ragged_shapes(), st.booleans())
def test_both_forms_match_the_definition(shapes, causal):
    sizes, seq_lens = shapes
    inputs = mla_inputs(**sizes)
    expected = mla_by_rows(**inputs, seq_lens=seq_lens, causal=causal)
    for form in FORMS:
        out, lse = form(**inputs, seq_lens=seq_lens, causal=causal)
        torch.testing.assert_close(out, expected[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(lse, expected[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("S", "T"), [(1, 1), (1, 63), (5, 5), (3, 65), (17, 130)])
def test_forms_agree_in_float64(S, T):
    inputs = mla_inputs(B=3, S=S, T=T, H=4, Dn=16, Dr=8, Dv=12, R=32)
    seq_lens = torch.tensor([T, S, max(T - 1, 0)], dtype=torch.int32)
    outs, lses = zip(*(form(**inputs, seq_lens=seq_lens) for form in FORMS), strict=True)
    torch.testing.assert_close(*outs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(*lses, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("form", FORMS)
def test_half_types_lose_one_rounding_only(form, dtype, bound):
    inputs = mla_inputs(S=4, T=67, Dn=32, Dr=16, Dv=32, R=64, dtype=dtype)
    inputs["w_uk"] /= 8
    inputs["w_uv"] /= 8
    exact, exact_lse = mla_by_rows(**inputs, seq_lens=[67, 67])
    out, lse = form(**inputs)
    assert out.dtype == dtype
    assert lse.dtype == torch.float32
    assert (out.double() - exact).norm() / exact.norm() < bound
    assert (lse - exact_lse).abs().max() < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_default_scale_is_that_of_the_query_width(form):
    inputs = mla_inputs(Dn=5, Dr=4, R=9)
    default, _ = form(**inputs)
    torch.testing.assert_close(default, form(**inputs, scale=1 / math.sqrt(5 + 4))[0])
    assert not torch.allclose(default, form(**inputs, scale=1 / math.sqrt(9 + 4))[0])


@pytest.mark.parametrize("form", FORMS)
def test_scale_zero_is_the_mean(form):
    inputs = mla_inputs(S=1)
    out, lse = form(**inputs, scale=0.0)
    mean = torch.einsum("btr,hvr->bthv", inputs["c_kv"], inputs["w_uv"]).mean(1, keepdim=True)
    torch.testing.assert_close(out, mean)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(7)))


def test_latent_core_is_absorb_without_its_projections():
    x = mla_inputs()
    q_latent = torch.einsum("bshd,hdr->bshr", x["q_nope"], x["w_uk"])
    latent, lse = latent_attention(q_latent, x["q_rope"], x["c_kv"], x["k_rope"], scale=1 / 3)
    out, expected_lse = naive(**x, scale=1 / 3)
    assert latent.shape == (2, 3, 3, 9)
    torch.testing.assert_close(torch.einsum("bshr,hvr->bshv", latent, x["w_uv"]), out)
    torch.testing.assert_close(lse, expected_lse)


def test_latent_core_does_not_guess_a_scale():
    x = mla_inputs()
    with pytest.raises(TypeError, match="scale"):
        latent_attention(torch.randn(2, 3, 3, 9).double(), x["q_rope"], x["c_kv"], x["k_rope"])


@pytest.mark.parametrize(("H", "G"), [(6, 6), (6, 2), (6, 1)], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize(("S", "T"), [(1, 1), (1, 9), (7, 7), (4, 65)])
@pytest.mark.parametrize("causal", [True, False])
def test_sdpa_matches_torch(H, G, S, T, causal):
    q = torch.randn(2, S, H, 5, dtype=torch.float64)
    k = torch.randn(2, T, G, 5, dtype=torch.float64)
    v = torch.randn(2, T, G, 8, dtype=torch.float64)
    mask = torch.ones(S, T, dtype=torch.bool).tril(T - S) if causal else None
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, enable_gqa=True
    ).transpose(1, 2)
    out, lse = sdpa(q, k, v, causal=causal)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    assert lse.shape == (2, S, H)
    assert lse.dtype == torch.float64


def test_shorter_sequences_are_cut_and_aligned_to_their_own_end():
    q, k, v = (torch.randn(2, n, 2, 4, dtype=torch.float64) for n in (2, 6, 6))
    out, lse = sdpa(q, k, v, seq_lens=torch.tensor([6, 4]))
    alone, alone_lse = sdpa(q[1:], k[1:, :4], v[1:, :4])
    torch.testing.assert_close(out[1:], alone)
    torch.testing.assert_close(lse[1:], alone_lse)


def test_queries_before_position_zero_are_empty_rows():
    q, k, v = (torch.randn(2, 3, 2, 4) for _ in range(3))
    out, lse = sdpa(q, k, v, seq_lens=torch.tensor([0, 1]))
    assert out[0].eq(0).all() and lse[0].eq(-math.inf).all()
    assert out[1, :2].eq(0).all() and lse[1, :2].eq(-math.inf).all()
    torch.testing.assert_close(out[1, 2], v[1, 0])


@pytest.mark.parametrize("form", FORMS)
def test_what_lies_beyond_a_sequence_is_never_used(form):
    inputs = mla_inputs(T=6)
    clean = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    dirty = {name: x.clone() for name, x in inputs.items()}
    for name in ("c_kv", "k_rope"):
        dirty[name][1, 4:] = math.nan
        dirty[name][0, 5:] = math.inf
    dirty = {name: x.requires_grad_() for name, x in dirty.items()}
    seq_lens = torch.tensor([5, 4])
    expected, expected_lse = form(**clean, seq_lens=seq_lens)
    out, lse = form(**dirty, seq_lens=seq_lens)
    torch.testing.assert_close(out, expected)
    assert lse.isfinite().all()
    (out.square().sum() + lse.sum()).backward()
    (expected.square().sum() + expected_lse.sum()).backward()
    for name in inputs:
        torch.testing.assert_close(dirty[name].grad, clean[name].grad, msg=lambda said, name=name: f"{name}: {said}")


@pytest.mark.parametrize("form", FORMS)
def test_large_scores_do_not_overflow(form):
    inputs = mla_inputs(dtype=torch.float32)
    inputs["q_rope"] *= 1e4
    out, lse = form(**inputs)
    expected, expected_lse = mla_by_rows(**inputs, seq_lens=[7, 7])
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-6, atol=1e-2)


@pytest.mark.parametrize("form", [sdpa, latent_attention, naive, absorb])
@pytest.mark.parametrize("top", [0.0, 351.0, 3509.0, 1e6])
def test_the_size_of_scores_costs_no_accuracy(form, top):
    one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    keys, values = top + torch.randn(1, 50, 1), torch.rand(1, 50, 1) + 1  # a score is exactly its key
    given = {
        sdpa: (one, keys[:, :, None], values[:, :, None]),
        latent_attention: (zero, one, values, keys),
        naive: (zero, one, values, keys, one[0], one[0]),
        absorb: (zero, one, values, keys, one[0], one[0]),
    }
    out, lse = form(*given[form], scale=1.0)
    scores = keys[0, :, 0].double()
    assert abs(float(out) / float(scores.softmax(0) @ values[0, :, 0].double()) - 1) < 5e-7
    assert abs(float(lse) - float(scores.logsumexp(0))) <= 1e-7 * (top + 8)


@pytest.mark.parametrize("top", [351.0, 3509.0, 1e6])
def test_weights_of_large_scores_sum_to_one(top):
    scores = top + torch.randn(1, 4, 3, 50)
    weights = masked_softmax(scores, causal=False)
    torch.testing.assert_close(weights.double(), scores.double().softmax(-1), rtol=2e-6, atol=0)
    assert (weights.double().sum(-1) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("form", FORMS)
def test_gradients_flow_to_every_input(form):
    inputs = mla_inputs(B=2, S=2, T=4, H=2, Dn=2, Dr=2, Dv=3, R=3)
    tensors = [x.requires_grad_() for x in inputs.values()]
    seq_lens = torch.tensor([4, 1])
    assert torch.autograd.gradcheck(lambda *x: form(*x, seq_lens=seq_lens)[0], tensors)


def test_implementations_share_one_signature():
    assert len({str(inspect.signature(form)) for form in IMPLEMENTATIONS.values()}) == 1


def in_pages(inputs, seq_lens, page_size):
    """The same context on pages in random order; NaN and pages that do not exist wherever no token is."""
    B, T, _ = inputs["c_kv"].shape
    max_pages = -(-T // page_size)
    order = torch.randperm(B * max_pages).view(B, max_pages)
    table = torch.full_like(order, 10**9)
    found = {**inputs, "block_table": table, "seq_lens": torch.tensor(seq_lens)}
    for name in ("c_kv", "k_rope"):
        found[name] = torch.full((B * max_pages, page_size, inputs[name].shape[-1]), math.nan, dtype=inputs[name].dtype)
        for b, length in enumerate(seq_lens):
            for t in range(length):
                table[b, t // page_size] = order[b, t // page_size]
                found[name][order[b, t // page_size], t % page_size] = inputs[name][b, t]
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_pages_are_a_context(form, page_size):
    inputs, seq_lens = mla_inputs(B=4, S=3, T=8), [8, 0, 5, 1]
    expected = form(**inputs, seq_lens=torch.tensor(seq_lens))
    torch.testing.assert_close(form(**in_pages(inputs, seq_lens, page_size)), expected, rtol=0, atol=0)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("page_size", [1, 3, 64])
def test_pages_are_a_context_of_latent_attention(page_size, causal):
    inputs, seq_lens = mla_inputs(B=4, S=3, T=8), [8, 0, 5, 1]
    names = ("q_latent", "q_rope", "c_kv", "k_rope")
    inputs["q_latent"] = torch.einsum("bshd,hdr->bshr", inputs["q_nope"], inputs["w_uk"])
    whole, paged = inputs, in_pages(inputs, seq_lens, page_size)
    options = {"scale": 0.3, "seq_lens": torch.tensor(seq_lens), "causal": causal}
    expected = latent_attention(*(whole[name] for name in names), **options)
    found = paged_latent_attention(*(paged[name] for name in names), paged["block_table"], **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(TypeError, match=r"seq_lens is None, expected .*: a block table has no length"):
        paged_latent_attention(*(paged[name] for name in names), paged["block_table"], scale=1.0, seq_lens=None)


@pytest.mark.parametrize("page_size", [None, 1, 3, 64])
@pytest.mark.parametrize(
    ("dtype", "sizes", "bound"),
    [
        (torch.float32, {"S": 3, "T": 67, "H": 3, "Dn": 5, "Dr": 6, "Dv": 7, "R": 13}, 1e-6),
        (torch.float16, {"S": 5, "T": 131, "H": 4, "Dn": 16, "Dr": 16, "Dv": 16, "R": 32}, 3e-3),
        (torch.bfloat16, {"S": 1, "T": 129, "H": 1, "Dn": 16, "Dr": 16, "Dv": 16, "R": 32}, 2e-2),
    ],
    ids=str,
)
@pytest.mark.parametrize("causal", [True, False])
@kernel_forms
def test_kernels_match_the_definition(form, page_size, dtype, sizes, bound, causal):
    pytest.importorskip("triton", reason="kernels need Triton")
    inputs = mla_inputs(B=3, dtype=dtype, **sizes)
    seq_lens = [sizes["T"], 0, 65]
    exact, exact_lse = mla_by_rows(**inputs, seq_lens=seq_lens, scale=0.21, causal=causal)
    given = (
        {**inputs, "seq_lens": torch.tensor(seq_lens)} if page_size is None else in_pages(inputs, seq_lens, page_size)
    )
    given = {name: x.to(DEVICE) for name, x in given.items()}
    out, lse = form(**given, scale=0.21, causal=causal)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert (out.double().cpu() - exact).norm() <= bound * exact.norm()
    torch.testing.assert_close(lse.double().cpu(), exact_lse, rtol=bound, atol=bound)


@kernel_forms
def test_kernels_have_the_same_default_scale(form):
    pytest.importorskip("triton", reason="kernels need Triton")
    inputs = {name: x.to(DEVICE) for name, x in mla_inputs(dtype=torch.float32).items()}
    torch.testing.assert_close(form(**inputs)[0], absorb(**inputs)[0], rtol=1e-4, atol=1e-5)


@kernel_forms
def test_kernels_have_no_backward_pass(form):
    pytest.importorskip("triton", reason="kernels need Triton")
    inputs = {name: x.to(DEVICE).requires_grad_() for name, x in mla_inputs(dtype=torch.float32).items()}
    with pytest.raises(RuntimeError, match=r"requires a gradient.*torch\.no_grad"):
        form(**inputs)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("page_size", [None, 1, 64])
@kernel_forms
def test_kernels_do_not_wait_for_the_device(form, page_size):
    inputs = mla_inputs(B=2, S=1, T=65, H=4, Dn=16, Dr=16, Dv=16, R=32, dtype=torch.float16)
    given = {**inputs, "seq_lens": torch.tensor([65, 3])} if page_size is None else in_pages(inputs, [65, 3], page_size)
    given = {name: x.to(DEVICE) for name, x in given.items()}
    expected = form(**given)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = form(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("form", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"seq_lens": None}, TypeError, "seq_lens is None, expected .*: a block table has no length"),
        ({"block_table": torch.zeros(3, 3, dtype=torch.int32)}, ValueError, "block_table has shape .* with B = 2"),
        ({"block_table": torch.zeros(2, 3)}, TypeError, "block_table has dtype torch.float32"),
        ({"c_kv": torch.zeros(6, 2, 9)}, ValueError, "k_rope has shape .* with page_size = 2 from c_kv"),
    ],
)
def test_errors_name_what_is_wrong_with_pages(form, change, error, message):
    pytest.importorskip("triton", reason="kernels need Triton")
    given = {**in_pages(mla_inputs(dtype=torch.float32), [7, 4], 3), **change}
    given = {name: x if x is None else x.to(DEVICE) for name, x in given.items()}
    with pytest.raises(error, match=message):
        form(**given)


@pytest.mark.parametrize("hole", [-1, 6, 10**9])
def test_a_hole_within_a_length_is_refused(hole):
    given = in_pages(mla_inputs(), [7, 4], 3)
    beyond = given["block_table"].clone()
    beyond[1, 2] = hole  # 4 tokens need two pages
    within = beyond.clone()
    within[1, 1] = hole
    x = {name: each for name, each in given.items() if name != "block_table"}
    latent = (torch.zeros(2, 3, 3, 9).double(), x["q_rope"], x["c_kv"], x["k_rope"])
    calls = [lambda table, form=form: form(**x, block_table=table) for form in FORMS]
    calls.append(lambda table: paged_latent_attention(*latent, table, scale=1.0, seq_lens=x["seq_lens"]))
    for call in calls:
        call(beyond)
        with pytest.raises(
            ValueError, match=rf"block_table\[1, 1\] is {hole}, expected 0 <= page < 6: positions 3 to 3"
        ):
            call(within)


def test_a_length_that_no_table_holds_is_refused():
    given = in_pages(mla_inputs(), [7, 4], 3)
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is 10, expected 0 <= seq_lens <= 9"):
        absorb(**{**given, "seq_lens": torch.tensor([10, 4])})


@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(1, 3), st.booleans())
def test_combining_parts_is_attention_over_the_whole(parts, S, stacked):
    T = sum(parts)
    q, k, v = (torch.randn(2, n, 4, 3, dtype=torch.float64) for n in (S, T, T))
    seq_lens = torch.tensor([T, T // 2])
    outs, lses = [], []
    for end, size in zip(torch.tensor(parts).cumsum(0).tolist(), parts, strict=True):
        start = end - size
        part_lens = (seq_lens - start).clamp(0, size)
        out, lse = sdpa(q, k[:, start:end], v[:, start:end], seq_lens=part_lens, causal=False)
        outs.append(out)
        lses.append(lse)
    if stacked:
        outs, lses = torch.stack(outs), torch.stack(lses)
    out, lse = combine(outs, lses)
    expected, expected_lse = sdpa(q, k, v, seq_lens=seq_lens, causal=False)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)


def test_a_shared_prefix_in_naive_form_combines_with_an_absorbed_rest():
    x = mla_inputs(B=3, S=2, T=11)
    x["c_kv"][:, :6] = x["c_kv"][:1, :6]
    x["k_rope"][:, :6] = x["k_rope"][:1, :6]
    prefix = {**x, "c_kv": x["c_kv"][:, :6], "k_rope": x["k_rope"][:, :6]}
    rest = {**x, "c_kv": x["c_kv"][:, 6:], "k_rope": x["k_rope"][:, 6:]}
    parts = naive(**prefix, causal=False), absorb(**rest)
    out, lse = combine(*zip(*parts, strict=True))
    expected, expected_lse = absorb(**x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(lse, expected_lse)


def test_combine_keeps_dtypes_and_ignores_what_empty_rows_hold():
    outs = torch.randn(2, 1, 1, 2, 4).bfloat16()
    lses = torch.tensor([[[[0.0, -math.inf]]], [[[-math.inf, -math.inf]]]])
    outs[1] = math.nan
    outs[0, 0, 0, 1] = math.inf
    out, lse = combine(outs, lses)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(out[0, 0, 0], outs[0, 0, 0, 0])
    assert out[0, 0, 1].eq(0).all()
    assert lse.tolist() == [[[0.0, -math.inf]]]


@pytest.mark.parametrize("lse", [-1e8, 351.0, 3509.0, 1e8])
def test_equal_parts_combine_to_their_mean(lse):
    outs = torch.tensor([1.0, 3.0, 5.0]).view(3, 1, 1, 1, 1)
    out, total = combine(outs, torch.full((3, 1, 1, 1), lse))
    assert abs(float(out) - 3) < 1e-6
    assert abs(float(total) - (lse + math.log(3))) <= 1e-7 * abs(lse)


def test_gradients_of_rows_without_parts_are_zero():
    outs = torch.randn(2, 1, 1, 3, 4, dtype=torch.float64)
    outs[1, 0, 0, 1:] = outs[0, 0, 0, 2] = math.nan
    outs = outs.requires_grad_()
    lses = torch.tensor([[[[0.5, 2.0, -math.inf]]], [[[1.5, -math.inf, -math.inf]]]], dtype=torch.float64)
    lses = lses.requires_grad_()
    out, lse = combine(outs, lses)
    (out.sum() + lse.masked_fill(lse == -math.inf, 0).sum()).backward()
    share = torch.tensor([0.5, 1.5], dtype=torch.float64).softmax(0)
    assert outs.grad[0, 0, 0, 1:].tolist() == [[1.0] * 4, [0.0] * 4] and not outs.grad[1, 0, 0, 1:].any()
    torch.testing.assert_close(outs.grad[:, 0, 0, 0], share[:, None].expand(2, 4))
    total, part = out[0, 0, 0].sum(), outs[:, 0, 0, 0].sum(-1)
    torch.testing.assert_close(lses.grad[:, 0, 0, 0], share * (part - total) + share)
    assert lses.grad[:, 0, 0, 1:].tolist() == [[1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("outs", "lses", "error", "message"),
    [
        ([], [], ValueError, "0 outs and 0 lses"),
        ([(1, 1, 1, 2)], [], ValueError, "1 outs and 0 lses"),
        ([(1, 1, 1, 2), (1, 1, 1, 3)], [(1, 1, 1)] * 2, ValueError, r"outs\[1\] has shape"),
        ([(1, 1, 1, 2)], [(1, 1, 2)], ValueError, r"lses\[0\] has shape"),
    ],
)
def test_combine_refuses_parts_that_do_not_fit(outs, lses, error, message):
    with pytest.raises(error, match=message):
        combine([torch.zeros(s) for s in outs], [torch.zeros(s) for s in lses])


def test_combine_refuses_foreign_lse_conventions():
    out = torch.zeros(1, 1, 1, 2)
    with pytest.raises(ValueError, match=r"lses holds \+inf"):
        combine([out], [torch.full((1, 1, 1), math.inf)])
    with pytest.raises(TypeError, match=r"lses.*bfloat16, expected float32"):
        combine([out], [torch.zeros(1, 1, 1).bfloat16()])


def test_mask_is_aligned_to_the_end():
    mask = attention_mask(2, 4, seq_lens=torch.tensor([4, 1]))
    assert mask.int().tolist() == [[[1, 1, 1, 0], [1, 1, 1, 1]], [[0, 0, 0, 0], [1, 0, 0, 0]]]
    assert attention_mask(2, 3, causal=False).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"c_kv": (2, 7, 8)}, ValueError, r"w_uk has shape \[3, 5, 9\], expected \[H, Dn, R\] with R = 8 from c_kv"),
        ({"k_rope": (2, 6, 4)}, ValueError, "k_rope has shape .* with T = 7 from c_kv"),
        ({"w_uv": (2, 6, 9)}, ValueError, "w_uv has shape .* with H = 3 from q_nope"),
        ({"q_rope": (2, 3, 4)}, ValueError, r"q_rope has shape \[2, 3, 4\], expected 4 dimensions"),
        ({"seq_lens": torch.tensor([7, 8])}, ValueError, r"seq_lens\[1\] is 8, expected 0 <= seq_lens <= 7"),
        ({"seq_lens": torch.tensor([-1, 7])}, ValueError, r"seq_lens\[0\] is -1"),
        ({"seq_lens": torch.tensor([7])}, ValueError, r"seq_lens has shape \[1\], expected \[B\] with B = 2"),
        ({"seq_lens": torch.tensor([7.0, 7.0])}, TypeError, "seq_lens has dtype torch.float32"),
        ({"seq_lens": [7, 7]}, TypeError, "seq_lens has type list"),
        ({"q_nope": None}, TypeError, "q_nope is a NoneType, expected a torch.Tensor"),
    ],
)
def test_errors_name_the_argument(form, change, error, message):
    inputs = mla_inputs()
    for name, value in change.items():
        inputs[name] = torch.zeros(value, dtype=torch.float64) if isinstance(value, tuple) else value
    with pytest.raises(error, match=message):
        form(**inputs)


def test_dtypes_and_devices_are_not_mixed():
    x = mla_inputs()
    with pytest.raises(TypeError, match=r"k_rope has dtype torch.float32, expected torch.float64 as q_nope"):
        naive(**{**x, "k_rope": x["k_rope"].float()})
    with pytest.raises(ValueError, match="w_uv is on meta, expected cpu as q_nope"):
        naive(**{**x, "w_uv": x["w_uv"].to("meta")})


def test_context_must_hold_the_new_tokens():
    x = mla_inputs(S=4, T=3)
    with pytest.raises(ValueError, match="T = 3 is less than S = 4"):
        absorb(**x)
    absorb(**x, causal=False)


@pytest.mark.parametrize("page_size", [None, 2])
@pytest.mark.parametrize("form", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS)
def test_lengths_allow_more_queries_than_context(form, page_size):
    pytest.importorskip("triton", reason="kernels need Triton")
    inputs, seq_lens = mla_inputs(B=3, S=5, T=3, dtype=torch.float32), [3, 0, 1]
    expected, expected_lse = mla_by_rows(**inputs, seq_lens=seq_lens)
    given = (
        {**inputs, "seq_lens": torch.tensor(seq_lens)} if page_size is None else in_pages(inputs, seq_lens, page_size)
    )
    out, lse = form(**{name: x.to(DEVICE) for name, x in given.items()})
    torch.testing.assert_close(out.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double().cpu(), expected_lse, rtol=1e-5, atol=1e-5)


def whole(function, *args, **options):
    """Return what a function traced into one graph computes."""
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="eager")(*args, **options)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("page_size", [None, 3])
@pytest.mark.parametrize("form", FORMS)
def test_forms_with_lengths_compile_into_one_graph(form, page_size):
    inputs, seq_lens = mla_inputs(B=4, S=3, T=8), [8, 0, 5, 1]
    given = (
        {**inputs, "seq_lens": torch.tensor(seq_lens)} if page_size is None else in_pages(inputs, seq_lens, page_size)
    )
    expected = mla_by_rows(**inputs, seq_lens=seq_lens)
    torch.testing.assert_close(whole(form, **given), expected, rtol=1e-10, atol=1e-10)
    if page_size is None:
        given["seq_lens"] = torch.tensor([10, -3, 5, 1])
        torch.testing.assert_close(whole(form, **given), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.thorough
def test_other_functions_with_lengths_compile_into_one_graph():
    lengths, x = torch.tensor([5, 2]), torch.randn(2, 5, 64)
    for layer in (MLA(MLAConfig.preset("tiny")), MHA(64, 4, 2, rope_theta=1e4)):
        torch.testing.assert_close(whole(layer, x, lengths=lengths)[1, :2], layer(x[1:, :2])[0])
    scores = torch.randn(2, 5, 3, 5)
    alone = scores[1, 3:, :, :2].clone()
    alone[0, :, 1] = -math.inf
    torch.testing.assert_close(whole(masked_softmax, scores, seq_lens=lengths)[1, 3:, :, :2], alone.softmax(-1))
    outs = torch.ones(2, 1, 1, 1, 3)
    assert whole(combine, outs, torch.zeros(2, 1, 1, 1))[0].eq(1).all()


def test_heads_must_divide():
    with pytest.raises(ValueError, match="q has 3 heads and k has 2"):
        sdpa(torch.ones(1, 1, 3, 2), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
