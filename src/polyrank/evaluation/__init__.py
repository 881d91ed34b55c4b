"""How good a scorer is: protocols, tables with intervals, paired tests, scores files, plots. No torch."""

from polyrank.evaluation.layout import table as table
from polyrank.evaluation.models import Comparison as Comparison, evaluate_models as evaluate_models
from polyrank.evaluation.plots import plot_comparison as plot_comparison
from polyrank.evaluation.protocols import (
    Evaluation as Evaluation,
    Record as Record,
    against_responses as against_responses,
    evaluate as evaluate,
    rankable as rankable,
)
from polyrank.evaluation.scores_file import read_scores as read_scores, write_scores as write_scores
from polyrank.evaluation.tables import (
    breakdown as breakdown,
    paired_test as paired_test,
    paired_tests as paired_tests,
    summarise as summarise,
)
from polyrank.evaluation.task import RankingTask as RankingTask, read_task as read_task
