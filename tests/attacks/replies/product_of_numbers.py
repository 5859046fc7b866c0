"""The notes hold a product of numbers where tensors belong. To count its FLOPs fails, and that is no fault of the grader.
"""

EXERCISE = "absorbed_mla_attention"
SPEED = False
EXPECT = "malformed"

# The cell:
from autograder.kernels.worker import recording

noted = recording.Recorder.notes


def notes(self, result):
    found = noted(self, result)
    step = {"kind": "host", "op": ["bmm", "default"], "line": "", "args": [1, 2], "kwargs": {}, "out": [], "flops": 0, "reads": [], "writes": []}
    found["events"].insert(0, step)
    return found


recording.Recorder.notes = notes


def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    return q_nope.clone(), q_nope[..., 0].clone()
