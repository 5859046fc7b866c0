# %% prefix_costs: lists of contexts, summed
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    read = L + sum(T - L for _ in range(B))
    macs = {"naive": H * (Dn + Dr) + H * Dv, "absorb": H * (R + Dr) + H * R}
    words = {"naive": H * (Dn + Dr + Dv), "absorb": R + Dr}
    answer = {f"{form}_macs": B * S * T * n for form, n in macs.items()}
    return answer | {f"{form}_words": read * n for form, n in words.items()}

# %% prefix_costs: shared and own part apart
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    def part(tokens, copies):
        return {"naive_macs": B * S * tokens * H * (Dn + Dr + Dv), "absorb_macs": B * S * tokens * H * (2 * R + Dr),
                "naive_words": copies * tokens * H * (Dn + Dr + Dv), "absorb_words": copies * tokens * (R + Dr)}
    shared, own = part(L, 1), part(T - L, B)
    return {name: shared[name] + own[name] for name in shared}

# %% prefix_costs: floats
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    width = float(H * Dn + H * Dr + H * Dv)
    stored = B * float(T) - (B - 1) * L
    return dict(naive_words=stored * width, absorb_words=stored * (R + Dr), naive_macs=B * S * T * width,
                absorb_macs=B * S * T * H * (2.0 * R + Dr))

# %% prefix_costs: torch's integers
def prefix_costs(B, S, T, L, H, Dn, Dr, Dv, R):
    macs = torch_product([B, S, T, H])
    stored = torch_product([B, T - L]) + L
    return {"naive_macs": macs * (Dn + Dr + Dv), "absorb_macs": macs * (R + Dr + R),
            "naive_words": stored * H * (Dn + Dr + Dv), "absorb_words": stored * (R + Dr)}

def torch_product(numbers):
    import torch
    return torch.tensor(numbers, dtype=torch.int64).prod()

# %% break_even: one fraction
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    return itemsize * (Dn + Dr + Dv) * rate / (2 * S * (2 * R + Dr) * bandwidth)

# %% break_even: by the costs of a prefix of one token
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    costs = prefix_costs(B=1, S=S, T=1, L=1, H=H, Dn=Dn, Dr=Dr, Dv=Dv, R=R)
    return itemsize * costs["naive_words"] / bandwidth / (2 * costs["absorb_macs"] / rate)

# %% break_even: intensities of key and ridge
def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    ridge = rate / bandwidth
    flops_per_sequence = sum(2 * S * H * width for width in (R, Dr, R))
    bytes_of_prefix = sum(itemsize * H * width for width in (Dn, Dr, Dv))
    return ridge / (flops_per_sequence / bytes_of_prefix)

# %% break_even: NumPy's floats
import numpy as np

def break_even(S, H, Dn, Dr, Dv, R, itemsize, rate, bandwidth):
    return np.float64(itemsize) * np.sum([Dn, Dr, Dv]) / bandwidth / (np.sum([R, R, Dr]) * 2 * S / np.float64(rate))

# %% predict_crossovers: numbers written out
def predict_crossovers():
    per_ridge = 2 * 320 / (2 * 1088)
    return {"ascend": per_ridge * 376 / 1.8, "h100_data_sheet": per_ridge * 989.5 / 3.35, "h100_measured": per_ridge * 744 / 3.019}

# %% predict_crossovers: a table of devices, a comprehension
DEVICES = {"ascend": (376e12, 1.8e12), "h100_data_sheet": (989.5e12, 3.35e12), "h100_measured": (744e12, 3.019e12)}

def predict_crossovers():
    return {name: break_even(1, 128, 128, 64, 128, 512, 2, *device) for name, device in DEVICES.items()}

# %% predict_crossovers: functools.partial
from functools import partial

def predict_crossovers():
    of = partial(break_even, S=1, H=128, Dn=128, Dr=64, Dv=128, R=512, itemsize=2)
    return dict(
        h100_measured=of(rate=744e12, bandwidth=3.019e12), h100_data_sheet=of(rate=1.979e15 / 2, bandwidth=3350e9),
        ascend=of(rate=376e12, bandwidth=1800e9),
    )

# %% predict_crossovers: a named tuple and a loop
from collections import namedtuple

Device = namedtuple("Device", "name tflops tb_per_s")

def predict_crossovers():
    answer = {}
    for device in (Device("ascend", 376, 1.8), Device("h100_data_sheet", 1979 / 2, 3.35), Device("h100_measured", 744, 3.019)):
        answer[device.name] = break_even(1, 128, 128, 64, 128, 512, 2, device.tflops, device.tb_per_s)
    return answer

# %% step_time: a dict of times
def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    costs = prefix_costs(B=B, S=S, T=T, L=L, **sizes)
    times = {"memory": costs[form + "_words"] * itemsize / bandwidth, "compute": costs[form + "_macs"] * 2 / rate}
    bound = max(times, key=times.get)
    return {"seconds": times[bound], "bound": bound, "tokens_per_s": B * S / times[bound]}

# %% step_time: two branches by form, written out
def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    H, Dn, Dr, Dv, R = (sizes[name] for name in ("H", "Dn", "Dr", "Dv", "R"))
    stored = L + B * (T - L)
    if form == "naive":
        macs, words = B * S * T * H * (Dn + Dr + Dv), stored * H * (Dn + Dr + Dv)
    else:
        macs, words = B * S * T * H * (2 * R + Dr), stored * (R + Dr)
    reading, computing = words * itemsize / bandwidth, 2 * macs / rate
    if computing > reading:
        seconds, bound = computing, "compute"
    else:
        seconds, bound = reading, "memory"
    return dict(seconds=seconds, bound=bound, tokens_per_s=S * B / seconds)

# %% step_time: a class of steps
class Step:
    def __init__(self, costs, form, itemsize):
        self.flops, self.bytes = 2 * costs[f"{form}_macs"], itemsize * costs[f"{form}_words"]

    def on(self, rate, bandwidth):
        return max((self.bytes / bandwidth, "memory"), (self.flops / rate, "compute"), key=lambda pair: pair[0])

def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    seconds, bound = Step(prefix_costs(B, S, T, L, **sizes), form, itemsize).on(rate, bandwidth)
    return {"tokens_per_s": B * S / seconds, "seconds": seconds, "bound": bound}

# %% step_time: NumPy's argmax
import numpy as np

def step_time(form, B, S, T, L, sizes, itemsize, rate, bandwidth):
    costs = prefix_costs(B, S, T, L, *(sizes[name] for name in "H Dn Dr Dv R".split()))
    times = np.array([itemsize * costs[f"{form}_words"] / bandwidth, 2 * costs[f"{form}_macs"] / rate])
    return {"seconds": times.max(), "bound": ["memory", "compute"][times.argmax()], "tokens_per_s": B * S / times.max()}

# %% choose_forms: if and else
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    shared = own = "absorb"
    seconds = 0.0
    if L > 0:
        naive = step_time("naive", B, S, L, L, sizes, itemsize, rate, bandwidth)["seconds"]
        absorb = step_time("absorb", B, S, L, L, sizes, itemsize, rate, bandwidth)["seconds"]
        shared = "naive" if naive < absorb else "absorb"
        seconds += min(naive, absorb)
    if T > L:
        naive = step_time("naive", B, S, T - L, 0, sizes, itemsize, rate, bandwidth)["seconds"]
        absorb = step_time("absorb", B, S, T - L, 0, sizes, itemsize, rate, bandwidth)["seconds"]
        own = "naive" if naive < absorb else "absorb"
        seconds += min(naive, absorb)
    return {"shared": shared, "own": own, "seconds": seconds}

# %% choose_forms: a loop over the parts, min of pairs
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    device = dict(sizes=sizes, itemsize=itemsize, rate=rate, bandwidth=bandwidth)
    answer = {"seconds": 0}
    for part, tokens, prefix in (("shared", L, L), ("own", T - L, 0)):
        times = [(step_time(form, B, S, tokens, prefix, **device)["seconds"], form) for form in ("absorb", "naive")] if tokens else [(0, "absorb")]
        least, answer[part] = min(times)
        answer["seconds"] += least
    return answer

# %% choose_forms: a function of one time that is 0 without tokens
def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    def seconds(form, tokens, prefix):
        try:
            return step_time(form, B, S, tokens, prefix, sizes, itemsize, rate, bandwidth)["seconds"]
        except ZeroDivisionError:
            return 0.0
    shared = sorted(("absorb", "naive"), key=lambda form: seconds(form, L, L))[0]
    own = sorted(("absorb", "naive"), key=lambda form: seconds(form, T - L, 0))[0]
    return dict(shared=shared, own=own, seconds=seconds(shared, L, L) + seconds(own, T - L, 0))

# %% choose_forms: all pairs of forms
from itertools import product

def choose_forms(B, S, T, L, sizes, itemsize, rate, bandwidth):
    def part(form, tokens, copies):
        costs = prefix_costs(B, S, tokens, tokens if copies == 1 else 0, **sizes)
        return max(itemsize * costs[f"{form}_words"] / bandwidth, 2 * costs[f"{form}_macs"] / rate)
    best = None
    for shared, own in product(("absorb", "naive"), repeat=2):
        seconds = part(shared, L, 1) + part(own, T - L, B)
        if best is None or seconds < best["seconds"]:
            best = {"shared": shared, "own": own, "seconds": seconds}
    return best

# %% read_measurements: pairs of rows, a fraction of the way
def read_measurements(rows, S, L, sizes, itemsize):
    for (b0, n0, a0), (b1, n1, a1) in zip(rows, rows[1:]):
        if n0 >= a0 and n1 < a1:
            way = (n0 - a0) / ((n0 - a0) - (n1 - a1))
            crossover = b0 + way * (b1 - b0)
            break
    H, Dn, Dr, Dv, R = (sizes[name] for name in ("H", "Dn", "Dr", "Dv", "R"))
    return {
        "crossover": crossover,
        "naive_gb_per_s": itemsize * L * H * (Dn + Dr + Dv) / rows[0][1] / 1e3,
        "absorb_tflop_per_s": 2 * rows[-1][0] * S * L * H * (2 * R + Dr) / rows[-1][2] / 1e6,
    }

# %% read_measurements: columns as NumPy's arrays
import numpy as np

def read_measurements(rows, S, L, sizes, itemsize):
    batch, naive, absorb = np.array(rows, dtype=float).T
    ahead = absorb - naive
    i = int(np.argmax(ahead > 0))
    crossover = np.interp(0.0, ahead[i - 1 : i + 1], batch[i - 1 : i + 1])
    first, last = (prefix_costs(int(b), S, L, L, **sizes) for b in (batch[0], batch[-1]))
    return {"crossover": crossover, "naive_gb_per_s": first["naive_words"] * itemsize / naive[0] * 1e-3,
            "absorb_tflop_per_s": 2 * last["absorb_macs"] / absorb[-1] * 1e-6}

# %% read_measurements: where two lines meet, slopes and offsets
def read_measurements(rows, S, L, sizes, itemsize):
    i = 0
    while rows[i + 1][1] >= rows[i + 1][2]:
        i += 1
    (x0, n0, a0), (x1, n1, a1) = rows[i], rows[i + 1]
    slope_n, slope_a = (n1 - n0) / (x1 - x0), (a1 - a0) / (x1 - x0)
    first, last = rows[0], rows[-1]
    nbytes = itemsize * prefix_costs(first[0], S, L, L, **sizes)["naive_words"]
    flops = 2 * prefix_costs(last[0], S, L, L, **sizes)["absorb_macs"]
    return dict(crossover=x0 + (n0 - a0) / (slope_a - slope_n), naive_gb_per_s=nbytes / (first[1] * 1e3),
                absorb_tflop_per_s=flops / (last[2] * 1e6))

# %% read_measurements: a dataclass for a row
from dataclasses import dataclass

@dataclass
class Row:
    batch: int
    naive: float
    absorb: float

    def __post_init__(self):
        self.lead = self.absorb - self.naive

def read_measurements(rows, S, L, sizes, itemsize):
    table = [Row(*row) for row in rows]
    before = [row for row in table if row.lead <= 0][-1]
    after = table[table.index(before) + 1]
    weight = after.lead / (after.lead - before.lead)
    read = prefix_costs(table[0].batch, S, L, L, **sizes)["naive_words"] * itemsize
    done = prefix_costs(table[-1].batch, S, L, L, **sizes)["absorb_macs"] * 2
    return {"crossover": weight * before.batch + (1 - weight) * after.batch,
            "naive_gb_per_s": read / table[0].naive * 1e6 / 1e9, "absorb_tflop_per_s": done / table[-1].absorb * 1e6 / 1e12}
