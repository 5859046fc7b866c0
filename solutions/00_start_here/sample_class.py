"""The sample class of lesson 00."""

from autograder.course.sample import Expected, Submission, add_cell, replace, rewrite, slip, unfinished
from autograder.judging.verdict import Outcome

SUBMISSIONS = (
    Submission("ada", "the solution as it stands"),
    Submission(
        "ben",
        "another style: a loop, max over pairs, bisection in place of counting up",
        patches=(
            rewrite(
                "tensor_bytes",
                """
def tensor_bytes(shape, itemsize):
    total = itemsize
    for size in shape:
        total *= size
    return total
""",
            ),
            rewrite(
                "matmul_cost",
                """
def matmul_cost(m, n, k, itemsize):
    return dict(flops=2.0 * m * n * k, bytes=(m * k + k * n + m * n) * itemsize)
""",
            ),
            rewrite(
                "roofline_time",
                """
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    # of two equal times max returns the first
    times = [(nbytes / bandwidth, "memory"), (flops / peak_flops, "compute")]
    return max(times, key=lambda pair: pair[0])
""",
            ),
            rewrite(
                "ridge_rows",
                """
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    low, high = 0, 2048  # low is memory-bound, high is compute-bound
    while high - low > 1:
        middle = (low + high) // 2
        cost = matmul_cost(middle, n, k, itemsize)
        if cost["flops"] / peak_flops > cost["bytes"] / bandwidth:
            high = middle
        else:
            low = middle
    return high
""",
            ),
        ),
    ),
    Submission(
        "chloe",
        "the data sheet and a helper in a cell of her own",
        patches=(
            add_cell(
                "predict_h100",
                """
from dataclasses import dataclass

@dataclass
class Sheet:
    dense_bf16: float
    dram: float

    def micros(self, flops, nbytes):
        seconds, _ = roofline_time(flops, nbytes, self.dense_bf16, self.dram)
        return seconds * 1e6

SHEET = Sheet(dense_bf16=989e12, dram=3.35e12)
print(SHEET.micros(0, 2 * 2**30))
""",
            ),
            rewrite(
                "predict_h100",
                """
def predict_h100(copied, size):
    product = matmul_cost(size, size, size, 2)
    return {
        "copy_us": SHEET.micros(0, 2 * copied),
        "matmul_us": SHEET.micros(product["flops"], product["bytes"]),
    }
""",
            ),
        ),
    ),
    Submission(
        "dev",
        "warns and prints",
        patches=(
            replace(
                "tensor_bytes",
                "    return math.prod",
                "    import warnings\n"
                '    warnings.warn("is an int8 one byte?")\n'
                "    print(shape, itemsize)\n"
                "    return math.prod",
            ),
            replace("ridge_rows", "        m += 1", "        m += 1\n        print(m, end=' ')"),
        ),
    ),
    Submission(
        "eli",
        "elements for bytes, MACs for FLOPs, times added, one way of the copy, one row too few",
        patches=(
            replace("tensor_bytes", " * itemsize", ""),
            replace("matmul_cost", "2 * m * n * k", "m * n * k"),
            rewrite(
                "roofline_time",
                """
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    memory = nbytes / bandwidth
    compute = flops / peak_flops
    return memory + compute, "memory" if memory >= compute else "compute"
""",
            ),
            replace("predict_h100", "2 * copied", "copied"),
            replace("ridge_rows", "return m", "return m - 1"),
        ),
        expect={
            "tensor_bytes": Expected(1, Outcome.PARTIAL, "these are elements"),
            "matmul_cost": Expected(0, says="multiply-accumulates"),
            "roofline_time": Expected(0, says="added"),
            "predict_h100": Expected(0, says="read and written"),
            "ridge_rows": Expected(0, says="last number of rows"),
        },
    ),
    Submission(
        "fay",
        "bits for bytes, elements in the product, the shorter time, the sparse peak, weights only",
        patches=(
            replace("tensor_bytes", "* itemsize", "* itemsize * 8"),
            rewrite(
                "matmul_cost",
                """
def matmul_cost(m, n, k, itemsize):
    return {"flops": 2 * m * n * k, "bytes": m * k + k * n + m * n}
""",
            ),
            replace("roofline_time", "memory >= compute", "memory < compute"),
            replace("predict_h100", "1979e12 / 2", "1979e12"),
            rewrite(
                "ridge_rows",
                """
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    weights = tensor_bytes((k, n), itemsize)
    flops_of_a_row = 2 * n * k
    return math.ceil(weights / bandwidth / (flops_of_a_row / peak_flops))
""",
            ),
        ),
        expect={
            "tensor_bytes": Expected(0, says="bits"),
            "matmul_cost": Expected(0, says="bytes counts elements"),
            "roofline_time": Expected(0, says="shorter"),
            "predict_h100": Expected(1, Outcome.PARTIAL, "sparse"),
            "ridge_rows": Expected(0, says="weights only"),
        },
    ),
    Submission(
        "gus",
        "nothing in a scalar, output forgotten, names swapped, seconds for microseconds, the ridge for rows",
        patches=(
            rewrite(
                "tensor_bytes",
                """
def tensor_bytes(shape, itemsize):
    if len(shape) == 0:
        return 0
    return math.prod(shape) * itemsize
""",
            ),
            replace("matmul_cost", "((m, k), (k, n), (m, n))", "((m, k), (k, n))"),
            replace(
                "roofline_time",
                "memory >= compute:\n        return memory",
                "compute > memory:\n        return compute",
            ),
            replace("roofline_time", 'return compute, "compute"', 'return memory, "compute"'),
            replace("predict_h100", "1e6 * copy", "copy"),
            replace("predict_h100", "1e6 * matmul", "matmul"),
            rewrite(
                "ridge_rows",
                """
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    return math.ceil(peak_flops / bandwidth)
""",
            ),
        ),
        expect={
            "tensor_bytes": Expected(2, Outcome.PARTIAL, "a single number"),
            "matmul_cost": Expected(0, says="the output [m, n] is written"),
            "roofline_time": Expected(0, says="seconds is right and bound is not"),
            "predict_h100": Expected(0, says="expected microseconds"),
            "ridge_rows": Expected(0, says="the ridge in FLOP/byte"),
        },
    ),
    Submission(
        "hana",
        "hands in the last two unfinished",
        (unfinished("predict_h100"), unfinished("ridge_rows")),
        {
            "predict_h100": Expected(0, Outcome.UNFINISHED, "as it was handed out"),
            "ridge_rows": Expected(0, Outcome.UNFINISHED, "as it was handed out"),
        },
    ),
    Submission(
        "ivan",
        "a syntax error in a cell that later ones build on",
        patches=(replace("matmul_cost", "def matmul_cost(m, n, k, itemsize):", "def matmul_cost(m, n, k, itemsize)"),),
        expect={"matmul_cost": Expected(0, Outcome.ERROR, "SyntaxError in line 1")},
    ),
    Submission(
        "lena",
        "no reuse in the product, the tie, no memory time for a small product",
        patches=(
            rewrite(
                "matmul_cost",
                """
def matmul_cost(m, n, k, itemsize):
    macs = m * n * k
    read = 2 * macs
    written = m * n
    return {"flops": 2 * macs, "bytes": (read + written) * itemsize}
""",
            ),
            replace("roofline_time", "memory >= compute", "memory > compute"),
            replace(
                "predict_h100",
                'matmul, _ = roofline_time(cost["flops"], cost["bytes"], peak_flops, bandwidth)',
                'matmul = cost["flops"] / peak_flops',
            ),
        ),
        expect={
            "matmul_cost": Expected(0, says="reads each input once"),
            "roofline_time": Expected(2, Outcome.PARTIAL, "when both times are equal"),
            "predict_h100": Expected(2, Outcome.PARTIAL, "memory-bound on an H100"),
        },
    ),
    Submission(
        "nico",
        "counts additions to the last one, forgets the itemsize; the wrong line of the data sheet; rounds up at a tie",
        patches=(
            rewrite(
                "matmul_cost",
                """
def matmul_cost(m, n, k, itemsize):
    return {"flops": m * n * (k + (k - 1)), "bytes": m * k + k * n + m * n}
""",
            ),
            replace("predict_h100", "1979e12 / 2", "67e12"),
            rewrite(
                "ridge_rows",
                """
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    ridge = peak_flops / bandwidth * itemsize
    return math.ceil(ridge * n * k / (2 * n * k - ridge * (n + k)))
""",
            ),
        ),
        expect={
            "ridge_rows": Expected(1, Outcome.PARTIAL, "last number of rows"),
            "matmul_cost": Expected(0, says="k − 1 additions"),
            "predict_h100": Expected(0, says="the line of bfloat16"),
        },
    ),
    Submission(
        "mona",
        "makes the tensor in order to count it, divides the wrong way round, milliseconds",
        patches=(
            rewrite(
                "tensor_bytes",
                """
def tensor_bytes(shape, itemsize):
    return torch.empty(shape).numel() * itemsize
""",
            ),
            replace("roofline_time", "nbytes / bandwidth", "bandwidth / nbytes"),
            replace("roofline_time", "flops / peak_flops", "peak_flops / flops"),
            replace("predict_h100", "1e6 * copy", "1e3 * copy"),
            replace("predict_h100", "1e6 * matmul", "1e3 * matmul"),
        ),
        expect={
            "tensor_bytes": Expected(2, Outcome.MEMORY, "512 MiB"),
            "roofline_time": Expected(0, says="upside down"),
            "predict_h100": Expected(0, says="milliseconds"),
        },
    ),
    slip(
        "olga",
        "divides by the other rate",
        "roofline_time",
        {"nbytes / bandwidth": "nbytes / peak_flops", "flops / peak_flops": "flops / bandwidth"},
        "the rates are exchanged",
    ),
    slip(
        "pia",
        "a row more than needed",
        "ridge_rows",
        {"return m": "return m + 1"},
        "one row fewer is compute-bound too",
    ),
    Submission(
        "ramon",
        "adds the times and calls all work memory-bound; the number of rows where both times are equal",
        patches=(
            rewrite(
                "roofline_time",
                """
def roofline_time(flops, nbytes, peak_flops, bandwidth):
    seconds = 0
    for amount, rate in ((flops, peak_flops), (nbytes, bandwidth)):
        seconds += amount / rate
    return seconds, "memory"
""",
            ),
            rewrite(
                "ridge_rows",
                """
def ridge_rows(n, k, itemsize, peak_flops, bandwidth):
    # 2mnk / peak_flops = itemsize (mk + kn + mn) / bandwidth, solved for m
    per_row = 2 * n * k / peak_flops - itemsize * (n + k) / bandwidth
    return itemsize * n * k / bandwidth / per_row
""",
            ),
        ),
        expect={
            "roofline_time": Expected(0, says="the two times are added"),
            "ridge_rows": Expected(0, says="both times are equal: expected an int"),
        },
    ),
    slip(
        "sonja",
        "takes times that are close for equal ones",
        "roofline_time",
        {
            "    if memory >= compute:\n        return memory,": "    if memory > 0.95 * compute:\n"
            "        return max(memory, compute),"
        },
        "seconds is right and bound is not",
        2,
    ),
    Submission(
        "quim",
        "reads the output, too; no time without FLOPs; adds both times of a product; no results",
        patches=(
            replace("matmul_cost", "(m, n)))", "(m, n), (m, n)))"),
            replace("roofline_time", "    memory =", '    if flops == 0:\n        return 0.0, "memory"\n    memory ='),
            replace("predict_h100", "1e6 * matmul", '1e6 * (cost["flops"] / peak_flops + cost["bytes"] / bandwidth)'),
            replace("ridge_rows", 'cost["bytes"],', 'cost["bytes"] - tensor_bytes((m, n), itemsize),'),
        ),
        expect={
            "matmul_cost": Expected(0, says="counts the output twice"),
            "roofline_time": Expected(2, Outcome.PARTIAL, "no FLOPs are taken for no time"),
            "predict_h100": Expected(0, says="times of the product are added"),
            "ridge_rows": Expected(0, says="the bytes lack the results"),
        },
    ),
    Submission(
        "rafa",
        "an output in float32, binary terabytes, no rows",
        patches=(
            replace("matmul_cost", "((m, k), (k, n), (m, n)))", "((m, k), (k, n))) + 4 * m * n"),
            replace("predict_h100", "3.35e12", "3.35 * 2**40"),
            replace("ridge_rows", 'cost["bytes"],', 'cost["bytes"] - tensor_bytes((m, k), itemsize),'),
        ),
        expect={
            "matmul_cost": Expected(0, says="4 bytes an entry"),
            "predict_h100": Expected(0, says="not 2⁴⁰"),
            "ridge_rows": Expected(0, says="the bytes lack the rows"),
        },
    ),
    *(
        slip(f"h100-{n}", says_so, "predict_h100", changes, says_so, score)
        for n, (changes, says_so, score) in enumerate(
            (
                ({'cost["flops"]': "0"}, "is bound by compute on an H100", 1),
                (
                    {"1e6 * matmul": '1e6 * min(cost["bytes"] / bandwidth, cost["flops"] / peak_flops)'},
                    "is the shorter of the product's two times",
                    0,
                ),
                ({"itemsize=2": "itemsize=4"}, "entries are counted at 4 bytes", 0),
                ({"1979e12 / 2, 3.35e12": "744e12, 3.019e12"}, "times by measured rates", 0),
                ({"1979e12 / 2": "744e12"}, "a time by a measured rate", 0),
                (
                    {
                        "1e6 * matmul": "1e6 * (cost['bytes'] / bandwidth if size / 3 < 1979e12 / bandwidth "
                        "else cost['flops'] / peak_flops)"
                    },
                    "up to 591 FLOP/byte, the ridge of the sparse peak",
                    1,
                ),
            )
        )
    ),
)
DEMO = ("ada", "eli")
