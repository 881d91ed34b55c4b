"""What one name serves, opened where it is computed: an index, a pipeline or a model, and what each can be asked."""

import base64
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from polyrank.answering.answering import Pipeline, open_pipeline
from polyrank.answering.explain import explain
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.config.models import MODEL
from polyrank.errors import UsageError
from polyrank.index import is_index, open_index
from polyrank.loading.answering import read_pipeline
from polyrank.loading.folders import PIPELINE
from polyrank.loading.models import Backend
from polyrank.records import Context
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported import fastest_backend
from polyrank.scorers.network import NetworkScorer
from polyrank.scorers.open import encoder_of_index, load
from polyrank.scorers.protocols import Encoder, Scorer
from polyrank.scorers.summed import SumEncoder
from polyrank.storage.document import has_document

REMEMBERED = 20_000  # vectors of candidates, by text
WARM = "how are you today ?"
SEVERAL = "gives a context {} vectors; ask for those of documents, with input_type search_document"


class Served:
    """One of the things that a server was given.

    Args:
        name: it is asked for by.
        path: a folder, or what ``polyrank.load`` takes.
        device: for networks.
        backend: see ``polyrank.load``; or "auto", which is what answers soonest here of torch and the models' exports.
    """

    def __init__(
        self, name: str, path: str, device: str = "auto", backend: Backend | Literal["auto"] = "torch"
    ) -> None:
        self.name, self.path = name, path
        self._asked = device, backend
        folder = Path(path)
        is_pipeline = has_document(folder, PIPELINE)
        self.kind = "pipeline" if is_pipeline else "index" if is_index(folder) else "model"
        if backend == "auto":
            models = [Path(part) for part in (path, *self._parts()) if has_document(Path(part), MODEL)]
            backend = fastest_backend(models, device)
        self.backend = backend
        self.pipeline: Pipeline | None = None
        self._encoder_of_index: Encoder | None = None
        if self.kind == "model":
            self.scorer = load(path, device=device, backend=backend)
        else:
            self.pipeline = open_pipeline(folder, device=device, backend=backend)
            self.scorer = _scorer_of(self.pipeline)
            first = _first_stage(self.pipeline)
            if isinstance(first, Retriever):
                self._encoder_of_index = first.encoder
            elif folder_of_index := self.pipeline.index:
                self._encoder_of_index = encoder_of_index(folder_of_index.model, device=device, backend=backend)
        for part in _networks(self.scorer):
            if isinstance(part, EncoderScorer):
                part.max_remembered = REMEMBERED
        self.scorer.score([WARM], [[WARM]])  # the first pass through a network takes ten times as long

    def current(self) -> "Served":
        """This; or where its index was replaced by another encoder's, what is there now.

        Raises:
            PolyrankError: that cannot be opened.
        """
        if self.pipeline is None or self._encoder_of_index is None:
            return self
        with open_index(self.pipeline.index.path) as index:
            if index.fingerprint == self._encoder_of_index.fingerprint:
                return self
        return Served(self.name, self.path, *self._asked)

    @property
    def encoder(self) -> Encoder | None:
        """What gives vectors, if anything does."""
        if self._encoder_of_index is not None:
            return self._encoder_of_index
        return self.scorer if isinstance(self.scorer, Encoder) else None

    def info(self) -> dict[str, Any]:
        """What it is, for who chooses what to ask."""
        answer: dict[str, Any] = {
            "kind": self.kind,
            "backend": self.backend,
            "scorer": type(self.scorer).__name__.removesuffix("Scorer").removesuffix("Encoder").lower() or "encoder",
            "fingerprint": self.scorer.fingerprint,
            "dimension": self.encoder.dimension if self.encoder else None,
            "max_context_tokens": None,
            "max_candidate_tokens": None,
            "index": None,
            "watched": sorted({self.path, *self._parts()}),
        }
        for cut in self.scorer.cut[-1:]:
            answer["max_context_tokens"] = cut.max_context_tokens
            answer["max_candidate_tokens"] = cut.max_candidate_tokens
        if self.pipeline is not None:
            index = self.pipeline.index
            answer |= {
                "index": str(index.path),
                "index_fingerprint": index.fingerprint,
                "n_candidates": len(self.pipeline),
                "stages": 2 if isinstance(self.pipeline.retriever, TwoStage) else 1,
                "abstains": self.pipeline.abstention is not None,
            }
        return answer

    def _parts(self) -> list[str]:
        """Folders that it is made of, besides its own."""
        if self.kind == "model":
            return []
        names: list[str | None] = [self.path]
        if self.kind == "pipeline":
            config, _ = read_pipeline(Path(self.path))
            names = [config.index, config.model, config.reranker]
        with open_index(str(names[0])) as index:
            names.append(index.model)
        return [name for name in names if name and name != self.path and Path(name).is_dir()]

    def compute(self, operation: str, payloads: Sequence[Any]) -> list[Any]:
        """The results of several requests of one kind, in their order.

        Raises:
            UsageError: this cannot be asked for that.
        """
        for part in _networks(self.scorer):  # which would remember every text that was too long
            part.texts.cut.contexts.clear()
            part.texts.cut.candidates.clear()
        return _OPERATIONS[operation](self, payloads)

    def respond(self, payloads: Sequence[dict[str, Any]]) -> list[Any]:
        """Replies to contexts. Those that are filtered alike are searched for together."""
        pipeline = self._answering()
        groups: dict[str | None, list[int]] = defaultdict(list)
        for number, payload in enumerate(payloads):
            groups[payload.get("filter")].append(number)
        results: list[Any] = [None] * len(payloads)
        for filter_, numbers in groups.items():
            started = time.perf_counter()
            k = max(payloads[number]["k"] for number in numbers)
            answers = pipeline.answer_all([_context(payloads[number]) for number in numbers], k, filter=filter_)
            milliseconds = (time.perf_counter() - started) * 1000
            for number, answer in zip(numbers, answers, strict=True):
                results[number] = {
                    "ranked": [
                        (reply.id, reply.text, reply.score, reply.metadata, reply.stages)
                        for reply in answer.ranked[: payloads[number]["k"]]
                    ],
                    "confidence": answer.confidence,
                    "abstained": answer.abstained,
                    "exact": answer.exact,
                    "n_scored": answer.n_scored,
                    "ways": answer.ways,
                    "model_ms": milliseconds,
                    "change": pipeline.index.change,
                    "fingerprint": self.scorer.fingerprint,
                }
        return results

    def score(self, payloads: Sequence[dict[str, Any]]) -> list[Any]:
        """Scores of texts for contexts, and how many tokens were read."""
        contexts = [_context(payload) for payload in payloads]
        scores = self.scorer.score(contexts, [payload["texts"] for payload in payloads])
        return [
            {"scores": row.tolist(), "n_tokens": _tokens_of_pairs(self.scorer, context, payload["texts"])}
            for row, context, payload in zip(scores, contexts, payloads, strict=True)
        ]

    def embed(self, payloads: Sequence[dict[str, Any]]) -> list[Any]:
        """Vectors of texts, each ``[n, D]``, and how many tokens were read; as JSON, where the request names forms."""
        encoder = self.encoder
        if encoder is None:
            raise UsageError(f"{self.name} has no vectors; ask it to score or to rerank")
        results: list[Any] = [None] * len(payloads)
        for kind in ("document", "query"):
            numbers = [number for number, payload in enumerate(payloads) if payload["input_type"] == kind]
            texts = [text for number in numbers for text in payloads[number]["texts"]]
            if not numbers:
                continue
            if kind == "document":
                vectors = encoder.encode_candidates(texts)
            else:
                context_vectors, mask = encoder.encode_contexts([Context((text,)) for text in texts])
                if context_vectors.shape[1] > 1:
                    raise UsageError(f"{self.name} {SEVERAL.format(context_vectors.shape[1])}")
                vectors = np.where(mask[:, :, None], context_vectors, 0)[:, 0]
            start = 0
            for number in numbers:
                own, forms = payloads[number]["texts"], payloads[number].get("forms")
                part = np.ascontiguousarray(vectors[start : start + len(own)], np.float32)
                results[number] = {
                    "vectors": part if forms is None else {form: written(part, form) for form in forms},
                    "n_tokens": _tokens_of_texts(encoder, own),
                    "fingerprint": encoder.fingerprint,
                }
                start += len(own)
        return results

    def explain(self, payloads: Sequence[dict[str, Any]]) -> list[Any]:
        """Why a reply has its score."""
        results = []
        for payload in payloads:
            if self.pipeline is not None:
                explanation = self.pipeline.explain(
                    _context(payload), payload["candidate"], filter=payload.get("filter")
                )
            else:
                explanation = explain(self.scorer, _context(payload), payload["candidate"])
            results.append(_without_paths(explanation.as_dict()))
        return results

    def _answering(self) -> Pipeline:
        if self.pipeline is None:
            raise UsageError(f"{self.name} is a model, which ranks what it is given; ask an index or a pipeline")
        return self.pipeline


_OPERATIONS: dict[str, Callable[[Served, Sequence[Any]], list[Any]]] = {
    "respond": Served.respond,
    "score": Served.score,
    "embed": Served.embed,
    "explain": Served.explain,
}


def written(vectors: NDArray[np.float32], form: str) -> list[bytes]:
    """Vectors ``[n, D]`` as JSON, one by one: a process that computes has the time that the event loop has not.

    Args:
        vectors: whatever length they have.
        form: "float": numbers, each as short as it can be told by; "base64": of little-endian float32; "unit": numbers
            of the vector brought to length 1.

    >>> written(np.array([[0.1, 1], [3, 4]], np.float32), "float"), written(np.array([[3, 4]], np.float32), "unit")
    ([b'[0.1,1.0]', b'[3.0,4.0]'], [b'[0.6,0.8]'])
    """
    if form == "base64":
        return [b'"' + base64.b64encode(vector.astype("<f4").tobytes()) + b'"' for vector in vectors]
    if form == "unit":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return [orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY) for vector in vectors]


def _context(payload: dict[str, Any]) -> Context:
    return Context(tuple(payload["context"]), tuple(payload.get("background", ())))


def _without_paths(explanation: dict[str, Any]) -> dict[str, Any]:
    """Parts of a sum are called "1 FOLDER": by the last name of it alone, since the rest is nobody else's business."""
    parts = explanation["parts"].items()
    return explanation | {"parts": {re.sub(r"^(\d+ )?.*[/\\]", r"\1", name): _without_paths(p) for name, p in parts}}


def _first_stage(pipeline: Pipeline) -> Any:
    return pipeline.retriever.retriever if isinstance(pipeline.retriever, TwoStage) else pipeline.retriever


def _scorer_of(pipeline: Pipeline) -> Scorer:
    """What orders the replies in the end, for lists that are given."""
    if isinstance(pipeline.retriever, TwoStage):
        return pipeline.retriever.reranker
    first = _first_stage(pipeline)
    return first.scorer if isinstance(first, LexicalRetriever) else first.encoder


def _networks(scorer: Scorer) -> list[NetworkScorer[Any]]:
    parts: Sequence[Any] = scorer.parts if isinstance(scorer, SumEncoder) else (scorer,)
    return [part for part in parts if isinstance(part, NetworkScorer)]


def _tokens_of_texts(scorer: Scorer, texts: Sequence[str]) -> int:
    return sum(len(ids) for part in _networks(scorer) for ids in part.texts.all_candidate_ids(texts))


def _tokens_of_pairs(scorer: Scorer, context: Context, texts: Sequence[str]) -> int:
    if isinstance(scorer, Encoder):
        return _tokens_of_texts(scorer, texts) + sum(len(part.texts.context_ids(context)) for part in _networks(scorer))
    return sum(len(part.texts.pair_ids(context, text)[0]) for part in _networks(scorer) for text in texts)
