"""The cell looks for the seed or the answers in the environment and in /proc of all processes. The process sees none
of them.
"""

EXERCISE = "predict_norm_bytes"
SPEED = False

# The cell:
import os
from pathlib import Path


def predict_norm_bytes(rows, width, itemsize):
    found = dict(os.environ)
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            found |= dict(each.split("=", 1) for each in file.read_text().split("\0") if "=" in each)
        except (OSError, UnicodeError):
            pass
    secret = next((value for name, value in found.items() if "SEED" in name.upper() or "ANSWER" in name.upper()), "")
    return {"eager_bytes": len(secret), "fused_bytes": len(secret), "ratio": 1.0}
