# %% reconstruction_bytes: two products in a list, summed
def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    products = [(Dn, R), (R, Dv)]
    weights = sum(H * a * b for a, b in products)
    rows = sum(2 * B * H * (a + b) for a, b in products)
    moved, flops = 2 * weights + rows, sum(2 * B * H * a * b for a, b in products)
    seconds = sorted([moved / bandwidth, flops / rate])[-1]
    reading = sum(2 * T * (R + Dr) for _ in range(B)) / bandwidth
    return {"int4_gain": moved / (weights * (0.5 + 2 / group) + rows), "share": seconds / (seconds + reading),
            "floor_us": seconds * 1e6, "intensity": flops / moved, "bytes": moved, "weight_bytes": 2 * weights}

# %% reconstruction_bytes: NumPy's numbers
import numpy as np

def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    shapes = np.array([[H, Dn, R], [H, R, Dv]], dtype=np.float64)
    weights = shapes.prod(axis=1).sum()
    rows = 2 * B * H * shapes[:, 1:].sum()
    size = 2 * weights + rows
    us = np.maximum(size / bandwidth, 2 * B * weights / rate) * 1e6
    attention = 2e6 * B * T * (R + Dr) / bandwidth
    return dict(weight_bytes=2 * weights, bytes=size, intensity=2 * B * weights / size, floor_us=us,
                share=us / (us + attention), int4_gain=size / (weights * 0.5 + weights / group * 2 + rows))

# %% reconstruction_bytes: a class, torch's numbers
class Layer:
    def __init__(self, H, Dn, Dv, R):
        self.weights = torch.tensor([H * Dn * R, H * R * Dv]).sum()
        self.row = 2 * H * (Dn + 2 * R + Dv)

    def bytes(self, B, per_weight=2.0):
        return per_weight * self.weights.double() + B * self.row

def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    layer = Layer(H, Dn, Dv, R)
    flops = 2 * B * layer.weights
    floor = torch.maximum(layer.bytes(B) / bandwidth, flops / rate)
    return {"weight_bytes": 2 * layer.weights, "bytes": layer.bytes(B), "intensity": flops / layer.bytes(B),
            "floor_us": 1e6 * floor, "share": floor / (floor + B * T * 2 * (R + Dr) / bandwidth),
            "int4_gain": layer.bytes(B) / layer.bytes(B, 0.5 + 2 / group)}

# %% reconstruction_bytes: fractions
from fractions import Fraction

def reconstruction_bytes(B, T, H, Dn, Dr, Dv, R, group, rate, bandwidth):
    w = H * R * (Dn + Dv)
    x = B * H * (Dn + Dv + 2 * R)
    size, packed = 2 * (w + x), Fraction(w, 2) + Fraction(2 * w, group) + 2 * x
    memory, compute = Fraction(size) / Fraction(bandwidth), Fraction(2 * B * w) / Fraction(rate)
    floor = memory if memory > compute else compute
    cache = Fraction(2 * B * T * (R + Dr)) / Fraction(bandwidth)
    return {"weight_bytes": 2 * w, "bytes": size, "intensity": float(Fraction(2 * B * w, size)),
            "floor_us": float(10**6 * floor), "share": float(floor / (floor + cache)), "int4_gain": float(size / packed)}

# %% quantize_int4: in float64, by head
def quantize_int4(weight, axis, group):
    packed, scales = [], []
    for head in weight.double():
        rows = head.T if axis == 1 else head
        parts = torch.stack(rows.split(group, dim=1), dim=1)
        top = parts.abs().max(dim=-1, keepdim=True)[0]
        scale = torch.where(top == 0, 1.0, top / 7)
        n = torch.round(parts / scale).reshape(rows.shape).long() % 16
        packed.append((n[:, ::2] + 16 * n[:, 1::2]).to(torch.uint8))
        scales.append(scale.squeeze(-1).to(weight.dtype))
    return torch.stack(packed), torch.stack(scales)

# %% quantize_int4: einops by permute, a bit trick in int8
def quantize_int4(weight, axis, group):
    rows = weight.permute(0, 2, 1).contiguous() if axis == 1 else weight.contiguous()
    groups = rows.view(*rows.shape[:2], -1, group)
    scales = groups.abs().amax(dim=-1, keepdim=True) / 7.0
    scales = scales.masked_fill(scales == 0, 1)
    n = groups.div(scales).round().clamp(-7, 7).to(torch.int8).view(*rows.shape[:2], -1, 2)
    return (n[..., 0] & 15 | n[..., 1] << 4).view(torch.uint8), scales.squeeze(-1)

# %% quantize_int4: scales by the largest and the smallest
def quantize_int4(weight, axis, group):
    if axis == 1:
        weight = weight.mT
    groups = weight.unflatten(2, (weight.shape[2] // group, group)).float()
    top = torch.maximum(groups.amax(3), -groups.amin(3))
    safe = top + (top == 0) * 7
    n = torch.floor(groups * (7 / safe)[..., None] + 0.5).to(torch.int16)
    even, odd = n.flatten(2).unflatten(2, (-1, 2)).unbind(3)
    return torch.bitwise_or(even.bitwise_and(15), odd.bitwise_and(15).bitwise_left_shift(4)).byte(), (safe / 7).to(weight.dtype)

# %% quantize_int4: a table of the bytes
def quantize_int4(weight, axis, group):
    rows = weight.transpose(-1, -2) if axis == 1 else weight
    H, N, K = rows.shape
    scales = torch.nn.functional.max_pool1d(rows.abs().float(), group) / 7
    scales[scales == 0] = 1.0
    n = (rows.float() / scales.repeat_interleave(group, dim=2)).round().int()
    table = torch.tensor([[(b % 16) * 16 + a % 16 for b in range(-8, 8)] for a in range(-8, 8)], dtype=torch.uint8)
    return table[n[..., 0::2] + 8, n[..., 1::2] + 8], scales.to(weight.dtype)

# %% dequantize_int4: a table of sixteen numbers
def dequantize_int4(packed, scales, axis):
    table = torch.tensor([*range(8), *range(-8, 0)], dtype=scales.dtype)
    index = packed.long()
    values = table[torch.stack((index % 16, index // 16), dim=3)].flatten(2)
    group = values.shape[2] // scales.shape[2]
    values = values * scales.repeat_interleave(group, dim=2)
    return values.transpose(1, 2).contiguous() if axis == 1 else values

# %% dequantize_int4: shifts of an int8
def dequantize_int4(packed, scales, axis):
    signed = packed.view(torch.int8)
    n = torch.stack((signed << 4 >> 4, signed >> 4), dim=-1)
    n = n.view(*scales.shape, -1)
    out = (n * scales.unsqueeze(-1)).view(*scales.shape[:2], -1)
    return out.permute(0, 2, 1) if axis == 1 else out

# %% dequantize_int4: where and empty
def dequantize_int4(packed, scales, axis):
    H, N, half = packed.shape
    rows = torch.empty(H, N, 2 * half, dtype=scales.dtype)
    for first, nibble in enumerate((packed & 0xF, packed >> 4)):
        rows[:, :, first::2] = torch.where(nibble > 7, nibble.to(scales.dtype) - 16, nibble.to(scales.dtype))
    for g, part in enumerate(rows.split(2 * half // scales.shape[2], dim=2)):
        part *= scales[:, :, g : g + 1]
    return rows if axis == 2 else rows.mT

# %% dequantize_int4: NumPy, in float64
import numpy as np

def dequantize_int4(packed, scales, axis):
    raw = packed.numpy()
    n = np.stack([raw & 15, raw >> 4], -1).reshape(*raw.shape[:2], -1).astype(np.int64)
    n = (n + 8) % 16 - 8
    wide = scales.double().numpy().repeat(n.shape[2] // scales.shape[2], axis=2)
    out = torch.from_numpy(n * wide).to(scales.dtype)
    return out.mT if axis == 1 else out

# %% absorb_query_int4: nibbles side by side, one product; at full size
@triton.jit
def interleaved(q_ptr, p_ptr, s_ptr, o_ptr, B, H, R, DN: tl.constexpr, G: tl.constexpr, BB: tl.constexpr, BR: tl.constexpr):
    h, r = tl.program_id(0), tl.program_id(1) * BR + tl.arange(0, BR)
    b = tl.program_id(2) * BB + tl.arange(0, BB)
    k, i = tl.arange(0, G), tl.arange(0, G // 2)
    acc = tl.zeros([BR, BB], tl.float32)
    for start in range(0, DN, G):
        byte = tl.load(p_ptr + (h * R + r)[:, None] * (DN // 2) + start // 2 + i, mask=(r < R)[:, None], other=0).to(tl.int32)
        n = tl.interleave(byte & 15, byte >> 4)
        n = n - 16 * (n > 7).to(tl.int32)
        s = tl.load(s_ptr + (h * R + r) * (DN // G) + start // G, mask=r < R, other=0.0).to(tl.float32)
        x = tl.load(q_ptr + (b * H + h)[None, :] * DN + start + k[:, None], mask=(b < B)[None, :], other=0.0)
        acc += tl.dot(n.to(x.dtype), x) * s[:, None]
    tl.store(o_ptr + (b * H + h)[None, :] * R + r[:, None], acc, mask=(b < B)[None, :] & (r < R)[:, None])


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    out = q_nope.new_empty(B, H, R)
    interleaved[(H, triton.cdiv(R, 64), triton.cdiv(B, 16))](
        q_nope, packed, scales, out, B, H, R, Dn, Dn // scales.shape[2], 16, 64
    )
    return out

# %% absorb_query_int4: weights scaled before the product, whole rows; at full size
@triton.jit
def whole_rows(q_ptr, p_ptr, s_ptr, o_ptr, B, H, R, DN, G, HALF: tl.constexpr, BB: tl.constexpr, BR: tl.constexpr):
    h, r = tl.program_id(1), tl.program_id(0) * BR + tl.arange(0, BR)
    i = tl.arange(0, HALF)
    there = (r < R)[:, None] & (2 * i < DN)[None, :]
    byte = tl.load(p_ptr + (h * R + r)[:, None] * (DN // 2) + i, mask=there, other=0).to(tl.int32)
    s = tl.load(s_ptr + (h * R + r)[:, None] * (DN // G) + 2 * i // G, mask=there, other=0.0)
    low = (((byte & 15) ^ 8) - 8).to(s.dtype) * s
    high = ((byte >> 4 ^ 8) - 8).to(s.dtype) * s
    for start in range(0, B, BB):
        b = start + tl.arange(0, BB)
        x = q_ptr + (b * H + h)[:, None] * DN + 2 * i
        mask = (b < B)[:, None] & (2 * i < DN)[None, :]
        acc = tl.dot(tl.load(x, mask=mask, other=0.0), low.T)
        acc += tl.dot(tl.load(x + 1, mask=mask, other=0.0), high.T)
        tl.store(o_ptr + (b * H + h)[:, None] * R + r, acc, mask=(b < B)[:, None] & (r < R))


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    out = torch.empty(B, H, R, dtype=q_nope.dtype, device=q_nope.device)
    half = triton.next_power_of_2(Dn) // 2
    whole_rows[(triton.cdiv(R, 32), H)](q_nope, packed, scales, out, B, H, R, Dn, Dn // scales.shape[2], half, 16, 32)
    return out

# %% absorb_query_int4: a grid of one axis, words of eight nibbles; at full size
@triton.jit
def eights(q_ptr, w_ptr, s_ptr, o_ptr, B, H, R, DN: tl.constexpr, G: tl.constexpr, BR: tl.constexpr, ROWS: tl.constexpr):
    blocks = tl.cdiv(R, BR)
    pid = tl.program_id(0)
    h, r = pid // blocks % H, pid % blocks * BR + tl.arange(0, BR)
    first = pid // blocks // H * ROWS
    i = tl.arange(0, DN // 8 if DN & (DN - 1) == 0 else 64)
    there = (r < R)[:, None] & (i < DN // 8)[None, :]
    words = tl.load(w_ptr + (h * R + r)[:, None] * (DN // 8) + i, mask=there, other=0)
    s = tl.load(s_ptr + (h * R + r)[:, None] * (DN // G) + i * 8 // G, mask=there, other=0.0).to(tl.float32)
    for n in range(first, min(first + ROWS, B)):
        acc = tl.zeros([BR], tl.float32)
        for j in tl.static_range(8):
            x = tl.load(q_ptr + (n * H + h) * DN + 8 * i + j, mask=i < DN // 8, other=0.0).to(tl.float32)
            nibble = (words << (28 - 4 * j)) >> 28
            acc += tl.sum(nibble.to(tl.float32) * s * x[None, :], 1)
        tl.store(o_ptr + (n * H + h) * R + r, acc, mask=r < R)


def absorb_query_int4(q_nope, packed, scales):
    (B, H, Dn), R = q_nope.shape, packed.shape[1]
    out = q_nope.new_empty(B, H, R)
    eights[(triton.cdiv(R, 32) * H * triton.cdiv(B, 4),)](
        q_nope, packed.view(torch.int32), scales, out, B, H, R, Dn, Dn // scales.shape[2], 32, 4
    )
    return out

# %% which_clock: a tensor of times
def which_clock(products, attention, weight_bytes, bandwidth):
    clocks = ("wall", "events", "graph", "flushed")
    times = torch.tensor([[each[c] for c in clocks] for each in products], dtype=torch.float64).sum(0)
    beside = torch.tensor([attention[c] for c in clocks], dtype=torch.float64)
    wall, _, graph, flushed = times
    answer = {f"{c}_share": s.item() for c, s in zip(clocks, times / (times + beside))}
    answer["launch_share"], answer["l2_share"] = 1 - graph / wall, 1 - graph / flushed
    return answer | {"of_floor": weight_bytes / (bandwidth * flushed * 1e-6)}

# %% which_clock: written out with a helper
def which_clock(products, attention, weight_bytes, bandwidth):
    def total(clock):
        return sum(map(lambda each: each[clock], products))

    def share(clock):
        return 1 / (1 + attention[clock] / total(clock))

    return {"wall_share": share("wall"), "events_share": share("events"), "graph_share": share("graph"),
            "flushed_share": share("flushed"), "launch_share": (total("wall") - total("graph")) / total("wall"),
            "l2_share": (total("flushed") - total("graph")) / total("flushed"),
            "of_floor": weight_bytes / total("flushed") / bandwidth * 1e6}

# %% which_clock: NumPy and a comprehension
import numpy as np

def which_clock(products, attention, weight_bytes, bandwidth):
    sums = {name: np.sum([each[name] for each in products]) for name in attention}
    found = {name + "_share": sums[name] / np.add(sums[name], attention[name]) for name in sums}
    found.update(launch_share=1 - sums["graph"] / sums["wall"], l2_share=1 - sums["graph"] / sums["flushed"],
                 of_floor=np.divide(weight_bytes / bandwidth, 1e-6 * sums["flushed"]))
    return found

# %% which_clock: a Counter
from collections import Counter

def which_clock(products, attention, weight_bytes, bandwidth):
    sums = Counter()
    for each in products:
        sums.update(each)
    floor_us = weight_bytes / (bandwidth / 1e6)
    shares = {f"{clock}_share": us / (us + attention[clock]) for clock, us in sums.items()}
    saved = lambda clock: 1 - sums["graph"] / sums[clock]
    return {**shares, "launch_share": saved("wall"), "l2_share": saved("flushed"), "of_floor": floor_us / sums["flushed"]}

# %% l2_knee: a while loop
def l2_knee(rows, bandwidth):
    n = 0
    while (rows[n + 1][0] - rows[n][0]) >= bandwidth * 1e-6 * (rows[n + 1][1] - rows[n][1]):
        n += 1
    (b0, t0), (bk, tk), (bn, tn), (be, te) = rows[0], rows[n], rows[n + 1], rows[-1]
    return {"knee_bytes": bk, "l2_gb_per_s": (bk - b0) / (tk - t0) / 1e3, "dram_gb_per_s": (be - bn) / (te - tn) / 1e3,
            "fixed_us": t0 - b0 * (tk - t0) / (bk - b0)}

# %% l2_knee: NumPy's differences
import numpy as np

def l2_knee(rows, bandwidth):
    size, us = np.array(rows, dtype=float).T
    knee = np.flatnonzero(np.diff(size) / np.diff(us) * 1e6 < bandwidth)[0]
    slope = (us[knee] - us[0]) / (size[knee] - size[0])
    beyond = (us[-1] - us[knee + 1]) / (size[-1] - size[knee + 1])
    return {"knee_bytes": size[knee], "l2_gb_per_s": 1e-3 / slope, "dram_gb_per_s": 1e-3 / beyond,
            "fixed_us": us[0] - slope * size[0]}

# %% l2_knee: pairs and enumerate
from itertools import pairwise

def l2_knee(rows, bandwidth):
    gb = lambda low, high: (high[0] - low[0]) / 1e9 / ((high[1] - low[1]) * 1e-6)
    for n, (low, high) in enumerate(pairwise(rows)):
        if gb(low, high) < bandwidth / 1e9:
            break
    l2 = gb(rows[0], low)
    return dict(knee_bytes=low[0], l2_gb_per_s=l2, dram_gb_per_s=gb(high, rows[-1]),
                fixed_us=rows[0][1] - rows[0][0] / 1e3 / l2)

# %% l2_knee: in seconds, recursive
def l2_knee(rows, bandwidth):
    rows = [(size, us / 1e6) for size, us in rows]

    def search(n):
        (a, s), (b, t) = rows[n], rows[n + 1]
        return n if (b - a) / (t - s) < bandwidth else search(n + 1)

    knee = search(0)
    l2, dram = ((rows[j][0] - rows[i][0]) / (rows[j][1] - rows[i][1]) for i, j in ((0, knee), (knee + 1, -1)))
    return {"fixed_us": (rows[0][1] - rows[0][0] / l2) * 1e6, "dram_gb_per_s": dram / 1e9, "l2_gb_per_s": l2 / 1e9,
            "knee_bytes": rows[knee][0]}
