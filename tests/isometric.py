"""Certificates on a network with nothing to spare: 27 layers, each an isometry but for rounding.

Thirteen residual layers with all neurons active (reflections), an orthogonal matrix after each, and ten logits. The
margin over a rival falls by ‖w_y − w_j‖ per unit along one direction, so a radius that is too long can be broken.
Float32 margins over the constant, the naive certificates, mostly are: they err by more than what lies between the
last point inside and the first outside.

The full run, more than 10,000 tries: python tests/isometric.py --out results/isometric.json
``test_isometric.py`` has a short one, and this one with LIPCERT_FULL=1.
"""

import argparse
import copy
import json
import math
import os
import platform
import time
from pathlib import Path

import torch
from torch import nn

import lipcert as lc
from lipcert.certified import ops

COMMAND = "python tests/isometric.py --out results/isometric.json"
WIDTH, HIDDEN, CLASSES, PAIRS = 64, 24, 10, 13
FULL = (1000, 24)  # inputs, tries for each
SHRINK = 1e-4  # a naive certificate made shorter by this share
INSIDE = 1 - 2.0**-40  # how near to the sphere float64 points are tried


def orthonormal(rows, columns, generator):
    return torch.linalg.qr(torch.randn(columns, rows, generator=generator, dtype=torch.float64)).Q.T.contiguous()


def isometric_network(seed=0):
    """26 isometries and a head; every bias keeps its neurons active for inputs of norm up to 30."""
    generator, layers = torch.Generator().manual_seed(seed), []
    for _ in range(PAIRS):
        weight = (orthonormal(HIDDEN, WIDTH, generator) * (1 - 2.0**-22)).float()
        gamma, bias = torch.ones(HIDDEN), torch.full((HIDDEN,), 40.0)
        layers.append(ops.ResidualLinear(weight, gamma, bias, None, "relu"))
        turn = (orthonormal(WIDTH, WIDTH, generator) * (1 - 2.0**-22)).float()
        shift = 2 * weight.double().T @ bias.double()  # what the reflection moved the origin by, taken back
        layers.append(ops.Linear(turn, (turn.double() @ shift).float()))
    return nn.Sequential(*layers, ops.Linear(orthonormal(CLASSES, WIDTH, generator).float(), None)).eval()


def near_boundary(network, count, seed=1):
    """(float32 inputs, labels) whose distance to the nearest other class is from 1e-3 to 1, evenly by logarithm."""
    generator = torch.Generator().manual_seed(seed)
    wide = copy.deepcopy(network).double()
    x = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64)
    labels = wide(x).argmax(dim=1)
    radius, direction = exact_radii(wide, x, labels)
    goal = torch.minimum(radius, 10 ** (-3 * torch.rand(count, generator=generator, dtype=torch.float64)))
    return (x + (radius - goal)[:, None] * direction).float(), labels


@torch.enable_grad()
def exact_radii(wide, x, labels):
    """The distance to the nearest other class and the direction towards it: the network is affine around x."""
    base = x.clone().requires_grad_()
    logits = wide(base)
    best, towards = torch.full((len(x),), math.inf, dtype=torch.float64), torch.zeros_like(x)
    for j in range(CLASSES):
        margin = logits.gather(1, labels[:, None])[:, 0] - logits[:, j]
        (slope,) = torch.autograd.grad(margin.sum(), base, retain_graph=True)
        length = slope.norm(dim=1)
        radius = torch.where(labels == j, math.inf, margin.detach() / length.clamp_min(1e-300))
        nearer = radius < best
        best = torch.where(nearer, radius, best)
        towards = torch.where(nearer[:, None], -slope / length[:, None].clamp_min(1e-300), towards)
    return best, towards


@torch.no_grad()
def naive_radii(network, x, labels):
    """What everybody does: float32 margins over the distance of the rows, smallest over all rivals."""
    logits, rows = network(x), network[-1].weight
    margins = logits.gather(1, labels[:, None]) - logits
    own = labels[:, None] == torch.arange(CLASSES)
    distances = (rows[labels][:, None] - rows[None]).norm(dim=2)
    return torch.where(own, math.inf, margins / distances.clamp_min(1e-30)).amin(dim=1).double()


def jittered(towards, generator):
    """The direction, turned by about 1e-4: another pattern of roundings at nearly the same depth."""
    other = torch.randn(towards.shape, generator=generator, dtype=torch.float64)
    turned = towards + 1e-4 * other / other.norm(dim=1, keepdim=True)
    return turned / turned.norm(dim=1, keepdim=True)


def inside(x, radius, direction, dtype):
    """Points x′ of that dtype with ‖x′ − x‖ < radius, as near to the sphere as rounding allows."""
    start, share = x.double(), torch.full_like(radius, INSIDE)
    for _ in range(60):
        point = (start + (share * radius)[:, None] * direction).to(dtype)
        outside = (point.double() - start).norm(dim=1) * (1 + 2.0**-44) >= radius
        if not bool(outside.any()):
            break
        share = torch.where(outside, share - (1 - share), share)  # twice as far from the sphere
    return torch.where(outside[:, None], x.to(dtype), point)


@torch.no_grad()
def search(network, count, tries, seed=2):
    """How many certificates of each kind are broken, and by how many tries none of ours was."""
    started = time.perf_counter()
    wide = copy.deepcopy(network).double()
    x, labels = near_boundary(network, count)
    exact, towards = exact_radii(wide, x.double(), labels)
    answered = network(x).argmax(dim=1) == labels  # where float32 itself disagrees there is no naive certificate
    naive = torch.where(answered, naive_radii(network, x, labels), 0.0)
    result = lc.certify(network, x, labels)
    filtered = lc.FilteredClassifier(network, (WIDTH,))
    generator = torch.Generator().manual_seed(seed)
    broken = {"naive": torch.zeros(count, dtype=torch.bool), "shrunk": torch.zeros(count, dtype=torch.bool)}
    broken |= {name: broken["naive"].clone() for name in ("certified", "filtered")}
    fell_back = undecided = 0
    for attempt in range(tries):
        direction = towards if attempt == 0 else jittered(towards, generator)
        for name, radius in (("naive", naive), ("shrunk", naive * (1 - SHRINK))):
            flipped = network(inside(x, radius, direction, torch.float32)).argmax(dim=1) != labels
            broken[name] |= flipped & (radius > 0)
        flipped = wide(inside(x, result.radii, direction, torch.float64)).argmax(dim=1) != labels
        broken["certified"] |= flipped & (result.radii > 0)
        answer = filtered(inside(x, result.radii, direction, torch.float32))
        broken["filtered"] |= (answer.predictions != labels) & (result.radii > 0)
        fell_back += int(answer.fell_back.sum())
        undecided += int(answer.undecided.sum())
    # Nothing to spare: a little further than what is certified the answer does change.
    beyond = wide(x.double() + (exact * (1 + 1e-9))[:, None] * towards).argmax(dim=1) != labels
    certified = result.radii > 0
    return {
        "layers": len(network),
        "inputs": count,
        "tries_for_each": tries,
        "naive_certificates": int((naive > 0).sum()),
        "naive_broken": int(broken["naive"].sum()),
        "shrunk_by": SHRINK,
        "shrunk_broken": int(broken["shrunk"].sum()),
        "certified": int(certified.sum()),
        "certified_tries": int(certified.sum()) * tries,
        "certified_broken": int(broken["certified"].sum()),
        "filtered_tries": int(certified.sum()) * tries,
        "filtered_broken": int(broken["filtered"].sum()),
        "filtered_fell_back": fell_back,
        "filtered_undecided": undecided,
        "flips_just_outside": int(beyond.sum()),
        "smallest_certified_over_exact": float((result.radii / exact)[certified].min()),
        "largest_certified_over_exact": float((result.radii / exact)[certified].max()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def judge(record):
    assert record["layers"] == 27
    assert record["naive_certificates"] >= 0.9 * record["inputs"]
    assert record["naive_broken"] > 0.5 * record["naive_certificates"]
    assert record["shrunk_broken"] > 0
    assert record["certified"] == record["inputs"]
    assert record["certified_broken"] == record["filtered_broken"] == record["filtered_undecided"] == 0
    assert record["flips_just_outside"] == record["inputs"]  # so every radius that is too long can be broken
    assert 1 - 1e-4 <= record["smallest_certified_over_exact"] <= record["largest_certified_over_exact"] < 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = search(isometric_network(), *FULL)
    machine = {"cpu": f"{platform.machine()}, {os.cpu_count()} cores", "threads": 1, "torch": torch.__version__}
    text = json.dumps({"command": COMMAND, "machine": machine, **found}, indent=1) + "\n"
    print(text)
    judge(found)
    arguments.out.write_text(text, encoding="utf-8")
