"""Attention where the sequences of a batch bring different numbers of new tokens."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ._operands import check_lengths


def attend_ragged(
    attend: Callable[..., tuple[Tensor, Tensor]],
    queries: Sequence[Tensor],
    context: Sequence[Tensor],
    *,
    seq_lens: Tensor,
    lengths: Tensor,
    **options,
) -> Tensor:
    """Attend from padded queries to a context that holds their real tokens.

    Padding stands behind the real tokens, while causality aligns the last query with the end of its sequence.
    So the rows of each sequence move down until its last real query is the last row, and back afterwards.

    Parameters
    ----------
    attend
        Any function with the signature of :func:`mla_ref.naive` or :func:`mla_ref.sdpa`.
    queries
        ``[B, S, H, ...]`` each.
    context
        The remaining tensors that ``attend`` takes.
    seq_lens
        ``[B]``, real tokens in the context, the new ones included.
    lengths
        ``[B]``, how many of the S queries are real, from the first on.
    **options
        Passed to ``attend``.

    Returns
    -------
    Tensor
        ``[B, S, H, Dv]``; zeros for queries that are not real.
    """
    batch, new = queries[0].shape[:2]
    lengths = check_lengths("lengths", lengths, batch=batch, high=new, device=queries[0].device)
    longest = new if torch.compiler.is_compiling() else int(lengths.max())
    shift = longest - lengths
    queries = [_shift_rows(q[:, :longest], shift) for q in queries]
    out, _ = attend(*queries, *context, seq_lens=seq_lens, **options)
    padding = torch.arange(longest, device=out.device) >= lengths[:, None]
    out = _shift_rows(out, -shift).masked_fill(padding[..., None, None], 0)
    return F.pad(out, (0, 0, 0, 0, 0, new - longest))


def _shift_rows(x, shift):
    """Rotate the rows of ``x[b]``, ``[B, S, ...]``, down by ``shift[b]``."""
    rows = torch.arange(x.shape[1], device=x.device) - shift[:, None]
    sequence = torch.arange(x.shape[0], device=x.device)[:, None]
    return x[sequence, rows % max(x.shape[1], 1)]
