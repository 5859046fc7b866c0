"""An MLA layer in which each step is PyTorch or a fused kernel: what every fusion gains, alone and with others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ._validate import check_tensors
from .config import MLAConfig
from .mla import MLA
from .rope import rope_cos_sin

# What each fusion exchanges, and for what of `mla_ref.kernels`. As in the report ASF computes all tiles of the scores,
# also those that the softmax masks throughout.
FUSIONS = {
    "ASF": ("score", lambda kernels: partial(kernels.attention_score, causal=False)),
    "SF": ("softmax", lambda kernels: kernels.masked_softmax),
    "RF": ("rms_norm", lambda kernels: kernels.rms_norm),
    "RPEF": ("rope", lambda kernels: kernels.apply_rope_qk),
    "FD": ("attend", lambda kernels: kernels.DECODERS[kernels.FASTEST].contiguous),
}


class Step(NamedTuple):
    """What a step of S tokens needs to know of their place: one for all layers of a model.

    Every sequence stands at ``start``, a number that the host knows. Nothing waits for the device then, and a CUDA
    graph can hold the step.
    """

    start: int
    cos: Tensor  # [S, Dr/2]
    sin: Tensor  # [S, Dr/2]
    turn: Tensor  # complex [S, Dr/2]
    mask: Tensor | None  # [S, start + S], added to scores

    @classmethod
    def of(cls, config: MLAConfig, start: int, size: int, dtype: torch.dtype, device: torch.device | str) -> Step:
        """Return the step that brings tokens ``start`` to ``start + size``.

        Raises
        ------
        ValueError
            ``start`` below 0 or ``size`` below 1.
        """
        if start < 0 or size < 1:
            raise ValueError(f"start is {start} and size {size}, expected start >= 0 and size >= 1")
        positions = torch.arange(start, start + size, device=device)
        cos, sin = rope_cos_sin(
            positions,
            config.qk_rope_head_dim,
            theta=config.rope_theta,
            scaling=config.rope_scaling,
            dtype=torch.promote_types(dtype, torch.float32),
        )
        mask = None
        if size > 1:
            mask = torch.full((size, start + size), -torch.inf, dtype=dtype, device=device).triu_(start + 1)
        return cls(start, cos, sin, torch.complex(cos, sin), mask)


class FusedMLA:
    """The inference path of an MLA layer by absorption, its steps exchangeable one by one.

    With no step exchanged it is the formulation of DeepSeek-V3's public inference code, each line of which is a launch
    or several and writes what the next one reads. The weights are those of ``mla``, not copies. There is no backward
    pass.

    Parameters
    ----------
    mla
        The layer. Its RoPE is interleaved, as DeepSeek's.
    score, softmax, rms_norm, rope
        Functions with the signatures of :func:`mla_ref.attention_score`, ``masked_softmax``, ``rms_norm`` and
        ``apply_rope_qk``; None stays with PyTorch. ``score`` is given ``scale`` by name, and ``softmax`` the scores
        alone: it masks them.
    attend
        A function with the signature of :func:`mla_ref.latent_attention`, in place of scores, softmax and weighted sum.

    Raises
    ------
    ValueError
        A layer whose RoPE turns halves.

    References
    ----------
    "Optimizing Multi-head Latent Attention for Efficient Inference", section 3.2 and tables 2 and 3; DeepSeek-V3,
    ``inference/model.py``.

    Examples
    --------
    >>> import torch
    >>> from mla_ref import MLAConfig
    >>> device = "cuda" if torch.cuda.is_available() else "cpu"
    >>> mla = MLA(MLAConfig.preset("tiny"), device=device)
    >>> cache = mla.make_cache(batch=2, capacity=16)
    >>> layer = FusedMLA.of(mla, "ASF", "SF")
    >>> x = torch.randn(2, 5, 64, device=device)
    >>> prompt = layer(x, cache.c_kv, cache.k_rope, layer.step(0, 5))
    >>> layer(x[:, :1], cache.c_kv, cache.k_rope, layer.step(5, 1)).shape
    torch.Size([2, 1, 64])
    """

    def __init__(
        self,
        mla: MLA,
        *,
        score: Callable[..., Tensor] | None = None,
        softmax: Callable[..., Tensor] | None = None,
        rms_norm: Callable[..., Tensor] | None = None,
        rope: Callable[..., tuple[Tensor, Tensor]] | None = None,
        attend: Callable[..., tuple[Tensor, Tensor]] | None = None,
    ):
        if not mla.config.rope_interleave:
            raise ValueError("mla turns halves, expected interleaved RoPE, as in DeepSeek's code")
        self.mla = mla
        self.score, self.softmax, self.rms_norm, self.rope, self.attend = score, softmax, rms_norm, rope, attend

    @classmethod
    def of(cls, mla: MLA, *fusions: str) -> FusedMLA:
        """Return the layer with this package's kernels for some steps.

        Parameters
        ----------
        mla
            The layer.
        *fusions
            ``"ASF"`` for scores, ``"SF"`` softmax, ``"RF"`` RMSNorm and ``"RPEF"`` RoPE, as the report has them;
            ``"FD"``, flash decoding, takes the place of ASF and SF.

        Raises
        ------
        ValueError
            A fusion that does not exist, or a layer whose RoPE turns halves.
        """
        for name in fusions:
            if name not in FUSIONS:
                raise ValueError(f"no fusion {name!r}, expected one of {', '.join(FUSIONS)}")
        if not fusions:
            return cls(mla)
        from . import kernels  # needs Triton, and PyTorch alone does not

        return cls(mla, **{step: choose(kernels) for step, choose in map(FUSIONS.get, fusions)})

    def step(self, start: int, size: int) -> Step:
        """Return :meth:`Step.of` this layer."""
        weight = self.mla.o_proj.weight
        return Step.of(self.mla.config, start, size, weight.dtype, weight.device)

    @torch.no_grad()
    def __call__(self, x: Tensor, c_kv: Tensor, k_rope: Tensor, step: Step) -> Tensor:
        """Attend from new tokens to themselves and to what came before: prefill, decode, or a chunk of either.

        Parameters
        ----------
        x
            ``[B, S, D]``.
        c_kv, k_rope
            ``[B, capacity, R]`` and ``[B, capacity, Dr]``, the storage of a :class:`mla_ref.LatentCache`, say. The new
            tokens are written behind the first ``step.start``.
        step
            Where the new tokens stand.

        Returns
        -------
        Tensor
            ``[B, S, D]``.

        Raises
        ------
        TypeError, ValueError
            Shapes, dtypes or devices that do not agree, a step of another size than ``x``, or no room in the cache.
            Nothing has been written then.
        """
        mla, config = self.mla, self.mla.config
        size = check_tensors(
            weight=(mla.kv_a_proj_with_mqa.weight, "_ D"),
            x=(x, "B S D"),
            c_kv=(c_kv, f"B capacity {config.kv_lora_rank}"),
            k_rope=(k_rope, f"B capacity {config.qk_rope_head_dim}"),
        )
        if len(step.cos) != size["S"]:
            raise ValueError(f"x has {size['S']} tokens a sequence, expected {len(step.cos)} as the step")
        end = step.start + size["S"]
        if size["capacity"] < end:
            raise ValueError(f"c_kv and k_rope have room for {size['capacity']} tokens, expected {end} or more")
        if config.q_lora_rank is None:
            q = mla.q_proj(x)
        else:
            q = mla.q_b_proj(self._norm(mla.q_a_proj(x), mla.q_a_layernorm))
        q = q.unflatten(-1, (config.num_attention_heads, config.qk_head_dim))
        q_nope, q_rope = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), -1)
        new_c_kv, new_k_rope = mla.kv_a_proj_with_mqa(x).split((config.kv_lora_rank, config.qk_rope_head_dim), -1)
        if not config.mla_use_nope:
            q_rope, new_k_rope = self._rotate(q_rope, new_k_rope, step)
        new_c_kv = self._norm(new_c_kv, mla.kv_a_layernorm)
        if config.mla_scale_kv_lora:
            new_c_kv = new_c_kv * config.latent_scale
        c_kv[:, step.start : end] = new_c_kv
        k_rope[:, step.start : end] = new_k_rope

        q_latent = torch.einsum("bshd,hdr->bshr", q_nope, mla.w_uk)
        o_latent = self._attend(q_latent, q_rope, c_kv[:, :end], k_rope[:, :end], step)
        return mla.o_proj(torch.einsum("bshr,hvr->bshv", o_latent, mla.w_uv).flatten(2))

    def _norm(self, x, norm):
        if self.rms_norm is not None:
            return self.rms_norm(x, norm.weight, norm.eps)
        return F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)

    def _rotate(self, q_rope, k_rope, step):
        if self.rope is not None:
            return self.rope(q_rope, k_rope, step.cos, step.sin)
        return rotate(q_rope, step.turn[:, None]), rotate(k_rope, step.turn)

    def _attend(self, q_latent, q_rope, c_kv, k_rope, step):
        scale = self.mla.config.softmax_scale
        if self.attend is not None:
            return self.attend(q_latent, q_rope, c_kv, k_rope, scale=scale)[0]
        if self.score is not None:
            scores = self.score(q_latent, q_rope, c_kv, k_rope, scale=scale)
        else:
            product = "bshr,btr->bsht"
            scores = (torch.einsum(product, q_latent, c_kv) + torch.einsum(product, q_rope, k_rope)) * scale
        if self.softmax is not None:
            weights = self.softmax(scores)
        else:
            if step.mask is not None:
                scores += step.mask[:, None]
            wide = torch.promote_types(scores.dtype, torch.float32)
            weights = scores.softmax(-1, dtype=wide).to(scores.dtype)
        return torch.einsum("bsht,btr->bshr", weights, c_kv)


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Multiply the pairs of ``x`` by complex numbers."""
    x, dtype = x.to(turn.real.dtype), x.dtype
    if any(step % 2 for step in (x.storage_offset(), *x.stride()[:-1])):  # beside an odd width; no complex view there
        x = x.clone(memory_format=torch.contiguous_format)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turn).flatten(-2).to(dtype)
