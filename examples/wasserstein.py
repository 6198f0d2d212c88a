"""A proved lower bound of the Wasserstein distance between two samples, beside the exact distance.

Run: python examples/wasserstein.py
For every 1-Lipschitz f, mean f(a) − mean f(b) is at most W₁ (Kantorovich and Rubinstein). Here f is a trained
critic with a proved constant, and the means are taken of bounds that include rounding, so the value is never above.
The exact distance is that of the best assignment, if scipy is installed.
"""

import math

import torch
from torch import nn

import lipcert as lc

torch.set_num_threads(1)
N = 1000


def moons():
    angle, noise = torch.pi * torch.rand(2, N), 0.05 * torch.randn(2, N, 2)
    upper = torch.stack([angle[0].cos(), angle[0].sin()], dim=1)
    lower = torch.stack([1 - angle[1].cos(), 0.5 - angle[1].sin()], dim=1)
    return upper + noise[0], lower + noise[1]


def mixtures():
    centers = torch.tensor([[[-2.0, 0.0], [2.0, 0.0]], [[0.0, 2.0], [0.0, -2.0]]])
    return tuple(centers[k][torch.randint(2, (N,))] + 0.4 * torch.randn(N, 2) for k in (0, 1))


def shifted_digits():
    images = lc.load_data("digits", "train").inputs()[: 2 * N].flatten(1)
    return images[: len(images) // 2], images[len(images) // 2 :].unflatten(1, (8, 8)).roll(1, dims=2).flatten(1)


def critic(inputs, width=64, layers=3):
    widths = [inputs] + [width] * (layers - 1)
    hidden = [module for size in widths for module in (lc.OrthogonalLinear(size, width), lc.layers.GroupSort(8))]
    return nn.Sequential(*hidden, lc.NormalizedHead(width, 1))


def train(a, b, steps):
    network = critic(a.shape[1])
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (network(b).mean() - network(a).mean()).backward()
        optimizer.step()
        schedule.step()
    return lc.freeze(network.eval())


def proved_lower_bound(network, a, b):
    """(mean of lower bounds at a − mean of upper bounds at b) / L, rounded down."""
    constant = lc.audit(network, a).lipschitz
    low, high = lc.output_interval(network, a, radius=0.0)[0], lc.output_interval(network, b, radius=0.0)[1]
    difference = math.fsum(low[:, 0].tolist()) / len(a) - math.fsum(high[:, 0].tolist()) / len(b)
    return difference / constant * (1 - 1e-12) - 1e-12


def exact(a, b):
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        return math.nan
    costs = torch.cdist(a.double(), b.double(), compute_mode="donot_use_mm_for_euclid_dist")
    return float(costs[linear_sum_assignment(costs.numpy())].mean())


for name, samples, steps in (("moons", moons, 350), ("mixtures", mixtures, 350), ("digits", shifted_digits, 200)):
    torch.manual_seed(0)
    a, b = samples()
    bound, distance = proved_lower_bound(train(a, b, steps), a, b), exact(a, b)
    assert not bound > distance
    print(f"{name}: W1 >= {bound:.4f}; exact {distance:.4f}; reached {bound / distance:.2%}")
