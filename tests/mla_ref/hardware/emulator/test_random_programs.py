"""Random expressions, loops and branches compute what Python says."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")
if emulator.interpreted():
    pytest.skip("the emulator is not in use under TRITON_INTERPRET=1", allow_module_level=True)

from .table import compare, jit, number, rounded

DEVICE = "cpu" if emulator.active() else "cuda"
NUMBER = itertools.count()
SIZE = 8


def grown(leaves, unary, binary, ternary=()):
    """Return expressions as text, of which the operations are formats."""

    def more(inner):
        forms = [(unary, 1), (binary, 2), (ternary, 3)]
        return st.one_of(st.builds(lambda form, *parts: form.format(*parts), st.sampled_from(texts), *[inner] * count)
                         for texts, count in forms if texts)  # fmt: skip

    return st.recursive(leaves, more, max_leaves=8)


WHOLE = grown(
    st.sampled_from(["a", "b", "c", "3", "(-7)"]),
    ["(-{})", "(~({} + a))"],
    ["({} + {})", "({} - {} + a)", "({} * {})", "({} & {})", "({} ^ ({} | b))", "least({}, {} - c)", "most({} + a, {})",
     "pick(a < b, {}, {} + c)", "(({} + a) >> (({} + b) & 15))", "(({} + c) << (({} + b) & 7))"],
)  # fmt: skip
REAL = grown(
    st.sampled_from(["a", "b", "c", "0.5", "(-2.0)"]),
    ["(-{})", "size({} + a)", "root(size({} + b))", "power({} * 0.0625 - size(a))"],
    ["({} + {})", "({} - {})", "({} * {} * 0.25)", "least({}, {} - c)", "most({}, {} * a)", "({} / (size({}) + 1.5))"],
)
IN_TRITON = {"least": "tl.minimum", "most": "tl.maximum", "pick": "tl.where", "size": "tl.abs", "root": "tl.sqrt",
             "power": "tl.exp"}  # fmt: skip
SOURCE = """
@triton.jit
def kernel(a_ptr, b_ptr, c_ptr, y_ptr):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    a, b, c = tl.load(a_ptr + i), tl.load(b_ptr + i), tl.load(c_ptr + tl.program_id(0))
    tl.store(y_ptr + i, ({expression}) + a * 0)
"""


def computed(expression, *inputs):
    """Return what the kernel of an expression of `a`, `b` by element and `c` by program makes."""
    text = expression
    for name, triton_name in IN_TRITON.items():
        text = text.replace(f"{name}(", f"{triton_name}(")
    kernel = jit(SOURCE.format(expression=text), f"random-{next(NUMBER)}")
    a, b, c = (x.to(DEVICE) for x in inputs)
    y = torch.empty_like(a)
    kernel[(2,)](a, b, c, y)
    return number(y.cpu())


integers = st.integers(-(2**31), 2**31 - 1) | st.integers(-9, 9)


@settings(max_examples=60)
@given(WHOLE, st.lists(integers, min_size=16, max_size=16), st.lists(integers, min_size=16, max_size=16),
       st.lists(integers, min_size=2, max_size=2))  # fmt: skip
def test_expressions_of_integers_wrap_at_each_step(expression, a, b, c):
    class Word(int):
        """An integer of 32 bits."""

    def word(n):
        return Word((int(n) + 2**31) % 2**32 - 2**31)

    for name in ("add", "sub", "mul", "and", "or", "xor", "lshift", "rshift"):
        rule = getattr(int, f"__{name}__")
        setattr(Word, f"__{name}__", lambda x, y, rule=rule: word(rule(int(x), int(y))))
        setattr(Word, f"__r{name}__", lambda x, y, rule=rule: word(rule(int(y), int(x))))
    Word.__neg__, Word.__invert__ = lambda x: word(-int(x)), lambda x: word(~int(x))
    scope = {"least": min, "most": max, "pick": lambda condition, x, y: x if condition else y}
    want = [eval(expression, scope | {"a": word(x), "b": word(y), "c": word(c[n // 8])})
            for n, (x, y) in enumerate(zip(a, b, strict=True))]  # fmt: skip
    got = computed(expression, *(torch.tensor(x, dtype=torch.int32) for x in (a, b, c)))
    compare(got, rounded(want, torch.int32), None)


reals = st.floats(-4, 4, width=32)


@settings(max_examples=60)
@given(REAL, st.lists(reals, min_size=16, max_size=16), st.lists(reals, min_size=16, max_size=16),
       st.lists(reals, min_size=2, max_size=2))  # fmt: skip
def test_expressions_of_floats_stay_near_those_of_twice_the_digits(expression, a, b, c):
    class Near:
        """A number with a bound of its error."""

        def __init__(self, value, error=0.0):
            self.value, self.error = value, error + abs(value) * 2**-21 + 1e-37

        def __add__(self, other):
            return Near(self.value + near(other).value, self.error + near(other).error)

        def __sub__(self, other):
            return Near(self.value - near(other).value, self.error + near(other).error)

        def __mul__(self, other):
            x, y = self, near(other)
            return Near(x.value * y.value, abs(x.value) * y.error + abs(y.value) * x.error + x.error * y.error)

        def __truediv__(self, other):
            other = near(other)
            low = abs(other.value) - other.error
            return Near(self.value / other.value, (self.error + abs(self.value / other.value) * other.error) / low)

        def __neg__(self):
            return Near(-self.value, self.error)

        __radd__, __rmul__ = __add__, __mul__

        def __rtruediv__(self, other):
            return near(other) / self

        def __rsub__(self, other):
            return near(other) - self

    def near(x):
        return x if isinstance(x, Near) else Near(float(x))

    def root(x):
        if x.value <= x.error:
            return Near(np.sqrt(x.value), np.sqrt(x.value + x.error))
        return Near(np.sqrt(x.value), x.error / np.sqrt(x.value - x.error))

    def power(x):
        return Near(np.exp(x.value), np.exp(x.value + x.error) * (x.error * 2 + 1e-6))

    either = lambda choose: lambda x, y: Near(choose(near(x).value, near(y).value), near(x).error + near(y).error)
    scope = {"least": either(min), "most": either(max), "size": lambda x: Near(abs(near(x).value), near(x).error),
             "root": lambda x: root(near(x)), "power": lambda x: power(near(x))}  # fmt: skip
    got = computed(expression, *(torch.tensor(x, dtype=torch.float32) for x in (a, b, c)))
    for n, (x, y) in enumerate(zip(a, b, strict=True)):
        with np.errstate(all="ignore"):
            want = near(eval(expression, scope | {"a": near(x), "b": near(y), "c": near(c[n // 8])}))
        if np.isfinite(want.error) and abs(want.value) < 1e37:
            assert abs(got[n] - want.value) <= want.error + 1e-37


STEP = st.sampled_from(["x = (x + y * {n}) & 1023", "y = x - {n}", "x, y = y, x + 1", "y += i", "x = x ^ (p + {n})"])


def joined(parts):
    return list(itertools.chain(*parts))


def statements(depth):
    """Return lines of loops and branches on `x`, `y`, the program `p` and the outer loop's `i`."""
    plain = st.builds(lambda text, n: [text.format(n=n)], STEP, st.integers(1, 5))
    if not depth:
        return plain
    inner = st.lists(statements(depth - 1), min_size=1, max_size=3).map(joined)
    within = lambda lines: ["    " + line for line in lines]
    condition = st.sampled_from(["x > y", "(x & 1) == 0", "p == 2", "y < 0", "p % 2 == i % 2"])
    branch = st.builds(lambda c, a, b: [f"if {c}:", *within(a), "else:", *within(b)], condition, inner, inner)
    alone = st.builds(lambda c, a: [f"if {c}:", *within(a)], condition, inner)
    bound = st.sampled_from(["p", "3", "(x & 3)", "p + 1"])
    loop = st.builds(lambda n, a: [f"for j{depth} in range(0, {n}):", *within([f"i = j{depth}", *a])], bound, inner)
    loop_back = st.builds(
        lambda n, a: [f"for j{depth} in range({n}, 0, -2):", *within([f"i = j{depth}", *a])], bound, inner
    )
    repeat = st.builds(
        lambda n, a: [f"k{depth} = {n}", f"while k{depth} > 0:", *within(["i = p", *a, f"k{depth} -= 1"])], bound, inner
    )
    return plain | branch | alone | loop | loop_back | repeat


PROGRAM = """
@triton.jit
def kernel(x_ptr, y_ptr):
    p = tl.program_id(0)
    x, y, i = tl.load(x_ptr + p), p * 3, p * 0
{lines}
    tl.store(y_ptr + p, x * 31 + y)
"""


@settings(max_examples=60)
@given(st.lists(statements(3), min_size=1, max_size=4), st.lists(st.integers(-20, 20), min_size=5, max_size=5))
def test_loops_and_branches_of_each_program(parts, starts):
    lines = joined(parts)
    kernel = jit(PROGRAM.format(lines="\n".join("    " + line for line in lines)), f"random-{next(NUMBER)}")
    x, y = torch.tensor(starts, dtype=torch.int32, device=DEVICE), torch.empty(5, dtype=torch.int32, device=DEVICE)
    kernel[(5,)](x, y)
    want = []
    for p, start in enumerate(starts):
        scope = {"x": start, "y": p * 3, "i": 0, "p": p}
        exec("\n".join(lines), scope)
        want.append(scope["x"] * 31 + scope["y"])
    compare(number(y.cpu()), rounded(want, torch.int32), None)
