"""Subword vocabularies of Hugging Face models: a tokenizer.json and the names of three special tokens."""

import itertools
import json
from collections.abc import Sequence
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import Lowercase, Sequence as Normalizers
from tokenizers.processors import TemplateProcessing

from polyrank.errors import ArtifactError, ConfigError, DataError, MissingExtraError
from polyrank.remembered import Remembered
from polyrank.storage.tensors import read_header

MASKS = ("[MASK]", "<mask>")  # names of the mask token
UNKNOWN = ("[UNK]", "<unk>")
PADDING = "[polyrank-padding]"
"""Of static embeddings, where no text has a vector: an empty text is one such token, whose vector is zero."""
TABLES = ("embedding.weight", "embeddings")
"""The names of a table of word vectors, of sentence-transformers and of model2vec."""
MANY_TEXTS = 64  # from this number on, several threads are faster


def _check_unicode(texts: Sequence[str]) -> None:
    """Refuse a lone surrogate, which is not valid Unicode."""
    for character in itertools.chain.from_iterable(texts):
        if "\ud800" <= character <= "\udfff":
            raise DataError(f"a text contains the lone surrogate {character!r}; use valid Unicode")


class Subwords:
    """Text to ids without boundary tokens, which the text policy adds.

    Args:
        tokenizer: a tokenizer of the ``tokenizers`` library; its truncation and padding are switched off.
        start, end, padding: names of the boundary and padding tokens, such as "[CLS]", "[SEP]", "[PAD]".
        single: names of the tokens before and after a text, such as ``([], ["<eos>"])``; None: start and end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        start: str,
        end: str,
        padding: str,
        single: tuple[Sequence[str], Sequence[str]] | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.names = {"start": start, "end": end, "padding": padding}
        self.start_id, self.end_id, self.pad_id = (self.id_of(name) for name in (start, end, padding))
        self.single = [[start], [end]] if single is None else [list(names) for names in single]
        self.before, self.after = ([self.id_of(name) for name in names] for names in self.single)
        # every turn of a dialogue is part of all later contexts, so a cache saves most of the work
        self._encode = Remembered(self._encode_now)

    def id_of(self, name: str) -> int:
        """The id of a token.

        Raises:
            ConfigError: the vocabulary does not have it.
        """
        token_id = self.tokenizer.token_to_id(name)
        if token_id is None:
            raise ConfigError(f"the vocabulary has no token {name!r}; give one of its tokens")
        return int(token_id)

    def _encode_now(self, text: str) -> tuple[int, ...]:
        try:
            return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)
        except TypeError:
            _check_unicode([text])
            raise

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text, without boundary tokens.

        Raises:
            DataError: the text contains a lone surrogate, which is not valid Unicode.
        """
        return self._encode[text]

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """The same ids, each with the start and the end of its characters in the text."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return [(token, start, end) for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]

    def encode_all(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each text. Many texts are encoded on all cores and not cached, to keep turns in the cache."""
        if len(texts) < MANY_TEXTS:
            return [self.encode(text) for text in texts]
        try:
            return [tuple(text.ids) for text in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        except TypeError:
            _check_unicode(texts)
            raise

    def add(self, tokens: Sequence[str]) -> int:
        """Add missing special tokens; returns the number of new ones."""
        added = self.tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in tokens])
        self._encode.clear()
        return int(added)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def with_boundaries(self) -> dict[str, Any]:
        """tokenizer.json for other libraries, with a template that adds the boundary tokens."""
        document: dict[str, Any] = json.loads(self.tokenizer.to_str())
        end = self.names["end"]
        before, after = ([f"{name}:0" for name in names] for names in self.single)
        names = dict.fromkeys([*self.single[0], *self.single[1], end])
        template = TemplateProcessing(
            single=" ".join([*before, "$A:0", *after]),
            pair=" ".join([*before, "$A:0", f"{end}:0", "$B:1", f"{end}:1"]),
            special_tokens=[(name, self.id_of(name)) for name in names],
        )
        document["post_processor"] = json.loads(template.__getstate__())
        return document

    def settings(self, max_tokens: int, *, segments: bool = False) -> dict[str, Any]:
        """tokenizer_config.json for the ``with_boundaries`` tokenizer.

        Args:
            max_tokens: the longest input of the network.
            segments: whether the network has token type ids.
        """
        names = {"cls": self.names["start"], "sep": self.names["end"], "pad": self.names["padding"]}
        others = {"mask": self.mask, "unk": self.first_known(UNKNOWN)}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_tokens,
            "padding_side": "right",
            "truncation_side": "right",
            **({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} if segments else {}),
            **{f"{kind}_token": name for kind, name in {**names, **others}.items() if name is not None},
        }

    @property
    def mask(self) -> str | None:
        """The mask token, if the vocabulary has one."""
        return self.first_known(MASKS)

    def first_known(self, names: Sequence[str]) -> str | None:
        """The first of several names that the vocabulary has."""
        return next((name for name in names if self.tokenizer.token_to_id(name) is not None), None)

    def special_ids(self) -> list[int]:
        """Ids of special tokens."""
        added = self.tokenizer.get_added_tokens_decoder()
        ids = {int(i) for i, token in added.items() if token.special}
        named = (self.tokenizer.token_to_id(name) for name in (*MASKS, *UNKNOWN, *self.names.values()))
        return sorted(ids | {int(i) for i in named if i is not None})

    def encode_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[bool]]]:
        """The ids of each text, and which of them continue the word of the previous id."""
        rows = []
        for encoding in self.tokenizer.encode_batch(list(texts), add_special_tokens=False):
            words = encoding.word_ids
            rows.append(
                (encoding.ids, [i > 0 and word is not None and word == words[i - 1] for i, word in enumerate(words)])
            )
        return rows

    def to_bytes(self) -> bytes:
        """tokenizer.json plus the names of the boundary tokens, for a model folder."""
        document = {"boundaries": self.names, "tokenizer": json.loads(self.tokenizer.to_str())}
        if self.single != [[self.names["start"]], [self.names["end"]]]:
            document["single"] = self.single
        return json.dumps(document, ensure_ascii=False, sort_keys=True).encode()


def load_subwords(folder: Path, *, lower_case: bool = False, exact: bool = False) -> Subwords:
    """Load the tokenizer of a Hugging Face model folder, with the tokens that it puts before and after a text.

    Args:
        folder: of the tokenizer.
        lower_case: lower-case texts first.
        exact: whether texts have no boundary tokens if the tokenizer puts none; otherwise, its [CLS] and [SEP].

    Raises:
        ArtifactError: transformers cannot read the tokenizer, or it has no token to pad with.
    """
    if not lower_case and not is_static(folder) and (subwords := _read_word_pieces(folder)) is not None:
        return subwords
    tokenizer = load_tokenizer(folder)
    subwords = subwords_of(tokenizer, folder, lower_case=lower_case)
    if not exact and subwords.single == [[], []] and tokenizer.cls_token and tokenizer.sep_token:
        return Subwords(subwords.tokenizer, tokenizer.cls_token, tokenizer.sep_token, subwords.names["padding"])
    return subwords


def is_static(folder: Path) -> bool:
    """Whether a folder has a table of word vectors in place of a network."""
    try:
        return not {*TABLES}.isdisjoint(read_header(folder / "model.safetensors")[0])
    except ValueError:
        return False


Special = list[tuple[int, int]]
"""Consecutive special tokens: their ids and segments."""


def template_of(tokenizer: Any, *texts: str) -> list[Special]:
    """Ids and segments of short texts by a tokenizer of transformers: special tokens, a text, and so on."""
    encoded = tokenizer(*texts)
    segments = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
    places = zip(encoded.sequence_ids(), encoded["input_ids"], segments, strict=True)
    parts: list[Special] = [[]]
    for number, group in itertools.groupby(places, key=itemgetter(0)):
        tokens = [(token, segment) for _, token, segment in group]
        if number is None:
            parts[-1] = tokens
        else:
            parts += [tokens, []]
    return parts


def subwords_of(tokenizer: Any, folder: Path, *, lower_case: bool = False) -> Subwords:
    """The vocabulary of a tokenizer of the transformers library, with the tokens that it puts around a text.

    Raises:
        ArtifactError: it has no token to pad with.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if lower_case:
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Normalizers([Lowercase(), *before])
    padding = tokenizer.pad_token or tokenizer.eos_token
    if padding is None:
        raise ArtifactError(f"the tokenizer in {folder} has no padding token; set pad_token in its config")
    end = tokenizer.sep_token or tokenizer.eos_token or padding
    special = template_of(tokenizer, "a")
    before, after = ([str(tokenizer.convert_ids_to_tokens(token)) for token, _ in special[i]] for i in (0, 2))
    return Subwords(backend, tokenizer.cls_token or tokenizer.bos_token or end, end, padding, (before, after))


def load_tokenizer(folder: Path) -> Any:
    """A fast tokenizer of the transformers library.

    Raises:
        ArtifactError: the library cannot read it, or it has no tokenizer.json.
        MissingExtraError: it is a SentencePiece model, and sentencepiece is not installed.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").exists() and any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        raise MissingExtraError("sentencepiece", "sentencepiece")
    try:
        if is_static(folder):  # has no settings, and puts nothing around a text
            bare = Tokenizer.from_file(str(folder / "tokenizer.json"))
            bare.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])
            longest = (bare.truncation or {}).get("max_length")
            return PreTrainedTokenizerFast(tokenizer_object=bare, pad_token=PADDING, model_max_length=longest)
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, local_files_only=True)
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise ValueError("it has no tokenizer.json")
    except Exception as error:  # the library raises many kinds: for a file, for a value, for a missing converter
        reason = " ".join(str(error).split())[:200]
        raise ArtifactError(
            f"transformers cannot read the tokenizer in {folder} ({reason}); save its fast tokenizer there"
        ) from error
    return tokenizer


def _read_word_pieces(folder: Path) -> Subwords | None:
    """BERT's word pieces if both files of the tokenizer agree, else None.

    If they differ, only transformers knows which one applies, but importing it takes longer than everything else here.
    """
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        document = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        names = {
            kind: settings.get(f"{kind}_token", f"[{kind.upper()}]") for kind in ("pad", "unk", "cls", "sep", "mask")
        }
        vocabulary = document["model"]["vocab"]
        special = [_special(vocabulary[name], name) for name in names.values()]
        listed = settings.get("added_tokens_decoder")
        expected = {
            "added_tokens": sorted(special, key=itemgetter("id")),
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": settings.get("tokenize_chinese_chars", True),
                "strip_accents": settings.get("strip_accents"),
                "lowercase": settings.get("do_lower_case", True),
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {
                "type": "WordPiece",
                "unk_token": names["unk"],
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": vocabulary,
            },
        }
        agree = (
            settings["tokenizer_class"] in ("BertTokenizer", "BertTokenizerFast")
            and all(document[name] == value for name, value in expected.items())
            and (listed is None or [{"id": int(i), **token} for i, token in listed.items()] == expected["added_tokens"])
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    tokenizer = Tokenizer.from_str(json.dumps(document)) if agree else None
    return tokenizer and Subwords(tokenizer, names["cls"], names["sep"], names["pad"])


def _special(token_id: int, name: str) -> dict[str, Any]:
    switches = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": name, "special": True, **switches}


def read_subwords(data: bytes, where: str) -> Subwords:
    """The inverse of ``Subwords.to_bytes``; ``where`` is the file, for errors."""
    try:
        document = json.loads(data)
        names = document["boundaries"]
        tokenizer = Tokenizer.from_str(json.dumps(document["tokenizer"]))
    except Exception as error:  # the tokenizers library raises bare Exception on a bad file
        raise ArtifactError(f"{where} is not a tokenizer of polyrank ({error}); restore the model folder") from error
    return Subwords(tokenizer, names["start"], names["end"], names["padding"], document.get("single"))
