"""The cost model of MLA: what a piece of work must move and compute.

Bytes are compulsory traffic with DRAM, every word once. FLOPs are two per multiply-accumulate.
"""

from dataclasses import dataclass

from ._validate import check_positive
from .config import MLAConfig
from .hardware.cost import Cost
from .hardware.devices import Device


def kv_cache_elements(kind: str, config: MLAConfig, num_kv_heads: int | None = None) -> int:
    """Return words cached per token and layer.

    Parameters
    ----------
    kind
        ``"mha"``, ``"gqa"`` and ``"mqa"``: H, ``num_kv_heads`` and 1 heads of Dn+Dv. ``"naive"``: expanded
        MLA, H(Dn+Dr+Dv). ``"absorb"``: latent MLA, R+Dr.
    config
        Shapes.
    num_kv_heads
        For ``"gqa"``, and only there.

    Raises
    ------
    ValueError
        Unknown ``kind``, or ``num_kv_heads`` missing or out of place.

    References
    ----------
    DeepSeek-V2, arXiv:2405.04434, table 1.
    """
    if (kind == "gqa") != (num_kv_heads is not None):
        raise ValueError(f"num_kv_heads is {num_kv_heads} for kind {kind!r}, expected an int for 'gqa', else None")
    head = config.qk_nope_head_dim + config.v_head_dim
    if kind == "gqa":
        check_positive(num_kv_heads=num_kv_heads)
        return num_kv_heads * head
    heads = config.num_attention_heads
    elements = {
        "mha": heads * head,
        "mqa": head,
        "naive": _naive_words(config),
        "absorb": config.latent_head_dim,
    }
    if kind not in elements:
        raise ValueError(f"kind is {kind!r}, expected one of gqa, {', '.join(elements)}")
    return elements[kind]


def cache_bytes_per_token(
    kind: str, config: MLAConfig, *, num_kv_heads: int | None = None, layers: int = 1, dtype_bytes: float = 2
) -> float:
    """Return bytes cached per token; the other parameters are those of :func:`kv_cache_elements`."""
    return kv_cache_elements(kind, config, num_kv_heads) * layers * dtype_bytes


def tokens_that_fit(
    kind: str,
    config: MLAConfig,
    memory_bytes: float,
    *,
    num_kv_heads: int | None = None,
    layers: int = 1,
    dtype_bytes: float = 2,
) -> int:
    """Return how many tokens a cache of ``memory_bytes`` holds."""
    per_token = cache_bytes_per_token(kind, config, num_kv_heads=num_kv_heads, layers=layers, dtype_bytes=dtype_bytes)
    return int(memory_bytes // per_token)


def attention_cost(
    kind: str,
    config: MLAConfig,
    *,
    batch: int,
    context: int,
    q_len: int = 1,
    shared_prefix: int = 0,
    dtype_bytes: float = 2,
) -> Cost:
    """Return the cost of scores and weighted sum, without projections, queries and outputs.

    Parameters
    ----------
    kind
        ``"naive"``, ``"absorb"``, or ``"mixed"``: naive on the shared prefix and absorb on the rest.
    config
        Shapes.
    batch, q_len
        B and S. Every query reads the whole context: causality among the S is not discounted.
    context
        T, tokens per sequence, the shared prefix included.
    shared_prefix
        How many of them all sequences share: read once instead of once per sequence.
    dtype_bytes
        Per cached word.

    Raises
    ------
    ValueError
        Unknown ``kind``, a number below 0, or a prefix longer than the context.

    References
    ----------
    TyphoonMLA, table 1, whose L_s is ``shared_prefix`` and L_n is ``context - shared_prefix``.
    """
    _check_counts(batch=batch, q_len=q_len)
    forms = {"naive": ("naive", "naive"), "absorb": ("absorb", "absorb"), "mixed": ("naive", "absorb")}
    if kind not in forms:
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(forms)}")
    if not 0 <= shared_prefix <= context:
        raise ValueError(f"shared_prefix is {shared_prefix}, expected 0 to context = {context}, which includes it")
    words = {"naive": _naive_words(config), "absorb": config.latent_head_dim}
    macs = {"naive": _naive_words(config), "absorb": _absorb_macs(config)}
    shared, own = forms[kind]
    rest = context - shared_prefix
    return Cost(
        bytes=dtype_bytes * (shared_prefix * words[shared] + batch * rest * words[own]),
        flops=2 * batch * q_len * (shared_prefix * macs[shared] + rest * macs[own]),
    )


def operand_cost(
    kind: str, config: MLAConfig, *, batch: int, q_len: int = 1, dtype_bytes: float = 2, lse: bool = True
) -> Cost:
    """Return the traffic of queries, outputs and float32 LSE, which :func:`attention_cost` leaves out.

    ``"naive"`` reads Dn+Dr and writes Dv per query and head; ``"absorb"``, the latent core, R+Dr and R.

    Raises
    ------
    ValueError
        Unknown ``kind``, or a number below 0.
    """
    _check_counts(batch=batch, q_len=q_len)
    per_head = {
        "naive": config.qk_head_dim + config.v_head_dim,
        "absorb": config.latent_head_dim + config.kv_lora_rank,
    }
    if kind not in per_head:
        raise ValueError(f"kind is {kind!r}, expected one of {', '.join(per_head)}")
    rows = batch * q_len * config.num_attention_heads
    return Cost(bytes=rows * (per_head[kind] * dtype_bytes + 4 * lse))


def absorb_projection_cost(
    config: MLAConfig, *, batch: int, q_len: int = 1, dtype_bytes: float = 2, weight_bytes: float = 2
) -> Cost:
    """Return the cost of multiplying W_UK into the query and W_UV into the output, as two batched products.

    Both weights are read once, 16 MiB each for DeepSeek-V3 in 16 bits; queries and outputs come on top of
    that.

    Raises
    ------
    ValueError
        A number below 0.
    """
    _check_counts(batch=batch, q_len=q_len)
    nope, value, rank = config.qk_nope_head_dim, config.v_head_dim, config.kv_lora_rank
    rows = batch * q_len * config.num_attention_heads
    weights = config.num_attention_heads * rank * (nope + value)
    return Cost(
        bytes=weights * weight_bytes + rows * (nope + rank + rank + value) * dtype_bytes,
        flops=2 * rows * rank * (nope + value),
    )


def expansion_cost(config: MLAConfig, *, tokens: int, dtype_bytes: float = 2) -> Cost:
    """Return the cost of rebuilding every head's keys and values of cached tokens, to and from DRAM.

    Raises
    ------
    ValueError
        A number below 0.
    """
    _check_counts(tokens=tokens)
    up = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
    words = tokens * (config.latent_head_dim + _naive_words(config)) + up * config.kv_lora_rank
    return Cost(bytes=words * dtype_bytes, flops=2 * tokens * up * config.kv_lora_rank)


def combine_cost(config: MLAConfig, *, batch: int, q_len: int = 1, parts: int = 2, dtype_bytes: float = 2) -> Cost:
    """Return the cost of merging partial outputs by LSE: TyphoonMLA's count, and the output written.

    Each part is read and multiplied by its share: B·S·H·Dv words and multiply-accumulates per part. Table 1's
    text leaves the written output and the LSEs out; the output is counted here.

    Raises
    ------
    ValueError
        A number below 0.
    """
    _check_counts(batch=batch, q_len=q_len, parts=parts)
    words = batch * q_len * config.num_attention_heads * config.v_head_dim
    return Cost(bytes=(parts + 1) * words * dtype_bytes, flops=2 * parts * words)


@dataclass(frozen=True)
class Footprint:
    """Bytes of a deployment: weights, latents of all sequences, and keys and values of the shared prefix."""

    weights: float
    latent: float
    expanded: float

    @property
    def overhead(self) -> float:
        """What the expanded prefix adds to the rest, as a share of it."""
        return self.expanded / (self.weights + self.latent)


def prefix_footprint(
    config: MLAConfig,
    *,
    batch: int,
    context: int,
    shared_prefix: int,
    layers: int,
    weight_bytes: float,
    replicas: int = 1,
    dtype_bytes: float = 1,
) -> Footprint:
    """Return what a deployment holds that keeps a shared prefix expanded beside its latents.

    Parameters
    ----------
    config, layers
        Shapes, and how many layers have attention.
    batch
        Sequences of the whole deployment.
    context
        Tokens of each, the prefix included.
    shared_prefix
        How many of them all sequences share.
    weight_bytes
        Of the model, over all devices.
    replicas
        Groups of devices that each serve a share of the batch, and hold the prefix for themselves: data parallelism.
    dtype_bytes
        Per cached word; the paper's figure is for FP8.

    Raises
    ------
    ValueError
        A number below 0, no replica, or a prefix longer than the context.

    References
    ----------
    TyphoonMLA, section 4 and figure 5.
    """
    _check_counts(batch=batch, layers=layers, weight_bytes=weight_bytes)
    check_positive(replicas=replicas)
    if not 0 <= shared_prefix <= context:
        raise ValueError(f"shared_prefix is {shared_prefix}, expected 0 to context = {context}, which includes it")
    token = layers * dtype_bytes
    latent = token * config.latent_head_dim * (replicas * shared_prefix + batch * (context - shared_prefix))
    return Footprint(weight_bytes, latent, token * _naive_words(config) * replicas * shared_prefix)


def break_even_batch(
    config: MLAConfig, device: Device, *, q_len: int = 1, dtype_bytes: float = 2, measured: bool = False
) -> float:
    """Return the batch from which on the naive form is faster than absorb over a shared prefix.

    It is where reading the expanded prefix takes as long as absorb's arithmetic over it: TyphoonMLA, equation
    1. With two bytes per word and two FLOPs per multiply-accumulate, words against operations are bytes
    against FLOPs.

    Parameters
    ----------
    config
        Shapes.
    device
        Throughput of its 16-bit type, and bandwidth.
    q_len
        S.
    dtype_bytes
        Per cached word.
    measured
        As in :meth:`Cost.time`.

    Returns
    -------
    float
        61 for DeepSeek-V3 on the paper's Ascend NPU, 87 on an H100 by its data sheet.
    """
    read = _naive_words(config) * dtype_bytes / device.bandwidth(measured)
    compute = q_len * 2 * _absorb_macs(config) / device.rate(measured=measured)
    return read / compute


def _check_counts(**counts):
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} is {count}, expected at least 0")


def _naive_words(config):
    """Words per token of expanded MLA, and multiply-accumulates per query and token: H(Dn+Dr+Dv)."""
    return config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)


def _absorb_macs(config):
    return config.num_attention_heads * (config.latent_head_dim + config.kv_lora_rank)
