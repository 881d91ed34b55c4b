"""The papers' two stages, runs/papers/two_stage.py: a reference for rankers, and a scorer that is none."""

import sys
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

from papers.combining import reranker_alone
from papers.two_stage import TwoStageScorer

Alone = partial(TwoStageScorer, combine=reranker_alone)
Summed = partial(TwoStageScorer, combine=np.add)
