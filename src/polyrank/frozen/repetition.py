"""Choosing the weights of a re-ranker that compares wordings on validation lists."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from polyrank.errors import DataError
from polyrank.evaluation.protocols import evaluate
from polyrank.frozen.sums import lists_to_fit, weigh
from polyrank.records import Example
from polyrank.scorers.protocols import Encoder
from polyrank.scorers.repetition import Repetition

Progress = Callable[[str, list[range]], Iterable[range]]


def fit_repetition(
    encoder: Encoder, valid: Sequence[Example], *, progress: Progress = lambda _, batches: batches
) -> tuple[Repetition, dict[str, Any]]:
    """The re-ranker whose sum with an encoder's scores fits validation lists best, see ``fit_weights``.

    Args:
        encoder: frozen; the first stage.
        valid: candidate lists with a right answer.
        progress: called with a name and the list of batches, which it wraps.

    Returns:
        The re-ranker; and figures ready for JSON: of the encoder alone (``parts``), of both, and the ``gain`` in R@1,
        as those of ``fit_sum``; and in how many lists a candidate repeats a turn, and a right one does.

    Raises:
        DataError: no list has a right answer, or the encoder's scores do not help to find it.
    """
    lists = lists_to_fit(valid)
    first = evaluate(encoder, lists, progress=lambda batches: progress("lists", batches)).answerable
    # fitted weights are 0 or more, and these two may have either sign
    signed = [
        evaluate(Repetition(penalty=penalty, overlap=overlap), lists).answerable
        for penalty, overlap in ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))
    ]
    (own, *others), figures = weigh([first, *signed], over=0)
    if not own:
        raise DataError(
            f"the encoder adds nothing to repetition on {len(lists):,} lists; give more lists, or set the penalty and"
            " the overlap yourself"
        )
    penalty, overlap = ((others[i] - others[i + 1]) / own for i in (0, 2))
    penalty, overlap = float(f"{penalty:.4g}"), float(f"{overlap:.4g}")
    echoes = [record.scores < 0 for record in signed[0] if record.scores is not None]
    figures["n_echo"] = sum(bool(found.any()) for found in echoes)
    figures["n_echo_right"] = sum(
        bool(found[list(one.relevant)].any()) for found, one in zip(echoes, first, strict=True)
    )
    figures["parts"] = figures["parts"][:1]
    return Repetition(penalty=penalty, overlap=overlap, corrects=encoder.fingerprint), figures
