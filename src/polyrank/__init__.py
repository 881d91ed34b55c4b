"""polyrank ranks replies: given a conversation, it scores candidate texts and returns the best ones.

The names below are loaded when they are first used, so importing polyrank imports no torch.
"""

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyrank._version import __version__ as __version__

if TYPE_CHECKING:  # the one list of public names: type checkers read it, and the code below does too
    from polyrank.answering.build import build_index as build_index
    from polyrank.answering.explain import explain as explain
    from polyrank.answering.explanation import Explanation as Explanation
    from polyrank.answering.pipeline import Pipeline as Pipeline
    from polyrank.answering.pipeline import open_pipeline as open  # noqa: A004, F401 - public as polyrank.open
    from polyrank.answering.protocol import Answer as Answer
    from polyrank.answering.retrievers import LexicalRetriever as LexicalRetriever
    from polyrank.answering.retrievers import Retriever as Retriever
    from polyrank.answering.two_stage import TwoStage as TwoStage
    from polyrank.config.recipe import Recipe as Recipe
    from polyrank.config.recipe import load_recipe as load_recipe
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
    from polyrank.evaluation import paired_test as paired_test
    from polyrank.evaluation import summarise as summarise
    from polyrank.index import Filter as Filter
    from polyrank.index import read_filter as read_filter
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

_IMPORT = r"    from (\S+) import (\w+) as (\w+)"
_SOURCE_OF = {public: (module, name) for module, name, public in re.findall(_IMPORT, Path(__file__).read_text("utf-8"))}
__all__ = sorted(_SOURCE_OF)


def __getattr__(name: str) -> Any:
    if name not in _SOURCE_OF:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    module, source = _SOURCE_OF[name]
    return getattr(importlib.import_module(module), source)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
