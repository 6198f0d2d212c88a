"""Training: bit for bit after any interruption, the same on two processes, and never a damaged folder."""

import contextlib
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lipcert as lc
from lipcert.data.registry import load_data
from lipcert.models.build import create_model
from lipcert.records import RunFolder
from lipcert.runs import Run
from lipcert.training import checkpoint
from lipcert.training.checkpoint import load_model
from lipcert.training.config import LOSS_SETTINGS, TrainConfig, growth_factor, learning_rate_factor
from lipcert.training.loop import Diverged, Trainer, peak_bytes, train
from lipcert.training.objective import make_loss
from processes import ENVIRONMENT, command

SETTINGS = {"model": "sll_nano", "epochs": 5, "batch_size": 128, "threads": 1, "checkpoint_every": 0.2, "ema": 0.9}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]


def evaluator(model):
    return lambda inputs, labels: {"natural": model(inputs).argmax(dim=1) == labels}


def run(folder, resume=False, **changes):
    data = load_data("digits", "train"), load_data("digits", "test")
    config = TrainConfig(**{**SETTINGS, **changes})
    return train(config, RunFolder(folder), data, evaluate=evaluator, resume=resume)


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != ".lock"}


def load_state(folder):
    return checkpoint.load_state(RunFolder(folder).state_file)


def same(a, b):
    """Equal bit for bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    ("how", "model"),
    [(signal.SIGTERM, "sll_nano"), (signal.SIGKILL, "sll_sampled_surrogate_nano")],  # the second draws at each step
    ids=["terminated", "killed"],
)
def test_an_interrupted_run_ends_bit_for_bit_like_an_uninterrupted_one(tmp_path, how, model):
    flags = [*FLAGS, f"--model={model}", "--noise=0.1"]
    whole = command("train", *flags, "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "parts"
    words = ["train", *flags, "--out", str(folder)]
    for attempt in range(3):
        process = subprocess.Popen(
            [sys.executable, "-m", "lipcert", *words],
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        before = (folder / "state.pt").stat().st_mtime_ns if (folder / "state.pt").exists() else 0
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:  # until it has saved something new
            if (folder / "state.pt").exists() and (folder / "state.pt").stat().st_mtime_ns != before:
                break
            time.sleep(0.01)
        time.sleep(0.07 * attempt)
        process.send_signal(how)
        printed = process.communicate()[1].decode()
        state = load_state(folder)  # whatever happened, it loads
        load_model(folder)
        if how is signal.SIGTERM and state["step"] < 55:
            assert process.returncode == 128 + signal.SIGTERM
            assert f"training stopped at step {state['step']} of 55" in printed
            assert f"lipcert train --resume --out {folder}" in printed
            assert Run(folder).unfinished == f"training stopped at step {state['step']} of 55"
        words = ["train", "--resume", "--out", str(folder)]
    assert state["step"] <= 55
    last = command(*words)
    assert last.returncode == 0, last.stderr
    ours, theirs = load_state(folder), load_state(tmp_path / "whole")
    assert same(ours, theirs)
    assert (folder / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    for name in ("model.safetensors", "frozen.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    content = files(folder)
    assert command(*words).returncode == 0  # a finished run stays as it is
    assert content == files(folder)


def test_noise_is_gaussian_and_comes_after_the_augmentation(tmp_path):
    data = load_data("digits", "train"), load_data("digits", "test")
    batch = torch.arange(512)

    def inputs(step=0, **changes):
        trainer = Trainer(TrainConfig(**SETTINGS, augment="flip", **changes), RunFolder(tmp_path), data, evaluator)
        trainer.step = step
        return trainer._share(batch)[0]

    noisy, noise = inputs(noise=0.5), inputs(noise=0.5) - inputs()
    assert torch.equal(noisy, inputs(noise=0.5))  # a function of seed and step
    assert not torch.equal(noisy, inputs(noise=0.5, step=1))
    assert not torch.equal(noisy, inputs(noise=0.5, seed=1))
    count = noise.numel()  # six standard errors each
    assert noise.mean().abs() < 6 * 0.5 / count**0.5
    assert (noise.std() - 0.5).abs() < 6 * 0.5 / (2 * count) ** 0.5
    assert ((noise.abs() < 0.5).double().mean() - 0.6827).abs() < 6 * 0.5 / count**0.5
    assert noisy.min() < -1  # never clipped


def test_steps_end_a_run_wherever_in_an_epoch_that_is(tmp_path):
    rows = run(tmp_path, steps=14)  # an epoch has 11
    assert [row["step"] for row in rows] == [11, 14]
    assert "natural" in rows[-1]
    assert load_state(tmp_path)["step"] == 14
    record = RunFolder(tmp_path).record
    assert (record.step, record.steps, record.unfinished) == (14, 14, None)
    assert record.cpu_seconds > 0
    assert record.peak_bytes > 10**8  # torch alone is more


def test_two_processes_equal_one(tmp_path):
    """One step on all 1,400 images: the gradient of two processes is that of one, up to the order of its sums.

    Weights after many steps are no law: Adam divides by the gradient's size, so where that is near zero a rounding
    error moves a weight by the whole learning rate.
    """
    # Not the orthogonal start: its Gram is diagonal, and the gradient of log_q there is rounding and nothing else.
    flags = [*FLAGS, "--epochs=1", "--batch-size=1400", "--noise=0.1", "--overrides", "init", "xavier"]
    one = command("train", *flags, "--out", str(tmp_path / "one"))
    assert one.returncode == 0, one.stderr
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two = subprocess.run(
        [*launch, "-m", "lipcert", "train", *flags, "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=240,
        check=False,
    )
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("epoch 1/1") == 1  # only the first process speaks
    states = [load_state(tmp_path / k)["optimizer"]["state"] for k in ("one", "two")]
    tolerance = 1400 * torch.finfo(torch.float32).eps  # sums over 1,400 images in another order
    for index, parameter in states[0].items():
        mine, theirs = parameter["exp_avg"], states[1][index]["exp_avg"]  # half the gradient
        assert (mine - theirs).abs().max() <= tolerance * mine.abs().max(), index
    rows = [json.loads((tmp_path / k / "metrics.jsonl").read_text().splitlines()[-1]) for k in ("one", "two")]
    assert rows[0]["loss"] == pytest.approx(rows[1]["loss"], rel=tolerance)


def test_it_learns_and_the_config_reproduces_it(tmp_path):
    rows = run(tmp_path / "a", epochs=12, learning_rate=0.02, offset=0.7, temperature=0.1)
    assert rows[-1]["natural"] > 0.8
    again = command(
        "train", "--config", str(tmp_path / "a" / "config.json"), "--epochs=1", "--out", str(tmp_path / "b")
    )
    assert again.returncode == 0, again.stderr
    stored = json.loads((tmp_path / "b" / "config.json").read_text())
    assert stored == {**json.loads((tmp_path / "a" / "config.json").read_text()), "epochs": 1}
    model = load_model(tmp_path / "a")
    test = load_data("digits", "test")
    hits = (model(test.inputs()).argmax(dim=1) == test.labels).double().mean().item()
    assert hits == pytest.approx(rows[-1]["natural"])


def test_a_validation_split_leaves_the_test_set_alone(tmp_path):
    seen = []

    def spy(model):
        def count_hits(inputs, labels):
            seen.append(len(labels))
            return evaluator(model)(inputs, labels)

        return count_hits

    config = TrainConfig(**{**SETTINGS, "epochs": 1, "validation": 200})
    data = load_data("digits", "train"), load_data("digits", "test")
    rows = train(config, RunFolder(tmp_path), data, evaluate=spy)
    assert sum(seen) == 200
    assert rows[-1]["step"] == 10  # 1200 images
    with pytest.raises(ValueError, match="below the 1400 training images, got 1400"):
        train(TrainConfig(**{**SETTINGS, "validation": 1400}), RunFolder(tmp_path / "x"), data, evaluate=spy)


@pytest.mark.parametrize(
    "changes",
    [{"precision": "bf16"}, {"clip_norm": 0.1}, {"augment": "flip"}, {"ema": None}, {"schedule": "linear"}],
)
def test_options_run_and_matter(tmp_path, changes):
    run(tmp_path / "plain", epochs=1)
    run(tmp_path / "changed", epochs=1, **changes)
    plain, changed = load_state(tmp_path / "plain"), load_state(tmp_path / "changed")
    key = "average" if "ema" in changes else "model"
    assert not same(plain[key], changed[key])
    assert all(torch.isfinite(v).all() for v in changed["model"].values())


SETTING_OF_LOSS = {
    "offset": {"offset": 0.1, "temperature": 0.5},
    "multi-margin": {"margin": 0.3},
    "margin-boosting": {"weight": 0.2},
    "logit-annealing": {"offset": 0.5, "temperature": 0.5, "beta": 1.0},
    "emma": {"epsilon": 0.2, "epsilon_schedule": "fixed"},
    "emma-annealing": {
        "epsilon": 0.2,
        "epsilon_schedule": "fixed",
        "offset": 0.5,
        "temperature": 0.5,
        "beta": 1.0,
    },
    "gloro": {"epsilon": 0.3, "epsilon_schedule": "half"},
    "gloro-trades": {"epsilon": 0.3, "epsilon_schedule": "fixed", "weight": 2.0, "weight_schedule": "linear"},
    "certificate": {"gamma": 0.7},
    "kr": {},
    "hkr": {"alpha": 0.5, "margin": 0.3},
}


@pytest.mark.parametrize("loss", SETTING_OF_LOSS)
def test_every_loss_trains_and_each_of_its_settings_matters(tmp_path, loss):
    settings = SETTING_OF_LOSS[loss]
    assert set(settings) == set(LOSS_SETTINGS[loss])
    first, *_, last = run(tmp_path / "plain", epochs=4, learning_rate=0.02, loss=loss)
    assert last["natural"] > 0.3  # chance is 0.1
    assert loss.startswith("emma") or last["loss"] < first["loss"]  # emma's radius grows meanwhile
    (plain,) = run(tmp_path / "short", steps=4, learning_rate=0.02, loss=loss)
    for name, value in settings.items():
        (changed,) = run(tmp_path / name, steps=4, learning_rate=0.02, loss=loss, **{name: value})
        assert not same(load_state(tmp_path / "short")["model"], load_state(tmp_path / name)["model"])
        assert changed["loss"] != plain["loss"]


def test_a_setting_of_another_loss_is_an_error(tmp_path):
    for loss, known in LOSS_SETTINGS.items():
        for name in {n for names in LOSS_SETTINGS.values() for n in names} - set(known):
            with pytest.raises(ValueError, match=f"{name} is not a setting of the loss '{loss}'"):
                TrainConfig(loss=loss, **{name: "fixed" if name.endswith("schedule") else 0.5})
    assert "margin is not a setting of the loss 'offset'" in refused(
        "train", "--margin=1", "--out", str(tmp_path / "x")
    )


def test_the_pairwise_losses_see_the_head(tmp_path):
    """Certificate regularisation divides by the distance of the head's rows, not by a default of √2."""
    model = create_model("sll_nano", image_shape=(1, 8, 8))
    with torch.no_grad():
        model[1].weight[1] = -model[1].weight[0]
    logits, images = torch.zeros(1, 10), torch.zeros(1, 1, 8, 8)
    logits[0, 0] = 1.0
    labels = torch.tensor([0])
    loss = make_loss(TrainConfig(loss="certificate", gamma=1.0))(model, images, logits, labels, 1.0)
    rows = model[1].rows()
    radius = 1 / (rows[0] - rows[1:]).norm(dim=1).max()
    assert rows[1].allclose(-rows[0])
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, labels) - radius)
    assert [growth_factor(p, "half") for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1 / 30, 15.5 / 30, 1, 1])
    assert [growth_factor(p, "linear") for p in (0.0, 0.5, 1.0)] == pytest.approx([0.01, 0.505, 1])
    assert [growth_factor(p, "fixed") for p in (0.0, 1.0)] == [1, 1]


def test_overrides_from_the_command_line_change_the_architecture(tmp_path):
    flags = [*FLAGS, "--epochs=1", "--overrides", "dense_layers", "1", "activation", "tanh", "std", "0.5"]
    done = command("train", *flags, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    model = load_model(tmp_path / "run")
    assert len([m for m in model.modules() if isinstance(m, lc.ResidualLinear)]) == 1
    assert {m.activation.name for m in model.modules() if isinstance(m, lc.ResidualLinear)} == {"tanh"}
    assert isinstance(model[0][0], lc.layers.Normalize)
    for words in (["dense_layer", "1"], ["dense_layers", "many"], ["channels", "1"], ["activation", "gelu"]):
        wrong = refused("train", *FLAGS, "--overrides", *words, "--out", str(tmp_path / "new"))
        assert words[0] in wrong or "GELU" in wrong.upper(), wrong
        assert not (tmp_path / "new").exists()


def test_tensorboard_has_the_rows_of_the_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = run(tmp_path, epochs=2, tensorboard=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    for name in ("loss", "natural"):
        assert [e.value for e in events.Scalars(name)] == pytest.approx([row[name] for row in rows])


def test_divergence_keeps_the_last_good_state(tmp_path):
    run(tmp_path / "good", epochs=1)
    with pytest.raises(Diverged, match=r"the loss became (nan|inf) .* step \d+ of .*Lower --learning-rate"):
        run(tmp_path / "bad", epochs=3, learning_rate=1e38)
    for file in (tmp_path / "bad").glob("state.pt"):
        assert file.stat().st_size
        assert all(torch.isfinite(v).all() for v in load_state(tmp_path / "bad")["model"].values())


def test_schedule_is_piecewise_triangular():
    expected = {0.0: 0.0, 0.2: 0.5, 0.4: 1.0, 0.6: 0.525, 0.8: 0.05, 0.9: 0.025, 1.0: 0.0}
    for progress, factor in expected.items():
        assert learning_rate_factor(progress) == pytest.approx(factor, abs=1e-12)
    for progress, factor in {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.55: 0.5, 1.0: 0.0}.items():
        assert learning_rate_factor(progress, "linear") == pytest.approx(factor, abs=1e-12)


def refused(*words):
    result = command(*words)
    assert result.returncode == 2, result
    assert "Traceback" not in result.stderr
    return result.stderr


def test_bad_input_is_one_line_and_loses_nothing(tmp_path):
    folder = tmp_path / "run"
    run(folder, epochs=1)
    content = files(folder)
    assert "is not empty" in refused("train", "--out", str(folder))
    assert "is not a run folder" in refused("train", "--resume", "--out", str(tmp_path / "nothing"))
    assert "takes no other flags" in refused("train", "--resume", "--epochs=3", "--out", str(folder))
    bad = tmp_path / "config.json"
    bad.write_text(json.dumps({"epochs": 1, "lerning_rate": 0.1}))
    assert "no field 'lerning_rate'; did you mean 'learning_rate'?" in refused("train", "--config", str(bad))
    bad.write_text("{")
    assert "config.json" in refused("train", "--config", str(bad))
    assert "must name a config.json" in refused("train", "--config", str(tmp_path / "none.json"))
    assert "greater than or equal to 1" in refused("train", "--epochs=0", "--out", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert content == files(folder)


def limit_files():
    """No file of more than 30 kB: what a full disk looks like to the program that writes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))


def test_a_full_disk_or_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    assert "file" in refused("train", *FLAGS, "--out", str(tmp_path / "file" / "run"))
    run(tmp_path / "run", epochs=2)
    words = ["train", "--resume", "--out", str(tmp_path / "run")]
    state = load_state(tmp_path / "run")
    state["step"] -= 3
    torch.save(state, tmp_path / "run" / "state.pt")
    RunFolder(tmp_path / "run").write_record(step=state["step"])
    content = files(tmp_path / "run")
    full = command(*words, preexec_fn=limit_files)
    assert full.returncode == 2, full
    last = full.stderr.strip().splitlines()[-1]
    assert "could not be written" in last
    assert "Free some space" in last
    assert "Traceback" not in full.stderr
    assert content == files(tmp_path / "run")
    assert command(*words).returncode == 0  # and with room again it goes on


def test_a_state_of_another_model_is_refused(tmp_path):
    run(tmp_path / "nano", epochs=1)
    run(tmp_path / "other", epochs=1, model="aol_nano")
    (tmp_path / "nano" / "state.pt").write_bytes((tmp_path / "other" / "state.pt").read_bytes())
    RunFolder(tmp_path / "nano").write_record(step=1)
    assert "other settings" in refused("train", "--resume", "--out", str(tmp_path / "nano"))
    weights = (tmp_path / "other" / "model.safetensors").read_bytes()
    header = int.from_bytes(weights[:8], "little")
    text = weights[8 : 8 + header].replace(b'\\"aol\\"', b'\\"sll\\"')
    assert text != weights[8 : 8 + header]
    (tmp_path / "x.safetensors").write_bytes(weights[:8] + text + weights[8 + header :])
    with pytest.raises(ValueError, match="damaged or not a model of lipcert"):
        load_model(tmp_path / "x.safetensors")


@pytest.fixture(scope="module")
def weights_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    run(folder, epochs=1)
    return (folder / "model.safetensors").read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_model_file_crashes_its_reader(weights_file, tmp_path, data):
    """Bit flips anywhere, mostly in the header, and truncations: a ValueError, or a network of finite shape."""
    content = bytearray(weights_file)
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        end = header if data.draw(st.booleans()) else len(content)
        content[data.draw(st.integers(0, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    content = content[: data.draw(st.sampled_from([len(content), header, header + 100, 9, 0]))]
    (tmp_path / "model.safetensors").write_bytes(content)
    with contextlib.suppress(ValueError):
        assert isinstance(load_model(tmp_path), torch.nn.Sequential)


def test_a_model_file_that_lies_about_its_size_allocates_nothing(tmp_path):
    run(tmp_path, epochs=1)
    weights = (tmp_path / "model.safetensors").read_bytes()
    size = int.from_bytes(weights[:8], "little")
    for old, new in (
        (b'"channels\\": 32', b'"channels\\": 9999999'),
        (b'"conv_layers\\": 4', b'"conv_layers\\": 9999999'),
    ):
        header = weights[8 : 8 + size].replace(old, new)
        assert header != weights[8 : 8 + size]
        (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + weights[8 + size :])
        with pytest.raises(ValueError, match=r"conv_layers|damaged"):
            load_model(tmp_path / "x.safetensors")


class _Malice:
    def __reduce__(self):
        return os.system, ("touch HACKED",)


def test_damaged_and_malicious_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(tmp_path, epochs=1)
    state, weights = (tmp_path / "state.pt").read_bytes(), (tmp_path / "model.safetensors").read_bytes()
    for damaged in (b"", state[:100], state[: len(state) // 2], pickle.dumps(_Malice()), b"\0" * 1000):
        (tmp_path / "state.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match="not a training state of"):
            run(tmp_path, epochs=1, resume=True)
    for damaged in (b"", weights[:50], weights[: len(weights) // 2], b"\xff" * 100):
        (tmp_path / "model.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged or not a model of lipcert"):
            load_model(tmp_path)
    assert not (tmp_path / "HACKED").exists()
    (tmp_path / "state.pt").write_bytes(state)
    with pytest.raises(ValueError, match="other settings"):
        run(tmp_path, epochs=2, resume=True)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process does not inherit the peak of its starter")
def test_peak_memory_is_not_the_starters():
    """What compare starts from a process of 2 GB must not report 2 GB."""
    code = "from lipcert.training.loop import peak_bytes; print(peak_bytes())"
    held = bytearray(2**30)
    held[:: 2**12] = b"x" * (len(held) // 2**12)  # touch every page
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(started.stdout) < len(held)
    assert peak_bytes() >= len(held)


def test_the_mean_of_the_images_needs_no_copy_of_them():
    code = """
import torch
from lipcert.data.dataset import ImageData
from lipcert.training.config import TrainConfig
from lipcert.training.loop import peak_bytes, spec_of

images = torch.arange(100_000 * 2, dtype=torch.int64).view(-1, 2, 1, 1).remainder(251).to(torch.uint8)
images = images.expand(-1, -1, 32, 32).contiguous()  # 200 MB
data = ImageData(images, torch.zeros(100_000, dtype=torch.int64), ("a", "b"), "made", "train")
before = peak_bytes()
mean = spec_of(TrainConfig(model="sll_nano"), data).mean
assert peak_bytes() - before < 20e6, peak_bytes() - before
exact = [(torch.arange(100_000) * 2 + channel).remainder(251).double().mean() / 255 for channel in range(2)]
assert all(abs(a - b) <= 5.0001e-7 for a, b in zip(mean, exact, strict=True)), (mean, exact)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
