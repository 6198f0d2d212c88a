"""What every layer promises: ``lipschitz_bound()``, a constant proved in real arithmetic.

The constant holds for the formula of the layer with its present parameters and mode. A module without a proof never
counts as 1: ``lipschitz_bound`` raises ``NotCertified``.

Rounding: products are rounded up. The constants are those of the formulas, not of the floating-point
forward pass.
"""

from __future__ import annotations

import abc
import math

import torch
from torch import Tensor, nn

from lipcert.activations import SLOPE_RESTRICTED, SlopeRestricted
from lipcert.algebra.bounds import Bound
from lipcert.algebra.gram import Columns
from lipcert.algebra.scale import at_least_float32
from lipcert.errors import NotCertified
from lipcert.intact import Fixed, all_finite, inner_module, require_intact


class LipschitzLayer(Fixed, abc.ABC):
    """A module with a proved Lipschitz constant in the L2 norm, which a subclass states in ``proved_constant``."""

    @abc.abstractmethod
    def proved_constant(self) -> float:
        """L with ‖f(x) − f(y)‖ ≤ L‖x − y‖ for all x, y, in real arithmetic, for finite parameters."""

    def lipschitz_bound(self) -> float:
        """The proved constant; ``NotCertified`` if the object computes something else than its class says."""
        require_stated(self, "proved_constant")
        require_finite(self)
        return _a_number(self.proved_constant(), self)


class NonExpansive(LipschitzLayer):
    """A layer whose constant is 1, whatever its parameters; an ``activation`` has slopes in [0, 1]."""

    activation: SlopeRestricted | None = None

    def proved_constant(self) -> float:
        sigma = self.activation
        if sigma is not None and (type(sigma) is not SlopeRestricted or SLOPE_RESTRICTED.get(sigma.name) != sigma):
            raise NotCertified(
                f"activation must be one of {sorted(SLOPE_RESTRICTED)} as lipcert defines it, got another "
                "function. Build the layer with the activation's name."
            )
        return 1.0


class BoundedLayer(NonExpansive):
    """A layer made of a weight, a bias and a choice of T, 1-Lipschitz whenever WᵀW ⪯ T.

    Half-precision parameters are widened to float32 for the whole layer and the result is narrowed once;
    under autocast the products follow autocast and T does not.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    bound: Bound

    @abc.abstractmethod
    def arrange(self, weight: Tensor) -> Columns:
        """The columns of W, from a weight as it is stored."""

    def columns(self) -> Columns:
        """The columns of W, for ``bound.fit``."""
        return self.arrange(at_least_float32(self.weight))

    def prepared(self) -> tuple[Tensor, Tensor]:
        """(Ŵ, s) with W = s·Ŵ."""
        return self.bound.prepare(self.weight)

    def bounded(self, unit: Tensor) -> tuple[Columns, Tensor]:
        """Return the columns to use and diag(T) for Ŵ = ``unit``."""
        self.require_bound()
        result: tuple[Columns, Tensor] = self.bound(self.arrange(unit))
        return result

    def require_bound(self) -> None:
        """Raise ``NotCertified`` if the bound is not made for this weight: a user may have assigned another."""
        if self.bound.dense_only and self.weight.ndim > 2:
            raise NotCertified(
                f"{type(self.bound).__name__} is a bound for dense weights, but {type(self).__name__} is a "
                "convolution. Use bound='sll'."
            )

    @abc.abstractmethod
    def check(self, x: Tensor) -> None:
        """Raise ValueError or NotCertified if the layer cannot take ``x``."""

    @abc.abstractmethod
    def compute(self, x: Tensor) -> Tensor:
        """The formula of the layer."""

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        if self.weight.dtype in (torch.float32, torch.float64):
            return self.compute(x)
        return self.compute(at_least_float32(x)).to(x.dtype)

    def proved_constant(self) -> float:
        require_stated(self.bound, "require_sound")
        self.bound.require_sound()
        self.require_bound()
        if self.bound.size not in (None, self.columns().count):
            raise NotCertified(
                f"the bound is made for {self.bound.size} columns, and {type(self).__name__} has "
                f"{self.columns().count}. Build the layer with its bound."
            )
        return super().proved_constant()


def require_finite(module: nn.Module) -> None:
    """Raise ``NotCertified`` if a parameter or buffer of ``module`` is NaN or infinite."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_meta:
            raise NotCertified(
                f"{type(module).__name__}.{name} is on the meta device and has no values. Load weights."
            )
        if tensor.is_complex():
            raise NotCertified(f"{type(module).__name__}.{name} is complex. The proofs are about real numbers.")
        if tensor.is_floating_point() and not all_finite(tensor):
            raise NotCertified(
                f"{type(module).__name__}.{name} must be finite; got NaN or infinity. "
                "Load a checkpoint from before the training diverged."
            )


def require_stated(part: nn.Module, method: str) -> None:
    """Raise ``NotCertified`` if a module inherits a proof of ours for code that is not ours.

    A subclass made elsewhere may compute something else, and a hook certainly does. The subclass must define
    ``method`` itself: then its author states the constant.
    """
    kind = type(part)
    ours = kind.__module__.partition(".")[0] == "lipcert"
    if not ours and method not in vars(kind):
        raise NotCertified(
            f"{kind.__qualname__} is a subclass that does not define {method}() itself, so it has no proof. Define "
            f"{method}() there, with a proof, or use the plain layer (remove parametrizations)."
        )
    require_intact(part)


def lipschitz_bound(module: nn.Module, input_shape: tuple[int, ...] | None = None) -> float:
    """A proved Lipschitz constant of a layer, or of an ``nn.Sequential`` of layers.

    The constant of some modules, such as an average pool, depends on the shape of one input: pass it then.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"expected a torch module, got {type(module).__name__}. Pass the network itself.")
    from lipcert.certified.freeze import constant_of  # which imports this module
    from lipcert.layers.parametrize import is_dropped_in, require_one_lipschitz  # likewise

    if input_shape is not None:
        return _a_number(constant_of(module, input_shape), module)
    if isinstance(module, LipschitzLayer):
        return module.lipschitz_bound()
    inner = inner_module(module)
    if inner is not None:
        return lipschitz_bound(inner)
    if is_dropped_in(module):
        require_one_lipschitz(module)
        return 1.0
    if type(module) is not nn.Sequential:
        return _a_number(constant_of(module), module)
    require_intact(module)
    product = 1.0
    for child in module:  # not children(), which counts a module used twice once
        factor = lipschitz_bound(child)
        product = product if factor == 1.0 else math.nextafter(product * factor, math.inf)
    return _a_number(product, module)


def _a_number(constant: float, module: nn.Module) -> float:
    if not 0 <= constant < math.inf:
        raise NotCertified(
            f"the Lipschitz constant of {type(module).__qualname__} must be finite and not negative; got "
            f"{constant}. Check its parameters."
        )
    return constant
