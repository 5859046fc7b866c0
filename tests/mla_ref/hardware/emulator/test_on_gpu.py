"""Each case of the table computes the same emulated and compiled for a GPU: to the bit, where order does not matter."""

import pytest
import torch

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU to compare the emulator with", allow_module_level=True)
if emulator.active():
    pytest.skip("MLA_EMULATE or TRITON_INTERPRET is set, so nothing runs on the GPU", allow_module_level=True)

from . import accesses, control, elementwise, moves
from .table import compare, number

CASES = [case for table in (elementwise, moves, accesses, control) for case in table.CASES if case.gpu]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_the_gpu_computes_what_the_emulator_does(case):
    compiled = case.run("cuda")
    with emulator.emulating():
        emulated = case.run("cpu")
    for theirs, ours in zip(compiled, emulated, strict=True):
        compare(number(ours), number(theirs), case.rtol, case.atol, case.zeros)
