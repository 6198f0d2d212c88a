"""Runs of networks and data of the user's own: trained, resumed, certified and reported by public names alone."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import lipcert as lc
from processes import command

NETS = """
import torch
from torch import nn

import lipcert as lc


def build(image_shape, num_classes, width=8):
    size = torch.Size(image_shape).numel()
    layers = [nn.Flatten(), nn.BatchNorm1d(size), lc.ResidualLinear(size, width)]
    return nn.Sequential(*layers, lc.NormalizedHead(size, num_classes))


def trained(image_shape, num_classes):
    torch.manual_seed(0)
    return build(image_shape, num_classes)


def unproved(image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 10))


def short(image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
"""
SETTINGS = lc.TrainConfig(steps=6, batch_size=16, ema=0.5, threads=1)


def series():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(60, 3, 8, generator=generator)
    labels = (inputs.mean(dim=(1, 2)) > 0).long()
    return (inputs[:40], labels[:40]), (inputs[40:], labels[40:])


def network():
    torch.manual_seed(1)
    layers = [lc.ResidualConv1d(3, 4, kernel_size=3), nn.Flatten(), nn.BatchNorm1d(24), lc.NormalizedHead(24, 2)]
    return nn.Sequential(*layers)


@pytest.fixture
def nets(tmp_path, monkeypatch):
    (tmp_path / "nets_of_ones_own.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tensors_become_a_run_that_stands_on_its_own(tmp_path):
    data = series()
    run = lc.train(network(), tmp_path / "run", data=data, config=SETTINGS)
    run.certify()
    assert lc.verify(run.folder).ok
    assert run.audit().ok
    assert run.attack("pgd", examples=4, eps=("0.1",)).attacks == ("pgd",)
    assert run.check() is run
    assert run.data == "own data"
    expected = lc.certify(run.frozen(), *data[1])
    assert run.radii.tolist() == expected.radii.tolist()
    # Another process has neither the network nor the data.
    again = lc.Run(run.folder)
    again.certify(examples=5, restart=True)
    assert again.report(tmp_path / "report.html").is_file()
    assert torch.equal(again.frozen()(data[1][0]), run.frozen()(data[1][0]))
    with pytest.raises(ValueError, match=r"network of your own, that was passed in Python"):
        again.model()
    for known in (network(), lambda image_shape, num_classes: network()):
        loaded = lc.load(run.folder, network=known)
        assert torch.equal(loaded(data[1][0]), run.model()(data[1][0]))
    assert again.certify(data=data[0], out=tmp_path / "train").certified_about.examples == 40


def test_a_stopped_training_resumes_bit_for_bit(tmp_path):
    def stop(step):
        if step.step == 4:
            raise KeyboardInterrupt

    settings = SETTINGS.model_copy(update={"checkpoint_every": 1e-9})
    whole = lc.train(network(), tmp_path / "whole", data=series(), config=settings)
    with pytest.raises(KeyboardInterrupt):
        lc.train(network(), tmp_path / "parts", data=series(), config=settings, show=stop)
    assert lc.Run(tmp_path / "parts").unfinished
    parts = lc.train(network(), tmp_path / "parts", data=series(), config=settings, resume=True)
    assert parts.weights == whole.weights


def test_what_cannot_be_certified_is_refused_before_training(tmp_path):
    for module, kind, message in (
        (nn.Sequential(nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 2)), lc.NotCertified, "LayerNorm"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(24, 5)),
            ValueError,
            r"must give 2 logits.* outputs of shape \(5,\)",
        ),
    ):
        with pytest.raises(kind, match=message):
            lc.train(module, tmp_path / "run", data=series(), config=SETTINGS)
        assert not (tmp_path / "run").exists()
    plain = nn.Sequential(nn.Flatten(), nn.Linear(24, 2))
    for module, changes, message in (
        (plain, {"loss": "emma"}, "the loss 'emma' needs to know the last layer"),
        (network(), {"augment": "flip"}, "--augment flip is for images"),
    ):
        config = SETTINGS.model_copy(update=changes)
        with pytest.raises(ValueError, match=message):
            lc.train(module, tmp_path / changes.popitem()[0], data=series(), config=config)


def test_a_network_is_named_on_the_command_line(nets):
    own = "nets_of_ones_own:build"
    shown = command("train", "--network", own, "--overrides", "width=4", "--steps", "3", "--out", "run", cwd=nets)
    assert shown.returncode == 0, shown.stderr
    assert json.loads((nets / "run" / "config.json").read_text())["model"] == own
    # From another folder, without the module: what follows needs the frozen network alone.
    other = nets / "other"
    other.mkdir()
    for words in (
        ["certify", "../run", "--examples", "8"],
        ["check", "../run/certificate.json"],
        ["audit", "../run"],
        ["attack", "../run", "--method", "pgd", "--examples", "2", "--eps", "0.1"],
    ):
        shown = command(*words, cwd=other)
        assert shown.returncode == 0, shown.stderr
    (nets / "run" / "frozen.safetensors").unlink()
    shown = command("certify", "../run", "--restart", cwd=other)
    assert shown.returncode == 2
    assert f"--network {own}" in shown.stderr
    shown = command("certify", "../run", "--restart", "--network", own, cwd=other)
    assert shown.returncode == 2
    assert "there is no module 'nets_of_ones_own' in the current folder" in shown.stderr
    shown = command("certify", "run", "--restart", "--examples", "8", "--network", own, cwd=nets)
    assert shown.returncode == 0, shown.stderr
    shown = command("audit", "run", "--network", "nets_of_ones_own:trained", cwd=nets)
    assert shown.returncode == 2
    assert f"is built by {own}, not by nets_of_ones_own:trained" in shown.stderr


def test_a_network_that_is_trained_elsewhere_becomes_a_run(nets):
    words = ["certify", "run", "--network", "nets_of_ones_own:trained"]
    shown = command(*words, cwd=nets)
    assert shown.returncode == 2
    assert "run is new" in shown.stderr
    assert not (nets / "run").exists()
    shown = command(*words, "--data", "digits", "--examples", "6", cwd=nets)
    assert shown.returncode == 0, shown.stderr
    assert lc.verify(nets / "run").ok
    for function, message in (("unproved", "LayerNorm"), ("short", "must give 10 logits")):
        words = ["audit", "bad", "--network", f"nets_of_ones_own:{function}", "--data", "digits"]
        shown = command(*words, cwd=nets)
        assert shown.returncode == 2
        assert message in shown.stderr
        assert not (nets / "bad").exists()


def test_no_module_that_only_a_file_names_is_imported(nets):
    (nets / "trap.py").write_text("raise SystemExit('imported')")
    run = lc.train(network(), nets / "run", data=series(), config=SETTINGS)
    spec = run.spec.model_copy(update={"builder": "trap:build"})
    from lipcert.training.checkpoint import save_weights

    save_weights(run.model_file, run.model().state_dict(), spec)
    with pytest.raises(ValueError, match="trap:build"):
        lc.load(run.folder)
    (run.folder / "config.json").write_text(lc.TrainConfig(model="trap:build").model_dump_json())
    shown = command("train", "--resume", "--out", "run", cwd=nets)
    assert shown.returncode == 2
    assert "--network trap:build" in shown.stderr


@pytest.mark.parametrize("classes", [2, 3])
def test_a_table_is_trained_certified_and_attacked(classes, tmp_path):
    chance = np.random.default_rng(0)
    labels = chance.integers(0, classes, 90)
    values = np.stack([labels + chance.normal(0, 0.2, 90), 1000 + 100 * chance.normal(size=90)], axis=1)
    lines = [f"{a:.4f},{b:.4f},{label}" for (a, b), label in zip(values, labels, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["small,large,kind", *lines]))
    words = ["train", "--data", "t.csv", "--label", "kind", "--epochs", "8", "--batch-size", "32", "--out", "run"]
    shown = command(*words, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    run = lc.Run(tmp_path / "run")
    assert run.config["model"] == "sll_table"
    std = run.spec.std
    assert std[0] < 1.5
    assert std[1] > 50
    shown = command("certify", "run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    run.refresh()
    assert run.certified_about.lipschitz >= 1 / min(std)
    assert lc.verify(run.folder).ok
    shown = command("attack", "run", "--examples", "8", "--eps", "0.05", "5", "--all", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "Left out: apgd-t (needs 4 classes); square (needs images)." in shown.stdout
    run.refresh()
    assert run.attacks[0].left_out == ("apgd-t (needs 4 classes)", "square (needs images)")
    assert run.attacks[0].rows[1].attacked < run.attacks[0].rows[1].natural
    run.check()
    # The test rows are those of the training, or nothing.
    (tmp_path / "t.csv").write_text("\n".join(["small,large,kind", *lines[:-20]]))
    shown = command("certify", "run", "--restart", cwd=tmp_path)
    assert shown.returncode == 2
    assert "t.csv has changed" in shown.stderr
