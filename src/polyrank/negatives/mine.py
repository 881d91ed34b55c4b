"""Mining hard negatives: retrieve texts for each context, drop the right ones, and return Examples.

The retriever returns texts that look right. A Cross-encoder can drop those that are probably right but not labelled.
This module opens no files: ``polyrank mine`` reads and writes them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from polyrank.data.candidate_lists import words_of
from polyrank.errors import UsageError
from polyrank.index.protocol import Block
from polyrank.negatives.hard import SPARE, HardNegatives, choose, hard_candidates
from polyrank.ranking.top import top_rows
from polyrank.records import Candidate, Context, Example
from polyrank.scorers.protocols import Encoder, Responds, Scorer
from polyrank.search import search

Retrieve = Callable[[Sequence[Context], int], list[list[str]]]
"""From contexts and a depth to the texts of each context, best first."""


@dataclass(frozen=True, slots=True)
class Mined:
    """The result of mining.

    Args:
        examples: those with a right answer; their candidates are the right ones, then the wrong ones, hardest first.
        n_skipped: examples without a right answer, which are left out.
        n_short: examples with fewer negatives than requested.
        n_doubtful: texts that the re-ranker dropped as probably right.
        mean_negatives: mean number of negatives per example.
    """

    examples: tuple[Example, ...]
    n_skipped: int
    n_short: int
    n_doubtful: int
    mean_negatives: float


def mine(
    examples: Sequence[Example],
    retrieve: Retrieve,
    settings: HardNegatives,
    *,
    reranker: Scorer | None = None,
    margin: float = 0.0,
    further: Sequence[Example] = (),
    progress: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Mined:
    """Replace each example's wrong candidates by hard negatives retrieved for its context.

    Args:
        examples: with their right answers. A right answer of another example whose context has the same words is
            never a negative.
        retrieve: ``from_pool`` or ``from_retriever``.
        settings: which ranks to use.
        reranker: drops texts that score like a right answer; None: keep all.
        margin: the re-ranker drops texts above ``score(worst right answer) - margin``; a negative margin drops fewer.
        further: more examples, whose right answers do not count as wrong for the same context either.
        progress: wraps the starts of batches.

    Source of the re-ranker's part: Qu et al., RocketQA (2021), denoised hard negatives; the margin as in Moreira et
        al., NV-Retriever (2024).

    >>> pool = ["my wifi is down", "wifi is slow", "wifi wifi", "thanks"]
    >>> example = Example(("is the wifi down?",), ("My wifi is down!",), (0,))
    >>> from polyrank.scorers.lexical import BM25
    >>> mine([example], from_pool(BM25(), pool), HardNegatives(n_negatives=1, last_rank=1)).examples[0].candidates
    ('My wifi is down!', 'wifi is slow')
    """
    mined: list[Example] = []
    n_short = n_doubtful = 0
    right_of: dict[tuple[str, ...], dict[str, None]] = {}
    for example in (*examples, *further):
        right_of.setdefault(words_of(example), {}).update(dict.fromkeys(_right(example)))
    labelled = [(index, example) for index, example in enumerate(examples) if example.relevant]
    for start in progress(range(0, len(labelled), 32)):
        part = labelled[start : start + 32]
        n_right = max(len(right_of[words_of(example)]) for _, example in part)
        ranked = retrieve([example.query for _, example in part], settings.last_rank + n_right + SPARE)
        lists = [
            hard_candidates(row, right_of[words_of(example)], settings, turns=example.context)
            for (_, example), row in zip(part, ranked, strict=True)
        ]
        if reranker is not None:
            wrong_lists = _surely_wrong([example for _, example in part], lists, reranker, margin)
            n_doubtful += sum(map(len, lists)) - sum(map(len, wrong_lists))
            lists = wrong_lists
        for (index, example), texts in zip(part, lists, strict=True):
            wrong = choose(texts, settings, index)
            n_short += len(wrong) < settings.n_negatives
            right = _right(example)
            candidates, relevant = (*right, *wrong), tuple(range(len(right)))
            mined.append(replace(example, candidates=candidates, relevant=relevant, relevant_ids=(), grades=()))
    n_negatives = sum(len(example.candidates) - len(example.relevant) for example in mined)
    return Mined(
        tuple(mined), len(examples) - len(labelled), n_short, n_doubtful, n_negatives / len(mined) if mined else 0.0
    )


def with_texts(examples: Sequence[Example], candidates: Iterable[Candidate]) -> list[Example]:
    """The examples, with the texts of the right answers that they give by id.

    >>> with_texts([Example(("hi",), relevant_ids=("r1",))], [Candidate("r1", "hello")])[0].response
    'hello'
    """
    ids = {name for example in examples for name in example.relevant_ids}
    text_of = {candidate.id: candidate.text for candidate in candidates if candidate.id in ids}
    result = []
    for example in examples:
        texts = [text_of[name] for name in example.relevant_ids if name in text_of]
        if texts and not example.relevant:
            example = replace(
                example, candidates=(*texts, *example.candidates), relevant=tuple(range(len(texts))), relevant_ids=()
            )
        result.append(example)
    return result


def _right(example: Example) -> list[str]:
    return list(dict.fromkeys(example.candidates[i] for i in example.relevant))


def _surely_wrong(
    examples: Sequence[Example], lists: Sequence[list[str]], reranker: Scorer, margin: float
) -> list[list[str]]:
    """The texts of each list that score below the worst right answer by more than ``margin``."""
    rights = [_right(example) for example in examples]
    together = [[*right, *texts] for right, texts in zip(rights, lists, strict=True)]
    result = []
    for right, texts, values in zip(rights, lists, reranker.score([e.query for e in examples], together), strict=True):
        limit = float(values[: len(right)].min()) - margin
        result.append([text for text, value in zip(texts, values[len(right) :].tolist(), strict=True) if value < limit])
    return result


def from_retriever(retriever: Responds) -> Retrieve:
    """Retrieve texts from a retriever's index."""

    def retrieve(contexts: Sequence[Context], depth: int) -> list[list[str]]:
        return [[reply.text for reply in replies] for replies in retriever.respond(contexts, depth)]

    return retrieve


def from_pool(scorer: Scorer, pool: Sequence[str]) -> Retrieve:
    """Retrieve texts from a pool by the scores of any Scorer, such as BM25; ties keep the order of the pool.

    An Encoder encodes the pool once, and exact search finds the best.

    Raises:
        UsageError: the pool is empty.
    """
    texts = list(dict.fromkeys(pool))
    if not texts:
        raise UsageError("the pool to mine from is empty; give texts or examples with responses")

    def retrieve(contexts: Sequence[Context], depth: int) -> list[list[str]]:
        return [[texts[i] for i in top_rows(values, depth)] for values in scorer.score_pool(contexts, texts)]

    return _from_vectors(scorer, texts) if isinstance(scorer, Encoder) else retrieve


def _from_vectors(encoder: Encoder, texts: Sequence[str]) -> Retrieve:
    pool = Block(encoder.encode_candidates(texts), np.arange(len(texts)))
    device = next((str(network.device) for network in encoder.networks), "cpu")

    def retrieve(contexts: Sequence[Context], depth: int) -> list[list[str]]:
        vectors, mask = encoder.encode_contexts(contexts)
        results = search(vectors, mask, [pool], depth, device=device)
        return [[texts[row] for row in result.rows.tolist()] for result in results]

    return retrieve
