"""What a certificate may cost: small files must not take gigabytes or hours, and real networks must fit."""

import hashlib
import json
import math
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lipcert import check as checker
from lipcert.cli.check import Check
from test_check import Draft, draft_of, set_layer, verdict

ONE = (1.0).hex()
MEGABYTE = 2**20
# It limits the memory that is allocated, not what is mapped: a sparse file may be large.
MEASURE = """
import re, resource, sys
from pathlib import Path
from lipcert import check

def used(what):
    return int(re.search(what + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

limit = used("VmData") + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    report = check.check(sys.argv[1])
    print("ok" if report.ok else report.refuted[0])
except check.Malformed as error:
    print(error)
"""


def check_within(path, megabytes):
    """What the checker says, in a process that may allocate so much more than it starts with."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    command = [sys.executable, "-c", MEASURE, str(path), str(megabytes * MEGABYTE)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def write(folder, layers, tensors, shape, claims=(), count=1, images=None, **top):
    """A certificate of given layers; the tensors are files of zeros, sparse on the disk, or arrays."""
    images = np.zeros((count, *shape), np.uint8) if images is None else images
    draft = Draft(0, shape, images, None)
    draft.layers, draft.tensors = layers, tensors
    draft.top.update(
        assumes=[],
        input_shape=list(shape),
        weights="weights.safetensors",
        layers=layers,
        lipschitz=ONE,
        inputs={"file": "inputs.safetensors", "tensor": "images", "divide_by": None, "count": count, "about": ""},
        claims=[list(claim) for claim in claims],
        probe={"indices": [], "logits": []},
    )
    draft.top.update(top)
    return draft.save(folder)


def layer(op, lipschitz=1.0, **fields):
    return {"op": op, "name": "", "lipschitz": lipschitz.hex(), **fields}


def conv(weight, **options):
    return layer("conv", weight=weight, bias=None, groups=1, **{"stride": [1, 1], "padding": [0, 0], **options})


def refusal(path, **options):
    start = time.perf_counter()
    with pytest.raises(checker.Malformed) as error:
        checker.check(path, **options)
    assert time.perf_counter() - start < 20
    assert "\n" not in str(error.value)
    return str(error.value)


# --- Memory ---


def test_a_tensor_costs_its_size_once_however_many_layers_name_it(tmp_path):
    """4 MB of means and 400 layers: 3.2 GB if each keeps a copy, and as much again for its ones."""
    mean = np.full(2**20, 2.0**-10, np.float32)
    layers = [layer("centre", mean="mean") for _ in range(400)]
    layers.append(layer("take_channels", first=0, count=2))
    path = write(tmp_path / "c", layers, {"mean": mean}, (2**20,))
    assert check_within(path, 600) == "ok"


def test_a_kernel_costs_its_size_once_however_many_layers_name_it(tmp_path):
    """The same with a convolution, which wants its taps in another order; here a claim is evaluated, too."""
    channels = 2**17
    weight = np.zeros((4, channels, 1, 3), np.float32)
    weight[range(4), range(4), 0, 1] = 0.9999
    layers = []
    for _ in range(50):
        layers.append(conv("weight", padding=[0, 1], padding_mode="circular"))
        layers.append(layer("pad_channels", channels=channels))
    layers += [layer("take_channels", first=0, count=1), layer("flatten")]
    images = np.zeros((1, channels, 1, 3), np.float32)
    images[0, 0, 0, 0] = 1.0
    path = write(tmp_path / "c", layers, {"weight": weight}, images.shape[1:], [(0, 0, (0.5).hex())], images=images)
    assert check_within(path, 600) == "ok"


def test_shapes_are_compared_before_a_tensor_is_converted(tmp_path):
    """3 GB that take 4 KB on the disk: a weight is not loaded if it does not fit its input or is too large."""
    one = layer("linear", weight="weight", bias=None)
    for shape, expected in (((1, 2**25), "on an input"), ((1, 3 * 2**28), "entries")):
        path = write(tmp_path / "c", [one], {"weight": np.zeros((1, 2), np.float32)}, (2,))
        nbytes = 4 * math.prod(shape)
        header = {"weight": {"dtype": "F32", "shape": list(shape), "data_offsets": [0, nbytes]}}
        text = json.dumps(header).encode()
        with (tmp_path / "c" / "weights.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + nbytes)
        if nbytes < 2**28:  # with the hash that it should have, which takes seconds for 3 GB
            content = json.loads(path.read_text())
            whole = hashlib.sha256(f"float32|{shape[0]},{shape[1]}|".encode() + bytes(nbytes)).hexdigest()
            path.write_text(json.dumps(content | {"tensors": {"weight": whole}}))
        answer = check_within(path, 200)
        assert expected in answer
        assert str(shape[1]) in answer.replace(",", "")


def test_all_tensors_together_have_a_limit(tmp_path, monkeypatch):
    path = draft_of("sll").save(tmp_path / "c")
    total = sum(array.size for array in draft_of("sll").tensors.values())
    monkeypatch.setattr(checker, "TOTAL", total)
    assert checker.check(path).ok
    monkeypatch.setattr(checker, "TOTAL", total - 1)
    assert f"{total:,}" in refusal(path)
    assert checker.check(path, allow=2).ok


def test_large_images_are_refused_before_anything_is_computed(tmp_path):
    """1.2 KB of JSON and a pixel, padded to 8000 × 8000; then a circular convolution of as many frequencies."""
    image, weight = np.ones((1, 1, 1, 1), np.uint8), np.full((1, 1, 3, 3), 0.1, np.float32)
    large = layer("pad_image", multiple=8000)
    circular = conv("weight", padding=[1, 1], padding_mode="circular")
    for layers, tensors in (([large], {}), ([large, circular], {"weight": weight})):
        path = write(tmp_path / "c", [*layers, layer("flatten")], tensors, (1, 1, 1), images=image)
        answer = refusal(path)
        assert "64,000,000" in answer
        assert "--allow 4" in answer


def test_the_number_of_layers_has_a_limit(tmp_path):
    """64 MB of JSON with 780,000 layers are not read at all, and 16 MB are not built."""
    path = write(tmp_path / "c", [layer("abs")], {}, (2,))
    content = json.loads(path.read_text())
    content["layers"] = [layer("abs")] * 780_000
    path.write_text(json.dumps(content))
    assert "size in bytes" in refusal(path)
    content["layers"] = content["layers"][:190_000]
    path.write_text(json.dumps(content))
    answer = refusal(path)
    assert "190,000" in answer
    assert "--allow 19" in answer
    assert "--allow 19" in refusal(path, allow=18)


# --- Work ---


def work_of(path):
    """(the estimate before the first proof, what was counted in the end)."""
    budget = checker.Budget()
    certificate = checker.read(path, budget)
    plans = checker.plan_all(certificate, checker.Tensors(certificate.weights), budget)
    estimate = checker.other_work(certificate, plans) + sum(plan.prepare + plan.proof for plan in plans)
    checker.verify(certificate, budget)
    return estimate, budget.spent


def test_the_work_has_a_limit_that_a_flag_raises(tmp_path, monkeypatch, capsys):
    path = draft_of("conv").save(tmp_path / "c")
    estimate, spent = work_of(path)
    assert estimate <= spent <= 3 * estimate
    monkeypatch.setattr(checker, "WORK", estimate // 5)
    answer = refusal(path)
    assert "multiply-adds" in answer
    assert f"{estimate // 5:,}" in answer
    assert verdict(path, capsys) == 2
    needed = -(-spent // (estimate // 5))
    assert checker.main([str(path), "--allow", str(needed)]) == 0
    assert checker.check(path, allow=needed).ok
    assert Check(path).run() == 2
    assert Check(path.parent, allow=needed).run() == 0
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Check(path, allow=0).run()


def test_a_finer_grid_is_counted_when_it_is_needed(tmp_path, monkeypatch):
    """The estimate has the coarsest grid of a convolution; finer ones must fit as well, before they are begun."""
    draft = Draft(0, [2, 6, 6], np.ones((3, 2, 6, 6), np.float32), None)
    draft.conv(3, slack=1.0001).add("flatten", shape=(108,)).finish()
    path = draft.save(tmp_path / "c")
    estimate, spent = work_of(path)
    assert spent > 2 * estimate
    monkeypatch.setattr(checker, "WORK", (estimate + spent) // 2)
    assert "multiply-adds" in refusal(path)


EXPENSIVE = {
    # One weight of 4096 × 4096 in a thousand layers: a thousand Cholesky factors.
    "dense proofs": lambda: (
        [layer("linear", weight="w", bias=None)] * 1000,
        {"w": np.zeros((4096, 4096), np.float32)},
        (4096,),
    ),
    # Kernels of 100 × 100 have 20,000 lags.
    "lags": lambda: (
        [
            layer(
                "residual_conv",
                **{"weight": "w", "bias": None, "gamma": "g", "witness": "q", "activation": "relu", "groups": 1},
                **{"stride": [1, 1], "padding": [0, 0], "padding_mode": "zeros"},
            )
        ]
        * 100,
        {"w": np.zeros((16, 16, 100, 100), np.float32), "g": np.zeros(16, np.float32), "q": np.ones(16)},
        (16, 100, 100),
    ),
    # 4000 × 4000 frequencies, a thousand times.
    "circular frequencies": lambda: (
        [layer("pad_image", multiple=4000)] + [conv("w", padding=[1, 1], padding_mode="circular")] * 1000,
        {"w": np.zeros((1, 1, 3, 3), np.float32)},
        (1, 1, 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_proofs_are_refused_before_the_first_one(name, tmp_path):
    layers, tensors, shape = EXPENSIVE[name]()
    path = write(tmp_path / "c", [*layers, layer("flatten")], tensors, shape)
    assert "multiply-adds" in refusal(path)


def test_many_claims_about_a_large_input_are_refused(tmp_path):
    """A thousand cheap layers on 4000 × 4000 pixels: each claim would take minutes."""
    layers = [layer("pad_image", multiple=4000), *[layer("abs")] * 1000, layer("flatten")]
    claims = [(i, 0, ONE) for i in range(100)]
    path = write(tmp_path / "c", layers, {}, (1, 1, 1), claims, count=100)
    assert "multiply-adds" in refusal(path)


def test_a_mean_is_work_in_each_layer(tmp_path):
    layers = [layer("centre", mean="mean")] * 1000
    path = write(tmp_path / "c", layers, {"mean": np.zeros(1000, np.float32)}, (1000,))
    estimate, spent = work_of(path)
    assert 1000 * 1000 * checker.MOVE <= estimate == spent


def test_hashing_is_work(tmp_path, monkeypatch):
    path = draft_of("affine").save(tmp_path / "c")
    monkeypatch.setattr(checker, "HASH", 2**40)
    assert "multiply-adds" in refusal(path)


def test_comparing_exactly_is_work(tmp_path, monkeypatch):
    """Claims that rounding cannot decide are compared in rational numbers, which takes long."""
    draft = draft_of("sll")
    for claim in draft.top["claims"]:
        claim[2] = (100.0).hex()
    path = draft.save(tmp_path / "c")
    assert checker.check(path).verified == 0
    monkeypatch.setattr(checker, "EXACT", 2**60)
    assert "multiply-adds" in refusal(path)


def test_the_product_of_many_constants_is_fast(tmp_path):
    """Exact, with a numerator of half a million bits: as one Fraction after the other it would take an hour."""
    factor = 1 + 2.0**-52
    layers = [layer("scale", factor, factor=factor.hex()) for _ in range(9_990)]
    start = time.perf_counter()
    for lipschitz, code in ((1 + 1e-10, 0), (1 + 1e-12, 1)):
        assert verdict(write(tmp_path / "c", layers, {}, (2,), lipschitz=lipschitz.hex())) == code
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "", "9" * 30])
def test_the_flag_needs_a_positive_integer(text, tmp_path, capsys):
    path = draft_of("affine").save(tmp_path / "c")
    with pytest.raises(SystemExit) as error:
        checker.main([str(path), "--allow", text])
    assert error.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


# --- What must fit ---


def residual(op, n, m, tensors, *sides, **options):
    """A residual layer of that size, its tensors without memory."""
    name = f"t{len(tensors)}"
    for key, shape, dtype in (("weight", (n, m, *sides), "f4"), ("gamma", (n,), "f4"), ("witness", (n,), "f8")):
        tensors[f"{name}.{key}"] = np.broadcast_to(np.zeros((), dtype), shape)
    named = {key: f"{name}.{key}" for key in ("weight", "gamma", "witness")}
    return layer(op, **named, bias=None, activation="relu", **options)


def paper_network(channels, convolutions, dense, hidden=2048):
    """The layers of sll_small (45, 20, 7), sll_xlarge (120, 70, 15) and the like on CIFAR-10."""
    tensors = {}
    options = {"stride": [1, 1], "padding": [1, 1], "padding_mode": "zeros", "groups": 1}
    layers = [layer("pad_channels", channels=channels)]
    layers += [residual("residual_conv", 5, channels, tensors, 3, 3, **options) for _ in range(convolutions)]
    layers += [layer("sum_pool", kernel=[4, 4], factor=(0.25).hex()), layer("flatten")]
    layers += [residual("residual_linear", hidden, 64 * channels, tensors) for _ in range(dense)]
    tensors["head"] = np.broadcast_to(np.float32(0), (10, 64 * channels))
    return [*layers, layer("linear", weight="head", bias=None)], tensors


@pytest.mark.parametrize(
    ("sizes", "claims", "share"),
    [((45, 20, 7), 10_000, 0.5), ((120, 70, 15), 500, 0.5), ((70, 120, 15, 4096), 500, 0.5)],
    ids=["sll_small", "sll_xlarge", "sll_table3_xlarge"],
)
def test_the_networks_of_the_paper_fit(sizes, claims, share):
    layers, tensors = paper_network(*sizes)
    images = np.broadcast_to(np.uint8(0), (claims, 3, 32, 32))
    certificate = checker.Certificate(
        **{
            "assumes": [],
            "shape": (3, 32, 32),
            "weights": tensors,
            "hashes": {},
            "layers": layers,
            "lipschitz": 1.0,
        },
        **{
            "images": images,
            "images_hash": "",
            "divide": True,
            "claims": [(i, i % 10, 1.0) for i in range(claims)],
        },
        **{"asked": [0, 1, 2, 3], "answers": [[0.0] * 10] * 4},
    )
    budget = checker.Budget()
    plans = checker.plan_all(certificate, checker.Tensors(tensors), budget)
    work = checker.other_work(certificate, plans) + sum(plan.prepare + plan.proof for plan in plans)
    assert work <= share * checker.WORK
    assert sum(tensor.size for tensor in tensors.values()) <= 0.75 * checker.TOTAL
    assert max(tensor.size for tensor in tensors.values()) <= 0.5 * checker.ENTRIES


# --- Inputs ---


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_no_claim_and_no_probe_is_about_an_input_that_is_not_finite(value, tmp_path, capsys):
    """Neither NaN nor an infinity is close to anything. Inputs without a claim may be anything."""
    images = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 1.0]], np.float32)
    layers = [layer("take_channels", first=0, count=1)]
    claims = [(0, 1, (0.5).hex()), (2, 1, (0.5).hex())]
    probe = {"indices": [2], "logits": [[(3.0).hex()]]}
    for row, code in ((0, 2), (1, 0), (2, 2)):
        odd = images.copy()
        odd[row, 1] = value  # the coordinate that the network does not read
        path = write(tmp_path / "c", layers, {}, (2,), claims, 3, odd, probe=probe)
        assert verdict(path, capsys) == code
        if code:
            assert f"input {row} " in refusal(path)
    path = write(tmp_path / "c", layers, {}, (2,), claims[:1], 3, odd, probe=probe)
    assert "input 2 " in refusal(path)
    path = write(tmp_path / "c", layers, {}, (2,), claims[:1], 3, odd)
    assert verdict(path, capsys) == 0


def test_a_refused_layer_is_named(tmp_path):
    draft = draft_of("sll")
    set_layer("pad_channels", channels=2 * 10**7)(draft)
    answer = refusal(draft.save(tmp_path / "c"))
    assert "layer 3 (pad_channels)" in answer
    assert f"{32 * 10**7:,}" in answer
    assert "--allow 20" in answer
