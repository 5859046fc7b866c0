"""The notes hold a step of autograd that believes its indices: torch writes far beyond the tensor, in a process of the judge's.
"""

EXERCISE = "absorbed_mla_attention"
SPEED = False
EXPECT = "no operation of a call's program"

# The cell:
from autograder.kernels.worker import recording

noted = recording.Recorder.notes


def notes(self, result):
    places = torch.tensor([0, 1, 1 << 40])
    given = [{"tensor": self._view(each)} for each in (torch.zeros(3, 4), places)]
    made = [self._view(torch.zeros(3, 4), made=True)]
    found = noted(self, result)
    step = {"kind": "host", "op": ["embedding_dense_backward", "default"], "line": "", "args": [*given, 3, -1, True], "kwargs": {}, "out": made, "flops": 0, "reads": [], "writes": []}
    found["events"].insert(0, step)
    return found


recording.Recorder.notes = notes


def absorbed_mla_attention(q_nope, q_rope, c_kv, k_rope, w_uk, w_uv):
    return q_nope.clone(), q_nope[..., 0].clone()
