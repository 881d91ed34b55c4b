"""How much a score falls without a turn, a fact or a word. It needs only scores, so it works with any scorer."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

from polyrank.records import Context
from polyrank.scorers.explanation import CandidateShare, Explanation, TextShare, TokenShare, words_of
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.text.offsets import Kind, Span

METHOD = "left out"
Read = Callable[[Kind, int, int, int], bool]
"""Whether the model reads some of the characters of a turn, a fact or the candidate."""


def reader(spans: Sequence[Span | None] | None) -> Read:
    """Which characters are read, by the spans of tokens; None: unknown, so all count as read."""
    if spans is None:
        return lambda *_: True
    places: dict[tuple[Kind, int], list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        if span is not None:
            places[span.kind, span.number].append((span.start, span.end))
    starts = {text: sorted(start for start, _ in inside) for text, inside in places.items()}
    furthest = {text: [*accumulate((end for _, end in sorted(inside)), max)] for text, inside in places.items()}

    def read(kind: Kind, number: int, start: int, end: int) -> bool:
        n = bisect_left(starts.get((kind, number), []), end)  # tokens that begin before the end
        return n > 0 and furthest[kind, number][n - 1] > start

    return read


def left_out(
    scorer: Scorer, context: Context, candidate: str, max_words: int, spans: Sequence[Span | None] | None = None
) -> Explanation:
    """The explanation of any scorer's score.

    Args:
        scorer, context, candidate, max_words: see ``polyrank.explain``.
        spans: of the tokens that the model reads; None: unknown, so all count as read.
    """
    score, read = float(scorer.score([context], [[candidate]])[0][0]), reader(spans)
    turns, background = context_left_out(scorer, context, candidate, score, read, max_words)
    side = candidate_left_out(scorer, context, candidate, score, read, max_words)
    rest = score - sum(text.share for text in (*turns, *background))
    return Explanation(score, METHOD, False, turns, background, rest, side)


def context_left_out(
    scorer: Scorer, context: Context, candidate: str, score: float, read: Read, max_words: int
) -> tuple[tuple[TextShare, ...], tuple[TextShare, ...]]:
    """Turns and facts, each with the fall of the score without it, and without each of its words.

    Args:
        scorer: computes the scores.
        context, candidate: to score.
        score: with nothing left out.
        read: see ``reader``; characters that are not read are not tried.
        max_words: how many words are left out one by one, starting with the last word of the last turn.
    """
    shown: dict[tuple[Kind, int], list[tuple[int, int, bool]]] = {}
    variants: list[tuple[Kind, int, tuple[int, int] | None, Context]] = []
    places: list[tuple[Kind, int]] = [("background", number) for number in range(len(context.background))]
    places += [("turn", number) for number in range(len(context.turns))]
    for kind, number in reversed(places):
        text = _texts(context, kind)[number]
        words = [(start, end, read(kind, number, start, end)) for start, end in words_of(text)]
        n_read = sum(is_read for _, _, is_read in words)
        if n_read:
            variants.append((kind, number, None, _without(context, kind, number, None)))
        chosen = [word for word in words if word[2]][max(n_read - max_words, 0) :]
        max_words -= len(chosen)
        variants += [(kind, number, word[:2], _without(context, kind, number, word[:2])) for word in chosen]
        shown[kind, number] = [word for word in words if not word[2] or word in chosen] if chosen or not n_read else []
    values = _scores(scorer, [variant for *_, variant in variants], [[candidate]] * len(variants))
    lost = {place[:3]: score - float(row[0]) for place, row in zip(variants, values, strict=True)}

    def share_of(kind: Kind, number: int) -> TextShare:
        text = _texts(context, kind)[number]
        tokens = (
            TokenShare(text[start:end], start, end, lost.get((kind, number, (start, end)), 0.0), is_read)
            for start, end, is_read in shown[kind, number]
        )
        whole = lost.get((kind, number, None))
        return TextShare(text, whole or 0.0, tuple(tokens), whole is not None or not text.strip())

    turns, facts = range(len(context.turns)), range(len(context.background))
    return tuple(share_of("turn", n) for n in turns), tuple(share_of("background", n) for n in facts)


def candidate_left_out(
    scorer: Scorer, context: Context, candidate: str, score: float, read: Read, max_words: int
) -> CandidateShare:
    """The candidate's words, each with the fall of the score without it."""
    words = [(start, end, read("candidate", 0, start, end)) for start, end in words_of(candidate)]
    tried = [word for word in words if word[2]][:max_words]
    texts = [_cut(candidate, start, end) for start, end, _ in tried]
    if isinstance(scorer, Encoder):
        values = _scores(scorer, [context], [texts])[0].tolist()
    else:  # scores may depend on the other candidates of a list
        values = [float(row[0]) for row in _scores(scorer, [context] * len(texts), [[text] for text in texts])]
    lost = {word: score - value for word, value in zip(tried, values, strict=True)}
    tokens = tuple(
        TokenShare(candidate[start:end], start, end, lost.get((start, end, is_read), 0.0), is_read)
        for start, end, is_read in words
        if not is_read or (start, end, is_read) in lost
    )
    return CandidateShare(candidate, tokens, score - sum(token.share for token in tokens), METHOD, exact=False)


def _scores(scorer: Scorer, contexts: Sequence[Context], candidates: Sequence[Sequence[str]]) -> list[Floats]:
    """Scores of artificial texts, which are not counted in ``scorer.cut``."""
    cuts = [(cut, [set(texts) for texts in cut.texts]) for cut in getattr(scorer, "cut", ())]
    try:
        return scorer.score(contexts, candidates) if contexts else []
    finally:
        for cut, counted in cuts:
            for texts, before in zip(cut.texts, counted, strict=True):
                texts.intersection_update(before)


def _texts(context: Context, kind: Kind) -> tuple[str, ...]:
    return context.turns if kind == "turn" else context.background


def _without(context: Context, kind: Kind, number: int, word: tuple[int, int] | None) -> Context:
    """The context without one of its words, or without a text. A text without its only word is removed."""
    texts = _texts(context, kind)
    text = "" if word is None else _cut(texts[number], *word)
    left = (*texts[:number], *([text] if text else []), *texts[number + 1 :])
    return replace(context, turns=left) if kind == "turn" else replace(context, background=left)


def _cut(text: str, start: int, end: int) -> str:
    """A text without some of its characters, and without the resulting gap."""
    before, after = text[:start], text[end:]
    gap = " " if before[-1:].isspace() or after[:1].isspace() else ""
    return f"{before.rstrip()}{gap}{after.lstrip()}".strip()
