"""Keys and values are expanded for one head at a time: little memory, and all the products that absorption saves."""

EXERCISE = "absorbed_mla_attention"
SPEED = False
EXPECT = "FLOPs in this case"

# The cell:
def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    S, T = q_nope.shape[1], c_kv.shape[1]
    scale = (q_nope.shape[-1] + q_rope.shape[-1]) ** -0.5
    seen = torch.ones(S, T, dtype=torch.bool).tril(T - S)
    outs, lses = [], []
    for h in range(w_uk.shape[0]):
        key = torch.cat((c_kv @ w_uk[h].T, k_rope), -1)
        scores = torch.cat((q_nope[:, :, h], q_rope[:, :, h]), -1) @ key.mT * scale
        scores = scores.masked_fill(~seen, -math.inf)
        outs.append(scores.softmax(-1) @ (c_kv @ w_uv[h].T))
        lses.append(scores.logsumexp(-1))
    return torch.stack(outs, 2), torch.stack(lses, 2)
