"""The layer of the decode challenge, against its definition written out."""

import math

import pytest
import torch

from mla_ref.challenge import (
    ABSOLUTE,
    RELATIVE,
    ChallengeLayer,
    bfloat16_angles,
    challenge_decode,
    challenge_oracle,
)
from mla_ref.hardware import emulator

DEVICE = "cpu" if emulator.active() else "cuda"


def drawn(batch=3, capacity=330, dtype=torch.bfloat16, H=4, D=64, Rq=48, R=32, Dn=16, Dr=64, Dv=16):
    torch.manual_seed(0)
    shapes = (Rq, D), (H * (Dn + Dr), Rq), (R + Dr, D), (H * (Dn + Dv), R), (D, H * Dv)
    weights = [(torch.randn(shape, device=DEVICE) / shape[1] ** 0.5).to(dtype) for shape in shapes]
    layer = ChallengeLayer(*weights, heads=H, qk_rope_head_dim=Dr, v_head_dim=Dv)
    x = torch.randn(batch, 1, D, device=DEVICE).to(dtype)
    return layer, x, torch.randn(batch, capacity, R + Dr, device=DEVICE).to(dtype)


def by_definition(layer, x, cache, length):
    """Each sequence and head on its own, in float64, the rotation as 2×2 matrices."""
    Dn, Dr, R, Dv = layer.qk_nope_head_dim, layer.qk_rope_head_dim, layer.kv_lora_rank, layer.v_head_dim
    q_down, q_up, kv_down, kv_up, wo = (
        w.double() for w in (layer.q_down, layer.q_up, layer.kv_down, layer.kv_up, layer.out)
    )
    frequency = torch.tensor(10000.0).pow(-torch.arange(Dr // 2).bfloat16() / (Dr // 2)).bfloat16()

    def rotate(row, position):
        turned = row.clone()
        for i in range(Dr // 2):
            angle = torch.tensor(float(position)).bfloat16() * frequency[i]
            cos, sin = (float(f(angle.float()).bfloat16()) for f in (torch.cos, torch.sin))
            a, b = row[i].item(), row[i + Dr // 2].item()
            turned[i], turned[i + Dr // 2] = a * cos - b * sin, b * cos + a * sin
        return turned

    outs = []
    for b in range(len(x)):
        token = x[b, 0].double()
        entries = torch.cat((cache[b, :length].double(), (kv_down @ token)[None]))
        keys = torch.stack([rotate(entry[R:], position) for position, entry in enumerate(entries)])
        query = (q_up @ (q_down @ token)).view(layer.heads, Dn + Dr)
        up = kv_up.view(layer.heads, Dn + Dv, R)
        heads = []
        for h in range(layer.heads):
            scores = (entries[:, :R] @ up[h, :Dn].T) @ query[h, :Dn] + keys @ rotate(query[h, Dn:], length)
            weights = (scores / math.sqrt(Dn + Dr)).softmax(0)
            heads.append(weights @ (entries[:, :R] @ up[h, Dn:].T))
        outs.append(wo @ torch.cat(heads))
    return torch.stack(outs)[:, None]


@pytest.mark.parametrize("length", [0, 5, 300])
def test_the_oracle_is_the_definition(length):
    layer, x, cache = drawn(batch=2)
    expected = by_definition(layer, x, cache, length)
    before = cache.clone()
    found = challenge_oracle(layer, x, cache, length, chunk=1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    new = (x.double() @ layer.kv_down.double().T)[:, 0].to(cache.dtype)
    assert torch.equal(cache[:, length], new)
    before[:, length] = new
    assert torch.equal(cache, before)


@pytest.mark.parametrize("impl", ["naive", "absorb", "triton"])
@pytest.mark.parametrize("length", [0, 31, 300])
@torch.no_grad()
def test_a_step_is_within_the_challenges_tolerance(impl, length):
    layer, x, cache = drawn()
    wanted, filled = cache.clone(), cache.clone()
    expected = challenge_oracle(layer, x, wanted, length)
    angles = bfloat16_angles(torch.arange(cache.shape[1], device=DEVICE), 64) if length == 31 else None
    out = challenge_decode(layer, x, filled, length, impl=impl, angles=angles)
    assert out.dtype == x.dtype
    torch.testing.assert_close(out.double(), expected, rtol=RELATIVE, atol=ABSOLUTE)
    torch.testing.assert_close(filled, wanted, rtol=RELATIVE, atol=ABSOLUTE)
    assert torch.equal(filled[:, length + 1 :], cache[:, length + 1 :])


@torch.no_grad()
def test_steps_follow_one_another():
    layer, x, cache = drawn(dtype=torch.float64)
    wanted = cache.clone()
    for length in range(3, 7):
        expected = challenge_oracle(layer, x, wanted, length)
        torch.testing.assert_close(challenge_decode(layer, x, cache, length), expected, rtol=1e-6, atol=1e-9)
        x = expected


def test_positions_beyond_256_share_angles():
    cos, sin = bfloat16_angles(torch.arange(600), 64)
    assert cos.dtype == sin.dtype == torch.bfloat16 and cos.shape == (600, 32)
    distinct = {tuple(row) for row in torch.cat((cos, sin), -1).tolist()}
    assert len({tuple(row) for row in torch.cat((cos, sin), -1)[:257].tolist()}) > 200
    assert len(distinct) < 257 + 128 + 22 + 1
    assert torch.equal(cos[512], cos[513])


def test_what_does_not_fit_is_named():
    layer, x, cache = drawn()
    before = cache.clone()
    with pytest.raises(ValueError, match="length is 330, expected 0 to 329"):
        challenge_decode(layer, x, cache, 330)
    with pytest.raises(ValueError, match=r"cache has shape \[3, 330, 95\], expected \[B, capacity, 96\]"):
        challenge_decode(layer, x, cache[..., :95], 3)
    with pytest.raises(ValueError, match=r"angles have shapes \[\[9, 32\], \[9, 32\]\], expected .* \[330, 32\]"):
        challenge_decode(layer, x, cache, 3, angles=bfloat16_angles(torch.arange(9, device=DEVICE), 64))
    with pytest.raises(ValueError, match="no implementation 'eager', expected naive, absorb or triton"):
        challenge_decode(layer, x, cache, 3, impl="eager")
    assert torch.equal(cache, before)
    weights = layer.q_down, layer.q_up, layer.kv_down, layer.kv_up, layer.out
    with pytest.raises(ValueError, match=r"q_up has shape \[320, 48\], expected \d+ rows for 4 heads"):
        ChallengeLayer(*weights, heads=4, qk_rope_head_dim=32, v_head_dim=16)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 129, 200])
@pytest.mark.parametrize(("heads", "widths", "splits"), [(4, (32, 64), None), (70, (64, 32), 3), (17, (48, 40), 2)])
@torch.no_grad()
def test_the_kernel_rotates_as_it_reads(length, heads, widths, splits):
    """Blocks and a tail, several splits; widths that no descriptor reads; what lies behind the length is NaN."""
    from mla_ref.kernels.decode_rotating import rotating_latent_attention

    torch.manual_seed(1)
    (R, Dr), T = widths, length + 1
    cache = torch.randn(2, T + 40, R + Dr, device=DEVICE).bfloat16()
    cache[:, T:] = math.nan
    q_latent, q_rope = (torch.randn(2, 1, heads, width, device=DEVICE).bfloat16() for width in widths)
    angles = bfloat16_angles(torch.arange(T, device=DEVICE), Dr)
    out, lse = rotating_latent_attention(
        q_latent, q_rope, cache[:, :T], *angles, scale=0.1, num_splits=splits and min(splits, T)
    )

    cos, sin = (torch.cat((each, each), -1).double() for each in angles)
    keys = cache[:, :T, R:].double()
    turned = keys * cos + torch.cat((-keys[..., Dr // 2 :], keys[..., : Dr // 2]), -1) * sin
    latents = cache[:, :T, :R].double()
    scores = torch.einsum("bshr,btr->bsht", q_latent.double(), latents)
    scores = 0.1 * (scores + torch.einsum("bshr,btr->bsht", q_rope.double(), turned))
    expected = torch.einsum("bsht,btr->bshr", scores.softmax(-1), latents)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-2, atol=2e-2)
