import functools
import math
import sys

import pytest
import torch

import mla_ref
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels import DECODERS, latent_attention_tma
from mla_ref.kernels._decode import Limits, choose_splits

DEVICE = "cpu" if emulator.active() else "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Relative: weights are rounded before they meet the values, the result once more.
BOUND = {torch.float32: 5e-6, torch.float16: 6e-4, torch.bfloat16: 5e-3}
SCALE = 0.1
NAN = float("nan")
TWIN = r"mla_ref\.(paged_)?latent_attention"


def through_pages(kernel, page_size):
    """The signature of the contiguous kernel, over pages in random order with poison wherever no token is."""

    @functools.wraps(kernel)
    def paged(q_latent, q_rope, c_kv, k_rope, *, seq_lens=None, **kwargs):
        B, T = k_rope.shape[:2]
        lengths = [T] * B if seq_lens is None else seq_lens.tolist()
        if isinstance(c_kv, mla_ref.Float8Latent):
            parts = c_kv.values.to(q_latent.dtype), c_kv.scales, k_rope  # E4M3 to more bits is exact
            (values, scales, *pages), table = scatter(parts, lengths, page_size)
            pages = mla_ref.Float8Latent(values.to(torch.float8_e4m3fn), scales), *pages
        else:
            pages, table = scatter((c_kv, k_rope), lengths, page_size)
        seq_lens = torch.tensor(lengths, dtype=torch.int64, device=q_latent.device)
        return kernel(q_latent, q_rope, *pages, table, seq_lens=seq_lens, **kwargs)

    return paged


def scatter(entries, lengths, page_size):
    """Return pools that hold the first tokens of each sequence, and a table that points nowhere beyond them."""
    counts = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(counts) + 3).tolist()
    columns = -(-entries[0].shape[1] // page_size) + 2
    table = torch.full((len(lengths), columns), 2**31 - 1, dtype=torch.int32)
    pools = [x.new_full((len(order), page_size, x.shape[2]), NAN) for x in entries]
    for b, length in enumerate(lengths):
        for i in range(counts[b]):
            table[b, i] = order.pop()
            first, last = i * page_size, min((i + 1) * page_size, length)
            for pool, x in zip(pools, entries, strict=True):
                pool[table[b, i], : last - first] = x[b, first:last]
    return pools, table.to(entries[0].device)


# Where there is no GPU, "hopper" is "tma"; its own widths are those of test_kernels_hopper.py.
RUN = {name: each for name, each in DECODERS.items() if name != "hopper" or not emulator.active()}
CONTIGUOUS = {f"contiguous, {name}": each.contiguous for name, each in RUN.items()}
PAGED = {name: each.paged for name, each in RUN.items()}
# "pointers" takes any page size; the others leave pages that hold no whole block to it.
KERNELS = CONTIGUOUS | {
    f"pages of {size}, {name}": through_pages(kernel, size)
    for name, kernel in PAGED.items()
    for size in [3 if name == "pointers" else 64]
}
all_kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
contiguous_kernels = pytest.mark.parametrize("kernel", CONTIGUOUS.values(), ids=CONTIGUOUS)
paged_kernels = pytest.mark.parametrize("kernel", PAGED.values(), ids=PAGED)


def drawn(B, S, H, T, R, Dr, dtype=torch.float32):
    """q_latent, q_rope, c_kv, k_rope; the last two are views of one buffer."""
    q_latent, q_rope = torch.randn(B, S, H, R, device=DEVICE), torch.randn(B, S, H, Dr, device=DEVICE)
    cache = torch.randn(B, T, R + Dr, device=DEVICE).to(dtype)
    return q_latent.to(dtype), q_rope.to(dtype), cache[..., :R], cache[..., R:]


def poison(operands, seq_lens):
    for b, length in enumerate(seq_lens.tolist()):
        for cache in operands[2:]:
            cache[b, length:] = NAN


def places(q_latent):
    shape = q_latent.shape
    return {"out": torch.full_like(q_latent, NAN), "lse": torch.full(shape[:3], NAN, device=DEVICE)}


def check(result, operands, seq_lens=None, causal=True):
    exact, exact_lse = mla_ref.latent_attention(
        *(x.double() for x in operands), scale=SCALE, seq_lens=seq_lens, causal=causal
    )
    out, lse = result
    dtype = operands[0].dtype
    assert out.dtype == dtype and lse.dtype == torch.float32
    seen = exact_lse > -math.inf
    assert lse.isneginf().equal(~seen) and not out[~seen].any()
    torch.testing.assert_close(lse[seen].double(), exact_lse[seen], rtol=1e-5, atol=1e-5)
    error = (out.double() - exact)[seen].norm(dim=-1) / exact[seen].norm(dim=-1)
    assert (error <= BOUND[dtype] * 2).all()  # of each row
    if seen.any():
        assert (out.double() - exact).norm() / exact.norm() <= BOUND[dtype]


@all_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(
    "size", [(3, 1, 1, 37, 32, 8), (2, 3, 5, 70, 64, 16), (1, 2, 128, 65, 32, 16), (2, 1, 16, 129, 48, 10)]
)
def test_ragged_sequences(kernel, size, num_splits, dtype):
    operands = drawn(*size, dtype)
    seq_lens = torch.randint(0, size[3] + 1, (size[0],), device=DEVICE)
    poison(operands, seq_lens)
    given = places(operands[0])
    result = kernel(*operands, scale=SCALE, seq_lens=seq_lens, num_splits=num_splits, **given)
    assert result[0] is given["out"] and result[1] is given["lse"]
    check(result, operands, seq_lens)


@all_kernels
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("S", [2, 4, 7])
def test_query_tokens_fold_into_heads(kernel, S, causal):
    operands = drawn(3, S, 10, 70, 32, 16, torch.float16)
    for lengths, num_splits in (([70, 64, 65], 2), ([1, S - 1, S], 1)):
        seq_lens = torch.tensor(lengths, device=DEVICE)
        result = kernel(*operands, scale=SCALE, seq_lens=seq_lens, causal=causal, num_splits=num_splits)
        check(result, operands, seq_lens, causal)


@all_kernels
def test_whole_sequences_and_a_number_of_splits_of_its_own(kernel):
    operands = drawn(2, 2, 3, 131, 32, 16)
    check(kernel(*operands, scale=SCALE), operands)


@all_kernels
@pytest.mark.parametrize(("S", "H"), [(1, 5), (2, 20)])
@pytest.mark.parametrize("num_splits", [1, 3])
def test_with_splits_given_a_sequence_has_the_same_bits_whatever_else_is_in_the_batch(kernel, S, H, num_splits):
    operands, seq_lens = drawn(4, S, H, 210, 32, 16, torch.bfloat16), torch.tensor([70, 210, 3, 128], device=DEVICE)
    options = {"scale": SCALE, "num_splits": num_splits}
    together = kernel(*operands, seq_lens=seq_lens, **options)
    for b, length in enumerate(seq_lens.tolist()):
        rows = [x[b : b + 1] for x in operands[:2]] + [x[b : b + 1, :length] for x in operands[2:]]
        alone = kernel(*rows, seq_lens=seq_lens[b : b + 1], **options)
        assert all(torch.equal(x[b : b + 1], y) for x, y in zip(together, alone, strict=True))


@all_kernels
def test_more_splits_than_tokens(kernel):
    operands = drawn(2, 1, 4, 5, 32, 16, torch.float16)
    seq_lens = torch.tensor([5, 0], device=DEVICE)
    check(kernel(*operands, scale=SCALE, seq_lens=seq_lens, num_splits=9), operands, seq_lens)


@all_kernels
def test_no_sequence_no_query_no_context(kernel):
    for size in ((0, 1, 4, 5), (2, 0, 4, 5), (2, 1, 0, 5), (2, 3, 4, 0)):
        operands = drawn(*size, 32, 16)
        check(kernel(*operands, scale=SCALE, causal=False), operands, causal=False)


@all_kernels
def test_large_scores(kernel):
    operands = drawn(1, 1, 4, 200, 32, 16)
    operands = (operands[0] * 1000, *operands[1:])
    check(kernel(*operands, scale=SCALE), operands)
    check(kernel(*operands, scale=SCALE, num_splits=3), operands)


@all_kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [NAN, math.inf])
def test_a_broken_cache_or_query_shows(kernel, value, dtype):
    for broken in (0, 2):
        operands = [x.abs() for x in drawn(1, 1, 2, 200, 32, 16, dtype)]
        operands[broken][0, 0, ..., 3] = value
        for num_splits in (1, 3):
            out, lse = kernel(*operands, scale=SCALE, num_splits=num_splits)
            assert out.isnan().any(-1).all() and not lse.isfinite().any()


@all_kernels
def test_lengths_out_of_range_count_as_the_nearest_where_nothing_looks_at_them(kernel):
    operands = drawn(5, 2, 3, 128, 32, 16)
    lengths = torch.tensor([-(2**32) + 70, -(2**31) - 1, -5, 2**40, 33], device=DEVICE)
    nearest = torch.tensor([0, 0, 0, 128, 33], device=DEVICE)
    if kernel in CONTIGUOUS.values():
        given = functools.partial(kernel, *operands)
    else:
        pages, table = scatter(operands[2:], [128] * 5, 64)
        given = functools.partial(kernel.__wrapped__, *operands[:2], *pages, table[:, :2])
        if DEVICE == "cpu":
            with pytest.raises(ValueError, match=r"seq_lens\[0\] is -4294967226, expected 0 <= seq_lens <= 128"):
                given(scale=SCALE, seq_lens=lengths)
            return
    for num_splits in (1, 3):
        for causal in (True, False):
            result = given(scale=SCALE, seq_lens=lengths, causal=causal, num_splits=num_splits)
            check(result, operands, nearest, causal)


@pytest.mark.parametrize(
    ("shared_kib", "nvidia", "R", "dtype"),
    [
        (163, True, 520, torch.float16),
        (163, True, 1024, torch.float32),
        (99, True, 520, torch.bfloat16),
        (64, True, 512, torch.float16),
        (64, False, 512, torch.float32),
    ],
)
def test_a_gpu_with_less_shared_memory_takes_smaller_blocks_or_refuses(shared_kib, nvidia, R, dtype, monkeypatch):
    limit = Limits(1, shared_kib * 1024, nvidia, (8, 0))
    for module in ("decode", "decode_tma"):
        monkeypatch.setattr(sys.modules[f"mla_ref.kernels.{module}"], "limits", lambda device: limit)
    for heads in (3, 20):
        operands = drawn(1, 1, heads, 40, R, 64, dtype)
        check(latent_attention_tma(*operands, scale=SCALE), operands)
    if shared_kib < 100:
        operands = drawn(1, 1, 3, 40, 520, 64)
        with pytest.raises(ValueError, match=rf"R = 520 and Dr = 64, expected .* fit into {shared_kib} KiB of shared"):
            latent_attention_tma(*operands, scale=SCALE)
    operands = drawn(1, 1, 3, 40, 1025, 64, dtype)
    with pytest.raises(ValueError, match=rf"R = 1025 and Dr = 64, expected .* fit into {shared_kib} KiB of shared"):
        latent_attention_tma(*operands, scale=SCALE)


@all_kernels
def test_any_layout(kernel):
    B, S, H, R = 2, 3, 5, 32
    q_latent, q_rope, c_kv, k_rope = drawn(B, S, H, 70, R, 16, torch.float16)
    query = torch.cat((q_latent, q_rope), -1).transpose(0, 2).contiguous().transpose(0, 2)
    c_kv = c_kv.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    operands = (query[..., :R], query[..., R:], c_kv, k_rope)
    out = torch.full((R + 1, H, S, B + 1), NAN, device=DEVICE).half().permute(3, 2, 1, 0)[:B, ..., :R]
    lse = torch.full((S, B, 2 * H), NAN, device=DEVICE).transpose(0, 1)[..., ::2]
    for num_splits in (1, 2):
        check(kernel(*operands, scale=SCALE, out=out, lse=lse, num_splits=num_splits), operands)


@paged_kernels
def test_lengths_and_table_in_any_layout(kernel):
    operands = drawn(2, 1, 4, 150, 32, 16, torch.bfloat16)
    pages, table = scatter(operands[2:], [150, 150], 64)
    table, seq_lens = table.T.contiguous().T, torch.tensor([150], device=DEVICE).expand(2)
    check(kernel(*operands[:2], *pages, table, scale=SCALE, seq_lens=seq_lens), operands)


@contiguous_kernels
def test_a_window_of_a_larger_cache(kernel):
    q_latent, q_rope, c_kv, k_rope = drawn(3, 1, 4, 200, 32, 16, torch.bfloat16)
    operands = (q_latent[:2], q_rope[:2], c_kv[1:, 5:135], k_rope[1:, 5:135])
    seq_lens = torch.tensor([130, 66], dtype=torch.int32, device=DEVICE)
    check(kernel(*operands, scale=SCALE, seq_lens=seq_lens), operands, seq_lens)


@contiguous_kernels
@pytest.mark.parametrize("axis", ["sequence", "token"])
def test_offsets_beyond_32_bits(kernel, axis):
    far = torch.empty(2**31 + 512, dtype=torch.float16, device=DEVICE)
    stride = 2**30
    B, T = (3, 2) if axis == "sequence" else (1, 3)
    strides = (stride, 64 if axis == "sequence" else stride, 1)
    c_kv, k_rope = far.as_strided((B, T, 32), strides), far[32:].as_strided((B, T, 16), strides)
    for each in (c_kv, k_rope):
        each.copy_(torch.randn(each.shape))
    operands = (*drawn(B, 1, 2, 1, 32, 16, torch.float16)[:2], c_kv, k_rope)
    check(kernel(*operands, scale=SCALE), operands)
    out = far[256:].as_strided((B, 1, 2, 32), (stride, 1, 32 if axis == "sequence" else stride, 1))
    check(kernel(*operands, scale=SCALE, out=out), operands)


@paged_kernels
def test_pages_beyond_32_bits(kernel):
    pages = torch.empty(2**31 // (128 * 48) + 2, 128, 48, dtype=torch.float16, device=DEVICE)
    ids = [len(pages) - 1, 1]
    for page in ids:
        pages[page] = torch.randn(128, 48).half().to(DEVICE)
    gathered = torch.cat([pages[page] for page in ids])[None, :200]
    operands = (*drawn(1, 1, 2, 1, 32, 16, torch.float16)[:2], gathered[..., :32], gathered[..., 32:])
    table = torch.tensor([ids], dtype=torch.int32, device=DEVICE)
    seq_lens = torch.tensor([200], device=DEVICE)
    result = kernel(*operands[:2], pages[..., :32], pages[..., 32:], table, scale=SCALE, seq_lens=seq_lens)
    check(result, operands, seq_lens)


@pytest.mark.thorough(but=2)
@paged_kernels
@pytest.mark.parametrize("page_size", [1, 2, 7, 16, 64, 128, 192, 1024])
def test_page_sizes_and_lengths_that_end_on_a_boundary(kernel, page_size):
    operands = drawn(3, 2, 3, 260, 32, 16, torch.float16)
    full = 256 // page_size * page_size or 1
    for lengths in ([full, full + 1, full - 1], [260, 0, min(page_size, 260)]):
        seq_lens = torch.tensor(lengths, device=DEVICE)
        for num_splits in (1, 3):
            result = through_pages(kernel, page_size)(*operands, scale=SCALE, seq_lens=seq_lens, num_splits=num_splits)
            check(result, operands, seq_lens)


def test_shared_pages():
    operands = drawn(2, 1, 4, 128, 32, 16, torch.float16)
    pages = [x[0].view(2, 64, -1) for x in operands[2:]]
    table = torch.tensor([[0, 1], [0, 7]], device=DEVICE)
    seq_lens = torch.tensor([128, 50], device=DEVICE)
    same = (*operands[:2], *(x[:1].expand(2, -1, -1) for x in operands[2:]))
    for kernel in PAGED.values():
        check(kernel(*operands[:2], *pages, table, scale=SCALE, seq_lens=seq_lens), same, seq_lens)


def test_splits_fill_the_gpu_and_no_more():
    assert choose_splits(programs=128, blocks=64, multiprocessors=132) == 1
    assert choose_splits(programs=1, blocks=1, multiprocessors=132) == 1
    assert choose_splits(programs=1, blocks=0, multiprocessors=132) == 1
    for programs in (1, 3, 16, 40):
        splits = choose_splits(programs, blocks=128, multiprocessors=132)
        assert 66 < programs * splits <= 132


@all_kernels
def test_gradients_are_refused_where_they_are_wanted(kernel):
    operands = drawn(1, 1, 2, 5, 32, 16)
    operands[0].requires_grad_()
    with pytest.raises(
        RuntimeError, match=r"q_latent requires a gradient.*no_grad.*mla_ref\.(paged_)?latent_attention"
    ):
        kernel(*operands, scale=SCALE)
    with torch.no_grad():
        check(kernel(*operands, scale=SCALE), operands)


@all_kernels
def test_errors_say_what_came(kernel):
    q_latent, q_rope, c_kv, k_rope = operands = drawn(2, 3, 5, 8, 32, 16)
    with pytest.raises(ValueError, match=r"c_kv has shape \[.*, 31\], expected .* with R = 32 from q_latent"):
        kernel(q_latent, q_rope, c_kv[..., :31], k_rope, scale=SCALE)
    with pytest.raises(TypeError, match=rf"has dtype torch.float64, expected one of .*: use {TWIN}"):
        kernel(*(x.double() for x in operands), scale=SCALE)
    with pytest.raises(ValueError, match=r"out has shape \[2, 3, 4, 32\], expected \[2, 3, 5, 32\]"):
        kernel(*operands, scale=SCALE, out=q_latent[:, :, :4])
    with pytest.raises(TypeError, match=r"lse has dtype torch.float16, expected a tensor of torch.float32"):
        kernel(*operands, scale=SCALE, lse=q_latent[..., 0].half())
    with pytest.raises(ValueError, match=r"num_splits is 0, expected a positive int"):
        kernel(*operands, scale=SCALE, num_splits=0)
    with pytest.raises(TypeError, match=r"scale is None, expected a float"):
        kernel(*operands, scale=None)
    with pytest.raises(TypeError, match=r"scale is tensor\(.*\), expected a float"):
        kernel(*operands, scale=torch.tensor(SCALE))
    with pytest.raises(ValueError, match=r"out has strides \[0, 0, 0, 1\] .*, expected a place for each element"):
        kernel(*operands, scale=SCALE, out=torch.empty(32, device=DEVICE).expand(q_latent.shape))
    with pytest.raises(ValueError, match=r"q_latent has shape \[2, 3, 5, 0\], expected rows of at least one value"):
        kernel(q_latent[..., :0], q_rope, c_kv[..., :0], k_rope, scale=SCALE)


@contiguous_kernels
def test_errors_about_lengths(kernel):
    operands = drawn(2, 3, 5, 8, 32, 16)
    with pytest.raises(ValueError, match=r"seq_lens has shape \[3\], expected \[B\] with B = 2"):
        kernel(*operands, scale=SCALE, seq_lens=torch.zeros(3, dtype=torch.int32, device=DEVICE))
    with pytest.raises(TypeError, match=r"seq_lens has dtype torch.float32, expected an int32 or int64 tensor"):
        kernel(*operands, scale=SCALE, seq_lens=torch.zeros(2, device=DEVICE))
    with pytest.raises(ValueError, match=r"T = 2 is less than S = 3.*append"):
        kernel(*operands[:2], *(x[:, :2] for x in operands[2:]), scale=SCALE)


@paged_kernels
def test_errors_about_pages(kernel):
    operands = drawn(2, 3, 5, 8, 32, 16)
    table, seq_lens = (torch.zeros(shape, dtype=torch.int32, device=DEVICE) for shape in ((2, 4), (2,)))
    with pytest.raises(ValueError, match=r"block_table has shape \[1, 4\], expected \[B, max_pages\] with B = 2"):
        kernel(*operands, table[:1], scale=SCALE, seq_lens=seq_lens)
    with pytest.raises(TypeError, match=r"block_table has dtype torch.float32, expected an int32 or int64 tensor"):
        kernel(*operands, table.float(), scale=SCALE, seq_lens=seq_lens)
    with pytest.raises(TypeError, match=r"seq_lens is None, expected an int32 or int64 tensor"):
        kernel(*operands, table, scale=SCALE, seq_lens=None)
    with pytest.raises(TypeError, match=r"block_table has type NoneType, expected an int32 or int64 tensor"):
        kernel(*operands, None, scale=SCALE, seq_lens=seq_lens)


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU nobody looks: that would wait")
@paged_kernels
@pytest.mark.parametrize("page_size", [3, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_holes_within_a_length_are_refused(kernel, page_size, dtype):
    operands = drawn(2, 1, 4, 130, 32, 16, dtype)
    lengths = torch.tensor([65, 130])
    pages, table = scatter(operands[2:], lengths.tolist(), page_size)
    given = functools.partial(kernel, *operands[:2], *pages, scale=SCALE)
    check(given(table, seq_lens=lengths), operands, lengths)
    for entry in (0, 1, 64 // page_size):
        for hole in (-1, len(pages[0]), 2**31 - 1):
            broken = table.clone()
            broken[0, entry] = hole
            with pytest.raises(ValueError, match=rf"block_table\[0, {entry}\] is {hole}, expected 0 <= page <"):
                given(broken, seq_lens=lengths)
    room = page_size * table.shape[1]
    with pytest.raises(ValueError, match=rf"seq_lens\[1\] is {room + 1}, expected 0 <= seq_lens <= {room}"):
        given(table, seq_lens=torch.tensor([65, room + 1]))


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@all_kernels
@pytest.mark.parametrize("num_splits", [1, 4, None])
def test_in_a_cuda_graph_without_waiting(kernel, num_splits):
    operands = drawn(2, 1, 16, 1000, 512, 64, torch.bfloat16)
    seq_lens = torch.tensor([1000, 1000], dtype=torch.int32, device=DEVICE)
    if kernel not in CONTIGUOUS.values():
        pages, table = scatter(operands[2:], [1000, 1000], 64)
        kernel = functools.partial(kernel.__wrapped__, block_table=table)
        arguments = (*operands[:2], *pages)
    else:
        arguments = operands
    given = places(operands[0])
    kernel(*arguments, scale=SCALE, seq_lens=seq_lens, num_splits=num_splits, **given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(*arguments, scale=SCALE, seq_lens=seq_lens, num_splits=num_splits, **given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    operands[0].normal_()
    seq_lens.copy_(torch.tensor([77, 999]))
    for each in given.values():
        each.fill_(NAN)
    graph.replay()
    check(tuple(given.values()), operands, seq_lens)


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@all_kernels
@pytest.mark.parametrize(
    "size", [(3, 1, 16, 1001), (5, 1, 128, 700), (2, 2, 64, 513), (4, 4, 16, 300), (1, 1, 1, 5000)]
)
def test_large_sizes(kernel, size):
    for dtype in DTYPES[1:]:
        operands = drawn(*size, 512, 64, dtype)
        seq_lens = torch.randint(size[3] // 2, size[3] + 1, (size[0],), device=DEVICE)
        poison(operands, seq_lens)
        for num_splits in (None, 1, 5):
            options = {"scale": SCALE, "seq_lens": seq_lens, "num_splits": num_splits, **places(operands[0])}
            check(kernel(*operands, **options), operands, seq_lens)


@all_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tile", [None, 16])
@pytest.mark.parametrize(
    "size", [(3, 1, 1, 37, 32, 8), (2, 2, 5, 130, 64, 16), (1, 1, 33, 65, 32, 16), (2, 1, 3, 9, 48, 10)]
)
def test_latents_in_fp8(kernel, size, tile, dtype):
    q_latent, q_rope, c_kv, k_rope = drawn(*size, dtype)
    seq_lens = torch.randint(1, size[3] + 1, (size[0],), device=DEVICE)
    narrow = mla_ref.quantize_latent(c_kv * torch.rand(*c_kv.shape[:2], 1, device=DEVICE).to(dtype), tile=tile)
    result = kernel(q_latent, q_rope, narrow, k_rope, scale=SCALE, seq_lens=seq_lens, num_splits=2)
    wide = [x.double() for x in (q_latent, q_rope)], narrow.dequantize(torch.float64), k_rope.double()
    exact, exact_lse = mla_ref.latent_attention(*wide[0], *wide[1:], scale=SCALE, seq_lens=seq_lens)
    assert result[0].dtype == dtype
    seen = exact_lse > -math.inf
    error = (result[0].double() - exact)[seen].norm(dim=-1) / exact[seen].norm(dim=-1)
    assert (error <= BOUND[dtype] * 2).all()
    torch.testing.assert_close(result[1][seen].double(), exact_lse[seen], rtol=1e-3, atol=1e-3)
    twin = mla_ref.latent_attention(q_latent, q_rope, narrow, k_rope, scale=SCALE, seq_lens=seq_lens)
    torch.testing.assert_close(twin[1][seen].double(), exact_lse[seen], rtol=1e-5, atol=1e-5)
