"""FP8 (E4M3) keys, values and latents: eight bits a word, of which three are the fraction, and factors beside them.

The largest number is 448. What is larger becomes 448 here, as the conversion of NVIDIA's GPUs has it; PyTorch's own
makes it NaN in older versions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._validate import check_numbers, check_tensors

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0


def to_float8(x: Tensor, *, scale: float | Tensor = 1.0) -> Tensor:
    """Return ``x / scale`` in ``float8_e4m3fn``: multiplied by 1/scale in float32, held within ±448, rounded to even.

    ``scale`` is positive, a number or a tensor that broadcasts. NaN stays NaN.
    """
    inverse = 1.0 / torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    return (x.float() * inverse).clamp(-LARGEST, LARGEST).to(DTYPE)


def pack_kv(
    k_nope: Tensor, k_rope: Tensor, v: Tensor, *, k_scale: float = 1.0, v_scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Put the parts of a key side by side, and convert keys and values to FP8: what FP8 prefill reads.

    Parameters
    ----------
    k_nope
        ``[N, H, Dn]``, any layout: mostly a slice of what W_UK and W_UV give in one product, ``[N, H, Dn+Dv]``.
    k_rope
        ``[N, Dr]``, rotated; one for all heads.
    v
        ``[N, H, Dv]``, any layout.
    k_scale, v_scale
        Positive: what 1 stands for in the results. See :func:`to_float8` for the rounding.

    Returns
    -------
    k, v
        ``float8_e4m3fn`` ``[N, H, Dn+Dr]`` and ``[N, H, Dv]``.

    Raises
    ------
    TypeError, ValueError
        Shapes, dtypes or devices that do not agree, or a scale that is not a positive number.

    References
    ----------
    TokenSpeed-MLA, "MLA K/V pack + FP8 quantize".
    """
    size = check_pack(k_nope, k_rope, v, k_scale, v_scale)
    k = torch.cat((k_nope, k_rope[:, None].expand(-1, size["H"], -1)), -1)
    return to_float8(k, scale=k_scale), to_float8(v, scale=v_scale)


def check_pack(k_nope: Tensor, k_rope: Tensor, v: Tensor, k_scale: float, v_scale: float) -> dict[str, int]:
    """Check the operands of :func:`pack_kv` and return their sizes. Raises TypeError or ValueError as it says."""
    size = check_tensors(k_nope=(k_nope, "N H Dn"), k_rope=(k_rope, "N Dr"), v=(v, "N H Dv"))
    check_numbers(k_scale=k_scale, v_scale=v_scale)
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if not 0 < scale < float("inf"):
            raise ValueError(f"{name} is {scale}, expected a positive number: the largest magnitude over {LARGEST:g}")
    return size


@dataclass(frozen=True, eq=False)
class Float8Latent:
    """Latents in FP8, contiguous or in pages, as :func:`quantize_latent` makes them.

    Attributes
    ----------
    values
        ``float8_e4m3fn`` ``[..., R]``.
    scales
        float32 ``[..., R/tile]``: element ``r`` is its value times ``scales[..., r // tile]``.
    """

    values: Tensor
    scales: Tensor

    def __post_init__(self):
        for name, tensor, dtype in (("values", self.values, DTYPE), ("scales", self.scales, torch.float32)):
            if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
                what = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else f"type {type(tensor).__name__}"
                raise TypeError(f"{name} has {what}, expected a tensor of {dtype}")
        values, scales = list(self.values.shape), list(self.scales.shape)
        if len(values) < 2 or scales[:-1] != values[:-1] or not scales[-1] or values[-1] % scales[-1]:
            raise ValueError(f"values has shape {values} and scales {scales}, expected [..., R] and [..., R/tile]")
        if self.values.device != self.scales.device:
            raise ValueError(f"scales is on {self.scales.device}, expected {self.values.device} as values is: move one")

    @property
    def tile(self) -> int:
        """Elements in a row that share a scale."""
        return self.values.shape[-1] // self.scales.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of values and scales."""
        return self.values.nbytes + self.scales.nbytes

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return values times scales; in float64 they are exact."""
        tiles = self.values.to(dtype).unflatten(-1, (-1, self.tile))
        return (tiles * self.scales[..., None].to(dtype)).flatten(-2)


def quantize_latent(c_kv: Tensor, *, tile: int | None = None) -> Float8Latent:
    """Convert latents to FP8, each token, or each tile of one, by a scale of its own.

    Parameters
    ----------
    c_kv
        ``[..., R]``, what the cache holds of a token beside its rotated key. That one stays as it is: its numbers
        decide about positions, and it is a ninth of the cache.
    tile
        Elements that share a scale, a divisor of R: 128 as FlashMLA and DeepSeek-V3.2 have it; all R by default.

    Returns
    -------
    Float8Latent
        The scale is the largest magnitude over 448, but at least 2**-126. No element is off by more than a sixteenth
        of itself, or by 2**-10 of its scale.

    Raises
    ------
    TypeError, ValueError
        A dtype that is not floating, fewer than two dimensions, or a tile that does not divide R.
    """
    check_tensors(c_kv=(c_kv, "... T R"))
    R = c_kv.shape[-1]
    tile = R if tile is None else tile
    if not isinstance(tile, int) or isinstance(tile, bool) or not 0 < tile <= R or R % tile:
        raise ValueError(f"tile is {tile!r}, expected a divisor of R = {R}")
    tiles = c_kv.unflatten(-1, (-1, tile)).float()
    scales = (tiles.abs().amax(-1) / LARGEST).clamp(min=torch.finfo(torch.float32).smallest_normal)
    return Float8Latent(to_float8(tiles, scale=scales[..., None]).flatten(-2), scales)
