"""Learn a vocabulary for a BERT from a corpus: word pieces, or byte-pair encoding of characters.

Texts are split as for BERT, at white space and punctuation. The trainers of the ``tokenizers`` library number
characters in an arbitrary order, which breaks ties between equally frequent pairs. They get all characters in advance,
so that the same texts produce the same vocabulary in every process.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import BpeTrainer, WordPieceTrainer

from polyrank.errors import ConfigError
from polyrank.text.convert_vocabulary import MAX_WORDS, count_characters, count_pieces
from polyrank.text.subwords import Subwords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_CHARACTERS = 1000  # the vocabulary holds at most this many characters, the most frequent
MAX_LETTERS = 100  # letters of a word; longer words are unknown
CHUNK = 1000  # copies of a word in one training text


def learn_bert_subwords(
    texts: Iterable[str], *, kind: Literal["wordpiece", "bpe"], size: int, lower_case: bool = True
) -> Subwords:
    """Learn a vocabulary; the same texts produce the same vocabulary on every machine.

    Args:
        texts: the corpus; read once.
        kind: "wordpiece", whose inner pieces are written ##so, or "bpe", whose last pieces end in </w>.
        size: number of subwords, including special tokens; a small corpus may give fewer.
        lower_case: whether texts are lower-cased and lose their accents.

    Raises:
        ConfigError: the corpus has no words, or ``size`` is too small for its characters.

    Source: Schuster and Nakajima (2012) and Devlin et al., BERT (2019); Sennrich et al. (ACL 2016).

    >>> subwords = learn_bert_subwords(["low lower lowest"] * 3, kind="wordpiece", size=23)
    >>> subwords.tokenizer.encode("Lowest low", add_special_tokens=False).tokens
    ['lowe', '##st', 'low']
    """
    words = _count_words(texts, lower_case)
    characters = count_characters(words)
    letters = sorted(sorted(characters, key=lambda c: (-characters[c], c))[:MAX_CHARACTERS])
    if not letters:
        raise ConfigError("the texts to learn a vocabulary from have no words; give other texts")
    pieces = [f"##{c}" if kind == "wordpiece" else f"{c}</w>" for c in letters]
    least = len(SPECIAL) + 2 * len(letters)
    if size < least:
        raise ConfigError(
            f"vocabulary.size = {size} is too small for the {len(letters)} characters of the texts, alone and inside"
            f" words; give at least {least}"
        )
    trained, trainer = _untrained(kind, size, [*SPECIAL, *letters, *pieces])
    alphabet = frozenset(letters)
    trained.train_from_iterator(_copies({w: n for w, n in words.items() if alphabet.issuperset(w)}), trainer)
    tokenizer = Tokenizer(_model(kind, json.loads(trained.to_str())["model"]))
    tokenizer.normalizer = BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return Subwords(tokenizer, "[CLS]", "[SEP]", "[PAD]")


def _count_words(texts: Iterable[str], lower_case: bool, max_words: int = MAX_WORDS) -> Counter[str]:
    """Count the words, except those of more than ``MAX_LETTERS``; see ``count_pieces`` about ``max_words``."""
    normalizer, splitter = BertNormalizer(lowercase=lower_case), BertPreTokenizer()
    words = count_pieces(
        texts, lambda text: (word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))), max_words
    )
    for word in [word for word in words if len(word) > MAX_LETTERS]:
        del words[word]
    return words


def _copies(words: dict[str, int]) -> Iterator[str]:
    """Repeat each word as often as it occurred."""
    for word, count in words.items():
        for start in range(0, count, CHUNK):
            yield " ".join([word] * min(CHUNK, count - start))


def _untrained(kind: str, size: int, first: list[str]) -> tuple[Tokenizer, Any]:
    """A tokenizer and its trainer; ``first`` are the first entries of the vocabulary."""
    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": first, "show_progress": False}
    trainer: WordPieceTrainer | BpeTrainer
    if kind == "wordpiece":
        tokenizer, trainer = Tokenizer(WordPiece(unk_token="[UNK]")), WordPieceTrainer(**settings)
    else:
        tokenizer = Tokenizer(BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
        trainer = BpeTrainer(end_of_word_suffix="</w>", **settings)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer, trainer


def _model(kind: str, learned: dict[str, Any]) -> WordPiece | BPE:
    if kind == "wordpiece":
        return WordPiece(learned["vocab"], unk_token="[UNK]", max_input_chars_per_word=MAX_LETTERS)
    merges = [(left, right) for left, right in learned["merges"]]
    return BPE(learned["vocab"], merges, unk_token="[UNK]", end_of_word_suffix="</w>")
