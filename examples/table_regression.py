"""Predict a number from a table and bound it: how far can the prediction move if the inputs are a little wrong?

Run: python examples/table_regression.py
The columns have units of their own. They are standardized inside the network, whose constant 1/min(std) is
counted, so a radius is in the units of the table. The target is known here, so that the bound can be compared.
"""

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
torch.set_num_threads(1)
CENTER, SPREAD = torch.tensor([20.0, 1.0, 50.0]), torch.tensor([8.0, 0.3, 20.0])  # °C, bar, % humidity


def table(count):
    """Density of moist air, in kg/m³, from temperature, pressure and humidity."""
    rows = CENTER + SPREAD * (2 * torch.rand(count, 3) - 1)
    kelvin, pascal = rows[:, 0] + 273.15, rows[:, 1] * 1e5
    vapor = rows[:, 2] / 100 * 611.2 * torch.exp(17.62 * rows[:, 0] / (243.12 + rows[:, 0]))
    return rows, (pascal - vapor) / (287.05 * kelvin) + vapor / (461.5 * kelvin)


x, y = table(2000)
standardize = lc.layers.Normalize(x.mean(dim=0), x.std(dim=0))
network = nn.Sequential(
    standardize,
    lc.layers.PadChannels(32),
    lc.ResidualLinear(32, 64),
    lc.ResidualLinear(32, 64),
    lc.NormalizedHead(32, 1),
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(300):
    part = torch.randint(len(x), (256,))
    optimizer.zero_grad()
    (network(x[part])[:, 0] - y[part]).square().mean().backward()
    optimizer.step()

frozen = lc.freeze(network.eval())
x, y = table(1000)
error = (frozen(x)[:, 0] - y).abs().mean()
radius = 0.01  # together: 0.01 °C, or 0.01 bar, or 0.01 % of humidity
low, high = lc.output_interval(frozen, x, radius=radius)
moved = x + radius * torch.nn.functional.normalize(torch.randn_like(x), dim=1) * 0.9999
assert bool(((low <= frozen(moved)) & (frozen(moved) <= high)).all())
print(f"mean error {error:.4f} kg/m³; the constant of the standardization is {standardize.proved_constant():.3f}")
print(f"inputs wrong by at most {radius} move the prediction by at most {(high - low).mean() / 2:.4f} kg/m³")
