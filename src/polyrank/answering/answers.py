"""Answers: replies to a context, best first, with the values of their slots."""

from dataclasses import dataclass, replace
from typing import Any

from polyrank.notebook import table
from polyrank.ranking.frames import data_frame
from polyrank.records import Context, Ranked
from polyrank.slots import GAPS_FIELD, fill, slots_in, values_of


@dataclass(frozen=True, slots=True)
class Answer:
    """Replies to one context.

    Args:
        ranked: best first, even if none is good enough.
        confidence: in the best one; None without a calibrated threshold.
        abstained: whether no reply is good enough.
        exact: whether these are proven to be the best of the index; None if unknown.
        n_scored: how many candidates were scored in full; None if unknown.
        ways: how the search was done, see ``polyrank.search.Result``; empty if unknown.
        notes: remarks for the user, such as a filter on a field that no candidate has.
        request_id: identifies the answer of a server, for feedback; empty: not from a server.
    """

    ranked: tuple[Ranked, ...]
    confidence: float | None
    abstained: bool
    exact: bool | None = None
    n_scored: int | None = None
    ways: tuple[str, ...] = ()
    request_id: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """The best reply; None if none is good enough."""
        return None if self.abstained else self.ranked[0].text

    def to_pandas(self) -> Any:
        """A pandas DataFrame with a row for each reply: ``id``, ``text``, ``score``, the stages, and the metadata.

        Raises:
            UsageError: pandas is not installed.
        """
        rows = [{"id": one.id, "text": one.text, "score": one.score} | one.stages for one in self.ranked]
        columns = ["id", "text", "score", *(name for row in rows for name in row)]
        return data_frame([one.metadata | row for one, row in zip(self.ranked, rows, strict=True)], columns)

    def _repr_html_(self) -> str:
        """The answer as a table, for notebooks."""
        stages = list(dict.fromkeys(stage for reply in self.ranked for stage in reply.stages))
        rows = [[one.text, one.score, *(one.stages.get(name, "") for name in stages), one.id] for one in self.ranked]
        return table(["reply", "score", *stages, "id"], rows, "no good answer" if self.abstained else "")


def filled(answer: Answer, context: Context) -> Answer:
    """An answer whose replies have the values of their slots, from the context; see ``polyrank.slots``."""
    if not any(slots_in(reply.template) for reply in answer.ranked):
        return answer
    values, ranked = values_of(context), []
    for reply in answer.ranked:
        gaps = reply.metadata.get(GAPS_FIELD)
        text, slots = fill(reply.template, values, gaps if isinstance(gaps, list) else ())
        ranked.append(replace(reply, text=text, slots=slots))
    return replace(answer, ranked=tuple(ranked))
