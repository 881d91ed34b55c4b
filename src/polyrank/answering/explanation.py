"""What is said of a score: how much of it each text, word or token accounts for. Plain records, ready for JSON."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from polyrank.answering.notebook import shares


@dataclass(frozen=True, slots=True)
class TokenShare:
    """A token, or a word where words were left out one by one.

    Args:
        text: its characters, ``text[start:end]`` of the text that it is of.
        start, end: where they are.
        share: what it accounts for, in units of the score.
        read: false where it was cut off; its share then is 0.
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
        text: all of it.
        share: what it accounts for, in units of the score.
        tokens: those of it, in order; without white space and what else no token is made of.
        read: false where nothing of it was read, because it did not fit.
    """

    text: str
    share: float
    tokens: tuple[TokenShare, ...] = ()
    read: bool = True


@dataclass(frozen=True, slots=True)
class CandidateShare:
    """The candidate, taken apart as the context is: both sides share out the same score.

    Args:
        text: all of it.
        tokens: those of it, in order.
        rest: what they do not account for, such as boundary tokens.
        method, exact: see Explanation.
    """

    text: str
    tokens: tuple[TokenShare, ...]
    rest: float
    method: str
    exact: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """How much a context vector is made of one token.

    Args:
        text: of the token; empty for one of no text, such as a boundary.
        turn: which turn it is of; None for one of none.
        start, end: its characters in that turn.
        weight: from 0 to 1; those of all tokens sum to one.
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
        index: which one, such as the number of its code.
        weight: the candidate's attention to it; those of all vectors sum to one.
        dot: its product with the candidate's vector.
        tokens: what it looks at most.
    """

    index: int
    weight: float
    dot: float
    tokens: tuple[Attention, ...]

    @property
    def share(self) -> float:
        """What it adds to the score."""
        return self.weight * self.dot


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a candidate has its score for a context.

    Args:
        score: as the scorer gives it.
        method: where the shares come from. "sum of tokens": the score is a weighted sum of products of token outputs,
            and a share is a term of it. "sum of words": of BM25 and TF-IDF. "count of replies": how
            often the candidate was said. "left out": what the score loses without the turn or the word. "sum": of the
            parts, each with its own method. "stages": there are two, and none for their total.
        exact: whether the shares are the terms of the score: turns, background and rest sum to it, and tokens to
            their text.
        turns: oldest first.
        background: facts.
        rest: the score less the shares of turns and background: what tokens of no text add, or, where things were left
            out, what no one of them accounts for.
        candidate: the other side.
        vectors: of a Poly-encoder, the one with the greatest weight first.
        parts: of a sum of encoders, by number and name; of two stages, "retriever" and "reranker".
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

    def as_dict(self) -> dict[str, Any]:
        """The same as dictionaries, lists and numbers."""
        return asdict(self)

    def _repr_html_(self) -> str:
        """For notebooks: texts coloured by what each token accounts for."""
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
        """What ``as_dict`` gave, also by way of JSON.

        >>> text = TextShare("hi", 1.0, (TokenShare("hi", 0, 2, 1.0),))
        >>> why = Explanation(1.0, "left out", True, (text,), (), 0.0, CandidateShare("yo", (), 1.0, "left out", True))
        >>> Explanation.from_dict(why.as_dict()) == why
        True
        """

        def tokens(rows: Iterable[Mapping[str, Any]]) -> tuple[TokenShare, ...]:
            return tuple(TokenShare(**row) for row in rows)

        def texts(rows: Iterable[Mapping[str, Any]]) -> tuple[TextShare, ...]:
            return tuple(TextShare(**{**row, "tokens": tokens(row["tokens"])}) for row in rows)

        def vector(row: Mapping[str, Any]) -> VectorShare:
            return VectorShare(**{**row, "tokens": tuple(Attention(**token) for token in row["tokens"])})

        candidate = {**values["candidate"], "tokens": tokens(values["candidate"]["tokens"])}
        return cls(
            score=values["score"],
            method=values["method"],
            exact=values["exact"],
            turns=texts(values["turns"]),
            background=texts(values["background"]),
            rest=values["rest"],
            candidate=CandidateShare(**candidate),
            vectors=tuple(map(vector, values["vectors"])),
            parts={name: cls.from_dict(part) for name, part in values["parts"].items()},
        )


def words_of(text: str) -> Iterator[tuple[int, int]]:
    """Where the words are: between white space, and each sign of Chinese and Japanese by itself.

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
    """Shares of tokens of several kinds as those of the words that they end in.

    Args:
        text: all of it.
        kinds: tokens, their weight, and whether they are exact. Where they are not, a word without a token was not
            left out, so that its share is unknown, and so is the sum: such words are not among the result.
    """
    result = []
    for start, end in words_of(text):
        own = [[token for token in tokens if start < token.end <= end] for tokens, _, _ in kinds]
        if all(some or exact for some, (_, _, exact) in zip(own, kinds, strict=True)):
            share = sum(weight * token.share for some, (_, weight, _) in zip(own, kinds, strict=True) for token in some)
            read = any(token.read for some in own for token in some) or not any(own)
            result.append(TokenShare(text[start:end], start, end, share, read))
    return tuple(result)


def added(score: float, parts: Sequence[tuple[str, float, Explanation]], method: str = "sum") -> Explanation:
    """The explanation of ``sum_p weight_p score_p`` from those of its parts, by word.

    Args:
        score: the sum.
        parts: name, weight and explanation of each.
        method: what to call it.
    """

    def texts(sides: Iterable[Sequence[TextShare]]) -> tuple[TextShare, ...]:
        return tuple(_added_text(alike, weights, exact) for alike in zip(*sides, strict=True))

    each, weights = [part for _, _, part in parts], [weight for _, weight, _ in parts]
    exact = [part.exact for part in each]
    turns, background = texts(part.turns for part in each), texts(part.background for part in each)
    sides = [part.candidate for part in each]
    text = sides[0].text
    tokens = by_word(text, [(side.tokens, weight, side.exact) for side, weight in zip(sides, weights, strict=True)])
    rest = sum(weight * side.rest for side, weight in zip(sides, weights, strict=True))
    candidate = CandidateShare(text, tokens, rest, method, all(side.exact for side in sides))
    return Explanation(
        score,
        method,
        all(exact),
        turns,
        background,
        sum(weight * part.rest for part, weight in zip(each, weights, strict=True)),
        candidate,
        parts={name: part for name, _, part in parts},
    )


def _added_text(alike: Sequence[TextShare], weights: Sequence[float], exact: Sequence[bool]) -> TextShare:
    text = alike[0].text
    return TextShare(
        text,
        sum(weight * each.share for each, weight in zip(alike, weights, strict=True)),
        by_word(text, [(each.tokens, weight, sure) for each, weight, sure in zip(alike, weights, exact, strict=True)]),
        any(each.read for each in alike),
    )
