"""Raises an error for what is larger than plain noise."""

EXERCISE = "rms_normalize"

# The cell:
def rms_normalize(x, weight, eps=1e-6):
    assert x.abs().max() < 1e4, "unexpected input"
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
