"""What each step brings that keeps Hopper's tensor cores busy: kernels with one step taken back, side by side.

    PYTHONPATH=. python benchmarks/hopper_steps.py            # on the GPU itself, from the repository's root; takes ncu

The kernels are the solutions of lesson 14 and the decode kernel for Hopper. A step is taken back by an edit of the
kernel's text. Every form is compared with float64 before it is timed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import counters
import record
import torch
from decode import DR, ERROR, PAGE_SIZE, SCALE, R, exact_decode
from edits import Edits, edited, of_kernel
from timings import cold, relative_error

from autograder.course.course import Course
from autograder.course.lesson import without_marks
from mla_ref import kernels
from mla_ref.kernels import decode_hopper, ragged_hopper

LESSON = "14_last_factor"
PRODUCT_LOOP = """    for i in range(gl.minimum(STAGES - 1, blocks)):
        fetch(a_desc, b_desc, a, b, full, row, column, i)
    for i in range(blocks):
        place = i % STAGES
"""
WAIT_FOR_ONE = "acc = warpgroup_mma_wait(1, deps=(acc,))"
FETCH_AHEAD = """        if i + STAGES - 1 < blocks:
            fetch(a_desc, b_desc, a, b, full, row, column, i + STAGES - 1)
"""
AT_ONCE = """    for i in range(blocks):
        place = i % STAGES
        fetch(a_desc, b_desc, a, b, full, row, column, i)
"""
# Of the solutions of lesson 14, the steps that are taken back.
PRODUCT: dict[str, Edits] = {
    "one after the other": [
        (PRODUCT_LOOP, AT_ONCE),
        (WAIT_FOR_ONE, WAIT_FOR_ONE.replace("1", "0", 1)),
        (FETCH_AHEAD, ""),
    ],
    "tiles fetched ahead": [(WAIT_FOR_ONE, WAIT_FOR_ONE.replace("1", "0", 1))],
    "a product under way, too": [],
}
ONE_WARPGROUP: Edits = [
    ("mbarrier.expect(q_full, 2 * ROWS", "mbarrier.expect(q_full, ROWS"),
    ("for half in gl.static_range(2):\n        tma", "for half in gl.static_range(1):\n        tma"),
    ("mbarrier.init(k_free.index(j), count=2)", "mbarrier.init(k_free.index(j), count=1)"),
    ("mbarrier.init(v_free.index(j), count=2)", "mbarrier.init(v_free.index(j), count=1)"),
    ("h * S + 2 * ROWS * gl", "h * S + ROWS * gl"),
    ("            (attend, (q, k, v, bars, out_ptr, row, blocks, scale, 1)),\n", ""),
    ("        [4, 4],\n        [240, 24],", "        [4],\n        [24],"),
    ("[(S // 128, H)]", "[(S // 64, H)]"),
]
LOOP = ("    mbarrier.wait(q_full, 0)\n", "    offs_m = row + ROWS")  # where that loop begins and ends
# A store that nobody reads: without it the compiler puts the softmax behind the wait for the product.
HELD: Edits = [
    ("        fresh = gl", "        sums.index(HALF).store(l_i)\n        fresh = gl"),
    ("wait(0, deps=(acc, weights))  #", "wait(0, deps=(acc, weights, fresh, l_i))[:2]  #"),
    ("def attend(q, k, v, bars, out_ptr", "def attend(q, k, v, sums, bars, out_ptr"),
    ("(attend, (q, k, v, bars,", "(attend, (q, k, v, sums, bars,"),
    (
        "    mbarrier.init(q_full, count=1)\n",
        "    sums = gl.allocate_shared_memory(gl.float32, [2, ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))\n"
        "    mbarrier.init(q_full, count=1)\n",
    ),
]
ALIKE: Edits = [("[240, 24]", "[168, 168]")]
# And of our kernels: of prefill and of decode.
PREFILL: dict[str, Edits] = {
    "the kernel as it is": [],
    "without turns": [
        ("mbarrier.wait(turns.index(HALF)", "#"),
        ("                mbarrier.arrive(turns.index(1 - HALF))\n", ""),
    ],
    "the softmax where the compiler wants it": [("                sums.index(HALF).store(l_i)", "                #")],
}
PREFILL["both"] = [*PREFILL["without turns"], *PREFILL["the softmax where the compiler wants it"]]
MAXIMA = {
    "even": ("        m_even.store(m_ij)\n        mbarrier.arrive(ready.index(0))\n", "ready.index(1)"),
    "odd": ("        m_odd.store(m_i)\n        mbarrier.arrive(ready.index(2))\n", "ready.index(3)"),
}
MASKED = "qk = _masked(warpgroup_mma_wait(1, deps=(qk,)), start_n + BLOCK, seen, seen_by_all)"
WHOLE_BLOCKS = "            mbarrier.wait(free.index(2 * j), phase)\n"
DECODE: dict[str, Edits] = {
    "the kernel as it is": [],
    "no product under the softmax": [
        (
            MASKED,
            "qk, acc = warpgroup_mma_wait(0, deps=(qk, acc))\n"
            "        qk = _masked(qk, start_n + BLOCK, seen, seen_by_all)",
        )
    ],
    "maxima handed on with the weights": [
        (store, store.splitlines(keepends=True)[0]) for store, _ in MAXIMA.values()
    ] + [
        (f"        mbarrier.arrive({late})\n", f"        mbarrier.arrive({early})\n        mbarrier.arrive({late})\n")
        for early, late in (("ready.index(0)", "ready.index(1)"), ("ready.index(2)", "ready.index(3)"))
    ],
    "a block's place is free as a whole": [
        (WHOLE_BLOCKS, WHOLE_BLOCKS + WHOLE_BLOCKS.replace("2 * j", "2 * j + 1")),
        ("            mbarrier.wait(free.index(2 * j + 1), phase)\n            mbarrier.expect(full.index(2 * j + 1)",
         "            mbarrier.expect(full.index(2 * j + 1)"),
    ],
    "addresses known before the loop": [("zero = i >> 24", "zero = 0")],
    "stores of 2 bytes": [("    if ALIGNED:", "    if False:")],
}  # fmt: skip
SIZES = {"piped_product": dict(M=4096, N=4096, K=4096), "two_warpgroups": dict(H=16, S=4096, T=4096)}
DECODE_SIZE = dict(B=128, H=128, T=4096)
PREFILL_SIZE = dict(S=8192, H=128)
CHECKED = 1024  # rows of a prefill that are compared


def attention_forms() -> dict[str, Edits]:
    """Return the steps that are taken back of the attention of lesson 14, by name."""
    text = without_marks(lesson().solutions["two_warpgroups"])
    start, end = text.index(LOOP[0]) + len(LOOP[0]), text.index(LOOP[1])
    in_turn = [(text[start:end], course().module(LESSON, "sample_class").IN_TURN)]
    return {
        "one warpgroup and a loader": [*in_turn, *ONE_WARPGROUP],
        "two warpgroups and a loader": in_turn,
        "and two products at once, registers shared alike": ALIKE,
        "and two products at once": [],
        "and the softmax held in front of the wait": HELD,
    }


def course() -> Course:
    """Return the course of which lesson 14 is one."""
    return Course.at(Path(__file__).parents[1])


def lesson() -> Any:
    """Return lesson 14."""
    return course().lesson(LESSON)


def of_lesson(exercise: str, edits: Edits) -> Callable[..., Any]:
    """Return the function of a solution of lesson 14 with edits."""
    cells = [*(cell.source for cell in lesson().setup), without_marks(lesson().solutions[exercise])]
    return getattr(edited("\n".join(cells), edits, f"{exercise} {edits}"), exercise)


def decode_forms(*given: Any, **options: Any) -> dict[str, Callable[[], Any]]:
    """Return the decode kernel with each step taken back, by name, and the two in plain Triton."""
    ours = functools.partial(kernels.paged_latent_attention_hopper, *given, **options)
    found: dict[str, Callable[[], Any]] = {
        "plain Triton": functools.partial(kernels.paged_latent_attention, *given, **options),
        "Triton with TMA": functools.partial(kernels.paged_latent_attention_tma, *given, **options),
    }
    found |= {name: of_kernel(decode_hopper, edits, name)(ours) for name, edits in DECODE.items()}
    return found | {"each part a whole sequence": functools.partial(ours, num_splits=1)}


def operands(device: str = "cuda", **size: int) -> tuple[tuple, dict]:
    """Return what a decode step over pages in random order takes."""
    B, H, T = size["B"], size["H"], size["T"]
    latent, rope = (torch.randn(B, 1, H, width, device=device).bfloat16() for width in (R, DR))
    pages = torch.randn(B * T // PAGE_SIZE, PAGE_SIZE, R + DR, device=device).bfloat16()
    table = torch.randperm(len(pages), device=device).view(B, -1).int()
    lens = torch.full((B,), T, dtype=torch.int32, device=device)
    return (latent, rope, pages[..., :R], pages[..., R:], table), {"scale": SCALE, "seq_lens": lens}


def calls() -> dict[str, dict[str, tuple[Callable[[], Any], float]]]:
    """Return what is timed by kernel and form, with each form's error against float64."""
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    size = SIZES["piped_product"]
    a, b = (torch.randn(size[rows], size["K"], device="cuda").bfloat16() for rows in "MN")
    found: dict[str, dict[str, Callable[[], Any]]] = {"product": {}, "attention": {}}
    exact = {"product": a.double() @ b.double().T}
    for name, edits in PRODUCT.items():
        found["product"][name] = functools.partial(of_lesson("piped_product", edits), a, b)
    found["product"]["torch"] = lambda: a @ b.T
    H, S, T = SIZES["two_warpgroups"].values()
    q, k, v = (torch.randn(H, rows, 128, device="cuda").bfloat16() for rows in (S, T, T))
    weights = (q.double() @ k.double().mT * 128**-0.5).softmax(-1)
    exact["attention"] = weights @ v.double()
    del weights
    for name, edits in attention_forms().items():
        found["attention"][name] = functools.partial(of_lesson("two_warpgroups", edits), q, k, v, 128**-0.5)

    def cudnn() -> Any:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.CUDNN_ATTENTION]):
            return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

    rows = [x.transpose(0, 1).contiguous() for x in (q, k, v)]
    ends = torch.tensor([0, T], device="cuda")
    found["attention"]["plain Triton"] = lambda: ragged(*rows, ends, ends)[0].transpose(0, 1)
    found["attention"]["torch, cuDNN"] = cudnn
    given, options = operands(**DECODE_SIZE)
    cache = torch.cat(given[2:4], -1)[given[4].long()].flatten(1, 2)
    exact["decode"] = exact_decode(*given[:2], cache)
    found["decode"] = {name: lambda run=run: run()[0] for name, run in decode_forms(*given, **options).items()}
    found["prefill"], exact["prefill"] = prefill()
    return {
        kernel: {
            name: (run, relative_error(run()[: len(exact[kernel])].view_as(exact[kernel]), exact[kernel], ERROR, name))
            for name, run in forms.items()
        }
        for kernel, forms in found.items()
    }


def ragged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *ends: torch.Tensor) -> Any:
    """Attend by the kernel for prefill in plain Triton, without a mask."""
    return kernels.ragged_attention(q, k, v, *ends, scale=128**-0.5, causal=False)


def prefill() -> tuple[dict[str, Callable[[], Any]], torch.Tensor]:
    """Return the kernel for prefill with each step taken back, by name, and the first rows of each head in float64."""
    T, H = PREFILL_SIZE.values()
    q, k, v = (torch.randn(T, H, width, device="cuda").bfloat16() for width in (192, 192, 128))
    ends = torch.tensor([0, T], device="cuda")
    exact = [_causal(*(x[:CHECKED, h].double() for x in (q, k, v))) for h in range(H)]
    call = functools.partial(kernels.ragged_attention, q, k, v, ends, ends)
    forms = {name: of_kernel(ragged_hopper, edits, name)(call) for name, edits in PREFILL.items()}
    return {name: lambda run=run: run()[0] for name, run in forms.items()}, torch.stack(exact, 1)


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    later = torch.ones(len(q), len(k), dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.T * 192**-0.5).masked_fill(later, -torch.inf).softmax(-1) @ v


def flop() -> dict[str, float]:
    """Return the FLOPs of each kernel's work."""
    (M, N, K), (H, S, T) = (SIZES[name].values() for name in ("piped_product", "two_warpgroups"))
    B, heads, tokens = DECODE_SIZE.values()
    rows, columns = PREFILL_SIZE.values()
    return {
        "product": 2 * M * N * K,
        "attention": 4 * H * S * T * 128,
        "decode": 2 * B * heads * tokens * (2 * R + DR),
        "prefill": 2 * columns * rows * (rows + 1) // 2 * (192 + 128),
    }


def main() -> None:
    """Time and count everything; write the record."""
    named = calls()
    if "--run" in sys.argv:
        counters.run({f"{kernel}, {name}": run for kernel, each in named.items() for name, (run, _) in each.items()})
        return
    rows = []
    for kernel, forms in named.items():
        times = cold([run for run, _ in forms.values()])
        for (name, (_, error)), time in zip(forms.items(), times, strict=True):
            rate = round(flop()[kernel] / time["cold_us"] / 1e6, 1)
            rows.append({"kernel": kernel, "form": name, **time, "tflop_per_s": rate, "relative_error": error})
            print(f"{kernel:10} {name:40} {time['cold_us']:9.1f} us {rate:7.1f} TFLOP/s  error {error:.2g}", flush=True)
    sizes = {
        "product": SIZES["piped_product"],
        "attention": SIZES["two_warpgroups"],
        "decode": DECODE_SIZE,
        "prefill": PREFILL_SIZE,
    }
    figures = {"sizes": sizes, "flop": flop(), "forms": rows, "counters": counters.counted(__file__)}
    print(record.write(f"hopper_steps_{record.gpu()}", figures, ("triton",)))


if __name__ == "__main__":
    main()
