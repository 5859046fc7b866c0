"""An integer that no float is as large as, where a formula is expected: it is wrong, and no fault of the grader."""

EXERCISE = "matmul_cost"
EXPECT = "is an integer of 1329 bits"

# The cell:
def matmul_cost(m,n,k,itemsize):
    return {"flops": 10**400, "bytes": -10**400}
