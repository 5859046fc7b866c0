"""What NVIDIA's compute-sanitizer finds in the kernels in Gluon: wrong accesses to memory, and races in shared memory.

    PYTHONPATH=. python benchmarks/hopper_sanitizer.py       # on the GPU itself, from the repository's root; takes nvcc

Random cases of `hopper_fuzz.py`, compared with float64, run under each tool. Two things that compiled Gluon does are
races to racecheck, and are none: threads meet at a barrier, then one of them arrives at an mbarrier for all; and a
barrier of one warpgroup, before one of all threads. `handed_on.cu` has each in a kernel of a few lines, which is
reported too, and not without it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import hopper_fuzz
import record
import torch

SEEDS = range(6)
BARRIERS = 64  # more than a kernel here has: of those that nvcc did not compile, the tool has to be told
EXAMPLES = [("handed_on", "one"), ("handed_on", "each"), ("handed_on", "none"), ("met", "alone"), ("met", "beside")]
SUMMARY = r"(?:ERROR|RACECHECK) SUMMARY: (\d+) "


def run() -> None:
    """Call the kernels, and compare what they return."""
    torch.set_grad_enabled(False)
    for seed in SEEDS:
        hopper_fuzz.decode(seed)()
        hopper_fuzz.prefill(seed)()
    torch.cuda.synchronize()


def reports(tool: str, name: str, *command: str) -> int:
    """Return how much a tool reports of the kernels of which the names hold this one."""
    log = Path(tempfile.mkdtemp(prefix="sanitizer-")) / "log"
    options = ["--tool", tool, "--log-file", str(log), "--print-limit", "100000", "--num-cuda-barriers", str(BARRIERS)]
    whole = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is memory of its own: what is beyond it is seen
    done = subprocess.run(
        ["compute-sanitizer", *options, "--kernel-name", f"kns={name}", *command],
        env={**os.environ, **whole}, capture_output=True, text=True,
    )  # fmt: skip
    said = log.read_text() if log.is_file() else ""
    found = re.findall(SUMMARY, said)
    if not found or (done.returncode and (name, command[-1]) not in EXAMPLES):
        sys.exit(f"{tool} of {name}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}{said[:4000]}")
    return int(found[-1])


def main() -> None:
    """Run each tool; write the record."""
    rows = []
    for tool in ("memcheck", "racecheck"):
        for name in ("latent_attention_hopper", "ragged_attention_hopper", "_merge"):
            found = reports(tool, name, sys.executable, __file__, "--run")
            rows.append({"tool": tool, "kernel": name, "reports": found})
            print(rows[-1], flush=True)
    example = str(Path(tempfile.mkdtemp(prefix="sanitizer-")) / "handed_on")
    source = str(Path(__file__).with_name("handed_on.cu"))
    subprocess.run(["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-o", example, source], check=True)
    for kernel, form in EXAMPLES:
        right = subprocess.run([example, form]).returncode == 0
        rows.append({"tool": "racecheck", "kernel": f"{kernel}, {form}", "right": right})
        rows[-1]["reports"] = reports("racecheck", kernel, example, form)
        print(rows[-1], flush=True)
    print(record.write(f"hopper_sanitizer_{record.gpu()}", {"cases": 2 * len(SEEDS), "runs": rows}, ("triton",)))


if __name__ == "__main__":
    run() if "--run" in sys.argv else main()
