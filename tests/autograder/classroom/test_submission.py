"""The file that a public competition takes, out of a notebook: it stands alone, and does what the competition asks."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autograder.classroom import submission
from autograder.classroom.restore import SubmissionError
from autograder.cli import app
from autograder.course.course import Course
from autograder.course.lesson import LessonError
from autograder.course.sample import Submission, add_cell, render, replace, rewrite, unfinished

ROOT = Path(__file__).parents[3]
COURSE = Course.at(ROOT)
NAME = "12_decode_challenge"
# What the competition hands over, small: a module with the cache, and a configuration with the weights.
CALL = """
import math, sys
from types import SimpleNamespace
import torch
from mla_ref.hardware import emulator
emulator.prepare()
from mla_ref.challenge import ABSOLUTE, RELATIVE, ChallengeLayer, challenge_oracle

sys.path.insert(0, sys.argv[1])
from submission import custom_kernel

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
H, D, Rq, R, Dn, Dr, Dv, length = 4, 64, 48, 32, 16, 32, 16, 300
shapes = dict(Q_proj_down=(Rq, D), Q_proj_up=(H * (Dn + Dr), Rq), KV_proj_down=(R + Dr, D),
              KV_proj_up=(H * (Dn + Dv), R), wo=(D, H * Dv))
weights = {f"{name}_weight": (torch.randn(s, device=device) / s[1] ** 0.5).bfloat16() for name, s in shapes.items()}
cache = torch.nn.Module()
cache.register_buffer("data", torch.randn(2, 320, R + Dr, device=device).bfloat16())
cache.seq_len, x = length, torch.randn(2, 1, D, device=device).bfloat16()
wanted = cache.data.clone()
layer = ChallengeLayer(*weights.values(), heads=H, qk_rope_head_dim=Dr, v_head_dim=Dv)
expected = challenge_oracle(layer, x, wanted, length)
for _ in range(2):  # the competition calls again with the same cache
    out, data = custom_kernel((SimpleNamespace(n_heads=H, **weights), x, cache))
    torch.testing.assert_close(out.double(), expected, rtol=RELATIVE, atol=ABSOLUTE)
    torch.testing.assert_close(data, wanted, rtol=RELATIVE, atol=ABSOLUTE)
assert out.shape == (2, 1, D) and data is cache.data and cache.seq_len == length
print("right")
"""


def notebook(tmp_path, *patches, name=NAME):
    """The path of a solved notebook with some changes."""
    path = tmp_path / f"{name}.ipynb"
    path.write_bytes(render(COURSE.lesson(NAME), Submission("student", "", patches)))
    return path


def test_the_file_does_what_the_competition_asks(tmp_path):
    pytest.importorskip("triton", reason="the submission holds a kernel")
    target = tmp_path / "file" / "submission.py"
    path = notebook(tmp_path, add_cell("challenge_step", "import matplotlib\nplot = matplotlib.nonsense"))
    result = CliRunner().invoke(app, ["--course", str(ROOT), "submission", str(path), "-o", str(target), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["file"] == str(target)
    text = target.read_text()
    assert "matplotlib" not in text and "mla_ref" not in text and "naive_step(x" not in text
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(target.parent)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "right\n", done.stderr[-2000:]


def test_a_students_helpers_come_along(tmp_path):
    helper = add_cell("challenge_step", "from math import sqrt\n\ndef of(Dn, Dr):\n    return 1 / sqrt(Dn + Dr)")
    path = notebook(tmp_path, helper, replace("challenge_step", "(Dn + Dr) ** -0.5", "of(Dn, Dr)"))
    text = submission.of_notebook(COURSE, path)
    assert "from math import sqrt" in text and "def of(Dn, Dr)" in text
    found = {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    assert {"custom_kernel", "challenge_step", "rotating_decode", "of"} <= found and "challenge_bytes" not in found


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        (unfinished("challenge_step"), "challenge_step is as it was handed out: write it first"),
        (unfinished("rotating_decode"), "rotating_decode is as it was handed out"),
        (rewrite("challenge_step", "answer = 42"), "the notebook defines no challenge_step"),
        (rewrite("challenge_step", "def challenge_step(x:"), "the notebook defines no challenge_step"),
        (
            replace("challenge_angles", "    pair =", "    from mla_ref.rope import rope_cos_sin\n    pair ="),
            "imports mla_ref.rope, which a competition may not have: .* torch and triton alone",
        ),
    ],
)
def test_what_cannot_stand_alone_is_refused_in_a_sentence(tmp_path, patch, says):
    with pytest.raises(SubmissionError, match=says):
        submission.of_notebook(COURSE, notebook(tmp_path, patch))


def test_a_lesson_without_a_competition_says_which_have_one(tmp_path):
    with pytest.raises(LessonError, match=f"01_mha feeds no competition; lessons that do: {NAME}"):
        submission.of_solution(COURSE, "01_mha")
    path = notebook(tmp_path, name="mine")
    assert submission.of_notebook(COURSE, path) == submission.of_notebook(COURSE, path, NAME)
