"""A served model, ranker or index, opened in a model process, with a method for each operation."""

import base64
import json
import re
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
from polyrank.answering.opening import open_replies
from polyrank.answering.replies import Replies
from polyrank.errors import DeadlineError, UsageError
from polyrank.index import Filter, is_index, open_catalogue
from polyrank.loading.folders import stamp
from polyrank.loading.models import Backend, check_backend, moved_name, resolve_model
from polyrank.records import Context, Ranked
from polyrank.scorers.chunks import Chunked
from polyrank.scorers.late import LateScorer
from polyrank.scorers.lexical import LexicalScorer
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.open import open_ranking
from polyrank.scorers.protocols import Encoder, Scorer, check_finite
from polyrank.serving import tasks as messages

R = TypeVar("R")

REMEMBERED = 10_000  # vectors of candidates in the cache, by text: some 50 MB
KEPT_BYTES = 256 * 2**20  # of a late Cross-encoder's inputs from candidates
STAGES = {"retrieval": "retriever", "rerank": "reranker"}
MAX_TOO_SLOW = 100  # filters in the cache of those that took too long
TRIED_AGAIN_S = 60.0  # after which such a filter is tried again: the machine may have been busy
ANSWER_BYTES = 32 * 2**20
WARM = "how are you today ?"
SEVERAL = "encodes a context to {} vectors; request those of documents with input_type search_document"


class Served:
    """One of the models, rankers and indexes of a server.

    Args:
        name: that requests use.
        path: a folder, or a name that ``polyrank.load`` accepts.
        device: for networks.
        backend: see ``polyrank.load``.
    """

    def __init__(self, name: str, path: str, device: str = "auto", backend: Backend = "torch") -> None:
        self.name, self.path = name, path
        self._options = device, backend
        # by filter and any_language: the version of the index, the time until which it is refused, and the error
        self._too_slow: dict[tuple[Filter | str | None, bool], tuple[tuple[int, int], float, str]] = {}
        self.kind: messages.ServedKind = "index" if is_index(path) else "model"
        self._folders = [path, *self._parts()]
        self._stamp = stamp(self._folders)  # before they are opened, so that a replacement meanwhile is noticed
        self.backend = backend
        self.replies: Replies | None = None
        self.scorer: Scorer
        if self.kind == "model":
            reference = resolve_model(path, backend=backend, bare_hub_names=False)
            check_backend([reference, *reference.parts], backend)
            self.scorer = open_ranking(reference, device=device)
        else:
            self.replies = open_replies(path, device=device, backend=backend)
            ranker = self.replies.scorer
            alone = len(ranker.terms) == 1 and ranker.terms[0].weights == (1.0,)
            self.scorer = self.replies.encoder if alone else ranker
        self.encoder = self.scorer if isinstance(self.scorer, Encoder) else getattr(self.scorer, "encoder", None)
        self._networks = {id(network): network for network in self.scorer.networks}.values()
        for network in self._networks:
            network.max_remembered = REMEMBERED
            if isinstance(network, LateScorer):
                network.kept.max_bytes = KEPT_BYTES
        self.scorer.score([WARM], [[WARM]])  # the first pass takes ten times as long as later ones

    def reopened(self) -> "Served | None":
        """It, opened again, if one of its folders was replaced since the last call; otherwise None.

        Raises:
            PolyrankError: the new folder cannot be opened; it is not tried again before it changes.
        """
        if (now := stamp(self._folders)) == self._stamp:
            return None
        self._stamp = now
        return Served(self.name, self.path, *self._options)

    def info(self) -> messages.ServedInfo:
        """Its properties, for the server."""
        scorer = type(self.scorer).__name__.removesuffix("Scorer").removesuffix("Encoder").lower() or "encoder"
        cuts = self.scorer.cut  # of a sum or two stages, one for each part
        info = messages.ServedInfo(
            self.kind,
            self.backend,
            self.scorer.precision,
            scorer,
            self.scorer.fingerprint,
            self.encoder.dimension if self.encoder else None,
            min((cut.max_context_tokens for cut in cuts), default=None),
            min((cut.max_candidate_tokens for cut in cuts), default=None),
            by_list=isinstance(self.scorer, LexicalScorer) or bool(getattr(self.scorer, "rerankers", ())),
            relevance=(self.scorer if self.replies is None else self.replies.scorer).relevance,
            reranks=self.encoder is None or bool(getattr(self.scorer, "rerankers", ())),
            two_sides=self.encoder is not None and _has_two_sides(self.encoder),
        )
        if self.replies is None:
            return info
        n, stages = len(self.replies), self.replies.n_stages
        return replace(
            info, index=str(self.replies.index.path), stages=stages, n_candidates=n, threshold=self._threshold()
        )

    def _threshold(self) -> float | None:
        """The lowest score of a returned reply, if the ranker was calibrated on scores."""
        rule = None if self.replies is None else self.replies.scorer.abstention
        return rule.threshold if rule is not None and rule.measure == "score" else None

    def _parts(self) -> list[str]:
        """Further folders that it consists of."""
        name = self.path
        if self.kind == "index":
            with open_catalogue(self.path) as index:
                name = moved_name(index.model, Path(self.path))
        reference = resolve_model(name, bare_hub_names=self.kind == "index")
        names = [name, *(part.name for part in reference.parts)]
        return [part for part in dict.fromkeys(names) if part != self.path and Path(part).is_dir()]

    def compute(self, tasks: Sequence[messages.Task[R]]) -> Sequence[R]:
        """The results of tasks of one operation, in their order.

        Raises:
            UsageError: it does not support this operation.
        """
        _forget_cut(self._networks)  # otherwise they would keep every text that they truncated
        compute: Callable[[Sequence[Any]], Sequence[R]] = getattr(self, tasks[0].operation)
        return compute(tasks)

    def respond(self, tasks: Sequence[messages.RespondTask]) -> list[messages.Responded]:
        """Replies to contexts. Tasks with the same options are searched together."""
        if (replies := self.replies) is None:
            raise UsageError(f"{self.name} is a model, which only ranks given texts; use an index")
        groups: dict[tuple[Filter | str | None, bool, bool, int], list[int]] = defaultdict(list)
        for number, task in enumerate(tasks):
            groups[task.filter, task.allow_echo, task.any_language, task.k if task.diverse else 0].append(number)
        results: dict[int, messages.Responded] = {}
        for (filter_, allow_echo, any_language, diverse), numbers in groups.items():
            started = time.perf_counter()
            k = max(tasks[number].k for number in numbers)
            contexts = [tasks[number].context for number in numbers]
            if (search := (filter_, any_language)) in self._too_slow:
                replies.index.refresh()  # a search would do it
                version, until, message = self._too_slow[search]
                if version == replies.index.version and time.monotonic() < until:
                    raise DeadlineError(message)
            try:
                options = {"allow_echo": allow_echo, "diverse": diverse > 0, "any_language": any_language}
                answers = replies.answer_all(contexts, k, filter=filter_, **options)
            except DeadlineError as error:  # refuse the same filter at once for a while, unless the index changes
                latest = list(self._too_slow.items())[-MAX_TOO_SLOW:]
                until = time.monotonic() + TRIED_AGAIN_S
                self._too_slow = dict(latest) | {search: (replies.index.version, until, str(error))}
                raise
            milliseconds = (time.perf_counter() - started) * 1000
            for number, answer in zip(numbers, answers, strict=True):
                ranked = answer.ranked[: tasks[number].k]
                shown = [(reply.id, reply.score, reply.template) for reply in ranked]
                made_by = replies.index.change, self.scorer.fingerprint
                without_replies = replace(answer, ranked=())
                results[number] = messages.Responded(
                    without_replies, replies_as_json(ranked), shown, milliseconds, *made_by
                )
        return [results[number] for number in range(len(tasks))]

    def score(self, tasks: Sequence[messages.ScoreTask]) -> list[messages.ScoredTexts]:
        """Scores of texts for contexts. Long texts are read in chunks."""
        results: dict[int, messages.ScoredTexts] = {}
        for limit in dict.fromkeys(task.max_chunks for task in tasks):
            numbers = [number for number, task in enumerate(tasks) if task.max_chunks == limit]
            chunked = Chunked(self.scorer, limit)
            some = [tasks[number] for number in numbers]
            lists = [self._shortened(task.texts, task.max_tokens) for task in some]
            scores = chunked.score([task.context for task in some], lists)
            for number, task, texts, row in zip(numbers, some, lists, scores, strict=True):
                check_finite(row)
                read = [chunk for text in texts for chunk in chunked.chunks(task.context, text)]
                n_tokens, cut = _counted(_tokens_of_pairs, self.scorer, task.context, read)
                cut = cut or texts != list(task.texts) or not chunked.unread.isdisjoint(texts)
                results[number] = messages.ScoredTexts(row.tolist(), n_tokens, cut, self.scorer.fingerprint)
        return [results[number] for number in range(len(tasks))]

    def embed(self, tasks: Sequence[messages.EmbedTask]) -> list[messages.Embedded]:
        """Vectors of texts; as JSON, if the task names forms."""
        if (encoder := self.encoder) is None:
            raise UsageError(f"{self.name} has no vectors; use it to score or rerank")
        lists = [self._shortened([text for _, text in task.texts], task.max_tokens) for task in tasks]
        sides = [side for task in tasks for side, _ in task.texts]
        texts = list(zip(sides, (text for read in lists for text in read), strict=True))
        vectors = np.empty((len(texts), encoder.dimension), np.float32)
        for side in ("document", "query"):
            rows = [row for row, (stated, _) in enumerate(texts) if stated == side]
            if rows:
                vectors[rows] = self._vectors(encoder, side, [texts[row][1] for row in rows])
        results, start = [], 0
        for task in tasks:
            end = start + len(task.texts)
            part, read, start = vectors[start:end], texts[start:end], end
            encoded = {form: vectors_as_json(part, form) for form in task.forms}
            n_tokens, cut = _counted(_tokens_of_sides, encoder, read)
            cut = cut or read != list(task.texts)
            results.append(messages.Embedded(None if encoded else part, encoded, n_tokens, cut, encoder.fingerprint))
        return results

    def _shortened(self, texts: Sequence[str], limit: int | None) -> list[str]:
        """Texts without what follows the first ``limit`` tokens of the first network; 0 or less: whole texts."""
        if limit is None or limit < 1 or not (networks := list(self._networks)):
            return list(texts)
        read = [(text, networks[0].texts.subwords.encode_spans(text)) for text in texts]
        return [text[: spans[limit - 1][2]] if len(spans) > limit else text for text, spans in read]

    def _vectors(self, encoder: Encoder, side: messages.Side, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors ``[n, D]`` of texts of one side."""
        if side == "document":
            return encoder.encode_candidates(texts)
        vectors, mask = encoder.encode_contexts([Context((text,)) for text in texts])
        if vectors.shape[1] > 1:
            raise UsageError(f"{self.name} {SEVERAL.format(vectors.shape[1])}")
        only: NDArray[np.float32] = np.where(mask[:, :, None], vectors, 0)[:, 0]
        return only

    def explain(self, tasks: Sequence[messages.ExplainTask]) -> list[bytes]:
        """Explanations of scores."""
        scorer = self.scorer if self.replies is None else self.replies
        explanations = (explain(scorer, task.context, task.candidate, filter=task.filter) for task in tasks)
        return [orjson.dumps(_without_paths(explanation.as_dict())) for explanation in explanations]


def _has_two_sides(encoder: Encoder) -> bool:
    """Whether a text has another vector as a context than as a candidate."""
    context, candidate = encoder.encode_contexts([WARM])[0][0], encoder.encode_candidates([WARM])
    return context.shape != candidate.shape or not np.allclose(context, candidate, atol=1e-3)


def vectors_as_json(vectors: NDArray[np.float32], form: str) -> list[bytes]:
    """Vectors ``[n, D]`` as JSON, one by one; done here because it would block the server's event loop.

    Args:
        vectors: of any length.
        form: "float": the shortest numbers that restore the same float32; "base64": of little-endian float32; with
            "unit-" before it: of the vector scaled to length 1.

    >>> array = np.array([[3, 4]], np.float32)
    >>> vectors_as_json(np.array([[0.1, 1]], np.float32), "float"), vectors_as_json(array, "unit-float")
    ([b'[0.1,1.0]'], [b'[0.6,0.8]'])
    """
    if form.startswith("unit-"):
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    if form.endswith("base64"):
        return [b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"' for vector in vectors]
    return [orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY) for vector in vectors]


def replies_as_json(ranked: Sequence[Ranked]) -> list[bytes]:
    """Replies as JSON, one by one.

    Raises:
        UsageError: together they exceed the size limit of an answer.
    """
    rows = []
    for reply in ranked:
        row: dict[str, Any] = {"id": reply.id, "text": reply.text, "template": reply.template, "slots": reply.slots}
        row |= {"score": reply.score} | {f"{name}_score": reply.stages.get(stage) for name, stage in STAGES.items()}
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


def _tokens_of_sides(scorer: Scorer, texts: Sequence[tuple[messages.Side, str]]) -> int:
    contexts = [Context((text,)) for side, text in texts if side == "query"]
    documents = [text for side, text in texts if side == "document"]
    return sum(
        sum(len(part.texts.context_ids(context)) for context in contexts)
        + sum(map(len, part.texts.all_candidate_ids(documents)))
        for part in scorer.networks
    )


def _tokens_of_pairs(scorer: Scorer, context: Context, texts: Sequence[str]) -> int:
    """The tokens of both sides for a network that encodes them, and of each pair for a Cross-encoder."""
    total = 0
    for part in scorer.networks:
        if isinstance(part, Encoder):
            total += len(part.texts.context_ids(context)) + sum(map(len, part.texts.all_candidate_ids(texts)))
        else:
            total += sum(len(part.texts.pair_ids(context, text)[0]) for text in texts)
    return total
