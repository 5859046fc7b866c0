"""At most 256 columns of a latent are copied: enough but for the widths of a model.
"""

EXERCISE = "paged_gather"
EXPECT = "R=512"

# The cell:
@triton.jit
def paged_gather_kernel(
    c_pages_ptr, k_pages_ptr, table_ptr, lengths_ptr, c_kv_ptr, k_rope_ptr,
    T, max_pages, page_size, c_stride, k_stride, R: tl.constexpr, DR: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """One program: BLOCK_N positions of one sequence.

    c_pages_ptr, k_pages_ptr: pages of [page_size, R] and [page_size, DR], c_stride and k_stride words apart;
    table_ptr: [B, max_pages]; lengths_ptr: [B]; c_kv_ptr: [B, T, R]; k_rope_ptr: [B, T, DR].
    """
    b = tl.program_id(1).to(tl.int64)
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_r, offs_d = tl.arange(0, R if R < 256 else 256), tl.arange(0, DR)
    real = offs_n < tl.load(lengths_ptr + b)
    page = tl.load(table_ptr + b * max_pages + offs_n // page_size, mask=real, other=0).to(tl.int64)
    slot = offs_n % page_size
    c_row, k_row = page * c_stride + slot * R, page * k_stride + slot * DR
    # [BLOCK_N, R] and [BLOCK_N, DR]
    c_kv = tl.load(c_pages_ptr + c_row[:, None] + offs_r[None, :], mask=real[:, None], other=0.0)
    k_rope = tl.load(k_pages_ptr + k_row[:, None] + offs_d[None, :], mask=real[:, None], other=0.0)
    tl.store(c_kv_ptr + (b * T + offs_n)[:, None] * R + offs_r[None, :], c_kv, mask=offs_n[:, None] < T)
    tl.store(k_rope_ptr + (b * T + offs_n)[:, None] * DR + offs_d[None, :], k_rope, mask=offs_n[:, None] < T)


def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    """Copy the tokens of all sequences out of their pages, in one launch.

    c_kv_pages: [num_pages, page_size, R]; k_rope_pages: [num_pages, page_size, Dr], pages stride(0) apart; float16 or
    bfloat16; R and Dr are powers of two. block_table: [B, max_pages], int32; lengths: [B], int32, 0 to T; T: int.
    Returns c_kv [B, T, R] and k_rope [B, T, Dr], 0 behind lengths[b]. Launches paged_gather_kernel.

    The traps: the slots behind the last token; T may be more than max_pages * page_size; b * T + t in int32
    (no case is so large that it wraps).
    """
    (_, page_size, R), Dr, B = c_kv_pages.shape, k_rope_pages.shape[-1], len(block_table)
    c_kv, k_rope = (x.new_empty(B, T, x.shape[-1]) for x in (c_kv_pages, k_rope_pages))
    block_n = min(triton.next_power_of_2(T), 4)
    paged_gather_kernel[(triton.cdiv(T, block_n), B)](
        c_kv_pages, k_rope_pages, block_table, lengths, c_kv, k_rope,
        T, block_table.shape[1], page_size, c_kv_pages.stride(0), k_rope_pages.stride(0),
        R=R, DR=Dr, BLOCK_N=block_n, num_warps=4,
    )
    return c_kv, k_rope
