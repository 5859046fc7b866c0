"""The process gives itself a name that is no UTF-8, which whoever counts its memory reads along, and ends its work right.
A server that tripped over the name would be gone, and the wrong answer is wrong all the same.
"""

EXERCISE = "rotate_pairs"
SPEED = False
EXPECT = "relative error"

# The cell:
import ctypes
import time


def rotate_pairs(x, cos, sin):
    ctypes.CDLL(None).prctl(15, b"\xff\xfe", 0, 0, 0)
    time.sleep(0.2)
    return x + 1
