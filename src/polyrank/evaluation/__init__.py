"""How good a scorer is: protocols, tables with intervals, paired tests, scores files, plots. No torch."""

from polyrank.evaluation.plots import plot_breakdown, plot_coverage, plot_stages, plot_times, plot_training
from polyrank.evaluation.protocols import Evaluation, Record, against_responses, evaluate, rankable
from polyrank.evaluation.scores_file import read_scores, write_scores
from polyrank.evaluation.tables import breakdown, markdown, paired_test, summarise, table

__all__ = [
    "Evaluation",
    "Record",
    "against_responses",
    "breakdown",
    "evaluate",
    "markdown",
    "paired_test",
    "plot_breakdown",
    "plot_coverage",
    "plot_stages",
    "plot_times",
    "plot_training",
    "rankable",
    "read_scores",
    "summarise",
    "table",
    "write_scores",
]
