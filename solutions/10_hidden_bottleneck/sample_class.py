"""The sample class of lesson 10."""

from autograder.course.sample import (
    Expected,
    Submission,
    add_cell,
    left_out,
    not_right,
    replace,
    rewrite,
    says,
    slow,
    unfinished,
)
from autograder.judging.verdict import Outcome

ROWS = "rows = 2 * B * H * (Dn + R + R + Dv)"
FLOPS = "flops = 2 * weights + rows, 2 * B * weights"
VALUES = "(groups / scales[..., None]).round()"
NIBBLES = "low, high = values[..., ::2] & 0xF, values[..., 1::2] & 0xF"
SCALES = "scales = torch.where(largest > 0, largest / 7, torch.ones_like(largest))"
EXTENDED = "low, high = ((nibble ^ 8) - 8 for nibble in (packed.int() & 0xF, packed.int() >> 4))"
SPREAD = "(values.unflatten(-1, (-1, group)) * scales[..., None]).flatten(-2)"
STACKED = "torch.stack((low, high), -1).flatten(-2)"
IN_KERNEL = "low, high = ((words & 0xF) ^ 8) - 8, ((words >> 4) ^ 8) - 8"
ADDED = "acc += sums * scale[None, :]"
SCALE = "scales_ptr + rows * (DN // GROUP) + g, mask"
EVEN, ODD = "g * GROUP + 2 * offs_i[None, :], mask", "g * GROUP + 2 * offs_i[None, :] + 1, mask"
LAST = """last = tl.load(scales_ptr + rows * (DN // GROUP) + DN // GROUP - 1, mask=offs_r < R, other=0.0)
    acc *= last[None, :].to(tl.float32)
"""
SHARE = "total[clock] / (total[clock] + attention[clock])"
LAUNCH = '1 - total["graph"] / total["wall"]'
RESIDENT = '1 - total["graph"] / total["flushed"]'
OF_FLOOR = '1e6 * weight_bytes / bandwidth / total["flushed"]'
KNEE = "next(n for n in range(len(rows) - 1) if rate(rows[n], rows[n + 1]) < bandwidth)"
BEHIND_FAST = "1 + max(n for n in range(len(rows) - 2) if rate(rows[n], rows[n + 1]) >= bandwidth)"
SUM = "sum(each[clock] for each in products)"

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: loops, arithmetic for bits, unpacking by interleaving, a right kernel that is slow",
        patches=(
            rewrite(
                "reconstruction_bytes",
                """
def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    size = four_bits = macs = 0
    for into, out in ((Dn, R), (R, Dv)):
        moved = 2 * B * H * (into + out)
        size += 2 * H * into * out + moved
        four_bits += H * into * out * (0.5 + 2 / group) + moved
        macs += B * H * into * out
    floor = max(size / bandwidth, 2 * macs / rate)
    cache = B * T * (R + Dr) * 2
    return dict(
        weight_bytes=2 * H * R * (Dn + Dv), bytes=size, intensity=2 * macs / size, floor_us=floor * 1e6,
        share=1 / (1 + cache / bandwidth / floor), int4_gain=size / four_bits,
    )
""",
            ),
            rewrite(
                "quantize_int4",
                """
def quantize_int4(weight, axis, group):
    rows = weight if axis == 2 else weight.transpose(1, 2)
    H, N, K = rows.shape
    groups = rows.reshape(H, N, K // group, group).float()
    scales = groups.abs().max(dim=3).values / 7
    scales[scales == 0] = 1
    n = torch.clamp(torch.round(groups / scales.unsqueeze(3)), -7, 7).reshape(H, N, K // 2, 2)
    n = torch.where(n < 0, n + 16, n)
    return (n[..., 0] + 16 * n[..., 1]).to(torch.uint8), scales.to(weight.dtype)
""",
            ),
            rewrite(
                "dequantize_int4",
                """
def dequantize_int4(packed, scales, axis):
    H, N, half = packed.shape
    signed = packed.view(torch.int8)
    out = scales.new_empty(H, N, 2 * half)
    out[..., 0::2] = (signed << 4 >> 4).to(scales.dtype)
    out[..., 1::2] = (signed >> 4).to(scales.dtype)
    out = out * scales.repeat_interleave(2 * half // scales.shape[2], dim=2)
    return out.transpose(1, 2) if axis == 1 else out
""",
            ),
            rewrite(
                "absorb_query_int4",
                """
@triton.jit
def one_row(q_ptr, packed_ptr, scales_ptr, out_ptr, H, R, DN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    b, h = tl.program_id(1) // H, tl.program_id(1) % H
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for g in range(DN // GROUP):
        i = tl.arange(0, GROUP // 2)
        rows = packed_ptr + (h * R + r)[:, None] * (DN // 2)
        w = tl.load(rows + g * (GROUP // 2) + i, mask=(r < R)[:, None], other=0)
        s = tl.load(scales_ptr + (h * R + r) * (DN // GROUP) + g, mask=r < R, other=0.0).to(tl.float32)
        n = tl.interleave(w.to(tl.int32) & 15, w.to(tl.int32) >> 4)
        n = tl.where(n > 7, n - 16, n).to(tl.float32)
        x = tl.load(q_ptr + (b * H + h) * DN + g * GROUP + tl.arange(0, GROUP)).to(tl.float32)
        acc += tl.sum(n * x[None, :], 1) * s
    tl.store(out_ptr + (b * H + h) * R + r, acc, mask=r < R)


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    out = q_nope.new_empty(B, H, R)
    one_row[(triton.cdiv(R, 64), B * H)](q_nope, packed, scales, out, H, R, Dn, Dn // scales.shape[2], 64)
    return out
""",
            ),
            rewrite(
                "which_clock",
                """
def which_clock(products, attention, weight_bytes, bandwidth):
    wall, events, graph, flushed = 0, 0, 0, 0
    for each in products:
        wall, events = wall + each["wall"], events + each["events"]
        graph, flushed = graph + each["graph"], flushed + each["flushed"]
    part = lambda x, y: x / (x + y)
    return {
        "wall_share": part(wall, attention["wall"]),
        "events_share": part(events, attention["events"]),
        "graph_share": part(graph, attention["graph"]),
        "flushed_share": part(flushed, attention["flushed"]),
        "launch_share": (wall - graph) / wall,
        "l2_share": (flushed - graph) / flushed,
        "of_floor": weight_bytes / bandwidth / (flushed * 1e-6),
    }
""",
            ),
            rewrite(
                "l2_knee",
                """
def l2_knee(rows, bandwidth):
    sizes, us = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows))
    slow = sizes.diff() / us.diff() * 1e6 < bandwidth
    n = int(slow.int().argmax())
    l2 = (sizes[n] - sizes[0]) / (us[n] - us[0])
    dram = (sizes[-1] - sizes[n + 1]) / (us[-1] - us[n + 1])
    return dict(
        knee_bytes=sizes[n].item(), l2_gb_per_s=(l2 / 1e3).item(), dram_gb_per_s=(dram / 1e3).item(),
        fixed_us=(us[0] - sizes[0] / l2).item(),
    )
""",
            ),
        ),
        expect=slow("absorb_query_int4"),
    ),
    Submission(
        "chloe",
        "a helper in a cell of her own, smaller blocks",
        patches=(
            add_cell(
                "absorb_query_int4",
                """
@triton.jit
def with_sign(nibble):
    return tl.where(nibble < 8, nibble, nibble - 16)
""",
            ),
            replace("absorb_query_int4", IN_KERNEL, "low, high = with_sign(words & 0xF), with_sign(words >> 4)"),
            replace("absorb_query_int4", "64), 256", "64), 64"),
            replace("absorb_query_int4", "num_warps=8", "num_warps=4"),
        ),
    ),
    # Wrong
    Submission(
        "eli",
        "one product, high nibbles first everywhere, a ratio for a share",
        patches=(
            replace("reconstruction_bytes", "weights = H * R * (Dn + Dv)", "weights = H * R * Dn"),
            replace("reconstruction_bytes", ROWS, "rows = 2 * B * H * (Dn + R)"),
            replace("quantize_int4", "low | high << 4", "high | low << 4"),
            replace("dequantize_int4", "low, high =", "high, low ="),
            replace("absorb_query_int4", "low, high =", "high, low ="),
            replace("which_clock", SHARE, "total[clock] / attention[clock]"),
        ),
        expect={
            **says("reconstruction_bytes", "only the product into the query"),
            **says("quantize_int4", "the nibbles are swapped"),
            **says("dequantize_int4", "the nibbles are swapped"),
            **not_right("absorb_query_int4", "the nibbles are swapped"),
            **says("which_clock", "products over attention"),
        },
    ),
    Submission(
        "fay",
        "MACs, sign bits that run over, no signs, the attention's share",
        patches=(
            replace("reconstruction_bytes", FLOPS, "flops = 2 * weights + rows, B * weights"),
            replace("quantize_int4", "values[..., ::2] & 0xF", "values[..., ::2] & 0xFF"),
            replace("dequantize_int4", "(nibble ^ 8) - 8", "nibble"),
            replace("absorb_query_int4", IN_KERNEL, "low, high = words & 0xF, words >> 4"),
            replace("which_clock", SHARE, "attention[clock] / (total[clock] + attention[clock])"),
            replace("l2_knee", '"knee_bytes": rows[knee]', '"knee_bytes": rows[knee + 1]'),
        ),
        expect={
            **says("reconstruction_bytes", "one multiply-accumulate is two FLOPs"),
            **says("quantize_int4", "overwrites the high one"),
            **says("dequantize_int4", "the integers have no sign"),
            **not_right("absorb_query_int4", "the integers have no sign"),
            **says("which_clock", "asked are those of the products"),
            **says("l2_knee", "the first size that the L2 no longer holds"),
        },
    ),
    Submission(
        "gus",
        "words, 8 added, high nibbles without a sign, one product",
        patches=(
            replace("reconstruction_bytes", ROWS, "rows = B * H * (Dn + R + R + Dv)"),
            replace("reconstruction_bytes", FLOPS, "flops = weights + rows, 2 * B * weights"),
            replace("reconstruction_bytes", '"weight_bytes": 2 * weights', '"weight_bytes": weights'),
            replace("quantize_int4", NIBBLES, "low, high = values[..., ::2] + 8, values[..., 1::2] + 8"),
            replace(
                "dequantize_int4", EXTENDED, "low, high = ((packed.int() & 0xF) ^ 8) - 8, (packed >> 4).to(torch.int8)"
            ),
            replace("absorb_query_int4", "((words >> 4) ^ 8) - 8", "words >> 4"),
            replace("which_clock", SUM, "products[0][clock]"),
            replace("l2_knee", KNEE, KNEE.replace("next(n", "max(n").replace("len(rows) - 1", "len(rows) - 2")),
        ),
        expect={
            **says("reconstruction_bytes", "the bytes are words"),
            **says("quantize_int4", "8 is added to the integers"),
            **says("dequantize_int4", "the high nibbles have no sign"),
            **not_right("absorb_query_int4", "the high nibbles have no sign"),
            **says("which_clock", "only the first product counts"),
            **says("l2_knee", "taken at the last slow step"),
        },
    ),
    Submission(
        "hana",
        "the first product's arithmetic, halves in a byte, the slowest step; the rest half done",
        patches=(
            replace("reconstruction_bytes", FLOPS, FLOPS.replace("B * weights", "B * H * R * Dn")),
            replace("quantize_int4", NIBBLES, "low, high = (half & 0xF for half in values.chunk(2, -1))"),
            unfinished("dequantize_int4"),
            *left_out("absorb_query_int4")[0],
            replace("which_clock", "bandwidth):", "bandwidth:"),
            replace("l2_knee", KNEE, "min(range(len(rows) - 2), key=lambda n: rate(rows[n], rows[n + 1]))"),
        ),
        expect={
            **says("reconstruction_bytes", "that of the first product alone"),
            **says("quantize_int4", "a byte holds neighbours"),
            **says("l2_knee", "taken at the slowest step"),
            "dequantize_int4": Expected(0, Outcome.UNFINISHED),
            **left_out("absorb_query_int4")[1],
            "which_clock": Expected(0, Outcome.ERROR, "SyntaxError in line"),
        },
    ),
    Submission(
        "lena",
        "weights for each request, groups along the other axis, 8 subtracted, a mean",
        patches=(
            replace("reconstruction_bytes", FLOPS, "flops = 2 * B * weights + rows, 2 * B * weights"),
            replace("quantize_int4", "if axis == 1", "if axis == 2"),
            replace("dequantize_int4", "(nibble ^ 8) - 8", "nibble - 8"),
            replace("absorb_query_int4", IN_KERNEL, "low, high = (words & 0xF) - 8, (words >> 4) - 8"),
            replace("which_clock", SUM, "sum(each[clock] for each in products) / len(products)"),
            replace("l2_knee", "rate(rows[0], rows[knee])", "rate([0, 0], rows[knee])"),
            replace("l2_knee", "rate(rows[knee + 1], rows[-1])", "rate([0, 0], rows[-1])"),
        ),
        expect={
            **says("reconstruction_bytes", "they are read once", 1),
            **says("quantize_int4", "the groups lie along the axis that stays"),
            **says("dequantize_int4", "8 is subtracted"),
            **not_right("absorb_query_int4", "8 is subtracted"),
            **says("which_clock", "the products' times are averaged"),
            **says("l2_knee", "bytes over time of one row"),
        },
    ),
    Submission(
        "mia",
        "no results, rows by reshape, halves in a byte, launches by the events",
        patches=(
            replace("reconstruction_bytes", ROWS, "rows = 2 * B * H * (Dn + R)"),
            replace(
                "quantize_int4",
                "weight.mT if axis == 1 else weight",
                "weight.reshape(len(weight), -1, weight.shape[axis])",
            ),
            replace("dequantize_int4", STACKED, "torch.cat((low, high), -1)"),
            replace("absorb_query_int4", ODD, "g * (GROUP // 2) + DN // 2 + offs_i[None, :], mask"),
            replace("absorb_query_int4", EVEN, "g * (GROUP // 2) + offs_i[None, :], mask"),
            replace("which_clock", LAUNCH, '1 - total["graph"] / total["events"]'),
            replace("l2_knee", "rate(rows[knee + 1], rows[-1])", "rate(rows[knee], rows[-1])"),
        ),
        expect={
            **says("reconstruction_bytes", "lack the results"),
            **says("quantize_int4", "cut from the weight as it lies in memory", 1),
            **says("dequantize_int4", "low nibbles fill the first half"),
            **not_right("absorb_query_int4", "low nibbles fill the first half"),
            **says("which_clock", "compares the graph with the events"),
            **says("l2_knee", "holds the step from L2 to DRAM"),
        },
    ),
    Submission(
        "noor",
        "the rows' intensity, one scale for all, tiled scales, launches by the flushed graph",
        patches=(
            replace("reconstruction_bytes", "flops / size", "flops / rows"),
            replace(
                "quantize_int4",
                "largest = groups.abs().amax(-1)",
                "largest = groups.abs().amax(-1)\n    largest = largest.max().expand_as(largest).clone()",
            ),
            replace("dequantize_int4", SPREAD, "values * scales.repeat(1, 1, group)"),
            replace("absorb_query_int4", ADDED, "acc += sums"),
            replace(
                "absorb_query_int4",
                "(words & 0xF) ^ 8) - 8, ((words >> 4) ^ 8) - 8",
                "(words & 0xF) ^ 8) - 8, ((words >> 4) ^ 8) - 8\n        k = (g * GROUP + 2 * offs_i) % (DN // GROUP)"
                "\n        spread = scales_ptr + rows[:, None] * (DN // GROUP)"
                "\n        first = tl.load(spread + k[None, :], mask=some_r, other=0.0).to(tl.float32)"
                "\n        k = (g * GROUP + 2 * offs_i + 1) % (DN // GROUP)"
                "\n        second = tl.load(spread + k[None, :], mask=some_r, other=0.0).to(tl.float32)"
                "\n        low, high = low * first, high * second",
            ),
            replace("which_clock", LAUNCH, '1 - total["flushed"] / total["wall"]'),
            replace("l2_knee", "/ 1e9", "/ 2**30"),
        ),
        expect={
            **says("reconstruction_bytes", "divides by the bytes of the rows"),
            **says("quantize_int4", "all groups have one scale"),
            **says("dequantize_int4", "k % groups", 1),
            **not_right("absorb_query_int4", "k % groups", 1),
            **says("which_clock", "a clock whose L2 is warm"),
            **says("l2_knee", "a GB is 10^9"),
        },
    ),
    Submission(
        "omar",
        "memory alone, eighths, the first group's scale, the work for the launches",
        patches=(
            replace("reconstruction_bytes", "max(size / bandwidth, flops / rate)", "size / bandwidth"),
            replace("quantize_int4", "largest / 7", "largest / 8"),
            replace("dequantize_int4", "* scales[..., None])", "* scales[..., :1, None])"),
            replace("absorb_query_int4", SCALE, "scales_ptr + rows * (DN // GROUP), mask"),
            replace("which_clock", LAUNCH, 'total["graph"] / total["wall"]'),
            replace("l2_knee", " - 1e6 * rows[0][0] / l2", ""),
        ),
        expect={
            **says("reconstruction_bytes", "the time of the bytes alone", 1),
            **says("quantize_int4", "the largest magnitude over 8"),
            **says("dequantize_int4", "the scale of its first group", 1),
            **not_right("absorb_query_int4", "the scale of the first", 1),
            **says("which_clock", "the part in which the kernels run"),
            **says("l2_knee", "the whole time of the first row"),
        },
    ),
    Submission(
        "pia",
        "the attention's share, the largest weight, no scales, the last group's scale, the warm time",
        patches=(
            replace("reconstruction_bytes", '"share": floor', '"share": attention'),
            replace("quantize_int4", "groups.abs().amax(-1)", "groups.amax(-1)"),
            replace("dequantize_int4", " * scales[..., None]", ""),
            replace("dequantize_int4", "return rows", "rows = rows.to(scales.dtype)\n    return rows"),
            replace("absorb_query_int4", ADDED, "acc += sums"),
            replace("absorb_query_int4", "tl.store(out_ptrs, acc,", LAST + "    tl.store(out_ptrs, acc,"),
            replace("which_clock", RESIDENT, 'total["flushed"] / total["graph"] - 1'),
        ),
        expect={
            **says("reconstruction_bytes", "share is that of the attention"),
            **says("quantize_int4", "a negative one may have the larger magnitude"),
            **says("dequantize_int4", "not multiplied by their scales"),
            **not_right("absorb_query_int4", "the scale of the last group", 1),
            **says("which_clock", "relative to the warm time"),
        },
    ),
    Submission(
        "quin",
        "a cache for each head, cut off for rounded, rows not turned back, no scales, the warm graph",
        patches=(
            replace("reconstruction_bytes", "attention = 2", "attention = H * 2"),
            replace("quantize_int4", ".round()", ".trunc()"),
            replace("dequantize_int4", "rows.mT if axis == 1 else rows", "rows"),
            replace("absorb_query_int4", ADDED, "acc += sums"),
            replace("which_clock", OF_FLOOR, OF_FLOOR.replace("flushed", "graph")),
        ),
        expect={
            **says("reconstruction_bytes", "a cache for each head"),
            **says("quantize_int4", "cut off towards 0"),
            **says("dequantize_int4", "comes back as rows", 2),
            **not_right("absorb_query_int4", "not multiplied by their scales"),
            **says("which_clock", "a graph that reads the L2"),
        },
    ),
    Submission(
        "rosa",
        "no scales in the bytes, 0/0, reshape for transpose, head 0 for all, floors for the floor's part",
        patches=(
            replace("reconstruction_bytes", "weights / 2 + 2 * weights / group", "weights / 2"),
            replace("quantize_int4", SCALES, "scales = largest / 7"),
            replace("quantize_int4", VALUES, f"{VALUES}.nan_to_num()"),
            replace("dequantize_int4", "rows.mT if axis == 1", "rows.reshape(rows.mT.shape) if axis == 1"),
            replace("absorb_query_int4", "rows = h * R + offs_r", "rows = offs_r"),
            replace("which_clock", OF_FLOOR, 'total["flushed"] / (1e6 * weight_bytes / bandwidth)'),
        ),
        expect={
            **says("reconstruction_bytes", "leaves out the scales"),
            **says("quantize_int4", "a group of zeros", 3),
            **says("dequantize_int4", "transpose instead of reshaping", 2),
            **not_right("absorb_query_int4", "the weights of head 0"),
            **says("which_clock", "how many floors"),
        },
    ),
    Submission(
        "tess",
        "rows of the second product, scales of eighths cut to fit, 8 without a sign, a knee behind the last fast step",
        patches=(
            replace("reconstruction_bytes", ROWS, "rows = 2 * B * H * (R + Dv)"),
            replace("which_clock", SUM, "max(each[clock] for each in products)"),
            replace("quantize_int4", "largest / 7", "largest / 8"),
            replace("quantize_int4", ".round()", ".round().clamp(-8, 7)"),
            replace("dequantize_int4", "(nibble ^ 8) - 8 for", "torch.where(nibble > 8, nibble - 16, nibble) for"),
            replace(
                "absorb_query_int4",
                IN_KERNEL,
                "low, high = words & 0xF, words >> 4\n"
                "        low, high = tl.where(low > 8, low - 16, low), tl.where(high > 8, high - 16, high)",
            ),
            replace("l2_knee", KNEE, BEHIND_FAST),
        ),
        expect={
            **says("reconstruction_bytes", "lack the rows of the first product"),
            **says("quantize_int4", "what does not fit is cut"),
            **says("which_clock", "only the longest product"),
            **says("dequantize_int4", "nibble 8 stays 8"),
            **not_right("absorb_query_int4", "nibble 8 stays 8"),
            **says("l2_knee", "behind the last fast step"),
        },
    ),
    Submission(
        "uri",
        "arithmetic in uint8, a knee at the last step",
        patches=(
            replace("dequantize_int4", "packed.int() & 0xF, packed.int() >> 4", "packed & 0xF, packed >> 4"),
            replace("absorb_query_int4", ").to(tl.int32)\n", ")\n"),
            replace("l2_knee", KNEE, KNEE.replace("next", "max")),
        ),
        expect={
            **says("dequantize_int4", "256 too large"),
            **not_right("absorb_query_int4", "256 too large"),
            **says("l2_knee", "taken at the last slow step"),
        },
    ),
)
DEMO = ("ada", "eli")
