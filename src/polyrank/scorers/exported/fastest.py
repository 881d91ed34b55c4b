"""Which backend of a model is fastest on this machine, by a short measurement."""

import importlib.util
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from polyrank.loading.models import Backend, has_export
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported.fidelity import sample_texts
from polyrank.scorers.exported.folder import load_exported
from polyrank.scorers.exported.sessions import RUNTIME
from polyrank.scorers.load import saved_scorer

FAITHFUL: tuple[Backend, ...] = ("onnx", "openvino")  # int8 changes scores, so it is used only if named
ROUNDS = 7


def fastest_backend(models: Sequence[Path], device: str = "auto") -> Backend:
    """The backend in which models answer single contexts fastest.

    Args:
        models: polyrank model folders; a backend is tried only if all of them have its export.
        device: see ``polyrank.load``; exports compute on the CPU.
    """
    if not models or device not in ("auto", "cpu"):
        return "torch"
    tried: list[Backend] = ["torch"]
    for backend in FAITHFUL:
        installed = importlib.util.find_spec(RUNTIME[backend]) is not None
        if installed and all(has_export(model, backend) for model in models):
            tried.append(backend)
    if len(tried) == 1:
        return "torch"
    return min(tried, key=lambda backend: sum(_seconds(model, backend, device) for model in models))


def _seconds(model: Path, backend: Backend, device: str) -> float:
    """Median seconds for one context with a few candidates."""
    scorer = saved_scorer(model, device=device) if backend == "torch" else load_exported(model, backend, device=device)
    contexts, candidates = sample_texts()
    return statistics.median(_timed(scorer, context, candidates[:8]) for context in contexts[: ROUNDS + 2][2:])


def _timed(scorer: EncoderScorer | CrossScorer, context: Context, candidates: Sequence[str]) -> float:
    scorer.forget()
    started = time.perf_counter()
    scorer.score([context], [candidates])
    return time.perf_counter() - started
