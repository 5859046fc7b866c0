"""Verdicts survive whatever happens to the process and the disk."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from autograder.files import write_whole
from autograder.judging.verdict import Outcome, PartVerdict, Verdict, VerdictStore

KEY = "ab" * 32
VERDICT = Verdict(
    "double", 3, 2.0, Outcome.PARTIAL, "why ∞", "half", (PartVerdict("a", 1, 0.0, "r", "n=3"),), ("note",), 0.5
)


@pytest.mark.parametrize("verdict", [VERDICT, Verdict("x", 1, 1, Outcome.PASSED), Verdict("x", 1, 0.0, Outcome.ABSENT)])
def test_what_is_kept_comes_back(tmp_path, verdict):
    VerdictStore(tmp_path).put(KEY, verdict)
    assert VerdictStore(tmp_path).get(KEY) == verdict


def test_a_file_that_knows_no_isolation_is_read():
    data = VERDICT.to_json()
    del data["isolation"]
    assert Verdict.from_json(data) == VERDICT


def test_a_grader_fault_is_not_kept(tmp_path):
    store = VerdictStore(tmp_path)
    store.put(KEY, Verdict("x", 1, None, Outcome.FAULT))
    assert store.get(KEY) is None


def test_an_unknown_key_is_no_verdict(tmp_path):
    assert VerdictStore(tmp_path / "nowhere").get(KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "null",
        lambda text: "[]",
        lambda text: "[" * 5000,
        lambda text: json.dumps(json.loads(text) | {"outcome": "brilliant"}),
        lambda text: json.dumps(json.loads(text) | {"more": 1}),
        lambda text: json.dumps(json.loads(text) | {"parts": [1]}),
        lambda text: json.dumps({k: v for k, v in json.loads(text).items() if k != "notes"}),
        lambda text: "\udcff\udcfe",
    ],
)
def test_a_damaged_file_counts_as_none_and_can_be_replaced(tmp_path, damage):
    store = VerdictStore(tmp_path)
    store.put(KEY, VERDICT)
    (path,) = tmp_path.rglob("*.json")
    path.write_text(damage(path.read_text()), errors="surrogateescape")
    assert store.get(KEY) is None
    store.put(KEY, VERDICT)
    assert store.get(KEY) == VERDICT


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_whole(tmp_path / "file", "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "file", "new \ud800")
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_whole_files_while_a_writer_is_killed_again_and_again(tmp_path):
    program = (
        "import sys, pathlib; from autograder.files import write_whole\nprint('on', flush=True)\n"
        "while True:\n    for c in 'ab': write_whole(pathlib.Path(sys.argv[1]), c * 200_000)"
    )
    path = tmp_path / "file"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        end = time.monotonic() + 0.2
        while time.monotonic() < end or not path.exists():
            if path.exists():
                text = path.read_text()
                assert text in ("a" * 200_000, "b" * 200_000)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert path.read_text() in ("a" * 200_000, "b" * 200_000)
