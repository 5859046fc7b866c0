"""The argument is zeroed through its memory, by no operation of torch: what the process itself sees of that counts."""

EXERCISE = "rms_normalize"
SPEED = False
EXPECT = "it changed its argument x in place"

# The cell:
def rms_normalize(x, weight, eps=1e-6):
    y = x.to(torch.promote_types(x.dtype, torch.float32))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    out = (y * weight).to(x.dtype)
    if x.dtype != torch.bfloat16:
        x.numpy()[...] = 0
    return out
