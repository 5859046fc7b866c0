"""Replies of tasks that run no code of a student's but kernels are kept for the next who asks the same."""

import pytest
import torch

from autograder.isolation.sandbox import Reply
from autograder.kernels import workers
from autograder.kernels.workers import KernelWorkers


class Answering:
    """Stands in for a sandbox: gives one reply, and counts how often it is asked."""

    def __init__(self, *messages, ended="exit"):
        self.reply, self.asked = Reply(ended, 0, list(messages)), 0

    def run_encoded(self, message, limits):
        self.asked += 1
        return self.reply


FINE = {"event": "compiled", "launches": [{"registers": 32}]}


def perform(kernels, sandbox, **request):
    kernels.sandbox = sandbox
    return kernels.perform({"task": "compile", "source": "x", **request}, 1.0)[0]


def test_the_same_request_is_answered_once():
    kernels, sandbox = KernelWorkers("process"), Answering(FINE)
    assert perform(kernels, sandbox) is perform(kernels, sandbox) is sandbox.reply
    assert sandbox.asked == 1
    perform(kernels, sandbox, source="y")
    assert sandbox.asked == 2


@pytest.mark.parametrize(
    "sandbox",
    [
        Answering({"event": "compiled", "launches": [{"error": "no"}]}),
        Answering({"event": "failed", "error": {}}),
        Answering(FINE, ended="time"),
        Answering(),
        Answering({**FINE, "content": torch.zeros(workers.KEPT_BYTES + 1, dtype=torch.uint8)}),
    ],
    ids=["an error of a launch", "a failure", "cut short", "nothing", "too large"],
)
def test_what_is_not_whole_fine_and_small_is_asked_for_again(sandbox):
    kernels = KernelWorkers("process")
    for times in (1, 2):
        perform(kernels, sandbox)
        assert sandbox.asked == times


def test_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(workers, "KEPT", 2)
    kernels, sandbox = KernelWorkers("process"), Answering(FINE)
    for source in "abac":  # b is the oldest when c comes
        perform(kernels, sandbox, source=source)
    assert sandbox.asked == 3
    perform(kernels, sandbox, source="a")
    assert sandbox.asked == 3
    perform(kernels, sandbox, source="b")
    assert sandbox.asked == 4
