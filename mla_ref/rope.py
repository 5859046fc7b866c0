"""Rotary position embedding, with YaRN context extension."""

import math

import torch
from torch import Tensor

from ._operands import check_rope
from ._validate import INTEGER, by_rank
from .config import Yarn


def rope_frequencies(dim: int, theta: float = 10000.0, scaling: Yarn | None = None) -> Tensor:
    """Return the angle per position of each rotated pair.

    Parameters
    ----------
    dim
        Dr, even.
    theta
        Base: pair ``i`` turns by ``theta ** (-2i/dim)`` radians per position.
    scaling
        YaRN: pairs that turn fewer than ``beta_slow`` times over the original context are slowed by
        ``factor``, pairs that turn more than ``beta_fast`` times are left alone, and those between are
        blended linearly in ``i``.

    Returns
    -------
    Tensor
        float64 ``[dim/2]`` on the CPU, in radians per position.

    Raises
    ------
    ValueError
        ``dim`` is odd or not positive.

    References
    ----------
    Su et al. 2021, arXiv:2104.09864; Peng et al. 2023, arXiv:2309.00071, section 3.2.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"dim is {dim}, expected a positive even number: RoPE turns pairs")
    pair = torch.arange(dim // 2, dtype=torch.float64)
    frequencies = theta ** (-2 * pair / dim)
    if scaling is None:
        return frequencies

    def pair_turning(rotations):
        period = scaling.original_max_position_embeddings / rotations
        return dim * math.log(period / (2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_turning(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_turning(scaling.beta_slow)), dim - 1)
    slowed = ((pair - first) / max(last - first, 1e-3)).clamp(0, 1)
    return frequencies * (1 - slowed) + frequencies / scaling.factor * slowed


def rope_cos_sin(
    positions: Tensor,
    dim: int,
    *,
    theta: float = 10000.0,
    scaling: Yarn | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of every position's angles.

    Angles are float64 whatever ``dtype`` is. In bfloat16 positions above 256 would round, and distinct tokens
    share an angle.

    Parameters
    ----------
    positions
        Integers ``[...]``.
    dim, theta, scaling
        As in :func:`rope_frequencies`. YaRN's attention factor multiplies both results.
    dtype
        Of the results.

    Returns
    -------
    cos, sin
        ``[..., dim/2]``.

    Raises
    ------
    TypeError, ValueError
        Positions that are not integers, or an odd ``dim``.
    """
    if positions.dtype not in INTEGER:
        raise TypeError(f"positions has dtype {positions.dtype}, expected int32 or int64")
    frequencies = rope_frequencies(dim, theta, scaling).to(positions.device)
    angles = positions[..., None].double() * frequencies
    factor = scaling.attention_factor if scaling else 1.0
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = True) -> Tensor:
    """Rotate the pairs of ``x``.

    Parameters
    ----------
    x
        ``[B, S, H, Dr]``, or ``[B, S, Dr]`` for the key that all heads share.
    cos, sin
        ``[S, Dr/2]``, or ``[B, S, Dr/2]`` where sequences stand at different positions. Any floating dtype:
        float32 beside a bfloat16 ``x`` is the accurate choice.
    interleaved
        True pairs neighbours ``(0, 1), (2, 3), …`` (DeepSeek); False pairs ``(i, i + Dr/2)`` (Llama, and the
        decode challenge). The result keeps the layout of ``x``. Hugging Face's DeepSeek returns the halves
        layout for an interleaved input: its cached keys are a permutation of these, its scores the same.

    Returns
    -------
    Tensor
        Shape and dtype of ``x``.

    Raises
    ------
    TypeError, ValueError
        Shapes or devices that do not agree, or an odd Dr.
    """
    check_rope(cos, sin, x=(x, by_rank(x, "B S H Dr", "B S Dr")))
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    if x.ndim == 4:
        cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    if interleaved:
        a, b = x.to(wide).unflatten(-1, (-1, 2)).unbind(-1)
        y = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = x.to(wide).chunk(2, -1)
        y = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return y.to(x.dtype)


def apply_rope_qk(
    q_rope: Tensor, k_rope: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = True
) -> tuple[Tensor, Tensor]:
    """Rotate the pairs of queries and of the key that they share: :func:`apply_rope` of both.

    Parameters
    ----------
    q_rope, k_rope
        ``[B, S, H, Dr]`` and ``[B, S, Dr]``, one dtype.
    cos, sin, interleaved
        As in :func:`apply_rope`.

    Returns
    -------
    q_rope, k_rope
        Rotated.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or an odd Dr.
    """
    check_rope(cos, sin, q_rope=(q_rope, "B S H Dr"), k_rope=(k_rope, "B S Dr"))
    return apply_rope(q_rope, cos, sin, interleaved), apply_rope(k_rope, cos, sin, interleaved)
