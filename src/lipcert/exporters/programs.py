"""Write a frozen network as a program for any batch size, by torch.export or in ONNX, and read its tensors back.

Nothing is folded: a constant computed in advance would be a tensor that no proof is about. So the ONNX graph is not
optimized here (a runtime optimizes it when it loads it), and the reader reports every floating constant of more
than one entry. Both exporters note paths of this machine, which are removed.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OPSET = 23  # the newest that torch 2.13 writes
Run = Callable[[Tensor], Any]


def extra(name: str) -> Any:
    """A package of ``lipcert[export]``."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            f"this export needs the package {name}, which is not installed. Run pip install 'lipcert[export]'."
        ) from None


def write_torch_export(path: Path, network: nn.Module, input_shape: tuple[int, ...]) -> None:
    program = _program(network, input_shape)
    with _quiet():
        torch.export.save(program, path)


def read_torch_export(path: Path) -> tuple[dict[str, Tensor], Run]:
    """(tensors, the program to run) of a file written here. The format may hold pickles: read only your own."""
    with _quiet():
        program = torch.export.load(path)
    return dict(program.state_dict), program.module()


def write_onnx(
    path: Path,
    network: nn.Module,
    input_shape: tuple[int, ...],
    notes: dict[str, str],
    outputs: tuple[str, ...] = ("logits",),
    dtype: torch.dtype = torch.float32,
) -> None:
    onnx, _, _ = (extra(name) for name in ("onnx", "onnxscript", "onnxruntime"))  # the last to compare
    with _quiet():
        made = torch.onnx.export(
            _program(network, input_shape, dtype),
            input_names=["images"],
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            optimize=False,
            verbose=False,
            custom_translation_table=_translations(),
        )
    assert made is not None
    model = made.model_proto
    graph = model.graph
    del graph.value_info[:]  # shapes that every reader infers for itself
    for place in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del place.metadata_props[:]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"  # torch calls it s31, or so
    onnx.helper.set_model_props(model, notes)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def _translations() -> dict[Any, Callable[..., Any]]:
    """Smooth activations in operators of ONNX that keep a small relative error, as their rounding bounds assume.

    The usual translations do not: torch writes softplus as log(eˣ + e⁰), which overflows above 88, and onnxruntime
    computes ELU as eˣ − 1, which loses a small x, and cuts sigmoid off below −18.
    """
    op = getattr(extra("onnxscript"), f"opset{OPSET}")

    def sigmoid(x: Any) -> Any:  # 1/(1 + e⁻ˣ)
        return op.Reciprocal(op.Add(op.Exp(op.Neg(x)), 1.0))

    def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
        # eˣ − 1 = 2t/(1 − t) with t = tanh(x/2), where nothing cancels for x ≤ 0.
        t = op.Tanh(op.Mul(op.Min(x, 0.0), input_scale / 2))
        below = op.Div(op.Mul(t, 2.0 * alpha), op.Sub(1.0, t))
        return op.Mul(op.Where(op.Greater(x, 0.0), x, below), scale)

    def logaddexp(x: Any, y: Any) -> Any:  # softplus is the case y = 0
        # max(x, y) + log1p(t) with t = e^−|x − y|. ONNX has no log1p, and log(1 + t) loses a small t. With
        # u = 1 + t rounded, t·log(u)/(u − 1) does not, because the errors of both factors cancel; if u = 1, it is
        # t itself.
        t = op.Exp(op.Neg(op.Abs(op.Sub(x, y))))
        u = op.Add(t, 1.0)
        difference = op.Sub(u, 1.0)
        lost = op.Equal(difference, 0.0)
        quotient = op.Div(op.Log(u), op.Where(lost, u, difference))
        return op.Add(op.Max(x, y), op.Where(lost, t, op.Mul(t, quotient)))

    aten = torch.ops.aten
    return {aten.sigmoid.default: sigmoid, aten.elu.default: elu, aten.logaddexp.default: logaddexp}


def read_onnx(path: Path) -> tuple[dict[str, Tensor], Run]:
    """(tensors that the graph uses, onnxruntime to run it); of several outputs it gives a tuple."""
    onnx, runtime = extra("onnx"), extra("onnxruntime")
    model = onnx.load(path)
    used = {name for node in model.graph.node for name in node.input}
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name in used}
    found = {name: value for name, value in stored.items() if value.dtype.kind == "f"}  # not indices of entries
    for node in model.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            value = onnx.numpy_helper.to_array(attribute.t) if attribute.HasField("t") else attribute.floats
            if len(attribute.floats) > 1 or (
                attribute.HasField("t") and value.dtype.kind == "f" and value.size > 1
            ):
                found[f"{node.output[0]} (constant)"] = np.array(value)
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors; it warns about what it does not fold
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Any:
        outputs = tuple(map(torch.from_numpy, session.run(None, {"images": x.numpy()})))
        return outputs if len(outputs) > 1 else outputs[0]

    return {name: torch.from_numpy(value.copy()) for name, value in found.items()}, run


def _program(
    network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.export.ExportedProgram:
    """The program of a network, whose ops own their tensors: a view would be stored with all it is a view of."""
    with torch.no_grad():
        network(
            torch.zeros(1, *input_shape, dtype=dtype)
        )  # sizes that follow from the input are computed here, not in the program
    batch = {0: torch.export.Dim("batch")}
    try:
        program = torch.export.export(
            network.eval(), (torch.zeros(2, *input_shape, dtype=dtype),), dynamic_shapes=(batch,)
        )
    except Exception as error:  # torch raises many kinds for what it cannot trace
        first = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise ValueError(f"the network must be one that torch.export can trace; got {first}. Replace it.") from None
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about itself: a deprecated call of its own, and packages that are not installed."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        log.setLevel(level)
