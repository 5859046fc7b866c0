"""The cell walks up the frames of the worker for anything that is called expected, seed or answer. The process holds
neither an answer nor a seed.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import sys


def scale_add(x, y, alpha):
    frame = sys._getframe()
    while frame:
        for name, value in {**frame.f_globals, **frame.f_locals}.items():
            if name in ("expected", "answer", "answers", "seed") and isinstance(value, torch.Tensor):
                return value
        frame = frame.f_back
    return x
