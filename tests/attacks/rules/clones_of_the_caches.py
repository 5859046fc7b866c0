"""The new token is written into clones of the caches, and not into the caches that were passed."""

EXERCISE = "mla_decode_step"
SPEED = False
EXPECT = "write into the one that is passed"

# The cell:
def mla_decode_step(h, weights, c_cache, k_cache, position, cos, sin):
    w, now = weights, slice(position, position + 1)
    angle = cos[now], sin[now]
    q_nope, q_rope = mla_query(h, w["w_dq"], w["q_norm"], w["w_uq"], *angle)
    c_cache, k_cache = c_cache.clone(), k_cache.clone()
    c_cache[:, now], k_cache[:, now] = latent_kv(h, w["w_dkv"], w["kv_norm"], *angle)
    filled = c_cache[:, : position + 1], k_cache[:, : position + 1]
    out, _ = naive_mla_attention(q_nope, q_rope, *filled, w["w_uk"], w["w_uv"])
    return out.flatten(2) @ w["w_o"].T, c_cache, k_cache
