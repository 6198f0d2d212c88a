"""One convolution, one dense layer, and what stands between affine ones, by the name of a method."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lipcert.layers.activation import Abs, Clip, ClippedReLU, Householder, MaxMin, PartialAbs
from lipcert.layers.forms import (
    AffineConv2d,
    AffineLinear,
    OrthogonalConv2d,
    OrthogonalLinear,
    ResidualConv2d,
    ResidualLinear,
    SandwichConv2d,
    SandwichLinear,
)
from lipcert.layers.shape import Pixelwise, PositionalBias, Shift
from lipcert.layers.tracked import LinearResidualConv2d, TrackedConv2d, TrackedLinear
from lipcert.models.spec import ModelSpec

# method → bound, where the names differ
RESIDUAL = {"cpl": "spectral", "cpl_surrogate": "spectral_surrogate", "sll_inert": "sll"}
AFFINE = {"sn": "spectral", "sn_surrogate": "spectral_surrogate", "aol_affine": "aol"}
# method → how a convolution is made orthogonal; dense layers are by Cayley, whatever their shape
ORTHOGONAL = {
    "cayley": "cayley",
    "soc": "exp",
    "soc_plus": "exp",
    "lot": "lot",
    "eco": "eco",
    "bro": "reflector",
    "bcop": "bcop",
    "orthogonal": "pixel by pixel",
}
TRACKED = ("gloro", "local", "local_maxmin", "liresnet")  # convolutions whose norm is tracked


def changes_width(spec: ModelSpec) -> bool:
    return spec.method in (*AFFINE, *ORTHOGONAL, *TRACKED, "sandwich", "lipnext")


def affine_conv(
    spec: ModelSpec, inputs: int, outputs: int, kernel: int, image: tuple[int, int], stride: int = 1
) -> nn.Module:
    """A convolution without an activation, of a method that has one."""
    if spec.method == "liresnet" and inputs == outputs and stride == 1 and kernel % 2:
        return LinearResidualConv2d(inputs, kernel, depth=spec.conv_layers, center=True)
    if spec.method in TRACKED:
        return TrackedConv2d(inputs, outputs, kernel, stride=stride, padding=(kernel - 1) // 2)
    if spec.method in AFFINE:
        return AffineConv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bound=AFFINE[spec.method])
    if spec.method == "orthogonal" and stride == 1:
        return Pixelwise(OrthogonalLinear(inputs, outputs))
    method = {"orthogonal": "cayley", "sandwich": "cayley"}.get(spec.method, ORTHOGONAL.get(spec.method, ""))
    rank = None if spec.rank is None else max(1, int(spec.rank * max(inputs * stride**2, outputs)))
    return OrthogonalConv2d(inputs, outputs, kernel, image_size=image, method=method, rank=rank, stride=stride)


def conv(
    spec: ModelSpec, inputs: int, outputs: int, kernel: int, image: tuple[int, int], stride: int = 1
) -> Iterator[nn.Module]:
    """A convolution and what follows it."""
    if spec.method == "sandwich":
        yield SandwichConv2d(inputs, outputs, kernel, image_size=image, stride=stride, activation=spec.activation)
    elif spec.method == "lipnext":
        # σ(M S(R(x + p)) + b): M stands for the published MRᵀ, which is any orthogonal matrix, too.
        yield PositionalBias(image)
        yield Pixelwise(OrthogonalLinear(inputs, outputs, method="stored", bias=False))
        yield Shift(image)
        yield Pixelwise(OrthogonalLinear(outputs, outputs, method="stored"))
        yield from between(spec, outputs)
    elif changes_width(spec):
        yield affine_conv(spec, inputs, outputs, kernel, image, stride)
        yield from between(spec, outputs)
    else:
        bound = "aol" if spec.method == "sll_inert" else RESIDUAL.get(spec.method, spec.method)
        yield ResidualConv2d(inputs, spec.conv_hidden, kernel, bound=bound, activation=spec.activation)


def affine_dense(spec: ModelSpec, inputs: int, outputs: int) -> nn.Module:
    """A dense layer without an activation, of a method that has one."""
    if spec.method in AFFINE:
        return AffineLinear(inputs, outputs, bound=AFFINE[spec.method])
    if spec.method in ("gloro", "local", "local_maxmin"):
        return TrackedLinear(inputs, outputs)
    if spec.method == "liresnet":
        return _cholesky(inputs, outputs)
    return OrthogonalLinear(inputs, outputs, method="stored" if spec.method == "lipnext" else "cayley")


def _cholesky(inputs: int, outputs: int) -> nn.Module:
    """Orthogonal by Cholesky's factor; a square one starts at the identity, as LiResNet's I + γV/√L does."""
    layer = OrthogonalLinear(inputs, outputs, method="cholesky")
    if inputs == outputs:
        nn.init.eye_(layer.weight)
    return layer


def dense(spec: ModelSpec, inputs: int, outputs: int) -> Iterator[nn.Module]:
    """A dense layer and what follows it; a residual keeps its inputs, ``outputs`` being its neurons."""
    if spec.method == "sandwich":
        yield SandwichLinear(inputs, outputs, activation=spec.activation)
    elif changes_width(spec):
        yield affine_dense(spec, inputs, outputs)
        yield from between(spec, outputs)
    else:
        bound = RESIDUAL.get(spec.method, spec.method)
        yield ResidualLinear(inputs, outputs, bound=bound, activation=spec.activation)


def between(spec: ModelSpec, channels: int) -> Iterator[nn.Module]:
    """What follows an affine layer; MaxMin keeps the norm of each pair, and |x| where one would be left over."""
    if spec.method == "soc_plus":
        yield Householder(channels)
    elif spec.method == "local":
        yield ClippedReLU()
    elif spec.method == "lipnext":
        yield PartialAbs(channels)
    elif spec.between == "relu":
        yield nn.ReLU()
    else:
        yield Abs() if channels % 2 else MaxMin()
        if spec.method == "local_maxmin":
            yield Clip()
