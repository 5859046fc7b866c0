"""What parts of a batch found in a sequence, merged: against float64, for borders between parts wherever they are."""

import itertools
import random

import pytest
import torch

pytest.importorskip("triton", reason="kernels need Triton")

from mla_ref.kernels._merge_parts import launch_merge

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
R, PAIRS = 512, 8  # a sequence has up to so many pairs of blocks


def exact(pieces):
    """Merge attention over pieces ``[P, rows, R]`` with its ``[P, rows]`` lse in float64."""
    out, lse = (torch.stack(x).double() for x in zip(*pieces, strict=True))
    total = lse.logsumexp(0)
    weights = (lse - total.nan_to_num(neginf=0.0)).exp()
    return (weights[..., None] * out).sum(0), total


def drawn(B, S, H, cuts, num_splits, seed):
    """Return what parts leave whose borders are at ``cuts``, and the results by sequence where there are several."""
    torch.manual_seed(seed)
    parts, rows = len(cuts) - 1, S * H
    places = parts if num_splits else 2 * parts
    found = torch.full((places, rows, R), float("nan"))
    found_lse = torch.full((places, rows), float("nan"))
    pieces = {}
    for part, ((b, n), (b_next, n_next)) in enumerate(itertools.pairwise(cuts)):
        if (b, n) == (b_next, n_next):
            found_lse[part if num_splits else 2 * part] = -torch.inf  # nothing to do
            continue
        for each in range(b, b_next + (n_next > 0)):
            begins = each > b or n == 0
            if begins and each < b_next and not num_splits:
                continue  # it has all of the sequence
            place = part if num_splits else 2 * part + begins
            found[place], found_lse[place] = torch.randn(rows, R), 5 * torch.randn(rows)
            found_lse[place, torch.rand(rows) < 0.2] = -torch.inf  # rows that see nothing there
            found[place, found_lse[place] == -torch.inf] = 0.0
            pieces.setdefault(each, []).append((found[place].clone(), found_lse[place].clone()))
    return found, found_lse, pieces


def check(B, S, H, cuts, num_splits, seed, dtype=torch.bfloat16):
    found, found_lse, pieces = drawn(B, S, H, cuts, num_splits, seed)
    before = torch.randn(B, S, H, R).to(dtype), torch.randn(B, S, H)
    out, lse = (x.clone().to(DEVICE) for x in before)
    begins = torch.tensor(cuts, dtype=torch.int32)
    launch_merge(*(x.to(DEVICE) for x in (found, found_lse, begins)), out, lse, num_splits)
    for b in range(B):
        if b in pieces:
            wanted, wanted_lse = exact(pieces[b])
            torch.testing.assert_close(out[b].cpu().double().view(-1, R), wanted, rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(lse[b].cpu().double().view(-1), wanted_lse, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(out[b].cpu(), before[0][b])
            assert torch.equal(lse[b].cpu(), before[1][b])


@pytest.mark.parametrize("seed", range(12))
def test_borders_anywhere(seed):
    choose = random.Random(seed)
    B, parts = choose.choice([(1, 5), (1, 40), (2, 3), (3, 14), (5, 5), (9, 4)])
    positions = sorted(choose.choices([(b, n) for b in range(B) for n in range(PAIRS)], k=parts - 1))
    S, H = choose.choice([(1, 3), (2, 4), (1, 5)])
    check(B, S, H, [(0, 0), *positions, (B, 0)], None, seed, choose.choice([torch.float16, torch.bfloat16]))


@pytest.mark.parametrize("num_splits", [2, 3, 40])
def test_as_many_parts_of_each_sequence(num_splits):
    B = 3
    pairs, cuts = [1, PAIRS, 3], []
    for b in range(B):
        share = -(-pairs[b] // num_splits)
        cuts += [(b, k * share) if k * share < pairs[b] else (b + 1, 0) for k in range(num_splits)]
    check(B, 1, 3, [*cuts, (B, 0)], num_splits, seed=num_splits)
