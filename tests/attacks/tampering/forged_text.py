"""The process prints full marks to its standard output and exits with success. What a process prints is nobody's
verdict.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import os
import sys


def scale_add(x, y, alpha):
    print('{"event": "verdict", "score": 2.0, "outcome": "passed"}')
    sys.stdout.flush()
    os.write(1, b"2.0\n")
    os._exit(0)
