"""The text policy: contexts keep their end, candidates their start, pairs share a budget; odd text is read."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.records import Context
from polyrank.text import BackboneTexts, Subwords, load_subwords, read_subwords


@pytest.fixture(scope="module")
def subwords(tiny_backbone: Path) -> Any:
    return load_subwords(tiny_backbone)


def words(texts: BackboneTexts, ids: list[int]) -> str:
    return " ".join(texts.subwords.tokenizer.id_to_token(i) for i in ids)


def make(subwords: Any, **changes: Any) -> BackboneTexts:
    return BackboneTexts(subwords, TextPolicy(**{"max_context_tokens": 10, "max_candidate_tokens": 6, **changes}), 128)


def test_turns_are_joined_between_boundaries(subwords: Any) -> None:
    texts = make(subwords)
    assert words(texts, texts.context_ids(Context(("hello", "my wifi")))) == "[CLS] hello [SEP] my wifi [SEP]"
    assert words(texts, texts.candidate_ids("thanks")) == "[CLS] thanks [SEP]"


def test_contexts_keep_their_end_and_candidates_their_start(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=6)
    assert words(texts, texts.context_ids(Context(("hello hi", "my wifi is down")))) == "[CLS] my wifi is down [SEP]"
    assert words(texts, texts.candidate_ids("my wifi is down hello hi")) == "[CLS] my wifi is down [SEP]"


def test_speaker_prefixes_alternate_back_from_the_last_turn(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=20, speaker_prefixes=("my ", "the "))
    found = words(texts, texts.context_ids(Context(("hello", "hi", "thanks"))))
    assert found == "[CLS] my hello [SEP] the hi [SEP] my thanks [SEP]"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("before", "[CLS] red router [SEP] hi [SEP] down [SEP]"),
        ("after", "[CLS] hi [SEP] down [SEP] red router [SEP]"),
        ("drop", "[CLS] hi [SEP] down [SEP]"),
    ],
)
def test_background_has_its_place(subwords: Any, place: Any, expected: str) -> None:
    texts = make(subwords, background=place)
    assert words(texts, texts.context_ids(Context(("hi", "down"), ("red router",)))) == expected


def test_long_background_leaves_room_for_the_last_turn(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=10)
    ids = texts.context_ids(Context(("my wifi is down",), ("red " * 50,)))
    assert len(ids) == 10
    assert words(texts, ids).endswith("is down [SEP]")


def test_pairs_share_their_budget(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=10, max_candidate_tokens=10)
    ids, segments = texts.pair_ids(Context(("hello " * 40,)), "thanks")
    assert len(ids) == len(segments) == 20  # the short candidate left its room to the context
    assert segments == [0] * 18 + [1] * 2
    ids, segments = texts.pair_ids(Context(("hello",)), "thanks")
    assert words(texts, ids) == "[CLS] hello [SEP] thanks [SEP]"
    assert segments == [0, 0, 0, 1, 1]


def test_a_long_candidate_leaves_half_of_the_networks_room(subwords: Any) -> None:
    texts = BackboneTexts(subwords, TextPolicy(max_context_tokens=20, max_candidate_tokens=20), 20)
    ids, segments = texts.pair_ids(Context(("my wifi is down " * 9,)), "the bill is too high " * 9)
    assert len(ids) == 20
    assert segments == [0] * 11 + [1] * 9


def test_a_vocabulary_without_sep_separates_turns_by_its_own_end(tiny_backbone: Path) -> None:
    tokenizer = load_subwords(tiny_backbone).tokenizer
    renamed = Tokenizer.from_str(tokenizer.to_str().replace("[SEP]", "</s>"))
    texts = make(Subwords(renamed, "[CLS]", "</s>", "[PAD]"))
    assert words(texts, texts.context_ids(Context(("hi", "down")))) == "[CLS] hi </s> down </s>"


def test_new_tokens_are_single_and_separate_turns(tiny_backbone: Path) -> None:
    own = load_subwords(tiny_backbone)
    assert own.add(["[EOT]"]) == 1
    assert own.add(["[EOT]"]) == 0
    texts = make(own, turn_separator="[EOT]")
    assert words(texts, texts.context_ids(Context(("hi", "down")))) == "[CLS] hi [EOT] down [SEP]"


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.lists(st.text(max_size=20), max_size=2), st.text())
@settings(max_examples=60, deadline=None)
def test_any_text_fits_its_budget(subwords: Any, turns: list[str], facts: list[str], candidate: str) -> None:
    texts = make(subwords)
    context = Context(tuple(turns), tuple(facts))
    assert 2 <= len(texts.context_ids(context)) <= 10
    assert 2 <= len(texts.candidate_ids(candidate)) <= 6
    ids, segments = texts.pair_ids(context, candidate)
    assert len(ids) == len(segments) <= 16


@pytest.mark.parametrize("text", ["🙂 👩‍👩‍👧", "你好", "שלום", "a\x00b", "", " ", "\u200b"])
def test_unusual_text_is_read(subwords: Any, text: str) -> None:
    texts = make(subwords)
    assert len(texts.candidate_ids(text)) >= 2


def test_a_very_long_context_is_cut_to_its_end(subwords: Any) -> None:
    texts = make(subwords)
    ids = texts.context_ids(Context(("hello " * 100_000, "my wifi is down")))
    assert len(ids) == 10
    assert words(texts, ids).endswith("[SEP] my wifi is down [SEP]")


def test_padding_is_masked(subwords: Any) -> None:
    tokens = make(subwords).candidates(["hello", "my wifi is"])
    assert tokens.mask.sum(1).tolist() == [3, 5]
    assert tokens.ids[0, 3:].tolist() == [subwords.pad_id] * 2


def test_budgets_outside_the_network_are_refused(subwords: Any) -> None:
    with pytest.raises(ConfigError, match="max_context_tokens = 500 is outside 4 to 128"):
        make(subwords, max_context_tokens=500)


def test_a_tokenizer_survives_a_round_trip_and_refuses_damage(subwords: Any) -> None:
    again = read_subwords(subwords.to_bytes(), "tokenizer.json")
    assert again.encode("my router is down 🙂") == subwords.encode("my router is down 🙂")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        read_subwords(subwords.to_bytes()[:-40], "tokenizer.json")
