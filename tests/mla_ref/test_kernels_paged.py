from typing import NamedTuple

import pytest
import torch

import mla_ref
from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref import kernels

DEVICE = "cpu" if emulator.active() else "cuda"
BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
BOGUS = (-1, 2**31 - 1, -(2**31), 10**6)

both = pytest.mark.parametrize("ops", [mla_ref, kernels], ids=["twin", "kernel"])
page_sizes = pytest.mark.parametrize("page_size", [1, 3, 64, 1024])


class Problem(NamedTuple):
    """Tokens and poisoned pages, a permuted table whose entries beyond need are bogus, and the places of tokens."""

    c_kv: torch.Tensor
    k_rope: torch.Tensor
    c_kv_pages: torch.Tensor
    k_rope_pages: torch.Tensor
    block_table: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    places: list  # (sequence, token, page, slot)

    @property
    def written(self):
        """Arguments of an update by name."""
        return {name: each for name, each in self._asdict().items() if name != "places"}

    @property
    def read(self):
        """Arguments of a gather by name."""
        names = ("c_kv_pages", "k_rope_pages", "block_table", "starts", "lengths")
        return {name: getattr(self, name) for name in names}

    @property
    def pages(self):
        return self.c_kv_pages, self.k_rope_pages

    @property
    def tokens(self):
        return self.c_kv, self.k_rope


def drawn(starts, lengths, R=5, K=3, page_size=4, dtype=torch.float32, new=None):
    new = max(lengths) if new is None else new
    needed = [-(-(start + length) // page_size) for start, length in zip(starts, lengths, strict=True)]
    order = (torch.randperm(sum(needed)) * 2 + 1).tolist()  # every other page is nobody's
    table = torch.tensor(BOGUS, dtype=torch.int32).repeat(len(starts), max(needed, default=0) // 4 + 1)
    places = []
    for b, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for entry in range(start // page_size, needed[b]):
            table[b, entry] = order.pop()
        for token in range(length):
            entry, slot = divmod(start + token, page_size)
            places.append((b, token, int(table[b, entry]), slot))
    num_pages = 2 * sum(needed) + 2
    return Problem(
        torch.randn(len(starts), new, R).to(DEVICE, dtype),
        torch.randn(len(starts), new, K).to(DEVICE, dtype),
        torch.full((num_pages, page_size, R), float("nan"), dtype=dtype, device=DEVICE),
        torch.full((num_pages, page_size, K), float("nan"), dtype=dtype, device=DEVICE),
        table.to(DEVICE),
        torch.tensor(starts, dtype=torch.int32, device=DEVICE),
        torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
        places,
    )


def same(a, b):
    return a.shape == b.shape and a.contiguous().view(BITS[a.dtype]).equal(b.contiguous().view(BITS[b.dtype]))


def expected_pages(problem):
    for entries, pages in zip(problem.tokens, problem.pages, strict=True):
        pages = pages.clone()
        for b, token, page, slot in problem.places:
            pages[page, slot] = entries[b, token]
        yield pages


def expected_tokens(problem, outs):
    for out, pages in zip(outs, problem.pages, strict=True):
        out = out.clone()
        for b, token, page, slot in problem.places:
            out[b, token] = pages[page, slot]
        yield out


def update(ops, problem, **changes):
    problem = problem._replace(**changes)
    expected = list(expected_pages(problem))
    ops.paged_update(**problem.written)
    assert all(map(same, problem.pages, expected))


def gather(ops, problem, **changes):
    problem = problem._replace(**changes)
    outs = tuple(torch.full_like(each, float("nan")) for each in problem.tokens)
    expected = list(expected_tokens(problem, outs))
    returned = ops.paged_gather(**problem.read, out=outs)
    assert all(a is b for a, b in zip(returned, outs, strict=True))
    assert all(map(same, outs, expected))


@both
@page_sizes
@pytest.mark.parametrize("dtype", BITS)
def test_tokens_go_where_the_table_says_and_nowhere_else(ops, page_size, dtype):
    problem = drawn([0, 7, 63, 1, 130], [3, 0, 5, 1, 4], page_size=page_size, dtype=dtype)
    update(ops, problem)
    gather(ops, problem)


@both
@pytest.mark.parametrize("size", [(1, 1), (6, 2), (33, 65), (512, 64)])
def test_any_width(ops, size):
    problem = drawn([5, 0], [2, 1], *size)
    update(ops, problem)
    gather(ops, problem)


@both
@page_sizes
def test_blocks_of_tokens_cross_pages(ops, page_size):
    new = 19 if DEVICE == "cpu" else 2100
    problem = drawn([page_size - 1, 0, 5 * page_size, 2], [new, page_size % new, 1, new - 1], page_size=page_size)
    update(ops, problem)
    gather(ops, problem)


@both
def test_defaults_are_all_tokens_and_position_0(ops):
    problem = drawn([0, 0, 0], [6, 6, 6])
    problem = problem._replace(lengths=None)
    update(ops, problem)
    lengths = torch.tensor([6, 2, 4], device=DEVICE)
    c_kv, k_rope = ops.paged_gather(*problem.pages, problem.block_table, lengths=lengths)
    for out, tokens in ((c_kv, problem.c_kv), (k_rope, problem.k_rope)):
        beyond = torch.arange(6, device=DEVICE) >= lengths[:, None]
        assert same(out, tokens.masked_fill(beyond[..., None], 0))


@both
def test_nothing_to_do(ops):
    problem = drawn([3, 1], [0, 0])
    update(ops, problem)
    gather(ops, problem)
    update(ops, drawn([3, 1], [0, 0], new=5))
    gather(ops, drawn([3, 1], [0, 0], new=5))
    outs = ops.paged_gather(*problem.pages, problem.block_table, lengths=problem.lengths)
    assert outs[0].shape == (2, 0, 5) and outs[1].shape == (2, 0, 3)
    update(ops, drawn([], [], new=2))
    gather(ops, drawn([], [], new=2))


@both
def test_a_gather_is_cut_off_where_its_output_ends(ops):
    problem = drawn([2, 0], [7, 0])
    update(ops, problem)
    short = problem._replace(c_kv=problem.c_kv[:, :3], k_rope=problem.k_rope[:, :3])
    gather(ops, short, places=[place for place in problem.places if place[1] < 3])


@both
def test_what_is_in_no_page_is_left_out(ops):
    problem = drawn([0, 0, 9, 0], [8, 8, 3, 8])
    table = problem.block_table[:, :2].contiguous()  # without the places of sequence 2
    table[1] = torch.tensor([len(problem.c_kv_pages), -7])
    table[3, 1] = BOGUS[1]
    starts = problem.starts.clone()
    starts[0] = -3
    places = [(0, s, int(table[0, (s - 3) // 4]), (s - 3) % 4) for s in range(3, 8)]
    places += [place for place in problem.places if place[0] == 3 and place[1] < 4]
    update(ops, problem, block_table=table, starts=starts, places=places)


@both
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"hole": -1},
            r"block_table\[1, 2\] is -1, expected 0 <= page < {pages}: positions 8 to 10 of sequence 1 have",
        ),
        ({"hole": "pages"}, r"block_table\[1, 2\] is {pages}, expected 0 <= page < {pages}: positions 8 to 10"),
        ({"columns": 2}, "sequence 1 has tokens at positions 5 to 10, expected 0 <= position < 8"),
        ({"starts": [0, -1, 0]}, "sequence 1 has tokens at positions -1 to 4, expected 0 <= position"),
        ({"starts": [0, 2**31 - 2, 0]}, "sequence 1 has tokens at positions 2147483646 to 2147483651, expected"),
    ],
)
def test_a_gather_refuses_tokens_that_are_in_no_page(ops, change, message):
    problem = drawn([0, 5, 0], [3, 6, 0])
    pages, table, starts = len(problem.c_kv_pages), problem.block_table.clone(), problem.starts
    if "hole" in change:
        table[1, 2] = pages if change["hole"] == "pages" else change["hole"]
    table = table[:, : change.get("columns")]
    starts = torch.tensor(change.get("starts", starts.tolist()), dtype=torch.int32, device=DEVICE)
    given = problem._replace(block_table=table, starts=starts).read
    with pytest.raises(ValueError, match=message.format(pages=pages)):
        ops.paged_gather(**given)
    if DEVICE == "cpu" or ops is mla_ref:  # elsewhere it would have to wait
        with pytest.raises(ValueError, match=message.format(pages=pages)):
            ops.paged_gather(**given, out=problem.tokens)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU: on a CPU it is refused")
def test_a_kernel_that_may_not_wait_leaves_out_what_is_in_no_page():
    problem = drawn([0, 5], [3, 6])
    update(kernels, problem)
    table = problem.block_table.clone()
    table[1, 2] = -1
    gather(kernels, problem, block_table=table, places=[p for p in problem.places if (p[0], p[1]) < (1, 3)])


@both
def test_integers_of_any_type_and_stride(ops):
    problem = drawn([1, 4, 2], [3, 1, 2])
    wide = torch.stack((problem.block_table, problem.block_table + 1), -1).long()[..., 0]
    numbers = torch.stack((problem.starts, problem.lengths), -1).long()
    changes = {"block_table": wide, "starts": numbers[:, 0], "lengths": numbers[:, 1]}
    update(ops, problem, **changes)
    gather(ops, problem, **changes)


@both
def test_latent_and_key_may_be_parts_of_one_tensor(ops):
    problem = drawn([1, 4, 2], [3, 1, 2])
    c_kv, k_rope = torch.cat(problem.tokens, -1).split((5, 3), -1)
    pages = torch.cat(problem.pages, -1)
    c_kv_pages, k_rope_pages = pages.split((5, 3), -1)
    problem = problem._replace(c_kv=c_kv, k_rope=k_rope, c_kv_pages=c_kv_pages, k_rope_pages=k_rope_pages)
    update(ops, problem)
    gather(ops, problem)


@both
def test_any_layout(ops):
    problem = drawn([1, 4, 2], [3, 1, 2], dtype=torch.bfloat16)
    turned = [each.permute(2, 0, 1).contiguous().permute(1, 2, 0) for each in problem[:4]]
    problem = Problem(*turned, *problem[4:])
    update(ops, problem)
    gather(ops, problem)


@both
@pytest.mark.parametrize("far", ["sequences", "tokens", "pages", "slots"])
def test_offsets_beyond_32_bits(ops, far):
    memory = torch.empty(2**31 + 4096, dtype=torch.float16, device=DEVICE)
    problem = drawn([0, 0, 0], [3, 3, 3], 8, 4, page_size=3, dtype=torch.float16)
    # drawn() uses every other page; here memory is as large as 3 that are side by side.
    places = [(b, s, page // 2, slot) for b, s, page, slot in problem.places]
    pages = [each[:3] for each in problem.pages]
    stride = (2**30, 8) if far in ("sequences", "pages") else (8, 2**30)
    moved = [memory.as_strided((3, 3, width), (*stride, 1), at) for width, at in ((8, 0), (4, 1024))]
    for to, each in zip(moved, problem.tokens if far in ("sequences", "tokens") else pages, strict=True):
        to.copy_(each)
    tokens, pages = (moved, pages) if far in ("sequences", "tokens") else (problem.tokens, moved)
    problem = Problem(*tokens, *pages, problem.block_table // 2, *problem[5:-1], places)
    update(ops, problem)
    expected = list(expected_tokens(problem, tokens))
    for each in tokens:
        each.fill_(float("nan"))
    ops.paged_gather(**problem.read, out=tuple(tokens))
    assert all(map(same, tokens, expected))


def test_gradients_are_refused_where_they_are_wanted():
    problem = drawn([1], [2])
    problem.c_kv.requires_grad_()
    with pytest.raises(RuntimeError, match=r"requires a gradient.*no_grad.*mla_ref\.paged_update"):
        kernels.paged_update(**problem.written)
    with torch.no_grad():
        update(kernels, problem)
    problem.k_rope_pages.requires_grad_()
    with pytest.raises(RuntimeError, match=r"requires a gradient.*no_grad.*mla_ref\.paged_gather"):
        kernels.paged_gather(*problem.pages, problem.block_table, lengths=problem.lengths)


def test_an_output_has_a_place_for_each_element():
    problem = drawn([1], [2])
    expanded = [each[:1].expand(each.shape) for each in problem.pages]
    with pytest.raises(ValueError, match=r"c_kv_pages has strides .*, expected a place for each element"):
        kernels.paged_update(**problem._replace(c_kv_pages=expanded[0], k_rope_pages=expanded[1]).written)
    for out, what in ((problem.tokens[:1], "tuple of 1"), (problem.c_kv, "Tensor")):
        with pytest.raises(TypeError, match=f"out is a {what}, expected a pair of tensors"):
            kernels.paged_gather(**problem.read, out=out)


def test_errors_name_the_twin_for_other_dtypes():
    problem = drawn([1], [2])
    wide = Problem(*(each.double() for each in problem[:4]), *problem[4:])
    with pytest.raises(TypeError, match=r"has dtype torch.float64, expected one of .*: use mla_ref\.paged_update"):
        kernels.paged_update(**wide.written)


@both
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"k_rope": torch.zeros(2, 4, 3)}, ValueError, r"k_rope has shape \[2, 4, 3\], expected .* S = 3 from c_kv"),
        ({"c_kv": torch.zeros(3, 3, 5)}, ValueError, r"k_rope has shape \[2, 3, 3\], expected .* B = 3 from c_kv"),
        ({"c_kv_pages": torch.zeros(5, 4, 5)}, ValueError, "k_rope_pages has shape .* from c_kv_pages"),
        ({"c_kv": torch.zeros(2, 3, 5).half()}, TypeError, "c_kv has dtype torch.float16, expected torch.float32"),
        ({"block_table": torch.zeros(2, 3)}, TypeError, "block_table has dtype torch.float32, expected an int32 or"),
        ({"block_table": torch.zeros(2).int()}, ValueError, r"block_table has shape \[2\], .* \[B, max_pages\]"),
        ({"starts": torch.zeros(3).int()}, ValueError, r"starts has shape \[3\], expected \[B\] with B = 2"),
        ({"starts": [0, 1]}, TypeError, "starts has type list, expected an int32 or int64 tensor"),
        ({"lengths": torch.zeros(2, 1).int()}, ValueError, r"lengths has shape \[2, 1\], expected .*\[B\]"),
    ],
)
def test_errors_say_what_came(ops, change, error, message):
    problem = drawn([1, 2], [3, 2])
    before = [each.clone() for each in problem.pages]
    change = {name: each.to(DEVICE) if isinstance(each, torch.Tensor) else each for name, each in change.items()}
    changed = problem._replace(**change)
    with pytest.raises(error, match=message):
        ops.paged_update(**changed.written)
    assert all(map(same, problem.pages, before))
    with pytest.raises(error):
        ops.paged_gather(**changed.read, out=changed.tokens)


@both
def test_what_cannot_be_left_out(ops):
    problem = drawn([1, 2], [3, 2])
    with pytest.raises(TypeError, match="starts has type NoneType, expected an int32 or int64 tensor"):
        ops.paged_update(**problem._replace(starts=None).written)
    with pytest.raises(TypeError, match="lengths has type NoneType, expected an int32 or int64 tensor"):
        ops.paged_gather(*problem.pages, problem.block_table, lengths=None)


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_in_a_cuda_graph_without_waiting():
    problem = drawn([0, 0, 0], [5, 2, 1], 512, 64, page_size=64, dtype=torch.bfloat16, new=5)
    outs = tuple(torch.empty_like(each) for each in problem.tokens)

    def step():
        kernels.paged_update(**problem.written)
        kernels.paged_gather(**problem.read, out=outs)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for each in (*problem.tokens, *problem.pages, *outs):
        each.normal_()
    problem.lengths.copy_(torch.tensor([1, 4, 0]))
    problem.starts.copy_(torch.tensor([9, 60, 3]))
    problem.block_table[:, 0] = torch.tensor([2, 0, 1])
    problem = problem._replace(
        places=[(b, s, (2, 0, 1)[b], start + s) for b, start, n in ((0, 9, 1), (1, 60, 4)) for s in range(n)]
    )
    pages = list(expected_pages(problem))
    tokens = list(expected_tokens(problem._replace(c_kv_pages=pages[0], k_rope_pages=pages[1]), outs))
    graph.replay()
    assert all(map(same, problem.pages, pages))
    assert all(map(same, outs, tokens))


@pytest.mark.skipif(DEVICE == "cpu", reason="large: for a GPU")
@pytest.mark.parametrize("page_size", [1, 16, 64, 1000, 1024])
def test_large_sizes_there_and_back(page_size):
    for dtype in BITS:
        B, S = 9, 3001
        lengths = torch.randint(0, S + 1, (B,), device=DEVICE)
        starts = torch.randint(0, 5000, (B,), device=DEVICE)
        max_pages = -(-(S + 5000) // page_size)
        table = torch.randperm(B * max_pages, device=DEVICE).view(B, max_pages)
        c_kv, k_rope = (torch.randn(B, S, width, device=DEVICE).to(dtype) for width in (512, 64))
        pages = [torch.full((B * max_pages, page_size, w), float("nan"), dtype=dtype, device=DEVICE) for w in (512, 64)]
        kernels.paged_update(c_kv, k_rope, *pages, table, starts=starts, lengths=lengths)
        written = sum(int((~each.isnan()).all(-1).sum()) for each in pages)
        assert written == 2 * int(lengths.sum())
        found = kernels.paged_gather(*pages, table, starts=starts, lengths=lengths)
        for out, tokens in zip(found, (c_kv, k_rope), strict=True):
            real = torch.arange(out.shape[1], device=DEVICE) < lengths[:, None]
            assert same(out[real], tokens[:, : out.shape[1]][real])
            assert out[~real].eq(0).all()
