"""Importers for other texts than conversations: article search on Wikipedia, and triplets."""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from polyrank.data import fields
from polyrank.data.read_report import Source, parsed
from polyrank.data.rows import numbered_lines, rows, stem, suffix
from polyrank.data.values import Row
from polyrank.records import Example


def wikipedia(source: Path, *, seed: int = 0, max_words: int | None = None) -> Source:
    """Import StarSpace's article search: find the article that contains a sentence.

    Each line is an article, its sentences separated by tabs. A random sentence is the context; the rest of the article
    is the right answer. An article of fewer than two sentences gives no example and is counted.

    Args:
        source: the text file; gzip if named ``.gz``.
        seed: the sentence is a function of (seed, line), independent of the rest of the file.
        max_words: keep the first words of the right answer, this many; None: all.
    """

    def example(line: int, text: str) -> Iterable[Example]:
        sentences = [stripped for sentence in text.split("\t") if (stripped := sentence.strip())]
        if len(sentences) < 2:
            return ()
        query = sentences.pop(int(np.random.Generator(np.random.PCG64([seed, line])).integers(len(sentences))))
        words = " ".join(sentences).split()[:max_words]
        return (Example((query,), (" ".join(words),), (0,), f"{stem(source)}:{line}"),)

    return parsed(source, partial(numbered_lines, source), example)


def triplets(source: Path) -> Source:
    """Import triplets of sentence-transformers: ``anchor``, ``positive`` and any number of negatives.

    The anchor may be called ``query``. Negatives are ``negative`` and ``negative_1``, ``negative_2``, ...; a row
    without negatives is a pair. Null negatives are ignored, and so are empty ones in CSV, which has no null; in other
    formats an empty negative is an empty text. The positive comes first and is relevant.

    Args:
        source: CSV, JSON lines (both also ``.gz``) or Parquet.
    """

    absent = (None, "") if suffix(source) == ".csv" else (None,)

    def example(line: int, row: Row) -> Iterable[Example]:
        anchor = fields.text(row, "query" if "query" in row and "anchor" not in row else "anchor")
        numbered = (name for name in row if re.fullmatch(r"negative_\d+", name))
        names = ("negative", *sorted(numbered, key=lambda name: int(name.removeprefix("negative_"))))
        negatives = (fields.text(row, name) for name in names if row.get(name) not in absent)
        candidates = (fields.text(row, "positive"), *negatives)
        return (Example((anchor,), candidates, (0,), fields.optional_id(row, f"{stem(source)}:{line}")),)

    return parsed(source, partial(rows, source), example)
