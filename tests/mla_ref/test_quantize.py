import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mla_ref import Int4Weight, pack_int4, quantize_int4, unpack_int4

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def integers(quantized):
    """The integers [H, D, R] in the shape of the source."""
    values = unpack_int4(quantized.packed)
    return values.mT if quantized.axis == 1 else values


def scales(quantized):
    """The scale of every weight, in the shape of the source."""
    each = quantized.scales.double().repeat_interleave(quantized.group, -1)
    return each.mT if quantized.axis == 1 else each


def test_every_byte_is_two_numbers_in_twos_complement_the_first_in_the_low_nibble():
    for byte in range(256):
        low, high = unpack_int4(torch.tensor([byte], dtype=torch.uint8)).tolist()
        assert (low, high) == tuple(nibble - 16 if nibble > 7 else nibble for nibble in (byte % 16, byte // 16))
        assert pack_int4(torch.tensor([low, high], dtype=torch.int8)).tolist() == [byte]


def test_weights_that_integers_hold_come_back_exactly_along_either_axis():
    weight = torch.arange(-7, 8).repeat(2 * 35 * 32)[: 2 * 32 * 64].view(2, 32, 64).float()
    weight[:, 0], weight[..., 0], weight[..., 32] = 7, -7, 7  # the largest of every group
    for axis, sum_of_groups in ((1, 32), (2, 64)):
        quantized = quantize_int4(weight, axis=axis, group=32)
        assert quantized.shape == weight.shape and quantized.scales.eq(1).all()
        assert quantized.packed.shape == (2, weight.shape[3 - axis], sum_of_groups // 2)
        assert quantized.dequantize().equal(weight)
        assert quantized.nbytes == weight.numel() // 2 + weight.numel() // 32 * 4


def test_the_scale_is_that_of_a_group_along_the_axis_summed_over():
    weight = torch.zeros(1, 64, 64)
    weight[0, 40, 5], weight[0, 3, 50] = 14.0, -0.7
    along_d, along_r = (quantize_int4(weight, axis=axis, group=32).scales for axis in (1, 2))  # [1, R, 2] and [1, D, 2]
    torch.testing.assert_close(along_d[0, 5], torch.tensor([0.0, 2.0]))
    torch.testing.assert_close(along_d[0, 50], torch.tensor([0.1, 0.0]))
    torch.testing.assert_close(along_r[0, 40], torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(along_r[0, 3], torch.tensor([0.0, 0.1]))


@given(
    st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 9), st.integers(1, 3), st.sampled_from([32, 64, 128]),
    st.sampled_from([1, 2]), st.integers(-30, 12), st.integers(0, 99),
)  # fmt: skip
def test_no_weight_is_off_by_more_than_half_a_scale(dtype, H, N, groups, group, axis, exponent, seed):
    shape = (H, groups * group, N) if axis == 1 else (H, N, groups * group)
    weight = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent).to(dtype)
    quantized = quantize_int4(weight, axis=axis, group=group)
    assert integers(quantized).abs().max() <= 7
    error = (quantized.dequantize().double() - weight.double()).abs()
    assert (error <= scales(quantized) * (0.5 + 7 * torch.finfo(dtype).eps)).all()
    exact, ulp = integers(quantized) * scales(quantized), 2**-24 if dtype == torch.float32 else 0
    assert ((quantized.dequantize().double() - exact).abs() <= exact.abs() * ulp).all()


def test_zeros_stay_zeros():
    assert quantize_int4(torch.zeros(1, 2, 32).half(), axis=2, group=32).dequantize().eq(0).all()


def test_a_transposed_weight_is_packed_like_a_copy():
    weight = torch.randn(3, 64, 32)
    for axis in (1, 2):
        ours, copy = (quantize_int4(each, axis=axis, group=32) for each in (weight.mT.contiguous().mT, weight))
        assert ours.packed.equal(copy.packed) and ours.packed.is_contiguous() and ours.scales.equal(copy.scales)
    for axis in (1, 2):  # one packing is not the other's transpose
        assert (
            not quantize_int4(weight, axis=axis, group=32)
            .dequantize()
            .equal(quantize_int4(weight, axis=3 - axis, group=32).dequantize())
        )


def test_errors_name_the_argument():
    weight = torch.ones(2, 96, 100)
    with pytest.raises(ValueError, match=r"weight has shape .*a multiple of group = 128 along axis 1: pass group=32"):
        quantize_int4(weight, axis=1)
    with pytest.raises(ValueError, match=r"a multiple of group = 32 along axis 2: none of 32, 64, 128 divides it"):
        quantize_int4(weight, axis=2, group=32)
    with pytest.raises(ValueError, match=r"a multiple of group = 32 along axis 2: none of"):
        quantize_int4(weight[..., :31], axis=2, group=32)
    with pytest.raises(ValueError, match="none of 32, 64, 128 divides it"):
        quantize_int4(weight[:, :0], axis=1)
    for group in (16, 256, 0, None):
        with pytest.raises(ValueError, match=f"group is {group}, expected one of 32, 64, 128"):
            quantize_int4(weight, axis=1, group=group)
    with pytest.raises(ValueError, match="axis is 0, expected 1 or 2"):
        quantize_int4(weight, axis=0, group=32)
    with pytest.raises(ValueError, match=r"weight has shape .* expected 3 dimensions"):
        quantize_int4(weight[0], axis=1, group=32)
    with pytest.raises(TypeError, match=r"weight has dtype torch.int8"):
        quantize_int4(weight.to(torch.int8), axis=1, group=32)
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="weight holds NaN or infinity"):
            quantize_int4(weight.masked_fill(weight.cumsum(1) == 3, bad), axis=1, group=32)
    with pytest.raises(TypeError, match=r"values has dtype torch.int64, expected torch.int8"):
        pack_int4(torch.ones(4).long())
    with pytest.raises(ValueError, match=r"values has shape \[3\], expected an even width"):
        pack_int4(torch.ones(3, dtype=torch.int8))
    with pytest.raises(ValueError, match="values holds -9 to 1, expected -8 to 7"):
        pack_int4(torch.tensor([1, -9], dtype=torch.int8))
    with pytest.raises(TypeError, match=r"packed has dtype torch.int8, expected torch.uint8"):
        unpack_int4(torch.ones(4, dtype=torch.int8))


def test_a_weight_whose_parts_do_not_fit_is_refused():
    packed, scales = torch.zeros(2, 5, 32, dtype=torch.uint8), torch.ones(2, 5, 2)
    assert Int4Weight(packed, scales, 32, 1).shape == (2, 64, 5)
    with pytest.raises(ValueError, match=r"packed has shape \[2, 5, 32\] and scales \[2, 5, 2\].*\[H, N, K/64\]"):
        Int4Weight(packed, scales, 64, 1)
    with pytest.raises(TypeError, match=r"packed has dtype torch.int8"):
        Int4Weight(packed.to(torch.int8), scales, 32, 1)
    with pytest.raises(TypeError, match=r"scales has dtype torch.uint8"):
        Int4Weight(packed, scales.to(torch.uint8), 32, 1)
    with pytest.raises(ValueError, match="axis is 3"):
        Int4Weight(packed, scales, 32, 3)
