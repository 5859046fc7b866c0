"""One MLA layer on a GPU, each fusion switched on alone and all of them: Tables 2 and 3 of the report.

    PYTHONPATH=. python benchmarks/ablation.py         # on the GPU itself, from the repository's root

The report is "Optimizing Multi-head Latent Attention for Efficient Inference", its tables taken on an RTX 4090. The
baseline is DeepSeek-V3's absorbed formulation in PyTorch (`mla_ref.FusedMLA`, nothing switched on). Where the
`inference` folder of DeepSeek-V3 is on PYTHONPATH, that is run too, and has to give the same output, bit by bit. The
first and the last sequence of every layer's output are compared with float64 first. The report's four fusions make
`All`; `flash decoding`, one kernel for scores, softmax and weighted sum, is not among them. Layers take turns, three
times over, and the middle round counts:

- `tokens_per_s`: as in the report, batch times length over the mean of 10 forward passes after 5 warm-ups, by the
  host's clock, which stops when the device has finished;
- `median_us`, `noise`: of the device's time for a pass, and (p80 - p20) / median;
- `host_us`: Python's time to start a pass. Where it exceeds `graph_us` the layer waits for the host;
- `graph_us`: a pass replayed from a CUDA graph, the device's time alone;
- `peak_mib`: what a pass allocates at most, beside weights, input and cache.

`steps` are scores and softmax alone, L2 emptied, each kernel beside what PyTorch offers. `kernels` is all that the
device runs in one pass, after a rest: one pass after another keeps an H100's matrix units so busy, with ASF and SF on,
that it reaches its power limit and lowers its clocks.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import rich
import torch
import torch.nn.functional as F
from rich.box import SIMPLE_HEAD
from rich.table import Table
from timings import graph_us, relative_error
from torch import Tensor

import mla_ref
from mla_ref import MLA, MLAConfig
from mla_ref.fused import FusedMLA
from mla_ref.hardware.timing import Timing, bench

Call = Callable[[], Tensor]

CONFIG = MLAConfig.preset("report")
SIZES = [(B, L) for B in (4, 8) for L in (512, 1024, 2048, 4096)]
ABLATED = (4, 4096)
DECODES = [(4, 4096), (8, 4096)]  # B, T
REPORTED = ("ASF", "SF", "RF", "RPEF")
LAYERS = {"baseline": (), **{name: (name,) for name in REPORTED}, "flash decoding": ("FD",), "All": REPORTED}
DECODE_LAYERS = {**LAYERS, "RF, RPEF and flash decoding": ("RF", "RPEF", "FD")}
SKIPPING = "All, tiles behind the diagonal skipped"
EXPANDED = "expanded, through cuDNN"
WARMUP, RUNS, ROUNDS = 5, 10, 3
ERROR = 5e-3

PAPER_THROUGHPUT = {
    (4, 512): (7.25e5, 1.02e6, 0.4024),
    (4, 1024): (4.83e5, 7.41e5, 0.5329),
    (4, 2048): (2.88e5, 4.67e5, 0.6201),
    (4, 4096): (1.53e5, 2.65e5, 0.7302),
    (8, 512): (7.35e5, 1.03e6, 0.4078),
    (8, 1024): (4.84e5, 7.37e5, 0.5232),
    (8, 2048): (2.87e5, 4.67e5, 0.6284),
    (8, 4096): None,
}
PAPER_GAIN = {"ASF": 0.4623, "SF": 0.0937, "RF": 0.0025, "RPEF": 0.0061, "All": 0.7302}


def main() -> None:
    """Measure everything; write the record."""
    start = time.perf_counter()
    figures = measure(lambda name: print(f"{time.perf_counter() - start:6.1f} s  {name}", flush=True))
    show(figures, rich.print)
    print(record.write(f"ablation_{record.gpu()}", figures, ("triton",)))


def measure(step: Callable[[str], None], everything: bool = True) -> dict[str, Any]:
    """Return the figures: both tables and decoding, and what explains them if `everything` is asked for."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    mla = MLA(CONFIG, device="cuda", dtype=torch.float16)
    figures: dict[str, Any] = {"preset": "report", "dtype": "float16", "sizes": []}
    for B, L in SIZES:
        step(f"prefill {B}-{L}")
        figures["sizes"].append({"B": B, "L": L, "layers": prefill(mla, B, L, everything and (B, L) == ABLATED)})
    if everything:
        step("every subset")
        figures["subsets"] = subsets(mla)
        step("steps")
        figures["steps"] = steps()
        step("kernels")
        figures["kernels"] = kernel_times(mla)
    figures["decode"] = []
    for B, T in DECODES:
        step(f"decode {B}-{T}")
        figures["decode"].append({"B": B, "T": T, "layers": decode(mla, B, T)})
    return figures


def prefill(mla: MLA, B: int, L: int, others: bool) -> dict[str, Any]:
    """Measure every layer over L tokens of B sequences, and others' code if `others` is asked for."""
    bound = Bound(mla, B, 0, L)
    calls = {name: bound(FusedMLA.of(mla, *fusions)) for name, fusions in LAYERS.items()}
    calls[SKIPPING] = bound(skipping(mla))
    if others:
        calls[EXPANDED] = lambda: mla(bound.x, impl=expanded)
        if published := deepseek(mla, bound):
            calls["DeepSeek's own"] = published
    return compare(calls, bound)


def decode(mla: MLA, B: int, T: int) -> dict[str, Any]:
    """Measure every layer over one token behind T - 1."""
    bound = Bound(mla, B, T - 1, 1)
    return compare({name: bound(FusedMLA.of(mla, *fusions)) for name, fusions in DECODE_LAYERS.items()}, bound)


def subsets(mla: MLA) -> dict[str, Any]:
    """Measure every subset of the report's fusions."""
    bound = Bound(mla, ABLATED[0], 0, ABLATED[1])
    chosen = itertools.chain.from_iterable(itertools.combinations(REPORTED, n) for n in range(len(REPORTED) + 1))
    calls = {"+".join(names) or "baseline": bound(FusedMLA.of(mla, *names)) for names in chosen}
    return compare(calls, bound)


def skipping(mla: MLA) -> FusedMLA:
    """Return the layer `All`, but with scores that leave out tiles which the softmax would mask throughout."""
    layer = FusedMLA.of(mla, *REPORTED)
    layer.score = functools.partial(mla_ref.kernels.attention_score, causal=True)
    return layer


def expanded(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv, *, seq_lens, scale, causal=True):
    """MLA by expansion through cuDNN: what one would use for a prefill in place of absorption."""
    k_nope, v = torch.einsum("btr,hdr->bhtd", c_kv, w_uk), torch.einsum("btr,hvr->bhtv", c_kv, w_uv)
    k = torch.cat((k_nope, k_rope[:, None].expand(-1, k_nope.shape[1], -1, -1)), -1)
    q = torch.cat((q_nope, q_rope), -1).transpose(1, 2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale).transpose(1, 2), None


class Bound:
    """Inputs that layers of one size have in common."""

    def __init__(self, mla: MLA, B: int, start: int, size: int):
        self.mla, self.start, weight = mla, start, mla.o_proj.weight
        self.x = torch.randn(B, size, mla.config.hidden_size, device=weight.device).to(weight.dtype)
        self.cache = mla.make_cache(B, start + size)
        self.cache.c_kv.normal_()
        self.cache.k_rope.normal_()
        self.step = FusedMLA(mla).step(start, size)

    def __call__(self, layer: FusedMLA) -> Call:
        return lambda: layer(self.x, self.cache.c_kv, self.cache.k_rope, self.step)

    def exact(self) -> Tensor:
        """Return the first and the last sequence's output in float64."""
        wide, outs = MLA(self.mla.config, device=self.x.device, dtype=torch.float64), []
        wide.load_state_dict(self.mla.state_dict())
        for b in (0, -1):
            cache = wide.make_cache(1, self.cache.capacity)
            if self.start:
                cache.append(*(each[[b], : self.start].double() for each in (self.cache.c_kv, self.cache.k_rope)))
            outs.append(wide(self.x[[b]].double(), cache))
        return torch.cat(outs)

    def error(self, call: Call, exact: Tensor, name: str) -> float:
        """Return a call's relative error, the cache poisoned where it has to write; it must be below `ERROR`."""
        for each in (self.cache.c_kv, self.cache.k_rope):
            each[:, self.start :] = torch.nan
        return relative_error(call()[[0, -1]], exact, ERROR, name)


def compare(calls: dict[str, Call], bound: Bound) -> dict[str, Any]:
    """Check and time calls of one size."""
    found: dict[str, Any] = {}
    exact = bound.exact()
    for name, call in calls.items():
        torch.cuda.empty_cache()
        try:
            error = bound.error(call, exact, name)
            found[name] = {"relative_error": float(f"{error:.3g}"), "peak_mib": peak_mib(call)}
        except torch.OutOfMemoryError:
            found[name] = None
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in calls if found[name]}
    for _, (name, samples) in itertools.product(range(ROUNDS), rounds.items()):
        samples.append(one_round(calls[name]))
    for name, samples in rounds.items():
        middle = sorted(samples, key=lambda each: each["mean_us"])[ROUNDS // 2]
        tokens = bound.x.shape[0] * bound.x.shape[1]
        found[name] |= {"tokens_per_s": round(tokens / middle["mean_us"] * 1e6), **middle}
        if name != EXPANDED:  # whose angles are made on the host
            torch.cuda.empty_cache()
            found[name]["graph_us"] = round(graph_us(calls[name], 1), 1)
    return found


def peak_mib(call: Call) -> int:
    """Return what a pass allocates at most; it is not the first, to which libraries add their workspaces."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20)


def one_round(call: Call) -> dict[str, float]:
    """Time `RUNS` passes as the report does, and each by the device's clock."""
    for _ in range(WARMUP):
        call()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(RUNS + 1)]
    torch.cuda.synchronize()
    start = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    mean = (time.perf_counter() - start) / RUNS
    passes = [before.elapsed_time(after) * 1e-3 for before, after in itertools.pairwise(events)]
    p20, _, _, p80 = statistics.quantiles(passes, n=5, method="inclusive")
    timing = Timing(statistics.median(passes), p20, p80, RUNS)
    return {
        "mean_us": round(mean * 1e6, 1),
        "median_us": round(timing.median * 1e6, 1),
        "noise": round(timing.noise, 4),
        "host_us": round(host / RUNS * 1e6, 1),
    }


def steps() -> dict[str, Any]:
    """Time scores and softmax alone, at the size of the ablation."""
    (B, L), H, R, P = ABLATED, CONFIG.num_attention_heads, CONFIG.kv_lora_rank, CONFIG.qk_rope_head_dim
    q, p, c, k = (torch.randn(B, L, *tail, device="cuda").half() for tail in ((H, R), (H, P), (R,), (P,)))
    scale, out = CONFIG.softmax_scale, torch.full((B, L, H, L), torch.nan, device="cuda", dtype=torch.float16)
    flat, keys, both = torch.cat((q, p), -1).flatten(1, 2), torch.cat((c, k), -1).transpose(1, 2), out.flatten(1, 2)
    mask = FusedMLA(MLA(CONFIG, device="cuda", dtype=torch.float16)).step(0, L).mask[:, None]
    compiled = torch.compile(lambda x: (x + mask).softmax(-1, dtype=torch.float32).half(), dynamic=False)

    def products():
        return (torch.einsum("bshr,btr->bsht", q, c) + torch.einsum("bshr,btr->bsht", p, k)) * scale

    def concatenated():
        rows, columns = torch.cat((q, p), -1).flatten(1, 2), torch.cat((c, k), -1).transpose(1, 2)
        return torch.baddbmm(both, rows, columns, beta=0, alpha=scale, out=both)

    score = mla_ref.kernels.attention_score
    calls = {
        "kernels.attention_score": lambda: score(q, p, c, k, scale=scale, causal=False, out=out),
        "kernels.attention_score, causal": lambda: score(q, p, c, k, scale=scale, causal=True, out=out),
        "PyTorch, two products": products,
        "PyTorch, concatenated, one product": concatenated,
        "cuBLAS product of depth 576 alone": lambda: torch.bmm(flat, keys, out=both),
        "kernels.masked_softmax": lambda: mla_ref.kernels.masked_softmax(scores, out=out),
        "PyTorch, masked softmax": lambda: (scores + mask).softmax(-1, dtype=torch.float32).half(),
        "torch.compile, masked softmax": lambda: compiled(scores),
        "copy of the scores": lambda: out.copy_(scores),
    }
    scores = products()
    timed = {name: bench(call, repeat=RUNS, device="cuda") for name, call in calls.items()}
    return {name: {"us": round(each.median * 1e6, 1), "noise": round(each.noise, 4)} for name, each in timed.items()}


def kernel_times(mla: MLA) -> dict[str, list[dict[str, Any]]]:
    """Return what the device ran in a pass of the slowest layer and of the fastest, kernel by kernel."""
    bound, found = Bound(mla, ABLATED[0], 0, ABLATED[1]), {}
    for name, layer in {"baseline": FusedMLA(mla), "All": FusedMLA.of(mla, *REPORTED), SKIPPING: skipping(mla)}.items():
        call = bound(layer)
        call()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call()
            torch.cuda.synchronize()
        ran = [each for each in profile.events() if each.device_type == torch.autograd.DeviceType.CUDA]
        ran.sort(key=lambda each: each.time_range.start)
        found[name] = [{"kernel": each.name[:100], "us": round(each.time_range.elapsed_us(), 1)} for each in ran]
    return found


def deepseek(mla: MLA, bound: Bound) -> Call | None:
    """Return a pass of DeepSeek's published layer with the weights of ours, if their code can be imported."""
    spec = importlib.util.find_spec("model")
    if spec is None or not (spec.origin or "").endswith("inference/model.py"):
        return None
    import model

    B, L, _ = bound.x.shape
    weight = mla.o_proj.weight
    model.Linear.dtype = weight.dtype
    torch.set_default_dtype(weight.dtype)
    with torch.device(weight.device):
        theirs = model.MLA(
            model.ModelArgs(
                max_batch_size=B,
                max_seq_len=L,
                dim=CONFIG.hidden_size,
                n_heads=CONFIG.num_attention_heads,
                q_lora_rank=CONFIG.q_lora_rank,
            )
        )
    torch.set_default_dtype(torch.float32)
    names = {
        "wq_a": "q_a_proj",
        "q_norm": "q_a_layernorm",
        "wq_b": "q_b_proj",
        "wkv_a": "kv_a_proj_with_mqa",
        "kv_norm": "kv_a_layernorm",
        "wkv_b": "kv_b_proj",
        "wo": "o_proj",
    }
    theirs.load_state_dict({f"{name}.weight": getattr(mla, ours).weight for name, ours in names.items()})

    def call():
        return theirs(bound.x, 0, bound.step.turn, bound.step.mask)

    assert call().equal(bound(FusedMLA(mla))()), "the baseline does not compute what DeepSeek's code computes"
    return call


def show(figures: dict[str, Any], print_: Callable[[Any], None]) -> None:
    """Print both tables, the report's figures beside the measured ones, whether gains add up, and decoding."""
    throughput = Table("B-L", *("base", "all", "gain") * 2, "in a graph", box=SIMPLE_HEAD)
    throughput.title = "Table 2, thousand tokens/s: in the report (RTX 4090), and here"
    medians = Table("B-L", "base", "all", "base in a graph", "all in a graph", box=SIMPLE_HEAD)
    medians.title = "Milliseconds a pass here: medians, their noise in brackets"
    for size in figures["sizes"]:
        paper, layers = PAPER_THROUGHPUT[size["B"], size["L"]], size["layers"]
        row = [f"{paper[0] / 1e3:.0f}", f"{paper[1] / 1e3:.0f}", percent(paper[2])] if paper else ["OOM", "OOM", ""]
        row += [f"{layers[each]['tokens_per_s'] / 1e3:.0f}" if layers[each] else "OOM" for each in ("baseline", "All")]
        name, both = f"{size['B']}-{size['L']}", [layers[each] for each in ("baseline", "All")]
        throughput.add_row(name, *row, gain(layers, "All"), gain(layers, "All", "graph_us"))
        medians.add_row(name, *map(median, both), *map(in_graph, both))
    print_(throughput)
    print_(medians)

    layers = next(size["layers"] for size in figures["sizes"] if (size["B"], size["L"]) == ABLATED)
    print_(gains("Table 3, gain over the baseline at {}-{}".format(*ABLATED), layers))

    if all(layers[name] for name in ("baseline", *PAPER_GAIN)):
        sums = Table("", "report", "here", box=SIMPLE_HEAD, title="Do the four gains add up?")
        measured = {name: layers["baseline"]["mean_us"] / layers[name]["mean_us"] - 1 for name in PAPER_GAIN}
        alone = [[found[name] for name in REPORTED] for found in (PAPER_GAIN, measured)]
        sums.add_row("sum of the gains alone", *(percent(sum(each)) for each in alone))
        sums.add_row("gain if the times saved alone add up", *(percent(sum_of_times(each)) for each in alone))
        sums.add_row("gain of all together", *(percent(found["All"]) for found in (PAPER_GAIN, measured)))
        print_(sums)

    for case in figures["decode"]:
        print_(gains(f"Decoding at {case['B']}-{case['T']}, gain over the baseline", case["layers"], paper=False))


def gains(title: str, layers: dict[str, Any], paper: bool = True) -> Table:
    """Return the gain of every layer over the baseline, the report's beside it if it has one."""
    columns = ("here", "ms", "in a graph", "ms")
    table = Table("fusion", *(["report"] if paper else []), *columns, title=title, box=SIMPLE_HEAD)
    for name, found in layers.items():
        report = [percent(PAPER_GAIN[name], digits=2) if name in PAPER_GAIN else ""] if paper else []
        own, graph = (gain(layers, name, figure) if name != "baseline" else "" for figure in ("mean_us", "graph_us"))
        table.add_row(name, *report, own, median(found), graph, in_graph(found))
    return table


def median(found: dict[str, Any] | None) -> str:
    """Return a layer's median time in milliseconds with its noise, as printed."""
    return f"{found['median_us'] / 1e3:.2f} ({percent(found['noise'], '')})" if found else "OOM"


def in_graph(found: dict[str, Any] | None) -> str:
    """Return a layer's time in milliseconds in a CUDA graph, as printed."""
    return f"{found['graph_us'] / 1e3:.3f}" if found and "graph_us" in found else ""


def sum_of_times(gains: list[float]) -> float:
    """Return the gain in throughput of changes that each save the time that they save alone."""
    return 1 / (1 - sum(gain / (1 + gain) for gain in gains)) - 1


def gain(layers: dict[str, Any], name: str, figure: str = "mean_us") -> str:
    """Return the gain of a layer over the baseline, as printed."""
    times = [(layers[each] or {}).get(figure) for each in ("baseline", name)]
    return percent(times[0] / times[1] - 1) if all(times) else ""


def percent(value: float, sign: str = "+", digits: int = 1) -> str:
    return f"{100 * value:{sign}.{digits}f}%"


if __name__ == "__main__":
    main()
