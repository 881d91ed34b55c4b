"""polyrank ranks replies: given a conversation, it scores candidate texts and returns the best ones.

The names below are loaded when they are first used, so importing polyrank imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyrank._version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers; when a program runs, the names come from the modules below
    from polyrank.answering.build import build_index as build_index
    from polyrank.answering.explain import explain as explain
    from polyrank.answering.explanation import Explanation as Explanation
    from polyrank.answering.pipeline import Pipeline as Pipeline
    from polyrank.answering.pipeline import open_pipeline
    from polyrank.answering.protocol import Answer as Answer
    from polyrank.answering.retrievers import LexicalRetriever as LexicalRetriever
    from polyrank.answering.retrievers import Retriever as Retriever
    from polyrank.answering.two_stage import TwoStage as TwoStage
    from polyrank.client import AsyncClient as AsyncClient
    from polyrank.client import Client as Client
    from polyrank.config.recipe import Recipe as Recipe
    from polyrank.data import read_examples as read_examples
    from polyrank.data import read_pool as read_pool
    from polyrank.errors import ArtifactError as ArtifactError
    from polyrank.errors import ConfigError as ConfigError
    from polyrank.errors import DataError as DataError
    from polyrank.errors import DivergedError as DivergedError
    from polyrank.errors import LockedError as LockedError
    from polyrank.errors import LostProcessError as LostProcessError
    from polyrank.errors import MissingExtraError as MissingExtraError
    from polyrank.errors import OfflineError as OfflineError
    from polyrank.errors import PolyrankError as PolyrankError
    from polyrank.errors import ResourceError as ResourceError
    from polyrank.errors import UsageError as UsageError
    from polyrank.evaluation import evaluate as evaluate
    from polyrank.evaluation import evaluate_models as evaluate_models
    from polyrank.evaluation import paired_test as paired_test
    from polyrank.evaluation import read_task as read_task
    from polyrank.evaluation import summarise as summarise
    from polyrank.index import Filter as Filter
    from polyrank.index import read_filter as read_filter
    from polyrank.loading import resolve_contestants as resolve_contestants
    from polyrank.loading.recipes import load_recipe as load_recipe
    from polyrank.records import Candidate as Candidate
    from polyrank.records import Context as Context
    from polyrank.records import Example as Example
    from polyrank.records import Ranked as Ranked
    from polyrank.scorers.lexical import BM25 as BM25
    from polyrank.scorers.lexical import TfIdf as TfIdf
    from polyrank.scorers.open import load as load
    from polyrank.scorers.protocols import Encoder as Encoder
    from polyrank.scorers.protocols import Scorer as Scorer
    from polyrank.training import RunResult as RunResult
    from polyrank.training import train as train

    open = open_pipeline  # noqa: A001  # public as polyrank.open

_SOURCES = {
    "Answer": "polyrank.answering.protocol",
    "ArtifactError": "polyrank.errors",
    "AsyncClient": "polyrank.client",
    "BM25": "polyrank.scorers.lexical",
    "build_index": "polyrank.answering.build",
    "Candidate": "polyrank.records",
    "Client": "polyrank.client",
    "ConfigError": "polyrank.errors",
    "Context": "polyrank.records",
    "DataError": "polyrank.errors",
    "DivergedError": "polyrank.errors",
    "Encoder": "polyrank.scorers.protocols",
    "evaluate": "polyrank.evaluation",
    "evaluate_models": "polyrank.evaluation",
    "Example": "polyrank.records",
    "explain": "polyrank.answering.explain",
    "Explanation": "polyrank.answering.explanation",
    "Filter": "polyrank.index",
    "LexicalRetriever": "polyrank.answering.retrievers",
    "load": "polyrank.scorers.open",
    "load_recipe": "polyrank.loading.recipes",
    "LockedError": "polyrank.errors",
    "LostProcessError": "polyrank.errors",
    "MissingExtraError": "polyrank.errors",
    "OfflineError": "polyrank.errors",
    "open": "polyrank.answering.pipeline:open_pipeline",
    "paired_test": "polyrank.evaluation",
    "Pipeline": "polyrank.answering.pipeline",
    "PolyrankError": "polyrank.errors",
    "Ranked": "polyrank.records",
    "read_examples": "polyrank.data",
    "read_filter": "polyrank.index",
    "read_pool": "polyrank.data",
    "read_task": "polyrank.evaluation",
    "Recipe": "polyrank.config.recipe",
    "resolve_contestants": "polyrank.loading",
    "ResourceError": "polyrank.errors",
    "Retriever": "polyrank.answering.retrievers",
    "RunResult": "polyrank.training",
    "Scorer": "polyrank.scorers.protocols",
    "summarise": "polyrank.evaluation",
    "TfIdf": "polyrank.scorers.lexical",
    "train": "polyrank.training",
    "TwoStage": "polyrank.answering.two_stage",
    "UsageError": "polyrank.errors",
}
"""The public names, each with the module that is imported when it is first used, and its name there if that differs."""

__all__ = sorted(_SOURCES)


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    module, _, source = _SOURCES[name].partition(":")
    return getattr(import_module(module), source or name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
