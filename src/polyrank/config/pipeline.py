"""The settings of a pipeline: retriever, re-ranker, ensemble and threshold."""

from dataclasses import dataclass
from typing import Literal

from polyrank.config.checked import Count, NonNegativeFloat, Positive, Settings

SHORTLIST = 100
Scale = Literal["raw", "sigmoid", "z-score", "softmax", "sigmoid-reranked"]
Mode = Literal["exact", "approximate"]
Ensemble = Scale | Positive
"""How two stages add their scores: on a common scale, or as they are, with this weight of the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(Settings):
    """The parts of a pipeline.

    Args:
        index: the index folder.
        retriever: "dense" (the index's own encoder), or "bm25" or "tfidf" over the index's texts.
        model: the encoder's folder, if it differs from the one that the index names.
        mode: of the dense search, see ``polyrank.search.search``.
        prior: the retriever adds this times ``log(1 + count)`` to each score, with the metadata field ``count``. 0 or
            more.
        reranker: a model folder; None: one stage.
        n_retrieved: the number of candidates for the re-ranker.
        ensemble: see ``polyrank.ranking.ensembles.combine``; None: raw scores are added if the re-ranker
            corrects the retriever's scores; otherwise the re-ranker's score alone decides.
        measure, threshold: see ``polyrank.ranking.abstention``; None: always answer.
    """

    index: str
    retriever: Literal["dense", "bm25", "tfidf"] = "dense"
    model: str | None = None
    mode: Mode = "exact"
    prior: NonNegativeFloat = 0.0
    reranker: str | None = None
    n_retrieved: Count = SHORTLIST
    ensemble: Ensemble | None = None
    measure: Literal["score", "margin", "softmax"] | None = None
    threshold: float | None = None
