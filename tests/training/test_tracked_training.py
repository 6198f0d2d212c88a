"""GloRo and LiResNet from end to end: trained, proved, checked, attacked, reported, resumed bit for bit."""

import json
import os
import signal

import pytest
import torch

import lipcert as lc
from full import full
from lipcert.check import main as check
from lipcert.layers.local import local_estimate
from lipcert.layers.tracked import Tracked
from lipcert.training.checkpoint import load_state
from lipcert.training.config import TrainConfig
from lipcert.training.loop import Stopped
from lipcert.training.objective import certified_hits, make_loss

SETTINGS = {"data": "digits", "steps": 88, "batch_size": 64, "learning_rate": 0.005, "schedule": "linear"}
SETTINGS |= {"threads": 1, "evaluate_every": 100}
RECIPES = {
    "gloro": ("gloro_nano", "gloro"),
    "gloro-trades": ("gloro_nano", "gloro-trades"),
    "local": ("local_nano", "local"),
    "emma": ("liresnet_nano", "emma"),
    "emma-annealing": ("liresnet_nano", "emma-annealing"),
}


def config_of(name, **changes):
    model, loss = RECIPES[name]
    return TrainConfig(**{"model": model, "loss": loss, **SETTINGS, **changes})


@pytest.fixture(scope="module", params=full(list(RECIPES), ["gloro", "emma-annealing"]))
def run(request, tmp_path_factory):
    run = lc.train(config_of(request.param), tmp_path_factory.mktemp("runs") / "run")
    run.audit()
    run.certify(examples=60)
    run.attack("quick", examples=8, eps=["36/255", "1"], everything=True)  # what is certified is attacked, too
    return run


def test_a_trained_network_is_proved_checked_and_withstands(run):
    run.check()
    assert run.audited.ok
    assert run.audited.backbone > 1.5  # the norms have grown: nothing is divided
    assert run.natural > 0.6
    assert run.natural >= run.certified(36 / 255) >= run.certified(72 / 255)
    assert run.certified(36 / 255) > 0.2
    for row in run.attacked.rows:
        assert row.certified <= row.attacked <= row.natural
    assert run.holds
    assert check([str(run.certificate_file)]) == 0
    if run.settings.loss == "gloro":
        assert run.report().is_file()


def test_the_constant_of_the_certificate_is_proved_and_above_the_estimate(run):
    model = run.model()
    estimate, bound = lc.layers.lipschitz_estimate(model[0]).item(), lc.lipschitz_bound(model[0])
    assert estimate < bound < 1.3 * estimate  # five steps of power iteration follow the training closely
    assert run.audited.backbone == pytest.approx(bound, rel=1e-6)
    claimed = json.loads(run.audit_file.read_text())
    assert claimed["backbone"] >= max(1.0, estimate)
    # Iterates are no part of what is certified: other ones give the same frozen network.
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, Tracked):
                layer.iterate.normal_()
    assert lc.freeze(model).state_dict().keys() == run.frozen().state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(lc.freeze(model).buffers(), run.frozen().buffers(), strict=True))


@pytest.mark.parametrize("name", ["gloro", "emma-annealing"])
def test_a_training_that_is_interrupted_resumes_bit_for_bit(tmp_path, name):
    """Vectors of the power iteration and running means are buffers, so they are part of the state."""
    config = config_of(name, steps=12, ema=0.9)
    whole = lc.train(config, tmp_path / "whole")

    def stop(step):
        if step.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        lc.train(config, tmp_path / "parts", show=stop)
    iterates = [key for key in load_state(tmp_path / "parts" / "state.pt")["model"] if key.endswith("iterate")]
    assert len(iterates) >= 4
    resumed = lc.train(config, tmp_path / "parts", resume=True)
    assert resumed.weights == whole.weights
    states = [load_state(tmp_path / folder / "state.pt") for folder in ("whole", "parts")]
    for part in ("model", "average"):
        assert all(torch.equal(value, states[1][part][key]) for key, value in states[0][part].items())


def test_the_loss_sees_the_estimate_and_the_accuracy_does_not():
    """With estimates of a tenth the loss would be fooled; certified accuracy in training is about the norms."""
    torch.manual_seed(0)
    model = lc.create_model("gloro_nano", image_shape=(1, 8, 8))
    images, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    with torch.no_grad():
        model[0][3].weight.mul_(3.0)
    loss_of = make_loss(TrainConfig(model="gloro_nano", loss="gloro"))
    logits = model(images)
    loss = loss_of(model, images, logits, labels, 1.0)
    loss.backward()
    estimate = lc.layers.lipschitz_estimate(model[0])
    rows = model[1].rows()
    expected = lc.losses.GloRo(36 / 255)(logits, labels, estimate * torch.cdist(rows, rows))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model[0][16].weight.grad.abs().max() > 0
    # Blind iterates make every estimate 0 times what it should be, and change no certified hit.
    counts = [certified_hits(model.eval())(images, labels)]
    for layer in model.modules():
        if isinstance(layer, Tracked):
            layer.iterate.zero_()
    counts.append(certified_hits(model)(images, labels))
    assert all(torch.equal(counts[0][key], counts[1][key]) for key in counts[0])


def test_a_gradient_step_on_the_loss_lowers_the_norms_that_it_should():
    """With a huge ε everything is about K: the estimates fall from step to step."""
    torch.manual_seed(0)
    model = lc.create_model("liresnet_nano", image_shape=(1, 8, 8)).train()
    loss_of = make_loss(TrainConfig(model="liresnet_nano", loss="gloro", epsilon=50.0, epsilon_schedule="fixed"))
    images, labels = torch.rand(32, 1, 8, 8), torch.arange(32) % 10
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, Tracked):
                layer.weight.mul_(40.0)
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    before = lc.lipschitz_bound(model.eval()[0])
    for _ in range(20):
        optimizer.zero_grad()
        loss_of(model.train(), images, model(images), labels, 1.0).backward()
        optimizer.step()
    assert lc.lipschitz_bound(model.eval()[0]) < 0.8 * before


@pytest.mark.parametrize("progress", [0.0, 0.25, 0.5, 1.0])
def test_the_local_loss_is_about_the_whole_radius_from_the_middle_on(progress):
    """With κ > 0 to the end, and the rate falling, norms grew to 200 and nothing was certified."""
    torch.manual_seed(0)
    model = lc.create_model("local_nano", image_shape=(1, 8, 8))
    images, labels = torch.rand(8, 1, 8, 8), torch.arange(8)
    logits = model(images)
    share = min(1.0, 1 / 30 + (1 - 1 / 30) * progress / 0.5)
    torch.manual_seed(1)  # the power iterations start at random vectors
    loss = make_loss(TrainConfig(model="local_nano", loss="local"))(model, images, logits, labels, progress)
    torch.manual_seed(1)
    local = local_estimate(model[0], images, 36 / 255 * share)
    rows = model[1].rows()
    expected = lc.losses.WorstCase(36 / 255 * share, kappa=1 - share)
    torch.testing.assert_close(
        loss, expected(logits, labels, torch.cdist(rows, rows), local.constants), rtol=1e-5, atol=1e-5
    )
