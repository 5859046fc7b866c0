"""Argument checks at the boundary of public functions: what came, what was expected, what to do about it."""

import torch
from torch import Tensor

FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGER = (torch.int32, torch.int64)


def check_tensors(dtypes: tuple[torch.dtype, ...] = FLOATING, /, **named: tuple[Tensor, str]) -> dict[str, int]:
    """Check tensors that meet in one computation: shapes by pattern, one floating dtype, one device.

    Parameters
    ----------
    dtypes
        Those that are supported.
    **named
        ``name=(tensor, pattern)``. A pattern lists one symbol or integer per dimension, ``"B S H 64"``. A
        symbol has the size that the first tensor gives it, ``_`` matches any size, and a leading ``...`` any
        number of dimensions.

    Returns
    -------
    dict
        Size of each symbol.

    Raises
    ------
    TypeError
        Not a tensor, a dtype that is not supported, or two dtypes.
    ValueError
        A shape that does not match, or two devices.
    """
    sizes: dict[str, int] = {}
    giver: dict[str, str] = {}
    first, reference = None, None
    for name, (tensor, pattern) in named.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}, expected a torch.Tensor [{listed(pattern)}]")
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} has dtype {tensor.dtype}, expected one of {listed(dtypes)}: convert it first")
        if first is None:
            first, reference = name, tensor
        if tensor.dtype != reference.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}, expected {reference.dtype} as {first} has: convert one")
        if tensor.device != reference.device:
            raise ValueError(f"{name} is on {tensor.device}, expected {reference.device} as {first} is: move one")
        _bind(name, tensor, pattern, sizes, giver)
    return sizes


def _bind(name, tensor, pattern, sizes, giver):
    symbols = pattern.split()
    shape = list(tensor.shape)
    if symbols[0] == "...":
        symbols = symbols[1:]
        shape = shape[max(0, len(shape) - len(symbols)) :]
    if len(shape) != len(symbols):
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, expected {len(symbols)} dimensions [{listed(pattern)}]"
        )
    for size, symbol in zip(shape, symbols, strict=True):
        if symbol == "_":
            continue
        expected = int(symbol) if symbol.isdecimal() else sizes.setdefault(symbol, size)
        if size != expected:
            source = f" from {giver[symbol]}" if symbol in giver else ""
            given = "" if symbol.isdecimal() else f" with {symbol} = {expected}{source}"
            raise ValueError(f"{name} has shape {list(tensor.shape)}, expected [{listed(pattern)}]{given}")
        giver.setdefault(symbol, name)


def check_integers(device: torch.device, sizes: dict[str, int], /, **named: tuple[Tensor, str]) -> dict[str, int]:
    """Check integer tensors without reading their values, which would wait for the device.

    Parameters
    ----------
    device
        Where they have to be.
    sizes
        Of symbols that are known.
    **named
        ``name=(tensor, pattern)``, as for :func:`check_tensors`.

    Returns
    -------
    dict
        ``sizes``, and those of symbols that are new.

    Raises
    ------
    TypeError
        Not an int32 or int64 tensor.
    ValueError
        A shape that does not match, or another device.
    """
    sizes = dict(sizes)
    for name, (tensor, pattern) in named.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in INTEGER:
            what = f"dtype {tensor.dtype}" if isinstance(tensor, Tensor) else f"type {type(tensor).__name__}"
            raise TypeError(f"{name} has {what}, expected an int32 or int64 tensor [{listed(pattern)}]")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, expected {device}: move it with .to()")
        _bind(name, tensor, pattern, sizes, {})
    return sizes


def check_counts(name: str, counts, *, batch: int, low: int, high: int, device: torch.device) -> Tensor:
    """Check a tensor of one count per sequence and return it as int64.

    Reading the values waits for the device.

    Parameters
    ----------
    name
        What to call it in an error.
    counts
        int32 or int64 ``[batch]``, every entry between ``low`` and ``high`` inclusive.

    Raises
    ------
    TypeError
        Not an integer tensor.
    ValueError
        Wrong shape or device, or an entry out of range.
    """
    check_integers(device, {"B": batch}, **{name: (counts, "B")})
    outside = ((counts < low) | (counts > high)).nonzero()
    if len(outside):
        at = int(outside[0])
        raise ValueError(f"{name}[{at}] is {int(counts[at])}, expected {low} <= {name} <= {high}")
    return counts.long()


def check_positive(**named: int) -> None:
    """Raise TypeError or ValueError, naming the argument, unless every value is a positive int."""
    for name, value in named.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, expected a positive int")
        if value < 1:
            raise ValueError(f"{name} is {value}, expected a positive int")


def check_numbers(**named: float) -> None:
    """Raise TypeError, naming the argument, unless every value is an int or a float."""
    for name, value in named.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}, expected a number")


def check_pair(name: str, pair) -> None:
    """Raise TypeError unless ``pair`` is two of something, or None."""
    if pair is not None and (not isinstance(pair, tuple | list) or len(pair) != 2):
        what = f"{type(pair).__name__} of {len(pair)}" if isinstance(pair, tuple | list) else type(pair).__name__
        raise TypeError(f"{name} is a {what}, expected a pair of tensors")


def by_rank(tensor, *patterns: str) -> str:
    """Return the pattern, for :func:`check_tensors`, that has as many dimensions; the last where none has."""
    rank = tensor.ndim if isinstance(tensor, Tensor) else None
    return next((pattern for pattern in patterns if len(pattern.split()) == rank), patterns[-1])


def listed(items) -> str:
    """Return the items, or the words of a string, separated by commas."""
    return ", ".join(items.split() if isinstance(items, str) else map(str, items))
