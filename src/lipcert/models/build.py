"""A network from its spec: nn.Sequential(backbone, head), the mean shift inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lipcert.layers.forms import AffineConv2d, ResidualConv2d, ResidualLinear, orthogonal_start_
from lipcert.layers.head import FirstLogits, LinearHead, NormalizedHead
from lipcert.layers.shape import Center, Normalize, PadChannels, PadImage, Scale, ScaledAvgPool2d, SpaceToDepth
from lipcert.models.families import FAMILIES
from lipcert.models.own import Builder, build_own
from lipcert.models.pieces import changes_width, conv, dense
from lipcert.models.presets import architecture
from lipcert.models.spec import Architecture, ModelSpec, OwnNetwork


def create_model(
    name: str, *, pretrained: str | Path | None = None, zoo: str | Path | None = None, **overrides: Any
) -> nn.Module:
    """The named architecture as a network: logits from images in [0, 1].

    Args:
        name: one of ``list_models()``, or ``module:function`` of your own.
        pretrained: the trained network of that name, such as "digits", frozen and with a certificate;
            `lipcert models --pretrained` lists them. With a slash it is a folder, or someone/model on the hub.
        zoo: the folder to find it in; by default $LIPCERT_ZOO, the package and its checkout.
        overrides: fields of the spec, such as num_classes=100, image_shape=(1, 28, 28), dense_layers=3 or
            lipschitz=10; with a function of your own its arguments.

    Raises:
        ValueError: for a name or fields that there are not, and for a trained network of another architecture.
    """
    if pretrained is None:
        if zoo is not None:
            raise ValueError("zoo is where a trained network is. Pass pretrained too, or leave it out.")
        return build_any(architecture(name, **overrides))
    from lipcert.zoo import load_pretrained

    found = load_pretrained(pretrained, zoo)
    if overrides:
        raise ValueError(f"a trained network has its own fields; got {', '.join(overrides)}. Leave them out.")
    if found.entry is not None and found.entry.model != name:
        raise ValueError(
            f"the network {str(pretrained)!r} is {found.entry.model}, got {name!r}. Call "
            f"create_model({found.entry.model!r}, pretrained={str(pretrained)!r})."
        )
    return found.network


def build_any(spec: Architecture, builder: Builder | None = None) -> nn.Module:
    """The network of a spec; ``builder`` is the function of an own one, by default the one that the spec names."""
    return build_own(spec, builder) if isinstance(spec, OwnNetwork) else build(spec)


def parameters(spec: ModelSpec) -> int:
    """The number of parameters, counted on the meta device: no memory, no numbers."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(spec).parameters())


def build(spec: ModelSpec) -> nn.Sequential:
    """nn.Sequential(backbone, head) for a spec."""
    if spec.activation != "relu" and changes_width(spec) and spec.method != "sandwich":
        raise ValueError(
            f"activation is a setting of residual and sandwich layers; the layers of {spec.method!r} have MaxMin, "
            "Householder or |x| between them. Leave it out."
        )
    if spec.between != "maxmin" and (
        not changes_width(spec) or spec.method in ("sandwich", "soc_plus", "local", "local_maxmin", "lipnext")
    ):
        raise ValueError(
            f"between is a setting of layers with MaxMin between them; those of {spec.method!r} have an activation "
            "of their own. Leave it out."
        )
    inner = _flat(spec) if spec.layout == "flat" else FAMILIES[spec.layout](spec)
    backbone = nn.Sequential(*_front(spec), *inner, *_scale(spec))
    if spec.init == "orthogonal":
        _start_orthogonal(backbone)
    if spec.head == "first":
        return nn.Sequential(backbone, FirstLogits(spec.num_classes))
    dense_layers = spec.dense_layers + (spec.layout == "liresnet")  # whose neck is one, too
    changes = dense_layers > 0 and changes_width(spec)
    width = spec.dense_hidden if changes else spec.features
    head = LinearHead if spec.head == "plain" else NormalizedHead
    return nn.Sequential(backbone, head(width, spec.num_classes))


def _start_orthogonal(backbone: nn.Module) -> None:
    """Orthonormal columns; a kernel has them in its middle tap, where shifted copies do not overlap."""
    for layer in backbone.modules():
        if isinstance(layer, ResidualLinear):
            orthogonal_start_(layer.weight)
        elif isinstance(layer, (ResidualConv2d, AffineConv2d)):
            with torch.no_grad():
                high, wide = (size // 2 for size in layer.weight.shape[2:])
                middle = torch.empty_like(layer.weight[:, :, high, wide])
                orthogonal_start_(middle)
                layer.weight.zero_()[:, :, high, wide] = middle


def _front(spec: ModelSpec) -> Iterator[nn.Module]:
    mean = spec.mean or (0.5,) * spec.image_shape[0]
    yield Center(mean) if spec.std is None else Normalize(mean, spec.std)
    if any(size % spec.block for size in spec.image_shape[1:]):
        yield PadImage(spec.block)


def _scale(spec: ModelSpec) -> Iterator[nn.Module]:
    if spec.lipschitz == "learned":
        yield Scale(1.0, learnable=True)
    elif spec.lipschitz != 1:
        yield Scale(spec.lipschitz)


def _flat(spec: ModelSpec) -> Iterator[nn.Module]:
    if spec.stem > 1:
        yield SpaceToDepth(spec.stem)
    width = spec.channels
    if spec.method == "sandwich":  # its first layer widens: neurons on padded zeros would stay at 0
        width = spec.image_shape[0] * spec.stem**2
    else:
        yield PadChannels(width)
    for _ in range(spec.conv_layers):
        yield from conv(spec, width, spec.channels, spec.kernel_size, spec.pixels)
        width = spec.channels
    if spec.pool > 1:
        yield ScaledAvgPool2d(spec.pool)
    yield nn.Flatten()
    width = spec.features
    for _ in range(spec.dense_layers):
        yield from dense(spec, width, spec.dense_hidden)
        width = spec.dense_hidden if changes_width(spec) else width
