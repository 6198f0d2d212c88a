"""One thread per worker (two run side by side) and a fixed seed before every test."""

import os

import pytest

# Before numpy is imported: a second thread of its matrix products costs more than it gains on small ones.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
