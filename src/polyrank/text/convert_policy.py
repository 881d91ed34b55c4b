"""ConveRT's text policy at work: the last turn is the context, earlier turns are a second text, newest first.

A context becomes one row of ids: the immediate context, then, if there is something before it, the boundary and the
earlier turns. The network takes it apart at the boundary. This module decides ids only.
"""

from collections.abc import Sequence

from polyrank.config.models import ConvertText
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text.convert_subwords import ConvertSubwords
from polyrank.text.cut import Cut
from polyrank.text.tokens import Tokens, pad


class ConvertTexts:
    """ConveRT's subwords bound to its text settings.

    Args:
        subwords: the vocabulary.
        policy: budgets and what is read.
        multi_context: whether there are earlier turns at all.

    Raises:
        ConfigError: a budget is below 1.

    Source: Henderson et al., ConveRT (2020), sections 2.1 ("Multi-Context ConveRT") and 3.
    """

    def __init__(self, subwords: ConvertSubwords, policy: ConvertText, multi_context: bool) -> None:
        for name in ("max_context_tokens", "max_candidate_tokens", "max_earlier_tokens", "max_earlier_turns"):
            if getattr(policy, name) < 1:
                raise ConfigError(f"text.{name} = {getattr(policy, name)} is below 1; give at least 1")
        self.subwords, self.policy, self.multi_context = subwords, policy, multi_context
        self.cut = Cut(policy.max_context_tokens, policy.max_candidate_tokens)

    def immediate_ids(self, context: Context) -> list[int]:
        """The end of the last turn."""
        last = self.subwords.encode(context.turns[-1]) if context.turns else ()
        if len(last) > self.policy.max_context_tokens:
            self.cut.contexts.add(hash(context))
        return list(last[-self.policy.max_context_tokens :])

    def earlier_ids(self, context: Context) -> list[int]:
        """The turns before the last one, newest first, then the background; what is beyond the budget is cut off."""
        ids: list[int] = []
        turns = context.turns[:-1][::-1][: self.policy.max_earlier_turns]
        for age, turn in enumerate(turns):
            number = self.subwords.encode(str(age)) if self.policy.number_prefixes else ()
            ids += [*number, *self.subwords.encode(turn)]
            if len(ids) >= self.policy.max_earlier_tokens:
                break
        if self.policy.background == "after":
            for fact in context.background:
                ids += self.subwords.encode(fact)
        return ids[: self.policy.max_earlier_tokens]

    def context_ids(self, context: Context) -> list[int]:
        """The immediate context and, behind the boundary, the earlier turns."""
        earlier = self.earlier_ids(context) if self.multi_context else []
        return [*self.immediate_ids(context), *([self.subwords.boundary_id] if earlier else []), *earlier]

    def candidate_ids(self, text: str) -> list[int]:
        """The start of a candidate."""
        ids = self.subwords.encode(text)
        if len(ids) > self.policy.max_candidate_tokens:
            self.cut.candidates.add(hash(ids))
        return list(ids[: self.policy.max_candidate_tokens])

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts."""
        return [self.candidate_ids(text) for text in texts]

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """A ConveRT reads no pairs: raises ConfigError."""
        raise ConfigError("a ConveRT's texts are not read in pairs; a Cross-encoder needs a backbone's vocabulary")

    def contexts(self, contexts: Sequence[Context]) -> Tokens:
        """Contexts as padded tokens."""
        return pad([self.context_ids(context) for context in contexts], pad_id=self.subwords.pad_id)

    def candidates(self, texts: Sequence[str]) -> Tokens:
        """Candidates as padded tokens."""
        return pad([self.candidate_ids(text) for text in texts], pad_id=self.subwords.pad_id)

    def pairs(self, pairs: Sequence[tuple[Context, str]]) -> Tokens:
        """A ConveRT reads no pairs: raises ConfigError."""
        return pad([self.pair_ids(context, candidate)[0] for context, candidate in pairs])
