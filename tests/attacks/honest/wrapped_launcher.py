"""The launcher is wrapped by a decorator of the student's own that counts calls."""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import functools

calls = 0


def counted(function):
    @functools.wraps(function)
    def wrapper(*given, **options):
        global calls
        calls += 1
        return function(*given, **options)

    return wrapper


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, alpha, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    y = tl.load(y_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, alpha * x + y, mask=offsets < n)


@counted
def scale_add(x, y, alpha):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, alpha, x.numel(), BLOCK=1024)
    return out
