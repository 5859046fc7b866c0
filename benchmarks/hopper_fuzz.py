"""Random cases on an H100 or H200: whether the kernels in Gluon agree with float64, and give the same bits each time.

    PYTHONPATH=. python benchmarks/hopper_fuzz.py            # on the GPU itself, from the repository's root

Decode: shapes, lengths from 0 on, pages in random order, NaN wherever no token is and page numbers that there are not,
each compared by `mla_ref.testing`. Prefill: packed sequences of any lengths, 0 among them, parts of wider tensors. One
case in `EACH` is called `REPEATED` times. Cases are spread over processes, since the host makes them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import record
import torch
from peers import random_lengths

import mla_ref
from mla_ref import kernels
from mla_ref.testing import paged_case

CASES = {"decode": 504, "prefill": 1008}
PROCESSES, EACH, REPEATED = 12, 42, 20
EDGES = (0, 1, 5, 63, 64, 65, 127, 128, 129, 130, 255, 256, 300, 1100)


def main() -> None:
    """Check everything; write the record."""
    parts = [
        subprocess.Popen([sys.executable, __file__, "--part", str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    said = [part.communicate()[0] for part in parts]
    if any(part.returncode for part in parts):
        sys.exit("a case does not agree")
    found = [json.loads(each.splitlines()[-1]) for each in said]
    figures = {kind: {name: sum(each[kind][name] for each in found) for name in found[0][kind]} for kind in CASES}
    print(figures)
    print(record.write(f"hopper_fuzz_{record.gpu()}", {"repeats": REPEATED, **figures}, ("triton",)))


def part(n: int) -> dict[str, dict[str, int]]:
    """Check the cases of one process; return how many agreed, and how many gave the same bits each time."""
    torch.set_grad_enabled(False)
    found = {}
    for kind, check in (("decode", decode), ("prefill", prefill)):
        seeds, again = range(n, CASES[kind], PROCESSES), 0
        for number, seed in enumerate(seeds):
            call = check(seed)
            if number % EACH == 0:
                first, *others = (call() for _ in range(REPEATED))
                assert all(torch.equal(x, y) for each in others for x, y in zip(first, each, strict=True)), (kind, seed)
                again += 1
        found[kind] = {"agree": len(seeds), "same_bits": again}
    return found


def decode(seed: int) -> Any:
    """Check a decode over pages; return it."""
    choose = random.Random(seed)
    S, H = choose.choice([(1, 17), (1, 40), (1, 64), (1, 128), (2, 16), (2, 128), (3, 20), (4, 16), (4, 128)])
    case = paged_case(
        seq_lens=random_lengths(choose), num_queries=S, num_heads=H, page_size=choose.choice([64, 128, 192]), seed=seed,
        dtype=choose.choice([torch.float16, torch.bfloat16]), causal=choose.random() < 0.7, device="cuda",
    )  # fmt: skip
    num_splits = choose.choice([None, 1, 2, 3, 7])
    call = lambda: kernels.paged_latent_attention_hopper(**case.inputs, num_splits=num_splits)
    case.check(*call())
    return call


def prefill(seed: int) -> Any:
    """Check a ragged prefill; return it."""
    choose = random.Random(seed)
    B, H = choose.choice([1, 2, 3, 7, 40]), choose.choice([1, 2, 3, 16])
    keys = [choose.choice(EDGES) for _ in range(B - 1)] + [choose.randrange(1, 1200)]
    queries = keys if choose.random() < 0.4 else [choose.choice(EDGES) for _ in range(B)]
    dtype, room = choose.choice([torch.float16, torch.bfloat16]), choose.choice([0, 8, 64])
    torch.manual_seed(seed)
    q, k, v = (
        torch.randn(sum(lengths), H, width + room, device="cuda").to(dtype)[..., :width]
        for lengths, width in ((queries, 192), (keys, 192), (keys, 128))
    )
    ends = [torch.tensor([0, *each], device="cuda").cumsum(0) for each in (queries, keys)]
    options = {"causal": choose.random() < 0.7, "bottom_right": choose.random() < 0.7}
    call = lambda: kernels.ragged_attention(q, k, v, *ends, **options)
    out, lse = call()
    exact, exact_lse = mla_ref.ragged_attention(*(x.double() for x in (q, k, v)), *ends, **options)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-4)
    assert (out.double() - exact).norm() <= 4e-3 * exact.norm(), seed
    return call


if __name__ == "__main__":
    print(json.dumps(part(int(sys.argv[2])))) if "--part" in sys.argv else main()
