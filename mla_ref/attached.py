"""This package's attention in models of transformers."""

from __future__ import annotations

import torch
from torch import nn

from ._validate import listed
from .config import MLAConfig
from .implementations import IMPLEMENTATIONS, Implementation
from .mla import MLA


def attach(model: nn.Module, impl: str | Implementation = "absorb") -> nn.Module:
    """Put this package's attention into a DeepSeek-V2 or V3 model of transformers, in place, and return the model.

    Weights and cache stay transformers': its cache keeps the latent and the rotated key of a token, as ours does.

    Parameters
    ----------
    model
        A ``DeepseekV2ForCausalLM`` or ``DeepseekV3ForCausalLM``, or their base models.
    impl
        A name of :data:`mla_ref.IMPLEMENTATIONS`, or a function of that signature.

    Raises
    ------
    TypeError, ValueError
        A model of another architecture, or an implementation that there is not. While it runs: a batch with padding.
    """
    config = MLAConfig.from_hf(model.config)
    if isinstance(impl, str) and impl not in IMPLEMENTATIONS:
        raise ValueError(f"no implementation {impl!r}, expected a function or one of {listed(IMPLEMENTATIONS)}")
    layers = getattr(getattr(model, "model", model), "layers", None)
    if layers is None or not all(hasattr(getattr(layer, "self_attn", None), "kv_a_proj_with_mqa") for layer in layers):
        raise TypeError(f"model is a {type(model).__name__}, expected a DeepSeek model of transformers")
    for layer in layers:
        layer.self_attn = _Attached(layer.self_attn, config, impl)
    return model


class _Attached(nn.Module):
    """Takes what transformers gives its attention, and returns what that returns."""

    def __init__(self, attention, config, impl):
        super().__init__()
        self.layer_idx = attention.layer_idx
        self.mla = MLA(config, impl, device="meta")
        for name, module in attention.named_children():
            if module is not None:
                setattr(self.mla, name, module)

    def forward(self, hidden_states, attention_mask=None, past_key_values=None, **_):
        mla, new = self.mla, hidden_states.shape[1]
        seen = 0 if past_key_values is None else past_key_values.get_seq_length(self.layer_idx)
        if attention_mask is not None:
            last = attention_mask[..., -1, : seen + new]
            if not (last if last.dtype == torch.bool else last == 0).all():
                raise ValueError("attention_mask hides tokens of a sequence, expected a batch without padding")
        positions = torch.arange(seen, seen + new, device=hidden_states.device)
        q_nope, q_rope, c_kv, k_rope = mla.project(hidden_states, positions)
        if past_key_values is not None:
            c_kv, k_rope = (x[:, 0] for x in past_key_values.update(c_kv[:, None], k_rope[:, None], self.layer_idx))
        attend = IMPLEMENTATIONS[mla.impl] if isinstance(mla.impl, str) else mla.impl
        out, _ = attend(q_nope, q_rope, c_kv, k_rope, mla.w_uk, mla.w_uv, scale=mla.config.softmax_scale)
        return mla.o_proj(out.flatten(2)), None
