"""The process reports an error whose type is a list that names one tensor 200000 times, in three MiB. Written out as
text it takes a judge an hour and some gigabytes.
"""

EXERCISE = "rotate_pairs"
SPEED = False

# The cell:
import json
import os
import struct


def rotate_pairs(x, cos, sin):
    tree = {"event": "case", "index": 0, "error": {"type": [{"$tensor": 0}] * 200_000}}
    head = json.dumps({"tree": tree, "tensors": [["float64", [1000]]]}).encode()
    data = struct.pack("<4sIQ", b"MLA\x01", len(head), 8000) + head + os.urandom(8000)
    for fd in range(3, 64):
        rest = data
        try:
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError:
            pass
    os._exit(0)
