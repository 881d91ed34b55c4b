"""Messages between the server and a model process: its start, tasks and their results. No torch.

To add an operation, add a task and its result here, and to ``polyrank.serving.served.Served`` a method that is named
like the task's ``operation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.answers import Answer
from polyrank.index import Filter
from polyrank.ranking.relevance import Relevance
from polyrank.records import Context

ServedKind = Literal["index", "model"]
Side = Literal["document", "query"]
R = TypeVar("R")


class Task(Generic[R]):
    """A unit of work whose result is an ``R``. Tasks of one operation and model may be computed together."""

    operation: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Responded:
    """Replies and their origin.

    Args:
        answer: without its replies.
        rows: each reply as JSON.
        shown: id, score and template of each reply.
        model_ms: duration of the whole batch.
        change: of the index.
        fingerprint: of the scorer that ordered the replies.
    """

    answer: Answer
    rows: list[bytes]
    shown: list[tuple[str, float, str]]
    model_ms: float
    change: int
    fingerprint: str


@dataclass(frozen=True)
class RespondTask(Task[Responded]):
    """Find the best ``k`` replies to a context among those that pass a filter."""

    operation: ClassVar[str] = "respond"
    context: Context
    k: int
    filter: Filter | str | None = None
    allow_echo: bool = False
    diverse: bool = False
    any_language: bool = False


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Raw scores in the order of the texts, the number of tokens, whether a part was not read, and by which model."""

    scores: list[float]
    n_tokens: int
    cut: bool
    fingerprint: str


@dataclass(frozen=True)
class ScoreTask(Task[ScoredTexts]):
    """Score texts for a context; of each, at most ``max_tokens`` tokens and ``max_chunks`` chunks are read."""

    operation: ClassVar[str] = "score"
    context: Context
    texts: Sequence[str]
    max_chunks: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors ``[n, D]``; or, if the task names forms, each vector as JSON in each form instead."""

    vectors: NDArray[np.float32] | None
    rows: dict[str, list[bytes]]
    n_tokens: int
    cut: bool
    fingerprint: str


@dataclass(frozen=True)
class EmbedTask(Task[Embedded]):
    """Encode texts, of each at most ``max_tokens`` tokens, with its side: as candidates or as contexts."""

    operation: ClassVar[str] = "embed"
    texts: Sequence[tuple[Side, str]]
    forms: Sequence[str] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class ExplainTask(Task[bytes]):
    """Explain a candidate's score: the JSON of ``polyrank.Explanation.as_dict``."""

    operation: ClassVar[str] = "explain"
    context: Context
    candidate: str
    filter: Filter | str | None = None


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """The result or the error of a task.

    Args:
        result: of the task.
        error: class name of the error; empty: none.
        message: of that error.
        info: new properties, if it was replaced on disk and opened again.
    """

    result: Any = None
    error: str = ""
    message: str = ""
    info: "ServedInfo | None" = None


@dataclass(frozen=True, slots=True)
class ServedInfo:
    """Properties of a served index or model.

    Args:
        kind, backend, scorer, fingerprint, dimension: of the index or model.
        precision: of its networks' weights, such as "int8"; of several networks, with commas; empty: no network.
        max_context_tokens, max_candidate_tokens: longer texts are truncated; None: no limit.
        index: folder of the candidates; None: a model without an index.
        stages, n_candidates: of an index, when it was opened.
        relevance: of its scores; None: unknown.
        threshold: the lowest raw score of a reply that is returned, if the ranker was calibrated by scores.
        by_list: the score of a text depends on the other texts of its list.
        reranks: texts are ranked by a network that reads both together, as the only stage or as the second.
        two_sides: the vector of a text depends on whether it is a context or a candidate.
    """

    kind: ServedKind
    backend: str
    precision: str
    scorer: str
    fingerprint: str
    dimension: int | None
    max_context_tokens: int | None
    max_candidate_tokens: int | None
    index: str | None = None
    stages: int | None = None
    n_candidates: int | None = None
    threshold: float | None = None
    relevance: Relevance | None = None
    by_list: bool = False
    reranks: bool = False
    two_sides: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    """The result of a process's start.

    Args:
        info: properties of everything that it serves, by name.
        exit_code: of the error that prevented the start; 0: none.
        error: that error.
    """

    info: dict[str, ServedInfo] = field(default_factory=dict)
    exit_code: int = 0
    error: str = ""
