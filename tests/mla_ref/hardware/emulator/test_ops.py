"""Each case of the table computes what NumPy says, emulated or on a GPU."""

import pytest

from mla_ref.hardware import emulator

pytest.importorskip("triton", reason="kernels need Triton")
if emulator.interpreted():
    pytest.skip("the emulator is not in use under TRITON_INTERPRET=1", allow_module_level=True)

from . import accesses, control, elementwise, moves

DEVICE = "cpu" if emulator.active() else "cuda"
CASES = [*elementwise.CASES, *moves.CASES, *accesses.CASES, *control.CASES]


def test_the_table_has_no_name_twice():
    assert len({case.id for case in CASES}) == len(CASES) >= 300


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in CASES])
def test_a_kernel_computes_what_numpy_says(case):
    if DEVICE == "cuda" and not case.gpu:
        pytest.skip("a GPU computes this otherwise")
    case.check(DEVICE)
