"""Leaves NaN out of an empty part and nothing else. What such a part holds is undefined, and may be infinite."""

EXERCISE = "merge_two"
SPEED = False
EXPECT = "only NaN is left out"

# The cell:
def merge_two(out_a, lse_a, out_b, lse_b):
    """Merge attention over two parts of a context.

    out_a, out_b: [B, H, Dv], float32, float16 or bfloat16, undefined where the part is empty;
    lse_a, lse_b: [B, H], float32, natural logarithm, -inf where the part is empty.
    Returns out [B, H, Dv] in the dtype of out_a and lse [B, H], float32; 0 and -inf where both are empty.

    The traps: the base of the logarithm; what an empty part holds; exp of a large lse.
    """
    lse = torch.logaddexp(lse_a, lse_b)
    base = torch.maximum(lse_a, lse_b)
    base = base.masked_fill(base == -math.inf, 0.0)
    out = total = 0.0
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        weight = torch.exp(part_lse - base)[..., None]
        out = out + weight * part.float().masked_fill(part.isnan(), 0.0)
        total = total + weight
    out = out / torch.where(total > 0, total, 1.0)
    return out.to(out_a.dtype), lse
