"""Attacks find what is there, count only what float64 confirms, and never contradict a true certificate."""

import copy
import io
import json
import math
import re
import shutil
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from pyautoattack import AutoAttack
from pyautoattack.square import SquareAttack
from torch import nn

import lipcert as lc
from lipcert.attacks import autoattack
from lipcert.attacks.attack import attacks_of
from lipcert.attacks.evidence import Claims, Finding, contradictions, rows_of, summary, to_attack
from lipcert.attacks.pgd import pgd, random_starts, seed_of
from lipcert.attacks.referee import in_both_precisions, judge
from lipcert.cli import main
from lipcert.cli.certify import Certify
from lipcert.data.registry import load_data
from lipcert.records import METHODS, RunFolder
from lipcert.runs import Run
from lipcert.training.config import TrainConfig
from lipcert.training.loop import train
from processes import command


@pytest.fixture
def short(monkeypatch):
    """Square with 50 queries in place of 5,000, and 2 targets in place of 9."""
    monkeypatch.setattr(autoattack, "QUERIES", 50)
    monkeypatch.setattr(autoattack, "TARGETS", 2)


@cache
def _trained():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        data = load_data("digits", "train")
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(data.inputs()), data.labels).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def unprotected():
    """A plain network, trained on the digits without any bound."""
    return copy.deepcopy(_trained())


def digits(count):
    data = load_data("digits", "test")
    return data.inputs()[:count], data.labels[:count]


# ---- what an attack finds


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("short")
def test_an_unprotected_network_falls(method):
    images, labels = digits(32)
    result = lc.attack(unprotected(), images, labels, eps=1.0, method=method)
    assert result.natural_accuracy > 0.85
    assert result.attacked_accuracy < 0.1
    right, broken = int(result.correct.sum()), int(result.broken.sum())
    assert repr(result) == f"AttackResult({method} within 1: 32 inputs, {right} right, {broken} of them broken)"
    assert result.attacks == {"autoattack": autoattack.STANDARD, "pgd": ("pgd",)}.get(method, result.attacks)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("short")
def test_what_counts_lies_in_the_ball_and_the_box_and_fools_in_float64(method):
    images, labels = digits(32)
    model = unprotected()
    result = lc.attack(model, images, labels, eps=0.3, method=method)
    assert 0 < int(result.broken.sum()) < 32
    assert result.points.dtype == torch.float64
    assert bool(((result.points >= 0) & (result.points <= 1)).all())
    norms = [
        math.sqrt(math.fsum(d * d for d in row)) for row in (result.points - images.double()).flatten(1).tolist()
    ]
    assert max(norms) <= 0.3
    for norm, distance in zip(norms, result.distances.tolist(), strict=True):
        assert norm <= distance <= norm * (1 + 1e-13)
    answers = copy.deepcopy(model).double()(result.points).argmax(dim=1)
    assert torch.equal(answers, result.predictions)
    assert torch.equal(answers != labels, result.broken | ~result.correct)
    assert [name is not None for name in result.by] == result.broken.tolist()


@pytest.mark.parametrize("outputs", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("short")
def test_a_linear_network_falls_just_beyond_its_margin(outputs, method):
    """The distance to the boundary is (f_y − f_j)/‖w_y − w_j‖ exactly, as long as the box is far."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(outputs)
        head = nn.Linear(64, outputs)
        images = 0.5 + 0.02 * torch.randn(12, 1, 8, 8)
    model = nn.Sequential(nn.Flatten(), head)
    logits, weight = model(images).detach().double(), head.weight.detach().double()
    if outputs == 1:
        labels, distances = (logits[:, 0] > 0).long(), logits[:, 0].abs() / weight.norm()
    else:
        labels = logits.argmax(dim=1)
        gaps = logits.gather(1, labels[:, None]) - logits
        norms = (weight[labels][:, None] - weight[None]).norm(dim=2)
        distances = (gaps / norms).masked_fill(norms == 0, math.inf).amin(dim=1)
    eps = float(distances.median())
    result = lc.attack(model, images, labels, eps=eps, method=method)
    assert result.natural_accuracy == 1
    assert not result.broken[distances > eps * (1 + 1e-9)].any()
    assert result.broken[distances < eps * 0.97].all()
    assert 0 < int((distances < eps * 0.97).sum()) < 12
    assert result.attacks == attacks_of(method, max(2, outputs), (1, 8, 8))


@pytest.mark.usefixtures("short")
def test_inputs_that_are_no_images_are_attacked_without_square():
    images, labels = digits(16)
    result = lc.attack(unprotected()[1:], images.flatten(1), labels, eps=1.0)
    assert result.attacks == ("apgd-ce", "apgd-t", "fab-t")
    assert result.attacked_accuracy < 0.2


def test_it_is_the_standard_evaluation_of_pyautoattack(run_folder, monkeypatch):
    images, labels = digits(24)
    model, eps = Run(run_folder).frozen(), 0.5
    fast, _ = in_both_precisions(model)  # rounding decides where a path goes
    official = AutoAttack(fast, norm="L2", eps=eps, seed=seed_of(5, eps, 0), version="standard")
    assert official.attacks_to_run == list(autoattack.STANDARD)
    targets = (official.apgd_targeted.n_target_classes, official.fab.n_target_classes)
    assert (official.square.n_queries, *targets) == (autoattack.QUERIES, autoattack.TARGETS, autoattack.TARGETS)
    official.square.n_queries = 40
    official.apgd_targeted.n_target_classes = official.fab.n_target_classes = 1
    monkeypatch.setattr(autoattack, "QUERIES", 40)
    monkeypatch.setattr(autoattack, "TARGETS", 1)
    trace = sys.gettrace()
    found, _ = official.run_standard_evaluation(images, labels)
    sys.settrace(trace)  # which it ends
    ours = lc.attack(model, images, labels, eps=eps, seed=5)
    assert torch.equal(model(found).argmax(dim=1) == labels, ours.correct & ~ours.broken)
    assert {"apgd-ce", "apgd-t", None} <= set(ours.by)
    # Equal but for the hair by which float32 may have left the ball.
    assert torch.allclose(ours.points, found.double(), rtol=0, atol=1e-6)


def test_the_parameters_are_the_standard_ones():
    official = AutoAttack(unprotected(), norm="L2", eps=0.5, seed=1, version="standard")
    official.fab.targeted = True  # as its evaluation sets it
    attacks = (official.apgd, official.apgd_targeted, official.fab, official.square)
    for name, theirs in zip(autoattack.STANDARD, attacks, strict=True):
        ours = autoattack._make(name, unprotected(), 0.5, 1, 10, False, torch.device("cpu"))
        assert type(ours) is type(theirs)
        plain = {key: value for key, value in vars(theirs).items() if isinstance(value, (int, float, str, bool))}
        assert {key: str(vars(ours)[key]) for key in plain} == {key: str(value) for key, value in plain.items()}


def test_every_attack_of_the_four_is_really_run(monkeypatch):
    monkeypatch.setattr(autoattack, "QUERIES", 20)
    monkeypatch.setattr(autoattack, "TARGETS", 1)
    model, (images, _) = lc.freeze(lc.create_model("sll_nano", image_shape=(1, 8, 8))), digits(6)
    labels = model(images).argmax(dim=1)
    called = []
    real = autoattack._make
    monkeypatch.setattr(autoattack, "_make", lambda name, *rest: called.append(name) or real(name, *rest))
    result = lc.attack(model, images, labels, eps=1e-6)
    assert not result.broken.any()
    assert called == list(autoattack.STANDARD)


SIZES = [4, 5, 6, 8, 9, 11, 12, 14, 16, 18, 19, 20, 24, 28, 32]


@pytest.mark.parametrize("height", SIZES)
def test_square_is_left_out_just_where_it_fails(height):
    for width in {height, 5, 14, 20, 33}:
        images = torch.rand(2, 3, height, width)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * height * width, 3)).requires_grad_(False)
        try:
            SquareAttack(model, norm="L2", eps=1e-4, n_queries=25, resc_schedule=True, device="cpu").perturb(
                images, model(images).argmax(dim=1)
            )
            works = True
        except (RuntimeError, ZeroDivisionError):
            works = False
        assert (autoattack.undefined("square", 3, (3, height, width)) is None) == works, (height, width)


def test_ties_do_not_stop_square():
    """pyautoattack alone fails where the best margin is exactly 0."""
    tied = lambda x: x.flatten(1)[:, :3] * 0  # noqa: E731
    images, labels = torch.rand(3, 1, 8, 8), torch.zeros(3, dtype=torch.long)
    with pytest.raises(RuntimeError):
        SquareAttack(tied, norm="L2", eps=0.5, n_queries=5, device="cpu").perturb(images, labels)
    result = lc.attack(tied, images, labels, eps=0.5, method="quick")
    assert result.attacks == ("apgd-ce", "pgd", "square")
    assert not result.broken.any()


def test_what_is_not_defined_is_not_run():
    assert attacks_of("autoattack", 10, (3, 32, 32)) == autoattack.STANDARD
    assert attacks_of("autoattack", 4, (1, 8, 8)) == autoattack.STANDARD
    assert attacks_of("autoattack", 3, (1, 8, 8)) == ("apgd-ce", "fab-t", "square")
    assert attacks_of("autoattack", 2, (1, 4, 4)) == ("apgd-ce", "fab-t")


# ---- the referee


class Coarse(nn.Module):
    """Logits that float32 cannot tell apart: float64 can."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 3)

    def forward(self, x):
        return (self.linear(x.flatten(1)) + 1e9) - 1e9


class Viewing(nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], -1)[:, :10]


@pytest.mark.parametrize("own", [nn.Identity, Viewing])
def test_the_fast_copy_is_the_same_function_with_gradients_in_the_usual_order(own):
    torch.manual_seed(3)
    network = nn.Sequential(lc.freeze(lc.ResidualConv2d(3, 8)), own(), nn.Flatten())
    fast, _ = in_both_precisions(network)
    x = torch.rand(4, 3, 8, 8, requires_grad=True)
    (theirs,) = torch.autograd.grad(network(x).square().sum(), x)
    (ours,) = torch.autograd.grad(fast(x).square().sum(), x)
    assert ours.is_contiguous()
    assert (fast(x) - network(x)).abs().max() <= 200 * 2.0**-24 * 4  # sums of at most 72 products, entries below 4
    assert (ours - theirs).abs().max() <= 2000 * 2.0**-24 * 4


@pytest.mark.parametrize(
    "network",
    [
        torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(1, 2, 3), Viewing())),
        nn.Sequential(nn.Unflatten(1, (1, 1)), nn.Conv3d(1, 2, (1, 3, 3)), nn.Flatten()),
    ],
    ids=["traced", "3-d"],
)
def test_networks_that_mind_the_order_of_channels_are_attacked_all_the_same(network):
    torch.manual_seed(0)
    images = torch.rand(3, 1, 8, 8)
    labels = network(images).argmax(dim=1)
    result = lc.attack(network, images, labels, eps=0.5, method="pgd")
    assert (result.points - images).flatten(1).norm(dim=1).max() <= 0.5


def test_float64_decides_and_not_float32():
    model = Coarse()
    images = 0.5 + 0.02 * torch.randn(9, 1, 8, 8)
    images[:, 0, 0, 0] = torch.arange(9) / 10  # so that the classes take turns
    with torch.no_grad():
        model.linear.weight[:, 0] = torch.tensor([0.0, 5.0, 0.0])
        model.linear.bias += torch.tensor([2.0, 0.0, 0.0])
    labels = copy.deepcopy(model).double()(images.double()).argmax(dim=1)
    order = torch.randperm(9)
    images, labels = images[order], labels[order]
    assert set(labels.tolist()) == {0, 1}
    assert (model(images).argmax(dim=1) == 0).all()
    near = lc.attack(model, images, labels, eps=1e-7, method="quick")
    assert near.correct.all()
    assert not near.broken.any()  # float32 calls the ones broken as they are
    far = lc.attack(model, images, labels, eps=3.0, method="quick")
    assert torch.equal(far.broken, labels == 1)  # and sees no way to change the zeros
    assert far.by == tuple("pgd" if label else None for label in labels.tolist())  # in float64


@pytest.mark.parametrize("factor", [1 + 1e-9, 1.5, 100.0])
def test_a_point_outside_the_ball_counts_only_if_it_fools_inside(factor):
    """Beyond a half-space at distance ½: a point at factor·ε is pulled back to ε."""
    exact = lambda x: torch.stack((x[:, 0] * 0 + 0.75, x[:, 0]), dim=1)  # noqa: E731
    images, labels = torch.full((2, 5), 0.25).double(), torch.zeros(2, dtype=torch.long)
    step = torch.eye(5)[0].double()
    for eps, fools in ((0.5 - 1e-6, False), (0.5 + 1e-6, True)):
        verdict = judge(exact, images, labels, images + factor * eps * step, eps)
        assert bool((verdict.distances <= eps).all())
        assert bool((verdict.distances > eps * (1 - 1e-9)).all())
        assert verdict.fooled.tolist() == [fools, fools]


def test_a_point_outside_the_box_or_not_finite_does_not_count():
    exact = lambda x: torch.stack((x[:, 0] * 0 + 1.0, x[:, 0]), dim=1)  # noqa: E731
    images, labels = torch.full((3, 2), 0.5).double(), torch.zeros(3, dtype=torch.long)
    points = torch.tensor([[1.5, 0.5], [math.nan, 0.5], [math.inf, 0.5]])
    verdict = judge(exact, images, labels, points, eps=5.0)
    assert not verdict.fooled.any()
    assert bool(((verdict.points >= 0) & (verdict.points <= 1)).all())


# ---- what an attack leaves alone


@pytest.mark.usefixtures("short")
def test_the_model_and_the_random_state_stay_as_they_are(capfd):
    model = unprotected().requires_grad_(True).train()
    images, labels = digits(8)
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = lc.attack(model, images, labels, eps=0.3, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = lc.attack(model, images, labels, eps=0.3, seed=3)
    assert torch.equal(first.points, again.points)
    assert torch.equal(images, digits(8)[0])
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("short")
def test_a_network_without_gradients_is_no_reason_to_speak(capfd):
    class Flat(nn.Module):
        def forward(self, x):
            return torch.tensor([1.0, 0.0, 0.0, 0.0]).to(x) + 0 * x.flatten(1)[:, :4]

    result = lc.attack(Flat(), torch.rand(3, 1, 8, 8), torch.zeros(3, dtype=torch.long), eps=1.0)
    assert result.attacked_accuracy == 1
    assert capfd.readouterr() == ("", "")


def test_the_noise_of_an_example_is_its_own():
    images = torch.rand(5, 1, 8, 8)
    whole = list(random_starts(images, 0.5, torch.arange(5), 7, 2))
    part = list(random_starts(images[3:4], 0.5, torch.tensor([3]), 7, 2))
    assert all(torch.equal(many[3:4], one) for many, one in zip(whole, part, strict=True))
    assert not torch.equal(whole[0], whole[1])
    assert torch.allclose((whole[0] - images).flatten(1).norm(dim=1), torch.tensor(0.5))
    assert not torch.equal(whole[0], next(random_starts(images, 0.5, torch.arange(5), 8, 1)))


def test_pgd_stops_a_path_where_it_first_fools():
    model = unprotected()
    images, labels = digits(16)
    counts = []

    def counting(x):
        counts.append(len(x))
        return model(x)

    starts = random_starts(images, 2.0, torch.arange(16), 0, 3)
    found = pgd(counting, images, labels, 2.0, starts, steps=20)
    assert (model(found).argmax(dim=1) != labels).all()
    assert counts == sorted(counts, reverse=True)
    assert len(counts) < 21
    assert len(list(starts)) == 2  # the first was enough for all


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"eps": 0.0}, "eps must be above 0"),
        ({"eps": math.nan}, "eps must be a finite number"),
        ({"method": "cw"}, "method must be one of"),
        ({"seed": -1}, "seed must lie"),
        ({"images": torch.full((2, 1, 8, 8), 1.5)}, r"images must lie in \[0, 1\]"),
        ({"images": torch.full((2, 1, 8, 8), math.nan)}, "images must be finite"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, "expected floating images"),
        ({"labels": torch.tensor([0, 10])}, "labels must lie from 0 to 9"),
        ({"labels": torch.tensor([0])}, "expected floating images"),
        ({"model": nn.Identity()}, "the model must give logits"),
    ],
)
def test_bad_arguments_are_refused(change, words):
    given = {
        "model": unprotected(),
        "images": torch.rand(2, 1, 8, 8),
        "labels": torch.tensor([0, 1]),
        "eps": 0.5,
        "method": "pgd",
        **change,
    }
    with pytest.raises(ValueError, match=words):
        lc.attack(given.pop("model"), given.pop("images"), given.pop("labels"), **given)


# ---- rows and shares


def test_rows_and_shares_of_a_small_case():
    claims = Claims(labels=[0, 1, 2, 3], predictions=[0, 1, 2, 0], radii=[0.9, 0.2, 0.2, 0.0])
    assert to_attack(claims, 0.5, {}, False) == [1, 2]
    assert to_attack(claims, 0.5, {}, True) == [0, 1, 2]
    found = {1: Finding(1, True, "apgd-ce", 0.4, 3), 2: Finding(2, False, None, None, None)}
    assert to_attack(claims, 0.6, found, False) == [2]  # what fell within less has fallen
    rows = rows_of(claims, "1/2", 0.5, found, False)
    assert [row["outcome"] for row in rows] == ["certified", "broken", "survived", "misclassified"]
    assert rows[1] == {
        "index": 1,
        "label": 1,
        "eps": "1/2",
        "radius": 0.5,
        "outcome": "broken",
        "certified": False,
        "by": "apgd-ce",
        "distance": 0.4,
        "prediction": 3,
    }
    (line,) = summary(rows)
    assert [line[key] for key in ("natural", "certified", "attacked", "points_attacked")] == [0.75, 0.25, 0.5, 2]
    assert contradictions(rows) == []


def test_every_contradiction_is_seen():
    def row(outcome, certified):
        return {
            "index": 0,
            "label": 1,
            "eps": "1",
            "radius": 1.0,
            "outcome": outcome,
            "certified": certified,
            "by": "pgd",
            "distance": 0.5,
            "prediction": 2,
        }

    plenty = [row("survived", False)] * 3  # so that the shares alone look right
    assert contradictions([row("certified", True), row("broken", False), *plenty]) == []
    assert "certified answers fell" in contradictions([row("broken", True), *plenty])[0]
    assert "a certified answer is a correct one" in contradictions([row("misclassified", True), *plenty])[0]
    assert any("expected certified ≤ attacked ≤ natural" in line for line in contradictions([row("broken", True)]))


# ---- the command


@dataclass(frozen=True)
class Ended:
    """A command that ended in this process, without the seconds that a new one needs to load torch."""

    returncode: int
    stdout: str
    stderr: str


def lipcert(*words):
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["lipcert", *map(str, words)])
        patch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as end:
            main()
    return Ended(end.value.code, out.getvalue(), err.getvalue())


def complaints(stderr):
    """All lines but those of progress, which a slow machine sees."""
    return [line for line in stderr.splitlines() if not line.startswith(("attacking: ", "certifying: "))]


def make_run(folder, data, seed=0, epochs=3):
    config = TrainConfig(
        model="sll_nano", data=data, epochs=epochs, batch_size=128, learning_rate=0.02, seed=seed, threads=1
    )

    def evaluate(model):
        return lambda inputs, labels: {"natural": model(inputs).argmax(dim=1) == labels}

    train(config, RunFolder(folder), (load_data(data, "train"), load_data(data, "test")), evaluate=evaluate)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A network trained on the digits for a moment, and certified."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "digits", "digits")
    assert Certify(folder).run() == 0
    return folder


@pytest.fixture
def run_copy(run_folder, tmp_path):
    return Path(shutil.copytree(run_folder, tmp_path / "run"))


def rows_in(folder, method="*"):
    (file,) = folder.glob(f"attack-{method}.jsonl")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


FEW = ("--method", "quick", "--examples", "60")


def test_the_table_the_rows_and_the_record_agree(run_copy):
    result = command("attack", run_copy, *FEW)
    assert (result.returncode, complaints(result.stderr)) == (0, [])
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    rows, record = rows_in(run_copy), json.loads((run_copy / "attack-quick.json").read_text(encoding="utf-8"))
    assert [(row["eps"], row["index"]) for row in rows] == [
        (eps, index) for eps in ("36/255", "72/255", "108/255", "0.5", "1") for index in range(60)
    ]
    assert record["rows"] == summary(rows)
    for line in record["rows"]:
        assert line["certified"] <= line["attacked"] <= line["natural"]
        shown = (f"{100 * line[key]:.1f}" for key in ("natural", "certified", "attacked"))
        cells = f"│ {line['eps']:<7} │ {' │ '.join(f'{s:>{w}}' for s, w in zip(shown, (7, 9, 8), strict=True))} │"
        assert cells in result.stdout
    outcomes = {row["outcome"] for row in rows}
    assert outcomes == {"misclassified", "certified", "broken", "survived"}
    assert record["attacks"] == ["apgd-ce", "pgd", "square"]
    assert not list(run_copy.glob("*.parts"))
    assert_rows_are_sound(rows, run_copy)


def assert_rows_are_sound(rows, folder):
    """Certified as certified.jsonl says, attacked shares falling with the radius, distances within it."""
    claims = [json.loads(line) for line in (folder / "certified.jsonl").read_text(encoding="utf-8").splitlines()]
    fallen = {}
    for row in rows:
        claim = claims[row["index"]]
        assert row["certified"] == (claim["radius"] > row["radius"])
        assert row["label"] == claim["label"]
        assert (row["outcome"] == "misclassified") == (claim["prediction"] != claim["label"])
        if row["outcome"] == "broken":
            assert claim["radius"] < row["distance"] <= row["radius"]
            assert row["prediction"] != row["label"]
            assert fallen.setdefault(row["index"], row["distance"]) == row["distance"]  # found once, kept
        else:
            assert row["index"] not in fallen
            assert (row["by"], row["distance"], row["prediction"]) == (None, None, None)


def test_json_is_all_that_stdout_gets(run_copy):
    result = lipcert("attack", run_copy, "--json", "--method", "pgd", "--examples", "20", "--eps", "1/2", "0.25")
    assert result.returncode == 0
    assert json.loads(result.stdout) == json.loads((run_copy / "attack-pgd.json").read_text(encoding="utf-8"))
    assert [row["eps"] for row in json.loads(result.stdout)["rows"]] == ["0.25", "1/2"]
    assert json.loads(result.stdout)["command"].startswith("lipcert attack ")


def test_a_log_says_how_far_it_is(run_copy, monkeypatch):
    monkeypatch.setattr("lipcert.cli.common.LOG_SECONDS", 0)
    result = lipcert("attack", run_copy, "--method", "pgd", "--examples", "70", "--all", "--eps", "0.25")
    lines = [line for line in result.stderr.splitlines() if line.startswith("attacking: ")]
    assert len(lines) >= 2  # shards of 32
    assert re.match(r"attacking: (\d+)/\1\b", lines[-1])


def test_all_attacks_the_certified_in_vain(run_copy):
    result = lipcert("attack", run_copy, *FEW, "--all", "--eps", "72/255", "0.5")
    assert (result.returncode, complaints(result.stderr)) == (0, [])
    rows = rows_in(run_copy)
    assert {row["outcome"] for row in rows if row["certified"]} == {"survived"}
    assert_rows_are_sound(rows, run_copy)


def test_a_false_certificate_is_refuted_with_exit_code_1(run_copy):
    file = run_copy / "certified.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    file.write_text("".join(json.dumps({**row, "radius": 10.0}) + "\n" for row in rows), encoding="utf-8")
    result = lipcert("attack", run_copy, *FEW, "--all", "--eps", "2")
    assert result.returncode == 1
    assert "certified answers fell" in result.stderr
    assert "Traceback" not in result.stderr
    record = json.loads((run_copy / "attack-quick.json").read_text(encoding="utf-8"))
    assert record["rows"][0]["broken_certified"] > 0
    assert record["rows"][0]["certified"] > record["rows"][0]["attacked"]


def claimed(folder, data=None):
    """The radii that an attack on the first 80 images starts from."""
    run = Run(folder)
    images = run.test_data(data).take(slice(0, 80), split="test")
    return list(run._claims(images, lambda done, total: None).radii)


def proved(folder, turned=False):
    """The same radii, certified here."""
    data = load_data("digits", "test")
    images, labels = (data.inputs().flip(0), data.labels.flip(0)) if turned else (data.inputs(), data.labels)
    return lc.certify(Run(folder).frozen(), images[:80], labels[:80]).radii.tolist()


def test_what_is_certified_is_about_these_weights(run_copy, tmp_path):
    other = make_run(tmp_path / "other", "digits", seed=1, epochs=1)
    truth = proved(other)
    assert truth != proved(run_copy)
    assert claimed(run_copy) == proved(run_copy)
    assert claimed(other) == truth
    for file in ("certificate.json", "certified.json", "certified.jsonl"):
        shutil.copy(run_copy / file, other / file)
    assert claimed(other) == truth
    (other / "certified.json").unlink()
    assert Certify(other).run() == 0
    assert claimed(other) == truth


def test_what_is_certified_is_about_these_images(run_copy, tmp_path):
    data, file = load_data("digits", "test"), tmp_path / "turned.npz"
    np.savez(file, images=data.images.flip(0)[:, 0].numpy(), labels=data.labels.flip(0).numpy())
    assert claimed(run_copy, data=str(file)) == proved(run_copy, turned=True)
    assert Certify(run_copy, examples=30, restart=True).run() == 0  # too few
    assert claimed(run_copy) == proved(run_copy)


@pytest.mark.parametrize("classes", [2, 3])
def test_two_and_three_classes_of_one_channel(classes, tmp_path):
    arrays = {}
    for split in ("train", "test"):
        data = load_data("digits", split)
        keep = data.labels < classes
        arrays[f"x_{split}"], arrays[f"y_{split}"] = data.images[keep][:, 0].numpy(), data.labels[keep].numpy()
    np.savez(tmp_path / "few.npz", **arrays)
    folder = make_run(tmp_path / "run", str(tmp_path / "few.npz"), epochs=2)
    assert Certify(folder).run() == 0
    result = lipcert("attack", folder, "--examples", "12", "--eps", "3", "--all", "--json")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert record["attacks"] == ["apgd-ce", "fab-t", "square"]
    assert record["rows"][0]["attacked"] < record["rows"][0]["natural"]
    assert lipcert("attack", folder, *FEW, "--eps", "0.5").returncode == 0
    assert_rows_are_sound(rows_in(folder, "quick"), folder)


@pytest.mark.parametrize(
    "words",
    [
        ("--eps", "0"),
        ("--eps", "-1"),
        ("--eps", "small"),
        ("--eps", "1e400"),
        ("--examples", "0"),
        ("--jobs", "0"),
        ("--seed", "-1"),
        ("--data", "no_such_data"),
    ],
)
def test_bad_flags_are_one_line_and_exit_code_2(run_copy, words):
    result = lipcert("attack", run_copy, *words)
    assert result.returncode == 2
    assert result.stderr.startswith("lipcert: ")
    assert result.stderr.count("\n") == 1
    assert not result.stdout
    assert not list(run_copy.glob("*.parts"))


def test_no_run_is_one_line_and_exit_code_2(tmp_path):
    for where in (tmp_path, tmp_path / "nowhere"):
        result = lipcert("attack", where)
        assert result.returncode == 2
        assert result.stderr.count("\n") == 1
