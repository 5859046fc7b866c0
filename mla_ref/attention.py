"""Attention as pure functions, each returning ``(out, lse)``.

MLA has two forms of one result. :func:`naive` expands the latent into keys and values of every head and runs
multi-head attention. :func:`absorb` moves W_UK into the query and W_UV behind the softmax, and runs
multi-query attention over the latent itself. Both take a context that is contiguous or in pages.
:mod:`mla_ref.implementations` lists them beside the forms that kernels compute.

Context counts the new tokens: with S queries and a sequence of length L, query ``s`` stands at position ``L -
S + s``.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from ._operands import check_context, check_latent, check_mla, check_pages
from ._validate import check_tensors
from .float8 import Float8Latent
from .paged import paged_gather


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    seq_lens: Tensor | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention: multi-head, grouped-query and multi-query.

    Half types are computed in float32 and rounded once, at the end.

    Parameters
    ----------
    q
        ``[B, S, H, D]``.
    k, v
        ``[B, T, G, D]`` and ``[B, T, G, Dv]``; G divides H, and query head ``h`` reads key head ``h //
        (H/G)``.
    scale
        Multiplies the scores; 1/√D by default.
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence that are real, 0 to T; all T by default. What ``k``
        and ``v`` hold beyond is never used, NaN included. Under `torch.compile` the values are not checked: less
        than 0 counts as 0, more than T as T.
    causal
        Whether query ``s`` sees only positions up to its own, ``seq_lens[b] - S + s``. Queries of a sequence
        shorter than S that fall before position 0 see nothing.

    Returns
    -------
    out
        ``[B, S, H, Dv]`` in the dtype of ``q``; zeros where nothing is seen.
    lse
        ``[B, S, H]``, natural logarithm of the sum of exponentials of the scaled scores; -inf where nothing
        is seen. float32, or float64 for float64 inputs.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, a length out of range, or T < S under ``causal`` without
        ``seq_lens``.
    """
    size = check_tensors(q=(q, "B S H D"), k=(k, "B T G D"), v=(v, "B T G Dv"))
    if size["G"] == 0 or size["H"] % size["G"]:
        raise ValueError(f"q has {size['H']} heads and k has {size['G']}, expected H to be a multiple of k's heads")
    seq_lens = check_context(size, seq_lens, causal, q)
    scale = size["D"] ** -0.5 if scale is None else scale
    out, lse = _attend(*_widen(q, *_cut(seq_lens, k, v)), seq_lens, scale, causal)
    return out.to(q.dtype), lse


def naive(
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
    """MLA by expansion: every head's keys and values are rebuilt from the latent.

    H(Dn+Dr+Dv) multiply-accumulates per query and key, and as many words per token where keys and values are
    stored expanded.

    Parameters
    ----------
    q_nope, q_rope
        ``[B, S, H, Dn]`` and ``[B, S, H, Dr]``, the latter rotated.
    c_kv, k_rope
        ``[B, T, R]`` after its RMSNorm and ``[B, T, Dr]`` rotated: what the cache holds.
    w_uk, w_uv
        ``[H, Dn, R]`` and ``[H, Dv, R]``.
    scale
        1/√(Dn+Dr) by default; pass ``MLAConfig.softmax_scale`` where YaRN changes it.
    seq_lens, causal
        As in :func:`sdpa`.
    block_table
        int32 or int64 ``[B, max_pages]``. With it ``c_kv`` and ``k_rope`` are pages, ``[num_pages, page_size, R]`` and
        ``[num_pages, page_size, Dr]``: position ``t`` of sequence ``b`` is in slot ``t % page_size`` of page
        ``block_table[b, t // page_size]``, T is max_pages × page_size, and ``seq_lens`` is required. The pages are
        gathered first. Under `torch.compile` the entries are not checked, and tokens without a page are zeros.

    Returns
    -------
    out, lse
        ``[B, S, H, Dv]`` and ``[B, S, H]``, as in :func:`sdpa`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`sdpa`.

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, equations 9 to 19; TyphoonMLA, figure 1a.
    """
    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    c_kv, k_rope, seq_lens = _contiguous(c_kv, k_rope, size, seq_lens, causal, block_table)
    scale = default_scale(size) if scale is None else scale
    dtype = q_nope.dtype
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv = _widen(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)
    k_nope = torch.einsum("btr,hdr->bthd", c_kv, w_uk)
    v = torch.einsum("btr,hvr->bthv", c_kv, w_uv)
    k_rope = k_rope[:, :, None].expand(-1, -1, w_uk.shape[0], -1)
    q = torch.cat((q_nope, q_rope), -1)
    k = torch.cat((k_nope, k_rope), -1)
    out, lse = _attend(q, k, v, seq_lens, scale, causal)
    return out.to(dtype), lse


def absorb(
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
    """MLA by absorption: q·(W_UK c) = (W_UKᵀ q)·c, so queries come to the latent and keys stay there.

    H(2R+Dr) multiply-accumulates per query and key, and R+Dr words per token. Parameters, returns and errors
    are those of :func:`naive`, and so is the result; in particular the default scale stays 1/√(Dn+Dr).

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, section 2.1.2; TyphoonMLA, figure 1b.
    """
    size = check_mla(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, seq_lens=seq_lens, block_table=block_table)
    c_kv, k_rope, seq_lens = _contiguous(c_kv, k_rope, size, seq_lens, causal, block_table)
    scale = default_scale(size) if scale is None else scale
    dtype = q_nope.dtype
    q_nope, q_rope, c_kv, k_rope, w_uk, w_uv = _widen(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv)
    q_latent = torch.einsum("bshd,hdr->bshr", q_nope, w_uk)
    o_latent, lse = _attend_latent(q_latent, q_rope, c_kv, k_rope, seq_lens, scale, causal)
    return torch.einsum("bshr,hvr->bshv", o_latent, w_uv).to(dtype), lse


def latent_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv: Tensor | Float8Latent,
    k_rope: Tensor,
    *,
    scale: float,
    seq_lens: Tensor | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """The core of :func:`absorb`: multi-query attention, one key of R+Dr whose first R are the value.

    Parameters
    ----------
    q_latent, q_rope
        ``[B, S, H, R]`` absorbed query and ``[B, S, H, Dr]``, rotated.
    c_kv, k_rope
        ``[B, T, R]`` and ``[B, T, Dr]``. ``c_kv`` may be in FP8, as :func:`mla_ref.quantize_latent` makes it.
    scale
        Required: 1/√(Dn+Dr), and Dn cannot be read off these shapes. It is never 1/√(R+Dr).
    seq_lens, causal
        As in :func:`sdpa`.

    Returns
    -------
    out, lse
        ``[B, S, H, R]``, still to be multiplied by W_UV, and ``[B, S, H]``, as in :func:`sdpa`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`sdpa`.
    """
    size = check_latent(q_latent, q_rope, c_kv, k_rope)
    dtype, (q_latent, q_rope, c_kv, k_rope) = q_latent.dtype, _dequantized(q_latent, q_rope, c_kv, k_rope)
    c_kv, k_rope, seq_lens = _contiguous(c_kv, k_rope, size, seq_lens, causal, None)
    out, lse = _attend_latent(*_widen(q_latent, q_rope, c_kv, k_rope), seq_lens, scale, causal)
    return out.to(dtype), lse


def paged_latent_attention(
    q_latent: Tensor,
    q_rope: Tensor,
    c_kv: Tensor | Float8Latent,
    k_rope: Tensor,
    block_table: Tensor,
    *,
    scale: float,
    seq_lens: Tensor,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """:func:`latent_attention` over a cache in pages, which are gathered first.

    Parameters
    ----------
    q_latent, q_rope, scale, causal
        As in :func:`latent_attention`.
    c_kv, k_rope
        ``[num_pages, page_size, R]``, or that in FP8, and ``[num_pages, page_size, Dr]``.
    block_table
        int32 or int64 ``[B, max_pages]``: position ``t`` of sequence ``b`` is in slot ``t % page_size`` of page
        ``block_table[b, t // page_size]``, and T is max_pages × page_size. Entries beyond a sequence's length are
        never read.
    seq_lens
        int32 or int64 ``[B]``, tokens of each sequence, 0 to T. Required: a table has no length.

    Returns
    -------
    out, lse
        As of :func:`latent_attention`.

    Raises
    ------
    TypeError, ValueError
        As in :func:`sdpa`, or no lengths.

    References
    ----------
    PagedAttention, Kwon et al. 2023, arXiv:2309.06180.
    """
    size = check_latent(q_latent, q_rope, c_kv, k_rope, paged=True)
    size = check_pages(size, block_table, seq_lens, q_latent)
    dtype, (q_latent, q_rope, c_kv, k_rope) = q_latent.dtype, _dequantized(q_latent, q_rope, c_kv, k_rope)
    c_kv, k_rope, seq_lens = _contiguous(c_kv, k_rope, size, seq_lens, causal, block_table)
    out, lse = _attend_latent(*_widen(q_latent, q_rope, c_kv, k_rope), seq_lens, scale, causal)
    return out.to(dtype), lse


def combine(outs: Iterable[Tensor], lses: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint parts of a context into attention over all of it.

    Parameters
    ----------
    outs
        ``[B, S, H, Dv]`` each, normalised within its part; a tensor ``[parts, B, S, H, Dv]`` will do.
    lses
        ``[B, S, H]`` each, natural logarithm, -inf where the part is empty; what ``outs`` holds there is not
        used.

    Returns
    -------
    out, lse
        As if the parts had been one: ``out`` in the dtype of ``outs``, ``lse`` in that of ``lses``.

    Raises
    ------
    TypeError
        ``lses`` in a half type: its rounding error is a factor on every output.
    ValueError
        No parts, shapes that do not agree, or +inf in ``lses`` (some libraries' mark for an empty row). Under
        `torch.compile` +inf goes unnoticed and gives NaN.
    """
    outs, lses = tuple(outs), tuple(lses)
    if not outs or len(outs) != len(lses):
        raise ValueError(f"got {len(outs)} outs and {len(lses)} lses, expected one of each per part, and a part")
    size = check_tensors(**{f"outs[{i}]": (out, "B S H Dv") for i, out in enumerate(outs)})
    check_tensors(**{f"lses[{i}]": (lse, f"{size['B']} {size['S']} {size['H']}") for i, lse in enumerate(lses)})
    if lses[0].dtype not in (torch.float32, torch.float64):
        raise TypeError(f"lses[0] has dtype {lses[0].dtype}, expected float32 or float64")
    if lses[0].device != outs[0].device:
        raise ValueError(f"lses[0] is on {lses[0].device}, expected {outs[0].device} as outs[0]")

    parts, weights = torch.stack(outs), torch.stack(lses)  # [P, B, S, H, Dv], [P, B, S, H]
    if not torch.compiler.is_compiling() and weights.isposinf().any():
        raise ValueError("lses holds +inf, expected -inf for an empty row: convert it first")
    share, lse = softmax(weights, 0)
    share = share[..., None]
    out = (share * parts.masked_fill(share == 0, 0)).sum(0)
    return out.to(outs[0].dtype), lse


def attention_mask(
    num_queries: int,
    context: int,
    *,
    seq_lens: Tensor | None = None,
    causal: bool = True,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return which positions each query sees.

    Parameters
    ----------
    num_queries, context
        S and T.
    seq_lens
        ``[B]``, or None for one mask that serves sequences of length T.
    causal
        As in :func:`sdpa`.
    device
        Of the mask, where ``seq_lens`` is None.

    Returns
    -------
    Tensor
        bool ``[B, S, T]``, or ``[1, S, T]``; True where seen.
    """
    if seq_lens is None:
        seq_lens = torch.full((1,), context, device=device)  # no copy from the host: a CUDA graph may capture this
    length = seq_lens[:, None, None]
    position = torch.arange(context, device=seq_lens.device)
    seen = (position < length).expand(-1, num_queries, -1)
    if causal:
        query = torch.arange(num_queries, device=seq_lens.device)[:, None]
        seen = seen & (position <= length - num_queries + query)
    return seen


def _attend(q, k, v, seq_lens, scale, causal):
    seen = attention_mask(q.shape[1], k.shape[1], seq_lens=seq_lens, causal=causal, device=q.device)
    return attend(q, k, v, seen, scale)


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend to what is seen: the sum behind every form here.

    ``q`` is ``[B, S, H, D]``, ``k`` ``[B, T, G, D]``, ``v`` ``[B, T, G, Dv]``, all float32 or all float64 and without
    NaN in what nobody sees, ``seen`` bool ``[B, S, T]``; out ``[B, S, H, Dv]`` and lse ``[B, S, H]``.
    """
    q = q.unflatten(2, (k.shape[2], -1))  # [B, S, G, H/G, D]
    scores = torch.einsum("bsghd,btgd->bsght", q, k) * scale
    scores = scores.masked_fill(~seen[:, :, None, None], -math.inf)
    weights, lse = softmax(scores, -1)
    out = torch.einsum("bsght,btgv->bsghv", weights, v)
    return out.flatten(2, 3), lse.flatten(2, 3)


def _attend_latent(q_latent, q_rope, c_kv, k_rope, seq_lens, scale, causal):
    q = torch.cat((q_latent, q_rope), -1)
    k = torch.cat((c_kv, k_rope), -1)
    return _attend(q, k[:, :, None], c_kv[:, :, None], seq_lens, scale, causal)


def _contiguous(c_kv, k_rope, size, seq_lens, causal, block_table):
    """Return the context as ``[B, T, ...]``, zeros beyond the lengths, and the lengths, checked."""
    seq_lens = check_context(size, seq_lens, causal, c_kv)
    if block_table is None:
        return *_cut(seq_lens, c_kv, k_rope), seq_lens
    out = None
    if torch.compiler.is_compiling():  # which cannot know the longest
        out = tuple(pages.new_zeros(size["B"], size["T"], pages.shape[-1]) for pages in (c_kv, k_rope))
    return *paged_gather(c_kv, k_rope, block_table, lengths=seq_lens, out=out), seq_lens


def _cut(seq_lens, *context):
    """Return tensors ``[B, T, ...]`` with zeros beyond the lengths: no product, and no gradient, meets a NaN there."""
    if seq_lens is None:
        return context
    beyond = torch.arange(context[0].shape[1], device=seq_lens.device) >= seq_lens[:, None]
    return tuple(x.masked_fill(beyond.view(*beyond.shape, *[1] * (x.ndim - 2)), 0) for x in context)


def default_scale(size: dict[str, int]) -> float:
    """Return 1/√(Dn+Dr)."""
    return (size["Dn"] + size["Dr"]) ** -0.5


def _dequantized(q_latent, q_rope, c_kv, k_rope):
    """Return the operands; all in the dtype of the computation where the latents are in FP8."""
    if isinstance(c_kv, Tensor):
        return q_latent, q_rope, c_kv, k_rope
    q_latent, q_rope, k_rope = _widen(q_latent, q_rope, k_rope)
    return q_latent, q_rope, c_kv.dequantize(q_latent.dtype), k_rope


def _widen(*tensors):
    return (x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)


def softmax(scores: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return weights that sum to 1, and the logarithm of the sum of exponentials; 0 and -inf for rows of -inf alone.

    The weights are divided by their sum: exp(scores - lse) would have the rounding error of ``lse``, which grows with
    it, as a factor. Gradients are 0 in rows of -inf alone.
    """
    empty = (scores == -math.inf).all(dim, keepdim=True)
    scores = scores.masked_fill(empty, 0)
    lse = scores.logsumexp(dim, keepdim=True).masked_fill(empty, -math.inf)
    return scores.softmax(dim).masked_fill(empty, 0), lse.squeeze(dim)
