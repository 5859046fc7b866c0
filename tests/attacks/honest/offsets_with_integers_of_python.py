"""The host reads the lengths as a list, and its loop of Python makes a tensor of what is real."""

EXERCISE = "token_offsets"
SPEED = False

# The cell:
@triton.jit
def offsets_kernel(
    table_ptr, starts_ptr, real_ptr, offsets_ptr, S, max_pages, page_size, page_stride, width, BLOCK_S: tl.constexpr,
):
    b = tl.program_id(1).to(tl.int64)
    offs_s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    real = tl.load(real_ptr + b * S + offs_s, mask=offs_s < S, other=0) != 0
    position = tl.load(starts_ptr + b) + offs_s
    page = tl.load(table_ptr + b * max_pages + position // page_size, mask=real, other=0).to(tl.int64)
    offset = page * page_stride + position % page_size * width
    tl.store(offsets_ptr + b * S + offs_s, tl.where(real, offset, -1), mask=offs_s < S)


def token_offsets(block_table, starts, lengths, S, page_size, page_stride, width):
    B, max_pages = block_table.shape
    offsets = torch.empty((B, S), dtype=torch.int64, device=block_table.device)
    real = torch.tensor([[s < length for s in range(S)] for length in lengths.tolist()], dtype=torch.int32)
    offsets_kernel[(triton.cdiv(S, 64), B)](
        block_table, starts, real, offsets, S, max_pages, page_size, page_stride, width, BLOCK_S=64
    )
    return offsets
