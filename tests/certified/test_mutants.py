"""Every mutant of ``tests/mutants.py`` gets the right verdict, and none is certified at the constant it claims.

A mutant that is not wrong would test nothing: each must violate its claim by evidence of its own.
"""

import functools
import math
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

import lipcert as lc
import mutants
from lipcert.certified import ops
from lipcert.certified.freeze import prove
from lipcert.certified.lower import stretch_estimate
from lipcert.verified.rounding import U32, U64
from mutants import MUTANTS, RADII, TAMPERINGS
from paths import ROOT

ROUNDING = 1e-12  # singular values of matrices with fewer than 100 rows, in float64
PAGE, TABLES = ROOT / "docs" / "mutants.md", ROOT / "results" / "mutants.md"


@functools.cache
def results():
    with tempfile.TemporaryDirectory() as folder:
        return mutants.page(Path(folder))


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[m.build.__name__ for m in MUTANTS])
def test_the_audit_gives_the_right_verdict(index):
    row = results()[0][index]
    one, case = row.mutant, row.case
    if one.sound:
        assert case.truth <= case.claimed * (1 + ROUNDING)
    else:
        assert case.truth > case.claimed * (1 + 1e-9), "a mutant that is not wrong tests nothing"
    assert row.verdict == one.verdict
    assert row.lower <= row.upper
    if row.verdict in ("NotCertified", "UNKNOWN"):
        assert row.upper == math.inf
    else:
        assert row.upper >= case.truth * (1 - ROUNDING)
        assert (row.upper <= case.claimed) is one.sound
    if row.verdict == "REFUTED":
        assert row.lower > case.claimed


@pytest.mark.parametrize("index", range(len(MUTANTS)), ids=[m.build.__name__ for m in MUTANTS])
def test_the_checker_accepts_what_is_proved_and_refutes_what_is_claimed(index):
    row = results()[0][index]
    if row.checker is None:  # nothing finite is proved
        assert row.upper == math.inf
    else:
        assert row.checker == ("accepts", "accepts" if row.mutant.sound else "refutes")


@pytest.mark.parametrize("name", mutants.NOT_INSIDE)
def test_no_residual_op_takes_an_activation_by_another_name(name):
    weight, one = torch.eye(4), torch.ones(4)
    makers = (
        lambda: ops.ResidualLinear(weight, one, None, None, name),
        lambda: ops.ResidualConv(weight[:, :, None, None], one, None, None, name, *mutants.PIXEL),
        lambda: ops.ResidualCircular(*mutants.in_waves(weight[:, :, None, None], (2, 2)), one, None, name),
    )
    for make in makers:
        with pytest.raises(lc.NotCertified, match="activation"):
            make()


@pytest.mark.parametrize("one", MUTANTS, ids=[m.build.__name__ for m in MUTANTS])
def test_certify_uses_the_proved_constant_or_refuses(one):
    torch.manual_seed(0)
    case = one.build()
    try:
        network = mutants.network_of(case)
    except (RuntimeError, ValueError):
        return  # MaxMin across a batch of one
    images, labels = torch.rand(2, *case.shape), torch.zeros(2, dtype=torch.long)
    if one.verdict in ("NotCertified", "UNKNOWN") or math.isinf(results()[0][MUTANTS.index(one)].upper):
        with pytest.raises(lc.NotCertified):
            lc.certify(network, images, labels)
    else:
        assert lc.certify(network, images, labels).lipschitz >= case.truth * (1 - ROUNDING)


@pytest.mark.parametrize("index", range(len(TAMPERINGS)), ids=[t.name for t in TAMPERINGS])
def test_tampered_certificates(index):
    name, verdict = results()[1][index]
    assert (name, verdict) == (TAMPERINGS[index].name, TAMPERINGS[index].verdict)


@pytest.mark.parametrize("name", RADII)
def test_radii_are_those_of_all_rivals(name):
    network, x, label, claimed, true = RADII[name]()
    assert not claimed <= true
    radius = mutants.certified(network, x, label)
    assert true * (1 - 1e-6) <= radius <= true
    if radius > 0:  # and just outside, the answer does change
        rows = network.weight.double()
        logits = network.double()(x.double())[0]
        quotients = [(logits[label] - logits[j]) / (rows[label] - rows[j]).norm() for j in range(1, len(rows))]
        j = 1 + int(torch.stack(quotients).argmin())
        step = (rows[j] - rows[label]) / (rows[j] - rows[label]).norm()
        assert int(network(x.double() + true * (1 + 1e-9) * step).argmax()) == j


def test_the_page_is_what_the_table_says_now():
    rows, tampered, radii = results()
    for path, mark, text in ((PAGE, "counts", mutants.counts), (TABLES, "mutants", mutants.table)):
        shown = (
            path.read_text(encoding="utf-8").split(f"<!-- {mark}:begin -->\n")[1].split(f"\n<!-- {mark}:end -->")[0]
        )
        assert shown == text(rows, tampered, radii), "run python benchmarks/mutants.py --docs docs/mutants.md"


def test_every_row_is_in_one_group_of_the_page():
    rows = results()[0]
    assert {mutants.outcome(row) for row in rows} == set(mutants.GROUPS)


def test_every_known_mistake_has_a_row():
    sources = ", ".join([m.source for m in MUTANTS] + [name.split("(")[1].strip(")") for name in RADII])
    assert {int(word) for word in sources.split(", ") if word.isdigit()} == set(range(1, 19))


# --- What these mutants have found, so that it stays found ---


def test_a_lower_bound_never_exceeds_an_upper_one_however_large_the_bias():
    layer = nn.Linear(4, 3).double()
    layer.weight.data *= 1e-3
    layer.bias.data.fill_(1e10)
    (found,) = lc.audit(layer, (4,)).layers
    assert found.lower <= found.upper
    linear = layer.weight.detach()
    assert stretch_estimate(lambda x: x @ linear.T + 1e10, torch.rand(2, 4)).ratio <= found.upper


@pytest.mark.parametrize("module", [nn.ReLU(inplace=True), nn.LeakyReLU(0.2, inplace=True)])
def test_modules_that_work_in_place_change_nothing_of_the_caller(module):
    x = torch.randn(4, 3).double()
    kept = x.clone()
    assert lc.audit(nn.Sequential(module, nn.Linear(3, 2)), x).ok
    lc.certify(nn.Sequential(module, nn.Linear(3, 2)), x, torch.zeros(4, dtype=torch.long))
    assert torch.equal(x, kept)
    assert module.inplace


@pytest.mark.parametrize(
    "module",
    [nn.Flatten(0), nn.Unflatten(0, (1, -1)), nn.Unflatten(0, (2, -1)), nn.MaxPool1d(2, return_indices=True)],
)
def test_modules_that_do_not_map_examples_to_tensors_are_refused(module):
    with pytest.raises(lc.NotCertified):
        lc.audit(nn.Sequential(module), (2, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_weights_are_the_numbers_they_are(dtype):
    layer = nn.Linear(6, 4).to(dtype)
    (found,) = lc.audit(layer, (6,)).layers
    exact = mutants.norm(layer.weight.detach())
    assert exact * (1 - ROUNDING) <= found.upper <= exact * (1 + 1e-6)


def test_float32_bounds_cover_the_rounding_of_float64_tensors_and_factors():
    x = torch.rand(64, 1) + 0.5
    for factor in torch.rand(40, dtype=torch.float64).tolist():
        layer = nn.Linear(1, 1).double()
        layer.weight.data.fill_(factor)
        layer.bias.data.fill_(factor / 3)
        for module in (lc.layers.Scale(factor), layer):
            exact = x.double() * factor + (factor / 3 if module is layer else 0.0)
            (one,) = prove(module, (1,), dtype=torch.float32).parts
            off = (one.forward(x).double() - exact).abs().flatten()
            assert bool((off <= one.proof.error_bound(x[:, 0].double(), U32)).all())


def test_values_that_may_overflow_have_no_error_bound():
    """−3e38 − 3e38 + 4e38 + 4e38 is −∞ in one order of adding, and ReLU makes it 0: finite and wrong."""
    for u, huge in ((U32, 2.0**61), (U64, 2.0**501)):
        one = prove(nn.ReLU(), (1,)).parts[0].proof
        assert float(one.error_bound(torch.tensor([huge], dtype=torch.float64), u)) == math.inf
        assert float(one.error_bound(torch.tensor([huge / 4], dtype=torch.float64), u)) == 0.0
    network = nn.Sequential(
        mutants.linear(torch.ones(2, 4)), nn.ReLU(), mutants.linear(torch.tensor([[1.0, 0], [0, 0]]))
    )
    x = torch.tensor([[-3e38, -3e38, 4e38 / 1.2, 4e38 / 1.2]])
    answer = lc.FilteredClassifier(network, (4,))(x)
    assert bool(answer.fell_back[0])


class Inherits(nn.Linear):
    """What a parametrised layer of another library looks like: a constructor and a method of its own."""

    def __init__(self):
        super().__init__(3, 2)

    def export(self):
        return None


class Property(nn.Linear):
    @property
    def weight(self):
        return torch.zeros(2, 3)


class Overrides(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Calls(nn.Linear):
    def __call__(self, x):
        return 2 * super().__call__(x)


def test_a_subclass_is_what_it_inherits_only_if_it_replaces_nothing():
    layer = Inherits()
    assert lc.audit(layer, (3,)).layers[0].upper >= mutants.norm(layer.weight.detach()) * (1 - ROUNDING)
    assert type(layer) is Inherits
    hidden = nn.Linear(3, 2)
    hidden.__class__ = Property
    for other, factor in ((Overrides(3, 2), 2), (Calls(3, 2), 2), (hidden, 0)):  # what they do is traced
        truth = factor * mutants.norm(next(other.parameters()).detach())
        assert lc.audit(other, (3,)).lipschitz >= truth * (1 - ROUNDING)
        assert (lc.audit(other, (3,)).lipschitz == 0) is (factor == 0)


@pytest.mark.parametrize("bound", ["aol", "sll", "spectral"])
def test_a_certificate_of_a_tight_convolution_can_be_checked(bound, tmp_path):
    """Row sums are exact for positive kernels; the checker, which has a grid instead, must get there too."""
    layer = lc.AffineConv2d(1, 2, 3, padding=1, bound=bound)
    layer.weight.data.abs_()
    network = lc.freeze(nn.Sequential(layer, nn.Flatten(), lc.NormalizedHead(32, 3)))
    assert mutants.exit_code(mutants.write(tmp_path / "c", network, (1, 4, 4))) == 0
