"""Contiguous caches: one region of ``capacity`` tokens per sequence."""

from typing import Protocol

import torch
from torch import Tensor

from ._validate import check_counts, check_positive, check_tensors


class Cache(Protocol):
    """What :class:`mla_ref.MLA` asks of a cache, whatever its layout.

    Attributes
    ----------
    seq_lens
        int32 ``[B]``, tokens held per sequence.
    """

    seq_lens: Tensor

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: Tensor | None = None) -> None:
        """Write new tokens ``[B, S, R]`` and ``[B, S, Dr]`` behind those each sequence holds."""

    def filled(self) -> tuple[Tensor, Tensor]:
        """Return latents and shared keys, ``[B, T, R]`` and ``[B, T, Dr]`` with T = max(``seq_lens``)."""


def check_detached(**entries: Tensor) -> None:
    """Raise RuntimeError for an entry that requires a gradient."""
    for name, entry in entries.items():
        if entry.requires_grad:
            raise RuntimeError(f"{name} requires a gradient, which no cache keeps: use torch.no_grad()")


def check_kept(lengths: Tensor, seq_lens: Tensor) -> Tensor:
    """Return ``lengths`` as int64, unless a sequence holds fewer tokens than are to be kept."""
    most = int(seq_lens.max())
    lengths = check_counts("lengths", lengths, batch=len(seq_lens), low=0, high=most, device=seq_lens.device)
    if (lengths > seq_lens).any():
        at = int((lengths - seq_lens).argmax())
        raise ValueError(
            f"lengths[{at}] is {int(lengths[at])}, expected at most {int(seq_lens[at])}: sequence {at} holds no more"
        )
    return lengths


class _ContiguousCache:
    """Storage for named entries, each ``[batch, capacity, *tail]``, filled from position 0 up.

    Attributes
    ----------
    seq_lens
        int32 ``[B]``, tokens held per sequence. An append replaces the tensor, never changes it in place.
    """

    def __init__(self, batch, capacity, tails, dtype, device):
        check_positive(batch=batch, capacity=capacity)
        self.batch = batch
        self.capacity = capacity
        self._tails = tails
        self._storage = {
            name: torch.zeros(batch, capacity, *tail, dtype=dtype, device=device) for name, tail in tails.items()
        }
        self.seq_lens = torch.zeros(batch, dtype=torch.int32, device=device)

    @property
    def nbytes(self) -> int:
        """Bytes of storage, filled or not."""
        return sum(storage.nbytes for storage in self._storage.values())

    def reset(self) -> None:
        """Forget every token; the storage stays."""
        self.seq_lens = torch.zeros_like(self.seq_lens)

    def filled(self) -> tuple[Tensor, ...]:
        """Return views of the first ``max(seq_lens)`` positions of each entry, in the order of ``append``.

        Shorter sequences hold values without meaning beyond their own length: pass ``seq_lens`` along.
        """
        longest = int(self.seq_lens.max())
        return tuple(storage[:, :longest] for storage in self._storage.values())

    def truncate(self, lengths: Tensor) -> None:
        """Forget all but the first ``lengths`` tokens of each sequence, int32 or int64 ``[B]``; the storage stays.

        Raises
        ------
        TypeError, ValueError
            No counts, or more tokens than a sequence holds. Nothing has changed then.
        """
        self.seq_lens = check_kept(lengths, self.seq_lens).to(self.seq_lens.dtype)

    def _append(self, entries, lengths):
        names = tuple(self._storage)
        tails = (" ".join(map(str, tail)) for tail in self._tails.values())
        patterns = {name: (entry, f"B S {tail}") for name, entry, tail in zip(names, entries, tails, strict=True)}
        first = self._storage[names[0]]
        new = check_tensors(cache=(first, "B capacity" + " _" * (first.ndim - 2)), **patterns)["S"]
        check_detached(**dict(zip(names, entries, strict=True)))
        if lengths is None:
            lengths = torch.full_like(self.seq_lens, new)
        lengths = check_counts("lengths", lengths, batch=self.batch, low=0, high=new, device=self.seq_lens.device)
        total = self.seq_lens + lengths
        if (total > self.capacity).any():
            at = int(total.argmax())
            raise ValueError(
                f"sequence {at} holds {int(self.seq_lens[at])} of {self.capacity} tokens, no room for "
                f"{int(lengths[at])} more: nothing was appended"
            )
        real = torch.arange(new, device=lengths.device) < lengths[:, None]
        sequence, token = real.nonzero(as_tuple=True)
        position = self.seq_lens[sequence] + token
        for name, entry in zip(names, entries, strict=True):
            self._storage[name][sequence, position] = entry[sequence, token]
        self.seq_lens = total.to(self.seq_lens.dtype)


class KVCache(_ContiguousCache):
    """Keys and values of every key head.

    Parameters
    ----------
    batch, capacity
        B, and the most tokens a sequence can hold.
    num_kv_heads, head_dim, v_head_dim
        G, D and Dv; ``v_head_dim`` is ``head_dim`` by default.
    dtype, device
        Of the storage.

    Examples
    --------
    >>> import torch
    >>> cache = KVCache(batch=2, capacity=8, num_kv_heads=1, head_dim=4)
    >>> cache.append(torch.ones(2, 3, 1, 4), torch.ones(2, 3, 1, 4), lengths=torch.tensor([3, 1]))
    >>> cache.seq_lens.tolist()
    [3, 1]
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        v_head_dim = head_dim if v_head_dim is None else v_head_dim
        check_positive(num_kv_heads=num_kv_heads, head_dim=head_dim, v_head_dim=v_head_dim)
        super().__init__(
            batch, capacity, {"k": (num_kv_heads, head_dim), "v": (num_kv_heads, v_head_dim)}, dtype, device
        )

    @property
    def k(self) -> Tensor:
        """Storage ``[B, capacity, G, D]``."""
        return self._storage["k"]

    @property
    def v(self) -> Tensor:
        """Storage ``[B, capacity, G, Dv]``."""
        return self._storage["v"]

    def append(self, k: Tensor, v: Tensor, *, lengths: Tensor | None = None) -> None:
        """Write new tokens behind those each sequence holds.

        Parameters
        ----------
        k, v
            ``[B, S, G, D]`` and ``[B, S, G, Dv]``.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

        Raises
        ------
        TypeError, ValueError
            Shape, dtype or device that is not the cache's, or no room. Nothing has changed then.
        RuntimeError
            An entry requires a gradient.
        """
        self._append((k, v), lengths)


class LatentCache(_ContiguousCache):
    """The normalised latent and the rotated shared key: all that MLA keeps of a token.

    Parameters
    ----------
    batch, capacity
        B, and the most tokens a sequence can hold.
    kv_lora_rank, qk_rope_head_dim
        R and Dr.
    dtype, device
        Of the storage.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        check_positive(kv_lora_rank=kv_lora_rank, qk_rope_head_dim=qk_rope_head_dim)
        super().__init__(batch, capacity, {"c_kv": (kv_lora_rank,), "k_rope": (qk_rope_head_dim,)}, dtype, device)

    @property
    def c_kv(self) -> Tensor:
        """Storage ``[B, capacity, R]``."""
        return self._storage["c_kv"]

    @property
    def k_rope(self) -> Tensor:
        """Storage ``[B, capacity, Dr]``."""
        return self._storage["k_rope"]

    def append(self, c_kv: Tensor, k_rope: Tensor, *, lengths: Tensor | None = None) -> None:
        """Write new tokens behind those each sequence holds.

        Parameters
        ----------
        c_kv, k_rope
            ``[B, S, R]`` after its RMSNorm, and ``[B, S, Dr]`` after rotation.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.

        Raises
        ------
        TypeError, ValueError
            Shape, dtype or device that is not the cache's, or no room. Nothing has changed then.
        RuntimeError
            An entry requires a gradient.
        """
        self._append((c_kv, k_rope), lengths)
