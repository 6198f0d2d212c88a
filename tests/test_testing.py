"""``lipcert.testing``: a sound layer of one's own passes, and each wrong one is told what is wrong."""

import math

import pytest
import torch
from torch import nn

import lipcert as lc
from lipcert.testing import LawBroken, check_layer


class Rotation(lc.layers.LipschitzLayer):
    """A sound layer: a learned rotation of pairs."""

    def __init__(self, pairs):
        super().__init__()
        self.angle = nn.Parameter(torch.zeros(pairs))

    def forward(self, x):
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        c, s = self.angle.cos(), self.angle.sin()
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    def proved_constant(self):
        return 1.0


class Wrong(lc.layers.LipschitzLayer):
    """A dense layer whose weight is divided by what is no bound of its norm."""

    def __init__(self, divide):
        super().__init__()
        self.weight, self.divide = nn.Parameter(torch.eye(4) / 2), divide

    def forward(self, x):
        return x @ (self.weight / self.divide(self.weight)).mT

    def proved_constant(self):
        return 1.0


class Inert(Rotation):
    def __init__(self, pairs):
        super().__init__(pairs)
        self.spare = nn.Parameter(torch.zeros(3))

    def proved_constant(self):
        return 1.0


class Forgetful(Rotation):
    def __init__(self, pairs, sign):
        super().__init__(pairs)
        self.sign = sign

    def forward(self, x):
        return self.sign * super().forward(x)

    def proved_constant(self):
        return 1.0


class Jump(lc.layers.LipschitzLayer):
    """Its slope is 0 wherever there is one, and it jumps."""

    def forward(self, x):
        return x.round()

    def proved_constant(self):
        return 1.0


def test_a_sound_layer_passes():
    check_layer(lambda: Rotation(3), (6,))
    check_layer(lambda: nn.Sequential(Rotation(2), lc.ResidualLinear(4, 3)), (4,))
    check_layer(lambda: lc.layers.Scale(3.0), (4,), lipschitz=3.0)


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (lambda: Wrong(lambda w: w.norm() / 2), (4,), "Jacobian has norm"),
        (lambda: Wrong(lambda w: w.abs().max() * 2), (4,), "Jacobian has norm|NaN"),
        (Jump, (4,), "two points"),
        (lambda: Inert(2), (4,), "spare has no effect"),
        (lambda: lc.layers.Scale(1.5), (4,), "1.5"),
    ],
)
def test_a_wrong_layer_is_told_why(make, shape, said):
    with pytest.raises(LawBroken, match=said):
        check_layer(make, shape, lipschitz=1.0)


def test_what_is_kept_outside_the_state_is_found():
    signs = iter([1.0] * 19 + [-1.0] * 19)  # one layer for each set of parameters, then others for the copies
    with pytest.raises(LawBroken, match="load_state_dict"):
        check_layer(lambda: Forgetful(2, next(signs)), (4,))


def test_the_constant_may_not_be_below_the_truth():
    check_layer(lambda: lc.NormalizedHead(4, 3), (4,), lipschitz=math.sqrt(3))
    with pytest.raises(LawBroken):
        check_layer(lambda: lc.NormalizedHead(4, 3), (4,), lipschitz=0.9)
