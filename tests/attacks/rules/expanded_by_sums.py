"""Keys and values are expanded by sums over broadcasts, of which torch counts no FLOPs."""

EXERCISE = "absorbed_mla_attention"
SPEED = False
EXPECT = "bytes in this case"
LONG = True

# The cell:
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, scale=None):
    B, S, H, Dn = q_nope.shape
    T, R = c_kv.shape[1:]
    scale = (Dn + q_rope.shape[-1]) ** -0.5 if scale is None else scale
    seen = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    key = torch.empty(B, T, Dn)
    value = torch.empty(B, T, w_uv.shape[1])
    outs, lses = [], []
    for h in range(H):
        key.zero_()
        for r in range(R):
            key.addcmul_(c_kv[..., r : r + 1], w_uk[h, :, r])  # [B, T, Dn]: expanded
        value.zero_()
        for r in range(R):
            value.addcmul_(c_kv[..., r : r + 1], w_uv[h, :, r])
        scores = torch.stack([torch.stack([key[b] @ q_nope[b, s, h] for s in range(S)]) for b in range(B)])
        scores = (scores + q_rope[:, :, h] @ k_rope.mT) * scale
        scores = scores.masked_fill(~seen, float("-inf"))
        outs.append(scores.softmax(-1) @ value)
        lses.append(scores.logsumexp(-1))
    return torch.stack(outs, 2), torch.stack(lses, 2)
