"""Mistakes of published LipSDP code, each on the smallest network that shows it, and what lipcert does instead.

The matrix inequality of LipSDP, for slopes in [α, β], a multiplier T, ρ = L² and one hidden layer f = wᵀσ(Vx), is
[[ρI + 2αβVᵀTV, −(α + β)VᵀT], [−(α + β)TV, 2T − wwᵀ]] ⪰ 0. All numbers here are exact.
"""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import nn

import lipcert as lc


def lipsdp_matrix(v, w, t, rho, low=Fraction(0), high=Fraction(1), keep_product=True):
    """The block matrix for one input, in rational numbers; V is a column."""
    n = len(v)
    tv = [sum(t[i][j] * v[j] for j in range(n)) for i in range(n)]
    corner = rho + 2 * low * high * sum(v[i] * tv[i] for i in range(n)) * keep_product
    side = [-(low + high) * value for value in tv]
    return [[corner, *side]] + [[side[i], *(2 * t[i][j] - w[i] * w[j] for j in range(n))] for i in range(n)]


def semidefinite(matrix):
    """Exactly, for a matrix with no zero pivot."""
    rows = [list(row) for row in matrix]
    while rows:
        head = rows[0]
        if head[0] <= 0:
            return False
        rows = [[row[j] - row[0] * head[j] / head[0] for j in range(1, len(head))] for row in rows[1:]]
    return True


def network(v, w, bias, activation=None):
    first, last = nn.Linear(1, len(v)), nn.Linear(len(v), 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[float(value)] for value in v]))
        first.bias.copy_(torch.tensor(bias))
        last.weight.copy_(torch.tensor([[float(value) for value in w]]))
    return nn.Sequential(first, activation or nn.ReLU(), last).eval()


def stretched(model, x, y):
    a, b = (model.double()(torch.tensor([[value]], dtype=torch.float64)).item() for value in (x, y))
    model.float()
    return abs(a - b) / abs(x - y)


def test_multipliers_that_couple_neurons_are_false():
    """LipSDP-Network: T = Σ λ_i e_ie_iᵀ + λ_12(e_1 − e_2)(e_1 − e_2)ᵀ proves L² = 2e-4 of a slope of 1."""
    v, w, small = [1, 1], [1, -1], Fraction(1, 10**4)
    coupled = [[small + Fraction(1, 2), -Fraction(1, 2)], [-Fraction(1, 2), small + Fraction(1, 2)]]
    assert semidefinite(lipsdp_matrix(v, w, coupled, rho=Fraction(2, 10**4)))
    model = network(v, w, [0.0, -1.0])  # relu(x) − relu(x − 1)
    assert stretched(model, 0.0, 1.0) == 1.0
    # Two neurons with the same input change by the same amount, (1, 1), and may have the slopes 1 and 0.
    before, after = np.array([1, 1]), np.array([1, 0])
    couple = np.array([[1, -1], [-1, 1]])
    assert 2 * after @ couple @ before - 2 * after @ couple @ after < 0
    assert lc.audit(model, (1,), method="lipsdp").lipschitz >= 1


def test_dropping_the_product_of_slopes_is_false():
    """Without 2αβVᵀTV, x ↦ hardswish(x), with slopes in [−½, 3/2], has "L = 1"; it has slope 1.5."""
    v, w, t = [1], [1], [[Fraction(1)]]
    low, high, rho = Fraction(-1, 2), Fraction(3, 2), Fraction(101, 100)
    assert semidefinite(lipsdp_matrix(v, w, t, rho, low, high, keep_product=False))
    assert not semidefinite(lipsdp_matrix(v, w, t, rho, low, high))
    model = network(v, w, [0.0], nn.Hardswish())
    assert stretched(model, 2.99, 3.0) > 1.49
    assert lc.audit(model, (1,), method="eclipse-fast").lipschitz >= 1.5


def test_a_smallest_eigenvalue_of_minus_1e_8_is_no_proof():
    """A solver's answer that is accepted at −1e-8 proves L = 0, and so every radius, of x ↦ relu(1e-8·x)."""
    v, w, t = [Fraction(1, 10**8)], [1], [[Fraction(1, 2)]]
    claimed = lipsdp_matrix(v, w, t, rho=Fraction(0))
    assert -1e-8 <= np.linalg.eigvalsh(np.array(claimed, float))[0] < 0
    model = network(v, w, [0.0])
    assert stretched(model, 0.0, 1.0) > 0.99e-8
    report = lc.audit(model, (1,), method="lipsdp")
    assert report.lipschitz >= 1e-8 * (1 - 1e-6)
    with torch.no_grad():
        model[0].bias.fill_(-1.0)
    radius = float(lc.certify(model.double(), torch.zeros(1, 1).double(), torch.tensor([0]), method="lipsdp").radii)
    assert radius < math.inf
