"""The examples and candidates of an evaluation: given or drawn lists, groups of examples, or one pool for all."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyrank.config.checked import whole_number
from polyrank.data import choose_speaker, draw_candidates, read_examples, read_pool
from polyrank.data.candidate_lists import group_candidates, have_lists
from polyrank.data.in_memory import rows_of
from polyrank.errors import UsageError
from polyrank.evaluation.protocols import against_responses, last_turns, rankable
from polyrank.records import Candidate, Example

RESPONSES = "responses"
"""The pool of all right answers of the data."""


@dataclass(frozen=True, slots=True)
class Task:
    """The data on which models are compared.

    Args:
        source: of the examples, for figures and messages.
        examples: that can be ranked.
        pool: the candidates of all examples; None: each example has its own list.
        n_left_out: examples that every scorer would rank perfectly.
        allow_echo: for a pool, see ``evaluate``.
    """

    source: str
    examples: list[Example]
    pool: list[Candidate] | None
    n_left_out: int
    allow_echo: bool = False


def read_task(
    data: Any,
    *,
    pool: str | Path | None = None,
    n_candidates: int | None = None,
    candidates_from: str | Path | None = None,
    groups: int | None = None,
    seed: int = 0,
    limit: int | None = None,
    turns: int | None = None,
    speaker: str | None = None,
    allow_echo: bool = False,
    skip_bad: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Task:
    """Read examples and determine the candidates of each.

    Without ``pool`` and ``groups`` these are its own list; for examples without lists, lists are drawn.

    Args:
        data: as for ``polyrank.read_examples``.
        pool: a file of candidates for every example; "responses": all right answers of the data.
        n_candidates: length of drawn lists; None: 20, or fewer.
        candidates_from: a file of texts from which wrong candidates are drawn; None: the other responses.
        groups: rank each response among those of a random group of so many examples; 100: ConveRT's R100@1.
        seed: of groups and of drawn lists.
        limit: use only the first so many examples.
        turns: show models only the last so many turns of each context.
        speaker: whose turns of dialogues are responses; None: the agents', "*": every speaker's.
        allow_echo: for a pool, also rank a context's own turns high, see ``evaluate``.
        skip_bad: count and skip bad rows.
        notify: called with lines for the user: how many examples were read, and how their candidates were chosen.

    Raises:
        UsageError: two settings exclude each other, or one does not fit this data.
        DataError: the data cannot be read, or has nothing to rank.
    """
    for name, value in {"limit": limit, "turns": turns, "groups": groups, "n_candidates": n_candidates}.items():
        if value is not None:
            whole_number(value, name, least=1)
    if pool is not None and n_candidates is not None:
        raise UsageError(f"`n_candidates={n_candidates}` and `pool={pool}` exclude each other; give one")
    if groups is not None and (pool is not None or n_candidates is not None):
        raise UsageError(f"`groups={groups}` excludes `pool` and `n_candidates`; give one of them")
    if allow_echo and pool is None:
        raise UsageError("`allow_echo=True` needs a pool, because given lists keep all their candidates; leave it out")
    if candidates_from is not None and n_candidates is None:
        raise UsageError(f"`candidates_from={candidates_from}` needs the length of the lists; give `n_candidates`")
    others = [] if candidates_from is None else [candidate.text for candidate in read_pool(candidates_from)]
    source = str(data) if isinstance(data, str | Path) else "the rows"
    rows = data if isinstance(data, str | Path) else list(rows_of(data))  # which can be read twice
    loaded = read_examples(rows, speaker=choose_speaker(rows, speaker, name=source, notify=notify), skip_bad=skip_bad)
    notify(f"{source}: {loaded.report}")
    examples, candidates = loaded.examples, None
    if pool == RESPONSES:
        examples, candidates = against_responses(examples)
    elif pool is not None:
        candidates = read_pool(pool)
    elif groups is not None:
        examples = group_candidates(examples, groups, seed=seed, what=source)
        n_rest = len(loaded.examples) - len(examples)
        notify(
            f"each response is ranked among the {groups} of its group; {n_rest} examples of the last, partial group are"
            " left out"
        )
    elif not have_lists(examples) and any(example.relevant for example in examples):
        examples = draw_candidates(examples, n_candidates, seed=seed, what=source, limit=limit, others=others)
        n_others = len(examples[0].candidates) - 1
        what = (
            f"texts of {candidates_from}" if others else f"responses of {source}; for all of them: `pool={RESPONSES}`"
        )
        notify(f"each response is ranked among {n_others} other {what}")
    elif n_candidates is not None and have_lists(examples):
        raise UsageError(
            f"`n_candidates={n_candidates}` is for examples without lists, and {source} has lists; leave it out"
        )
    shown = examples[:limit] if turns is None else last_turns(examples[:limit], turns)
    ranked = rankable(shown, candidates)
    if n_left_out := len(shown) - len(ranked):
        notify(f"{n_left_out} of {len(shown)} examples left out: they have fewer than 2 candidates, or no wrong one")
    return Task(source, ranked, candidates, n_left_out, allow_echo)
