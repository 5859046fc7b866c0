"""The process sends an answer that names its own terms, which the judge alone states, and as a word. A judge that took
it would end in an error and take the class with it.
"""

EXERCISE = "rotate_pairs"
SPEED = False

# The cell:
import os

from autograder.isolation.worker import wire


def rotate_pairs(x, cos, sin):
    data = wire.encode({"event": "case", "index": 0, "result": 1, "explained": 1, "terms": "full marks"})
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass
    os._exit(0)
