"""Why this reply: the share of each turn and token in a score, exact if the score is a sum of such terms.

Bi- and Poly-encoders: ``score = sum_i w_i <y_i, c>``, with ``w`` the candidate's attention to the context vectors
``y_i = sum_t a_it h_t``, so token t of the context has the share ``sum_i w_i a_it <h_t, c>``. The candidate's vector
``c = sum_t b_t g_t`` is taken apart in the same way: ``b_t <sum_i w_i y_i, g_t>``. For any other score, shares are how
much it falls without a turn or a word. Shapes: M vectors, T tokens, D dimensions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from math import log1p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.answering.explanation import (
    Attention,
    CandidateShare,
    Explanation,
    TextShare,
    TokenShare,
    VectorShare,
    sum_explanations,
)
from polyrank.answering.occlusion import METHOD as LEFT_OUT
from polyrank.answering.occlusion import candidate_left_out, context_left_out, reader
from polyrank.answering.protocol import Answering
from polyrank.answering.two_stage import TwoStage
from polyrank.config.pipeline import Ensemble
from polyrank.data.same_words import echoes
from polyrank.errors import ArtifactError, UsageError
from polyrank.index import Filter, as_filter
from polyrank.models.mixture import Mixture
from polyrank.ranking.ensembles import BY_LIST, combine, weight_of
from polyrank.records import Context, ContextLike
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoded import score_row
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.hubs import HubEncoder
from polyrank.scorers.lexical import LexicalScorer, located_words
from polyrank.scorers.mapped import MapEncoder
from polyrank.scorers.popularity import Popularity
from polyrank.scorers.protocols import Scorer
from polyrank.scorers.summed import SumEncoder
from polyrank.scorers.two_stage import TwoStageScorer
from polyrank.text import Texts
from polyrank.text.offsets import Kind, Span, Spans, candidate_spans, context_spans, pair_spans, text_spans

OF_TOKENS, OF_WORDS, OF_STAGES, OF_COUNT = "sum of tokens", "sum of words", "stages", "count of replies"
OF_HUBS = "other contexts"
TOKENS_SHOWN = 8  # of each context vector
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of ``explain``."""

    max_words: int
    filter: Filter | str | None
    allow_echo: bool  # true if the candidate repeats a turn


def explain(
    scorer: Scorer | Answering,
    context: ContextLike,
    candidate: str,
    *,
    max_words: int = 64,
    filter: Filter | str | None = None,
) -> Explanation:
    """How the score of a candidate comes about.

    For a Bi-encoder that averages, a Poly-encoder, BM25, TF-IDF and sums of them, the shares are the terms of the
    score. For any other scorer they are how much the score falls without the turn or the word, which takes a score
    for each.

    Args:
        scorer: any Scorer; or a retriever or pipeline, whose stages are explained.
        context: one turn, a list of turns, oldest first, or a Context.
        candidate: its text.
        max_words: how many words of each side are left out one by one, if that is the method: the last words of a
            context, the first of a candidate. Whole turns are always tried.
        filter: of the shortlist, for two stages whose scores depend on it.

    Raises:
        UsageError: the context or the candidate has no visible character, or the candidate is not in the shortlist of
            two stages whose total depends on it.
        ArtifactError: the score is not finite.

    >>> from polyrank import BM25
    >>> why = explain(BM25(b=0.0).fit(["wifi", "bill"]), ["hi", "my wifi"], "wifi")
    >>> why.method, [(turn.text, round(turn.share, 4)) for turn in why.turns]  # ln 2 / 2.5
    ('sum of words', [('hi', 0.0), ('my wifi', 0.2773)])
    """
    query = Context.of(context)
    if not candidate.strip():
        raise UsageError("the candidate is empty, so it cannot be explained; give its text")
    if max_words < 0:
        raise UsageError(f"max_words = {max_words}; give 0 or more")
    explanation = _explain(
        scorer, query, candidate, Question(max_words, filter, allow_echo=echoes(query.turns)(candidate))
    )
    if not np.isfinite(explanation.score):
        raise ArtifactError("the score is not finite; the model's weights are damaged or diverged in training")
    return explanation


@singledispatch
def _explain(scorer: Any, context: Context, candidate: str, asked: Question) -> Explanation:
    """Explain a scorer of which only the scores are known."""
    return _left_out(scorer, context, candidate, asked, None)


@_explain.register
def _explain_pairs(scorer: CrossScorer, context: Context, candidate: str, asked: Question) -> Explanation:
    _, spans = pair_spans(scorer.texts, context, candidate)
    return _left_out(scorer, context, candidate, asked, spans)


@_explain.register(EncoderScorer)
@_explain.register(MapEncoder)
def _explain_encoder(
    scorer: EncoderScorer | MapEncoder, context: Context, candidate: str, asked: Question
) -> Explanation:
    if (texts := scorer.texts) is None:
        return _left_out(scorer, context, candidate, asked, None)
    vectors, mask = scorer.encode_contexts([context])
    encoded = scorer.encode_candidates([candidate])
    score = float(score_row(vectors[0], mask[0], encoded)[0])  # the scorer's score, without encoding again
    own, other = vectors[0][mask[0]].astype(np.float64), encoded[0].astype(np.float64)  # [M, D], [D]
    dots = own @ other
    attention = np.exp(dots - dots.max())
    attention /= attention.sum()
    shown: tuple[VectorShare, ...] = ()
    _, spans = context_spans(texts, context)
    if (mixture := scorer.context_mixture(context)) is None:
        turns, background = context_left_out(scorer, context, candidate, score, reader(spans), asked.max_words)
        rest, method = score - _sum((*turns, *background)), LEFT_OUT
    else:
        weights, outputs = _arrays(mixture)
        shares = (attention @ weights) * (outputs @ other)  # [T]
        turns = _texts_shares(texts, "turn", context.turns, spans, shares)
        background = _texts_shares(texts, "background", context.background, spans, shares)
        rest, method = _rest(spans, shares), OF_TOKENS
        shown = _vectors(context, attention, dots, weights, spans) if len(dots) > 1 else ()
    _, spans = candidate_spans(texts, candidate)
    if (mixture := scorer.candidate_mixture(candidate)) is None:
        side = candidate_left_out(scorer, context, candidate, score, reader(spans), asked.max_words)
    else:
        weights, outputs = _arrays(mixture)
        shares = weights[0] * (outputs @ (attention @ own))  # [T]
        (text,) = _texts_shares(texts, "candidate", [candidate], spans, shares)
        side = CandidateShare(candidate, text.tokens, _rest(spans, shares), OF_TOKENS, exact=True)
    return Explanation(score, method, method == OF_TOKENS, turns, background, rest, side, shown)


@_explain.register
def _explain_sum(scorer: SumEncoder, context: Context, candidate: str, asked: Question) -> Explanation:
    parts = [
        (f"{number} {part.name}".rstrip(), weight, _explain(part, context, candidate, asked))
        for number, (part, weight) in enumerate(zip(scorer.parts, scorer.weights, strict=True), 1)
    ]
    return sum_explanations(_score(scorer, context, candidate), parts)


@_explain.register
def _explain_count(scorer: Popularity, context: Context, candidate: str, asked: Question) -> Explanation:
    del asked
    return _of_candidate(context, candidate, _score(scorer, context, candidate), OF_COUNT)


@_explain.register
def _explain_hubs(scorer: HubEncoder, context: Context, candidate: str, asked: Question) -> Explanation:
    (hubness,) = scorer.hubness(scorer.encoder.encode_candidates([candidate])).tolist()
    parts = [
        (f"1 {scorer.encoder.name}".rstrip(), 1.0, _explain(scorer.encoder, context, candidate, asked)),
        ("2 other contexts", scorer.weight, _of_candidate(context, candidate, -hubness, OF_HUBS)),
    ]
    return sum_explanations(_score(scorer, context, candidate), parts)


def _of_candidate(context: Context, candidate: str, score: float, method: str) -> Explanation:
    """The whole score belongs to the candidate, and none of it to a word."""
    turns, background = (tuple(TextShare(text, 0.0) for text in side) for side in (context.turns, context.background))
    side = CandidateShare(candidate, (), score, method, exact=True)
    return Explanation(score, method, True, turns, background, score, side)


@_explain.register
def _explain_words(scorer: LexicalScorer, context: Context, candidate: str, asked: Question) -> Explanation:
    totals = scorer.word_shares(context, candidate)

    def shared(texts: Sequence[str]) -> tuple[TextShare, ...]:
        """Texts, where each occurrence of a word has the same share."""
        found = [list(located_words(text)) for text in texts]
        counts = Counter(word for words in found for word, _, _ in words)
        result = []
        for text, words in zip(texts, found, strict=True):
            tokens = tuple(
                TokenShare(text[start:end], start, end, totals.get(word, 0.0) / counts[word])
                for word, start, end in words
            )
            result.append(TextShare(text, sum(token.share for token in tokens), tokens))
        return tuple(result)

    both, (side,) = shared((*context.background, *context.turns)), shared([candidate])
    n = len(context.background)
    score = _score(scorer, context, candidate)
    return Explanation(
        score,
        OF_WORDS,
        True,
        both[n:],
        both[:n],
        0.0,
        CandidateShare(candidate, side.tokens, 0.0, OF_WORDS, exact=True),
    )


@_explain.register
def _explain_answering(answering: Answering, context: Context, candidate: str, asked: Question) -> Explanation:
    own = _explain(scorer := answering.explained(), context, candidate, asked)
    if not answering.prior:
        return own
    count = _of_candidate(context, candidate, log1p(answering.count(candidate, as_filter(asked.filter))), OF_COUNT)
    parts = [(f"1 {getattr(scorer, 'name', '')}".rstrip(), 1.0, own), ("2 count", answering.prior, count)]
    return sum_explanations(own.score + answering.prior * count.score, parts)


@_explain.register
def _explain_two_stages(stages: TwoStage, context: Context, candidate: str, asked: Question) -> Explanation:
    def shortlist() -> list[str]:
        (replies,) = stages.retriever.respond(
            [context], stages.n_retrieved, filter=asked.filter, allow_echo=asked.allow_echo
        )
        return [*(reply.text for reply in replies), candidate]

    first = _explain(stages.retriever, context, candidate, asked)
    second = _explain(stages.reranker.fitted_to(shortlist), context, candidate, asked)
    total = _total(stages, context, candidate, asked) if stages.ensemble in BY_LIST else None
    return _of_stages(first, second, stages.ensemble, candidate, total)


@_explain.register
def _explain_two_scorers(stages: TwoStageScorer, context: Context, candidate: str, asked: Question) -> Explanation:
    if stages.ensemble in BY_LIST:
        raise UsageError(f"a total by {stages.ensemble} depends on the other candidates; explain each stage")
    first, second = (_explain(stage, context, candidate, asked) for stage in (stages.retriever, stages.reranker))
    return _of_stages(first, second, stages.ensemble, candidate)


def _of_stages(
    first: Explanation, second: Explanation, ensemble: Ensemble | None, candidate: str, total: float | None = None
) -> Explanation:
    """The explanation of two stages from those of each. ``total``: their score, if it depends on other candidates."""
    parts = {"retriever": first, "reranker": second}
    if ensemble is None:
        return replace(second, vectors=(), parts=parts)
    if total is None:
        first_score, second_score = (np.array([part.score], np.float32) for part in (first, second))
        total = float(combine(first_score, second_score, ensemble)[0])
    weight = weight_of(ensemble)
    if weight is not None:
        return sum_explanations(total, [("retriever", 1.0, first), ("reranker", weight, second)])
    side = CandidateShare(candidate, (), total, OF_STAGES, exact=False)
    return Explanation(total, OF_STAGES, False, (), (), total, side, parts=parts)


def _total(stages: TwoStage, context: Context, candidate: str, asked: Question) -> float:
    """The score of a candidate of the shortlist, for ensembles that depend on the others."""
    (ranked,) = stages.respond([context], stages.n_retrieved, filter=asked.filter, allow_echo=asked.allow_echo)
    for reply in ranked:
        if reply.text == candidate:
            return reply.score
    raise UsageError(
        f"{candidate!r} is not among the {stages.n_retrieved} replies of the shortlist, so it has no"
        f" total by {stages.ensemble}; retrieve more, or explain it with each stage"
    )


def _left_out(scorer: Scorer, context: Context, candidate: str, asked: Question, spans: Spans | None) -> Explanation:
    score, read = _score(scorer, context, candidate), reader(spans)
    turns, background = context_left_out(scorer, context, candidate, score, read, asked.max_words)
    side = candidate_left_out(scorer, context, candidate, score, read, asked.max_words)
    return Explanation(score, LEFT_OUT, False, turns, background, score - _sum((*turns, *background)), side)


def _score(scorer: Scorer, context: Context, candidate: str) -> float:
    return float(scorer.score([context], [[candidate]])[0][0])


def _sum(texts: Iterable[TextShare]) -> float:
    return sum(text.share for text in texts)


def _arrays(mixture: Mixture) -> tuple[Doubles, Doubles]:
    """Weights of the real vectors ``[M, T]`` and outputs ``[T, D]`` of a mixture of one text."""
    weights, outputs = mixture.weights[0][mixture.mask[0]], mixture.outputs[0]
    return weights.cpu().double().numpy(), outputs.cpu().double().numpy()


def _rest(spans: Spans, shares: Doubles) -> float:
    """The shares of tokens outside any text."""
    return float(sum(share for span, share in zip(spans, shares, strict=True) if span is None))


def _texts_shares(
    texts: Texts, kind: Kind, originals: Sequence[str], spans: Spans, shares: Doubles
) -> tuple[TextShare, ...]:
    """Texts with the shares ``[T]`` of their tokens, and with truncated tokens."""
    own: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for span, share in zip(spans, shares.tolist(), strict=True):
        if span is not None and span.kind == kind:
            own[span.number][span.start, span.end] += share  # one letter may have several tokens
    return tuple(_text_share(texts, text, own[number]) for number, text in enumerate(originals))


def _text_share(texts: Texts, text: str, shares: dict[tuple[int, int], float]) -> TextShare:
    first, last = (min(shares)[0], max(shares)[1]) if shares else (len(text), 0)
    tokens = [TokenShare(text[start:end], start, end, share) for (start, end), share in shares.items()]
    for start, end in text_spans(texts, text):
        if end <= first or start >= last:
            tokens.append(TokenShare(text[start:end], start, end, 0.0, read=False))
    tokens.sort(key=lambda token: (token.start, token.end))
    return TextShare(text, sum(shares.values()), tuple(tokens), bool(shares) or not tokens)


def _vectors(
    context: Context, attention: Doubles, dots: Doubles, weights: Doubles, spans: Spans
) -> tuple[VectorShare, ...]:
    """Context vectors by their weight, each with its most important tokens.

    Args:
        context: of the vectors.
        attention, dots: of the candidate to each vector, ``[M]``.
        weights: of each token in each vector, ``[M, T]``.
        spans: of the tokens.
    """

    def important(row: Doubles) -> tuple[Attention, ...]:
        best = [position for position in np.argsort(-row, kind="stable")[:TOKENS_SHOWN] if row[position] > 0]
        return tuple(_attention(context, spans[position], float(row[position])) for position in best)

    order = np.argsort(-attention, kind="stable").tolist()
    return tuple(VectorShare(i, float(attention[i]), float(dots[i]), important(weights[i])) for i in order)


def _attention(context: Context, span: Span | None, weight: float) -> Attention:
    if span is None:
        return Attention("", None, 0, 0, weight)
    text = context.turns[span.number] if span.kind == "turn" else context.background[span.number]
    turn = span.number if span.kind == "turn" else None
    return Attention(text[span.start : span.end], turn, span.start, span.end, weight)
