"""Certification: radii that no search breaks, rounding errors within bounds, answers that never contradict."""

import dataclasses
import json
import math
import re
import subprocess
import sys
import weakref
from typing import ClassVar

import flint
import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.certified import ops
from lipcert.certified.certificate import write_certificate
from lipcert.certified.certify import errors_along, walk
from lipcert.certified.freeze import freeze, prove
from lipcert.certified.network import Part
from lipcert.check import check
from lipcert.data.registry import load_data
from lipcert.verified.rounding import U32, U64
from processes import ENVIRONMENT, command


@pytest.fixture(scope="module")
def trained():
    """A small convolutional network on the digits, trained for real, and the test digits."""
    torch.manual_seed(0)
    train, test = load_data("digits", "train"), load_data("digits", "test")
    backbone = nn.Sequential(
        lc.layers.Center([0.3]), lc.layers.SpaceToDepth(2), lc.layers.PadChannels(8), lc.ResidualConv2d(8, 6),
        nn.Flatten(), lc.ResidualLinear(128, 48), lc.ResidualLinear(128, 48, bound="aol"),
    )  # fmt: skip
    model = nn.Sequential(backbone, lc.NormalizedHead(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.02, (0.5, 0.9))
    loss = lc.losses.OffsetCrossEntropy(0.7, 0.1)
    for _ in range(6):
        for batch in torch.randperm(1400).split(100):
            optimizer.zero_grad()
            loss(model(train.inputs()[batch]), train.labels[batch]).backward()
            optimizer.step()
    return freeze(model), test


def test_radii_survive_a_search_and_cost_almost_nothing(trained):
    frozen, test = trained
    x, labels = test.inputs(), test.labels
    result, real = lc.certify(frozen, x, labels), lc.certify(frozen, x, labels, arithmetic="real")
    assert result.natural_accuracy > 0.85
    assert result.certified_accuracy(36 / 255) > 0.6
    assert (result.radii <= real.radii).all()
    assert (real.radii - result.radii).max() < 1e-9
    assert result.certified_accuracy(0.0) <= result.natural_accuracy
    assert re.fullmatch(
        r"CertificationResult\(397 inputs, \d+ certified; l2 radii: .*median 0\..*float64\)", repr(result)
    )
    # A step of exactly the radius, along the gradient of the smallest margin, and projected ascent inside the ball.
    wide, some = frozen.double(), result.radii > 0
    base, y, radius = x[some].double(), labels[some], result.radii[some]
    point = base.clone()
    for _ in range(30):
        point.requires_grad_()
        logits = wide(point)
        rival = logits.scatter(1, y[:, None], -math.inf).amax(dim=1)
        (slope,) = torch.autograd.grad((rival - logits.gather(1, y[:, None])[:, 0]).sum(), point)
        with torch.no_grad():
            step = point + slope * (radius / 4 / slope.flatten(1).norm(dim=1).clamp_min(1e-12)).view(-1, 1, 1, 1)
            moved = step - base
            length = moved.flatten(1).norm(dim=1).clamp_min(1e-300)
            scale = (radius * (1 - 1e-12) / length).clamp_max(1.0)
            point = base + moved * scale.view(-1, 1, 1, 1)
            assert (wide(point).argmax(dim=1) == y).all()
    frozen.float()


def test_rows_and_result_say_the_same(trained):
    frozen, test = trained
    result = lc.certify(frozen, test.inputs()[:50], test.labels[:50], batch_size=7)
    whole = lc.certify(frozen, test.inputs()[:50], test.labels[:50])
    torch.testing.assert_close(
        result.radii, whole.radii, rtol=1e-10, atol=1e-13
    )  # another batch, another sum order
    rows = list(result.rows())
    assert [row["radius"] for row in rows] == result.radii.tolist()
    assert all((row["radius"] == 0) or row["prediction"] == row["label"] for row in rows)
    assert result.arithmetic == "float64"


def dense_network(generator, width=6, layers=3, scale=1.0):
    parts = [lc.layers.Center([0.25] * width)]
    for _ in range(layers):
        parts.append(lc.ResidualLinear(width, width))
        with torch.no_grad():
            parts[-1].weight.copy_(torch.randn(width, width, generator=generator) * scale)
            parts[-1].bias.copy_(torch.randn(width, generator=generator))
    head = nn.Linear(width, 3)
    with torch.no_grad():
        head.weight.copy_(torch.randn(3, width, generator=generator))
    return freeze(nn.Sequential(*parts)), head


def exact_forward(modules, x):
    """In rational arithmetic: what the stored numbers mean."""
    value = [flint.fmpq(*float(v).as_integer_ratio()) for v in x]
    rational = lambda t: [[flint.fmpq(*float(v).as_integer_ratio()) for v in row] for row in t]  # noqa: E731
    for module in modules:
        if isinstance(module, ops.Normalize):
            assert (module.std == 1).all()
            value = [v - m for v, m in zip(value, rational([module.mean.tolist()])[0], strict=True)]
            continue
        weight = rational(module.weight.tolist())
        bias = rational([module.bias.tolist()])[0]
        z = [sum(w * v for w, v in zip(row, value, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
        if isinstance(module, (nn.Linear, ops.Linear)):
            value = z
            continue
        gamma = rational([module.gamma.tolist()])[0]
        t = [2 * g * max(a, flint.fmpq(0)) for g, a in zip(gamma, z, strict=True)]
        value = [v - sum(weight[i][k] * t[i] for i in range(len(t))) for k, v in enumerate(value)]
    return value


@pytest.mark.parametrize(("dtype", "u", "block"), [(torch.float64, U64, None), (torch.float32, U32, 2)])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rounding_errors_stay_within_their_bound(dtype, u, block, scale):
    """Against rational arithmetic, on inputs of every size."""
    generator = torch.Generator().manual_seed(int(math.log10(scale)) + 50)
    worst = 0.0
    for _ in range(6):
        frozen, head = dense_network(generator, scale=scale)
        links = prove(nn.Sequential(*frozen, head), (6,), dtype=dtype, block=block)
        for size in (1e-3, 1.0, 1e3):
            x = (torch.randn(1, 6, generator=generator) * size).to(dtype)
            output, sizes = walk(links, x)
            err, norms = errors_along(links, sizes, torch.zeros(1, dtype=torch.float64), u)
            exact = exact_forward([*frozen, head], x[0].tolist())
            off = [abs(flint.fmpq(*float(a).as_integer_ratio()) - b) for a, b in zip(output[0], exact, strict=True)]
            weight = head.weight.double()
            allowed = weight.norm(dim=1) * err + (7 * u * 1.01) * (weight.norm(dim=1) * norms + head.bias.abs())
            for a, b in zip(off, allowed.tolist(), strict=True):
                assert float(a) <= b
                worst = max(worst, float(a) / b)
    assert worst > 1e-4, "the bound must not be so loose that nothing could break it"


def test_ties_nan_and_infinities_have_no_radius():
    identity = nn.Sequential(nn.Identity())
    logits = torch.tensor(
        [[1.0, 1.0, 0.0], [math.nan, 0.0, 1.0], [math.inf, 0.0, 1.0], [2.0, 1.0, 0.0], [0.0, 1.0, 2.0]]
    )
    result = lc.certify(identity, logits, torch.zeros(5, dtype=torch.long))
    assert result.radii[[0, 1, 2, 4]].tolist() == [0.0] * 4
    assert result.radii[3].item() == pytest.approx(1 / math.sqrt(2), rel=1e-11)  # rounded down by 2⁻⁴⁰ a few times
    assert result.radii[3].item() < 1 / math.sqrt(2)
    assert lc.certify(identity, logits[:0], torch.zeros(0, dtype=torch.long)).radii.shape == (0,)


def test_other_constants_and_one_output():
    linear = nn.Linear(4, 3, bias=False)
    x = torch.randn(5, 4)
    labels = linear(x).argmax(dim=1)
    plain = lc.certify(nn.Sequential(linear), x, labels)
    tripled = lc.certify(nn.Sequential(lc.layers.Scale(3.0), linear), x, labels)
    torch.testing.assert_close(tripled.radii, plain.radii, rtol=1e-7, atol=0)  # margin and constant both times 3
    weight = linear.weight.detach().double()
    for row, label, radius in zip(x.double(), labels, plain.radii, strict=True):
        margins = (weight[label] - weight) @ row
        distances = (weight[label] - weight).norm(dim=1)
        exact = min(float(m / d) for j, (m, d) in enumerate(zip(margins, distances, strict=True)) if j != label)
        assert exact * (1 - 1e-6) <= radius <= exact
    binary = nn.Linear(4, 1)
    value = binary(x).detach()[:, 0]
    result = lc.certify(nn.Sequential(binary), x, (value > 0).long())
    expected = value.double().abs() / binary.weight.double().norm()
    torch.testing.assert_close(result.radii, expected.detach(), rtol=1e-5, atol=1e-7)
    wrong = lc.certify(nn.Sequential(binary), x, (value <= 0).long())
    assert (wrong.radii == 0).all()
    assert not wrong.correct.any()


def test_many_classes_examine_every_rival():
    """The nearest rival in input space need not be among the largest logits (FIELD, mistake 5)."""
    weight = torch.zeros(20, 30)
    weight[:19, :19] = torch.eye(19) * 10
    weight[0, 0], weight[19, 0] = 10.0, 9.0  # class 19: a small logit, but almost parallel to class 0
    head = nn.Linear(30, 20).requires_grad_(False)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(torch.zeros(20))
        head.bias[1:19] = 9.5
        head.bias[19] = 0.9
    x = torch.zeros(1, 30)
    x[0, 0] = 1.0
    result = lc.certify(nn.Sequential(head), x, torch.tensor([0]))
    rivals = (head.weight[0] @ x[0] + head.bias[0] - head.weight @ x[0] - head.bias).double()
    exact = (rivals / (head.weight[0] - head.weight).double().norm(dim=1))[1:]
    assert exact.argmin() != 18 or exact.min() < 0.2
    assert result.radii[0].item() == pytest.approx(float(exact.min()), rel=1e-6)


def test_what_cannot_be_proved_is_refused(trained):
    frozen, test = trained
    x, labels = test.inputs()[:3], test.labels[:3]
    with pytest.raises(lc.NotCertified, match=r"1 \(LayerNorm\): it divides by a norm of its input"):
        lc.certify(nn.Sequential(nn.Flatten(), nn.LayerNorm(64)), x, labels)
    broken = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        broken[1].weight[0, 0] = math.nan
    with pytest.raises(lc.NotCertified, match="NaN or infinity"):
        lc.certify(broken, x, labels)
    with pytest.raises(lc.NotCertified, match="vector of logits"):
        lc.certify(nn.Sequential(lc.layers.Center([0.5])), x, labels)
    with pytest.raises(ValueError, match="integer label"):
        lc.certify(frozen, x, labels.float())
    with pytest.raises(ValueError, match="labels must lie from 0 to 9"):
        lc.certify(frozen, x, labels + 10)
    with pytest.raises(ValueError, match="arithmetic must be"):
        lc.certify(frozen, x, labels, arithmetic="float16")


class Own(nn.Module):
    def forward(self, x):
        return x / 2


def test_a_users_rule_is_assumed_and_said():
    model = nn.Sequential(Own(), nn.Linear(4, 3))
    x = torch.randn(6, 4)
    assert [layer.op for layer in lc.audit(model, x).layers] == ["divide", "linear"]  # its forward is traced
    lc.register_rule(Own, lambda module: 0.5)
    report = lc.audit(model, x)
    assert [layer.verdict for layer in report.layers] == ["ASSUMED", "PROVED"]
    assert "ASSUMED" in str(report)
    labels = model(x).argmax(dim=1)
    result = lc.certify(model, x, labels, arithmetic="real")
    assert result.assumed == ("0",)
    assert result.arithmetic == "real, up to the rounding of the logits"
    with pytest.raises(lc.NotCertified, match=r"0 \(Own\).*rounding"):  # nothing would be certified
        lc.certify(model, x, labels)
    lc.register_rule(Own, lambda module: 0.25)
    refuted = lc.audit(model, x).layers[0]
    assert refuted.verdict == "REFUTED"
    pair = refuted.witness
    image = (Own()(pair.first) - Own()(pair.second)).norm() / (pair.first - pair.second).norm()
    assert image > 0.25


def test_output_intervals_hold_their_outputs():
    torch.manual_seed(3)
    model = nn.Sequential(lc.ResidualLinear(5, 4), nn.Tanh(), nn.Linear(5, 2)).double()
    x = torch.randn(4, 5).double()
    low, high = lc.output_interval(model, x, 0.3)
    frozen = freeze(model.float()).double()
    assert (low < high).all()
    for _ in range(200):
        direction = torch.randn_like(x)
        point = x + 0.3 * direction / direction.norm(dim=1, keepdim=True)
        with torch.no_grad():
            value = frozen(point)
        assert (low <= value).all()
        assert (value <= high).all()
    exact_low, exact_high = lc.output_interval(model, x, 0.0)
    assert (exact_high - exact_low).max() < 1e-12
    with pytest.raises(ValueError, match="radius must be finite"):
        lc.output_interval(model, x, math.nan)


def test_the_filter_never_contradicts_and_says_when_it_cannot_tell(trained):
    frozen, test = trained
    x = test.inputs()
    predictor = lc.FilteredClassifier(frozen, (1, 8, 8))
    answer = predictor(x)
    exact = lc.certify(frozen, x, test.labels).predictions
    assert (answer.predictions == exact).all()
    assert not answer.undecided.any()
    assert answer.fell_back.double().mean() < 0.05
    # Inside a certified ball the answer is the certified one, wherever float32 can go.
    result = lc.certify(frozen, x, test.labels)
    some = result.radii > 0
    for _ in range(5):
        direction = torch.randn_like(x[some])
        length = (result.radii[some] * 0.999).float().view(-1, 1, 1, 1)
        inside = x[some] + direction / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1) * length
        near = (inside.double() - x[some].double()).flatten(1).norm(dim=1) < result.radii[some]
        assert (predictor(inside).predictions[near] == test.labels[some][near]).all()
    tie = lc.FilteredClassifier(nn.Sequential(nn.Identity()), (2,))
    assert tie(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).predictions.tolist() == [-1, 0]
    with pytest.raises(ValueError, match="float32"):
        predictor(x.double())


def test_blocked_sums_are_sharper():
    torch.manual_seed(0)
    layer = nn.Sequential(freeze(lc.ResidualLinear(512, 256)), nn.Linear(512, 10))
    norms = torch.ones(1, dtype=torch.float64)
    plain, blocked = (prove(layer, (512,), dtype=torch.float32, block=b) for b in (None, 64))
    assert blocked.parts[0].proof.error_bound(norms, U32) < 0.5 * plain.parts[0].proof.error_bound(norms, U32)
    x = torch.randn(8, 512)
    torch.testing.assert_close(plain.parts[0].forward(x), blocked.parts[0].forward(x), rtol=1e-4, atol=1e-5)


def test_the_certificate_is_accepted_and_fields_change_nothing_silently(trained, tmp_path):
    frozen, test = trained
    links = prove(frozen, (1, 8, 8))
    result = lc.certify(links, test.inputs(), test.labels)
    path = write_certificate(tmp_path, links, frozen, test.images, result, about="digits test")
    report = check(path)
    assert report.ok, report
    stored = json.loads(path.read_text())
    assert len(stored["claims"]) == int((result.radii > 0).sum())
    stored["claims"][0][2] = (float.fromhex(stored["claims"][0][2]) * 1.0001).hex()
    path.write_text(json.dumps(stored))
    assert not check(path).ok
    with pytest.raises(lc.NotCertified, match="float64"):
        write_certificate(
            tmp_path, links, frozen, test.images, lc.certify(links, test.inputs(), test.labels, arithmetic="real")
        )
    tanh = nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(64, 10))
    links = prove(tanh, (1, 8, 8))
    result = lc.certify(links, test.inputs(), tanh(test.inputs()).argmax(dim=1))
    path = write_certificate(tmp_path, links, tanh, test.images, result)
    assert check(path).ok
    assert json.loads(path.read_text())["assumes"] == ["tanh within 8 ulp"]
    lc.register_rule(Own, 0.5)
    word = prove(nn.Sequential(nn.Flatten(), Own(), nn.Linear(64, 10)), (1, 8, 8))
    with pytest.raises(lc.NotCertified, match=r"the constant of 1 \(<Own>\) is assumed"):
        write_certificate(tmp_path, word, tanh, test.images, result)


def test_the_commands_certify_audit_and_check_a_run(tmp_path):
    run = tmp_path / "run"
    assert command("train", "--model=sll_nano", "--epochs=2", "--threads=1", "--out", str(run)).returncode == 0
    audited = command("audit", str(run))
    assert audited.returncode == 0, audited.stderr
    assert "PROVED" in audited.stdout
    assert json.loads((run / "audit.json").read_text())["ok"]
    certified = command("certify", str(run), "--examples=60", "--eps", "0.1", "36/255")
    assert certified.returncode == 0, certified.stderr
    assert "36/255" in certified.stdout
    rows = [json.loads(line) for line in (run / "certified.jsonl").read_text().splitlines()]
    assert len(rows) == 60
    assert max(map(len, certified.stdout.splitlines()[:-1])) <= 80
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "lipcert",
    ]
    words = ["certify", str(run), "--examples=60", "--restart"]
    two = subprocess.run(
        [*launch, *words], capture_output=True, text=True, env=ENVIRONMENT, timeout=240, check=False
    )
    assert two.returncode == 0, two.stderr
    again = [json.loads(line) for line in (run / "certified.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in again]
    assert [row["radius"] for row in again] == pytest.approx([row["radius"] for row in rows], rel=1e-9, abs=1e-12)
    assert two.stdout.count("Check it") == 1
    checked = command("check", str(run))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    words = ["export", str(run), "--to", "torch", "--out", str(tmp_path / "net.safetensors")]
    assert command(*words).returncode == 0
    exported = command("audit", str(tmp_path / "net.safetensors"))
    assert exported.returncode == 0, exported.stderr
    rows_of = lambda text: [line.split()[1:3] for line in text.splitlines() if "PROVED" in line]  # noqa: E731
    assert rows_of(exported.stdout) == rows_of(audited.stdout)
    weights = (run / "frozen.safetensors").read_bytes()
    (run / "frozen.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    assert command("check", str(run)).returncode in (1, 2)
    for words in (
        ["certify", str(tmp_path / "none")],
        ["certify", str(run), "--eps", "a"],
        ["check", str(tmp_path)],
    ):
        done = command(*words)
        assert done.returncode == 2, done
        assert "Traceback" not in done.stderr


def test_lower_bounds_are_below_upper_ones(trained):
    frozen, test = trained
    report = lc.audit(frozen, test.inputs()[:4])
    assert report.ok
    for layer in report.layers:
        assert layer.lower <= layer.upper, layer
    assert 0.3 < report.lower <= report.lipschitz
    assert report.backbone == 1.0
    rows = frozen[-1].weight.double()
    assert (report.pairwise >= torch.cdist(rows, rows) - 1e-12).all()
    assert (report.pairwise <= torch.cdist(rows, rows) + 1e-6).all()
    assert torch.isfinite(report.pairwise).all()


def linear(weight, bias=None, dtype=torch.float32):
    made = nn.Linear(len(weight[0]), len(weight), bias=bias is not None).to(dtype).requires_grad_(False)
    made.weight.copy_(torch.tensor(weight, dtype=dtype))
    if bias is not None:
        made.bias.copy_(torch.tensor(bias, dtype=dtype))
    return made


def test_a_proof_keeps_its_numbers_when_the_network_moves_on():
    first = linear([[1.0, 0.0], [0.0, 1.0]])
    net = nn.Sequential(first, nn.ReLU(), linear([[1.0, 0.0], [0.0, 1.0]]))
    links, predictor = prove(net, (2,)), lc.FilteredClassifier(net, (2,))
    x, labels = torch.tensor([[1.0, 0.5]]), torch.tensor([0])
    before, said = lc.certify(links, x, labels).radii, predictor(x).predictions
    first.weight.mul_(-1000)
    assert torch.equal(lc.certify(links, x, labels).radii, before)
    assert torch.equal(predictor(x).predictions, said)


def test_autocast_and_low_precision_products_are_kept_out():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 32, bias=False), nn.ReLU(), nn.Linear(32, 10))
    predictor, x = lc.FilteredClassifier(net, (32,)), torch.randn(2000, 32)
    plain = predictor(x).predictions
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(predictor(x).predictions, plain)
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(lc.NotCertified, match="highest"):
            predictor(x)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_proof_for_one_shape_is_not_used_for_another():
    net = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1, padding_mode="circular"), nn.Flatten())
    links = prove(net, (1, 4, 4))
    for call in (
        lambda: lc.certify(links, torch.rand(1, 1, 5, 5), torch.tensor([0])),
        lambda: lc.output_interval(links, torch.rand(1, 1, 5, 5), 0.1),
        lambda: lc.FilteredClassifier(net, (1, 4, 4))(torch.rand(1, 1, 5, 5)),
    ):
        with pytest.raises(ValueError, match=r"proof is for inputs of shape \(1, 4, 4\)"):
            call()


class _Loud(nn.Module):
    def __call__(self, x):
        return 1000 * super().__call__(x)


class _Mixed(nn.Linear, _Loud):
    pass


def test_code_that_changes_a_known_module_is_refused():
    mixed = _Mixed(2, 2, bias=False)
    found = prove(nn.Sequential(mixed), (2,)).lipschitz  # its method is traced, too
    assert found >= 1000 * float(torch.linalg.matrix_norm(mixed.weight.detach().double(), 2)) * (1 - 1e-12)
    compiled = torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="eager")
    compiled.register_forward_hook(lambda module, inputs, output: -output)
    with pytest.raises(lc.NotCertified, match="hook"):
        prove(compiled, (2,))
    lc.register_rule(Own, lambda module: -1.0)
    with pytest.raises(lc.NotCertified, match="constant must be finite and at least 0"):
        prove(nn.Sequential(Own()), (2,))


def test_real_arithmetic_is_about_the_exact_function():
    """Logits that are equal but for the rounding of float64: nothing may be certified at x itself."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(50):
        rows = torch.randn(1, 40, generator=generator, dtype=torch.float64)
        order = torch.randperm(40, generator=generator)
        weight = torch.zeros(2, 80, dtype=torch.float64)
        weight[0, :40], weight[1, 40:] = rows, rows[:, order]
        x = torch.randn(1, 40, generator=generator, dtype=torch.float64)
        both = torch.cat((x, x[:, order]), dim=1)  # two sums of the same products
        head = linear(weight.tolist(), dtype=torch.float64)
        for label in (0, 1):
            assert lc.certify(nn.Sequential(head), both, torch.tensor([label]), arithmetic="real").radii.item() == 0


def test_the_ends_of_the_floating_point_range_give_no_false_radius():
    wide = torch.zeros(2, 1001, dtype=torch.float64)
    wide[0, :1000], wide[1, 1000] = 1e-40, 2e-39  # products of 1.5e-285 vanish one by one; together they win
    head = linear(wide.tolist(), dtype=torch.float64)
    x = torch.full((1, 1001), 1.5e-285, dtype=torch.float64)
    assert lc.certify(nn.Sequential(head), x, torch.tensor([1])).radii.item() == 0
    small = torch.zeros(2, 1001)
    small[0, :1000], small[1, 1000] = 1e-30, 2e-29
    answer = lc.FilteredClassifier(nn.Sequential(linear(small.tolist())), (1001,))(torch.full((1, 1001), 1e-16))
    assert answer.predictions.item() != 1
    tiny = torch.tensor([[3e-175, 1e-175]], dtype=torch.float64)  # its squares vanish: ‖x‖ is computed as 0
    net = nn.Sequential(linear([[1 / 3, 1.0], [1.0, 1 / 3]], dtype=torch.float64), nn.ReLU(), nn.Identity())
    assert lc.certify(net, tiny, torch.tensor([1])).radii.item() < 1e-170
    bias = 2.0**24 * (1 - 2.0**-41)
    far = nn.Sequential(linear([[1.0], [1.0]], [bias, 0.0], dtype=torch.float64))
    assert lc.certify(far, torch.tensor([[0.0]]), torch.tensor([0])).radii.item() <= 2.0**50
    pool = nn.Sequential(lc.layers.L2Pool2d(2), nn.Flatten())
    image = torch.zeros(1, 2, 2, 2, dtype=torch.float64)
    image[0, 0], image[0, 1, 0, 0] = 1e-170, 1.5e-170
    assert lc.certify(pool, image, torch.tensor([1])).radii.item() == 0
    with pytest.raises(ValueError, match="batch_size"):
        lc.certify(pool, image, torch.tensor([1]), batch_size=-1)


def test_a_long_reflection_vector_has_its_own_rounding():
    network = freeze(lc.layers.Householder(2))
    network[0].weight.copy_(torch.tensor([[-60.0, -80.0]]))
    links = prove(network, (2,))
    worst = 0.0
    for x in torch.randn(200, 1, 2, dtype=torch.float64):
        a, b = (flint.fmpq(*float(v).as_integer_ratio()) for v in x[0])
        behind = min(60 * a + 80 * b, flint.fmpq(0))
        exact = (a - 120 * behind, b - 160 * behind)
        computed = links.parts[0].forward(x)[0]
        off = [float(flint.fmpq(*float(c).as_integer_ratio()) - e) for c, e in zip(computed, exact, strict=True)]
        worst = max(worst, math.hypot(*off) / float(links.parts[0].proof.error_bound(x.norm(dim=1), U64)))
    assert worst <= 1


def test_a_mixture_of_networks_is_certified_and_its_rounding_bounded():
    torch.manual_seed(2)
    mixture = lc.layers.ConvexCombination(
        nn.Sequential(lc.ResidualLinear(6, 5), lc.layers.Scale(2.0)), lc.AffineLinear(6, 6), nn.ReLU()
    )
    with torch.no_grad():
        mixture.logits.copy_(torch.tensor([0.3, -0.2, 0.9]))
    frozen = freeze(nn.Sequential(mixture, nn.Linear(6, 3)))
    assert frozen.names == ("0.branches.0.0", "0.branches.0.1", "0.branches.1", "0.branches.2", "0.sum", "1")
    weights = frozen[-2].weights.double()
    assert weights.sum() <= 1
    links = prove(frozen, (6,))
    middle = float(torch.linalg.matrix_norm(frozen[2].weight.double(), 2)) * (1 - 1e-12)  # hardly below 1
    expected = float(2 * weights[0] + middle * weights[1] + weights[2])
    assert expected <= links.backbone <= expected * (1 + 1e-6)
    x = torch.randn(40, 6)
    labels = frozen(x).argmax(dim=1)
    assert (lc.certify(links, x, labels).radii > 0).all()
    body, none = freeze(mixture), torch.zeros(40, dtype=torch.float64)
    narrow = prove(body, (6,), dtype=torch.float32)
    out, sizes = walk(narrow, x)
    exact = prove(body, (6,)).run(x.double())[-1]
    assert (body.double()(x.double()) - exact).abs().max() < 1e-13
    bound, _ = errors_along(narrow, sizes, none, U32)
    for computed in (out, body.float()(x)):
        off = (computed.double() - exact).norm(dim=1)
        assert (off <= bound).all()
        assert off.max() > 1e-3 * bound.min()  # it could be broken


def test_average_pools_of_every_border_are_near_tight():
    for module in (
        nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
        nn.AvgPool2d((2, 3), (1, 2), (1, 1), count_include_pad=False),
        nn.AvgPool2d(3, 1, 1, divisor_override=2),
    ):
        part = prove(nn.Sequential(module), (1, 7, 6)).parts[0]
        eye = torch.eye(42, dtype=torch.float64).view(42, 1, 7, 6)
        exact = torch.linalg.matrix_norm(module(eye).flatten(1), 2).item()
        assert exact <= part.proof.lipschitz <= exact * (1 + 1e-7)


def test_a_network_that_does_not_fit_its_input_is_one_clear_error():
    with pytest.raises(
        ValueError, match=r"1 \(Linear\): it needs 63 inputs .* got examples of shape \(64,\)\. Check the shape"
    ):
        lc.certify(nn.Sequential(nn.Flatten(), nn.Linear(63, 10)), torch.rand(2, 1, 8, 8), torch.zeros(2).long())


def test_a_branch_that_works_in_place_changes_no_other_branch():
    mixture = lc.layers.ConvexCombination(
        nn.Sequential(nn.LeakyReLU(5.0, inplace=True)), nn.Sequential(nn.Identity())
    )
    net = freeze(nn.Sequential(mixture, linear([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]], [40.0, 0.0]))).double()
    x = torch.tensor([[-1.0, 0.0, 0.0]], dtype=torch.float64)
    kept = x.clone()
    result = lc.certify(net, x, torch.tensor([0]))
    assert torch.equal(x, kept)
    inside = kept.clone()
    inside[0, 0] -= 0.999 * result.radii.item()
    assert net(inside.clone()).argmax().item() == 0
    links = prove(net, (3,))
    (mixed,) = (value for part, value in zip(links.parts, links.run(kept), strict=True) if part.name == "0.sum")
    assert torch.allclose(mixed, mixture(kept.float()).double(), atol=1e-5)
    assert torch.allclose(freeze(mixture)(kept.float()), mixture(kept.float()), atol=1e-5)
    low, high = lc.output_interval(net, kept, 1.0)
    value = net(kept - torch.tensor([[1.0, 0.0, 0.0]]).double())
    assert (low <= value).all()
    assert (value <= high).all()
    assert lc.audit(net, kept).ok


def test_a_mixture_with_an_assumed_branch_is_assumed():
    lc.register_rule(Own, lambda module: 0.5)
    mixture = lc.layers.ConvexCombination(nn.Sequential(Own()), nn.Identity())
    x = torch.randn(3, 3)
    for network in (nn.Sequential(mixture), freeze(nn.Sequential(mixture))):
        links = prove(network, (3,))
        assert [part.name for part in links.parts if part.proof.assumed] == ["0.branches.0.0"]
        assert [layer.verdict for layer in lc.audit(network, x).layers] == ["ASSUMED", "PROVED", "PROVED"]
        assert 0.75 * (1 - 2.0**-20) <= links.lipschitz <= 0.75 * (1 + 2.0**-20)
        assert lc.certify(links, x, arithmetic="real").assumed == ("0.branches.0.0",)
        with pytest.raises(lc.NotCertified, match=r"0.branches.0.0 \(Own\).*rounding"):
            lc.certify(links, x)
    raw = lc.layers.ConvexCombination(lc.ResidualLinear(6, 5))
    run = prove(nn.Sequential(raw), (6,))
    x = torch.randn(3, 6, dtype=torch.float64)
    torch.testing.assert_close(run.run(x)[-1], freeze(raw).double()(x), rtol=1e-14, atol=1e-14)


class Watched(Part):
    """A part that counts how many outputs of such parts are in memory."""

    outputs: ClassVar[list] = []
    alive: ClassVar[list] = []

    def forward(self, *inputs):
        out = super().forward(*inputs)
        self.outputs.append(weakref.ref(out))
        self.alive.append(sum(output() is not None for output in self.outputs))
        return out


def test_values_that_no_later_part_reads_are_freed():
    network = nn.Sequential(lc.ResidualLinear(6, 5), lc.layers.MaxMin(), lc.ResidualLinear(6, 5), nn.Linear(6, 3))
    proved = prove(lc.freeze(network), (6,))
    parts = tuple(Watched(p.name, p.inputs, p.step, p.proof, p.block) for p in proved.parts)
    walk(dataclasses.replace(proved, parts=parts), torch.ones(4, 6, dtype=torch.float64))
    assert Watched.alive == [1, 2, 2, 2]


def test_the_certificate_of_a_network_of_ones_own_is_verified(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), lc.ResidualLinear(4, 8), lc.NormalizedHead(4, 3))
    images = torch.randint(0, 256, (4, 1, 2, 2), dtype=torch.uint8)
    network, images = lc.freeze(network), images.float() / 255
    result = lc.certify(network, images)
    assert (result.radii > 0).all()
    report = lc.verify(result.save(tmp_path / "mine", about="four images"))
    assert report.ok
    assert report.verified == report.claims == 4
    assert torch.equal(lc.load(tmp_path / "mine")(images), network(images))
    rows = [json.loads(line) for line in (tmp_path / "mine" / "certified.jsonl").read_text().splitlines()]
    assert rows == list(result.rows())
    with pytest.raises(ValueError, match="mine is not empty"):
        result.save(tmp_path / "mine")
    file = tmp_path / "mine" / "certificate.json"
    radius = float(result.radii[0]).hex()
    file.write_text(file.read_text().replace(radius, (2 * float(result.radii[0])).hex()))
    assert not lc.verify(file).ok


def test_a_result_that_no_checker_can_repeat_is_not_saved(tmp_path):
    network, images = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(3, 4)
    for result, message in (
        (lc.certify(network, images, arithmetic="real"), "about float64"),
        (lc.certify(network, images, method="sdp-crown"), "cannot verify radii of the method 'sdp-crown'"),
        (lc.certify(network, images.double()), "about float32 images"),
    ):
        with pytest.raises(ValueError, match=message):
            result.save(tmp_path / "mine")
        assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("method", ["lipschitz", "lipsdp"])
def test_a_network_that_was_not_frozen_is_saved_with_its_proof(tmp_path, method):
    torch.manual_seed(0)
    network, images = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(3, 4)
    assert lc.verify(lc.certify(network, images, method=method).save(tmp_path / "mine")).ok
    with pytest.raises(lc.NotCertified, match=r"0.weight is not. Certify lc.freeze\(model\)"):
        lc.certify(network.double(), images, method=method).save(tmp_path / "wide")
