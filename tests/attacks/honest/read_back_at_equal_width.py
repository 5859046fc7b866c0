"""Each thread stores products in the result, loads them and adds. All blocks are of one width, and the loops of a program
become one, with a barrier behind each store.
"""

EXERCISE = "scale_add"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr, TILES: tl.constexpr):
    for tile in tl.range(0, TILES, num_stages=3, flatten=True):
        offsets = (tl.program_id(0) * TILES + tile).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(out_ptr + offsets, tl.load(y_ptr + offsets, mask=mask), mask=mask)
        for turn in tl.range(0, 2, num_stages=3):
            before = tl.load(out_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
            tl.store(out_ptr + offsets, before + tl.where(turn == 1, x * alpha, 0.0), mask=mask)
            tl.debug_barrier()


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 2048),)](x, y, out, alpha, n, BLOCK=1024, TILES=2)
    return out
