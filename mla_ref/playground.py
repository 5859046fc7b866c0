"""The course's trained model with functions of a student in it: where the lessons' "your code in the model" cells go.

The model goes on from a prompt twice, with its own code and with what it is given, and both texts are printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import models
from .attention import absorb
from .mla import MLA
from .norm import RMSNorm
from .rope import rope_cos_sin

PAGE = 16  # tokens, for functions that read pages


def write(
    prompt: str,
    *,
    new: int = 48,
    device: torch.device | str = "cpu",
    model: models.Model | None = None,
    **functions: Callable[..., Any],
) -> None:
    """Print what the model writes behind a prompt, by itself and with functions in place of its own.

    What such a function raises is printed in one sentence, and so is that it is not written yet.

    Parameters
    ----------
    prompt
        A text, of which the model gets the bytes.
    new
        Bytes that it writes, at most.
    device
        Where it runs. Kernels are emulated on a CPU.
    model
        By default that of :func:`mla_ref.models.load_byte_model`.
    functions
        By the name of what they replace, with the signatures of the lessons: ``layer`` (02, ``mla_decode_step``),
        ``attention`` (03, ``absorbed_mla_attention``), ``norm`` and ``rope`` (04, ``rms_norm`` and
        ``rope_query_key``), ``decode`` (06, ``latent_decode``), ``paged_decode`` (07), ``pages`` (13,
        ``attend_pages``).

    Raises
    ------
    TypeError
        A function for something else.
    """
    if unknown := set(functions) - set(_PLACES):
        raise TypeError(f"no place for {', '.join(sorted(unknown))}, expected {', '.join(_PLACES)}")
    model = (models.load_byte_model() if model is None else model).to(device)
    print(f"{'prompt:':15}{prompt!r}")
    expected = _text(model, prompt, new, one_by_one=False)
    print(f"{'its own code:':15}{expected!r}")
    try:
        with torch.no_grad(), _replaced(model, functions):
            found = _text(model, prompt, new, one_by_one="layer" in functions)
    except NotImplementedError:
        print("your code:     not written yet; come back when its check is green")
    except Exception as error:  # whatever a student's function may raise: the check of the exercise says more
        first = (str(error).splitlines() or ["no more is said"])[0]
        print(f"your code:     {type(error).__name__}, {first}. The check of the exercise says more")
    else:
        print(f"{'your code:':15}{found!r}")
        print("the same text" if found == expected else _parting(found, expected))


def draft(prompt: str, *, new: int = 48, most: int = 3, model: models.Model | None = None) -> None:
    """Print how many tokens a step gives when the model's own layer drafts 1 to ``most`` of them.

    Parameters are those of :func:`write`.
    """
    from .drafting import generate_drafted

    model = models.load_byte_model() if model is None else model
    tokens, plain = models.encode(prompt), _text(model, prompt, new, one_by_one=False)
    for k in range(1, most + 1):
        found = generate_drafted(model, [tokens], new, draft=k)
        shares = ", ".join(f"{taken / max(found.rounds, 1):.0%}" for taken in found.accepted)
        same = "the same text" if models.decode(found.tokens[0]) == plain else "another text"
        count = len(found.tokens[0])
        print(f"k = {k}: drafts taken {shares}; {count / found.steps:.2f} tokens per step; {same}")


def _text(model: models.Model, prompt: str, new: int, one_by_one: bool) -> str:
    tokens, found = models.encode(prompt), []
    if not one_by_one:
        return models.decode(models.generate(model, [tokens], new)[0])
    device = model.lm_head.weight.device
    for token in tokens:
        logits = model(torch.tensor([[token]], device=device))
    while len(found) < new and (not found or found[-1] not in model.config.stop):
        found.append(int(logits[0, -1].argmax()))
        logits = model(torch.tensor([found[-1:]], device=device))
    return models.decode(found)


def _parting(found: str, expected: str) -> str:
    same = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    return f"another text from character {min(len(found), len(expected)) if same is None else same} on"


@contextmanager
def _replaced(model: models.Model, functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Put functions into a model's modules, and take them out again."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for name, function in functions.items():
            for module, attribute, value in _PLACES[name](model, function):
                own = vars(module)
                before.append((own, attribute, own.get(attribute)))
                own[attribute] = value
        yield
    finally:
        for own, attribute, value in reversed(before):
            if value is None:  # the class has it
                del own[attribute]
            else:
                own[attribute] = value


Places = Iterator[tuple[torch.nn.Module, str, Callable[..., Any]]]


def _attentions(model: models.Model) -> list[MLA]:
    return [layer.self_attn for layer in model.model.layers[: model.config.num_hidden_layers]]


def _at_layer(model: models.Model, function: Callable[..., Any]) -> Places:
    """`mla_decode_step` of lesson 02: a token at a time, with caches of its own."""
    for mla in _attentions(model):
        config, place = mla.config, mla.kv_b_proj.weight
        weights = {
            "w_dq": mla.q_a_proj.weight,
            "q_norm": mla.q_a_layernorm.weight,
            "w_uq": mla.q_b_proj.weight.unflatten(0, (config.num_attention_heads, -1)),
            "w_dkv": mla.kv_a_proj_with_mqa.weight,
            "kv_norm": mla.kv_a_layernorm.weight,
            "w_uk": mla.w_uk,
            "w_uv": mla.w_uv,
            "w_o": mla.o_proj.weight,
        }
        capacity = config.max_position_embeddings
        angles = rope_cos_sin(torch.arange(capacity, device=place.device), config.qk_rope_head_dim)
        caches = [place.new_zeros(1, capacity, width) for width in (config.kv_lora_rank, config.qk_rope_head_dim)]
        state = {"position": 0, "caches": caches}

        def forward(x, *_, weights=weights, state=state, angles=angles, **__):
            u, *state["caches"] = function(x, weights, *state["caches"], state["position"], *angles)
            state["position"] += 1
            return u

        yield mla, "forward", forward


def _at_attention(model: models.Model, function: Callable[..., Any]) -> Places:
    """`absorbed_mla_attention` of lesson 03: contiguous, one text."""

    def impl(*operands: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        return function(*operands)

    return ((mla, "impl", impl) for mla in _attentions(model))


def _at_norm(model: models.Model, function: Callable[..., Any]) -> Places:
    """`rms_norm` of lesson 04: rows in one launch."""
    for module in model.modules():
        if isinstance(module, RMSNorm):

            def forward(x, norm=module):
                return function(x.flatten(0, -2).contiguous(), norm.weight, norm.eps).unflatten(0, x.shape[:-1])

            yield module, "forward", forward


def _at_rope(model: models.Model, function: Callable[..., Any]) -> Places:
    """`rope_query_key` of lesson 04. The layer's own projection runs on positions 0, where nothing turns."""
    for mla in _attentions(model):
        own = mla.project

        def project(x, positions, mla=mla, own=own):
            q_nope, q_rope, c_kv, k_rope = own(x, torch.zeros_like(positions))
            angles = rope_cos_sin(positions.view(-1)[-x.shape[1] :], mla.config.qk_rope_head_dim)
            q_rope, k_rope = function(q_rope.contiguous(), k_rope.contiguous(), *angles)
            return q_nope, q_rope, c_kv, k_rope

        yield mla, "project", project


def _at_decode(model: models.Model, function: Callable[..., Any]) -> Places:
    """`latent_decode` of lesson 06, for one token; a prompt goes the model's own way."""

    def attend(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
        return function(q_latent, q_rope, c_kv, k_rope, seq_lens, scale)

    return _one_token(model, attend)


def _at_paged_decode(model: models.Model, function: Callable[..., Any]) -> Places:
    """`paged_decode` of lesson 07: what the cache holds is dealt to pages, the last first."""

    def attend(q_latent, q_rope, c_kv, k_rope, seq_lens, scale):
        count = -(-c_kv.shape[1] // PAGE)
        missing = (0, 0, 0, count * PAGE - c_kv.shape[1])
        pages = [torch.nn.functional.pad(x[0], missing).view(count, PAGE, -1).flip(0) for x in (c_kv, k_rope)]
        table = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=c_kv.device)[None]
        return function(q_latent, q_rope, *(x.contiguous() for x in pages), table, seq_lens, scale)

    return _one_token(model, attend)


def _one_token(model: models.Model, attend: Callable[..., Any]) -> Places:
    def impl(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, scale=None, seq_lens=None, **options):
        if q_nope.shape[1] > 1:
            return absorb(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, scale=scale, seq_lens=seq_lens, **options)
        q_latent = torch.einsum("bhd,hdr->bhr", q_nope[:, 0], w_uk)
        half = (x.half().contiguous() for x in (q_latent, q_rope[:, 0], c_kv, k_rope))
        out, lse = attend(*half, seq_lens.int(), scale)
        return torch.einsum("bhr,hvr->bhv", out.to(w_uv.dtype), w_uv)[:, None], lse[:, None]

    return ((mla, "impl", impl) for mla in _attentions(model))


def _at_pages(model: models.Model, function: Callable[..., Any]) -> Places:
    """`attend_pages` of lesson 13: it writes what it attends to."""
    for mla in _attentions(model):
        config, weight = mla.config, mla.kv_b_proj.weight
        count = -(-config.max_position_embeddings // PAGE)
        pages = weight.new_zeros(count, PAGE, config.kv_lora_rank + config.qk_rope_head_dim)
        table = torch.arange(count - 1, -1, -1, dtype=torch.int32, device=weight.device)[None]
        state = {"held": torch.zeros(1, dtype=torch.int64, device=weight.device)}

        def forward(x, *_, mla=mla, pages=pages, table=table, state=state, **__):
            new = torch.full_like(state["held"], x.shape[1])
            positions = state["held"][:, None] + torch.arange(x.shape[1], device=x.device)
            used = table[:, : -(-int(state["held"] + new) // PAGE)]
            projected = mla.project(x, positions)
            out, _ = function(*projected, mla.w_uk, mla.w_uv, pages, used, state["held"], new)
            state["held"] = state["held"] + new
            return mla.o_proj(out.flatten(2))

        yield mla, "forward", forward


_PLACES: dict[str, Callable[[models.Model, Callable[..., Any]], Places]] = {
    "layer": _at_layer,
    "attention": _at_attention,
    "norm": _at_norm,
    "rope": _at_rope,
    "decode": _at_decode,
    "paged_decode": _at_paged_decode,
    "pages": _at_pages,
}
