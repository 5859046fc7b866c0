import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mla_ref import KVCache, LatentCache

CAPACITY = 7


def make(kind):
    if kind == "kv":
        return KVCache(2, CAPACITY, num_kv_heads=3, head_dim=4, v_head_dim=5), ((3, 4), (3, 5))
    return LatentCache(2, CAPACITY, kv_lora_rank=6, qk_rope_head_dim=2), ((6,), (2,))


def tokens(tails, new, batch=2, dtype=torch.float32):
    return [torch.randn(batch, new, *tail).to(dtype) for tail in tails]


kinds = pytest.mark.parametrize("kind", ["kv", "latent"])
chunks = st.lists(
    st.integers(0, 3).flatmap(lambda new: st.tuples(*[st.integers(0, new)] * 2, st.just(new))), max_size=5
)


@kinds
@given(chunks)
def test_holds_what_lists_would_hold(kind, chunks):
    cache, tails = make(kind)
    held = [[[] for _ in range(2)] for _ in tails]
    for *lengths, new in chunks:
        entries = tokens(tails, new)
        if any(len(held[0][b]) + lengths[b] > CAPACITY for b in range(2)):
            with pytest.raises(ValueError, match="no room"):
                cache.append(*entries, lengths=torch.tensor(lengths))
            continue
        cache.append(*entries, lengths=torch.tensor(lengths))
        for entry, rows in zip(entries, held, strict=True):
            for b in range(2):
                rows[b] += entry[b, : lengths[b]]
    assert cache.seq_lens.tolist() == [len(rows) for rows in held[0]]
    for view, rows in zip(cache.filled(), held, strict=True):
        assert view.shape[1] == max(map(len, rows))
        for b in range(2):
            assert torch.equal(view[b, : len(rows[b])], torch.stack(rows[b]) if rows[b] else view[b, :0])


@kinds
def test_appends_all_tokens_by_default(kind):
    cache, tails = make(kind)
    entries = tokens(tails, CAPACITY)
    cache.append(*entries)
    assert cache.seq_lens.dtype == torch.int32
    assert cache.seq_lens.tolist() == [CAPACITY] * 2
    assert all(map(torch.equal, cache.filled(), entries))


@kinds
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"new": 6}, ValueError, "sequence 1 holds 3 of 7 tokens, no room for 6 more: nothing was appended"),
        ({"dtype": torch.float64}, TypeError, "has dtype torch.float64, expected torch.float32 as cache"),
        ({"batch": 3}, ValueError, "with B = 2 from cache"),
        ({"grad": True}, RuntimeError, "requires a gradient"),
        ({"lengths": torch.tensor([1, 3])}, ValueError, r"lengths\[1\] is 3, expected 0 <= lengths <= 2"),
        ({"narrow": True}, ValueError, "has shape"),
    ],
)
def test_a_refused_append_changes_nothing(kind, change, error, message):
    cache, tails = make(kind)
    cache.append(*tokens(tails, 3), lengths=torch.tensor([1, 3]))
    seq_lens = cache.seq_lens.clone()
    storage = [view.clone() for view in cache.filled()]
    entries = tokens(tails, change.get("new", 2), change.get("batch", 2), change.get("dtype", torch.float32))
    if "grad" in change:
        entries[1].requires_grad_()
    if "narrow" in change:
        entries[1] = entries[1][..., :-1]
    with pytest.raises(error, match=message):
        cache.append(*entries, lengths=change.get("lengths"))
    assert torch.equal(cache.seq_lens, seq_lens)
    assert all(map(torch.equal, cache.filled(), storage))


@kinds
def test_lengths_read_earlier_keep_their_value(kind):
    cache, tails = make(kind)
    before = cache.seq_lens
    cache.append(*tokens(tails, 2))
    assert before.tolist() == [0, 0]


@kinds
def test_filled_parts_are_views_of_the_storage(kind):
    cache, tails = make(kind)
    cache.append(*tokens(tails, 2))
    for view in cache.filled():
        view.fill_(7)
    assert all(view.eq(7).all() for view in cache.filled())


@kinds
def test_reset_forgets_and_keeps_the_storage(kind):
    cache, tails = make(kind)
    size = cache.nbytes
    cache.append(*tokens(tails, 5))
    cache.reset()
    assert cache.seq_lens.tolist() == [0, 0]
    assert all(view.shape[1] == 0 for view in cache.filled())
    entries = tokens(tails, CAPACITY)
    cache.append(*entries)
    assert all(map(torch.equal, cache.filled(), entries))
    assert cache.nbytes == size


def test_bytes_are_those_of_the_formula():
    assert KVCache(2, 10, 16, 128, dtype=torch.float16).nbytes == 2 * 10 * 2 * 16 * 128 * 2
    assert LatentCache(2, 10, 512, 64, dtype=torch.bfloat16).nbytes == 2 * 10 * 576 * 2


def test_storage_is_named():
    cache = LatentCache(2, 10, 512, 64)
    assert cache.c_kv.shape == (2, 10, 512)
    assert cache.k_rope.shape == (2, 10, 64)
    cache = KVCache(2, 10, 3, 8, 4)
    assert cache.k.shape == (2, 10, 3, 8)
    assert cache.v.shape == (2, 10, 3, 4)


def test_a_width_that_does_not_fit_is_said_once():
    with pytest.raises(ValueError, match=r"c_kv has shape \[2, 1, 5\], expected \[B, S, 4\]$"):
        LatentCache(2, 8, 4, 2).append(torch.ones(2, 1, 5), torch.ones(2, 1, 2))


def test_impossible_sizes_are_refused_by_name():
    with pytest.raises(ValueError, match="capacity is 0"):
        LatentCache(1, 0, 4, 2)
    with pytest.raises(TypeError, match="head_dim is None"):
        KVCache(1, 4, 2, None)
