"""The table of attention forms: what :class:`mla_ref.MLA` takes by name, all of one signature.

To add a form is to write its function, in a file of its own, and to add its line to :data:`IMPLEMENTATIONS`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ._operands import check_mla
from .attention import absorb, default_scale, naive

Implementation = Callable[..., tuple[Tensor, Tensor]]


def triton(
    q_nope: Tensor,
    q_rope: Tensor,
    c_kv: Tensor,
    k_rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    *,
    scale: float | None = None,
    seq_lens: Tensor | None = None,
    causal: bool = True,
    block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MLA by absorption and the fastest of ``mla_ref.kernels.DECODERS``, which reads pages where they are.

    Parameters and results are those of :func:`mla_ref.naive`; ``lse`` is float32. Nothing waits for the device, so the
    values of ``seq_lens`` are not checked: a length beyond T counts as T. Only on a CPU is :func:`mla_ref.check_table`
    applied to pages.

    Raises
    ------
    TypeError, ValueError
        Shapes or devices that do not agree, or dtypes that kernels do not take.
    RuntimeError
        A tensor that requires a gradient.
    ImportError
        Triton is not installed.

    References
    ----------
    Flash-Decoding, Dao et al. 2023; PagedAttention, Kwon et al. 2023, arXiv:2309.06180.
    """
    from . import kernels  # needs Triton, and PyTorch alone does not

    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    scale = default_scale(size) if scale is None else scale
    operands = torch.einsum("bshd,hdr->bshr", q_nope, w_uk), q_rope, c_kv, k_rope
    decoder = kernels.DECODERS[kernels.FASTEST]
    if block_table is None:
        o_latent, lse = decoder.contiguous(*operands, scale=scale, seq_lens=seq_lens, causal=causal)
    else:
        o_latent, lse = decoder.paged(*operands, block_table, scale=scale, seq_lens=seq_lens, causal=causal)
    return torch.einsum("bshr,hvr->bshv", o_latent, w_uv), lse


IMPLEMENTATIONS: dict[str, Implementation] = {
    "naive": naive,
    "absorb": absorb,
    "triton": triton,
}
