"""How fast does the emulator run kernels, beside Triton's interpreter?

    python benchmarks/emulator.py

Both run the package's kernels on the CPU, on equal arguments, each in a process of its own: Triton chooses when it is
imported. `specialisation` is what the first launch of a kernel takes longer than later ones, after some other kernel
was launched: once with an empty cache, and once in a fresh process that finds the compiled kernel on disk. It is null
where an earlier case launched the same specialisation. Times are the processor's, of one thread: those of a clock on
the wall where nothing else runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import record
import torch
from torch import Tensor

H, R, DR, PAGE = 16, 512, 64, 16
EMULATED, INTERPRETED = 9, 2  # launches timed
TORCH_THREADS = 1  # more of them wait for each other where the machine is shared


def main() -> None:
    """Measure and write the record."""
    loads = [os.getloadavg()[0]]
    with tempfile.TemporaryDirectory() as cache:
        ours = child("emulated", OMP_NUM_THREADS=TORCH_THREADS, TRITON_CACHE_DIR=cache)
        again = child("first", OMP_NUM_THREADS=TORCH_THREADS, TRITON_CACHE_DIR=cache)
    theirs = child("interpreted", OMP_NUM_THREADS=TORCH_THREADS, TRITON_INTERPRET=1)
    loads.append(os.getloadavg()[0])
    cases = {}
    for name, timing in ours.items():
        slow = theirs[name]
        cases[name] = {
            **timing,
            "specialisation_cached_ms": again[name]["specialisation_ms"],
            "interpreter_ms": slow["ms"],
            "interpreter_noise": slow["noise"],
            "times_as_fast": round(slow["ms"] / timing["ms"], 1),
        }
    width = max(map(len, cases))
    print(f"{'':{width}}  emulator ms (noise)  interpreter ms (noise)  ratio  new specialisation ms, from disk")
    for name, found in cases.items():
        print(
            f"{name:{width}}  {found['ms']:11.2f} ({found['noise']:4.0%})  {found['interpreter_ms']:14.1f} "
            f"({found['interpreter_noise']:4.0%})  {found['times_as_fast']:5.1f}  "
            f"{found['specialisation_ms'] or '':>21}  {found['specialisation_cached_ms'] or '':>9}"
        )
    ratios = [found["times_as_fast"] for found in cases.values()]
    figures = {
        "torch_threads": TORCH_THREADS,
        "load_average": dict(zip(("before", "after"), (round(each, 2) for each in loads), strict=True)),
        "times_as_fast": {"least": min(ratios), "most": max(ratios)},
        "specialisation_ms": {
            kind: max(found[f"{kind}_ms"] or 0 for found in cases.values())
            for kind in ("specialisation", "specialisation_cached")
        },
        "cases": cases,
    }
    print(record.write("emulator", figures, ("triton",)))


def child(how: str, **environment: Any) -> dict[str, Any]:
    """Return what this file measures in a process of its own."""
    given = {**os.environ, **{name: str(value) for name, value in environment.items()}}
    if "TRITON_INTERPRET" not in environment:
        given.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, __file__, how], env=given, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(how: str) -> None:
    """Print the timings of all cases as JSON: "emulated", "interpreted", or the "first" launches alone."""
    from mla_ref import kernels

    if how != "interpreted":
        from mla_ref.hardware.emulator.backend import loaded

    kernels.rms_norm(torch.ones(2, 3), torch.ones(3))  # imports what the first launch of all imports
    found = {}
    for name, launch in cases(kernels).items():
        known = 0 if how == "interpreted" else loaded.cache_info().misses
        first = processor_seconds(launch)
        repeat = {"emulated": EMULATED, "interpreted": INTERPRETED, "first": 3}[how]
        low, *_, high = samples = sorted(processor_seconds(launch) for _ in range(repeat))
        median = statistics.median(samples)
        found[name] = {"ms": round(1e3 * median, 3), "noise": round((high - low) / median, 3)}
        if how != "interpreted":
            extra = round(1e3 * (first - median), 1)
            found[name]["specialisation_ms"] = extra if loaded.cache_info().misses > known else None
        print(name, found[name], file=sys.stderr)
    print(json.dumps(found))


def processor_seconds(launch: Callable[[], Any]) -> float:
    """Return the processor's time for a launch."""
    started = time.process_time()
    launch()
    return time.process_time() - started


def cases(kernels: Any) -> dict[str, Callable[[], Any]]:
    """Return launches by name; sizes are such that Triton's interpreter takes about 0.1 s to 1 s."""
    torch.manual_seed(0)
    half = lambda *shape: torch.randn(shape).half()
    weight, scale = half(2048), 192**-0.5
    wide = half(512, 2048)
    cos, sin = torch.rand(2, 64, DR // 2).unbind()
    q_rope, k_rope = half(1, 64, H, DR), half(1, 64, DR)
    token, decode = (half(4, 64, R), half(4, 64, DR)), attention(4, 1, 256, half)
    pages = paged(4, 256, half)
    lengths, ragged = torch.tensor([256] * 4), torch.tensor([256, 3, 40, 0])
    scores = torch.randn(2, 4, H, 1024)
    parts = torch.randn(4, 2, 4, H, R), torch.randn(4, 2, 4, H)
    starts = torch.tensor([5, 60, 111, 128])
    return {
        "rms_norm 512x2048": lambda: kernels.rms_norm(wide, weight),
        "rms_norm_rows 512x2048": lambda: kernels.rms_norm_rows(wide, weight),
        "apply_rope": lambda: kernels.apply_rope(q_rope, cos, sin),
        "apply_rope_qk": lambda: kernels.apply_rope_qk(q_rope, k_rope, cos, sin),
        "paged_update": lambda: kernels.paged_update(*token, *pages, starts=starts),
        "paged_gather": lambda: kernels.paged_gather(*pages, lengths=lengths),
        "attention_score": lambda: kernels.attention_score(*decode, scale=scale),
        "masked_softmax": lambda: kernels.masked_softmax(scores),
        "latent_attention": lambda: kernels.latent_attention(*decode, scale=scale),
        "latent_attention, ragged": lambda: kernels.latent_attention(*decode, scale=scale, seq_lens=ragged),
        "latent_attention_tma": lambda: kernels.latent_attention_tma(*decode, scale=scale),
        "paged_latent_attention": lambda: kernels.paged_latent_attention(
            *decode[:2], *pages, scale=scale, seq_lens=lengths
        ),
        "paged_latent_attention, ragged": lambda: kernels.paged_latent_attention(
            *decode[:2], *pages, scale=scale, seq_lens=ragged
        ),
        "paged_latent_attention_tma": lambda: kernels.paged_latent_attention_tma(
            *decode[:2], *pages, scale=scale, seq_lens=lengths
        ),
        "combine": lambda: kernels.combine(*parts),
    }


def attention(B: int, S: int, T: int, half: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    """Return q_latent, q_rope, c_kv and k_rope."""
    return half(B, S, H, R), half(B, S, H, DR), half(B, T, R), half(B, T, DR)


def paged(B: int, T: int, half: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the pages of c_kv and k_rope, and a block table in random order."""
    count = B * T // PAGE
    return half(count, PAGE, R), half(count, PAGE, DR), torch.randperm(count).reshape(B, -1)


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
