"""A multi-head attention layer, with grouped-query and multi-query attention as its special cases."""

import torch
from torch import Tensor, nn

from ._validate import check_positive, check_tensors
from .attention import sdpa
from .cache import KVCache
from .ragged import attend_ragged
from .rope import apply_rope, rope_cos_sin


class MHA(nn.Module):
    """Causal self-attention: ``num_kv_heads`` is ``num_heads`` for MHA, 1 for MQA, a divisor between for GQA.

    Parameters
    ----------
    hidden_size
        D.
    num_heads, num_kv_heads
        H and G; G is H by default.
    head_dim
        Width per head, D/H by default.
    rope_theta
        Base of rotary positions over the whole head; None for no positions.
    rope_interleave
        As in :func:`mla_ref.apply_rope`.
    device, dtype
        Of the weights.

    Raises
    ------
    TypeError, ValueError
        Sizes that do not fit each other.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        rope_theta: float | None = None,
        rope_interleave: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive(hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads)
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads is {num_heads}, expected a multiple of num_kv_heads = {num_kv_heads}")
        if head_dim is None:
            if hidden_size % num_heads:
                raise ValueError(f"hidden_size {hidden_size} is no multiple of num_heads {num_heads}: pass head_dim")
            head_dim = hidden_size // num_heads
        check_positive(head_dim=head_dim)
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.rope_theta = rope_theta
        self.rope_interleave = rope_interleave
        options = {"bias": False, "device": device, "dtype": dtype}
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, **options)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, **options)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, **options)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, **options)

    def make_cache(self, batch: int, capacity: int) -> KVCache:
        """Return an empty cache that fits this layer."""
        weight = self.k_proj.weight
        return KVCache(batch, capacity, self.num_kv_heads, self.head_dim, dtype=weight.dtype, device=weight.device)

    def forward(self, x: Tensor, cache: KVCache | None = None, *, lengths: Tensor | None = None) -> Tensor:
        """Attend from ``x`` to itself and to what the cache holds.

        Parameters
        ----------
        x
            ``[B, S, D]``.
        cache
            Gets the new keys and values; None for attention within ``x`` alone.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

        Returns
        -------
        Tensor
            ``[B, S, D]``; zeros for tokens that are not real.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            From the checks of ``x``, ``lengths`` and :meth:`KVCache.append`.
        """
        size = check_tensors(weight=(self.q_proj.weight, "_ D"), x=(x, "B S D"))
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj))
        if self.rope_theta is not None:
            positions = torch.arange(size["S"], device=x.device)
            if cache is not None:
                positions = cache.seq_lens[:, None] + positions
            dtype = torch.promote_types(x.dtype, torch.float32)
            cos, sin = rope_cos_sin(positions, self.head_dim, theta=self.rope_theta, dtype=dtype)
            q = apply_rope(q, cos, sin, self.rope_interleave)
            k = apply_rope(k, cos, sin, self.rope_interleave)

        seq_lens = lengths
        if cache is not None:
            cache.append(k, v, lengths=lengths)
            k, v = cache.filled()
            seq_lens = cache.seq_lens
        if lengths is None:
            out, _ = sdpa(q, k, v, seq_lens=seq_lens)
        else:
            out = attend_ragged(sdpa, (q,), (k, v), seq_lens=seq_lens, lengths=lengths)
        return self.o_proj(out.flatten(2))
