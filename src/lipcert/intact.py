"""Does a module run the code and the tensors that its proof is about?

A proof reads the source of a class and the numbers of its tensors. Hooks, replaced methods, tensor subclasses with
their own products, and settings or shapes that change after construction make the module compute something else:
each raises ``NotCertified``. Patches of torch's functions themselves (``torch.nn.functional``) are not looked for.
"""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from lipcert.errors import NotCertified


class Fixed(nn.Module):
    """A module whose plain settings cannot be changed once they are set, and which notes the shapes of its tensors.

    The guard is for classes of lipcert; a subclass defined elsewhere may use its attributes as it likes.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        old = vars(self).get(name)
        guarded = name != "training" and not name.startswith("_") and type(self).__module__.startswith("lipcert.")
        if guarded and old is not None and not callable(old) and not isinstance(old, Tensor):
            if type(value) is not type(old) or value != old:
                raise NotCertified(
                    f"{type(self).__name__}.{name} is fixed when the layer is built, because its bound depends on "
                    f"it. Build a new layer with {name}={value!r:.60}."
                )
            return
        super().__setattr__(name, value)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        super().register_parameter(name, param)
        self._note(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        super().register_buffer(name, tensor, persistent)
        self._note(name, tensor)

    def _note(self, name: str, tensor: Tensor | None) -> None:
        if tensor is not None:
            vars(self).setdefault("_shapes", {}).setdefault(name, tuple(tensor.shape))

    def require_shapes(self) -> None:
        """Raise ``NotCertified`` if a tensor has another shape than at construction: torch might broadcast it."""
        for name, shape in vars(self).get("_shapes", {}).items():
            tensor = getattr(self, name, None)
            if isinstance(tensor, Tensor) and tuple(tensor.shape) != shape:
                raise NotCertified(
                    f"{type(self).__name__}.{name} must have shape {shape}, as it was built, but it has shape "
                    f"{tuple(tensor.shape)}. Build a new layer."
                )


def require_intact(module: nn.Module, *, tensors: bool = True) -> None:
    """Raise ``NotCertified`` unless ``module`` itself, not its children, runs the code and tensors that it shows.

    ``tensors=False`` leaves out its tensors: for a module whose constant is its author's word.
    """
    _require_no_hooks(module)
    _require_own_methods(module)
    if not tensors:
        return
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None and type(tensor) not in (Tensor, nn.Parameter):
            raise NotCertified(
                f"{type(module).__qualname__}.{name} is a {type(tensor).__qualname__}, which may bring its own "
                "products. Convert it to a plain tensor."
            )
    if isinstance(module, Fixed):
        module.require_shapes()


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
        home = sys.modules.get(base.__module__)
        if base is object or home is None or base.__module__.partition(".")[0] not in ("torch", "lipcert"):
            continue
        for name, value in vars(base).items():
            # A function written in the module of its class has that module's globals; nothing can fake them.
            if isinstance(value, FunctionType) and _matters(base, name) and value.__globals__ is not vars(home):
                raise NotCertified(
                    f"{base.__qualname__}.{name} was replaced by {value.__qualname__}, which may compute something "
                    "else. Restore the class."
                )


_TORCH_METHODS = (
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
)


def _matters(base: type, name: str) -> bool:
    """Whether a method decides what a module computes. Decorators add others to the classes of lipcert."""
    ours = base.__module__.startswith("lipcert.")
    return name in _TORCH_METHODS or (ours and (not name.startswith("__") or name == "__init__"))


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
