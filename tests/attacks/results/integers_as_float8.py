"""Integers come back as floats of 8 bits, which compare with nothing. They are a wrong answer, and no fault of the
grader.
"""

EXERCISE = "plan_tiles"

# The cell:
def plan_tiles(cu_seqlens_q, cu_seqlens_kv, block, causal):
    rows = []
    for b in range(len(cu_seqlens_q) - 1):
        S = int(cu_seqlens_q[b + 1] - cu_seqlens_q[b])
        for n in range(-(-S // block)):
            rows.append([b, n * block, 0])
    return torch.tensor(rows, dtype=torch.float32).view(-1, 3).to(torch.float8_e4m3fn)
