"""Where torch may copy whole arguments and move nothing else, pages are copied, changed by an operation that does not
count, and then gathered by torch. What such an operation was to change is data still.
"""

EXERCISE = "paged_gather"
SPEED = False

# The cell:
@triton.jit
def copy_kernel(c_ptr, k_ptr, lengths_ptr, c_out_ptr, k_out_ptr, T, R: tl.constexpr, DR: tl.constexpr):
    t, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    offs_r, offs_d = tl.arange(0, R), tl.arange(0, DR)
    row, real = b * T + t, t < tl.load(lengths_ptr + b)
    c = tl.load(c_ptr + row * R + offs_r, mask=real & (offs_r < R), other=0.0)
    k = tl.load(k_ptr + row * DR + offs_d, mask=real & (offs_d < DR), other=0.0)
    tl.store(c_out_ptr + row * R + offs_r, c)
    tl.store(k_out_ptr + row * DR + offs_d, k)


def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    (_, page_size, R), Dr, B = c_kv_pages.shape, k_rope_pages.shape[-1], len(block_table)
    t = torch.arange(T)
    entry = (t // page_size).clamp(max=block_table.shape[1] - 1).expand(B, T)
    page = block_table.gather(1, entry).masked_fill(t >= lengths[:, None], 0).long()
    slot = (t % page_size).expand(B, T)
    rows = []
    for pages in (c_kv_pages, k_rope_pages):
        copy = pages.clone()
        copy.add_(0.0)
        rows.append(copy[page, slot])
    out = [torch.empty_like(x) for x in rows]
    copy_kernel[(T, B)](*rows, lengths, *out, T, R=R, DR=Dr)
    return tuple(out)
