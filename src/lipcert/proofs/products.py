"""Products with stored tensors, plain and residual: which operation each module is.

Rounding: constants up. A geometry without a proof (reflect padding) has no rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor, nn

from lipcert import frozen
from lipcert.errors import NotCertified
from lipcert.proofs import operation as op
from lipcert.proofs.elementary import shape_after
from lipcert.proofs.geometry import Geometry, pair
from lipcert.proofs.operation import Operation, Shape
from lipcert.proofs.torus import residual_torus, torus
from lipcert.verified.convolution import conv_kappa


def _linear(module: Any, shape_in: Shape, block: int | None) -> Operation:
    return op.linear(module.weight.detach(), _value(module.bias), shape_in, block)


def _conv2d(module: Any, shape_in: Shape, block: int | None) -> Operation:
    return op.conv(module.weight.detach(), _value(module.bias), shape_in, _geometry(module), block)


def _conv1d(module: Any, shape_in: Shape, block: int | None) -> Operation:
    inner = _geometry(module)
    flat = op.conv(
        module.weight.detach()[:, :, None], _value(module.bias), (shape_in[0], 1, shape_in[1]), inner, block
    )
    return Operation(
        "conv1d",
        (flat.shape[0], flat.shape[2]),
        flat.lipschitz,
        flat.method,
        lambda x: flat.forward(x[:, :, None])[:, :, 0],
        flat.error,
        None,
        largest=flat.largest,
    )


def _conv_transpose2d(module: Any, shape_in: Shape) -> Operation:
    """The adjoint of a convolution from the output's shape; an output padding adds rows, constant b."""
    if module.padding_mode != "zeros":
        raise NotCertified(f"padding_mode {module.padding_mode!r} has no proof here. Use zeros.")
    kernel = module.weight.detach()  # (in, out/groups, kh, kw): the kernel of the convolution it transposes
    one = op.conv(kernel, None, shape_after(module, shape_in), _geometry(module), None)
    out, bias = shape_after(module, shape_in), _value(module.bias)
    terms = kernel.shape[0] // module.groups * math.prod(kernel.shape[2:])
    kappa = conv_kappa(op.array(kernel), np.ones(len(kernel)), groups=module.groups)
    beta = op.bias_norm(bias, None, math.prod(out[1:]))
    return Operation(
        "conv_transpose",
        out,
        one.lipschitz,
        one.method,
        module,
        op.affine_error(terms, kappa, beta),
        None,
        largest=op.largest(kernel, bias),
    )


def _geometry(module: Any) -> Geometry:
    kernel, stride, dilation = (pair(v) for v in (module.kernel_size, module.stride, module.dilation))
    if isinstance(module, nn.Conv1d):
        kernel, stride, dilation = (1, kernel[0]), (1, stride[0]), (1, dilation[0])
    if module.padding == "same":
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = (reach[0] // 2, reach[0] - reach[0] // 2, reach[1] // 2, reach[1] - reach[1] // 2)
    elif module.padding == "valid":
        padding = (0, 0, 0, 0)
    else:
        high, wide = pair(module.padding)
        if isinstance(module, nn.Conv1d):
            high, wide = 0, high
        padding = (high, high, wide, wide)
    _require_as_built(module, padding)
    return Geometry(kernel, stride, padding, dilation, module.padding_mode, module.groups)


def _require_as_built(module: Any, padding: tuple[int, int, int, int]) -> None:
    """torch pads by what it noted at construction, and slides the weight that is there: attributes may differ."""
    plane = not isinstance(module, nn.Conv1d)
    sizes = pair(module.kernel_size) if plane else pair(module.kernel_size)[:1]
    if tuple(module.weight.shape[2:]) != sizes:
        raise NotCertified(
            f"kernel_size must be that of its weight; got {sizes} and {tuple(module.weight.shape)}. Build it anew."
        )
    top, bottom, left, right = padding
    noted = [left, right, top, bottom] if plane else [left, right]
    if module.padding_mode != "zeros" and list(module._reversed_padding_repeated_twice) != noted:
        raise NotCertified(
            f"padding must be as at construction, where its mode is {module.padding_mode!r}; got "
            f"{module.padding} later. Build it anew."
        )


def _residual_linear(module: frozen.FrozenResidualLinear, shape_in: Shape, block: int | None) -> Operation:
    parts = (module.weight, module.gamma, module.bias, module.witness, module.sigma)
    return op.residual(*parts, shape_in, None, block)


def _residual_conv(module: frozen.FrozenResidualConv2d, shape_in: Shape, block: int | None) -> Operation:
    high, wide = module.padding
    size = (int(module.weight.shape[2]), int(module.weight.shape[3]))
    geometry = Geometry(size, module.stride, (high, high, wide, wide), (1, 1), module.padding_mode, module.groups)
    parts = (module.weight, module.gamma, module.bias, module.witness, module.sigma)
    return op.residual(*parts, shape_in, geometry, block)


def _value(parameter: Tensor | None) -> Tensor | None:
    return None if parameter is None else parameter.detach()


RULES: dict[type, Callable[[Any, Shape], Operation]] = {
    nn.ConvTranspose2d: _conv_transpose2d,
}
PRODUCTS: dict[type, Callable[[Any, Shape, int | None], Operation]] = {  # sums perhaps in blocks
    nn.Linear: _linear,
    nn.Conv1d: _conv1d,
    nn.Conv2d: _conv2d,
    frozen.FrozenResidualLinear: _residual_linear,
    frozen.FrozenResidualConv2d: _residual_conv,
    frozen.FrozenTorus: torus,
    frozen.FrozenResidualTorus: residual_torus,
}
