"""Which tokens a program of :mod:`mla_ref.kernels.decode_hopper` attends to: each finds its part of the batch itself.

The lengths are on the device, and the host does not wait for them. A part begins in a sequence ``b``, after ``n`` pairs
of blocks of tokens, and ends where the next part begins.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

PAIR = gl.constexpr(128)  # tokens of two blocks: the work is cut between pairs
# Times, in those of a pair: of a piece of a sequence besides its own pairs, and of a part whose sequences are cut
# besides its pieces. Measured on an H200.
PIECE, CUTTING = gl.constexpr(2), gl.constexpr(4)
TOLERANCE = gl.constexpr(12)  # a border is moved by up to one in so many of a part, to where a sequence ends


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def length_of(seq_lens_ptr, b, T):
    length = T
    if seq_lens_ptr is not None:
        length = gl.maximum(gl.minimum(gl.load(seq_lens_ptr + b), T), 0).to(gl.int32)
    return length


@gluon.jit
def pairs_of(length):
    return gl.maximum((length + PAIR - 1) // PAIR, 1)  # one, if there is no token


@gluon.jit
def _given(part, num_splits, seq_lens_ptr, B, T):
    """Return where a part begins if each sequence is cut into ``num_splits``: its sequence, and the pairs before."""
    b = part // num_splits
    pairs = pairs_of(length_of(seq_lens_ptr, gl.minimum(b, B - 1), T))
    n = (pairs + num_splits - 1) // num_splits * (part % num_splits)
    beyond = n >= pairs
    return gl.where(beyond, b + 1, b), gl.where(beyond, 0, n)


@gluon.jit
def _maxima(a, b, c, d, e, f, g, h):
    return gl.maximum(a, e), gl.maximum(b, f), gl.maximum(c, g), gl.maximum(d, h)


@gluon.jit
def _sums(a, b, c, d, e, f, g, h):
    return gl.maximum(a, e), b + f, c + g, d + h


@gluon.jit
def _look_up(target, ends, pairs, shares, begins):
    """Return where a position lies among sequences laid end to end: in which, how far in; its pairs, and its share."""
    past, here = ends <= target, (ends > target) & (begins <= target)
    what = gl.where(past, ends, 0), past.to(gl.int32), gl.where(here, pairs, 0), gl.where(here, shares, 0)
    before, b, pairs, share = gl.reduce(what, 0, _sums)
    return b, target - before, pairs, share


@gluon.jit
def _begin_of(part, parts, costs, split, B):
    """Return where a part begins, by the one of the three plans that should take least time."""
    ends, begins, total, together_time = costs
    split_ends, split_begins, pairs, shares, split_time = split
    each = (B + parts - 1) // parts
    cut_time = total // parts + CUTTING
    b, n, length, _share = _look_up(total * part // parts, ends, pairs, shares, begins)
    n, little = gl.maximum(n - PIECE, 0), total // parts // TOLERANCE  # little is not cut off
    n = gl.where(n <= little, 0, n)
    after = (n > 0) & (length - n <= little)
    b, n = gl.where(after, b + 1, b), gl.where(after, 0, n)
    b_split, k, length, share = _look_up(part, split_ends, pairs, shares, split_begins)
    n_split = k * share
    after = n_split >= length
    b_split, n_split = gl.where(after, b_split + 1, b_split), gl.where(after, 0, n_split)
    splitting = split_time <= cut_time
    b, n = gl.where(splitting, b_split, b), gl.where(splitting, n_split, n)
    together = together_time <= gl.minimum(split_time, cut_time)
    b = gl.minimum(gl.where(together, each * part, b), B)
    return b, gl.where(together | (b == B), 0, n)


@gluon.jit
def plan_part(part, parts, seq_lens_ptr, B, T, num_splits, BLOCK_B: gl.constexpr):
    """Return where this part of the work begins, and where the next one does.

    With ``num_splits``, each sequence is cut into as many parts. Else there are three plans: sequences stay whole, as
    many in each part; each has parts of its own, by its length; all are laid end to end, and cut into parts that take
    equally long.
    """
    if BLOCK_B == 0:
        b_0, n_0 = _given(part, num_splits, seq_lens_ptr, B, T)
        b_1, n_1 = _given(part + 1, num_splits, seq_lens_ptr, B, T)
    else:
        layout: gl.constexpr = gl.BlockedLayout([BLOCK_B // 128], [32], [4], [0])
        offs_b = gl.arange(0, BLOCK_B, layout=layout)
        length = offs_b * 0 + T
        if seq_lens_ptr is not None:
            length = gl.load(seq_lens_ptr + offs_b, mask=offs_b < B, other=0)
            length = gl.maximum(gl.minimum(length, T), 0).to(gl.int32)
        pairs = gl.where(offs_b < B, pairs_of(length), 0)
        costs = gl.where(offs_b < B, pairs + PIECE, 0)
        splits = gl.where(offs_b < B, gl.maximum(pairs * parts // gl.sum(pairs, 0), 1), 0)
        shares = (pairs + splits - 1) // gl.maximum(splits, 1)
        ends, split_ends = gl.associative_scan(costs, 0, _add), gl.associative_scan(splits, 0, _add)
        total, longest, used, share = gl.reduce((ends, costs, split_ends, shares), 0, _maxima)
        split_time = gl.where(used <= parts, share + PIECE, 1 << 30)
        costs = ends, ends - costs, total, (B + parts - 1) // parts * longest
        split = split_ends, split_ends - splits, pairs, shares, split_time
        b_0, n_0 = _begin_of(part, parts, costs, split, B)
        b_1, n_1 = _begin_of(part + 1, parts, costs, split, B)
    return b_0, n_0, b_1, n_1
