from itertools import permutations

import pytest
import torch

from mla_ref import rope_cos_sin
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels import apply_rope, apply_rope_qk

DEVICE = "cpu" if emulator.active() else "cuda"
HALF_ULP = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-22}


def apply_rope_both(q_rope, k_rope, cos, sin, interleaved=True, *, out=(None, None)):
    """Two launches with the signature of one."""
    return tuple(apply_rope(x, cos, sin, interleaved, out=each) for x, each in zip((q_rope, k_rope), out, strict=True))


pytestmark = pytest.mark.parametrize("kernel", [apply_rope_both, apply_rope_qk])


def poisoned(*tensors):
    return tuple(torch.full_like(x, float("nan")) for x in tensors)


def exact_rope(x, positions, interleaved):
    """Multiply the pairs of x [B, S, …, Dr] as complex numbers by exp(i·angle), positions [S] or [B, S]."""
    dim, positions = x.shape[-1], positions.to(x.device)
    angle = positions[..., None].double() * 10000.0 ** (-torch.arange(0, dim, 2, device=x.device).double() / dim)
    if x.ndim == 4:
        angle = angle.unsqueeze(-2)
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(dim // 2), slice(dim // 2, None))
    pairs = torch.complex(x[..., first].double(), x[..., second].double())
    pairs = pairs * torch.polar(torch.ones_like(angle), angle)
    out = torch.empty_like(x, dtype=torch.float64)
    out[..., first], out[..., second] = pairs.real, pairs.imag
    return out


def check(outs, inputs, positions, interleaved=True):
    for out, x in zip(outs, inputs, strict=True):
        exact = exact_rope(x, positions, interleaved)
        assert out.dtype == x.dtype
        # A pair keeps its length, and float32 angles are wrong by a share of that.
        length = exact_rope(x, torch.zeros_like(positions), interleaved).abs().amax(-1, keepdim=True)
        bound = exact.abs() * HALF_ULP[x.dtype] + length * 2**-21
        assert ((out.double() - exact).abs() <= bound).all()


def drawn(B, S, H, dim, dtype=torch.float32):
    q, k = torch.randn(B, S, H, dim, device=DEVICE), torch.randn(B, S, dim, device=DEVICE)
    return q.to(dtype), k.to(dtype)


def tables(positions, dim, **kwargs):
    return (each.to(DEVICE) for each in rope_cos_sin(positions, dim, **kwargs))


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("size", [(1, 1, 1, 2), (2, 3, 5, 6), (1, 4, 16, 64), (2, 1, 130, 10), (3, 0, 4, 8)])
def test_pairs_are_complex_numbers(kernel, size, interleaved, dtype):
    q, k = drawn(*size, dtype)
    positions = torch.randint(0, 163840, (size[1],))
    outs = poisoned(q, k)
    returned = kernel(q, k, *tables(positions, size[-1]), interleaved, out=outs)
    assert returned[0] is outs[0] and returned[1] is outs[1]
    check(outs, (q, k), positions, interleaved)
    again = kernel(q, k, *tables(positions, size[-1]), interleaved)
    assert all(a.equal(b) for a, b in zip(again, outs, strict=True))


@pytest.mark.parametrize("interleaved", [True, False])
def test_sequences_may_stand_at_different_positions(kernel, interleaved):
    q, k = drawn(3, 2, 5, 8)
    positions = torch.tensor([[0, 1], [100, 101], [7, 8]])
    check(kernel(q, k, *tables(positions, 8), interleaved), (q, k), positions, interleaved)


@pytest.mark.parametrize("dtype", HALF_ULP)
@pytest.mark.parametrize("interleaved", [True, False])
def test_in_place_on_the_last_columns_of_a_wider_query(kernel, interleaved, dtype):
    query, latent = torch.randn(2, 3, 6, 16 + 8, device=DEVICE).to(dtype), torch.randn(2, 4, 32 + 8, device=DEVICE)
    latent = latent.to(dtype)
    before = query.clone(), latent.clone()
    views, places = (query[:, :, :5, 16:], latent[:, :3, 32:]), (before[0][:, :, :5, 16:], before[1][:, :3, 32:])
    positions = torch.arange(50, 53)
    kernel(*views, *tables(positions, 8), interleaved, out=views)
    check(views, places, positions, interleaved)
    for view, place in zip(views, places, strict=True):
        view.copy_(place)
    assert query.equal(before[0]) and latent.equal(before[1])


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_any_layout_of_input_and_output(kernel, order):
    base = torch.randn([(2, 3, 5, 6)[i] + 1 for i in order], device=DEVICE)[:-1, :-1, :-1, :-1]
    q, k = base.permute(*(order.index(i) for i in range(4))), torch.randn(6, 3, 2, device=DEVICE).permute(2, 1, 0)
    positions = torch.arange(3)
    for interleaved in (True, False):
        for outs in (poisoned(q, k), poisoned(q.contiguous(), k.contiguous())):
            check(kernel(q, k, *tables(positions, 6), interleaved, out=outs), (q, k), positions, interleaved)


def test_tables_may_be_strided_and_of_any_type(kernel):
    q, k = drawn(2, 3, 5, 8)
    positions = torch.arange(2, 5)
    cos, sin = tables(positions, 8, dtype=torch.float64)
    both = torch.stack((cos, sin), -1)
    check(kernel(q, k, both[..., 0], both[..., 1]), (q, k), positions)
    rounded = kernel(q, k, cos.bfloat16(), sin.bfloat16())
    for out, x in zip(rounded, (q, k), strict=True):
        torch.testing.assert_close(out.double(), exact_rope(x, positions, True), rtol=0, atol=0.1)


@pytest.mark.parametrize("axis", ["batch", "sequence", "heads"])
def test_offsets_beyond_32_bits(kernel, axis):
    far = torch.empty(2**31 + 32, dtype=torch.float16, device=DEVICE)
    B, S, H = {"batch": (3, 1, 2), "sequence": (1, 3, 2), "heads": (1, 1, 3)}[axis]
    stride = 2**30
    q = far.as_strided((B, S, H, 8), (stride, stride, stride if axis == "heads" else 8, 1))
    k = far[16:].as_strided((B, S, 8), (stride, stride, 1))
    for each in (q, k):
        each.copy_(torch.randn(each.shape))
    before, positions = (q.clone(), k.clone()), torch.arange(9, 9 + S)
    check(kernel(q, k, *tables(positions, 8), out=(q, k)), before, positions)


def test_gradients_are_refused_where_they_are_wanted(kernel):
    q, k = drawn(1, 2, 3, 4)
    q.requires_grad_()
    positions = torch.arange(2)
    with pytest.raises(RuntimeError, match=r"requires a gradient.*no_grad.*mla_ref\.apply_rope"):
        kernel(q, k, *tables(positions, 4))
    with torch.no_grad():
        check(kernel(q, k, *tables(positions, 4)), (q, k), positions)
    for wants, name in enumerate(("cos", "sin")):
        angles = list(tables(positions, 4))
        angles[wants].requires_grad_()
        with pytest.raises(RuntimeError, match=rf"{name} requires a gradient.*mla_ref\.apply_rope"):
            kernel(*drawn(1, 2, 3, 4), *angles)


def test_errors_say_what_came(kernel):
    q, k = drawn(2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"cos has shape \[4, 4\], expected \[3, 4\]"):
        kernel(q, k, *tables(torch.arange(4), 8))
    with pytest.raises(ValueError, match=r"has shape \[2, 3, 5, 7\], expected an even width"):
        kernel(q[..., :7], k[..., :7], *tables(torch.arange(3), 8))
    with pytest.raises(ValueError, match=r"out\S* has shape \[2, 3, 5, 6\], expected \[2, 3, 5, 8\]"):
        kernel(q, k, *tables(torch.arange(3), 8), out=(q[..., :6], k))
    with pytest.raises(TypeError, match=r"has dtype torch.float64, expected one of .*: use mla_ref.apply_rope"):
        kernel(q.double(), k.double(), *tables(torch.arange(3), 8))
    cos, sin = tables(torch.arange(3), 8)
    with pytest.raises(TypeError, match=r"is a list, expected a torch.Tensor"):
        kernel([1.0], k, cos, sin)
    with pytest.raises(TypeError, match=r"cos is a NoneType, expected a torch.Tensor"):
        kernel(q, k, None, sin)
    with pytest.raises(ValueError, match=r"out\S* has strides .*, expected a place for each element"):
        kernel(q, k, cos, sin, out=(q[:, :, :1].expand(q.shape), k))


def test_query_and_key_have_to_match(kernel):
    if kernel is apply_rope_both:
        pytest.skip("two launches know nothing of each other")
    q, k = drawn(2, 3, 5, 8)
    with pytest.raises(ValueError, match=r"k_rope has shape \[2, 2, 8\], expected \[B, S, Dr\] with S = 3 from q_rope"):
        kernel(q, k[:, :2], *tables(torch.arange(3), 8))
    for swapped, name in (((k, k), "q_rope"), ((q, q), "k_rope"), ((k, q), "q_rope")):
        with pytest.raises(ValueError, match=rf"{name} has shape .*, expected {4 - (name == 'k_rope')} dimensions"):
            kernel(*swapped, *tables(torch.arange(3), 8))
    for out, what in (((q,), "tuple of 1"), (q, "Tensor"), ([], "list of 0")):
        with pytest.raises(TypeError, match=f"out is a {what}, expected a pair of tensors"):
            kernel(q, k, *tables(torch.arange(3), 8), out=out)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_in_a_cuda_graph_without_waiting(kernel):
    q, k = drawn(4, 1, 16, 64, torch.bfloat16)
    positions = torch.tensor([300])
    cos, sin = tables(positions, 64)
    outs = kernel(q, k, cos, sin)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(q, k, cos, sin, out=outs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for each in (q, k):
        each.normal_()
    for each in outs:
        each.fill_(float("nan"))
    graph.replay()
    check(outs, (q, k), positions)


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@pytest.mark.parametrize("size", [(3, 1001, 16, 64), (2, 257, 128, 64), (1, 1, 128, 64), (1, 33, 300, 64)])
def test_large_sizes(kernel, size):
    positions = torch.arange(size[1])
    for dtype in HALF_ULP:
        for interleaved in (True, False):
            q, k = drawn(*size, dtype)
            outs = kernel(q, k, *tables(positions, 64), interleaved, out=poisoned(q, k))
            check(outs, (q, k), positions, interleaved)
            check(kernel(q.clone(), k.clone(), *tables(positions, 64), interleaved), (q, k), positions, interleaved)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("angles_of", ["all", "each"])
@pytest.mark.parametrize(("S", "Dr"), [(700, 64), (513, 6)])
def test_many_tokens_of_the_shared_key(kernel, S, Dr, angles_of, interleaved):
    wide = torch.randn(3, S, 2 * Dr + 1, device=DEVICE).half()
    q_rope, k_rope = torch.randn(3, S, 2, Dr, device=DEVICE).half(), wide[..., Dr : 2 * Dr]
    positions = torch.randint(9999, (3, S) if angles_of == "each" else (S,), device=DEVICE)
    exact = exact_rope(k_rope, positions, interleaved)
    cos, sin = rope_cos_sin(positions, Dr)
    before = wide.clone()
    _, found = kernel(q_rope, k_rope, cos, sin, interleaved)
    kernel(q_rope, k_rope, cos, sin, interleaved, out=(None, k_rope))
    for result in (found, k_rope):
        torch.testing.assert_close(result.double(), exact, rtol=2e-3, atol=2e-3)
    assert wide[..., :Dr].equal(before[..., :Dr]) and wide[..., 2 * Dr :].equal(before[..., 2 * Dr :])
