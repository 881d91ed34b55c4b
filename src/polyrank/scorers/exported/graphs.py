"""Networks as graphs on disk: traced by torch, written as ONNX, or converted from that to OpenVINO's own form.

A graph takes ``ids`` and ``mask`` ``[B, T]`` in int64 (1 on real tokens), of a Cross-encoder also ``segments``; B and T
are free. It returns what the network returns, in fp32.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from polyrank.errors import MissingExtraError, UsageError
from polyrank.loading.models import Backend
from polyrank.models import BiEncoder, CrossEncoder, Network, PolyEncoder
from polyrank.scorers.exported.sessions import SUFFIX
from polyrank.text import Tokens

OPSET = 17  # the first with layer normalisation as one operation


class _Contexts(nn.Module):
    def __init__(self, model: BiEncoder | PolyEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        vectors, real = self.model.encode_contexts(Tokens(ids, mask.bool(), torch.zeros_like(ids)))
        return vectors, real.long()


class _Candidates(nn.Module):
    def __init__(self, model: BiEncoder | PolyEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model.encode_candidates(Tokens(ids, mask.bool(), torch.zeros_like(ids)))


class _Pairs(nn.Module):
    def __init__(self, model: CrossEncoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        return self.model(Tokens(ids, mask.bool(), segments))  # type: ignore[no-any-return]  # untyped call


OUTPUTS = {"contexts": ["vectors", "vectors_mask"], "candidates": ["vectors"], "pairs": ["scores"]}


def write_graphs(model: Network, folder: Path, backend: Backend) -> dict[str, str]:
    """Write a network's graphs into a folder.

    Args:
        model: in fp32, on the CPU, in evaluation mode.
        folder: where to.
        backend: "onnx", "onnx-int8" or "openvino".

    Returns:
        File names by what a graph computes: "contexts" and "candidates", or "pairs". A Bi-encoder with one network for
        both sides has "candidates" only.

    Raises:
        UsageError: it is a ConveRT.
        MissingExtraError: a library is not installed.
    """
    graphs: dict[str, nn.Module] = {}
    if isinstance(model, CrossEncoder):
        graphs["pairs"] = _Pairs(model)
    elif isinstance(model, BiEncoder | PolyEncoder):
        graphs["candidates"] = _Candidates(model)
        if isinstance(model, PolyEncoder) or model.context_tower is not model.candidate_tower:
            graphs["contexts"] = _Contexts(model)
    else:
        raise UsageError("a ConveRT packs its texts and has no graph of fixed form; it is small: use the torch backend")
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
        warnings.simplefilter("ignore")  # tracing warns of each shape that it makes a constant; ours are checked after
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
    """An ONNX file replaced by OpenVINO's form of it, which opens without being translated again."""
    try:
        import openvino
    except ImportError as error:
        raise MissingExtraError("openvino", "openvino") from error
    # read, not convert_model(): that one reports its use over the network
    openvino.save_model(openvino.Core().read_model(str(path)), str(path.with_suffix(".xml")), compress_to_fp16=False)
    path.unlink()


def _quantize(path: Path) -> None:
    """An ONNX file with the weights of its products in 8 bits, a scale for each channel, activations as they come.

    7 of the 8 bits are used: processors without VNNI add products of 8 bits in 16, where larger ones would saturate.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error
    wide = path.rename(path.with_suffix(".wide"))
    with _silent():
        quantize_dynamic(
            wide, path, ["MatMul", "Gemm"], per_channel=True, reduce_range=True, weight_type=QuantType.QInt8
        )
    wide.unlink()


@contextmanager
def _silent() -> Iterator[None]:
    """Without the advice that the library gives to the root of all logs."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
