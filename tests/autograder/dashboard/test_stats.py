"""`mla-course stats` on simulated classes, and what `mla-course dashboard` says before it serves."""

import json
import os
import signal
import socket
import time

import pytest
from typer.testing import CliRunner

from autograder.cli import app
from autograder.dashboard import serve, stats


@pytest.fixture
def run(tiny, monkeypatch):
    monkeypatch.setenv("MLA_COURSE", "")

    def run(*arguments):
        return CliRunner().invoke(app, ["--course", str(tiny.root), *map(str, arguments)])

    return run


def test_the_figures_are_printed_for_people_and_for_programs(run, hundred):
    made, folder = hundred
    found = json.loads(run("stats", "--json", "--classroom", folder).stdout)
    assert found["students"] == 100
    assert {each["exercise"] for each in found["exercises"]} == {name for its in made.lessons.values() for name in its}
    assert {(f["lesson"], f["exercise"].removesuffix(":speed")): f["kind"] for f in found["flags"]} == made.bad
    assert sorted(found["integrity"]["alike"][0]["students"]) in [sorted(each) for each in made.copied]
    text = run("stats", "--classroom", folder).stdout
    for words in ("Named mistakes", "Exercises that need a look", made.lost, "Answers alike"):
        assert words in text


def test_lessons_can_be_chosen_among_those_of_the_course(tiny, run, hundred):
    result = run("stats", "01_lesson", "--classroom", hundred[1])
    assert "there is no lesson '01_lesson'" in str(result.exception)


def test_nothing_graded_is_a_sentence(run, tmp_path):
    result = run("stats", "--classroom", tmp_path)
    assert isinstance(result.exception, FileNotFoundError)
    assert "run `mla-course grade` first" in str(result.exception)


def test_markup_in_a_reason_is_text(capsys):
    import rich.console

    found = {
        "students": 1,
        "exercises": [],
        "flags": [],
        "problems": [],
        "lost": [{"student": "[bold]x", "why": "\x1b[31m"}],
    }
    found |= {
        "integrity": {"alike": [], "own_solution": [], "refused": []},
        "operations": {"lessons": [], "waiting": []},
    }
    stats.show(rich.console.Console(), found)
    told = capsys.readouterr().out
    assert "[bold]x" in told
    assert "\x1b" not in told


def test_the_server_has_loopback_a_token_and_a_port_of_its_own(tmp_path, monkeypatch, tiny):
    pytest.importorskip("voila", reason="no Voilà here: pip install 'mla-course[dashboard]'")
    told, started = [], []

    class Server:
        def __init__(self, command, env):
            started.append((command, env))
            port = next(word for word in command if word.startswith("--Voila.port=")).partition("=")[2]
            self.socket = socket.create_server((serve.LOOPBACK, int(port)))

        def poll(self):
            return None

        def wait(self):
            return 0

        def terminate(self):
            self.socket.close()

    monkeypatch.setattr(serve.subprocess, "Popen", Server)
    with socket.socket() as taken:
        taken.bind((serve.LOOPBACK, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match="--port"):
            serve.serve(tiny, tmp_path, told.append, port)
    assert serve.serve(tiny, tmp_path, told.append, browser=False) == 0
    (command, variables) = started[0]
    token = variables["JUPYTER_TOKEN"]
    assert len(token) >= 32
    assert token in told[0]
    assert not [word for word in command if token in word]  # others on the machine read arguments
    assert "--Voila.ip=127.0.0.1" in command
    assert "--no-browser" in command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_when_the_dashboard_is_ended_its_server_ends_too(tmp_path, monkeypatch, tiny, number):
    pytest.importorskip("voila", reason="no Voilà here: pip install 'mla-course[dashboard]'")
    ended = []

    class Server:
        def __init__(self, command, env): ...

        def wait(self):
            if not ended:
                os.kill(os.getpid(), number)
                time.sleep(5)

        def terminate(self):
            ended.append(True)

    monkeypatch.setattr(serve.subprocess, "Popen", Server)
    monkeypatch.setattr(serve, "_answers", lambda *_: True)
    before = signal.signal(number, lambda *_: pytest.fail("the process ended"))
    try:
        assert serve.serve(tiny, tmp_path, lambda address: None, browser=False) == 0
    finally:
        signal.signal(number, before)
    assert ended
