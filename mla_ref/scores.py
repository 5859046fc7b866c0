"""The two steps of attention between projections and values: scores, and the weights made of them."""

import math

import torch
from torch import Tensor

from ._operands import check_causal, check_context, check_latent
from ._validate import check_tensors
from .attention import attention_mask, softmax


def attention_score(
    q_latent: Tensor, q_rope: Tensor, c_kv: Tensor, k_rope: Tensor, *, scale: float, causal: bool = True
) -> Tensor:
    """Return the scaled scores of absorbed queries, (q_latent · c_kv + q_rope · k_rope) * scale.

    Half types are computed in float32 and rounded once, at the end.

    Parameters
    ----------
    q_latent, q_rope
        ``[B, S, H, R]`` absorbed query and ``[B, S, H, Dr]``, rotated.
    c_kv, k_rope
        ``[B, T, R]`` and ``[B, T, Dr]``.
    scale
        1/√(Dn+Dr), and Dn cannot be read off these shapes. It is never 1/√(R+Dr).
    causal
        Whether positions after the query's own, beyond ``T - S + s``, get -inf.

    Returns
    -------
    Tensor
        ``[B, S, H, T]`` in the dtype of the inputs. Heads stand inside queries because all of them meet the same
        keys: the scores of a sequence are one matrix ``[S·H, T]``.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or T < S under ``causal``.

    References
    ----------
    "Optimizing Multi-head Latent Attention for Efficient Inference", section 3.2.1.
    """
    size = check_latent(q_latent, q_rope, c_kv, k_rope)
    check_causal(size, causal)
    wide = torch.promote_types(q_latent.dtype, torch.float32)
    nope = torch.einsum("bshr,btr->bsht", q_latent.to(wide), c_kv.to(wide))
    rope = torch.einsum("bshr,btr->bsht", q_rope.to(wide), k_rope.to(wide))
    scores = (nope + rope) * scale
    if causal:
        seen = attention_mask(size["S"], size["T"], device=scores.device)
        scores = scores.masked_fill(~seen[:, :, None], -math.inf)
    return scores.to(q_latent.dtype)


def masked_softmax(scores: Tensor, *, seq_lens: Tensor | None = None, causal: bool = True) -> Tensor:
    """Return each row's softmax over the positions that its query sees.

    Half types are computed in float32 and rounded once, at the end.

    Parameters
    ----------
    scores
        ``[B, S, H, T]``, scaled. What they hold at positions that are not seen is never used, NaN included.
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence that are real, 0 to T; all T by default.
    causal
        Whether query ``s`` sees only positions up to its own, ``seq_lens[b] - S + s``.

    Returns
    -------
    Tensor
        Shape and dtype of ``scores``; zeros where nothing is seen, so that a row that sees nothing, or -inf alone,
        is zeros throughout.

    Raises
    ------
    TypeError, ValueError
        A shape, dtype or device that does not fit, a length out of range, or T < S under ``causal`` without
        ``seq_lens``.

    References
    ----------
    "Optimizing Multi-head Latent Attention for Efficient Inference", section 3.2.2.
    """
    size = check_tensors(scores=(scores, "B S H T"))
    seq_lens = check_context(size, seq_lens, causal, scores)
    seen = attention_mask(size["S"], size["T"], seq_lens=seq_lens, causal=causal, device=scores.device)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32)).masked_fill(~seen[:, :, None], -math.inf)
    return softmax(wide, -1)[0].to(scores.dtype)
