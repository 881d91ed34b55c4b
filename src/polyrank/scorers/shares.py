"""How an encoder's score is a sum over tokens: the share of each turn and token, exact.

Bi- and Poly-encoders: ``score = sum_i w_i <y_i, c>``, with ``w`` the candidate's attention to the context vectors
``y_i = sum_t a_it h_t``, so token t of the context has the share ``sum_i w_i a_it <h_t, c>``. The candidate's vector
``c = sum_t b_t g_t`` is taken apart in the same way: ``b_t <sum_i w_i y_i, g_t>``. Where a network has no such form,
shares are how much the score falls without a turn or a word. Shapes: M vectors, T tokens, D dimensions.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from polyrank.models.network import Mixture
from polyrank.records import Context
from polyrank.scorers.encoded import score_row
from polyrank.scorers.explanation import Attention, CandidateShare, Explanation, TextShare, TokenShare, VectorShare
from polyrank.scorers.left_out import METHOD as LEFT_OUT, candidate_left_out, context_left_out, reader
from polyrank.text import Texts
from polyrank.text.offsets import Kind, Span, Spans, candidate_spans, context_spans, text_spans

if TYPE_CHECKING:
    from polyrank.scorers.encoder import EncoderScorer

OF_TOKENS = "sum of tokens"
TOKENS_SHOWN = 8  # of each context vector
Doubles = NDArray[np.float64]


def token_shares(scorer: "EncoderScorer", context: Context, candidate: str, max_words: int) -> Explanation:
    """The explanation of an encoder's score; see ``polyrank.explain``."""
    texts = scorer.texts
    vectors, mask = scorer.encode_contexts([context])
    encoded = scorer.encode_candidates([candidate])
    score = float(score_row(vectors[0], mask[0], encoded)[0])  # the scorer's score, without encoding again
    context_vectors, other = vectors[0][mask[0]].astype(np.float64), encoded[0].astype(np.float64)  # [M, D], [D]
    dots = context_vectors @ other
    attention = np.exp(dots - dots.max())
    attention /= attention.sum()
    shown: tuple[VectorShare, ...] = ()
    _, spans = context_spans(texts, context)
    if (mixture := scorer.context_mixture(context)) is None:
        turns, background = context_left_out(scorer, context, candidate, score, reader(spans), max_words)
        rest, method = score - sum(text.share for text in (*turns, *background)), LEFT_OUT
    else:
        weights, outputs = _arrays(mixture)
        shares = (attention @ weights) * (outputs @ other)  # [T]
        turns = _texts_shares(texts, "turn", context.turns, spans, shares)
        background = _texts_shares(texts, "background", context.background, spans, shares)
        rest, method = _rest(spans, shares), OF_TOKENS
        shown = _vectors(context, attention, dots, weights, spans) if len(dots) > 1 else ()
    _, spans = candidate_spans(texts, candidate)
    if (mixture := scorer.candidate_mixture(candidate)) is None:
        side = candidate_left_out(scorer, context, candidate, score, reader(spans), max_words)
    else:
        weights, outputs = _arrays(mixture)
        shares = weights[0] * (outputs @ (attention @ context_vectors))  # [T]
        (text,) = _texts_shares(texts, "candidate", [candidate], spans, shares)
        side = CandidateShare(candidate, text.tokens, _rest(spans, shares), OF_TOKENS, exact=True)
    return Explanation(score, method, method == OF_TOKENS, turns, background, rest, side, shown)


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
    shares_of: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for span, share in zip(spans, shares.tolist(), strict=True):
        if span is not None and span.kind == kind:
            shares_of[span.number][span.start, span.end] += share  # one letter may have several tokens
    return tuple(_text_share(texts, text, shares_of[number]) for number, text in enumerate(originals))


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
