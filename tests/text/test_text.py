"""The text policy: contexts keep their end, candidates their start, pairs share a budget; unusual text works."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from polyrank.config.models import TextPolicy
from polyrank.errors import ArtifactError, ConfigError, DataError
from polyrank.records import Context
from polyrank.text import BackboneTexts, Subwords, TemplateTexts, load_subwords, load_template_texts, pad, read_subwords
from polyrank.text.cut import Cut
from polyrank.text.tokens import Tokens, like_lengths, token_batches


@pytest.fixture(scope="module")
def subwords(tiny_backbone: Path) -> Any:
    return load_subwords(tiny_backbone)


def words(texts: BackboneTexts, ids: list[int]) -> str:
    return " ".join(texts.subwords.tokenizer.id_to_token(i) for i in ids)


def make(subwords: Any, **changes: Any) -> BackboneTexts:
    return BackboneTexts(subwords, TextPolicy(**{"max_context_tokens": 10, "max_candidate_tokens": 6, **changes}), 128)


def test_turns_are_joined_between_special_tokens(subwords: Any) -> None:
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
def test_the_position_of_background(subwords: Any, place: Any, expected: str) -> None:
    texts = make(subwords, background=place)
    assert words(texts, texts.context_ids(Context(("hi", "down"), ("red router",)))) == expected


def test_no_code_of_a_folder_is_run(tiny_backbone: Path, tmp_path: Path) -> None:
    folder, ran = shutil.copytree(tiny_backbone, tmp_path / "model"), tmp_path / "ran"
    (folder / "own.py").write_text(
        f"from transformers import BertTokenizerFast as Own\nopen({str(ran)!r}, 'w').close()\n", "utf-8"
    )
    stated = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    stated |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", "own.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), "utf-8")
    with suppress(ArtifactError):  # which names the library's reason
        load_subwords(folder)
    assert not ran.exists()


def test_long_background_leaves_space_for_the_last_turn(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=10)
    ids = texts.context_ids(Context(("my wifi is down",), ("red " * 50,)))
    assert len(ids) == 10
    assert words(texts, ids).endswith("is down [SEP]")
    assert str(texts.cut).endswith("1 background did not fit into 5 tokens, so its end was not read")
    short = BackboneTexts(subwords, TextPolicy(max_context_tokens=20, max_candidate_tokens=20), 20)
    ids, _ = short.pair_ids(Context(("my wifi is down",), ("red " * 50,)), "the bill is too high " * 9)
    assert "wifi is down [SEP] the bill" in words(short, ids)  # the network's length leaves fewer tokens to a context


def test_pairs_share_their_budget(subwords: Any) -> None:
    texts = make(subwords, max_context_tokens=10, max_candidate_tokens=10)
    ids, segments = texts.pair_ids(Context(("hello " * 40,)), "thanks")
    assert len(ids) == len(segments) == 20  # the context uses the short candidate's rest
    assert segments == [0] * 18 + [1] * 2
    ids, segments = texts.pair_ids(Context(("hello",)), "thanks")
    assert words(texts, ids) == "[CLS] hello [SEP] thanks [SEP]"
    assert segments == [0, 0, 0, 1, 1]


def test_a_long_candidate_leaves_half_of_the_networks_length(subwords: Any) -> None:
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
def test_any_text_fits_its_budget(subwords: Any, turns: list[str], facts: list[str], candidate: str) -> None:
    texts = make(subwords)
    context = Context(tuple(turns), tuple(facts))
    assert 2 <= len(texts.context_ids(context)) <= 10
    assert 2 <= len(texts.candidate_ids(candidate)) <= 6
    ids, segments = texts.pair_ids(context, candidate)
    assert len(ids) == len(segments) <= 16


@pytest.mark.parametrize("text", ["🙂 👩‍👩‍👧", "你好", "שלום", "a\x00b", "", " ", "\u200b"])
def test_unusual_text_is_encoded(subwords: Any, text: str) -> None:
    texts = make(subwords)
    ids = texts.candidate_ids(text)
    assert (ids[0], ids[-1]) == (subwords.start_id, subwords.end_id)
    assert len(ids) <= 6
    assert ids[1:-1] == list(subwords.encode(text))[:4]
    assert (len(ids) == 2) == (text in ("", " ", "\u200b"))


@pytest.mark.parametrize("n", [1, 100])
@pytest.mark.parametrize("code", [0xD800, 0xD83D, 0xDBFF, 0xDC00, 0xDFFF])
def test_a_lone_surrogate_is_refused_alone_and_among_many(subwords: Any, n: int, code: int) -> None:
    texts, last = ["hello"] * n + [f"hi {chr(code)}"], ["\ud7ff", "\ue000", "\U0001f600"]  # not between them
    with pytest.raises(DataError, match=rf"^a text contains the lone surrogate '.u{code:x}'; use valid Unicode$"):
        subwords.encode_all(texts)
    assert len(subwords.encode_all(texts[:-1] + last)) == n + 3


@pytest.mark.deep
def test_a_very_long_context_is_truncated_to_its_end(subwords: Any) -> None:
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
    for around in (["[CLS]"], ["[SEP]"]), (["[MASK]"], ["[SEP]"]), (["[CLS]", "[SEP]"], []):
        own = Subwords(subwords.tokenizer, "[CLS]", "[SEP]", "[PAD]", around)
        again = read_subwords(own.to_bytes(), "tokenizer.json")
        assert (again.before, again.after) == (own.before, own.after)
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        read_subwords(subwords.to_bytes()[:-40], "tokenizer.json")


def tokenizer_folder(path: Path, **names: Any) -> Path:
    """A folder with a tokenizer of three words and the given special tokens."""
    words = ["<pad>", "<s>", "</s>", "[CLS]", "[SEP]", "[UNK]", "hello"]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(path)
    return path


@pytest.mark.parametrize(
    ("names", "boundaries"),
    [
        ({"cls_token": "[CLS]", "sep_token": "[SEP]"}, (3, 4)),
        ({"bos_token": "<s>", "eos_token": "</s>"}, (1, 2)),
        ({"cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "<s>", "eos_token": "</s>"}, (3, 4)),
    ],
)
def test_texts_start_and_end_with_the_tokenizers_special_tokens(
    tmp_path: Path, names: dict[str, str], boundaries: tuple[int, int]
) -> None:
    own = load_subwords(tokenizer_folder(tmp_path, pad_token="<pad>", **names))
    assert (own.start_id, own.end_id, own.pad_id) == (*boundaries, 0)
    assert own.encode("hello") == (6,)
    again = read_subwords(own.to_bytes(), "tokenizer.json")
    assert (again.start_id, again.end_id, again.pad_id) == (*boundaries, 0)
    exact = load_subwords(tmp_path, exact=True)  # the tokenizer puts none around a text
    assert (exact.start_id, exact.end_id, exact.before, exact.after) == (*boundaries, [], [])


def test_a_tokenizer_without_a_token_to_pad_with_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="has no padding token; set pad_token in its config"):
        load_subwords(tokenizer_folder(tmp_path, cls_token="[CLS]", sep_token="[SEP]"))


def test_a_tokenizer_without_boundary_tokens_adds_none(tmp_path: Path) -> None:
    own = load_subwords(tokenizer_folder(tmp_path, eos_token="</s>"))
    assert (own.before, own.after, own.start_id, own.pad_id) == ([], [], own.end_id, own.end_id)
    again = read_subwords(own.to_bytes(), "tokenizer.json")
    assert (again.before, again.after, again.single) == ([], [], own.single)
    for single in ([["</s>"], []], [[], ["</s>"]], [["</s>"], ["hello"]]):
        other = Subwords(own.tokenizer, "</s>", "</s>", own.names["padding"], single)
        assert read_subwords(other.to_bytes(), "tokenizer.json").single == single
    texts = BackboneTexts(own, TextPolicy(), 512)
    assert texts.candidate_ids("hello") == [6]
    assert texts.candidate_ids("") == texts.context_ids(Context(("",))) == [own.pad_id]
    assert texts.contexts([Context(("hello hello",)), Context(("hello",))]).ids.tolist() == [[6, 6], [6, own.end_id]]
    pairs = texts.pairs([(Context(("hello",)), "hello"), (Context(("",)), "hello")]).ids.tolist()
    assert pairs == [[6, 2, 6, 2], [2, 6, 2, own.pad_id]]
    assert texts.pair_ids(Context(("hello",)), "hello") == ([6, own.end_id, 6, own.end_id], [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("context", "candidate", "pair"),
    [(None, None, 60), (20, None, 80), (None, 20, 80), (20, 30, 50), (400, 300, 512)],
)
def test_a_given_budget_of_either_side_decides_about_pairs(
    tmp_path: Path, context: int | None, candidate: int | None, pair: int
) -> None:
    own = load_template_texts(
        tokenizer_folder(tmp_path, pad_token="<pad>", eos_token="</s>"),
        512,
        max_tokens=60,
        max_context_tokens=context,
        max_candidate_tokens=candidate,
        lower_case=False,
        prompts=("", ""),
    )
    assert isinstance(own, TemplateTexts)
    assert own.max_pair_tokens == pair
    assert len(own.pair_ids(Context(("hello " * 600,)), "hello " * 600)[0]) == pair


def test_texts_of_a_folder_follow_its_tokenizer_and_the_options(tmp_path: Path, tiny_backbone: Path) -> None:
    names = {"pad_token": "<pad>", "eos_token": "</s>"}

    def texts(name: str, longest: int = 512, lower_case: bool = False, **tokenizer: Any) -> Any:
        return load_template_texts(
            tokenizer_folder(tmp_path / name, **names, **tokenizer), longest, max_tokens=None, max_context_tokens=None,
            max_candidate_tokens=None, lower_case=lower_case, prompts=("hello ", "hello hello "),
        )  # fmt: skip

    left = texts("left", lower_case=True, model_max_length=40, padding_side="left", model_input_names=["input_ids"])
    policy = left.policy
    assert (policy.max_context_tokens, policy.max_candidate_tokens, left.max_pair_tokens) == (40, 40, 40)
    assert (left.context_ids(Context(("HELLO",))), left.candidate_ids("Hello")) == ([6, 6], [6, 6, 6])
    assert (left.pads_left, left.has_types) == (True, False)
    right = texts("right", 30, model_input_names=["input_ids", "token_type_ids"], model_max_length=40)
    assert (right.max_pair_tokens, right.candidate_ids("HELLO")) == (30, [6, 6, 5])
    assert (right.pads_left, right.has_types) == (False, True)
    with pytest.raises(ArtifactError, match=r"the tokenizer in .*cut cuts the starts of texts.* set truncation_side"):
        texts("cut", truncation_side="left")
    assert load_subwords(tmp_path / "left", lower_case=True).encode("HELLO") == (6,)
    assert load_subwords(tmp_path / "left").encode("HELLO") == (5,)


def test_a_special_token_must_be_in_the_vocabulary(subwords: Any) -> None:
    tokenizer = Tokenizer.from_str(subwords.tokenizer.to_str())
    with pytest.raises(ConfigError, match=r"the vocabulary has no token '\[END\]'"):
        Subwords(tokenizer, "[CLS]", "[END]", "[PAD]")


def test_a_tokenizers_own_truncation_and_padding_are_off(tiny_backbone: Path) -> None:
    tokenizer = load_subwords(tiny_backbone).tokenizer
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    own = Subwords(tokenizer, "[CLS]", "[SEP]", "[PAD]")
    assert len(own.encode("a b c d e")) == 5
    assert len(own.encode("a")) == 1
    assert [len(ids) for ids in own.encode_all(["a b c d e", "a"] * 40)] == [5, 1] * 40


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_many_texts_have_the_same_ids_as_each_one(subwords: Any, n: int) -> None:
    texts = make(subwords)
    lines = [f"my {'wifi ' * (i % 7)}is {'abcdefg'[i % 7]}" for i in range(n)]
    assert subwords.encode_all(lines) == [subwords.encode(line) for line in lines]
    assert texts.all_candidate_ids(lines) == [texts.candidate_ids(line) for line in lines]
    assert len(subwords.encode_all([])) == 0


def test_added_tokens_match_exactly_and_special_tokens_in_texts_do_not(tiny_backbone: Path) -> None:
    own = load_subwords(tiny_backbone)
    before = own.encode("[EOT]")
    n_before = len(own)
    assert len(before) > 1
    assert own.add(["[EOT]", "[CLS]"]) == 1
    assert len(own) == n_before + 1
    assert own.encode("[EOT]") == (n_before,)  # the cached ids of it are dropped
    assert own.encode("[eot]") != (n_before,)
    assert own.encode("hi[EOT]my") == (*own.encode("hi"), n_before, *own.encode("my"))


def test_pieces_continue_their_word_and_special_tokens_none(tiny_backbone: Path) -> None:
    """A pre-training hides whole words, and never a special token."""
    own = load_subwords(tiny_backbone)
    own.add(["[EOT]"])
    own.tokenizer.add_tokens(["iphone"])  # a word that is not special
    ((ids, continues),) = own.encode_words(["hi wifis[EOT][EOT]iphone"])
    assert [own.tokenizer.id_to_token(i) for i in ids] == ["hi", "wifi", "##s", "[EOT]", "[EOT]", "iphone"]
    assert continues == [False, False, True, False, False, False]
    special = [own.id_of(name) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[EOT]")]
    assert own.special_ids() == sorted(special)
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(["<unk>", "<mask>", "a", "b", "c"])}, "<unk>"))
    assert Subwords(words, "a", "b", "a").special_ids() == [0, 1, 2, 3]  # by their names alone


def test_other_libraries_get_the_names_of_special_tokens(subwords: Any) -> None:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "<pad>"])}, "<unk>"))
    for own, segments, wanted in (
        (subwords, True, {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]"}),
        (Subwords(words, "<s>", "</s>", "<pad>"), False, {"cls": "<s>", "sep": "</s>", "pad": "<pad>", "unk": "<unk>"}),
    ):
        settings = own.settings(99, segments=segments)
        assert {key: value for key, value in settings.items() if key.endswith("_token")} == {
            f"{kind}_token": name for kind, name in wanted.items()
        }
        assert (settings["model_max_length"], "token_type_ids" in settings.get("model_input_names", [])) == (
            99,
            segments,
        )
        assert (settings["padding_side"], settings["truncation_side"]) == ("right", "right")
    other = Tokenizer.from_str(json.dumps(subwords.with_boundaries()))
    alone, pair = other.encode("hello"), other.encode("hello", "thanks")
    assert (alone.tokens, alone.type_ids) == (["[CLS]", "hello", "[SEP]"], [0, 0, 0])
    assert pair.tokens == ["[CLS]", "hello", "[SEP]", "thanks", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]


def test_a_warning_counts_the_texts_of_each_kind() -> None:
    cut = Cut(1_000, 72, 5, 6, contexts={*range(1_200)}, candidates={1}, earlier={1, 2})
    assert str(cut) == (
        "1 candidate did not fit into 72 tokens, so its end was not read; 1,200 contexts did not fit into 1,000 tokens,"
        " so their starts were not read; 2 earlier parts did not fit into 6 tokens, so their starts were not read"
    )
    assert len([kind for kind in cut.texts if kind]) == 3
    for kind in ("contexts", "candidates", "backgrounds", "earlier"):
        one = Cut(4, 4, 4, 4, **{kind: {1}})
        assert (bool(one), str(one).startswith("1 ")) == (True, True)
        one.clear()
        assert (bool(one), str(one)) == (False, "")


def test_cut_texts_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    cut = Cut(4, 5)
    cut.warn()
    cut.candidates.add(1)
    cut.warn()
    cut.contexts.add(2)
    cut.warn()
    assert [record.getMessage() for record in caplog.records] == [
        "1 candidate did not fit into 5 tokens, so its end was not read; its scorer counts them in cut"
    ]


@pytest.mark.parametrize("n", [999, 1000, 1001, 2000])
def test_long_texts_have_the_same_subwords(subwords: Any, n: int) -> None:
    """Texts of 2,000 characters and more are not cached."""
    assert subwords.encode("a " * n) == subwords.encode("a") * n


def test_a_batch_is_padded_on_the_right() -> None:
    tokens = pad([[5, 6, 7], [], [8]], [[0, 1, 1], [], [1]], pad_id=9)
    assert tokens.ids.tolist() == [[5, 6, 7], [9, 9, 9], [8, 9, 9]]
    assert tokens.mask.tolist() == [[True, True, True], [False] * 3, [True, False, False]]
    assert tokens.segments.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    assert (tokens.ids.dtype, tokens.mask.dtype, tokens.segments.dtype) == (torch.int64, torch.bool, torch.int64)
    assert pad([[1], [2, 3]]).segments.tolist() == [[0, 0], [0, 0]]
    assert pad([[1], [2, 3]]).ids.tolist() == [[1, 0], [2, 3]]
    wide = pad([np.array([1], "<u4"), np.array([2, 3], "<u4")], pad_id=9, width=3)
    assert (wide.ids.tolist(), wide.mask.sum(1).tolist()) == ([[1, 9, 9], [2, 3, 9]], [1, 2])
    assert pad([[1, 2, 3]], width=2).ids.tolist() == [[1, 2, 3]]
    assert [pad(rows).is_full for rows in ([[1], [2]], [[1], [2, 3]])] == [True, False]
    unknown = Tokens(tokens.ids, tokens.mask, tokens.segments)
    assert (unknown.is_full, unknown.host_lengths().tolist()) == (None, [3, 0, 1])
    part = unknown.part(torch.tensor([2, 1]))
    assert (part.ids.tolist(), part.mask.tolist(), part.segments.tolist()) == (
        [[8], [9]],
        [[True], [False]],
        [[1], [0]],
    )
    for rows, shape in (([], (0, 0)), ([[], []], (2, 0))):
        empty = pad(rows)
        assert empty.ids.shape == empty.mask.shape == empty.segments.shape == shape


def test_a_batch_moves_to_a_device_as_a_whole() -> None:
    moved = pad([[5, 6], [7]], [[0, 1], [0]]).to(torch.device("meta"))
    assert {moved.ids.device.type, moved.mask.device.type, moved.segments.device.type} == {"meta"}
    here = pad([[5, 6], [7]], [[0, 1], [0]])
    part = moved.part(torch.tensor([1]))  # is known without a device
    assert [values.tolist() for values in part.on_host()] == [[[7]], [1]]
    again = here.to(torch.device("cpu"))
    assert torch.equal(again.ids, here.ids)
    assert torch.equal(again.mask, here.mask)
    assert torch.equal(again.segments, here.segments)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 30), st.booleans())
def test_groups_of_texts_stay_within_their_tokens_and_padding(lengths: list[int], most: int, alike: bool) -> None:
    """Longest first, and each group as large as it can be."""
    for groups in (batches := token_batches(lengths, most, alike=alike)), (padded := like_lengths(lengths, most)):
        assert sorted(place for group in groups for place in group) == [*range(len(lengths))]
        ordered = [lengths[place] for group in groups for place in group]
        assert ordered == sorted(lengths, reverse=True)
    firsts = {id(group): [lengths[place] for place in group] for group in (*batches, *padded)}
    for group, following in zip(batches, [*batches[1:], None], strict=False):
        row = firsts[id(group)]
        assert len(row) == 1 or len(row) * max(row[0], 1) <= most
        assert not alike or len({*row}) == 1
        if following is not None:
            other = firsts[id(following)][0]
            assert (len(row) + 1) * max(row[0], 1) > most or (alike and other != row[0])
    for group, following in zip(padded, [*padded[1:], None], strict=False):
        row = firsts[id(group)]
        lost = sum(row[0] - length for length in row)
        assert lost <= most
        assert following is None or lost + row[0] - firsts[id(following)][0] > most
