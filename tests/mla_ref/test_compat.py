"""Other libraries' interfaces: their shapes and conventions, against attention a query at a time."""

import math

import pytest
import torch

from mla_ref.compat import flash_mla

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def given(H, Hk, S, lengths, *, D=24, page_size=4, dtype=torch.float32):
    """Return operands as FlashMLA's own test has them: shuffled pages, NaN and numbers of no page behind the end."""
    random = torch.Generator().manual_seed(H + Hk + S)
    pages = -(-max(lengths) // page_size) + 1
    table = torch.randperm(len(lengths) * pages, generator=random).view(len(lengths), pages).int()
    cache = torch.randn(table.numel(), page_size, Hk, D, generator=random)
    for row, length in zip(table, lengths, strict=True):
        for entry in range(pages):
            cache[row[entry], max(length - entry * page_size, 0) :] = math.nan
        row[-(-length // page_size) :] = 2147480000
    q = torch.randn(len(lengths), S, H, D, generator=random)
    return [x.to(DEVICE) for x in (q.to(dtype), cache.to(dtype), table, torch.tensor(lengths, dtype=torch.int32))]


def attended(q, cache, table, lengths, width, scale, causal):
    """Return out and lse in FlashMLA's convention, in float64, a query and a head at a time."""
    q, cache, table = q.cpu().double(), cache.cpu().double(), table.cpu()
    B, S, H, _ = q.shape
    out, lse = torch.zeros(B, S, H, width, dtype=torch.float64), torch.full((B, H, S), math.inf, dtype=torch.float64)
    for b, length in enumerate(lengths.tolist()):
        places = [(table[b, t // cache.shape[1]], t % cache.shape[1]) for t in range(length)]
        for s in range(S):
            for h in range(H):
                head = h // (H // cache.shape[2])
                seen = [cache[page, slot, head] for page, slot in places[: length - S + s + 1 if causal else length]]
                if not seen or (causal and length - S + s + 1 <= 0):
                    continue
                keys = torch.stack(seen)
                scores = keys @ q[b, s, h] * scale
                out[b, s, h], lse[b, h, s] = scores.softmax(0) @ keys[:, :width], scores.logsumexp(0)
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("H", "Hk", "S"), [(4, 1, 1), (3, 1, 3), (6, 3, 2)])
def test_flash_mla_attends_by_its_conventions(H, Hk, S, causal):
    operands = given(H, Hk, S, [0, 1, 4, 9])
    out, lse = flash_mla.flash_mla_with_kvcache(*operands, 16, *flash_mla.get_mla_metadata(), causal=causal)
    right, right_lse = attended(*operands, 16, 24**-0.5, causal)
    torch.testing.assert_close(out.cpu().double(), right, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.cpu().double(), right_lse, atol=2e-5, rtol=2e-5)


def test_flash_mla_of_older_callers_with_a_scale_of_their_own():
    operands = given(16, 1, 1, [7, 3], dtype=torch.bfloat16)
    plan = flash_mla.get_mla_metadata(operands[3], 16, 1)
    out, _ = flash_mla.flash_mla_with_kvcache(*operands, 16, *plan, 0.3, True)
    assert out.dtype == torch.bfloat16
    right, _ = attended(*operands, 16, 0.3, True)
    torch.testing.assert_close(out.cpu().double(), right, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"is_fp8_kvcache": True}, NotImplementedError, "is_fp8_kvcache: expected none"),
        ({"indices": torch.zeros(1)}, NotImplementedError, "indices: expected none"),
        ({"head_dim_v": 24}, ValueError, "fewer than the 24"),
        ({"k_cache": torch.zeros(3, 4, 2, 24)}, ValueError, "divides the 3 of q"),
        ({"k_cache": torch.zeros(3, 4, 1, 20)}, ValueError, "with D = 24"),
        ({"cache_seqlens": torch.ones(2, dtype=torch.int32)}, ValueError, "seq_lens"),
    ],
)
def test_flash_mla_refuses_what_it_does_not_do(changed, error, says):
    names = "q", "k_cache", "block_table", "cache_seqlens"
    operands = dict(zip(names, given(3, 1, 1, [2]), strict=True)) | {"head_dim_v": 16}
    changed = {name: x.to(DEVICE) if torch.is_tensor(x) else x for name, x in changed.items()}
    with pytest.raises(error, match=says):
        flash_mla.flash_mla_with_kvcache(**operands | changed)
