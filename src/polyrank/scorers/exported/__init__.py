"""Models that run outside torch: exports to ONNX and OpenVINO, and a folder that sentence-transformers loads."""

from polyrank.scorers.exported.agreement import MIN_COSINE as MIN_COSINE, Agreement as Agreement
from polyrank.scorers.exported.export import check_export as check_export, export_model as export_model
from polyrank.scorers.exported.folder import load_exported as load_exported
from polyrank.scorers.exported.sentence_transformers import (
    export_to_sentence_transformers as export_to_sentence_transformers,
)
