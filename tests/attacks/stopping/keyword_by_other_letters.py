"""A name of the kernel is a keyword in letters of another script, which Python reads as a plain name. Written out it is
no program, and the judge says so in place of failing.
"""

EXERCISE = "scale_add"
SPEED = False
EXPECT = "cannot be written out"

# The cell:
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    𝐢𝐟 = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + 𝐢𝐟, mask=𝐢𝐟 < n)
    y = tl.load(y_ptr + 𝐢𝐟, mask=𝐢𝐟 < n)
    tl.store(out_ptr + 𝐢𝐟, alpha * x + y, mask=𝐢𝐟 < n)


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
