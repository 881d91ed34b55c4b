"""Texts for Hugging Face models: the boundary tokens and prompts of their tokenizers, with polyrank's truncation.

A text that fits gets the same ids as in its own library. A longer context loses its start, a longer candidate its end.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text.messages import MessageTexts
from polyrank.text.policy import BackboneTexts
from polyrank.text.subwords import Subwords, load_tokenizer

Special = list[tuple[int, int]]
"""Consecutive special tokens: their ids and segments."""


class TemplateTexts(BackboneTexts):
    """A tokenizer with its own template, bound to a TextPolicy.

    Args:
        subwords: the vocabulary.
        policy: the text settings.
        max_positions: the longest input of the network, in tokens.
        single: special tokens before and after a text.
        pair: special tokens before, between and after the two texts of a pair.
        segments: segment of each text of a pair.
        max_pair_tokens: budget of a pair, including special tokens.
        prompts: text before each context, and before each candidate.

    Raises:
        ConfigError: a budget is too small for the prompt, or outside 4 to ``max_positions``.
    """

    def __init__(
        self,
        subwords: Subwords,
        policy: TextPolicy,
        max_positions: int,
        *,
        single: tuple[Special, Special],
        pair: tuple[Special, Special, Special],
        segments: tuple[int, int],
        max_pair_tokens: int,
        prompts: tuple[str, str],
    ) -> None:
        super().__init__(subwords, policy, max_positions)
        self.before, self.after = ([token for token, _ in special] for special in single)
        self.pair, self.segments = pair, segments
        self.max_pair_tokens, self.prompts = max_pair_tokens, prompts
        for prompt, name in zip(prompts, ("max_context_tokens", "max_candidate_tokens"), strict=True):
            n, budget = len(subwords.encode(prompt)), getattr(policy, name)
            if n and n + sum(map(len, pair)) + 2 > budget:  # 2: one for each text of a pair
                raise ConfigError(f"{name} = {budget} leaves too few tokens after a prompt of {n} tokens; raise it")

    @property
    def key(self) -> str:
        """See ``Texts``."""
        return f"{super().key} {self.before} {self.after} {self.prompts}"

    def _context(self, context: Context, budget: int) -> list[int]:
        prompt = self.prompts[0]
        if not prompt:
            return super()._context(context, budget)
        first, *others = (*context.background, *context.turns) or ("",)
        whole = super()._joined(Context((prompt + first, *others)), 1_000_000)
        n = len(self.subwords.encode(prompt))
        if len(whole) <= budget:
            return whole
        self.cut.contexts.add(hash(context))
        return [*whole[:n], *whole[len(whole) - (budget - n) :]]

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """Context and candidate between their boundary tokens, and the segments.

        As in its own library, a pair that is too long loses tokens of the longer text, but none of the prompt.
        """
        n_special, n_prompt = sum(map(len, self.pair)), len(self.subwords.encode(self.prompts[0]))
        budget = self.max_pair_tokens - n_special
        left = self._context(context, min(budget, self.policy.max_context_tokens - n_special))
        whole = self.subwords.encode(self.prompts[1] + candidate)
        most = min(self.policy.max_candidate_tokens - n_special, max(budget - len(left), (budget - n_prompt) // 2))
        right = self._start(whole, most)
        if len(left) > budget - len(right):
            left = self._context(context, budget - len(right))
        parts = (self.pair[0], _of(left, self.segments[0]), self.pair[1], _of(right, self.segments[1]), self.pair[2])
        tokens = [token for part in parts for token in part]
        return [token for token, _ in tokens], [segment for _, segment in tokens]


def _of(ids: Sequence[int], segment: int) -> Special:
    return [(token, segment) for token in ids]


def load_template_texts(
    folder: Path,
    max_positions: int,
    *,
    max_tokens: int | None,
    max_context_tokens: int | None,
    max_candidate_tokens: int | None,
    lower_case: bool,
    prompts: tuple[str, str],
    chat: tuple[str, dict[str, Any], bool] | None = None,
) -> TemplateTexts | MessageTexts:
    """Load the tokenizer of a Hugging Face model folder, with its template.

    Args:
        folder: folder of the tokenizer.
        max_positions: the longest input of the network, in tokens.
        max_tokens: longest text or pair according to the model's files; None: according to the tokenizer.
        max_context_tokens, max_candidate_tokens: budgets of the two sides; None: ``max_tokens``. If either is given,
            the budget of a pair is their sum.
        lower_case: lower-case texts first.
        prompts: text before each context, and before each candidate.
        chat: the form of messages, the settings of their template, and whether the tokenizer must have one; None: texts
            are not messages.

    Raises:
        ArtifactError: transformers cannot read the tokenizer, or it has no padding token or no template.
        ConfigError: a budget is longer than the network's input.
    """
    tokenizer = load_tokenizer(folder)
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if lower_case:
        before = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = Normalizers([Lowercase(), *before])
    padding = tokenizer.pad_token or tokenizer.eos_token
    if padding is None:
        raise ArtifactError(f"the tokenizer in {folder} has no padding token; set pad_token in its config")
    end = tokenizer.sep_token or tokenizer.eos_token or padding
    subwords = Subwords(backend, tokenizer.cls_token or tokenizer.bos_token or end, end, padding)
    longest = min(max_tokens or int(tokenizer.model_max_length), max_positions)
    policy = TextPolicy(
        max_context_tokens=max_context_tokens or longest,
        max_candidate_tokens=max_candidate_tokens or longest,
        turn_separator=end,
    )
    both = policy.max_context_tokens + policy.max_candidate_tokens
    max_pair_tokens = min(both, max_positions) if max_context_tokens or max_candidate_tokens else longest
    if chat is not None and (tokenizer.chat_template or chat[2]):
        if not tokenizer.chat_template:
            raise ArtifactError(f"{folder} reads messages, but its tokenizer has no chat template; download it again")
        return MessageTexts(
            tokenizer,
            subwords,
            policy,
            max_positions,
            form=chat[0],
            settings=chat[1],
            max_pair_tokens=max_pair_tokens,
            prompts=prompts,
            where=str(folder),
        )
    single, pair = _template(tokenizer, "a"), _template(tokenizer, "a", "b")
    return TemplateTexts(
        subwords,
        policy,
        max_positions,
        single=(single[0], single[2]),
        pair=(pair[0], pair[2], pair[4]),
        segments=(pair[1][0][1], pair[3][0][1]),
        max_pair_tokens=max_pair_tokens,
        prompts=prompts,
    )


def _template(tokenizer: Any, *texts: str) -> list[Special]:
    """Ids and segments of short texts: special tokens, a text, special tokens, and so on."""
    encoded = tokenizer(*texts)
    segments = encoded.get("token_type_ids") or [0] * len(encoded["input_ids"])
    places = zip(encoded.sequence_ids(), encoded["input_ids"], segments, strict=True)
    parts: list[Special] = [[]]
    for number, group in groupby(places, key=lambda place: place[0]):
        tokens = [(token, segment) for _, token, segment in group]
        if number is None:
            parts[-1] = tokens
        else:
            parts += [tokens, []]
    return parts
