"""The files that say what to install agree with each other."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {re.sub("[-_.]+", "-", r.name).lower(): r.specifier for r in requirements}


def test_the_tested_versions_are_within_the_ranges():
    pins = _pins()
    for text in [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]:
        requirement = Requirement(text)
        pin = next(iter(pins[re.sub("[-_.]+", "-", requirement.name).lower()]))
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version), text


def test_torch_and_triton_are_the_pair_that_goes_together():
    pins = _pins()
    assert (str(pins["torch"]), str(pins["triton"])) == ("==2.13.0", "==3.7.1")
    assert f"TORCH := torch{pins['torch']}" in (ROOT / "Makefile").read_text()


def test_the_conda_environment_installs_the_same_project():
    lines = [line.strip().removeprefix("- ") for line in (ROOT / "environment.yml").read_text().splitlines()]
    python = next(line for line in lines if line.startswith("python"))
    assert SpecifierSet(python.removeprefix("python")) == SpecifierSet(PROJECT["requires-python"])
    assert "--constraint constraints.txt" in lines
    editable = next(line for line in lines if line.startswith("--editable"))
    assert set(re.search(r"\[(.+)\]", editable).group(1).split(",")) == set(EXTRAS)


def test_colabs_own_packages_are_within_the_ranges():
    """Its IPython and ipywidgets, which are old and must stay."""
    ranges = {requirement.name: requirement.specifier for requirement in map(Requirement, PROJECT["dependencies"])}
    assert ranges["ipython"].contains("7.34.0")
    assert ranges["ipywidgets"].contains("7.7.1")
    assert "jupytext" not in ranges, "no lesson needs it"
