"""The host looks up the page of each token in the table, by integers alone, and the kernel reads that."""

EXERCISE = "paged_gather"
SPEED = False

# The cell:
@triton.jit
def gather_kernel(
    c_pages_ptr, k_pages_ptr, page_ptr, lengths_ptr, c_ptr, k_ptr, T, page_size, c_stride, k_stride,
    R: tl.constexpr, DR: tl.constexpr,
):
    t, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    real = t < tl.load(lengths_ptr + b)
    page = tl.load(page_ptr + b * T + t).to(tl.int64)
    slot = t % page_size
    c = tl.load(c_pages_ptr + page * c_stride + slot * R + offs_r, mask=real & (offs_r < R), other=0.0)
    k = tl.load(k_pages_ptr + page * k_stride + slot * DR + offs_d, mask=real & (offs_d < DR), other=0.0)
    tl.store(c_ptr + (b * T + t) * R + offs_r, c)
    tl.store(k_ptr + (b * T + t) * DR + offs_d, k)


def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    (_, page_size, R), Dr, B = c_kv_pages.shape, k_rope_pages.shape[-1], len(block_table)
    c_kv, k_rope = (x.new_empty(B, T, x.shape[-1]) for x in (c_kv_pages, k_rope_pages))
    token = torch.arange(T, device=block_table.device)
    entry = torch.clamp(token // page_size, max=block_table.shape[1] - 1)
    page = torch.where(token < lengths[:, None], block_table[:, entry], 0).contiguous()
    gather_kernel[(T, B)](
        c_kv_pages, k_rope_pages, page, lengths, c_kv, k_rope, T, page_size, c_kv_pages.stride(0),
        k_rope_pages.stride(0), R=R, DR=Dr,
    )
    return c_kv, k_rope
