"""Decode over shared prefixes on a GPU: naive over what many share and absorb over the rest, against absorb alone.

    PYTHONPATH=. python benchmarks/prefix.py            # on the GPU itself, from the repository's root

One new token per sequence, bfloat16, pages of 64 tokens in random order, in which the shared ones exist once. Every
call goes from the queries of the heads to their outputs: the products with W_UK and W_UV are part of it, and so are
merging and, for FlashMLA, the schedule's reuse. FlashMLA is measured where it can be imported. Before the clock starts,
the first and the last sequence are compared with `mla_ref.naive` in float64.

- `one_level`: a system prompt under all sequences; their own contexts are what continuous batching draws from data
  sets, after some steps. `tokens_per_s` is the batch over the time, per layer.
- `apart`: the parts of one of these steps, each alone, with the FLOPs of attention over the time.
- `switch`: around the switch point, whose prediction stands beside it.
- `levels`: a system prompt, documents under branches, own tokens.
- `random_trees`: `ratio` is the time of absorb over that of the plan, both ours.

Times are those of `timings.py`; `graph_us` is a call among several in a CUDA graph, without a pause between them.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import record
import timings
import torch
from timings import cold, graph_us, relative_error
from torch import Tensor

from mla_ref import (
    DEVICES,
    SYSTEM_PROMPTS,
    WORKLOADS,
    ExpandedPrefixes,
    MLAConfig,
    PrefixTree,
    break_even_batch,
    find_device,
    kernels,
    naive,
    plan_prefixes,
    serving_steps,
)

PAGE = 64
BATCHES = (64, 128, 256, 512, 1024)
AROUND = (16, 24, 32, 40, 48, 56, 64, 80, 96)
ERROR = 2e-2  # bfloat16 keys, values and queries: lesson 03 finds 1 %
TREES = 200
FLASH_MLA = importlib.util.find_spec("flash_mla") is not None


@dataclass
class Batch:
    """Sequences in pages: their paths of shared parts, and own tokens."""

    config: MLAConfig
    q: Tensor  # [B, 1, H, Dn+Dr]
    cache: Tensor  # [pages, PAGE, R+Dr]
    block_table: Tensor
    seq_lens: Tensor
    w_uk: Tensor
    w_uv: Tensor

    @classmethod
    def draw(cls, config: MLAConfig, paths: Sequence[Sequence[int]], parts: Sequence[int], own: Sequence[int]) -> Batch:
        """``paths`` are the parts of each sequence, ``parts`` their tokens, ``own`` what follows, one at least."""
        B, H, R = len(own), config.num_attention_heads, config.kv_lora_rank
        page = itertools.count()
        shared = [[next(page) for _ in range(tokens // PAGE)] for tokens in parts]
        copied = [sum(parts[part] % PAGE for part in path) for path in paths]  # of pages that are not full
        rows = [
            [
                *itertools.chain(*(shared[part] for part in path)),
                *(next(page) for _ in range(-(-(rest + last) // PAGE))),
            ]
            for path, rest, last in zip(paths, own, copied, strict=True)
        ]
        width = max(map(len, rows))
        table = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        pages = next(page)
        lens = [sum(parts[part] // PAGE * PAGE for part in path) + rest + last
                for path, rest, last in zip(paths, own, copied, strict=True)]  # fmt: skip

        def normal(*shape):
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        return cls(
            config,
            normal(B, 1, H, config.qk_head_dim),
            normal(pages, PAGE, R + config.qk_rope_head_dim),
            torch.randperm(pages)[table].int().cuda(),
            torch.tensor(lens, dtype=torch.int32, device="cuda"),
            normal(H, config.qk_nope_head_dim, R) / math.sqrt(R),
            normal(H, config.v_head_dim, R) / math.sqrt(R),
        )

    @property
    def operands(self) -> tuple[Tensor, ...]:
        Dn, R = self.config.qk_nope_head_dim, self.config.kv_lora_rank
        return self.q[..., :Dn], self.q[..., Dn:], self.cache[..., :R], self.cache[..., R:], self.w_uk, self.w_uv

    def prefix(self, switch_point: float, **options) -> tuple[Callable[[], Tensor], Any, ExpandedPrefixes]:
        """Return a call with a plan, the plan, and what it has expanded."""
        where = {"seq_lens": self.seq_lens, "block_table": self.block_table}
        plan = plan_prefixes(**where, page_size=PAGE, switch_point=switch_point, **options)
        expanded = ExpandedPrefixes(self.w_uk, self.w_uv)
        expanded.update(plan, *self.operands[2:4])
        options = {**where, "scale": self.config.qk_head_dim**-0.5}
        return lambda: kernels.prefix_attention(*self.operands, plan, expanded, **options)[0], plan, expanded

    def absorb(self) -> Callable[[], Tensor]:
        return self.prefix(math.inf)[0]

    def flash_mla(self) -> Callable[[], Tensor]:
        """FlashMLA between the same two products; the first call makes the schedule, as serving does once a step."""
        from flash_mla import flash_mla_with_kvcache, get_mla_metadata

        q_nope, q_rope, *_ = self.operands
        B, _, H, _ = q_nope.shape
        R, keys = self.config.kv_lora_rank, self.cache.unsqueeze(2)
        q = torch.cat((q_nope.new_empty(B, 1, H, R), q_rope), -1)
        out, schedule = q.new_empty(B, 1, H, self.w_uv.shape[1]), get_mla_metadata()[0]
        options = {"softmax_scale": self.config.qk_head_dim**-0.5}

        def heads_first(x):
            return x.flatten(0, 1).transpose(0, 1)

        def run():
            torch.bmm(heads_first(q_nope), self.w_uk, out=heads_first(q[..., :R]))
            found, _ = flash_mla_with_kvcache(q, keys, self.block_table, self.seq_lens, R, schedule, **options)
            torch.bmm(heads_first(found), self.w_uv.mT, out=heads_first(out))
            return out

        return run

    def exact(self) -> Tensor:
        """Return ``[2, H, Dv]``, the first and the last sequence in float64."""
        outs = []
        for b in (0, -1):
            q_nope, q_rope, c_kv, k_rope, w_uk, w_uv = self.operands
            pages = self.block_table[b].long()
            tokens = (x[pages].flatten(0, 1)[None, : int(self.seq_lens[b])].double() for x in (c_kv, k_rope))
            weights = (w_uk.double(), w_uv.double())
            q = (x[b][None].double() for x in (q_nope, q_rope))
            outs.append(naive(*q, *tokens, *weights, scale=self.config.qk_head_dim**-0.5)[0][0, 0])
        return torch.stack(outs)

    def measure(self, calls: dict[str, Callable[[], Tensor]], graphs: bool = False) -> dict[str, dict[str, float]]:
        """Check and time calls, in turns."""
        exact = self.exact()
        errors = {name: relative_error(run()[[0, -1], 0], exact, ERROR, name) for name, run in calls.items()}
        del exact
        found = {
            name: {**timing, "relative_error": float(f"{errors[name]:.3g}")}
            for name, timing in zip(calls, cold(list(calls.values())), strict=True)
        }
        if graphs:
            for name, run in calls.items():
                found[name]["graph_us"] = graph_us(run, calls=5)
        return found


def switch_points(config: MLAConfig) -> dict[str, float]:
    """Return equation 1 for this GPU, by its data sheet and by its measured ceilings."""
    device = DEVICES[find_device(record.device())]
    return {
        "data sheet": round(break_even_batch(config, device), 1),
        "measured ceilings": round(break_even_batch(config, device, measured=True), 1),
    }


def own_contexts(name: str, data: str, batch: int) -> list[int]:
    """Return the own contexts of a batch, 200 steps after its start."""
    running = serving_steps(WORKLOADS[name, data], batch=batch, requests=20 * batch)
    return next(itertools.islice(running, 200, None)).tolist()


def one_level(name: str, prompt: str, data: str, B: int) -> dict[str, Any]:
    """Measure a prompt under all sequences."""
    config, tokens = MLAConfig.preset(name), SYSTEM_PROMPTS[prompt]
    own = own_contexts(name, data, B)
    batch = Batch.draw(config, [[0]] * len(own), [tokens], own)
    call, plan, expanded = batch.prefix(switch_points(config)["measured ceilings"])
    calls = {"prefix": call, "absorb": batch.absorb()} | ({"FlashMLA": batch.flash_mla()} if FLASH_MLA else {})
    found = batch.measure(calls, graphs=True)
    best = min((name for name in found if name != "prefix"), key=lambda name: found[name]["cold_us"])
    speedup = round(found[best]["cold_us"] / found["prefix"]["cold_us"], 3)
    hot = min(found[name]["graph_us"] for name in found if name != "prefix") / found["prefix"]["graph_us"]
    print(
        name,
        prompt,
        data,
        B,
        f"own {np.mean(own):.0f}",
        f"{speedup}x of {best}, {hot:.3f}x in graphs",
        found,
        flush=True,
    )
    return {
        "model": name, "prompt": prompt, "prefix_tokens": tokens, "data": data, "B": B,
        "own_tokens_mean": round(float(np.mean(own)), 1), "naive_tokens": plan.tokens,
        "expanded_bytes": expanded.nbytes,
        "fastest_other": best, "speedup": speedup, "speedup_in_graphs": round(hot, 3),
        "tokens_per_s": {each: round(B / found[each]["cold_us"] * 1e6) for each in found}, "calls": found,
    }  # fmt: skip


def parts_of_step(config: MLAConfig, tokens: int, own: Sequence[int]) -> tuple[dict[str, Callable[[], Tensor]], Any]:
    """Return a step, the prefix alone, a prefill without a mask, and own contexts alone, by absorb; and the plan."""
    B = len(own)
    batch = Batch.draw(config, [[0]] * B, [tokens], own)
    call, plan, expanded = batch.prefix(switch_points(config)["measured ceilings"])
    offsets = (torch.tensor([0, end], dtype=torch.int32, device="cuda") for end in (B, plan.tokens))
    where = (batch.q[:, 0], expanded.k, expanded.v, *offsets)
    rest = [each + tokens - plan.tokens for each in own]
    return {
        "step": call,
        "prefix": lambda: kernels.ragged_attention(*where, scale=config.qk_head_dim**-0.5, causal=False)[0],
        "own": Batch.draw(config, [[]] * B, [], rest).absorb(),
    }, plan


def apart(name: str, prompt: str, data: str, B: int) -> dict[str, Any]:
    """Measure what a step is made of."""
    config, own = MLAConfig.preset(name), own_contexts(name, data, B)
    calls, plan = parts_of_step(config, SYSTEM_PROMPTS[prompt], own)
    own, H = [each + SYSTEM_PROMPTS[prompt] - plan.tokens for each in own], config.num_attention_heads
    macs = {"prefix": B * H * plan.tokens * (config.qk_head_dim + config.v_head_dim)}
    macs["own"] = H * sum(own) * (2 * config.kv_lora_rank + config.qk_rope_head_dim)
    macs["step"] = macs["prefix"] + macs["own"]
    found = dict(zip(calls, cold(list(calls.values())), strict=True))
    for each, timing in found.items():
        timing["tflops"] = round(2e-6 * macs[each] / timing["cold_us"], 1)
    print(name, prompt, B, "apart", found, flush=True)
    return {"model": name, "prompt": prompt, "data": data, "B": B, "share_of_own": round(macs["own"] / macs["step"], 3),
            "calls": found}  # fmt: skip


def switch(name: str, tokens: int) -> dict[str, Any]:
    """Measure both forms around the switch point: where they take equally long."""
    config, rows = MLAConfig.preset(name), []
    for B in AROUND:
        batch = Batch.draw(config, [[0]] * B, [tokens], [256] * B)
        found = batch.measure({"prefix": batch.prefix(1, min_saving=0, merging=0)[0], "absorb": batch.absorb()})
        rows.append({"B": B, **{f"{each}_us": found[each]["cold_us"] for each in found}})
    crossing = None
    for low, high in itertools.pairwise(rows):
        behind, ahead = low["prefix_us"] - low["absorb_us"], high["absorb_us"] - high["prefix_us"]
        if behind >= 0 and ahead > 0:
            crossing = round(low["B"] + (high["B"] - low["B"]) * behind / (behind + ahead), 1)
    print(name, tokens, "crosses at", crossing, switch_points(config), rows, flush=True)
    return {"model": name, "tokens": tokens, "crossing": crossing, "predicted": switch_points(config), "rows": rows}


def levels(name: str, B: int, root: int, branches: int, branch: int, own: int) -> dict[str, Any]:
    """Measure a tree of two shared levels: by its plan, with the root alone naive, and by absorb."""
    config = MLAConfig.preset(name)
    paths = [[0, 1 + b * branches // B] for b in range(B)]
    batch = Batch.draw(config, paths, [root] + [branch] * branches, [own] * B)
    point = switch_points(config)["measured ceilings"]
    calls = {
        "tree": batch.prefix(point)[0],
        "root alone": batch.prefix(point, tree=PrefixTree([-1], [root], [0] * B))[0],
        "absorb": batch.absorb(),
    }
    calls |= {"FlashMLA": batch.flash_mla()} if FLASH_MLA else {}
    found = batch.measure(calls, graphs=True)
    speedups = {each: round(found[each]["cold_us"] / found["tree"]["cold_us"], 3) for each in found if each != "tree"}
    print(name, B, root, branches, branch, own, speedups, found, flush=True)
    return {
        "model": name, "B": B, "root": root, "branches": branches, "branch": branch, "own": own,
        "speedups": speedups, "calls": found,
    }  # fmt: skip


def random_trees(name: str) -> dict[str, Any]:
    """Measure the plan against absorb over random trees of up to three levels, several roots, and loners."""
    config, generator, rows = MLAConfig.preset(name), np.random.default_rng(0), []
    point = switch_points(config)["measured ceilings"]
    for _ in range(TREES):
        B = int(2 ** generator.uniform(3, 9))
        parts, paths = [], [[] for _ in range(B)]
        groups = np.array_split(np.arange(B), generator.integers(1, 4))
        for depth in range(generator.integers(1, 4)):
            below = []
            for group in groups:
                if generator.random() < 0.15:
                    continue  # shares nothing further
                parts.append(int(2 ** generator.uniform(7, 13 - depth)))
                for b in group:
                    paths[b].append(len(parts) - 1)
                below += np.array_split(group, generator.integers(1, 5))
            groups = [group for group in below if len(group)]
        batch = Batch.draw(config, paths, parts, generator.integers(16, 1024, B).tolist())
        call, plan, _ = batch.prefix(point)
        absorb = batch.absorb()
        error = relative_error(call(), absorb().double(), ERROR)
        times = [each["cold_us"] for each in cold([call, absorb])]
        rows.append({"B": B, "nodes": len(parts), "naive": len(plan.nodes), "naive_tokens": plan.tokens,
                     "prefix_us": times[0], "absorb_us": times[1], "ratio": round(times[1] / times[0], 3),
                     "relative_error": float(f"{error:.3g}")})  # fmt: skip
    ratios = [row["ratio"] for row in rows]
    planned = [row["ratio"] for row in rows if row["naive"]]
    figures = {
        "trees": len(rows), "with_naive_parts": len(planned), "least_ratio": min(ratios),
        "least_ratio_with_naive_parts": min(planned), "median_ratio_with_naive_parts": statistics.median(planned),
        "most": max(ratios),
    }  # fmt: skip
    print(figures, flush=True)
    return {"model": name, **figures, "rows": rows}


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    timings.ROUNDS, timings.REPEAT = 3, 7
    cases = [(prompt, "mmlu", B) for prompt in SYSTEM_PROMPTS for B in BATCHES]
    cases += [("A", data, B) for data in ("gsm8k", "simpleqa") for B in (64, 1024)]
    figures = {
        "dtype": "bfloat16",
        "page_size": PAGE,
        "flash_mla": importlib.import_module("flash_mla").__version__ if FLASH_MLA else None,
        "one_level": [one_level(name, *case) for name in ("kimi_k2", "deepseek_v3") for case in cases],
        "apart": apart("kimi_k2", "A", "mmlu", 1024),
        "switch": [switch(name, tokens) for name in ("kimi_k2", "deepseek_v3") for tokens in (4759, 26472)],
        "levels": [levels("kimi_k2", 1024, 26432, 8, 4096, 256), levels("kimi_k2", 256, 8192, 4, 2048, 256)],
        "random_trees": random_trees("kimi_k2"),
    }
    print(record.write(f"prefix_{record.gpu()}", figures, ("triton",)))


if __name__ == "__main__":
    main()
