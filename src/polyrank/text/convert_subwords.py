"""ConveRT's subwords: greedy segmentation of words into the longest known prefixes; unknown characters are hashed.

Ids: the subwords of the vocabulary come first, then the buckets of unknown characters. ``boundary_id`` is the next id:
it separates the immediate context from the earlier turns and has no embedding. This module segments texts, and reads
and writes vocabulary files; ``convert_vocabulary`` learns vocabularies.
"""

import json
import re
import unicodedata
import zlib
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path

from polyrank.errors import ArtifactError, ConfigError
from polyrank.remembered import Remembered
from polyrank.storage.document import check_format
from polyrank.unicode import normal_form

END = " "
"""Marks the end of a word inside a subword ("hello "). Words have no white space, so it needs no escaping."""

FORMAT = 1
LONGEST_WORD = 100  # characters of a word that is kept

# runs of letters and digits, or runs of other visible characters
_WORD = re.compile(r"[^\W_]+|(?:[^\w\s]|_)+")


def split_words(lower: str) -> list[str]:
    """The words of a lower-case text: runs of letters and digits, and runs of punctuation.

    The text is normalized to NFC. Marks that remain separate characters, as in Devanagari, count as punctuation.

    >>> split_words("don't panic... ok_1")
    ['don', "'", 't', 'panic', '...', 'ok', '_', '1']
    """
    return _WORD.findall(normal_form("NFC", lower))


def _aligned(chunk: str) -> tuple[str, Sequence[tuple[int, int]]]:
    """The NFC form of text without white space, and the original characters of each of its characters."""
    whole = normal_form("NFC", chunk)
    if whole == chunk:
        return whole, [(i, i + 1) for i in range(len(chunk))]
    starts = [i for i, character in enumerate(chunk) if not i or not unicodedata.combining(character)]
    bounds = list(pairwise((*starts, len(chunk))))
    parts = [normal_form("NFC", chunk[start:end]) for start, end in bounds]
    if "".join(parts) == whole:  # false only for scripts that compose letters, such as Hangul
        return whole, [span for part, span in zip(parts, bounds, strict=True) for _ in part]
    return whole, [(0, len(chunk))] * len(whole)


def longest_prefixes(marked: str, vocabulary: Collection[str], longest: int) -> Iterator[str]:
    """Segment a word into pieces: always the longest known prefix, or else one unknown character.

    The end mark is part of the last piece if that is known; otherwise it is dropped.

    Args:
        marked: a word followed by ``END``.
        vocabulary: the known subwords.
        longest: number of characters of the longest subword.

    >>> list(longest_prefixes("nowhere ", {"no", "now", "where ", "e"}, 6))
    ['now', 'h', 'e', 'r', 'e']
    """
    start, stop = 0, len(marked) - 1  # the mark alone is not a piece
    while start < stop:
        for end in range(min(start + longest, stop + 1), start + 1, -1):
            if marked[start:end] in vocabulary:
                break
        else:
            end = start + 1
        yield marked[start:end]
        start = end


class ConvertSubwords:
    """Text to ids with a vocabulary and hashed buckets.

    Args:
        subwords: the vocabulary; the position of a subword is its id.
        n_buckets: number of ids for characters outside the vocabulary.

    Raises:
        ConfigError: a subword is empty or repeated, or ``n_buckets`` is below 1.

    Source: Henderson et al., ConveRT (2020), section 2.1.

    >>> own = ConvertSubwords(["hello ", "wor", "ld "], n_buckets=1)
    >>> own.encode("Hello world"), own.encode("word")  # the d of "word" is unknown: bucket 0, id 3
    ((0, 1, 2), (1, 3))
    """

    pad_id = 0  # always masked, so it may share an embedding

    def __init__(self, subwords: Sequence[str], n_buckets: int = 1000) -> None:
        if n_buckets < 1:
            raise ConfigError(f"text.n_buckets = {n_buckets} is below 1; give at least 1 for unknown characters")
        self.subwords, self.n_buckets = tuple(subwords), n_buckets
        self._ids = {subword: i for i, subword in enumerate(self.subwords)}
        if len(self._ids) < len(self.subwords) or any(not subword.strip() for subword in self.subwords):
            raise ConfigError("a vocabulary holds an empty or a repeated subword; give each subword once")
        self._longest = max(map(len, self.subwords), default=1)
        self._words, self._chunks = (Remembered(split, LONGEST_WORD) for split in (self._word, self._chunk))
        # every turn of a dialogue is part of all later contexts
        self._encode = Remembered(self._encode_now)

    def __len__(self) -> int:
        """Number of rows of the embedding table: subwords and buckets."""
        return len(self.subwords) + self.n_buckets

    @property
    def boundary_id(self) -> int:
        """Separates the immediate context from the earlier turns; has no row in the embedding table."""
        return len(self)

    def bucket(self, character: str) -> int:
        """The id of an unknown character: the CRC-32 of its UTF-8 bytes, the same on every machine."""
        return len(self.subwords) + zlib.crc32(character.encode("utf-8", "surrogatepass")) % self.n_buckets

    def _word(self, word: str) -> tuple[int, ...]:
        ids = self._ids
        pieces = longest_prefixes(word + END, ids, self._longest)
        return tuple(ids[piece] if piece in ids else self.bucket(piece) for piece in pieces)

    def _chunk(self, chunk: str) -> tuple[int, ...]:
        """The ids of lower-case text without white space, such as "can't?"."""
        return tuple(chain.from_iterable(map(self._words.__getitem__, split_words(chunk))))

    def _encode_now(self, text: str) -> tuple[int, ...]:
        # white space always ends a word, so the text between is cached as a whole; an explicit loop would be three
        # times slower
        return tuple(chain.from_iterable(map(self._chunks.__getitem__, text.lower().split())))

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text; empty if the text has no visible character."""
        return self._encode[text]

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """The same ids, each with the start and the end of its characters in the text.

        >>> ConvertSubwords(["hello ", "wor", "ld "]).encode_spans("Hello world")
        [(0, 0, 5), (1, 6, 9), (2, 9, 11)]
        """
        lower = text.lower()
        origins = [i for i, letter in enumerate(text) for _ in letter.lower()]  # lower case may be two characters
        spans, position = [], 0
        for chunk in lower.split():
            position = lower.index(chunk, position)
            normal, sources = _aligned(chunk)
            for word in _WORD.finditer(normal):
                at = word.start()
                for piece in longest_prefixes(word[0] + END, self._ids, self._longest):
                    end = min(at + len(piece), word.end())  # without the end mark
                    first, last = position + sources[at][0], position + sources[end - 1][1] - 1
                    token = self._ids[piece] if piece in self._ids else self.bucket(piece)
                    spans.append((token, origins[first], origins[last] + 1))
                    at = end
            position += len(chunk)
        return spans

    def to_bytes(self) -> bytes:
        """The vocabulary as a JSON file; the same vocabulary gives the same bytes."""
        document = {"convert_subwords": FORMAT, "n_buckets": self.n_buckets, "subwords": self.subwords}
        return json.dumps(document, separators=(",", ":")).encode()


def read_convert_subwords(data: bytes, where: str) -> ConvertSubwords:
    """The inverse of ``ConvertSubwords.to_bytes``; ``where`` is the file, for errors.

    Raises:
        ArtifactError: the bytes are not a vocabulary file, or have a newer format.
    """
    try:
        document = json.loads(data)
        check_format(where, {"format": document["convert_subwords"]}, FORMAT, "learn it again")
        subwords, n_buckets = document["subwords"], document["n_buckets"]
        if type(n_buckets) is not int or not all(isinstance(subword, str) for subword in subwords):
            raise ValueError("a subword is not a string or n_buckets is not an integer")
        return ConvertSubwords(subwords, n_buckets)
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        raise ArtifactError(f"{where} is not a ConveRT vocabulary of polyrank ({error}); restore the file") from error


def load_convert_subwords(path: Path) -> ConvertSubwords:
    """Load a vocabulary file.

    Raises:
        ConfigError: the file cannot be read.
        ArtifactError: the file is damaged or not a vocabulary.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the vocabulary {path} ({error.strerror}); leave text.vocabulary out to learn one from data"
        ) from error
    return read_convert_subwords(data, str(path))
