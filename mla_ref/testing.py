"""For tests of other kernels against this package: a hard case with its right answer, and other conventions of LSE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ._validate import FLOATING, check_positive, listed
from .attention import paged_latent_attention
from .paged import PagedCache

ORDERS = ("BSH", "BHS")
# Relative error of a row: weights are rounded before they meet the values, and the result once more.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True, eq=False)
class PagedCase:
    """Operands of one decode from pages, as :func:`mla_ref.paged_latent_attention` takes them: see :func:`paged_case`.

    Attributes
    ----------
    q_latent, q_rope
        ``[B, S, H, R]`` and ``[B, S, H, Dr]``.
    c_kv, k_rope
        Pages, ``[num_pages, page_size, R]`` and ``[num_pages, page_size, Dr]``.
    block_table, seq_lens
        int32 ``[B, max_pages]`` and ``[B]``.
    scale
        Factor of the scores.
    causal
        Whether query ``s`` sees only positions up to its own, ``seq_lens[b] - S + s``.
    """

    q_latent: Tensor
    q_rope: Tensor
    c_kv: Tensor
    k_rope: Tensor
    block_table: Tensor
    seq_lens: Tensor
    scale: float
    causal: bool

    @property
    def inputs(self) -> dict[str, Tensor | float | bool]:
        """All operands by name."""
        return dict(vars(self))

    @property
    def tolerance(self) -> float:
        """Relative error that a row of the result may have in this dtype, with sums in float32."""
        return TOLERANCE[self.q_latent.dtype]

    def expected(self) -> tuple[Tensor, Tensor]:
        """Return the right ``out`` ``[B, S, H, R]`` and ``lse`` ``[B, S, H]``, in float64."""
        wide = {
            name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in vars(self).items()
        }
        return paged_latent_attention(**wide)

    def check(self, out: Tensor, lse: Tensor | None = None, *, tolerance: float | None = None) -> None:
        """Compare a kernel's result with the right one, row by row.

        Parameters
        ----------
        out
            ``[B, S, H, R]``, zeros where a query sees nothing.
        lse
            ``[B, S, H]``, natural logarithm, -inf where a query sees nothing: :func:`lse_from` makes it of others.
        tolerance
            Relative error of each row of ``out``, and absolute error of ``lse``, which is a factor on what is combined
            with it; :attr:`tolerance` by default.

        Raises
        ------
        AssertionError
            Another shape, or a row that is wrong: the message names the worst.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        exact, exact_lse = self.expected()
        for name, found, right in (("out", out, exact), ("lse", lse, exact_lse)):
            if found is not None and found.shape != right.shape:
                raise AssertionError(f"{name} has shape {list(found.shape)}, expected {list(right.shape)}")
        seen = exact_lse > -math.inf
        error = (out.double() - exact).norm(dim=-1) / torch.where(seen, exact.norm(dim=-1), 1.0)
        self._refuse("out", "a relative error of {error:.1e}, expected at most {most:.1e}", error, tolerance * seen)
        if lse is not None:
            same = lse.double() == exact_lse  # -inf less -inf is no number
            error = (lse.double() - exact_lse).abs().masked_fill(same, 0)
            said = "an error of {error:.1e}, expected at most {most:.1e}"
            self._refuse("lse", said + ": is it natural, and -inf where nothing is seen?", error, tolerance * seen)

    def _refuse(self, name, said, error, most):
        if (error <= most).all():
            return
        excess = (error - most).nan_to_num(nan=math.inf)
        b, s, h = torch.unravel_index(excess.argmax(), excess.shape)
        said = said.format(error=float(error[b, s, h]), most=float(most[b, s, h]))
        wrong = int((~(error <= most)).sum())
        raise AssertionError(
            f"{name}[{int(b)}, {int(s)}, {int(h)}], of a sequence of {int(self.seq_lens[b])} tokens, has {said} "
            f"({wrong} of {error.numel()} rows are wrong)"
        )


def paged_case(
    *,
    seq_lens: Sequence[int] | None = None,
    num_queries: int = 1,
    num_heads: int = 16,
    kv_lora_rank: int = 512,
    qk_rope_head_dim: int = 64,
    page_size: int = 64,
    scale: float | None = None,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> PagedCase:
    """Return a case that shows what kernels over pages get wrong.

    Pages are in random order, and none that is used lies behind another, so that a kernel that walks on from a page
    reads NaN. So does one that reads a slot without a token, or follows a table entry beyond a sequence's length: each
    leads to a page of NaN, and not out of the pool, which would end the process on a GPU.

    Parameters
    ----------
    seq_lens
        Tokens of each sequence; by default 0, 1, one and two pages, a token less and more than one, and some pages and
        a part, in random order.
    num_queries, num_heads, kv_lora_rank, qk_rope_head_dim, page_size
        S, H, R, Dr, and tokens a page. Where S is more than a length, the first queries see nothing.
    scale
        1/√((R+Dr)/3) by default, which at DeepSeek-V3's widths is its 1/√192, and never 1/√(R+Dr).
    causal
        As of :class:`PagedCase`.
    dtype, device
        Of the operands. The same seed gives the same numbers on every device.
    seed
        Of all that is random.

    Raises
    ------
    TypeError, ValueError
        A size or length that is no such number, or a dtype that is not supported.

    Examples
    --------
    A whole test, with the reference in place of the kernel:

    >>> import torch
    >>> from mla_ref import paged_latent_attention, testing
    >>> case = testing.paged_case(num_queries=2, page_size=16, dtype=torch.bfloat16)
    >>> out, lse = paged_latent_attention(**case.inputs)
    >>> case.check(out, lse)

    What it finds in a kernel that reads no block table but walks on from the first page:

    >>> walked = case.block_table[:, :1] + torch.arange(case.block_table.shape[1])
    >>> case.check(*paged_latent_attention(**{**case.inputs, "block_table": walked}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    AssertionError: out[..., 0, 0], of a sequence of ... tokens, has a relative error of nan, expected at most ...
    """
    sizes = {"num_queries": num_queries, "num_heads": num_heads, "kv_lora_rank": kv_lora_rank}
    check_positive(**sizes, qk_rope_head_dim=qk_rope_head_dim, page_size=page_size)
    if dtype not in TOLERANCE:
        raise TypeError(f"dtype is {dtype!r}, expected one of {listed(FLOATING)}")
    random = torch.Generator().manual_seed(seed)
    if seq_lens is None:
        p = page_size
        lengths = torch.tensor([0, 1, p - 1, p, p + 1, 2 * p, 3 * p + p // 2 + 1])
        seq_lens = lengths[torch.randperm(len(lengths), generator=random)].tolist()
    for length in seq_lens:
        if not isinstance(length, int) or length < 0:
            raise ValueError(f"seq_lens holds {length!r}, expected ints of 0 or more")
    counts = [-(-length // page_size) for length in seq_lens]
    used = 2 * torch.randperm(sum(counts), generator=random) + 1  # between them, and at both ends, are pages of nobody
    num_pages = 2 * sum(counts) + 1
    table = 2 * torch.randint(sum(counts) + 1, (len(counts), max(counts, default=0) + 1), generator=random)
    pages = torch.full((num_pages, page_size, kv_lora_rank + qk_rope_head_dim), math.nan, dtype=torch.float64)
    for b, (length, mine) in enumerate(zip(seq_lens, used.split(counts), strict=True)):
        table[b, : len(mine)] = mine
        for entry, page in enumerate(mine.tolist()):
            tokens = min(length - entry * page_size, page_size)
            pages[page, :tokens] = torch.randn(tokens, pages.shape[-1], generator=random, dtype=torch.float64)
    queries = torch.randn(len(counts), num_queries, num_heads, pages.shape[-1], generator=random, dtype=torch.float64)
    (q_latent, q_rope), (c_kv, k_rope) = (
        (part.to(device, dtype).contiguous() for part in x.split((kv_lora_rank, qk_rope_head_dim), -1))
        for x in (queries, pages)
    )
    return PagedCase(
        q_latent,
        q_rope,
        c_kv,
        k_rope,
        table.to(device, torch.int32),
        torch.tensor(seq_lens, dtype=torch.int32, device=device),
        (3 / (kv_lora_rank + qk_rope_head_dim)) ** 0.5 if scale is None else scale,
        causal,
    )


def shuffle_pages(cache: PagedCache, seed: int = 0) -> None:
    """Have a cache hand out its free pages in random order.

    Of itself a new one hands out page after page, and a kernel that walks on from a sequence's first page passes.

    Examples
    --------
    >>> cache = PagedCache(batch=2, capacity=8, kv_lora_rank=4, qk_rope_head_dim=2, page_size=2)
    >>> shuffle_pages(cache)
    >>> cache.append(torch.randn(2, 8, 4), torch.randn(2, 8, 2))
    >>> pages = cache.block_table.flatten().tolist()
    >>> pages == list(range(8)), sorted(pages) == list(range(8))
    (False, True)
    """
    pages = cache.pool.allocate(cache.pool.num_free)
    order = torch.randperm(len(pages), generator=torch.Generator().manual_seed(seed))
    cache.pool.release(pages[i] for i in order.tolist())


def lse_from(lse: Tensor, *, base: float = math.e, order: str = "BSH", empty: float = -math.inf) -> Tensor:
    """Return another library's LSE in this package's convention: natural, ``[B, S, H]``, -inf where nothing is seen.

    Parameters
    ----------
    lse
        In the convention that the others describe, any floating dtype.
    base
        Of the logarithm: 2 in FlashInfer.
    order
        Of the axes, ``"BSH"`` or ``"BHS"``: the latter in FlashMLA and FlashAttention.
    empty
        What stands for a row that sees nothing, ``-math.inf`` or ``math.inf``: the latter in FlashMLA.

    Raises
    ------
    ValueError
        A base of 1 or less, another order or mark, or not three dimensions.

    Examples
    --------
    >>> theirs = torch.tensor([[[3.0, torch.inf], [1.0, 0.0]]])  # [B, H, S], base 2
    >>> lse_from(theirs, base=2, order="BHS", empty=torch.inf)
    tensor([[[2.0794, 0.6931],
             [  -inf, 0.0000]]])
    """
    _check_convention(lse, base, order, empty)
    lse = lse.masked_fill(lse == empty, -math.inf) * math.log(base)
    return lse if order == "BSH" else lse.transpose(1, 2)


def lse_to(lse: Tensor, *, base: float = math.e, order: str = "BSH", empty: float = -math.inf) -> Tensor:
    """Return this package's LSE in another convention: the way back of :func:`lse_from`, with its parameters.

    Examples
    --------
    >>> lse_to(torch.tensor([[[0.0, -torch.inf]]]), base=2, order="BHS", empty=torch.inf)
    tensor([[[0.],
             [inf]]])
    """
    _check_convention(lse, base, order, empty)
    lse = (lse / math.log(base)).masked_fill(lse == -math.inf, empty)
    return lse if order == "BSH" else lse.transpose(1, 2)


def _check_convention(lse, base, order, empty):
    if lse.ndim != 3:
        raise ValueError(f"lse has shape {list(lse.shape)}, expected three dimensions")
    if not base > 1:
        raise ValueError(f"base is {base!r}, expected a number above 1, as 2 or math.e")
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected one of {listed(ORDERS)}")
    if empty not in (-math.inf, math.inf):
        raise ValueError(f"empty is {empty!r}, expected -math.inf or math.inf")
