"""What launchers have in common: may these tensors be handed to a kernel, and where does the result go?"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from .. import interpreter

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_operands(twin: str, **tensors: Tensor) -> None:
    """Raise unless a kernel can read the tensors and nobody waits for their gradients.

    Parameters
    ----------
    twin
        PyTorch function to name as the way out.

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
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} has dtype {tensor.dtype}, expected one of {_list(DTYPES)}: use {twin} for others")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient, and the kernel has no backward pass: "
                f"call it under torch.no_grad(), or use {twin}"
            )
        if not tensor.is_cuda and not interpreter.active():
            raise ValueError(
                f"{name} is on {tensor.device}, expected a GPU: move it with .cuda(), use {twin}, "
                f"or set {interpreter.VARIABLE}=1 before Python starts"
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
        ``out`` has another shape or device, or none of ``dtypes``.
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
    return out


def on_device_of(x: Tensor):
    """Return a context in which kernels start on the GPU that holds ``x``, which need not be the current one."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()


def _list(items) -> str:
    return ", ".join(map(str, items))
