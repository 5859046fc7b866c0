import pytest

from autograder.judging.formula import Answer, explained

CALLS = (
    {"B": 3, "H": 5, "G": 5, "T": 70, "itemsize": 4, "rate": 2e12},
    {"B": 2, "H": 6, "G": 2, "T": 80, "itemsize": 2, "rate": 3e12},
)


def cache(B, H, G, T, itemsize, rate):
    return 2 * B * T * G * 16 * itemsize + B * H * itemsize


def told(wrong, calls=CALLS):
    return explained([Answer(wrong(**each), cache(**each), each) for each in calls])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda **n: 2 * cache(**n), "it is 2 times the right one"),
        (lambda **n: cache(**n) / 4, "it is 1/4 of the right one"),
        (lambda **n: cache(**n) * n["itemsize"], "it is itemsize times the right one"),
        (lambda **n: cache(**n) / n["B"], "it is the right one divided by B"),
        (lambda **n: cache(**n) / n["rate"], "it is the right one divided by rate"),
        (lambda **n: cache(**n) * n["H"] / n["G"], "it is H / G times the right one"),
        (lambda **n: cache(**n | {"itemsize": 2}), "it is 2 / itemsize times the right one"),
        (lambda **n: cache(**n) - n["B"] * n["H"] * n["itemsize"], "B · H · itemsize is missing"),
        (lambda **n: cache(**n) + 2 * n["B"] * n["T"], "2 · B · T is too much"),
    ],
)
def test_a_factor_or_a_term_is_told_by_the_names_of_the_arguments(wrong, says):
    assert told(wrong) == says


def test_nothing_is_told_that_another_call_speaks_against():
    assert told(lambda **n: cache(**n) * n["B"] if n["B"] == 3 else cache(**n)) is None
    assert told(lambda **n: cache(**n) * n["T"] + 1e6) is None


def test_nothing_is_told_where_two_things_fit():
    alike = [each | {"B": each["itemsize"]} for each in CALLS]
    assert told(lambda **n: cache(**n) * n["B"], alike) is None
    assert told(lambda **n: cache(**n) + n["B"], alike) is None


def test_one_call_tells_nothing():
    assert told(lambda **n: 2 * cache(**n), CALLS[:1]) is None
    assert told(lambda **n: 2 * cache(**n), CALLS[:1] * 2) is None


def test_a_number_that_has_little_of_the_right_one_lost_no_term():
    """Who guesses is not told the whole formula."""
    assert explained([Answer(1, 1 + 6 * n, {"n": n}) for n in (5, 7)]) is None


def test_an_argument_of_0_divides_nothing():
    answers = [Answer(cache(**each) - n, cache(**each), each | {"L": n}) for n, each in enumerate(CALLS)]
    assert explained(answers) == "L is missing"
