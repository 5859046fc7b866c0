"""A kernel that is cut down to its control flow runs the blocks that the whole one runs."""

from collections import Counter

import pytest

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")
if emulator.interpreted():
    pytest.skip("the emulator is not in use under TRITON_INTERPRET=1", allow_module_level=True)
if not emulator.active():
    pytest.skip("kernels run on the GPU here", allow_module_level=True)

import torch
import triton
import triton.language as tl

from mla_ref.hardware.emulator.control import cut
from mla_ref.hardware.emulator.machine import Kernel, Watch

from . import control


class Blocks(Watch):
    """How often each program runs each of some blocks, which stand for others."""

    def __init__(self, was):
        self.was, self.ran = was, Counter()

    def block(self, machine, block):
        if id(block) in self.was:
            for number in machine.numbers[machine.programs_on()].tolist():
                self.ran[number, id(self.was[id(block)])] += 1


def both(monkeypatch, run):
    """Return of each kernel that `run` launches and that can be cut: the lean one, what ran of it and of the whole."""
    found, launch = [], Kernel.launch

    def twice(kernel, grid, values, memory, **options):
        lean, was = cut(kernel) or (None, {})
        if lean is not None:
            flow, whole = Blocks(was), Blocks({id(block): block for block in was.values()})
            launch(lean, grid, values, memory, watch=flow, **options)
            launch(kernel, grid, values, memory, watch=whole, **options)
            found.append((lean, flow.ran, whole.ran))
        else:
            launch(kernel, grid, values, memory, **options)

    monkeypatch.setattr(Kernel, "launch", twice)
    run()
    return found


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in control.CASES])
def test_what_runs_is_what_runs_of_the_whole_kernel(monkeypatch, case):
    found = both(monkeypatch, lambda: case.run("cpu"))
    if not found:
        pytest.skip("its control flow hangs on what is not known without running it")
    for _, flow, whole in found:
        assert flow == whole


@triton.jit
def by_length(lengths_ptr, x_ptr, y_ptr, N: tl.constexpr):
    p = tl.program_id(0)
    length = tl.load(lengths_ptr + p)
    if length < 0:
        return
    acc = tl.zeros([N], dtype=tl.float32)
    at = 0
    while at < length:
        for part in range(at % 4):
            acc += tl.load(x_ptr + tl.arange(0, N)) * part
        at += 1 + p % 2
    tl.store(y_ptr + p * N + tl.arange(0, N), acc)


def test_loops_in_loops_turn_as_often_and_the_work_is_left_out(monkeypatch):
    lengths = torch.tensor([3, 0, -1, 9, 17], dtype=torch.int32)
    x, y = torch.ones(64), torch.zeros(5, 64)
    [(lean, flow, whole)] = both(monkeypatch, lambda: by_length[(5,)](lengths, x, y, N=64))
    assert flow == whole
    assert lean.widest == 1
    assert not any(op.name == "tt.store" for op in lean.module.ops)
