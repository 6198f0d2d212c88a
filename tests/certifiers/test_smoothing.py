"""Randomized smoothing: coverage on classifiers whose probabilities are known, and what it refuses."""

import math
import random
from fractions import Fraction
from statistics import NormalDist

import pytest
import torch
from torch import nn

import lipcert as lc
from full import full
from lipcert.certifiers.noise import grid_noise
from lipcert.certifiers.smoothing import NOBODY, Smoothing, winners
from lipcert.verified.binomial import lower_bound
from lipcert.verified.normal import quantile_down

LEVELS = 255


def pixels(*values):
    """One image with these bytes, (1, n)."""
    return torch.tensor([values], dtype=torch.float32) / LEVELS


def half_line(step):
    """Class 1 where the first pixel is at least step/255, else class 0."""

    def classify(x):
        right = torch.round(x.flatten(1)[:, 0].double() * LEVELS) >= step
        return torch.stack([~right, right], dim=1).float()

    return classify


def binomial(count, p, k):
    return math.comb(count, k) * p**k * (1 - p) ** (count - k)


def too_many(failures, trials, alpha):
    """Whether so many failures have a probability below 10⁻⁹ if each has at most alpha."""
    return sum(binomial(trials, alpha, k) for k in range(failures, trials + 1)) < 1e-9


@pytest.mark.parametrize("early_stop", [None, 0.02])
def test_coverage_of_a_half_line(early_stop):
    """Class 1 on a half-line: g changes at its end, so that the true radius is the distance to that end."""
    sigma, alpha, trials, start, step = 0.1, 0.1, full(3000, 300), 128, 120
    settings = {"sigma": sigma, "alpha": alpha, "n": 256, "n0": 20, "batch_size": 32, "early_stop": early_stop}
    images = pixels(start).expand(trials, 1)
    result = lc.certify(half_line(step), images, method="smoothing", **settings)
    true_radius = (start - step + 0.5) / LEVELS
    wrong = (result.predictions == 0) & (result.radii > 0) | (result.radii > true_radius)
    assert not too_many(int(wrong.sum()), trials, alpha)
    assert result.radii.max() > 0.5 * true_radius  # something was proved
    # The samples have the probability of the exact noise, 1 − θ_(step − 1 − start): six standard deviations.
    low, high = grid_noise(Fraction(1, 10) * LEVELS).threshold(step - 1 - start, 64)
    p = 1 - (low + high) / 2**65
    chosen = result.predictions == 1
    hits, samples = (int(v[chosen].sum()) for v in (result.hits, result.samples))
    if early_stop is None:
        assert abs(hits - p * samples) < 6 * math.sqrt(samples * p * (1 - p))
    else:
        assert samples < 256 * int(chosen.sum())


def test_a_wrong_sampler_fails_the_coverage_test(monkeypatch):
    """The test above sees noise that is too small."""
    settings = Smoothing(0.1)
    smaller = grid_noise(settings.scale / 2)
    monkeypatch.setattr("lipcert.certifiers.smoothing.grid_noise", lambda scale: smaller)
    images = pixels(128).expand(100, 1)
    result = lc.certify(half_line(120), images, method="smoothing", sigma=0.1, alpha=0.1, n=256, n0=20)
    assert too_many(int((result.radii > 8.5 / LEVELS).sum()), 100, 0.1)


def risk_of_any_look(looks, p):
    """P(the bound of any look exceeds p), summed over all paths of the hits."""
    paths, seen, risk = {0: Fraction(1)}, 0, Fraction(0)
    for count, share in looks:
        more = count - seen
        longer: dict[int, Fraction] = {}
        for hits, weight in paths.items():
            for k in range(more + 1):
                longer[hits + k] = longer.get(hits + k, 0) + weight * binomial(more, p, k)
        wrong = [hits for hits in longer if lower_bound(hits, count, share) > p]
        risk += sum(longer.pop(hits) for hits in wrong)
        paths, seen = longer, count
    return risk


def test_the_bounds_of_all_looks_hold_together():
    settings = Smoothing(0.5, n=64, alpha=0.2, batch_size=4, early_stop=0.1)
    assert len(settings.looks) > 3
    assert sum(share for _, share in settings.looks) == Fraction(1, 5)
    shares = [Fraction(1, 2), Fraction(5, 8), Fraction(3, 4), Fraction(9, 10), Fraction(63, 64)]
    assert all(risk_of_any_look(settings.looks, p) <= Fraction(1, 5) for p in shares)
    # Looking as often with all of alpha each time is wrong more often than that.
    peeking = [(count, Fraction(1, 5)) for count, _ in settings.looks]
    assert risk_of_any_look(peeking, Fraction(3, 4)) > Fraction(1, 5)


def sum_of_coins(shares):
    """The distribution of the number of hits in independent tosses of these coins."""
    weights = [Fraction(1)]
    for p in shares:
        longer = [*(w * (1 - p) for w in weights), Fraction(0)]
        weights = [w + (weights[k - 1] * p if k else 0) for k, w in enumerate(longer)]
    return weights


def test_the_bound_holds_for_the_mean_of_coins_that_differ():
    """A float classifier may answer otherwise at another place of the batch: each place is a coin of its own."""
    generator, claimed = random.Random(0), 0
    coins = [(3, [Fraction(1), Fraction(17, 20), Fraction(0)], 0.7)]
    for _ in range(full(10_000, 400)):
        n, alpha = generator.randrange(2, 9), generator.choice((0.05, 0.2, 0.4, 0.7, 0.9))
        coins.append((n, [Fraction(min(64, generator.randrange(96)), 64) for _ in range(n)], alpha))
    for n, shares, alpha in coins:
        mean, tested = sum(shares) / n, Fraction(repr(alpha))
        true = 0.0 if mean <= Fraction(1, 2) else math.inf if mean == 1 else NormalDist().inv_cdf(float(mean))
        radii = [Smoothing(1.0, n=20).radius(k, n, tested) for k in range(n + 1)]
        claimed += radii[-1] > 0
        assert sum(w for w, radius in zip(sum_of_coins(shares), radii, strict=True) if radius > true) <= tested
    assert claimed > len(coins) / 2


def test_early_stopping_decides_with_fewer_samples():
    images = torch.cat([pixels(250), pixels(10), pixels(128)])
    options = {"method": "smoothing", "sigma": 0.1, "n": 4000, "batch_size": 50}
    stopped = lc.certify(half_line(128), images, early_stop=0.05, **options)
    complete = lc.certify(half_line(128), images, **options)
    assert (stopped.samples[:2] == 100).all()  # clear cases end at the first look
    assert (stopped.radii[:2] > 0.05).all()
    assert stopped.samples[2] < 4000  # hopeless: the pixel lies on the border
    assert (complete.samples == 4000).all()
    assert torch.equal(stopped.predictions[:2], complete.predictions[:2])


def test_radii_follow_from_the_hits():
    image = pixels(140, 7)
    result = lc.certify(half_line(128), image, method="smoothing", sigma=0.1, n=1000)
    hits, samples = int(result.hits[0]), int(result.samples[0])
    p = lower_bound(hits, samples, Fraction(1, 1000))
    assert float(result.radii[0]) == pytest.approx(0.1 * NormalDist().inv_cdf(float(p)), abs=1e-7)
    assert result.confidence == 0.999
    assert "smoothed classifier" in result.guarantee
    assert "0.999" in result.guarantee
    assert next(iter(result.rows())).keys() >= {"index", "label", "prediction", "radius", "hits", "samples"}


def test_a_radius_is_rounded_down_exactly():
    for sigma in (0.1, 0.3, 0.7):
        settings = Smoothing(sigma, n=100)
        for hits in range(60, 101):
            p = lower_bound(hits, 100, Fraction(1, 1000))
            p = p if hits == 100 else min(p, Fraction(hits - 1, 100))
            bound = Fraction(str(sigma)) * Fraction(quantile_down(p)) if p > Fraction(1, 2) else Fraction(0)
            radius = Fraction(settings.radius(hits, 100, Fraction(1, 1000)))
            assert bound * (1 - Fraction(1, 2**52)) <= radius <= bound


def test_an_input_off_the_grid_pays_its_distance():
    options = {"method": "smoothing", "sigma": 0.1, "n": 500}
    on = lc.certify(half_line(128), pixels(160).double(), **options)
    for shift in (1e-9, -0.4, 0.3):
        moved = (pixels(160).double() * LEVELS + shift) / LEVELS
        off = lc.certify(half_line(128), moved, **options)
        assert torch.equal(off.hits, on.hits)
        paid = float(on.radii - off.radii)
        assert paid == pytest.approx(abs(shift) / LEVELS, abs=2e-7)  # pixels are float32
    # A coarse grid can cost more than there is.
    coarse = lc.certify(half_line(128), torch.tensor([[0.7]]), levels=4, **options | {"sigma": 0.0625})
    assert coarse.samples[0] == 500
    assert coarse.radii[0] < 0.0625 * 2.5 - 0.04


def test_results_repeat_and_depend_on_the_seed():
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    options = {"method": "smoothing", "sigma": 1.0, "n": 300}
    first, again = (lc.certify(model, images, **options) for _ in range(2))
    assert torch.equal(first.radii, again.radii)
    other = lc.certify(model, images, seed=1, **options)
    assert not torch.equal(first.hits, other.hits)


def test_any_network_and_its_mode_is_given_back():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.LazyLinear(5)
    )
    images = torch.rand(2, 1, 6, 6)
    model(images)
    model[1].eval()
    modes = [module.training for module in model.modules()]
    before = model[1].running_mean.clone()
    result = lc.certify(model, images, method="smoothing", sigma=0.1, n=100)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model[1].running_mean, before)
    assert result.radii.shape == (2,)


def test_only_right_answers_have_radii():
    images = pixels(250).expand(2, 1)
    result = lc.certify(half_line(128), images, torch.tensor([1, 0]), method="smoothing", sigma=0.1, n=100)
    assert result.correct.tolist() == [True, False]
    assert result.radii[0] > 0
    assert result.radii[1] == 0
    assert not result.abstained.any()
    assert result.natural_accuracy == 0.5
    assert result.certified_accuracy(0.05) == 0.5


def test_ties_and_nan_count_for_nobody():
    logits = torch.tensor([[1.0, 1.0], [math.nan, 5.0], [0.0, 2.0], [math.inf, math.inf], [-math.inf, 0.0]])
    assert winners(logits, 5).tolist() == [NOBODY, NOBODY, 1, NOBODY, 1]
    assert winners(torch.tensor([[0.5], [-0.5], [0.0], [math.nan]]), 4).tolist() == [1, 0, NOBODY, NOBODY]
    tied = lc.certify(lambda x: torch.zeros(len(x), 3), pixels(9), method="smoothing", sigma=0.1, n=100)
    assert tied.abstained.all()
    assert tied.predictions.tolist() == [NOBODY]
    assert not tied.correct.any()
    assert tied.radii.tolist() == [0]


def test_even_odds_abstain():
    result = lc.certify(half_line(128), pixels(128), method="smoothing", sigma=0.1, n=50)
    assert result.abstained.all()
    assert result.hits[0] > 0


def test_an_image_with_nan_is_abstained_from():
    result = lc.certify(half_line(128), torch.tensor([[math.nan]]), method="smoothing", sigma=0.1, n=100)
    assert result.abstained.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0}, "sigma must be above 0"),
        ({"sigma": -0.1}, "sigma must be above 0"),
        ({"sigma": math.nan}, "sigma must be a finite"),
        ({"sigma": 1e-5}, "levels"),
        ({"sigma": 1e5}, "levels"),
        ({"sigma": 0.1, "alpha": 0}, "alpha must lie between 0 and 1"),
        ({"sigma": 0.1, "alpha": 1.0}, "alpha must lie between 0 and 1"),
        ({"sigma": 0.1, "alpha": 5e-324, "n": 3000, "early_stop": 0.01}, "alpha must be at least"),
        ({"sigma": 1e-22, "levels": 2**80}, "levels must be at most"),
        ({"sigma": 0.1, "n": 9}, "at least 10"),
        ({"sigma": 0.1, "n": 10, "early_stop": 0.0}, "at least 11"),
        ({"sigma": 0.1, "n0": 0}, "n0"),
        ({"sigma": 0.1, "seed": -1}, "seed"),
        ({"sigma": 0.1, "early_stop": 1.0}, "out of reach"),
        ({"sigma": 0.1, "early_stop": -1.0}, "early_stop"),
        ({"sigma": 0.1, "batch_size": 0}, "batch_size"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        lc.certify(half_line(128), pixels(9), method="smoothing", **options)


def test_the_smallest_n_that_is_named_works():
    assert lc.certify(half_line(0), pixels(200), method="smoothing", sigma=0.1, n=10).radii[0] > 0


def test_bad_classifiers_and_inputs():
    options = {"method": "smoothing", "sigma": 0.1, "n": 100}
    with pytest.raises(ValueError, match="two answers"):
        lc.certify(lambda x: torch.rand(len(x), 3), pixels(9), **options)
    with pytest.raises(ValueError, match="logits of shape"):
        lc.certify(lambda x: x.sum(), pixels(9), **options)
    with pytest.raises(ValueError, match="floating images"):
        lc.certify(half_line(128), torch.zeros(2, 3, dtype=torch.uint8), **options)
    with pytest.raises(ValueError, match="one integer label"):
        lc.certify(half_line(128), pixels(9), torch.tensor([0, 1]), **options)
    with pytest.raises(ValueError, match="steps of 1/255 from 0"):
        lc.certify(half_line(128), torch.tensor([[1e6]]), **options)


def test_numbers_mean_their_decimal():
    settings = Smoothing(0.1, alpha=0.1)
    assert settings.noise == Fraction(1, 10)
    assert settings.tested == Fraction(1, 10)
    assert settings.confidence == 0.9
    assert Smoothing(0.1, alpha=1e-17).confidence < 1
