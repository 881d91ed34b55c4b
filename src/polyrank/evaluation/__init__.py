"""How good a scorer is: protocols, tables with intervals, paired tests, scores files, plots. No torch."""

from polyrank.evaluation.layout import table
from polyrank.evaluation.models import Comparison, evaluate_models
from polyrank.evaluation.plots import plot_comparison
from polyrank.evaluation.protocols import Evaluation, Record, against_responses, evaluate, rankable
from polyrank.evaluation.scores_file import read_scores, write_scores
from polyrank.evaluation.tables import breakdown, paired_test, paired_tests, summarise
from polyrank.evaluation.task import RankingTask, read_task

__all__ = [
    "Comparison",
    "Evaluation",
    "RankingTask",
    "Record",
    "against_responses",
    "breakdown",
    "evaluate",
    "evaluate_models",
    "paired_test",
    "paired_tests",
    "plot_comparison",
    "rankable",
    "read_scores",
    "read_task",
    "summarise",
    "table",
    "write_scores",
]
