"""Convert byte-pair vocabularies of subword-nmt, as ParlAI saves them, to a Hugging Face tokenizer.

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
    """Read a vocabulary; the id of a token is its position in the dictionary.

    A merge may build an intermediate token that the dictionary does not list. Such tokens get ids after those of the
    dictionary; if one remains in a text, it counts as unknown.

    Args:
        dictionary: file of tokens with counts, in the order of their ids, which follow those of ``special``.
        merges: file of pairs of subword-nmt, version 0.2.
        special: tokens with the first ids, whether or not the dictionary lists them.
        padding, boundary, unknown: the special tokens after a text, around a text, and for unknown characters.
        lower: whether to lower-case texts.

    Returns:
        The vocabulary, and the number of ids that the dictionary covers.

    Raises:
        ArtifactError: a file is missing or has another format.
    """
    listed = (_unescaped(line.split("\t")[0]) for line in _lines(dictionary))
    tokens = dict.fromkeys([*special, *(token.lower() if token.lower() in special else token for token in listed)])
    names = [token if token in special else _symbol(token) for token in tokens]
    version, *rows = _lines(merges)
    if version.strip() != "#version: 0.2":
        raise ArtifactError(f"{merges} begins with {version[:40]!r}; give a file of subword-nmt, version 0.2")
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
    """Convert a token of the dictionary to the notation of the merges.

    >>> _symbol("hel@@"), _symbol("lo")
    ('hel', 'lo</w>')
    """
    return token[:-2] if token.endswith("@@") and len(token) > 2 else token + END
