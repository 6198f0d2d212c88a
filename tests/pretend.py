"""Run layers, losses and training steps on a pretended accelerator. ``test_devices.py`` starts it as a process.

torch lets Python register a device of its own ("privateuseone", here called pretend). Under ``FakeTensorMode``
tensors on it have shapes, types and devices but no values, so two mistakes raise: mixing it with tensors on the
CPU, and reading a value, for which a real accelerator would make the program wait. The device stays registered for
the whole process, which is why this is a process of its own. It prints one line per failure and exits with 77 if
this torch cannot pretend.
"""

import re
import sys
import traceback
from types import SimpleNamespace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lipcert as lc
from table import LAYERS

DEVICE = "pretend"
CLASSES = 5
LOSSES = {  # MultiMargin calls one function of torch, which ends the process on such a device
    "offset": lc.losses.OffsetCrossEntropy,
    "margin-boosting": lc.losses.MarginBoosting,
    "logit-annealing": lc.losses.LogitAnnealing,
    "emma": lambda: lc.losses.EMMA(0.4),
    "gloro": lambda: lc.losses.GloRo(0.4),
    "gloro-trades": lambda: lc.losses.GloRoTrades(0.4),
    "certificate": lc.losses.CertificateRegularized,
    "kr": lc.losses.KR,
    "hkr": lc.losses.HKR,
}
ONE_LAYER_EACH = {"conv_layers": 1, "dense_layers": 1}  # another one does the same
MODELS = {"sll_nano": ONE_LAYER_EACH, "soc_5": {}, "liresnet_nano": ONE_LAYER_EACH}


def register() -> None:
    """Make torch believe in the device; autocast asks its module for the types that it supports."""
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        _is_in_bad_fork=lambda: False,
        manual_seed_all=lambda seed: None,
    )
    try:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(DEVICE, module)
    except (ImportError, AttributeError, RuntimeError, TypeError) as error:
        print(f"this torch cannot pretend: {error}")
        sys.exit(77)


def move(layer: nn.Module) -> nn.Module:
    """Replace every tensor by a pretended one: there is no data to move."""
    for module in layer.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                module._parameters[name] = nn.Parameter(
                    torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
                )
        for name, tensor in module._buffers.items():
            if tensor is not None:
                module._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=DEVICE)
        if isinstance(module, lc.layers.FirstLogits):
            module.to(DEVICE)
    return layer


def require(*tensors: torch.Tensor | None) -> None:
    """Raise unless all tensors are on the device."""
    for tensor in tensors:
        assert tensor is None or tensor.device.type == DEVICE, f"a tensor is on {tensor.device}"


def layer_step(name: str) -> None:
    entry = LAYERS[name]
    layer = entry.make().train()
    with FakeTensorMode():
        x = torch.rand(2, *entry.shape, device=DEVICE, requires_grad=True)
        y = move(layer)(x)
        y.sum().backward()
        require(y, x.grad, *(p.grad for p in layer.parameters()))


def loss_step(name: str) -> None:
    with FakeTensorMode():
        logits = torch.rand(8, CLASSES, device=DEVICE, requires_grad=True)
        labels = torch.zeros(8, dtype=torch.int64, device=DEVICE)
        loss = LOSSES[name]()
        value = loss(logits, labels)
        if name in ("emma", "gloro", "gloro-trades", "certificate"):
            value = value + loss(logits, labels, torch.ones(CLASSES, CLASSES, device=DEVICE))
        value.backward()
        require(value, logits.grad)


def model_step(name: str) -> None:
    """A training step of a preset."""
    model = lc.create_model(name, num_classes=CLASSES, image_shape=(3, 32, 32), **MODELS[name]).train()
    with FakeTensorMode():
        logits = move(model)(torch.rand(2, 3, 32, 32, device=DEVICE))
        constant = lc.layers.lipschitz_estimate(model[0]) if name.startswith("liresnet") else 1.0
        labels = torch.zeros(2, dtype=torch.int64, device=DEVICE)
        (lc.losses.OffsetCrossEntropy()(logits, labels) * constant).backward()
        require(logits, *(p.grad for p in model.parameters()))


def head_step(name: str) -> None:
    with FakeTensorMode():
        head = lc.layers.FirstLogits(CLASSES).to(DEVICE)
        require(head.pairwise_bound(), head.rows())
        head.cpu()
        assert head.pairwise_bound().device.type == "cpu"


def cases(full: bool) -> list[tuple]:
    """The steps to try. Unless ``full``, one size, padding and activation of every layer and bound."""
    kinds = {}
    for name in LAYERS:
        if name.startswith("residual") or "_" not in name:  # a form of a bound that residuals have, too
            variant = (
                r"-(circular|even|groups|overpadded|zeros|to|elu|tanh|sigmoid|softplus|leaky_relu)|-?k?\(?\d.*$"
            )
            kinds.setdefault(re.sub(variant, "", name), name)
    layers = list(LAYERS) if full else list(kinds.values())
    return [
        *((layer_step, name) for name in layers),
        *((loss_step, name) for name in LOSSES),
        *((model_step, name) for name in MODELS),
        (head_step, "first-logits"),
    ]


if __name__ == "__main__":
    register()
    failures = 0
    for step, name in cases("--full" in sys.argv):
        print(step.__name__, name, file=sys.stderr, flush=True)  # if torch ends the process, this says where
        try:
            step(name)
        except Exception as error:
            failures += 1
            places = [f for f in traceback.extract_tb(error.__traceback__) if "/lipcert/" in f.filename]
            where = f"{places[-1].filename.rpartition('/lipcert/')[2]}:{places[-1].lineno}" if places else "?"
            text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            print(f"{step.__name__} {name} at {where}: {text}", flush=True)
    sys.exit(failures > 0)
