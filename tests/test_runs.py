"""A run folder: one owner of its files, one frozen network, results that are never replaced silently."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch

import lipcert as lc
from lipcert.check import main as check
from lipcert.data.registry import load_data
from lipcert.files import atomic_file, locked, sha256_file
from lipcert.records import METHODS, RunFolder
from lipcert.runs import require_new
from lipcert.training.checkpoint import load_model, load_state
from lipcert.training.loop import Stopped

CONFIG = lc.TrainConfig(model="sll_nano", data="digits", epochs=2, batch_size=200, threads=1, checkpoint_every=1e-9)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short training, audited, certified and attacked."""
    run = lc.train(CONFIG, tmp_path_factory.mktemp("runs") / "run")
    run.audit()
    run.certify(examples=40)
    run.attack("quick", examples=6, eps=["0.5"])
    return run


@pytest.fixture
def run(finished, tmp_path):
    return lc.Run(shutil.copytree(finished.folder, tmp_path / "run"))


def files(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name != ".lock"}


def test_a_run_holds_the_records_of_its_files(finished):
    finished.check()
    assert finished.settings == CONFIG
    assert finished.unfinished is None
    assert [row["epoch"] for row in finished.metrics] == [1, 2]
    assert finished.audited.ok
    assert finished.holds
    assert len(finished.examples) == finished.certified_about.examples == 40
    assert finished.certified_about.device == "cpu"
    assert [record.method for record in finished.attacks] == ["quick"]
    row = finished.attacked.rows[0]
    assert row.certified <= row.attacked <= row.natural
    assert finished.certified(1.0) <= finished.certified(0.1) <= finished.natural
    assert (finished.data, finished.model_name) == ("digits", "sll_nano")


def test_a_run_prints_what_it_holds(finished, tmp_path):
    first, trained, certified, attacked, row = str(finished).splitlines()
    assert first == f"{finished.folder}: sll_nano on digits"
    assert trained.startswith("trained to epoch 2: natural ")
    assert (
        f"lipschitz, 40 inputs: natural {finished.natural:.1%}, 36/255 {finished.certified(36 / 255):.1%}"
        in certified
    )
    assert attacked == "attack quick on 6 inputs"
    assert f"0.5: natural {finished.attacked.rows[0].natural:.1%}" in row
    assert repr(finished) == f"Run({str(finished.folder)!r})"
    assert str(lc.Run(tmp_path / "none")) == f"{tmp_path / 'none'}: no run"


def test_the_frozen_network_is_stored_once_and_is_what_is_certified(finished):
    fresh = lc.freeze(finished.model())
    stored = lc.Run(finished.folder).frozen()
    assert fresh.state_dict().keys() == stored.state_dict().keys()
    assert all(torch.equal(a, b) for a, b in zip(fresh.buffers(), stored.buffers(), strict=True))
    assert finished.record.frozen == sha256_file(finished.frozen_file)
    assert finished.certificate.weights == "frozen.safetensors"
    assert not (finished.folder / "certificate.safetensors").exists()
    assert check([str(finished.certificate_file)]) == 0


def test_other_weights_are_frozen_again(run):
    before = run.record.frozen
    tensors = load_model(run.folder).state_dict()
    from lipcert.training.checkpoint import save_weights

    save_weights(run.model_file, {name: tensor * 0.5 for name, tensor in tensors.items()}, run.spec)
    again = lc.Run(run.folder)
    again.frozen()
    assert again.record.frozen != before
    assert again.record.frozen_from == again.weights
    for command in ("audit", "certify"):
        with pytest.raises(ValueError, match=rf"about other weights.*lipcert {command}"):
            again.check()
        (again.audit_file if command == "audit" else again.certified_file).unlink()
        again.refresh()


def test_a_damaged_frozen_network_is_made_again(run):
    whole = run.frozen_file.read_bytes()
    run.frozen_file.write_bytes(whole[:-4] + b"\0\0\0\0")
    run.frozen()
    assert run.frozen_file.read_bytes() == whole


def test_the_same_settings_return_what_is_there(run):
    before = files(run.folder)
    assert run.certify(examples=40) is run
    run.attack("quick", examples=6, eps=["0.5"])
    assert files(run.folder) == before


def test_other_settings_are_refused_until_restart(run, tmp_path):
    before = files(run.folder)
    with pytest.raises(ValueError, match=r"radii of 40 images of digits\. Add --restart"):
        run.certify(examples=5)
    for changes in ({"examples": 5}, {"eps": ["0.25"]}, {"seed": 1}, {"everything": True}):
        with pytest.raises(ValueError, match=r"attack on 6 images with other settings.*--restart"):
            run.attack("quick", **{"examples": 6, "eps": ["0.5"], **changes})
    assert files(run.folder) == before
    other = run.certify(examples=5, out=tmp_path / "other")
    assert files(run.folder) == before
    assert len(other.examples) == 5
    assert check([str(other.certificate_file)]) == 0
    run.certify(examples=5, restart=True)
    assert len(run.examples) == 5
    assert run.attack("quick", examples=3, eps=["0.25"], restart=True).examples == 3
    run.attack("pgd", examples=2, eps=["0.25"])
    assert [record.method for record in run.attacks] == ["pgd", "quick"]  # the stronger one first
    run.check()


@pytest.mark.parametrize("renames", range(4))
def test_a_certification_that_is_killed_between_its_files_is_repeated(run, finished, monkeypatch, renames):
    class Killed(BaseException):
        pass

    left, replace = [renames], Path.replace

    def replace_or_die(path, target):
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_or_die)
        with pytest.raises(Killed):
            run.certify(examples=30, restart=True)
    killed = lc.Run(run.folder)
    assert killed.certified_about is None  # so nothing says that the radii are there
    killed.certify(examples=40)
    killed.check()
    for name in ("certified.jsonl", "certified.json", "certificate.json"):
        assert (run.folder / name).read_bytes() == (finished.folder / name).read_bytes()


def test_certified_rows_without_a_record_are_not_believed(run):
    """As a kill between two files leaves it."""
    truth = [row.radius for row in run.examples[:6]]
    rows = [{**row.model_dump(), "radius": 10.0 * (row.radius > 0)} for row in run.examples]
    run.examples_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run.certified_file.unlink()
    run.refresh()
    images = run.test_data().take(slice(0, 6), split="test")
    found = list(run._claims(images, lambda done, total: None).radii)
    assert found == pytest.approx(truth, rel=1e-12)  # sums of another batch are added in another order


def change_json(path, **changes):
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **changes}), encoding="utf-8")


def larger_radius(run):
    rows = [row.model_dump() for row in run.examples]
    certified = next(row for row in rows if row["radius"] > 0)
    certified["radius"] *= 2
    run.examples_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def attacked_above_natural(run):
    row = json.loads(run.attack_file("quick").read_text(encoding="utf-8"))["rows"][0]
    change_json(run.attack_file("quick"), rows=[{**row, "natural": row["attacked"] / 2}])


CONTRADICTIONS = {
    "an audit of other weights": (lambda run: change_json(run.audit_file, weights="0" * 64), "audit.json"),
    "an attack on other weights": (lambda run: change_json(run.attack_file("quick"), weights="0"), "attack-quick"),
    "radii of other weights": (lambda run: change_json(run.certified_file, weights="0"), "certified.json"),
    "radii of other images": (lambda run: change_json(run.certified_file, images="0"), "different images"),
    "a larger radius": (larger_radius, "certificate.json differ at index"),
    "attacked above natural": (attacked_above_natural, "certified ≤ attacked ≤ natural at eps 0.5"),
    "no certificate": (lambda run: run.certificate_file.unlink(), "no certificate.json beside it"),
    "a damaged record": (lambda run: run.run_file.write_text("{"), "is not run.json"),
    "another version": (lambda run: change_json(run.run_file, format="lipcert-run-1"), "run.json"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_files_that_do_not_belong_together_are_refused(run, name):
    contradict, expected = CONTRADICTIONS[name]
    contradict(run)
    with pytest.raises(ValueError, match=expected):
        lc.Run(run.folder).check()


def test_folders_without_a_run_are_refused(run, tmp_path):
    with pytest.raises(ValueError, match="is not a run folder"):
        lc.Run(tmp_path / "nothing").model()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no run"):
        lc.Run(tmp_path / "empty").certify()
    run.run_file.unlink()  # what earlier versions wrote has none
    with pytest.raises(ValueError, match="older version of lipcert"):
        lc.Run(run.folder).audit()


def test_a_second_process_is_kept_out(run):
    with locked(run.folder):
        for work in (run.audit, lambda: run.certify(restart=True), lambda: run.attack("pgd", examples=1)):
            with pytest.raises(ValueError, match=rf"in use by another lipcert process \({os.getpid()}\)"):
                work()
    run.audit()


def test_files_have_the_permissions_of_new_files(finished, tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    expected = stat.S_IMODE(plain.stat().st_mode)
    for path in finished.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == expected, path.name


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")

    def write(error):
        with atomic_file(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(OSError, match="could not be written"):
        write(RuntimeError("PytorchStreamWriter failed writing file data/0"))
    with pytest.raises(RuntimeError, match="another reason"):
        write(RuntimeError("another reason"))
    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def interrupt_after(steps):
    def show(step):
        if step.step == steps:
            os.kill(os.getpid(), 2)  # SIGINT

    return show


def test_an_interrupted_training_says_so_and_its_results_go_with_its_weights(finished, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stopped, match="stopped at step 3 of 14"):
        lc.train(CONFIG, folder, show=interrupt_after(3))
    half = lc.Run(folder)
    assert half.unfinished == "training stopped at step 3 of 14"
    assert str(half).splitlines()[1] == half.unfinished
    half.audit()
    half.certify(examples=5)
    half.check()
    whole = lc.train(CONFIG, folder, resume=True)
    assert whole.unfinished is None
    assert whole.audited is None
    assert whole.certificate is None
    whole.check()
    assert whole.model_file.read_bytes() == finished.model_file.read_bytes()
    assert whole.frozen_file.read_bytes() == finished.frozen_file.read_bytes()


def test_a_training_that_was_killed_before_its_first_checkpoint_is_resumed(finished, tmp_path):
    def kill(step):
        raise MemoryError

    slow = CONFIG.model_copy(update={"checkpoint_every": 1e9})
    with pytest.raises(MemoryError):
        lc.train(slow, tmp_path / "killed", show=kill)
    killed = RunFolder(tmp_path / "killed")
    assert killed.exists
    assert not killed.state_file.exists()
    with pytest.raises(ValueError, match="--resume"):
        lc.train(slow, killed.folder)
    resumed = lc.train(slow, killed.folder, resume=True)
    assert resumed.unfinished is None
    assert resumed.weights == finished.weights


def test_a_training_starts_from_given_weights(finished, tmp_path):
    config = CONFIG.model_copy(update={"init": str(finished.folder), "steps": 1, "learning_rate": 1e-12})
    run = lc.train(config, tmp_path / "longer")
    assert run.record.init == finished.weights
    for name, tensor in load_state(run.state_file)["model"].items():
        torch.testing.assert_close(tensor, load_state(finished.state_file)["model"][name], rtol=0, atol=1e-9)
    other = config.model_copy(update={"overrides": {"dense_layers": 1}})
    with pytest.raises(ValueError, match=r"--init .* do not fit this network"):
        lc.train(other, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"precision": "fp16"}, "fp16 needs a CUDA device"), ({"device": "cuda"}, "--device cuda is not available")],
)
def test_what_this_machine_cannot_do_is_refused_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        lc.train(CONFIG.model_copy(update=changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_new_and_empty_folders_are_filled(finished, tmp_path):
    with pytest.raises(ValueError, match="is not empty"):
        lc.train(CONFIG, finished.folder)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        require_new(tmp_path / "file")
    require_new(tmp_path / "new")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".123.config.json").touch()  # what a killed process leaves
    require_new(tmp_path / "new")


def test_load_opens_what_lipcert_writes(finished, tmp_path):
    images = load_data("digits", "test").inputs()[:4]
    trained, frozen = finished.model(), finished.frozen()
    exported = tmp_path / "network.safetensors"
    finished.export("torch", exported)
    download = tmp_path / "download"
    lc.CertifiedModel(finished.folder).save_pretrained(download)
    for path in (finished.folder, finished.model_file):
        assert torch.equal(lc.load(path)(images), trained(images))
    for path in (exported, download, finished.frozen_file):
        assert torch.equal(lc.load(path)(images), frozen(images))
    with pytest.raises(ValueError, match=r"network\.onnx"):
        lc.load(tmp_path / "network.onnx")
    with pytest.raises(ValueError, match="a file of the run itself"):
        finished.export("torch", finished.frozen_file)


def test_every_file_name_is_owned_by_the_folder():
    """No other module of the package names a file of a run."""
    source = Path(lc.__file__).parent
    names = [path.name for path in vars(RunFolder("x")).values() if isinstance(path, Path)][1:]
    names = [
        name
        for name in names
        if name not in ("model.safetensors", "certificate.json", "config.json", "report.html")
    ]
    for path in source.rglob("*.py"):
        if path.name in ("records.py", "check.py", "certificate.py", "hub.py"):
            continue
        text = path.read_text(encoding="utf-8")
        code = "\n".join(line for line in text.splitlines() if '"""' not in line and "``" not in line)
        assert [name for name in names if f'"{name}"' in code or f"/ '{name}'" in code] == [], path
    assert METHODS == ("autoattack", "pgd", "quick")
