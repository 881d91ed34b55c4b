"""Explanations of a score: the share of each text, word or token. Plain records, ready for JSON."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from polyrank.notebook import shares
from polyrank.records import Context


@dataclass(frozen=True, slots=True)
class TokenShare:
    """A token, or a word where words were left out one by one.

    Args:
        text: its characters, ``text[start:end]`` of its text.
        start, end: their positions.
        share: its part of the score, in units of the score.
        read: false if it was truncated; its share is then 0.
    """

    text: str
    start: int
    end: int
    share: float
    read: bool = True


@dataclass(frozen=True, slots=True)
class TextShare:
    """A turn, a fact of the background, or the candidate.

    Args:
        text: the whole text.
        share: its part of the score, in units of the score.
        tokens: its tokens, in order; white space and other characters without a token are missing.
        read: false if all of it was truncated.
    """

    text: str
    share: float
    tokens: tuple[TokenShare, ...] = ()
    read: bool = True


@dataclass(frozen=True, slots=True)
class CandidateShare:
    """The candidate, taken apart like the context: both sides split the same score.

    Args:
        text: the whole text.
        tokens: its tokens, in order.
        rest: the score less the tokens' shares, such as that of boundary tokens.
        method, exact: see Explanation.
    """

    text: str
    tokens: tuple[TokenShare, ...]
    rest: float
    method: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """The weight of a token in a context vector.

    Args:
        text: of the token; empty for a boundary token.
        turn: the number of its turn; None if it is in no turn.
        start, end: its characters in that turn.
        weight: from 0 to 1; the weights of all tokens sum to 1.
    """

    text: str
    turn: int | None
    start: int
    end: int
    weight: float


@dataclass(frozen=True, slots=True)
class VectorShare:
    """A context vector of a Poly-encoder.

    Args:
        index: its number, such as that of its code.
        weight: the candidate's attention to it; the weights of all vectors sum to 1.
        dot: its product with the candidate's vector.
        tokens: with the largest weights in it.
    """

    index: int
    weight: float
    dot: float
    tokens: tuple[Attention, ...]

    @property
    def share(self) -> float:
        """Its part of the score."""
        return self.weight * self.dot


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a candidate has its score for a context.

    Args:
        score: the scorer's score.
        method: how the shares are computed. "sum of tokens": the score is a weighted sum of products of token outputs,
            and a share is a term of it. "sum of words": the same for BM25 and TF-IDF. "left out": how much the score
            falls without the turn or the word. "sum": of the terms of a ranker, each with its own method. Any other
            one is the kind of a term that scores the candidate alone, such as "counts".
        exact: whether the shares are the terms of the score: turns, background and rest sum to it, and tokens to
            their text.
        turns: oldest first.
        background: facts.
        rest: the score less the shares of turns and background: the part of tokens outside any text, or, for "left
            out", the part that belongs to no single turn or fact.
        candidate: the other side.
        vectors: of a Poly-encoder, the largest weight first.
        parts: of a ranker, the terms by number and name.
        weight: of this part's score in the sum that it belongs to; None: it is not a part of a sum.
    """

    score: float
    method: str
    exact: bool
    turns: tuple[TextShare, ...]
    background: tuple[TextShare, ...]
    rest: float
    candidate: CandidateShare
    vectors: tuple[VectorShare, ...] = ()
    parts: dict[str, "Explanation"] = field(default_factory=dict)
    weight: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The explanation as dictionaries, lists and numbers."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """The explanation for notebooks: texts coloured by the share of each token."""
        texts = [("background", one) for one in self.background] + [("turn", one) for one in self.turns]
        sides: list[tuple[str, TextShare | CandidateShare]] = [*texts, ("candidate", self.candidate)]
        largest = max((abs(token.share) for _, side in sides for token in side.tokens), default=1.0)
        lines = (
            f"<p><b>{name}</b> {shares(one.text, [(t.start, t.end, t.share) for t in one.tokens], largest)}</p>"
            for name, one in sides
        )
        return f"<div><p>score {self.score:.4f}, by {self.method}</p>{''.join(lines)}</div>"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Explanation":
        """The explanation of ``as_dict``, also after a round trip through JSON.

        >>> text = TextShare("hi", 1.0, (TokenShare("hi", 0, 2, 1.0),))
        >>> why = Explanation(1.0, "left out", True, (text,), (), 0.0, CandidateShare("yo", (), 1.0, "left out", True))
        >>> of_two = replace(why, parts={"1 bi": why, "2 words": replace(why, score=0.5)})
        >>> Explanation.from_dict(of_two.as_dict()) == of_two
        True
        """
        explanation: Explanation = _from_json(cls, values)
        return explanation


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind) if is_dataclass(kind) else {}


def _from_json(kind: Any, value: Any) -> Any:
    """A value of JSON as a record, or as a tuple or a dictionary of records, by the types of the fields."""
    if types := _field_types(kind):
        return kind(**{name: _from_json(types[name], part) for name, part in value.items() if name in types})
    if get_origin(kind) is tuple:
        return tuple(_from_json(get_args(kind)[0], part) for part in value)
    if get_origin(kind) is dict:
        return {name: _from_json(get_args(kind)[1], part) for name, part in value.items()}
    return value


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Starts and ends of words: separated by white space; each Chinese or Japanese character is a word.

    >>> ["wifi 不通!"[start:end] for start, end in words_of("wifi 不通!")]
    ['wifi', '不', '通', '!']
    """
    start = None
    for position, character in enumerate(text):
        alone = "\u3040" <= character <= "\u30ff" or "\u3400" <= character <= "\u9fff" or character >= "\U00020000"
        if start is not None and (alone or character.isspace()):
            yield start, position
            start = None
        if alone:
            yield position, position + 1
        elif start is None and not character.isspace():
            start = position
    if start is not None:
        yield start, len(text)


def by_word(text: str, kinds: Sequence[tuple[Sequence[TokenShare], float, bool]]) -> tuple[TokenShare, ...]:
    """Shares of words, summed over several tokenizations; a token counts for the word in which it ends.

    Args:
        text: the whole text.
        kinds: for each tokenization its tokens, its weight, and whether its shares are exact. If they are not, a word
            without a token was not tried, so its sum is unknown: the result does not contain it.
    """
    result, words = [], [*words_of(text)]
    ends = [end for _, end in words]
    held: list[dict[int, list[TokenShare]]] = [defaultdict(list) for _ in kinds]
    for of_word, (tokens, _, _) in zip(held, kinds, strict=True):
        for token in tokens:
            of_word[bisect_left(ends, token.end)].append(token)
    for number, (start, end) in enumerate(words):
        tokens_of = [[token for token in of_word[number] if start < token.end] for of_word in held]
        if all(some or exact for some, (_, _, exact) in zip(tokens_of, kinds, strict=True)):
            share = sum(
                weight * token.share for some, (_, weight, _) in zip(tokens_of, kinds, strict=True) for token in some
            )
            read = any(token.read for some in tokens_of for token in some) or not any(tokens_of)
            result.append(TokenShare(text[start:end], start, end, share, read))
    return tuple(result)


def of_candidate(context: Context, candidate: str, score: float, method: str) -> Explanation:
    """The whole score belongs to the candidate, and none of it to a word."""
    turns, background = (tuple(TextShare(text, 0.0) for text in side) for side in (context.turns, context.background))
    side = CandidateShare(candidate, (), score, method, exact=True)
    return Explanation(score, method, True, turns, background, score, side)


def sum_explanations(score: float, parts: Sequence[tuple[str, float, Explanation]]) -> Explanation:
    """The explanation of ``sum_p weight_p score_p`` from the explanations of its parts, by word.

    Args:
        score: the sum.
        parts: name, weight and explanation of each part.
    """

    def texts(sides: Iterable[Sequence[TextShare]]) -> tuple[TextShare, ...]:
        return tuple(_added_text(alike, weights, exact) for alike in zip(*sides, strict=True))

    explained, weights = [part for _, _, part in parts], [weight for _, weight, _ in parts]
    exact = [part.exact for part in explained]
    turns, background = texts(part.turns for part in explained), texts(part.background for part in explained)
    sides = [part.candidate for part in explained]
    text = sides[0].text
    tokens = by_word(text, [(side.tokens, weight, side.exact) for side, weight in zip(sides, weights, strict=True)])
    rest = sum(weight * side.rest for side, weight in zip(sides, weights, strict=True))
    # words that the sum leaves out belong to no token, so their known shares are part of the rest
    said = sum(weight * token.share for side, weight in zip(sides, weights, strict=True) for token in side.tokens)
    if len(tokens) < sum(1 for _ in words_of(text)):
        rest += said - sum(token.share for token in tokens)
    candidate = CandidateShare(text, tokens, rest, "sum", all(side.exact for side in sides))
    return Explanation(
        score,
        "sum",
        all(exact),
        turns,
        background,
        sum(weight * part.rest for part, weight in zip(explained, weights, strict=True)),
        candidate,
        parts={name: replace(part, weight=weight) for name, weight, part in parts},
    )


def _added_text(alike: Sequence[TextShare], weights: Sequence[float], exact: Sequence[bool]) -> TextShare:
    text = alike[0].text
    return TextShare(
        text,
        sum(weight * share.share for share, weight in zip(alike, weights, strict=True)),
        by_word(
            text, [(share.tokens, weight, sure) for share, weight, sure in zip(alike, weights, exact, strict=True)]
        ),
        any(share.read for share in alike),
    )
