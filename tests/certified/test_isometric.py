"""Certificates on a network with nothing to spare: naive ones break, ours do not (``isometric.py``)."""

import copy
import json

import pytest
import torch

import isometric
import lipcert as lc
from full import FULL
from paths import ROOT

SHORT = (40, 12)  # inputs, tries for each


def test_the_network_is_isometric_and_proved():
    network = isometric.isometric_network()
    x = torch.randn(isometric.WIDTH, dtype=torch.float64)
    wide = copy.deepcopy(network[:-1]).double()
    values = torch.linalg.svdvals(torch.autograd.functional.jacobian(lambda v: wide(v[None])[0], x))
    assert float(values.max()) <= 1
    assert float(values.min()) >= 1 - 2e-5
    report = lc.audit(network, (isometric.WIDTH,))
    assert report.ok
    assert report.backbone <= 1 + 1e-6


def test_naive_certificates_break_and_ours_do_not():
    isometric.judge(isometric.search(isometric.isometric_network(), *SHORT))


@pytest.mark.full
@pytest.mark.skipif(not FULL, reason="set LIPCERT_FULL=1: about a minute")
def test_naive_certificates_break_and_ours_do_not_in_ten_thousand_tries():
    record = isometric.search(isometric.isometric_network(), *isometric.FULL)
    assert record["certified_tries"] >= 10_000
    isometric.judge(record)


def test_the_recorded_run_says_the_same():
    path = ROOT / "results" / "isometric.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"] == isometric.COMMAND
    assert record["certified_tries"] >= 10_000
    isometric.judge(record)
