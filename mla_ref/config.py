"""Shapes of an MLA layer, under the field names of Hugging Face configurations."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ._from_hf import read
from ._validate import check_numbers, check_positive


@dataclass(frozen=True)
class Yarn:
    """YaRN context extension (Peng et al. 2023, arXiv:2309.00071) with DeepSeek's two ``mscale`` fields.

    Parameters
    ----------
    factor
        Context extension, at least 1.
    original_max_position_embeddings
        Context length before the extension, in tokens.
    beta_fast, beta_slow
        Rotations over the original context above which a frequency is kept, and below which it is divided by
        ``factor``.
    mscale, mscale_all_dim
        Logarithmic attention gains: their ratio multiplies cos and sin, the square of the second multiplies
        the softmax scale. 0 means unset.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0

    def __post_init__(self):
        check_numbers(
            factor=self.factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
            mscale=self.mscale,
            mscale_all_dim=self.mscale_all_dim,
        )
        check_positive(original_max_position_embeddings=self.original_max_position_embeddings)
        if self.factor < 1:
            raise ValueError(f"factor is {self.factor}, expected at least 1: leave out rope_scaling for no extension")
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"beta_fast and beta_slow are {self.beta_fast} and {self.beta_slow}, "
                f"expected beta_fast >= beta_slow > 0"
            )

    def _gain(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0

    @property
    def attention_factor(self) -> float:
        """What multiplies cos and sin; 1 where both ``mscale`` fields agree, as in every DeepSeek model."""
        if self.mscale and self.mscale_all_dim:
            return self._gain(self.mscale) / self._gain(self.mscale_all_dim)
        return self._gain(1.0)

    @property
    def softmax_factor(self) -> float:
        """What multiplies the softmax scale: 1.87 for DeepSeek-V3."""
        return self._gain(self.mscale_all_dim) ** 2


@dataclass(frozen=True)
class MLAConfig:
    """One MLA layer.

    Parameters
    ----------
    hidden_size
        D, width of the residual stream.
    num_attention_heads
        H.
    kv_lora_rank
        R, width of the cached latent.
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        Dn, Dr and Dv, per head; Dr is even.
    q_lora_rank
        Rq, or None where the query is projected directly (DeepSeek-V2-Lite).
    rope_theta
        Base of the rotary frequencies.
    rms_norm_eps
        Epsilon of the norms on both latents.
    max_position_embeddings
        Longest context, in tokens.
    rope_interleave
        True rotates pairs (0, 1), (2, 3), … as DeepSeek does; False rotates the halves against each other (MiniCPM3).
    rope_scaling
        YaRN, or None.
    mla_use_nope
        True leaves the Dr columns as they are projected, without any position (Kimi-Linear).
    mla_scale_q_lora, mla_scale_kv_lora
        True multiplies the query by √(D/Rq), and the normalised key/value latent by √(D/R) (LongCat-Flash).

    Raises
    ------
    TypeError, ValueError
        A field that no MLA layer can have.
    """

    hidden_size: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 4096
    rope_interleave: bool = True
    rope_scaling: Yarn | None = None
    mla_use_nope: bool = False
    mla_scale_q_lora: bool = False
    mla_scale_kv_lora: bool = False

    def __post_init__(self):
        check_positive(
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            kv_lora_rank=self.kv_lora_rank,
            qk_nope_head_dim=self.qk_nope_head_dim,
            qk_rope_head_dim=self.qk_rope_head_dim,
            v_head_dim=self.v_head_dim,
            max_position_embeddings=self.max_position_embeddings,
        )
        if self.q_lora_rank is not None:
            check_positive(q_lora_rank=self.q_lora_rank)
        check_numbers(rope_theta=self.rope_theta, rms_norm_eps=self.rms_norm_eps)
        for name in ("rope_interleave", "mla_use_nope", "mla_scale_q_lora", "mla_scale_kv_lora"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is {getattr(self, name)!r}, expected True or False")
        if self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim is {self.qk_rope_head_dim}, expected an even number: RoPE turns pairs")
        if not self.rope_theta > 1:
            raise ValueError(f"rope_theta is {self.rope_theta}, expected more than 1 (DeepSeek uses 10000)")
        if not self.rms_norm_eps > 0:
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps}, expected a positive number")
        if not isinstance(self.rope_scaling, Yarn | None):
            raise TypeError(f"rope_scaling is {self.rope_scaling!r}, expected Yarn(...) or None")
        if self.mla_use_nope and self.rope_scaling:
            raise ValueError("mla_use_nope is True, expected rope_scaling=None: no angle is left to scale")
        if self.mla_scale_q_lora and self.q_lora_rank is None:
            raise ValueError("mla_scale_q_lora is True, expected a q_lora_rank: the factor is √(D/Rq)")

    @property
    def qk_head_dim(self) -> int:
        """Dn + Dr, the width of one head's query and key: 192 for DeepSeek-V3."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_head_dim(self) -> int:
        """R + Dr, what the cache holds per token and an absorbed query has per head: 576 for DeepSeek-V3."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """1/√(Dn+Dr), never 1/√(R+Dr), times the square of YaRN's gain and ``mla_scale_q_lora``'s √(D/Rq) if set."""
        factor = self.rope_scaling.softmax_factor if self.rope_scaling else 1.0
        if self.mla_scale_q_lora:
            factor *= math.sqrt(self.hidden_size / self.q_lora_rank)
        return factor / math.sqrt(self.qk_head_dim)

    @property
    def latent_scale(self) -> float:
        """What multiplies the normalised key/value latent: √(D/R) with ``mla_scale_kv_lora``, else 1."""
        return math.sqrt(self.hidden_size / self.kv_lora_rank) if self.mla_scale_kv_lora else 1.0

    @classmethod
    def preset(cls, name: str) -> "MLAConfig":
        """Return a published configuration by name; :func:`presets` lists the names.

        Raises
        ------
        ValueError
            Unknown name.
        """
        if name not in _PRESETS:
            raise ValueError(f"no preset {name!r}, expected one of {', '.join(_PRESETS)}")
        return cls(**_PRESETS[name])

    @classmethod
    def from_hf(cls, config: Any, ignore: Collection[str] = ()) -> "MLAConfig":
        """Read a Hugging Face configuration: DeepSeek-V2 and V3, Kimi K2, GLM-4.7-Flash, LongCat-Flash and others.

        A field that is neither read here nor known to leave attention alone is an error, and so is a ``model_type``
        whose code was not compared with this package: what loads computes what the model computes. An unknown field
        at None or False counts as off. Of a hybrid with linear attention (Kimi-Linear) this is a layer of full
        attention.

        ``rms_norm_eps`` is 1e-6 whatever the configuration says, as the norms on the latents have it in DeepSeek's
        code and in transformers, where the field is that of the other norms. vLLM takes the field for them too:
        ``dataclasses.replace(MLAConfig.from_hf(config), rms_norm_eps=...)`` gives its layer.

        Parameters
        ----------
        config
            An object of transformers or the dict of a ``config.json``. Where it has a ``text_config``, that is read.
            The rotary settings may be ``rope_scaling`` beside ``rope_theta``, or the ``rope_parameters`` of
            transformers 5. YaRN without ``factor`` extends to ``max_position_embeddings``.
        ignore
            Names of fields that are read as if they were absent, the rotary settings' among them. With
            ``model_type`` the configuration is read as DeepSeek-V3's.

        Raises
        ------
        TypeError
            Not a configuration, or a field of another type.
        ValueError
            A field is missing, impossible, or not known to leave attention alone. The sentence names it.

        Examples
        --------
        >>> fields = {"hidden_size": 2048, "num_attention_heads": 16, "q_lora_rank": None, "kv_lora_rank": 512}
        >>> fields |= {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
        >>> MLAConfig.from_hf(fields).latent_head_dim
        576
        >>> MLAConfig.from_hf(fields | {"index_topk": 2048})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: mla_ref does not compute this attention: index_topk is 2048. Name in ignore=(...) ...
        >>> MLAConfig.from_hf(fields | {"index_topk": 2048}, ignore=["index_topk"]).qk_head_dim
        192
        """
        values, yarn = read(config, {ignore} if isinstance(ignore, str) else {*ignore})
        return cls(**values, rope_scaling=yarn and Yarn(**yarn))


def presets() -> tuple[str, ...]:
    """Return the names that :meth:`MLAConfig.preset` knows."""
    return tuple(_PRESETS)


_DEEPSEEK_HEAD = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}

# The models' values are those of the config.json published with their weights (of Kimi K2, the first Instruct
# release); the report is "Optimizing Multi-head Latent Attention for Efficient Inference", section 4.
_PRESETS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **_DEEPSEEK_HEAD,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "q_lora_rank": 1536,
        "max_position_embeddings": 163840,
        "rope_scaling": Yarn(factor=40.0, original_max_position_embeddings=4096, mscale_all_dim=1.0),
    },
    "kimi_k2": {
        **_DEEPSEEK_HEAD,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "q_lora_rank": 1536,
        "rope_theta": 50000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": Yarn(factor=32.0, original_max_position_embeddings=4096, beta_fast=1.0, mscale_all_dim=1.0),
    },
    "deepseek_v2_lite": {
        **_DEEPSEEK_HEAD,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "max_position_embeddings": 163840,
        "rope_scaling": Yarn(factor=40.0, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=0.707),
    },
    "report": {
        **_DEEPSEEK_HEAD,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "q_lora_rank": 512,
        "max_position_embeddings": 16384,
    },
    "tiny": {
        "hidden_size": 64,
        "num_attention_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "max_position_embeddings": 512,
    },
}
