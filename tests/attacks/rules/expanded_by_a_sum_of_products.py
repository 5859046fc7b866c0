"""Keys and values are expanded for all heads by a sum of products, of which torch's own table knows no FLOPs."""

EXERCISE = "absorbed_step"
SPEED = False
EXPECT = "FLOPs in this case"

# The cell:
def product(a, b):
    out = torch.zeros(a.shape[0], b.shape[-1], dtype=a.dtype)
    return torch.addbmm(out, a[None], b[None])


def absorbed_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    B, T = len(x), length + 1
    cache[:, length] = (x @ kv_down.T)[:, 0]
    q_nope, q_rope = (x @ q_down.T @ q_up.T).unflatten(-1, (heads, Dn + Dr)).split((Dn, Dr), -1)
    latents, keys = cache[:, :T].split((R, Dr), -1)
    cos, sin = challenge_angles(torch.arange(T, device=x.device), Dr)
    q_rope, keys = rotate_halves(q_rope, cos[length], sin[length]), rotate_halves(keys, cos, sin)
    up = product(latents.reshape(B * T, R), kv_up.T).view(B, T, heads, Dn + Dv)
    k_nope, v = up.split((Dn, Dv), -1)
    q = torch.cat((q_nope, q_rope), -1)
    k = torch.cat((k_nope, keys[:, :, None].expand(-1, -1, heads, -1)), -1)
    scores = torch.einsum("bshd,bthd->bhst", q, k).float() * (Dn + Dr) ** -0.5
    out = torch.einsum("bhst,bthv->bshv", scores.softmax(-1).to(x.dtype), v)
    return out.flatten(2) @ wo.T, cache
