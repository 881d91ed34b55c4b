"""Converts feedback to Examples: replies that users took are right, the replies shown with them are wrong.

All requests with the same context form one Example. If users ever took a reply for a context, it is right for
that context and never counts as wrong there.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyrank.data.same_words import same_words
from polyrank.feedback.records import RequestFeedback
from polyrank.records import Context, Example
from polyrank.slots import fill, values_of

UNANSWERED = "no outcome was recorded"
NO_CONTEXT = "the text of the context is unknown"
NO_RIGHT = "the text of the right reply is unknown"
REFUSED = "all replies were refused, and no right reply is known"
NO_TEXT = "all replies were refused, and none of their texts is known"


@dataclass(frozen=True, slots=True)
class Exported:
    """Examples, and counts of the requests that did not become one.

    Args:
        examples: in the order in which their contexts were first shown; right candidates come first.
        n_requests: number of requests read.
        left_out: number of skipped requests by reason.
        n_unknown: replies whose text is unknown, and which are therefore missing among the wrong ones.
    """

    examples: list[Example]
    n_requests: int
    left_out: dict[str, int]
    n_unknown: int


@dataclass(slots=True)
class _Use:
    """All that is known about one context; texts by their normalized words, so that duplicates count once."""

    context: Context
    conversation: str
    n_requests: int = 0
    right: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    neither: dict[str, str] = field(default_factory=dict)

    def example(self, number: int) -> Example:
        """An Example with the right replies first."""
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
) -> Exported:
    """Training examples from feedback, see ``FeedbackStore.requests``.

    A taken reply is right. For an edited reply, the final text is right; the original is neither right nor wrong,
    because it was closest to what the user wanted. If all replies were refused, the final text is right, if one was
    given. All other shown replies are wrong. An example's id is the conversation's, ``#`` and a number, so that
    ``polyrank split`` keeps a conversation together. A request without a conversation joins the one whose context and
    reply its own context begins with.

    Args:
        requests: in the order in which they were recorded.
        texts: of replies by id, such as an index's, for replies whose text was not kept.
        contexts: by code, see ``context_code``, for contexts that were not kept.
        refused: also return examples without a right reply: training skips them, and calibration of the threshold for
            "no answer" uses them.
    """
    texts, contexts = texts or {}, contexts or {}
    uses: dict[Context, _Use] = {}
    conversations: dict[Context, str] = {}  # by the context that continues them
    left_out: Counter[str] = Counter()
    n_requests = n_unknown = 0
    for request in requests:
        n_requests += 1
        shown, outcome = request.shown, request.outcome
        context = shown.context or contexts.get(request.context_code or "")
        if outcome is None or context is None:
            left_out[UNANSWERED if outcome is None else NO_CONTEXT] += 1
            continue
        shown_texts = {reply.id: reply.text or texts.get(reply.id) for reply in shown.replies}
        right = shown_texts.get(outcome.reply_id or "") if outcome.action == "taken" else outcome.final_text
        if right is None and outcome.action != "refused":
            left_out[NO_RIGHT] += 1
            continue
        conversation = shown.conversation or _continued(context, conversations) or shown.request_id
        use = uses.setdefault(context, _Use(context, conversation))
        use.n_requests += 1
        if right is not None:
            use.right.setdefault(same_words(right), right)
            sent, _ = fill(right, values_of(context))
            conversations.setdefault(replace(context, turns=(*context.turns, sent)), conversation)
        for id_, text in shown_texts.items():
            if text is not None:  # a taken reply becomes neither, but it is right anyway
                (use.neither if id_ == outcome.reply_id else use.wrong).setdefault(same_words(text), text)
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


def _continued(context: Context, conversations: Mapping[Context, str]) -> str | None:
    """The conversation that a context continues: its longest beginning that ends with a known reply decides."""
    beginnings = (replace(context, turns=context.turns[:n]) for n in range(len(context.turns) - 1, 1, -1))
    return next((conversations[beginning] for beginning in beginnings if beginning in conversations), None)
