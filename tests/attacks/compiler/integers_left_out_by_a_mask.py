"""The page of a token that is not real is taken for 0. Its mask leaves it out of the load, and nothing says what it is."""

EXERCISE = "token_offsets"
SPEED = False
EXPECT = "which has no `other`. What they hold is undefined, here 1515870810, and it reaches the result"

# The cell:
@triton.jit
def token_offsets_kernel(
    table_ptr, starts_ptr, lengths_ptr, offsets_ptr, S, max_pages, page_size, page_stride, width, BLOCK_S: tl.constexpr
):
    b = tl.program_id(1).to(tl.int64)
    offs_s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    real = offs_s < tl.load(lengths_ptr + b)
    position = tl.load(starts_ptr + b) + offs_s
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real).to(tl.int64)
    slot = tl.where(real, position % page_size * width, -1)
    tl.store(offsets_ptr + b * S + offs_s, page * page_stride + slot, mask=offs_s < S)


def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    B, max_pages = block_table.shape
    offsets = torch.empty((B, S), dtype=torch.int64, device=block_table.device)
    token_offsets_kernel[(triton.cdiv(S, 64), B)](
        block_table, starts, lengths, offsets, S, max_pages, page_size, page_stride, width, BLOCK_S=64
    )
    return offsets
