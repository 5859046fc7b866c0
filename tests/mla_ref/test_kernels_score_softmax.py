import math
import sys
from itertools import permutations

import pytest
import torch

import mla_ref
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref import kernels

DEVICE = "cpu" if emulator.active() else "cuda"
HALF_ULP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-22}
SMALLEST = {torch.float16: 2**-25, torch.bfloat16: 2**-126, torch.float32: 2**-126}
SCALE = 192**-0.5
LAYOUTS = list(permutations(range(4)))[1::3]
scorers = pytest.mark.parametrize("score", [mla_ref.attention_score, kernels.attention_score], ids=["twin", "kernel"])
softmaxes = pytest.mark.parametrize("softmax", [mla_ref.masked_softmax, kernels.masked_softmax], ids=["twin", "kernel"])


def sees(s, t, S, length, causal):
    return t < length and (not causal or t <= length - S + s)


def visible(S, T, lengths, causal):
    """Where [B, S, 1, T] a query sees, one by one."""
    rows = [[[sees(s, t, S, length, causal) for t in range(T)] for s in range(S)] for length in lengths]
    return torch.tensor(rows, dtype=torch.bool, device=DEVICE).reshape(len(lengths), S, 1, T)


def operands(B, S, H, T, R, P, dtype=torch.float32):
    shapes = (B, S, H, R), (B, S, H, P), (B, T, R), (B, T, P)
    return tuple(torch.randn(shape, device=DEVICE).to(dtype) for shape in shapes)


def check_scores(out, q, p, c, k, causal=False, scale=SCALE):
    q, k = torch.cat((q, p), -1).double(), torch.cat((c, k), -1).double()
    exact = torch.matmul(q, k.mT[:, None]) * scale
    magnitude = torch.matmul(q.abs(), k.abs().mT[:, None]) * scale
    seen = visible(q.shape[1], k.shape[1], [k.shape[1]] * len(k), causal).expand(exact.shape)
    assert (out[~seen] == -math.inf).all()
    bound = exact.abs() * HALF_ULP[out.dtype] + magnitude * 2**-21
    assert ((out.double() - exact).abs() <= bound)[seen].all()


def check_softmax(out, scores, lengths=None, causal=True):
    B, S, _, T = scores.shape
    seen = visible(S, T, [T] * B if lengths is None else lengths, causal).expand(scores.shape)
    exact = torch.where(seen, scores.double(), -math.inf).softmax(-1).nan_to_num(0)
    assert out.dtype == scores.dtype
    bound = exact * (HALF_ULP[out.dtype] + 2**-17) + SMALLEST[out.dtype]
    assert ((out.double() - exact).abs() <= bound).all()
    assert (out[~seen] == 0).all()


def poisoned(shape, dtype):
    return torch.full(shape, math.nan, dtype=dtype, device=DEVICE)


SIZES = [(2, 3, 5, 7, 9, 6), (1, 1, 16, 130, 32, 8), (2, 9, 16, 9, 70, 64), (1, 1, 1, 1, 3, 2), (2, 1, 3, 0, 4, 2)]


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_scores_are_scaled_dot_products(size, causal, dtype):
    B, S, H, T, *_ = size
    if causal and T < S:
        pytest.skip("no such mask")
    given = operands(*size, dtype)
    out = poisoned((B, S, H, T), dtype)
    assert kernels.attention_score(*given, scale=SCALE, causal=causal, out=out) is out
    check_scores(out, *given, causal)
    assert kernels.attention_score(*given, scale=SCALE, causal=causal).equal(out)
    check_scores(mla_ref.attention_score(*given, scale=SCALE, causal=causal), *given, causal)


@pytest.mark.parametrize("order", LAYOUTS)
def test_scores_take_any_layout(order):
    base = torch.randn([(2, 3, 5, 9)[i] + 1 for i in order], device=DEVICE)[:-1, :-1, :-1, :-1]
    q = base.permute(*(order.index(i) for i in range(4)))
    p, c = torch.randn(2, 3, 6, 5, device=DEVICE).mT, torch.randn(7, 9, 2, device=DEVICE).permute(2, 0, 1)
    k = torch.randn(6, 2, 7, device=DEVICE).permute(1, 2, 0)
    check_scores(kernels.attention_score(q, p, c, k, scale=SCALE, causal=False), q, p, c, k)
    wide = poisoned((2, 5, 8, 4), torch.float32)
    out = wide[..., 1:].permute(0, 3, 1, 2)[..., :7]
    kernels.attention_score(q, p, c, k, scale=SCALE, causal=True, out=out)
    check_scores(out, q, p, c, k, True)
    assert wide[..., 0].isnan().all() and wide[:, :, 7].isnan().all()


def test_scores_read_nothing_beside_their_operands():
    around = [poisoned((2, size + 2, width + 70), torch.float16) for size, width in ((15, 9), (15, 6), (7, 9), (7, 6))]
    inside = [each[:, 1:-1, 3 : each.shape[-1] - 67].normal_() for each in around]
    q, p = (each.unflatten(1, (3, 5)) for each in inside[:2])
    check_scores(kernels.attention_score(q, p, *inside[2:], scale=SCALE, causal=False), q, p, *inside[2:])


@scorers
def test_what_a_query_does_not_see_does_not_matter(score):
    q, p, c, k = operands(1, 3, 2, 5, 4, 2)
    c[:, 3] = math.nan
    out = score(q, p, c, k, scale=SCALE, causal=True)
    assert (out[:, 0, :, 3] == -math.inf).all() and out[:, 1:, :, 3].isnan().all()
    assert out[..., :3].isfinite().all()


@pytest.mark.parametrize("axis", ["batch", "context", "heads"])
def test_offsets_beyond_32_bits(axis):
    far = torch.empty(2**31 + 128, dtype=torch.float16, device=DEVICE)
    stride = 2**30
    q = far.as_strided((3, 1, 3, 4), (stride if axis == "batch" else 4, 0, stride if axis == "heads" else 12, 1))
    c = far[40:].as_strided((3, 3, 4), (stride if axis == "batch" else 4, stride if axis == "context" else 12, 1))
    q.copy_(torch.randn(q.shape)), c.copy_(torch.randn(c.shape))
    p, k = torch.randn(3, 1, 3, 2, device=DEVICE).half(), torch.randn(3, 3, 2, device=DEVICE).half()
    check_scores(kernels.attention_score(q, p, c, k, scale=SCALE, causal=False), q, p, c, k)
    check_softmax(kernels.masked_softmax(q, out=q.new_empty(3, 1, 3, 4)), q)
    before = q.clone()
    check_softmax(kernels.masked_softmax(q, out=q), before)


@scorers
def test_score_errors_say_what_came(score):
    q, p, c, k = operands(2, 3, 5, 7, 9, 6)
    with pytest.raises(ValueError, match=r"c_kv has shape \[2, 7, 8\], expected \[B, T, R\] with R = 9 from q_latent"):
        score(q, p, c[..., :8], k, scale=SCALE, causal=False)
    with pytest.raises(ValueError, match=r"T = 2 is less than S = 3"):
        score(q, p, c[:, :2], k[:, :2], scale=SCALE, causal=True)
    with pytest.raises(TypeError, match=r"k_rope has dtype torch\.float16, expected torch\.float32 as q_latent has"):
        score(q, p, c, k.half(), scale=SCALE, causal=False)


def test_kernels_refuse_what_they_cannot_do():
    q, p, c, k = operands(2, 3, 5, 7, 9, 6)
    with pytest.raises(ValueError, match=r"out has shape \[2, 3, 5, 6\], expected \[2, 3, 5, 7\]"):
        kernels.attention_score(q, p, c, k, scale=SCALE, causal=False, out=torch.empty(2, 3, 5, 6, device=DEVICE))
    with pytest.raises(TypeError, match=r"float64, expected one of .*: use mla_ref.attention_score"):
        kernels.attention_score(*(each.double() for each in (q, p, c, k)), scale=SCALE, causal=False)
    with pytest.raises(TypeError, match=r"float64, expected one of .*: use mla_ref.masked_softmax"):
        kernels.masked_softmax(q.double())
    for scale in (None, torch.tensor(0.5)):
        with pytest.raises(TypeError, match=r"scale is (None|tensor\(0\.5000\)), expected a float"):
            kernels.attention_score(q, p, c, k, scale=scale)
    with pytest.raises(ValueError, match=r"out has strides .*, expected a place for each element"):
        kernels.masked_softmax(q, out=torch.empty(2, 3, 1, 9, device=DEVICE).expand(q.shape))
    q.requires_grad_()
    with pytest.raises(RuntimeError, match=r"q_latent requires a gradient.*no_grad.*mla_ref\.attention_score"):
        kernels.attention_score(q, p, c, k, scale=SCALE, causal=False)
    with pytest.raises(RuntimeError, match=r"scores requires a gradient.*no_grad.*mla_ref\.masked_softmax"):
        kernels.masked_softmax(q)
    with torch.no_grad():
        check_scores(kernels.attention_score(q, p, c, k, scale=SCALE, causal=False), q, p, c, k)


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [None, (7, 0), (2, 5)])
@pytest.mark.parametrize("heads", [1, 5, 130])
def test_softmax_of_what_is_seen(heads, lengths, causal, dtype):
    scores = (torch.randn(2, 3, heads, 7, device=DEVICE) * 4).to(dtype)
    seq_lens = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    out = torch.full_like(scores, math.nan)
    assert kernels.masked_softmax(scores, seq_lens=seq_lens, causal=causal, out=out) is out
    check_softmax(out, scores, lengths, causal)
    check_softmax(mla_ref.masked_softmax(scores, seq_lens=seq_lens, causal=causal), scores, lengths, causal)


@pytest.mark.parametrize("whole", [16384, 4096])
@pytest.mark.parametrize("context", [4097, 9001])
def test_rows_of_any_length(whole, context, monkeypatch):
    monkeypatch.setattr(sys.modules["mla_ref.kernels.masked_softmax"], "MAX_WHOLE", whole)
    scores = torch.randn(2, 2, 3, context, device=DEVICE) * 3
    scores[0, :, 1] = torch.linspace(-30, 30, context)  # every block has a new maximum
    scores[0, :, 2] = torch.linspace(30, -30, context)
    lengths = (context, 4096)
    seq_lens = torch.tensor(lengths, device=DEVICE)
    out = kernels.masked_softmax(scores, seq_lens=seq_lens, out=torch.full_like(scores, math.nan))
    check_softmax(out, scores, lengths)
    torch.testing.assert_close(out.sum(-1), torch.ones_like(out[..., 0]))


@softmaxes
def test_rows_without_a_score_are_zeros(softmax):
    scores = torch.full((1, 4, 2, 6), math.nan, device=DEVICE)
    scores[:, 2:, 0, :2], scores[:, 2:, 1, :2] = 0, -math.inf
    out = softmax(scores, seq_lens=torch.tensor([2], device=DEVICE))
    expected = torch.zeros_like(out)
    expected[0, 2, 0, 0], expected[0, 3, 0, :2] = 1, 0.5
    assert out.equal(expected)


@softmaxes
def test_lengths_allow_more_queries_than_context(softmax):
    scores = torch.randn(3, 5, 2, 3, device=DEVICE)
    check_softmax(softmax(scores, seq_lens=torch.tensor([3, 0, 1], device=DEVICE)), scores, (3, 0, 1))


@softmaxes
def test_large_scores_do_not_overflow(softmax):
    scores = torch.tensor([[[[60000.0, 59968.0, -60000.0]]]], device=DEVICE).half()
    check_softmax(softmax(scores), scores)


@pytest.mark.parametrize("order", LAYOUTS)
def test_softmax_takes_any_layout_and_works_in_place(order):
    base = torch.randn([(2, 3, 5, 6)[i] + 1 for i in order], device=DEVICE)
    inner = base[:-1, :-1, :-1, :-1].permute(*(order.index(i) for i in range(4)))
    before, all_before = inner.clone(), base.clone()
    check_softmax(kernels.masked_softmax(inner), before)
    check_softmax(kernels.masked_softmax(inner, out=inner), before)
    inner.copy_(before)
    assert base.equal(all_before)


def test_lengths_out_of_range_count_as_the_nearest():
    scores = torch.randn(3, 2, 3, 5, device=DEVICE)
    lengths = torch.tensor([-7, 2**40, 3], device=DEVICE)
    for causal in (False, True):
        check_softmax(kernels.masked_softmax(scores, seq_lens=lengths, causal=causal), scores, (0, 5, 3), causal)
        # Beyond what 32 bits hold, and the lowest that they do.
        far = torch.tensor([-(2**31) - 1, -(2**32) + 3, 2**31], device=DEVICE)
        check_softmax(kernels.masked_softmax(scores, seq_lens=far, causal=causal), scores, (0, 0, 5), causal)
        low = torch.tensor([-(2**31), 2**31 - 1, 0], dtype=torch.int32, device=DEVICE)
        check_softmax(kernels.masked_softmax(scores, seq_lens=low, causal=causal), scores, (0, 5, 0), causal)
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is -7, expected 0 <= seq_lens <= 5"):
        mla_ref.masked_softmax(scores, seq_lens=lengths)


@softmaxes
def test_softmax_errors_say_what_came(softmax):
    scores = torch.randn(2, 3, 5, 7, device=DEVICE)
    with pytest.raises(ValueError, match=r"T = 2 .*S = 3"):
        softmax(scores[..., :2])
    with pytest.raises((TypeError, ValueError), match=r"seq_lens .*\[3\], expected .*B = 2"):
        softmax(scores, seq_lens=torch.ones(3, dtype=torch.int32, device=DEVICE))
    with pytest.raises(TypeError, match=r"seq_lens .*float32.*, expected an int32 or int64 tensor"):
        softmax(scores, seq_lens=torch.ones(2, device=DEVICE))
    with pytest.raises(ValueError, match=r"scores has shape \[3, 5, 7\], expected 4 dimensions"):
        softmax(scores[0])


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_in_a_cuda_graph_without_waiting():
    q, p, c, k = operands(2, 3, 16, 100, 64, 32, torch.bfloat16)
    lengths = torch.tensor([100, 40], device=DEVICE)
    scores = kernels.attention_score(q, p, c, k, scale=SCALE, causal=False)
    weights = kernels.masked_softmax(scores, seq_lens=lengths)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernels.attention_score(q, p, c, k, scale=SCALE, causal=False, out=scores)
            kernels.masked_softmax(scores, seq_lens=lengths, out=weights)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for each in (q, p, c, k):
        each.normal_()
    lengths.copy_(torch.tensor([7, 99]))
    for each in (scores, weights):
        each.fill_(math.nan)
    graph.replay()
    check_scores(scores, q, p, c, k)
    check_softmax(weights, scores, (7, 99))


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@pytest.mark.parametrize("size", [(2, 1, 16, 4097, 512, 64), (1, 129, 16, 200, 512, 64), (3, 4, 128, 1000, 512, 64)])
def test_large_sizes(size):
    B, S, H, T, *_ = size
    for dtype in HALF_ULP:
        for causal in (False, True):
            given = operands(*size, dtype)
            scores = kernels.attention_score(*given, scale=SCALE, causal=causal, out=poisoned((B, S, H, T), dtype))
            check_scores(scores, *given, causal)
            lengths = torch.randint(0, T + 1, (B,), device=DEVICE)
            out = poisoned(scores.shape, dtype)
            kernels.masked_softmax(scores, seq_lens=lengths, causal=causal, out=out)
            check_softmax(out, scores, lengths.tolist(), causal)
