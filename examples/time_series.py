"""Train, certify and save a network of your own on time series: tensors in, a run folder out.

Run: python examples/time_series.py
Two classes of noisy signals of two channels: the second channel follows the first one, or leads it.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
time = torch.linspace(0, 1, 64)


def signals(count):
    labels = torch.randint(2, (count,))
    frequency, phase = 1 + 2 * torch.rand(count, 1), 2 * torch.pi * torch.rand(count, 1)
    lag = 0.8 * (2 * labels[:, None] - 1)
    angle = 2 * torch.pi * frequency * time + phase
    series = torch.stack([angle.sin(), (angle + lag).sin()], dim=1)
    return series + 0.1 * torch.randn_like(series), labels  # (N, 2, 64) and (N,)


network = nn.Sequential(
    lc.layers.PadChannels(16),
    lc.ResidualConv1d(16, 32, kernel_size=9),
    lc.ResidualConv1d(16, 32, kernel_size=9),
    nn.Flatten(),
    lc.ResidualLinear(1024, 64),
    lc.NormalizedHead(1024, 2),
)
config = lc.TrainConfig(epochs=6, batch_size=64, offset=0.7, temperature=0.1, threads=1)
with TemporaryDirectory() as folder:
    run = lc.train(network, Path(folder) / "run", data=(signals(1000), signals(200)), config=config)
    run.certify()
    assert lc.verify(run.folder).ok
    print(f"accuracy {run.natural:.1%}, certified within 0.5: {run.certified(0.5):.1%}")
