"""Audit and certify a network that is written in plain PyTorch, without a layer of lipcert.

Run: python examples/own_network.py
The audit proves the constant of every layer. Nothing keeps these constants near 1, as the layers of lipcert would.
"""

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
train, test = lc.load_data("digits", "train"), lc.load_data("digits", "test")

network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
for _ in range(200):
    batch = torch.randint(len(train), (128,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(train.inputs()[batch]), train.labels[batch]).backward()
    optimizer.step()

frozen = lc.freeze(network.eval())
report = lc.audit(frozen, (1, 8, 8))
print(report)  # lower and upper bound of the constant of every layer
result = lc.certify(frozen, test.inputs(), test.labels)
print(f"natural accuracy {result.natural_accuracy:.1%}, median radius {result.radii.median():.4f}")
