import pytest
import torch
import torch.nn.functional as F

from mla_ref import RMSNorm, rms_norm


@pytest.mark.parametrize("shape", [(1,), (3, 63), (2, 0, 5), (2, 3, 4, 17)])
def test_matches_torch_in_float64(shape):
    x = torch.randn(shape, dtype=torch.float64)
    weight = torch.randn(shape[-1], dtype=torch.float64)
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), F.rms_norm(x, (shape[-1],), weight, 1e-5), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)])
def test_half_types_round_once_and_do_not_overflow(dtype, bound):
    x = (torch.randn(5, 512) * 3000).to(dtype)
    weight = torch.randn(512).to(dtype)
    exact = F.rms_norm(x.double(), (512,), weight.double(), 1e-6)
    out = rms_norm(x, weight)
    assert out.dtype == dtype
    subnormal = torch.finfo(dtype).smallest_normal * bound
    assert ((out.double() - exact).abs() <= exact.abs() * bound * 1.001 + subnormal).all()


def test_zeros_stay_zeros():
    assert rms_norm(torch.zeros(2, 8), torch.ones(8)).eq(0).all()


def test_module_starts_as_plain_normalisation_and_has_a_gradient():
    norm = RMSNorm(8, eps=1e-5)
    x = torch.randn(3, 8)
    torch.testing.assert_close(norm(x), rms_norm(x, torch.ones(8), 1e-5))
    norm(x).sum().backward()
    assert norm.weight.grad.abs().sum() > 0


def test_errors_name_the_tensor():
    with pytest.raises(ValueError, match=r"weight has shape \[7\], expected \[D\] with D = 8 from x"):
        rms_norm(torch.ones(3, 8), torch.ones(7))
    with pytest.raises(TypeError, match=r"weight has dtype torch.float32, expected torch.float16 as x"):
        rms_norm(torch.ones(3, 8).half(), torch.ones(8))
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        rms_norm(torch.ones(3, 8).long(), torch.ones(8))
