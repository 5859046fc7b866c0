"""Triton kernels, each beside its PyTorch twin: same name, same arguments, and ``out=``.

========================  ======================================  ========================================
kernel                    PyTorch twin                            faster variant
========================  ======================================  ========================================
`rms_norm`                :func:`mla_ref.rms_norm`                `rms_norm_rows`
`apply_rope`              :func:`mla_ref.apply_rope`
`apply_rope_qk`           :func:`mla_ref.apply_rope_qk`
`paged_update`            :func:`mla_ref.paged_update`
`paged_gather`            :func:`mla_ref.paged_gather`
`attention_score`         :func:`mla_ref.attention_score`
`masked_softmax`          :func:`mla_ref.masked_softmax`
`latent_attention`        :func:`mla_ref.latent_attention`        `latent_attention_tma`, `…_hopper`
`paged_latent_attention`  :func:`mla_ref.paged_latent_attention`  `paged_latent_attention_tma`, `…_hopper`
`combine`                 :func:`mla_ref.combine`
`prefix_attention`        :func:`mla_ref.prefix_attention`
`ragged_attention`        :func:`mla_ref.ragged_attention`
`pack_kv`                 :func:`mla_ref.pack_kv`
`absorb_query`            :func:`mla_ref.absorb_query`
`reconstruct_value`       :func:`mla_ref.reconstruct_value`
========================  ======================================  ========================================

:data:`DECODERS` is the table of decode kernels, :data:`VARIANTS` names the kernel that each variant stands in for.

Launchers do not wait for the device and choose their block sizes from shapes, dtypes and the kind of GPU, so that they
can be captured in a CUDA graph. They take float16, bfloat16 and float32 in any layout, accumulate in float32, compute
offsets in 64 bits, and refuse tensors that want a gradient: there is no backward pass here.

Importing this package imports Triton. Where there is no GPU the kernels are emulated, on CPU tensors: see
:mod:`mla_ref.hardware.emulator`.
"""

from ..hardware import emulator

emulator.prepare()

from .attention_score import attention_score  # noqa: E402
from .combine import combine  # noqa: E402
from .decode import latent_attention, paged_latent_attention  # noqa: E402
from .decode_hopper import latent_attention_hopper, paged_latent_attention_hopper  # noqa: E402
from .decode_tma import latent_attention_tma, paged_latent_attention_tma  # noqa: E402
from .decoders import DECODERS, FASTEST, Decoder  # noqa: E402
from .masked_softmax import masked_softmax  # noqa: E402
from .pack_kv import pack_kv  # noqa: E402
from .paged_gather import paged_gather  # noqa: E402
from .paged_update import paged_update  # noqa: E402
from .prefix_attention import prefix_attention  # noqa: E402
from .ragged_attention import ragged_attention  # noqa: E402
from .reconstruct import absorb_query, reconstruct_value  # noqa: E402
from .rms_norm import rms_norm  # noqa: E402
from .rms_norm_rows import rms_norm_rows  # noqa: E402
from .rope import apply_rope  # noqa: E402
from .rope_qk import apply_rope_qk  # noqa: E402

VARIANTS = {
    "latent_attention_hopper": "latent_attention",
    "latent_attention_tma": "latent_attention",
    "paged_latent_attention_hopper": "paged_latent_attention",
    "paged_latent_attention_tma": "paged_latent_attention",
    "rms_norm_rows": "rms_norm",
}

__all__ = [
    "DECODERS",
    "FASTEST",
    "VARIANTS",
    "Decoder",
    "absorb_query",
    "apply_rope",
    "apply_rope_qk",
    "attention_score",
    "combine",
    "latent_attention",
    "latent_attention_hopper",
    "latent_attention_tma",
    "masked_softmax",
    "pack_kv",
    "paged_gather",
    "paged_latent_attention",
    "paged_latent_attention_hopper",
    "paged_latent_attention_tma",
    "paged_update",
    "prefix_attention",
    "ragged_attention",
    "reconstruct_value",
    "rms_norm",
    "rms_norm_rows",
]
