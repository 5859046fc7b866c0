import doctest
import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mla_ref

SOURCE = Path(mla_ref.__file__).parent


def run(code, folder):
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60)


def test_every_public_name_loads():
    for name in mla_ref.__all__:
        assert getattr(mla_ref, name) is not None
    assert set(mla_ref.__all__) <= set(dir(mla_ref))
    with pytest.raises(AttributeError, match="has no attribute 'mla_kernel'"):
        _ = mla_ref.mla_kernel


def test_module_lists_are_complete():
    files = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    files |= {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert files == {*mla_ref.HELPER_MODULES, *mla_ref.ANSWER_MODULES}


def test_helpers_work_without_the_answers(tmp_path):
    copy = tmp_path / "mla_ref"
    copy.mkdir()
    for module in ("__init__", *mla_ref.HELPER_MODULES):
        shutil.copy(SOURCE / f"{module}.py", copy)
    code = """
import mla_ref
assert mla_ref.__file__.startswith({folder!r})
from mla_ref import MLAConfig, DEVICES, bench, break_even_batch, plots
break_even_batch(MLAConfig.preset("deepseek_v3"), DEVICES["h100"])
for name in ("MLA", "absorb", "rms_norm", "KVCache", "attention"):
    try:
        getattr(mla_ref, name)
    except ImportError as error:
        assert "reference answer" in str(error), error
    else:
        raise SystemExit(name + " was imported")
"""
    done = run(code.format(folder=str(tmp_path)), tmp_path)
    assert done.returncode == 0, done.stderr


def test_nothing_needs_triton_or_draws_before_it_is_asked():
    code = """
import sys
sys.modules["triton"] = None
import mla_ref
assert "torch" not in sys.modules
for name in mla_ref.__all__:
    getattr(mla_ref, name)
import mla_ref.plots
assert "matplotlib" not in sys.modules
"""
    done = run(code, SOURCE.parent)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", [*mla_ref.HELPER_MODULES, *mla_ref.ANSWER_MODULES])
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(f"mla_ref.{module}")).failed == 0
