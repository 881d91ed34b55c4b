"""An importer for other texts than conversations: article search on Wikipedia."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import numpy as np

from polyrank.data.lines import numbered_lines, stem
from polyrank.data.read_report import Source, parsed
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
