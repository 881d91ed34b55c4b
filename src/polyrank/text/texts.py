"""What every text policy at work offers: strings to ids, for either side and for pairs."""

from collections.abc import Sequence
from typing import Any, Protocol

from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.tokens import Tokens


class Vocabulary(Protocol):
    """Subwords, as far as those who batch and store need to know them."""

    @property
    def pad_id(self) -> int:
        """What padding consists of."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of one text, without boundary tokens."""
        ...

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """The same ids, each with the start and the end of its characters in the text."""
        ...

    def to_bytes(self) -> bytes:
        """tokenizer.json, for a model folder."""
        ...


class Texts(Protocol):
    """A vocabulary bound to text settings."""

    @property
    def policy(self) -> Any:
        """The settings, a dataclass."""
        ...

    @property
    def subwords(self) -> Vocabulary:
        """The vocabulary."""
        ...

    @property
    def cut(self) -> Cut:
        """What was longer than its budget, of all that was read so far."""
        ...

    def context_ids(self, context: Context) -> list[int]:
        """A context within its budget; its end is kept."""
        ...

    def candidate_ids(self, text: str) -> list[int]:
        """A candidate within its budget; its start is kept."""
        ...

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts, faster than one after the other where that can be."""
        ...

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """Context and candidate as one sequence, and its segments.

        Raises:
            ConfigError: texts of this kind are not read in pairs.
        """
        ...

    def contexts(self, contexts: Sequence[Context]) -> Tokens:
        """Contexts as padded tokens."""
        ...

    def candidates(self, texts: Sequence[str]) -> Tokens:
        """Candidates as padded tokens."""
        ...

    def pairs(self, pairs: Sequence[tuple[Context, str]]) -> Tokens:
        """Pairs of context and candidate as padded tokens with segments."""
        ...
