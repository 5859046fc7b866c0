"""A Multi-head Latent Attention layer: one set of weights, either form of the attention."""

import torch
from torch import Tensor, nn

from ._validate import check_positive, check_tensors
from .cache import Cache, LatentCache
from .config import MLAConfig
from .implementations import IMPLEMENTATIONS, Implementation
from .norm import RMSNorm
from .paged import PagedCache
from .ragged import attend_ragged
from .rope import apply_rope_qk, rope_cos_sin


class MLA(nn.Module):
    """Causal latent attention, its weights named as in Hugging Face's ``DeepseekV3Attention``.

    Parameters
    ----------
    config
        Shapes of the layer.
    impl
        A name in :data:`mla_ref.IMPLEMENTATIONS`, ``"naive"``, ``"absorb"``, ``"triton"`` (absorbed, by
        :mod:`mla_ref.kernels`) or ``"prefix"`` (naive over pages that many sequences share), or a function with the
        signature of :func:`mla_ref.naive`. The function needs to take a ``block_table`` only where it meets a paged
        cache.
    device, dtype
        Of the weights.

    Raises
    ------
    ValueError
        An ``impl`` that does not exist.

    Examples
    --------
    >>> import torch
    >>> mla = MLA(MLAConfig.preset("tiny"))
    >>> cache = mla.make_cache(batch=2, capacity=16)
    >>> with torch.no_grad():
    ...     prompt = mla(torch.randn(2, 5, 64), cache, lengths=torch.tensor([5, 3]))
    ...     token = mla(torch.randn(2, 1, 64), cache)
    >>> token.shape, cache.seq_lens.tolist()
    (torch.Size([2, 1, 64]), [6, 4])
    """

    def __init__(
        self,
        config: MLAConfig,
        impl: str | Implementation = "absorb",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.config = config
        self.impl = impl
        _implementation(impl)
        heads, eps = config.num_attention_heads, config.rms_norm_eps
        place = {"device": device, "dtype": dtype}

        def linear(width_in, width_out):
            return nn.Linear(width_in, width_out, bias=False, **place)

        if config.q_lora_rank is None:
            self.q_proj = linear(config.hidden_size, heads * config.qk_head_dim)
        else:
            self.q_a_proj = linear(config.hidden_size, config.q_lora_rank)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, eps, **place)
            self.q_b_proj = linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = linear(config.hidden_size, config.latent_head_dim)
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, eps, **place)
        self.kv_b_proj = linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = linear(heads * config.v_head_dim, config.hidden_size)

    @property
    def w_uk(self) -> Tensor:
        """View ``[H, Dn, R]`` of ``kv_b_proj``: from the latent to keys."""
        return self._up_projections()[0]

    @property
    def w_uv(self) -> Tensor:
        """View ``[H, Dv, R]`` of ``kv_b_proj``: from the latent to values."""
        return self._up_projections()[1]

    def _up_projections(self):
        per_head = self.kv_b_proj.weight.unflatten(0, (self.config.num_attention_heads, -1))
        return per_head.split((self.config.qk_nope_head_dim, self.config.v_head_dim), 1)

    def make_cache(self, batch: int, capacity: int, page_size: int | None = None) -> LatentCache | PagedCache:
        """Return an empty cache that fits this layer, in pages if ``page_size`` is given.

        Where the layer attends by kernels, kernels move the tokens to their pages too.
        """
        check_positive(batch=batch, capacity=capacity)
        weight = self.kv_b_proj.weight
        shape = batch, capacity, self.config.kv_lora_rank, self.config.qk_rope_head_dim
        if page_size is None:
            return LatentCache(*shape, dtype=weight.dtype, device=weight.device)
        movers = {}
        if self.impl == "triton":
            from . import kernels  # needs Triton, and PyTorch alone does not

            movers = {"update": kernels.paged_update, "gather": kernels.paged_gather}
        return PagedCache(*shape, dtype=weight.dtype, device=weight.device, page_size=page_size, **movers)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what attention needs of new tokens, and what the cache keeps of them.

        Parameters
        ----------
        x
            ``[B, S, D]``.
        positions
            Integers ``[S]`` or ``[B, S]``.

        Returns
        -------
        q_nope, q_rope
            ``[B, S, H, Dn]`` and ``[B, S, H, Dr]``, the latter rotated. ``config.softmax_scale`` belongs to them.
        c_kv, k_rope
            ``[B, S, R]`` normalised and scaled, ``[B, S, Dr]`` rotated.
        """
        config = self.config
        q = self.q_proj(x) if config.q_lora_rank is None else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.unflatten(-1, (config.num_attention_heads, config.qk_head_dim))
        q_nope, q_rope = q.split((config.qk_nope_head_dim, config.qk_rope_head_dim), -1)
        c_kv, k_rope = self.kv_a_proj_with_mqa(x).split((config.kv_lora_rank, config.qk_rope_head_dim), -1)

        if not config.mla_use_nope:
            cos, sin = rope_cos_sin(
                positions,
                config.qk_rope_head_dim,
                theta=config.rope_theta,
                scaling=config.rope_scaling,
                dtype=torch.promote_types(x.dtype, torch.float32),
            )
            q_rope, k_rope = apply_rope_qk(q_rope, k_rope, cos, sin, config.rope_interleave)
        c_kv = self.kv_a_layernorm(c_kv)
        if config.mla_scale_kv_lora:
            c_kv = c_kv * config.latent_scale
        return q_nope, q_rope, c_kv, k_rope

    def forward(
        self,
        x: Tensor,
        cache: Cache | None = None,
        *,
        lengths: Tensor | None = None,
        impl: str | Implementation | None = None,
    ) -> Tensor:
        """Attend from ``x`` to itself and to what the cache holds: prefill, decode, or a chunk of either.

        Parameters
        ----------
        x
            ``[B, S, D]``.
        cache
            A :class:`mla_ref.LatentCache`, a :class:`mla_ref.PagedCache`, or another of their interface. Says at
            which position each sequence stands, and gets the new latents; None for attention within ``x`` alone.
            From one that has a ``block_table`` the implementation gets that and the pages ``c_kv`` and ``k_rope``,
            which ``"triton"`` reads where they are and the others gather; from any other what ``filled`` returns.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.
        impl
            Overrides the layer's own for this call.

        Returns
        -------
        Tensor
            ``[B, S, D]``; zeros for tokens that are not real.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            From the checks of ``x``, ``impl``, ``lengths`` and the cache's ``append``.
        """
        attend = _implementation(self.impl if impl is None else impl)
        size = check_tensors(weight=(self.kv_a_proj_with_mqa.weight, "_ D"), x=(x, "B S D"))
        positions = torch.arange(size["S"], device=x.device)
        if cache is not None:
            positions = cache.seq_lens[:, None] + positions
        q_nope, q_rope, c_kv, k_rope = self.project(x, positions)

        options = {"seq_lens": lengths, "scale": self.config.softmax_scale}
        if cache is not None:
            cache.append(c_kv, k_rope, lengths=lengths)
            options["seq_lens"] = cache.seq_lens
            if hasattr(cache, "block_table"):
                c_kv, k_rope, options["block_table"] = cache.c_kv, cache.k_rope, cache.block_table
            else:
                c_kv, k_rope = cache.filled()
        queries, context = (q_nope, q_rope), (c_kv, k_rope, self.w_uk, self.w_uv)
        if lengths is None:
            out, _ = attend(*queries, *context, **options)
        else:
            out = attend_ragged(attend, queries, context, lengths=lengths, **options)
        return self.o_proj(out.flatten(2))


def _implementation(impl):
    if callable(impl):
        return impl
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"no implementation {impl!r}, expected a function or one of {', '.join(IMPLEMENTATIONS)}")
    return IMPLEMENTATIONS[impl]
