"""What launchers have in common: may these tensors be handed to a kernel, and where does the result go?"""

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
    if out is None:
        return torch.empty_like(x)
    if not isinstance(out, Tensor) or out.dtype != x.dtype:
        what = f"dtype {out.dtype}" if isinstance(out, Tensor) else f"type {type(out).__name__}"
        raise TypeError(f"{name} has {what}, expected a tensor of {x.dtype} as the input")
    if out.shape != x.shape:
        raise ValueError(f"{name} has shape {list(out.shape)}, expected {list(x.shape)} as the input")
    if out.device != x.device:
        raise ValueError(f"{name} is on {out.device}, expected {x.device} as the input: move one")
    return out


def on_device_of(x: Tensor):
    """Return a context in which kernels start on the GPU that holds ``x``, which need not be the current one."""
    elsewhere = x.is_cuda and x.device.index != torch.cuda.current_device()
    return torch.cuda.device(x.device) if elsewhere else nullcontext()


def _list(items) -> str:
    return ", ".join(map(str, items))
