"""Keys and values are expanded for all heads by products in place, of which torch's own table knows no FLOPs."""

EXERCISE = "absorbed_step"
SPEED = False
EXPECT = "FLOPs in this case"

# The cell:
def product(a, b):
    out = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=a.dtype)
    if a.dim() == 2:
        return out.addmm_(a, b, beta=0)
    return out.baddbmm_(a, b, beta=0)


def absorbed_step(x, cache, length, q_down, q_up, kv_down, kv_up, wo, heads):
    R, Dv = kv_up.shape[1], wo.shape[1] // heads
    Dr, Dn = kv_down.shape[0] - R, kv_up.shape[0] // heads - Dv
    B, T = len(x), length + 1
    cache[:, length] = product(x[:, 0], kv_down.T)
    q = product(product(x[:, 0], q_down.T), q_up.T).unflatten(-1, (1, heads, Dn + Dr))
    q_nope, q_rope = q.split((Dn, Dr), -1)
    latents, keys = cache[:, :T].split((R, Dr), -1)
    cos, sin = challenge_angles(torch.arange(T, device=x.device), Dr)
    q_rope, keys = rotate_halves(q_rope, cos[length], sin[length]), rotate_halves(keys, cos, sin)
    up = product(latents.reshape(B * T, R), kv_up.T).view(B, T, heads, Dn + Dv)
    k_nope, v = up.split((Dn, Dv), -1)
    q = torch.cat((q_nope, q_rope), -1)
    k = torch.cat((k_nope, keys[:, :, None].expand(-1, -1, heads, -1)), -1)
    scores = product(q[:, 0].reshape(B * heads, 1, -1), k.transpose(1, 2).reshape(B * heads, T, -1).mT)
    p = (scores.float() * (Dn + Dr) ** -0.5).softmax(-1).to(x.dtype)
    out = product(p, v.transpose(1, 2).reshape(B * heads, T, Dv))
    return product(out.reshape(B, heads * Dv), wo.T)[:, None], cache
