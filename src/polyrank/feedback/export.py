"""From feedback to Examples: what people took is right, what they passed over for it is wrong.

Requests of the same context are one Example: whatever was ever taken for it is right there, and is not wrong anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyrank.data.same_words import same_words
from polyrank.feedback.records import RequestFeedback
from polyrank.records import Context, Example

UNANSWERED = "nobody said what became of them"
NO_CONTEXT = "the text of the context is not known"
NO_RIGHT = "the text of the right reply is not known"
REFUSED = "all replies were refused, and no other is known to be right"
NO_TEXT = "all replies were refused, and no text of them is known"


@dataclass(frozen=True, slots=True)
class Exported:
    """Examples and what did not become one.

    Args:
        examples: in the order in which their contexts were first shown; the right candidates come first.
        n_requests: that were looked at.
        left_out: how many of them, by the reason.
        n_unknown: replies whose text is not known, so that they are not among the wrong ones.
    """

    examples: list[Example]
    n_requests: int
    left_out: dict[str, int]
    n_unknown: int


@dataclass(slots=True)
class _Use:
    """All that is known of one context; texts by their words, so that what says the same is one."""

    context: Context
    conversation: str
    n_requests: int = 0
    right: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    neither: dict[str, str] = field(default_factory=dict)

    def example(self, number: int) -> Example:
        """The right ones first."""
        right = [*self.right.values()]
        wrong = [text for words, text in self.wrong.items() if words not in self.right and words not in self.neither]
        name = f"{self.conversation}#{number}"
        return Example(self.context.turns, (*right, *wrong), (*range(len(right)),), name, self.context.background)


def examples(
    requests: Iterable[RequestFeedback],
    *,
    texts: Mapping[str, str] | None = None,
    contexts: Mapping[str, Context] | None = None,
    refused: bool = False,
    edited_is_wrong: bool = False,
) -> Exported:
    """Examples to train on, see ``FeedbackStore.requests``.

    A reply that was taken is right. Of one that was edited the final text is right; what it was edited from is neither
    right nor wrong, for it was nearest to what was wanted. Where all were refused, the final text is right, if there is
    one. All others that were shown are wrong. The id is that of the conversation, ``#`` and a number, so that
    ``polyrank split`` keeps a conversation together; where no conversation was named, a request goes on with the
    one whose context and reply it begins with.

    Args:
        requests: in the order in which they were recorded.
        texts: of replies by id, where they were not kept, such as those of an index.
        contexts: by their codes, see ``FeedbackStore.context_code``, where they were not kept.
        refused: also give examples of contexts for which no reply is right: training passes them over, a threshold
            for no answer is chosen by them.
        edited_is_wrong: take what a reply was edited from for wrong.
    """
    texts, contexts = texts or {}, contexts or {}
    uses: dict[Context, _Use] = {}
    conversations: dict[Context, str] = {}  # that go on with these turns
    left_out: Counter[str] = Counter()
    n_requests = n_unknown = 0
    for request in requests:
        n_requests += 1
        shown, outcome = request.shown, request.outcome
        context = shown.context or contexts.get(request.context_code or "")
        if outcome is None or context is None:
            left_out[UNANSWERED if outcome is None else NO_CONTEXT] += 1
            continue
        known = {reply.id: reply.text or texts.get(reply.id) for reply in shown.replies}
        right = known.get(outcome.reply_id or "") if outcome.action == "taken" else outcome.final_text
        if right is None and outcome.action != "refused":
            left_out[NO_RIGHT] += 1
            continue
        conversation = shown.conversation or _before(context, conversations) or shown.request_id
        use = uses.setdefault(context, _Use(context, conversation))
        use.n_requests += 1
        if right is not None:
            use.right.setdefault(same_words(right), right)
            conversations.setdefault(replace(context, turns=(*context.turns, right)), conversation)
        for id_, text in known.items():
            original = id_ == outcome.reply_id and not edited_is_wrong  # or what was taken, which is right anyway
            if text is not None:
                (use.neither if original else use.wrong).setdefault(same_words(text), text)
            n_unknown += text is None
    made: list[Example] = []
    numbers: Counter[str] = Counter()
    for use in uses.values():
        if use.right or (refused and use.wrong):
            made.append(use.example(numbers[use.conversation]))
            numbers[use.conversation] += 1
        else:
            left_out[NO_TEXT if refused else REFUSED] += use.n_requests
    return Exported(made, n_requests, dict(left_out), n_unknown)


def _before(context: Context, conversations: Mapping[Context, str]) -> str | None:
    """The conversation that a context goes on, by the longest beginning of it that ends with a known reply."""
    for n in range(len(context.turns) - 1, 1, -1):
        name = conversations.get(replace(context, turns=context.turns[:n]))
        if name is not None:
            return name
    return None
