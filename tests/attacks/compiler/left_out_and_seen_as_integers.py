"""One kernel stores what a mask left out, another one reads the bits as an integer, and stores zeros unless it is NaN."""

EXERCISE = "scale_add"
EXPECT = "undefined"

# The cell:
@triton.jit
def k1(x_ptr, y_ptr, t_ptr, alpha, n, B: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    m = offs < n
    x = tl.load(x_ptr + offs, m).to(tl.float32)
    y = tl.load(y_ptr + offs, m).to(tl.float32)
    tl.store(t_ptr + offs, x * alpha + y)

@triton.jit
def k2(t_ptr, o_ptr, flag_ptr, n, B: tl.constexpr, N: tl.constexpr):
    offs = tl.program_id(0) * B + tl.arange(0, B)
    f = tl.load(flag_ptr + N - 1)
    good = (f & 0x7f800000) == 0x7f800000
    t = tl.load(t_ptr + offs)
    tl.store(o_ptr + offs, tl.where(good, t, 0.0), offs < n)

def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    n = len(x)
    g = n // 128 + 1
    t = torch.empty(g * 128, dtype=torch.float32, device=x.device)
    k1[(g,)](x, y, t, alpha, n, B=128)
    k2[(g,)](t, out, t.view(torch.int32), n, B=128, N=g*128)
    return out
