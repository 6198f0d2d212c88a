"""Joint constants in a certificate: the library writes them, the checker verifies them or does not believe them."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert import check
from lipcert.certified.certificate import write_certificate
from lipcert.certified.freeze import prove
from lipcert.certifiers import lipsdp
from lipcert.verified.ellipsoid import of_weight, through

LAYERS = {
    "relu": [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4)],
    "leaky": [nn.Linear(6, 16), nn.LeakyReLU(0.3), nn.Linear(16, 12), nn.LeakyReLU(0.3), nn.Linear(12, 4)],
    "gelu": [nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)],
    "one output": [nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)],
    "behind a residual": [lc.ResidualLinear(6, 8), nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)],
}


def certified(folder, layers, method="lipsdp"):
    torch.manual_seed(0)
    frozen, x = lc.freeze(nn.Sequential(*layers).eval()), torch.rand(30, 6)
    proved = lipsdp.tighten(prove(frozen, (6,)), method=method, steps=20)
    result = lipsdp.certify(proved, x, method=method, steps=20)
    return write_certificate(folder, proved, frozen, x, result), result, lc.certify(frozen, x)


@pytest.mark.parametrize("method", ["lipsdp", "eclipse-fast"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_checker_verifies_joint_constants(tmp_path, name, method):
    path, result, plain = certified(tmp_path, LAYERS[name], method)
    assert bool((result.radii >= plain.radii).all())
    report = check.check(path)
    assert report.ok
    assert report.verified == int((result.radii > 0).sum())
    assert any("joint" in line for line in report.lines)
    # Without the multipliers the larger radii have no proof.
    content = json.loads(path.read_text())
    del content["joint"]
    path.write_text(json.dumps(content))
    assert check.check(path).ok == bool((result.radii <= plain.radii).all())


def changed(path, change):
    content = json.loads(path.read_text())
    change(content["joint"])
    path.write_text(json.dumps(content))
    return path


def test_other_multipliers_are_not_believed(tmp_path):
    path, *_ = certified(tmp_path, LAYERS["relu"], "eclipse-fast")
    original = path.read_text()

    def scale(factor):
        def change(joint):
            joint[0][0] = [(float.fromhex(d) * factor).hex() for d in joint[0][0]]

        return change

    for factor in (0.25, 0.5, 1.5, 8.0):
        path.write_text(original)
        assert not check.check(changed(path, scale(factor))).ok


@pytest.mark.parametrize(
    "change",
    [
        lambda joint: joint[0][0].pop(),
        lambda joint: joint[0].extend(joint[0] * 3),
        lambda joint: joint[0].clear(),
        lambda joint: joint[0][0].__setitem__(0, (0.0).hex()),
        lambda joint: joint[0][0].__setitem__(0, (-1.0).hex()),
        lambda joint: joint[0][0].__setitem__(0, "nan"),
        lambda joint: joint[0][0].__setitem__(0, 1),
        lambda joint: joint.append("text"),
    ],
)
def test_multipliers_of_another_form_are_malformed(tmp_path, change):
    path, *_ = certified(tmp_path, LAYERS["relu"], "eclipse-fast")
    with pytest.raises(check.Malformed):
        check.check(changed(path, change))


def test_a_chain_in_the_middle_has_no_certificate(tmp_path):
    layers = [nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), lc.ResidualLinear(6, 8), nn.Linear(6, 3)]
    with pytest.raises(lc.NotCertified, match="last layers"):
        certified(tmp_path, layers)
    assert not list(tmp_path.iterdir())


def test_the_checker_agrees_with_the_library_on_one_step():
    rng = np.random.default_rng(0)
    for low, high in ((0.0, 1.0), (0.3, 1.0), (-0.129, 1.129), (-1.0, 1.0)):
        first, second = rng.standard_normal((20, 9)), rng.standard_normal((5, 20))
        before = of_weight(first)
        d = 2.2 * np.full(20, np.linalg.eigvalsh(before.matrix)[-1])
        ours = through(before, d, low, high, second)
        matrix, excess = check.Joint.step(*check.gram(first), d, low, high, second)
        assert np.allclose(matrix, ours.matrix, rtol=1e-6)
        assert excess < 1e-6 * np.abs(matrix).max()
        poor = check.Joint.step(*check.gram(first), 0.4 * d, low, high, second)
        assert poor[1] == math.inf
