from contextlib import suppress

import pytest
import torch
from hypothesis import settings

from mla_ref.hardware import emulator

with suppress(ImportError):  # no Triton here: the tests of kernels say so
    emulator.prepare()  # before any test imports Transformers, which imports Triton

settings.register_profile("mla_ref", deadline=None, max_examples=40)
settings.load_profile("mla_ref")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
