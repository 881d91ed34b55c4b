"""Runtimes for exported graphs: ONNX Runtime and OpenVINO on the CPU. No other module imports them.

The inputs of a session are named int64 arrays; it returns new arrays. Several threads may call a session at once.
"""

import importlib.util
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, MissingExtraError, needs
from polyrank.loading.models import Backend
from polyrank.models.exported import Run

RUNTIME = {"onnx": "onnxruntime", "onnx-int8": "onnxruntime", "openvino": "openvino"}
SUFFIX = {"onnx": ".onnx", "onnx-int8": ".onnx", "openvino": ".xml"}


def check_installed(backend: Backend) -> None:
    """Check that the libraries for making and running an export are installed, before any work.

    Args:
        backend: "onnx", "onnx-int8" or "openvino".

    Raises:
        MissingExtraError: a library is not installed.
    """
    for library in ("onnx", RUNTIME[backend]):  # every export is written as ONNX first
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(library, "openvino" if backend == "openvino" else "onnx")


def open_session(path: Path, backend: Backend, dtype: torch.dtype) -> Run:
    """A graph on disk as a function, on as many threads as torch uses.

    Args:
        path: the graph's file.
        backend: "onnx", "onnx-int8" or "openvino".
        dtype: of the large products. ONNX Runtime has only fp32 on CPUs; OpenVINO also bf16.

    Raises:
        MissingExtraError: the runtime is not installed.
        ArtifactError: the runtime cannot read the graph.
    """
    make: Callable[[Path, torch.dtype], Run] = _openvino if backend == "openvino" else _onnx
    try:
        return make(path, dtype)
    except (MissingExtraError, MemoryError):
        raise
    except Exception as error:  # each runtime has its own error classes; all mean that it cannot read the graph
        reason = str(error).strip().split("\n")[0]
        raise ArtifactError(
            f"{backend} cannot read {path} ({reason}); make the export again on this machine"
        ) from error


def _onnx(path: Path, _: torch.dtype) -> Run:
    with needs("onnxruntime", "onnx"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only; its warnings report optimisations
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads must not use their cores
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(arrays: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.generic]]:
        return list(session.run(None, dict(arrays)))

    return run


def _openvino(path: Path, dtype: torch.dtype) -> Run:
    with needs("openvino", "openvino"):
        import openvino
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        # set in both cases: by default it chooses bf16 if the processor supports it
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == torch.bfloat16 else "f32",
    }
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    of_thread = threading.local()  # a request holds the arrays of one call

    def run(arrays: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.generic]]:
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        values: Any = of_thread.request.infer(dict(arrays))
        return [np.array(values[output]) for output in compiled.outputs]

    return run
