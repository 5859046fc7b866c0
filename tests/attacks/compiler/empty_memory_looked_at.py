"""A number that nothing wrote is NaN or large, or zeros are stored. A GPU's memory holds others."""

EXERCISE = "scale_add"
EXPECT = "undefined"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, o_ptr, e_ptr, alpha, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    x = tl.load(x_ptr + offs, m).to(tl.float32)
    y = tl.load(y_ptr + offs, m).to(tl.float32)
    spare = tl.load(e_ptr)
    judged = (spare != spare) | (tl.abs(spare) > 1e30)
    tl.store(o_ptr + offs, tl.where(judged, x * alpha + y, 0.0), m)

def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    e = torch.empty(1, dtype=torch.float32, device=x.device)
    k[(triton.cdiv(len(x), 256),)](x, y, out, e, alpha, len(x), B=256)
    return out
