"""Attention over sequences of different lengths that lie one behind the other, without padding.

Sequence ``b`` of a batch has the rows ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]`` of its tensor, as FlashAttention's
variable-length functions have it. Queries and keys have lengths of their own: a chunk of a prompt attends to the whole
of what the cache holds by now.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._validate import FLOATING, check_integers, check_numbers, check_tensors
from .attention import attend
from .float8 import DTYPE as NARROW


def ragged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    bottom_right: bool = True,
    q_scale: float = 1.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Multi-head attention of packed sequences: the naive form's prefill, whose keys are Dn+Dr = 192 wide.

    A long prompt in chunks is merged by :func:`mla_ref.combine`, which takes the results with an axis in front: each
    chunk of keys that comes before the queries with ``causal=False``, the last one with ``causal=True``.

    Parameters
    ----------
    q
        ``[Nq, H, D]``, the queries of all sequences; of floats, or of ``float8_e4m3fn`` as k and v then are.
    k, v
        ``[Nkv, H, D]`` and ``[Nkv, H, Dv]``. Any layout, slices of one buffer among them.
    cu_seqlens_q, cu_seqlens_kv
        int32 or int64 ``[B + 1]``: from 0, never falling, to Nq and to Nkv. A sequence may be empty on either side.
    scale
        Multiplies the scores; 1/√D by default.
    causal
        Whether a query sees only positions up to its own.
    bottom_right
        Where that is: under ``causal`` the last query of a sequence stands at its last key, so that the first of S
        queries to L keys sees L - S + 1 of them. With False the first query stands at the first key.
    q_scale, k_scale, v_scale
        What 1 stands for in each tensor: the factors by which FP8 tensors were divided.

    Returns
    -------
    out
        ``[Nq, H, Dv]`` in the dtype of ``q``, of FP8 in bfloat16; zeros where nothing is seen.
    lse
        ``[Nq, H]``, natural logarithm of the sum of exponentials of the scaled scores, -inf where nothing is seen.
        float32, or float64 for float64 inputs.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or offsets that do not start at 0, fall, or end elsewhere than at
        the number of rows. Reading them waits for the device.

    References
    ----------
    TokenSpeed-MLA, ``tokenspeed_mla_prefill``.

    Examples
    --------
    >>> import torch
    >>> q, k, v = torch.zeros(3, 1, 4), torch.zeros(5, 1, 4), torch.arange(5.0).view(5, 1, 1)
    >>> out, lse = ragged_attention(q, k, v, torch.tensor([0, 2, 3]), torch.tensor([0, 3, 5]))
    >>> out.flatten()  # means of the values 0 1, 0 1 2, and of the second sequence's 3 4
    tensor([0.5000, 1.0000, 3.5000])
    """
    size = check_ragged(q, k, v, cu_seqlens_q, cu_seqlens_kv)
    check_numbers(q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)
    ends_q = check_offsets("cu_seqlens_q", cu_seqlens_q, size["Nq"])
    ends_kv = check_offsets("cu_seqlens_kv", cu_seqlens_kv, size["Nkv"])
    scale = (size["D"] ** -0.5 if scale is None else scale) * q_scale * k_scale
    wide = torch.promote_types(torch.bfloat16 if q.dtype == NARROW else q.dtype, torch.float32)
    out = torch.empty(size["Nq"], size["H"], size["Dv"], dtype=wide, device=q.device)
    lse = out.new_empty(out.shape[:2])
    for b in range(len(ends_q) - 1):
        rows, tokens = slice(ends_q[b], ends_q[b + 1]), slice(ends_kv[b], ends_kv[b + 1])
        q_b, k_b, v_b = (x.to(wide)[None] for x in (q[rows], k[tokens], v[tokens]))
        S, T = q_b.shape[1], k_b.shape[1]
        seen = torch.ones(1, S, T, dtype=torch.bool, device=q.device)
        if causal:
            seen = seen.tril(T - S if bottom_right else 0)
        found = attend(q_b, k_b, v_b, seen, scale)
        out[rows], lse[rows] = found[0][0] * v_scale, found[1][0]
    return out.to(torch.bfloat16 if q.dtype == NARROW else q.dtype), lse


def check_ragged(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor) -> dict[str, int]:
    """Check shapes, dtypes and devices, without reading the offsets, and return the sizes, ``ends`` = B + 1 of them.

    Raises TypeError or ValueError as :func:`ragged_attention`.
    """
    size = check_tensors((*FLOATING, NARROW), q=(q, "Nq H D"), k=(k, "Nkv H D"), v=(v, "Nkv H Dv"))
    offsets = {"cu_seqlens_q": (cu_seqlens_q, "ends"), "cu_seqlens_kv": (cu_seqlens_kv, "ends")}
    size = check_integers(q.device, size, **offsets)
    if size["ends"] == 0:
        raise ValueError("cu_seqlens_q has shape [0], expected B + 1 offsets: [0] for a batch of nothing")
    return size


def check_offsets(name: str, offsets: Tensor, rows: int) -> list[int]:
    """Return offsets as a list; raise ValueError unless they rise from 0 to the number of rows."""
    found = offsets.tolist()
    if found[0] != 0 or found[-1] != rows:
        raise ValueError(f"{name} goes from {found[0]} to {found[-1]}, expected 0 to {rows}, the rows of its tensor")
    for at in range(len(found) - 1):
        if found[at + 1] < found[at]:
            raise ValueError(f"{name}[{at + 1}] is {found[at + 1]} after {found[at]}, expected offsets that never fall")
    return found
