"""Every loss is its formula, written again here in numpy loops, and obeys the laws and limits of that formula."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import lipcert as lc
from lipcert.certified.radius import certified_radii
from lipcert.losses import (
    EMMA,
    HKR,
    KR,
    CertificateRegularized,
    GloRo,
    GloRoTrades,
    LogitAnnealing,
    MarginBoosting,
    MultiMargin,
)

OffsetCrossEntropy = lc.losses.OffsetCrossEntropy
CLASSES = 5
EPSILONS = [0.1, 0.4, 0.9, 0.0, 2.0]  # one per class


def log_softmax(z):
    return z - z.max() - math.log(np.exp(z - z.max()).sum())


def cross_entropy(z, y):
    return -log_softmax(z)[y]


def averaged(one):
    """A loss of the batch from the loss of one example; the constants K are √2 unless given."""

    def batch(f, y, k=None):
        k = np.full((f.shape[1],) * 2, math.sqrt(2)) if k is None else k
        return np.mean([one(f[n], y[n], k[y[n]]) for n in range(len(y))])

    return batch


def offset_by_hand(offset, tau):
    def one(f, y, _):
        shifted = f.copy()
        shifted[y] -= offset
        return tau * cross_entropy(shifted / tau, y)

    return averaged(one)


def multi_margin_by_hand(margin, power):
    return averaged(
        lambda f, y, _: sum(max(0, margin - f[y] + f[j]) ** power for j in range(len(f)) if j != y) / len(f)
    )


def boosting_by_hand(weight):
    def one(f, y, _):
        rivals = [cross_entropy(-f, j) for j in range(len(f)) if j != y]
        return cross_entropy(f, y) + weight * np.mean(rivals)

    return averaged(one)


def annealing_one(f, y, offset, tau, beta):
    shifted = f.copy()
    shifted[y] -= offset
    p = math.exp(log_softmax(shifted / tau)[y])
    return -tau * (1 - p) ** beta * math.log(p)


def annealing_by_hand(offset, tau, beta):
    return averaged(lambda f, y, _: annealing_one(f, y, offset, tau, beta))


def emma_by_hand(epsilons, floor, inner=cross_entropy):
    def one(f, y, k):
        z = f.copy()
        for j in range(len(f)):
            reach = 0.0 if j == y else epsilons[j] * k[j]
            share = 0.0 if reach == 0 else min(1.0, max(floor, (f[y] - f[j]) / reach))
            z[j] = f[j] - f[y] + share * reach
        return inner(z, y)

    return averaged(one)


def certificate_by_hand(gamma):
    def one(f, y, k):
        radius = min((f[y] - f[j]) / k[j] for j in range(len(f)) if j != y)
        return cross_entropy(f, y) - gamma * max(0.0, radius)

    return averaged(one)


def gloro_by_hand(epsilon, one):
    """``one`` of the logits with f_⊥ at their end, and the label."""

    def batch(f, y, k=None):
        k = np.full((f.shape[1],) * 2, math.sqrt(2)) if k is None else k
        values = []
        for n in range(len(y)):
            j = int(np.argmax(f[n]))
            bottom = max(f[n, i] + epsilon * k[i, j] for i in range(f.shape[1]) if i != j)
            values.append(one(np.append(f[n], bottom), y[n]))
        return np.mean(values)

    return batch


def divergence(z):
    """KL([softmax f, 0] ‖ softmax [f, f_⊥]), term by term."""
    p, q = np.exp(log_softmax(z[:-1])), np.exp(log_softmax(z))
    return sum(a * math.log(a / b) for a, b in zip(p, q[:-1], strict=True) if a > 0)


def kr_by_hand(f, y, _=None):
    total = 0.0
    for k in range(f.shape[1]):
        inside = [f[n, k] for n in range(len(y)) if y[n] == k]
        outside = [f[n, k] for n in range(len(y)) if y[n] != k]
        if inside and outside:
            total += np.mean(inside) - np.mean(outside)
    return -total / f.shape[1]


def hkr_by_hand(alpha, margin):
    def batch(f, y, _=None):
        classes, hinge = f.shape[1], 0.0
        for n in range(len(y)):
            for k in range(classes):
                side, weight = (1, classes - 1) if k == y[n] else (-1, 1)
                hinge += weight * max(0.0, margin / 2 - side * f[n, k]) / (classes * len(y))
        return (1 - alpha) * kr_by_hand(f, y) + alpha * hinge

    return batch


LOSSES = {
    "offset": (lambda: OffsetCrossEntropy(1.3, 0.25), offset_by_hand(1.3, 0.25)),
    "multi-margin": (lambda: MultiMargin(0.7), multi_margin_by_hand(0.7, 1)),
    "multi-margin-squared": (lambda: MultiMargin(0.7, power=2), multi_margin_by_hand(0.7, 2)),
    "boosting": (lambda: MarginBoosting(0.8), boosting_by_hand(0.8)),
    "annealing": (LogitAnnealing, annealing_by_hand(2.0, 0.75, 5.0)),
    "annealing-half": (lambda: LogitAnnealing(0.5, 0.3, 0.5), annealing_by_hand(0.5, 0.3, 0.5)),
    "emma": (lambda: EMMA(0.6), emma_by_hand([0.6] * 200, 0.01)),
    "emma-bronet": (
        lambda: EMMA(0.6, loss=LogitAnnealing()),
        emma_by_hand([0.6] * 200, 0.01, lambda z, y: annealing_one(z, y, 2.0, 0.75, 5.0)),
    ),
    "gloro": (lambda: GloRo(0.6), gloro_by_hand(0.6, cross_entropy)),
    "gloro-trades": (
        lambda: GloRoTrades(0.6, 1.7),
        gloro_by_hand(0.6, lambda z, y: cross_entropy(z[:-1], y) + 1.7 * divergence(z)),
    ),
    "certificate": (lambda: CertificateRegularized(0.3), certificate_by_hand(0.3)),
    "kr": (KR, kr_by_hand),
    "hkr": (lambda: HKR(0.9, 0.6), hkr_by_hand(0.9, 0.6)),
}
WITH_PAIRS = ["emma", "emma-bronet", "gloro", "gloro-trades", "certificate"]
every_loss = pytest.mark.parametrize("name", LOSSES)


def batch(examples=12, classes=CLASSES, scale=1.0):
    logits = scale * torch.randn(examples, classes, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(classes, (examples,))


def constants(classes=CLASSES):
    return lc.NormalizedHead(7, classes).double().pairwise_bound()


def check(loss, by_hand, logits, labels, *pairwise):
    expected = by_hand(logits.detach().numpy(), labels.numpy(), *(k.numpy() for k in pairwise))
    value = loss(logits, labels, *pairwise)
    assert value.shape == ()
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)  # a few hundred roundings of numbers ~ 1


@every_loss
@pytest.mark.parametrize(("examples", "classes"), [(12, 5), (9, 2), (1, 3), (30, 200)])
@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_loss_is_its_formula(name, examples, classes, scale):
    make, by_hand = LOSSES[name]
    check(make(), by_hand, *batch(examples, classes, scale))


@pytest.mark.parametrize("name", WITH_PAIRS)
def test_constants_are_taken_per_pair(name):
    make, by_hand = LOSSES[name]
    check(make(), by_hand, *batch(), constants())
    logits, labels = batch()
    torch.testing.assert_close(make()(logits, labels), make()(logits, labels, torch.tensor(math.sqrt(2))))
    assert make()(logits, labels, 0.3) != make()(logits, labels)


def test_emma_takes_one_epsilon_per_class_and_a_new_one_later():
    loss = EMMA(torch.tensor(EPSILONS, dtype=torch.float64))
    check(loss, emma_by_hand(EPSILONS, 0.01), *batch(), constants())
    loss.epsilon = 0.2
    check(loss, emma_by_hand([0.2] * CLASSES, 0.01), *batch(), constants())


@every_loss
def test_gradient_is_that_of_the_value(name):
    logits, labels = batch()
    loss = LOSSES[name][0]()
    if name.startswith(
        "emma"
    ):  # ρ is held constant, so the value with ρ frozen at this point is what is differentiated
        _check_emma_gradient(loss, logits, labels)
    else:
        assert torch.autograd.gradcheck(lambda f: loss(f, labels), (logits,))


def _check_emma_gradient(loss, logits, labels):
    rivals, k = 1 - F.one_hot(labels, CLASSES).double(), constants().requires_grad_()

    def margins(f):
        return f.gather(1, labels[:, None]) - f

    share = (margins(logits) / (0.6 * k[labels])).clamp(0.01, 1).detach()

    def frozen(f, k):
        return loss.loss(share * 0.6 * k[labels] * rivals - margins(f), labels)

    assert torch.autograd.gradcheck(frozen, (logits, k))
    ours = torch.autograd.grad(loss(logits, labels, k), (logits, k))
    for one, other in zip(ours, torch.autograd.grad(frozen(logits, k), (logits, k)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def test_the_certificate_pulls_the_rows_of_the_head_apart():
    """K in the denominator carries a gradient, also on the zero diagonal of a distance matrix."""
    head = lc.NormalizedHead(7, CLASSES).double()
    x, labels = torch.randn(40, 7, dtype=torch.float64), torch.randint(CLASSES, (40,))
    for loss in (EMMA(0.3), CertificateRegularized(0.5)):
        head.zero_grad()
        rows = head.rows()
        distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
        loss(head(x), labels, distances).backward()
        assert torch.isfinite(head.weight.grad).all()
        alone = torch.autograd.grad(loss(head(x), labels, head.pairwise_bound()), head.weight)[0]
        assert not torch.allclose(head.weight.grad, alone)


# Limits: each loss is a known simpler one at an end of its parameters.


def test_offset_cross_entropy_has_its_limits():
    logits, labels = batch()
    plain = OffsetCrossEntropy(offset=0.0, temperature=1.0)
    torch.testing.assert_close(plain(logits, labels), F.cross_entropy(logits, labels), rtol=1e-14, atol=0)
    # As τ → 0 the loss is the violated margin, max_j(f_j + offset·[j ≠ y]) − f_y, within τ·log C.
    hard = OffsetCrossEntropy(offset=1.3, temperature=1e-4)
    own = F.one_hot(labels, CLASSES).bool()
    margin = ((logits + 1.3 * ~own).amax(dim=1) - logits[own]).mean()
    assert margin <= hard(logits, labels) <= margin + 1e-4 * math.log(CLASSES)


def test_the_others_have_their_limits():
    logits, labels = batch()
    entropy = F.cross_entropy(logits, labels)

    def same(loss, value, *pairwise):
        torch.testing.assert_close(loss(logits, labels, *pairwise), value, rtol=1e-13, atol=1e-14)

    same(LogitAnnealing(1.3, 0.25, beta=0.0), OffsetCrossEntropy(1.3, 0.25)(logits, labels))
    same(MarginBoosting(0.0), entropy)
    same(CertificateRegularized(0.0), entropy)
    same(EMMA(0.0), entropy)
    same(EMMA(0.6), entropy, 0.0)
    same(EMMA(0.6, floor=1.0), OffsetCrossEntropy(0.6 * 1.5, 1.0)(logits, labels), 1.5)
    same(HKR(0.0), KR()(logits, labels))
    same(MultiMargin(0.4), torch.nn.MultiMarginLoss(margin=0.4)(logits, labels))
    gain = entropy - CertificateRegularized(0.2)(logits, labels)
    same(CertificateRegularized(0.2, loss=MultiMargin()), MultiMargin()(logits, labels) - gain)


def test_the_regularizer_is_the_mean_certified_radius():
    logits, labels = batch(60)
    k = constants()
    k[0, 2] = k[2, 0] = 0.0  # a rival that cannot come back bounds no radius
    gain = F.cross_entropy(logits, labels) - CertificateRegularized(1.0)(logits, labels, k)
    torch.testing.assert_close(gain, certified_radii(logits, labels, k).mean(), rtol=1e-12, atol=1e-14)


def test_a_rival_within_reach_ties_with_the_label():
    """All margins smaller than ε·K: every rival is raised to a tie, and the loss is log C."""
    logits = torch.tensor([[1.0, 0.9, 0.5, 0.2]], dtype=torch.float64)
    assert EMMA(2.0)(logits, torch.tensor([0])).item() == pytest.approx(math.log(4), rel=1e-14)


# Laws.

INVARIANT = [name for name in LOSSES if name != "hkr"]


@pytest.mark.parametrize("name", INVARIANT)
def test_only_differences_of_logits_matter(name):
    logits, labels = batch()
    loss = LOSSES[name][0]()
    assert loss(logits + 7.5, labels).item() == pytest.approx(loss(logits, labels).item(), rel=1e-11, abs=1e-12)
    gradient = torch.autograd.grad(loss(logits, labels), logits)[0]
    assert gradient.sum(dim=0 if name == "kr" else 1).abs().max() < 1e-14


def test_hkr_has_its_boundary_at_zero():
    logits, labels = batch()
    assert abs(HKR()(logits + 7.5, labels) - HKR()(logits, labels)) > 1


@every_loss
def test_a_larger_margin_never_costs(name):
    logits, labels = batch(40)
    loss = LOSSES[name][0]()
    raised = torch.autograd.grad(loss(logits, labels), logits)[0][F.one_hot(labels, CLASSES).bool()]
    assert (raised <= 1e-15).all()
    assert (raised < 0).any()
    better = logits + 0.5 * F.one_hot(labels, CLASSES)
    if not name.startswith(
        "emma"
    ):  # its shares ρ grow with the margin: the value stays at a tie while the margin grows
        assert loss(better, labels) < loss(logits, labels)


@every_loss
def test_classes_and_examples_have_no_order(name):
    logits, labels = batch(20)
    loss = LOSSES[name][0]()
    order, names = torch.randperm(20), torch.randperm(CLASSES)
    shuffled = loss(logits[order][:, names], names.argsort()[labels[order]])
    assert shuffled.item() == pytest.approx(loss(logits, labels).item(), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("name", [name for name in LOSSES if "kr" not in name])
def test_loss_is_a_mean_over_the_batch(name):
    """So two processes with half the batch each train as one: not KR and HKR, whose means are of classes."""
    logits, labels = batch(16)
    loss = LOSSES[name][0]()
    halves = (loss(logits[:8], labels[:8]) + loss(logits[8:], labels[8:])) / 2
    torch.testing.assert_close(loss(logits, labels), halves, rtol=1e-13, atol=1e-14)


# The binary case.


def test_one_logit_is_a_pair_of_opposite_ones():
    f, labels = torch.randn(15, 1, dtype=torch.float64), torch.arange(15) % 2
    for loss in (KR(), HKR(0.7, 0.8)):
        torch.testing.assert_close(loss(f, labels), loss(torch.cat([-f, f], dim=1), labels), rtol=1e-13, atol=0)
    sign = 2.0 * labels - 1
    gap = f[labels == 1].mean() - f[labels == 0].mean()
    torch.testing.assert_close(KR()(f, labels), -gap, rtol=1e-13, atol=0)
    by_hand = -0.3 * gap + 0.7 * F.relu(0.4 - sign * f[:, 0]).mean()
    torch.testing.assert_close(HKR(0.7, 0.8)(f, labels), by_hand, rtol=1e-13, atol=0)
    assert torch.autograd.gradcheck(lambda v: HKR(0.7, 0.8)(v, labels), (f.clone().requires_grad_(),))


def test_two_classes_boost_to_a_multiple_of_cross_entropy():
    logits, labels = batch(9, 2)
    torch.testing.assert_close(MarginBoosting(0.5)(logits, labels), 1.5 * F.cross_entropy(logits, labels))


def test_kr_estimates_a_wasserstein_distance():
    """Two clouds one shift d apart: f(x) = x is optimal and the estimate is d."""
    x = torch.randn(50, 1, dtype=torch.float64)
    both, labels = torch.cat([x, x + 3.0]), torch.arange(100) // 50
    assert KR()(both, labels).item() == pytest.approx(-3.0, rel=1e-13)


def test_a_class_without_examples_or_alone_adds_nothing_to_kr():
    logits = torch.randn(6, 4, requires_grad=True)
    assert KR()(logits, torch.full((6,), 2)) == 0
    gradient = torch.autograd.grad(KR()(logits, torch.tensor([0, 0, 1, 1, 0, 1])), logits)[0]
    assert (gradient[:, 2:] == 0).all()
    assert (gradient[:, :2] != 0).all()


# Hostile logits.

HOSTILE = {
    "ties": torch.zeros(4, CLASSES),
    "won by far": 1e4 * F.one_hot(torch.arange(4), CLASSES),
    "lost by far": -1e4 * F.one_hot(torch.arange(4), CLASSES),
    "extremes": 1e4 * torch.tensor([[1.0, -1.0, 1.0, -1.0, 0.0]]).repeat(4, 1),
    "equal and huge": torch.full((4, CLASSES), 1e4),
    "tiny": 1e-30 * torch.arange(4 * CLASSES).view(4, CLASSES),
}


@every_loss
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_value_and_gradient_are_finite(name, hostile, dtype):
    logits = HOSTILE[hostile].to(dtype, copy=True).requires_grad_()
    value = LOSSES[name][0]()(logits, torch.arange(4))
    value.backward()
    assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.isfinite(value)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", WITH_PAIRS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_constants_of_zero_do_no_harm(name, hostile):
    k = torch.zeros(CLASSES, CLASSES)
    k[0, 1] = k[1, 0] = 1e-12
    logits = HOSTILE[hostile].to(torch.float32, copy=True).requires_grad_()
    for pairwise in (k, torch.zeros(CLASSES, CLASSES)):
        value = LOSSES[name][0]()(logits, torch.arange(4), pairwise)
        assert torch.isfinite(value)
        assert torch.isfinite(torch.autograd.grad(value, logits)[0]).all()


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0, 5.0])
def test_annealing_fades_out_smoothly(beta):
    """At p = 1 exactly the gradient is 0 for every β, where a power of 0 would give NaN."""
    logits = torch.tensor([[300.0, 0.0], [40.0, 0.0], [0.0, 0.0]], requires_grad=True)
    LogitAnnealing(0.0, 1.0, beta)(logits, torch.tensor([0, 0, 0])).backward()
    assert (logits.grad[0] == 0).all()
    assert torch.isfinite(logits.grad).all()


@every_loss
def test_loss_copies_shows_itself_and_has_no_state(name):
    loss = LOSSES[name][0]()
    logits, labels = batch()
    assert copy.deepcopy(loss)(logits, labels) == loss(logits, labels)
    assert not list(loss.parameters())
    assert not loss.state_dict()
    assert type(loss).__name__ in repr(loss)
    assert loss(logits, labels.to(torch.uint8)) == loss(logits, labels)


def test_settings_are_shown():
    assert repr(MultiMargin(0.25, 2)) == "MultiMargin(margin=0.25, power=2)"
    assert "epsilon=[0.5, 0.25]" in repr(EMMA(torch.tensor([0.5, 0.25])))


# Messages: expected, got, cure.


@every_loss
def test_bad_batches_are_refused(name):
    loss = LOSSES[name][0]()
    logits, labels = batch(6)
    for bad, message in [
        ((logits[0], labels), r"logits \(N, C\).*got \(5,\)"),
        ((logits, F.one_hot(labels, CLASSES)), r"got \(6, 5\) and \(6, 5\).*argmax"),
        ((logits, labels[:4]), r"got \(6, 5\) and \(4,\)"),
        ((logits[:0], labels[:0]), r"N ≥ 1.*got \(0, 5\)"),
        ((logits, labels.double()), r"integer labels; got torch.float64 and torch.float64.*long\(\)"),
        ((logits.long(), labels), r"floating-point logits.*got torch.int64"),
        ((logits, labels.clamp_max(3) - 4), r"from 0 to 4 .*got -4 to -?\d"),
        ((logits, labels + 5), r"from 0 to 4 .*got \d+ to \d+.*from 0"),
    ]:
        with pytest.raises(ValueError, match=f"(?s){message}"):
            loss(*bad)
    if "kr" in name:
        with pytest.raises(ValueError, match=r"from 0 to 1 for logits of shape \(6, 1\); got 2 to 2"):
            loss(logits[:, :1], torch.full((6,), 2))
    else:
        with pytest.raises(ValueError, match="C ≥ 2"):
            loss(logits[:, :1], torch.zeros(6).long())


@pytest.mark.parametrize("name", WITH_PAIRS)
def test_bad_constants_are_refused(name):
    loss = LOSSES[name][0]()
    for bad, message in [
        (torch.ones(3, 3), r"\(5, 5\).*got \(3, 3\).*pairwise_bound"),
        (torch.ones(5), r"got \(5,\)"),
        (-torch.ones(5, 5), "from -1 to -1"),
        (torch.full((5, 5), math.nan), "from nan"),
        (-1.0, "pairwise must be a finite number of at least 0; got -1.0"),
        ("1", "got '1'"),
    ]:
        with pytest.raises(ValueError, match=f"(?s){message}"):
            loss(*batch(), bad)


REFUSED = [
    (lambda: OffsetCrossEntropy(offset=-1.0), r"offset must be at least 0 .*got -1.0"),
    (lambda: LogitAnnealing(temperature=0.0), r"temperature above 0; got"),
    (lambda: LogitAnnealing(beta=-1), r"beta must be a finite number of at least 0; got -1. BRONet uses 5"),
    (lambda: MultiMargin(math.nan), r"margin must be .*got nan.*√2"),
    (lambda: MultiMargin(power=3), r"power must be 1 or 2; got 3"),
    (lambda: MarginBoosting(True), r"weight must be .*got True"),
    (lambda: EMMA(-0.1), r"epsilon must be .*got -0.1.*36/255"),
    (lambda: EMMA("0.1"), r"epsilon must be .*got '0.1'"),
    (lambda: EMMA(torch.ones(2, 2)), r"\(C,\) of them.*got shape \(2, 2\)"),
    (lambda: EMMA(torch.tensor([0.1, math.inf])), r"finite.*inf"),
    (lambda: EMMA(torch.ones(3))(*batch()), r"\(5,\) of them, one per class; got shape \(3,\)"),
    (lambda: EMMA(0.1, floor=1.5), r"floor must be a finite number from 0 to 1; got 1.5"),
    (lambda: CertificateRegularized(-0.1), r"gamma must be .*got -0.1"),
    (lambda: GloRo(-1.0), r"epsilon must be .*got -1.0.*36/255"),
    (lambda: GloRoTrades(0.1, -1.0), r"weight must be .*got -1.0"),
    (lambda: HKR(alpha=100), r"alpha must be a finite number from 0 to 1; got 100.*λ/\(1 \+ λ\)"),
    (lambda: HKR(margin=-1), r"margin must be .*got -1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_settings_are_refused_with_a_cure(call, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        call()
