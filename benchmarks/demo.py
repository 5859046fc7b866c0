"""How long does a newcomer wait? `make demo` in a fresh clone, from nothing and again.

    .venv/bin/python benchmarks/demo.py

Wheels come from wherever pip finds them, so the first time depends on the network or on pip's cache.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import record

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Clone, time both runs, write the record."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix="mla-demo-") as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        seconds = {}
        for name in ("from nothing", "again"):
            started = time.perf_counter()
            subprocess.run(["make", "demo"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            seconds[name] = round(time.perf_counter() - started, 1)
    print(record.write("demo", {"seconds": seconds}), seconds)


if __name__ == "__main__":
    main()
