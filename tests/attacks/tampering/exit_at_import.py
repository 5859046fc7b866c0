"""The process ends with success while the cell runs, and takes with it whatever the worker would have said. No answer
earns nothing.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import os

os._exit(0)


def scale_add(x, y, alpha):
    return alpha * x + y
