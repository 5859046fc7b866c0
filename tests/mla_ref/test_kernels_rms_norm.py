from itertools import permutations

import pytest
import torch
import torch.nn.functional as F

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels import rms_norm, rms_norm_rows

DEVICE = "cpu" if emulator.active() else "cuda"
HALF_ULP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-21}

pytestmark = pytest.mark.parametrize("kernel", [rms_norm, rms_norm_rows])


def poisoned(x):
    return torch.full_like(x, float("nan"))


def check(out, x, weight, eps=1e-6):
    exact = F.rms_norm(x.double(), (x.shape[-1],), weight.double(), eps)
    bound = HALF_ULP[x.dtype]
    subnormal = torch.finfo(x.dtype).smallest_normal * bound
    assert out.dtype == x.dtype
    assert ((out.double() - exact).abs() <= exact.abs() * bound * 1.001 + subnormal).all()


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("shape", [(1,), (3, 63), (2, 0, 5), (4, 0), (5, 1000), (19, 16), (2, 3, 4, 17), (3, 7169)])
def test_is_the_exact_result_rounded_once(kernel, shape, dtype):
    x = torch.randn(shape, device=DEVICE).to(dtype)
    weight = torch.randn(shape[-1:], device=DEVICE).to(dtype)
    out = poisoned(x)
    assert kernel(x, weight, 1e-5, out=out) is out
    check(out, x, weight, 1e-5)
    assert kernel(x, weight, 1e-5).equal(out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_squares_do_not_overflow(kernel, dtype):
    x = (torch.randn(5, 512, device=DEVICE) * 9000).to(dtype)
    weight = torch.randn(512, device=DEVICE).to(dtype)
    check(kernel(x, weight), x, weight)


def test_zeros_stay_zeros(kernel):
    assert kernel(torch.zeros(2, 8, device=DEVICE), torch.ones(8, device=DEVICE)).eq(0).all()


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_layout_of_input_and_output(kernel, order):
    base = torch.randn([(2, 3, 4, 5)[i] + 1 for i in order], device=DEVICE)[:-1, :-1, :-1, :-1]
    x = base.permute(*(order.index(i) for i in range(4)))
    weight = torch.randn(10, device=DEVICE)[::2]
    check(kernel(x, weight), x, weight)
    out = poisoned(torch.empty(2, 3, 4, 5, device=DEVICE))
    check(kernel(x, weight, out=out), x, weight)


def test_latent_is_normalised_where_the_projection_left_it(kernel):
    projected = torch.randn(2, 7, 32 + 8, device=DEVICE).half()
    before, weight = projected.clone(), torch.randn(32, device=DEVICE).half()
    latent = projected[..., :32]
    kernel(latent, weight, out=latent)
    check(latent, before[..., :32], weight)
    assert projected[..., 32:].equal(before[..., 32:])


def test_nothing_outside_the_output_is_written(kernel):
    buffer = poisoned(torch.empty(9, 80, device=DEVICE))
    x, weight = torch.randn(5, 63, device=DEVICE), torch.randn(63, device=DEVICE)
    check(kernel(x, weight, out=buffer[2:7, 8:71]), x, weight)
    assert buffer.isnan().sum() == buffer.numel() - 5 * 63


def test_expanded_rows_are_read_and_not_written(kernel):
    x, weight = torch.randn(1, 17, device=DEVICE).expand(6, 17), torch.randn(17, device=DEVICE)
    check(kernel(x, weight), x, weight)


def test_offsets_beyond_32_bits(kernel):
    far = torch.empty(2**31 + 17, dtype=torch.float16, device=DEVICE).as_strided((3, 17), (2**30, 1))
    far.copy_(torch.randn(3, 17))
    x, weight = far.clone(), torch.randn(17, device=DEVICE).half()
    check(kernel(far, weight), x, weight)
    check(kernel(far, weight, out=far), x, weight)


def test_gradients_are_refused_where_they_are_wanted(kernel):
    x, weight = torch.randn(2, 8, device=DEVICE), torch.ones(8, device=DEVICE, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"weight requires a gradient.*no_grad.*mla_ref\.rms_norm"):
        kernel(x, weight)
    with torch.no_grad():
        check(kernel(x, weight), x, weight)


def test_errors_name_the_tensor(kernel):
    x, weight = torch.ones(3, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    with pytest.raises(ValueError, match=r"weight has shape \[7\], expected \[D\] with D = 8 from x"):
        kernel(x, weight[:7])
    with pytest.raises(TypeError, match=r"x has dtype torch.float64, expected one of .*: use mla_ref.rms_norm"):
        kernel(x.double(), weight.double())
    with pytest.raises(ValueError, match=r"out has shape \[8, 3\], expected \[3, 8\]"):
        kernel(x, weight, out=torch.empty(8, 3, device=DEVICE))
    with pytest.raises(TypeError, match=r"out has dtype torch.float16, expected .*float32"):
        kernel(x, weight, out=x.half())
    with pytest.raises(ValueError, match=r"rows of 65537, expected at most 65536"):
        kernel(torch.ones(1, 65537, device=DEVICE), torch.ones(65537, device=DEVICE))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_in_a_cuda_graph_without_waiting(kernel):
    x, weight = torch.randn(130, 512, device=DEVICE).bfloat16(), torch.randn(512, device=DEVICE).bfloat16()
    out = kernel(x, weight)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(x, weight, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x.normal_()
    out.fill_(float("nan"))
    graph.replay()
    check(out, x, weight)


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@pytest.mark.parametrize("shape", [(4099, 512), (1031, 2048), (517, 7168), (33, 65536), (1, 7168)])
def test_large_sizes(kernel, shape):
    for dtype in HALF_ULP:
        x = torch.randn(shape, device=DEVICE).to(dtype)
        weight = torch.randn(shape[-1:], device=DEVICE).to(dtype)
        check(kernel(x, weight, out=poisoned(x)), x, weight)
