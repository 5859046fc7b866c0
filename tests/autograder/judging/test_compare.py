"""What counts as right, and what is said of what is not."""

import math
from dataclasses import replace

import pytest
import torch

from autograder.judging.compare import Calls, assess, difference
from autograder.judging.exercise import RELATIVE, Exercise, Mistake

T = torch.tensor


def said(result, expected, names=("out",), tolerance=1e-5):
    """Return the reason, or None if the result is right."""
    found = difference(result, expected, names, tolerance)
    return found.reason if found else None


@pytest.mark.parametrize("dtype", list(RELATIVE), ids=str)
def test_an_answer_rounded_to_the_inputs_dtype_is_right_and_one_in_error_by_more_is_not(dtype):
    torch.manual_seed(0)
    exercise = Exercise("f", "", (), dict, lambda x: x.exp())
    x = torch.randn(40, 16, dtype=torch.float64).to(dtype)
    assert assess(exercise, {"x": x}, x.exp()) is None
    off = x.double().exp() * (1 + 2 * RELATIVE[dtype])
    assert assess(exercise, {"x": x}, off) is not None


def test_an_error_in_one_small_row_is_seen_in_a_large_result():
    torch.manual_seed(0)
    expected = torch.randn(1000, 64, dtype=torch.float64)
    result = expected.clone()
    result[517] *= 1.001
    assert "517 of axis 0" in said(result, expected)


def test_an_answer_of_the_wrong_size_is_not_saved_by_small_numbers():
    expected = torch.full((4, 4), 1e-20, dtype=torch.float64)
    assert said(torch.zeros(4, 4), expected)
    assert said(expected.float(), expected) is None
    assert said(torch.full((4, 4), 1e-9), torch.zeros(4, 4, dtype=torch.float64))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_fails_before_anything_is_compared(value):
    expected = torch.ones(3, 4, dtype=torch.float64)
    result = expected.float()
    result[1, 2] = value
    assert ("NaN" if math.isnan(value) else "infinite") + " in 1 of 12" in said(result, expected)
    assert said(torch.full((3, 4), value), expected)


def test_an_empty_row_has_an_lse_of_minus_infinity_and_nothing_else():
    expected = T([1.0, -math.inf], dtype=torch.float64)
    assert said(T([1.0, -math.inf]), expected) is None
    for other in (math.inf, math.nan, 0.0, -1e30):
        assert said(T([1.0, other]), expected)
    assert said(T([-math.inf, -math.inf]), expected)


@pytest.mark.parametrize(
    ("result", "expected", "says"),
    [
        (torch.ones(3), torch.ones(3, 1), "shape [3], expected [3, 1]"),
        (torch.ones(1, 3), torch.ones(3), "shape [1, 3], expected [3]"),
        (torch.ones(3).long(), torch.ones(3), "dtype torch.int64"),
        (torch.ones(3).bool(), torch.ones(3), "dtype torch.bool"),
        (T([1, 2, 4]), T([1, 2, 3]), "1 of 3 entries"),
        (T([1.0, 2.0, math.nan]), T([1, 2, 3]), "1 of 3 entries"),
        ([1.0, 1.0], torch.ones(2), "a list, expected a tensor"),
        (None, torch.ones(2), "None, expected a tensor"),
        (torch.ones(2), (torch.ones(2), torch.ones(2)), "expected 2 values (out, lse)"),
        ((torch.ones(2),), (torch.ones(2), torch.ones(2)), "returned 1 value, expected 2 values"),
        ((torch.ones(2), torch.zeros(2)), (torch.ones(2), torch.ones(2)), "lse has a relative error"),
        ({"a": 1}, {"a": 1, "b": 2}, "no entry 'b'; it has a"),
        ({"a": 1, "b": 3}, {"a": 1, "b": 2}, "['b'] is 3"),
        ([1, 2], {"a": 1}, "expected a dict with the keys a"),
        (True, 1, "expected a number"),
        (1, True, "expected True or False"),
        (math.nan, 1.0, "finite"),
        (10**4000, 1.0, "13288 bits"),
        ("1.0", 1.0, "a str, expected a number"),
        ([1, 2, 4], [1, 2, 3], "out[2] is 4"),
        ("none", "ValueError", "out should have raised ValueError, but returned a str"),
        (71.1, 71.1111, "the right one, rounded: leave it as it is"),
        (71, 71.9, "the right one, rounded: leave it as it is"),
        (62, 61.4379, "the right one, rounded: leave it as it is"),
        (torch.full((3,), 1 / 3).half(), torch.full((3,), 1 / 3), "; it is float16, which rounds as much"),
        ({"a": None}, {"a": [1, 2]}, "out['a'] is None, expected 2 values"),
        ({"a": torch.ones(2)}, {"a": [1, 2]}, "of shape [2], expected 2 values: .tolist() makes a list of it"),
        ({"a": [1]}, {"a": [1, 2]}, "out['a'] has 1 value, expected 2 values"),
        ("ValueError: full", 5, "out should not raise ValueError: full"),
        ("ValueError: full", torch.ones(2), "out should not raise ValueError: full"),
        ("the text ValueError", "ValueError", "should have raised"),
    ],
)
def test_a_wrong_answer_is_told_what_is_wrong(result, expected, says):
    names = ("out", "lse") if isinstance(expected, tuple) else ("out",)
    assert says in said(result, expected, names)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (torch.ones(2).half(), torch.ones(2, dtype=torch.float64)),
        ([torch.ones(2), torch.ones(2)], (torch.ones(2), torch.ones(2))),
        (T(5.0), 5),
        (T([5]), 5.0),
        (5, 5.0),
        ({"b": 2, "a": 1, "c": "more"}, {"a": 1, "b": 2}),
        ("ValueError", "ValueError"),
        ("ValueError in line 3 (`raise ValueError`): full", "ValueError"),
        ("anything", None),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (T([True]), T([True])),
    ],
)
def test_a_right_answer_may_come_in_another_dress(result, expected):
    names = ("out", "lse") if isinstance(expected, tuple) else ("out",)
    assert said(result, expected, names) is None


@pytest.mark.parametrize(
    ("result", "expected"), [(70, 71.9), (0, 0.4), (torch.full((3,), 0.33).half(), torch.full((3,), 1 / 3))]
)
def test_what_rounding_does_not_explain_is_not_said_to_be_rounded(result, expected):
    assert "round" not in said(result, expected)


def test_where_rounding_explains_all_no_places_are_named():
    expected = torch.tensor([0.5, 1 / 3, 0.1, 0.25])[:, None].expand(4, 3)
    assert said(expected.half(), expected) == (
        "out has a relative error of 0.00013, allowed 1e-05; it is float16, which rounds as much"
    )


def test_of_calls_lengths_and_refusals_are_compared_before_what_they_hold():
    calls = ["call 1 of append", "length after call 1 of append", "call 2 of append"]
    expected = [torch.ones(3), 3, "ValueError"]
    assert said([torch.zeros(3), 1, "ValueError"], expected, calls) == f"{calls[1]} is 1, expected 3"
    assert said([torch.zeros(3), 3, torch.ones(4)], expected, calls).startswith(f"{calls[2]} should have raised")
    assert said(["ValueError", 1, "ValueError"], expected, calls).startswith(f"{calls[0]} should not raise")
    assert said([torch.zeros(3), 3, "ValueError"], expected, calls).startswith(f"{calls[0]} has a relative error")


@pytest.mark.parametrize("size", [0.0, 1e-9])
def test_of_a_logarithm_that_is_nearly_0_the_error_counts_as_it_is(size):
    expected = torch.full((5, 2), size, dtype=torch.float64)
    assert said((expected + 1e-8).float(), expected, ["lse"]) is None
    assert said((expected + 1e-8).float(), expected, ["out"])
    assert "error of 0.0001" in said(expected + 1e-4, expected, ["lse"])


def test_a_constant_factor_is_named():
    expected = torch.randn(5, 6, dtype=torch.float64)
    assert "1.442 times" in said(expected * 1.442, expected)
    assert "-1 times" in said(-expected, expected)
    assert "times" not in said(torch.randn(5, 6), expected)
    assert "times" not in said(expected * 1.00002, expected), "1 times, it would be"


def test_a_known_mistake_is_named_and_only_where_it_matches():
    exercise = Exercise(
        "f",
        "",
        (),
        dict,
        lambda x: x.exp2(),
        mistakes=(
            Mistake("base", "2 to the x was asked for", lambda x: x.exp()),
            Mistake("sign", "the sign is lost", lambda x: (-x).exp2()),
        ),
    )
    x = torch.linspace(0.1, 2, 9)
    assert assess(exercise, {"x": x}, x.exp2()) is None
    assert assess(exercise, {"x": x}, x.exp()).reason == "2 to the x was asked for"
    assert assess(exercise, {"x": x}, (-x).exp2()).mistake == "sign"
    assert assess(exercise, {"x": x}, x.exp() + 1).mistake is None


def test_of_two_mistakes_that_fit_a_call_it_is_the_one_that_fits_the_others():
    mistakes = [
        Mistake("one", "always 1", lambda x: 1),
        Mistake("mute", "no number where x is 1", lambda x: math.nan if x == 1 else 7),
        Mistake("half", "half of x", lambda x: x / 2),
        Mistake("half of even", "half of x, where it is even", lambda x: x if x % 2 else x / 2),
    ]
    exercise = Exercise("f", "", (), dict, lambda x: x, mistakes=mistakes, tolerance=1e-6)

    def tensors(oracle):
        return lambda x: torch.tensor(float(oracle(x)))

    alike = [replace(each, oracle=tensors(each.oracle)) for each in mistakes]
    of_tensors = replace(exercise, oracle=tensors(exercise.oracle), mistakes=alike)

    def named(results, at=2, exercise=exercise):
        if exercise is of_tensors:
            results = {x: torch.tensor(float(result)) for x, result in results.items()}
        calls = Calls(exercise, [({"x": x}, result) for x, result in results.items()])
        return assess(exercise, {"x": at}, results[at], calls).mistake

    assert assess(exercise, {"x": 2}, 1).mistake == "one"  # of one call alone the first that fits
    assert named({2: 1, 4: 1}) == "one"
    assert named({2: 1, 4: 2}) == "half"
    assert named({2: 1, 4: 2, 3: 3}) == "half of even"  # the right result of 3 is not half of it
    assert named({2: 1, 4: 4}) is None  # each of them would be wrong at 4
    assert named({1: 1, 2: 7}) == "mute"
    assert named({2: 1, 4: 99}) is None  # one formula gives both numbers, and neither mistake is it
    assert named({2: 1, 4: 99}, exercise=of_tensors) == "one"  # a tensor that is wrong otherwise speaks against nothing
    at_times = [replace(each, at_times=True) for each in mistakes]
    calls = Calls(replace(exercise, mistakes=at_times), [({"x": 2}, 1), ({"x": 4}, 4)])
    assert assess(replace(exercise, mistakes=at_times), {"x": 2}, 1, calls).mistake == "one"
    assert named({2: 1, 1: 99}, exercise=of_tensors) == "half"  # unless `one` would be right there
    assert named({2: 1, 1: 0.5, 3: 3}) == "half of even"  # which is not what is wrong at 1: half is


def test_of_two_mistakes_that_have_an_entry_it_is_the_one_that_no_call_speaks_against():
    mistakes = [
        Mistake("one", "always 1", lambda x: {"a": 1, "b": 5}),
        Mistake("half", "half", lambda x: {"a": x / 2, "b": 5}),
    ]
    exercise = Exercise("f", "", (), dict, lambda x: {"a": x, "b": 5}, mistakes=mistakes)

    def reason(*results):
        calls = Calls(exercise, [({"x": n}, {"a": result, "b": 7}) for n, result in enumerate(results, 2)])
        return assess(exercise, {"x": 2}, {"a": results[0], "b": 7}, calls).reason

    assert "which is not the right number" in reason(1)  # two mistakes have it
    assert "which is not the right number" in reason(1, 3)  # and a right call speaks against both
    mistakes.pop()
    assert reason(1) == "out['a']: always 1"
    assert "which is not the right number" in reason(1, 3)
    mistakes.append(Mistake("half", "half", lambda x: {"a": x / 2, "b": 5}))
    calls = Calls(exercise, [({"x": 2}, {"a": 1, "b": 7}), ({"x": 1}, {"a": 1, "b": 7})])
    assert assess(exercise, {"x": 2}, {"a": 1, "b": 7}, calls).reason == "out['a']: always 1"


def test_a_number_does_not_name_a_mistake_that_would_show_before_it_in_another_call():
    square = Mistake("square", "a is the square", lambda x: {"a": x * x, "b": 2.5 * x, "c": 5})  # a is right of 1
    exercise = Exercise("f", "", (), dict, lambda x: {"a": x, "b": x + 1, "c": 5}, returns=("out",), mistakes=[square])

    def reason(other):
        calls = Calls(exercise, [({"x": 1}, {"a": 1, "b": 2.5, "c": 7}), ({"x": 3}, {"b": 7.5, "c": 7} | other)])
        return assess(exercise, {"x": 1}, {"a": 1, "b": 2.5, "c": 7}, calls).reason

    assert reason({"a": 9}) == "out['b']: a is the square"
    assert "which is not the right number" in reason({"a": 3})  # there a would be 9


def test_the_dtype_that_is_asked_for_explains_no_error():
    right = torch.tensor([0.5, 0.25, 3.0])
    wrong = torch.tensor([0.5, 0.25, 3.25])
    assert "which rounds as much" not in said(wrong.to(torch.float8_e4m3fn), right)
    assert "which rounds as much" not in said((right * (1 + 2**-7)).bfloat16(), right)


def test_a_mistake_that_makes_no_difference_to_a_case_is_not_named_for_it():
    exercise = Exercise(
        "f",
        "",
        (),
        dict,
        lambda x: (x.sqrt(), x.log()),
        returns=("root", "log"),
        mistakes=(Mistake("negative", "a root of a negative number", lambda x: ((-x).abs().sqrt(), None)),),
    )
    x = torch.linspace(1, 2, 9)
    assert assess(exercise, {"x": x}, (x.sqrt(), x.log10())).mistake is None


def test_a_number_of_several_is_named_where_one_mistake_alone_has_it():
    right = {"first": 10, "fits": True, "second": 20}
    known = ({"first": 11}, {"first": 12}, {"first": 12, "second": 24}, {"first": 0}, {"fits": False}, {"second": 21})
    known += ({"first": None},)  # which leaves it open
    mistakes = [Mistake(str(i), f"mistake {i}", lambda x, n=n: right | n) for i, n in enumerate(known)]
    exercise = Exercise("f", "", (), dict, lambda x: right, ("out",), mistakes)

    def reason(**numbers):
        return assess(exercise, {"x": 1}, right | numbers).reason

    assert reason(first=11) == "mistake 0"
    assert reason(first=11, second=99) == "out['first']: mistake 0"
    assert reason(first=11.5, second=21) == "out['first'] is 11.5, which is not the right number"
    assert reason(first=12, second=24) == "mistake 2"
    assert reason(first=12, second=99) == "out['first'] is 12, which is not the right number"  # two mistakes have it
    assert reason(first=0, second=99) == "out['first'] is 0, which is not the right number"  # met by chance
    assert "mistake" not in reason(fits=False, second=99)


def test_an_oracle_that_works_in_place_does_not_change_what_the_next_one_sees():
    exercise = Exercise("f", "", (), dict, lambda x: x.mul_(2), tolerance=1e-6)
    x = torch.ones(3, dtype=torch.float64)
    assert assess(exercise, {"x": x}, torch.full((3,), 2.0)) is None
    assert torch.equal(x, torch.ones(3, dtype=torch.float64))


def test_a_wrong_shape_or_type_of_any_value_comes_before_a_wrong_number_of_another():
    right = (torch.ones(2), torch.ones(3))
    assert said((torch.zeros(2), torch.ones(4)), right, ("u", "cache")) == "cache has shape [4], expected [3]"
    assert said((torch.zeros(2), torch.zeros(3)), right, ("u", "cache")).startswith("u has a relative error")
    prediction = {"bytes": 4, "flops": 5}
    assert said({"bytes": 1, "flops": None}, prediction) == "out['flops'] is None, expected a number"
    assert said({"bytes": 1}, prediction) == "out has no entry 'flops'; it has bytes"
