"""Prediction sets that hold the right class with a chosen probability, also if an attacker moves the input.

Run: python examples/conformal.py
Split conformal prediction: the score of a class is −f_y(x), and the set holds the classes whose score is at most
the quantile q of calibration images. If the clean image is within ε of what is seen, its f_y is at most the
upper end of `lc.output_interval`: a class belongs to the set if that end is at least −q. The images to certify
must be exchangeable with those of the calibration; nothing else is assumed.
"""

import math

import torch

import lipcert as lc

torch.manual_seed(0)
torch.set_num_threads(1)
ALPHA, EPS = 0.1, 0.5
loader = torch.utils.data.DataLoader(lc.load_data("digits", "train"), batch_size=128, shuffle=True)
model = lc.create_model("sll_nano", image_shape=(1, 8, 8))
loss_of = lc.losses.OffsetCrossEntropy(offset=0.7, temperature=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for images, labels in (batch for epoch in range(6) for batch in loader):
    optimizer.zero_grad()
    loss_of(model(images), labels).backward()
    optimizer.step()
network = lc.freeze(model.eval())

test = lc.load_data("digits", "test")
order = torch.randperm(len(test))
calibration, rest = order[:200], order[200:]
(images, labels), (clean, truth) = test[calibration], test[rest]
low, _ = lc.output_interval(network, images, radius=0.0)  # of the logits, rounding included
scores = -low.gather(1, labels[:, None])[:, 0]
rank = math.ceil((len(scores) + 1) * (1 - ALPHA))
q = float(scores.sort().values[rank - 1])


def own_logit_lowered(x, y, steps=20):
    """An attack on the sets: within ε, make f_y as small as possible."""
    moved = x.clone()
    for _ in range(steps):
        moved.requires_grad_()
        (slope,) = torch.autograd.grad(network(moved).gather(1, y[:, None]).sum(), moved)
        moved = (
            moved.detach() - EPS / 5 * slope / slope.flatten(1).norm(dim=1).clamp_min(1e-12)[:, None, None, None]
        )
        away = moved - x
        moved = (
            x
            + away
            * (0.999999 * EPS / away.flatten(1).norm(dim=1).clamp_min(1e-12)).clamp_max(1)[:, None, None, None]
        )
    return moved.detach()


def describe(name, seen, radius):
    sets = -lc.output_interval(network, seen, radius=radius)[1] <= q
    coverage = sets.gather(1, truth[:, None]).double().mean()
    print(f"{name}: coverage {coverage:.1%}, {sets.sum(dim=1).double().mean():.2f} classes in a set")
    return float(coverage)


attacked = own_logit_lowered(clean, truth)
usual = describe("usual sets, clean images", clean, 0.0)
fooled = describe("usual sets, attacked images", attacked, 0.0)
robust = describe(f"robust sets, images attacked within {EPS}", attacked, EPS)
assert robust >= usual >= fooled  # each clean set is contained in the robust set of every image within ε
