"""Texts for models that read messages: the tokenizer's chat template wraps each text or pair.

transformers renders the template in a sandbox. A text that fits gets the same ids as in its own library. A longer
context loses its start, a longer candidate its end, and the template stays whole.
"""

from collections.abc import Callable, Sequence
from typing import Any

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text.cut import Cut
from polyrank.text.subwords import Subwords
from polyrank.text.texts import Texts

PARTS = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
"""In a template, signs that the content of a message is a list of parts."""


class MessageTexts(Texts):
    """A tokenizer with a chat template, bound to a TextPolicy.

    A context becomes one text, with a line for each fact and turn.

    Args:
        tokenizer: of the transformers library; renders the template.
        subwords: its vocabulary.
        policy: the text settings; only the budgets apply.
        max_positions: the longest input of the network, in tokens.
        form: of a message's content: "flat", "structured", or "auto", as the template reads it.
        settings: of the template.
        max_pair_tokens: budget of a pair.
        prompts: system messages of contexts (and pairs), and of candidates.
        where: names the model in errors.

    Raises:
        ArtifactError: the template cannot be rendered.
    """

    policy: TextPolicy
    subwords: Subwords

    def __init__(
        self,
        tokenizer: Any,
        subwords: Subwords,
        policy: TextPolicy,
        max_positions: int,
        *,
        form: str,
        settings: dict[str, Any],
        max_pair_tokens: int,
        prompts: tuple[str, str],
        where: str,
    ) -> None:
        self.tokenizer, self.subwords, self.policy, self.max_positions = tokenizer, subwords, policy, max_positions
        self.settings, self.max_pair_tokens, self.prompts, self.where = settings, max_pair_tokens, prompts, where
        template = str(tokenizer.chat_template)
        parts = any(sign in template for sign in PARTS) or not isinstance(tokenizer.chat_template, str)
        self.structured = parts if form == "auto" else form == "structured"
        self.has_task = "task" in template
        self.cut = Cut(policy.max_context_tokens, policy.max_candidate_tokens, policy.max_background_tokens)

    @property
    def key(self) -> str:
        """See ``Texts``."""
        form = self.tokenizer.chat_template, self.structured, self.settings, self.prompts, self.max_pair_tokens
        return f"{super().key} {form}"

    def check_pairs(self) -> None:
        """Refuse a template that leaves out a text of a pair, as the library does.

        Raises:
            ArtifactError: the texts of a pair do not reach the network.
        """
        pairs = (("alpha", "bravo"), ("charlie", "bravo"), ("alpha", "foxtrot"))
        base, *others = (self._pair(*pair) for pair in pairs)
        if base in others:
            raise ArtifactError(
                f"{self.where} reads messages, and its chat template leaves out the roles query and document; remove"
                " the template from its tokenizer, or choose another model"
            )

    def _render(self, messages: Sequence[tuple[str, str]], task: str | None = None) -> list[int]:
        chat = [
            {"role": role, "content": [{"type": "text", "text": text}] if self.structured else text}
            for role, text in messages
        ]
        known = {"task": task} if task and self.has_task else {}
        try:
            text = self.tokenizer.apply_chat_template(chat, tokenize=False, **known | self.settings)
        except Exception as error:  # a template can raise anything
            reason = " ".join(str(error).split())[:200]
            raise ArtifactError(
                f"{self.where} reads messages, and its chat template fails ({reason}); choose another model"
            ) from error
        return list(self.subwords.encode(text))

    def _one(self, text: str, side: int) -> list[int]:
        system = [("system", prompt)] if (prompt := self.prompts[side]) else []
        return self._render([*system, ("user", text)], ("query", "document")[side])

    def _pair(self, context: str, candidate: str) -> list[int]:
        system = [("system", prompt)] if (prompt := self.prompts[0]) else []
        return self._render([*system, ("query", context), ("document", candidate)])

    def _fit(self, render: Callable[..., list[int]], texts: dict[str, str], budget: int) -> list[int]:
        """The ids of rendered texts, by side; as long as they are too long, the longest text loses tokens."""
        ids, whole = render(*texts.values()), texts
        while (excess := len(ids) - budget) > 0:
            spans = {side: self.subwords.encode_spans(text) for side, text in texts.items()}
            side = max(spans, key=lambda each: len(spans[each]))
            n, others = len(spans[side]), [len(spans[other]) for other in spans if other != side]
            if n == 0:
                raise ConfigError(
                    f"{self.where} needs {len(ids)} tokens for its chat template alone, and {budget} are allowed; raise"
                    " the limit"
                )
            lost = min(n, excess, max(n - others[0], -(-excess // 2)) if others else excess)
            text, is_context, bounds = texts[side], side == "context", [0, *(end for _, _, end in spans[side])]
            # a character may have several tokens, so the text ends before the first token that is lost
            kept = text[bounds[lost] :] if is_context else text[: min(bounds[n - lost], spans[side][n - lost][1])]
            texts = texts | {side: kept}
            (self.cut.contexts if is_context else self.cut.candidates).add(hash(whole[side]))
            ids = render(*texts.values())
        return ids

    def context_ids(self, context: Context) -> list[int]:
        """The rendered message within ``max_context_tokens``."""
        texts = {"context": _joined(context)}
        return self._fit(lambda text: self._one(text, 0), texts, self.policy.max_context_tokens)

    def candidate_ids(self, text: str) -> list[int]:
        """The rendered message within ``max_candidate_tokens``."""
        texts, budget = {"candidate": text}, self.policy.max_candidate_tokens
        return self._fit(lambda text: self._one(text, 1), texts, budget)

    def pair_ids(self, context: Context, candidate: str) -> tuple[list[int], list[int]]:
        """The rendered messages of roles query and document within ``max_pair_tokens``, and segments of 0."""
        texts = {"context": _joined(context), "candidate": candidate}
        ids = self._fit(self._pair, texts, self.max_pair_tokens)
        return ids, [0] * len(ids)


def _joined(context: Context) -> str:
    return "\n".join((*context.background, *context.turns))
