"""Grid, output and launch are functions of their own, one of them a lambda."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)


def like(x):
    return x.new_empty(x.shape)


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


def launch(kernel, *given, **options):
    kernel[grid](*given, **options)
    return given[2]


def scale_add(x, y, alpha):
    return launch(add_kernel, x, y, like(x), alpha, x.numel(), BLOCK=1024, num_warps=8)
