"""A re-ranker that compares words: it corrects an encoder's scores by the words that replies share with the context."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from polyrank.data.same_words import same_words
from polyrank.errors import UsageError
from polyrank.loading.folders import REPETITION
from polyrank.loading.models import portable_name
from polyrank.records import Context, ContextLike
from polyrank.scorers.inputs import matched_lists
from polyrank.scorers.parts import check_not_itself, check_part
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.storage.document import read_document, seal
from polyrank.storage.durable import new_folder
from polyrank.text.cut import Cut

if TYPE_CHECKING:  # comparing words needs no torch
    from polyrank.scorers.network import NetworkScorer

NUMBERS = ("penalty", "overlap", "match", "earlier")
"""The numbers p, w, m and e of a Repetition."""

LARGEST = 1e6
"""The largest number; with larger ones, the encoder's scores would be lost to rounding."""

N_WORDS = 100
"""Words of a reply that count; encoders read about as many."""

RAREST = math.log(7000)
"""The greatest rarity, that of a word in one of 7,000 texts: rarer words would decide alone."""


@dataclass(frozen=True, slots=True)
class Words:
    """How many texts have a word; see ``same_words``.

    Args:
        n_texts: the number N of texts.
        counts: n of the words that are in more than one text and not among the rarest.

    >>> words = Words.of(["yes", "yes please", "the wifi is down", "Is it?"])
    >>> round(words.rarity("is"), 4), round(words.rarity("wifi"), 4)  # log(4 / 2) and log(4 / 1)
    (0.6931, 1.3863)
    """

    n_texts: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        """Count the words of distinct texts."""
        distinct = dict.fromkeys(texts)
        counts = Counter(word for text in distinct for word in _wording(text)[1])
        least = max(1.0, len(distinct) / math.exp(RAREST))
        return cls(len(distinct), {word: n for word, n in sorted(counts.items()) if n > least})

    def rarity(self, word: str) -> float:
        """``log(N / n)``, at most ``RAREST``; a word that was not counted is in one text."""
        return min(math.log(max(self.n_texts, 1) / self.counts.get(word, 1)), RAREST)


class Repetition(Scorer):
    """``score = m match(c, r) + e earlier(c, r) + w overlap(c, r) - p echo(c, r)``, added to an encoder's score.

    ``match`` is the sum of the rarities of the words that the reply shares with the newest turn or the background, and
    ``earlier`` that of the other words it shares with the turns before. ``echo`` is 1 if the reply repeats a turn in
    the same words, else 0. ``overlap`` compares the reply's words B with those of each turn, A: it is the greatest
    ``|A & B| / |A | B|`` (Jaccard). Case and punctuation do not count.

    An encoder reads each side alone. So it cannot tell a reply that fits a turn from a reply that is the turn: both are
    near it. On texts unlike those it was trained on, its vectors hardly distinguish rare words.

    With another re-ranker, both are one second stage, with ``v s(c, r)`` as one more term.

    Args:
        penalty: p, in units of the encoder's scores; below 0, repeating a turn is a reason for a reply.
        overlap: w, in the same units.
        match: m, the same per unit of rarity.
        earlier: e, likewise.
        words: from which rarities are computed; needed unless m and e are 0.
        corrects: the fingerprint of the encoder.
        reranker: scores s; None: there is none.
        weight: v.

    Raises:
        UsageError: a number is too large, or ``words`` are missing.

    Source: See et al., What makes a good conversation? How controllable attributes affect human judgments (NAACL 2019),
        sections 4.2 and 5.1, whose decoding adds weighted features of repetition to a model's scores,
        https://arxiv.org/abs/1902.08654; Sparck Jones, A statistical interpretation of term specificity and its
        application in retrieval (1972), for the rarity.

    >>> stage = Repetition(penalty=5.0, overlap=2.0)
    >>> stage.score([["hi", "My wifi is down."]], [["my wifi is down", "is it down?", "yes"]])[0]  # 2 - 5; 2 * 2 / 5; 0
    array([-3. ,  0.8,  0. ], dtype=float32)
    >>> stage = Repetition(match=1.0, earlier=-1.0, words=Words.of(["yes", "the wifi", "the light"]))
    >>> stage.score([["my wifi", "the light?"]], [["light", "the wifi"]])[0].round(3)  # log 3; log(3 / 2) - log 3
    array([ 1.099, -0.693], dtype=float32)
    """

    def __init__(
        self,
        *,
        penalty: float = 0.0,
        overlap: float = 0.0,
        match: float = 0.0,
        earlier: float = 0.0,
        words: Words | None = None,
        corrects: str = "",
        reranker: Scorer | None = None,
        weight: float = 1.0,
    ) -> None:
        self.penalty, self.overlap, self.match, self.earlier = map(float, (penalty, overlap, match, earlier))
        if (match or earlier) and words is None:
            raise UsageError("match and earlier need the words whose rarities they sum; give some")
        for name, value in (*self.numbers.items(), ("weight", weight)):
            if not abs(value) <= LARGEST:
                raise UsageError(
                    f"{name} = {value} of a repetition; give a number between -{LARGEST:g} and {LARGEST:g}"
                )
        self.words, self.corrects = words if match or earlier else None, corrects
        self.reranker, self.weight = reranker, float(weight)
        terms = [" ".join(["repetition", corrects, *(value.hex() for value in self.numbers.values())])]
        if self.words is not None:
            terms.append(json.dumps([self.words.n_texts, dict(self.words.counts)]))
        if reranker is not None:
            terms.append(f"{self.weight.hex()} {reranker.fingerprint}")
        self.fingerprint = hashlib.sha256(" + ".join(terms).encode()).hexdigest()

    @property
    def numbers(self) -> dict[str, float]:
        """Those of ``NUMBERS`` by name; p and w alone if m and e are 0."""
        return {name: getattr(self, name) for name in (NUMBERS if self.match or self.earlier else NUMBERS[:2])}

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        own = [self._compared(query, texts) for query, texts in zip(queries, lists, strict=True)]
        if self.reranker is None:
            return own
        more = self.reranker.score(queries, lists)
        return [each + np.float32(self.weight) * s for each, s in zip(own, more, strict=True)]

    def follow(self, first_stage: Scorer) -> None:
        """Let the other re-ranker take what the first stage computes; see ``Scorer``."""
        if self.reranker is not None:
            self.reranker.follow(first_stage)

    def n_context_tokens(self, context: ContextLike) -> int | None:
        """How many tokens of a context the other re-ranker reads; None if there is none."""
        return None if self.reranker is None else self.reranker.n_context_tokens(context)

    @property
    def networks(self) -> "tuple[NetworkScorer[Any], ...]":
        """Those of the other re-ranker."""
        return () if self.reranker is None else self.reranker.networks

    @property
    def cut(self) -> tuple[Cut, ...]:
        """The texts that the other re-ranker truncated."""
        return () if self.reranker is None else self.reranker.cut

    def _compared(self, query: Context, texts: Sequence[str]) -> Floats:
        """The scores of comparing words."""
        turns = [_wording(turn) for turn in query.turns]
        newest = frozenset[str]().union(*(words for _, words in (*turns[-1:], *map(_wording, query.background))))
        distinct = set(turns)
        before = frozenset[str]().union(*(words for _, words in turns[:-1])) - newest
        scores = np.empty(len(texts), np.float32)
        for row, text in enumerate(texts):
            wording = _wording(text)
            words = wording[1]
            overlap = max((len(own & words) / len(own | words) for _, own in distinct if own), default=0.0)
            score = self.overlap * overlap - self.penalty * (wording in distinct)
            if self.words is not None:
                known = _first_words(wording)
                score += self.match * self._rarity(known & newest)
                score += self.earlier * self._rarity(known & before)
            scores[row] = score
        return scores

    def _rarity(self, words: frozenset[str]) -> float:
        assert self.words is not None
        return math.fsum(map(self.words.rarity, words))


_Wording = tuple[str, frozenset[str]]


MAX_KEPT = 2000
"""Characters of a text whose words are kept, of up to 100,000 texts; those of longer ones are computed every time."""


def _wording(text: str) -> _Wording:
    """The words of a text in order, and their set; see ``same_words``."""
    return _kept_wording(text) if len(text) <= MAX_KEPT else _kept_wording.__wrapped__(text)


@lru_cache(maxsize=100_000)  # lists and shortlists share candidates
def _kept_wording(text: str) -> _Wording:
    plain = same_words(text)
    return plain, frozenset(plain.split())


def _first_words(wording: _Wording) -> frozenset[str]:
    """The words of a reply that are compared by their rarity."""
    plain, words = wording
    first = plain.split(maxsplit=N_WORDS)
    return words if len(first) <= N_WORDS else frozenset(first[:N_WORDS])


def save_repetition(
    path: Path, stage: Repetition, *, encoder: str, metadata: dict[str, Any] | None = None, replace: bool = False
) -> None:
    """Write repetition.json: the numbers and words, the encoder whose scores they correct, and the other re-ranker.

    Args:
        path: the folder to make.
        stage: that corrects an encoder.
        encoder: its name, for messages.
        metadata: figures of the fit.
        replace: whether an earlier folder of this kind may be replaced.

    Raises:
        UsageError: the path exists, or is that of the encoder or of the other re-ranker; the stage corrects no encoder;
            or the other re-ranker was not loaded by its name.
        ResourceError: the disk is full.
    """
    if not stage.corrects:
        raise UsageError(f"{encoder} has no fingerprint, so its scores cannot be corrected; load it by its name")
    other = stage.reranker
    if other is not None and not (other.name and other.fingerprint):
        raise UsageError("the other re-ranker has no name or no fingerprint; load it from its folder")
    check_not_itself(path, encoder, *([] if other is None else [other.name]))
    document = {
        "encoder": portable_name(encoder, path),
        "corrects": stage.corrects,
        **stage.numbers,
        "fingerprint": stage.fingerprint,
        "metadata": metadata or {},
    }
    if stage.words is not None:
        document["words"] = {"n_texts": stage.words.n_texts, "counts": dict(stage.words.counts)}
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
        UsageError: the folder names another re-ranker and none is given, or the reverse.
    """
    document = read_document(path, REPETITION)
    part = document.get("reranker", {})
    if bool(part) != (reranker is not None):
        needed = f"the re-ranker {part['model']}" if part else "no other re-ranker"
        raise UsageError(f"{path} needs {needed}; open the folder with polyrank.load")
    if reranker is not None:
        check_part(path, "re-ranker", reranker, part["fingerprint"], REPETITION.remedy)
    return Repetition(
        **{name: document.get(name, 0.0) for name in NUMBERS},
        words=Words(**document["words"]) if "words" in document else None,
        corrects=document["corrects"],
        reranker=reranker,
        weight=part.get("weight", 1.0),
    )
