"""Both times are right, and the ridge of the sparse peak chooses between them: a product of 1500 rows gets 0.59 of its time. Sizes on both sides of the ridge are drawn near it."""

EXERCISE = "predict_h100"
SPEED = False
EXPECT = "the ridge of the sparse peak"

# The cell:
def predict_h100(copied, size):
    """Return {"copy_us": ..., "matmul_us": ...}: least times on an H100 by its data sheet.

    copied: bytes to copy within DRAM; size: rows and columns of the two dense bfloat16 matrices that
    are multiplied. Both times are in microseconds.
    """
    peak_flops, bandwidth = 1979e12 / 2, 3.35e12
    cost = matmul_cost(size, size, size, itemsize=2)
    copy, _ = roofline_time(0, 2 * copied, peak_flops, bandwidth)
    compute, memory = cost["flops"] / peak_flops, cost["bytes"] / bandwidth
    matmul = memory if cost["flops"] / cost["bytes"] < 1979e12 / bandwidth else compute
    return {"copy_us": 1e6 * copy, "matmul_us": 1e6 * matmul}
