"""Stored orthogonal matrices stay orthonormal, Adam steps along them, and training resumes bit for bit."""

import os
import signal

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.training.config import TrainConfig
from lipcert.training.loop import Stopped
from lipcert.training.manifold import POLISH_EVERY, ManifoldAdam, polished, stored_matrices, turned
from lipcert.training.optimizers import make_optimizer

CPU = torch.device("cpu")


def deviation(weight):
    q = weight.detach() if weight.shape[0] <= weight.shape[1] else weight.detach().T
    return float((q @ q.T - torch.eye(len(q))).abs().max())


def skew(size, norm, dtype=torch.float64):
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    return (matrix - matrix.T) * (norm / (matrix - matrix.T).norm())


@pytest.mark.parametrize("norm", [1e-6, 0.049, 0.2, 0.9, 3.0])
@pytest.mark.parametrize("rows", [2, 6])
def test_a_turn_is_nearly_an_exponential(norm, rows):
    """The first term left out is at most ‖A‖ᵏ⁺¹/(k + 1)!: 2.1e-5 at 0.05, 1.7e-4 at 0.25, 8.4e-3 at 1."""
    q = torch.linalg.qr(torch.randn(6, rows, dtype=torch.float64)).Q.T
    found, exact = turned(q, skew(6, norm)), q @ torch.linalg.matrix_exp(skew(6, norm))
    order = 2 if norm < 0.05 else 3 if norm < 0.25 else 4
    left_out = 1e-14 if norm > 1 else norm ** (order + 1) / (2 * order) + 1e-15
    assert (found - exact).norm() <= left_out
    if norm > 0.01 and norm < 1:
        assert (found - exact).norm() > 0  # or matrix_exp would have been taken


def test_a_polish_squares_the_deviation():
    q = torch.linalg.qr(torch.randn(8, 5, dtype=torch.float64)).Q.T
    away = q * (1 + 1e-3)
    assert torch.allclose(polished(away), q, atol=2e-6, rtol=0)
    assert (polished(away) - q).abs().max() < 2e-3 * (away - q).abs().max()


def test_the_gradient_is_that_along_orthonormal_matrices():
    """d/dt f(Q exp(tA)) = ⟨∇f, QA⟩, although no gradient is taken through T, which is I there."""
    torch.manual_seed(0)
    layer = lc.OrthogonalLinear(5, 5, method="stored").double()
    x, target = torch.randn(7, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    start, direction, h = layer.weight.detach().clone(), skew(5, 1.0), 1e-5

    def loss(t):
        with torch.no_grad():
            layer.weight.copy_(start @ torch.linalg.matrix_exp(t * direction))
        return (layer(x) * target).sum()

    slope = (loss(h) - loss(-h)).item() / (2 * h)
    loss(0.0).backward()
    assert (layer.weight.grad * (start @ direction)).sum().item() == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 9), (9, 4)])
def test_a_step_is_adams_turned_along_the_matrix(n, m):
    """To first order it is the part of Adam's step that a skew matrix makes."""
    torch.manual_seed(1)
    layer = lc.OrthogonalLinear(m, n, method="stored", bias=False).double()
    plain = nn.Parameter(layer.weight.detach().clone())
    rate = 1e-7
    ours = make_optimizer(layer, TrainConfig(learning_rate=rate), CPU)
    adam = torch.optim.Adam([plain], rate, (0.5, 0.9))
    for _ in range(3):
        before, gradient = layer.weight.detach().clone(), torch.randn(n, m, dtype=torch.float64)
        layer.weight.grad, plain.grad = gradient.clone(), gradient.clone()
        plain.data.copy_(before)
        ours.step()
        adam.step()
        q, delta = (before, plain.detach() - before) if n <= m else (before.T, (plain.detach() - before).T)
        expected = q @ (q.T @ delta - delta.T @ q) / 2
        moved = (layer.weight.detach() - before) if n <= m else (layer.weight.detach() - before).T
        assert (moved - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3])
def test_matrices_stay_orthonormal_at_any_rate(rate):
    torch.manual_seed(2)
    model = nn.Sequential(*[lc.OrthogonalLinear(a, b, method="stored") for a, b in ((8, 8), (8, 12), (12, 5))])
    optimizer = make_optimizer(model, TrainConfig(learning_rate=rate), CPU)
    assert isinstance(optimizer, ManifoldAdam)
    for _ in range(5 * POLISH_EVERY):
        optimizer.zero_grad()
        model(torch.randn(16, 8)).pow(3).sum().backward()
        optimizer.step()
    # ‖A‖_F < 1 makes angles of at most 1/√2, whose series leaves their sixth power by 72; a polish leaves
    # ¾ of the square of what eight of them do.
    assert max(map(deviation, stored_matrices(model))) <= 0.75 * (POLISH_EVERY / 8 / 72) ** 2


def test_other_parameters_move_as_with_adam():
    torch.manual_seed(3)
    model = nn.Sequential(lc.OrthogonalLinear(4, 4, method="stored"), nn.Linear(4, 3))
    other = nn.Parameter(model[1].weight.detach().clone())
    ours = make_optimizer(model, TrainConfig(learning_rate=0.01), CPU)
    adam = torch.optim.Adam([other], 0.01, (0.5, 0.9))
    for _ in range(3):
        gradient = torch.randn(3, 4)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        model[1].weight.grad, other.grad = gradient, gradient.clone()
        ours.step()
        adam.step()
    assert torch.allclose(model[1].weight, other, rtol=1e-5, atol=1e-7)


def test_with_muon_each_parameter_has_its_own_step():
    torch.manual_seed(4)
    model = nn.Sequential(
        lc.ResidualConv2d(4, 3, 3),
        nn.Flatten(),
        lc.OrthogonalLinear(16, 6, method="stored"),
        lc.NormalizedHead(6, 3),
    )
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", learning_rate=0.05), CPU)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 4, 2, 2)).pow(3).sum().backward()
        optimizer.step()
    assert all((p - old).norm() > 0 for p, old in zip(model.parameters(), before, strict=True))
    assert max(map(deviation, stored_matrices(model))) <= 1e-5
    assert "mean" in optimizer.state[model[0].weight]
    assert "mean" not in optimizer.state[model[2].weight]


def test_a_frozen_network_is_divided_by_what_its_matrices_exceed():
    """A user's own optimizer leaves the manifold: the layer stays 1-Lipschitz, and so does what is frozen."""
    torch.manual_seed(5)
    layer = lc.OrthogonalLinear(6, 6, method="stored")
    with torch.no_grad():
        layer.weight.add_(torch.randn(6, 6))
    assert torch.linalg.matrix_norm(layer.weight, 2) > 1.5
    assert 0.9 < torch.linalg.matrix_norm(layer.scaled_weight(), 2) <= 1 + 1e-6
    frozen, x = lc.freeze(nn.Sequential(layer)), torch.randn(4, 6)
    assert torch.allclose(frozen(x), layer(x), atol=1e-5)
    assert lc.audit(frozen, (6,)).backbone <= 1


def test_training_resumes_bit_for_bit_and_what_it_makes_is_certified_and_checked(tmp_path):
    config = lc.TrainConfig(model="lipnext_nano", data="digits", steps=12, learning_rate=0.003, threads=1, ema=0.9)

    def interrupt(step):
        if step.step == 5:
            os.kill(os.getpid(), signal.SIGINT)

    whole = lc.train(config, tmp_path / "whole")
    with pytest.raises(Stopped):
        lc.train(config, tmp_path / "half", show=interrupt)
    half = lc.train(config, tmp_path / "half", resume=True)
    assert half.model_file.read_bytes() == whole.model_file.read_bytes()
    assert half.frozen_file.read_bytes() == whole.frozen_file.read_bytes()
    half.certify(examples=20)
    half.check()
