"""Models that run outside torch: exports to ONNX and OpenVINO, and a folder that sentence-transformers loads."""

from polyrank.backends.export import check_export, export_model
from polyrank.backends.fidelity import MIN_COSINE
from polyrank.backends.folder import export_folder, load_exported
from polyrank.backends.sentence_transformers import export_to_sentence_transformers
from polyrank.backends.sessions import Backend, read_backend

__all__ = [
    "MIN_COSINE",
    "Backend",
    "check_export",
    "export_folder",
    "export_model",
    "export_to_sentence_transformers",
    "load_exported",
    "read_backend",
]
