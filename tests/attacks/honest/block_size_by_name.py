"""Annotations, the language under another name, and a block size that is a constant of the module."""

EXERCISE = "scale_add"
SPEED = True

# The cell:
import triton.language as T

BLOCK_SIZE: T.constexpr = T.constexpr(1024)


@triton.jit
def add_kernel(
    x_ptr: torch.Tensor, y_ptr: torch.Tensor, out_ptr: torch.Tensor, alpha: float, n: int,
    BLOCK: T.constexpr = BLOCK_SIZE,
):
    """Docs."""
    start = T.program_id(axis=0) * BLOCK
    x_ptr += start
    y_ptr += start
    out_ptr += start
    offsets = T.arange(0, BLOCK)
    mask = offsets + start < n
    T.static_assert(BLOCK % 32 == 0, f"{BLOCK}")
    x = T.load(x_ptr + offsets, mask=mask, eviction_policy="evict_first")
    y = T.load(y_ptr + offsets, mask=mask, cache_modifier=".cg")
    T.store(out_ptr + offsets, T.fma(x.to(T.float32), alpha, y.to(T.float32)).to(out_ptr.dtype.element_ty), mask=mask)


def scale_add(x: torch.Tensor, y: torch.Tensor, alpha: float) -> torch.Tensor:
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 1024), 1, 1)
    add_kernel[grid](x_ptr=x, y_ptr=y, out_ptr=out, alpha=alpha, n=x.numel(), num_warps=4)
    return out
