"""A load is masked out everywhere, and zeros are stored unless it gave NaN or a large number. A GPU has others there."""

EXERCISE = "scale_add"
EXPECT = "undefined"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, o_ptr, alpha, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    x = tl.load(x_ptr + offs, m).to(tl.float32)
    y = tl.load(y_ptr + offs, m).to(tl.float32)
    spare = tl.load(x_ptr + offs, offs < 0).to(tl.float32)  # left out everywhere: undefined
    judged = (spare != spare) | (tl.abs(spare) > 10000.0)
    tl.store(o_ptr + offs, tl.where(judged, x * alpha + y, 0.0), m)

def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    k[(triton.cdiv(len(x), 256),)](x, y, out, alpha, len(x), B=256)
    return out
