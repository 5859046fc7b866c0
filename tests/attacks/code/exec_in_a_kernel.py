"""A constant is the module builtins, and the kernel calls its exec while it is compiled, in the judge's processes;
Triton refuses the first launch alone. Of modules a kernel may name what is on a list, and builtins is not.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
RUNTIME = triton.runtime
JIT = RUNTIME.jit
INSPECT = JIT.inspect
BUILTINS = INSPECT.builtins


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    BUILTINS.exec("import os; os.environ['REACHED'] = '1'")
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def warm_up():
    x = torch.zeros(1)
    try:
        add_kernel[(1,)](x, x, x, 1.0, 1, BLOCK=16)
    except RuntimeError:
        pass


warm_up()


def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
