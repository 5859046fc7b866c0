"""The table of attention forms: what :class:`mla_ref.MLA` takes by name, all of one signature.

To add a form is to write its function, in a file of its own, and to add its line to :data:`IMPLEMENTATIONS`.
"""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ._operands import check_mla
from .attention import absorb, default_scale, naive
from .config import MLAConfig
from .hardware.devices import DEVICES, find_device
from .prefix import plan_prefixes, prefix_attention
from .roofline import break_even_batch

WIDTHS = {
    "num_attention_heads": "H",
    "kv_lora_rank": "R",
    "qk_nope_head_dim": "Dn",
    "qk_rope_head_dim": "Dr",
    "v_head_dim": "Dv",
}
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


def prefix(
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
    """MLA that computes pages which many sequences share naively, and the rest by absorption.

    Parameters and results are those of :func:`mla_ref.naive`. What is shared is read off the block table at each call,
    and expanded for it: :func:`mla_ref.plan_prefixes` and :class:`mla_ref.ExpandedPrefixes` do both once for many
    calls. Without a block table, and under `torch.compile`, this is :func:`mla_ref.absorb`. The switch point is
    equation 1's by the data sheet of the GPU in use, and by an H100's elsewhere.

    Raises
    ------
    TypeError, ValueError
        As :func:`mla_ref.naive`.

    References
    ----------
    TyphoonMLA, algorithm 1.
    """
    where = {"seq_lens": seq_lens, "block_table": block_table}
    if block_table is None or torch.compiler.is_compiling():
        return absorb(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, scale=scale, causal=causal, **where)
    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    key = find_device(torch.cuda.get_device_name(q_nope.device)) if q_nope.is_cuda else None
    device = DEVICES[key or "h100"]
    shapes = {name: size[symbol] for name, symbol in WIDTHS.items()}
    config, q_len = dataclasses.replace(MLAConfig.preset("tiny"), **shapes), max(size["S"], 1)
    switch_point = break_even_batch(config, device, q_len=q_len, dtype_bytes=q_nope.element_size())
    plan = plan_prefixes(**where, page_size=size["page_size"], switch_point=switch_point, q_len=q_len)
    attend = prefix_attention
    if q_nope.is_cuda and not torch.is_grad_enabled():  # there is no backward pass
        from . import kernels  # needs Triton, and PyTorch alone does not

        attend = kernels.prefix_attention
    return attend(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, plan, scale=scale, causal=causal, **where)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "naive": naive,
    "absorb": absorb,
    "triton": triton,
    "prefix": prefix,
}
