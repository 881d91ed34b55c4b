"""polyrank ranks replies: given a conversation, it scores candidate texts and returns the best ones.

polyrank loads each name on first use, so ``import polyrank`` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyrank._version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers; at run time, __getattr__ imports the names
    from polyrank.answering.answers import Answer as Answer
    from polyrank.answering.build import build_index as build_index
    from polyrank.answering.explain import explain as explain
    from polyrank.answering.opening import open_replies
    from polyrank.answering.replies import Replies as Replies
    from polyrank.client import AsyncClient as AsyncClient, Client as Client
    from polyrank.config.recipe import Recipe as Recipe
    from polyrank.data import read_examples as read_examples, read_pool as read_pool
    from polyrank.errors import (
        ArtifactError as ArtifactError,
        ConfigError as ConfigError,
        DataError as DataError,
        DivergedError as DivergedError,
        LockedError as LockedError,
        LostProcessError as LostProcessError,
        MissingExtraError as MissingExtraError,
        OfflineError as OfflineError,
        PolyrankError as PolyrankError,
        ResourceError as ResourceError,
        UsageError as UsageError,
    )
    from polyrank.evaluation import (
        evaluate as evaluate,
        evaluate_models as evaluate_models,
        paired_test as paired_test,
        read_task as read_task,
        summarise as summarise,
    )
    from polyrank.fitting.fit import Fitted as Fitted, fit as fit
    from polyrank.index import Filter as Filter, read_filter as read_filter
    from polyrank.loading import resolve_contestants as resolve_contestants
    from polyrank.loading.recipes import load_recipe as load_recipe
    from polyrank.records import Candidate as Candidate, Context as Context, Example as Example, Ranked as Ranked
    from polyrank.scorers.explanation import Explanation as Explanation
    from polyrank.scorers.lexical import BM25 as BM25, TfIdf as TfIdf
    from polyrank.scorers.open import load as load
    from polyrank.scorers.protocols import Encoder as Encoder, Scorer as Scorer
    from polyrank.scorers.ranker import Ranker as Ranker
    from polyrank.scorers.terms.protocol import ReplyTerm as ReplyTerm, Term as Term
    from polyrank.training import RunResult as RunResult, train as train
    from polyrank.tuning.tune import Tuning as Tuning, tune as tune

    open = open_replies  # noqa: A001  # public as polyrank.open

_SOURCES = {
    name: module
    for module, names in {
        "polyrank.answering.build": "build_index",
        "polyrank.answering.explain": "explain",
        "polyrank.answering.answers": "Answer",
        "polyrank.answering.replies": "Replies",
        "polyrank.client": "AsyncClient Client",
        "polyrank.config.recipe": "Recipe",
        "polyrank.data": "read_examples read_pool",
        "polyrank.errors": "ArtifactError ConfigError DataError DivergedError LockedError LostProcessError"
        " MissingExtraError OfflineError PolyrankError ResourceError UsageError",
        "polyrank.evaluation": "evaluate evaluate_models paired_test read_task summarise",
        "polyrank.fitting.fit": "Fitted fit",
        "polyrank.index": "Filter read_filter",
        "polyrank.loading": "resolve_contestants",
        "polyrank.loading.recipes": "load_recipe",
        "polyrank.records": "Candidate Context Example Ranked",
        "polyrank.scorers.explanation": "Explanation",
        "polyrank.scorers.lexical": "BM25 TfIdf",
        "polyrank.scorers.open": "load",
        "polyrank.scorers.protocols": "Encoder Scorer",
        "polyrank.scorers.ranker": "Ranker",
        "polyrank.scorers.terms.protocol": "ReplyTerm Term",
        "polyrank.training": "RunResult train",
        "polyrank.tuning.tune": "Tuning tune",
    }.items()
    for name in names.split()
} | {"open": "polyrank.answering.opening:open_replies"}
"""The module that defines each public name, and the name there where it differs."""

__all__ = sorted(_SOURCES)


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    module, _, source = _SOURCES[name].partition(":")
    return getattr(import_module(module), source or name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
