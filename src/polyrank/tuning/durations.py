"""The milliseconds of a term in an answer on this machine: encoding one context, searching a catalogue, re-ranking."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from polyrank.devices.choice import free_cores
from polyrank.index import Block
from polyrank.records import Example
from polyrank.scorers.terms.protocol import ReplyTerm, Term
from polyrank.search import search

N_TIMED = 9
MAX_ROWS = 200_000  # a search of more takes proportionally longer


def milliseconds(term: Term, lists: Sequence[Example], catalogue: int | None, *, n_reranked: int) -> float:
    """The median time of one answer's part.

    Args:
        term: of a ranker.
        lists: from which contexts and candidates are taken.
        catalogue: how many replies are searched; None: the distinct ones of the lists.
        n_reranked: how many replies a term without vectors scores.
    """
    if isinstance(term, ReplyTerm):
        return 0.0  # one more number of a vector
    contexts = [example.query for example in lists[: N_TIMED + 1]]
    texts = list(dict.fromkeys(text for example in lists for text in example.candidates))
    encoder = term.encoder((1.0,) * len(term.features))
    if encoder is None:
        shown = texts[:n_reranked]
        return _median([partial(term.score, [context], [shown]) for context in contexts])
    encoding = _median([partial(encoder.encode_contexts, [context]) for context in contexts])
    wanted = catalogue or len(texts)
    generator = np.random.Generator(np.random.PCG64(0))
    vectors = generator.standard_normal((min(wanted, MAX_ROWS), encoder.dimension), np.float32)
    block = Block(vectors, np.arange(len(vectors)))
    query, mask = encoder.encode_contexts(contexts[:1])
    with free_cores():
        searching = _median([lambda: search(query, mask, [block], 10)] * N_TIMED)
    return encoding + searching * wanted / len(vectors)


def _median(calls: Sequence[Callable[[], object]]) -> float:
    """The median time of calls in milliseconds, without the first, which is slower."""
    times = []
    for call in calls:
        started = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - started))
    return float(np.median(times[1:] or times))
