"""What NVIDIA's compute-sanitizer finds in the kernels in Gluon: wrong accesses to memory, and races in shared memory.

    PYTHONPATH=. python benchmarks/hopper_sanitizer.py [COMPUTE_SANITIZER...]      # on the GPU itself; takes nvcc

From the repository's root. Named are programs of other versions than the one that is installed (the wheels
`nvidia-cuda-sanitizer-api` have them), each of which does all.

Random cases of `hopper_fuzz.py`, compared with float64, run under each tool. Two things that compiled Gluon does are
races to racecheck, and are none: threads meet at a barrier, then one of them arrives at an mbarrier for all; and, to
versions before 2026, a barrier of one warpgroup, before one of all threads. `handed_on.cu` has each in a kernel of a
few lines, which is reported too, and not without it. The kernel for decode runs once more, compiled so that each thread
arrives itself: what is reported then is a race.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hopper_fuzz
import record
import torch
import triton
from edits import of_kernel

from mla_ref.kernels import decode_hopper

SEEDS = range(6)
AT_ONCE = 8  # runs beside each other
BARRIERS = 64  # more than a kernel here has: of those that nvcc did not compile, the tool has to be told
EXAMPLES = [("handed_on", "one"), ("handed_on", "each"), ("handed_on", "none"), ("met", "alone"), ("met", "beside")]
# The mbarriers at which warpgroups arrive, and how many of them; then, how many threads if each does.
WAITED_FOR = {"free.index(j)": 1, "ready.index(j)": 1, "done": 2, "q_free": 2}
COUNTS = [(f"{name}, count={n}", f"{name}, count={128 * n}") for name, n in WAITED_FOR.items()]
EACH = "each thread arrives"
SUMMARY = r"(?:ERROR|RACECHECK) SUMMARY: (\d+) "


def run() -> None:
    """Call the kernels, and compare what they return."""
    torch.set_grad_enabled(False)
    for seed in SEEDS:
        hopper_fuzz.decode(seed)()
        hopper_fuzz.prefill(seed)()
    torch.cuda.synchronize()


def run_arriving() -> None:
    """Call the kernel for decode compiled so that each thread arrives at an mbarrier itself, and compare."""
    torch.set_grad_enabled(False)
    triton.knobs.runtime.add_stages_inspection_hook = change_ptx
    changed = of_kernel(decode_hopper, COUNTS, EACH)
    for seed in SEEDS:
        changed(functools.partial(hopper_fuzz.decode, seed))()
    torch.cuda.synchronize()


def change_ptx(*stages: Any) -> tuple[str, str] | None:
    """Have Triton change the PTX that it makes: it calls this with its stages, and with nothing for a key."""
    if stages:
        make = stages[1]["ptx"]
        stages[1]["ptx"] = lambda source, metadata: arriving(make(source, metadata))
    return None if stages else (EACH, repr(EACH))


def arriving(ptx: str) -> str:
    """Return PTX in which no arrival depends on which thread it is, but still on what the kernel asks for."""
    arrive = r"@(%p\d+) (mbarrier\.arrive\.shared)"
    both = dict(re.findall(r"and\.pred\s+(%p\d+), (%p\d+, %p\d+);", ptx))
    first = {each for each, _ in re.findall(arrive, ptx) if each not in both}  # is this a warpgroup's first thread?

    def every(found: re.Match[str]) -> str:
        asked = [f"@{each} " for each in both.get(found[1], "").split(", ") if each and each not in first]
        return "".join(asked) + found[2]

    return re.sub(arrive, every, ptx)


def version(sanitizer: str) -> str:
    """Return a program's version, as it says it."""
    said = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"Version (\S+)", said)[1]


def reports(sanitizer: str, tool: str, name: str, *command: str) -> int:
    """Return how much a tool reports of the kernels of which the names hold this one."""
    log = Path(tempfile.mkdtemp(prefix=f"sanitizer-{tool}-{name}-")) / "log"
    options = ["--tool", tool, "--log-file", str(log), "--print-limit", "100000", "--num-cuda-barriers", str(BARRIERS)]
    whole = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # each tensor is memory of its own: what is beyond it is seen
    done = subprocess.run(
        [sanitizer, *options, "--kernel-name", f"kns={name}", *command],
        env={**os.environ, **whole}, capture_output=True, text=True,
    )  # fmt: skip
    said = log.read_text() if log.is_file() else ""
    found = re.findall(SUMMARY, said)
    if not found or (done.returncode and (name, command[-1]) not in EXAMPLES):
        sys.exit(f"{tool} of {name}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}{said[:4000]}")
    return int(found[-1])


def main(sanitizers: list[str]) -> None:
    """Run each tool; write the record."""
    example = str(Path(tempfile.mkdtemp(prefix="sanitizer-")) / "handed_on")
    source = str(Path(__file__).with_name("handed_on.cu"))
    subprocess.run(["nvcc", "-gencode=arch=compute_90a,code=sm_90a", "-o", example, source], check=True)
    right = {form: subprocess.run([example, form]).returncode == 0 for _, form in EXAMPLES}

    def row(sanitizer: str, tool: str, kernel: str, *form: str) -> dict[str, Any]:
        ours = [sys.executable, __file__, "--run", *form]
        command = [example, *form] if (kernel, *form) in EXAMPLES else ours
        found: dict[str, Any] = {"version": version(sanitizer), "tool": tool, "kernel": ", ".join([kernel, *form])}
        if command != ours:
            found["right"] = right[form[0]]
        found["reports"] = reports(sanitizer, tool, kernel, *command)
        print(found, flush=True)
        return found

    kernels = [("latent_attention_hopper",), ("ragged_attention_hopper",), ("_merge",)]
    asked = [("memcheck", *each) for each in kernels]
    asked += [("racecheck", *each) for each in (*kernels, (kernels[0][0], EACH), *EXAMPLES)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda each: row(*each), [(name, *each) for name in sanitizers for each in asked]))
    print(record.write(f"hopper_sanitizer_{record.gpu()}", {"cases": 2 * len(SEEDS), "runs": rows}, ("triton",)))


if __name__ == "__main__":
    if "--run" in sys.argv:
        run_arriving() if EACH in sys.argv else run()
    else:
        main(sys.argv[1:] or ["compute-sanitizer"])
