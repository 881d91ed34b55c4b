"""Retrievers: a context in, ranked replies out. Exact search over an index, or lexical search over candidates."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.errors import ArtifactError, UsageError
from polyrank.index import BM25, Index, TfIdf, write_index
from polyrank.index.folder import check_candidates, check_fingerprint, check_place
from polyrank.inference import Encoder
from polyrank.records import Candidate, Context, Ranked
from polyrank.scores import scores

CHUNK = 8192  # rows scored at a time, so that memory does not grow with their vectors
CONTEXTS_PER_SCAN = 16  # contexts that share one reading of the index
TEXTS_PER_REPORT = 1024  # texts encoded between two reports of progress


class Retriever:
    """An encoder and an index that it made: exact top-k.

    Args:
        encoder: a Bi- or Poly-encoder.
        index: its candidates.

    Raises:
        ArtifactError: the index was made by another encoder.
    """

    def __init__(self, encoder: Encoder, index: Index) -> None:
        check_fingerprint(index.fingerprint, encoder.fingerprint, index.path)
        self.encoder, self.index = encoder, index
        self._firsts = _firsts(index)

    def respond(self, contexts: Sequence[Context], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row. Fewer when the index holds fewer.

        Raises:
            UsageError: ``k`` is less than one.
            ArtifactError: the encoder's scores are not finite.
        """
        _check_k(k)
        if not contexts or not self.index.candidates:
            return [[] for _ in contexts]
        vectors, mask = self.encoder.encode_contexts(contexts)
        results = []
        for start in range(0, len(contexts), CONTEXTS_PER_SCAN):
            part = slice(start, start + CONTEXTS_PER_SCAN)
            results += [_ranked(self.index.candidates, row, k) for row in self._scan(vectors[part], mask[part])]
        return results

    def _scan(self, vectors: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Scores of all rows: ``[B, N]``, for context vectors ``[B, M, D]`` and their mask ``[B, M]``."""
        queries, real = torch.from_numpy(vectors), torch.from_numpy(mask)
        result = np.empty((len(queries), len(self.index.vectors)), np.float32)
        for start in range(0, result.shape[1], CHUNK):
            part = slice(start, start + CHUNK)
            rows = torch.from_numpy(np.array(self.index.vectors[part]))[None]
            for i in range(len(queries)):
                result[i, part] = scores(queries[i : i + 1], rows, real[i : i + 1])[0].numpy()
        if not np.isfinite(result).all():
            raise ArtifactError(
                f"encoder {self.encoder.fingerprint[:16]} gives scores that are not finite; train again"
            )
        return result[:, self._firsts]


def _firsts(index: Index) -> NDArray[np.intp]:
    """For each row, the first one with the same text and vector, ``[N]``.

    A matrix product may round equal rows apart by where they lie; equal replies take the score of the first of them,
    so that they tie.
    """
    seen: dict[str, int] = {}
    result = np.arange(len(index.candidates))
    for row, candidate in enumerate(index.candidates):
        first = seen.setdefault(candidate.text, row)
        if first != row and np.array_equal(index.vectors[row], index.vectors[first]):
            result[row] = first
    return result


class LexicalRetriever:
    """BM25 or TF-IDF over candidates, with the surface of a Retriever.

    Args:
        scorer: fitted, or it takes word statistics from the candidates.
        candidates: to choose from.
    """

    def __init__(self, scorer: BM25 | TfIdf, candidates: Sequence[Candidate]) -> None:
        self.scorer, self.candidates = scorer, tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]

    def respond(self, contexts: Sequence[Context], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row. Fewer when there are fewer candidates.

        Raises:
            UsageError: ``k`` is less than one.
        """
        _check_k(k)
        return [_ranked(self.candidates, row, k) for row in self.scorer.score_pool(contexts, self.texts)]


def _check_k(k: int) -> None:
    if k < 1:
        raise UsageError(f"k is {k}; ask for one reply at least")


def _ranked(candidates: Sequence[Candidate], values: NDArray[np.float32], k: int) -> list[Ranked]:
    """The best ``k`` by score, then by row; ``values``: ``[N]``."""
    rows = np.arange(len(values))
    if k < len(values):  # sort only what is as good as the k-th best
        rows = np.flatnonzero(values >= np.partition(values, -k)[-k])
    best = rows[np.argsort(-values[rows], kind="stable")][:k]
    return [
        Ranked(candidates[i].id, candidates[i].text, float(values[i]), candidates[i].metadata) for i in best.tolist()
    ]


def build_index(
    path: str | PathLike[str],
    encoder: Encoder,
    candidates: Sequence[Candidate],
    *,
    model: str,
    replace: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Encode candidates, equal texts once, and write them as an index.

    Args:
        path: the folder to make.
        encoder: a Bi- or Poly-encoder.
        candidates: with distinct ids and texts that are not empty.
        model: where the encoder's folder is.
        replace: whether an existing index may be replaced.
        progress: told how many distinct texts are encoded, and of how many.

    Raises:
        DataError: names faulty candidates by position; before anything is encoded, where it can be seen then.
        UsageError: the place is taken; before anything is encoded.
        ResourceError: the disk is full; an earlier index is intact.
    """
    check_place(Path(path), replace=replace)
    check_candidates(candidates)
    places = {text: place for place, text in enumerate(dict.fromkeys(c.text for c in candidates))}
    texts = list(places)
    vectors = np.empty((len(texts), encoder.dimension), np.float32)
    for start in range(0, len(texts), TEXTS_PER_REPORT):
        part = slice(start, start + TEXTS_PER_REPORT)
        vectors[part] = encoder.encode_candidates(texts[part])
        if progress:
            progress(min(part.stop, len(texts)), len(texts))
    if len(texts) < len(candidates):
        vectors = vectors[[places[c.text] for c in candidates]]
    write_index(path, candidates, vectors, fingerprint=encoder.fingerprint, model=model, replace=replace)
