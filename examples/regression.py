"""Predict a number and bound it: an interval that holds for every input within a given L2 distance.

Run: python examples/regression.py
The inputs are signals of 32 samples, the answer is their mean energy. The network is 1-Lipschitz, so the
interval is twice as wide as the distance (and a little for rounding), and no input in the ball leaves it.
"""

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
time = torch.linspace(0, 1, 32)


def signals(count):
    frequency, amplitude = 1 + 5 * torch.rand(count, 1), torch.rand(count, 1)
    values = amplitude * torch.sin(2 * torch.pi * frequency * time)
    return values[:, None], values.square().mean(dim=1)  # (N, 1, 32) and (N,)


network = nn.Sequential(
    lc.layers.PadChannels(8),
    lc.ResidualConv1d(8, 16, kernel_size=5),
    nn.Flatten(),
    lc.ResidualLinear(256, 64),
    lc.NormalizedHead(256, 1),
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(200):
    inputs, targets = signals(128)
    optimizer.zero_grad()
    (network(inputs)[:, 0] - targets).square().mean().backward()
    optimizer.step()

frozen = lc.freeze(network.eval())
inputs, targets = signals(500)
low, high = lc.output_interval(frozen, inputs, radius=0.05)
answers = frozen(inputs)
assert (low <= answers).all()
assert (answers <= high).all()
print(f"mean error {(answers[:, 0] - targets).abs().mean():.3f}")
print(f"mean width of the interval for inputs within 0.05: {(high - low).mean():.3f}")
