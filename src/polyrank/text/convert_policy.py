"""ConveRT's text policy: the last turn is the context; the earlier turns are a second text, newest first.

The ids of both become one row: the immediate context, then, if there are earlier turns, the boundary and their ids. The
network splits the row at the boundary. This module only produces ids.
"""

from polyrank.config.models import ConvertText
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text.convert_subwords import ConvertSubwords
from polyrank.text.cut import Cut
from polyrank.text.slotted import with_slots
from polyrank.text.texts import Texts


class ConvertTexts(Texts):
    """ConveRT's subwords bound to its text settings.

    Args:
        subwords: the vocabulary.
        policy: the text settings.
        multi_context: whether the network reads earlier turns.

    Raises:
        ConfigError: a budget is below 1.

    Source: Henderson et al., ConveRT (2020), sections 2.1 ("Multi-Context ConveRT") and 3.
    """

    policy: ConvertText
    subwords: ConvertSubwords

    def __init__(self, subwords: ConvertSubwords, policy: ConvertText, multi_context: bool) -> None:
        for name in ("max_context_tokens", "max_candidate_tokens", "max_earlier_tokens", "max_earlier_turns"):
            if getattr(policy, name) < 1:
                raise ConfigError(f"text.{name} = {getattr(policy, name)} is below 1; give at least 1")
        self.subwords: ConvertSubwords = with_slots(subwords, policy.slots)
        self.policy, self.multi_context = policy, multi_context
        self.cut = Cut(
            policy.max_context_tokens, policy.max_candidate_tokens, max_earlier_tokens=policy.max_earlier_tokens
        )

    @property
    def key(self) -> str:
        """See ``Texts``."""
        return f"{super().key} {self.multi_context}"

    def immediate_ids(self, context: Context) -> list[int]:
        """The end of the last turn."""
        last = self.subwords.encode(context.turns[-1]) if context.turns else ()
        if len(last) > self.policy.max_context_tokens:
            self.cut.contexts.add(hash(context))
        return list(last[-self.policy.max_context_tokens :])

    def earlier_ids(self, context: Context) -> list[int]:
        """The turns before the last one, newest first, then the background; cut at the budget."""
        ids: list[int] = []
        n_read = 0
        turns = context.turns[:-1][::-1][: self.policy.max_earlier_turns]
        for age, turn in enumerate(turns):
            number = self.subwords.encode(str(age)) if self.policy.number_prefixes else ()
            ids += [*number, *self.subwords.encode(turn)]
            n_read += 1
            if len(ids) >= self.policy.max_earlier_tokens:
                break
        if self.policy.background == "after":
            for fact in context.background:
                ids += self.subwords.encode(fact)
        if len(ids) > self.policy.max_earlier_tokens or n_read < len(turns):
            self.cut.earlier.add(hash(context))
        return ids[: self.policy.max_earlier_tokens]

    def context_ids(self, context: Context) -> list[int]:
        """The immediate context; if there are earlier turns, the boundary and their ids follow."""
        earlier = self.earlier_ids(context) if self.multi_context else []
        return [*self.immediate_ids(context), *([self.subwords.boundary_id] if earlier else []), *earlier]

    def candidate_ids(self, text: str) -> list[int]:
        """The start of a candidate."""
        ids = self.subwords.encode(text)
        if len(ids) > self.policy.max_candidate_tokens:
            self.cut.candidates.add(hash(ids))
        return list(ids[: self.policy.max_candidate_tokens])
