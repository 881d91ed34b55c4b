"""polyrank ranks replies: given a conversation, it scores candidate texts and returns the best ones.

The names below are loaded when they are first used, so importing polyrank imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Candidate": "records",
    "Context": "records",
    "Example": "records",
    "Ranked": "records",
    "Encoder": "scorers.protocols",
    "Scorer": "scorers.protocols",
    "load_scorer": "scorers.load",
    "load_encoder": "scorers.open",
    "open_scorer": "scorers.open",
    "BM25": "scorers.lexical",
    "TfIdf": "scorers.lexical",
    "open_index": "index",
    "LexicalRetriever": "retrieval.retrievers",
    "Retriever": "retrieval.retrievers",
    "build_index": "retrieval.build",
    "evaluate": "evaluation",
    "paired_test": "evaluation",
    "summarise": "evaluation",
    "read_examples": "data",
    "read_pool": "data",
    "load_recipe": "config.recipe",
    "train": "training",
}

if TYPE_CHECKING:
    from polyrank.config.recipe import load_recipe
    from polyrank.data import read_examples, read_pool
    from polyrank.evaluation import evaluate, paired_test, summarise
    from polyrank.index import open_index
    from polyrank.records import Candidate, Context, Example, Ranked
    from polyrank.retrieval.build import build_index
    from polyrank.retrieval.retrievers import LexicalRetriever, Retriever
    from polyrank.scorers.lexical import BM25, TfIdf
    from polyrank.scorers.load import load_scorer
    from polyrank.scorers.open import load_encoder, open_scorer
    from polyrank.scorers.protocols import Encoder, Scorer
    from polyrank.training import train

__all__ = [
    "BM25",
    "Candidate",
    "Context",
    "Encoder",
    "Example",
    "LexicalRetriever",
    "Ranked",
    "Retriever",
    "Scorer",
    "TfIdf",
    "build_index",
    "evaluate",
    "load_encoder",
    "load_recipe",
    "load_scorer",
    "open_index",
    "open_scorer",
    "paired_test",
    "read_examples",
    "read_pool",
    "summarise",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    return getattr(importlib.import_module(f"polyrank.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
