"""Root mean square normalisation."""

import torch
from torch import Tensor, nn

from ._validate import check_tensors


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Divide each row by its root mean square, then multiply by ``weight``.

    Half types are accumulated in float32 and rounded once, at the end: squaring in float16 overflows beyond
    256.

    Parameters
    ----------
    x
        ``[..., D]``.
    weight
        ``[D]``, same dtype and device.
    eps
        Added to the mean square.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``.

    Raises
    ------
    TypeError, ValueError
        Dtypes, devices or widths that do not agree.

    References
    ----------
    Zhang & Sennrich 2019, arXiv:1910.07467.
    """
    check_tensors(x=(x, "... D"), weight=(weight, "D"))
    wide = torch.promote_types(x.dtype, torch.float32)
    y = x.to(wide)
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight.to(wide)).to(x.dtype)


class RMSNorm(nn.Module):
    """:func:`rms_norm` with a weight of its own, ones at first."""

    def __init__(self, width: int, eps: float = 1e-6, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return :func:`rms_norm` of ``x``, ``[..., width]``."""
        return rms_norm(x, self.weight, self.eps)
