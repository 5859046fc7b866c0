"""A load reaches a product by way of a branch, and is done turns ahead all the same."""

EXERCISE = "scale_add"
EXPECT = "the compiler may do the load turns ahead"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, eye_ptr, alpha, n, turns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK * BLOCK + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(y_ptr + offsets, mask=mask), mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
    eye = (tl.arange(0, BLOCK)[:, None] == tl.arange(0, BLOCK)[None, :]).to(out_ptr.dtype.element_ty)
    for turn in tl.range(0, turns):
        before = tl.load(out_ptr + offsets, mask=mask, other=0.0)
        w = before
        if turn > 1:
            w = before + before * 0
        acc = tl.dot(eye, w, input_precision="ieee")
        tl.store(out_ptr + offsets, acc + tl.where(turn == 2, x * alpha, 0.0), mask=mask)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, 1024),)](x, y, out, x, alpha, n, 4, BLOCK=32)
    return out
