"""The figures of this lesson, from `benchmarks/generation_h200.json`."""

from ..records import pick, table

FORMS = {"naive": "naive", "absorb": "absorb, PyTorch", "triton, tma, pages": "absorb, the kernel, from pages"}
KERNEL = "triton, tma, pages"
PARTS = ("attention and cache", "projections", "feed-forward", "norms", "head", "rest")


def figures(record):
    """Return the figures by name."""
    found = record("generation_h200")
    rows = []
    for B in (1, 64):
        for form, name in FORMS.items():
            spent = pick(found["parts"], B=B, attention=form)["device_us"]
            step = pick(found["steps"], B=B, attention=form)["step_us"]
            rows.append((str(B), name, *(f"{spent[part]:,.0f}" for part in PARTS), f"{step:,.0f}"))
    step, (few, many) = pick(found["steps"], B=64, attention=KERNEL), (_verified(found, H) for H in (16, 128))
    if not step["step_us"] > 3 * step["device_us"]:
        raise ValueError("lesson 13 says that Python takes much longer to start a step than the GPU to compute it")
    if not few[1] < 2 < many[1]:
        raise ValueError("lesson 13 says that four tokens are cheap to verify with 16 heads and dear with 128")
    spent = pick(found["parts"], B=64, attention=KERNEL)["device_us"]
    return {
        "step_table": table(("B", "attention", *PARTS, "whole step, from Python"), rows),
        "attention_share": f"{100 * spent['attention and cache'] / sum(spent.values()):.0f}",
        "starts": f"{step['step_us'] / step['device_us']:.0f}",
        "few_2": f"{few[0]:.2f}", "few_4": f"{few[1]:.2f}", "many_2": f"{many[0]:.2f}", "many_4": f"{many[1]:.2f}",
    }  # fmt: skip


def _verified(found, H):
    """Return the time of 2 and of 4 tokens over that of one, of the kernel at B = 64."""
    return pick(found["verify"], B=64, of=f"kernel, H={H}, T=4096")["over_one"][1:]
