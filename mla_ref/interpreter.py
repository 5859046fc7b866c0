"""Triton on this machine: compiled for a GPU or, where there is none, interpreted, with known defects corrected.

Triton chooses between the two while it is imported, so :func:`prepare` comes before anything that imports it;
:mod:`mla_ref.kernels` begins with it. Two defects of the interpreter are corrected, in Triton 3.6 to 3.9:

- bfloat16 is stored as raw 16-bit patterns, and ``tl.dot``, arithmetic, comparisons and sums take those
  patterns for integers. Constants of that type do not exist before 3.9, and conversions from float32 cut the
  mantissa off. Corrected, all of them go through float32 and round to nearest even. Atomics on bfloat16 raise
  an error with or without the correction.
- Triton 3.6 asks NumPy for the integer in an array of one element, which NumPy refuses from 2.4 on: a loop
  whose bound is known at run time only would not start.
"""

import functools
import os
import sys

import numpy as np

VARIABLE = "TRITON_INTERPRET"
_MODE = ("compiled", "interpreted")
_CORRECTED = "_corrected_by_mla_ref"


def prepare() -> bool:
    """Import Triton, with kernels interpreted where there is no GPU, and correct its interpreter.

    ``TRITON_INTERPRET`` decides where it is set: 1 interprets on a machine with a GPU too, 0 compiles without
    one. Elsewhere it is set to 1 if there is no GPU, for child processes too. Repeated calls change nothing.

    Returns
    -------
    bool
        Whether kernels are interpreted.

    Raises
    ------
    ImportError
        Triton is not installed.
    RuntimeError
        Triton was imported before, in the other mode.
    """
    if VARIABLE not in os.environ and "triton" not in sys.modules and not _has_gpu():
        os.environ[VARIABLE] = "1"
    try:
        import triton
    except ImportError as error:
        raise ImportError(
            f"kernels need Triton, which is published for Linux ({error}): pip install triton, "
            f"or stay with the PyTorch reference, which does not need it"
        ) from error
    interpreted = active()
    wanted = triton.knobs.runtime.interpret if VARIABLE in os.environ else not _has_gpu()
    if interpreted != wanted:
        raise RuntimeError(
            f"Triton was imported with kernels {_MODE[interpreted]}, and now they are to be {_MODE[wanted]}: "
            f"import mla_ref.kernels before anything that imports Triton, or set {VARIABLE}={wanted:d} "
            f"before Python starts"
        )
    if interpreted:
        from triton.runtime import interpreter

        if not hasattr(interpreter, _CORRECTED):
            setattr(interpreter, _CORRECTED, True)
            _correct_bfloat16(interpreter)
            _correct_index(interpreter)
    return interpreted


def active() -> bool:
    """Return whether Triton has been imported and interprets kernels."""
    triton = sys.modules.get("triton")
    return triton is not None and not isinstance(triton.language.cdiv, triton.runtime.JITFunction)


def _has_gpu():
    import torch

    return torch.cuda.is_available()


def _correct_bfloat16(interpreter):
    import triton.language as tl

    builder, handle_type = interpreter.InterpreterBuilder, interpreter.TensorHandle

    def is_bfloat16(value):
        return isinstance(value, handle_type) and value.dtype.scalar == tl.bfloat16

    def widened(value):
        return handle_type(_float32_of(value.data), tl.float32) if is_bfloat16(value) else value

    def narrowed(value):
        return handle_type(_bfloat16_of(value.data), tl.bfloat16)

    def through_float32(method):
        @functools.wraps(method)
        def corrected(self, *args, **kwargs):
            out = method(self, *map(widened, args), **kwargs)
            operands = [arg for arg in args if isinstance(arg, handle_type)]
            # The last operand has the type of the result: the accumulator of a dot is one.
            return narrowed(out) if is_bfloat16(operands[-1]) and out.data.dtype == np.float32 else out

        return corrected

    def cast(method):
        @functools.wraps(method)
        def corrected(self, source, target):
            if target.scalar == tl.bfloat16:
                return narrowed(method(self, widened(source), tl.float32))
            return method(self, widened(source), target)

        return corrected

    def reduction(method):
        @functools.wraps(method)
        def corrected(self, tensors):
            dtypes = [each.dtype for each in tensors]
            if tl.bfloat16 not in dtypes:
                return method(self, tensors)
            out = method(self, tuple(each.to(tl.float32) if each.dtype == tl.bfloat16 else each for each in tensors))
            out = out if isinstance(out, (list, tuple)) else [out]
            return [each.to(dtype) for each, dtype in zip(out, dtypes, strict=True)]

        return corrected

    for name in ("create_dot", "create_fma", "binary_op", "ternary_op", "unary_op"):
        setattr(builder, name, through_float32(getattr(builder, name)))
    builder.cast_impl = cast(builder.cast_impl)
    builder.get_bf16 = lambda self, value: narrowed(self.get_fp32(value))
    for operations in (interpreter.ReduceOps, interpreter.ScanOps):
        operations.apply_impl = reduction(operations.apply_impl)


def _float32_of(patterns):
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def _bfloat16_of(values):
    """Return the 16-bit patterns of float32 values, rounded to nearest even."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _correct_index(interpreter):
    patch = interpreter._patch_lang_tensor

    @functools.wraps(patch)
    def corrected(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = corrected
