"""One thread per worker (two run side by side) and a fixed seed before every test."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
