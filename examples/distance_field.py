"""A signed distance field that never overestimates, with a proved offset to the true shape, and sphere tracing.

Run: python examples/distance_field.py
A 1-Lipschitz f has |f(x)| ≤ the distance from x to every point where f = 0. If |f| ≤ m at samples of the true
boundary, and every boundary point is within ρ of a sample, then f ≤ δ = m + ρ on the whole boundary: from x, a
step of f(x) − δ never crosses it. The shape is an L; all values are bounds that include rounding.
"""

import torch
from torch import nn

import lipcert as lc

torch.manual_seed(0)
torch.set_num_threads(1)
corners = torch.tensor([[-0.6, -0.6], [0.6, -0.6], [0.6, -0.1], [-0.1, -0.1], [-0.1, 0.6], [-0.6, 0.6]])
starts, ends = corners, corners.roll(-1, dims=0)
SAMPLES = 200  # on each edge, in the middle of equal pieces


def signed_distance(x):
    """The true one, which the network is trained on and the claims are compared with."""
    along = ends - starts
    t = ((x[:, None] - starts) * along).sum(2) / along.square().sum(1)
    nearest = starts + t.clamp(0, 1)[..., None] * along
    distance = (x[:, None] - nearest).norm(dim=2).amin(dim=1)
    u, v = x[:, 0], x[:, 1]
    inside = (u.abs() < 0.6) & (v.abs() < 0.6) & ~((u > -0.1) & (v > -0.1))
    return torch.where(inside, -distance, distance)


def group(a, b):
    return lc.OrthogonalLinear(a, b), lc.layers.GroupSort(8)


network = nn.Sequential(*group(2, 64), *group(64, 64), *group(64, 64), lc.NormalizedHead(64, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
for _ in range(400):
    x = 3 * torch.rand(512, 2) - 1.5
    optimizer.zero_grad()
    (network(x)[:, 0] - signed_distance(x)).abs().mean().backward()
    optimizer.step()
    schedule.step()
field = lc.freeze(network.eval())
constant = lc.audit(field, (2,)).lipschitz  # 1, or a rounding more


def low_and_high(x):
    low, high = lc.output_interval(field, x, radius=0.0)
    return low[:, 0] / constant - 1e-12, high[:, 0] / constant + 1e-12  # of f/L, whatever its sign


places = ((torch.arange(SAMPLES) + 0.5) / SAMPLES)[:, None, None]
boundary = (starts + places * (ends - starts)).flatten(0, 1)
covering = float((ends - starts).norm(dim=1).max()) / (2 * SAMPLES) + 1e-6  # and float32 of the samples
low, high = low_and_high(boundary)
offset = max(float(high.max()), -float(low.min())) + covering
print(f"|f| is at most {offset:.4f} on the boundary, of which {covering:.4f} lie between the samples")

x = 3 * torch.rand(5000, 2) - 1.5
low, high = low_and_high(x)
truth = signed_distance(x.double()).abs()
assert bool((torch.maximum(low, -high) - offset <= truth).all())
print(f"mean gap to the true distance: {(truth - torch.maximum(low, -high).clamp_min(0)).mean():.4f}")

# Sphere tracing: 200 rays from the right, each step shortened by the offset.
rays, hits = torch.stack([torch.full((200,), 1.4), torch.linspace(-1, 1, 200)], dim=1).double(), 0
for _ in range(200):
    step = (low_and_high(rays.float())[0] - offset - 1e-6).clamp_min(0.0)  # 1e-6: the ray in float32
    rays[:, 0] -= torch.where(rays[:, 0] > -1.4, step, 0.0)
    assert bool((signed_distance(rays) >= 0).all())
hits = int((rays[:, 0] > -1.4).sum())
print(f"{hits} of 200 rays stop before the shape; none of {200 * 200} steps crossed its boundary")
