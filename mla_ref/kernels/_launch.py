"""What launchers have in common: may these tensors be handed to a kernel, and where does the result go?"""

from collections.abc import Sequence
from contextlib import nullcontext
from numbers import Real

import torch
from torch import Tensor

from .._validate import listed
from ..hardware import emulator

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_operands(twin: str, dtypes: Sequence[torch.dtype] = DTYPES, /, **tensors: Tensor) -> None:
    """Raise unless a kernel can read the tensors and nobody waits for their gradients.

    Parameters
    ----------
    twin
        PyTorch function to name as the way out.
    dtypes
        Those that the kernel takes.

    Raises
    ------
    TypeError
        A dtype that kernels do not take.
    ValueError
        A tensor on a device that kernels do not run on.
    RuntimeError
        A tensor that wants a gradient.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in dtypes:
            raise TypeError(f"{name} has dtype {tensor.dtype}, expected one of {listed(dtypes)}: use {twin} for others")
        if not tensor.is_cuda and not emulator.active():
            raise ValueError(
                f"{name} is on {tensor.device}, expected a GPU: move it with .cuda(), use {twin}, "
                f"or set {emulator.VARIABLE}=1 before Python starts"
            )
    check_gradients(twin, **tensors)


def check_gradients(twin: str, **tensors: Tensor) -> None:
    """Raise RuntimeError for a tensor that wants a gradient, naming ``twin``, which has one, as the way out."""
    for name, tensor in tensors.items():
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, and the kernel has no backward pass: "
                f"call it under torch.no_grad(), or use {twin}"
            )


def check_scale(scale: float) -> float:
    """Return the factor of scores as a float; raise TypeError for a tensor, which would have to wait for the device."""
    if not isinstance(scale, Real):
        raise TypeError(f"scale is {scale!r}, expected a float, 1/√(Dn+Dr)")
    return float(scale)


def check_width(name: str, tensor: Tensor) -> None:
    """Raise ValueError for rows without a value: no program would run, and their LSE stay unwritten."""
    if tensor.shape[-1] == 0:
        raise ValueError(f"{name} has shape {list(tensor.shape)}, expected rows of at least one value")


def check_distinct(**outs: Tensor) -> None:
    """Raise ValueError for an output whose elements share memory, as those of an expanded tensor do."""
    for name, out in outs.items():
        strides = out.stride()
        if 0 in strides and any(size > 1 for size, stride in zip(out.shape, strides, strict=True) if stride == 0):
            raise ValueError(
                f"{name} has strides {list(strides)} for shape {list(out.shape)}, expected a place for each element: "
                f"pass a tensor that is not expanded"
            )


def output_for(x: Tensor, out: Tensor | None, name: str = "out") -> Tensor:
    """Return ``out`` if it can take a result like ``x``, or a new tensor where ``out`` is None.

    Raises
    ------
    TypeError, ValueError
        ``out`` differs in dtype, shape or device.
    """
    return torch.empty_like(x) if out is None else result_for(out, name, x.shape, (x.dtype,), x.device)


def result_for(
    out: Tensor | None, name: str, shape: Sequence[int], dtypes: Sequence[torch.dtype], device: torch.device
) -> Tensor:
    """Return ``out`` if it can hold the result, or a new tensor of the first dtype where it is None.

    Raises
    ------
    TypeError, ValueError
        ``out`` has another shape or device, none of ``dtypes``, or elements that share memory.
    """
    if out is None:
        return torch.empty(shape, dtype=dtypes[0], device=device)
    if not isinstance(out, Tensor) or out.dtype not in dtypes:
        what = f"dtype {out.dtype}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
        raise TypeError(f"{name} has {what}, expected a tensor of {' or '.join(map(str, dtypes))}")
    if out.shape != shape:
        raise ValueError(f"{name} has shape {list(out.shape)}, expected {list(shape)}")
    if out.device != device:
        raise ValueError(f"{name} is on {out.device}, expected {device} as the input: move one")
    check_distinct(**{name: out})
    return out


def on_device_of(x: Tensor):
    """Return a context in which kernels start on the GPU that holds ``x``, which need not be the current one."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()
