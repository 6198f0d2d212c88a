"""A network that is proved to grow in some of its inputs: f(x) = g(x) + K·Σ x_i over these inputs.

Run: python examples/monotone.py
If g is K-Lipschitz, no slope of g is below −K, so every slope of f along such an input is at least 0. A plain
network that fits the same noisy samples is not monotone.
"""

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
torch.set_num_threads(1)
K, GROWING = 3.0, torch.tensor([1.0, 1.0, 0.0])  # grows in the first two of three inputs


def samples(count):
    x = torch.rand(count, 3)
    y = x[:, 0].sqrt() + (3 * x[:, 1]).floor() / 3 + torch.sin(6 * x[:, 2]) / 2
    return x, y + 0.3 * torch.randn(count)


class Monotone(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (
            lc.OrthogonalLinear(3, 64),
            lc.layers.GroupSort(4),
            lc.OrthogonalLinear(64, 64),
            lc.layers.GroupSort(4),
        )
        self.g = nn.Sequential(*layers, lc.NormalizedHead(64, 1), lc.layers.Scale(K))

    def forward(self, x):
        return self.g(x)[:, 0] + K * (x * GROWING).sum(dim=1)


def train(network, steps=300):
    x, y = samples(150)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (network(x).flatten() - y).square().mean().backward()
        optimizer.step()
    return network.eval()


def report(name, network):
    x, y = samples(2000)
    clean = (network(x).flatten() - y).square().mean().item()
    higher = (x + torch.rand_like(x) * GROWING).clamp_max(1.0)
    falls = (network(higher).flatten() < network(x).flatten() - 1e-5).float().mean().item()
    print(
        f"{name}: mean squared error {clean:.3f} (noise 0.090), falls for {falls:.1%} of the pairs that should not"
    )
    return falls


plain = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
report("plain", train(plain))
network = train(Monotone())
constant = lc.audit(lc.freeze(network.g), (3,)).lipschitz
assert constant <= K * (1 + 1e-6)  # with K' = this constant in the sum it holds without a tolerance
assert report("monotone", network) == 0
print(f"the slope of g is proved to be at least -{constant:.6f}, and K is {K}")
