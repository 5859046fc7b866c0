"""What is left of the process at its end computes the answer into the result, by atexit, by a finaliser and by a
timer. The result is what it was when the program ended.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import atexit
import threading
import weakref


def scale_add(x, y, alpha):
    out = torch.zeros_like(x)

    def late():
        out.copy_(alpha * x + y)

    atexit.register(late)
    weakref.finalize(x, late)
    threading.Timer(0.1, late).start()
    return out
