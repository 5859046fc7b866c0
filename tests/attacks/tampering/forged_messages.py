"""The process writes messages of full marks to every file descriptor and exits. A process sends results, and no
verdicts: without the traced program there is no answer.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
import os

from autograder.isolation.worker import wire


def scale_add(x, y, alpha):
    answer = alpha * x + y
    notes = {"events": [], "storages": [], "result": []}
    for index in range(40):
        data = wire.encode(
            {"event": "case", "index": index, "outcome": "passed", "score": 2, "result": answer, "notes": notes}
        )
        for fd in range(64):
            try:
                os.write(fd, data)
            except OSError:
                pass
    os._exit(0)
