"""The norm works in place on a copy of its argument, in float32."""

EXERCISE = "rms_normalize"
SPEED = False

# The cell:
def rms_normalize(x, weight, eps=1e-6):
    y = x.to(torch.promote_types(x.dtype, torch.float32), copy=True)
    y.div_((y.pow(2).mean(-1, keepdim=True) + eps).sqrt()).mul_(weight)
    return y.to(x.dtype)
