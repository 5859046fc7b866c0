"""Who comes first sets a half by an exchange, of which it uses what was there. The other adds to it, perhaps before.
"""

EXERCISE = "scale_add"
EXPECT = "in another order it is wrong"

# The cell:
@triton.jit
def k(x_ptr, y_ptr, o_ptr, c_ptr, w_ptr, alpha, n, B: tl.constexpr):
    t = tl.program_id(0) // 2
    offs = t * B + tl.arange(0, B)
    m = offs < n
    if tl.program_id(0) % 2 == 0:
        v = tl.load(x_ptr + offs, m).to(tl.float32) * alpha
    else:
        v = tl.load(y_ptr + offs, m).to(tl.float32)
    if tl.atomic_add(c_ptr + t, 1) == 0:
        was = tl.atomic_xchg(o_ptr + offs, v, mask=m)
        tl.store(w_ptr + offs, was, mask=m)
    else:
        tl.atomic_add(o_ptr + offs, v, mask=m)

def scale_add(x, y, alpha):
    n = len(x)
    g = triton.cdiv(n, 256)
    out = torch.zeros(n, dtype=torch.float32, device=x.device)
    was = torch.empty(n, dtype=torch.float32, device=x.device)
    k[(2 * g,)](x, y, out, torch.zeros(g, dtype=torch.int32, device=x.device), was, alpha, n, B=256)
    return out.to(x.dtype)
