"""One program of 132 does all the work, and the others end at once. A launch takes as long as its longest program."""

EXERCISE = "rope_query_key"
SPEED = True
LONG = True

# The cell:
@triton.jit
def rope_kernel(q_ptr, k_ptr, cos_ptr, sin_ptr, qo_ptr, ko_ptr, S, H, N, P: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    if tl.program_id(0) == 0:
        for first in range(0, N, ROWS):
            row = first + tl.arange(0, ROWS)
            token, h = row // (H + 1), row % (H + 1)
            s = token % S
            p = tl.arange(0, P)
            live0 = (p < D // 2)[None, :]
            live = (row < N)[:, None] & live0
            query = live & (h < H)[:, None]
            key = live & (h == H)[:, None]
            c = tl.load(cos_ptr + s[:, None] * (D // 2) + p[None, :], mask=live)
            d = tl.load(sin_ptr + s[:, None] * (D // 2) + p[None, :], mask=live)
            qat = (token * H + h)[:, None] * D + 2 * p[None, :]
            kat = token[:, None] * D + 2 * p[None, :]
            a = tl.load(q_ptr + qat, mask=query, other=0.0).to(tl.float32)
            b = tl.load(q_ptr + qat + 1, mask=query, other=0.0).to(tl.float32)
            e = tl.load(k_ptr + kat, mask=key, other=0.0).to(tl.float32)
            f = tl.load(k_ptr + kat + 1, mask=key, other=0.0).to(tl.float32)
            x = tl.where(key, e, a)
            y = tl.where(key, f, b)
            u = x * c - y * d
            v = x * d + y * c
            tl.store(qo_ptr + qat, u, mask=query)
            tl.store(qo_ptr + qat + 1, v, mask=query)
            tl.store(ko_ptr + kat, u, mask=key)
            tl.store(ko_ptr + kat + 1, v, mask=key)


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, D = q_rope.shape
    q, k = torch.empty_like(q_rope), torch.empty_like(k_rope)
    n = B * S * (H + 1)
    rope_kernel[(132,)](q_rope.contiguous(), k_rope.contiguous(), cos, sin, q, k, S, H, n, P=triton.next_power_of_2(D // 2), D=D, ROWS=64, num_warps=4)
    return q, k
