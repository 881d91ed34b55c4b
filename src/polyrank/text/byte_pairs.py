"""Byte-pair vocabularies of subword-nmt, as ParlAI saves them, as a tokenizer of Hugging Face's library.

A dictionary lists tokens, one per line with its count; ``hel@@`` continues in the next token and ``lo`` ends a word. A
second file lists merges, the most frequent first.

Source: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units (ACL 2016), algorithm 1;
    https://github.com/rsennrich/subword-nmt.
"""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Split

from polyrank.errors import ArtifactError
from polyrank.text.subwords import Subwords

END = "</w>"  # ends the last character of a word in a file of merges
WORDS = r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]"  # a word, or one character of punctuation


def read_byte_pairs(
    dictionary: Path, merges: Path, *, special: Sequence[str], padding: str, boundary: str, unknown: str, lower: bool
) -> tuple[Subwords, int]:
    """Read a vocabulary; ids are the places in the dictionary.

    A merge may build a token that the dictionary does not list, on the way to one that it does. Such tokens have ids
    behind those of the dictionary, and stand for the unknown token where they remain.

    Args:
        dictionary: tokens with counts, in the order of their ids after the special ones.
        merges: pairs of subword-nmt, version 0.2.
        special: tokens that have the first ids, whether the dictionary lists them or not.
        padding, boundary, unknown: of the special tokens, those behind a text, around it, and for unknown characters.
        lower: whether texts become lower case.

    Returns:
        The vocabulary, and how many of its ids the dictionary has.

    Raises:
        ArtifactError: a file is missing, or has another form.
    """
    listed = (_unescaped(line.split("\t")[0]) for line in _lines(dictionary))
    tokens = dict.fromkeys([*special, *(token.lower() if token.lower() in special else token for token in listed)])
    names = [token if token in special else _symbol(token) for token in tokens]
    version, *rows = _lines(merges)
    if version.strip() != "#version: 0.2":
        raise ArtifactError(f"{merges} begins with {version[:40]!r}; only version 0.2 of subword-nmt's files is read")
    if bad := next((row for row in rows if len(row.split()) != 2), None):
        raise ArtifactError(f"{merges}: {bad[:40]!r} does not name two tokens; download the file again")
    pairs = [(first, second) for first, second in map(str.split, rows)]
    built = [symbol for first, second in pairs for symbol in (first, second, first + second)]
    vocabulary = {name: number for number, name in enumerate(dict.fromkeys([*names, *built]))}
    tokenizer = Tokenizer(BPE(vocabulary, pairs, unk_token=unknown, end_of_word_suffix=END))
    tokenizer.pre_tokenizer = Split(Regex(WORDS), "removed", invert=True)
    if lower:
        tokenizer.normalizer = Lowercase()
    return Subwords(tokenizer, boundary, boundary, padding), len(names)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path} cannot be read ({error}); download the model again") from error


def _unescaped(token: str) -> str:
    for escaped, plain in (("\\n", "\n"), ("\\t", "\t"), ("\\r", "\r")):
        token = token.replace(escaped, plain)
    return token


def _symbol(token: str) -> str:
    """A dictionary's token as the merges have it.

    >>> _symbol("hel@@"), _symbol("lo")
    ('hel', 'lo</w>')
    """
    return token[:-2] if token.endswith("@@") and len(token) > 2 else token + END
