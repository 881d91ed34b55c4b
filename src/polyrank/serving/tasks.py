"""What goes through the pipe of a process that computes: how it started, tasks and their results. No torch.

To add an operation: a task and its result here, and a method of ``polyrank.serving.served.Served`` of the same name as
the task's ``operation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.protocol import Answer
from polyrank.records import Context

ServedKind = Literal["index", "pipeline", "model"]
Side = Literal["document", "query"]
R = TypeVar("R")


class Task(Generic[R]):
    """One thing to compute, whose result is an ``R``. Tasks of one operation and model may be computed together."""

    operation: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Responded:
    """Replies, and what gave them.

    Args:
        answer: without its replies.
        rows: each reply as JSON.
        shown: id, score and text of each.
        model_ms: for the whole batch.
        change: of the index.
        fingerprint: of what ordered the replies.
    """

    answer: Answer
    rows: list[bytes]
    shown: list[tuple[str, float, str]]
    model_ms: float
    change: int
    fingerprint: str


@dataclass(frozen=True)
class RespondTask(Task[Responded]):
    """The best ``k`` replies to a context, of those that pass a filter."""

    operation: ClassVar[str] = "respond"
    context: Context
    k: int
    filter: str | None = None
    allow_echo: bool = False
    diverse: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """Raw scores in the order of the texts, how many tokens were read, and whether some of a text were not."""

    scores: list[float]
    n_tokens: int
    cut: bool


@dataclass(frozen=True)
class ScoreTask(Task[Scored]):
    """Scores of texts for a context."""

    operation: ClassVar[str] = "score"
    context: Context
    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Embedded:
    """Vectors ``[n, D]``; or, where the task names forms, each vector as JSON in each form instead."""

    vectors: NDArray[np.float32] | None
    rows: dict[str, list[bytes]]
    n_tokens: int
    cut: bool
    fingerprint: str


@dataclass(frozen=True)
class EmbedTask(Task[Embedded]):
    """Vectors of texts, as candidates or as contexts."""

    operation: ClassVar[str] = "embed"
    texts: Sequence[str]
    side: Side = "document"
    forms: Sequence[str] = ()


@dataclass(frozen=True)
class ExplainTask(Task[bytes]):
    """Why a candidate has its score: the JSON of what ``polyrank.Explanation.as_dict`` gives."""

    operation: ClassVar[str] = "explain"
    context: Context
    candidate: str
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Tasks of one operation, and the name of what is to compute them."""

    name: str
    tasks: Sequence[Task[Any]]


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """What became of a task.

    Args:
        result: of the task.
        error: name of the error that it met instead; empty: none.
        message: of that error.
    """

    result: Any = None
    error: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ServedInfo:
    """What is served under one name, for the code that chooses what to ask it.

    Args:
        kind, backend, scorer, fingerprint, dimension: of the index, pipeline or model.
        max_context_tokens, max_candidate_tokens: how much of a text is read; None: nothing limits it.
        watched: folders that it is made of.
        index: folder of the candidates; None: a model alone.
        stages, n_candidates: of an index or a pipeline, when it was opened.
        threshold: the raw score from which a reply is given, where a pipeline was calibrated by scores.
    """

    kind: ServedKind
    backend: str
    scorer: str
    fingerprint: str
    dimension: int | None
    max_context_tokens: int | None
    max_candidate_tokens: int | None
    watched: tuple[str, ...]
    index: str | None = None
    stages: int | None = None
    n_candidates: int | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """How the start of a process went.

    Args:
        info: of what it serves, by name.
        exit_code: of the error because of which it serves nothing; 0: it serves.
        error: that error.
    """

    info: dict[str, ServedInfo] = field(default_factory=dict)
    exit_code: int = 0
    error: str = ""
