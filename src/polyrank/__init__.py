"""polyrank ranks replies: given a conversation, it scores candidate texts and returns the best ones.

The names below are loaded when they are first used, so importing polyrank imports no torch.
"""

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # the one list of public names: type checkers read it, and the code below does too
    from polyrank.config.recipe import load_recipe as load_recipe
    from polyrank.data import read_examples as read_examples
    from polyrank.data import read_pool as read_pool
    from polyrank.evaluation import evaluate as evaluate
    from polyrank.evaluation import paired_test as paired_test
    from polyrank.evaluation import summarise as summarise
    from polyrank.index import open_index as open_index
    from polyrank.records import Candidate as Candidate
    from polyrank.records import Context as Context
    from polyrank.records import Example as Example
    from polyrank.records import Ranked as Ranked
    from polyrank.retrieval.build import build_index as build_index
    from polyrank.retrieval.retrievers import LexicalRetriever as LexicalRetriever
    from polyrank.retrieval.retrievers import Retriever as Retriever
    from polyrank.scorers.lexical import BM25 as BM25
    from polyrank.scorers.lexical import TfIdf as TfIdf
    from polyrank.scorers.open import load as load
    from polyrank.scorers.protocols import Encoder as Encoder
    from polyrank.scorers.protocols import Scorer as Scorer
    from polyrank.training import train as train

_MODULE_OF = {
    name: module for module, name in re.findall(r"    from (\S+) import (\w+) as", Path(__file__).read_text("utf-8"))
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'polyrank' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
