"""The examples and candidates of an evaluation: given or drawn lists, or one pool for all."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.checked import whole_number
from polyrank.data import choose_speaker, draw_candidates, read_examples, read_pool
from polyrank.data.beir import corpus_of, judgements_of
from polyrank.data.candidate_lists import have_lists
from polyrank.data.values import rows_of
from polyrank.evaluation.protocols import against_responses, rankable
from polyrank.records import Candidate, Example
from polyrank.wording import counted

RESPONSES = "responses"
"""The pool of all right answers of the data."""


@dataclass(frozen=True, slots=True)
class RankingTask:
    """The data on which models are compared.

    Args:
        source: of the examples, for figures and messages.
        examples: that can be ranked.
        pool: the candidates of all examples; None: each example has its own list.
        n_left_out: examples that every scorer would rank perfectly.
    """

    source: str
    examples: list[Example]
    pool: list[Candidate] | None
    n_left_out: int


def read_task(
    data: Any,
    *,
    pool: str | Path | None = None,
    limit: int | None = None,
    speaker: str | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> RankingTask:
    """Read examples and determine the candidates of each.

    Without ``pool`` these are its own list; for examples without lists, lists of 20 are drawn. For other lists, give
    the examples of ``draw_candidates``.

    Args:
        data: as for ``polyrank.read_examples``.
        pool: a file of candidates for every example; "responses": all right answers of the data.
        limit: use only the first so many examples.
        speaker: whose turns of dialogues are responses; None: the agents', "*": every speaker's.
        notify: called with lines for the user: how many examples were read, and how their candidates were chosen.

    Raises:
        UsageError: a setting does not fit this data.
        DataError: the data cannot be read, or has nothing to rank.
    """
    if limit is not None:
        whole_number(limit, "limit", least=1)
    source = str(data) if isinstance(data, str | Path) else "the rows"
    rows = data if isinstance(data, str | Path) else list(rows_of(data))  # which can be read twice
    loaded = read_examples(rows, speaker=choose_speaker(rows, speaker, name=source, notify=notify))
    notify(f"{source}: {loaded.report}")
    examples, candidates = loaded.examples, None
    if pool == RESPONSES:
        examples, candidates = against_responses(examples)
    elif pool is not None:
        candidates = read_pool(pool)
        ids = {candidate.id for candidate in candidates}
        if missing := [example for example in examples[:limit] if not ids.issuperset(example.relevant_ids)]:
            notify(
                f"{counted(len(missing), 'example')} of {len(examples[:limit])} name right answers that are not in the"
                " pool; only those in it count"
            )
    elif isinstance(data, str | Path) and (judgements := judgements_of(Path(data))):
        candidates = corpus_of(judgements)
    elif not have_lists(examples) and any(example.relevant for example in examples):
        examples = draw_candidates(examples, what=source, limit=limit)
        notify(
            f"each response is ranked among {len(examples[0].candidates) - 1} other responses of {source}; `polyrank"
            f" split` draws other lists, and `pool={RESPONSES}` ranks all responses"
        )
    shown = examples[:limit]
    ranked = rankable(shown, candidates)
    if n_left_out := len(shown) - len(ranked):
        notify(f"{n_left_out} of {len(shown)} examples left out: they have fewer than 2 candidates, or no wrong one")
    return RankingTask(source, ranked, candidates, n_left_out)
