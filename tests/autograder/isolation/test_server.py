"""The fork server is started once, and serves many."""

import pytest

from autograder.isolation.sandbox import Limits, Sandbox, default_isolation

REQUEST = {"program": [], "entry": "none", "driver": "call", "forbidden": [], "cases": []}


@pytest.mark.parametrize("isolation", sorted({"process", default_isolation()}))
def test_one_server_serves_all_requests(isolation):
    with Sandbox(isolation) as sandbox:
        sandbox.run(REQUEST, Limits())
        first = sandbox._process.pid
        sandbox.run(REQUEST, Limits())
        assert sandbox._process is not None, "what the first request left behind was not clean"
        assert sandbox._process.pid == first
