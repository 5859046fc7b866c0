"""Whole models that generate on a GPU: tokens a second by attention, several tokens verified at once, parts of a step.

    PYTHONPATH=. python benchmarks/generation.py        # on the GPU itself, from the repository's root

- `steps`: one token more for each of B sequences of CONTEXT tokens, in a model of random weights (`MIDDLE`): by each
  attention, `step_us` from its start by Python until the GPU is done, the median of STEPS. Python starts every
  operation: where `device_us`, the GPU's own time for one, is much less, that is what a step waits for.
- `parts`: where the device's time of such a step goes, by the profiler: kernels started within each kind of module.
- `verify`: 1, 2 and 4 query tokens a sequence: the decode kernel alone at DeepSeek-V3's widths with 16 and 128 heads
  (`cold_us` of `timings.py`), and whole steps of the model.
- `trained`: the course's model in bfloat16, prompts of the standard library's documentation. `drafted`: the same one
  text at a time, with 0 to 3 tokens drafted by its layer of multi-token prediction.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import record
import torch
from timings import cold
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from mla_ref import kernels
from mla_ref.drafting import generate_drafted
from mla_ref.models import Model, ModelConfig, encode, generate, load_byte_model

MIDDLE = dict(
    model_type="deepseek_v3", vocab_size=32768, hidden_size=2048, num_hidden_layers=8, num_attention_heads=16,
    q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    intermediate_size=8192, max_position_embeddings=8192,
)  # fmt: skip
CONTEXT, PAGE, BATCHES, STEPS, WARM_UP = 4096, 64, (1, 64), 10, 2
QUERIES = (1, 2, 4)
VERIFIED = dict(R=512, Dr=64, T=4096, scale=192**-0.5)
# Decoders apart from the one for many heads, which leaves this model's to the second.
DECODERS = tuple(name for name in kernels.DECODERS if name != "hopper")
# Attention, page size, and whether all sequences share the context's pages.
FORMS: dict[str, tuple[str, int | None, bool]] = {
    "naive": ("naive", None, False),
    "absorb": ("absorb", None, False),
    **{f"triton, {name}": ("triton", None, False) for name in DECODERS},
    **{f"triton, {name}, pages": ("triton", PAGE, False) for name in DECODERS},
    "triton, a shared context": ("triton", PAGE, True),
    "prefix, a shared context": ("prefix", PAGE, True),
}
PART = "part: "
TEXT = "This module provides a simple interface to compile regular expressions and to match them against strings.  "


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    model = Model(ModelConfig.from_hf(MIDDLE), device="cuda", dtype=torch.bfloat16).eval()
    figures = {
        "model": {**MIDDLE, "parameters": sum(each.numel() for each in model.parameters())},
        "T": CONTEXT,
        "steps": [step_of(model, form, B) for B in BATCHES for form in FORMS],
        "parts": [parts(model, form, B) for B in BATCHES for form in ("naive", "absorb", best_form())],
        "verify": [verify_kernel(H, B) for H in (16, 128) for B in (1, 16, 64)]
        + [verify_model(model, B) for B in BATCHES],
    }
    del model
    byte_model = load_byte_model(device="cuda", dtype=torch.bfloat16)
    figures["trained"] = [trained(byte_model, form, B) for B in BATCHES for form in FORMS if "shared" not in form]
    figures["drafted"] = [drafted(byte_model, draft) for draft in (0, 1, 2, 3)]
    print(record.write(f"generation_{record.gpu()}", figures, ("triton",)))


def best_form() -> str:
    return f"triton, {DECODERS[-1]}, pages"


@contextmanager
def attention(form: str):
    """Yield the name of the attention, with the form's decoder in use."""
    impl = FORMS[form][0]
    decoder = next((name for name in DECODERS if form.startswith(f"triton, {name}")), kernels.FASTEST)
    with mock.patch.object(kernels, "FASTEST", decoder):
        yield impl


def filled_caches(model: Model, form: str, batch: int, context: int, room: int) -> list[Any]:
    """Return caches of random latents, as many for each sequence."""
    impl, page_size, shared = FORMS[form]
    for layer in model.model.layers:
        layer.self_attn.impl = impl  # which says how pages are written
    caches = model.make_caches(batch, context + room, page_size)
    weight = model.lm_head.weight
    for cache in caches:
        widths = model.config.attention.kv_lora_rank, model.config.attention.qk_rope_head_dim
        like = {"device": weight.device, "dtype": weight.dtype}
        new = [torch.randn(1 if shared else batch, context, width, **like) for width in widths]
        if not shared:
            cache.append(*new)
            continue
        first = torch.zeros(batch, dtype=torch.int64, device=weight.device)
        first[0] = context
        cache.append(*(x.expand(batch, -1, -1) for x in new), lengths=first)
        for b in range(1, batch):
            cache.fork(0, b)
    return caches


def stepper(model: Model, form: str, batch: int, queries: int = 1, context: int = CONTEXT) -> Callable[[], Tensor]:
    """Return a call that gives each sequence so many tokens more."""
    caches = filled_caches(model, form, batch, context, queries * (STEPS + WARM_UP + 12))
    tokens = torch.ones(batch, queries, dtype=torch.int64, device=model.lm_head.weight.device)
    return partial(model, tokens, caches, impl=FORMS[form][0])


def timed(run: Callable[[], object]) -> dict[str, float]:
    """Return the median time of a call until the GPU is done, and the span of most of them."""
    for _ in range(WARM_UP):
        run()
    found = []
    for _ in range(STEPS):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        found.append((time.perf_counter() - start) * 1e6)
    low, *_, high = statistics.quantiles(found, n=10)
    return {"step_us": round(statistics.median(found), 1), "low_us": round(low, 1), "high_us": round(high, 1)}


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def step_of(model: Model, form: str, batch: int, context: int = CONTEXT) -> dict[str, Any]:
    """Measure one form at one batch."""
    with attention(form):
        run = stepper(model, form, batch, context=context)
        found = timed(run)
        device_us = sum(by_part(model, run).values())
    rate = round(batch / found["step_us"] * 1e6)
    print(
        f"B{batch} {form:26} {found['step_us']:9.0f} us a step, the device {device_us:.0f}, {rate} tokens/s", flush=True
    )
    return {"B": batch, "attention": form, **found, "device_us": round(device_us, 1), "tokens_per_s": rate}


def by_part(model: Model, run: Callable[[], object], calls: int = 3) -> dict[str, float]:
    """Return the device's microseconds of a call by kind of module, from the profiler."""
    hooks = []
    for layer in model.model.layers:
        for name, module in layer.self_attn.named_children():
            hooks += marked(module, "inner norms" if "norm" in name else "projections")
        for name, module in layer.named_children():
            hooks += marked(module, {"self_attn": "attention", "mlp": "feed-forward"}.get(name, "norms"))
    hooks += [*marked(model.model.norm, "norms"), *marked(model.lm_head, "head")]
    run()
    synchronize()
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        with record_function(f"{PART}all"):
            for _ in range(calls):
                run()
        synchronize()
    for hook in hooks:
        hook.remove()
    events = [each for each in profiler.key_averages() if each.key.startswith(PART) and each.device_type.name == "CPU"]
    spent = {
        each.key.removeprefix(PART): (each.device_time_total if on_gpu else each.cpu_time_total) / calls
        for each in events
    }
    inner = spent.pop("inner norms", 0.0)
    spent["attention and cache"] = spent.pop("attention") - spent["projections"] - inner
    spent["norms"] += inner
    total = spent.pop("all")
    return {**{name: round(us, 1) for name, us in spent.items()}, "rest": round(total - sum(spent.values()), 1)}


def marked(module: torch.nn.Module, part: str) -> list[Any]:
    """Have the profiler see each call of a module as a part; return the hooks."""
    open_ = []

    def enter(*_: object) -> None:
        open_.append(record_function(PART + part))
        open_[-1].__enter__()

    def leave(*_: object) -> None:
        open_.pop().__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]


def parts(model: Model, form: str, batch: int, context: int = CONTEXT) -> dict[str, Any]:
    """Return the parts of a step of one form at one batch."""
    with attention(form):
        spent = by_part(model, stepper(model, form, batch, context=context))
    print(f"B{batch} {form}: " + ", ".join(f"{name} {us:.0f} us" for name, us in spent.items()), flush=True)
    return {"B": batch, "attention": form, "device_us": spent}


def verify_kernel(H: int, batch: int) -> dict[str, Any]:
    """Measure the decode kernel for several query tokens a sequence."""
    device = "cuda"
    R, Dr, T = (VERIFIED[name] for name in ("R", "Dr", "T"))
    pages = torch.randn(batch * T // PAGE, PAGE, R + Dr, device=device, dtype=torch.bfloat16).split((R, Dr), -1)
    c_kv, k_rope = (x.contiguous() for x in pages)
    table = torch.randperm(len(c_kv), device=device).int().view(batch, -1)
    seq_lens = torch.full((batch,), T, dtype=torch.int32, device=device)
    runs = []
    for S in QUERIES:
        q = [torch.randn(batch, S, H, width, device=device, dtype=torch.bfloat16) for width in (R, Dr)]
        decode = kernels.DECODERS[kernels.FASTEST].paged
        runs.append(partial(decode, *q, c_kv, k_rope, table, scale=VERIFIED["scale"], seq_lens=seq_lens))
    times = [each["cold_us"] for each in cold(runs)]
    return verified(batch, f"kernel, H={H}, T={T}", times)


def verify_model(model: Model, batch: int, context: int = CONTEXT) -> dict[str, Any]:
    """Measure whole steps of several tokens a sequence."""
    form = best_form()
    with attention(form):
        times = [timed(stepper(model, form, batch, queries, context))["step_us"] for queries in QUERIES]
    return verified(batch, "step of the model", times)


def verified(batch: int, of: str, times: Sequence[float]) -> dict[str, Any]:
    ratios = [round(each / times[0], 3) for each in times]
    print(f"B{batch} {of}: {QUERIES} tokens take {times} us, {ratios}", flush=True)
    return {"B": batch, "of": of, "queries": list(QUERIES), "us": list(times), "over_one": ratios}


def trained(model: Model, form: str, batch: int, new: int = 16) -> dict[str, Any]:
    """Measure generation by the course's model."""
    impl, page_size, _ = FORMS[form]
    for layer in model.model.layers:
        layer.self_attn.impl = impl
    prompts = [encode(TEXT[b % 8 :]) for b in range(batch)]
    with attention(form):
        go = partial(generate, model, prompts, new, page_size=page_size, impl=impl, stop=())
        go()
        seconds = elapsed(go)
    print(f"trained, B{batch} {form}: {batch * new / seconds:.0f} tokens/s", flush=True)
    return {"B": batch, "attention": form, "new": new, "tokens_per_s": round(batch * new / seconds, 1)}


def drafted(model: Model, draft: int, new: int = 64) -> dict[str, Any]:
    """Measure one text at a time with so many tokens drafted in a step."""
    prompts = [encode(TEXT[b:]) for b in range(2)]
    tokens, steps, taken = 0, 0, []

    def go() -> None:
        nonlocal tokens, steps
        for prompt in prompts:
            if draft:
                found = generate_drafted(model, [prompt], new, draft=draft, impl="absorb", stop=())
                tokens, steps = tokens + len(found.tokens[0]), steps + found.steps
                taken.append(found.acceptance)
            else:
                tokens, steps = tokens + len(generate(model, [prompt], new, impl="absorb", stop=())[0]), steps + new

    seconds = elapsed(go)
    acceptance = round(statistics.fmean(taken), 4) if taken else None
    print(f"drafts of {draft}: {tokens / seconds:.0f} tokens/s, {tokens / steps:.2f} a step, {acceptance}", flush=True)
    rate = {"tokens_per_s": round(tokens / seconds, 1), "tokens_per_step": round(tokens / steps, 3)}
    return {"draft": draft, **rate, "acceptance": acceptance}


def elapsed(go: Callable[[], object]) -> float:
    synchronize()
    start = time.perf_counter()
    go()
    synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
