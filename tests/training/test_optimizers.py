"""Muon: its direction is nearly orthogonal, its step relative to the weight, and it resumes bit for bit."""

import pytest
import torch

import lipcert as lc
from lipcert.training.config import TrainConfig
from lipcert.training.optimizers import RELATIVE_STEP, Muon, make_optimizer, orthogonal

CPU = torch.device("cpu")


def trained(steps, resume_at=None):
    """The weights of a small network after some steps; the optimizer is stored and built anew at ``resume_at``."""
    torch.manual_seed(0)
    config = TrainConfig(optimizer="muon", learning_rate=0.02)
    model = lc.create_model("sll_nano", image_shape=(3, 8, 8))
    optimizer = make_optimizer(model, config, CPU)
    inputs, labels = torch.rand(32, 3, 8, 8), torch.arange(32) % 10
    losses = []
    for step in range(steps):
        if step == resume_at:
            kept = optimizer.state_dict()
            optimizer = make_optimizer(model, config, CPU)
            optimizer.load_state_dict(kept)
        loss = torch.nn.functional.cross_entropy(4 * model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model.state_dict(), losses


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (16, 16), (1, 9)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_the_direction_is_nearly_that_of_the_polar_factor(shape, scale):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = orthogonal(scale * matrix).double()
    assert ((torch.linalg.svdvals(found) - 0.95).abs() < 0.3).all()
    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    cosine = (found * (left @ right)).sum() / (found.norm() * (left @ right).norm())
    assert cosine > 0.97


def test_a_zero_gradient_moves_nothing():
    assert torch.equal(orthogonal(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_steps_are_relative_to_the_weight_and_adam_takes_the_rest():
    torch.manual_seed(0)
    model = lc.create_model("sll_nano", image_shape=(3, 8, 8))
    optimizer = make_optimizer(model, TrainConfig(optimizer="muon", learning_rate=0.01), CPU)
    assert isinstance(optimizer, Muon)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(torch.rand(4, 3, 8, 8)).square().sum().backward()
    optimizer.step()
    kernels = [name for name, p in model.named_parameters() if p.ndim == 4]
    assert len(kernels) == 4
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).norm()
        if name in kernels:
            assert moved == pytest.approx(float(RELATIVE_STEP * 0.01 * before[name].norm()), rel=1e-4)
        else:
            assert moved > 0


def test_it_learns_and_resumes_bit_for_bit():
    whole, losses = trained(12)
    parts, _ = trained(12, resume_at=5)
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_model_without_residual_convolutions_is_refused():
    with pytest.raises(ValueError, match="for residual convolutions, and this model has none"):
        make_optimizer(lc.create_model("sll_table"), TrainConfig(optimizer="muon"), CPU)
