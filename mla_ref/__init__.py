"""Ground truth for the inference path of Multi-head Latent Attention (MLA).

Names are loaded when first used, so that ``import mla_ref`` costs nothing and a copy of the package that
holds only the helper modules still imports. Helpers describe a problem (shapes, costs, clocks, pictures);
answers solve it.

Symbols used throughout, with their DeepSeek-V3 values:

======  =============================================  =============
B S T   batch, new query tokens, context (S included)
H       query heads                                    128
D       model width                                    7168
Dn Dr   per-head width without and with position       128, 64
Dv      per-head value width                           128
R Rq    latent key/value rank, latent query rank       512, 1536
======  =============================================  =============
"""

from importlib import import_module

HELPER_MODULES = ("_validate", "_from_hf", "config", "hardware", "roofline", "serving", "plots")
ANSWER_MODULES = (
    *("_operands", "norm", "rope", "attention", "scores", "ragged", "cache", "paged", "prefix", "implementations"),
    *(
        "float8",
        "prefill",
        "models",
        "attached",
        "drafting",
        "playground",
        "challenge",
        "quantize",
        "reconstruction",
        "mha",
        "mla",
        "fused",
        "kernels",
        "testing",
        "compat",
    ),
)

_EXPORTS = {
    "config": ("MLAConfig", "Yarn", "presets"),
    "hardware.devices": ("DEVICES", "Device", "Multiprocessor", "find_device"),
    "hardware.cost": ("Cost",),
    "hardware.timing": ("Timing", "bench", "measure_copy_bandwidth", "measure_matmul_rate"),
    "roofline": (
        "Footprint",
        "absorb_projection_cost",
        "attention_cost",
        "break_even_batch",
        "cache_bytes_per_token",
        "combine_cost",
        "expansion_cost",
        "kv_cache_elements",
        "operand_cost",
        "prefix_footprint",
        "tokens_that_fit",
    ),
    "serving": ("SYSTEM_PROMPTS", "WORKLOADS", "Served", "Workload", "serve", "serving_steps", "token_rate"),
    "norm": ("RMSNorm", "rms_norm"),
    "rope": ("apply_rope", "apply_rope_qk", "rope_cos_sin", "rope_frequencies"),
    "attention": (
        "absorb",
        "attention_mask",
        "combine",
        "latent_attention",
        "naive",
        "paged_latent_attention",
        "sdpa",
    ),
    "implementations": ("IMPLEMENTATIONS",),
    "ragged": ("attend_ragged",),
    "float8": ("Float8Latent", "pack_kv", "quantize_latent", "to_float8"),
    "prefill": ("ragged_attention",),
    "cache": ("KVCache", "LatentCache"),
    "paged": ("OutOfPages", "PagePool", "PagedCache", "check_table", "paged_gather", "paged_update"),
    "prefix": ("ExpandedPrefixes", "PrefixNode", "PrefixPlan", "PrefixTree", "plan_prefixes", "prefix_attention"),
    "mha": ("MHA",),
    "mla": ("MLA",),
    "scores": ("attention_score", "masked_softmax"),
    "fused": ("FusedMLA",),
    "quantize": ("Int4Weight", "pack_int4", "quantize_int4", "unpack_int4"),
    "reconstruction": ("absorb_query", "reconstruct_value"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["ANSWER_MODULES", "HELPER_MODULES", *_MODULE_OF]


def _load(module):
    path = f"{__name__}.{module}"
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path or module not in ANSWER_MODULES:
            raise
        raise ImportError(
            f"{path} is a reference answer, and this copy of mla_ref holds the helpers only: "
            f"solutions are judged without the answers, so call your own function instead",
            name=path,
        ) from None


def __getattr__(name):
    if name in _MODULE_OF:
        value = globals()[name] = getattr(_load(_MODULE_OF[name]), name)
        return value
    if name in HELPER_MODULES or name in ANSWER_MODULES:
        return _load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__, *HELPER_MODULES, *ANSWER_MODULES})
