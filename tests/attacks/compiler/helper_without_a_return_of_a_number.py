"""A function gives no weight for an empty split. What it gives there is undefined, and no 0."""

EXERCISE = "combine_splits"
EXPECT = "ends without a return"

# The cell:
@triton.jit
def weight(x, m):
    if x > -float("inf"):
        return tl.exp(x - m)

@triton.jit
def k(po, pl, o, lse, P, M, R: tl.constexpr, BP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, R)
    pp = tl.arange(0, BP)
    m = tl.max(tl.load(pl + pp * M + row, pp < P, -float("inf")), 0)
    l = 0.0
    acc = tl.zeros([R], tl.float32)
    for p in range(P):
        x = tl.load(pl + p * M + row)
        w = weight(x, m)
        v = tl.load(po + (p * M + row) * R + r, mask=r < tl.where(x > -float("inf"), R, 0), other=0.0)
        acc += v * w
        l += w
    l1 = tl.where(l > 0, l, 1.0)
    tl.store(o + row * R + r, acc / l1)
    tl.store(lse + row, tl.where(l > 0, m + tl.log(l1), -float("inf")))

def combine_splits(partial_out, partial_lse, out):
    P, B, H, R = partial_out.shape
    lse = torch.empty(B, H, dtype=torch.float32, device=out.device)
    k[(B * H,)](partial_out, partial_lse, out, lse, P, B * H, R, triton.next_power_of_2(P))
    return out, lse
