"""Learning ConveRT's vocabulary from a corpus, by the rule of the subwords of Tensor2Tensor.

Words are counted once; everything after works on distinct words. Then, four times:

1. Every word is cut by the vocabulary so far (at first: into characters).
2. Each piece's start starts candidates: every stretch of the word from there on, up to the word's marked end. A
   candidate's count is how often it is met. At most 20 characters, at most 4 digits in a row.
3. From the longest down: a candidate counted at least ``min_count`` times is kept, and its count is taken from all of
   its prefixes, for where it is found greedy segmentation will not use them.
4. Every character seen at least ``min_count`` times is kept whatever step 3 left of it, so that the buckets are for
   characters that are rare.

A candidate cannot be frequent when its prefix is not, so candidates are counted length by length and only frequent
ones are extended: memory holds the distinct words and the candidates of one length, not all stretches of all words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from polyrank.errors import ConfigError
from polyrank.text.convert_subwords import END, ConvertSubwords, longest_prefixes, split_words

MAX_CHARACTERS = 20
MAX_DIGITS = 4
N_ROUNDS = 4
MAX_WORDS = 3_000_000

_REFUSED = re.compile(rf"\d{{{MAX_DIGITS + 1}}}|[\ud800-\udfff]")  # long numbers, halves of surrogate pairs


def learn_subwords(
    texts: Iterable[str], *, min_count: int = 250, size: int | None = None, n_buckets: int = 1000
) -> ConvertSubwords:
    """A vocabulary for ``texts``; the same texts in the same order give the same vocabulary on every machine.

    Args:
        texts: the corpus; read once.
        min_count: a subword is kept when it is seen at least so often.
        size: learn so many subwords instead: a ``min_count`` that gives slightly more is searched, then the least
            frequent are dropped. Fewer come out of a corpus that has no more.
        n_buckets: ids for unknown characters.

    Raises:
        ConfigError: a number is out of range, or the corpus has no word that is frequent enough.

    Source: Henderson et al., ConveRT (2020), section 2.1 and footnote 4; Vaswani et al., Tensor2Tensor (2018).

    >>> learn_subwords(["low lower lowest"] * 3, min_count=6).subwords  # "low" is left with 3 once "lowe" has its 6
    ('lowe', 'l', 'o', 'w', 'e')
    """
    if min_count < 1 or (size is not None and size < 1):
        name, value = ("text.min_count", min_count) if min_count < 1 else ("text.vocabulary_size", size)
        raise ConfigError(f"{name} = {value} is below 1; give at least 1")
    words = count_words(texts)
    counts = _sized(words, size) if size is not None else _learn(words, min_count)
    if not counts:
        raise ConfigError(
            f"no character is seen text.min_count = {min_count} times in the {sum(words.values()):,} words of the"
            " corpus; lower text.min_count"
        )
    ordered = sorted(counts, key=lambda subword: (len(subword) == 1, -counts[subword], subword))
    return ConvertSubwords(ordered, n_buckets)


def count_words(texts: Iterable[str], max_words: int = MAX_WORDS) -> Counter[str]:
    """How often each word is met. Of more than ``max_words`` distinct ones, and half as many again, those met least
    are forgotten, so memory is flat.

    >>> sorted(count_words(["a b a", "c b"], max_words=2).items())  # c made three: what was met once went
    [('a', 2), ('b', 2)]
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text.lower().split())  # as it stands between white space; taken apart once each, below
        if len(counts) > max_words + max_words // 2:  # room for new words to come again, and between two looks at all
            forget_rare(counts, max_words)
    words: Counter[str] = Counter()
    while counts:
        stretch, count = counts.popitem()
        for word in split_words(stretch):
            words[word] += count
    forget_rare(words, max_words)
    return words


def forget_rare(counts: Counter[str], limit: int) -> None:
    """Drop the words met least until there are at most ``limit``."""
    rare = 0
    while len(counts) > limit:
        rare += 1
        for word in [word for word, count in counts.items() if count <= rare]:
            del counts[word]


def _sized(words: Mapping[str, int], size: int) -> dict[str, int]:
    """The ``size`` most frequent of slightly more subwords, by a search for the ``min_count`` that gives them."""
    by_count = sorted(words.values(), reverse=True)
    low, high = 1, max(by_count, default=1)
    guess = by_count[min(size, len(by_count)) - 1] if by_count else 1
    best: dict[str, int] | None = None
    while best is None or (low < high and len(best) > 1.02 * size):
        guess = min(max(guess, low), high)
        vocabulary = _learn(words, guess)
        if len(vocabulary) >= size or guess == 1:
            best, low = vocabulary, guess + 1
        else:
            high = max(guess - 1, 1)
        # the number of subwords falls about as fast as min_count rises; the corner cases fall to the middle
        likely = round(guess * len(vocabulary) / (1.01 * size))
        guess = likely if low <= likely <= high else (low + high) // 2
    # characters stay: a word that falls apart into them still has no bucket
    order = sorted(best, key=lambda subword: (len(subword) > 1, -best[subword], subword))
    return {subword: best[subword] for subword in order[:size]}


def _learn(words: Mapping[str, int], min_count: int) -> dict[str, int]:
    """Subwords with their counts."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    alphabet = {c: n for c, n in characters.items() if n >= min_count and _allowed(c)}
    vocabulary = dict(alphabet)
    for _ in range(N_ROUNDS):
        kept = _kept(_candidates(words, vocabulary, min_count), min_count)
        kept = {**kept, **{c: max(n, kept.get(c, 0)) for c, n in alphabet.items()}}
        if kept.keys() == vocabulary.keys():
            break
        vocabulary = kept
    return vocabulary


def _candidates(words: Mapping[str, int], vocabulary: Mapping[str, int], min_count: int) -> list[dict[str, int]]:
    """The frequent candidates of each length, with their counts."""
    longest = max(map(len, vocabulary), default=1)
    alive: list[tuple[str, int, list[int]]] = []
    for word, count in words.items():
        starts, start = [], 0
        for piece in longest_prefixes(word + END, vocabulary, longest):
            starts.append(start)
            start += len(piece)
        alive.append((word + END, count, starts))
    levels: list[dict[str, int]] = []
    for length in range(1, MAX_CHARACTERS + len(END) + 1):
        counts: defaultdict[str, int] = defaultdict(int)
        for marked, count, starts in alive:
            for start in starts:
                counts[marked[start : start + length]] += count
        frequent = {text: n for text, n in counts.items() if n >= min_count and _allowed(text)}
        levels.append(frequent)
        extended = []
        for marked, count, starts in alive:
            last = len(marked) - length - 1  # further right the word has ended
            going_on = [start for start in starts if start <= last and marked[start : start + length] in frequent]
            if going_on:
                extended.append((marked, count, going_on))
        alive = extended
    return levels


def _allowed(text: str) -> bool:
    return len(text.rstrip(END)) <= MAX_CHARACTERS and _REFUSED.search(text) is None


def _kept(levels: list[dict[str, int]], min_count: int) -> dict[str, int]:
    """Longest first: keep what is still frequent, and take its count from its prefixes."""
    kept: dict[str, int] = {}
    for level in range(len(levels) - 1, -1, -1):
        for text, count in levels[level].items():
            if count < min_count:
                continue
            kept[text] = count
            for length in range(1, level + 1):
                # a prefix of a frequent candidate is frequent, hence counted
                levels[length - 1][text[:length]] -= count
    return kept
