import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import mla_ref
from mla_ref import (
    MLA,
    LatentCache,
    MLAConfig,
    OutOfPages,
    PagedCache,
    PagePool,
    check_table,
    latent_attention,
    paged_update,
)
from mla_ref.testing import shuffle_pages

R, DR = 6, 2
BATCH, CAPACITY = 4, 21


def make(batch=2, capacity=7, **options):
    return PagedCache(batch, capacity, R, DR, **{"page_size": 3, **options})


def tokens(new, batch=2, dtype=torch.float32):
    return [torch.randn(batch, new, width).to(dtype) for width in (R, DR)]


def state(cache):
    """All that a refused call must leave alone."""
    holders = [cache.pool.holders(page) for page in range(cache.pool.num_pages)]
    return cache.block_table.tolist(), cache.seq_lens.tolist(), holders, [x.tolist() for x in cache.filled()]


def poison(cache):
    """NaN wherever no token is, and table entries that lead nowhere."""
    free = torch.ones(cache.c_kv.shape[:2], dtype=torch.bool, device=cache.c_kv.device)
    for b, length in enumerate(cache.seq_lens.tolist()):
        for position in range(length):
            free[cache.block_table[b, position // cache.page_size], position % cache.page_size] = False
        cache.block_table[b, -(-length // cache.page_size) :] = 10**9
    cache.c_kv[free], cache.k_rope[free] = math.nan, math.nan


class DrivenCache(RuleBasedStateMachine):
    """Random calls of the cache, beside a dictionary of plain tensors and lists of plain page objects."""

    ops, device = mla_ref, "cpu"

    @initialize(page_size=st.integers(1, 9), num_pages=st.integers(1, 24), slab=st.none() | st.integers(1, 5))
    def begin(self, page_size, num_pages, slab):
        self.random = torch.Generator().manual_seed(0)
        self.page_size, self.num_pages = page_size, num_pages
        self.cache = make(
            BATCH,
            CAPACITY,
            device=self.device,
            page_size=page_size,
            num_pages=num_pages,
            slab_pages=slab,
            update=self.ops.paged_update,
            gather=self.ops.paged_gather,
        )
        self.held = {b: tuple(self.drawn(0, width) for width in (R, DR)) for b in range(BATCH)}
        self.pages = {b: [] for b in range(BATCH)}

    def drawn(self, *shape):
        return torch.randn(*shape, generator=self.random).to(self.device)

    def used(self, pages):
        return len({id(page) for each in pages.values() for page in each})

    def pages_after(self, counts):
        after = {b: list(pages) for b, pages in self.pages.items()}
        for b, count in enumerate(counts):
            total = len(self.held[b][0]) + count
            if count and (total - count) % self.page_size:
                last = after[b][-1]
                if any(last is page for other in after for page in after[other] if other != b):
                    after[b][-1] = object()
            while len(after[b]) * self.page_size < total and count:
                after[b].append(object())
        return after

    def refused(self, error, call):
        before = state(self.cache)
        with pytest.raises(error):
            call()
        assert state(self.cache) == before

    @rule(counts=st.lists(st.integers(0, 7), min_size=BATCH, max_size=BATCH), padding=st.integers(0, 2))
    def append(self, counts, padding):
        entries = [self.drawn(BATCH, max(counts) + padding, width) for width in (R, DR)]
        lengths = torch.tensor(counts, device=self.device) if padding or len(set(counts)) > 1 else None
        after = self.pages_after(counts)
        if any(len(self.held[b][0]) + count > CAPACITY for b, count in enumerate(counts)):
            self.refused(ValueError, lambda: self.cache.append(*entries, lengths=lengths))
        elif self.used(after) > self.num_pages:
            self.refused(OutOfPages, lambda: self.cache.append(*entries, lengths=lengths))
        else:
            self.cache.append(*entries, lengths=lengths)
            self.pages = after
            for b, count in enumerate(counts):
                new = (entry[b, :count] for entry in entries)
                self.held[b] = tuple(map(torch.cat, zip(self.held[b], new, strict=True)))

    @rule(heads=st.integers(1, 3), queries=st.integers(1, 3))
    def decode(self, heads, queries):
        """One token more for every sequence that has any, then attention over all of them."""
        self.append([min(len(c_kv), 1) for c_kv, _ in self.held.values()], 0)
        queries = min(queries, int(self.cache.seq_lens.max()))
        if not queries:
            return
        q_latent, q_rope = self.drawn(BATCH, queries, heads, R), self.drawn(BATCH, queries, heads, DR)
        found = self.attended(q_latent, q_rope, scale=0.3, seq_lens=self.cache.seq_lens)
        for (out, lse), (b, (c_kv, k_rope)), s in product(found, self.held.items(), range(queries)):
            c_kv, k_rope = (x[: max(len(x) - queries + s + 1, 0)].double() for x in (c_kv, k_rope))
            if not len(c_kv):
                assert out[b, s].eq(0).all() and lse[b, s].eq(-math.inf).all()
                continue
            scores = (q_latent[b, s].double() @ c_kv.T + q_rope[b, s].double() @ k_rope.T) * 0.3
            torch.testing.assert_close(out[b, s].double(), scores.softmax(-1) @ c_kv, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(lse[b, s].double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)

    def attended(self, *queries, **options):
        return [latent_attention(*queries, *self.cache.filled(), **options)]

    @rule(source=st.integers(0, BATCH - 1), to=st.integers(0, BATCH - 1))
    def fork(self, source, to):
        if not len(self.held[source][0]) or len(self.held[to][0]):
            self.refused(ValueError, lambda: self.cache.fork(source, to))
            return
        self.cache.fork(source, to)
        self.held[to], self.pages[to] = self.held[source], list(self.pages[source])

    @rule(sequence=st.integers(0, BATCH - 1))
    def free(self, sequence):
        if not len(self.held[sequence][0]):
            self.refused(ValueError, lambda: self.cache.free(sequence))
            return
        self.cache.free(sequence)
        self.held[sequence], self.pages[sequence] = tuple(x[:0] for x in self.held[sequence]), []

    @rule(foreign=st.sampled_from([-1, BATCH, 10**9, 0.0, True, None, "0"]))
    def foreign_sequence(self, foreign):
        error = (TypeError, ValueError)
        self.refused(error, lambda: self.cache.free(foreign))
        self.refused(error, lambda: self.cache.fork(foreign, 0))
        self.refused(error, lambda: self.cache.fork(0, foreign))

    @rule()
    @precondition(lambda self: sum(len(c_kv) for c_kv, _ in self.held.values()) > CAPACITY)
    def reset(self):
        self.cache.reset()
        for b in self.held:
            self.held[b], self.pages[b] = tuple(x[:0] for x in self.held[b]), []

    @rule()
    def poison(self):
        poison(self.cache)

    @invariant()
    def holds_what_the_dictionary_holds(self):
        assert self.cache.seq_lens.dtype == torch.int32
        assert self.cache.seq_lens.tolist() == [len(c_kv) for c_kv, _ in self.held.values()]
        for entry, filled in enumerate(self.cache.filled()):
            assert filled.shape[1] == self.cache.seq_lens.max()
            for b, held in self.held.items():
                assert torch.equal(filled[b, : len(held[entry])], held[entry])

    @invariant()
    def pages_are_accounted_for(self):
        cache = self.cache
        assert cache.used_pages == self.used(self.pages)
        assert cache.used_pages + cache.pool.num_free == self.num_pages
        assert cache.used_pages <= len(cache.c_kv) == len(cache.k_rope) <= self.num_pages
        assert cache.nbytes == len(cache.c_kv) * self.page_size * (R + DR) * 4
        names = {}
        for b, pages in self.pages.items():
            table = cache.block_table[b, : len(pages)].tolist()
            for page, number in zip(pages, table, strict=True):
                assert names.setdefault(number, page) is page
        assert len(names) == cache.used_pages


class TestDrivenByTwins(DrivenCache.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class DrivenByKernels(DrivenCache):
    device = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def ops(self):
        return pytest.importorskip("mla_ref.kernels", reason="kernels need Triton", exc_type=ImportError)

    def attended(self, *queries, **options):
        cache = self.cache
        pages = cache.c_kv, cache.k_rope, cache.block_table
        return [*super().attended(*queries, **options), self.ops.paged_latent_attention(*queries, *pages, **options)]


class TestDrivenByKernels(DrivenByKernels.TestCase):
    settings = settings(
        max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def test_a_page_is_free_held_or_shared():
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(2)
    assert sorted(first + second) == [0, 1, 2, 3]
    pool.share(first)
    pool.release(first + second)
    assert (pool.num_free, pool.num_used) == (3, 2)
    assert [pool.holders(page) for page in range(5)] == [1, 1, 0, 0, 0]
    pool.release(first)
    assert pool.num_free == 5 and sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda pool: pool.allocate(-1), ValueError, "count is -1, expected 0 or more"),
        (lambda pool: pool.allocate(1.0), TypeError, r"count is 1\.0, expected an int"),
        (lambda pool: pool.allocate(3), OutOfPages, "3 pages needed, 2 of 4 free: none was taken"),
        (lambda pool: pool.release([0, 2]), ValueError, "page 2 is free: it was released before, or never allocated"),
        (lambda pool: pool.release([0, 1, 0]), ValueError, "page 0 is released 2 times and held by 1"),
        (lambda pool: pool.share([1, 3]), ValueError, "page 3 is free"),
        (lambda pool: pool.release([1, 4]), ValueError, "page is 4, expected 0 <= page < 4"),
        (lambda pool: pool.release([1, -1]), ValueError, "page is -1, expected 0 <= page < 4"),
        (lambda pool: pool.share([0, 1.0]), TypeError, r"page is 1\.0, expected an int"),
        (lambda pool: pool.holders(4), ValueError, "page is 4"),
    ],
)
def test_a_refused_call_leaves_the_pool_alone(call, error, message):
    pool = PagePool(4)
    pool.allocate(2)
    with pytest.raises(error, match=message):
        call(pool)
    assert [pool.holders(page) for page in range(4)] == [1, 1, 0, 0]
    assert pool.num_free == 2 and pool.allocate(2) == [2, 3]


def test_appends_all_tokens_by_default():
    cache, entries = make(), tokens(7)
    cache.append(*entries)
    assert cache.seq_lens.dtype == torch.int32
    assert cache.seq_lens.tolist() == [7, 7]
    assert all(map(torch.equal, cache.filled(), entries))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"new": 6}, ValueError, "sequence 1 holds 3 of 7 tokens, no room for 6 more: nothing was appended"),
        ({"dtype": torch.float64}, TypeError, "has dtype torch.float64, expected torch.float32 as pages"),
        ({"batch": 3}, ValueError, r"has shape \[3, 2, 6\], expected \[2, S, R\]"),
        ({"grad": True}, RuntimeError, "requires a gradient"),
        ({"lengths": torch.tensor([1, 3])}, ValueError, r"lengths\[1\] is 3, expected 0 <= lengths <= 2"),
        ({"narrow": True}, ValueError, "has shape"),
    ],
)
def test_a_refused_append_changes_nothing(change, error, message):
    cache = make()
    cache.append(*tokens(3), lengths=torch.tensor([1, 3]))
    before = state(cache)
    entries = tokens(change.get("new", 2), change.get("batch", 2), change.get("dtype", torch.float32))
    if "grad" in change:
        entries[1].requires_grad_()
    if "narrow" in change:
        entries[1] = entries[1][..., :-1]
    with pytest.raises(error, match=message):
        cache.append(*entries, lengths=change.get("lengths"))
    assert state(cache) == before


def test_an_append_that_fails_late_changes_nothing():
    fail = False

    def update(*args, **where):
        if fail:
            raise TypeError("not today")
        paged_update(*args, **where)

    cache = make(update=update, capacity=30, slab_pages=1)
    cache.append(*tokens(4), lengths=torch.tensor([4, 0]))
    cache.fork(0, 1)
    before, fail = state(cache), True
    with pytest.raises(TypeError, match="not today"):
        cache.append(*tokens(5))
    assert state(cache) == before
    fail = False
    entries = tokens(5)
    cache.append(*entries)
    assert torch.equal(cache.filled()[0][:, 4:], entries[0])


def test_exhaustion_says_how_much_is_missing():
    cache = make(capacity=30, num_pages=4)
    cache.append(*tokens(5))
    with pytest.raises(OutOfPages, match="2 pages needed, 0 of 4 free: none was taken"):
        cache.append(*tokens(2))
    cache.free(1)
    cache.append(*tokens(2), lengths=torch.tensor([2, 0]))
    assert cache.seq_lens.tolist() == [7, 0]


def test_lengths_read_earlier_keep_their_value():
    cache = make()
    read = [cache.seq_lens]
    cache.append(*tokens(2), lengths=torch.tensor([2, 0]))
    read.append(cache.seq_lens)
    cache.fork(0, 1)
    read.append(cache.seq_lens)
    cache.free(0)
    assert [each.tolist() for each in read] == [[0, 0], [2, 0], [2, 2]]


def test_a_fork_costs_nothing_until_it_writes():
    cache = make(4, 30, page_size=4)
    cache.append(*tokens(10, 4), lengths=torch.tensor([10, 0, 0, 0]))
    for target in (1, 2, 3):
        cache.fork(0, target)
    assert cache.used_pages == 3
    assert cache.block_table[:, :3].eq(cache.block_table[0, :3]).all()
    cache.append(*tokens(1, 4))
    # Two full pages stay shared; of four writers into the third page one keeps it.
    assert cache.used_pages == 2 + 4
    assert cache.block_table[:, 2].unique().numel() == 4
    cache.free(0)
    assert cache.used_pages == 2 + 3


def test_the_last_writer_into_a_shared_page_needs_no_other():
    cache = make(3, 30, page_size=4, num_pages=3)
    cache.append(*tokens(2, 3), lengths=torch.tensor([2, 0, 0]))
    cache.fork(0, 1)
    cache.fork(0, 2)
    entries = tokens(1, 3)
    cache.append(*entries)
    assert cache.used_pages == 3
    assert torch.equal(cache.filled()[0][:, 2:], entries[0])


def test_full_pages_are_never_copied():
    cache = make(2, 30, page_size=4)
    cache.append(*tokens(8), lengths=torch.tensor([8, 0]))
    cache.fork(0, 1)
    cache.append(*tokens(1))
    assert cache.used_pages == 2 + 2


def test_any_free_pages_make_a_sequence():
    cache = make(8, 12, page_size=3, num_pages=8)
    cache.append(*tokens(3, 8))
    for sequence in (0, 2, 4, 6):
        cache.free(sequence)
    entries = tokens(12, 8)
    cache.append(*entries, lengths=torch.tensor([12] + 7 * [0]))
    assert torch.equal(cache.filled()[0][0], entries[0][0])


def test_a_growing_pool_holds_what_it_has_needed():
    cache = make(2, 300, page_size=10, slab_pages=4)
    page = 10 * (R + DR) * 4
    assert cache.nbytes == 0
    entries = tokens(300)
    for start, end, slabs in [(0, 5, 1), (5, 20, 1), (20, 21, 2), (21, 60, 3), (60, 290, 15), (290, 300, 15)]:
        cache.append(*(entry[:, start:end] for entry in entries))
        assert cache.nbytes == min(4 * slabs, 60) * page
    assert all(map(torch.equal, cache.filled(), entries))
    cache.free(0)
    cache.append(*tokens(300), lengths=torch.tensor([300, 0]))
    assert cache.nbytes == 60 * page == LatentCache(2, 300, R, DR).nbytes


def test_a_growing_pool_stops_at_its_cap():
    cache = make(2, 300, page_size=10, slab_pages=4, num_pages=7)
    cache.append(*tokens(30))
    with pytest.raises(OutOfPages):
        cache.append(*tokens(10))
    cache.free(0)
    cache.append(*tokens(30), lengths=torch.tensor([0, 30]))
    assert len(cache.c_kv) == 7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_nothing_waits_for_the_device():
    kernels = pytest.importorskip("mla_ref.kernels", reason="kernels need Triton", exc_type=ImportError)
    ops = {"update": kernels.paged_update, "gather": kernels.paged_gather}
    cache = make(2, 40, device="cuda", slab_pages=2, **ops)
    entries = [entry.cuda() for entry in tokens(5)]
    for _ in range(2):  # the first time compiles
        torch.cuda.set_sync_debug_mode("error")
        try:
            cache.append(*entries)
            cache.free(1)
            cache.fork(0, 1)
            cache.append(*entries)
            filled = cache.filled()
            cache.reset()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for out, entry in zip(filled, entries, strict=True):
            assert torch.equal(out, torch.cat((entry[:1].expand_as(entry), entry), 1))


def test_reset_forgets_and_keeps_the_storage():
    cache = make(slab_pages=1)
    cache.append(*tokens(5), lengths=torch.tensor([5, 0]))
    cache.fork(0, 1)
    size = cache.nbytes
    cache.reset()
    assert cache.seq_lens.tolist() == [0, 0] and cache.used_pages == 0 and cache.nbytes == size
    assert all(view.shape[1] == 0 for view in cache.filled())
    entries = tokens(7)
    cache.append(*entries)
    assert all(map(torch.equal, cache.filled(), entries))


PRINTED = {(4, 512): 99.29, (4, 1024): 99.29, (4, 2048): 98.58, (4, 4096): 97.16}
PRINTED |= {(8, 512): 98.58, (8, 1024): 98.58, (8, 2048): 97.16, (8, 4096): 94.33}


@pytest.mark.parametrize(("size", "printed"), PRINTED.items())
def test_table_4_of_the_report(size, printed):
    batch, length = size
    cache = PagedCache(32, 16384, 1, 1, page_size=1024, slab_pages=1)
    lengths = torch.tensor(batch * [length] + (32 - batch) * [0])
    cache.append(torch.zeros(32, length, 1), torch.zeros(32, length, 1), lengths=lengths)
    assert cache.used_pages == batch * -(-length // 1024)
    # As equations 17 to 19 say, against 32 × 16384 tokens; as printed, against a pool of a tenth more.
    assert cache.saving_ratio() == pytest.approx(1 - batch * max(length, 1024) / 2**19, abs=1e-12)
    assert round(100 * cache.saving_ratio(math.ceil(512 * 1.1) * 1024), 2) == printed
    assert cache.nbytes == cache.used_pages * 1024 * 2 * 4


@pytest.mark.parametrize("impl", ["naive", "absorb"])
@pytest.mark.parametrize("page_size", [1, 3, 64])
@torch.no_grad()
def test_a_layer_cannot_tell_it_from_the_contiguous_cache(impl, page_size):
    config = MLAConfig.preset("tiny")
    mla = MLA(config, impl=impl, dtype=torch.float64)
    place = 3, 12, config.kv_lora_rank, config.qk_rope_head_dim, torch.float64
    paged, contiguous = PagedCache(*place, page_size=page_size), LatentCache(*place)
    shuffle_pages(paged)
    for new, lengths in [(5, [5, 0, 3]), (1, None), (4, [0, 4, 2]), (0, None), (2, None)]:
        x = torch.randn(3, new, config.hidden_size, dtype=torch.float64)
        lengths = None if lengths is None else torch.tensor(lengths)
        out = mla(x, paged, lengths=lengths)
        torch.testing.assert_close(out, mla(x, contiguous, lengths=lengths), rtol=0, atol=0)
        assert torch.equal(paged.seq_lens, contiguous.seq_lens)
    assert paged.used_pages == sum(-(-n // page_size) for n in paged.seq_lens.tolist())


@pytest.mark.thorough(but=2)
@pytest.mark.parametrize(
    ("config", "dtype", "bound"),
    [
        (replace(MLAConfig.preset("tiny"), num_attention_heads=3, kv_lora_rank=13), torch.float32, 1e-5),
        (replace(MLAConfig.preset("tiny"), qk_rope_head_dim=16), torch.float16, 5e-3),  # as TMA wants it
    ],
    ids=["float32, odd", "float16"],
)
@pytest.mark.parametrize("page_size", [1, 3, 64])
@torch.no_grad()
def test_a_layer_attends_to_pages_where_they_are(monkeypatch, config, dtype, bound, page_size):
    pytest.importorskip("triton", reason="kernels need Triton")
    device = DrivenByKernels.device
    mla, wide = MLA(config, "triton", device, dtype), MLA(config, "absorb", device, torch.float64)
    wide.load_state_dict(mla.state_dict())
    paged, contiguous = mla.make_cache(3, 80, page_size), mla.make_cache(3, 80)
    shuffle_pages(paged)  # or a kernel that walks on from a sequence's first page would pass
    exact = wide.make_cache(3, 80, page_size=7)

    def gathered(*_, **__):
        raise AssertionError("gathered")

    for step, (new, lengths) in enumerate([(66, [66, 0, 5]), (1, None), (4, [4, 1, 0]), (3, None)]):
        x = torch.randn(3, new, config.hidden_size, device=device).to(dtype)
        lengths = None if lengths is None else torch.tensor(lengths, device=device)
        expected = wide(x.double(), exact, lengths=lengths)
        alike = mla(x, contiguous, lengths=lengths)
        with monkeypatch.context() as patch:
            patch.setattr(paged, "filled", gathered)
            patch.setattr("mla_ref.attention.paged_gather", gathered)
            out = mla(x, paged, lengths=lengths)
        assert out.dtype == dtype
        for found in (out, alike):
            assert (found.double() - expected).norm() <= bound * expected.norm()
        assert paged.seq_lens.tolist() == contiguous.seq_lens.tolist() == exact.seq_lens.tolist()
        if step == 0:
            paged.fork(0, 1), exact.fork(0, 1)
            contiguous.c_kv[1], contiguous.k_rope[1] = contiguous.c_kv[0], contiguous.k_rope[0]
            contiguous.seq_lens = paged.seq_lens.clone()
        poison(paged)
    assert all(map(torch.equal, (x[2, :9] for x in paged.filled()), (x[2, :9] for x in contiguous.filled())))


@given(
    st.lists(st.lists(st.sampled_from([-1, 0, 1, 2, 3, 10**9]), min_size=3, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(-1, 14), min_size=3, max_size=3),
    st.integers(1, 4),
)
def test_a_table_is_right_if_every_token_has_a_page(rows, lengths, page_size):
    lengths = lengths[: len(rows)]
    right = all(
        0 <= length <= 3 * page_size and all(0 <= row[t // page_size] < 3 for t in range(length))
        for row, length in zip(rows, lengths, strict=True)
    )
    refused = pytest.raises(ValueError, match=r"(block_table|seq_lens)\[.* is .*, expected 0 <= ")
    with nullcontext() if right else refused:
        check_table(torch.tensor(rows), seq_lens=torch.tensor(lengths), num_pages=3, page_size=page_size)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"block_table": [[0]]}, TypeError, "block_table has type list, expected an int32 or int64 tensor"),
        ({"block_table": torch.zeros(2).int()}, ValueError, r"block_table has shape \[2\], .* \[B, max_pages\]"),
        ({"seq_lens": torch.zeros(3).int()}, ValueError, r"seq_lens has shape \[3\], expected \[B\] with B = 2"),
        ({"seq_lens": torch.zeros(2)}, TypeError, "seq_lens has dtype torch.float32"),
        ({"page_size": 0}, ValueError, "page_size is 0, expected a positive int"),
    ],
)
def test_what_is_no_table_is_refused(change, error, message):
    right = {"block_table": torch.zeros(2, 1).int(), "seq_lens": torch.ones(2).int(), "num_pages": 1, "page_size": 1}
    check_table(**right)
    with pytest.raises(error, match=message):
        check_table(**{**right, **change})


def test_a_layer_makes_the_cache_it_can_use():
    mla = MLA(MLAConfig.preset("tiny"))
    assert isinstance(mla.make_cache(2, 8), LatentCache)
    cache = mla.make_cache(2, 8, page_size=4)
    assert isinstance(cache, PagedCache) and cache.page_size == 4 and cache.c_kv.shape == (4, 4, 32)
    with pytest.raises(ValueError, match="page_size is 0"):
        mla.make_cache(2, 8, page_size=0)


def test_impossible_sizes_are_refused_by_name():
    with pytest.raises(ValueError, match="page_size is 0"):
        make(page_size=0)
    with pytest.raises(TypeError, match=r"slab_pages is 1\.5"):
        make(slab_pages=1.5)
    with pytest.raises(ValueError, match="preallocated_tokens is 0"):
        make().saving_ratio(0)
