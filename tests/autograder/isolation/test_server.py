"""The fork server is started once, and serves many."""

from dataclasses import asdict

import pytest

from autograder.isolation.sandbox import Limits, Sandbox, default_isolation
from autograder.judging.program import Cell

REQUEST = {"program": [], "entry": "none", "driver": "call", "forbidden": [], "cases": []}


@pytest.mark.parametrize("isolation", sorted({"process", default_isolation()}))
def test_one_server_serves_all_requests(isolation):
    with Sandbox(isolation) as sandbox:
        sandbox.run(REQUEST, Limits())
        first = sandbox._process.pid
        sandbox.run(REQUEST, Limits())
        assert sandbox._process is not None, "what the first request left behind was not clean"
        assert sandbox._process.pid == first


def test_a_program_whose_operators_are_watched_has_not_the_import_of_torchs_compiler_to_wait_for():
    source = "import sys, torch\ndef f():\n    torch.ones(2) + 1\n    return 'torch._dynamo' in sys.modules"
    request = {"program": [asdict(Cell("f", source))], "entry": "f", "cases": [{}]}
    with Sandbox() as sandbox:
        reply = sandbox.run(REQUEST | request | {"forbidden": ["softmax"]}, Limits())
    assert [message["result"] for message in reply.messages if message["event"] == "case"] == [False]
