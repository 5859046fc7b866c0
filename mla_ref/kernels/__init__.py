"""Triton kernels, each beside its PyTorch twin: same name, same arguments, and ``out=``.

================  =========================================  ==============================
kernel            PyTorch twin                               faster variant
================  =========================================  ==============================
`rms_norm`        :func:`mla_ref.rms_norm`                   `rms_norm_rows`
`apply_rope`      :func:`mla_ref.apply_rope`                 `apply_rope_qk`
================  =========================================  ==============================

Launchers do not wait for the device and choose their block sizes from shapes alone, so that they can be captured
in a CUDA graph. They take float16, bfloat16 and float32 in any layout, accumulate in float32, compute offsets in
64 bits, and refuse tensors that want a gradient: there is no backward pass here.

Importing this package imports Triton. Where there is no GPU its interpreter runs the kernels, on CPU tensors: see
:mod:`mla_ref.interpreter`.
"""

from .. import interpreter

interpreter.prepare()

from .rms_norm import rms_norm  # noqa: E402
from .rms_norm_rows import rms_norm_rows  # noqa: E402
from .rope import apply_rope  # noqa: E402
from .rope_qk import apply_rope_qk  # noqa: E402

__all__ = ["apply_rope", "apply_rope_qk", "rms_norm", "rms_norm_rows"]
