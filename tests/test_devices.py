"""Devices: without a GPU, a pretended accelerator and the meta device find what would fail on one."""

import os
import subprocess
import sys

import pytest
import torch

import lipcert as lc
from paths import TESTS

HERE = TESTS


def test_layers_losses_and_models_stay_on_their_device_and_never_wait_for_it():
    full = ["--full"] if os.environ.get("LIPCERT_FULL") else []
    command = [sys.executable, "-W", "ignore", str(HERE / "pretend.py"), *full]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 77:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_constants_of_first_logits_follow_their_network():
    network = torch.nn.Sequential(torch.nn.Flatten(), lc.layers.FirstLogits(3))
    head = network[1]
    assert head.pairwise_bound().device == torch.device("cpu")
    assert not head.state_dict()
    network.to("meta")
    assert head.rows().device.type == "meta"
    assert head.pairwise_bound().device.type == "meta"
    with torch.device("meta"):  # as load_model builds a network, before it has weights
        assert lc.layers.FirstLogits(3).pairwise_bound().device == torch.device("cpu")
    assert lc.layers.FirstLogits(3, device="meta").rows().device.type == "cpu"


@pytest.mark.parametrize("loss", [lc.losses.OffsetCrossEntropy(), lc.losses.EMMA(0.4), lc.losses.KR()])
def test_losses_look_at_no_value_on_an_accelerator(loss):
    logits = torch.empty(8, 5, device="meta", requires_grad=True)
    value = loss(logits, torch.empty(8, dtype=torch.int64, device="meta"))
    assert value.device.type == "meta"
    value.backward()
    assert logits.grad.device.type == "meta"
