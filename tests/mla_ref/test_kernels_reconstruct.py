import math
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mla_ref
from mla_ref import quantize_int4
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref import kernels

DEVICE = "cpu" if emulator.active() else "cuda"
HALF_ULP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-24}
AXES = {"absorb_query": 1, "reconstruct_value": 2}
products = pytest.mark.parametrize("name", AXES)
int4 = pytest.mark.parametrize("group", [None, 32, 64, 128])


def operands(name, B, S, H, K, N, dtype=torch.float32, group=None):
    """x [B, S, H, K], and the weight in the shape of the source, quantised where there is a group."""
    x, weight = torch.randn(B, S, H, K, device=DEVICE).to(dtype), torch.randn(H, N, K, device=DEVICE).to(dtype)
    weight = weight.mT if AXES[name] == 1 else weight
    return x, weight if group is None else quantize_int4(weight, axis=AXES[name], group=group)


def poisoned(shape, dtype):
    return torch.full(shape, math.nan, dtype=dtype, device=DEVICE)


def check(out, name, x, weight):
    weight = weight if isinstance(weight, torch.Tensor) else weight.dequantize()
    twin = getattr(mla_ref, name)
    exact, magnitude = twin(x.double(), weight.double()), twin(x.double().abs(), weight.double().abs())
    assert out.dtype == x.dtype
    bound = exact.abs() * HALF_ULP[x.dtype] * 1.001 + magnitude * 2**-20
    assert ((out.double() - exact).abs() <= bound).all()


@products
@int4
@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("rows", [(1, 1), (3, 1), (5, 7), (1, 17)])
def test_is_the_exact_result_rounded_once(name, group, dtype, rows):
    x, weight = operands(name, *rows, 3, 128, 40, dtype, group)
    out = poisoned((*rows, 3, 40), dtype)
    assert getattr(kernels, name)(x, weight, out=out) is out
    check(out, name, x, weight)
    assert getattr(kernels, name)(x, weight).equal(out)


@products
@settings(max_examples=25)
@given(
    B=st.integers(1, 4), S=st.integers(1, 3), H=st.integers(1, 3), K=st.integers(1, 70), N=st.integers(1, 70),
    group=st.sampled_from([None, None, 32, 64]), groups=st.integers(1, 5), seed=st.integers(0, 99),
)  # fmt: skip
def test_any_size(name, B, S, H, K, N, group, groups, seed):
    torch.manual_seed(seed)
    x, weight = operands(name, B, S, H, K if group is None else group * groups, N, group=group)
    check(getattr(kernels, name)(x, weight, out=poisoned((B, S, H, N), x.dtype)), name, x, weight)


@products
def test_widths_of_deepseek_v3(name):
    K, N = (128, 512) if name == "absorb_query" else (512, 128)
    for rows in (1, 2):
        for group in (None, 32, 128):
            x, weight = operands(name, rows, 1, 2, K, N, torch.bfloat16, group)
            check(getattr(kernels, name)(x, weight), name, x, weight)


@products
@pytest.mark.parametrize("group", [None, 128])
@pytest.mark.parametrize("width", [4224, 16512])
def test_rows_that_are_wider_than_a_block(name, group, width):
    x, weight = operands(name, 1, 1, 2, width, 3, group=group)
    check(getattr(kernels, name)(x, weight), name, x, weight)


@products
@pytest.mark.parametrize("rows", [(1, 1), (2, 3)])
@pytest.mark.parametrize("order", list(permutations(range(4)))[1::3])
def test_any_layout(name, rows, order):
    def strided(shape, order):
        base = poisoned([shape[i] + 1 for i in order], torch.float32)
        view = base[tuple(slice(shape[i]) for i in order)].permute(*(order.index(i) for i in range(len(shape))))
        return view.copy_(torch.randn(shape, device=DEVICE))

    axis = AXES[name]
    x = strided((*rows, 3, 32), order)
    weight = strided((3, 32, 19) if axis == 1 else (3, 19, 32), [i - 1 for i in order if i])
    for each in (weight, quantize_int4(weight, axis=axis, group=32)):
        out = strided((*rows, 3, 19), order[::-1])
        assert getattr(kernels, name)(x, each, out=out) is out
        check(out, name, x, each)


@products
@pytest.mark.parametrize("rows", [1, 5])
def test_nothing_outside_the_output_is_written(name, rows):
    for group in (None, 32):
        x, weight = operands(name, rows, 1, 2, 32, 19, group=group)
        buffer = poisoned((rows + 2, 1, 4, 40), torch.float32)
        check(getattr(kernels, name)(x, weight, out=buffer[1:-1, :, 1:3, 7:26]), name, x, weight)
        assert buffer.isnan().sum() == buffer.numel() - rows * 2 * 19


@products
def test_parts_of_a_layer_are_read_where_they_are(name):
    both = torch.randn(2, 1, 3, 32 + 8, device=DEVICE)  # a query with its rotated part
    weights = torch.randn(3, 16 + 24, 32, device=DEVICE)  # W_UK and W_UV in one projection
    weight = weights[:, 16:].mT if name == "absorb_query" else weights[:, 16:]
    check(getattr(kernels, name)(both[..., :32], weight), name, both[..., :32], weight)


@products
def test_a_batch_without_requests(name):
    for group in (None, 32):
        x, weight = operands(name, 0, 1, 2, 32, 19, group=group)
        assert getattr(kernels, name)(x, weight).shape == (0, 1, 2, 19)


def test_offsets_beyond_32_bits():
    far = torch.empty(2**31 + 64, dtype=torch.float16, device=DEVICE).as_strided((3, 1, 1, 32), (2**30, 1, 1, 1))
    far.copy_(torch.randn(3, 1, 1, 32))
    weight = torch.randn(1, 32, 32, device=DEVICE).half()
    for each in (weight, quantize_int4(weight, axis=1, group=32)):
        check(kernels.absorb_query(far, each), "absorb_query", far.clone(), each)
        check(kernels.absorb_query(far[2:], each), "absorb_query", far[2:].clone(), each)
    x = far.clone()
    check(kernels.absorb_query(x, weight, out=far), "absorb_query", x, weight)


@products
def test_errors_name_the_tensor(name):
    kernel, axis = getattr(kernels, name), AXES[name]
    x, weight = operands(name, 2, 1, 3, 64, 32)
    x_name, w_name = ("q_nope", "w_uk") if axis == 1 else ("o_latent", "w_uv")
    with pytest.raises(ValueError, match=rf"{w_name} has shape .* = 63 from {x_name}"):
        kernel(x[..., 1:], weight)
    with pytest.raises(ValueError, match=rf"{w_name} is quantised along axis {3 - axis}, expected {axis}"):
        kernel(x, quantize_int4(weight, axis=3 - axis, group=32))
    with pytest.raises(ValueError, match=rf"{x_name} has shape .*, expected rows of at least one value"):
        kernel(x[..., :0], weight[:, :0] if axis == 1 else weight[..., :0])
    with pytest.raises(TypeError, match=rf"{x_name} has dtype torch.float64, expected one of .*: use mla_ref.{name}"):
        kernel(x.double(), weight.double())
    with pytest.raises(ValueError, match=r"out has shape \[2, 1, 3, 64\], expected \[2, 1, 3, 32\]"):
        kernel(x, weight, out=torch.empty_like(x))
    with pytest.raises(TypeError, match=r"out has dtype torch.float16, expected .*float32"):
        kernel(x, weight, out=torch.empty(2, 1, 3, 32, device=DEVICE).half())
    with pytest.raises(RuntimeError, match=rf"{w_name} requires a gradient.*mla_ref\.{name}"):
        kernel(x, weight.clone().requires_grad_())


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@products
@int4
def test_in_a_cuda_graph_without_waiting(name, group):
    x, weight = operands(name, 4, 1, 16, 512, 128, torch.bfloat16, group)
    kernel, out = getattr(kernels, name), getattr(kernels, name)(x, weight)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(x, weight, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    x.normal_()
    out.fill_(math.nan)
    graph.replay()
    check(out, name, x, weight)


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@products
@int4
@pytest.mark.parametrize("rows", [1, 2, 8, 16, 33, 64, 128, 257])
def test_large_sizes(name, group, rows):
    K, N = (128, 512) if name == "absorb_query" else (512, 128)
    for dtype in HALF_ULP:
        x, weight = operands(name, rows, 1, 128, K, N, dtype, group)
        check(getattr(kernels, name)(x, weight, out=poisoned((rows, 1, 128, N), dtype)), name, x, weight)
