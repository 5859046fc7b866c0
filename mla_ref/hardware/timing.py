"""Clocks: how long a call takes, and how fast this machine copies and multiplies."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, 20th and 80th percentile, over ``n`` calls."""

    median: float
    p20: float
    p80: float
    n: int

    @property
    def noise(self) -> float:
        """Spread (p80 - p20) as a fraction of the median."""
        return (self.p80 - self.p20) / self.median

    def __str__(self) -> str:
        return f"{_seconds(self.median)} (p20 {_seconds(self.p20)}, p80 {_seconds(self.p80)}, n={self.n})"


def bench(
    fn: Callable[[], object],
    *,
    warmup: int = 3,
    repeat: int = 20,
    device: torch.device | str | None = None,
) -> Timing:
    """Time a call without arguments.

    On a GPU each call stands between two events, behind a write of twice the L2 cache, which empties it and
    keeps the queue ahead of the host. On a CPU caches are as the previous call left them.

    Parameters
    ----------
    fn
        What to time.
    warmup, repeat
        Calls before the clock starts, and calls timed.
    device
        Where ``fn`` runs; the GPU if there is one.

    Raises
    ------
    ValueError
        ``repeat`` is not positive.
    """
    if repeat < 1:
        raise ValueError(f"repeat is {repeat}, expected at least 1")
    device = _device(device)
    for _ in range(warmup):
        fn()
    samples = _gpu_samples(fn, repeat, device) if device.type == "cuda" else _cpu_samples(fn, repeat)
    if repeat == 1:
        return Timing(samples[0], samples[0], samples[0], 1)
    p20, _, _, p80 = statistics.quantiles(samples, n=5, method="inclusive")
    return Timing(statistics.median(samples), p20, p80, repeat)


def measure_copy_bandwidth(device: torch.device | str | None = None, nbytes: int | None = None) -> float:
    """Return bytes/s, read plus written, of a copy: of ``nbytes``, or 1 GiB on a GPU and 128 MiB on a CPU."""
    device = _device(device)
    nbytes = nbytes or (2**30 if device.type == "cuda" else 2**27)
    source = torch.ones(nbytes, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * nbytes / bench(lambda: target.copy_(source), repeat=7, device=device).median


def measure_matmul_rate(
    device: torch.device | str | None = None, dtype: torch.dtype | None = None, size: int | None = None
) -> float:
    """Return FLOP/s of a square matrix product on random data.

    Parameters
    ----------
    device
        The GPU if there is one.
    dtype
        float32 on a CPU; on a GPU bfloat16, or float16 before sm_80.
    size
        8192 on a GPU, 1024 on a CPU.
    """
    device = _device(device)
    gpu = device.type == "cuda"
    if dtype is None:
        half = torch.bfloat16 if gpu and torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
        dtype = half if gpu else torch.float32
    size = size or (8192 if gpu else 1024)
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    out = torch.empty_like(a)
    return 2 * size**3 / bench(lambda: torch.mm(a, b, out=out), repeat=7, device=device).median


def _device(device):
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def _cpu_samples(fn, repeat):
    samples = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn()
        samples.append(time.perf_counter() - start)
    return samples


def _gpu_samples(fn, repeat, device):
    with torch.cuda.device(device):
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
        scratch = torch.empty(2 * l2_bytes, dtype=torch.uint8, device=device)
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeat)]
        for start, end in events:
            scratch.zero_()
            start.record()
            fn()
            end.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


def _seconds(value):
    for unit, size in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns"
