"""Truncation follows the policy token by token: at a limit, one below it and one above it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from polyrank.config.models import ConvertText, TextPolicy
from polyrank.errors import ConfigError
from polyrank.records import Context
from polyrank.text import BackboneTexts, ConvertSubwords, ConvertTexts, Subwords, TemplateTexts, load_subwords
from polyrank.text.offsets import candidate_spans, context_spans, pair_spans
from polyrank.text.routed import RoutedTexts
from polyrank.text.slotted import with_slots

LETTERS = "abcdefghijklmnopqrstuvwxyz"
Make = Callable[..., BackboneTexts]


@pytest.fixture(scope="module")
def subwords(tiny_backbone: Path) -> Subwords:
    """A tokenizer with one token per separate letter, and an added token [EOT]."""
    found = load_subwords(tiny_backbone)
    found.add(["[EOT]"])
    return found


@pytest.fixture(scope="module")
def make(subwords: Subwords) -> Make:
    def texts(max_positions: int = 512, **changes: Any) -> BackboneTexts:
        return BackboneTexts(subwords, TextPolicy(**changes), max_positions)

    return texts


def shown(texts: BackboneTexts, ids: Sequence[int]) -> str:
    """The tokens as one text, with signs for the special tokens."""
    names = [texts.subwords.tokenizer.id_to_token(i) for i in ids]
    return " ".join({"[CLS]": "<", "[SEP]": "|", "[EOT]": "/"}.get(name, name) for name in names)


def spaced(letters: str) -> str:
    return " ".join(letters)


# one text


@pytest.mark.parametrize(
    ("n", "context", "candidate"),
    [
        (5, "< a b c d e |", "< a b c d e |"),
        (6, "< a b c d e f |", "< a b c d e f |"),
        (7, "< b c d e f g |", "< a b c d e f |"),
        (9, "< d e f g h i |", "< a b c d e f |"),
        (0, "< |", "< |"),
    ],
)
def test_eight_tokens_are_six_and_the_boundaries(make: Make, n: int, context: str, candidate: str) -> None:
    texts = make(max_context_tokens=8, max_candidate_tokens=8)
    assert shown(texts, texts.context_ids(Context((spaced(LETTERS[:n]),)))) == context
    assert shown(texts, texts.candidate_ids(spaced(LETTERS[:n]))) == candidate
    assert [shown(texts, ids) for ids in texts.all_candidate_ids([spaced(LETTERS[:n])])] == [candidate]
    assert (len(texts.cut.contexts), len(texts.cut.candidates)) == (n > 6, n > 6)


def test_the_two_budgets_are_independent(make: Make) -> None:
    texts = make(max_context_tokens=6, max_candidate_tokens=5)
    assert shown(texts, texts.context_ids(Context(("a b c d e",)))) == "< b c d e |"
    assert shown(texts, texts.candidate_ids("a b c d e")) == "< a b c |"


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (11, "< a b | c d | e f |"),
        (10, "< a b | c d | e f |"),
        (9, "< b | c d | e f |"),
        (8, "< | c d | e f |"),  # a separator is a token like others
        (7, "< c d | e f |"),
        (6, "< d | e f |"),
        (5, "< | e f |"),
        (4, "< e f |"),
    ],
)
def test_turns_lose_tokens_from_the_oldest_on(make: Make, budget: int, expected: str) -> None:
    texts = make(max_context_tokens=budget)
    assert shown(texts, texts.context_ids(Context(("a b", "c d", "e f")))) == expected


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, "< p | e f |"), (1, "< p | c d | e f |"), (2, "< p | a b | c d | e f |"), (9, "< p | a b | c d | e f |")],
)
def test_the_number_of_turns_is_limited(make: Make, most: int, expected: str) -> None:
    """The background is not a turn, and turns beyond the limit are not reported as cut."""
    texts = make(max_earlier_turns=most)
    assert shown(texts, texts.context_ids(Context(("a b", "c d", "e f"), ("p",)))) == expected
    assert shown(texts, texts.context_ids(Context((), ("p",)))) == "< p |"
    assert not texts.cut


@pytest.mark.parametrize(
    ("separator", "budget", "expected"),
    [
        ("[EOT]", 8, "< b / c d / e |"),
        ("[EOT]", 9, "< a b / c d / e |"),
        ("[EOT]", 7, "< / c d / e |"),
        (" x y ", 11, "< a b x y c d x y e |"),
        (" x y ", 8, "< y c d x y e |"),  # also a separator of two tokens is cut wherever the budget ends
        ("", 7, "< a b c d e |"),
    ],
)
def test_a_separator_is_only_between_turns(make: Make, separator: str, budget: int, expected: str) -> None:
    texts = make(max_context_tokens=budget, turn_separator=separator)
    assert shown(texts, texts.context_ids(Context(("a b", "c d", "e")))) == expected


@pytest.mark.parametrize(("n_prefixes", "expected"), [(1, "x a | x b | x c"), (2, "x a | y b | x c")])
@pytest.mark.parametrize(("budget", "cut"), [(10, 0), (9, 2), (8, 4), (5, 10)])
def test_speakers_alternate_from_the_last_turn_and_are_cut_with_it(
    make: Make, n_prefixes: int, expected: str, budget: int, cut: int
) -> None:
    texts = make(max_context_tokens=budget, speaker_prefixes=("x ", "y ")[:n_prefixes])
    assert shown(texts, texts.context_ids(Context(("a", "b", "c")))) == f"< {expected[cut:]} |"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "< a b | c | x y | z |"),
        ({"background": "after"}, "< x y | z | a b | c |"),
        ({"background": "drop"}, "< x y | z |"),
        ({"max_background_tokens": 4}, "< a b | c | x y | z |"),
        ({"max_background_tokens": 3}, "< a b | | x y | z |"),
        ({"max_background_tokens": 2}, "< a b | x y | z |"),
        ({"max_background_tokens": 0}, "< x y | z |"),
        # at most half of the budget, rounded down
        ({"max_context_tokens": 11}, "< a b | c | x y | z |"),
        ({"max_context_tokens": 10}, "< a b | c | y | z |"),
        ({"max_context_tokens": 9}, "< a b | c | | z |"),
        ({"max_context_tokens": 8}, "< a b | c | z |"),
        ({"max_context_tokens": 7}, "< a b | | z |"),
        ({"max_context_tokens": 5}, "< a b |"),  # no space for a turn, so no separator either
        ({"max_context_tokens": 8, "background": "after"}, "< z | a b | c |"),
    ],
)
def test_background_keeps_its_start_and_the_turns_their_end(make: Make, changes: dict[str, Any], expected: str) -> None:
    texts = make(**changes)
    ids = texts.context_ids(Context(("x y", "z"), ("a b", "c")))
    assert shown(texts, ids) == expected


@pytest.mark.parametrize(("budget", "n_cut"), [(9, 0), (8, 1), (6, 1), (5, 1), (4, 1)])
def test_a_context_counts_as_cut_if_it_loses_a_turn_or_a_part_of_one(make: Make, budget: int, n_cut: int) -> None:
    """The newest turn fills the budget of 6 exactly."""
    texts = make(max_context_tokens=budget)
    texts.context_ids(Context(("a", "b", "c d e" if budget > 6 else "c d e f")))
    assert len(texts.cut.contexts) == n_cut


def test_background_without_turns_is_used_alone(make: Make) -> None:
    assert shown(make(), make().context_ids(Context((), ("a b",)))) == "< a b |"
    assert shown(make(), make().context_ids(Context((), ()))) == "< |"


def test_a_trace_does_not_count_what_it_leaves_out(make: Make) -> None:
    texts = make(max_context_tokens=4, max_candidate_tokens=4)
    assert shown(texts, context_spans(texts, Context(("a b c",), ("d e f",)))[0]) == "< d |"
    assert shown(texts, context_spans(texts, Context(("a b c",)))[0]) == "< b c |"
    assert shown(texts, candidate_spans(texts, "a b c")[0]) == "< a b |"
    assert not texts.cut


def test_a_trace_has_the_characters_of_each_text_without_its_prefixes(make: Make) -> None:
    texts = make(context_prefix="p q ", candidate_prefix="r s ", speaker_prefixes=("x ", "y z "))
    turns, facts = ("a b", "c", "d e"), ("f g", "h")
    for some, expected in (
        ((), "p q x a b | y z c | x d e"),
        (facts, "p q f g | h | x a b | y z c | x d e"),
    ):
        ids, spans = context_spans(texts, Context(turns, some))
        assert shown(texts, ids) == f"< {expected} |"
        origins = [
            (span.kind, span.number, (turns if span.kind == "turn" else facts)[span.number][span.start : span.end])
            for span in spans if span is not None
        ]  # fmt: skip
        of_turns = [("turn", number, letter) for number, turn in enumerate(turns) for letter in turn.split()]
        assert (
            origins == [("background", number, x) for number, text in enumerate(some) for x in text.split()] + of_turns
        )
    _, spans = candidate_spans(texts, "a bc")
    assert next((span.start, span.end) for span in spans if span is not None) == (0, 1)
    assert {span.kind for span in spans if span is not None} == {"candidate"}


@pytest.mark.parametrize(("n", "n_cut"), [(2, 0), (3, 0), (4, 1)])
def test_background_counts_as_cut_only_if_it_loses_tokens(make: Make, n: int, n_cut: int) -> None:
    texts = make(max_background_tokens=3)
    texts.context_ids(Context(("a",), (spaced(LETTERS[:n]),)))
    assert (len(texts.cut.backgrounds), len(texts.cut.contexts)) == (n_cut, 0)


# pairs


@pytest.mark.parametrize(
    ("n_context", "n_candidate", "expected"),
    [
        # budgets 8 and 6: 11 tokens and three special ones, at most 4 of a candidate
        (9, 4, "< c d e f g h i | A B C D |"),
        (9, 5, "< c d e f g h i | A B C D |"),
        (7, 5, "< a b c d e f g | A B C D |"),
        (9, 3, "< b c d e f g h i | A B C |"),
        (9, 2, "< a b c d e f g h i | A B |"),
        (9, 1, "< a b c d e f g h i | A |"),
        (12, 1, "< c d e f g h i j k l | A |"),
        (12, 0, "< b c d e f g h i j k l | |"),
        (0, 5, "< | A B C D |"),
    ],
)
def test_a_pair_keeps_the_candidates_start_and_the_contexts_end(
    make: Make, n_context: int, n_candidate: int, expected: str
) -> None:
    texts = make(max_context_tokens=8, max_candidate_tokens=6)
    candidate = "vwxyz"[:n_candidate]
    ids, segments = texts.pair_ids(Context((spaced(LETTERS[:n_context]),)), spaced(candidate))
    for letter, capital in zip("vwxyz", "ABCDE", strict=True):
        expected = expected.replace(capital, letter)
    assert shown(texts, ids) == expected
    first = expected.split().index("|") + 1
    assert segments == [0] * first + [1] * (len(ids) - first)


def test_a_candidate_may_be_longer_than_the_context(make: Make) -> None:
    texts = make(max_context_tokens=6, max_candidate_tokens=12)
    ids, _ = texts.pair_ids(Context((spaced(LETTERS),)), spaced(LETTERS))
    assert shown(texts, ids) == f"< {spaced(LETTERS[-5:])} | {spaced(LETTERS[:10])} |"  # 15 and the special ones


@pytest.mark.parametrize(
    ("longest", "n_left", "n_right"),
    [
        (20, 11, 6),  # both whole budgets, 12 + 8, minus three special tokens: 17
        (21, 11, 6),
        (19, 10, 6),
        (15, 6, 6),  # 12 tokens: half for each
        (14, 6, 5),  # 11: half, rounded down, for the candidate
        (13, 5, 5),
        (12, 5, 4),
    ],
)
def test_a_short_network_splits_its_length_between_two_long_texts(
    make: Make, longest: int, n_left: int, n_right: int
) -> None:
    texts = make(longest, max_context_tokens=12, max_candidate_tokens=8)
    ids, segments = texts.pair_ids(Context((spaced(LETTERS),)), spaced(LETTERS))
    left, right = LETTERS[26 - n_left :], LETTERS[:n_right]
    assert shown(texts, ids) == f"< {spaced(left)} | {spaced(right)} |"
    assert segments == [0] * (n_left + 2) + [1] * (n_right + 1)
    assert len(ids) <= longest
    again = make(longest, max_context_tokens=12, max_candidate_tokens=8, start_candidate_of_pair=True)
    ids, segments = again.pair_ids(Context((spaced(LETTERS),)), spaced(LETTERS))
    left, right = shown(again, ids).removeprefix("< ").removesuffix(" |").split(" | < ")
    assert len(ids) == min(longest, 20) == len(left.split()) + len(right.split()) + 4
    assert (LETTERS.endswith(left.replace(" ", "")), LETTERS.startswith(right.replace(" ", ""))) == (True, True)
    assert segments == [0] * (len(left.split()) + 2) + [1] * (len(right.split()) + 2)


@pytest.mark.parametrize(("shared", "n_context"), [(True, 16), (False, 8)])
def test_a_short_candidates_tokens_are_the_contexts_only_if_they_share(
    make: Make, shared: bool, n_context: int
) -> None:
    texts = make(max_context_tokens=10, max_candidate_tokens=10, share_pair_budget=shared)
    ids, _ = texts.pair_ids(Context((spaced(LETTERS),)), "z")
    assert shown(texts, ids) == f"< {spaced(LETTERS[-n_context:])} | z |"


def test_pairs_of_a_context_with_turns_and_background(make: Make) -> None:
    texts = make(max_context_tokens=10, max_candidate_tokens=5)
    ids, segments = texts.pair_ids(Context(("a b c d", "e f"), ("x y", "z")), "p q r s")
    assert shown(texts, ids) == "< x y | z | d | e f | p q r |"
    assert segments == [0] * 11 + [1] * 4
    tokens = texts.pairs([(Context(("a",)), "b"), (Context(("a", "c")), "b d")])
    assert [shown(texts, row) for row in tokens.ids.tolist()] == ["< a | b | [PAD] [PAD] [PAD]", "< a | c | b d |"]
    assert tokens.segments.tolist() == [[0, 0, 0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1]]
    assert tokens.mask.sum(1).tolist() == [5, 8]


WORDS = st.lists(st.sampled_from(LETTERS[:9]), max_size=6).map(" ".join)
FACTS = st.lists(WORDS.filter(bool), max_size=3).map(tuple)


@given(
    st.lists(WORDS, max_size=4).map(tuple),
    FACTS,
    st.integers(4, 16),
    st.integers(0, 9),
    st.sampled_from(["before", "after", "drop"]),
    st.sampled_from(["[SEP]", "[EOT]", " x y "]),
)
def test_a_context_joins_the_background_start_and_the_turns_end(
    make: Make,
    turns: tuple[str, ...],
    facts: tuple[str, ...],
    budget: int,
    most: int,
    place: str,
    separator: str,
) -> None:
    """The policy, written as slices of the whole texts."""
    texts = make(max_context_tokens=budget, max_background_tokens=most, background=place, turn_separator=separator)
    between = {"[SEP]": ["|"], "[EOT]": ["/"]}.get(separator, ["x", "y"])

    def joined(parts: Sequence[str]) -> list[str]:
        tokens: list[str] = []
        for number, part in enumerate(parts):
            tokens += [*(between if number else []), *part.split()]
        return tokens

    background = [] if place == "drop" else joined(facts)[: min(most, budget // 2, budget - 3)]
    said, room = joined(turns), budget - 2 - (len(background) + len(between) if background else 0)
    kept = said[max(len(said) - max(room, 0), 0) :]
    if background and kept:
        body = background + between + kept if place == "before" else kept + between + background
    else:
        body = background or kept
    assert shown(texts, texts.context_ids(Context(turns, facts))).split() == ["<", *body, "|"]


@pytest.mark.parametrize("name", ["max_context_tokens", "max_candidate_tokens"])
def test_budgets_from_four_to_the_networks_length_are_accepted(make: Make, name: str) -> None:
    other = {"max_context_tokens": 8, "max_candidate_tokens": 8}
    for value in (4, 30):
        make(30, **{**other, name: value})
    for value in (3, 31):
        with pytest.raises(ConfigError, match=rf"text\.{name} = {value} is outside 4 to 30"):
            make(30, **{**other, name: value})


# ConveRT


def convert(multi_context: bool = True, **changes: Any) -> ConvertTexts:
    """Text settings with one subword per separate letter or digit."""
    known = ConvertSubwords([f"{c} " for c in LETTERS + "0123456789"], n_buckets=3)
    return ConvertTexts(known, ConvertText(n_buckets=3, **changes), multi_context)


def seen(texts: ConvertTexts, ids: Sequence[int]) -> str:
    names = [*(subword.strip() for subword in texts.subwords.subwords), "?", "?", "?", "|"]
    return " ".join(names[i] for i in ids)


@pytest.mark.parametrize(("n", "end", "start"), [(3, "abc", "abc"), (4, "abcd", "abcd"), (5, "bcde", "abcd")])
def test_the_last_turn_keeps_its_end_and_a_candidate_its_start(n: int, end: str, start: str) -> None:
    texts = convert(max_context_tokens=4, max_candidate_tokens=4)
    texts.contexts([Context((spaced(LETTERS[:n]),))] * 2)
    texts.candidates([spaced(LETTERS[:n])] * 2)
    assert [len(kind) for kind in texts.cut.texts] == [n > 4, n > 4, 0, 0]  # each text once
    assert seen(texts, texts.context_ids(Context((spaced(LETTERS[:n]),)))) == spaced(end)
    assert seen(texts, texts.candidate_ids(spaced(LETTERS[:n]))) == spaced(start)
    assert seen(texts, texts.immediate_ids(Context(("z", spaced(LETTERS[:n]))))) == spaced(end)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(1, "e"), (2, "e f"), (3, "e f c"), (4, "e f c d"), (5, "e f c d a"), (6, "e f c d a b"), (7, "e f c d a b")],
)
def test_earlier_turns_lose_the_ends_of_the_oldest(budget: int, expected: str) -> None:
    texts = convert(max_earlier_tokens=budget, max_context_tokens=2)
    assert seen(texts, texts.earlier_ids(Context(("a b", "c d", "e f", "g h i")))) == expected
    assert seen(texts, texts.context_ids(Context(("a b", "c d", "e f", "g h i")))) == f"h i | {expected}"


@pytest.mark.parametrize(
    ("budget", "expected"), [(9, "0 e f 1 c d 2 a b"), (7, "0 e f 1 c d 2"), (6, "0 e f 1 c d"), (4, "0 e f 1")]
)
def test_the_numbers_of_earlier_turns_count_within_the_budget(budget: int, expected: str) -> None:
    texts = convert(max_earlier_tokens=budget, number_prefixes=True)
    assert seen(texts, texts.earlier_ids(Context(("a b", "c d", "e f", "g")))) == expected


@pytest.mark.parametrize(("most", "expected"), [(1, "d"), (2, "d c"), (3, "d c b"), (4, "d c b a"), (5, "d c b a")])
def test_the_number_of_earlier_turns_is_limited(most: int, expected: str) -> None:
    texts = convert(max_earlier_turns=most)
    assert seen(texts, texts.earlier_ids(Context(tuple("abcde")))) == expected


@pytest.mark.parametrize(("budget", "expected"), [(2, "c a"), (3, "c a x"), (5, "c a x y z"), (6, "c a x y z")])
def test_background_follows_all_earlier_turns_as_far_as_it_fits(budget: int, expected: str) -> None:
    texts = convert(max_earlier_tokens=budget, background="after")
    assert seen(texts, texts.earlier_ids(Context(("a", "c", "e"), ("x y", "z")))) == expected


@given(st.lists(WORDS, min_size=1, max_size=6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_a_convert_context_equals_slices_of_its_turns(
    turns: list[str], n_last: int, n_earlier: int, most: int, numbers: bool
) -> None:
    texts = convert(
        max_context_tokens=n_last, max_earlier_tokens=n_earlier, max_earlier_turns=most, number_prefixes=numbers
    )
    *before, last = (turn.split() for turn in turns)
    earlier: list[str] = []
    for age in range(min(most, len(before))):
        earlier += [*([str(age)] if numbers else []), *before[len(before) - 1 - age]]
    earlier = earlier[:n_earlier]
    expected = last[max(len(last) - n_last, 0) :] + (["|", *earlier] if earlier else [])
    assert seen(texts, texts.context_ids(Context(tuple(turns)))).split() == expected
    alone = convert(multi_context=False, max_context_tokens=n_last)
    assert seen(alone, alone.context_ids(Context(tuple(turns)))).split() == expected[: len(last)][:n_last]


@pytest.mark.parametrize(
    "name", ["max_context_tokens", "max_candidate_tokens", "max_earlier_tokens", "max_earlier_turns"]
)
def test_convert_budgets_start_at_one(name: str) -> None:
    assert seen(convert(**{name: 1}), convert(**{name: 1}).context_ids(Context(("a", "b")))) == "b | a"
    with pytest.raises(ConfigError, match=f"{name} = 0 (is below|must be at least) 1"):
        convert(**{name: 0})


# prompts, routes and slots


@pytest.mark.parametrize("background", ["before", "after", "drop"])
@pytest.mark.parametrize("facts", [(), ("f g", "h")])
def test_a_prompt_is_once_before_all_that_is_read_and_never_cut(
    make: Make, background: str, facts: tuple[str, ...]
) -> None:
    turns, prompt = ("a b c", "d e", "i j k"), "p q "
    sizes: dict[str, Any] = {"max_candidate_tokens": 12, "background": background}
    for budget in range(10, 30):
        plain = make(**sizes, max_context_tokens=budget)
        texts = make(**sizes, max_context_tokens=budget, context_prefix=prompt, candidate_prefix="r ")
        ids, longest = texts.context_ids(Context(turns, facts)), make(**sizes, max_context_tokens=60)
        if background == "before" and facts:
            whole = longest.context_ids(Context(turns, (prompt + facts[0], *facts[1:])))
        else:
            whole = longest.context_ids(Context((prompt + turns[0], *turns[1:]), facts))
        assert len(ids) <= budget
        assert shown(texts, ids).startswith("< p q")
        assert shown(texts, ids).count("p q") == 1
        if len(whole) <= budget:
            assert ids == whole
        else:
            assert len(ids) == budget
            n_last = 3 if facts else 6
            assert ids[-n_last:] == plain.context_ids(Context(turns, facts))[-n_last:]
        for n in (0, 5, 9, 20):
            expected = ["<", "r", *LETTERS[:n]][:11]
            assert shown(texts, texts.candidate_ids(spaced(LETTERS[:n]))) == " ".join([*expected, "|"])
        pair, segments = texts.pair_ids(Context(turns, facts), spaced(LETTERS[12:15]))
        words = shown(texts, pair).split()
        split = len(words) - 1 - words[-2::-1].index("|")  # after the context's end
        assert words[split:] == ["r", "m", "n", "o", "|"]
        assert segments == [0] * split + [1] * 5


@pytest.mark.parametrize("separator", ["[SEP]", " x y ", ""])
@pytest.mark.parametrize("background", ["before", "after", "drop"])
def test_a_long_prompt_stays_whole_within_every_budget(make: Make, background: Any, separator: str) -> None:
    """Facts and turns share what it leaves, and a candidate leaves room for it."""
    for n in range(1, 9):
        prompt = f"{spaced(LETTERS[:n])} "
        for budget in (n + 4, n + 5, n + 8, 20, 40):
            for longest in (budget, budget + 5, 90):
                texts = make(
                    longest, max_context_tokens=budget, max_candidate_tokens=budget, context_prefix=prompt,
                    background=background, turn_separator=separator, max_background_tokens=5,
                )  # fmt: skip
                for context in (
                    Context(("k l m n " * 9,), ("q r s t " * 9,)),
                    Context(("k",), ("q",)),
                    Context(("k l",)),
                ):
                    ids, (pair, _) = texts.context_ids(context), texts.pair_ids(context, spaced(LETTERS))
                    assert len(ids) <= budget
                    assert len(pair) <= min(longest, 2 * budget)
                    for read in (ids, pair):
                        assert shown(texts, read).startswith(f"< {prompt}".rstrip())
                    read = shown(texts, ids).split()[1 + n : -1]
                    n_facts = sum(word in "qrst" for word in read)
                    assert n_facts <= 5
                    if budget >= 20:  # a prompt of more than half of a budget may leave no space for both
                        assert (n_facts > 0) == (background != "drop" and bool(context.background))
                        assert any(word in "klmn" for word in read)


@pytest.mark.parametrize(
    ("sizes", "n_context", "n_candidate", "expected"),
    [
        ({}, 3, 5, "< p q a b c | | r z y x w v |"),  # 11 tokens and four special ones
        ({}, 3, 6, "< p q a b c | | r z y x w v |"),
        ({}, 5, 5, "< p q a b c d e | | r z y x |"),  # the rest after the prompt is halved
        ({}, 20, 2, "< p q o p q r s t | | r z y |"),
        ({}, 2, 20, "< p q a b | | r z y x w v u |"),
        ({}, 20, 20, "< p q p q r s t | | r z y x |"),
        ({"max_context_tokens": 9}, 20, 2, "< p q r s t | | r z y |"),
        ({"max_candidate_tokens": 8}, 2, 20, "< p q a b | | r z y x |"),
        ({"max_context_tokens": 8, "max_candidate_tokens": 7}, 20, 20, "< p q s t | | r z y |"),
    ],
)
def test_both_texts_of_a_pair_share_what_its_prompts_and_template_leave(
    subwords: Subwords, sizes: dict[str, int], n_context: int, n_candidate: int, expected: str
) -> None:
    start, end = subwords.start_id, subwords.end_id
    texts = TemplateTexts(
        subwords, TextPolicy(**{**sizes, "context_prefix": "p q ", "candidate_prefix": "r "}), 512,
        pair=([(start, 0)], [(end, 0), (end, 1)], [(end, 2)]), segments=(3, 4), max_pair_tokens=15,
    )  # fmt: skip
    context, candidate = Context((spaced(LETTERS[:n_context]),)), spaced(LETTERS[: -n_candidate - 1 : -1])
    texts.pair_ids(context, f"{candidate} a")  # a context counts once
    ids, segments = texts.pair_ids(context, candidate)
    assert shown(texts, ids) == expected
    n, m = expected.split().index("|") - 1, len(ids) - expected.split().index("|") - 3
    assert segments == [0, *[3] * n, 0, 1, *[4] * m, 2]
    assert (len(texts.cut.contexts), bool(texts.cut.candidates)) == (n < n_context + 2, n_candidate > 2)
    ids, spans = pair_spans(texts, context, candidate)
    assert shown(texts, ids) == expected
    read = [span for span in spans if span is not None]
    letters = [{"turn": context.turns[0], "candidate": candidate}[span.kind][span.start : span.end] for span in read]
    assert letters == [*expected.split()[3 : n + 1], *expected.split()[n + 4 : -1]]  # without prompts and boundaries
    assert [span.kind for span in read] == ["turn"] * (n - 2) + ["candidate"] * (m - 1)


def test_a_budget_of_a_pair_leaves_a_token_of_each_text(subwords: Subwords) -> None:
    pair = ([(subwords.start_id, 0)], [(subwords.end_id, 0)] * 2, [(subwords.end_id, 1)])
    for name, prompt in (("max_context_tokens", "context_prefix"), ("max_candidate_tokens", "candidate_prefix")):
        for budget in (11, 10):
            policy = TextPolicy(**{name: budget, prompt: "a b c d e"})  # type: ignore[arg-type]
            if budget == 11:  # four special tokens, and one of each text
                assert TemplateTexts(subwords, policy, 512, pair=pair, segments=(0, 1), max_pair_tokens=80)
            else:
                with pytest.raises(ConfigError, match=f"{name} = 10 leaves too few tokens after a prompt of 5 tokens"):
                    TemplateTexts(subwords, policy, 512, pair=pair, segments=(0, 1), max_pair_tokens=80)
    for name in ("max_context_tokens", "max_candidate_tokens"):  # without a prompt
        for budget in (4, 5):
            policy = TextPolicy(**{name: budget})
            texts = TemplateTexts(subwords, policy, 512, pair=pair, segments=(0, 1), max_pair_tokens=80)
            if budget == 5:
                ids, _ = texts.pair_ids(Context(("a b c",)), "x y z")
                both = {"max_context_tokens": "< c | | x y z |", "max_candidate_tokens": "< a b c | | x |"}
                assert shown(texts, ids) == both[name]
            else:
                with pytest.raises(ConfigError, match="4 tokens leave none after the 4 of a pair's template; raise"):
                    texts.pair_ids(Context(("a",)), "x")


@pytest.mark.parametrize(("most", "expected"), [(0, "< p c |"), (1, "< p b | c |"), (9, "< p a | b | c |")])
def test_a_prompt_is_before_the_first_turn_that_is_read(make: Make, most: int, expected: str) -> None:
    texts = make(context_prefix="p ", max_earlier_turns=most)
    assert shown(texts, texts.context_ids(Context(("a", "b", "c")))) == expected


def test_a_budget_leaves_tokens_after_its_prompt(make: Make) -> None:
    for name, prompt in (("max_context_tokens", "context_prefix"), ("max_candidate_tokens", "candidate_prefix")):
        make(**{name: 9, prompt: "a b c d e"})
        with pytest.raises(ConfigError, match=f"{name} = 8 leaves too few tokens after a prompt of 5 tokens"):
            make(**{name: 8, prompt: "a b c d e"})


def test_each_side_has_its_own_texts(tiny_backbone: Path) -> None:
    sides = [
        BackboneTexts(load_subwords(tiny_backbone), TextPolicy(context_prefix=c, candidate_prefix=d), 512)
        for c, d in (("a ", "b "), ("x ", "y "))
    ]
    routed, context, texts = RoutedTexts(*sides), Context(("hi", "i j")), ["k l", "m"] * 40
    assert routed.context_ids(context) == sides[0].context_ids(context) != sides[1].context_ids(context)
    assert [routed.candidate_ids(text) for text in texts] == sides[1].all_candidate_ids(texts)
    assert routed.all_candidate_ids(texts) == sides[1].all_candidate_ids(texts) != sides[0].all_candidate_ids(texts)
    assert [routed.of_side("context"), routed.of_side("candidate")] == sides
    with_facts = Context(("hi", "i j"), ("k l " * 99,))
    alone = BackboneTexts(sides[0].subwords, sides[0].policy, 512)
    assert routed.context_ids(with_facts) == alone.context_ids(with_facts) != routed.context_ids(context)
    assert str(routed.cut) == str(alone.cut) != ""
    assert len({routed.key, RoutedTexts(*sides[::-1]).key, RoutedTexts(sides[0], sides[0]).key}) == 3
    words = load_subwords(tiny_backbone)
    words.add(["k"])
    assert len({alone.key, sides[0].key, BackboneTexts(words, sides[0].policy, 512).key}) == 2  # other ids of a text
    short = BackboneTexts(load_subwords(tiny_backbone), TextPolicy(), 500)
    assert [RoutedTexts(*each).max_positions for each in ((short, sides[0]), (sides[0], short))] == [500, 500]
    sizes = [
        dict(zip(("max_context_tokens", "max_candidate_tokens", "max_background_tokens"), n, strict=True))
        for n in ((20, 30, 4), (30, 40, 7))
    ]
    cut = RoutedTexts(*(BackboneTexts(words, TextPolicy(**each), 512) for each in sizes)).cut  # each side has its own
    assert (cut.max_context_tokens, cut.max_candidate_tokens, cut.max_background_tokens) == (20, 40, 4)


def test_a_token_that_is_added_is_known_in_texts_that_were_encoded_before(tiny_backbone: Path) -> None:
    found = load_subwords(tiny_backbone)
    before = found.encode("a [EOT] b")
    found.add(["[EOT]"])
    assert found.encode("a [EOT] b") == (before[0], found.id_of("[EOT]"), before[-1]) != before


def test_tokens_next_to_slots_have_the_characters_of_their_words(tiny_backbone: Path) -> None:
    plain, text = load_subwords(tiny_backbone), "hello AR-12345 router on 3 May thanks"
    slotted = with_slots(plain, slots=True)
    for n in (2, 70):  # few texts and many
        assert slotted.encode_all([text, "on 4 May"] * n) == [slotted.encode(text), slotted.encode("on 4 May")] * n
    assert slotted.encode("on 3 May") == slotted.encode("on 4 May") != plain.encode("on 4 May")
    assert (with_slots(slotted, slots=False), with_slots(slotted, slots=True).plain) == (plain, plain)
    assert slotted.encode_spans("restart the router") == plain.encode_spans("restart the router")
    read = [text[start:end] for _, start, end in slotted.encode_spans(text)]
    assert list(dict.fromkeys(read)) == [
        piece for word in ("hello", "AR-12345", "router", "on", "3 May", "thanks")
        for piece in ([word] if word[0] in "A3" else [word[a:b] for _, a, b in plain.encode_spans(word)])
    ]  # fmt: skip
