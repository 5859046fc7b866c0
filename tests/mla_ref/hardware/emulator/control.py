"""Cases of control flow: branches, loops and calls that programs take apart, and the grid; random numbers."""

import numpy as np
import torch
import triton
import triton.language as tl

from .table import FLOATS, INTEGERS, Case, blank, numbers

CASES: list[Case] = []
F32 = FLOATS["float32"]
I32, I64 = INTEGERS["int32"], INTEGERS["int64"]


def add(name, kernel, args, oracle, outs=None, **more) -> None:
    CASES.append(Case(name, kernel, args, outs or (len(args) - 1,), oracle, **more))


def ints(*shape):
    return blank(*shape, dtype=I32)


def by_program(function, count=7):
    """Return the oracle of a kernel that stores one number of each program."""
    return lambda *args: np.array([function(p, *args[:-1]) for p in range(count)], dtype=object)


@triton.jit
def branches(x_ptr, y_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    if x > 0:
        y = x * 2
        if x % 2 == 0:
            y += 100
    elif x == 0:
        y = 7 + x
    else:
        y = -x
        if p > 3:
            tl.store(x_ptr + p, 1000)
    tl.store(y_ptr + p, y)


def branched(p, x):
    return 2 * x[p] + 100 * (x[p] % 2 == 0) if x[p] > 0 else 7 if x[p] == 0 else -x[p]


values = torch.tensor([3, -1, 0, 4, -9, 2, -5], dtype=I32)
add("branches", branches, (values, ints(7)), by_program(branched), grid=(7,))
add(
    "branches-store",
    branches,
    (values, ints(7)),
    lambda x, y: np.where((x < 0) & (np.arange(7) > 3), 1000, x),
    (0,),
    grid=(7,),
)


@triton.jit
def blocks_in_branches(x_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 8)
    x = tl.load(x_ptr + p * 8 + i)
    if p % 2 == 0:
        total = tl.sum(x)
        x = x - total
    else:
        x = tl.cumsum(x)
    tl.store(y_ptr + p * 8 + i, x)


block = numbers(I32, 5, 8)
add("branches-of-blocks", blocks_in_branches, (block, ints(5, 8)),
    lambda x, y: np.array([row - row.sum() if p % 2 == 0 else row.cumsum() for p, row in enumerate(x.astype(object))]),
    grid=(5,))  # fmt: skip


@triton.jit
def early_return(x_ptr, n, y_ptr):
    p = tl.program_id(0)
    tl.store(y_ptr + p, -1)
    if p >= n:
        return
    x = tl.load(x_ptr + p)
    if x < 0:
        tl.store(y_ptr + p, -2)
        return
    tl.store(y_ptr + p, x)


for n in (0, 4, 7):
    add(f"early-return-{n}", early_return, (values, n, ints(7)),
        by_program(lambda p, x, n: -1 if p >= n else -2 if x[p] < 0 else x[p]), grid=(7,))  # fmt: skip


@triton.jit
def picked(x, n):
    if x > n:
        return x - n
    return x * 2


@triton.jit(noinline=True)
def picked_apart(x, n):
    if x > n:
        return x - n
    return x * 2


@triton.jit(noinline=True)
def both_apart(x, y):
    return x + y, x - y


@triton.jit
def call(x_ptr, n, y_ptr, APART: tl.constexpr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    y = picked_apart(x, n) if APART else picked(x, n)
    if APART:
        a, b = both_apart(y, x)
        y = a * 10 + b
    tl.store(y_ptr + p, y)


def called(apart):
    def rule(p, x, n, *_):
        y = int(x[p]) - n if x[p] > n else int(x[p]) * 2
        return (y + int(x[p])) * 10 + y - int(x[p]) if apart else y

    return rule


for apart in (False, True):
    add(
        f"call-{'noinline' if apart else 'inline'}",
        call,
        (values, 1, ints(7), apart),
        lambda x, n, y, a, apart=apart: by_program(called(apart))(x, n, y),
        (2,),
        grid=(7,),
    )


@triton.jit
def while_loop(x_ptr, y_ptr):
    p = tl.program_id(0)
    x, steps = tl.load(x_ptr + p), 0
    while x > 1:
        if x % 2 == 0:  # noqa: SIM108
            x = x // 2
        else:
            x = 3 * x + 1
        steps += 1
    tl.store(y_ptr + p, steps)


def collatz(p, x):
    x, steps = int(x[p]), 0
    while x > 1:
        x, steps = (x // 2 if x % 2 == 0 else 3 * x + 1), steps + 1
    return steps


starts = torch.tensor([1, 7, 27, 2, 0, 9, 6], dtype=I32)
add("while", while_loop, (starts, ints(7)), by_program(collatz), grid=(7,))


@triton.jit
def for_loop(low_ptr, high_ptr, STEP: tl.constexpr, y_ptr):
    p = tl.program_id(0)
    total, last = 0, -7
    for i in range(tl.load(low_ptr + p), tl.load(high_ptr + p), STEP):
        total += i * i
        last = i
    tl.store(y_ptr + p, total * 1000 + last)


@triton.jit
def for_loop_any(low_ptr, high_ptr, step, y_ptr):
    p = tl.program_id(0)
    total, last = 0, -7
    for i in range(tl.load(low_ptr + p), tl.load(high_ptr + p), step):
        total += i * i
        last = i
    tl.store(y_ptr + p, total * 1000 + last)


def looped(p, low, high, step):
    turns = list(range(int(low[p]), int(high[p]), step))
    return sum(i * i for i in turns) * 1000 + (turns or [-7])[-1]


low, high = (torch.tensor(x, dtype=I32) for x in ([0, 3, -4, 5, 2, 0, 9], [4, 3, 4, 0, 9, 1, -3]))
for step in (1, 2, 3, -1, -2):
    add(f"for-{step}", for_loop, (low, high, step, ints(7)), by_program(looped), grid=(7,))
    if step > 0:
        add(f"for-any-{step}", for_loop_any, (low, high, step, ints(7)), by_program(looped), grid=(7,))


@triton.jit
def nested(x_ptr, y_ptr):
    p = tl.program_id(0)
    n, total = tl.load(x_ptr + p), 0
    for i in tl.range(n, num_stages=2):
        for j in tl.range(0, i + 1):
            if (i + j) % 2 == p % 2:
                k = 0
                while k < j:
                    total += k + i
                    k += 2
            else:
                total -= 1
        for c in tl.static_range(3):
            total += c * n
    tl.store(y_ptr + p, total)


def nest(p, x):
    n, total = int(x[p]), 0
    for i in range(n):
        for j in range(i + 1):
            total += sum(k + i for k in range(0, j, 2)) if (i + j) % 2 == p % 2 else -1
        total += 3 * n
    return total


add("nested", nested, (torch.tensor([0, 3, 5, 1, 6, 2, 4], dtype=I32), ints(7)), by_program(nest), grid=(7,))


@triton.jit
def carried(x_ptr, y_ptr, n):
    i = tl.arange(0, 4)
    a, b = tl.zeros([4], tl.int32), i
    for k in range(n):
        a, b = b, a + b + k
        if k == 2:
            a = tl.load(x_ptr + i)
    tl.store(y_ptr + i, a * 100 + b)


def carry(x, y, n):
    a, b = np.zeros(4, object), np.arange(4).astype(object)
    for k in range(n):
        a, b = b, a + b + k
        a = x.astype(object) if k == 2 else a
    return a * 100 + b


for n in (0, 1, 6):
    add(f"carried-{n}", carried, (torch.arange(4, dtype=I32), ints(4), n), carry, (1,))


@triton.jit
def grid(y_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny = tl.num_programs(0), tl.num_programs(1)
    tl.store(y_ptr + x + nx * (y + ny * z), x + 10 * y + 100 * z + 1000 * tl.num_programs(2))


add(
    "grid",
    grid,
    (ints(2, 3, 4),),
    lambda y: 3000 - 1000 + np.add.outer(np.add.outer(100 * np.arange(2), 10 * np.arange(3)), np.arange(4)),
    grid=(4, 3, 2),
)
add("grid-2d", grid, (ints(3, 4),), lambda y: 1000 + np.add.outer(10 * np.arange(3), np.arange(4)), grid=(4, 3))


@triton.jit
def wide_programs(y_ptr, stride):
    p = tl.program_id(0).to(tl.int64)
    tl.store(y_ptr + p, p * stride)


@triton.jit
def narrow_programs(y_ptr, stride):
    p = tl.program_id(0)
    tl.store(y_ptr + p, p * stride)


for name, kernel, rule in [
    ("int64", wide_programs, lambda p, n: p * n),
    ("int32", narrow_programs, lambda p, n: (p * n + 2**31) % 2**32 - 2**31),
]:
    add(
        f"programs-{name}",
        kernel,
        (blank(5, dtype=I64), 2**30 + 5),
        lambda y, n, rule=rule: np.array([rule(p, n) for p in range(5)]),
        (0,),
        grid=(5,),
    )


@triton.jit
def many(y_ptr, n):
    i = tl.program_id(0) * 4 + tl.arange(0, 4)
    tl.store(y_ptr + i, i * 3, mask=i < n)


add("many-programs", many, (ints(70001), 70001), lambda y, n: 3 * np.arange(n), (0,), grid=(17501,))


@triton.jit
def persistent(y_ptr, n):
    for i in range(tl.program_id(0), n, tl.num_programs(0)):
        tl.store(y_ptr + i, i * i)


add("persistent", persistent, (ints(23), 23), lambda y, n: np.arange(n) ** 2, (0,), grid=(4,))


@triton.constexpr_function
def twice(x):
    return 2 * x


@triton.jit
def constants(x_ptr, y_ptr, N: tl.constexpr, FORM: tl.constexpr):
    i = tl.arange(0, N)
    HALF: tl.constexpr = twice(N) // 4
    tl.static_assert(HALF * 2 == N)
    if FORM == "up":  # noqa: SIM108
        y = tl.load(x_ptr + i) + HALF
    else:
        y = tl.load(x_ptr + i) - HALF
    for k in tl.static_range(1, N, 2):
        y += k
    tl.store(y_ptr + i, y)


for form, sign in {"up": 1, "down": -1}.items():
    add(
        f"constexpr-{form}",
        constants,
        (values[:4].clone(), ints(4), 4, form),
        lambda x, y, n, f, sign=sign: x + sign * 2 + 4,
        (1,),
    )


@triton.jit
def select_scalar(x_ptr, y_ptr):
    p = tl.program_id(0)
    x = tl.load(x_ptr + p)
    y = x if x > p else p
    tl.store(y_ptr + p, y if not (x == 2 or p == 1) else 55)


add(
    "conditional-expression",
    select_scalar,
    (values, ints(7)),
    by_program(lambda p, x: 55 if x[p] == 2 or p == 1 else max(x[p], p)),
    grid=(7,),
)


@triton.jit
def scalars(n, x, y_ptr):
    tl.store(y_ptr, n + 1)
    tl.store(y_ptr + 1, (x * 2).to(tl.int64))
    tl.store(y_ptr + 2, n // 3)


for n in (1, 16, 17, -5, 2**31, 2**40):
    add(
        f"scalar-argument-{n}", scalars, (n, 2.5, blank(3, dtype=I64)), lambda n, x, y: np.array([n + 1, 5, int(n / 3)])
    )


@triton.jit
def maybe(x_ptr, y_ptr):
    if x_ptr is not None:
        tl.store(y_ptr, tl.load(x_ptr))
    else:
        tl.store(y_ptr, 5)


add("argument-none", maybe, (None, ints(1)), lambda x, y: np.array([5]))
add("argument-given", maybe, (values[:1].clone(), ints(1)), lambda x, y: x)


@triton.autotune(configs=[triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 8})], key=["n"])
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def guessed(y_ptr, n, EVEN: tl.constexpr):
    tl.store(y_ptr, 1 if EVEN else 2)


add("autotune", tuned, (values, ints(7), 7), lambda x, y, n: x + 1, (1,))
for n in (4, 5):
    add(f"heuristics-{n}", guessed, (ints(1), n), lambda y, n: np.array([1 + n % 2]), (0,))

# Random numbers: Philox 4x32 with ten rounds, as in the paper of Salmon et al. (2011)


def philox(seed, offsets):
    low = 2**32 - 1
    out = []
    for c in offsets:
        c0, c1, c2, c3 = int(c) & low, 0, 0, 0
        k0, k1 = seed & low, seed >> 32 & low
        for _ in range(10):
            a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
            c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b & low, a >> 32 ^ c3 ^ k1, a & low
            k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
        out.append((c0, c1, c2, c3))
    return np.array(out, dtype=object).T


@triton.jit
def randoms(seed, first, y_ptr, u_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, first + i)
    tl.store(y_ptr + i, a)
    tl.store(y_ptr + N + i, b)
    tl.store(y_ptr + 2 * N + i, c)
    tl.store(y_ptr + 3 * N + i, d)
    tl.store(u_ptr + i, tl.rand(seed, first + i))


def uniform(seed, first, y, u, n):
    signed = (philox(seed, first + np.arange(n))[0] + 2**31) % 2**32 - 2**31
    return np.where(signed < 0, -signed - 1, signed).astype(np.float64) * 4.6566127342e-10


for seed in (0, 42, 2**35 + 17):
    args = (seed, 100, blank(4, 16, dtype=I32), blank(16, dtype=F32), 16)
    add(f"randint-{seed}", randoms, args, lambda s, f, y, u, n: philox(s, f + np.arange(n)), (2,))
    add(f"rand-{seed}", randoms, args, uniform, (3,), rtol=3e-7)
