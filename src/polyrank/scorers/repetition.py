"""A re-ranker that compares wordings: it corrects an encoder's scores of replies that repeat the conversation."""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polyrank.data.same_words import same_words
from polyrank.errors import ArtifactError, UsageError
from polyrank.loading.folders import REPETITION
from polyrank.loading.models import portable_name
from polyrank.records import ContextLike
from polyrank.scorers.inputs import matched_lists
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.scorers.two_stage import join
from polyrank.storage.document import read_document, seal
from polyrank.storage.durable import check_replaceable, new_folder
from polyrank.text.cut import Cut


class Repetition(Scorer):
    """``score = w overlap(c, r) - p echo(c, r)``, which a second stage adds to an encoder's score.

    ``echo`` is 1 if the reply repeats a turn in the same words, else 0. ``overlap`` compares the reply's words B with
    those of each turn, A: it is the greatest ``|A & B| / |A | B|`` (Jaccard). Case, punctuation and background texts do
    not count.

    An encoder reads each side alone, so it cannot tell a reply that fits a turn from a reply that is the turn: both are
    near it. People rarely repeat a turn, but take up its words.

    With another re-ranker, both are one second stage: ``score = w overlap(c, r) - p echo(c, r) + v s(c, r)``.

    Args:
        penalty: p, in units of the encoder's scores; below 0, repeating a turn is a reason for a reply.
        overlap: w, in the same units.
        corrects: the fingerprint of the encoder.
        reranker: scores s; None: there is none.
        weight: v.

    Raises:
        UsageError: a number is not finite.

    Source: See et al., What makes a good conversation? How controllable attributes affect human judgments (NAACL 2019),
        sections 4.2 and 5.1, whose decoding adds weighted features of repetition to a model's scores,
        https://arxiv.org/abs/1902.08654.

    >>> stage = Repetition(penalty=5.0, overlap=2.0)
    >>> stage.score([["hi", "My wifi is down."]], [["my wifi is down", "is it down?", "yes"]])[0]  # 2 - 5; 2 * 2 / 5; 0
    array([-3. ,  0.8,  0. ], dtype=float32)
    """

    def __init__(
        self,
        *,
        penalty: float,
        overlap: float,
        corrects: str = "",
        reranker: Scorer | None = None,
        weight: float = 1.0,
    ) -> None:
        for name, value in (("penalty", penalty), ("overlap", overlap), ("weight", weight)):
            if not math.isfinite(value):
                raise UsageError(f"{name} = {value} of a repetition; give a finite number")
        self.penalty, self.overlap, self.corrects = float(penalty), float(overlap), corrects
        self.reranker, self.weight = reranker, float(weight)
        terms = [f"repetition {corrects} {self.penalty.hex()} {self.overlap.hex()}"]
        if reranker is not None:
            terms.append(f"{self.weight.hex()} {reranker.fingerprint}")
        self.fingerprint = hashlib.sha256(" + ".join(terms).encode()).hexdigest()

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        own = [
            np.array(
                [self._score({_wording(turn) for turn in query.turns}, _wording(text)) for text in texts], np.float32
            )
            for query, texts in zip(queries, lists, strict=True)
        ]
        if self.reranker is None:
            return own
        more = self.reranker.score(queries, lists)
        return [each + np.float32(self.weight) * s for each, s in zip(own, more, strict=True)]

    def follow(self, first_stage: Scorer) -> None:
        """Let the other re-ranker take what the first stage computes; see ``join``."""
        if self.reranker is not None:
            join(first_stage, self.reranker)

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the other re-ranker reads; None if there is none."""
        return None if self.reranker is None else self.reranker.n_context_tokens(context)

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts that the other re-ranker truncated."""
        return () if self.reranker is None else self.reranker.cut

    def _score(self, turns: "set[_Wording]", reply: "_Wording") -> float:
        overlap = max((len(words & reply[1]) / len(words | reply[1]) for _, words in turns if words), default=0.0)
        return self.overlap * overlap - self.penalty * (reply in turns)


_Wording = tuple[str, frozenset[str]]


@lru_cache(maxsize=100_000)  # lists and shortlists share candidates
def _wording(text: str) -> _Wording:
    """The words of a text in order, and their set; see ``same_words``."""
    plain = same_words(text)
    return plain, frozenset(plain.split())


def check_repetition_path(path: Path, *, replace: bool) -> None:
    """Refuse a path that the re-ranker must not be written to, before any work."""
    check_replaceable(path, own_files=(REPETITION.file,), replace=replace)


def save_repetition(
    path: Path, stage: Repetition, *, encoder: str, metadata: dict[str, Any] | None = None, replace: bool = False
) -> None:
    """Write repetition.json: the numbers, the encoder whose scores they correct, and the other re-ranker.

    Args:
        path: the folder to make.
        stage: that corrects an encoder.
        encoder: its name, for messages.
        metadata: figures of the fit.
        replace: whether an earlier folder of this kind may be replaced.

    Raises:
        UsageError: the path exists, the stage corrects no encoder, or the other re-ranker was not loaded by its name.
        ResourceError: the disk is full.
    """
    if not stage.corrects:
        raise UsageError(f"{encoder} has no fingerprint, so its scores cannot be corrected; load it by its name")
    other = stage.reranker
    if other is not None and not (other.name and other.fingerprint):
        raise UsageError("the other re-ranker has no name or no fingerprint; load it from its folder")
    document = {
        "encoder": portable_name(encoder, path),
        "corrects": stage.corrects,
        "penalty": stage.penalty,
        "overlap": stage.overlap,
        "fingerprint": stage.fingerprint,
        "metadata": metadata or {},
    }
    if other is not None:
        part = {"model": portable_name(other.name, path), "fingerprint": other.fingerprint, "weight": stage.weight}
        document["reranker"] = part
    with new_folder(path, replace=replace) as folder:
        (folder / REPETITION.file).write_bytes(seal(document, REPETITION))


def load_repetition(path: Path, reranker: Scorer | None = None) -> Repetition:
    """Read the folder of a re-ranker.

    Args:
        path: the folder.
        reranker: the other one that the folder names, if it names one.

    Raises:
        ArtifactError: the folder is damaged, or the other re-ranker has changed since.
        UsageError: the folder names another re-ranker, and it is not given.
    """
    document = read_document(path, REPETITION)
    part = document.get("reranker", {})
    if part and reranker is None:
        raise UsageError(f"{path} needs the re-ranker {part['model']}; open the folder with polyrank.load")
    if reranker is not None and reranker.fingerprint != part["fingerprint"]:
        raise ArtifactError(
            f"{path} was made with re-ranker {part['fingerprint'][:12]}, {reranker.name} is"
            f" {reranker.fingerprint[:12]}; {REPETITION.remedy}"
        )
    return Repetition(
        penalty=document["penalty"],
        overlap=document["overlap"],
        corrects=document["corrects"],
        reranker=reranker,
        weight=part.get("weight", 1.0),
    )
