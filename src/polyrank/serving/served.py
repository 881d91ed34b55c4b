"""A served model, index or pipeline, opened in a model process, with a method for each operation."""

import base64
import json
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.answering.explain import explain
from polyrank.answering.pipeline import Pipeline, open_pipeline
from polyrank.answering.two_stage import TwoStage
from polyrank.config.models import MODEL
from polyrank.config.serving import ServedBackend
from polyrank.errors import DeadlineError, UsageError
from polyrank.index import is_index, open_catalogue
from polyrank.loading.answering import read_pipeline
from polyrank.loading.folders import PIPELINE, stamp
from polyrank.loading.models import check_backend, resolve_model
from polyrank.ranking.ensembles import BY_LIST, weight_of
from polyrank.records import Context, Ranked
from polyrank.scorers.exported import fastest_backend
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.open import open_model
from polyrank.scorers.protocols import Encoder, Scorer, check_finite
from polyrank.scorers.two_stage import TwoStageScorer
from polyrank.serving.tasks import (
    Embedded,
    EmbedTask,
    ExplainTask,
    Responded,
    RespondTask,
    Scored,
    ScoreTask,
    ServedInfo,
    ServedKind,
    Task,
)
from polyrank.storage.document import has_document

R = TypeVar("R")

REMEMBERED = 20_000  # vectors of candidates in the cache, by text
STAGES = {"retrieval": "retriever", "rerank": "reranker"}
MAX_TOO_SLOW = 100  # filters in the cache of those that took too long
TRIED_AGAIN_S = 60.0  # after which such a filter is tried again: the machine may have been busy
ANSWER_BYTES = 32 * 2**20
WARM = "how are you today ?"
SEVERAL = "encodes a context to {} vectors; request those of documents with input_type search_document"


class Served:
    """One of the models, indexes and pipelines of a server.

    Args:
        name: that requests use.
        path: a folder, or a name that ``polyrank.load`` accepts.
        device: for networks.
        backend: see ``polyrank.load``; or "auto": the fastest on this machine of torch and the models' exports.
    """

    def __init__(self, name: str, path: str, device: str = "auto", backend: ServedBackend = "torch") -> None:
        self.name, self.path = name, path
        self._options = device, backend
        # by filter: the version of the index, the time until which the filter is refused, and the error
        self._too_slow: dict[str | None, tuple[tuple[int, int], float, str]] = {}
        self._stamp = ""  # of the index's folder, at the last call of ``current``
        folder = Path(path)
        is_pipeline = has_document(folder, PIPELINE)
        self.kind: ServedKind = "pipeline" if is_pipeline else "index" if is_index(folder) else "model"
        if backend == "auto":
            models = [Path(part) for part in (path, *self._parts()) if has_document(Path(part), MODEL)]
            backend = fastest_backend(models, device)
        self.backend = backend
        self.pipeline: Pipeline | None = None
        if self.kind == "model":
            references = resolve_model(path, backend=backend, bare_hub_names=False).stages(backend)
            check_backend(references, backend)
            stages = [open_model(reference, device=device) for reference in references]
            self.scorer: Scorer = stages[-1]
            self.encoder = stages[0] if isinstance(stages[0], Encoder) else None
            self.ranker = stages[0] if len(stages) == 1 else TwoStageScorer(*stages, n_retrieved=sys.maxsize)
        else:
            self.pipeline = open_pipeline(folder, device=device, backend=backend)
            self.scorer, self.encoder = self.pipeline.scorer, self.pipeline.index_encoder()
            self.ranker = self._ranker(self.pipeline)
        scorers = [self.scorer, *([self.encoder] if self.encoder else [])]
        self._networks = {id(network): network for scorer in scorers for network in scorer.networks}.values()
        for network in self._networks:
            network.max_remembered = REMEMBERED
        self.ranker.score([WARM], [[WARM]])  # the first pass takes ten times as long as later ones

    def _ranker(self, pipeline: Pipeline) -> Scorer:
        """Scores given texts; both stages of a pipeline that adds their scores."""
        stages = pipeline.retriever
        if not isinstance(stages, TwoStage) or stages.ensemble is None:
            return self.scorer
        first = stages.retriever.scorer
        return TwoStageScorer(first, stages.reranker, n_retrieved=sys.maxsize, ensemble=stages.ensemble)

    def may_be_replaced(self) -> bool:
        """Whether the index's folder is another one than at the last call of ``current``."""
        return self.pipeline is not None and stamp([str(self.pipeline.index.path)]) != self._stamp

    def current(self) -> "Served":
        """This object; or a new one, if another encoder's index has replaced the index.

        Raises:
            PolyrankError: the new index cannot be opened.
        """
        if self.pipeline is None:
            return self
        self._stamp = stamp([str(self.pipeline.index.path)])  # first, so that a replacement meanwhile is noticed
        with open_catalogue(self.pipeline.index.path) as index:
            if index.fingerprint == self.pipeline.index_encoder().fingerprint:
                return self
        return Served(self.name, self.path, *self._options)

    def info(self) -> ServedInfo:
        """Its properties, for the server."""
        scorer = type(self.scorer).__name__.removesuffix("Scorer").removesuffix("Encoder").lower() or "encoder"
        cuts = self.ranker.cut  # of a sum or two stages, one for each part
        info = ServedInfo(
            self.kind,
            self.backend,
            self.ranker.precision,
            scorer,
            self.scorer.fingerprint,
            self.encoder.dimension if self.encoder else None,
            min((cut.max_context_tokens for cut in cuts), default=None),
            min((cut.max_candidate_tokens for cut in cuts), default=None),
            tuple(sorted({self.path, *self._parts()})),
            by_list=not cuts or _adds_by_list(self.ranker),
        )
        if self.pipeline is None:
            return info
        n, stages = len(self.pipeline), self.pipeline.n_stages
        return replace(
            info, index=str(self.pipeline.index.path), stages=stages, n_candidates=n, threshold=self._threshold()
        )

    def _threshold(self) -> float | None:
        """The lowest raw score of a returned reply, if the pipeline was calibrated on raw scores."""
        if self.kind != "pipeline":
            return None
        known = None if self.pipeline is None else self.pipeline.abstention
        raw = not isinstance(self.ranker, TwoStageScorer) or weight_of(self.ranker.ensemble) is not None
        return known.threshold if known is not None and known.measure == "score" and raw else None

    def _parts(self) -> list[str]:
        """Further folders that it consists of."""
        if self.kind == "model":
            return []
        names: list[str | None] = [self.path]
        if self.kind == "pipeline":
            config, _ = read_pipeline(Path(self.path))
            names = [config.index, config.model, config.reranker]
        with open_catalogue(str(names[0])) as index:
            names.append(index.model)
        return [name for name in names if name and name != self.path and Path(name).is_dir()]

    def compute(self, tasks: Sequence[Task[R]]) -> Sequence[R]:
        """The results of tasks of one operation, in their order.

        Raises:
            UsageError: it does not support this operation.
        """
        _forget_cut(self._networks)  # otherwise they would keep every text that they truncated
        compute: Callable[[Sequence[Any]], Sequence[R]] = getattr(self, tasks[0].operation)
        return compute(tasks)

    def respond(self, tasks: Sequence[RespondTask]) -> list[Responded]:
        """Replies to contexts. Tasks with the same options are searched together."""
        if (pipeline := self.pipeline) is None:
            raise UsageError(f"{self.name} is a model, which only ranks given texts; use an index or a pipeline")
        groups: dict[tuple[str | None, bool, int], list[int]] = defaultdict(list)
        for number, task in enumerate(tasks):
            groups[task.filter, task.allow_echo, task.k if task.diverse else 0].append(number)
        results: dict[int, Responded] = {}
        for (filter_, allow_echo, diverse), numbers in groups.items():
            started = time.perf_counter()
            k = max(tasks[number].k for number in numbers)
            contexts = [tasks[number].context for number in numbers]
            if filter_ in self._too_slow:
                pipeline.index.refresh()  # a search would do it
                version, until, message = self._too_slow[filter_]
                if version == pipeline.index.version and time.monotonic() < until:
                    raise DeadlineError(message)
            try:
                answers = pipeline.answer_all(contexts, k, filter=filter_, allow_echo=allow_echo, diverse=diverse > 0)
            except DeadlineError as error:  # refuse the same filter at once for a while, unless the index changes
                latest = list(self._too_slow.items())[-MAX_TOO_SLOW:]
                until = time.monotonic() + TRIED_AGAIN_S
                self._too_slow = dict(latest) | {filter_: (pipeline.index.version, until, str(error))}
                raise
            milliseconds = (time.perf_counter() - started) * 1000
            for number, answer in zip(numbers, answers, strict=True):
                ranked = answer.ranked[: tasks[number].k]
                shown = [(reply.id, reply.score, reply.text) for reply in ranked]
                made_by = pipeline.index.change, self.scorer.fingerprint
                own = replace(answer, ranked=())
                results[number] = Responded(own, replies_as_json(ranked), shown, milliseconds, *made_by)
        return [results[number] for number in range(len(tasks))]

    def score(self, tasks: Sequence[ScoreTask]) -> list[Scored]:
        """Scores of texts for contexts."""
        scores = self.ranker.score([task.context for task in tasks], [task.texts for task in tasks])
        for row in scores:
            check_finite(row)
        return [
            Scored(
                row.tolist(),
                *_counted(_tokens_of_pairs, self.scorer, task.context, task.texts),
                self.scorer.fingerprint,
            )
            for row, task in zip(scores, tasks, strict=True)
        ]

    def embed(self, tasks: Sequence[EmbedTask]) -> list[Embedded]:
        """Vectors of texts; as JSON, if the task names forms."""
        if (encoder := self.encoder) is None:
            raise UsageError(f"{self.name} has no vectors; use it to score or rerank")
        results: dict[int, Embedded] = {}
        for side in ("document", "query"):
            numbers = [number for number, task in enumerate(tasks) if task.side == side]
            texts = [text for number in numbers for text in tasks[number].texts]
            if not numbers:
                continue
            if side == "document":
                vectors = encoder.encode_candidates(texts)
            else:
                context_vectors, mask = encoder.encode_contexts([Context((text,)) for text in texts])
                if context_vectors.shape[1] > 1:
                    raise UsageError(f"{self.name} {SEVERAL.format(context_vectors.shape[1])}")
                vectors = np.where(mask[:, :, None], context_vectors, 0)[:, 0]
            start = 0
            for number in numbers:
                task = tasks[number]
                part = np.ascontiguousarray(vectors[start : start + len(task.texts)], np.float32)
                rows = {form: vectors_as_json(part, form) for form in task.forms}
                counted = _counted(_tokens_of_texts if side == "document" else _tokens_of_contexts, encoder, task.texts)
                results[number] = Embedded(None if rows else part, rows, *counted, encoder.fingerprint)
                start += len(task.texts)
        return [results[number] for number in range(len(tasks))]

    def explain(self, tasks: Sequence[ExplainTask]) -> list[bytes]:
        """Explanations of scores."""
        scorer = self.ranker if self.pipeline is None else self.pipeline
        explanations = (explain(scorer, task.context, task.candidate, filter=task.filter) for task in tasks)
        return [orjson.dumps(_without_paths(explanation.as_dict())) for explanation in explanations]


def _adds_by_list(ranker: Scorer) -> bool:
    """Whether two stages add scores that depend on the list: by scale, or by a lexical stage's word statistics."""
    return isinstance(ranker, TwoStageScorer) and (ranker.ensemble in BY_LIST or not ranker.retriever.cut)


def vectors_as_json(vectors: NDArray[np.float32], form: str) -> list[bytes]:
    """Vectors ``[n, D]`` as JSON, one by one; done here because it would block the server's event loop.

    Args:
        vectors: of any length.
        form: "float": the shortest numbers that restore the same float32; "base64": of little-endian float32; "unit":
            numbers of the vector scaled to length 1.

    >>> array = np.array([[3, 4]], np.float32)
    >>> vectors_as_json(np.array([[0.1, 1]], np.float32), "float"), vectors_as_json(array, "unit")
    ([b'[0.1,1.0]'], [b'[0.6,0.8]'])
    """
    if form == "base64":
        return [b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"' for vector in vectors]
    if form == "unit":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return [orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY) for vector in vectors]


def replies_as_json(ranked: Sequence[Ranked]) -> list[bytes]:
    """Replies as JSON, one by one.

    Raises:
        UsageError: together they exceed the size limit of an answer.
    """
    rows = []
    for reply in ranked:
        row = {"id": reply.id, "text": reply.text, "score": reply.score}
        row |= {f"{name}_score": reply.stages.get(stage) for name, stage in STAGES.items()}
        metadata = json.dumps(reply.metadata, ensure_ascii=False).encode()
        rows.append(b'%s,"metadata":%s}' % (orjson.dumps(row)[:-1], metadata))
    if (n := sum(map(len, rows))) > ANSWER_BYTES:
        raise UsageError(f"the {len(rows):,} replies have {n:,} bytes, the limit is {ANSWER_BYTES:,}; send a smaller k")
    return rows


def _without_paths(explanation: dict[str, Any]) -> dict[str, Any]:
    """Shorten names of a sum's parts from "1 FOLDER" to the folder's last name: clients must not learn paths."""
    parts = explanation["parts"].items()
    return explanation | {"parts": {re.sub(r"^(\d+ )?.*[/\\]", r"\1", name): _without_paths(p) for name, p in parts}}


def _counted(count: Callable[..., int], scorer: Scorer, *arguments: Any) -> tuple[int, bool]:
    """The number of tokens, and whether a text was truncated."""
    _forget_cut(scorer.networks)
    return count(scorer, *arguments), any(bool(part.texts.cut) for part in scorer.networks)


def _forget_cut(networks: Iterable[NetworkScorer[Any]]) -> None:
    for part in networks:
        part.texts.cut.clear()


def _tokens_of_contexts(scorer: Scorer, texts: Sequence[str]) -> int:
    return sum(len(part.texts.context_ids(Context((text,)))) for part in scorer.networks for text in texts)


def _tokens_of_texts(scorer: Scorer, texts: Sequence[str]) -> int:
    return sum(len(ids) for part in scorer.networks for ids in part.texts.all_candidate_ids(texts))


def _tokens_of_pairs(scorer: Scorer, context: Context, texts: Sequence[str]) -> int:
    if isinstance(scorer, Encoder):
        return _tokens_of_texts(scorer, texts) + sum(len(part.texts.context_ids(context)) for part in scorer.networks)
    return sum(len(part.texts.pair_ids(context, text)[0]) for part in scorer.networks for text in texts)
