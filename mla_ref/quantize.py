"""Group-wise symmetric INT4: weights as integers of four bits, and a scale for each group of them.

A group is a run of weights along the axis that a product sums over. Its scale is then one factor of a part of the sum,
and the integers need not be multiplied one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ._validate import FLOATING, check_tensors, listed

GROUPS = (32, 64, 128)
LARGEST = 7  # of -8 to 7: without -8 zero is the middle


@dataclass(frozen=True, eq=False)
class Int4Weight:
    """One operand of a batched product, as :func:`quantize_int4` packs it.

    Whatever axis of the source the product sums over, it is the last one here, so that one kernel reads both products'
    weights in runs, as rows ``[N, K]``: K is the width that is summed over, N the width of the result.

    Attributes
    ----------
    packed
        uint8 ``[H, N, K/2]``: byte ``i`` of a row holds weight ``2i`` in its low nibble and ``2i + 1`` in its high
        one, each in two's complement.
    scales
        ``[H, N, K/group]``, in the dtype of the source: weight ``k`` is its integer times ``scales[..., k // group]``.
    group
        Weights that share a scale: 32, 64 or 128.
    axis
        Of the source, 1 or 2: the one summed over. What is packed along one axis is no packing along the other:
        transposing takes quantising again, from the source.
    """

    packed: Tensor
    scales: Tensor
    group: int
    axis: int

    def __post_init__(self):
        for name, tensor, dtypes in (("packed", self.packed, (torch.uint8,)), ("scales", self.scales, FLOATING)):
            if tensor.dtype not in dtypes:
                raise TypeError(f"{name} has dtype {tensor.dtype}, expected {listed(dtypes)}")
        if self.group not in GROUPS:
            raise ValueError(f"group is {self.group!r}, expected one of {listed(GROUPS)}")
        if self.axis not in (1, 2):
            raise ValueError(f"axis is {self.axis!r}, expected 1 or 2, the one that the product sums over")
        packed, scales = list(self.packed.shape), list(self.scales.shape)
        if len(packed) != 3 or scales != [*packed[:2], 2 * packed[2] // self.group] or 2 * packed[2] % self.group:
            raise ValueError(
                f"packed has shape {packed} and scales {scales}, expected [H, N, K/2] and [H, N, K/{self.group}]"
            )
        if self.packed.device != self.scales.device:
            raise ValueError(f"scales is on {self.scales.device}, expected {self.packed.device} as packed is: move one")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the source: ``[H, K, N]`` with axis 1, ``[H, N, K]`` with axis 2."""
        H, N, half = self.packed.shape
        return (H, 2 * half, N) if self.axis == 1 else (H, N, 2 * half)

    @property
    def nbytes(self) -> int:
        """Bytes of integers and scales."""
        return self.packed.nbytes + self.scales.nbytes

    def dequantize(self) -> Tensor:
        """Return integers times scales in the shape of the source.

        In float32, which holds the products of half types exactly, or for float64 in that.
        """
        scales = self.scales.to(torch.promote_types(self.scales.dtype, torch.float32))
        values = unpack_int4(self.packed).unflatten(-1, (-1, self.group)) * scales[..., None]
        values = values.flatten(-2)
        return values.mT if self.axis == 1 else values


def quantize_int4(weight: Tensor, *, axis: int, group: int = 128) -> Int4Weight:
    """Quantise the weights of a batched product to integers of -7 to 7 with a scale for each group.

    Parameters
    ----------
    weight
        ``[H, D, R]``: W_UK ``[H, Dn, R]`` or W_UV ``[H, Dv, R]``, any layout.
    axis
        The one that the product sums over: 1 for W_UK in :func:`mla_ref.absorb_query`, 2 for W_UV in
        :func:`mla_ref.reconstruct_value`.
    group
        Weights in a row along ``axis`` that share a scale: 32, 64 or 128, a divisor of that width.

    Returns
    -------
    Int4Weight
        The scale of a group is its largest magnitude over 7, but at least the smallest normal number of the dtype. No
        weight is off by more than half a scale, but for the rounding of the scale.

    Raises
    ------
    TypeError
        ``weight`` is not floating.
    ValueError
        Not three dimensions, another axis or group, a width that the group does not divide, or a weight that is not
        finite. Reading the weights waits for the device.

    Examples
    --------
    >>> import torch
    >>> weight = torch.tensor([7.0, -3.0, 1.2, -7.0]).repeat(8).view(1, 1, 32)
    >>> quantized = quantize_int4(weight, axis=2, group=32)
    >>> [f"{byte:02x}" for byte in quantized.packed[0, 0, :2].tolist()]  # the first weight is the low nibble
    ['d7', '91']
    >>> quantized.dequantize()[0, 0, :4]
    tensor([ 7., -3.,  1., -7.])
    """
    check_tensors(weight=(weight, "H D R"))
    if axis not in (1, 2):
        raise ValueError(f"axis is {axis!r}, expected 1 or 2, the one that the product sums over")
    if group not in GROUPS:
        raise ValueError(f"group is {group!r}, expected one of {listed(GROUPS)}")
    width = weight.shape[axis]
    if width % group or width == 0:
        fitting = [each for each in GROUPS if width and width % each == 0]
        instead = f"pass group={fitting[-1]}" if fitting else f"none of {listed(GROUPS)} divides it, so pad it"
        raise ValueError(
            f"weight has shape {list(weight.shape)}, expected a multiple of group = {group} along axis {axis}: "
            f"{instead}"
        )
    if not weight.isfinite().all():
        raise ValueError("weight holds NaN or infinity, expected finite weights: its group would have no scale")
    rows = (weight.mT if axis == 1 else weight).detach().contiguous()  # [H, N, K]
    wide = rows.to(torch.promote_types(weight.dtype, torch.float32)).unflatten(-1, (-1, group))
    smallest = torch.finfo(weight.dtype).smallest_normal
    scales = (wide.abs().amax(-1) / LARGEST).clamp(min=smallest).to(weight.dtype)
    values = (wide / scales[..., None].to(wide.dtype)).round().clamp(-LARGEST, LARGEST)
    return Int4Weight(pack_int4(values.flatten(-2).to(torch.int8)), scales, group, axis)


def pack_int4(values: Tensor) -> Tensor:
    """Pack pairs of integers into bytes, the first of a pair into the low nibble.

    Parameters
    ----------
    values
        int8 ``[..., 2n]``, -8 to 7.

    Returns
    -------
    Tensor
        uint8 ``[..., n]``.

    Raises
    ------
    TypeError, ValueError
        Another dtype, an odd width, or a value that four bits do not hold. Reading the values waits for the device.

    Examples
    --------
    >>> import torch
    >>> pack_int4(torch.tensor([1, 7, -1, -8], dtype=torch.int8)).tolist() == [0x71, 0x8F]
    True
    """
    if values.dtype != torch.int8:
        raise TypeError(f"values has dtype {values.dtype}, expected torch.int8")
    if values.ndim == 0 or values.shape[-1] % 2:
        raise ValueError(f"values has shape {list(values.shape)}, expected an even width: a byte holds two")
    if ((values < -8) | (values > 7)).any():
        raise ValueError(f"values holds {values.min()} to {values.max()}, expected -8 to 7, which four bits hold")
    low, high = (values & 0xF).view(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
    return low | high << 4


def unpack_int4(packed: Tensor) -> Tensor:
    """Return the integers that :func:`pack_int4` packed.

    Parameters
    ----------
    packed
        uint8 ``[..., n]``.

    Returns
    -------
    Tensor
        int8 ``[..., 2n]``, -8 to 7.

    Raises
    ------
    TypeError
        Another dtype.

    Examples
    --------
    >>> import torch
    >>> unpack_int4(torch.tensor([0x71, 0x8F], dtype=torch.uint8))
    tensor([ 1,  7, -1, -8], dtype=torch.int8)
    """
    if packed.dtype != torch.uint8:
        raise TypeError(f"packed has dtype {packed.dtype}, expected torch.uint8")
    signed = packed.view(torch.int8)
    return torch.stack((signed << 4 >> 4, signed >> 4), -1).flatten(-2)  # an int8 shifted right keeps its sign
