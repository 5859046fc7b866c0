"""Processes end their first thread, of which the kernel then tells no memory, and another one holds more than all may.
Each thread is asked until one answers.
"""

EXERCISE = "rotate_pairs"
SPEED = False
EXPECT = "held more than"

# The cell:
import ctypes
import os
import threading
import time


def hold():
    kept = os.urandom(1 << 20) * 200
    time.sleep(30)
    return kept


def rotate_pairs(x, cos, sin):
    leave = 60 if os.uname().machine == "x86_64" else 93
    for _ in range(4):
        if os.fork() == 0:
            threading.Thread(target=hold).start()
            ctypes.CDLL(None).syscall(leave, 0)
    time.sleep(12)
    return x
