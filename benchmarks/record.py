"""Write a benchmark's result as JSON beside the scripts, with what it was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parent


def write(name: str, figures: dict[str, Any], packages: tuple[str, ...] = ()) -> Path:
    """Write `benchmarks/NAME.json`: device, versions, date, figures."""
    versions = {package: importlib.metadata.version(package) for package in ("torch", *packages)}
    record = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "device": device(),
        "versions": {"python": platform.python_version(), **versions},
        **figures,
    }
    path = Path(os.environ.get("MLA_BENCH_OUT", FOLDER)) / f"{name}.json"
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return path


def gpu() -> str:
    """Return the GPU's model, as names of records have it: ``h100``, ``rtx4090``."""
    words = [word for word in re.findall(r"\w+", device()) if word not in ("NVIDIA", "Tesla", "GeForce")]
    return "".join(words[: 2 if words[0] == "RTX" else 1]).lower()


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
