"""Explanations: shares are the terms of a score that is a sum, and otherwise the loss without the part."""

import html
import json
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from typer.testing import CliRunner

import polyrank
from convert_models import CORPUS, make
from polyrank import BM25, Context, TfIdf, explain
from polyrank.cli.commands import app
from polyrank.config.models import BiConfig, ConvertText, CrossConfig, ModelConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, UsageError
from polyrank.models import BiEncoder, PolyEncoder, new_model
from polyrank.models.artifacts import save_model
from polyrank.models.bi_encoder import Tower
from polyrank.notebook import shares
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.explanation import CandidateShare, Explanation, TextShare, TokenShare, words_of
from polyrank.scorers.load import make_scorer
from polyrank.scorers.protocols import Encoder, Floats, Scorer
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.shares import TOKENS_SHOWN
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.lexical import LexicalTerm
from polyrank.text import BackboneTexts, ConvertTexts, Texts, Tokens, load_subwords, load_template_texts
from polyrank.text.offsets import Span, candidate_spans, context_spans, pair_spans, text_spans
from processes import run

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from layouts import LAYOUTS

CONTEXTS = {
    "one turn": Context("my wifi is down"),
    "turns": Context(("hello", "my WiFi is down !", "did that help", "it is red")),
    "background": Context(("hi", "is the light green"), ("the bill is high", "my router")),
    "other scripts": Context(("héllo שלום 😀 你好", "ÜNÏCÖDE, İs")),
    "too long": Context(("the router light " * 9, "my bill is too high " * 4, "please restart it"), ("hello hi",)),
    "a turn twice": Context(("hi", "hi", " ", "hi")),
}
REPLY = "Please restart the router, thanks"
LINEAR: dict[str, ModelConfig] = {
    "bi mean": BiConfig(reduction="mean"),
    "bi sqrt_n": BiConfig(reduction="sqrt_n", projection_dim=24, output_scale=0.3),
    "bi mean_of_first": BiConfig(reduction="mean_of_first", reduction_tokens=5, shared_towers=True),
    "bi of one length": BiConfig(reduction="mean", projection_dim=24, normalize=True),
    "poly of one length": PolyConfig(n_codes=5, code_init="normal", reduction="mean", normalize=True),
    "poly learnt": PolyConfig(n_codes=5, code_init="normal", reduction="mean", projection_dim=24),
    "poly first": PolyConfig(n_codes=7, codes="first", reduction="sqrt_n", output_scale=0.2),
    "poly last": PolyConfig(n_codes=3, codes="last", reduction="mean"),
    "poly last_h1": PolyConfig(n_codes=6, codes="last_h1", reduction="mean_of_first", reduction_tokens=3),
}
POLICY = TextPolicy(max_context_tokens=40, max_candidate_tokens=9, max_background_tokens=6)


def scorer_of(backbone: Path, config: Any, policy: TextPolicy = POLICY, precision: Any = "fp32") -> Any:
    model, texts, _ = new_model(replace(config, backbone=str(backbone)), policy, seed=4, sample=["hello", "my wifi"])
    return make_scorer(model, texts, device="cpu", precision=precision, frozen=True)


def total(texts: Iterable[TextShare]) -> float:
    return math.fsum(text.share for text in texts)


def check_form(why: Explanation, context: Context, candidate: str) -> None:
    """Check the properties of every explanation."""
    assert [turn.text for turn in why.turns] == list(context.turns)
    assert [fact.text for fact in why.background] == list(context.background)
    assert why.candidate.text == candidate
    for text in (*why.turns, *why.background, why.candidate):
        ends = [(token.start, token.end) for token in text.tokens]
        assert ends == sorted(ends)
        for token in text.tokens:
            assert token.text == text.text[token.start : token.end] != ""
            assert token.read or token.share == 0
    for vector in why.vectors:
        for token in vector.tokens:
            texts = context.background if token.turn is None else context.turns[token.turn : token.turn + 1]
            assert token.text in {"" if token.turn is None else None, *(t[token.start : token.end] for t in texts)}
        assert 1 <= len(vector.tokens) <= TOKENS_SHOWN
    weights = [vector.weight for vector in why.vectors]
    assert weights == sorted(weights, reverse=True)
    for part in (*why.turns, *why.background):
        assert part.read or part.text.strip()  # nothing is missing in a blank text
        assert part.read or (part.share == 0 and not any(token.read for token in part.tokens))
    assert json.loads(json.dumps(why.as_dict(), allow_nan=False))["score"] == why.score


def check_sums(why: Explanation, score: float, rel: float = 1e-4) -> None:
    """Check exact explanations: turns, background and rest sum to the score, and tokens to their text's share."""
    assert why.exact
    assert why.score == pytest.approx(score, rel=1e-6, abs=1e-6)
    assert total((*why.turns, *why.background)) + why.rest == pytest.approx(score, rel=rel, abs=1e-5)
    for text in (*why.turns, *why.background):
        assert math.fsum(token.share for token in text.tokens) == pytest.approx(text.share, rel=1e-6, abs=1e-9)
    if why.candidate.exact:
        shares = math.fsum(token.share for token in why.candidate.tokens)
        assert shares + why.candidate.rest == pytest.approx(score, rel=rel, abs=1e-5)


def shares_of(why: Explanation) -> list[float]:
    """The score and every share."""
    texts = (*why.turns, *why.background)
    tokens = [token.share for text in (*texts, why.candidate) for token in text.tokens]
    return [why.score, why.rest, why.candidate.rest, *(text.share for text in texts), *tokens]


# sums of tokens


@pytest.mark.parametrize("name", LINEAR)
def test_shares_sum_to_the_score(tiny_backbone: Path, name: str) -> None:
    scorer = scorer_of(tiny_backbone, LINEAR[name])
    for context in CONTEXTS.values():
        why = explain(scorer, context, REPLY)
        check_form(why, context, REPLY)
        check_sums(why, float(scorer.score([context], [[REPLY]])[0][0]))
        assert why.candidate.exact
        assert why.method == why.candidate.method == "sum of tokens"
        assert bool(why.vectors) == name.startswith("poly")


def test_in_bf16_shares_sum_to_the_bf16_score(tiny_backbone: Path) -> None:
    scorer = scorer_of(tiny_backbone, LINEAR["poly learnt"], precision="bf16")
    context = CONTEXTS["turns"]
    check_sums(explain(scorer, context, REPLY), float(scorer.score([context], [[REPLY]])[0][0]), rel=1e-2)


class Rows(nn.Module):
    """A transformer without layers: each token's output is its row of a table."""

    def __init__(self, table: dict[int, tuple[float, float]]) -> None:
        super().__init__()
        self.table, self.dimension = table, 2

    def forward(self, tokens: Tokens) -> Tensor:
        return torch.tensor([[self.table.get(int(i), (0.0, 0.0)) for i in row] for row in tokens.ids])


def by_hand(backbone: Path, network: type[BiEncoder] | type[PolyEncoder], **changes: Any) -> EncoderScorer:
    """Outputs hi (1, 0), wifi (0, 2), red (3, 1), bill (2, 2); boundaries and separators (0, 0), [CLS] (1, 1)."""
    texts = BackboneTexts(load_subwords(backbone), POLICY, 128)
    ids = {word: texts.subwords.encode(word)[0] for word in ("hi", "wifi", "red", "bill")}
    table = {ids["hi"]: (1.0, 0.0), ids["wifi"]: (0.0, 2.0), ids["red"]: (3.0, 1.0), ids["bill"]: (2.0, 2.0)}
    tower = Tower(Rows(table | {texts.subwords.start_id: (1.0, 1.0)}), None, 1.0)  # type: ignore[arg-type]
    return EncoderScorer(network(tower, tower, reduction="mean", reduction_tokens=1, **changes), texts)


def test_a_bi_encoder_by_hand(tiny_backbone: Path) -> None:
    """[CLS] hi [SEP] wifi hi [SEP]: the mean of 6 outputs; bill between boundaries: c = (1, 1)."""
    why = explain(by_hand(tiny_backbone, BiEncoder), ["hi", "wifi hi"], "bill")
    assert why.score == pytest.approx((2 + 1 + 2 + 1) / 6)
    assert [turn.share for turn in why.turns] == pytest.approx([1 / 6, 3 / 6])
    assert [token.share for token in why.turns[1].tokens] == pytest.approx([2 / 6, 1 / 6])
    assert why.rest == pytest.approx(2 / 6)
    # the context's vector is (3, 3) / 6; a third of bill's output (2, 2) contributes 2 / 3, of [CLS] (1, 1) 1 / 3
    assert [token.share for token in why.candidate.tokens] == pytest.approx([2 / 3])
    assert why.candidate.rest == pytest.approx(1 / 3)
    assert why.vectors == ()


def test_a_poly_encoder_by_hand(tiny_backbone: Path) -> None:
    """[CLS] wifi red [SEP]: (1, 1), (0, 2), (3, 1), (0, 0). One code looks at x, the other evenly; c = (1, 1)."""
    scorer = by_hand(tiny_backbone, PolyEncoder, codes="learnt", n_codes=2, code_init="normal")
    assert isinstance(scorer.model, PolyEncoder)
    assert scorer.model.codes is not None
    with torch.no_grad():
        scorer.model.codes.copy_(torch.tensor([[math.log(2), 0.0], [0.0, 0.0]]))
    looks = [[2 / 12, 1 / 12, 8 / 12, 1 / 12], [1 / 4] * 4]  # softmax of x ln 2, which is 2^x
    products = [2, 2, 4, 0]
    dots = [sum(a * p for a, p in zip(look, products, strict=True)) for look in looks]
    first = 1 / (1 + math.exp(dots[1] - dots[0]))
    weights = [first, 1 - first]
    why = explain(scorer, "wifi red", "bill")
    assert why.score == pytest.approx(sum(w * s for w, s in zip(weights, dots, strict=True)))
    wanted = [sum(w * look[t] for w, look in zip(weights, looks, strict=True)) * products[t] for t in (1, 2)]
    assert [token.share for token in why.turns[0].tokens] == pytest.approx(wanted)
    assert why.rest == pytest.approx(why.score - sum(wanted))
    assert [vector.index for vector in why.vectors] == [0, 1]
    assert [vector.weight for vector in why.vectors] == pytest.approx(weights)
    assert [vector.dot for vector in why.vectors] == pytest.approx(dots)
    best = why.vectors[0].tokens[0]
    assert (best.text, best.turn, best.start, best.end) == ("red", 0, 5, 8)
    assert best.weight == pytest.approx(8 / 12)
    assert [look.text for look in why.vectors[0].tokens[1:3]] == ["", "wifi"]  # "" is [CLS]


def test_one_uniform_code_equals_the_bi_encoder(tiny_backbone: Path) -> None:
    poly = by_hand(tiny_backbone, PolyEncoder, codes="learnt", n_codes=1, code_init="near_zero")
    torch.nn.init.zeros_(poly.model.codes)
    why = explain(poly, ["hi", "wifi hi red"], "bill red")
    same = explain(by_hand(tiny_backbone, BiEncoder), ["hi", "wifi hi red"], "bill red")
    assert why.vectors == same.vectors == ()
    assert shares_of(why) == pytest.approx(shares_of(same), rel=1e-6, abs=1e-6)


def test_shares_with_tokens_as_context_vectors(tiny_backbone: Path) -> None:
    why = explain(scorer_of(tiny_backbone, LINEAR["poly last"]), ["hi", "my wifi"], REPLY)
    assert {(look.text, look.turn, look.weight) for vector in why.vectors for look in vector.tokens} == {
        ("my", 1, 1.0),
        ("wifi", 1, 1.0),
        ("", None, 1.0),
    }
    assert why.turns[0].share == 0
    assert sum(vector.share for vector in why.vectors) == pytest.approx(why.score, rel=1e-4, abs=1e-5)


def test_each_side_has_its_own_method(tiny_backbone: Path) -> None:
    scorer = scorer_of(tiny_backbone, PolyConfig(n_codes=3, reduction="first"))
    context = CONTEXTS["turns"]
    why = explain(scorer, context, REPLY)
    check_form(why, context, REPLY)
    check_sums(why, float(scorer.score([context], [[REPLY]])[0][0]))
    assert (why.method, why.candidate.method, why.candidate.exact) == ("sum of tokens", "left out", False)


def test_cosines_are_sums_too(tiny_backbone: Path, mean_pooled_backbone: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sentences"
    folder.mkdir()
    for file in mean_pooled_backbone.rglob("*"):
        (folder / file.relative_to(mean_pooled_backbone)).parent.mkdir(exist_ok=True)
        if file.is_file():
            (folder / file.relative_to(mean_pooled_backbone)).write_bytes(file.read_bytes())
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    for name in (f"untuned:{mean_pooled_backbone}", str(folder)):
        scorer = polyrank.load(name, device="cpu", precision="fp32")
        for context in CONTEXTS.values():
            why = explain(scorer, context, REPLY)
            check_form(why, context, REPLY)
            check_sums(why, float(scorer.score([context], [[REPLY]])[0][0]))
            assert why.candidate.exact


def test_tokens_of_one_letter_have_one_share_together(tmp_path: Path) -> None:
    """A vocabulary of bytes has three tokens for an umbrella and four for a face."""
    scorer: Any = polyrank.load(LAYOUTS["Roberta encoder, lower case and prompts"](tmp_path), device="cpu")
    context, reply = Context(("my ☂ is ☂☂ down", "😀", "did the wifi 你好 help")), "hello ☂ thanks 😀😀 ☂"
    for spans in (context_spans(scorer.texts, context)[1], candidate_spans(scorer.texts, reply)[1]):
        assert max(Counter(span for span in spans if span).values()) >= 3
    why = explain(scorer, context, reply)
    check_form(why, context, reply)
    check_sums(why, float(scorer.score([context], [[reply]])[0][0]))
    assert why.candidate.exact
    assert [len(turn.tokens) for turn in why.turns][1] == 1
    letters = [token.text for text in (*why.turns, why.candidate) for token in text.tokens if token.text in "☂😀你好"]
    assert letters == ["☂", "☂", "☂", "😀", "你", "好", "☂", "😀", "😀", "☂"]
    # some tokens begin with the space before a word, and some are only spaces
    text = "hello  wifi \n"
    parts = [text[start:end] for start, end in text_spans(scorer.texts, text)]
    assert len(parts) == len(scorer.texts.subwords.encode(text))
    assert all(part == part.lstrip() or (part.isspace() and len(part) == 1) for part in parts)
    assert "".join(part for part in parts if not part.isspace()) == "hellowifi"


def test_truncated_turns_have_no_share(tiny_backbone: Path) -> None:
    policy = TextPolicy(max_context_tokens=8, max_candidate_tokens=5)
    context, reply = Context(("hello hi", "my wifi is down", "thanks")), "please restart it the red router"
    for config in (LINEAR["bi mean"], BiConfig(reduction="first"), CrossConfig()):
        why = explain(scorer_of(tiny_backbone, config, policy), context, reply)
        check_form(why, context, reply)
        assert [turn.read for turn in why.turns] == [False, True, True]
        assert [[token.text for token in turn.tokens] for turn in why.turns] == [turn.split() for turn in context.turns]
        assert [token.text for token in why.candidate.tokens if not token.read] == ["the", "red", "router"]
    half = explain(scorer_of(tiny_backbone, LINEAR["bi mean"], policy), "hello hi my wifi is down thanks please", reply)
    assert [token.text for token in half.turns[0].tokens if not token.read] == ["hello", "hi"]
    scorer = scorer_of(tiny_backbone, BiConfig(reduction="first"), policy)
    for max_words, words in ((2, ["thanks", "please"]), (5, ["wifi", "is", "down", "thanks", "please"])):  # of the read
        why = explain(scorer, "hello hi my wifi is down thanks please", reply, max_words=max_words)
        assert [token.text for token in why.turns[0].tokens if token.read] == words
        assert len([token for token in why.candidate.tokens if token.read]) == min(max_words, 3)


# offsets

LETTERS = "aAbßİıſΣς😀👩🏽\u200d👧é\u0301\u0327ñ가\u1100\u1161שלוםनमस्ते你好の. ,!'\t\n_-1²ǅﬁ\u0345"
TEXTS = st.text(st.sampled_from(LETTERS) | st.characters(codec="utf-8"), max_size=20)


@pytest.fixture(scope="module")
def policies(tiny_backbone: Path) -> dict[str, Texts]:
    subwords = load_subwords(tiny_backbone)
    others: dict[str, Any] = {
        "max_tokens": None, "max_context_tokens": 16, "max_candidate_tokens": 9, "lower_case": False,
    }  # fmt: skip
    _, convert, _ = make(policy=ConvertText(min_count=3, n_buckets=4, max_context_tokens=7, max_earlier_tokens=9))
    _, numbered, _ = make(policy=ConvertText(min_count=1, n_buckets=4, number_prefixes=True, background="after"))
    return {
        "plain": BackboneTexts(subwords, POLICY, 128),
        "small": BackboneTexts(subwords, TextPolicy(max_context_tokens=6, max_candidate_tokens=4), 128),
        "prefixes": BackboneTexts(
            subwords,
            replace(POLICY, speaker_prefixes=("you: ", "me"), background="after", context_prefix="hello "),
            128,
        ),
        "drop": BackboneTexts(subwords, replace(POLICY, background="drop", turn_separator=" / "), 128),
        "template": load_template_texts(tiny_backbone, 128, prompts=("", ""), **others),
        "prompts": load_template_texts(tiny_backbone, 128, prompts=("hello ", "the "), **others),
        "convert": convert,
        "numbered": numbered,
    }


@given(turns=st.lists(TEXTS, max_size=4), facts=st.lists(TEXTS, max_size=2), candidate=TEXTS)
def test_spans_match_the_used_ids(
    policies: dict[str, Texts], turns: list[str], facts: list[str], candidate: str
) -> None:
    context = Context(tuple(turns), tuple(facts))
    for texts in policies.values():
        ids, spans = context_spans(texts, context)
        assert ids == texts.context_ids(context)
        check_spans(spans, {"turn": turns, "background": facts})
        own, own_spans = candidate_spans(texts, candidate)
        assert own == texts.candidate_ids(candidate)
        check_spans(own_spans, {"candidate": [candidate]})
        if not isinstance(texts, ConvertTexts):
            both, both_spans = pair_spans(texts, context, candidate)
            assert both == texts.pair_ids(context, candidate)[0]
            check_spans(both_spans, {"turn": turns, "background": facts, "candidate": [candidate]})


def check_spans(spans: Sequence[Span | None], texts: dict[str, list[str]]) -> None:
    for span in spans:
        if span is not None:
            assert 0 <= span.start < span.end <= len(texts[span.kind][span.number])


@given(text=TEXTS)
def test_converts_spans_hold_their_subwords(policies: dict[str, Texts], text: str) -> None:
    texts = policies["convert"]
    assert isinstance(texts, ConvertTexts)
    spans = texts.subwords.encode_spans(text)
    assert tuple(token for token, _, _ in spans) == texts.subwords.encode(text)
    for token, start, end in spans:
        if token < len(texts.subwords.subwords):  # a bucket's subword may be a part of a character
            piece = texts.subwords.subwords[token].strip()
            assert piece in unicodedata.normalize("NFC", text[start:end].lower())


def test_offsets_slice_the_text(policies: dict[str, Texts]) -> None:
    text = "My WIFI, שלום 😀: is it down? İt ÉTAIT cafe\u0301 red"
    plain, convert = (
        [text[span.start : span.end] for span in dict.fromkeys(candidate_spans(policies[name], text)[1]) if span]
        for name in ("plain", "convert")  # a letter that becomes two subwords has one span
    )
    assert plain == [
        "My",
        "WIFI",
        ",",
        "שלום",
        "😀",
        ":",
        "is",
    ]  # 7: the budget of 9 includes special tokens
    assert "".join(convert) == "".join(text.split())  # it keeps all characters
    assert {"My", "is", "😀", "İ", "e\u0301"} <= {*convert}


def test_repeated_turns_are_explained_separately(policies: dict[str, Texts]) -> None:
    _, spans = context_spans(policies["plain"], Context(("hi", "red", "hi")))
    assert [None if span is None else span.number for span in spans] == [None, 0, None, 1, None, 2, None]


def test_words_of_texts_without_spaces() -> None:
    assert [(a, b) for a, b in words_of(" wifi  is 不通\t!")] == [(1, 5), (7, 9), (10, 11), (11, 12), (13, 14)]
    assert CORPUS[0][slice(*next(words_of(CORPUS[0])))] == "my"
    assert list(words_of(" \n")) == []
    assert list(words_of("のアx")) == [(0, 1), (1, 2), (2, 3)]


# by leaving out


def left_out(scorer: Scorer, context: Context, without: Context, candidate: str) -> float:
    one, other = scorer.score([context, without], [[candidate]] * 2)
    return float(one[0] - other[0])


@pytest.fixture(scope="module", params=["cross", "bi first", "convert", "single", "own"])
def opaque(request: pytest.FixtureRequest, tiny_backbone: Path) -> Scorer:
    """Scorers whose scores are not sums."""
    match request.param:
        case "cross":
            return scorer_of(tiny_backbone, CrossConfig())  # type: ignore[no-any-return]
        case "bi first":
            return scorer_of(tiny_backbone, BiConfig(reduction="first"))  # type: ignore[no-any-return]
        case "own":
            return Pairs()
        case _:
            model, texts, _ = make(multi_context=request.param == "convert")
            return make_scorer(model, texts, device="cpu", precision="fp32")


class Pairs(Scorer):
    """A user's own scorer, which counts common letters."""

    def score(self, contexts: Any, candidates: Sequence[Sequence[str]]) -> list[Floats]:
        said = ["".join((*Context.of(context).turns, *Context.of(context).background)) for context in contexts]
        return [
            np.array([sum(text.count(letter) for letter in own if letter != " ") for text in texts], np.float32)
            for own, texts in zip(said, candidates, strict=True)
        ]


def test_explanations_do_not_count_as_cut_texts() -> None:
    model, texts, _ = make()
    scorer = make_scorer(model, texts, device="cpu", precision="fp32")
    context = Context((" ".join(["wifi"] * 99), "hello " * 99, "is it down"))
    scorer.score([context], [[REPLY]])
    before = str(scorer.cut[0])
    assert "1 earlier part did not fit" in before
    explain(scorer, context, REPLY)
    assert str(scorer.cut[0]) == before


def test_a_share_is_the_loss_of_the_score(opaque: Scorer) -> None:
    turns = ("hello", "my wifi is down", "did that help")
    context = Context(turns, ("the bill is high",))
    why = explain(opaque, context, REPLY)
    check_form(why, context, REPLY)
    assert (why.method, why.exact, why.candidate.method) == ("left out", False, "left out")
    assert why.score == float(opaque.score([context], [[REPLY]])[0][0])
    for number, turn in enumerate(why.turns):
        if turn.read:  # a single-context ConveRT reads only the last turn
            without = replace(context, turns=(*turns[:number], *turns[number + 1 :]))
            assert turn.share == pytest.approx(left_out(opaque, context, without, REPLY), rel=1e-4, abs=1e-5)
    assert why.turns[-1].read
    words = {token.text: token.share for token in why.turns[2].tokens}
    for word, text in {"did": "that help", "that": "did help", "help": "did that"}.items():
        without = replace(context, turns=(*turns[:2], text))
        assert words[word] == pytest.approx(left_out(opaque, context, without, REPLY), rel=1e-4, abs=1e-5)
    replies = {"Please": "restart the router, thanks", "router,": "Please restart the thanks"}
    for word, text in replies.items():
        (share,) = (token.share for token in why.candidate.tokens if token.text == word)
        one, other = opaque.score([context], [[REPLY, text]])[0]
        assert share == pytest.approx(float(one - other), rel=1e-4, abs=1e-5)
    assert total((*why.turns, *why.background)) + why.rest == pytest.approx(why.score)


def test_every_context_is_explained(opaque: Scorer) -> None:
    for context in CONTEXTS.values():
        check_form(explain(opaque, context, REPLY), context, REPLY)


def test_the_number_of_left_out_words_is_limited(opaque: Scorer) -> None:
    context = Context(("hello hi", "my wifi is down", "did that help"))
    for max_words, wanted in {0: [0, 0, 0], 2: [0, 0, 2], 5: [0, 2, 3], 9: [2, 4, 3]}.items():
        why = explain(opaque, context, REPLY, max_words=max_words)
        counts = [sum(token.read for token in turn.tokens) for turn in why.turns]
        assert counts == [n if turn.read else 0 for n, turn in zip(wanted, why.turns, strict=True)]
        assert len(why.candidate.tokens) == min(max_words, 5)
    assert [token.text for token in explain(opaque, context, REPLY, max_words=2).turns[2].tokens] == ["that", "help"]


def test_left_out_words_do_not_count_as_truncated(tiny_backbone: Path) -> None:
    scorer = scorer_of(tiny_backbone, BiConfig(reduction="first"), TextPolicy(max_context_tokens=6))
    context = Context(("the router light is red", "my wifi is down today"))
    scorer.score([context], [[REPLY]])
    explain(scorer, context, REPLY)
    assert scorer.cut[0].contexts == {hash(context)}


def test_a_users_own_scorer_by_hand() -> None:
    why = explain(Pairs(), ["ab", "b c"], "bbc")
    assert why.score == 2 + 2 + 1  # b twice, b twice, c once
    assert [turn.share for turn in why.turns] == [2, 3]
    assert [[token.share for token in turn.tokens] for turn in why.turns] == [[2], [2, 1]]


def test_a_word_is_left_out_with_its_gap() -> None:
    """Words of Chinese and Japanese have none."""
    tried: list[str] = []

    class Seen(Pairs):
        def score(self, contexts: Any, candidates: Sequence[Sequence[str]]) -> list[Floats]:
            tried.extend(text for texts in candidates for text in texts)
            return super().score(contexts, candidates)

    explain(Seen(), "hi", "wifi 不通!  the end ")
    wanted = ["不通!  the end", "wifi 通!  the end", "wifi 不!  the end", "wifi 不通 the end", "wifi 不通! end"]
    assert tried[-6:] == [*wanted, "wifi 不通!  the"]


# words


def test_bm25_by_hand() -> None:
    """b = 0, k1 = 1.5 and idf = ln(1 + 1.5 / 1.5) = ln 2, since one text of two has each word: ln 2 tf / (tf + 1.5)."""
    scorer = BM25(b=0.0).fit(["wifi wifi red", "bill"])
    why = explain(scorer, Context(("my WiFi.", "red, wifi"), ("a bill",)), "wifi red wifi")
    wifi, red = math.log(2) * 2 / 3.5, math.log(2) / 2.5
    assert why.score == pytest.approx(2 * wifi + red)
    assert (why.method, why.exact, why.rest) == ("sum of words", True, 0.0)
    assert [turn.share for turn in why.turns] == pytest.approx([wifi, red + wifi])
    assert [(token.text, token.share) for token in why.turns[0].tokens] == [("my", 0.0), ("WiFi", pytest.approx(wifi))]
    assert why.background[0].share == 0
    assert [token.share for token in why.candidate.tokens] == pytest.approx([wifi, red, wifi])


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("kind", [BM25, TfIdf])
def test_shares_of_words_sum_to_the_score(kind: type[BM25] | type[TfIdf], context: Context) -> None:
    reply = "the wifi is red, İs THE light down שלום"
    for scorer in (kind(), kind().fit([reply, "the bill is high", "my router"])):
        why = explain(scorer, context, reply)
        check_form(why, context, reply)
        check_sums(why, float(scorer.score([context], [[reply]])[0][0]))
        assert sum(token.share for token in why.candidate.tokens) == pytest.approx(why.score, rel=1e-4, abs=1e-6)


# rankers


def sum_of(*encoders: tuple[Encoder, float]) -> Ranker:
    return Ranker([(EncoderTerm(encoder), (weight,)) for encoder, weight in encoders])


def test_a_sum_is_explained_by_its_parts(tiny_backbone: Path) -> None:
    poly, bi = scorer_of(tiny_backbone, LINEAR["poly learnt"]), scorer_of(tiny_backbone, LINEAR["bi mean"])
    bi.name = "other"
    both = sum_of((poly, 1.0), (bi, 0.4))
    context = CONTEXTS["background"]
    why = explain(both, context, REPLY)
    check_form(why, context, REPLY)
    check_sums(why, float(both.score([context], [[REPLY]])[0][0]))
    assert {name: part.weight for name, part in why.parts.items()} == {"1 EncoderScorer": 1.0, "2 other": 0.4}
    assert why.weight is None
    stored = json.loads(json.dumps(why.as_dict()))
    assert Explanation.from_dict(stored) == why
    stored["later"] = stored["turns"][0]["later"] = stored["candidate"]["tokens"][0]["later"] = 1
    assert Explanation.from_dict(stored) == why  # a later version may know more
    assert shares_of(why.parts["2 other"]) == pytest.approx(shares_of(explain(bi, context, REPLY)))
    parts = explain(poly, context, REPLY), explain(bi, context, REPLY)
    for mine, first, second in zip(why.turns, *(part.turns for part in parts), strict=True):
        assert mine.share == pytest.approx(first.share + 0.4 * second.share)
        assert [token.text for token in mine.tokens] == mine.text.split()
    model, texts, _ = make()
    mixed = sum_of((poly, 1.0), (make_scorer(model, texts, precision="fp32"), 2.0))  # type: ignore[arg-type]
    why = explain(mixed, context, REPLY)
    check_form(why, context, REPLY)
    assert not why.exact
    assert not why.candidate.exact
    assert total((*why.turns, *why.background)) + why.rest == pytest.approx(why.score, rel=1e-4, abs=1e-5)


def test_a_sum_reads_what_any_part_reads(tiny_backbone: Path) -> None:
    long, short = (
        scorer_of(tiny_backbone, LINEAR["bi mean"], replace(POLICY, max_context_tokens=n, max_candidate_tokens=m))
        for n, m in ((40, 5), (6, 9))
    )
    context, reply = Context(("hello hi", "my wifi is down", "thanks")), "please restart it the red router"
    alone = [explain(scorer, context, reply) for scorer in (long, short)]
    assert [[turn.read for turn in why.turns] for why in alone] == [[True, True, True], [False, True, True]]
    for parts in ((long, short), (short, long)):
        why = explain(sum_of(*((part, 1.0) for part in parts)), context, reply)
        check_form(why, context, reply)
        assert all(turn.read and all(token.read for token in turn.tokens) for turn in why.turns)
        assert all(token.read for token in why.candidate.tokens)


def test_a_page_colours_tokens_by_the_largest_share_of_any_text() -> None:
    """A share is shown in the same colour in every text."""
    texts = tuple(TextShare(str(n), 0.0, (TokenShare("x", 0, 1, share),)) for n, share in enumerate((0.5, 4.0, -1.0)))
    side = CandidateShare("x", (TokenShare("x", 0, 1, -4.0),), 0.0, "sum", True)
    for turns, background in ((texts, ()), (texts[1:], texts[:1]), ((), texts), (texts[:1], ())):
        page = Explanation(1.0, "sum", True, turns, background, 0.0, side)._repr_html_()
        wanted = [shares(one.text, [(0, 1, one.tokens[0].share)], 4.0) for one in (*background, *turns, side)]
        assert re.findall(r"</b> (.*?)</p>", page) == wanted


@given(
    st.text(st.sampled_from("ab<&> é"), max_size=12),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.floats(-2, 2)), max_size=6),
)
def test_a_page_shows_each_character_once_in_the_colour_of_its_first_token(
    text: str, spans: list[tuple[int, int, float]]
) -> None:
    """Tokens may overlap, and lie inside each other."""
    tokens = sorted((*sorted(min(len(text), place) for place in pair), share) for *pair, share in spans)
    first = [next((share for start, end, share in tokens if start <= n < end), None) for n in range(len(text))]
    shown: list[tuple[str, tuple[str, ...]]] = []
    for plain, title, colour, coloured in re.findall(
        r'([^<]+)|<span title="(.*?)" style="background:rgba\((.*?)\)">(.*?)</span>', shares(text, tokens, 2.0)
    ):
        shown += [(letter, (title, colour)) for letter in html.unescape(plain or coloured)]
    wanted = [
        ("", "")
        if share is None
        else (f"{share:+.4f}", f"{'0,140,0' if share >= 0 else '200,0,0'},{abs(share) / 4:.2f}")
        for share in first
    ]
    assert shown == list(zip(text, wanted, strict=True))


def test_a_sum_explains_only_words_that_all_parts_explain(tiny_backbone: Path) -> None:
    model, texts, _ = make()
    opaque = make_scorer(model, texts, precision="fp32")
    mixed = sum_of((scorer_of(tiny_backbone, LINEAR["bi mean"]), 1.0), (opaque, 2.0))  # type: ignore[arg-type]
    context, reply = Context.of(["hello", "my wifi is down"]), "restart the router"
    whole, short = explain(mixed, context, reply), explain(mixed, context, reply, max_words=1)
    assert [token.text for token in whole.turns[1].tokens] == ["my", "wifi", "is", "down"]
    assert [turn.share for turn in short.turns] == pytest.approx([turn.share for turn in whole.turns])
    assert short.turns[0].tokens == ()
    (last,) = short.turns[1].tokens
    assert (last.text, last.share) == ("down", pytest.approx(whole.turns[1].tokens[3].share))
    (first,) = short.candidate.tokens
    assert (first.text, first.share) == ("restart", pytest.approx(whole.candidate.tokens[0].share))
    without_spaces = explain(mixed, context, "重启路由器", max_words=1)
    assert [token.text for token in without_spaces.candidate.tokens] == ["重"]
    for why in (whole, short, without_spaces):
        side = why.candidate
        assert side.rest + sum(token.share for token in side.tokens) == pytest.approx(why.score)


def test_a_term_that_re_ranks_is_a_part_too(tiny_backbone: Path) -> None:
    texts = ["wifi is down", "restart the router", "the bill is high", "thanks"]
    encoder, words = scorer_of(tiny_backbone, LINEAR["bi mean"]), BM25().fit(texts)
    ranker = Ranker([(EncoderTerm(encoder), (1.0,)), (LexicalTerm(words), (0.5,))])
    for text, score in zip(texts, ranker.score(["is my wifi the router"], [texts])[0], strict=True):
        why = explain(ranker, "is my wifi the router", text)
        check_sums(why, float(score))
        assert [part.weight for part in why.parts.values()] == [1.0, 0.5]
        assert replace(why.parts["2 bm25"], weight=None) == explain(words, "is my wifi the router", text)


# bad input


@pytest.mark.parametrize(
    ("context", "candidate", "options", "reason"),
    [
        ([], "hi", {}, "the context is empty"),
        (" ", "hi", {}, "the context is empty"),
        ("hi", "\n", {}, "the candidate is empty"),
        ("hi", "hi", {"max_words": -1}, "max_words = -1; give 0 or more"),
    ],
)
def test_impossible_explanations_are_refused(context: Any, candidate: str, options: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        explain(BM25(), context, candidate, **options)


def test_an_infinite_score_counts_as_damage(tiny_backbone: Path) -> None:
    scorer = scorer_of(tiny_backbone, LINEAR["bi mean"])
    with torch.no_grad():
        next(scorer.model.parameters()).fill_(math.nan)
    with pytest.raises(ArtifactError, match="the score is not finite"):
        explain(scorer, "hi", "hello")


# indexes and the command


@pytest.fixture(scope="module")
def index(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain")
    config = replace(LINEAR["poly learnt"], backbone=str(tiny_backbone))  # type: ignore[arg-type]
    save_model(folder / "model", *new_model(config, POLICY, seed=2, sample=["hello", "my wifi"]))
    replies = [
        {"id": "a", "text": "restart the router", "metadata": {"team": "tech"}},
        {"id": "b", "text": "the bill is high", "metadata": {"team": "billing"}},
        {"id": "c", "text": "wifi is down", "metadata": {"team": "tech"}},
        "thanks",
    ]
    polyrank.build_index(folder / "index", folder / "model", replies)
    return folder / "index"


def test_an_index_explains_by_id_by_text_or_its_best(index: Path) -> None:
    with polyrank.open(index) as replies:
        (best,) = replies.answer("my wifi is down", 1).ranked
        why = replies.explain("my wifi is down")
        assert why.candidate.text == best.text
        check_sums(why, best.score)
        assert replies.explain("my wifi is down", "the bill is high") == replies.explain(
            "my wifi is down", candidate_id="b"
        )
        replies.explain("my wifi", "a reply that is not there")
        assert replies.explain("my wifi", filter='team = "billing"').candidate.text == "the bill is high"
        with pytest.raises(UsageError, match="has no candidate 'd'; use an id that polyrank respond prints"):
            replies.explain("my wifi", candidate_id="d")
        for text in ("thanks", ""):
            with pytest.raises(UsageError, match="candidate_id = 'a' excludes a text; give one of them"):
                replies.explain("my wifi", text, candidate_id="a")
        with pytest.raises(UsageError, match="no reply matches, so none can be explained"):
            replies.explain("wifi", filter='team = "nobody"')


@pytest.fixture(scope="module")
def counting(index: Path) -> Path:
    """An index under a ranker that counts replies: two candidates of one text have different counts."""
    folder, model = index.parent, polyrank.load(index.parent / "model")
    assert isinstance(model, Encoder)
    ranker = Ranker([(EncoderTerm(model), (1.0,)), (Counts.of({"thanks": 3}), (0.5,))])
    ranker.save(folder / "ranker")
    replies = [
        {"id": "a", "text": "wifi is down", "count": 7, "team": "tech"},
        {"id": "b", "text": "wifi is down", "count": 1, "team": "billing"},
        {"id": "c", "text": "thanks"},
    ]
    polyrank.build_index(folder / "counting", folder / "ranker", replies)
    return folder / "counting"


def test_a_count_is_that_of_the_filter_of_the_answer(counting: Path) -> None:
    with polyrank.open(counting) as replies:
        for asked, count in ((None, 7), ('team = "tech"', 7), ('team = "billing"', 1)):
            (reply,) = [r for r in replies.answer("my wifi", filter=asked).ranked if r.text == "wifi is down"]
            why = replies.explain("my wifi", "wifi is down", filter=asked)
            assert why.score == pytest.approx(reply.score, rel=1e-4, abs=1e-5)
            assert why.parts["2 counts"].score == pytest.approx(math.log1p(count))
        assert replies.explain("my wifi", "thanks").parts["2 counts"].score == pytest.approx(math.log1p(3))


@pytest.mark.deep
def test_the_command_prints_the_librarys_explanation(index: Path) -> None:
    with polyrank.open(index) as replies:
        wanted = replies.explain(["hi", "my [red]wifi"], candidate_id="a").as_dict()
    found = run("explain", index, "hi", "my [red]wifi", "--id", "a", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == json.loads(json.dumps(wanted))
    drawn = run("explain", index, "hi", "my [red]wifi", "--id", "a")
    assert drawn.returncode == 0, drawn.stderr
    for said in (f"{wanted['score']:.4f} restart the router", "my [red]wifi", "sum of tokens", "turn 2", "vector"):
        assert said in drawn.stdout
    assert "\x1b" not in drawn.stdout
    assert drawn.stderr == ""
    lines = run("explain", index, "--json", stdin='hi\n["hi", "my wifi"]\n')
    assert [json.loads(line)["method"] for line in lines.stdout.splitlines()] == ["sum of tokens"] * 2
    both = run("explain", "bm25", "my wifi", "--reply", "the wifi")
    assert "sum of words" in both.stdout


@pytest.mark.deep
def test_the_command_prints_the_parts(counting: Path) -> None:
    said = run("explain", counting, "my wifi is down", "--reply", "wifi is down").stdout
    titles = [line.split(" ", 1)[1] for line in said.splitlines() if re.match(r"-?\d+\.\d{4} ", line)]
    assert titles == ["wifi is down", f"1 {counting.parent / 'model'} (weight 1)", "2 counts (weight 0.5)"]
    assert said.count("weighted sum of its shares in the terms") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["INDEX", "hi", "--id", "nobody"], "has no candidate 'nobody'"),
        (["INDEX", "hi", "--id", "a", "--reply", "hello"], "--reply and --id a name two replies"),
        (["INDEX", " "], "the context is empty"),
        (["bm25", "hi"], "give one with --reply TEXT"),
        (["bm25", "hi", "--reply", "hi", "--model", "there"], "--model needs an index; leave it out"),
        (["bm25", "hi", "--reply", "hi", "--filter", "a = 1"], "--filter needs an index; leave it out"),
        (["nowhere", "hi", "--reply", "hi"], "nowhere is not a model folder"),
    ],
)
def test_the_command_reports_an_error_in_one_line(index: Path, arguments: list[str], reason: str) -> None:
    found = run("explain", *(str(index) if argument == "INDEX" else argument for argument in arguments))
    assert found.returncode == 2
    (line,) = found.stderr.splitlines()
    assert reason in line


def test_texts_cannot_control_the_terminal() -> None:
    arguments = ["explain", "bm25", "my wifi \x1b[31m", "--reply", "wifi\x1b]0;title\x07 \x9b2J down"]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0
    assert not {c for c in said.stdout if unicodedata.category(c) == "Cc"} - {"\n"}
    assert "title" in said.stdout
