"""Anyone's decode over pages beside ours: whether it is right, and how fast. What `mla-course bench --peer` does.

A peer is called with the arguments of :func:`mla_ref.paged_latent_attention`, all by name, and returns ``out`` or
``(out, lse)``. Everything is in bfloat16, pages have 64 tokens, widths are DeepSeek-V3's. ``c_kv`` and ``k_rope`` are
the two parts of one buffer: a peer that takes it whole gets it by ``c_kv.as_strided((*c_kv.shape[:2], 576),
c_kv.stride())``, which copies nothing.

It is called with :data:`CASES` cases of random lengths first, 0 and the ends of pages among them, with NaN wherever no
token is, and compared with float64. What is wrong is not timed.
"""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from decode import ERROR, OURS, decode

from mla_ref.testing import paged_case

Peer = Callable[..., Any]
Size = tuple[int, int, int, int]

CASES = 50
EDGES = (0, 1, 63, 64, 65, 127, 128, 129, 192)
SHAPES = [(1, 16), (1, 64), (1, 128), (2, 16), (2, 128), (4, 16), (4, 128)]  # S and H
SIZES: list[Size] = [(1, 1, 16, 8192), (16, 1, 128, 8192), (128, 1, 16, 4096), (128, 1, 128, 4096)]  # B, S, H, T


class PeerError(ValueError):
    """What was named is no function, or a size is none."""


def find(name: str) -> Peer:
    """Return the function that MODULE:FUNCTION names. This folder's modules are found, and what is installed.

    Raises PeerError if there is none.
    """
    module, _, function = name.partition(":")
    if not (module and function):
        raise PeerError(f"--peer {name}: expected MODULE:FUNCTION, such as my_kernels:decode")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise PeerError(f"--peer {name}: {module} cannot be imported: {error}") from error
    if not callable(found):
        raise PeerError(f"--peer {name}: {module} has no function {function}")
    return found


def size(text: str) -> Size:
    """Return B, S, H and T of a text such as "128,1,16,4096". Raises PeerError if it is none."""
    numbers = [int(part) for part in text.split(",") if part.strip().isdecimal()]
    if len(numbers) != 4 or len(text.split(",")) != 4 or min(numbers) < 1 or numbers[3] % 64:
        raise PeerError(f"--size {text}: expected B,S,H,T, such as 128,1,16,4096, T a multiple of 64")
    return tuple(numbers)


def random_lengths(choose: random.Random) -> list[int]:
    """Return the lengths of one to five sequences, the ends of pages among them."""
    return [choose.choice([choose.choice(EDGES), choose.randrange(1500)]) for _ in range(choose.randrange(1, 6))]


def what_is_wrong(peer: Peer, device: str, step: Callable[[str], None]) -> str | None:
    """Return a sentence on the first case that a peer gets wrong, or None."""
    for seed in range(CASES):
        choose = random.Random(seed)
        S, H = choose.choice(SHAPES)
        lengths = random_lengths(choose)
        case = paged_case(seq_lens=lengths, num_queries=S, num_heads=H, dtype=torch.bfloat16, device=device, seed=seed)
        parts = case.c_kv.shape[-1], case.k_rope.shape[-1]
        c_kv, k_rope = torch.cat((case.c_kv, case.k_rope), -1).split(parts, -1)
        where = f"S = {S}, H = {H}, seq_lens = {lengths}"
        try:
            found = peer(**case.inputs | {"c_kv": c_kv, "k_rope": k_rope})
            case.check(*found if isinstance(found, tuple) else (found,))
        except AssertionError as error:
            return f"{where}: {error}"
        except Exception as error:  # whatever a stranger's function raises
            return f"{where}: {type(error).__name__}: {error}"
        step(f"case {seed + 1}")
    return None


def measure(peers: Mapping[str, Peer], sizes: Sequence[Size], step: Callable[[str], None]) -> list[dict[str, Any]]:
    """Time peers and the fastest kernel of ours in turns, at each size, as `decode.py` does.

    Where a result is further from float64 than ours may be, there is a sentence, `wrong`, in place of times.
    """
    found = []
    for B, S, H, T in sizes:
        try:
            found.append(decode(B, S, H, T, others=peers, show=False))
        except AssertionError as error:
            found.append({"B": B, "S": S, "H": H, "T": T, "wrong": f"{error}, expected less than {ERROR}"})
        step(f"B={B} S={S} H={H} T={T}")
    return found


def told(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return lines on what was measured."""
    for each in found:
        yield "B={B} S={S} H={H} T={T}".format_map(each)
        if "wrong" in each:
            yield f"  {each['wrong']}"
            continue
        ours = each["calls"][OURS]["cold_us"]
        for name, figures in each["calls"].items():
            line = "  {:32} {cold_us:8.1f} us ({cold_low_us:.1f} to {cold_high_us:.1f}) {gb_per_s:6.0f} GB/s"
            line += " {tflop_per_s:6.1f} TFLOP/s, error {relative_error}; {:.2f} of our speed"
            yield line.format(name, ours / figures["cold_us"], **figures)
