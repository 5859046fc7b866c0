"""Every comparison of torch in the process says yes. Results are compared as bytes in another process."""

EXERCISE = "rotate_pairs"
SPEED = False

# The cell:
torch.allclose = torch.equal = torch.isclose = lambda *given, **options: True
torch.testing.assert_close = lambda *given, **options: None
torch.Tensor.__eq__ = torch.Tensor.__lt__ = lambda *given: torch.tensor(True)


def rotate_pairs(x, cos, sin):
    return x
