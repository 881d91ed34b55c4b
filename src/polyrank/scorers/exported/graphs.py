"""Networks as graphs on disk: traced by torch, written as ONNX, or converted from that to OpenVINO's own form.

The inputs of a graph are ``ids`` and ``mask`` ``[B, T]`` in int64 (1 on real tokens), and ``segments`` for a
Cross-encoder; B and T are free. Its outputs are the network's, in fp32.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.errors import UsageError, needs
from polyrank.loading.models import Backend
from polyrank.models import BiEncoder, CrossEncoder, LateCrossEncoder, Network, PolyEncoder
from polyrank.scorers.exported.sessions import SUFFIX
from polyrank.text import Tokens

OPSET = 17  # the first with layer normalisation as one operation


class _Graph(nn.Module):
    """A method of a network as a module with plain inputs, which torch can trace."""

    def __init__(self, model: Network, compute: Callable[[Tokens], Any]) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor | None = None) -> Any:
        outputs = self.compute(Tokens(ids, mask.bool(), torch.zeros_like(ids) if segments is None else segments))
        return (outputs[0], outputs[1].long()) if isinstance(outputs, tuple) else outputs  # a mask is not bool in ONNX


OUTPUTS = {"contexts": ["vectors", "vectors_mask"], "candidates": ["vectors"], "pairs": ["scores"]}


def write_graphs(model: Network, folder: Path, backend: Backend) -> dict[str, str]:
    """Write a network's graphs into a folder.

    Args:
        model: in fp32, on the CPU, in evaluation mode.
        folder: the folder to write to.
        backend: "onnx", "onnx-int8" or "openvino".

    Returns:
        File names by output: "contexts" and "candidates", or "pairs". A Bi-encoder with one network for both sides has
        only "candidates".

    Raises:
        UsageError: the model is a ConveRT or a late Cross-encoder.
        MissingExtraError: a library is not installed.
    """
    graphs: dict[str, nn.Module] = {}
    if isinstance(model, CrossEncoder):
        graphs["pairs"] = _Graph(model, model)
    elif isinstance(model, BiEncoder | PolyEncoder):
        graphs["candidates"] = _Graph(model, model.encode_candidates)
        if isinstance(model, PolyEncoder) or model.context_tower is not model.candidate_tower:
            graphs["contexts"] = _Graph(model, model.encode_contexts)
    elif isinstance(model, LateCrossEncoder):
        raise UsageError(
            "a late Cross-encoder keeps what it read of candidates, which no graph does; use the torch backend"
        )
    else:
        raise UsageError("a ConveRT packs its texts, so it has no graph of a fixed form; use the torch backend")
    return {name: _write(graph.eval(), name, folder, backend, _length(model)) for name, graph in graphs.items()}


def _length(model: BiEncoder | PolyEncoder | CrossEncoder) -> int:
    """Tokens of the example that is traced: more than there are codes, so that their number is not cut to it."""
    codes = model.n_codes if isinstance(model, PolyEncoder) else 0
    return min(max(16, codes + 2), model.backbone.max_positions)


def _write(graph: nn.Module, name: str, folder: Path, backend: Backend, length: int) -> str:
    ids = torch.ones(2, length, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    inputs = {"ids": ids, "mask": mask} | ({"segments": torch.zeros_like(ids)} if name == "pairs" else {})
    free = {key: {0: "B", 1: "T"} for key in inputs} | {key: {0: "B"} for key in OUTPUTS[name]}
    if name == "contexts":
        free = free | {key: {0: "B", 1: "M"} for key in OUTPUTS[name]}
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns of shapes that become constants; the export is verified later
        torch.onnx.export(
            graph,
            tuple(inputs.values()),
            path,
            input_names=list(inputs),
            output_names=OUTPUTS[name],
            dynamic_axes=free,
            opset_version=OPSET,
            dynamo=False,
        )
    if backend == "openvino":
        _convert(path)
    if backend == "onnx-int8":
        _quantize(path)
    return f"{name}{SUFFIX[backend]}"


def _convert(path: Path) -> None:
    """Replace an ONNX file by OpenVINO's format, which opens without translation."""
    with needs("openvino", "openvino"):
        import openvino
    # not convert_model(), which reports its use over the network
    openvino.save_model(openvino.Core().read_model(str(path)), str(path.with_suffix(".xml")), compress_to_fp16=False)
    path.unlink()


def _quantize(path: Path) -> None:
    """Replace an ONNX file by one with matrix weights in 8 bits, with a scale for each channel and dynamic activations.

    7 of the 8 bits are used: processors without VNNI add 8-bit products in 16 bits, where larger ones would saturate.
    """
    with needs("onnxruntime", "onnx"):
        from onnxruntime.quantization import QuantType, quantize_dynamic
    wide = path.rename(path.with_suffix(".wide"))
    with _silent():
        quantize_dynamic(
            wide, path, ["MatMul", "Gemm"], per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
    wide.unlink()


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress the library's advice to the root logger."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
