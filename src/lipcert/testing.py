"""``check_layer``: the laws that every layer of lipcert obeys, for layers of your own.

    from lipcert.testing import check_layer
    check_layer(lambda: MyLayer(6), (6,))

A layer that claims a Lipschitz constant must keep it, whatever training makes of its parameters. Random starts
rarely show a mistake, so each law is tried under hostile parameters: huge, tiny, zero, equal and graded weights,
large biases. The laws are evidence, not a proof: they can refute a constant, never establish it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from lipcert.layers.contract import lipschitz_bound

Make = Callable[[], nn.Module]
Change = Callable[[Tensor], Tensor]
EPS = torch.finfo(torch.float64).eps


class LawBroken(AssertionError):
    """A layer broke a law; the message says which one, under which parameters, and by how much."""


def check_layer(
    make: Make,
    shape: tuple[int, ...],
    *,
    lipschitz: float | None = None,
    seed: int = 0,
    kinds: Iterable[str] | None = None,
) -> None:
    """Raise ``LawBroken`` at the first law that the layer breaks.

    Args:
        make: builds a new layer; it is called once for each law and each set of hostile parameters.
        shape: the shape of one input, without the batch.
        lipschitz: the constant to test. By default it is what ``lipschitz_bound`` of the layer says.
        seed: of the inputs and of the parameters.
        kinds: the names of the hostile parameters to try, for layers that are slow. By default all of ``HOSTILE``.
    """
    for kind in HOSTILE if kinds is None else kinds:
        torch.manual_seed(seed)
        layer = make().double().eval()
        HOSTILE[kind](layer)
        bound = lipschitz_bound(layer) if lipschitz is None else lipschitz
        outputs_are_finite(layer, shape, kind)
        jacobians_stay_below(layer, shape, bound, kind)
        distances_stay_below(layer, shape, bound, kind)
        gradients_are_finite(layer, shape, kind)
    torch.manual_seed(seed)
    copies_agree(make, shape)
    parameters_matter(make, shape)


def outputs_are_finite(layer: nn.Module, shape: tuple[int, ...], kind: str) -> None:
    with torch.no_grad():
        out = layer(_inputs(shape, 3))
    if not bool(torch.isfinite(out).all()):
        raise LawBroken(f"under parameters '{kind}' the output has NaN or infinite entries.")


def jacobians_stay_below(
    layer: nn.Module, shape: tuple[int, ...], bound: float, kind: str, points: int = 1
) -> None:
    """The spectral norm of the Jacobian at random points is at most the constant."""
    for x in _inputs(shape, points):
        matrix = jacobian(layer, x[None])
        norm = float(torch.linalg.matrix_norm(matrix, 2)) if matrix.numel() else 0.0
        if not norm <= bound * (1 + tolerance(matrix)):
            raise LawBroken(
                f"under parameters '{kind}' the Jacobian has norm {norm:.9g} at a point, which is more than the "
                f"constant {bound:.9g}."
            )


def distances_stay_below(layer: nn.Module, shape: tuple[int, ...], bound: float, kind: str) -> None:
    """Images of two points are at most the constant times as far apart, near and far: jumps show here."""
    steps = torch.logspace(-3, 3, 16, dtype=torch.float64).view(-1, *[1] * len(shape))
    x = _inputs(shape, 16) * steps
    y = x + _inputs(shape, 16) * steps.flip(0)
    with torch.no_grad():
        fx, fy = layer(x).flatten(1), layer(y).flatten(1)
    moved, apart = (fx - fy).norm(dim=1), (x - y).flatten(1).norm(dim=1)
    # Both outputs are rounded relative to their own size, over sums of at most a few hundred terms.
    slack = 1000 * EPS * (fx.norm(dim=1) + fy.norm(dim=1) + 1)
    worst = int((moved - slack - bound * apart).argmax())
    if not bool((moved <= bound * apart + slack).all()):
        raise LawBroken(
            f"under parameters '{kind}' two points {float(apart[worst]):.3g} apart have images "
            f"{float(moved[worst]):.3g} apart, which is more than {bound:.9g} times as far."
        )


def gradients_are_finite(layer: nn.Module, shape: tuple[int, ...], kind: str) -> None:
    layer.zero_grad()
    x = _inputs(shape, 3).requires_grad_()
    layer(x).sum().backward()
    gradients = {"the input": x.grad, **{name: p.grad for name, p in layer.named_parameters()}}
    for name, gradient in gradients.items():
        if gradient is not None and not bool(torch.isfinite(gradient).all()):
            raise LawBroken(f"under parameters '{kind}' the gradient of {name} has NaN or infinite entries.")


def copies_agree(make: Make, shape: tuple[int, ...]) -> None:
    """A copy and a layer with the same state give the same outputs."""
    layer = make().eval()
    HOSTILE["random"](layer)
    x = _inputs(shape, 2).float()
    with torch.no_grad():
        expected = layer(x)
        fresh = make().eval()
        fresh.load_state_dict(layer.state_dict())
        for name, other in (("copy.deepcopy", copy.deepcopy(layer)), ("load_state_dict", fresh)):
            if not torch.equal(other(x), expected):
                raise LawBroken(f"a layer made by {name} gives other outputs: something is kept outside its state.")


def parameters_matter(make: Make, shape: tuple[int, ...]) -> None:
    """Every parameter has a gradient: an inert one is a wrong formula that still certifies."""
    layer = make().double()
    HOSTILE["random"](layer)
    out = layer(_inputs(shape, 32))
    if out.requires_grad:
        (out * torch.randn_like(out)).sum().backward()
    for name, parameter in layer.named_parameters():
        if parameter.grad is None or float(parameter.grad.abs().max()) < 1e-10:
            raise LawBroken(f"the parameter {name} has no effect on the output.")


def jacobian(layer: nn.Module, x: Tensor, create_graph: bool = False) -> Tensor:
    """The Jacobian of the layer at x (a batch of one), (outputs, inputs), in float64."""
    found = torch.func.jacrev(lambda v: layer(v.view_as(x)).flatten())(x.flatten()).double()
    return found if create_graph else found.detach()


def tolerance(matrix: Tensor, eps: float = EPS) -> float:
    """What rounding may add to the norm, relatively.

    A layer has two products, of an operator and its adjoint, with at most (inputs + outputs) terms in each sum.
    Their absolute values may be √(terms) larger than their norm.
    """
    terms = sum(matrix.shape)
    return 4 * terms * math.sqrt(terms) * eps


def _inputs(shape: tuple[int, ...], count: int) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64)


# --- Hostile parameters ---


def fill(layer: nn.Module, weight: Change, other: Change) -> None:
    """Random numbers in every parameter, changed by ``weight`` if it has two axes or more, else by ``other``."""
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_((weight if p.ndim >= 2 else other)(torch.randn_like(p)))


def _active(layer: nn.Module) -> None:
    """Random weights, every neuron on the steep side: the pattern in which a residual can exceed 1 most."""
    fill(layer, lambda w: w, lambda v: v)
    for module in layer.modules():
        activation, bias = getattr(module, "activation", None), getattr(module, "bias", None)
        if activation is not None and isinstance(bias, nn.Parameter):
            steep = 0.0 if getattr(activation, "name", "") in ("tanh", "sigmoid") else 30.0
            nn.init.constant_(bias, steep)


def _big_bias(layer: nn.Module) -> None:
    """Dead columns beside biases near overflow: ∞·0 waits here."""
    fill(layer, lambda w: _column(0.0)(w) * 1e-9, lambda v: v)
    for module in layer.modules():
        if isinstance(getattr(module, "bias", None), nn.Parameter):
            nn.init.constant_(module.bias, 1e30)  # type: ignore[arg-type]


def _column(value: float) -> Change:
    def change(w: Tensor) -> Tensor:
        w[1:, -1] = w[1:, -1] * value
        w[0] = w[0] * value
        return w

    return change


def _block_orthogonal(w: Tensor) -> Tensor:
    """Orthonormal columns but one tiny one: where the erratum's ε does its damage."""
    flat = torch.linalg.qr(w.flatten(1).double() if w.shape[0] >= w[0].numel() else w.flatten(1).double().T).Q
    flat = flat if flat.shape == (w.shape[0], w[0].numel()) else flat.T
    flat = flat.clone()
    flat[0] *= 1e-6
    return flat.reshape(w.shape).to(w.dtype)


def _graded(w: Tensor) -> Tensor:  # rows and columns from 1 to 1e-24
    steps = torch.linspace(0, -24, len(w), dtype=torch.float64)
    return (w.double() * 10 ** steps.view(-1, *[1] * (w.ndim - 1)) + (w == 0)).to(w.dtype)


def _falling(v: Tensor) -> Tensor:  # log q from −60 to 0, biases likewise
    return torch.linspace(-60, 0, v.numel(), dtype=v.dtype).view(v.shape)


HOSTILE: dict[str, Callable[[nn.Module], None]] = {
    "as built": lambda layer: None,
    "random": lambda layer: fill(layer, lambda w: w, lambda v: v),
    "all active": _active,
    "scale 1e-30": lambda layer: fill(layer, lambda w: w * 1e-30, lambda v: v),
    "scale 1e-15": lambda layer: fill(layer, lambda w: w * 1e-15, lambda v: v),
    "scale 1e-6": lambda layer: fill(layer, lambda w: w * 1e-6, lambda v: v),
    "scale 1e30": lambda layer: fill(layer, lambda w: w * 1e30, lambda v: v),
    "all zero": lambda layer: fill(layer, torch.zeros_like, torch.zeros_like),
    "zero column": lambda layer: fill(layer, _column(0.0), lambda v: v),
    "tiny column": lambda layer: fill(layer, _column(1e-7), lambda v: v),
    "subnormal column": lambda layer: fill(layer, _column(1e-40), lambda v: v),
    "huge column": lambda layer: fill(layer, _column(1e25), lambda v: v),
    "huge and equal": lambda layer: fill(layer, lambda w: torch.full_like(w, 1e38), lambda v: v),
    "graded columns": lambda layer: fill(layer, _graded, lambda v: v),
    "big bias": _big_bias,
    "equal columns": lambda layer: fill(layer, torch.ones_like, lambda v: v),
    "block orthogonal": lambda layer: fill(layer, _block_orthogonal, _falling),
    "q of 1e4": lambda layer: fill(layer, lambda w: w, lambda v: v.sign() * 1e4 * (v > 0)),
}
