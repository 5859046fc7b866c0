import ast
import doctest
import graphlib
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
    shutil.copy(SOURCE / "__init__.py", copy)
    for module in mla_ref.HELPER_MODULES:
        if (SOURCE / module).is_dir():
            shutil.copytree(SOURCE / module, copy / module)
        else:
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


def test_hardware_works_alone(tmp_path):
    shutil.copytree(SOURCE / "hardware", tmp_path / "hardware")
    code = """
import sys
from hardware import cost, devices, emulator, timing
assert cost.Cost(3.35e12).time(devices.DEVICES["h100"]) == 1
assert not {"triton", "mla_ref"} & set(sys.modules)
"""
    done = run(code, tmp_path)
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


HARDWARE = [f"hardware.{path.stem}" for path in SOURCE.glob("hardware/[a-z]*.py")]


@pytest.mark.parametrize("module", [*mla_ref.HELPER_MODULES, *HARDWARE, *mla_ref.ANSWER_MODULES])
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(importlib.import_module(f"mla_ref.{module}")).failed == 0


def imported(path):
    """Names of the modules of the package that a file imports, at its head or inside a function."""
    folder = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from (".".join((*base, *name.split("."))) for name in names)


def test_modules_import_each_other_in_one_direction():
    files = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in files.items() if name != "__init__"}
    graph = {name: set(imported(path)) & set(files) for name, path in files.items()}
    assert "kernels" in graph["implementations"] and "_operands" in graph["kernels.attention_score"]
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError
    assert not any("kernels" in graph[name] for name in ("attention", "scores", "paged", "rope", "norm"))
    assert all(name.startswith("hardware") for hardware in graph if "hardware" in hardware for name in graph[hardware])
