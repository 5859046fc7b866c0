import math

import pytest
import torch

import mla_ref
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels import combine

DEVICE = "cpu" if emulator.active() else "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
EPS = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}
NAN = float("nan")


def drawn(P, B, S, H, D, dtype=torch.float32, empty=0.3):
    """Parts and their lse; what an empty part holds is NaN."""
    outs = torch.randn(P, B, S, H, D, device=DEVICE).to(dtype)
    lses = torch.randn(P, B, S, H, device=DEVICE) * 5
    none = torch.rand(P, B, S, H, device=DEVICE) < empty
    return outs.masked_fill(none[..., None], NAN), lses.masked_fill(none, -math.inf)


def check(result, outs, lses):
    exact, exact_lse = mla_ref.combine(outs.double(), lses.double())
    out, lse = result
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-6, atol=1e-6)
    assert ((out.double() - exact).abs() <= exact.abs() * EPS[out.dtype] + 1e-5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 2, 1, 3, 5), (2, 1, 3, 4, 32), (5, 3, 2, 1, 100), (130, 1, 1, 2, 70)])
def test_parts_of_a_context(size, dtype):
    outs, lses = drawn(*size, dtype)
    out, lse = torch.full(size[1:], NAN, device=DEVICE).to(dtype), torch.full(size[1:4], NAN, device=DEVICE)
    result = combine(outs, lses, out=out, lse=lse)
    assert result[0] is out and result[1] is lse
    check(result, outs, lses)
    new = combine(tuple(outs), tuple(lses))
    assert new[0].equal(out) and new[1].equal(lse)


def test_parts_are_those_of_attention():
    q, c = torch.randn(2, 1, 4, 32, device=DEVICE), torch.randn(2, 50, 32, device=DEVICE)
    whole = mla_ref.latent_attention(q, q[..., :8], c, c[..., :8], scale=0.1)
    parts = [
        mla_ref.latent_attention(q, q[..., :8], c[:, a:b], c[:, a:b, :8], scale=0.1, causal=False)
        for a, b in ((0, 13), (13, 14), (14, 50))
    ]
    for got, want in zip(combine(*zip(*parts, strict=True)), whole, strict=True):
        torch.testing.assert_close(got, want)


def test_all_parts_empty():
    outs, lses = drawn(3, 2, 1, 2, 10, empty=1)
    out, lse = combine(outs, lses)
    assert not out.any() and lse.isneginf().all()


@pytest.mark.parametrize("lse", [NAN, math.inf])
def test_a_broken_part_shows(lse):
    outs, lses = drawn(3, 1, 1, 2, 10, empty=0)
    lses[1, :, :, 0] = lse
    outs[2, :, :, 1, 4] = NAN
    out, total = combine(outs, lses)
    assert out[0, 0, 0].isnan().all() and total[0, 0, 0].isnan()
    assert out[0, 0, 1].isnan().tolist() == [i == 4 for i in range(10)] and total[0, 0, 1].isfinite()


def test_far_apart():
    outs, lses = drawn(3, 1, 1, 4, 10, empty=0)
    lses = lses + torch.tensor([-1000.0, 500.0, 0.0], device=DEVICE)[:, None, None, None]
    check(combine(outs, lses), outs, lses)


def test_any_layout_and_a_narrower_result():
    outs, lses = drawn(3, 2, 5, 4, 9)
    outs, lses = outs.transpose(0, 4).contiguous().transpose(0, 4), lses.transpose(1, 3).contiguous().transpose(1, 3)
    out = torch.full((9, 4, 5, 3), NAN, device=DEVICE).bfloat16().permute(3, 2, 1, 0)[:2]
    lse = torch.full((2, 5, 8), NAN, device=DEVICE)[..., ::2]
    check(combine(outs, lses, out=out, lse=lse), outs, lses)


@pytest.mark.parametrize("axis", range(4))
def test_offsets_beyond_32_bits(axis):
    far = torch.empty(2**31 + 512, dtype=torch.float16, device=DEVICE)
    shape = [2, 2, 2, 2, 8]
    shape[axis] = 3
    strides = [8 * 3**i for i in (3, 2, 1, 0)]
    strides[axis] = 2**30 - 1
    outs = far.as_strided(shape, (*strides, 1))
    values, lses = drawn(*shape, torch.float16, empty=0)
    outs.copy_(values)
    check(combine(outs, lses), values, lses)


def test_gradients_are_refused_where_they_are_wanted():
    outs, lses = drawn(2, 1, 1, 2, 8)
    with pytest.raises(RuntimeError, match=r"lses requires a gradient.*no_grad.*mla_ref\.combine"):
        combine(outs, lses.requires_grad_())
    with torch.no_grad():
        check(combine(outs, lses), outs, lses)


def test_errors_say_what_came():
    outs, lses = drawn(2, 1, 3, 2, 8)
    with pytest.raises(ValueError, match=r"lses has shape \[2, 1, 2, 2\], expected \[2, 1, 3, 2\]$"):
        combine(outs, lses[:, :, :2])
    with pytest.raises(ValueError, match=r"outs has shape \[2, 1, 3, 2, 0\], expected rows of at least one value"):
        combine(outs[..., :0], lses)
    for none in (outs[:0], []):
        with pytest.raises(ValueError, match=r"outs has no parts, expected at least one"):
            combine(none, lses[:0])
    with pytest.raises(TypeError, match=r"lses has dtype torch.float16, expected float32"):
        combine(outs, lses.half())
    with pytest.raises(ValueError, match=r"out has shape \[1, 2, 2, 8\], expected \[1, 3, 2, 8\]"):
        combine(outs, lses, out=outs[0, :, :2])
    with pytest.raises(TypeError, match=r"outs has dtype torch.float64, expected one of .*: use mla_ref.combine"):
        combine(outs.double(), lses)
