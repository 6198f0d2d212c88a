"""The rivals' own layouts: what stands between the mean shift and the head.

- ``kw_large``: four convolutions, every second one halving the image, and two dense layers (Li et al. 2019,
  Trockman & Kolter 2021, Wang & Manchester 2023). A kernel is halved where the image is.
- ``lipconvnet``: five groups of convolutions, each ending in one that halves the image and doubles the width
  (Singla & Feizi 2021, Xu et al. 2022).
- ``c2f``: groups of two convolutions and a 4 × 4 one that halves the image, twice as wide from group to group; the
  last group may have one less. 6C2F has two groups, 8C2F three (Lee et al. 2020, Leino et al. 2021).
- ``liresnet``: a convolution that halves the image, tracked residual ones, an orthogonal map of each 4 × 4 pixels
  and of all of them, orthogonal dense layers (Hu et al. 2023, 2024).
- ``lipnext``: patches to channels, blocks that shift groups of channels between orthogonal maps of them, and the L2
  norm of each channel over the image (Hu et al. 2026).
- ``patches``: 4 × 4 pixels to channels, convolutions on them, dense layers of one width (Prach & Lampert 2022).
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lipcert.layers.forms import OrthogonalLinear
from lipcert.layers.shape import L2Pool2d, PadChannels, Pixelwise, SpaceToDepth, TakeChannels
from lipcert.models.pieces import affine_conv, affine_dense, conv, dense
from lipcert.models.spec import ModelSpec


def kw_large(spec: ModelSpec) -> Iterator[nn.Module]:
    (high, wide), width, kernel = spec.pixels, spec.channels, spec.kernel_size
    half, small = (high // 2, wide // 2), max(1, kernel // 2)
    yield from conv(spec, spec.image_shape[0], width, kernel, (high, wide))
    yield from conv(spec, width, width, small, (high, wide), stride=2)
    yield from conv(spec, width, 2 * width, kernel, half)
    yield from conv(spec, 2 * width, 2 * width, small, half, stride=2)
    yield nn.Flatten()
    yield from dense(spec, spec.features, spec.dense_hidden)
    yield from dense(spec, spec.dense_hidden, spec.dense_hidden)
    if spec.head == "first":
        yield affine_dense(spec, spec.dense_hidden, spec.num_classes)


def lipconvnet(spec: ModelSpec) -> Iterator[nn.Module]:
    inputs, width, (high, wide) = spec.image_shape[0], spec.channels, spec.pixels
    for group in range(5):
        for _ in range(spec.conv_layers // 5 - 1):
            yield from conv(spec, inputs, width, spec.kernel_size, (high, wide))
            inputs = width
        kernel = 1 if group == 4 else spec.kernel_size
        yield from conv(spec, inputs, 2 * width, kernel, (high, wide), stride=2)
        inputs = width = 2 * width
        high, wide = high // 2, wide // 2
    if spec.head == "first":  # one pixel is left
        yield affine_conv(spec, width, spec.num_classes, 1, (high, wide))
    yield nn.Flatten()


def patches(spec: ModelSpec) -> Iterator[nn.Module]:
    image, width = spec.pixels, spec.channels
    yield SpaceToDepth(spec.stem)
    yield from conv(spec, spec.image_shape[0] * spec.stem**2, width, 1, image)
    for _ in range(spec.conv_layers):
        yield from conv(spec, width, width, spec.kernel_size, image)
    yield affine_conv(spec, width, width, 1, image)
    yield TakeChannels(spec.dense_hidden // (image[0] * image[1]))
    yield nn.Flatten()
    for _ in range(spec.dense_layers - 1):
        yield from dense(spec, spec.dense_hidden, spec.dense_hidden)
    if spec.dense_layers:
        yield affine_dense(spec, spec.dense_hidden, spec.dense_hidden)


def c2f(spec: ModelSpec) -> Iterator[nn.Module]:
    inputs, (high, wide) = spec.image_shape[0], spec.pixels
    left = spec.conv_layers
    for group in range(spec.groups):
        width = spec.channels * 2**group
        for _ in range(min(left, 3) - 1):
            yield from conv(spec, inputs, width, spec.kernel_size, (high, wide))
            inputs = width
        yield from conv(spec, width, width, 4, (high, wide), stride=2)
        high, wide, left = high // 2, wide // 2, left - 3
    yield nn.Flatten()
    inputs = spec.features
    for _ in range(spec.dense_layers):
        yield from dense(spec, inputs, spec.dense_hidden)
        inputs = spec.dense_hidden


def liresnet(spec: ModelSpec) -> Iterator[nn.Module]:
    width, block, (high, wide) = spec.channels, spec.pool, spec.pixels
    yield from conv(spec, spec.image_shape[0], width, 2 * spec.stem + 1, (high, wide), stride=spec.stem)
    for _ in range(spec.conv_layers):
        yield from conv(spec, width, width, spec.kernel_size, (high, wide))
    yield SpaceToDepth(block)
    yield Pixelwise(OrthogonalLinear(width * block**2, width, method="cholesky", bias=False))
    yield nn.Flatten()
    inputs = spec.features
    for _ in range(spec.dense_layers + 1):  # the first one is the neck's
        yield from dense(spec, inputs, spec.dense_hidden)
        inputs = spec.dense_hidden


def lipnext(spec: ModelSpec) -> Iterator[nn.Module]:
    yield SpaceToDepth(spec.stem)
    yield PadChannels(spec.channels)
    for _ in range(spec.conv_layers):
        yield from conv(spec, spec.channels, spec.channels, 1, spec.pixels)
    yield L2Pool2d(spec.pixels)
    yield nn.Flatten()


FAMILIES = {
    "kw_large": kw_large,
    "lipconvnet": lipconvnet,
    "patches": patches,
    "c2f": c2f,
    "liresnet": liresnet,
    "lipnext": lipnext,
}
