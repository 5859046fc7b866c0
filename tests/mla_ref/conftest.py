import pytest
import torch
from hypothesis import settings

settings.register_profile("mla_ref", deadline=None, max_examples=40)
settings.load_profile("mla_ref")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
