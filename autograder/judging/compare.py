"""Compare what a student's code returned with the oracle, and say in one sentence what is wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from autograder.isolation.worker.running import BESIDE
from autograder.isolation.worker.trees import tensors_in
from autograder.judging.exercise import Arguments, Exercise, Mistake, relative_tolerance, upcast
from autograder.judging.formula import Answer, explained

ROW_FACTOR = 10.0
LOGARITHM = "lse"  # a result of which the error counts as it is where the right one is nearly 0
REFUSED = "ValueError"  # how begins what a session (see `isolation.worker.running`) gives for a step that raised it
EVERYWHERE = "; in all calls "
ZERO = {  # what to look for where a result is 0 throughout, of a kernel and of operations of torch
    True: "is the store reached, its mask true, and what a function returns kept, as in acc = tl.dot(x, y, acc)?",
    False: "what is computed does not reach it",
}


@dataclass(frozen=True)
class Difference:
    """Why an output is not the expected one.

    `reason` is a sentence for the student; `mistake` the name of the known mistake it matches; `error` the relative
    error where the shapes agree; `where` the name of the output; `plain` the sentence that knows no mistakes.
    """

    reason: str
    mistake: str | None = None
    error: float | None = None
    where: str | None = None
    unnamed: str | None = None

    @property
    def unexplained(self) -> bool:
        """Whether values are wrong, and nothing says why."""
        return self.error is not None and self.mistake is None and EVERYWHERE not in self.reason

    @property
    def plain(self) -> str:
        return self.unnamed or self.reason


def assess(exercise: Exercise, arguments: Arguments, result: Any, calls: Calls | None = None) -> Difference | None:
    """Return None if `result` is right, else the difference, named if it is a known mistake.

    Of several mistakes that fit it is the one that the `calls` speak for.
    """
    tolerance = relative_tolerance(exercise, arguments)
    expected = exercise.oracle(**upcast(arguments))
    names = _names(exercise, arguments)
    found = difference(result, expected, names, tolerance)
    if found is None:
        wrong = exercise.consistent(result, **arguments) if exercise.consistent else None
        return Difference(wrong) if wrong else _other_dtype(exercise, arguments, result)
    if calls and calls.zero(found.where):
        return replace(found, reason=f"{found.reason}{EVERYWHERE}it is 0 throughout: {ZERO[exercise.kernel]}")
    fitting = (
        each
        for each in exercise.mistakes
        if difference(result, wrong := each.oracle(**upcast(arguments)), names, tolerance) is None
        and difference(expected, wrong, names, tolerance)
    )
    if mistake := _likeliest(fitting, calls):
        return Difference(mistake.message, mistake.name, found.error, found.where, found.reason)
    if found.error is None:
        return found
    if named := _in_one_entry(exercise, arguments, result, expected, tolerance, calls):
        return named
    how = calls.explained(_wrong_entry(result, expected, tolerance)) if calls and ";" not in found.reason else None
    return replace(found, reason=f"{found.reason}{EVERYWHERE}{how}") if how else found


class Calls:
    """All calls of a function, and what each gave: evidence for and against its known mistakes."""

    def __init__(self, exercise: Exercise, given: Sequence[tuple[Arguments, Any]]):
        self._exercise, self._given = exercise, given
        self._right: dict[str | None, list[bool]] = {}
        self._fits: dict[tuple[str, str | None], int] = {}
        self._strange: dict[int, bool] = {}

    def fit(self, mistake: Mistake, key: str | None = None) -> int:
        """Return how many wrong results a mistake gives; -1 if a result speaks against it, 0 if it is made at times.

        A right one does where the mistake gives another, and a wrong one where the mistake gives the right one, unless
        it is another known mistake that shows there. Any other wrong number does, too, as one formula gives them all.
        Of tensors, what fits one call alone fits it by its sizes, if two other calls are wrong in ways that are none of
        those known. The mistakes of kernels, but for those `apart`, and of sessions are all made at times: with other
        blocks, or after other calls. Yet against what says where no store writes speaks a result with more NaN.
        Mistakes of one message are one, which may show in several ways: with other blocks of tokens, say. With a `key`
        only that entry of each result counts.
        """
        known = mistake.message, key
        if known not in self._fits:
            alike = [each for each in self._exercise.mistakes if each.message == mistake.message and each != mistake]
            with_blocks = self._exercise.kernel and not mistake.apart
            at_times = mistake.at_times or with_blocks or self._exercise.driver == "session"
            unlike = self._has_more_nan([mistake, *alike])
            self._fits[known] = -1 if unlike else max(self._fit([mistake, *alike], key), 0 if at_times else -1)
        return self._fits[known]

    def explained(self, key: str | None) -> str | None:
        """Return what makes wrong numbers of the right ones in all calls: see `formula`. `key` is one of a dict's."""
        answers = []
        for arguments, result in self._given:
            pair = result, self._exercise.oracle(**upcast(arguments))
            got, right = (each.get(key) if isinstance(each, dict) else each for each in pair)
            if not _numbers(got) or not _numbers(right) or isinstance(got, list | tuple):
                return None
            answers.append(Answer(got, right, dict(_sizes(arguments))))
        return explained(answers)

    def zero(self, name: str | None) -> bool:
        """Return whether a tensor of the results is 0 throughout in every call, which no known mistake tells then."""
        names = list(self._exercise.returns)
        place = names.index(name) if name in names else None

        def nothing(result: Any) -> bool:
            value = result[place] if len(names) > 1 and isinstance(result, list | tuple) else result
            return isinstance(value, torch.Tensor) and not value.any()

        return place is not None and all(nothing(result) for _, result in self._given)

    @property
    def wrong(self) -> int:
        """How many results are wrong."""
        return self._rights(None).count(False)

    def _rights(self, key: str | None) -> list[bool]:
        if key not in self._right:
            self._right[key] = [self._same(n, self._exercise.oracle, key) for n in range(len(self._given))]
        return self._right[key]

    def _fit(self, mistakes: Sequence[Mistake], key: str | None) -> int:
        count = 0
        for n, right in sorted(enumerate(self._rights(key)), key=lambda each: not each[1]):
            of_mistake = any(self._same(n, each.oracle, key) for each in mistakes)
            if not of_mistake and (right or self._is_of_something_else(n, mistakes, key)):
                return -1
            count += of_mistake and not right
        return -1 if count == 1 and sum(map(self._is_strange, range(len(self._given)))) > 1 else count

    def _is_strange(self, n: int) -> bool:
        """Return whether call `n` gave finite tensors that are wrong, and that no known mistake gives."""
        if n not in self._strange:
            found, mistakes = tensors_in(self._given[n][1]), self._exercise.mistakes
            wrong = bool(found) and not self._rights(None)[n] and all(bool(each.isfinite().all()) for each in found)
            self._strange[n] = wrong and not any(self._same(n, each.oracle, None) for each in mistakes)
        return self._strange[n]

    def _has_more_nan(self, mistakes: Sequence[Mistake]) -> bool:
        """Return whether a result has NaN where none of these mistakes, of which one tells of NaN, has any."""
        if not any(each.unwritten for each in mistakes):
            return False
        for arguments, result in self._given:
            every = zip(*(_nan_in(each.oracle(**upcast(arguments))) for each in mistakes), strict=False)
            for got, wrong in zip(_nan_in(result), every, strict=False):
                if all(each.shape == got.shape for each in wrong) and bool((got & ~sum(wrong).bool()).any()):
                    return True
        return False

    def _is_of_something_else(self, n: int, mistakes: Sequence[Mistake], key: str | None) -> bool:
        """Return whether call `n` is wrong in a way that no other mistake explains, where these do not show.

        Numbers are, where these show, too, and so is what tells against a mistake `apart`.
        """
        arguments, result = self._given[n]
        expected = self._exercise.oracle(**upcast(arguments))
        if (
            tensors_in(expected)
            and not mistakes[0].apart
            and not all(self._alike(arguments, each.oracle(**upcast(arguments)), expected, key) for each in mistakes)
        ):
            return False
        others = (each.oracle(**upcast(arguments)) for each in self._exercise.mistakes)
        return not any(self._alike(arguments, result, each, key) for each in others)

    def _same(self, n: int, oracle: Callable[..., Any], key: str | None) -> bool:
        """Return whether call `n` gave what an oracle gives."""
        arguments, result = self._given[n]
        expected = oracle(**upcast(arguments))
        return _shows_nowhere(expected) or self._alike(arguments, result, expected, key)

    def _alike(self, arguments: Arguments, result: Any, expected: Any, key: str | None) -> bool:
        tolerance = relative_tolerance(self._exercise, arguments)
        if key is None:
            return difference(result, expected, _names(self._exercise, arguments), tolerance) is None
        values = (each.get(key) if isinstance(each, dict) else None for each in (result, expected))
        return _value(*values, key, tolerance) is None


def _nan_in(result: Any) -> list[torch.Tensor]:
    return [tensor.isnan() for tensor in tensors_in(result)]


def _shows_nowhere(wrong: Any) -> bool:
    """Whether a mistake gives no number: it does so for arguments with which it is none."""
    if isinstance(wrong, dict | tuple | list):
        return any(map(_shows_nowhere, wrong.values() if isinstance(wrong, dict) else wrong))
    return isinstance(wrong, float) and math.isnan(wrong)


def _likeliest(fitting: Iterator[Mistake], calls: Calls | None) -> Mistake | None:
    """Return which mistake it is of those that fit one call: the one that fits most others, and of these the first.

    None that another call speaks against is meant.
    """
    if calls is None:
        return next(fitting, None)
    best, most = None, -1
    for each in fitting:
        if calls.fit(each) > most:
            best, most = each, calls.fit(each)
        if most == calls.wrong:
            break
    return best


def _names(exercise: Exercise, arguments: Arguments) -> Sequence[str]:
    return _calls(arguments["steps"]) if exercise.driver == "session" else exercise.returns


def _in_one_entry(
    exercise: Exercise, arguments: Arguments, result: Any, expected: Any, tolerance: float, calls: Calls | None
) -> Difference | None:
    """Return what the first wrong number of a dict says: the known mistake that has it, and those before it right.

    None where mistakes that have it say different things. No call may speak against the mistake, by that number or by
    one before it: what follows from several numbers may be wrong alone where they happen to be right.
    """
    if not isinstance(result, dict) or not isinstance(expected, dict):
        return None
    key = _wrong_entry(result, expected, tolerance)
    if key not in result or not _numbers(expected[key]) or not _numbers(result[key]):
        return None
    before = list(itertools.takewhile(lambda each: each != key, expected))
    where = f"{exercise.returns[0] if exercise.returns else 'the result'}[{key!r}]"
    found = _value(result[key], expected[key], where, tolerance)
    having = {}
    for mistake in exercise.mistakes:
        other = mistake.oracle(**upcast(arguments))
        its = other.get(key) if isinstance(other, dict) else None
        if mistake.whole or not _numbers(its) or _value(result[key], its, key, tolerance):
            continue
        if any(_value(other.get(each), expected[each], each, tolerance) for each in before):
            continue
        having.setdefault(mistake.message, mistake)
    if calls is not None:
        keys = [*before, key]
        having = {said: each for said, each in having.items() if all(calls.fit(each, one) >= 0 for one in keys)}
    if len(having) != 1:
        return None
    ((message, mistake),) = having.items()
    return Difference(f"{found.where}: {message}", mistake.name, found.error, found.where, found.reason)


def _wrong_entry(result: Any, expected: Any, tolerance: float) -> str | None:
    """Return the first key of a dict that has another value than is expected."""
    if not isinstance(result, dict) or not isinstance(expected, dict):
        return None
    return next((each for each in expected if _value(result.get(each), expected[each], each, tolerance)), None)


def _sizes(arguments: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers among the arguments of a call, and in dicts among them."""
    for name, value in arguments.items():
        if isinstance(value, dict):
            yield from _sizes(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def _numbers(value: Any) -> bool:
    """Whether it is a number other than 0 to calculate with, or a list of them: what is met by chance tells nothing."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(_numbers(each) for each in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0 and not _too_large(value)


def _calls(steps: Sequence[Sequence[Any]]) -> list[str]:
    """Return what to call the results of a session: each by its method, as the student counts that one's calls.

    What takes no arguments is asked in between, and is found by the call before it.
    """
    methods, names, before = [method for method, _ in steps], [], ""
    for n, (method, arguments) in enumerate(steps):
        name = f"call {methods[: n + 1].count(method)} of {method.removeprefix(BESIDE)}"
        name += " of a second object" if method.startswith(BESIDE) else ""
        names.append(f"{method} after {before}" if before and not arguments else name)
        before = name if arguments else before
    return names


def _other_dtype(exercise: Exercise, arguments: Arguments, result: Any) -> Difference | None:
    values = result if isinstance(result, tuple | list) else (result,)
    for value, name, like in zip(values, exercise.returns, exercise.like, strict=False):
        if like is None or not isinstance(value, torch.Tensor):
            continue
        wanted = arguments[like].dtype if isinstance(like, str) else like
        if value.dtype != wanted:
            got, wanted = (str(dtype).removeprefix("torch.") for dtype in (value.dtype, wanted))
            why = f", as {like} is" if isinstance(like, str) else ""
            return Difference(f"{name} is {got}, expected {wanted}{why}", where=name)
    return None


def difference(result: Any, expected: Any, names: Sequence[str], tolerance: float) -> Difference | None:
    """Return the first difference between two nested values of the same form. Where None is expected, anything goes.

    `names` are those of the values, or one for all of them. A list of names is one of calls, which may be a single one.
    """
    if isinstance(expected, list) and len(expected) == len(names) > (0 if isinstance(names, list) else 1):
        if isinstance(names, list) and isinstance(result, list | tuple) and len(result) == len(expected):
            return _session(result, expected, names, tolerance)
        return _sequence(result, expected, names, tolerance, _count(len(names)))
    if isinstance(expected, tuple):
        if len(names) == len(expected):
            return _sequence(result, expected, names, tolerance, f"{_count(len(names))} ({', '.join(names)})")
        return _sequence(result, expected, [f"value {i}" for i in range(len(expected))], tolerance, "a tuple")
    return _value(result, expected, names[0] if names else "the result", tolerance)


def _value(result: Any, expected: Any, name: str, tolerance: float) -> Difference | None:
    refused = isinstance(result, str) and result.startswith(REFUSED)
    if refused and not isinstance(expected, str):
        return Difference(f"{name} should not raise {result[:500]}", error=math.inf, where=name)
    if isinstance(expected, torch.Tensor):
        return _tensor(result, expected, name, tolerance)
    if isinstance(expected, dict):
        if not isinstance(result, dict):
            return Difference(f"{name} is {_kind(result)}, expected a dict with the keys {', '.join(expected)}")
        if missing := [key for key in expected if key not in result]:
            keys = ", ".join(str(k)[:40] for k in list(result)[:8])
            return Difference(f"{name} has no entry {missing[0]!r}; it has {keys or 'none'}")
        return _first(_value(result[key], value, f"{name}[{key!r}]", tolerance) for key, value in expected.items())
    if isinstance(expected, list | tuple):
        form = "{}[{}]" if isinstance(expected, list) else "{}, value {}"
        first = 0 if isinstance(expected, list) else 1
        names = [form.format(name, i) for i in range(first, first + len(expected))]
        return _sequence(result, expected, names, tolerance, _count(len(expected)), name)
    if isinstance(expected, str):
        if result == expected or (refused and expected == REFUSED):
            return None
        if expected == REFUSED:
            reason = f"{name} should have raised ValueError, but returned {_kind(result)}"
            return Difference(reason, error=math.inf, where=name)
        return Difference(f"{name} is {_short(result)}, expected {expected!r}", where=name, error=math.inf)
    if expected is None:
        return None
    return _number(result, expected, name, tolerance)


def _sequence(
    result: Any, expected: Any, names: Sequence[str], tolerance: float, form: str, whole: str = ""
) -> Difference | None:
    """Compare value by value. `whole` is the name of the sequence where it is not all that the function returned."""
    if not isinstance(result, list | tuple):
        listable = isinstance(result, torch.Tensor) and isinstance(expected, list) and whole
        listed = ": .tolist() makes a list of it" if listable else ""
        kind = _kind(result).replace("a tensor", "an array or a tensor") if listable else _kind(result)
        got = f"{f'{whole} is' if whole else 'the function returned'} {kind}"
        return Difference(f"{got}, expected {form}{listed}")
    if len(result) != len(expected):
        has = f"{whole} has" if whole else "the function returned"
        return Difference(f"{has} {_count(len(result))}, expected {form}")
    return _first(_value(*each, tolerance) for each in zip(result, expected, names, strict=True))


def _first(differences: Iterator[Difference | None]) -> Difference | None:
    """Return the first one in shape or type, which wrong numbers elsewhere may follow from; else the first."""
    found = [each for each in differences if each]
    return next((each for each in found if each.error is None), found[0] if found else None)


def _session(result: Any, expected: Any, names: Sequence[str], tolerance: float) -> Difference | None:
    """Compare what calls gave: first numbers and refusals of all of them, which what the others hold follows from."""

    def counted(each: tuple[Any, Any, str]) -> bool:
        return isinstance(each[1], int | str) or (isinstance(each[0], str) and each[0].startswith(REFUSED))

    for value, wanted, name in sorted(zip(result, expected, names, strict=True), key=counted, reverse=True):
        if found := _value(value, wanted, name, tolerance):
            count = type(value) is type(wanted) is int and value.bit_length() < 64
            return replace(found, reason=f"{name} is {value}, expected {wanted}") if count else found
    return None


def _number(result: Any, expected: float | bool, name: str, tolerance: float) -> Difference | None:
    if isinstance(result, torch.Tensor | np.ndarray | np.generic) and math.prod(result.shape) == 1:
        result = result.item()
    if isinstance(result, bool) != isinstance(expected, bool) or not isinstance(result, bool | int | float):
        kind = "True or False" if isinstance(expected, bool) else "a number"
        return Difference(f"{name} is {_kind(result)}, expected {kind}")
    if _too_large(result):
        return Difference(f"{name} is an integer of {result.bit_length()} bits", error=math.inf, where=name)
    if not math.isfinite(result):
        return Difference(f"{name} is {result}, expected a finite number", error=math.inf)
    if math.isclose(result, expected, rel_tol=tolerance, abs_tol=1e-12):
        return None
    error = abs(result - expected) / abs(expected) if expected else math.inf
    what = "not the right number"
    if factor := _thousands(result, expected, tolerance):
        what = f"{factor} the right one: look at the unit"
    elif _rounded(result, expected):
        what = "the right one, rounded: leave it as it is"
    return Difference(f"{name} is {_short(result)}, which is {what}", error=error, where=name)


def _too_large(value: float) -> bool:
    """Whether it is an integer that no float is as large as: what multiplies or divides it may overflow."""
    return isinstance(value, int) and value.bit_length() > 900


def _rounded(result: float, expected: float) -> bool:
    """Whether a number is the expected one rounded, to whole ones in any way. A 0 may be that by chance, and a 1."""
    if not result or not math.isfinite(expected):
        return False
    up = math.ceil(expected) if expected > 1 else expected
    return result in (math.floor(expected), up, *(round(expected, digits) for digits in range(4)))


def _thousands(result: float, expected: float, tolerance: float) -> str | None:
    """Return which power of 1000 or 1024 a number is off by, if it is one."""
    for base, power in itertools.product((1000, 1024), (1, 2, 3, 4) if expected else ()):
        if math.isclose(result, expected * base**power, rel_tol=tolerance):
            return f"{base**power} times"
        if math.isclose(result * base**power, expected, rel_tol=tolerance):
            return f"1/{base**power} of"
    return None


def _tensor(result: Any, expected: torch.Tensor, name: str, tolerance: float) -> Difference | None:
    if not isinstance(result, torch.Tensor):
        return Difference(f"{name} is {_kind(result)}, expected a tensor of shape {list(expected.shape)}")
    if result.shape != expected.shape:
        return Difference(f"{name} has shape {list(result.shape)}, expected {list(expected.shape)}")
    if expected.is_floating_point() and not result.is_floating_point():
        return Difference(f"{name} has dtype {result.dtype}, expected a floating-point type")
    if not expected.is_floating_point():
        if result.is_floating_point():  # 8 bits of which are compared with nothing else
            result = result.double()
        wrong = int((result != expected).sum())
        return (
            Difference(f"{wrong} of {expected.numel()} entries of {name} are wrong", error=math.inf, where=name)
            if wrong
            else None
        )
    dtype, result, expected = result.dtype, result.double(), expected.double()
    form = "is"
    if dtype == torch.float64:
        rounded = torch.equal(result.float().double(), result)
        dtype, form = torch.float32, "is rounded to" if rounded else "is likely computed, in part, in"
    if strange := _not_finite(result, expected, name):
        return strange
    finite = expected.isfinite()
    result, expected = result.where(finite, 0.0), expected.where(finite, 0.0)
    return _error(result, expected, name, tolerance, dtype, form)


def _not_finite(result: torch.Tensor, expected: torch.Tensor, name: str) -> Difference | None:
    wanted = ~expected.isfinite()
    if result.isnan().any() and not expected.isnan().any():
        count = int(result.isnan().sum())
        return Difference(f"{name} has NaN in {count} of {result.numel()} entries", error=math.inf, where=name)
    if (result.isinf() & ~wanted).any():
        count = int((result.isinf() & ~wanted).sum())
        return Difference(f"{name} is infinite in {count} of {result.numel()} entries", error=math.inf, where=name)
    same = (result == expected) | (result.isnan() & expected.isnan())
    if (wanted & ~same).any():
        value = expected[wanted & ~same][0].item()
        return Difference(f"{name} should be {value} for rows that attend to nothing", error=math.inf, where=name)
    return None


def _error(
    result: torch.Tensor, expected: torch.Tensor, name: str, tolerance: float, dtype: torch.dtype, form: str
) -> Difference | None:
    """Return how far off a result is, and what the error looks like, if only that it `form` ("is", say) one dtype."""
    if expected.numel() == 0:
        return None
    delta = result - expected
    size = expected.norm().item()
    if name == LOGARITHM:
        size = max(size, math.sqrt(expected.numel()))
    error = delta.norm().item() / size if size else delta.norm().item()
    rows = expected.reshape(-1, expected.shape[-1] if expected.dim() else 1)
    row_delta = delta.reshape(rows.shape).norm(dim=-1)
    scale = rows.norm(dim=-1).clamp_min(max(size / math.sqrt(len(rows)), 1e-30))
    bad = row_delta > ROW_FACTOR * tolerance * scale
    if error <= tolerance and not bad.any():
        return None
    reason = f"{name} has a relative error of {error:.2g}, allowed {tolerance:.0e}"
    asked_for = form == "is" and torch.equal(expected.to(dtype).double(), expected)  # the right answer is rounded too
    if tolerance < torch.finfo(dtype).eps and error <= torch.finfo(dtype).eps and not asked_for:
        reason += f"; it {form} {str(dtype).removeprefix('torch.')}, which rounds as much"
    elif hint := _pattern(result, expected, bad.reshape(expected.shape[:-1]) if expected.dim() else bad, tolerance):
        reason += f"; {hint}"
    return Difference(reason, error=error, where=name)


def _pattern(result: torch.Tensor, expected: torch.Tensor, bad: torch.Tensor, tolerance: float) -> str | None:
    """Return what the error looks like: a constant factor, or confined to some indices of one axis."""
    factor = (result * expected).sum() / (expected * expected).sum().clamp_min(1e-300)
    rest = (result - factor * expected).norm() / expected.norm().clamp_min(1e-300)
    if abs(factor) > 1e-6 and f"{factor:.4g}" != "1" and rest <= tolerance * max(1.0, abs(factor)):
        unit = _thousands(float(factor), 1.0, tolerance)
        return f"it is {factor:.4g} times the expected one throughout{': look at the unit' if unit else ''}"
    for axis in range(bad.dim()):
        others = [d for d in range(bad.dim()) if d != axis]
        wrong = bad.any(dim=others) if others else bad
        if 0 < int(wrong.sum()) < len(wrong):
            indices = wrong.nonzero().flatten().tolist()
            listed = ", ".join(map(str, indices[:4])) + (", …" if len(indices) > 4 else "")
            noun, verb = ("index", "is") if len(indices) == 1 else ("indices", "are")
            return f"only {noun} {listed} of axis {axis} (size {len(wrong)}) {verb} wrong"
    return None


def _count(number: int) -> str:
    return "1 value" if number == 1 else f"{number} values"


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    article = "an" if type(value).__name__[0] in "aeiou" else "a"
    return f"{article} {type(value).__name__}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return repr(value)[:80] if isinstance(value, str | int | None) else _kind(value)  # others may take hours
