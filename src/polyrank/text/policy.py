"""The default text policy: join the turns, keep the end of contexts and the start of candidates.

A reply answers the newest turn, so a context that is too long loses its oldest tokens. A candidate loses its last
tokens. This module only produces ids and does not know networks.
"""

from collections.abc import Sequence
from itertools import chain

from polyrank.config.models import TextPolicy
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.slotted import with_slots
from polyrank.text.subwords import Subwords
from polyrank.text.texts import Texts


def check_prefixes(policy: TextPolicy, prefixes: tuple[str, str], subwords: Subwords, n_others: int) -> None:
    """Refuse a budget that a prefix fills.

    Args:
        policy: the text settings.
        prefixes: of contexts and of candidates.
        subwords: the vocabulary.
        n_others: tokens that are needed besides the prefix.

    Raises:
        ConfigError: names the budget.
    """
    for prefix, name in zip(prefixes, ("max_context_tokens", "max_candidate_tokens"), strict=True):
        n, budget = len(subwords.encode(prefix)), getattr(policy, name)
        if n and n + n_others > budget:
            raise ConfigError(f"{name} = {budget} leaves too few tokens after a prompt of {n} tokens; raise it")


class BackboneTexts(Texts):
    """Subwords bound to a TextPolicy.

    Args:
        subwords: the vocabulary.
        policy: the text settings.
        max_positions: the longest input of the network, in tokens.

    Raises:
        ConfigError: a budget is below 4 tokens or above ``max_positions``.
    """

    policy: TextPolicy
    subwords: Subwords

    def __init__(self, subwords: Subwords, policy: TextPolicy, max_positions: int) -> None:
        policy.check_budgets(max_positions)
        subwords = with_slots(subwords, policy.slots)
        self.subwords, self.policy, self.max_positions = subwords, policy, max_positions
        self.before, self.after = subwords.before, subwords.after
        self.prompts = policy.context_prefix or "", policy.candidate_prefix or ""
        check_prefixes(policy, self.prompts, subwords, 4)
        most_background = min(policy.max_background_tokens, policy.max_context_tokens // 2)
        self.cut = Cut(policy.max_context_tokens, policy.max_candidate_tokens, most_background)
        self.separator = policy.turn_separator
        if self.separator == TextPolicy().turn_separator and subwords.tokenizer.token_to_id(self.separator) is None:
            self.separator = subwords.names["end"]  # RoBERTa's </s>
        token = subwords.tokenizer.token_to_id(self.separator)
        self._separator = subwords.encode(self.separator) if token is None else (int(token),)

    def _turn(self, text: str, age: int, prompt: str) -> tuple[int, ...]:
        """The ids of a turn; ``age`` counts back from the last turn (0)."""
        prefixes = self.policy.speaker_prefixes
        return self.subwords.encode(prompt + (prefixes[age % len(prefixes)] + text if prefixes else text))

    def _joined(self, context: Context, budget: int, prompt: str = "") -> list[int]:
        """The last ``budget`` ids of the joined turns; goes backwards, so old turns beyond the budget cost nothing.

        A prompt stays in front of them.
        """
        parts: list[Sequence[int]] = []  # newest first
        n_ids = n_read = 0
        closes, most = self.policy.close_last_turn, self.policy.max_earlier_turns
        turns = context.turns if most is None else context.turns[-most - 1 :]
        for age, turn in enumerate(reversed(turns)):
            if age or closes:
                parts.append(self._separator)
                n_ids += len(self._separator)
            parts.append(self._turn(turn, age, prompt if age == len(turns) - 1 else ""))
            n_ids += len(parts[-1])
            n_read += 1
            if n_ids >= budget:
                break
        if n_ids > budget or n_read < len(turns):
            self.cut.contexts.add(hash(context))
        ids = list(chain.from_iterable(reversed(parts)))
        if prompt and (n_ids > budget or n_read < len(turns)):
            first = self.subwords.encode(prompt)
            return [*first, *ids[n_ids - min(n_ids, max(budget - len(first), 0)) :]]
        return ids[n_ids - min(n_ids, max(budget, 0)) :]

    def _background(self, facts: Sequence[str], budget: int, prompt: str = "") -> list[int]:
        """The first ids of the joined facts: at most half of a context's budget, so the newest turn is read as well.

        Empty if a prompt leaves no space for them.
        """
        if self.policy.background == "drop":
            return []
        ids: list[int] = []
        for fact in facts:
            ids += [*(self._separator if ids else ()), *self.subwords.encode(fact if ids else prompt + fact)]
        n_prompt = len(self.subwords.encode(prompt))
        most = max(min(n_prompt + self.cut.max_background_tokens, budget // 2 + 1, budget - 1), 0)
        if len(ids) > most:
            self.cut.backgrounds.add(hash(tuple(facts)))
        return ids[:most] if most > n_prompt else []

    def _context(self, context: Context, budget: int) -> list[int]:
        after, prompt = self.policy.background == "after", self.prompts[0]
        # a prompt and the separator, of which ``_background`` leaves one id, also need space if the facts come last
        reserved = len(self.subwords.encode(prompt)) + len(self._separator) - 1 if after and prompt else 0
        facts = self._background(context.background, budget - reserved, "" if after else prompt)
        if not facts:
            return self._joined(context, budget, prompt)
        between = () if after and self.policy.close_last_turn else self._separator
        turns = self._joined(context, budget - len(facts) - len(between), prompt if after else "")
        first, last = (turns, facts) if after else (facts, turns)
        return [*first, *between, *last] if turns else facts

    @property
    def _n_special(self) -> int:
        return len(self.before) + len(self.after)

    def context_ids(self, context: Context) -> list[int]:
        """``[S] background turns [S]`` within ``max_context_tokens``, after the context's prefix."""
        read = self._context(context, self.policy.max_context_tokens - self._n_special)
        return [*self.before, *read, *self.after] or [self.subwords.pad_id]

    def candidate_ids(self, text: str) -> list[int]:
        """``[S] candidate [S]`` within ``max_candidate_tokens``."""
        return self._candidate(self.subwords.encode(self.prompts[1] + text))

    def all_candidate_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """``candidate_ids`` of many texts, encoded together."""
        return [self._candidate(ids) for ids in self.subwords.encode_all([self.prompts[1] + text for text in texts])]

    def _candidate(self, ids: Sequence[int]) -> list[int]:
        read = self._start(ids, self.policy.max_candidate_tokens - self._n_special)
        return [*self.before, *read, *self.after] or [self.subwords.pad_id]  # a network needs a token to read

    def _start(self, ids: Sequence[int], budget: int) -> Sequence[int]:
        """The first ids of a candidate."""
        if len(ids) > budget:
            self.cut.candidates.add(hash(tuple(ids)))
        return ids[:budget]

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """``[S] context [S] candidate [S]`` and its segments 0 and 1.

        The two share a budget: ``max_context_tokens + max_candidate_tokens`` or the network's longest input, whichever
        is smaller. The context gets the tokens that a short candidate does not use (unless ``share_pair_budget`` is
        False), and always at least half of the budget after its prompt, which is never cut.
        """
        contexts, candidates = self.policy.max_context_tokens, self.policy.max_candidate_tokens
        start = [self.subwords.start_id] if self.policy.start_candidate_of_pair else []
        n_special = len(self.before) + 2
        budget = min(contexts + candidates, self.max_positions) - n_special - len(start)
        most = min(
            candidates - 2, max((budget - len(self.subwords.encode(self.prompts[0]))) // 2, budget - contexts + 2)
        )
        right = self._start(self.subwords.encode(self.prompts[1] + candidate), most)
        rest = budget - len(right) if self.policy.share_pair_budget else min(contexts - 2, budget - most)
        left = self._context(context, rest)
        ids = [*self.before, *left, self.subwords.end_id, *start, *right, self.subwords.end_id]
        return ids, [0] * (len(left) + n_special - 1) + [1] * (len(ids) - len(left) - n_special + 1)
