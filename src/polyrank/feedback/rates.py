"""How often users accepted shown replies: overall, and by rank, week and model."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from polyrank.feedback.records import ACTIONS, RequestFeedback
from polyrank.ranking.statistics import wilson

BY = ("rank", "week", "model")


@dataclass(slots=True)
class _Group:
    """Requests that are counted together."""

    counts: Counter[str] = field(default_factory=Counter)
    reciprocal_ranks: float = 0.0

    def add(self, request: RequestFeedback) -> None:
        self.counts["unanswered" if request.outcome is None else request.outcome.action] += 1
        if request.rank is not None:
            self.reciprocal_ranks += 1 / request.rank

    def figures(self) -> dict[str, Any]:
        used = self.counts["taken"] + self.counts["edited"]
        return (
            {"n_requests": self.counts.total()}
            | {action: self.counts[action] for action in (*ACTIONS, "unanswered")}
            | _share(used, used + self.counts["refused"])
            | {"mrr": self.reciprocal_ranks / used if used else None}
        )


def count_taken(requests: Iterable[RequestFeedback]) -> Counter[str]:
    """How often users sent each reply unchanged, by the reply's id.

    >>> from polyrank.feedback import Outcome, Reply, Shown
    >>> shown = Shown("r1", (Reply("hello"), Reply("bye")))
    >>> count_taken([RequestFeedback(shown, Outcome("r1", "taken", "bye")), RequestFeedback(shown)])
    Counter({'bye': 1})
    """
    outcomes = (request.outcome for request in requests)
    return Counter(one.reply_id for one in outcomes if one and one.action == "taken" and one.reply_id)


def report(requests: Iterable[RequestFeedback]) -> dict[str, Any]:
    """Counts and rates of use, see ``FeedbackStore.requests``.

    ``acceptance`` is the share of requests with an outcome whose outcome is a taken or edited reply, and ``interval``
    its 95% interval (Wilson). ``mrr`` is the mean of 1 / rank of that reply, over the requests that have one. At a
    rank, the denominator is the number of requests with an outcome that showed a reply there. Ratios with a zero
    denominator are None.

    Returns:
        ``n_requests``, ``taken``, ``edited``, ``refused``, ``unanswered``, ``acceptance``, ``interval`` and ``mrr``
        over all requests; and lists ``by_rank``, ``by_week`` (ISO weeks in UTC) and ``by_model``, whose entries also
        have a ``name``.
    """
    everything, weeks, models = _Group(), dict[str, _Group](), dict[str, _Group]()
    shown_at: Counter[int] = Counter()
    used_at: dict[int, Counter[str]] = {}
    for request in requests:
        shown = request.shown
        week = "{}-W{:02}".format(*shown.time.isocalendar()[:2])
        model = shown.model or "unknown"
        if shown.fingerprint:
            model += f" ({shown.fingerprint[:12]})"
        for group in (everything, weeks.setdefault(week, _Group()), models.setdefault(model, _Group())):
            group.add(request)
        if request.outcome is not None:
            shown_at.update(range(1, len(shown.replies) + 1))
            if request.rank is not None:
                used_at.setdefault(request.rank, Counter())[request.outcome.action] += 1
    by_rank = []
    for rank, n in sorted(shown_at.items()):
        used = used_at.get(rank, Counter[str]())
        counts = {"n_shown": n, "taken": used["taken"], "edited": used["edited"]}
        by_rank.append({"name": str(rank)} | counts | _share(used.total(), n))
    return everything.figures() | {
        "by_rank": by_rank,
        "by_week": [{"name": name} | group.figures() for name, group in sorted(weeks.items())],
        "by_model": [{"name": name} | group.figures() for name, group in models.items()],
    }


def _share(used: int, n: int) -> dict[str, Any]:
    return {"acceptance": used / n if n else None, "interval": list(wilson(used, n)) if n else None}
