"""The function multiplies its argument in place and empties the worker's list of what has changed. An argument that
changed is noticed by what holds it, not by the process that changed it.
"""

EXERCISE = "absorb_query"
SPEED = False

# The cell:
from autograder.isolation.worker import running

running.changed = lambda before, after: []


def absorb_query(q_nope, w_uk):
    q_latent = torch.einsum("bshd,hdr->bshr", q_nope, w_uk)
    q_nope.mul_(2)
    return q_latent
