"""Does a module run the code and the tensors that its proof is about?

A proof reads the source of a class and the numbers of its tensors. Hooks, replaced methods, tensor subclasses with
their own products, and settings or shapes that change after construction make the module compute something else:
each raises ``NotCertified`` when a claim is made. Patches of torch's functions themselves (``torch.nn.functional``)
are not looked for, nor is what a compiler or a forged ``__module__`` hides.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.errors import NotCertified


class _Sealing(abc.ABCMeta):
    """Notes the settings and the shapes of a module when its construction is complete."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        module = super().__call__(*args, **options)
        module.seal()
        return module


class Fixed(nn.Module, metaclass=_Sealing):
    """A module whose plain settings and shapes must stay as they were built, or nothing is claimed about it.

    The guard is for classes of lipcert; a subclass defined elsewhere may use its attributes as it likes.
    """

    def seal(self) -> None:
        """Note settings and shapes once more: the module was completed after its construction."""
        vars(self)["_built"] = _noted(self)

    def require_as_built(self) -> None:
        """Raise ``NotCertified`` if a setting or the shape of a tensor is not what it was at construction."""
        now = _noted(self)
        built = vars(self).get("_built", now) if type(self).__module__.startswith("lipcert.") else now
        for name in built.keys() | now.keys():
            if built.get(name) != now.get(name):  # torch might broadcast a tensor of another shape
                raise NotCertified(
                    f"{type(self).__name__}.{name} is {now.get(name)!r:.60}, but the layer was built with "
                    f"{built.get(name)!r:.60}. Build a new layer."
                )


def _noted(module: nn.Module) -> dict[str, Any]:
    """The plain attributes of a module (numbers, strings, tuples and records) and the shapes of its tensors."""
    settings = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training" and not callable(value) and not isinstance(value, Tensor)
    }
    tensors = {**module._parameters, **module._buffers}
    return settings | {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}


def all_finite(*tensors: Tensor | None) -> bool:
    """Whether no entry is NaN or infinite, in one pass over each tensor."""
    return all(
        math.isfinite(float(end))
        for tensor in tensors
        if tensor is not None and tensor.numel()
        for end in tensor.detach().aminmax()
    )


def require_intact(module: nn.Module, *, tensors: bool = True) -> None:
    """Raise ``NotCertified`` unless ``module`` itself, not its children, runs the code and tensors that it shows.

    ``tensors=False`` leaves out its tensors: for a module whose constant its author declares.
    """
    if isinstance(module, torch.jit.ScriptModule):
        raise NotCertified("the code of TorchScript cannot be followed. Pass the module that was scripted.")
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
        # A tensor without entries only says where a module is.
        if tensor is not None and tensor.numel() and type(tensor) not in (Tensor, nn.Parameter):
            raise NotCertified(
                f"{kind}.{name} is a {type(tensor).__qualname__}, which may bring its own products. Convert it to "
                "a plain tensor."
            )
    if isinstance(module, Fixed):
        module.require_as_built()


GENERATED = "GraphModule.__new__.<locals>.GraphModuleImpl"  # each fx.GraphModule has its own class and forward
# Wrappers that compute what the module inside them computes, by name: their files are slow to import.
WRAPPERS = {
    ("torch._dynamo.eval_frame", "OptimizedModule"): "_orig_mod",
    ("torch.nn.parallel.data_parallel", "DataParallel"): "module",
    ("torch.nn.parallel.distributed", "DistributedDataParallel"): "module",
    ("torch.optim.swa_utils", "AveragedModel"): "module",
}


def inner_module(module: nn.Module) -> nn.Module | None:
    """The module inside a wrapper of torch; None if ``module`` is no such wrapper."""
    kind = type(module)
    place = WRAPPERS.get((kind.__module__, kind.__qualname__))
    if place is None:
        return None
    _require_no_hooks(module)
    if place == "module":  # the methods of a compiled one are those of the module inside it
        _require_own_methods(module)
    return module.get_submodule(place)


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
    """Nothing was replaced on the object, and no method or property of torch or lipcert by code from elsewhere."""
    kind = type(module)
    for name, value in vars(module).items():
        # ``module.compile()`` sets the second one.
        if callable(value) and (hasattr(kind, name) or name.startswith("__")) and name != "_compiled_call_impl":
            raise NotCertified(
                f"{kind.__qualname__} has a forward hook or a patched method ({name}), which may change what it "
                "computes. Remove it."
            )
    for base in kind.__mro__:
        if _is_known(base) and base.__qualname__ != GENERATED:
            for name, value in vars(base).items():
                code = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if callable(code) and not _is_known(code):  # torch's compiler replaces some of torch's methods
                    raise NotCertified(
                        f"{base.__qualname__}.{name} was replaced by one of {code.__module__}, which may compute "
                        "something else. Restore the class."
                    )


def _is_known(code: Any) -> bool:
    """Whether torch or lipcert has written a class or a function."""
    return str(code.__module__).partition(".")[0] in ("torch", "lipcert")


def require_float32_products() -> None:
    """Raise ``NotCertified`` if a product of float32 numbers may be computed with fewer bits on a CPU."""
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to say once its new settings were used
        legacy = "highest"
    mkldnn = torch.backends.mkldnn
    parts = (torch.backends, mkldnn, getattr(mkldnn, "matmul", None), getattr(mkldnn, "conv", None))
    modern = [str(getattr(part, "fp32_precision", "none")) for part in parts]
    if legacy != "highest" or any(value not in ("none", "ieee") for value in modern):
        raise NotCertified(
            f"float32 products must be computed in float32, but torch is set to {', '.join([legacy, *modern])}. "
            "Call torch.set_float32_matmul_precision('highest') and leave torch.backends.*.fp32_precision at "
            "'ieee'."
        )
