"""Cases of memory: masks, scalars, strides, block pointers, descriptors, tables of pointers and atomic operations."""

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .table import FLOATS, FP8, INTEGERS, Case, blank, jit, numbers, tensor

CASES: list[Case] = []
F16, BF16, F32, F64 = FLOATS.values()
I8, I16, I32, I64 = list(INTEGERS.values())[:4]


def add(name, kernel, args, outs, oracle, **more) -> None:
    CASES.append(Case(name, kernel, args, outs, oracle, **more))


# Masks


@triton.jit
def masked(x_ptr, y_ptr, n, OTHER: tl.constexpr):
    i = tl.arange(0, 16)
    y = tl.load(x_ptr + i, mask=i < n, other=OTHER)
    tl.store(y_ptr + i, y)


@triton.jit
def masked_by(x_ptr, o_ptr, m_ptr, y_ptr):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    other = tl.load(o_ptr + j)
    y = tl.load(x_ptr + i * 8 + j, mask=tl.load(m_ptr + i) & (j < 6), other=other)
    tl.store(y_ptr + i * 8 + j, y)


@triton.jit
def masked_store(x_ptr, y_ptr, n):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    tl.store(y_ptr + i * 8 + j, tl.load(x_ptr + i * 8 + j), mask=(i + j) % 3 < n)


@triton.jit
def masked_scalar(x_ptr, y_ptr, n):
    for k in range(4):
        tl.store(y_ptr + k, tl.load(x_ptr + k, mask=k < n, other=7), mask=k != 2)


@triton.jit
def nan_outside(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < 5))


@triton.jit
def masked_sum(x_ptr, y_ptr, n):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    tl.store(y_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + i, mask=i < n, other=0)))


for name, dtype in {**INTEGERS, **FLOATS, **FP8, "int1": torch.bool}.items():
    x, short, y = numbers(dtype, 16), numbers(dtype, 11), blank(16, dtype=dtype)
    if dtype not in FP8.values():
        add(f"load-other-{name}", masked, (short, y, 11, 1), (1,), lambda x, y, *_: np.append(x, np.ones(5, x.dtype)))
        add(f"load-none-{name}", masked, (short, y, 0, 0), (1,), lambda x, y, *_: np.zeros(16))
    wide, other = numbers(dtype, 4, 8), numbers(dtype, 8, seed="o")
    rows = torch.tensor([True, False, True, True])
    add(f"load-rows-{name}", masked_by, (wide, other, rows, blank(4, 8, dtype=dtype)), (3,),
        lambda x, o, m, y: np.where(m[:, None] & (np.arange(8) < 6), x, o))  # fmt: skip
    add(f"store-masked-{name}", masked_store, (wide, numbers(dtype, 4, 8, seed="y"), 2), (1,),
        lambda x, y, n: np.where((np.arange(4)[:, None] + np.arange(8)) % 3 < n, x, y))  # fmt: skip
    if dtype.is_floating_point:
        add(f"load-nan-{name}", nan_outside, (numbers(dtype, 5), blank(8, dtype=dtype)), (1,),
            lambda x, y: np.append(x, [np.nan] * 3), gpu=False)  # fmt: skip
add("load-masked-scalar", masked_scalar, (numbers(I32, 3), blank(4, dtype=I32), 3), (1,),
    lambda x, y, n: np.array([x[0], x[1], y[2], 7]))  # fmt: skip
add("load-tail", masked_sum, (numbers(F32, 29), blank(4, dtype=F32), 29), (1,),
    lambda x, y, n: np.append(x, [0] * 3).reshape(4, 8).sum(1), rtol=1e-5, atol=1e-5, grid=(4,))  # fmt: skip

# Pointers


@triton.jit
def strided(x_ptr, y_ptr, stride_m, stride_n):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    tl.store(y_ptr + i * 8 + j, tl.load(x_ptr + i * stride_m + j * stride_n))


@triton.jit
def marching(x_ptr, y_ptr, steps):
    i = tl.arange(0, 4)
    x_ptrs, total = x_ptr + i, tl.zeros([4], tl.float32)
    for _ in range(steps):
        total += tl.load(x_ptrs)
        x_ptrs += 4
    tl.store(y_ptr + i, total)


@triton.jit
def backward(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(x_ptr + 7 - i))


@triton.jit
def wide_index(x_ptr, y_ptr, i_ptr):
    i = tl.load(i_ptr + tl.arange(0, 8))
    tl.store(y_ptr + tl.arange(0, 8), tl.load(x_ptr + i.to(tl.int64) * 2))


@triton.jit
def of_two(a_ptr, b_ptr, y_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(tl.where(i % 3 == 0, a_ptr, b_ptr) + i))


@triton.jit
def swapped(a_ptr, b_ptr, y_ptr, steps):
    for _ in range(steps):
        a_ptr, b_ptr = b_ptr, a_ptr
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(a_ptr + i))


@triton.jit
def chosen(a_ptr, b_ptr, y_ptr):
    p = tl.program_id(0)
    if p % 2 == 0:  # noqa: SIM108
        x_ptr = a_ptr
    else:
        x_ptr = b_ptr + 1
    tl.store(y_ptr + p, tl.load(x_ptr + p))


@triton.jit
def in_tuple(pair, y_ptr, scale):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(pair[0] + i) * scale[0] + tl.load(pair[1] + i) * scale[1])


@triton.jit
def as_bytes(x_ptr, y_ptr):
    i = tl.arange(0, 16)
    tl.store(y_ptr + i, tl.load(x_ptr.to(tl.pointer_type(tl.uint8), bitcast=True) + i))


@triton.jit
def to_bool(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(x_ptr + i) > 0)


@triton.jit
def read_after_write(x_ptr, y_ptr):
    i = tl.arange(0, 8)
    tl.store(y_ptr + i, tl.load(x_ptr + i))
    tl.debug_barrier()
    tl.store(y_ptr + i, tl.load(y_ptr + 7 - i) + 1)


x, y = numbers(F32, 8, 4), blank(4, 8, dtype=F32)
add("load-transposed", strided, (x, y, 1, 4), (1,), lambda x, y, *_: x.T)
add("load-repeated", strided, (x, y, 0, 1), (1,), lambda x, y, *_: np.tile(x.reshape(-1)[:8], (4, 1)))
add(
    "load-marching",
    marching,
    (numbers(F32, 12), blank(4, dtype=F32), 3),
    (1,),
    lambda x, y, n: x.reshape(3, 4).sum(0),
    rtol=1e-6,
)
x, z, y = numbers(I32, 8), numbers(I32, 8, seed="z"), blank(8, dtype=I32)
add("load-backward", backward, (x, y), (1,), lambda x, y: x[::-1])
order = tensor([3, 0, 1, 2, 2, 0, 1, 3], torch.uint8)
add("load-wide-index", wide_index, (x, y, order), (1,), lambda x, y, i: x[i * 2])
add("load-of-two", of_two, (x, z, y), (2,), lambda a, b, y: np.where(np.arange(8) % 3 == 0, a, b))
add("load-swapped", swapped, (x, z, y, 3), (2,), lambda a, b, y, n: b)
add(
    "load-chosen",
    chosen,
    (x, z, blank(6, dtype=I32)),
    (2,),
    lambda a, b, y: np.array([a[0], b[2], a[2], b[4], a[4], b[6]]),
    grid=(6,),
)
add("load-bytes", as_bytes, (numbers(I32, 4), blank(16, dtype=torch.uint8)), (1,), lambda x, y: x.view(np.uint8))
add("store-bool", to_bool, (x, blank(8, dtype=torch.bool)), (1,), lambda x, y: x > 0)
add("read-after-write", read_after_write, (x, y), (1,), lambda x, y: x[::-1].astype(object) + 1)


class Tuples(Case):
    """A case whose kernel takes tuples."""

    def run(self, device):
        a, b, out, scale = (x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in self.args)
        self.kernel[self.grid]((a, b), out, scale)
        return [out.cpu()]


CASES.append(
    Tuples("tuples", in_tuple, (x, z, y, (3, 5)), (2,), lambda a, b, y, s: a.astype(object) * 3 + b.astype(object) * 5)
)


@triton.jit
def of_table(table_ptr, y_ptr):
    p, i = tl.program_id(0), tl.arange(0, 8)
    x_ptr = tl.load(table_ptr + p).to(tl.pointer_type(tl.int32))
    tl.store(y_ptr + p * 8 + i, tl.load(x_ptr + i) + 1)


class Table(Case):
    """A case whose kernel finds tensors by their addresses: rows of one that the launch gets too."""

    def run(self, device):
        x, out = (each.to(device, copy=True) for each in self.args)
        table = torch.tensor([row.data_ptr() for row in x.flip(0)] and [x[n].data_ptr() for n in (2, 0, 1)]).to(device)
        keep_ptrs[self.grid](table, out, x)
        return [out.cpu()]


@triton.jit
def keep_ptrs(table_ptr, y_ptr, x_ptr):
    of_table(table_ptr, y_ptr)


CASES.append(Table("table-of-pointers", keep_ptrs, (numbers(I32, 3, 8), blank(3, 8, dtype=I32)), (1,),
                   lambda x, y: x[[2, 0, 1]].astype(object) + 1, grid=(3,)))  # fmt: skip

# Block pointers and descriptors


@triton.jit
def block_pointer(x_ptr, y_ptr, m, n, PADDING: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (m, n), (n, 1), (0, 0), (4, 8), (1, 0))
    y = tl.make_block_ptr(y_ptr, (8, 16), (16, 1), (0, 0), (4, 8), (1, 0))
    for row in range(2):
        for column in range(2):
            xs, ys = tl.advance(x, (row * 4, column * 8)), tl.advance(y, (row * 4, column * 8))
            tl.store(ys, tl.load(xs, boundary_check=(0, 1), padding_option=PADDING))


@triton.jit
def block_store(x_ptr, y_ptr, m, n):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    y = tl.make_block_ptr(y_ptr, (m, n), (n, 1), (tl.program_id(0) * 4, 0), (4, 8), (1, 0))
    tl.store(y, tl.load(x_ptr + i * 8 + j), boundary_check=(0, 1))


def padded(x, shape, value=0.0):
    out = np.full(shape, value, x.dtype)
    out[: x.shape[0], : x.shape[1]] = x
    return out


if hasattr(tl, "make_block_ptr") and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9):
    x = numbers(F32, 7, 13)
    for padding, value in [("zero", 0.0), ("nan", np.nan)]:
        add(f"block-pointer-{padding}", block_pointer, (x, blank(8, 16, dtype=F32), 7, 13, padding), (1,),
            lambda x, y, m, n, p, value=value: padded(x, (8, 16), value))  # fmt: skip
    add("block-pointer-store", block_store, (numbers(F32, 4, 8), blank(7, 5, dtype=F32), 7, 5), (1,),
        lambda x, y, m, n: np.concatenate([x, x])[:7, :5], grid=(2,))  # fmt: skip


@triton.jit
def host_descriptor(x, y, M: tl.constexpr):
    for row in range(0, M, 4):
        y.store([row, 0], x.load([row, 4]) * 2)


@triton.jit
def device_descriptor(x_ptr, y_ptr, m, n):
    x = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [4, 8])
    y = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [4, 8])
    p = tl.program_id(0)
    y.store([p * 4, 8], x.load([p * 4, 0]) + 1)


class Described(Case):
    """A case whose kernel takes descriptors that the host makes."""

    def run(self, device):
        x, y, rows = (each.to(device, copy=True) if isinstance(each, torch.Tensor) else each for each in self.args)
        self.kernel[self.grid](
            *(TensorDescriptor(each, list(each.shape), list(each.stride()), [4, 8]) for each in (x, y)), rows
        )
        return [y.cpu()]


CASES.append(Described("descriptor-host", host_descriptor, (numbers(F32, 6, 16), blank(6, 8, dtype=F32), 8), (1,),
                       lambda x, y, m: x[:, 4:12] * 2))  # fmt: skip
add("descriptor-device", device_descriptor, (numbers(F32, 6, 12), blank(6, 12, dtype=F32), 6, 12), (1,),
    lambda x, y, m, n: np.concatenate([y[:, :8], x[:, :4] + 1], 1), grid=(2,))  # fmt: skip


@triton.jit
def descriptor_add(x_ptr, y_ptr, m, n):
    y = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [4, 8])
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    y.atomic_add([2 * tl.program_id(0), 8], tl.load(x_ptr + i * 8 + j))


def added(x, y, m, n):
    y = y.copy()
    for p in range(2):
        y[2 * p : 2 * p + 4, 8:12] += x[: min(4, 5 - 2 * p), :4]
    return y


add(
    "descriptor-atomic",
    descriptor_add,
    (numbers(F32, 4, 8), torch.zeros(5, 12), 5, 12),
    (1,),
    added,
    grid=(2,),
    rtol=1e-6,
)


@triton.jit
def wide_block(x_ptr, y_ptr):
    i = tl.program_id(0) * 131072 + tl.arange(0, 131072)
    tl.store(y_ptr + i, tl.load(x_ptr + i) + tl.program_id(0))


x = torch.arange(262144, dtype=I32)
add(
    "wider-than-a-chunk",
    wide_block,
    (x, torch.zeros_like(x)),
    (1,),
    lambda x, y: x + (np.arange(262144) >= 131072),
    grid=(2,),
)

# Atomic operations

ATOMIC = """
@triton.jit
def kernel(y_ptr, at_ptr, x_ptr, old_ptr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    at, x = tl.load(at_ptr + i), tl.load(x_ptr + i)
    old = tl.atomic_{op}(y_ptr + at, x, mask=x != 3)
    tl.store(old_ptr + i, old, mask=x != 3)
"""
CAS = """
@triton.jit
def kernel(y_ptr, at_ptr, x_ptr, old_ptr):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    at, x = tl.load(at_ptr + i), tl.load(x_ptr + i)
    tl.store(old_ptr + i, tl.atomic_cas(y_ptr + at, x, x + 1))
"""
ORDERS = {"apart": np.random.default_rng(1).permutation(32), "together": np.random.default_rng(2).integers(0, 6, 32)}
UPDATES = {
    "add": lambda old, new: old + new, "max": max, "min": min, "and": lambda old, new: old & new,
    "or": lambda old, new: old | new, "xor": lambda old, new: old ^ new, "xchg": lambda old, new: new,
}  # fmt: skip


def updated(rule, everywhere=False):
    """Return the oracle of updates that come one after the other."""

    def oracle(y, at, x, old):
        number = float if y.dtype.kind == "f" else int
        y, old = y.astype(object), old.astype(object)
        for n, (place, new) in enumerate(zip(at, x, strict=True)):
            if new != 3 or everywhere:
                old[n] = y[place]
                y[place] = rule(number(y[place]), number(new))
        return y, old

    return oracle


def add_atomic(op, dtype, values, source=ATOMIC) -> None:
    name = next(name for name, each in {**INTEGERS, **FLOATS}.items() if each == dtype)
    kernel = jit(source.replace("{op}", op), f"atomic-{op}-{name}")
    rule = UPDATES.get(op, lambda old, new: new + 1 if old == new else old)
    for label, order in ORDERS.items():
        args = tensor(np.arange(32) % 5 + 1, dtype), tensor(order, I32), tensor(values, dtype), blank(32, dtype=dtype)
        both, apart = updated(rule, everywhere=source is CAS), label == "apart"
        add(f"atomic-{op}-{name}-{label}", kernel, args, (0,), lambda *args, both=both: both(*args)[0], grid=(2,),
            gpu=apart or op not in ("xchg", "cas"))  # fmt: skip
        if apart or not (op in ("max", "min") and dtype.is_floating_point):  # of a float they are two operations
            add(f"atomic-{op}-{name}-{label}-old", kernel, args, (3,), lambda *args, both=both: both(*args)[1],
                grid=(2,), gpu=apart)  # fmt: skip


VALUES = np.random.default_rng(3).integers(-8, 9, 32)
for dtype in (I32, I64, torch.uint32, torch.uint64):
    values = VALUES if dtype.is_signed else np.abs(VALUES)
    for op in UPDATES:
        if op == "xchg" and not dtype.is_signed:
            continue
        if dtype.is_signed or op in ("add", "max", "min"):
            add_atomic(op, dtype, values if op != "max" else values * 1000003)
for dtype in (F32, F16, BF16, F64):
    add_atomic("add", dtype, VALUES / 2)
add_atomic("xchg", F32, VALUES / 2)
for op in ("max", "min"):
    add_atomic(op, F32, VALUES / 2 - 1)
add_atomic("cas", I32, np.arange(32) % 7, CAS)
add_atomic("cas", I64, np.arange(32) % 4, CAS)


@triton.jit
def count_all(y_ptr, old_ptr, SEM: tl.constexpr):
    p = tl.program_id(0)
    tl.store(old_ptr + p, tl.atomic_add(y_ptr, p + 1, sem=SEM))


@triton.jit
def one_lane(y_ptr):
    tl.atomic_add(y_ptr + tl.zeros([16], tl.int32), tl.arange(0, 16))


@triton.jit
def uniform(y_ptr):
    tl.atomic_add(y_ptr, 2)


for sem in ("relaxed", "acq_rel", "release", "acquire"):
    add(f"atomic-scalar-{sem}", count_all, (torch.zeros(1, dtype=I32), blank(5, dtype=I32), sem), (0,),
        lambda y, old, sem: np.array([15]), grid=(5,))  # fmt: skip
add("atomic-one-place", one_lane, (torch.zeros(1, dtype=I32),), (0,), lambda y: np.array([360]), grid=(3,))
add("atomic-uniform", uniform, (torch.zeros(1, dtype=I32),), (0,), lambda y: np.array([14]), grid=(7,))
