"""What the README promises to an engineer runs."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_example_runs(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert 0 < float(capsys.readouterr().out) < 1


def test_every_command_it_names_exists():
    from autograder.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"mla-course ([a-z]+)", README))
    assert named <= commands, named - commands


def test_its_results_are_those_on_record(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    import results

    assert results.table() in README
