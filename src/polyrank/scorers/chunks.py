"""Long candidates in overlapping chunks, of which the best counts. A network alone would read only their start.

Chunks are paragraphs; a paragraph that exceeds the network's budget is split into sentences. Each is read alone, so an
answer in a long document has the score that it has by itself, and in runs that fill the budget, each of which starts
inside the one before.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from polyrank.records import Context, ContextLike
from polyrank.scorers.inputs import matched_lists
from polyrank.scorers.protocols import Encoder, Floats, Scorer

if TYPE_CHECKING:  # BM25 needs no torch
    from polyrank.text import Texts

MAX_CHUNKS = 200  # runs of one document
MOST_CLOSING = 8  # characters of punctuation at the end of a chunk; a text may hold nothing else
MAX_REMEMBERED = 20_000  # documents whose chunks are kept
SENTENCE = re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])")
PARAGRAPH = re.compile(r"\s*\n\s*")
Run = tuple[int, int]
"""The start and the end of some characters."""


class Chunked(Scorer):
    """A scorer that reads candidates to their end.

    A candidate that its networks would truncate counts as its best chunk, which the scorer's ``chooser`` selects.

    Args:
        scorer: any; one without networks reads whole texts anyway.
        max_chunks: runs of sentences of one candidate that are read; ``unread`` has the texts of which more is left.
    """

    def __init__(self, scorer: Scorer, max_chunks: int | None = None) -> None:
        self.scorer, self.parts, self.max_chunks = scorer, (scorer,), max_chunks or MAX_CHUNKS
        self.name, self.fingerprint, self.relevance = scorer.name, scorer.fingerprint, scorer.relevance
        self.unread: set[str] = set()
        self._networks = [(network.texts, isinstance(network, Encoder)) for network in scorer.networks]
        self._budget = min((chunk_tokens(texts) for texts, _ in self._networks), default=0)
        self._kept: dict[str, list[str]] = {}

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        return self.scorer.score(queries, [self._best(*row) for row in zip(queries, lists, strict=True)])

    def chunks(self, context: Context, text: str) -> list[str]:
        """The texts that are read of a candidate: itself, or its chunks."""
        if len(text.encode("utf-8", "surrogatepass")) <= self._budget:  # a token has at least one byte
            return [text]
        if not any(_is_cut(texts, context, text, alone) for texts, alone in self._networks):
            return [text]
        if text not in self._kept:
            texts = min((texts for texts, _ in self._networks), key=chunk_tokens)
            runs, alone = split(text, [span[1:] for span in texts.subwords.encode_spans(text)], self._budget)
            if len(self._kept) >= MAX_REMEMBERED:
                self._kept.clear()
                self.unread.clear()
            if len(runs) > self.max_chunks:
                self.unread.add(text)
                runs = runs[: self.max_chunks]
            read = [run for run in alone if run[1] <= runs[-1][1]]
            self._kept[text] = list(dict.fromkeys(text[start:end] for start, end in (*runs, *read)))
        return self._kept[text]

    def _best(self, context: Context, texts: Sequence[str]) -> list[str]:
        """The candidates, with the best chunk in place of each long one."""
        parts = {text: self.chunks(context, text) for text in dict.fromkeys(texts)} if self._networks else {}
        several = {text: chunks for text, chunks in parts.items() if chunks != [text]}
        flat = [chunk for chunks in several.values() for chunk in chunks]
        if not flat:
            return list(texts)
        (scores,) = self.scorer.chooser.score([context], [flat])
        ends = np.cumsum([0, *map(len, several.values())]).tolist()
        best = {
            text: chunks[int(scores[start:end].argmax())]
            for (text, chunks), (start, end) in zip(several.items(), pairwise(ends), strict=True)
        }
        return [best.get(text, text) for text in texts]


def chunk_tokens(texts: "Texts") -> int:
    """Tokens of a candidate's chunk that a network reads in any case, next to any context."""
    return max(min(texts.cut.max_candidate_tokens, texts.max_positions // 2) - len(texts.candidate_ids("")) - 4, 4)


def _is_cut(texts: "Texts", context: Context, text: str, alone: bool) -> bool:
    """Whether a network would truncate a candidate; this does not count as truncated."""
    before = texts.cut.candidates
    texts.cut.candidates = set()
    try:
        texts.candidate_ids(text) if alone else texts.pair_ids(context, text)
        return bool(texts.cut.candidates)
    finally:
        texts.cut.candidates = before


def split(text: str, tokens: Sequence[Run], budget: int) -> tuple[list[Run], list[Run]]:
    """Overlapping runs of paragraphs or sentences, and single ones, of at most ``budget`` tokens.

    Args:
        text: to split.
        tokens: the characters of each token.
        budget: at least 1; a longer sentence is split into overlapping parts.

    >>> text = "One two. Three four. Five six."
    >>> runs, alone = split(text, [match.span() for match in re.finditer(r"\\w+", text)], 4)
    >>> [text[a:b] for a, b in runs], [text[a:b] for a, b in alone]
    (['One two. Three four.', 'Three four. Five six.'], ['One two.', 'Three four.', 'Five six.'])
    """
    pieces: list[Sequence[Run]] = []  # the tokens of each paragraph, sentence, or part of a long sentence
    for paragraph in _between(PARAGRAPH, text, tokens):
        for sentence in [paragraph] if len(paragraph) <= budget else _between(SENTENCE, text, paragraph):
            step = max(budget // 2, 1)
            firsts = range(0, len(sentence) - budget + step, step) if len(sentence) > budget else range(1)
            pieces += [sentence[first : first + budget] for first in firsts]
    runs: list[Run] = []
    first = 0
    while first < len(pieces):
        n, last = len(pieces[first]), first + 1
        while last < len(pieces) and n + len(pieces[last]) <= budget:
            n, last = n + len(pieces[last]), last + 1
        runs.append((pieces[first][0][0], _closed(text, pieces[last - 1][-1][1])))
        if last == len(pieces):
            break
        n_left, first = 0, first + 1
        while first < last - 1 and n_left < n // 2:  # the next run starts in the second half of this one
            n_left, first = n_left + len(pieces[first - 1]), first + 1
    return runs, [(piece[0][0], _closed(text, piece[-1][1])) for piece in pieces]


def _between(breaks: re.Pattern[str], text: str, tokens: Sequence[Run]) -> list[Sequence[Run]]:
    """Tokens in groups, between which the text has a break."""
    starts = [match.end() for match in breaks.finditer(text)]
    places = [start for start, _ in tokens]
    firsts = [bisect_left(places, start) for start in starts]
    return [part for first, last in pairwise([0, *firsts, len(tokens)]) if (part := tokens[first:last])]


def _closed(text: str, end: int) -> int:
    """The end of some characters, with the punctuation that follows."""
    longest = min(len(text), end + MOST_CLOSING)
    while end < longest and not text[end].isalnum() and not text[end].isspace():
        end += 1
    return end
