"""Learning a vocabulary for a BERT from a corpus: word pieces, or byte-pair encoding of characters.

Texts are taken apart as BERT's are, at white space and punctuation. The trainers of the ``tokenizers`` library number
characters as they happen to meet them, which decides between pairs that are equally frequent; they are given every
character beforehand, so that the same texts make the same vocabulary in every process.
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
from polyrank.text.convert_vocabulary import MAX_WORDS, forget_rare
from polyrank.text.subwords import Subwords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_CHARACTERS = 1000  # as many at most, the most frequent, are told from unknown ones
MAX_LETTERS = 100  # of a word; a longer one is unknown
CHUNK = 1000  # copies of a word at a time


def learn_bert_subwords(
    texts: Iterable[str], *, kind: Literal["wordpiece", "bpe"], size: int, lower_case: bool = True
) -> Subwords:
    """A vocabulary for ``texts``; the same texts give the same one on every machine.

    Args:
        texts: the corpus; read once.
        kind: "wordpiece", whose inner pieces are written ##so, or "bpe", whose last ones end in </w>.
        size: subwords, special tokens included; fewer come out of a corpus that has no more.
        lower_case: whether texts are lower-cased, and lose their accents.

    Raises:
        ConfigError: the corpus has no words, or ``size`` does not hold its characters.

    Source: Schuster and Nakajima (2012) and Devlin et al., BERT (2019); Sennrich et al. (ACL 2016).

    >>> subwords = learn_bert_subwords(["low lower lowest"] * 3, kind="wordpiece", size=23)
    >>> subwords.tokenizer.encode("Lowest low", add_special_tokens=False).tokens
    ['lowe', '##st', 'low']
    """
    words = _count(texts, lower_case)
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    known = sorted(sorted(characters, key=lambda c: (-characters[c], c))[:MAX_CHARACTERS])
    if not known:
        raise ConfigError("the texts to learn a vocabulary from hold no words; give others")
    pieces = [f"##{c}" if kind == "wordpiece" else f"{c}</w>" for c in known]
    least = len(SPECIAL) + 2 * len(known)
    if size < least:
        raise ConfigError(
            f"vocabulary.size = {size} does not hold the {len(known)} characters of the texts, alone and inside words;"
            f" give {least} at least"
        )
    trained, trainer = _untrained(kind, size, [*SPECIAL, *known, *pieces])
    usual = frozenset(known)
    trained.train_from_iterator(_copies({w: n for w, n in words.items() if usual.issuperset(w)}), trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(_model(kind, model))
    tokenizer.normalizer = BertNormalizer(lowercase=lower_case)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    return Subwords(tokenizer, "[CLS]", "[SEP]", "[PAD]")


def _count(texts: Iterable[str], lower_case: bool, max_words: int = MAX_WORDS) -> Counter[str]:
    """How often each word is met; those met least are forgotten where there are too many, so memory is flat."""
    normalizer, splitter = BertNormalizer(lowercase=lower_case), BertPreTokenizer()
    words: Counter[str] = Counter()
    for text in texts:
        words.update(word for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
        if len(words) > max_words + max_words // 2:
            forget_rare(words, max_words)
    for word in [word for word in words if len(word) > MAX_LETTERS]:
        del words[word]
    return words


def _copies(words: dict[str, int]) -> Iterator[str]:
    """Each word as often as it was met."""
    for word, count in words.items():
        for start in range(0, count, CHUNK):
            yield " ".join([word] * min(CHUNK, count - start))


def _untrained(kind: str, size: int, first: list[str]) -> tuple[Tokenizer, Any]:
    """A tokenizer and what trains it, with the vocabulary's first entries given."""
    settings: dict[str, Any] = {"vocab_size": size, "special_tokens": first, "show_progress": False}
    trainer: WordPieceTrainer | BpeTrainer
    if kind == "wordpiece":
        tokenizer, trainer = Tokenizer(WordPiece(unk_token="[UNK]")), WordPieceTrainer(**settings)
    else:
        tokenizer = Tokenizer(BPE(unk_token="[UNK]", end_of_word_suffix="</w>"))
        trainer = BpeTrainer(end_of_word_suffix="</w>", **settings)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer, trainer


def _model(kind: str, learnt: dict[str, Any]) -> WordPiece | BPE:
    if kind == "wordpiece":
        return WordPiece(learnt["vocab"], unk_token="[UNK]", max_input_chars_per_word=MAX_LETTERS)
    merges = [(left, right) for left, right in learnt["merges"]]
    return BPE(learnt["vocab"], merges, unk_token="[UNK]", end_of_word_suffix="</w>")
