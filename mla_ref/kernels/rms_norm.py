"""RMSNorm, one row a program: each row is read once, stays in registers, and is written once."""

from collections.abc import Iterator

import triton
import triton.language as tl
from torch import Tensor

from .._validate import check_tensors
from ._launch import check_operands, on_device_of, output_for
from ._sizes import power_of_2

MAX_WIDTH = 65536


@triton.jit
def _rms_norm(
    x_ptr, weight_ptr, out_ptr, eps, M, D,
    stride_xb, stride_xm, stride_xd, stride_wd, stride_ob, stride_om, stride_od,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    b, m = (pid // M).to(tl.int64), (pid % M).to(tl.int64)
    offs_d = tl.arange(0, BLOCK_D).to(tl.int64)
    mask = offs_d < D

    # [BLOCK_D], in float32 before it is squared: float16 overflows beyond 256
    x = tl.load(x_ptr + b * stride_xb + m * stride_xm + offs_d * stride_xd, mask=mask, other=0.0).to(tl.float32)
    # [BLOCK_D]
    weight = tl.load(weight_ptr + offs_d * stride_wd, mask=mask, other=0.0).to(tl.float32)

    rstd = tl.rsqrt(tl.sum(x * x) / D + eps)
    y = (x * rstd * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + b * stride_ob + m * stride_om + offs_d * stride_od, y, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, *, out: Tensor | None = None) -> Tensor:
    """Divide each row by its root mean square, then multiply by ``weight``: :func:`mla_ref.rms_norm` in one launch.

    Parameters
    ----------
    x
        ``[..., D]``, D at most 65536. Any layout; rows that are spaced unevenly on two levels or more take a
        launch for each slice of ``x``.
    weight
        ``[D]``, same dtype and device.
    eps
        Added to the mean square.
    out
        Where the result goes; may be ``x``.

    Returns
    -------
    Tensor
        ``out``, or a new tensor with the shape and dtype of ``x``.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        Shapes, dtypes or devices that do not agree, or a tensor that requires a gradient.

    Examples
    --------
    300² + 400² is more than float16 holds:

    >>> import torch
    >>> rms_norm(torch.tensor([[300.0, -400.0]]).half(), torch.ones(2).half())
    tensor([[ 0.8486, -1.1318]], dtype=torch.float16)
    """
    out = check_rms_norm(x, weight, out)
    for x_rows, out_rows in row_views(x, out):
        B, M, D = x_rows.shape
        block = power_of_2(D)
        with on_device_of(x):
            _rms_norm[(B * M,)](
                x_rows, weight, out_rows, eps, M, D,
                *x_rows.stride(), *weight.stride(), *out_rows.stride(),
                block, num_warps=min(max(block // 512, 1), 16),
            )  # fmt: skip
    return out


def check_rms_norm(x: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
    """Check the arguments of an RMSNorm and return its output tensor."""
    width = check_tensors(x=(x, "... D"), weight=(weight, "D"))["D"]
    check_operands("mla_ref.rms_norm", x=x, weight=weight)
    if width > MAX_WIDTH:
        raise ValueError(f"x has rows of {width}, expected at most {MAX_WIDTH}: a row has to fit into registers")
    return output_for(x, out)


def row_views(x: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of views ``[B, M, D]`` that cover ``x`` and ``out``, as few as their strides allow."""
    if x.numel() == 0:
        return
    width = x.shape[-1]
    for shape in ((1, -1, width), (x.shape[0], -1, width), (-1, *x.shape[-2:])):
        try:
            yield x.view(shape), out.view(shape)
            return
        except RuntimeError:
            continue
    for x_slice, out_slice in zip(x, out, strict=True):
        yield from row_views(x_slice, out_slice)
