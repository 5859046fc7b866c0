"""Write a benchmark's result as JSON beside the scripts, with what it was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent
WIDTH = 320  # of a line of a record
UNNAMED = r"NVIDIA|Tesla|GeForce|GPU|SXM\d?|80GB|HBM3"  # makers, and what most GPUs of a model have


def write(name: str, figures: dict[str, Any], packages: tuple[str, ...] = ()) -> Path:
    """Write `benchmarks/NAME.json`: device, versions, date, figures."""
    path = path_of(name)
    path.write_text(dumps({"benchmark": name, **origin(packages), **figures}))
    return path


def path_of(name: str) -> Path:
    """Return where a record is, or will be."""
    return Path(os.environ.get("MLA_BENCH_OUT", FOLDER)) / f"{name}.json"


def earlier(name: str) -> dict[str, Any]:
    """Return the record that `write` would replace, else the one beside the scripts; {} if there is none."""
    for path in (path_of(name), FOLDER / f"{name}.json"):
        if path.is_file():
            return json.loads(path.read_text())
    return {}


def dumps(record: dict[str, Any]) -> str:
    """Return a record as JSON that people can read and compare: a key a line, and in tables a row a line.

    What fits into `WIDTH` characters stands on one line. What does not is broken into its elements, numbers and words
    that follow each other packed into lines.
    """
    lines = (f" {_string(key)}: {_lines(value, 1)}" for key, value in record.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value, depth):
    line = _string(value)
    if not isinstance(value, dict | list):
        return line
    elements = list(value.values() if isinstance(value, dict) else value)
    table = isinstance(value, list) and any(isinstance(each, dict | list) for each in elements)
    if not table and len(line) <= WIDTH:
        return line
    parts, indent = [], " " * (depth + 1)
    packed = False
    for key, each in value.items() if isinstance(value, dict) else ((None, each) for each in elements):
        nested = isinstance(each, dict | list)
        fits = table and len(_string(each)) <= WIDTH
        part = ("" if key is None else f"{_string(key)}: ") + (_string(each) if fits else _lines(each, depth + 1))
        if packed and not nested and len(parts[-1]) + len(part) <= WIDTH:
            parts[-1] += f", {part}"
        else:
            parts.append(part)
        packed = not nested
    inside = ",\n".join(indent + part for part in parts)
    return f"{line[0]}\n{inside}\n{indent[1:]}{line[-1]}"


def _string(value):
    return json.dumps(value, ensure_ascii=False)


def origin(packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what figures of this process are measured on, and when."""
    versions = {package: importlib.metadata.version(package) for package in ("torch", *packages)}
    if driver := driver_version():
        versions["driver"] = driver
    return {
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "versions": {"python": platform.python_version(), **versions},
    }


def gpu() -> str:
    """Return the GPU's model, as names of records have it: ``h100``, ``h100pcie``, ``rtx4090``."""
    words = (word for word in re.findall(r"\w+", device()) if not re.fullmatch(UNNAMED, word))
    return "".join(words).lower()


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, None where no GPU of theirs is in use."""
    if not torch.cuda.is_available() or torch.version.hip:
        return None
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def device() -> str:
    """Return the accelerator's name, or the processor's with its number of cores."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {os.cpu_count()} cores"
