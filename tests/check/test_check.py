"""The independent checker: it accepts true certificates, alone; it refuses everything else, without a traceback."""

import ast
import copy
import itertools
import json
import math
import os
import random
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import lipcert as lc
from certificates import (
    NETWORKS,
    ONE,
    SIGMAS,
    ZERO,
    Draft,
    U,
    build_all,
    conv_matrix,
    draft_of,
    float32_below,
    g,
    images,
    overlaps,
    verdict,
)
from lipcert import check as checker
from lipcert.certified.certificate import write_certificate
from lipcert.certified.freeze import prove
from table import HOSTILE, LAYERS, fit

SOURCE = Path(checker.__file__)


# --- True certificates ---


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_true_certificates_are_accepted(kind, seed, tmp_path, capsys):
    draft = NETWORKS[kind](seed)
    path = draft.save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert report.verified == report.claims == len(draft.top["claims"]) >= 6
    assert report.slack > 0
    assert not report.alarms
    assert [row[0] for row in report.constants] == [node["name"] for node in draft.nodes]
    assert all(proved <= claimed for _, _, claimed, proved in report.constants)
    assert verdict(path, capsys) == 0
    assert checker.main([str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_file_runs_alone(tmp_path):
    shutil.copy(SOURCE, tmp_path / "check.py")
    path = draft_of("sll").save(tmp_path / "c")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    for arguments, code in (
        ([str(path)], 0),
        ([str(tmp_path / "nothing.json")], 2),
        ([], 2),
        ([str(path), "-x"], 2),
    ):
        command = [sys.executable, "-I", "-W", "error", str(tmp_path / "check.py"), *arguments]
        result = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60, check=False
        )
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr
        assert bool(result.stderr) == bool(code)
    module = [sys.executable, "-W", "error", "-m", "lipcert.check", str(path), "--quiet"]
    assert subprocess.run(module, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_file_imports_numpy_and_the_standard_library_alone():
    roots = set()
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
    assert roots <= set(sys.stdlib_module_names) | {"numpy"}
    assert not roots & {"pickle", "shelve", "marshal", "importlib"}


def test_half_precision_is_a_way_to_store_the_same_numbers(tmp_path):
    reports = []
    for dtype in (np.float32, np.float16):
        draft = draft_of("sll")
        before = dict(draft.tensors)
        for name, value in before.items():
            if name.endswith(".weight"):
                draft.tensors[name] = (value * 0.99).astype(np.float16).astype(dtype)
        draft.top["claims"] = [
            [index, label, (0.5 * float.fromhex(r)).hex()] for index, label, r in draft.top["claims"]
        ]
        draft.top["probe"] = {"indices": [], "logits": []}
        report = checker.check(draft.save(tmp_path / np.dtype(dtype).name))
        assert report.ok, report.refuted
        reports.append((report.constants, report.slack, report.lines))
    assert reports[0] == reports[1]


# --- False certificates ---


def node_named(draft, kind, nth=0):
    """A node by the method of ``Draft`` that added it."""
    return [node for node in draft.nodes if node["name"].split()[0] == kind][nth]


def change(draft, node, key, function):
    name = node[key]
    draft.tensors[name] = function(draft.tensors[name].copy()).astype(draft.tensors[name].dtype)


def entry(position, value):
    def function(array):
        array.reshape(-1)[position] = value
        return array

    return function


def scaled_hex(text, factor):
    return (float.fromhex(text) * factor).hex()


def tighter(draft, kind, nth, factor):
    change(draft, node_named(draft, kind, nth), "gamma", lambda v: v * np.float32(factor))


def signed_row_sums(draft):
    """The |·| forgotten: γ from Σ_j w_i·w_j, which for a block of ±w is as large as one likes."""
    node = node_named(draft, "residual_linear")
    weight = draft.tensors[node["weight"]]
    weight[1::2] = weight[::2] * np.float32(-0.9)
    signed = np.abs((weight.astype(float) @ weight.T.astype(float)).sum(axis=1))
    draft.tensors[node["gamma"]] = float32_below(1 / signed)
    draft.tensors[node["witness"]] = np.ones(len(weight))


def strided_lags(draft):
    """γ as if the convolution had stride 2."""
    node = node_named(draft, "residual_conv")
    weight = np.abs(draft.tensors[node["weight"]])
    draft.tensors[node["weight"]] = weight
    draft.tensors[node["gamma"]] = float32_below((1 - 2.0**-26) / overlaps(weight, (2, 2)).sum(axis=1))
    draft.tensors[node["witness"]] = np.ones(len(weight))


def epsilon_in_one_place(draft):
    """The erratum: q_j/(q_i + ε)."""
    node = node_named(draft, "residual_linear", 1)
    weight = draft.tensors[node["weight"]]
    a, q = np.abs(weight.astype(float) @ weight.T.astype(float)), draft.tensors[node["witness"]]
    draft.tensors[node["gamma"]] = float32_below(1 / ((a @ q) / (q + 0.01)))


def affine_strided_lags(claimed):
    """[1, 1 | 1, −1] with stride 2, as two output channels: the lags that are multiples of 2 miss the overlap."""
    weight = np.array([[[[1, 1]]], [[[1, -1]]]], np.float32) / np.float32(math.sqrt(2)) * np.float32(1.2)
    draft = Draft(0, [1, 2, 4], np.ones((3, 1, 2, 4), np.float32)).claims_lipschitz(claimed)
    options = {"stride": [1, 2], "padding": [[0, 0]] * 2, "dilation": [1, 1], "padding_mode": "zeros", "groups": 1}
    draft.put("conv", None, claimed, (2, 2, 2), weight=weight, bias=None, **options).flat()
    return draft, np.linalg.norm(conv_matrix(weight, (1, 2, 4), stride=(1, 2))[0], 2)


def set_node(kind, nth=0, /, **values):
    return lambda draft: node_named(draft, kind, nth).update(values)


def set_top(**values):
    return lambda draft: draft.top.update(values)


def set_tensor(kind, key, position, value, nth=0):
    return lambda draft: change(draft, node_named(draft, kind, nth), key, entry(position, value))


def in_claims(function):
    return lambda draft: function(draft.top["claims"])


def bigger_radius(claims):
    claims[2][2] = scaled_hex(claims[2][2], 1 + 1e-6)


def other_label(claims):
    claims[1][1] = (claims[1][1] + 1) % 5


def chained(draft):
    """Each node reads the one before it."""
    for before, node in zip([{"name": "input"}, *draft.nodes], draft.nodes, strict=False):
        node["inputs"] = [before["name"]]


def swap_nodes(draft):
    index, shifted = (draft.nodes.index(node_named(draft, kind)) for kind in ("residual_linear", "scale"))
    draft.nodes[index], draft.nodes[shifted] = draft.nodes[shifted], draft.nodes[index]
    chained(draft)


def drop_node(kind, tensors=True):
    def function(draft):
        node = node_named(draft, kind)
        draft.nodes.remove(node)
        chained(draft)
        if tensors:
            for key in ("weight", "gamma", "bias", "witness", "mean", "std"):
                draft.tensors.pop(node.get(key), None)

    return function


def channels(kind, values, others=2, nth=0):
    """Other channels that a node selects."""
    return set_node(kind, nth, indices=[values, *[None] * others])


def windows(values):
    """Other windows of the pool, along one axis."""
    return set_node("pool", windows=[None, values, [[0, 2], [2, 4]]])


def probe_off(factor):
    def function(draft):
        draft.top["probe"]["logits"][1][2] = scaled_hex(draft.top["probe"]["logits"][1][2], factor)

    return function


def retype(kind, key, dtype):
    def function(draft):
        name = node_named(draft, kind)[key]
        draft.tensors[name] = draft.tensors[name].astype(dtype)

    return function


REFUTED = {  # what is well formed and not true: what the checker must say it is, and how to make it
    "gamma of a tight node": ("node", lambda d: tighter(d, "residual_linear", 1, 1.05)),
    "gamma of a tight node, slightly": ("node", lambda d: tighter(d, "residual_linear", 1, 1 + 2e-6)),
    "gamma without witness": ("node", lambda d: tighter(d, "residual_linear", 2, 1.05)),
    "gamma of a convolution": ("node", lambda d: tighter(d, "residual_conv", 0, 8)),
    "gamma of a strided convolution": ("node", lambda d: tighter(d, "residual_conv", 1, 8)),
    "gamma of a circular convolution": ("node", lambda d: tighter(d, "residual_conv", 2, 8)),
    "gamma of a grouped convolution": ("node", lambda d: tighter(d, "residual_conv", 3, 8)),
    "gamma of a convolution without witness": ("node", lambda d: tighter(d, "residual_conv", 4, 8)),
    "signed row sums": ("node", signed_row_sums),
    "strided lags": ("node", strided_lags),
    "epsilon in one place": ("node", epsilon_in_one_place),
    "radius": ("claims", in_claims(bigger_radius)),
    "radius of 1e300": ("claims", in_claims(lambda c: c[0].__setitem__(2, (1e300).hex()))),
    "label": ("claims", in_claims(other_label)),
    "smaller lipschitz": ("lipschitz", set_top(lipschitz=(1.2499999).hex())),
    "smaller lipschitz of a node": ("node", set_node("residual_conv", lipschitz=(0.999).hex())),
    "smaller lipschitz of the pool": ("node", set_node("pool", lipschitz=math.nextafter(1, 0).hex())),
    "smaller lipschitz of the head": ("node", set_node("linear", lipschitz=(0.5).hex())),
    "factor of the pool": ("node", set_node("pool", factor=(0.51).hex())),
    "factor of the scale": ("node", set_node("scale", factor=(1.3).hex())),
    "dropped flip of sign": ("claims", drop_node("scale")),
    "swapped nodes": ("claims", swap_nodes),
    "no centring": ("claims", drop_node("centre")),
    "no residual node": ("claims", drop_node("residual_linear")),
    "bias": ("claims", set_tensor("residual_linear", "bias", 3, 0.7)),
    "bias of the head": ("claims", set_tensor("linear", "bias", 0, 9.0)),
    "weight of the head": ("node", set_tensor("linear", "weight", 3, 9.0)),
    "huge bias": ("claims", set_tensor("residual_linear", "bias", 0, 3e38)),
    "other images": ("claims", lambda d: d.images.__setitem__(0, 255 - d.images[0])),
    "bytes not divided": ("claims", lambda d: d.top["inputs"].update(divide_by=None)),
    "probe": ("probe", probe_off(1.1)),
    "std": ("node", set_tensor("centre", "std", 0, 0.999)),
    "another order": ("claims", set_node("space_to_depth", order=[0, 4, 2, 1, 3])),
    "a channel twice": ("node", channels("pad_channels", [*range(12), 0, -1])),
    "a channel for another": ("claims", channels("pad_channels", [1, 0, *range(2, 12), -1, -1])),
    "padding with another value": ("claims", set_node("pad_image", value=ONE)),
    "overlapping windows": ("node", windows([[0, 2], [1, 4]])),
    "other windows": ("claims", windows([[0, 2], [2, 3]])),
    "another padding": ("claims", set_node("residual_conv", 2, padding_mode="zeros")),
}


MALFORMED = {  # what is no certificate, or not of this format
    "inf gamma": set_tensor("residual_linear", "gamma", 0, np.inf),
    "negative gamma": set_tensor("residual_linear", "gamma", 0, -1e-3),
    "nan gamma": set_tensor("residual_conv", "gamma", 0, np.nan),
    "nan bias": set_tensor("residual_conv", "bias", 0, np.nan),
    "inf weight": set_tensor("linear", "weight", 0, -np.inf),
    "zero witness": set_tensor("residual_conv", "witness", 0, 0.0),
    "negative witness": set_tensor("residual_conv", "witness", 0, -1.0),
    "witness out of range": set_tensor("residual_conv", "witness", 0, 1e-200),
    "float32 witness": retype("residual_conv", "witness", np.float32),
    "float16 witness": retype("residual_conv", "witness", np.float16),
    "bytes as weight": retype("residual_linear", "weight", np.uint8),
    "zero radius": in_claims(lambda c: c[0].__setitem__(2, (0.0).hex())),
    "negative radius": in_claims(lambda c: c[0].__setitem__(2, (-1.0).hex())),
    "decimal radius": in_claims(lambda c: c[0].__setitem__(2, "0.001")),
    "float radius": in_claims(lambda c: c[0].__setitem__(2, 0.001)),
    "infinite radius": in_claims(lambda c: c[0].__setitem__(2, "inf")),
    "nan radius": in_claims(lambda c: c[0].__setitem__(2, "nan")),
    "radius out of range": in_claims(lambda c: c[0].__setitem__(2, "0x1.0p+9999")),
    "radius in another spelling": in_claims(lambda c: c[0].__setitem__(2, "0x1.0p-0020")),
    "label no class": in_claims(lambda c: c[0].__setitem__(1, 5)),
    "negative label": in_claims(lambda c: c[0].__setitem__(1, -1)),
    "label true": in_claims(lambda c: c[0].__setitem__(1, True)),
    "index twice": in_claims(lambda c: c.insert(0, c[0])),
    "indices fall": in_claims(lambda c: c.reverse()),
    "index out of range": in_claims(lambda c: c[-1].__setitem__(0, 12)),
    "longer claim": in_claims(lambda c: c[0].append(0)),
    "claims null": set_top(claims=None),
    "format": set_top(format="lipcert-certificate-1"),
    "norm": set_top(norm="Lp"),
    "arithmetic": set_top(arithmetic="real"),
    "unknown field": set_top(note="trust me"),
    "missing field": lambda d: d.top.pop("probe"),
    "unknown field of a node": set_node("flatten", start=1),
    "unknown op": set_node("flatten", op="reshape"),
    "op null": set_node("flatten", op=None),
    "lipschitz a number": set_node("flatten", lipschitz=1),
    "negative lipschitz": set_top(lipschitz=(-1.0).hex()),
    "unknown activation": set_node("residual_linear", activation="gelu"),
    "unknown padding": set_node("residual_conv", padding_mode="replicate"),
    "circular with too much padding": set_node("residual_conv", 2, padding=[[2, 2], [1, 1]]),
    "circular with a stride that does not divide": set_node("residual_conv", 2, stride=[3, 1]),
    "circular with padding on one side": set_node("residual_conv", 2, padding=[[1, 0], [1, 1]]),
    "negative stride": set_node("residual_conv", stride=[-1, 1]),
    "zero stride": set_node("residual_conv", stride=[0, 1]),
    "stride true": set_node("residual_conv", stride=[True, 1]),
    "negative padding": set_node("residual_conv", padding=[[-1, 1], [1, 1]]),
    "one pair of padding": set_node("residual_conv", padding=[[1, 1]]),
    "padding without pairs": set_node("residual_conv", padding=[1, 1]),
    "huge padding": set_node("residual_conv", padding=[[10**17, 10**17]] * 2),
    "zero dilation": set_node("residual_conv", dilation=[0, 1]),
    "huge dilation": set_node("residual_conv", dilation=[10**17, 10**17]),
    "groups": set_node("residual_conv", groups=3),
    "no groups": set_node("residual_conv", groups=0),
    "groups of a linear node": set_node("residual_linear", groups=2),
    "another axis": set_node("residual_linear", axis=1),
    "negative axis": set_node("residual_linear", axis=-1),
    "huge index": channels("pad_channels", [10**17, *range(13)]),
    "fewer channels": channels("pad_channels", [0, 1, 2]),
    "huge image": set_node("pad_image", indices=[None, [0] * 5000, [-1] * 5000]),
    "indices of two axes": channels("pad_channels", list(range(12)), 1),
    "empty window": windows([[0, 0], [0, 4]]),
    "window that leaves the image": windows([[0, 3], [3, 6]]),
    "window too many": windows([[0, 2], [2, 4], [0, 4]]),
    "huge window": windows([[0, 2], [2, 10**17]]),
    "divisor of zero": set_node("pool", divisors=[None, [0, 1], [1, 1]]),
    "negative factor of the pool": set_node("pool", factor=(-0.5).hex()),
    "split that does not divide": set_node("space_to_depth", split=[3, 3, 3, 4, 2]),
    "huge split": set_node("space_to_depth", split=[3, 4, 2, 10**17, 10**17]),
    "order that is no permutation": set_node("space_to_depth", order=[0, 2, 4, 1, 1]),
    "huge shape": set_top(input_shape=[3, 2**40, 2**40]),
    "negative shape": set_top(input_shape=[3, -7, -7]),
    "other shape": set_top(input_shape=[3, 49, 1]),
    "shape of four": set_top(input_shape=[1, 3, 7, 7]),
    "shape of five": set_top(input_shape=[1, 1, 3, 7, 7]),
    "no nodes": set_top(nodes=[]),
    "nodes an object": set_top(nodes={}),
    "one node": lambda d: d.top.update(nodes=d.nodes[:1]),
    "dropped head": drop_node("linear"),
    "dropped node, tensors left": drop_node("residual_linear", tensors=False),
    "unused tensor": lambda d: d.tensors.update(extra=np.ones(3, np.float32)),
    "missing tensor": lambda d: d.tensors.pop("t0"),
    "tensor of another shape": lambda d: d.tensors.update(t0=np.ones(4, np.float32)),
    "path upwards": set_top(weights="../c/weights.safetensors"),
    "absolute path": set_top(weights="/etc/passwd"),
    "path of the folder": set_top(weights="."),
    "path with a null": set_top(weights="weights\0.safetensors"),
    "path a number": set_top(weights=7),
    "missing file": set_top(weights="nothing.safetensors"),
    "inputs file upwards": lambda d: d.top["inputs"].update(file="../c/inputs.safetensors"),
    "count": lambda d: d.top["inputs"].update(count=11),
    "divide by 256": lambda d: d.top["inputs"].update(divide_by=256),
    "probe index": lambda d: d.top["probe"]["indices"].__setitem__(0, 99),
    "probe shorter": lambda d: d.top["probe"]["logits"].pop(),
    "probe with a row too short": lambda d: d.top["probe"]["logits"][0].pop(),
    "images of float64": lambda d: setattr(d, "images", d.images.astype(float)),
    "a name that is no text": set_node("flatten", name=["x"]),
}


@pytest.mark.parametrize("name", REFUTED)
def test_false_certificates_are_refuted(name, tmp_path, capsys):
    draft = draft_of("sll")
    reason, mutate = REFUTED[name]
    mutate(draft)
    path = draft.save(tmp_path / "c")
    assert verdict(path, capsys) == 1
    assert any(text.startswith(reason) for text in checker.check(path).refuted)


REFLECTED = {  # mutation → exit code
    "a longer vector": (set_tensor("householder", "weight", 0, 1.2), 1),
    "a claim below a long vector's constant": (set_node("householder", 1, lipschitz=(3.4).hex()), 1),
    "other channels": (channels("take_channels", [5, 6, 7, 8]), 1),
    "zeros for a channel": (channels("take_channels", [6, 7, 8, -1]), 1),
    "channels past the end": (channels("take_channels", [7, 8, 9, 10]), 2),
    "a negative index": (channels("take_channels", [-2, 7, 8, 9]), 2),
    "no channels": (channels("take_channels", []), 2),
    "an index true": (channels("take_channels", [True, 7, 8, 9]), 2),
    "an odd number of channels": (channels("take_channels", [6, 7, 8]), 2),
    "a vector too few": (lambda d: d.tensors.update({d.nodes[1]["weight"]: np.ones((2, 2), np.float32)}), 2),
    "a vector not finite": (set_tensor("householder", "weight", 0, np.nan), 2),
    "fewer groups": (set_node("householder", groups=1), 2),
    "a group too many": (set_node("householder", groups=4), 2),
    "along another axis": (set_node("householder", axis=1), 2),
}


@pytest.mark.parametrize("name", REFLECTED)
def test_reflections_and_taken_channels_are_checked(name, tmp_path, capsys):
    draft = draft_of("reflected")
    mutate, code = REFLECTED[name]
    mutate(draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == code


def widened(key, axis):
    """The first node with one entry more along an axis of that tensor."""

    def function(draft):
        name = draft.nodes[0][key]
        draft.tensors[name] = np.concatenate([draft.tensors[name], draft.tensors[name].take([0], axis)], axis)

    return function


def replaced(key, function):
    """That tensor of the first node, changed as a whole."""
    return lambda d: d.tensors.update({d.nodes[0][key]: np.ascontiguousarray(function(d.tensors[d.nodes[0][key]]))})


WAVES = {  # mutation → exit code
    "blocks stretched": (replaced("weight", lambda t: t * np.float32(1.01)), 1),
    "one entry": (set_tensor("circular", "weight", 7, 0.99), 1),
    "rows stretched": (replaced("rows", lambda t: t * np.float32(1.01)), 1),
    "gamma of a residual": (set_tensor("residual_circular", "gamma", 0, 1.5), 1),
    "a smaller claim": (set_node("circular", lipschitz=(0.9).hex()), 1),
    "a smaller claim of a residual above 1": (set_node("residual_circular", 1, lipschitz=(1.0).hex()), 1),
    "another function": (replaced("rows", lambda t: t[::-1]), 1),
    "rows of zeros": (replaced("rows", np.zeros_like), 2),
    "tiny rows": (replaced("rows", lambda t: t * np.float32(2.0**-100)), 2),
    "waves above 1": (set_tensor("circular", "rows", 0, 1.01), 2),
    "one wave more": (widened("rows", 0), 2),
    "one pixel more": (widened("columns", 1), 2),
    "one block more": (widened("weight", 0), 2),
    "one row of a block more": (widened("weight", 1), 2),
    "one column of a block more": (widened("weight", 2), 2),
    "a wave not finite": (set_tensor("circular", "columns", 0, np.nan), 2),
    "gamma negative": (set_tensor("residual_circular", "gamma", 0, -1.0), 2),
    "another activation": (set_node("residual_circular", activation="gelu"), 2),
    "a witness": (set_node("residual_circular", witness=None), 2),
    "rows that are no matrix": (lambda d: d.nodes[0].update(rows=d.nodes[0]["bias"]), 2),
    "blocks as rows": (lambda d: d.nodes[0].update(rows=d.nodes[0]["weight"]), 2),
}


@pytest.mark.parametrize("name", WAVES)
def test_circular_operators_are_checked(name, tmp_path, capsys):
    draft = draft_of("waves")
    mutate, code = WAVES[name]
    mutate(draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == code


def test_the_strided_lags_of_an_affine_convolution_are_no_bound(tmp_path):
    for claimed, code in ((1.0, 1), (1.5, 0)):
        draft, true = affine_strided_lags(claimed)
        assert 1 < true < 1.5
        assert verdict(draft.save(tmp_path / "c")) == code


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_certificates_are_not_read(name, tmp_path, capsys):
    draft = draft_of("sll")
    MALFORMED[name](draft)
    assert verdict(draft.save(tmp_path / "c"), capsys) == 2


@pytest.mark.parametrize("kind", ["binary", "conv", "sll", "waves", "smooth"])
def test_the_rounding_error_counts_twice(kind, tmp_path):
    """With half the error the radius is refused, with the error of the format's page it is accepted."""
    draft = NETWORKS[kind]()
    for errors, good in ((0.0, False), (1.2, False), (3.2, True)):
        report = checker.check(draft.finish(errors).save(tmp_path / "c"))
        assert report.verified == (report.claims if good else 0)


def test_the_other_sign_is_the_other_class(tmp_path):
    draft = draft_of("binary")
    for claim in draft.top["claims"]:
        claim[1] = 1 - claim[1]
    assert {claim[1] for claim in draft.top["claims"]} == {0, 1}
    assert checker.check(draft.save(tmp_path / "c")).verified == 0


@pytest.mark.parametrize("kind", ["binary", "conv", "sll"])
def test_no_node_may_claim_less_than_its_norm(kind, tmp_path):
    """Each node with 0.9999 of a constant that two points attain, or of the largest singular value."""
    for i, explicit in enumerate(draft_of(kind).explicit):
        draft = draft_of(kind)
        node = draft.nodes[i]
        attained = float.fromhex(node["lipschitz"])
        if node["op"] in ("linear", "conv"):
            attained = np.linalg.norm(explicit[0].astype(float), 2)
        node["lipschitz"] = float(0.9999 * attained).hex()
        assert any(text.startswith(f"node {i} ") for text in checker.check(draft.save(tmp_path / "c")).refuted)


@pytest.mark.parametrize("witness", [True, False])
def test_the_constant_of_a_residual_node_is_two_rho_minus_one(witness, tmp_path):
    draft = Draft(0, [9], np.ones((3, 9), np.float32))
    draft.residual_linear(7, witness=witness, tight=True).finish()
    node = draft.nodes[0]
    draft.tensors[node["gamma"]] *= np.float32(1.2)
    weight, gamma = draft.tensors[node["weight"]].astype(float), draft.tensors[node["gamma"]].astype(float)
    rho = np.linalg.norm(np.sqrt(gamma)[:, None] * weight, 2) ** 2
    draft.top.update(claims=[], probe={"indices": [], "logits": []})
    assert rho > 1.19
    for factor, code in ((1 - 1e-9, 1), (1 + 1e-9, 0)):
        node["lipschitz"] = float((2 * rho - 1) * factor).hex()
        draft.top["lipschitz"] = node["lipschitz"]
        assert verdict(draft.save(tmp_path / "c")) == code


def test_a_probe_off_by_a_little_is_an_alarm_and_no_verdict(tmp_path, capsys):
    draft = draft_of("sll")
    probe_off(1 + 3e-5)(draft)
    path = draft.save(tmp_path / "c")
    assert verdict(path, capsys) == 0
    report = checker.check(path)
    assert report.ok
    assert "heuristic" in report.alarms[0]
    assert any("alarm" in line for line in report.lines)


def with_bytes(file, function):
    return lambda folder: (folder / file).write_bytes(function((folder / file).read_bytes()))


def with_text(function):
    return with_bytes("certificate.json", lambda data: function(data.decode()).encode())


def with_header(function, file="weights.safetensors"):
    def bytes_(data):
        (size,) = struct.unpack("<Q", data[:8])
        text = function(json.loads(data[8 : 8 + size]))
        text = json.dumps(text).encode() if not isinstance(text, bytes) else text
        return struct.pack("<Q", len(text)) + text + data[8 + size :]

    return with_bytes(file, bytes_)


def edit(function):
    def edited(header):
        function(header)
        return header

    return edited


def link(folder):
    (folder.parent / "elsewhere").mkdir()
    shutil.move(folder / "weights.safetensors", folder.parent / "elsewhere" / "w")
    (folder / "weights.safetensors").symlink_to(folder.parent / "elsewhere" / "w")


def replace_by(make):
    def function(folder):
        (folder / "weights.safetensors").unlink()
        make(folder / "weights.safetensors")

    return function


def tensor(**values):
    return with_header(edit(lambda header: header["t0"].update(values)))


def overlap(header):
    header["t1"].update(data_offsets=header["t0"]["data_offsets"], shape=header["t0"]["shape"])


def header_text(old, new):
    return with_header(lambda header: json.dumps(header).encode().replace(old, new, 1))


def text(old, new):
    return with_text(lambda whole: whole.replace(old, new, 1))


FILES = {  # what is done to the bytes, and the verdict
    "tensor byte": (1, with_bytes("weights.safetensors", lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:])),
    "image byte": (1, with_bytes("inputs.safetensors", lambda d: d[:-5] + bytes([d[-5] ^ 1]) + d[-4:])),
    "hash": (1, text('"t0": "', '"t0": "0')),
    "hash of the inputs": (1, text('"sha256": "', '"sha256": "0')),
    "dtype with the same bytes": (2, tensor(dtype="I32")),
    "empty weights": (2, with_bytes("weights.safetensors", lambda d: b"")),
    "seven bytes": (2, with_bytes("weights.safetensors", lambda d: d[:7])),
    "header cut": (2, with_bytes("weights.safetensors", lambda d: d[:60])),
    "weights cut": (2, with_bytes("weights.safetensors", lambda d: d[:-1])),
    "weights longer": (2, with_bytes("weights.safetensors", lambda d: d + b"\0")),
    "inputs cut": (2, with_bytes("inputs.safetensors", lambda d: d[:-1])),
    "header length 2^62": (2, with_bytes("weights.safetensors", lambda d: struct.pack("<Q", 2**62) + d[8:])),
    "header length 2^64 - 1": (2, with_bytes("weights.safetensors", lambda d: b"\xff" * 8 + d[8:])),
    "header length one more": (2, with_bytes("weights.safetensors", lambda d: bytes([d[0] + 1]) + d[1:])),
    "header a list": (2, with_header(lambda h: [h])),
    "header deep": (2, with_header(lambda h: b"[" * 200_000)),
    "header with a key twice": (2, header_text(b'"t1"', b'"t0"')),
    "header with an unknown field": (2, tensor(note=1)),
    "header with bad metadata": (2, with_header(edit(lambda h: h.update(__metadata__=[1])))),
    "huge shape": (2, tensor(shape=[2**40, 2**20])),
    "huge shape and offsets": (2, tensor(shape=[2**50], data_offsets=[0, 2**52])),
    "negative shape": (2, tensor(shape=[-3])),
    "empty shape": (2, tensor(shape=[0], data_offsets=[0, 0])),
    "overlap": (2, with_header(edit(overlap))),
    "offsets swapped": (2, tensor(data_offsets=[12, 0])),
    "negative offsets": (2, tensor(data_offsets=[-12, 0])),
    "offsets of 18 digits": (2, tensor(data_offsets=[0, 10**17])),
    "offsets of 5000 digits": (2, header_text(b"[0, 12]", b"[0, " + b"9" * 5000 + b"]")),
    "link out of the folder": (2, link),
    "a folder": (2, replace_by(lambda path: path.mkdir())),
    "a pipe": (2, replace_by(lambda path: os.mkfifo(path))),
    "certificate a folder": (2, lambda f: ((f / "certificate.json").unlink(), (f / "certificate.json").mkdir())),
    "certificate empty": (2, with_text(lambda t: "")),
    "certificate cut": (2, with_text(lambda t: t[:-1])),
    "certificate longer": (2, with_text(lambda t: t + "{}")),
    "certificate no text": (2, with_bytes("certificate.json", lambda d: b"\xff\xfe" + d)),
    "certificate in UTF-16": (2, with_bytes("certificate.json", lambda d: d.decode().encode("utf-16"))),
    "certificate null": (2, with_text(lambda t: "null")),
    "certificate deep": (2, with_text(lambda t: "[" * 100_000 + "]" * 100_000)),
    "deep inside": (2, text('"claims": [', '"claims": [' + '{"a":' * 100_000)),
    "key twice": (2, text('"norm": "L2"', '"norm": "L2", "norm": "L2"')),
    "key twice in a node": (2, text('"op": "pool"', '"op": "pool", "op": "pool"')),
    "NaN": (2, text('"count": 12', '"count": NaN')),
    "Infinity": (2, text('"count": 12', '"count": -Infinity')),
    "float": (2, text('"count": 12', '"count": 12.0')),
    "exponent": (2, text('"count": 12', '"count": 12e0')),
    "integer of a million digits": (2, text('"count": 12', '"count": 1' + "0" * 10**6)),
    "lone surrogate in a name": (0, with_text(lambda t: t.replace('"flatten 10"', r'"\ud800\u001b[2J"'))),
    "no weights": (2, lambda folder: (folder / "weights.safetensors").unlink()),
}


@pytest.mark.parametrize("name", FILES)
def test_tampered_files(name, tmp_path, capsys):
    draft_of("sll").save(tmp_path / "c")
    code, function = FILES[name]
    before = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    function(tmp_path / "c")
    after = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir() if path.is_file()}
    assert before != after or name == "link out of the folder"
    assert verdict(tmp_path / "c" / "certificate.json", capsys) == code


def test_no_size_is_believed_before_it_is_compared_with_the_file(tmp_path):
    """With 600 MB of address space beyond the start, every absurd size is refused, not allocated."""
    program = (
        "import resource, sys; from lipcert import check\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 600 * 2**20,) * 2)\n"
        "print([check.main([path]) for path in sys.argv[1:]])"
    )
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    paths = []
    for name, function in [(n, f) for n, f in MALFORMED.items() if "huge" in n]:
        draft = draft_of("sll")
        function(draft)
        paths.append(str(draft.save(tmp_path / name.replace(" ", "-"))))
    result = subprocess.run(
        [sys.executable, "-c", program, *paths], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.stdout.strip() == str([2] * len(paths)), result.stderr
    assert len(paths) >= 4


# --- Random damage ---


def meaning(folder):
    """What a certificate says, read without the checker: (nodes, what else must not change, claims)."""
    top = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    tensors = {}
    for file in (top["weights"], top["inputs"]["file"]):
        data = (folder / file).read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        for name, entry_ in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                start, stop = entry_["data_offsets"]
                tensors[name] = (entry_["dtype"], entry_["shape"], data[8 + size + start : 8 + size + stop])
    places = {node["name"]: i for i, node in enumerate(top["nodes"])}
    nodes = []
    for node in top["nodes"]:
        node = {key: tensors[v] if isinstance(v, str) and v in tensors else v for key, v in node.items()}
        nodes.append({key: v for key, v in node.items() if key not in ("name", "lipschitz", "witness")})
        nodes[-1]["inputs"] = [places.get(name) for name in node["inputs"]]
    pixels = tensors[top["inputs"]["tensor"]]
    fixed = (top["format"], top["norm"], top["arithmetic"], pixels, top["inputs"]["divide_by"])
    return nodes, fixed, {i: (label, float.fromhex(radius)) for i, label, radius in top["claims"]}


def values(folder):
    """What the network in the folder computes at some points, by the checker."""
    certificate = checker.read(folder / "certificate.json", checker.Budget())
    x = 3 * np.random.default_rng(0).standard_normal((20, *certificate.top["input_shape"]))
    return checker.forward(build_all(certificate), x, np.zeros(20), checker.FLOAT64, "L2")[0]


def assert_not_more(folder, original):
    """Never an exception; and if it is accepted, then the network is the same and no claim is stronger.

    Other nodes may be the same function: a kernel with one tap has any dilation, and some padding is never read.
    """
    try:
        report = checker.check(folder / "certificate.json")
    except checker.Malformed:
        return
    if report.ok:
        (nodes, fixed, claims), (same, answers) = meaning(folder), original
        assert fixed == same[1]
        assert nodes == same[0] or np.allclose(values(folder), answers, rtol=1e-12, atol=1e-12)
        for i, (label, radius) in claims.items():
            assert label == same[2][i][0]
            assert radius <= same[2][i][1] * (1 + 1e-9)  # the room of 2E that the format leaves


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    result = {}
    for kind in NETWORKS:
        folder = tmp_path_factory.mktemp(kind) / "c"
        draft_of(kind).save(folder)
        original = (meaning(folder), values(folder))
        result[kind] = (folder, original, {p.name: p.read_bytes() for p in folder.iterdir()})
    return result


FUZZ = settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@FUZZ
@given(
    kind=st.sampled_from(["conv", "binary", "sll"]),
    file=st.sampled_from(["certificate.json", "weights.safetensors", "inputs.safetensors"]),
    where=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3),
    head=st.booleans(),
    cut=st.one_of(st.none(), st.floats(0, 1)),
)
def test_damaged_bytes(saved, kind, file, where, head, cut):
    folder, original, files = saved[kind]
    data = bytearray(files[file])
    for place, bit in where:
        data[int(place * min(len(data), 2000 if head else len(data)))] ^= 1 << bit
    data = data if cut is None else data[: int(cut * len(data))]
    try:
        (folder / file).write_bytes(bytes(data))
        assert_not_more(folder, original)
    finally:
        (folder / file).write_bytes(files[file])


def places(value, path=()):
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


NASTY = [None, True, False, 0, 1, -1, 2, 3, 255, 2**31, 10**17, "", "x", "relu", "linear", "rearrange", "zeros"]
NASTY += [
    "circular",
    [],
    [1],
    [0, 0],
    [1, 1],
    [2, 2],
    [[1, 1]],
    [[1, 1], [1, 1]],
    {},
    "t1",
    "t2",
    "input",
    ONE,
    ZERO,
]
NASTY += [f"-{ONE}", (0.5).hex(), (2.0).hex(), "nan", "inf", "0x1.fffffffffffffp+1023"]


@settings(FUZZ, max_examples=500)
@given(kind=st.sampled_from(["conv", "binary", "sll", "reflected", "waves", "smooth"]), data=st.data())
def test_replaced_values(saved, kind, data):
    folder, original, files = saved[kind]
    top = json.loads(files["certificate.json"])
    for _ in range(data.draw(st.integers(1, 2))):
        every = [path for path in places(top) if path]
        path = data.draw(st.sampled_from(every))
        *parents, key = path
        parent = top
        for step in parents:
            parent = parent[step]
        action = data.draw(st.sampled_from(["nasty", "nasty", "other", "drop", "bigger"]))
        if action == "drop":
            parent.pop(key)
        elif action == "bigger" and isinstance(parent[key], str) and re.match("-?0x", parent[key]):
            parent[key] = scaled_hex(parent[key], data.draw(st.sampled_from([1 + 1e-7, 1.01, 2.0, 0.5, 1 - 1e-7])))
        elif action == "other":
            value = top
            for step in data.draw(st.sampled_from(every)):
                value = value[step]
            parent[key] = copy.deepcopy(value)
        else:
            parent[key] = copy.deepcopy(data.draw(st.sampled_from(NASTY)))
    try:
        (folder / "certificate.json").write_text(json.dumps(top), encoding="utf-8")
        assert_not_more(folder, original)
    finally:
        (folder / "certificate.json").write_bytes(files["certificate.json"])


# --- Radii and errors, against brute force ---


@pytest.mark.parametrize("kind", NETWORKS)
def test_no_point_of_a_ball_has_another_class(kind):
    """Random points and steepest descent of the smallest margin, on the sphere just inside each radius."""
    draft = draft_of(kind)
    rng, points = np.random.default_rng(0), draft.inputs().astype(float)
    for index, label, text in draft.top["claims"][:6]:
        radius, x = float.fromhex(text) * (1 - 1e-12), points[index]

        def margins(near, label=label):
            f = draft.run(near)[-1]
            if f.shape[1] == 1:
                return f[:, 0] * (1 if label else -1)
            return f[:, label] - np.delete(f, label, axis=1).max(axis=1)

        shape, size = x.shape, x.size
        steps = rng.standard_normal((60, size))
        steps *= radius / np.linalg.norm(steps, axis=1, keepdims=True)
        assert margins(x + steps.reshape(-1, *shape)).min() > 0
        step, small = steps[0], 1e-3 * radius
        for _ in range(6):
            around = (x.ravel() + step + small * np.concatenate([np.eye(size), -np.eye(size)])).reshape(-1, *shape)
            value = margins(around)
            slope = value[:size] - value[size:]
            step = -radius * slope / max(np.linalg.norm(slope), 1e-300)
            assert margins((x.ravel() + step).reshape(1, *shape)).min() > 0


def test_the_radius_of_an_affine_network_is_exact(tmp_path):
    """Just inside the class holds, just outside it does not; and no larger radius passes the checker."""
    draft = draft_of("affine")
    weight, points = draft.tensors[draft.nodes[0]["weight"]].astype(float), draft.inputs().astype(float)
    for index, label, text in draft.top["claims"]:
        x, radius, f = points[index], float.fromhex(text), draft.run(points[index : index + 1])[-1][0]
        apart = weight[label] - weight
        size = np.linalg.norm(apart, axis=1)
        rival = min((j for j in range(len(f)) if j != label), key=lambda j: (f[label] - f[j]) / size[j])
        way = -apart[rival] / size[rival]
        inside, outside = (draft.run((x + way * radius * t)[None])[-1][0] for t in (1 - 1e-9, 1 + 1e-9))
        assert inside.argmax() == label
        assert outside.argmax() == rival
    for k in range(len(draft.top["claims"])):
        false = draft_of("affine")
        false.top["claims"][k][2] = scaled_hex(false.top["claims"][k][2], 1 + 1e-12)
        report = checker.check(false.save(tmp_path / "c"))
        assert report.verified == len(draft.top["claims"]) - 1


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_error_bound_holds_and_is_that_of_the_format(kind, tmp_path):
    """err ≥ ‖float64 − extended precision‖ and the like for float32; and err agrees with the table in the page."""
    draft = draft_of(kind)
    certificate = checker.read(draft.save(tmp_path / "c"), checker.Budget())
    nodes, x = build_all(certificate), certificate.inputs(range(12))
    exact = draft.run(x, np.longdouble)
    for count in range(1, len(nodes) + 1):
        value, err, z = checker.forward(nodes[:count], x, np.zeros(12), checker.FLOAT64, "L2")
        _, err32, _ = checker.forward(nodes[:count], x, np.zeros(12), checker.FLOAT32, "L2")
        away = np.linalg.norm((value - exact[count]).reshape(12, -1).astype(float), axis=1)
        assert (away <= err * (1 + 1e-3)).all()  # longdouble itself is 2^-11 of it
        away32 = draft.run(x.astype(np.float32), np.float32)[count].astype(float) - exact[count]
        assert (np.linalg.norm(away32.reshape(12, -1).astype(float), axis=1) <= err32 * (1 + 1e-3)).all()
        plain = np.zeros(12)
        for k in range(count):
            norm = np.linalg.norm(exact[k].reshape(12, -1).astype(float), axis=1) + 2 * plain
            constant = float.fromhex(draft.nodes[k]["lipschitz"])
            plain = constant * plain + np.array([draft.rounding(k, size) for size in norm])
        assert (err <= plain * 1.5 + 1e-200).all()  # κ of the checker is that of a large image
        assert (err >= plain * 0.5).all()
        assert (z >= np.linalg.norm(value.reshape(12, -1), axis=1)).all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_error_bound_holds_everywhere_in_the_ball(kind, tmp_path):
    """The trap of uniformity: a bound at x says nothing of x', whose values and errors may be far larger."""
    draft = draft_of(kind)
    certificate = checker.read(draft.save(tmp_path / "c"), checker.Budget())
    nodes, x = build_all(certificate), certificate.inputs(range(12))
    for radius in (1e-3, 1e6):
        step = np.random.default_rng(0).standard_normal(x.shape)
        size = np.linalg.norm(step.reshape(12, -1), axis=1).reshape(-1, *[1] * (x.ndim - 1))
        other = x + 0.999 * radius * step / size
        computed, exact = draft.run(other), draft.run(other, np.longdouble)
        for count in range(1, len(nodes) + 1):
            _, err, z = checker.forward(nodes[:count], x, np.full(12, radius), checker.FLOAT64, "L2")
            away = (computed[count] - exact[count]).astype(float).reshape(12, -1)
            assert (np.linalg.norm(away, axis=1) <= err * (1 + 1e-3)).all()
            assert (np.linalg.norm(computed[count].reshape(12, -1), axis=1) <= z).all()


@pytest.mark.parametrize("kind", ["sll", "conv", "reflected"])
def test_a_convolution_and_its_adjoint_are_the_explicit_matrix(kind, tmp_path):
    draft = draft_of(kind)
    nodes = build_all(checker.read(draft.save(tmp_path / "c"), checker.Budget()))
    rng = np.random.default_rng(0)
    for node, explicit in zip(nodes, draft.explicit, strict=True):
        if "conv" in node.op:
            conv, matrix = node.map, explicit[0].astype(float)
            x, y = rng.standard_normal((2, *conv.image)), rng.standard_normal((2, len(matrix)))
            assert np.allclose(conv.forward(x).reshape(2, -1), x.reshape(2, -1) @ matrix.T, atol=1e-12)
            shaped = y.reshape(2, -1, *conv.out)
            assert np.allclose(conv.adjoint(shaped).reshape(2, -1), y @ matrix, atol=1e-12)


def test_filters_on_disjoint_channels_are_proved_whatever_the_witness(tmp_path):
    """The library proves ρ ≤ 1 for them, and so must the checker: nothing is lost where supports do not overlap."""
    draft = Draft(0, [2, 1, 5], images(0, 2, 1, 5)).residual_conv(2, (1, 2), padding=[[0, 0], [1, 1]])
    node = draft.nodes[0]
    weight = draft.tensors[node["weight"]]
    weight[0, 1] = weight[1, 0] = 0
    q = np.exp([0.0, 20.0])
    gamma = float32_below((1 - 2.0**-26) / ((overlaps(weight) @ q) / q))
    draft.tensors[node["witness"]], draft.tensors[node["gamma"]] = q, gamma
    _, out, _, bias = draft.explicit[0]
    draft.explicit[0] = (conv_matrix(weight, (2, 1, 5), padding=node["padding"])[0], out, gamma, bias)
    draft.flat().linear(3).finish()
    report = checker.check(draft.save(tmp_path / "c"))
    assert report.ok, report.refuted
    tighter(draft, "residual_conv", 0, 1.001)
    assert not checker.check(draft.save(tmp_path / "c")).ok


# --- Activations ---


ASSUMED = {  # activations of two nodes, and what the certificate has to say
    ("relu", "leaky_relu"): [],
    ("tanh", "relu"): ["tanh within 8 ulp"],
    ("tanh", "tanh"): ["tanh within 8 ulp"],
    ("softplus", "elu"): ["elu within 8 ulp", "softplus within 8 ulp"],
    ("sigmoid", "leaky_relu"): ["sigmoid within 8 ulp"],
}


@pytest.mark.parametrize("names", ASSUMED, ids="-".join)
def test_assumptions_about_the_platform_are_listed_and_printed(names, tmp_path, capsys):
    draft = Draft(0, [5], images(0, 5))
    for name in names:
        draft.residual_linear(4, activation=name)
    path = draft.linear(3).finish().save(tmp_path / "c")
    report = checker.check(path)
    assert report.ok, report.refuted
    assert list(report.assumes) == ASSUMED[names] == draft.assumes()
    printed = [line for line in report.lines if line.startswith("assumed: ")]
    assert bool(printed) == bool(report.assumes)
    assert all(text in printed[0] for text in report.assumes)
    checker.main([str(path), "--json"])
    assert json.loads(capsys.readouterr().out)["assumes"] == ASSUMED[names]
    right = ASSUMED[names]
    more, other = [*right, "tanh within 8 ulp"], ["relu within 8 ulp"]
    for wrong in (more, other, right[:-1], right[::-1], None, "", {}, [[]]):
        if wrong != right:
            draft.top["assumes"] = wrong
            assert verdict(draft.save(tmp_path / "c"), capsys) == 2


def test_another_activation_is_another_function(tmp_path):
    """Each activation in the place of each other one: the claims or the probe do not hold, or the list is wrong."""
    for name, other in itertools.permutations(SIGMAS, 2):
        draft = Draft(0, [5], images(0, 5))
        draft.residual_linear(9, activation=name).residual_linear(9, activation=name).linear(3).finish()
        for node in draft.nodes[:2]:
            node["activation"] = other
        assert verdict(draft.save(tmp_path / "c")) == 1, (name, other)


def test_the_error_of_an_activation_that_is_not_zero_at_zero(tmp_path):
    """σ(0) is rounded even where nothing comes in: √(positions·Σγ)|σ(0)| is part of what σ can reach."""
    for name, (_, roundings, at_zero) in SIGMAS.items():
        draft = Draft(0, [2, 3, 3], np.zeros((3, 2, 3, 3), np.float32)).residual_conv(4, activation=name)
        bias, gamma = (draft.tensors[draft.nodes[0][key]] for key in ("bias", "gamma"))
        bias *= 0
        draft.explicit[0] = (*draft.explicit[0][:3], bias)
        node = draft.flat().finish().build(tmp_path / "c")[0]
        error = float(node.error(np.zeros(1), checker.FLOAT64)[0])
        start = at_zero * math.sqrt(9 * float(gamma.astype(float).sum()))
        assert 2 * node.root * g(1 + roundings) * start <= error
        assert error <= 1000 * U * start + 1e-200
        assert error == pytest.approx(float(draft.rounding(0, 0.0)), rel=0.5, abs=1e-200)


# --- Certificates that the library writes ---


def hostile_filters(rng):
    """A residual convolution with filters of disjoint support and scales, and q from e⁻²⁰ to e²⁰."""
    groups = rng.choice([1, 2])
    channels, hidden = groups * rng.choice([1, 2, 3]), groups * rng.choice([1, 2, 3, 5])
    size, stride = rng.choice([(1, 2), (2, 1), (1, 3), (3, 3), (2, 3)]), rng.choice([1, 1, 2, (1, 2)])
    mode = rng.choice(["zeros", "circular"]) if all(k % 2 for k in size) else "zeros"
    layer = lc.ResidualConv2d(channels, hidden, size, stride=stride, groups=groups, padding_mode=mode)
    with torch.no_grad():
        for name, value in layer.named_parameters():
            value.copy_(torch.randn_like(value) if value.ndim > 1 else torch.empty_like(value).uniform_(-20, 20))
            if value.ndim > 1 and rng.random() < 0.7:
                used = torch.arange(value.shape[1]) == torch.arange(len(value))[:, None] % value.shape[1]
                value *= used[:, :, None, None]
            if value.ndim > 1 and rng.random() < 0.3:
                value *= torch.empty(len(value)).uniform_(-20, 20).exp()[:, None, None, None]
            if name == "bias":
                value /= 20
    return layer, (channels, 4, 6)


def hostile_layer(rng):
    """One of the table under one of its hostile parameters."""
    entry = LAYERS[rng.choice(sorted(LAYERS))]
    layer = entry.make()
    with torch.no_grad():
        HOSTILE[rng.choice(sorted(HOSTILE))](layer)
    fit(layer)
    return layer, entry.shape


@pytest.mark.parametrize("make", [hostile_filters, hostile_layer])
def test_what_the_library_certifies_is_not_refuted(make, tmp_path):
    """Hostile networks through freeze, prove, certify and the writer: every certificate that is written holds."""
    written = 0
    for seed in range(40):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        layer, shape = make(rng)
        size = layer.double()(torch.zeros(1, *shape, dtype=torch.float64)).numel()
        inputs = torch.randn(4, *shape)
        network = nn.Sequential(layer.float(), nn.Flatten(), nn.Linear(size, rng.choice([1, 3])))
        network = network if len(shape) > 1 else nn.Sequential(network[0], network[2])
        try:
            frozen = lc.freeze(network)
            proved = prove(frozen, shape)
            with torch.no_grad():
                logits = copy.deepcopy(frozen).double()(inputs.double())
            labels = logits.argmax(dim=1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
            path = write_certificate(tmp_path / "c", proved, frozen, inputs, lc.certify(proved, inputs, labels))
        except lc.NotCertified:
            continue
        report = checker.check(path)
        assert report.ok, (seed, report.refuted)
        written += 1
    assert written > 20
