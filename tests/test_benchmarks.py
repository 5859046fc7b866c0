"""The benchmarks that need a GPU, as far as they run without one."""

import io
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import rich.console
import torch

from mla_ref import MLA, FusedMLA, MLAConfig
from mla_ref.hardware import emulator

with suppress(ImportError):  # no Triton here: the tests that need it say so
    emulator.prepare()

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("device", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100pcie"),
        ("NVIDIA H100 NVL", "h100nvl"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a10040gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
    ],
)
def test_records_bear_the_model_of_the_gpu(monkeypatch, device, model):
    import record

    monkeypatch.setattr(record, "device", lambda: device)
    assert record.gpu() == model


def test_a_record_says_what_it_was_measured_on(monkeypatch, tmp_path):
    import record

    monkeypatch.setenv("MLA_BENCH_OUT", str(tmp_path))
    monkeypatch.setattr(record, "device", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(record, "driver_version", lambda: "570.1")
    found = json.loads(record.write("made_up", {"figure": 1}, ("numpy",)).read_text())
    assert found["device"] == "NVIDIA H100 80GB HBM3" and found["figure"] == 1
    assert found["versions"].keys() == {"python", "torch", "numpy", "driver"}


def test_what_is_written_elsewhere_goes_on_from_there_and_first_from_the_record_beside_the_scripts(
    monkeypatch, tmp_path
):
    import record

    beside, elsewhere = tmp_path / "benchmarks", tmp_path / "elsewhere"
    beside.mkdir(), elsewhere.mkdir()
    monkeypatch.setattr(record, "FOLDER", beside)
    monkeypatch.delenv("MLA_BENCH_OUT", raising=False)
    assert record.earlier("made_up") == {}
    record.write("made_up", {"figure": 1})
    monkeypatch.setenv("MLA_BENCH_OUT", str(elsewhere))
    assert record.earlier("made_up")["figure"] == 1
    record.write("made_up", {"figure": 2})
    assert record.earlier("made_up")["figure"] == 2 and json.loads((beside / "made_up.json").read_text())["figure"] == 1


def test_lessons_judged_earlier_keep_their_origin():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import judged

    run = {"date": "2026-11-21", "device": "H100", "versions": {"torch": "2.11.0"}}
    found = judged.recorded({**run, "lessons": {"04": {"seconds": 1}, "05": {"seconds": 2, "date": "2026-11-20"}}})
    assert found == {"04": {**run, "seconds": 1}, "05": {**run, "seconds": 2, "date": "2026-11-20"}}


def test_results_are_of_one_device_and_say_with_what(monkeypatch):
    import results

    def record(device, torch, date, **more):
        return {"device": device, "versions": {"torch": torch, "triton": "3.6.0"}, "date": date, **more}

    records = {"a": record("H100", "2.11.0", "2026-11-21"), "b": record("H100", "2.11.0", "2026-11-22")}
    monkeypatch.setattr(results, "load", records.get)
    assert results.device(["a", "b"]) == "H100"
    assert results.versions(["a", "b"])[1:] == ("torch 2.11.0, Triton 3.6.0", "2026-11-21 to 2026-11-22")
    records["b"]["lessons"] = {"04": record("H100 PCIe", "2.12.0", "2026-11-23")}
    assert results.versions(["a", "b"])[1:] == ("torch 2.11.0 and 2.12.0, Triton 3.6.0", "2026-11-21 to 2026-11-23")
    with pytest.raises(SystemExit, match="the records a, b are of several devices, expected one: H100, H100 PCIe"):
        results.device(["a", "b"])


@pytest.mark.parametrize(("start", "size"), [(0, 7), (8, 1)])
@torch.no_grad()
def test_layers_of_the_ablation_are_one_layer(monkeypatch, start, size):
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import ablation

    mla = MLA(MLAConfig.preset("tiny"), device=DEVICE, dtype=torch.float16)
    bound = ablation.Bound(mla, 3, start, size)
    exact = bound.exact()
    for name, fusions in ablation.DECODE_LAYERS.items():
        bound.error(bound(FusedMLA.of(mla, *fusions)), exact, name)
    broken = bound(FusedMLA.of(mla, "FD"))
    for one in (0, -1):
        bad = lambda one=one: torch.cat([torch.zeros_like(x) if i == one % 3 else x for i, x in enumerate(broken())])
        with pytest.raises(AssertionError, match="broken is wrong by"):
            bound.error(lambda bad=bad: bad().view(3, size, -1), exact, "broken")


def test_every_layer_is_shown_with_median_and_noise():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import ablation

    def layers(names):
        figures = {"mean_us": 1000.0, "tokens_per_s": 1, "median_us": 1230.0, "noise": 0.0456, "graph_us": 987.0}
        return {name: dict(figures) for name in names}

    sizes = [{"B": B, "L": L, "layers": layers(ablation.LAYERS)} for B, L in ablation.SIZES]
    sizes[-1]["layers"]["baseline"] = None
    figures = {"sizes": sizes, "decode": [{"B": 8, "T": 4096, "layers": layers(ablation.DECODE_LAYERS)}]}
    console = rich.console.Console(record=True, width=100, file=io.StringIO())
    ablation.show(figures, console.print)
    text = console.export_text()
    shown = 2 * len(sizes) - 1 + len(ablation.LAYERS) + len(ablation.DECODE_LAYERS)
    assert text.count("1.23 (4.6%)") == shown and text.count("OOM") == 4
    assert text.count("flash decoding") == 3 and "Decoding at 8-4096" in text


@torch.no_grad()
def test_pages_are_gathered_for_an_attention_that_cannot_read_them():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import paged

    mla = MLA(MLAConfig.preset("tiny"), device=DEVICE, dtype=torch.float32)
    caches = {"batched kernels": mla.make_cache(2, 9, 4), "contiguous": mla.make_cache(2, 9)}
    caches["straight from the pages"] = mla.make_cache(2, 9, 4)
    exact = mla.make_cache(2, 9)
    for new in (5, 1):
        x = torch.randn(2, new, 64, device=DEVICE)
        expected = mla(x, exact)
        for name, cache in caches.items():
            out = mla(x, cache, impl=paged.attend_to(name, cache))
            torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["absorb_query", "reconstruct_value"])
@torch.no_grad()
def test_calls_that_are_compared_compute_one_product(name):
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import reconstruction

    import mla_ref

    axis = reconstruction.PRODUCTS[name][0]
    weight = torch.randint(
        -7, 8, (2, 32, 64), device=DEVICE
    ).float()  # which INT4 holds, with the largest in each group
    weight[:, 0], weight[..., ::32] = 7, 7
    x = torch.randn(3, 1, 2, weight.shape[axis], device=DEVICE)
    quantized = mla_ref.quantize_int4(weight, axis=axis, group=32)
    expected = getattr(mla_ref, name)(x, weight)
    for run in reconstruction.calls(name, x, weight, quantized).values():
        torch.testing.assert_close(run(), expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_calls_of_prefill_and_fp8_compute_what_is_compared():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import prefill

    import mla_ref

    torch.manual_seed(0)
    lengths = [5, 70, 1]
    drawn = prefill.draw(2, lengths, lengths)
    expected = mla_ref.ragged_attention(*drawn)[0].float()
    for name, run in prefill.prefill_calls(*drawn, lengths, lengths).items():
        assert (run().float() - expected).norm() < (0.06 if "FP8" in name else 4e-3) * expected.norm(), name
    runs, exact = prefill.decode_calls(2, 2, 128, DEVICE)
    sizes = []
    for name, (run, moved) in runs.items():
        assert (run().double() - exact).norm() < 0.06 * exact.norm(), name
        sizes.append(moved)
    assert sizes == [256 * 2 * 576, 256 * (512 + 4 + 128), 256 * (512 + 16 + 128)]


def test_steps_of_a_model_by_every_attention_give_the_same_logits():
    pytest.importorskip("triton", reason="kernels need Triton")
    import generation

    from mla_ref.models import Model, ModelConfig

    sizes = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    widths = dict(kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=16)
    config = ModelConfig.from_hf(generation.MIDDLE | sizes | widths)
    torch.manual_seed(0)
    model, found = Model(config, device=DEVICE).eval(), {}
    for form, (_, _, shared) in generation.FORMS.items():
        torch.manual_seed(1)
        with generation.attention(form), torch.no_grad():
            found[form] = generation.stepper(model, form, 3, 2, context=70)()
            first = next(name for name, each in generation.FORMS.items() if each[2] == shared)
            torch.testing.assert_close(found[form], found[first])
    with generation.attention("absorb"), torch.no_grad():
        spent = generation.by_part(model, generation.stepper(model, "absorb", 3, context=70))
    assert spent.keys() == {"projections", "attention and cache", "norms", "feed-forward", "head", "rest"}
    assert all(us > 0 for us in spent.values())
    assert generation.verified(1, "step", [10.0, 11.0, 13.0])["over_one"] == [1.0, 1.1, 1.3]


def test_every_form_of_the_challenges_layer_is_checked_and_timed(capsys):
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import challenge

    short, long = challenge.main(dry=True)["steps"]
    for each in (short, long):
        assert set(each["calls"]) == {"naive", "absorb", "fused", "rotated first", "in one launch"}
        assert all(call["off"] == 0 < call["graph_us"] for call in each["calls"].values())
        assert all(us > 0 for us in each["parts"].values())
    assert short["off_with_exact_angles"] == 0 < long["off_with_exact_angles"]


@torch.no_grad()
def test_int4_takes_the_place_of_two_weights_and_of_no_other():
    import perplexity

    from mla_ref import quantize_int4
    from mla_ref.models import load_byte_model

    plain, model = load_byte_model(), load_byte_model()
    used = perplexity.quantise(model, 64)
    assert (used["w_uk_group"], used["w_uv_group"]) == (32, 64)  # no group is longer than what is summed over
    assert 0.02 < used["w_uk_relative_error"] < 0.2 and 0.02 < used["w_uv_relative_error"] < 0.2
    for name, axis, group in (("w_uk", 1, 32), ("w_uv", 2, 64)):
        before, after = (getattr(each.model.layers[3].self_attn, name) for each in (plain, model))
        assert torch.equal(after, quantize_int4(before, axis=axis, group=group).dequantize())
    state = model.state_dict()
    changed = {name for name, weight in plain.state_dict().items() if not torch.equal(weight, state[name])}
    assert changed == {f"model.layers.{i}.self_attn.kv_b_proj.weight" for i in range(len(model.model.layers))}
    files = perplexity.excerpt({"a": b"x" * 60, "b": b"y" * 60}, 100)
    assert sorted(map(len, files)) == [40, 60]


def test_lines_cross_between_two_batches_or_not_at_all():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    from crossover import crossover

    rows = [{"B": B, "naive_us": 100.0, "absorb_us": 10.0 * B} for B in (4, 8, 16, 32)]
    assert crossover(rows) == 10
    assert crossover(rows[:2]) is None


def test_predictions_are_those_of_this_gpu_or_none(monkeypatch):
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import crossover
    import record

    from mla_ref import DEVICES

    asked = []

    def of(device, measured):
        asked.append(device)
        return 2.0 if measured else 1.0

    monkeypatch.setattr(record, "device", lambda: "NVIDIA H100 80GB HBM3")
    assert crossover.predicted(of, scale=10, digits=1) == {"data sheet": 10, "measured ceilings": 20}
    monkeypatch.setattr(record, "device", lambda: "NVIDIA GeForce RTX 4090")
    assert crossover.predicted(of, digits=1) == {"data sheet": 1}
    assert asked == [DEVICES["h100"], DEVICES["h100"], DEVICES["rtx4090"]]
    monkeypatch.setattr(record, "device", lambda: "NVIDIA GeForce GTX 750")
    with pytest.raises(SystemExit, match="no data sheet of NVIDIA GeForce GTX 750"):
        crossover.predicted(of, digits=1)


@pytest.mark.thorough
@pytest.mark.skipif(DEVICE != "cpu", reason="measures where there is a GPU")
def test_the_command_shows_the_record_where_there_is_no_gpu():
    command = [sys.executable, "-m", "autograder.cli", "bench"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert printed.returncode == 0, printed.stderr
    assert "needs a GPU" in printed.stderr and "H100" in printed.stderr
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, cwd=ROOT, timeout=60).stdout)
    for size in found["sizes"]:
        for layer in size["layers"].values():
            assert layer["tokens_per_s"] == pytest.approx(size["B"] * size["L"] / layer["mean_us"] * 1e6, rel=1e-3)
    layers = next(size["layers"] for size in found["sizes"] if (size["B"], size["L"]) == (4, 4096))
    gain = layers["All"]["tokens_per_s"] / layers["baseline"]["tokens_per_s"] - 1
    assert gain >= 0.73
    assert f"{100 * gain:+.1f}%" in printed.stdout and "+73.02%" in printed.stdout


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.json")), ids=lambda path: path.stem)
def test_records_are_written_a_row_a_line(path):
    from record import dumps

    text = path.read_text()
    assert dumps(json.loads(text)) == text, f"rewrite {path.name} with record.dumps"


PROMISED = {
    "cheats": lambda f: f["attacks"] >= 80 and not f["accepted"] and not f["grader_faults"],
    "honest": lambda f: f["variants"] >= 40 and f["seeds"] >= 20 and not f["rejected"],
    "forged": lambda f: f["replies"] >= 10_000 and not f["passed"] and not f["crashes"],
    "stopping": lambda f: f["attacks"] >= 10 and f["most_seconds_over_the_limit"] <= 2 and not f["survivors"],
    "kills": lambda f: f["kills"] >= 200 and f["submissions"] and not f["differing_grades"],
    "interference": lambda f: f["honest"] >= 100 and f["hostile"] >= 20 and not f["differing"],
    "leaks": lambda f: (
        f["canaries"] >= 4 and not f["read_in_the_sandbox"] and not f["shown_in_feedback"] and f["control_read"]
    ),
    "triton_ran": lambda f: f["fakes"] >= 40 and not f["missed"] and f["honest_kernels"] >= 40 and not f["flagged"],
    "speed": lambda f: (
        f["repeats"] >= 50
        and f["same_grade_percent"] >= 99
        and f["slower_twin_below_percent"] >= 95
        and f["identical_to_the_last_bit"]
        and not f["above_the_roofline"]
    ),
    "faults": lambda f: f["faults"] >= 20 and not f["wrong_labels"],
}


@pytest.mark.parametrize("promise", PROMISED)
def test_the_figures_on_record_keep_the_promise(promise):
    figures = json.loads((BENCHMARKS / "promises.json").read_text())["promises"]
    if promise not in figures:
        pytest.skip(f"not measured at full size yet: benchmarks/promises.py {promise}")
    assert PROMISED[promise](figures[promise]), figures[promise]


def test_every_promise_is_measured_and_tabled():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    import promises
    import results

    assert [*promises.PROMISES] == [*PROMISED] == [*results.PROMISED]


def test_a_row_that_is_too_long_for_a_line_is_broken_into_its_parts():
    from record import WIDTH, dumps

    long = {"B": 2, "ms": 0.5, "note": "x" * WIDTH, "us": {"cold": 2.5}, "n": 3, "ok": True}
    record = {"a": 1, "rows": [{"B": 1, "name": "é", "us": {"cold": 1.5}}, long], "pair": [1, 2], "none": []}
    text = dumps(record)
    assert json.loads(text) == record
    assert (
        text.replace("x" * WIDTH, "x…")
        == """{
 "a": 1,
 "rows": [
  {"B": 1, "name": "é", "us": {"cold": 1.5}},
  {
   "B": 2, "ms": 0.5,
   "note": "x…",
   "us": {"cold": 2.5},
   "n": 3, "ok": true
  }
 ],
 "pair": [1, 2],
 "none": []
}
"""
    )


def test_the_mutants_on_record_are_noticed_in_every_lesson():
    figures = json.loads((BENCHMARKS / "mutation.json").read_text())["lessons"]
    assert len(figures) >= 9
    for lesson, each in figures.items():
        assert each["percent_of_the_others"] >= 98, (lesson, each["survived"])


@pytest.mark.thorough
def test_what_is_called_an_equivalent_mutant_is_one_of_the_mutants():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    from mutation import COURSE, equivalent, mutants, without_marks

    listed = set(equivalent())
    assert listed
    for lesson in COURSE.lesson_names():
        for exercise, source in COURSE.lesson(lesson).solutions.items():
            listed -= {(exercise, each.before, each.after) for each in mutants(exercise, without_marks(source))}
    assert not listed, min(listed)


def test_a_mutant_differs_from_its_solution_in_one_place():
    pytest.importorskip("triton", reason="the benchmark runs kernels")
    from mutation import mutants

    cell = "def f(x, n):\n    y = x.float() * n\n    if n > 2:\n        y += 1\n    return y"
    assert {(each.before, each.after) for each in mutants("f", cell)} == {
        ("y = x.float() * n", "y = x.float() + n"),
        ("y = x.float() * n", "y = x.float()"),
        ("y = x.float() * n", "y = x * n"),
        ("if n > 2:", "pass"),
        ("if n > 2:", "if n >= 2:"),
        ("if n > 2:", "if n > 3:"),
        ("y += 1", "pass"),
        ("y += 1", "y = 1"),
        ("y += 1", "y += 2"),
    }
