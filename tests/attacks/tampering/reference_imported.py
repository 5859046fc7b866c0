"""The cell imports the lesson's own exercises for their oracle, by all the names they could have. The judge's modules
and the lessons' solutions cannot be imported by a submission.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import importlib
import sys


def scale_add(x, y, alpha):
    for folder in (".", "..", "/work", "/home", "/usr/share"):
        sys.path.append(folder)
    for name in ("solutions.oracles", "autograder._course.solutions.oracles", "autograder.judging.judge"):
        try:
            return importlib.import_module(name).scale_add(x, y, alpha)
        except Exception:
            pass
    return x
