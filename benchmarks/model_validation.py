"""Does the modelled time rank kernels as an H100 does? Fit on half of the variants, ask the other half.

    .venv/bin/python benchmarks/model_validation.py [--counts FILE] [--also FILE] [--figure FILE]

Needs `model_measured.json`, which `model_measure.py` writes on the GPU, and no GPU itself. Writes
`model_validation.json` and the constants that `autograder.kernels.cost_model` loads. `--counts` keeps what replay and
compiler reported, which takes minutes.

Compile with the version of Triton that was measured: another one lays out a block's threads differently. `--also` names
what was counted with another version, of which the errors are told, too: nothing is fitted to it.

A half that is held out is unknown to the fit, but the model's structure was worked out with all of these tasks in view.
The constants that are written are fitted to both halves. Two more tasks, `model_variants.UNSEEN`, are in no fit.
Another GPU, `OTHER`, was measured too, and no constant is fitted to it: only its data sheet is another. The structure
was worked out with its errors in view, too. What a fit to its own measurements gains is told apart, as
`mla-course bench --calibrate` makes it. `best_tenth_behind` is how far the best of the tenth of variants that the model
takes for the fastest is behind the fastest.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import calibration
import model_fit
import model_variants as variants
import record
import torch
from model_fit import CONFLICTS, Case, Launched

from autograder.isolation.sandbox import Limits
from autograder.judging.program import Cell
from autograder.kernels import cost_model
from autograder.kernels.compile import compile_launches
from autograder.kernels.cost_model import Constants
from autograder.kernels.model import SAMPLE
from autograder.kernels.record import kernels_of
from autograder.kernels.record import record as record_call
from autograder.kernels.replay import replay, replay_request
from autograder.kernels.workers import KernelWorkers
from mla_ref import DEVICES

DEVICE, OTHER = "h100", "h200"
FOLDER = Path(__file__).parent
SPLITS = 20


def all_cases() -> list[Case]:
    """Return every variant at every size."""
    return [(task, size, name) for task, name, *_ in variants.VARIANTS for size in variants.TASKS[task]]


def counted(
    cases: Iterable[Case], device: str = DEVICE, step: Callable[[Case], None] = lambda case: None
) -> dict[Case, dict[str, Any]]:
    """Record, compile for a device and replay each case."""
    program = [Cell("variants", Path(variants.__file__).read_text(), required=True)]
    launchers = {(task, name): rest for task, name, *rest in variants.VARIANTS}
    found = {}
    with KernelWorkers(limits=Limits(seconds=300.0, memory=8 << 30)) as workers:
        for task, size, name in cases:
            launcher, options = launchers[task, name]
            shapes = variants.TASKS[task][size]
            given = {n: torch.empty(s, dtype=getattr(torch, d), device="meta") for n, (s, d) in shapes.items()}
            given |= options
            recording = record_call(workers, program, launcher, given)
            kernels = kernels_of(program, recording)
            compiled = compile_launches(workers, kernels, recording, device)
            replayed = replay(workers, kernels.source, replay_request(recording, given, compiled, sample=SAMPLE))
            bare = [{k: v for k, v in storage.items() if k != "content"} for storage in recording.storages]
            found[task, size, name] = {
                "recording": dataclasses.asdict(dataclasses.replace(recording, storages=bare)),
                "counts": replayed.counts,
                "compiled": compiled,
            }
            step((task, size, name))
    return found


def load(path: str | None) -> tuple[str, dict[Case, Launched]]:
    """Return a version of Triton and what was counted with it: from the file, or made and kept there."""
    if path and Path(path).exists():
        kept = json.loads(Path(path).read_text())
        triton, found = kept["triton"], {tuple(case): each for case, each in kept["cases"]}
    else:
        triton = importlib.metadata.version("triton")
        found = counted(all_cases(), step=lambda case: print(*case, flush=True))
        if path:
            Path(path).write_text(json.dumps({"triton": triton, "cases": list(found.items())}))
    return triton, model_fit.launched(found)


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
    mine = [case for case in mine if not case[2].endswith(CONFLICTS)]  # they are in no fit
    return mine, [case for case in cases if case not in mine]


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


def times(name: str, kind: str = "graph") -> tuple[dict[str, Any], dict[Case, float]]:
    """Return a record of measured times, and its microseconds."""
    stored = json.loads((FOLDER / f"{name}.json").read_text())
    return stored, {(c["task"], c["size"], c["variant"]): c[kind]["us"] for c in stored["cases"]}


def by(found: Mapping[Case, Launched], constants: Constants, device: str) -> dict[Case, float]:
    """Return the modelled time of each case on a device of the table."""
    return model_fit.microseconds(found, constants, DEVICES[device])


def main() -> None:
    """Fit, report, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", help="keep the counts in this file, and read them from it if it is there")
    parser.add_argument("--also", help="counts made with another version of Triton")
    parser.add_argument("--figure", help="draw the scatter plot into this file")
    options = parser.parse_args()
    stored, measured = times("model_measured")
    _, eager = times("model_measured", "eager")
    other, measured_there = times(f"model_measured_{OTHER}")
    triton, found = load(options.counts)
    seen = {case: found[case] for case in measured if case[0] not in variants.UNSEEN}
    unseen = [case for case in measured if case[0] in variants.UNSEEN]
    h100 = DEVICES[DEVICE]

    splits = []
    for seed in range(SPLITS):
        train, held_out = halves(list(seen), seed)
        constants = model_fit.fit({case: seen[case] for case in train}, measured, h100)
        modelled = by(seen, constants, DEVICE)
        fitted, rest = (verdict(part, modelled, measured) for part in (train, held_out))
        splits.append((fitted, rest))
        print(seed, rest["median_error"], rest["spearman_mean"], rest["pairs_2x_inverted"], flush=True)
    constants = model_fit.fit(seen, measured, h100)
    modelled, there = by(found, constants, DEVICE), by(found, constants, OTHER)
    means, medians = (sorted(rest[key] for _, rest in splits) for key in ("spearman_mean", "median_error"))
    versions = (
        {
            version: {
                "median_error": verdict(list(each), by(each, constants, DEVICE), measured)["median_error"],
                "other_device": shortly(verdict(list(each), by(each, constants, OTHER), measured_there)),
            }
            for version, each in (load(options.also),)
        }
        if options.also
        else {}
    )
    figures = {
        "measured": {key: stored[key] for key in ("device", "date", "versions")},
        "modelled_device": h100.name,
        "compiled_with": triton,
        "variants": len(variants.VARIANTS),
        "constants": dataclasses.asdict(constants),
        "held_out": splits[0][1],
        "fitted": splits[0][0],
        "task_left_out": shortly(verdict(list(seen), model_fit.left_out(seen, measured, h100, Constants()), measured)),
        "unseen": verdict(unseen, modelled, measured),
        "all": verdict(list(seen), modelled, measured),
        "all_against_eager": verdict(list(seen), modelled, eager),
        "other_device": {
            "measured": {key: other[key] for key in ("device", "date", "versions")},
            "modelled_device": DEVICES[OTHER].name,
            **verdict(list(found), there, measured_there),
        },
        "other_device_calibrated": swept(found, measured_there, constants),
        "other_triton": versions,
        "other_splits": {
            "splits": SPLITS,
            "spearman_mean": {"least": means[0], "median": statistics.median(means), "most": means[-1]},
            "median_error": {"least": medians[0], "median": statistics.median(medians), "most": medians[-1]},
            "inverted_pairs": [len(rest["pairs_2x_inverted"]) for _, rest in splits],
        },
        "scatter": [
            {
                **dict(zip(("task", "size", "variant"), case, strict=True)),
                "measured_us": measured[case],
                "modelled_us": round(modelled[case], 3),
                "part": "unseen" if case in unseen else "fitted",
            }
            for case in measured
        ],
    }
    print(record.write("model_validation", figures, ("triton",)))
    note = "fitted by benchmarks/model_validation.py; see benchmarks/model_validation.json"
    origin = {"note": note, "measured": figures["measured"], "constants": figures["constants"]}
    cost_model.FITTED.write_text(record.dumps(origin))
    for part in ("held_out", "unseen", "other_device", "other_device_calibrated", "other_triton"):
        print(part, json.dumps({k: v for k, v in figures[part].items() if k != "spearman_within"}, indent=1))
    if options.figure:
        draw(figures, options.figure)


def swept(found: Mapping[Case, Launched], measured: Mapping[Case, float], constants: Constants) -> dict[str, Any]:
    """Return what a calibration to the other device gains, in its sweep and on all cases that are not in that."""
    sweep = {case: found[case] for case in calibration.sweep()}
    others = {case: each for case, each in found.items() if case not in sweep}
    calibrated, report = calibration.calibrate(sweep, measured, OTHER, constants)
    made = {"before": by(others, constants, OTHER), "after": by(others, calibrated, OTHER)}
    return {
        **report,
        "other_cases": {name: shortly(verdict(list(each), each, measured)) for name, each in made.items()},
    }


def shortly(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a verdict without its groups, but for the worst of them."""
    keys = ("cases", "spearman_median", "spearman_least", "median_error", "best_tenth_behind_most")
    return {key: found[key] for key in keys}


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
    axes.set_title("crosses: fitted, dots: unseen")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
