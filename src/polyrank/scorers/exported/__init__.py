"""Models that run outside torch: exports to ONNX and OpenVINO, and a folder that sentence-transformers loads."""

from polyrank.scorers.exported.agreement import Agreement
from polyrank.scorers.exported.export import check_export, export_model
from polyrank.scorers.exported.fidelity import MIN_COSINE
from polyrank.scorers.exported.folder import load_exported
from polyrank.scorers.exported.sentence_transformers import export_to_sentence_transformers

__all__ = [
    "MIN_COSINE",
    "Agreement",
    "check_export",
    "export_model",
    "export_to_sentence_transformers",
    "load_exported",
]
