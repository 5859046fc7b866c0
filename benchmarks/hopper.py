"""Decode on an H100 or H200: our kernels beside FlashMLA.

    PYTHONPATH=. python benchmarks/hopper.py            # on the GPU itself, from the repository's root

The sizes are those that serving asks for, each measured as `decode.py` measures it: every output is compared with
float64 first. `hopper_fuzz.py` checks random cases.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import record
import torch
from decode import DR, FLASH_MLA, PAGE_SIZE, SCALE, R, decode, flash_mla
from timings import cold, graph_us, host_us

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
# Lengths, S, H: ThunderMLA's example
RAGGED = [((4641, 45118, 1730, 1696), 4, 16)]


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
        "ragged": [ragged(*shape) for shape in RAGGED],
        "copy_bytes_per_s_at_the_end": measure_copy_bandwidth("cuda"),
    }
    print(record.write(name, figures, ("triton",)))


def ragged_calls(lengths: tuple[int, ...], S: int, H: int) -> dict[str, Callable[[], Any]]:
    """Return decodes of sequences of several lengths by name, each compared with float64: ours over pages, FlashMLA."""
    case = paged_case(
        seq_lens=list(lengths), num_queries=S, num_heads=H, page_size=PAGE_SIZE, dtype=torch.bfloat16, device="cuda"
    )
    case = dataclasses.replace(case, scale=SCALE)
    pages = torch.cat((case.c_kv, case.k_rope), -1).nan_to_num(0)  # FlashMLA multiplies what no token is by 0
    given = case.inputs | {"c_kv": pages[..., :R], "k_rope": pages[..., R:]}
    calls = {
        f"kernels.{call.__name__}": lambda call=call: call(**given)
        for call in (kernels.paged_latent_attention_tma, kernels.paged_latent_attention_hopper)
    }
    for call in calls.values():
        case.check(*call())
    if FLASH_MLA:
        q = torch.cat((given["q_latent"], given["q_rope"]), -1)
        calls["FlashMLA"] = flash_mla(q, pages, given["block_table"], given["seq_lens"])
        case.check(calls["FlashMLA"]())
    return calls


def ragged(lengths: tuple[int, ...], S: int, H: int) -> dict[str, Any]:
    """Measure sequences of several lengths."""
    calls = ragged_calls(lengths, S, H)
    found = {
        name: {**timing, "graph_us": graph_us(run), "host_us": host_us(run)}
        for (name, run), timing in zip(calls.items(), cold(list(calls.values())), strict=True)
    }
    print(lengths, S, H, {name: each["cold_us"] for name, each in found.items()}, flush=True)
    return {"seq_lens": list(lengths), "S": S, "H": H, "cache_bytes": sum(lengths) * 2 * (R + DR), "calls": found}


if __name__ == "__main__":
    main()
