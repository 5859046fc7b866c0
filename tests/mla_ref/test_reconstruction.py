import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mla_ref import absorb, absorb_query, latent_attention, quantize_int4, reconstruct_value


def operands(B=2, S=3, H=4, D=32, R=64, dtype=torch.float64):
    shapes = (B, S, H, D), (B, S, H, R), (H, D, R)
    return tuple(torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes)


@given(*(st.integers(1, 5) for _ in range(3)), st.integers(1, 40), st.integers(1, 40))
def test_every_head_has_a_product_of_its_own(B, S, H, D, R):
    x, latent, weight = operands(B, S, H, D, R)
    query, value = absorb_query(x, weight), reconstruct_value(latent, weight)
    for h in range(H):
        torch.testing.assert_close(query[:, :, h], x[:, :, h] @ weight[h])
        torch.testing.assert_close(value[:, :, h], latent[:, :, h] @ weight[h].T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_round_once(dtype):
    x, latent, weight = operands(dtype=dtype)
    wide = (each.double() for each in (x, latent, weight))
    x64, latent64, weight64 = wide
    for out, exact in (
        (absorb_query(x, weight), absorb_query(x64, weight64)),
        (reconstruct_value(latent, weight), reconstruct_value(latent64, weight64)),
    ):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), exact, rtol=torch.finfo(dtype).eps * 0.51, atol=1e-5)


def test_around_attention_over_the_latent_they_are_absorption():
    q_nope, c_kv = torch.randn(2, 1, 4, 32), torch.randn(2, 9, 64)
    q_rope, k_rope = torch.randn(2, 1, 4, 8), torch.randn(2, 9, 8)
    w_uk, w_uv = torch.randn(4, 32, 64), torch.randn(4, 16, 64)
    o_latent, _ = latent_attention(absorb_query(q_nope, w_uk), q_rope, c_kv, k_rope, scale=40**-0.5)
    expected, _ = absorb(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)
    torch.testing.assert_close(reconstruct_value(o_latent, w_uv), expected)


@pytest.mark.parametrize("group", [32, 64])
def test_int4_weights_stand_for_what_they_hold(group):
    x, latent, weight = operands(D=64)
    for product, operand, axis in ((absorb_query, x, 1), (reconstruct_value, latent, 2)):
        quantized = quantize_int4(weight, axis=axis, group=group)
        torch.testing.assert_close(product(operand, quantized), product(operand, quantized.dequantize()))


def test_errors_name_the_tensor():
    x, latent, weight = operands()
    with pytest.raises(
        ValueError, match=r"w_uk has shape \[4, 31, 64\], expected \[H, Dn, R\] with Dn = 32 from q_nope"
    ):
        absorb_query(x, weight[:, 1:])
    with pytest.raises(ValueError, match=r"w_uv has shape \[4, 64, 32\], expected \[H, Dv, R\] with R = 64 from o_lat"):
        reconstruct_value(latent, weight.mT)
    with pytest.raises(TypeError, match=r"w_uk has dtype torch.float32, expected torch.float64 as q_nope"):
        absorb_query(x, weight.float())
    along_d, along_r = quantize_int4(weight, axis=1, group=32), quantize_int4(weight, axis=2, group=32)
    with pytest.raises(ValueError, match=r"w_uk is quantised along axis 2, expected 1, .*axis=1"):
        absorb_query(x, along_r)
    with pytest.raises(ValueError, match=r"w_uv is quantised along axis 1, expected 2, .*axis=2"):
        reconstruct_value(latent, along_d)
    with pytest.raises(ValueError, match=r"w_uv has shape \[4, 32, 64\], expected \[H, Dv, R\] with R = 32 from o_lat"):
        reconstruct_value(latent[..., :32], along_r)
    with pytest.raises(ValueError, match=r"w_uk\.scales has shape .* with H = 3 from q_nope"):
        absorb_query(x[:, :, 1:], along_d)
    with pytest.raises(TypeError, match=r"w_uk\.scales has dtype torch.float64, expected torch.float32 as q_nope"):
        absorb_query(x.float(), along_d)
