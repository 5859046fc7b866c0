"""Does the modelled time rank kernels as an H100 does? Fit on half of the variants, ask the other half.

    .venv/bin/python benchmarks/model_validation.py [--counts FILE] [--figure FILE]

Needs `model_measured.json`, which `model_measure.py` writes on the GPU, and no GPU itself. Writes
`model_validation.json` and the constants that `autograder.kernels.cost_model` loads. `--counts` keeps what replay and
compiler reported, which takes minutes.

Compile with the version of Triton that was measured: another one lays out a block's threads differently.

The held-out half is unknown to the fit, but the model's structure was worked out with all of these tasks in view. Two
more tasks, `model_variants.UNSEEN`, were written when model and constants stood, modelled, and measured after that.
Another GPU, `OTHER`, was measured too, and nothing is fitted to it: only its data sheet is another. What a fit to half
of its own measurements gains is told apart. `best_tenth_behind` is how far the best of the tenth of variants that the
model takes for the fastest is behind the fastest.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import random
import statistics
from pathlib import Path
from typing import Any

import model_variants as variants
import record
import torch

from autograder.isolation.sandbox import Limits
from autograder.judging.program import Cell
from autograder.kernels import cost_model
from autograder.kernels.compile import compile_launches
from autograder.kernels.cost_model import Constants
from autograder.kernels.model import SAMPLE, add_up
from autograder.kernels.record import Recording, kernels_of
from autograder.kernels.record import record as record_call
from autograder.kernels.replay import Replayed, replay, replay_request
from autograder.kernels.workers import KernelWorkers
from mla_ref import DEVICES, Cost

Case = tuple[str, str, str]  # task, size, variant

DEVICE, OTHER = "h100", "h200"
FOLDER = Path(__file__).parent
FIXED = ("block",)  # measured by itself: a million empty blocks take 0.606 ns each
SHARES = ("dram", "issue", "tensor", "host", "keep", "foreign")
SPLITS = 20
CONFLICTS = (
    "in float32"  # products without matrix units, bound by conflicts of banks, which the model says it cannot see
)
PULL = 0.001  # of a constant towards the value guessed before the fit, per squared logarithm


def counts_of_all() -> dict[Case, dict[str, Any]]:
    """Record, compile and replay every variant at every size."""
    program = [Cell("variants", Path(variants.__file__).read_text(), required=True)]
    found = {}
    with KernelWorkers(limits=Limits(seconds=300.0, memory=8 << 30)) as workers:
        for task, name, launcher, options in variants.VARIANTS:
            for size, shapes in variants.TASKS[task].items():
                given = {n: torch.empty(s, dtype=getattr(torch, d), device="meta") for n, (s, d) in shapes.items()}
                given |= options
                recording = record_call(workers, program, launcher, given)
                source = kernels_of(program, recording).source
                compiled = compile_launches(workers, source, recording, DEVICE)
                replayed = replay(workers, source, replay_request(recording, given, compiled, sample=SAMPLE))
                bare = [{k: v for k, v in storage.items() if k != "content"} for storage in recording.storages]
                found[task, size, name] = {
                    "recording": dataclasses.asdict(dataclasses.replace(recording, storages=bare)),
                    "counts": replayed.counts,
                    "compiled": compiled,
                }
                print(task, size, name, flush=True)
    return found


def load(path: str | None) -> dict[Case, dict[str, Any]]:
    """Return the counts from the file, or make them and keep them there."""
    if path and Path(path).exists():
        return {tuple(case): found for case, found in json.loads(Path(path).read_text())}
    found = counts_of_all()
    if path:
        Path(path).write_text(json.dumps(list(found.items())))
    return found


def microseconds(found: dict[str, Any], constants: Constants, device: str = DEVICE) -> float:
    """Return the modelled time of one case."""
    recording = Recording(**found["recording"])
    made = add_up(recording, Replayed(found["counts"]), found["compiled"], Cost(), device, constants)
    return made.seconds * 1e6


def halves(cases: list[Case], seed: int) -> tuple[list[Case], list[Case]]:
    """Split by variant, so that all sizes of one are on one side: half of each task, and half of those with atomics,
    whose constant no other variant determines. What is bound by conflicts of banks is not fitted."""
    strata: dict[str, list[tuple[str, str]]] = {}
    for task, name, *_ in variants.VARIANTS:
        if task in variants.UNSEEN:
            continue
        strata.setdefault("atomics" if "atomics" in name else task, []).append((task, name))
    chosen = set()
    for stratum, members in strata.items():
        random.Random(f"{seed} {stratum}").shuffle(members)
        chosen |= set(members[::2])
    mine = [case for case in cases if (case[0], case[2]) in chosen]
    mine = [case for case in mine if not case[2].endswith(CONFLICTS)]
    return mine, [case for case in cases if case not in mine]


def loss(
    constants: Constants, cases: list[Case], found: dict, measured: dict[Case, float], device: str = DEVICE
) -> float:
    """Return the mean squared logarithm of modelled over measured, linear where they are far apart, and the pull."""
    total = 0.0
    for case in cases:
        off = abs(math.log(microseconds(found[case], constants, device) / measured[case]))
        total += off * off if off < 0.4 else 0.8 * off - 0.16
    guess = Constants()
    fields = [field.name for field in dataclasses.fields(Constants)]
    pull = sum(math.log(getattr(constants, name) / getattr(guess, name)) ** 2 for name in fields)
    return total / len(cases) + PULL * pull


def fit(cases: list[Case], found: dict, measured: dict[Case, float], device: str = DEVICE) -> Constants:
    """Return the constants of least loss, one after the other in shrinking steps."""
    best = Constants()
    least, step = loss(best, cases, found, measured, device), 0.3
    names = [field.name for field in dataclasses.fields(Constants) if field.name not in FIXED]
    for _ in range(7):
        for name, factor in itertools.product(names, (1 + step, 1 / (1 + step))):
            while True:
                value = getattr(best, name) * factor
                if name in SHARES and value > 1:
                    break
                tried = dataclasses.replace(best, **{name: value})
                now = loss(tried, cases, found, measured, device)
                if now >= least - 1e-7:
                    break
                best, least = tried, now
        step *= 0.6
    rounded = {name: float(f"{getattr(best, name):.3g}") for name in names}
    return dataclasses.replace(best, **rounded)


def ranks(values: list[float]) -> list[float]:
    """Return ranks, ties shared."""
    return [sum(b < a for b in values) + (sum(b == a for b in values) - 1) / 2 for a in values]


def spearman(a: list[float], b: list[float]) -> float:
    """Return the rank correlation."""
    return statistics.correlation(ranks(a), ranks(b))


def verdict(cases: list[Case], modelled: dict[Case, float], measured: dict[Case, float]) -> dict[str, Any]:
    """Return the rank correlation within each task and size, and the pairs that the model ranks the wrong way round."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault(case[:2], []).append(case)
    within, inverted, ordered = {}, [], [0, 0]
    for (task, size), members in sorted(groups.items()):
        rho = spearman([measured[c] for c in members], [modelled[c] for c in members])
        within[f"{task} {size}"] = {"n": len(members), "spearman": round(rho, 3)}
        for a, b in itertools.permutations(members, 2):
            if measured[a] >= 2 * measured[b] and modelled[a] <= modelled[b]:
                inverted.append(f"{task} {size}: {a[2]} above {b[2]}")
            if measured[a] >= 1.1 * measured[b]:
                ordered[0] += modelled[a] > modelled[b]
                ordered[1] += 1
        fastest = sorted(members, key=modelled.get)[: -(-len(members) // 10)]
        best = min(measured[c] for c in fastest) / min(measured[c] for c in members)
        within[f"{task} {size}"]["best_tenth_behind"] = round(best - 1, 3)
    values = sorted(group["spearman"] for group in within.values())
    errors = sorted(abs(math.log(modelled[c] / measured[c])) for c in cases)
    return {
        "cases": len(cases),
        "spearman_within": within,
        "spearman_mean": round(statistics.mean(values), 3),
        "spearman_median": round(statistics.median(values), 3),
        "spearman_least": values[0],
        "spearman_pooled": round(spearman([measured[c] for c in cases], [modelled[c] for c in cases]), 3),
        "pairs_2x_inverted": inverted,
        "pairs_10_percent_apart": {"right": ordered[0], "all": ordered[1]},
        "median_error": round(math.exp(errors[len(errors) // 2]) - 1, 3),
        "best_tenth_behind_most": max(group["best_tenth_behind"] for group in within.values()),
    }


def calibrated(train: list[Case], rest: list[Case], found: dict, measured: dict[Case, float]) -> dict[str, Any]:
    """Return the verdict on the rest of the other device's measurements, with constants fitted to half of them."""
    constants = fit(train, found, measured, OTHER)
    modelled = {case: microseconds(found[case], constants, OTHER) for case in rest}
    return {"constants": dataclasses.asdict(constants), **verdict(rest, modelled, measured)}


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", help="keep the counts in this file, and read them from it if it is there")
    parser.add_argument("--figure", help="draw the scatter plot into this file")
    options = parser.parse_args()
    stored = json.loads((FOLDER / "model_measured.json").read_text())
    other = json.loads((FOLDER / f"model_measured_{OTHER}.json").read_text())
    measured, measured_there = (
        {(c["task"], c["size"], c["variant"]): c["graph"]["us"] for c in each["cases"]} for each in (stored, other)
    )
    eager = {(c["task"], c["size"], c["variant"]): c["eager"]["us"] for c in stored["cases"]}
    found = load(options.counts)
    cases = [case for case in measured if case[0] not in variants.UNSEEN]
    unseen = [case for case in measured if case[0] in variants.UNSEEN]

    splits = []
    for seed in range(SPLITS):
        train, held_out = halves(cases, seed)
        constants = fit(train, found, measured)
        modelled = {case: microseconds(found[case], constants) for case in cases}
        splits.append((constants, verdict(held_out, modelled, measured)))
        print(seed, splits[-1][1]["spearman_mean"], splits[-1][1]["pairs_2x_inverted"], flush=True)
    constants, on_held_out = splits[0]
    train, held_out = halves(cases, 0)
    modelled = {case: microseconds(found[case], constants) for case in measured}
    means = sorted(each["spearman_mean"] for _, each in splits)
    figures = {
        "measured": {key: stored[key] for key in ("device", "date", "versions")},
        "modelled_device": DEVICES[DEVICE].name,
        "variants": len(variants.VARIANTS),
        "constants": dataclasses.asdict(constants),
        "held_out": on_held_out,
        "unseen": verdict(unseen, modelled, measured),
        "fitted": verdict(train, modelled, measured),
        "all": verdict(cases, modelled, measured),
        "all_against_eager": verdict(cases, modelled, eager),
        "other_device": {
            "measured": {key: other[key] for key in ("device", "date", "versions")},
            "modelled_device": DEVICES[OTHER].name,
            **verdict(
                [*cases, *unseen], {c: microseconds(found[c], constants, OTHER) for c in measured}, measured_there
            ),
        },
        "other_device_calibrated": calibrated(train, [c for c in measured if c not in train], found, measured_there),
        "other_splits": {
            "splits": SPLITS,
            "spearman_mean": {"least": means[0], "median": statistics.median(means), "most": means[-1]},
            "inverted_pairs": [len(each["pairs_2x_inverted"]) for _, each in splits],
        },
        "scatter": [
            {
                **dict(zip(("task", "size", "variant"), case, strict=True)),
                "measured_us": measured[case],
                "modelled_us": round(modelled[case], 3),
                "part": "unseen" if case in unseen else "held out" if case in held_out else "fitted",
            }
            for case in measured
        ],
    }
    print(record.write("model_validation", figures, ("triton",)))
    note = "fitted by benchmarks/model_validation.py on half of the variants; see benchmarks/model_validation.json"
    origin = {"note": note, "measured": figures["measured"], "constants": figures["constants"]}
    cost_model.FITTED.write_text(record.dumps(origin))
    for part in ("held_out", "unseen", "other_device", "other_device_calibrated"):
        print(part, json.dumps({k: v for k, v in figures[part].items() if k != "spearman_within"}, indent=1))
    if options.figure:
        draw(figures, options.figure)


def draw(figures: dict[str, Any], path: str) -> None:
    """Draw modelled against measured time."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 6))
    for task in variants.TASKS:
        for fitted in (True, False):
            rows = [r for r in figures["scatter"] if r["task"] == task and (r["part"] == "fitted") is fitted]
            x, y = [r["measured_us"] for r in rows], [r["modelled_us"] for r in rows]
            label = None if fitted else task
            color = f"C{list(variants.TASKS).index(task)}"
            axes.scatter(x, y, s=14, marker="x" if fitted else "o", color=color, label=label)
    span = [5, 3500]
    axes.plot(span, span, color="grey", linewidth=0.8)
    axes.set(
        xscale="log", yscale="log", xlabel=f"measured on {figures['measured']['device']}, µs", ylabel="modelled, µs"
    )
    axes.set_title("crosses: fitted, dots: held out or unseen")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
