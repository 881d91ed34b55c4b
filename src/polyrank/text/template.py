"""Texts for Hugging Face models: the boundary tokens and prompts of their tokenizers, with polyrank's truncation.

A text that fits gets the same ids as in its own library. A longer context loses its start, a longer candidate its end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text.messages import MessageTexts
from polyrank.text.policy import BackboneTexts, check_prefixes
from polyrank.text.subwords import Special, Subwords, load_tokenizer, subwords_of, template_of


class TemplateTexts(BackboneTexts):
    """A tokenizer with its own template, bound to a TextPolicy.

    Args:
        subwords: the vocabulary.
        policy: the text settings.
        max_positions: the longest input of the network, in tokens.
        pair: special tokens before, between and after the two texts of a pair.
        segments: segment of each text of a pair.
        max_pair_tokens: budget of a pair, including special tokens.

    Raises:
        ConfigError: a budget is too small for the prompt, or outside 4 to ``max_positions``.
    """

    def __init__(
        self,
        subwords: Subwords,
        policy: TextPolicy,
        max_positions: int,
        *,
        pair: tuple[Special, Special, Special],
        segments: tuple[int, int],
        max_pair_tokens: int,
    ) -> None:
        super().__init__(subwords, policy, max_positions)
        self.pair, self.segments, self.max_pair_tokens = pair, segments, max_pair_tokens
        check_prefixes(policy, self.prompts, subwords, 2 + sum(map(len, pair)))  # 2: one for each text of a pair

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """Context and candidate between their boundary tokens, and the segments.

        As in its own library, a pair that is too long loses tokens of the longer text, but none of the prompt.

        Raises:
            ConfigError: the template fills the budget of a text.
        """
        n_special, n_prompt = sum(map(len, self.pair)), len(self.subwords.encode(self.prompts[0]))
        budget = self.max_pair_tokens - n_special
        if n_special >= (least := min(self.policy.max_context_tokens, self.policy.max_candidate_tokens)):
            raise ConfigError(f"{least} tokens leave none after the {n_special} of a pair's template; raise the limit")
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
    pair_parts: Sequence[Sequence[str]] = (),
    chat: tuple[str, dict[str, Any], bool, str | None] | None = None,
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
        pair_parts: texts before, between and after the two texts of a pair; empty: the tokenizer's special tokens.
        chat: the form of messages, the settings of their template, whether the tokenizer must have one, and the
            template in place of the tokenizer's; None: texts are not messages.

    Raises:
        ArtifactError: transformers cannot read the tokenizer, or it has no padding token or no template.
        ConfigError: a budget is longer than the network's input.
    """
    tokenizer = load_tokenizer(folder)
    if tokenizer.truncation_side == "left":
        raise ArtifactError(
            f"the tokenizer in {folder} cuts the starts of texts, and polyrank cuts the ends of candidates; set"
            " truncation_side to right in its tokenizer_config.json, or choose another model"
        )
    subwords = subwords_of(tokenizer, folder, lower_case=lower_case)
    longest = min(max_tokens or int(tokenizer.model_max_length), max_positions)
    policy = TextPolicy(
        max_context_tokens=max_context_tokens or longest,
        max_candidate_tokens=max_candidate_tokens or longest,
        turn_separator=subwords.names["end"],
        context_prefix=prompts[0],
        candidate_prefix=prompts[1],
    )
    both = policy.max_context_tokens + policy.max_candidate_tokens
    max_pair_tokens = min(both, max_positions) if max_context_tokens or max_candidate_tokens else longest
    if chat is not None and chat[3] is not None:
        tokenizer.chat_template = chat[3]
    if chat is not None and (tokenizer.chat_template or chat[2]):
        if not tokenizer.chat_template:
            raise ArtifactError(f"{folder} reads messages, but its tokenizer has no chat template; download it again")
        texts: TemplateTexts | MessageTexts = MessageTexts(
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
    else:
        before, first, between, second, after = template_of(tokenizer, "a", "b")
        if any(pair_parts):
            start, between, after = (
                _of([token for text in part for token in subwords.encode(text)], 0) for part in pair_parts
            )
            before = [*before, *start]
        texts = TemplateTexts(
            subwords,
            policy,
            max_positions,
            pair=(before, between, after),
            segments=(first[0][1], second[0][1]),
            max_pair_tokens=max_pair_tokens,
        )
    texts.pads_left = tokenizer.padding_side == "left"
    texts.has_types = "token_type_ids" in tokenizer.model_input_names
    return texts
