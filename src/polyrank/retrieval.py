"""Retrievers: a context in, ranked replies out. Exact search over an index, or lexical search over candidates."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.index import BM25, Index, TfIdf, write_index
from polyrank.index.folder import check_fingerprint
from polyrank.inference import Encoder
from polyrank.records import Candidate, Context, Ranked
from polyrank.scores import scores

CHUNK = 8192  # rows scored at a time, so that memory does not grow with the index


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

    def respond(self, contexts: Sequence[Context], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row. Fewer when the index holds fewer."""
        if not len(self.index.candidates):
            return [[] for _ in contexts]
        vectors, mask = self.encoder.encode_contexts(contexts)
        return [
            _ranked(self.index.candidates, self._scan(vectors[i : i + 1], mask[i : i + 1]), k)
            for i in range(len(contexts))
        ]

    def _scan(self, vectors: NDArray[np.float32], mask: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Scores of all rows for one context: ``[N]``."""
        query, real = torch.from_numpy(vectors), torch.from_numpy(mask)
        result = np.empty(len(self.index.vectors), np.float32)
        for start in range(0, len(result), CHUNK):
            rows = torch.from_numpy(np.array(self.index.vectors[start : start + CHUNK]))
            result[start : start + CHUNK] = scores(query, rows[None], real)[0].numpy()
        return result


class LexicalRetriever:
    """BM25 or TF-IDF over candidates, with the surface of a Retriever."""

    def __init__(self, scorer: BM25 | TfIdf, candidates: Sequence[Candidate]) -> None:
        self.scorer, self.candidates = scorer, tuple(candidates)
        self.texts = [candidate.text for candidate in candidates]

    def respond(self, contexts: Sequence[Context], k: int = 5) -> list[list[Ranked]]:
        """The best ``k`` replies to each context, best first; ties by row."""
        if not self.candidates:
            return [[] for _ in contexts]
        return [_ranked(self.candidates, row, k) for row in self.scorer.score_pool(contexts, self.texts)]


def _ranked(candidates: Sequence[Candidate], values: NDArray[np.float32], k: int) -> list[Ranked]:
    best = np.lexsort((np.arange(len(values)), -values))[:k]
    return [
        Ranked(candidates[i].id, candidates[i].text, float(values[i]), candidates[i].metadata) for i in best.tolist()
    ]


def build_index(
    path: Path, encoder: Encoder, candidates: Sequence[Candidate], *, model: str, replace: bool = False
) -> None:
    """Encode candidates, equal texts once, and write them as an index.

    Args:
        path: the folder to make.
        encoder: a Bi- or Poly-encoder.
        candidates: with distinct ids and texts that are not empty.
        model: where the encoder's folder is.
        replace: whether an existing index may be replaced.
    """
    vectors = encoder.encode_candidates([candidate.text for candidate in candidates])
    write_index(path, candidates, vectors, fingerprint=encoder.fingerprint, model=model, replace=replace)
