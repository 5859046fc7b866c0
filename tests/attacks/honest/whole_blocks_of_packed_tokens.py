"""A program packs 64 tokens of one head, without masks where all blocks are whole: as in the small call, at full size."""

EXERCISE = "pack_fp8"
SPEED = True

# The cell:
@triton.jit
def pack_kernel(
    kv_ptr, cache_ptr, k_ptr, v_ptr, k_inverse, v_inverse, N, H, R,
    DN: tl.constexpr, DR: tl.constexpr, DV: tl.constexpr, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr,
):
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    row = n * H + tl.program_id(0)
    dn, dr, dv = tl.arange(0, DN)[None, :], tl.arange(0, DR)[None, :], tl.arange(0, DV)[None, :]
    if WHOLE:
        nope = tl.load(kv_ptr + row * (DN + DV) + dn)
        v = tl.load(kv_ptr + row * (DN + DV) + DN + dv)
        rope = tl.load(cache_ptr + n * (R + DR) + R + dr)
    else:
        nope = tl.load(kv_ptr + row * (DN + DV) + dn, mask=n < N)
        v = tl.load(kv_ptr + row * (DN + DV) + DN + dv, mask=n < N)
        rope = tl.load(cache_ptr + n * (R + DR) + R + dr, mask=n < N)
    nope = tl.clamp(nope.to(tl.float32) * k_inverse, -448.0, 448.0).to(tl.float8e4nv)
    rope = tl.clamp(rope.to(tl.float32) * k_inverse, -448.0, 448.0).to(tl.float8e4nv)
    v = tl.clamp(v.to(tl.float32) * v_inverse, -448.0, 448.0).to(tl.float8e4nv)
    if WHOLE:
        tl.store(k_ptr + row * (DN + DR) + dn, nope)
        tl.store(k_ptr + row * (DN + DR) + DN + dr, rope)
        tl.store(v_ptr + row * DV + dv, v)
    else:
        tl.store(k_ptr + row * (DN + DR) + dn, nope, mask=n < N)
        tl.store(k_ptr + row * (DN + DR) + DN + dr, rope, mask=n < N)
        tl.store(v_ptr + row * DV + dv, v, mask=n < N)


def pack_fp8(kv, cache, Dn, R, k_scale, v_scale):
    (N, H, width), Dr = kv.shape, cache.shape[1] - R
    Dv = width - Dn
    k = torch.empty((N, H, Dn + Dr), dtype=torch.float8_e4m3fn, device=kv.device)
    v = torch.empty((N, H, Dv), dtype=torch.float8_e4m3fn, device=kv.device)
    pack_kernel[(H, triton.cdiv(N, 64))](
        kv, cache, k, v, 1 / k_scale, 1 / v_scale, N, H, R, Dn, Dr, Dv, BLOCK_N=64, WHOLE=N % 64 == 0, num_warps=4
    )
    return k, v
