"""Checkpoints of the paper's code: the imported network is the function that was trained."""

import math
import os
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lipcert as lc
from lipcert.models.published import MEANS, from_published, read_published
from lipcert.training.checkpoint import load_model
from processes import command


class PaperConv(nn.Module):
    """Written from the paper: h(x) = x − 2WT⁻¹σ(Wᵀx + b), with q and 1/q on one axis as in its code."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(hidden, channels, 3, 3) / 3)
        self.bias = nn.Parameter(torch.randn(1, hidden, 1, 1) / 9)
        self.q = nn.Parameter(torch.randn(hidden))

    def forward(self, x):
        gram = F.conv2d(self.kernel, self.kernel, padding=2).abs()
        q = self.q.exp().reshape(-1, 1, 1, 1)
        t = (gram * q / q).sum((1, 2, 3)).reshape(1, -1, 1, 1)
        return x - 2 * F.conv_transpose2d(
            F.relu(F.conv2d(x, self.kernel, padding=1) + self.bias) / t, self.kernel, padding=1
        )


class PaperDense(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, features) / 4)
        self.bias = nn.Parameter(torch.randn(1, hidden) / 9)
        self.q = nn.Parameter(torch.randn(hidden))

    def forward(self, x):
        gram = (self.weight @ self.weight.T).abs()
        t = (gram * torch.exp(self.q[None] - self.q[:, None])).sum(1)
        return x - 2 * (F.relu(x @ self.weight.T + self.bias) / t) @ self.weight


class PaperPad(nn.Module):
    def forward(self, x):
        return F.pad(x, (0, 0, 0, 0, 0, 6 - x.shape[1]))


class PaperHead(nn.Linear):
    def forward(self, x):
        return F.linear(x, F.normalize(self.weight, dim=1), self.bias)


class Wrapped(nn.Module):
    """The two levels called ``model`` of the paper's code, and the mean shift that has no tensors."""

    def __init__(self, model, mean):
        super().__init__()
        self.model, self.mean = model, mean

    def forward(self, x):
        return self.model(x - torch.tensor(self.mean).to(x)[:, None, None])


class Network(nn.Module):
    def __init__(self, size, classes, convolutions=3, dense=2):
        super().__init__()
        features = 6 * (size // 4) ** 2
        self.model = nn.Sequential(
            PaperPad(),
            *(PaperConv(6, 5) for _ in range(convolutions)),
            nn.AvgPool2d(4, divisor_override=4),
            nn.Flatten(),
            *(PaperDense(features, 16) for _ in range(dense)),
            PaperHead(features, classes),
        )

    def forward(self, x):
        return self.model(x)


def write(path, size=32, classes=10, **shape):
    """A file as the paper's code writes one, and the network it came from."""
    torch.manual_seed(size + classes)
    network = nn.DataParallel(Wrapped(Network(size, classes, **shape), MEANS[size, classes]))
    optimizer = torch.optim.Adam(network.parameters(), 0.01, (0.5, 0.9))
    state = {"epoch": 3, "global_step": 99, "model_state_dict": network.state_dict()}
    torch.save({**state, "optimizer_state_dict": optimizer.state_dict()}, path)
    return network.module


@pytest.mark.parametrize(("size", "classes"), MEANS)
def test_the_imported_network_is_the_same_function(tmp_path, size, classes):
    network = write(tmp_path / "model.ckpt-99.pth", size, classes).double()
    done = command("import", str(tmp_path / "model.ckpt-99.pth"), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "3 convolutions of 6 channels, 2 dense layers" in done.stdout
    ours = load_model(tmp_path / "run").double()
    assert lc.lipschitz_bound(ours[0]) <= 1 + 1e-6
    x = torch.rand(4, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        expected, got = network(x), ours(x)
    # The mean is stored in float32: half an ulp of 0.5 per input, through a map of constant √classes at most.
    tolerance = math.sqrt(3 * classes) * size * 2**-25 + 1e-12
    assert (expected - got).abs().max() <= tolerance


def test_every_tensor_has_an_effect_but_the_cancelled_q(tmp_path):
    write(tmp_path / "a.pth")
    state = read_published(tmp_path / "a.pth")
    spec, before = from_published(state)
    for name in state:
        _, after = from_published({**state, name: state[name] + 0.25})
        changed = [k for k in before if not torch.equal(before[k], after[k])]
        inert = name.endswith(".q") and name.replace(".q", ".kernel") in state
        assert len(changed) == (0 if inert else 1), name
    assert spec.mean == MEANS[32, 10]
    assert from_published(state, (0.0, 0.0, 0.0))[0].mean == (0.0, 0.0, 0.0)


def renamed(state, pattern, by):
    return {re.sub(pattern, by, name): tensor for name, tensor in state.items()}


def test_other_files_are_refused_in_one_line(tmp_path):
    write(tmp_path / "good.pth")
    state = read_published(tmp_path / "good.pth")
    plain = renamed(state, "^module[.]", "")  # saved without DataParallel
    assert from_published(plain)[0] == from_published(state)[0]
    wide = {k: torch.zeros(5, 6, 5, 5) if k.endswith("kernel") else v for k, v in state.items()}
    bad = [
        renamed(state, "kernel", "weights"),
        {k: v for k, v in state.items() if not k.endswith("model.2.kernel")},
        {k: v for k, v in state.items() if "model.model.2." not in k},
        {**state, "module.model.model.2.q": torch.zeros(4)},
        {**state, "module.model.model.8.extra": torch.zeros(4)},
        {k: v for k, v in state.items() if not k.endswith("8.bias")},
        wide,
        {},
    ]
    for wrong in bad:
        with pytest.raises(ValueError, match=r"layout of the paper's code.*; got .*Only its SLL networks"):
            from_published(wrong)
    with pytest.raises(ValueError, match="finite"):
        from_published({**state, "module.model.model.2.q": torch.full((5,), torch.nan)})
    with pytest.raises(ValueError, match=r"32×32 images with 7 classes.*--mean"):
        from_published({k: v[:7] if ".8." in k else v for k, v in state.items()})


class _Malice:
    def __reduce__(self):
        return os.system, ("touch HACKED",)


def test_no_code_of_a_checkpoint_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model_state_dict": _Malice()}, "evil.pth")
    (tmp_path / "short.pth").write_bytes((tmp_path / "evil.pth").read_bytes()[:60])
    torch.save([1, 2], "list.pth")
    for name in ("evil.pth", "short.pth", "list.pth", "none.pth"):
        done = command("import", name, "--out", "run")
        assert done.returncode == 2, done
        assert len(done.stderr.strip().splitlines()) == 1
        assert not (tmp_path / "run").exists()
    assert not (tmp_path / "HACKED").exists()
    write(tmp_path / "good.pth")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    assert "new or empty folder" in command("import", "good.pth", "--out", "run").stderr
