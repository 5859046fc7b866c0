"""Language models of DeepSeek's architecture around :class:`mla_ref.MLA`: DeepSeek-V2, DeepSeek-V3 and Kimi K2.

Modules and parameters have the names of the published checkpoints. :func:`load` reads a folder of Hugging Face's form,
:func:`load_byte_model` the small one that comes along, and :func:`generate` goes on from prompts with any of this
package's caches and kernels. :mod:`mla_ref.drafting` generates several tokens a step; :mod:`mla_ref.attached` puts this
package's attention into a model of transformers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._from_hf import fields_of
from ._validate import check_numbers, check_positive, listed
from .cache import LatentCache
from .config import MLAConfig
from .implementations import Implementation
from .mla import MLA
from .norm import RMSNorm
from .paged import PagedCache

BYTE_MODEL = Path(__file__).parent / "byte_model"
ROUTERS = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid", "kimi_k2": "sigmoid"}  # by model_type


@dataclass(frozen=True)
class Experts:
    """The mixture of experts in a layer.

    Parameters
    ----------
    count, per_token, shared
        Experts, those that a token goes to, and the width of the expert that all go to, in experts.
    intermediate_size
        Of one expert.
    first_layer
        The first layer that has experts; those before it are dense.
    groups, groups_per_token
        Groups of experts, and those that a token's may come from.
    scoring
        ``"sigmoid"``, DeepSeek-V3's: a bias takes part in the choice, but not in the weight, and a group's score is
        the sum of its best two. ``"softmax"``, DeepSeek-V2's: a group's score is its best.
    normalize, scale
        Whether the weights of a token are divided by their sum, and what multiplies them then.
    """

    count: int
    per_token: int
    shared: int
    intermediate_size: int
    first_layer: int
    groups: int = 1
    groups_per_token: int = 1
    scoring: str = "sigmoid"
    normalize: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """A whole model: see :meth:`from_hf`.

    Parameters
    ----------
    attention
        Of each layer.
    vocab_size, num_hidden_layers, intermediate_size, rms_norm_eps, tie_word_embeddings
        As in Hugging Face's configurations.
    experts
        None for a dense model.
    stop
        Tokens that end a text.
    num_nextn_predict_layers
        Layers behind the last that predict further tokens. The first is :meth:`Model.predict_further`'s; the others
        are not computed here.
    """

    attention: MLAConfig
    vocab_size: int
    num_hidden_layers: int
    intermediate_size: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    experts: Experts | None = None
    stop: tuple[int, ...] = ()
    num_nextn_predict_layers: int = 0

    @classmethod
    def from_hf(cls, config: Any) -> ModelConfig:
        """Read a Hugging Face configuration: an object of transformers, or the dict of a ``config.json``.

        Raises
        ------
        TypeError, ValueError
            Another model's, a field that is missing, or one that asks for what is not computed here. The sentence names
            it; see :meth:`mla_ref.MLAConfig.from_hf` for the attention's.
        """
        attention, fields = MLAConfig.from_hf(config), fields_of(config)
        kind = fields.get("model_type")
        if kind not in ROUTERS:
            raise ValueError(f"model_type is {kind!r}, expected one of {listed(ROUTERS)}")
        scoring = ROUTERS[kind]
        count = fields.get("n_routed_experts")
        expected = {"hidden_act": "silu", "mlp_bias": False, "moe_layer_freq": 1, "quantization_config": None}
        if count:
            expected |= {"scoring_func": scoring, "num_experts": count, "num_local_experts": count}
            methods = ("noaux_tc",) if scoring == "sigmoid" else ("greedy", "group_limited_greedy")
            if fields.get("topk_method", methods[0]) not in methods:
                raise ValueError(f"topk_method is {fields['topk_method']!r}, expected {' or '.join(methods)}")
            if scoring == "softmax":  # no model has it, and its code and transformers' disagree on the factor then
                expected["norm_topk_prob"] = False
        for name, value in expected.items():
            if fields.get(name, value) != value:
                raise ValueError(f"{name} is {fields[name]!r}, expected {value!r}: it is not computed here")
        required = ["vocab_size", "num_hidden_layers", "intermediate_size"]
        if count:
            required += ["num_experts_per_tok", "moe_intermediate_size"]
        if missing := [name for name in required if fields.get(name) is None]:
            raise ValueError(f"config has no {listed(missing)}: is it a whole model's?")
        check_positive(**{name: fields[name] for name in required})
        experts = None
        if count:
            grouped = scoring == "sigmoid" or fields.get("topk_method") == "group_limited_greedy"
            experts = Experts(
                count=count,
                per_token=fields["num_experts_per_tok"],
                shared=fields.get("n_shared_experts") or 0,
                intermediate_size=fields["moe_intermediate_size"],
                first_layer=fields.get("first_k_dense_replace") or 0,
                groups=(fields.get("n_group") or 1) if grouped else 1,
                groups_per_token=(fields.get("topk_group") or 1) if grouped else 1,
                scoring=scoring,
                normalize=scoring == "sigmoid" and bool(fields.get("norm_topk_prob", True)),
                scale=float(fields.get("routed_scaling_factor") or 1.0),
            )
        stop = fields.get("eos_token_id")
        return cls(
            attention,
            **{name: fields[name] for name in ("vocab_size", "num_hidden_layers", "intermediate_size")},
            rms_norm_eps=fields.get("rms_norm_eps") or 1e-6,
            tie_word_embeddings=bool(fields.get("tie_word_embeddings")),
            experts=experts,
            stop=tuple(stop) if isinstance(stop, list | tuple) else () if stop is None else (stop,),
            num_nextn_predict_layers=fields.get("num_nextn_predict_layers") or fields.get("num_mtp_layers") or 0,
        )


class Model(nn.Module):
    """A language model: tokens in, logits out.

    Parameters
    ----------
    config
        See :meth:`ModelConfig.from_hf`.
    impl
        Of the attention, by default: a name of :data:`mla_ref.IMPLEMENTATIONS`, or a function.
    device, dtype
        Of the weights.
    """

    def __init__(
        self,
        config: ModelConfig,
        impl: str | Implementation = "absorb",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.config = config
        place = {"device": device, "dtype": dtype}
        width = config.attention.hidden_size
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, width, **place)
        self.model.layers = nn.ModuleList(_Layer(config, i, impl, place) for i in range(config.num_hidden_layers))
        if config.num_nextn_predict_layers:  # checkpoints number it like the layers before it
            self.model.layers.append(_Predictor(config, config.num_hidden_layers, impl, place))
        self.model.norm = RMSNorm(width, config.rms_norm_eps, **place)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False, **place)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def make_caches(self, batch: int, capacity: int, page_size: int | None = None) -> list[LatentCache | PagedCache]:
        """Return an empty cache for each layer: see :meth:`mla_ref.MLA.make_cache`."""
        return [layer.self_attn.make_cache(batch, capacity, page_size) for layer in self._decoder]

    @property
    def _decoder(self):
        return self.model.layers[: self.config.num_hidden_layers]

    @property
    def predictor(self) -> nn.Module:
        """The layer of :meth:`predict_further`.

        Raises
        ------
        ValueError
            The model has none.
        """
        if not self.config.num_nextn_predict_layers:
            raise ValueError("the model has no layer that predicts further tokens: its checkpoint holds none")
        return self.model.layers[-1]

    def forward(
        self,
        tokens: Tensor,
        caches: Sequence[LatentCache | PagedCache] | None = None,
        *,
        lengths: Tensor | None = None,
        last: bool = False,
        impl: str | Implementation | None = None,
    ) -> Tensor:
        """Return the logits behind each token, or behind the last one of each sequence.

        Parameters
        ----------
        tokens
            Integers ``[B, S]``.
        caches
            One a layer, which get the new tokens; None for attention within ``tokens`` alone.
        lengths
            int32 or int64 ``[B]``, how many of the S tokens are real, from the first on; all by default.
        last
            Whether the logits of each sequence's last real token are all that is asked for.
        impl
            Overrides the model's own for this call.

        Returns
        -------
        Tensor
            ``[B, S, vocab_size]``, or ``[B, vocab_size]``. What stands behind tokens that are not real means nothing.
        """
        x = self.hidden(tokens, caches, lengths=lengths, impl=impl)
        return self.lm_head(last_real(x, lengths) if last else x)

    def hidden(
        self,
        tokens: Tensor,
        caches: Sequence[LatentCache | PagedCache] | None = None,
        *,
        lengths: Tensor | None = None,
        impl: str | Implementation | None = None,
    ) -> Tensor:
        """Return what the last norm gives of each token, ``[B, S, D]``: :meth:`forward` without the head."""
        layers = self._decoder
        if caches is not None and len(caches) != len(layers):
            raise ValueError(f"caches has {len(caches)} caches, expected one for each of the {len(layers)} layers")
        x = self.model.embed_tokens(tokens)
        for layer, cache in zip(layers, caches or [None] * len(layers), strict=True):
            x = layer(x, cache, lengths, impl)
        return self.model.norm(x)

    def predict_further(
        self,
        hidden: Tensor,
        tokens: Tensor,
        cache: LatentCache | PagedCache | None = None,
        *,
        lengths: Tensor | None = None,
        impl: str | Implementation | None = None,
    ) -> Tensor:
        """Multi-token prediction: go one token further than ``hidden`` does.

        ``hidden`` at a position predicts the token behind it. With that token given, this predicts the one behind that;
        applied to its own result, a further one.

        Parameters
        ----------
        hidden
            ``[B, S, D]``, of :meth:`hidden` or of this method.
        tokens
            Integers ``[B, S]``, the token behind each position.
        cache, lengths, impl
            As of :meth:`forward`; the cache is of ``predictor.self_attn``, one for all calls.

        Returns
        -------
        Tensor
            ``[B, S, D]``; ``lm_head`` makes logits of it.

        Raises
        ------
        ValueError
            The model has no such layer.

        References
        ----------
        DeepSeek-V3, arXiv:2412.19437, section 2.2.
        """
        return self.predictor(hidden, self.model.embed_tokens(tokens), cache, lengths, impl)


def last_real(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return ``[B, D]``, the last of each sequence's first ``lengths`` rows in ``x``, ``[B, S, D]``; all by default."""
    if lengths is None:
        return x[:, -1]
    return x[torch.arange(len(x), device=x.device), (lengths.long() - 1).clamp(min=0)]


class _Layer(nn.Module):
    def __init__(self, config, index, impl, place):
        super().__init__()
        width, experts = config.attention.hidden_size, config.experts
        self.self_attn = MLA(config.attention, impl, **place)
        dense = experts is None or index < experts.first_layer
        self.mlp = _MLP(width, config.intermediate_size, place) if dense else _MoE(width, experts, place)
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps, **place)
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps, **place)

    def forward(self, x, cache, lengths, impl):
        x = x + self.self_attn(self.input_layernorm(x), cache, lengths=lengths, impl=impl)
        return x + self.mlp(self.post_attention_layernorm(x))


class _Predictor(_Layer):
    def __init__(self, config, index, impl, place):
        super().__init__(config, index, impl, place)
        width, eps = config.attention.hidden_size, config.rms_norm_eps
        self.enorm, self.hnorm = RMSNorm(width, eps, **place), RMSNorm(width, eps, **place)
        self.eh_proj = nn.Linear(2 * width, width, bias=False, **place)
        self.shared_head = nn.Module()  # its head, and the layer's embedding, are the model's
        self.shared_head.norm = RMSNorm(width, eps, **place)

    def forward(self, hidden, embedded, cache, lengths, impl):
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), -1))
        return self.shared_head.norm(super().forward(x, cache, lengths, impl))


class _MLP(nn.Module):
    def __init__(self, width, inner, place):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False, **place)
        self.up_proj = nn.Linear(width, inner, bias=False, **place)
        self.down_proj = nn.Linear(inner, width, bias=False, **place)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Router(nn.Module):
    def __init__(self, width, experts, place):
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, width, **place))
        nn.init.normal_(self.weight, std=width**-0.5)
        if experts.scoring == "sigmoid":
            bias = torch.zeros(experts.count, device=place["device"], dtype=torch.float32)
            self.register_buffer("e_score_correction_bias", bias)

    def forward(self, x):
        """Return the weights and the experts of each token, ``[N, per_token]``."""
        experts = self.experts
        logits = F.linear(x.float(), self.weight.float())
        scores = logits.sigmoid() if experts.scoring == "sigmoid" else logits.softmax(-1)
        ranked = scores + self.e_score_correction_bias if experts.scoring == "sigmoid" else scores
        if experts.groups > 1:
            groups = ranked.unflatten(-1, (experts.groups, -1))
            best = groups.topk(2, -1).values.sum(-1) if experts.scoring == "sigmoid" else groups.amax(-1)
            chosen = torch.zeros_like(best, dtype=torch.bool)
            chosen.scatter_(1, best.topk(experts.groups_per_token, -1).indices, True)
            ranked = groups.masked_fill(~chosen[..., None], -torch.inf).flatten(-2)
        indices = ranked.topk(experts.per_token, -1).indices
        weights = scores.gather(1, indices)
        if experts.normalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * experts.scale, indices


class _MoE(nn.Module):
    def __init__(self, width, experts, place):
        super().__init__()
        self.gate = _Router(width, experts, place)
        self.experts = nn.ModuleList(_MLP(width, experts.intermediate_size, place) for _ in range(experts.count))
        if experts.shared:
            self.shared_experts = _MLP(width, experts.intermediate_size * experts.shared, place)

    def forward(self, x):
        flat = x.flatten(0, 1)
        weights, indices = self.gate(flat)
        out = torch.zeros_like(flat)
        for expert in indices.unique().tolist():
            token, place = (indices == expert).nonzero(as_tuple=True)
            found = self.experts[expert](flat[token]) * weights[token, place, None]
            out.index_add_(0, token, found.to(out.dtype))
        out = out.unflatten(0, x.shape[:2])
        return out + self.shared_experts(x) if hasattr(self, "shared_experts") else out


@torch.no_grad()
def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    prefix: Sequence[int] = (),
    page_size: int | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    stop: Collection[int] | None = None,
    impl: str | Implementation | None = None,
) -> list[list[int]]:
    """Go on from prompts, all together.

    Parameters
    ----------
    model
        The model.
    prompts
        Tokens of each text, of any lengths; none is empty, unless there is a prefix.
    max_new_tokens
        Most tokens that each gets.
    prefix
        Tokens before every prompt. They are computed once; in pages they are stored once too, and ``impl="prefix"``
        attends to them once for all texts.
    page_size
        Of a paged cache; a contiguous one by default.
    temperature
        0 takes the likeliest token; else the logits are divided by it, and a token is drawn.
    top_p
        Draw from the likeliest tokens that have this share of the probability together.
    generator
        To draw with, on the model's device.
    stop
        Tokens that end a text, which keeps them; by default the model's.
    impl
        Of the attention: see :meth:`Model.forward`.

    Returns
    -------
    list of list of int
        The new tokens of each text.

    Raises
    ------
    TypeError, ValueError
        A prompt that is empty or too long for the model, a token that it does not have, or an impossible option.
        Nothing has been computed then.
    """
    check_numbers(temperature=temperature, top_p=top_p)
    if temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(f"temperature is {temperature} and top_p {top_p}, expected 0 or more, and more than 0 up to 1")
    tokens, lengths, caches = start(model, prompts, max_new_tokens, prefix=prefix, page_size=page_size, impl=impl)
    stop = set(model.config.stop if stop is None else stop)
    found: list[list[int]] = [[] for _ in range(len(tokens))]
    going = [True] * len(found)
    for _ in range(max_new_tokens):
        logits = model(tokens, caches, lengths=ragged(lengths, tokens), last=True, impl=impl)
        tokens = _choose(logits, temperature, top_p, generator)
        for b, token in enumerate(tokens.tolist()):
            if going[b]:
                found[b].append(token)
                going[b] = token not in stop
        if not any(going):
            break
        tokens, lengths = tokens[:, None], torch.tensor(going, device=tokens.device).long()
    return found


def start(
    model: Model,
    prompts: Iterable[Sequence[int]],
    max_new_tokens: int,
    *,
    prefix: Sequence[int] = (),
    page_size: int | None = None,
    impl: str | Implementation | None = None,
    room: int = 0,
) -> tuple[Tensor, Tensor, list[LatentCache | PagedCache]]:
    """Check what :func:`generate` is given, and return its first tokens ``[B, S]``, their lengths, and the caches.

    The caches hold the prefix, and have room for ``max_new_tokens`` and ``room`` more.
    """
    check_positive(max_new_tokens=max_new_tokens)
    device = model.lm_head.weight.device
    prompts, prefix = [list(prompt) for prompt in prompts], list(prefix)
    if not prompts:
        raise ValueError("prompts is empty, expected the tokens of at least one text")
    _check_prompts(model.config, prompts, prefix, max_new_tokens)
    if prefix and not all(prompts):  # each text starts with a token of its own, behind which it goes on
        prompts, prefix = [[prefix[-1], *prompt] for prompt in prompts], prefix[:-1]
    longest = max(map(len, prompts))
    caches = model.make_caches(len(prompts), len(prefix) + longest + max_new_tokens + room, page_size)
    if prefix:
        _fill(model, caches, torch.tensor([prefix], device=device), len(prompts), impl)
    tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
    return tokens, torch.tensor(list(map(len, prompts)), device=device), caches


def ragged(lengths: Tensor, tokens: Tensor) -> Tensor | None:
    """Return ``lengths``, or None where all tokens ``[B, S]`` are real: attention is simpler then."""
    return None if bool((lengths == tokens.shape[1]).all()) else lengths


def _check_prompts(config, prompts, prefix, new):
    most, vocabulary = config.attention.max_position_embeddings, config.vocab_size
    for name, prompt in [("prefix", prefix), *((f"prompts[{b}]", prompt) for b, prompt in enumerate(prompts))]:
        for token in prompt:
            if not isinstance(token, int) or not 0 <= token < vocabulary:
                raise ValueError(f"{name} has {token!r}, expected tokens from 0 to {vocabulary - 1}")
        if name != "prefix" and not prompt and not prefix:
            raise ValueError(f"{name} is empty, expected at least one token: a model goes on from something")
        length = len(prompt) + (len(prefix) if name != "prefix" else 0) + new
        if length > most:
            raise ValueError(
                f"{name} would get {length} tokens long with {new} new ones, expected at most {most}: shorten it"
            )


def _fill(model, caches, prefix, batch, impl):
    """Compute a prefix once, and give it to every sequence of the caches."""
    own = model.make_caches(1, prefix.shape[1])
    model(prefix, own, last=True, impl=impl)
    first = torch.zeros(batch, dtype=torch.int64, device=prefix.device)
    first[0] = prefix.shape[1]
    for cache, source in zip(caches, own, strict=True):
        c_kv, k_rope = (x.expand(batch, -1, -1) for x in source.filled())
        if isinstance(cache, PagedCache):
            cache.append(c_kv, k_rope, lengths=first)
            for b in range(1, batch):
                cache.fork(0, b)
        else:
            cache.append(c_kv, k_rope)


def _choose(logits, temperature, top_p, generator):
    """Return a token of each row of logits ``[B, V]``."""
    if temperature == 0:
        return logits.argmax(-1)
    shares, order = (logits.float() / temperature).softmax(-1).sort(-1, descending=True)
    shares = shares.masked_fill(shares.cumsum(-1) - shares >= top_p, 0)  # the first stays, whatever its share
    drawn = torch.multinomial(shares, 1, generator=generator)
    return order.gather(1, drawn)[:, 0]


def load(
    folder: str | Path,
    *,
    impl: str | Implementation = "absorb",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """Load a model from a folder with a ``config.json`` and safetensors, as Hugging Face's hub has it.

    Names and shapes are compared with the configuration before anything is allocated. Of the layers that predict
    further tokens the first is kept, if the files hold it: see :meth:`Model.predict_further`. Its embedding and head
    are the model's.

    Parameters
    ----------
    folder
        The folder.
    impl, device
        As of :class:`Model`.
    dtype
        Of the weights; by default that of the files.

    Raises
    ------
    FileNotFoundError
        No ``config.json``, or no safetensors.
    TypeError, ValueError
        Another model's configuration, or a tensor that is missing, of another shape, not the model's, or quantised.
    ImportError
        The package safetensors is not installed.
    """
    from safetensors import safe_open

    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json, expected a model's folder")
    config = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors, expected the weights beside config.json")
    shapes, dtypes, where = {}, {}, {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no dict
                part = file.get_slice(name)
                shapes[name], dtypes[name], where[name] = list(part.get_shape()), part.get_dtype(), path
    further = f"model.layers.{config.num_hidden_layers}."
    kept = dataclasses.replace(config, num_nextn_predict_layers=0)
    if config.num_nextn_predict_layers and any(name.startswith(further) for name in shapes):
        kept = dataclasses.replace(config, num_nextn_predict_layers=1)
    empty = Model(kept, impl, device="meta").state_dict()
    if config.tie_word_embeddings:
        del empty["lm_head.weight"]
    _check_names(empty, shapes, config)
    biases = "e_score_correction_bias"  # always float32
    dtypes = {dtypes[name] for name in empty if not name.endswith(biases)}
    kinds = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    if strange := dtypes - set(kinds):
        raise ValueError(f"{folder} holds weights of {listed(sorted(strange))}, expected {listed(kinds)}: convert them")
    narrow = [kinds[each] for each in ("BF16", "F16", "F32", "F64") if each in dtypes]
    model = Model(kept, impl, device=device, dtype=dtype or narrow[0])
    state = model.state_dict()
    for path in files:
        with safe_open(path, framework="pt") as file:
            for name in (each for each in empty if where[each] == path):
                state[name].copy_(file.get_tensor(name))
    return model.eval()


def _check_names(expected, shapes, config):
    missing = [name for name in expected if name not in shapes]
    if missing:
        raise ValueError(f"the files have no {_some(missing)}, expected all weights that config.json speaks of")
    for name, tensor in expected.items():
        if shapes[name] != list(tensor.shape):
            raise ValueError(f"{name} has shape {shapes[name]}, expected {list(tensor.shape)} by config.json")
    further = [f"model.layers.{config.num_hidden_layers + i}." for i in range(config.num_nextn_predict_layers)]
    repeated = [f"{first}{name}.weight" for first in further[:1] for name in ("embed_tokens", "shared_head.head")]
    ignored = (*further[1:], *repeated, *(("lm_head.weight",) if config.tie_word_embeddings else ()))
    strange = [n for n in shapes if n not in expected and not n.startswith(ignored) and "rotary_emb" not in n]
    if strange:
        raise ValueError(f"the files hold {_some(strange)}, which no model of this config.json has")


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return listed(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def load_byte_model(
    *,
    impl: str | Implementation = "absorb",
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Load the model that comes with the package: DeepSeek-V3's architecture, 3 million parameters, bytes for tokens.

    It was trained on the documentation and the sources of Python's standard library, by
    ``benchmarks/train_byte_model.py``; :func:`encode` and :func:`decode` go between text and its tokens.

    Parameters
    ----------
    impl, device, dtype
        As of :func:`load`. The files hold bfloat16.

    Examples
    --------
    >>> model = load_byte_model()
    >>> decode(generate(model, [encode("for i in range(")], 4)[0])
    '10):'
    """
    return load(BYTE_MODEL, impl=impl, device=device, dtype=dtype)


def encode(text: str) -> list[int]:
    """Return a text's bytes, behind the one that begins a text."""
    return [0, *text.encode()]


def decode(tokens: Iterable[int]) -> str:
    """Return the text of so many bytes; what is no UTF-8, as a character cut in two, becomes U+FFFD."""
    return bytes(token for token in tokens if token).decode(errors="replace")
