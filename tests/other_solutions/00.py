# %% tensor_bytes: functools.reduce
from functools import reduce
import operator

def tensor_bytes(shape, itemsize):
    return reduce(operator.mul, shape, itemsize)

# %% tensor_bytes: by recursion
def tensor_bytes(shape, itemsize):
    return itemsize if not shape else shape[0] * tensor_bytes(shape[1:], itemsize)

# %% tensor_bytes: torch.Size
def tensor_bytes(shape, itemsize):
    return torch.Size(shape).numel() * itemsize

# %% tensor_bytes: a tensor on the device meta
def tensor_bytes(shape, itemsize):
    return torch.empty(shape, device="meta", dtype=torch.uint8).numel() * itemsize

# %% tensor_bytes: NumPy's product
import numpy as np

def tensor_bytes(shape, itemsize):
    return np.prod(shape, dtype=np.int64) * itemsize

# %% matmul_cost: a sum of sides
def matmul_cost(m, n, k, itemsize):
    return {"flops": 2 * m * n * k, "bytes": itemsize * (m * k + k * n + m * n)}

# %% matmul_cost: dot products of the result, floats
def matmul_cost(m, n, k, itemsize):
    results = float(m * n)
    flops = results * (2 * k)
    traffic = 0.0
    for rows, columns in [(m, k), (k, n), (m, n)]:
        traffic += rows * columns * itemsize
    return dict(bytes=traffic, flops=flops)

# %% matmul_cost: a dataclass
from dataclasses import dataclass

@dataclass(frozen=True)
class Matmul:
    m: int
    n: int
    k: int

    def flops(self):
        return 2 * self.m * self.n * self.k

    def bytes(self, itemsize):
        return sum(tensor_bytes(each, itemsize) for each in ((self.m, self.k), (self.k, self.n), (self.m, self.n)))

def matmul_cost(m, n, k, itemsize):
    product = Matmul(m, n, k)
    return {"flops": product.flops(), "bytes": product.bytes(itemsize)}

# %% matmul_cost: torch counts its own
from torch.utils.flop_counter import FlopCounterMode

def matmul_cost(m, n, k, itemsize):
    a, b = torch.empty(m, k, device="meta"), torch.empty(k, n, device="meta")
    with FlopCounterMode(display=False) as counter:
        c = a @ b
    return {"flops": counter.get_total_flops(), "bytes": (a.numel() + b.numel() + c.numel()) * itemsize}

# %% matmul_cost: torch's integers
def matmul_cost(m, n, k, itemsize):
    m, n, k = torch.tensor([m, n, k], dtype=torch.int64)
    return {"flops": 2 * m * n * k, "bytes": (m * k + k * n + m * n) * itemsize}

# %% roofline_time: the larger of two, a conditional expression
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    times = nbytes / bandwidth, flops / peak_flops
    return max(times), "compute" if times[1] > times[0] else "memory"

# %% roofline_time: the first of a stable sort
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    found = sorted([(-nbytes / bandwidth, 1, "memory"), (-flops / peak_flops, 2, "compute")])[0]
    return -found[0], found[2]

# %% roofline_time: a dict of times
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    times = {"memory": nbytes / bandwidth, "compute": flops / peak_flops}
    bound = max(times, key=times.get)
    return [times[bound], bound]

# %% roofline_time: by intensity and ridge
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    if flops * bandwidth > nbytes * peak_flops:
        return flops / peak_flops, "compute"
    else:
        return nbytes / bandwidth, "memory"

# %% roofline_time: torch's maximum
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    times = torch.tensor([nbytes / bandwidth, flops / peak_flops], dtype=torch.float64)
    return times.max(), ("memory", "compute")[int(times[1] > times[0])]

# %% predict_h100: without the earlier functions
def predict_h100(copied, size):
    copy = 2 * copied / 3.35e12
    matmul = max(2 * size**3 / 989.5e12, 3 * size * size * 2 / 3.35e12)
    return {"copy_us": copy * 1e6, "matmul_us": matmul * 1e6}

# %% predict_h100: constants of the module, in microseconds
FLOP_PER_US = 1979e6 / 2
BYTES_PER_US = 3.35e6

def predict_h100(copied, size):
    cost = matmul_cost(m=size, n=size, k=size, itemsize=2)
    matmul_us, _bound = roofline_time(cost["flops"], cost["bytes"], FLOP_PER_US, BYTES_PER_US)
    return dict(matmul_us=matmul_us, copy_us=(copied + copied) / BYTES_PER_US)

# %% predict_h100: a class for the device
class Device:
    def __init__(self, tflops, tb_per_s):
        self.peak, self.bandwidth = tflops * 1e12, tb_per_s * 1e12

    def microseconds(self, flops, nbytes):
        return roofline_time(flops, nbytes, self.peak, self.bandwidth)[0] / 1e-6

def predict_h100(copied, size):
    h100 = Device(tflops=989.5, tb_per_s=3.35)
    sides = 3 * tensor_bytes((size, size), 2)
    return {"copy_us": h100.microseconds(0, copied * 2), "matmul_us": h100.microseconds(2 * size * size * size, sides)}

# %% predict_h100: mla_ref's table of devices
from mla_ref import DEVICES

def predict_h100(copied, size):
    device = DEVICES["h100"]
    cost = matmul_cost(size, size, size, torch.bfloat16.itemsize)
    seconds = max(cost["flops"] / (1979e12 / 2), cost["bytes"] / device.bandwidth())
    return {"copy_us": 2 * copied / device.bandwidth() * 1e6, "matmul_us": seconds * 1e6}

# %% ridge_rows: solved for m
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    # 2 m n k / peak > itemsize (m k + k n + m n) / bandwidth
    slope = 2 * n * k * bandwidth - itemsize * (k + n) * peak_flops
    return math.floor(itemsize * k * n * peak_flops / slope) + 1

# %% ridge_rows: itertools.count and next
from itertools import count

def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    def intensity(m):
        return 2 * m * n * k / (itemsize * (m * k + k * n + m * n))
    return next(m for m in count(1) if intensity(m) > peak_flops / bandwidth)

# %% ridge_rows: doubling, then bisection by the earlier functions
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    def computes(m):
        cost = matmul_cost(m, n, k, itemsize)
        return roofline_time(cost["flops"], cost["bytes"], peak_flops, bandwidth)[1] == "compute"
    high = 1
    while not computes(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if computes(middle):
            high = middle
        else:
            low = middle
    return high

# %% ridge_rows: all candidates at once
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    m = torch.arange(1, 1 << 16, dtype=torch.float64)
    memory = itemsize * (m * k + k * n + m * n) / bandwidth
    compute = 2 * m * n * k / peak_flops
    return int(m[compute > memory][0])
