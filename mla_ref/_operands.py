"""Checks of operands that PyTorch functions share with their kernels: the symbols of each, stated once."""

import torch
from torch import Tensor

from ._validate import by_rank, check_counts, check_integers, check_pair, check_tensors
from .float8 import Float8Latent


def check_causal(size: dict[str, int], causal: bool) -> None:
    """Raise ValueError where queries see only what comes before them and S of them do not fit into T tokens."""
    if causal and size["T"] < size["S"]:
        raise ValueError(
            f"T = {size['T']} is less than S = {size['S']}, but the context counts the new tokens: "
            f"append them to the cache first, or pass causal=False for a part that comes before them"
        )


def check_context(size: dict[str, int], seq_lens: Tensor | None, causal: bool, like: Tensor) -> Tensor | None:
    """Check that the queries fit into the context, or the lengths, with which queries may fall before position 0.

    Reading the lengths waits for the device: kernels leave that out.

    Parameters
    ----------
    size
        B, S and T.
    seq_lens, causal
        As in :func:`mla_ref.sdpa`.
    like
        A tensor on the device where the lengths have to be.

    Returns
    -------
    Tensor or None
        The lengths as int64.

    Raises
    ------
    TypeError, ValueError
        T < S under ``causal`` without lengths, or lengths of another shape, dtype, device or range.
    """
    if seq_lens is None:
        check_causal(size, causal)
        return None
    return check_lengths("seq_lens", seq_lens, batch=size["B"], high=size["T"], device=like.device)


def check_lengths(name: str, lengths: Tensor, *, batch: int, high: int, device: torch.device) -> Tensor:
    """Check lengths, 0 to ``high``, and return them as int64.

    `torch.compile` traces one graph for all values, so there they are not read: less than 0 counts as 0, more than
    ``high`` as ``high``.
    """
    if not torch.compiler.is_compiling():
        return check_counts(name, lengths, batch=batch, low=0, high=high, device=device)
    check_integers(device, {"B": batch}, **{name: (lengths, "B")})
    return lengths.long().clamp(0, high)


def check_latent(
    q_latent: Tensor, q_rope: Tensor, c_kv: Tensor | Float8Latent, k_rope: Tensor, *, paged: bool = False
) -> dict[str, int]:
    """Check absorbed queries and the context that they meet; return the sizes, without T where it is in pages."""
    if isinstance(c_kv, Float8Latent):  # whose dtype is its own
        c_kv = torch.empty((), dtype=q_latent.dtype, device=c_kv.values.device).expand(c_kv.values.shape)
    tokens = "num_pages page_size" if paged else "B T"
    return check_tensors(
        q_latent=(q_latent, "B S H R"),
        q_rope=(q_rope, "B S H Dr"),
        c_kv=(c_kv, f"{tokens} R"),
        k_rope=(k_rope, f"{tokens} Dr"),
    )


def check_mla(
    q_nope: Tensor,
    q_rope: Tensor,
    c_kv: Tensor,
    k_rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    *,
    seq_lens: Tensor | None,
    block_table: Tensor | None,
) -> dict[str, int]:
    """Check queries, context and weights; return the sizes, T being what there is room for."""
    tokens = "B T" if block_table is None else "num_pages page_size"
    size = check_tensors(
        q_nope=(q_nope, "B S H Dn"),
        q_rope=(q_rope, "B S H Dr"),
        c_kv=(c_kv, f"{tokens} R"),
        k_rope=(k_rope, f"{tokens} Dr"),
        w_uk=(w_uk, "H Dn R"),
        w_uv=(w_uv, "H Dv R"),
    )
    return size if block_table is None else check_pages(size, block_table, seq_lens, q_nope)


def check_pages(size: dict[str, int], block_table: Tensor, seq_lens: Tensor | None, like: Tensor) -> dict[str, int]:
    """Check a block table, its entries left unread, and that lengths come with it; return the sizes with T.

    T is what the table has room for, max_pages × page_size.
    """
    size = check_integers(like.device, size, block_table=(block_table, "B max_pages"))
    if seq_lens is None:
        raise TypeError("seq_lens is None, expected an int32 or int64 tensor [B]: a block table has no length")
    return {**size, "T": size["max_pages"] * size["page_size"]}


def check_update(
    c_kv: Tensor,
    k_rope: Tensor,
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    starts: Tensor,
    lengths: Tensor | None,
) -> dict[str, int]:
    """Check the arguments of an update, integer values left unread; return the sizes."""
    size = check_tensors(
        c_kv_pages=(c_kv_pages, "num_pages page_size R"),
        k_rope_pages=(k_rope_pages, "num_pages page_size Dr"),
        c_kv=(c_kv, "B S R"),
        k_rope=(k_rope, "B S Dr"),
    )
    given = {} if lengths is None else {"lengths": (lengths, "B")}
    return check_integers(
        c_kv_pages.device, size, block_table=(block_table, "B max_pages"), starts=(starts, "B"), **given
    )


def check_gather(
    c_kv_pages: Tensor,
    k_rope_pages: Tensor,
    block_table: Tensor,
    starts: Tensor | None,
    lengths: Tensor,
    out: tuple[Tensor, Tensor] | None,
) -> tuple[dict[str, int], tuple[Tensor, Tensor]]:
    """Check the arguments of a gather, integer values left unread where ``out`` is given; return sizes and output."""
    check_pair("out", out)
    outs = {} if out is None else {"out[0]": (out[0], "B S R"), "out[1]": (out[1], "B S Dr")}
    size = check_tensors(
        c_kv_pages=(c_kv_pages, "num_pages page_size R"), k_rope_pages=(k_rope_pages, "num_pages page_size Dr"), **outs
    )
    given = {} if starts is None else {"starts": (starts, "B")}
    size = check_integers(
        c_kv_pages.device, size, block_table=(block_table, "B max_pages"), lengths=(lengths, "B"), **given
    )
    if out is None:
        size["S"] = max(0, int(lengths.max())) if len(lengths) else 0
        out = tuple(pages.new_zeros(size["B"], size["S"], pages.shape[-1]) for pages in (c_kv_pages, k_rope_pages))
    return size, out


def check_places(block_table: Tensor, starts: Tensor, ends: Tensor, num_pages: int, page_size: int) -> None:
    """Raise ValueError unless every position from ``starts[b]`` to before ``ends[b]`` lies in a page of the pool.

    Reading the values waits for the device.
    """
    room = block_table.shape[1] * page_size
    outside = ((ends > starts) & ((starts < 0) | (ends > room))).nonzero()
    if len(outside):
        b = int(outside[0])
        raise ValueError(
            f"sequence {b} has tokens at positions {int(starts[b])} to {int(ends[b]) - 1}, expected "
            f"0 <= position < {room}: its row of block_table has {block_table.shape[1]} pages of {page_size}"
        )
    first = torch.arange(0, room, page_size, device=block_table.device)
    needed = (first < ends[:, None]) & (first + page_size > starts[:, None]) & (ends > starts)[:, None]
    holes = (needed & ((block_table < 0) | (block_table >= num_pages))).nonzero()
    if len(holes):
        b, entry = holes[0].tolist()
        tokens = max(entry * page_size, int(starts[b])), min((entry + 1) * page_size, int(ends[b])) - 1
        raise ValueError(
            f"block_table[{b}, {entry}] is {int(block_table[b, entry])}, expected 0 <= page < {num_pages}: "
            f"positions {tokens[0]} to {tokens[1]} of sequence {b} have no page"
        )


def check_gathered(size: dict[str, int], block_table: Tensor, starts: Tensor | None, lengths: Tensor) -> None:
    """Raise ValueError where a token to copy, of at most S, lies in no page; reading the values waits for the device.

    ``size`` is that of :func:`check_gather`.
    """
    starts = torch.zeros_like(lengths) if starts is None else starts.long()
    check_places(block_table, starts, starts + lengths.clamp(max=size["S"]), size["num_pages"], size["page_size"])


def check_rope(cos: Tensor, sin: Tensor, **rotated: tuple[Tensor, str]) -> None:
    """Check a rotation of one or more tensors, each beside its pattern ``B S … Dr``, by the same angles."""
    size = check_tensors(**rotated)
    name, (x, _) = next(iter(rotated.items()))
    if size["Dr"] % 2:
        raise ValueError(f"{name} has shape {list(x.shape)}, expected an even width: RoPE turns pairs")
    half = size["Dr"] // 2
    table = by_rank(cos, f"{size['S']} {half}", f"{size['B']} {size['S']} {half}")
    check_tensors(cos=(cos, table), sin=(sin, table))
    if cos.device != x.device:
        raise ValueError(f"cos is on {cos.device}, expected {x.device} as {name}: move one with .to()")
