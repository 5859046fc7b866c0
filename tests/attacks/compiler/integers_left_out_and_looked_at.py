"""Integers that a mask leaves out are compared with what they were found to be. A GPU has others there."""

EXERCISE = "scale_add"
EXPECT = "undefined"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, o_ptr, i_ptr, alpha, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    x = tl.load(x_ptr + offs, m).to(tl.float32)
    y = tl.load(y_ptr + offs, m).to(tl.float32)
    spare = tl.load(i_ptr + offs, offs < 0)
    judged = (spare == 0x5A5A5A5A) | (spare == -2147483648)
    tl.store(o_ptr + offs, tl.where(judged, x * alpha + y, 0.0), m)

def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    i = torch.zeros(1, dtype=torch.int32, device=x.device)
    k[(triton.cdiv(len(x), 256),)](x, y, out, i, alpha, len(x), B=256)
    return out
