"""What a student is told: a mistake, and the sentence that is about it."""

import dataclasses
from pathlib import Path

import pytest
import torch

from autograder.course.course import Course
from autograder.isolation.worker import running
from autograder.judging import compare
from autograder.judging.cases import draw_cases
from autograder.judging.exercise import Exercise, Part, upcast
from mla_ref.hardware import emulator

from .kernel_course import KERNEL, RIGHT, ROW_SUM, verdict
from .tiny_course import DOUBLE
from .tiny_course import verdict as verdict_of_double

ROOT = Path(__file__).parents[2]
LOAD = "    x = tl.load(x_ptr + row * stride + cols, mask=cols < D, other=0.0)\n"
STORE = "    tl.store(out_ptr + row, tl.sum(x.to(tl.float32)) * alpha)\n"
POINTER = (
    "    p = tl.make_block_ptr(x_ptr + row * stride, (D,), (1,), (0,), (BLOCK,), (0,))\n"
    "    x = tl.load(p, boundary_check=(0,))\n"
)
NO_OTHER = "the mask leaves places out of this load, which has no `other`"
NAN_OF_TWO = LOAD + "    y = tl.load(x_ptr + row * stride + cols, mask=cols < D)\n"

IN_A_KERNEL = {
    "load without other": (LOAD, LOAD.replace(", other=0.0", ""), [f"in line 5 (`{LOAD.strip()[:30]}", NO_OTHER]),
    "the load that matters of two": (STORE, NAN_OF_TWO + STORE.replace("(x.", "(y."), ["in line 7", NO_OTHER]),
    "two loads, each of them enough": (
        LOAD,
        (NAN_OF_TWO + "    x = x * y\n").replace(", other=0.0", ""),
        ["in line 5", NO_OTHER],
    ),
    "block pointer without padding": (LOAD, POINTER, ["in line 6", "which has no `padding_option`"]),
    "return before the store": (STORE, "    return\n", ["NaN in 3 of 3 entries: no store wrote 3 of them"]),
    "a shape that is a number": (LOAD, LOAD + "    x += tl.zeros(BLOCK, tl.float32)\n", ["in line 6", "(BLOCK,)"]),
    "a dtype that is a text": (STORE, STORE.replace("tl.float32", "'float32'"), ["line 6", "one of tl's: tl.float32"]),
    "a dtype of Python's": (STORE, STORE.replace("tl.float32", "float"), ["line 6", "one of tl's: tl.float32"]),
    "print without a text": (
        LOAD,
        LOAD + "    tl.device_print(x)\n",
        ["in line 6", "first argument of tl.device_print"],
    ),
    "an assertion of the kernel's": (LOAD, "    tl.static_assert(BLOCK > 99)\n" + LOAD, ["line 5", "does not hold"]),
    "an assertion of Triton's": (LOAD, LOAD + "    x = tl.split(x)\n", ["in line 6", "last axis has 2 elements"]),
    "Triton's, without a text": (LOAD, POINTER.replace("check=(0,)", "check=(1,)"), ["these types and shapes"]),
    "an accumulator of another shape": (
        LOAD,
        LOAD + "    y = tl.zeros((16, 16), tl.float16)\n    x += tl.sum(tl.dot(y, y, y))\n",
        ["in line 7", "the accumulator of tl.dot"],
    ),
    "a loop over a number": (LOAD, LOAD + "    for i in D:\n        x += 1\n", ["in line 6", "over range(n)"]),
    "one value for two names": (LOAD, "    a, b = tl.program_id(0)\n" + LOAD, ["in line 5", "into several names"]),
    "an element of a block": (LOAD, LOAD + "    x = x[0]\n", ["in line 6", "no elements to pick"]),
    "a function of Python's": (LOAD, LOAD + "    x = math.exp(x)\n", ["in line 6", "Python's own functions"]),
    "while True": (LOAD, LOAD + "    while True:\n        x += 1\n", ["in line 6", "the condition of `while`"]),
    "a block as a condition": (LOAD, LOAD + "    if x > 0:\n        x += 1\n", ["in line 6", "neither true nor false"]),
    "a block that turns a loop": (
        LOAD,
        LOAD + "    while x > 0:\n        x -= 1\n",
        ["`while x > 0:`", "neither true nor false"],
    ),
    "a number for a block": (LOAD, LOAD + "    x = tl.join(x, 1.0)\n", ["in line 6", "where a block belongs"]),
    "a method without call": (
        STORE,
        STORE.replace("tl.sum(x.to(tl.float32))", "x.sum"),
        ["6", "lacks its parentheses"],
    ),
    "a text for a number": (LOAD, LOAD.replace("0.0", "'0'"), ["in line 5", "string stands where a number"]),
    "no @triton.jit": (LOAD, LOAD + "    x = tl.reduce(x, 0, max)\n", ["in line 6", "with @triton.jit"]),
    "break": (LOAD, LOAD + "    for i in range(3):\n        break\n", ["in line 7", "no such statement"]),
    "a pointer's dtype": (LOAD, LOAD + "    x += tl.zeros((BLOCK,), x_ptr.dtype)\n", ["line 6", "element_ty"]),
    "too many arguments": (LOAD, LOAD + "    x = x.to(tl.float32, 3, 4, 5)\n", ["line 6", "more arguments than"]),
    "a fraction as offset": (LOAD, LOAD.replace("stride", "stride / 2"), ["in line 5", "// in place of /"]),
    "no pointer": (LOAD, LOAD.replace("x_ptr + ", ""), ["in line 5", "the first argument is an address"]),
    "a block to one address": (STORE, "    tl.store(out_ptr + row, x)\n", ["in line 6", "takes as many addresses"]),
    "an address as a list": (LOAD, LOAD + "    x = x_ptr[cols]\n", ["line 6", "): an address is no list: tl.load("]),
    "a mean": (LOAD, LOAD + "    x = tl.mean(x)\n", ["uses tl.mean, which Triton does not have: tl.sum(x) / n is"]),
    "one end of a range": (LOAD, LOAD + "    x += tl.arange(BLOCK)\n", ["in line 6", "it begins at 0: tl.arange(0, B"]),
    "no axis of the grid": (LOAD, LOAD + "    x += tl.program_id()\n", ["in line 6", "first axis: tl.program_id(0)"]),
    "an address times a number": (LOAD, LOAD + "    x = out_ptr * x\n", ["line 6", "pass a number, or tl.load it"]),
    "a shape from an argument": (LOAD, LOAD + "    x = tl.reshape(x, (D, 2))\n", ["6", "a shape is known when"]),
    "blocks that do not meet": (LOAD, LOAD + "    x += tl.arange(0, 2 * BLOCK)\n", ["6", "say which axis is"]),
    "a value of another shape": (
        LOAD,
        LOAD + "    tl.store(out_ptr + cols, x[:, None])\n",
        ["in line 6", "have one shape: x[None, :] adds an axis"],
    ),
    "pairs that are stored as such": (
        LOAD,
        LOAD + "    tl.store(out_ptr + tl.arange(0, 2 * BLOCK), tl.join(x, x))\n",
        ["in line 6", "after tl.join tl.reshape takes the last two as one"],
    ),
    "comparisons without parentheses": (
        LOAD,
        LOAD + "    x = tl.where(0 <= cols & cols < D, x, 0.0)\n",
        ["line 6", "put each comparison into parentheses"],
    ),
    "a product by @": (LOAD, LOAD + "    x = x @ x\n", ["in line 6", "write tl.dot(x, y)"]),
    "a size that is no constant": (LOAD, LOAD.replace("cols, m", "tl.arange(0, D), m"), ["5", "BLOCK: tl.constexpr"]),
}
HELPER = "def twice(x):\n    return 2 * x\n"
IN_THE_LAUNCHER = {
    "no launch": (
        "    sum_kernel[(len(x),)](x, out, x.shape[1], x.stride(0), alpha, BLOCK=64)\n",
        "",
        ["no Triton kernel was launched"],
    ),
    "an assertion of what a kernel wrote": (
        "    return out",
        "    assert out.sum() == 1e9\n    return out",
        ["line 20 (`assert out.sum() == 1e9`)", "an assertion about what a kernel wrote belongs in a cell"],
    ),
    "waits for a GPU": (
        "    return out",
        "    torch.cuda.synchronize()\n    return out",
        ["line 20 (`torch.cuda.synchronize()`)", "no GPU grades here: leave this out"],
    ),
    "asks for a GPU": (
        "    out = ",
        "    assert x.is_cuda\n    out = ",
        ["AssertionError in line 18 (`assert x.is_cuda`): no GPU grades here: leave this out"],
    ),
    "asks for one in words of its own, behind the launch": (
        "    return out",
        "    assert out.is_cuda, 'not on the GPU'\n    return out",
        ["no GPU grades here: leave this out"],
    ),
    "enters a GPU": (
        "    return out",
        "    with torch.cuda.device(x.device):\n        return out",
        ["line 20 (`with torch.cuda.device(x.device):`)", "no GPU grades here"],
    ),
    "enters one by its number": (
        "    return out",
        "    with torch.cuda.device(x.device.index):\n        return out",
        ["line 20 (`with torch.cuda.device(x.device.index):`)", "no GPU grades here: leave this out"],
    ),
    "a tuple with names": (
        "x.shape[1], x",
        "__import__('collections').namedtuple('Sizes', 'd')(x.shape[1]), x",
        ["line 19", "argument D is a Sizes", "pass tuple("],
    ),
    "a kernel": ("alpha, B", "sum_kernel, B", ["line 19", "the kernel may call sum_kernel by its name"]),
    "a view across rows that lie apart": (
        "    return out",
        "    x.t().view(-1)\n    return out",
        ["subspaces): .reshape makes a copy, and what is written into a copy is lost"],
    ),
    "a program too few": ("(len(x),)]", "(len(x) - 1,)]", ["1 of 3 entries: no store wrote 1 of them"]),
    "None": ("alpha, B", "None, B", ["line 6", "None takes part in this"]),
    "a text": ("alpha, B", "'a', B", ["line 6", "a string takes part in this"]),
    "a whole number of NumPy's": (
        "x.shape[1], x",
        "numpy.int64(20), x",
        ["line 19", "argument D is a int64; ", "pass int("],
    ),
    "a number of NumPy's": (
        "alpha, B",
        "numpy.float32(alpha), B",
        ["line 19", "argument alpha is a float32", "pass float("],
    ),
    "a shape": (
        "x.shape[1], x",
        "x.shape, x",
        ["in line 5", "a tuple or a shape stands where a number belongs: pass one of its numbers"],
    ),
}


@pytest.mark.parametrize("mistake", IN_A_KERNEL)
def test_a_mistake_in_a_kernel_has_its_sentence(workers, mistake):
    old, new, says = IN_A_KERNEL[mistake]
    assert old in KERNEL
    told(verdict(workers, RIGHT, KERNEL.replace(old, new, 1)).reason, says)


@pytest.mark.parametrize("mistake", IN_THE_LAUNCHER)
def test_a_mistake_around_a_kernel_has_its_sentence(workers, mistake):
    old, new, says = IN_THE_LAUNCHER[mistake]
    assert old in RIGHT
    told(verdict(workers, RIGHT.replace(old, new, 1)).reason, says)


def test_a_kernel_that_takes_too_long_may_have_too_many_programs(workers):
    hasty = dataclasses.replace(ROW_SUM, limits=dataclasses.replace(ROW_SUM.limits, seconds=1.0))
    endless = RIGHT.replace("    return out", "    while True: pass\n    return out")
    says = "is there a loop that does not end, or a grid of more programs than are needed?"
    told(verdict(workers, endless, exercise=hasty).reason, [says])


def test_a_helper_without_its_decorator_is_called_that(workers):
    kernel = KERNEL.replace("tl.sum(x.to(tl.float32))", "twice(tl.sum(x.to(tl.float32)))")
    assert kernel != KERNEL
    says = ["sum_kernel uses twice, a function without @triton.jit", "write @triton.jit above its def"]
    told(verdict(workers, RIGHT, HELPER + kernel).reason, says)
    assert "global variable" not in verdict(workers, RIGHT, "@triton.jit\n" + HELPER + kernel).reason


@pytest.mark.parametrize("helper", ["twice(tl.sum(x))", "tl.sum(twice(x))"])
def test_so_it_is_in_the_notebook(helper):
    source = "import torch, triton\nimport triton.language as tl\n" + HELPER + KERNEL + RIGHT
    cell, space = source.replace("tl.sum(x.to(tl.float32))", helper), {"__name__": "cells"}
    with emulator.emulating(), pytest.raises(Exception) as raised:
        running.run_cell("own", cell, space)
        space["row_sum"](torch.ones(3, 20), 1.0)
    assert "a kernel calls twice, which is no function of kernels" in running.describe_error(raised.value)["message"]


CALLED = {
    "in a loop": ("    total += x\n", "    for n in range(0, D):\n        x = add(x, n)\n"),
    "twice": (
        "    for n in range(0, x):\n        total = tl.full((64,), n, tl.float32)\n",
        "    x = add(add(x, D), D)\n",
    ),
}


@pytest.mark.parametrize("where", CALLED)
def test_a_helper_that_returns_nothing_is_told_to(workers, where):
    body, call = CALLED[where]
    source = f"@triton.jit\ndef add(total, x):\n{body}{KERNEL.replace(LOAD, LOAD + call)}"
    told(verdict(workers, RIGHT, source).reason, ["`for n in ", "a helper whose result is used must return it"])


def test_a_method_of_an_argument_of_1_is_told_of_tl_cast(workers):
    of_one = RIGHT.replace("x.stride(0), ", "x.stride(1), ")
    method, cast = "20 * stride.to(tl.int64)", "20 * tl.cast(stride, tl.int64)"
    reason = verdict(workers, of_one, KERNEL.replace("row * stride", f"row * {method}")).reason
    told(reason, ["line 5", "an argument of 1", "write tl.cast(n, tl.int64)"])
    exercise = dataclasses.replace(ROW_SUM, parts=(Part("wide", 1, [{"rows": 3, "width": 20}]),))
    assert verdict(workers, of_one, KERNEL.replace("row * stride", f"row * {cast}"), exercise).score


def told(reason, says):
    assert all(each in reason for each in says), reason
    assert not any(raw in reason for raw in ("object has no attribute", "is not iterable", "is not string")), reason


def test_a_load_without_other_that_reaches_nothing_is_not_blamed(workers):
    kernel = KERNEL.replace(LOAD, LOAD + "    y = tl.load(x_ptr + row * stride + cols, mask=cols < D)\n", 1)
    zero = "tl.where(cols < D, y, 0.0) * 0 + x.to(tl.float32)"
    assert verdict(workers, RIGHT, kernel.replace("tl.sum(x.to(tl.float32))", f"tl.sum({zero})")).score
    both = kernel.replace("* alpha)\n", "* alpha / (tl.sum(x) * 0) * 0)\n", 1)
    reason = verdict(workers, RIGHT, both).reason
    assert "NaN comes here from 0/0, inf/inf, 0 · inf or inf - inf" in reason, reason


IN_PYTHON = {
    "an assertion": ("def double(x):\n    assert len(x) > 99\n    return x", ["line 2", "asserts does not hold"]),
    "a number to go through": ("def double(x):\n    for i in len(x): pass", ["line 2", "range(n) counts to n"]),
    "exit": ("def double(x):\n    exit()", ["SystemExit in line 2 (`exit()`): this ends the whole session: return"]),
    "an attribute of None": ("def double(x):\n    return None.shape", ["line 2", "'NoneType' object has no attribute"]),
    "hstack": (
        "def double(x):\n    return torch.hstack((x, x))",
        ["line 2", "may not call hstack, which calls cat: w"],
    ),
    "cat": ("def double(x):\n    return torch.cat((x, x))", ["line 2", "may not call cat: write it out"]),
    "a thousand times": (
        "def double(x): return 2000 * x",
        ["1000 times the expected one throughout: look at the unit"],
    ),
    "three times": ("def double(x): return 6 * x", ["3 times the expected one throughout (at"]),
}


@pytest.mark.parametrize("mistake", IN_PYTHON)
def test_a_mistake_in_python_has_its_sentence(bubble, mistake):
    source, says = IN_PYTHON[mistake]
    reason = verdict_of_double(bubble, source, dataclasses.replace(DOUBLE, forbidden=("cat",), tolerance=1e-4)).reason
    assert all(each in reason for each in says), reason


READ = "numbers of a tensor are read in Python in line 2"
BY_PYTHON = {
    "numbers": ("def double(x):\n    return torch.zeros_like(x) + 2 * sum(map(float, x.flatten()))", READ),
    "a list": (
        "def double(x):\n    return torch.tensor([[2 * float(n) for n in row] for row in x])",
        "NumPy computes from data",
    ),
    "NumPy": ("def double(x):\n    return torch.from_numpy(2 * x.numpy())", "NumPy computes from data"),
    "an array": ("def double(x):\n    return (2 * x).numpy()", "an array of NumPy is returned"),
    "a known mistake beside it": ("def double(x):\n    print(float(x.flatten()[0]))\n    return x / 2", "halved"),
}


@pytest.mark.parametrize("way", BY_PYTHON)
def test_what_python_computes_is_called_that_where_operations_are_run_again(workers, way):
    source, says = BY_PYTHON[way]
    found = verdict(workers, source, "", dataclasses.replace(DOUBLE, forbidden=("cat",)))
    assert not found.score
    assert says in found.reason, found.reason


def lesson(name, exercise):
    return next(each for each in Course.at(ROOT).exercises(name) if each.name == exercise)


def norm(divisor, beside):
    """RMSNorm with another divisor, as a student's kernel gives it."""
    exercise = lesson("04_fused_norm_rope", "rms_norm")
    given = exercise.inputs(torch.Generator().manual_seed(0), rows=3, width=24, beside=beside)
    x, weight = given["x"][:, :24], given["weight"]
    return exercise, given, x * (x.square().sum(-1, keepdim=True) / divisor + 1e-6).rsqrt() * weight


def empty(name, exercise, lse_too, **case):
    """The right answer with NaN where there are no tokens."""
    found = lesson(name, exercise)
    given = found.inputs(torch.Generator().manual_seed(0), **case)
    out, lse = found.oracle(**upcast(given))
    seen = lse.isfinite()
    return found, given, (out.where(seen[..., None], torch.nan), lse.where(seen, torch.nan if lse_too else lse))


def scaled(name, exercise, factor, key):
    """The right prediction with one number in another unit."""
    found = lesson(name, exercise)
    given = found.inputs(None, **found.parts[0].visible[0])
    return found, given, found.oracle(**given) | {key: found.oracle(**given)[key] * factor}


def session_of_one(result):
    """The result of a session of one call."""
    exercise = Exercise(
        "Layer", "", (Part("all", 1, [{}]),),
        lambda g: {"init": [], "steps": [["forward", []]]}, lambda init, steps: [(1, 2)], driver="session",
    )  # fmt: skip
    return exercise, exercise.inputs(None), [result]


def session(results):
    """The results of a session of two methods."""
    exercise = Exercise(
        "Counter", "", (Part("all", 1, [{}]),),
        lambda g: {"init": [], "steps": [["total", []], ["add", [1]], ["total", []], ["add", [2]], ["total", []]]},
        lambda init, steps: [0, "ValueError", 1, 3, 3], driver="session",
    )  # fmt: skip
    return exercise, exercise.inputs(None), results


EMPTY = dict(B=2, H=3, T=20, lens=(20, 0))
ANSWERS = {
    "divided by the block": (lambda: norm(32, 16), "divided by the size of the block"),
    "divided by W": (lambda: norm(40, 16), "divided by W, the distance of the rows"),
    "divided by what is both": (lambda: norm(32, 8), "times the expected one throughout"),
    "0/0": (
        lambda: empty("06_flash_decoding", "latent_decode", False, **EMPTY),
        "0 gives NaN, by 0/0 or by −inf − (−inf)",
    ),
    "−inf − (−inf)": (
        lambda: empty("06_flash_decoding", "latent_decode", True, **EMPTY),
        "a sequence of length 0 gives NaN, by 0/0 or by −inf − (−inf)",
    ),
    "−inf − (−inf) in a split": (
        lambda: empty("06_flash_decoding", "split_decode", True, num_splits=2, **EMPTY),
        "a split with no tokens gives NaN, by 0/0 or by −inf − (−inf)",
    ),
    "milliseconds": (lambda: scaled("00_start_here", "predict_h100", 1e-3, "copy_us"), "these are milliseconds"),
    "nanoseconds": (
        lambda: scaled("00_start_here", "predict_h100", 1e3, "matmul_us"),
        "1000 times the right one: look",
    ),
    "seconds": (lambda: scaled("00_start_here", "predict_h100", 1e-6, "copy_us"), "these are seconds"),
    "kilobytes": (
        lambda: scaled("04_fused_norm_rope", "predict_norm_bytes", 1e-3, "fused_bytes"),
        "1/1000 of the right",
    ),
    "the third of five": (lambda: session([0, "ValueError", 2, 3, 3]), "total after call 1 of add is 2"),
    "one that should raise": (lambda: session([0, 1, 1, 3, 3]), "call 1 of add should have raised ValueError"),
    "a call that returns nothing": (lambda: session_of_one(None), "call 1 of forward is None, expected 2 values"),
    "the only call": (lambda: session_of_one((1, 3)), "call 1 of forward, value 2 is 3"),
}


@pytest.mark.parametrize("mistake", ANSWERS)
def test_a_wrong_answer_has_its_sentence(mistake):
    made, says = ANSWERS[mistake]
    exercise, given, result = made()
    assert says in compare.assess(exercise, given, result).reason


def every_case(name, exercise, answer):
    """Return what is said first of an answer, given all its visible cases."""
    found = lesson(name, exercise)
    cases = draw_cases(found, "seed", hidden=False)
    results = [answer(found, case.arguments) for case in cases]
    calls = compare.Calls(found, [(case.arguments, result) for case, result in zip(cases, results, strict=True)])
    told = (compare.assess(found, case.arguments, result, calls) for case, result in zip(cases, results, strict=True))
    return next(each.reason for each in told if each)


def intensity_of_elements(exercise, given):
    right = exercise.oracle(**given)
    return right | {"intensity": right["intensity"] * given["itemsize"]}


def scaled_by_values(exercise, given):
    root = ((given["q_nope"].shape[-1] + given["q_rope"].shape[-1]) / given["w_uv"].shape[1]) ** 0.5
    return exercise.oracle(**upcast(given | {name: given[name] * root for name in ("q_nope", "q_rope")}))


def key_of_token_0(exercise, given):
    query, key = exercise.oracle(**upcast(given))
    blank = torch.full_like(key, torch.nan)
    blank[0, 0] = key[0, 0]
    return query, blank


CONTRADICTED = {  # answers, and the name that another visible case speaks against
    "itemsize fixed at 2": (
        "01_mha",
        "predict_cache_bytes",
        lambda exercise, given: exercise.oracle(**{**given, "itemsize": 2}),
        "these are half the bytes",
    ),
    "FLOPs by elements": ("01_mha", "predict_decode_cost", intensity_of_elements, "bytes per FLOP"),
    "one key of all written": ("04_fused_norm_rope", "rope_query_key", key_of_token_0, "written at row s"),
    "scaled by 1/√Dv": ("02_naive_mla", "naive_mla_attention", scaled_by_values, "1/√Dn"),
}


@pytest.mark.parametrize("answer", CONTRADICTED)
def test_a_mistake_is_not_told_where_another_case_speaks_against_it(answer):
    *made, name = CONTRADICTED[answer]
    assert name not in every_case(*made)


def one_entry(key, wrong):
    """Return an answer with one wrong entry: `wrong` of the right one and the arguments."""

    def answer(exercise, given):
        right = exercise.oracle(**upcast(given))
        return right | {key: wrong(right[key], given)}

    return answer


UNNAMED = {  # answers that no mistake has a name for, and what is told of their numbers
    "head_dim forgotten": (
        "01_mha",
        "predict_cache_bytes",
        one_entry("mha", lambda right, given: right / given["head_dim"]),
        "in all calls it is the right one divided by head_dim",
    ),
    "MACs of the scores alone": (
        "01_mha",
        "predict_decode_cost",
        one_entry("flops", lambda right, given: right / 4),
        "in all calls it is 1/4 of the right one",
    ),
    "no RoPE": (
        "03_absorption",
        "predict_macs",
        one_entry("absorb_macs", lambda right, given: right - given["H"] * given["Dr"]),
        "in all calls H · Dr is missing",
    ),
    "KiB": (
        "01_mha",
        "predict_cache_bytes",
        one_entry("mha", lambda right, given: right / 1024),
        "which is 1/1024 of the right one: look at the unit",
    ),
}


@pytest.mark.parametrize("answer", UNNAMED)
def test_a_number_without_a_name_is_told_by_a_factor_or_a_term(answer):
    *made, says = UNNAMED[answer]
    assert says in every_case(*made)


NOTHING_KEPT = {  # exercises, and what is told of a result of zeros, which some mistakes give in narrow cases
    ("05_fused_scores_softmax", "scaled_matmul"): "kept, as in acc = tl.dot(x, y, acc)?",
    ("05_fused_scores_softmax", "attention_score"): "is the store reached",
    ("03_absorption", "absorb_query"): "what is computed does not reach it",
}


@pytest.mark.parametrize("exercise", NOTHING_KEPT)
def test_a_result_of_zeros_in_all_calls_is_called_that(exercise):
    told = every_case(*exercise, lambda exercise, given: 0 * exercise.oracle(**upcast(given)))
    assert "in all calls it is 0 throughout" in told
    assert NOTHING_KEPT[exercise] in told


def test_a_tail_left_out_is_told_though_the_first_case_then_has_zeros():
    def rounded_down(exercise, given):
        return exercise.oracle(
            **{name: x[:, : x.shape[1] // 64 * 64] for name, x in given.items() if name != "scale"},
            scale=given["scale"],
        )

    assert "columns that do not fill a turn" in every_case("05_fused_scores_softmax", "scaled_matmul", rounded_down)


def test_a_cache_that_counts_calls_is_told_its_length():
    def appended(exercise, given):
        results, lengths = exercise.oracle(**upcast(given)), iter(range(99))
        return [next(lengths) if isinstance(each, int) else each for each in results]

    assert every_case("01_mha", "KVCache", appended) == "length after call 1 of append is 1, expected 3"


def test_a_session_says_of_which_cell_a_line_is_unless_it_is_the_exercises_own():
    cells = {}
    running.run_cell("Cache", "class Cache:\n    def append(self, x):\n        a, b = x", cells)
    running.run_cell(
        "Layer", "class Layer:\n    def forward(self, x):\n        Cache().append(x)\n        a, b = x", cells
    )
    steps = [["forward", [values]] for values in ([1], [1, 2])]
    other, *_ = running.session(cells["Layer"], {"init": [], "steps": steps})
    assert other.startswith("ValueError in line 3 of cell Cache (`a, b = x`): ")
    own, *_ = running.session(cells["Cache"], {"init": [], "steps": [["append", [[1]]]]})
    assert own.startswith("ValueError in line 3 (`a, b = x`): ")
