"""Does a module run the code and the tensors that its proof is about?

A proof reads the source of a class and the numbers of its tensors. Hooks, replaced methods, tensor subclasses with
their own products, and settings or shapes that change after construction make the module compute something else:
each raises ``NotCertified``. Patches of torch's functions themselves (``torch.nn.functional``) are not looked for,
nor is what a compiler backend of your own computes.
"""

from __future__ import annotations

import abc
import math
import sys
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.errors import NotCertified


class _Built(NamedTuple):
    """The settings and the shapes of a module at the end of its construction; copies share it."""

    settings: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]

    def __deepcopy__(self, memo: object) -> _Built:
        return self


class _Sealing(abc.ABCMeta):
    """Notes the settings and the shapes of a module when its construction is complete."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        module = super().__call__(*args, **options)
        vars(module)["_built"] = _Built(_settings(module), _shapes(module))
        return module


class Fixed(nn.Module, metaclass=_Sealing):
    """A module whose plain settings and shapes stay as they were built.

    The guard is for classes of lipcert; a subclass defined elsewhere may use its attributes as it likes.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        built = vars(self).get("_built")
        if built is not None and name in built.settings and _is_ours(type(self)):
            old = built.settings[name]
            if type(value) is not type(old) or value != old:
                raise NotCertified(
                    f"{type(self).__name__}.{name} is fixed when the layer is built, because its bound depends on "
                    f"it. Build a new layer with {name}={value!r:.60}."
                )
        super().__setattr__(name, value)

    def require_as_built(self) -> None:
        """Raise ``NotCertified`` if a setting or the shape of a tensor is not what it was at construction."""
        if not _is_ours(type(self)) or "_built" not in vars(self):
            return
        settings, shapes = vars(self)["_built"]
        now = _settings(self)
        for name in settings.keys() | now.keys():
            if name not in settings or name not in now or settings[name] != now[name]:
                raise NotCertified(
                    f"{type(self).__name__}.{name} is {now.get(name)!r:.60}, but the layer was built with "
                    f"{settings.get(name)!r:.60}. Build a new layer."
                )
        present = _shapes(self)
        for name in shapes.keys() | present.keys():
            if shapes.get(name) != present.get(name):  # torch might broadcast it
                raise NotCertified(
                    f"{type(self).__name__}.{name} must have shape {shapes.get(name)}, as it was built, but it has "
                    f"shape {present.get(name)}. Build a new layer."
                )


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "lipcert"


def _settings(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module: numbers, strings, tuples and records."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "training"
        and value is not None
        and not callable(value)
        and not isinstance(value, Tensor)
    }


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**module._parameters, **module._buffers}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, in one pass."""
    return not tensor.numel() or all(math.isfinite(float(end)) for end in tensor.detach().aminmax())


def require_intact(module: nn.Module, *, tensors: bool = True) -> None:
    """Raise ``NotCertified`` unless ``module`` itself, not its children, runs the code and tensors that it shows.

    ``tensors=False`` leaves out its tensors: for a module whose constant its author declares.
    """
    _require_no_hooks(module)
    _require_own_methods(module)
    if not tensors:
        return
    kind = type(module).__qualname__
    for name, value in vars(module).items():
        if isinstance(value, Tensor):
            raise NotCertified(
                f"{kind}.{name} is a tensor that is neither a parameter nor a buffer. Register it as one of them."
            )
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None and type(tensor) not in (Tensor, nn.Parameter):
            raise NotCertified(
                f"{kind}.{name} is a {type(tensor).__qualname__}, which may bring its own products. Convert it to "
                "a plain tensor."
            )
    if isinstance(module, Fixed):
        module.require_as_built()


def compiled_module(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper of ``torch.compile``; None if ``module`` is no such wrapper.

    Raises:
        NotCertified: where the wrapper has hooks, or its ``forward`` no longer leads to that module.
    """
    kind = type(module)
    if (kind.__module__, kind.__qualname__) != ("torch._dynamo.eval_frame", "OptimizedModule"):
        return None
    _require_no_hooks(module)
    inner = module.get_submodule("_orig_mod")
    called = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
    # Either the module's own call, or torch's wrapper around the module, which holds it in its closure.
    owner = getattr(called, "__self__", None)
    if isinstance(called, FunctionType) and called.__globals__["__name__"] == "torch._dynamo.external_utils":
        owner = next((cell.cell_contents for cell in called.__closure__ or ()), None)
    if owner is not inner:
        raise NotCertified("the forward method of a compiled module was replaced. Compile the module again.")
    return inner


def _require_no_hooks(module: nn.Module) -> None:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if hooks:
        name = getattr(hooks[0], "__qualname__", type(hooks[0]).__qualname__)
        raise NotCertified(
            f"{type(module).__qualname__} has a forward hook or a patched method ({name}), which may change what "
            "it computes. Remove it; for torch.nn.utils that is prune.remove, remove_weight_norm or "
            "remove_spectral_norm."
        )
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        raise NotCertified(
            "a forward hook is registered for all modules, so it may change any output. Remove it before you "
            "audit, freeze or certify."
        )


def _require_own_methods(module: nn.Module) -> None:
    """No method was replaced, neither on the object nor on its class, where torch or lipcert wrote the class."""
    kind = type(module)
    for name, value in vars(module).items():
        if not callable(value) or not (hasattr(kind, name) or name.startswith("__")):
            continue
        if name == "_compiled_call_impl" and _calls(value, module):
            continue
        raise NotCertified(
            f"{kind.__qualname__} has a forward hook or a patched method ({name}), which may change what it "
            "computes. Remove it."
        )
    for base in kind.__mro__:
        author, home = base.__module__.partition(".")[0], sys.modules.get(base.__module__)
        if home is None or author not in ("torch", "lipcert"):
            continue
        methods = vars(base)
        names = methods.keys() & _TORCH_METHODS if author == "torch" else methods.keys()
        for name in names:
            value = methods[name]
            if not _as_written(base, name, value, vars(home)):
                raise NotCertified(
                    f"{base.__qualname__}.{name} was replaced by {getattr(value, '__qualname__', value)!s:.60}, "
                    "which may compute something else. Restore the class."
                )


_TORCH_METHODS = {
    "forward",
    "__call__",
    "_call_impl",
    "_wrapped_call_impl",
    "_conv_forward",
    "_output_padding",
    "__getattr__",
    "__getattribute__",
    "__deepcopy__",
    "__iter__",
}


def _as_written(base: type, name: str, value: Any, home: dict[str, Any]) -> bool:
    """Whether an attribute of a class is what its author wrote, if it decides what a module computes.

    A function written in a class has the globals of its module and the name of the class in its own.
    """
    ours = _is_ours(base)
    if name not in _TORCH_METHODS:
        if not ours or name.startswith("__"):
            return True
        value = getattr(value, "fget", getattr(value, "__func__", value))  # a property, a static method
        if not callable(value):
            return True
    if value is getattr(torch_module, "_forward_unimplemented", None):
        return base is nn.Module
    # torch makes a class for each parametrized module, in a function of its own.
    inside = (f"{base.__qualname__}.", "_inject_new_class.<locals>.")
    return isinstance(value, FunctionType) and value.__globals__ is home and value.__qualname__.startswith(inside)


def _calls(compiled: Any, module: nn.Module) -> bool:
    """Whether a compiled call is that of this very module, as ``module.compile()`` makes it."""
    called = getattr(compiled, "_torchdynamo_orig_callable", None)
    return isinstance(called, MethodType) and called.__self__ is module and called.__func__ is nn.Module._call_impl


def float32_precision() -> tuple[str, ...]:
    """How this process computes products of float32 numbers on a CPU: torch's old setting, and its new ones."""
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to say once the new settings were used
        legacy = "new settings"
    mkldnn = torch.backends.mkldnn
    parts = (torch.backends, mkldnn, getattr(mkldnn, "matmul", None), getattr(mkldnn, "conv", None))
    return legacy, *(str(getattr(part, "fp32_precision", "none")) for part in parts)


def require_float32_products() -> None:
    """Raise ``NotCertified`` if a product of float32 numbers may be computed with fewer bits."""
    found = float32_precision()
    if found[0] not in ("highest", "new settings") or any(value not in ("none", "ieee") for value in found[1:]):
        raise NotCertified(
            f"float32 products must be computed in float32, but torch is set to {', '.join(found)}. Call "
            "torch.set_float32_matmul_precision('highest') and leave torch.backends.*.fp32_precision at 'ieee'."
        )
