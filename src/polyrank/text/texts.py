"""The interface of all text policies: strings to token ids, for contexts, candidates and pairs."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from polyrank.config.models import Side
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.tokens import Tokens, pad


class Vocabulary(Protocol):
    """The part of a vocabulary that batching, tracing and storage use."""

    @property
    def pad_id(self) -> int:
        """The padding id."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text, without boundary tokens."""

    def encode_spans(self, text: str) -> list[tuple[int, int, int]]:
        """The same ids, each with the start and the end of its characters in the text."""

    def to_bytes(self) -> bytes:
        """The vocabulary file of a model folder."""


class Texts(ABC):
    """A vocabulary bound to text settings.

    ``policy`` holds the settings, a dataclass, and ``cut`` the texts so far that exceeded their budget.
    """

    policy: Any
    subwords: Vocabulary
    cut: Cut
    max_positions = 2**31
    """The longest input of the network, in tokens."""
    pads_left = has_types = False
    """Whether the tokenizer's own library pads texts at their start, and gives types of tokens."""

    id_type: ClassVar[np.dtype[Any]] = np.dtype("<u4")
    """Of ids on disk."""

    @property
    def key(self) -> str:
        """Equal for policies that give the same ids to contexts and candidates."""
        vocabulary = hashlib.sha256(self.subwords.to_bytes()).hexdigest()
        return f"{type(self).__name__} {self.policy} {vocabulary}"

    @abstractmethod
    def context_ids(self, context: Context) -> list[int]:
        """The ids of a context within its budget; its end is kept."""

    @abstractmethod
    def candidate_ids(self, text: str) -> list[int]:
        """The ids of a candidate within its budget; its start is kept."""

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts; some policies encode them faster together."""
        return [self.candidate_ids(text) for text in texts]

    def of_side(self, side: Side) -> "Texts":
        """The policy of one side."""
        return self

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """Context and candidate as one sequence, and its segments.

        Raises:
            ConfigError: this text policy does not support pairs.
        """
        raise ConfigError("this model's vocabulary does not support pairs; use a Cross-encoder")

    def contexts(self, contexts: Sequence[Context]) -> Tokens:
        """Contexts as padded tokens."""
        return pad([self.context_ids(context) for context in contexts], pad_id=self.subwords.pad_id)

    def candidates(self, texts: Sequence[str]) -> Tokens:
        """Candidates as padded tokens."""
        return pad([self.candidate_ids(text) for text in texts], pad_id=self.subwords.pad_id)

    def pairs(self, pairs: Sequence[tuple[Context, str]]) -> Tokens:
        """Pairs of context and candidate as padded tokens with segments."""
        rows = [self.pair_ids(context, candidate) for context, candidate in pairs]
        return pad([ids for ids, _ in rows], [segments for _, segments in rows], pad_id=self.subwords.pad_id)
