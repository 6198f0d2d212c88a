"""A network from its spec: nn.Sequential(backbone, head), the mean shift inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lipcert.layers.activation import Abs, Householder, MaxMin
from lipcert.layers.affine import AffineConv2d, AffineLinear, orthogonal_start_
from lipcert.layers.head import NormalizedHead
from lipcert.layers.orthogonal import OrthogonalLinear
from lipcert.layers.orthogonal_conv import OrthogonalConv2d
from lipcert.layers.residual import ResidualConv2d, ResidualLinear
from lipcert.layers.sandwich import SandwichConv2d, SandwichLinear
from lipcert.layers.shape import Centre, Normalize, PadChannels, PadImage, Pixelwise, ScaledAvgPool2d, SpaceToDepth
from lipcert.models.presets import model_spec
from lipcert.models.spec import ModelSpec

# method → bound, where the names differ
_RESIDUAL = {"cpl": "spectral", "cpl_surrogate": "spectral_surrogate", "sll_inert": "sll"}
_AFFINE = {"sn": "spectral", "sn_surrogate": "spectral_surrogate"}
# method → how a convolution is made orthogonal; dense layers are by Cayley, whatever their shape
_ORTHOGONAL = {
    "cayley": "cayley",
    "soc": "exp",
    "soc_plus": "exp",
    "lot": "lot",
    "eco": "eco",
    "bro": "reflector",
    "bcop": "bcop",
    "orthogonal": "pixel by pixel",
}


def create_model(name: str, **overrides: Any) -> nn.Sequential:
    """The named architecture as a network: logits from images in [0, 1].

    Args:
        name: one of ``list_models()``.
        overrides: fields of the spec, such as num_classes=100, image_shape=(1, 28, 28), dense_layers=3.
    """
    return build(model_spec(name, **overrides))


def build(spec: ModelSpec) -> nn.Sequential:
    """nn.Sequential(backbone, head) for a spec."""
    backbone = nn.Sequential(*_front(spec), *_convolutions(spec), *_middle(spec), *_dense(spec))
    changes = spec.dense_layers > 0 and spec.method in (*_AFFINE, *_ORTHOGONAL, "sandwich")
    width = spec.dense_hidden if changes else spec.features
    if spec.init == "orthogonal":
        _start_orthogonal(backbone)
    return nn.Sequential(backbone, NormalizedHead(width, spec.num_classes))


def _start_orthogonal(backbone: nn.Module) -> None:
    """Orthonormal columns; a kernel has them in its middle tap, where shifted copies do not overlap."""
    for layer in backbone.modules():
        if isinstance(layer, ResidualLinear):
            orthogonal_start_(layer.weight)
        elif isinstance(layer, (ResidualConv2d, AffineConv2d)):
            with torch.no_grad():
                high, wide = (size // 2 for size in layer.kernel_size)
                middle = torch.empty_like(layer.weight[:, :, high, wide])
                orthogonal_start_(middle)
                layer.weight.zero_()[:, :, high, wide] = middle


def _front(spec: ModelSpec) -> Iterator[nn.Module]:
    mean = spec.mean or (0.5,) * spec.image_shape[0]
    yield Centre(mean) if spec.std is None else Normalize(mean, spec.std)
    if any(size % spec.block for size in spec.image_shape[1:]):
        yield PadImage(spec.block)
    if spec.stem > 1:
        yield SpaceToDepth(spec.stem)
    yield PadChannels(spec.channels)


def _convolutions(spec: ModelSpec) -> Iterator[nn.Module]:
    for _ in range(spec.conv_layers):
        if spec.method in _AFFINE:
            yield AffineConv2d(
                spec.channels,
                spec.channels,
                spec.kernel_size,
                padding=spec.kernel_size // 2,
                bound=_AFFINE[spec.method],
            )
            yield _between(spec, spec.channels)
        elif spec.method == "orthogonal":
            yield Pixelwise(OrthogonalLinear(spec.channels, spec.channels))
            yield _between(spec, spec.channels)
        elif spec.method in _ORTHOGONAL:
            yield OrthogonalConv2d(
                spec.channels,
                spec.channels,
                spec.kernel_size,
                image_size=spec.pixels,
                method=_ORTHOGONAL[spec.method],
            )
            yield _between(spec, spec.channels)
        elif spec.method == "sandwich":
            yield SandwichConv2d(
                spec.channels,
                spec.channels,
                spec.kernel_size,
                image_size=spec.pixels,
                activation=spec.activation,
            )
        else:
            yield ResidualConv2d(
                spec.channels,
                spec.conv_hidden,
                spec.kernel_size,
                bound="aol" if spec.method == "sll_inert" else _RESIDUAL.get(spec.method, spec.method),
                activation=spec.activation,
            )


def _middle(spec: ModelSpec) -> Iterator[nn.Module]:
    if spec.pool > 1:
        yield ScaledAvgPool2d(spec.pool)
    yield nn.Flatten()


def _dense(spec: ModelSpec) -> Iterator[nn.Module]:
    width = spec.features
    for _ in range(spec.dense_layers):
        if spec.method in _AFFINE:
            yield AffineLinear(width, spec.dense_hidden, bound=_AFFINE[spec.method])
        elif spec.method in _ORTHOGONAL:
            yield OrthogonalLinear(width, spec.dense_hidden)
        elif spec.method == "sandwich":
            yield SandwichLinear(width, spec.dense_hidden, activation=spec.activation)
            width = spec.dense_hidden
            continue
        else:
            yield ResidualLinear(
                width,
                spec.dense_hidden,
                bound=_RESIDUAL.get(spec.method, spec.method),
                activation=spec.activation,
            )
            continue
        yield _between(spec, spec.dense_hidden)
        width = spec.dense_hidden


def _between(spec: ModelSpec, channels: int) -> nn.Module:
    """What follows an affine layer: MaxMin keeps the norm of each pair; |x| where one would be left over."""
    if spec.method == "soc_plus":
        return Householder(channels)
    return Abs() if channels % 2 else MaxMin()
