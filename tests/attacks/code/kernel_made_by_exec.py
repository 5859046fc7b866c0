"""The kernel is made by exec of a text, so that its source is nowhere among the cells. What is replayed is cut from
the notebook, and nothing else is.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
TEXT = '''
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)
'''
import linecache

linecache.cache["<made>"] = (len(TEXT), None, TEXT.splitlines(True), "<made>")
exec(compile(TEXT, "<made>", "exec"))


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
