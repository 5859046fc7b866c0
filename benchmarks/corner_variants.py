"""Kernels, and passes of torch, each with much of one thing that could mislead the modelled time.

Launchers stand for a student's function. `CORNERS` names the corner, the launcher, its tensors and its options.
"""

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def waits(x_ptr, out_ptr, turns, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for _ in range(turns):
        tl.debug_barrier()
    tl.store(out_ptr + offs, x)


@triton.jit
def described(x_ptr, out_ptr, turns, ROWS: tl.constexpr, COLS: tl.constexpr):
    acc = tl.zeros((ROWS, COLS), tl.float32)
    for turn in range(turns):
        tile = tl.make_tensor_descriptor(x_ptr + turn * ROWS * COLS, (ROWS, COLS), (COLS, 1), (ROWS, COLS))
        acc += tile.load([0, 0]).to(tl.float32)
    offs = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + tl.program_id(0) * ROWS * COLS + offs, acc)


@triton.jit
def described_once(x_ptr, out_ptr, turns, ROWS: tl.constexpr, COLS: tl.constexpr):
    acc = tl.zeros((ROWS, COLS), tl.float32)
    tile = tl.make_tensor_descriptor(x_ptr, (turns * ROWS, COLS), (COLS, 1), (ROWS, COLS))
    for turn in range(turns):
        acc += tile.load([turn * ROWS, 0]).to(tl.float32)
    offs = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    tl.store(out_ptr + tl.program_id(0) * ROWS * COLS + offs, acc)


@triton.jit
def adds_up(x_ptr, out_ptr, sums_ptr, turns, SEM: tl.constexpr, SCOPE: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for turn in range(turns):
        tl.atomic_add(sums_ptr + tl.program_id(0) * turns + turn, 1.0, sem=SEM, scope=SCOPE)
    tl.store(out_ptr + offs, x)


@triton.jit
def works(x_ptr, out_ptr, a, turns, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for _ in range(turns):
        for _ in tl.static_range(8):
            x = x * 0.99 + a
    tl.store(out_ptr + offs, x)


@triton.jit
def computes(x_ptr, out_ptr, a, b, turns, KIND: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for _ in range(turns):
        for _ in tl.static_range(8):
            if KIND == "fma":
                x = x * 0.99 + a
            elif KIND == "exp":
                x = tl.exp2(x)
            elif KIND == "greatest":
                x = tl.maximum(x + 1.5, a)
            elif KIND == "bf16 and back":
                x = (x * a).to(tl.bfloat16).to(tl.float32)
            elif KIND == "multiply":
                x = x * a + b
            elif KIND == "add and xor":
                x = (x + a) ^ b
            elif KIND == "shifts":
                x = (x >> 3) + (x << 7)
            elif KIND == "least":
                x = tl.minimum(x + a, b)
            elif KIND == "chosen":
                x = tl.where(x > a, x ^ b, x + a)
            elif KIND == "float and back":
                x = x.to(tl.float32).to(tl.int32) + a
            elif KIND == "64 bits":
                x = ((x.to(tl.int64) * a + b) >> 5).to(tl.int32)
    tl.store(out_ptr + offs, x)


@triton.jit
def idles(x_ptr, out_ptr, a, turns, TURNS: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    v = tl.arange(0, 64)[:, None] * 32 + tl.arange(0, 32)[None, :] + pid
    if KIND == "loop in registers":
        for _ in range(turns):
            x += x * a
    elif KIND == "products not fused":
        for _ in tl.static_range(TURNS):
            x = x * a + 1.5
    elif KIND == "maxima of a warp":
        for _ in tl.static_range(TURNS):
            v += tl.max(v, axis=1)[:, None]
    elif KIND == "shuffles":
        index = (tl.arange(0, 64)[:, None] + 5 * tl.arange(0, 32)[None, :] + pid) % 32
        for _ in tl.static_range(TURNS):
            v = tl.gather(v, index, axis=1) + 1
    elif KIND == "bytes in shared memory":
        narrow = (tl.arange(0, 4096) * 3 + pid).to(tl.int8)
        for _ in tl.static_range(TURNS):
            narrow = tl.gather(narrow, (tl.arange(0, 4096) + pid) % 4096, axis=0)
        v += tl.xor_sum(narrow.to(tl.int32), axis=0)
    elif KIND == "shuffles one after the other":
        row = tl.arange(0, 32) * 77 + pid
        for _ in tl.static_range(TURNS):
            row = tl.gather(row, (tl.arange(0, 32) * 5 + pid) % 32, axis=0)
        v += tl.xor_sum(row, axis=0)
    elif KIND == "gathers across warps":
        row = tl.arange(0, 128) * 77 + pid
        for _ in tl.static_range(TURNS):
            row = tl.gather(row, (tl.arange(0, 128) + 37 + pid % 2) % 128, axis=0)
        v += tl.xor_sum(row, axis=0)
    else:
        ROWS: tl.constexpr = 1 if KIND == "products of one row" else 16
        DTYPE: tl.constexpr = tl.float64 if KIND == "products in float64" else tl.float16
        WIDE: tl.constexpr = tl.float64 if KIND == "products in float64" else tl.float32
        left = (tl.arange(0, ROWS)[:, None] + tl.arange(0, 16)[None, :] + pid).to(DTYPE)
        right = (tl.arange(0, 16)[:, None] + tl.arange(0, 8)[None, :] + pid).to(DTYPE)
        acc = tl.zeros((ROWS, 8), WIDE)
        for _ in tl.static_range(TURNS):
            acc = tl.dot(left, right, acc, out_dtype=WIDE)
        v += (tl.sum(tl.sum(acc, axis=1), axis=0) > 1.0).to(tl.int32)
    tl.store(out_ptr + offs, x + tl.where(tl.xor_sum(tl.xor_sum(v, axis=1), axis=0) == 123456789, 1e-30, 0.0))


@triton.jit
def pieces(x_ptr, y_ptr, out_ptr, a, times, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    programs = tl.num_programs(0)
    program = (tl.program_id(0).to(tl.int64) * times % programs).to(tl.int32)
    offs = tl.arange(0, BLOCK)
    offs = ((offs // WIDTH) * programs + program) * WIDTH + offs % WIDTH
    tl.store(out_ptr + offs, a * tl.load(x_ptr + offs).to(tl.float32) + tl.load(y_ptr + offs).to(tl.float32))


@triton.jit
def boxes(x_ptr, out_ptr, rows, WIDTH: tl.constexpr, BOX: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, (rows, WIDTH), (WIDTH, 1), (256, BOX))
    out = tl.make_tensor_descriptor(out_ptr, (rows, WIDTH), (WIDTH, 1), (256, BOX))
    for col in range(0, WIDTH, BOX):
        out.store([tl.program_id(0) * 256, col], x.load([tl.program_id(0) * 256, col]))


@triton.jit
def boxes_in_turn(x_ptr, out_ptr, n, turns, BOX: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, (n,), (1,), (BOX,))
    out = tl.make_tensor_descriptor(out_ptr, (n,), (1,), (BOX,))
    for turn in range(turns):
        at = (tl.program_id(0) * turns + turn) * BOX
        out.store([at], x.load([at]))


@triton.jit
def stores_again(x_ptr, out_ptr, turns, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    for turn in range(turns):
        tl.store(out_ptr + offs, x + turn)


def wait(x, turns, warps, programs):
    out = torch.empty_like(x)
    block = x.numel() // programs
    waits[(programs,)](x, out, turns, BLOCK=block, num_warps=warps)
    return out


def idle(x, kind, turns, block, warps):
    out = torch.empty_like(x)
    grid = (x.numel() // block,)
    fused = {"enable_fp_fusion": False} if kind == "products not fused" else {}
    idles[grid](x, out, 0.25, turns, TURNS=turns, KIND=kind, BLOCK=block, num_warps=warps, **fused)
    return out


def take_boxes_in_turn(x, size, turns):
    out, box = torch.empty_like(x), size // x.element_size()
    boxes_in_turn[(x.numel() // (turns * box),)](x, out, x.numel(), turns, BOX=box, num_warps=max(1, box // 1024))
    return out


def store_again(x, turns, block):
    out = torch.empty_like(x)
    stores_again[(x.numel() // block,)](x, out, turns, BLOCK=block, num_warps=block // 512)
    return out


def describe(x, turns, programs, once):
    out = torch.empty((programs, 64, 64), dtype=torch.float32, device=x.device)
    kernel = described_once if once else described
    kernel[(programs,)](x, out, turns, ROWS=64, COLS=64, num_warps=4)
    return out


def add_up(x, sums, turns, sem, scope):
    out = torch.empty_like(x)
    adds_up[(x.numel() // 1024,)](x, out, sums, turns, SEM=sem, SCOPE=scope, BLOCK=1024, num_warps=4)
    return out


def work(x, turns, block, warps):
    out = torch.empty_like(x)
    works[(x.numel() // block,)](x, out, 0.01, turns, BLOCK=block, num_warps=warps)
    return out


def compute_floats(x, turns, kind):
    out = torch.empty_like(x)
    computes[(x.numel() // 1024,)](x, out, 0.01, 0.02, turns, KIND=kind, BLOCK=1024, num_warps=4)
    return out


def compute_integers(x, turns, kind):
    out = torch.empty_like(x)
    computes[(x.numel() // 1024,)](x, out, 1103515245, 12345, turns, KIND=kind, BLOCK=1024, num_warps=4)
    return out


def take_apart(x, y, size, times):
    out = torch.empty_like(x)
    pieces[(x.numel() // 1024,)](x, y, out, 2.5, times, WIDTH=size // 2, BLOCK=1024, num_warps=4)
    return out


def take_boxes(x, size):
    out = torch.empty_like(x)
    boxes[(len(x) // 256,)](x, out, len(x), WIDTH=x.shape[1], BOX=size // 2, num_warps=4)
    return out


def turned(x):
    return x.t().contiguous()


def permuted(x):
    return x.permute(0, 2, 1, 3).contiguous()


def turned_within(x):
    return x.transpose(-2, -1).contiguous()


def cast_and_turned(x):
    return x.t().to(torch.float32, memory_format=torch.contiguous_format)


def every_second(x):
    return x[..., ::2].contiguous()


def columns(x):
    return x[..., : x.shape[-1] // 2].contiguous()


def flipped(x):
    return x.flip(-1)


def copied(x):
    return x.clone()


def joined(x):
    return torch.cat([x[: x.shape[0] // 2], x[x.shape[0] // 2 :]])


def joined_turned(x):
    return joined(x.t())


def stacked(x):
    return torch.stack([x, x])


def stacked_turned(x):
    return torch.stack([x.t(), x.t()])


def padded(x):
    return torch.nn.functional.pad(x, (0, 16))


def padded_turned(x):
    return torch.nn.functional.pad(x.t(), (0, 16))


def looked_up(x):
    return x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1, device=x.device))


def looked_up_turned(x):
    return looked_up(x.t())


def sorted_rows(x):
    return x.sort(-1)[0]


def is_among(x):
    return torch.isin(x, x.flip(0))


def greatest(x):
    return x.topk(64)[0]


def searched(x):
    return torch.searchsorted(torch.arange(0, MIB, 16, device=x.device), x)


def in_buckets(x):
    return torch.bucketize(x, torch.arange(0, MIB, 16, device=x.device))


def counted(x):
    return torch.bincount(x, minlength=MIB)


def one_of_each_run(x):
    return torch.unique_consecutive(x >> 10)


def cumulated(x):
    return x.cumsum(-1)


MIB = 1 << 20
WAIT = ("is_among", "counted", "one_of_each_run")  # for a number from the GPU, which no graph can
FLOATS = ("fma", "exp", "greatest", "bf16 and back")
INTEGERS = (
    "multiply",
    "add and xor",
    "shifts",
    "least",
    "chosen",
    "float and back",
    "64 bits",
)
# Corner, launcher, shapes and dtypes of tensors, other arguments
IDLE = [
    ("loop in registers", 64, 1024, 4),
    ("products not fused", 64, 1024, 4),
    ("maxima of a warp", 26, 2048, 4),
    ("shuffles", 40, 2048, 4),
    ("bytes in shared memory", 11, 2048, 4),
    ("shuffles one after the other", 1000, 4096, 1),
    ("gathers across warps", 300, 8192, 4),
    ("products of one row", 200, 1024, 4),
    ("products in float64", 50, 2048, 4),
]
CORNERS: list[tuple[str, str, dict[str, tuple[tuple[int, ...], str]], dict[str, Any]]] = [
    *(
        (f"{turns} barriers, {warps} warps, {programs} programs", "wait", {"x": ((programs * 1024,), "float32")},
         {"turns": turns, "warps": warps, "programs": programs})
        for programs in (132, 2112) for warps in (1, 4, 16, 32) for turns in (0, 1000)
    ),
    *(
        (f"{turns} tiles by {'one descriptor' if once else 'descriptors each'}, {programs} programs", "describe",
         {"x": ((turns * 64, 64), "bfloat16")}, {"turns": turns, "programs": programs, "once": once})
        for programs in (132, 1056) for once in (True, False) for turns in (64,)
    ),
    *(
        (f"{turns} atomics in turn, {sem} {scope}, {programs} programs", "add_up",
         {"x": ((programs * 1024,), "float32"), "sums": ((programs * turns,), "float32")},
         {"turns": turns, "sem": sem, "scope": scope})
        for programs in (132, 2112, 33792)
        for sem, scope in (("relaxed", "gpu"), ("acq_rel", "gpu"), ("acq_rel", "sys"))
        for turns in (16,)
    ),
    *(
        (f"{8 * turns} products and sums between load and store, {block} a program, {warps} warps", "work",
         {"x": ((1 << 26,), "float32")}, {"turns": turns, "block": block, "warps": warps})
        for block, warps in ((1024, 4), (32768, 32)) for turns in (0, 16, 64)
    ),
    *(
        (f"pieces of {size} bytes, programs {order}", "take_apart", dict.fromkeys("xy", ((1 << 26,), "bfloat16")),
         {"size": size, "times": times})
        for order, times in (("in order", 1), ("15 apart", 65521), ("mixed", 26681)) for size in (32, 64, 128, 2048)
    ),
    *(
        (f"boxes of {size} bytes a row", "take_boxes", {"x": ((1 << 20, 64), "bfloat16")}, {"size": size})
        for size in (16, 32, 128)
    ),
    *(
        (f"boxes of {size} bytes, {turns} in turn", "take_boxes_in_turn", {"x": ((1 << 26,), "bfloat16")},
         {"size": size, "turns": turns})
        for size in (256, 1024, 4096) for turns in (1, 16)
    ),
    *(
        (f"{turns} stores of the same {block} {dtype}", "store_again", {"x": ((1 << 25,), dtype)},
         {"turns": turns, "block": block})
        for dtype in ("bfloat16", "float32") for block in (1024, 8192) for turns in (1, 2, 8, 32)
    ),
    *(
        (f"{name}: {kind}", f"compute_{name}", {"x": ((2112 * 1024,), dtype)}, {"turns": 64, "kind": kind})
        for name, dtype, kinds in (("floats", "float32", FLOATS), ("integers", "int32", INTEGERS))
        for kind in kinds
    ),
    *(
        (f"{turns} {kind}, {block} a program, {warps} warps", "idle", {"x": ((1 << 24,), "float32")},
         {"kind": kind, "turns": turns, "block": block, "warps": warps})
        for kind, turns, block, warps in IDLE
    ),
    *(
        (f"torch: {launcher} {'x'.join(map(str, shape))} {dtype}", launcher, {"x": (shape, dtype)}, {})
        for launcher, shapes in (
            ("copied", ((8192, 4096),)),
            ("turned", ((8192, 4096), (1024, 1024), (131072, 64), (512, 65536), (32768, 576))),
            ("permuted", ((4, 4096, 16, 128), (16, 1024, 128, 16))),
            ("turned_within", ((8, 4096, 512), (128, 1024, 192))),
            ("every_second", ((8192, 4096),)),
            ("columns", ((65536, 512),)),
            ("flipped", ((8192, 4096),)),
            *(
                (name + turn, ((8192, 4096),))
                for name in ("joined", "stacked", "padded", "looked_up") for turn in ("", "_turned")
            ),
        )
        for shape in shapes
        for dtype in ("bfloat16", "float32")
    ),
    *(
        (f"torch: {launcher} {'x'.join(map(str, shape))} {dtype}", launcher, {"x": (shape, dtype)}, {})
        for launcher in ("sorted_rows", "cumulated")
        for shape in ((4096, 4096), (64, 131072), (4 * MIB,))
        for dtype in ("int64", "float32")
    ),
    *(
        (f"torch: {launcher} {'x'.join(map(str, shape))} int64", launcher, {"x": (shape, "int64")}, {})
        for launcher, shape in (
            ("is_among", (MIB,)), ("greatest", (4096, 4096)), ("greatest", (4 * MIB,)),
            *((name, (4 * MIB,)) for name in ("searched", "in_buckets", "counted", "one_of_each_run")),
        )
    ),
    ("torch: cast_and_turned 8192x4096 bfloat16", "cast_and_turned", {"x": ((8192, 4096), "bfloat16")}, {}),
]  # fmt: skip
