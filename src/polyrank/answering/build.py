"""Encode candidates, equal texts once, and write or add them to an index."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.data.pool import CandidateLike, read_pool
from polyrank.devices import distributed
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import (
    COUNT_FIELD,
    IndexWriter,
    KnownVectors,
    LocalIndex,
    check_fingerprint,
    open_catalogue,
    open_writer,
    write_index,
)
from polyrank.index.checks import check_candidates
from polyrank.records import Candidate
from polyrank.scorers.open import encoder_of, load_ranking
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Scorer
from polyrank.scorers.terms.counts import Counts
from polyrank.storage.durable import AnyPath
from polyrank.storage.quantized import Precision

TEXTS_AT_A_TIME = 1024  # encoded between two reports of progress
ROWS_AT_A_TIME = 10_000  # whose counts are changed at once: a change of an index holds its vectors in memory
LONG = "%s has candidates that are too long: it finds them by their starts, but rank reads them in chunks; split them"
log = logging.getLogger("polyrank")

Progress = Callable[[int, int], None]


def build_index(
    path: AnyPath,
    model: Any,
    candidates: Iterable[CandidateLike] | Path | str,
    *,
    name: str | None = None,
    ann: str = "",
    precision: Precision = "fp32",
    overwrite: bool = False,
    remote: str | None = None,
    partition_by: str = "",
    progress: Progress | None = None,
) -> int:
    """Encode candidates, equal texts once, and write them as an index.

    The candidates and the path are validated first; then vectors are written while others are encoded. Distributed
    processes share the encoding, and rank 0 writes. If an index of the same encoder is replaced, its vectors are used
    again, so only new texts are encoded.

    Args:
        path: the folder to make.
        model: an encoder, a ranker with one, or an object of yours with vectors; or a name for ``polyrank.load``. If a
            ranker counts replies, candidates without a metadata field ``count`` get the ranker's count of their text.
        candidates: with distinct ids and texts that are not empty; a file, a list or a table, see
            ``polyrank.read_pool``.
        name: that loads the model when the index is opened; None: the one with which it was loaded.
        ann: see ``write_index``.
        precision: see ``write_index``; vectors of a replaced index with a lower precision are not used again.
        overwrite: whether an existing index may be replaced.
        remote: the server that stores candidates and vectors, such as ``http://HOST:PORT/NAME`` of Milvus; the folder
            then only names it. See docs/remote.md.
        partition_by: of a remote index, see ``write_index``.
        progress: called with the number of distinct texts encoded so far, and their total.

    Returns:
        How many texts were encoded.

    Raises:
        DataError: names faulty candidates by position, mostly before anything is encoded.
        UsageError: the path exists, a library is missing, or the encoder has no name; before anything is encoded.
        ResourceError: the disk is full; an earlier index is intact.
        OfflineError: the server does not respond.
    """
    if isinstance(model, str | os.PathLike):
        model = load_ranking(os.fspath(model))
    model = as_scorer(model)
    encoder = encoder_of(model)
    if not (name := name or model.name):
        raise UsageError("the model was not loaded by a name, so the index could not load it again; give name=")
    candidates, n_long = with_counts(model, read_pool(candidates)), _n_long(encoder)
    stored = _known_vectors(path, encoder, precision) if overwrite else None
    n_left = Counter(candidate.text for candidate in candidates)  # how often each text still follows
    new = [text for text in n_left if stored is None or text not in stored]
    texts = [candidate.text for candidate in candidates]
    with closing(_vectors(texts, encoder, stored, n_left, new, progress)) as vectors:
        if not distributed.is_rank_zero():
            for _ in vectors:
                pass  # each process encodes its share of them
            return len(new)
        write_index(
            path,
            candidates,
            vectors,
            fingerprint=encoder.fingerprint,
            model=name,
            ann=ann,
            precision=precision,
            remote=remote,
            partition_by=partition_by,
            overwrite=overwrite,
        )
    if _n_long(encoder) > n_long:
        log.warning(LONG, path)
    return len(new)


def _n_long(encoder: Encoder) -> int:
    """How many candidates were too long for an encoder so far."""
    return sum(len(cut.candidates) for cut in encoder.cut)


def _vectors(
    texts: Sequence[str],
    encoder: Encoder,
    stored: KnownVectors | None,
    n_left: Counter[str],
    new: Sequence[str],
    progress: Progress | None,
) -> Generator[NDArray[np.float32], None, None]:
    """Vectors of texts in their order, in parts; only vectors of texts that follow again are kept."""
    vector_of: dict[str, NDArray[np.float32]] = {}
    n_encoded = 0
    with closing(encoder.encode_lists(_parts_of_new(texts, new))) as encoded:
        for part, new_vectors in zip(_parts(texts), encoded, strict=True):
            first, n_encoded = n_encoded, n_encoded + len(new_vectors)
            vector_of.update(zip(new[first:n_encoded], new_vectors, strict=True))
            vectors = np.empty((len(part), encoder.dimension), np.float32)
            for row, text in enumerate(part):
                vectors[row] = vector_of[text] if text in vector_of or stored is None else stored[text]
                n_left[text] -= 1
                if not n_left[text]:
                    vector_of.pop(text, None)
            if progress and len(new_vectors):
                progress(n_encoded, len(new))
            yield vectors


def _parts_of_new(texts: Sequence[str], new: Sequence[str]) -> Iterator[Sequence[str]]:
    """For each part of texts, the new ones that occur in it first; ``new`` lists all by their first occurrence."""
    end = 0
    for part in _parts(texts):
        start = end
        for text in part:
            end += end < len(new) and text == new[end]
        yield new[start:end]


def add_to_index(
    writer: IndexWriter,
    model: Scorer,
    candidates: Sequence[Candidate],
    *,
    replace: bool = False,
    progress: Progress | None = None,
) -> int:
    """Encode candidates and add them: all of them or, with an error, none.

    Args:
        writer: of the index.
        model: the encoder or ranker that made the index.
        candidates: with distinct ids and texts that are not empty; candidates that the index already holds unchanged
            are skipped. A replaced candidate with the same text keeps its vector.
        replace: whether candidates of the same ids are replaced; otherwise they are an error.
        progress: called with the number of distinct texts encoded so far, and their total.

    Returns:
        How many were added or replaced.

    Raises:
        ArtifactError: the index was made by another encoder.
        DataError: names faulty candidates by position.
        ResourceError: the disk is full or failing; nothing was added.
    """
    encoder = encoder_of(model)
    check_fingerprint(writer.fingerprint, encoder.fingerprint, writer.path)
    check_candidates(candidates)
    there = writer.find([candidate.id for candidate in candidates])
    candidates, n_long = with_counts(model, candidates, there), _n_long(encoder)
    new = [candidate for candidate in candidates if not candidate.is_same(there.get(candidate.id))]
    same_text = [c for c in new if c.id in there and there[c.id].text == c.text] if replace else []
    vectors = _stored_vectors(writer, same_text)
    missing = [text for text in dict.fromkeys(c.text for c in new) if text not in vectors]
    parts, n_encoded = [*_parts(missing)] if missing else [], 0
    with closing(encoder.encode_lists(parts)) as encoded:
        for part, of_part in zip(parts, encoded, strict=True):
            vectors.update(zip(part, of_part, strict=True))
            n_encoded += len(part)
            if progress:
                progress(n_encoded, len(missing))
    writer.add(new, [vectors[c.text] for c in new], replace=replace)
    if _n_long(encoder) > n_long:
        log.warning(LONG, writer.path)
    return len(new)


def with_counts(
    model: Scorer, candidates: Sequence[Candidate], there: Mapping[str, Candidate] = MappingProxyType({})
) -> list[Candidate]:
    """Candidates with the metadata field ``count`` where they lack it and a ranker counts replies.

    Args:
        model: any scorer; without a term ``counts`` nothing changes.
        candidates: to complete.
        there: those of the index by id. One with the same text keeps its count.
    """
    counts = next((weighed.term for weighed in getattr(model, "terms", ()) if isinstance(weighed.term, Counts)), None)
    if counts is None:
        return list(candidates)
    numbers = counts.of_texts([candidate.text for candidate in candidates]).tolist()
    completed = []
    for candidate, number in zip(candidates, numbers, strict=True):
        earlier = there.get(candidate.id)
        kept = earlier.metadata.get(COUNT_FIELD) if earlier is not None and earlier.text == candidate.text else None
        count = number or None if kept is None else kept
        if COUNT_FIELD not in candidate.metadata and count is not None:
            candidate = replace(candidate, metadata={**candidate.metadata, COUNT_FIELD: count})
        completed.append(candidate)
    return completed


def update_counts(
    path: AnyPath, counts: Mapping[str, int], taken: Mapping[str, int] = MappingProxyType({}), *, wait_s: float = 0.0
) -> int:
    """Set the metadata field ``count`` of an index's candidates; their vectors stay, and no model is loaded.

    A candidate's new count is ``counts[text] + taken[id]``, where a missing value is 0. Candidates that are in neither
    keep their count.

    Args:
        path: the index folder.
        counts: how often each text was said.
        taken: how often users sent each candidate, by id, see ``polyrank.feedback.count_taken``.
        wait_s: seconds to wait while another process changes the index.

    Returns:
        How many candidates have another count now.

    Raises:
        LockedError: another process is changing the index.
        ResourceError: the disk is full or failing; the changes written so far stay.
    """
    with open_writer(path, wait_s=wait_s) as writer, open_catalogue(path) as index:
        changed = []
        for _, candidate in index.iter_candidates():
            count = counts.get(candidate.text, 0) + taken.get(candidate.id, 0)
            counted = replace(candidate, metadata={**candidate.metadata, COUNT_FIELD: count})
            if (candidate.text in counts or candidate.id in taken) and not counted.is_same(candidate):
                changed.append(counted)
        for start in range(0, len(changed), ROWS_AT_A_TIME):
            part = changed[start : start + ROWS_AT_A_TIME]
            vectors = index.vectors([candidate.id for candidate in part])
            writer.add(part, [vectors[candidate.id] for candidate in part], replace=True)
    return len(changed)


def _stored_vectors(writer: IndexWriter, candidates: Sequence[Candidate]) -> dict[str, NDArray[np.float32]]:
    """Vectors that the index holds, by text."""
    if not candidates:
        return {}
    with open_catalogue(writer.path) as index:
        stored = index.vectors([candidate.id for candidate in candidates])
    return {candidate.text: stored[candidate.id] for candidate in candidates}


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts in parts to encode together, at least one."""
    for start in range(0, max(len(texts), 1), TEXTS_AT_A_TIME):
        yield texts[start : start + TEXTS_AT_A_TIME]


def _known_vectors(path: AnyPath, encoder: Encoder, precision: Precision) -> KnownVectors | None:
    """Vectors of an earlier index of the same encoder; None if it is damaged or has a lower precision."""
    try:
        with LocalIndex(path) as index:
            check_fingerprint(index.fingerprint, encoder.fingerprint, index.path)
            return KnownVectors(index) if index.precision in ("fp32", precision) else None
    except ArtifactError:
        return None
