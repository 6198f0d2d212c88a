"""Named architectures: the paper's four sizes per method, as its parameter counts have them and as its table
prints them, its rivals' as published, and small siblings that train on a CPU in minutes.

The printed table of sizes ("SLL architecture") does not give the parameter counts of Table 1 for L and XL;
the sizes below do: 41.4, 78.8, 118.3 and 236.5 million on CIFAR-10. ``sll_table3_*`` are the printed ones.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

from lipcert.errors import suggest
from lipcert.models.spec import Architecture, Method, ModelSpec, OwnNetwork

if TYPE_CHECKING:
    from torch import nn

_SIZES: dict[str, dict[str, Any]] = {
    "nano": {
        "stem": 2,
        "channels": 32,
        "conv_layers": 4,
        "conv_hidden": 16,
        "pool": 1,
        "dense_layers": 3,
        "dense_hidden": 128,
        "init": "orthogonal",
    },
    "tiny": {
        "stem": 4,
        "channels": 64,
        "conv_layers": 6,
        "conv_hidden": 32,
        "pool": 2,
        "dense_layers": 5,
        "dense_hidden": 512,
        "init": "orthogonal",
    },
    "deep": {  # many narrow layers: the best of a search for runs of minutes on color images
        "stem": 4,
        "channels": 64,
        "conv_layers": 4,
        "conv_hidden": 32,
        "pool": 2,
        "dense_layers": 12,
        "dense_hidden": 128,
        "init": "orthogonal",
    },
    "deep64": {  # the same for images of 64 × 64
        "image_shape": (3, 64, 64),
        "num_classes": 200,
        "stem": 8,
        "channels": 192,
        "conv_layers": 4,
        "conv_hidden": 48,
        "pool": 2,
        "dense_layers": 12,
        "dense_hidden": 192,
        "init": "orthogonal",
    },
    "dense": {  # the same without convolutions, for small gray images
        "channels": 1,
        "image_shape": (1, 28, 28),
        "conv_layers": 0,
        "pool": 1,
        "dense_layers": 20,
        "dense_hidden": 128,
        "init": "orthogonal",
    },
    "small": {"channels": 45, "conv_layers": 20, "dense_layers": 7},
    "medium": {"channels": 60, "conv_layers": 30, "dense_layers": 10},
    "large": {"channels": 90, "conv_layers": 50, "dense_layers": 10},
    "xlarge": {"channels": 120, "conv_layers": 70, "dense_layers": 15},
}
_TABLE_3 = {
    "small": {"channels": 45, "conv_layers": 20, "dense_layers": 7, "dense_hidden": 2048},
    "medium": {"channels": 60, "conv_layers": 30, "dense_layers": 10, "dense_hidden": 2048},
    "large": {"channels": 60, "conv_layers": 90, "dense_layers": 15, "dense_hidden": 4096},
    "xlarge": {"channels": 70, "conv_layers": 120, "dense_layers": 15, "dense_hidden": 4096},
}

_SPECS: dict[str, dict[str, Any]] = {}  # the fields of the presets
BUILDERS: dict[str, Callable[..., Any]] = {}  # functions of the user's that return a network


def register_model(name: str, builder: Callable[..., nn.Module]) -> None:
    """Name an architecture of your own for ``create_model`` and ``TrainConfig``.

    Args:
        name: a new one.
        builder: ``builder(image_shape, num_classes, **overrides)`` returns the network, an nn.Module.
    """
    if name in _SPECS or name in BUILDERS:
        raise ValueError(f"a model named {name!r} exists already; choose another name.")
    if ":" in name or not name:
        raise ValueError(f"the name of a model must not be empty or have a colon, got {name!r}.")
    BUILDERS[name] = builder


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern, such as "sll*"."""
    return sorted(fnmatch.filter([*_SPECS, *BUILDERS], pattern))


def model_spec(name: str, **overrides: Any) -> ModelSpec:
    """The spec of a named architecture of lipcert with some fields replaced."""
    if name not in _SPECS:
        raise ValueError(unknown(name))
    return ModelSpec(**{**_SPECS[name], **overrides})


def architecture(name: str, **overrides: Any) -> Architecture:
    """The spec of a named architecture, or of a network of the user's own, with some fields replaced."""
    if name not in BUILDERS and ":" not in name:
        return model_spec(name, **overrides)
    given = {key: overrides.pop(key) for key in ("image_shape", "num_classes") if key in overrides}
    return OwnNetwork(builder=name, options=overrides, **given)


def unknown(name: str) -> str:
    """What to say about a name that is none."""
    return (
        f"there is no model {name!r}{suggest(name, [*_SPECS, *BUILDERS])} `lipcert models` lists them all; a "
        "network of your own is named module:function."
    )


def _register(name: str, defaults: dict[str, Any]) -> None:
    _SPECS[name] = defaults


# Every method has the two small sizes, for comparisons. The paper's sizes exist for what was published or is
# measured in them; other methods have them by an override: model_spec("sll_large", method="rescaled").
_PAPER_METHODS = ("sll", "sll_shifted", "sll_surrogate", "sll_sampled_gradient", "sll_sampled_surrogate", "cpl")
_RESIDUAL_METHODS = ("sll", "sll_shifted", "sll_surrogate", "aol", "cpl", "cpl_surrogate", "rescaled")
for _size, _fields in _SIZES.items():
    _methods = _RESIDUAL_METHODS if _size.startswith(("deep", "dense")) else _PAPER_METHODS
    for _method in get_args(Method) if _size in ("nano", "tiny") else _methods:
        _kernel = 2 if _method == "eco" else 3  # ECO's must divide the image
        _head = "plain" if _method in ("gloro", "local", "local_maxmin") else "normalized"  # as published
        _register(f"{_method}_{_size}", {"method": _method, **_fields, "kernel_size": _kernel, "head": _head})
for _size in ("nano", "tiny"):  # reflectors of half rank, as BRONet has them
    _register(f"bro_half_{_size}", {"method": "bro", "rank": 0.5, **_SIZES[_size]})
for _size, _fields in _TABLE_3.items():
    _register(f"sll_table3_{_size}", {"method": "sll", **_fields})

_register(
    "sll_table",  # for tables of numbers, not images
    {
        "method": "sll",
        "image_shape": (16,),
        "channels": 64,
        "conv_layers": 0,
        "pool": 1,
        "dense_layers": 4,
        "dense_hidden": 64,
        "init": "orthogonal",
    },
)

# The rivals as published (results/models.md has each count beside the printed one).
_KW_LARGE = {"layout": "kw_large", "conv_layers": 4, "dense_layers": 2, "pool": 1, "head": "first"}
_LIPCONVNET = {"layout": "lipconvnet", "channels": 32, "pool": 1, "dense_layers": 0, "head": "first"}
_PATCHES = {"layout": "patches", "stem": 4, "pool": 1, "conv_layers": 12, "dense_layers": 14, "head": "first"}


def _kw_large(method: str, width: int) -> dict[str, Any]:
    return {"method": method, **_KW_LARGE, "channels": 32 * width, "dense_hidden": 512 * width}


_register("cayley_large", _kw_large("cayley", 3))
_register("bcop_large", _kw_large("bcop", 1))
for _width in (1, 2, 4):
    _register(f"sandwich_kw{_width}", _kw_large("sandwich", _width))
for _method in ("soc", "soc_plus", "lot"):
    for _depth in (5, 10, 15, 20, 25, 30, 35, 40):
        _register(f"{_method}_{_depth}", {"method": _method, **_LIPCONVNET, "conv_layers": _depth})
_register(
    "eco_20", {"method": "eco", **_LIPCONVNET, "conv_layers": 20, "kernel_size": 2}
)  # which divides the image
for _size, _width in (("small", 16), ("medium", 32), ("large", 48)):
    _register(f"aol_{_size}", {"method": "aol_affine", **_PATCHES, "channels": 192, "dense_hidden": 64 * _width})
_C2F = {"layout": "c2f", "head": "plain", "pool": 1, "dense_layers": 1}
_TINY_IMAGES = {"image_shape": (3, 64, 64), "num_classes": 200}
for _method in ("gloro", "local", "local_maxmin"):
    _register(f"{_method}_6c2f", {"method": _method, **_C2F, "channels": 32, "conv_layers": 6, "dense_hidden": 512})
    _register(
        f"{_method}_8c2f",
        {"method": _method, **_C2F, **_TINY_IMAGES, "channels": 64, "conv_layers": 8, "dense_hidden": 256},
    )
for _width in (1024, 2048):  # the patches are our choice: no code is published
    _register(
        f"lipnext_32x{_width}",
        {
            "method": "lipnext",
            "layout": "lipnext",
            "stem": 2,
            "channels": _width,
            "conv_layers": 32,
            "pool": 1,
            "dense_layers": 0,
        },
    )
_register(
    "liresnet_12x512",
    {
        "method": "liresnet",
        "layout": "liresnet",
        "stem": 2,
        "channels": 512,
        "conv_layers": 12,
        "pool": 4,
        "dense_layers": 8,
        "dense_hidden": 2048,
    },
)
