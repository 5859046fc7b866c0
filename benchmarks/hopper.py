"""Decode on an H100 or H200: our kernels beside FlashMLA, and whether the one in Gluon is right.

    PYTHONPATH=. python benchmarks/hopper.py            # on the GPU itself, from the repository's root

The sizes are those that serving asks for, each measured as `decode.py` measures it: every output is compared with
float64 first. `fuzzed` are cases of random shape, lengths and pages, NaN wherever no token is, each compared with
float64 by `mla_ref.testing`. `repeated` calls gave the same bits.
"""

from __future__ import annotations

import importlib
import importlib.util
import random

import record
import torch
from decode import decode
from peers import random_lengths

from mla_ref import kernels
from mla_ref.hardware.timing import measure_copy_bandwidth
from mla_ref.testing import paged_case

# B, S, H, T
SHAPES = [
    (128, 1, 128, 4096),
    (64, 1, 128, 16384),
    (32, 1, 128, 4096),
    (16, 1, 128, 8192),
    (64, 1, 64, 4096),
    (128, 1, 64, 4096),
    (64, 2, 128, 4096),
    (128, 1, 16, 4096),
    (1, 1, 16, 8192),
    (1, 1, 128, 8192),
]
FUZZED, REPEATED = 500, 20


def main() -> None:
    """Measure everything; write the record."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    name = f"hopper_decode_{record.gpu()}"
    figures = {
        "copy_bytes_per_s": measure_copy_bandwidth("cuda"),
        "flash_mla": importlib.import_module("flash_mla").__version__
        if importlib.util.find_spec("flash_mla")
        else None,
        "decode": [decode(*shape) for shape in SHAPES],
        "copy_bytes_per_s_at_the_end": measure_copy_bandwidth("cuda"),
    }
    record.write(name, figures, ("triton",))
    print(record.write(name, {**figures, **checked()}, ("triton",)))


def checked() -> dict[str, int]:
    """Return how many cases agreed with float64 and how many calls with the first; stop at one that does not."""
    for seed in range(FUZZED):
        choose = random.Random(seed)
        S, H = choose.choice([(1, 17), (1, 40), (1, 64), (1, 128), (2, 16), (2, 128), (3, 20), (4, 16), (4, 128)])
        case = paged_case(
            seq_lens=random_lengths(choose), num_queries=S, num_heads=H, page_size=choose.choice([64, 128]), seed=seed,
            dtype=choose.choice([torch.float16, torch.bfloat16]), causal=choose.random() < 0.7, device="cuda",
        )  # fmt: skip
        num_splits = choose.choice([None, 1, 2, 3, 7])
        first = kernels.paged_latent_attention_hopper(**case.inputs, num_splits=num_splits)
        case.check(*first)
        if seed % 50 == 0:
            print(f"{seed + 1} cases of random shape agree", flush=True)
            for _ in range(REPEATED - 1):
                again = kernels.paged_latent_attention_hopper(**case.inputs, num_splits=num_splits)
                assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True)), seed
    return {"fuzzed": FUZZED, "repeated": REPEATED}


if __name__ == "__main__":
    main()
