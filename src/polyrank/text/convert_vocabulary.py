"""Learn ConveRT's vocabulary from a corpus, with the subword algorithm of Tensor2Tensor.

Words are counted once, and the rest works on distinct words. Then, four times:

1. Segment every word with the current vocabulary (initially: into characters).
2. From the start of each piece, count every substring up to the marked end of the word as a candidate. A candidate has
   at most 20 characters, and at most 4 digits in a row.
3. From the longest candidate to the shortest: keep it if its count is at least ``min_count``, and subtract its count
   from those of its prefixes, because greedy segmentation will not use them there.
4. Keep every character that occurs at least ``min_count`` times, even if step 3 reduced its count, so that only rare
   characters share buckets.

A candidate is frequent only if its prefix is, so candidates are counted length by length and only frequent ones are
extended. Memory then holds the distinct words and the candidates of one length, not all substrings of all words.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

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
    """Learn a vocabulary; the same texts in the same order produce the same vocabulary on every machine.

    Args:
        texts: the corpus; read once.
        min_count: keep subwords that occur at least this often.
        size: number of subwords to learn; replaces ``min_count``. polyrank searches for a ``min_count`` that gives
            slightly more subwords, then drops the least frequent. A small corpus may give fewer.
        n_buckets: number of ids for unknown characters.

    Raises:
        ConfigError: a number is out of range, or no character of the corpus is frequent enough.

    Source: Henderson et al., ConveRT (2020), section 2.1 and footnote 4; Vaswani et al., Tensor2Tensor (2018).

    >>> learn_subwords(["low lower lowest"] * 3, min_count=6).subwords  # after "lowe" with 6, "low" only has 3
    ('lowe', 'l', 'o', 'w', 'e')
    """
    if min_count < 1 or (size is not None and size < 1):
        name, value = ("text.min_count", min_count) if min_count < 1 else ("text.vocabulary_size", size)
        raise ConfigError(f"{name} = {value} is below 1; give at least 1")
    words = count_words(texts)
    counts = _sized(words, size) if size is not None else _learn(words, min_count)
    if not counts:
        raise ConfigError(
            f"no character occurs text.min_count = {min_count} times in the {sum(words.values()):,} words of the"
            " corpus; lower text.min_count"
        )
    ordered = sorted(counts, key=lambda subword: (len(subword) == 1, -counts[subword], subword))
    return ConvertSubwords(ordered, n_buckets)


def count_words(texts: Iterable[str], max_words: int = MAX_WORDS) -> Counter[str]:
    """Count the words of a corpus; see ``count_pieces`` about ``max_words``.

    >>> sorted(count_words(["a b a", "c b"], max_words=2).items())  # three words are too many: c occurs once
    [('a', 2), ('b', 2)]
    """
    counts = count_pieces(texts, lambda text: text.lower().split(), max_words)  # each is split into words only once
    words: Counter[str] = Counter()
    while counts:
        chunk, count = counts.popitem()
        for word in split_words(chunk):
            words[word] += count
    forget_rare(words, max_words)
    return words


def count_pieces(texts: Iterable[str], split: Callable[[str], Iterable[str]], max_words: int) -> Counter[str]:
    """Count the pieces that ``split`` returns, in bounded memory.

    Whenever there are more than 1.5 * ``max_words`` distinct pieces, the rarest are dropped.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split(text))
        if len(counts) > max_words + max_words // 2:  # the margin gives new pieces time to occur again
            forget_rare(counts, max_words)
    return counts


def count_characters(words: Mapping[str, int]) -> Counter[str]:
    """Count the characters of counted words."""
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    return characters


def forget_rare(counts: Counter[str], limit: int) -> None:
    """Drop the rarest words until at most ``limit`` remain."""
    rare = 0
    while len(counts) > limit:
        rare += 1
        for word in [word for word, count in counts.items() if count <= rare]:
            del counts[word]


def _sized(words: Mapping[str, int], size: int) -> dict[str, int]:
    """Search for a ``min_count`` that gives slightly more than ``size`` subwords; keep the most frequent of them."""
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
        # the number of subwords is roughly proportional to 1 / min_count; otherwise continue in the middle
        likely = round(guess * len(vocabulary) / (1.01 * size))
        guess = likely if low <= likely <= high else (low + high) // 2
    # keep characters: a word that is segmented into them still needs no bucket
    order = sorted(best, key=lambda subword: (len(subword) > 1, -best[subword], subword))
    return {subword: best[subword] for subword in order[:size]}


def _learn(words: Mapping[str, int], min_count: int) -> dict[str, int]:
    """Subwords with their counts."""
    alphabet = {c: n for c, n in count_characters(words).items() if n >= min_count and _allowed(c)}
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
            last = len(marked) - length - 1  # candidates that start later reach the end of the word
            continued = [start for start in starts if start <= last and marked[start : start + length] in frequent]
            if continued:
                extended.append((marked, count, continued))
        alive = extended
    return levels


def _allowed(text: str) -> bool:
    return len(text.rstrip(END)) <= MAX_CHARACTERS and _REFUSED.search(text) is None


def _kept(levels: list[dict[str, int]], min_count: int) -> dict[str, int]:
    """From the longest: keep candidates that are still frequent, and subtract their counts from their prefixes."""
    kept: dict[str, int] = {}
    for level in range(len(levels) - 1, -1, -1):
        for text, count in levels[level].items():
            if count < min_count:
                continue
            kept[text] = count
            for length in range(1, level + 1):
                # a prefix of a frequent candidate is frequent, so it was counted
                levels[length - 1][text[:length]] -= count
    return kept
