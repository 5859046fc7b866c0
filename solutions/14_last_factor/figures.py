"""The figures of this lesson, from `hopper_steps_h200.json`, `hopper_decode_h200.json` and `counters_h200.json`."""

from ..records import pick, table

AS_IT_IS = "the kernel as it is"
STEPS = {
    "no product under the softmax": "no product under way during the softmax",
    "maxima handed on with the weights": "maximum and weights handed on together",
    "a block's place is free as a whole": "a block's place free as a whole, not by halves",
    "addresses known before the loop": "`zero` a constant: addresses in registers, and registers in memory",
    "stores of 2 bytes": "results stored 2 bytes at a time, not 16",
    "each part a whole sequence": "each program a whole sequence, not an equal share of all tokens",
}
ATTENTION = {
    "plain Triton": "`mla_ref`'s kernel in Triton",
    "one warpgroup and a loader": "one warpgroup and a loader",
    "two warpgroups and a loader": "two warpgroups and a loader",
    "and two products at once, registers shared alike": "two products at once, 168 registers a thread",
    "and two products at once": "two products at once, 240 registers a thread: the solution",
    "and the softmax held in front of the wait": "the softmax held in front of the wait",
    "torch, cuDNN": "cuDNN, from PyTorch",
}
PRODUCT = {
    "one after the other": "one after the other",
    "tiles fetched ahead": "tiles fetched ahead",
    "a product under way, too": "a product under way, too: the solution",
    "torch": "cuBLAS, from PyTorch",
}


def of(record, kernel):
    """Return the rows of a kernel's forms by name, with the counters of its first launch."""
    found = record("hopper_steps_h200")
    counters = {}
    for each in found["counters"]:
        counters.setdefault(each["call"], each)
    rows = [row for row in found["forms"] if row["kernel"] == kernel]
    return {row["form"]: row | counters[f"{kernel}, {row['form']}"] for row in rows}


def shown(rows, names):
    """Return forms as a table."""
    head = ("", "µs", "TFLOP/s", "tensor cores busy", "clock, GHz")
    return table(head, (
        (name, f"{row['cold_us']:,.0f}", f"{row['tflop_per_s']:.0f}", f"{row['tensor_cores_busy_percent']:.0f} %",
         f"{row['clock_hz'] / 1e9:.2f}")
        for name, row in ((name, rows[form]) for form, name in names.items())
    ))  # fmt: skip


def faster(rows, slow, fast):
    """Return by how many percent one form is faster than another."""
    return 100 * (rows[slow]["cold_us"] / rows[fast]["cold_us"] - 1)


def figures(record):
    product, attention, decode = (of(record, kernel) for kernel in ("product", "attention", "decode"))
    kernel, spilling = decode[AS_IT_IS], decode["addresses known before the loop"]
    names = {"plain Triton": "Triton", "Triton with TMA": "Triton, by TMA", AS_IT_IS: "Gluon"}
    rows = (
        (name, f"{faster({0: kernel, 1: decode[form]}, 1, 0):+.1f} %", decode[form]) for form, name in STEPS.items()
    )
    taken_back = [
        (name, more, f"{row['tensor_cores_busy_percent']:.0f} %", f"{row['l2_hits_percent']:.0f} %")
        for name, more, row in rows
    ]
    whole = ("nothing", "", f"{kernel['tensor_cores_busy_percent']:.0f} %", f"{kernel['l2_hits_percent']:.0f} %")
    peers = pick(record("hopper_decode_h200")["decode"], B=128, S=1, H=128, T=4096)["calls"]
    busy = {
        each["call"].rpartition(", ")[2]: each["tensor_cores_busy_percent"]
        for each in reversed(record("counters_h200")["kernels"])
        if each["call"].startswith("decode B128 H128 T4096")
    }
    return {
        "tma_busy": f"{decode['Triton with TMA']['tensor_cores_busy_percent']:.0f}",
        "decode_gflop": f"{record('hopper_steps_h200')['flop']['decode'] / 1e9:.0f}",
        "decode_forms": {
            name: (decode[form]["tflop_per_s"], round(decode[form]["tensor_cores_busy_percent"]))
            for form, name in names.items()
        },
        "product_table": shown(product, PRODUCT),
        "product_busy": {form: round(product[form]["tensor_cores_busy_percent"]) for form in [*PRODUCT][:3]},
        "in_turn_us": round(product["one after the other"]["cold_us"]),
        "attention_table": shown(attention, ATTENTION),
        "two_at_once": f"{faster(attention, 'two warpgroups and a loader', 'and two products at once'):.0f}",
        "held": f"{faster(attention, 'and two products at once', 'and the softmax held in front of the wait'):.0f}",
        "decode_table": table(("taken back", "takes longer by", "tensor cores busy", "L2 hits"), [whole, *taken_back]),
        "spill_hits": f"{spilling['l2_hits_percent']:.0f}",
        "kernel_hits": f"{kernel['l2_hits_percent']:.0f}",
        "flash_mla": f"{peers['FlashMLA']['tflop_per_s']:.0f}",
        "ours": f"{peers['kernels.paged_latent_attention_hopper']['tflop_per_s']:.0f}",
        "flash_mla_busy": f"{busy['FlashMLA']:.0f}",
        "ours_busy": f"{busy['ours']:.0f}",
    }
