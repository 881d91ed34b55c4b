"""Requests and answers of other services as values, without a server: each field, alone and next to others."""

from typing import Any, Literal

import pytest

pytest.importorskip("fastapi", reason="polyrank[serve] is not installed")

from pydantic import TypeAdapter, ValidationError

from polyrank.serving.dialects.embedding import CohereEmbed, Embed, TeiEmbed
from polyrank.serving.dialects.ranking import InfinityRerank, Reranks, Scores, VllmScore

RERANKS: TypeAdapter[Any] = TypeAdapter(Reranks)
SCORES: TypeAdapter[Any] = TypeAdapter(Scores)
DOCUMENTS = ["pay it", {"text": "restart", "title": "x"}, "wait"]
RANKED = [(2, 0.75), (0, 0.5), (1, 0.25)]
TEXTS = {2: "wait", 0: "pay it", 1: "restart"}
# by dialect: the name of the documents, of their number and of the request for texts; the place of results; a result
DIALECTS: dict[str, tuple[str, str, str, str, str, str, bool]] = {
    "Rerank": ("documents", "top_n", "return_documents", "results", "relevance_score", "document", True),
    "VoyageRerank": ("documents", "top_k", "return_documents", "data", "relevance_score", "document", False),
    "TeiRerank": ("texts", "top_n", "return_text", "", "score", "text", False),
    "MixedbreadRerank": ("input", "top_k", "return_input", "data", "score", "input", False),
    "NvidiaRerank": ("passages", "top_k", "return_documents", "rankings", "logit", "text", False),
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_has_its_own_names(name: str) -> None:
    documents, number, with_texts, rows, score, text, nested = DIALECTS[name]
    for n, has_texts in ((None, False), (0, True), (1, False), (2, True), (5, False)):
        body = {"query": "hi", documents: DOCUMENTS, with_texts: has_texts, "own": 1} | (
            {} if n is None else {number: n}
        )
        payload = RERANKS.validate_python(body)
        if name != "VoyageRerank" or n is not None:  # without a number it may be a request of Cohere
            assert type(payload).__name__ == name
            assert payload.sent("documents") == documents
        assert payload.unknown == ["own"]
        answer = payload.answer(RANKED, {"id": "7"})
        found = answer[rows] if rows else answer
        shown = [{"index": row, score: value} for row, value in RANKED[: n or None]]
        if has_texts:
            shown = [one | {text: {"text": TEXTS[one["index"]]} if nested else TEXTS[one["index"]]} for one in shown]
        if name == "VoyageRerank" and n is None:
            assert [row["index"] for row in found] == [row["index"] for row in shown]
        else:
            assert found == shown
        assert not rows or answer["id"] == "7"
        assert payload.raw is (name == "NvidiaRerank")
    if name == "Rerank":  # without a number, the answer suits Voyage's clients too
        both = RERANKS.validate_python({"query": "hi", "documents": DOCUMENTS, "return_documents": True})
        assert [row["document"] for row in both.answer(RANKED, {})["data"]] == ["wait", "pay it", "restart"]
        assert "data" not in RERANKS.validate_python({"query": "hi", "documents": ["a"], "top_n": 1}).answer(
            [(0, 1.0)], {}
        )


def test_a_field_of_one_service_decides_wherever_it_is() -> None:
    """Of two services' fields, those of the one whose number of results was sent."""
    for fields, kind in (
        (["documents"], "Rerank"), (["documents", "truncation"], "VoyageRerank"),
        (["documents", "top_k"], "VoyageRerank"), (["documents", "top_n", "truncation"], "Rerank"),
        (["passages", "top_n"], "NvidiaRerank"), (["input", "top_k"], "MixedbreadRerank"),
        (["texts", "truncation"], "TeiRerank"),
    ):  # fmt: skip
        values = {"truncation": True, "top_n": 1, "top_k": 1}
        for order in (fields, fields[::-1]):
            body = {"query": "hi"} | {field: values.get(field, ["a", "b"]) for field in order}
            assert type(RERANKS.validate_python(body)).__name__ == kind, order


def test_documents_of_infinity_are_strings() -> None:
    body = {"query": "hi", "documents": DOCUMENTS, "top_n": 2}
    for stated, shown in ((True, ["wait", "pay it"]), (False, [None, None]), (None, [None, None])):
        answer = InfinityRerank.model_validate(body | {"return_documents": stated}).answer(RANKED, {"id": "7"})
        assert [row.get("document") for row in answer["results"]] == shown
        assert set(answer) == {"results", "id"}


def test_dashscope_nests_fields_and_results() -> None:
    asked = {"query": "hi", "documents": DOCUMENTS}
    for parameters, n, texts in (
        (None, None, False), ({"top_n": 2, "instruct": None}, 2, False), ({"return_documents": True}, None, True),
        ("x", None, False),
    ):  # fmt: skip
        payload = RERANKS.validate_python({"model": "m", "input": asked, "parameters": parameters})
        assert (type(payload).__name__, payload.model, payload.unknown) == ("DashScopeRerank", "m", [])
        answer = payload.answer(RANKED, {"id": "7", "usage": {}})
        results = [{"index": row, "relevance_score": value} for row, value in RANKED[:n]]
        if texts:
            results = [one | {"document": {"text": TEXTS[one["index"]]}} for one in results]
        assert answer == {"output": {"results": results}, "request_id": "7", "id": "7", "usage": {}}
    with pytest.raises(ValidationError, match="query"):
        RERANKS.validate_python({"model": "m", "input": {}})


def test_numbers_and_flags_are_read_leniently_and_checked() -> None:
    body = {"query": {"text": "hi"}, "documents": ["a"]}
    for change, raw in (
        ({}, False), ({"raw_scores": "true"}, True), ({"return_raw_scores": 1}, True), ({"activation": False}, True),
        ({"use_activation": 0}, True), ({"activation": True, "raw_scores": False}, False),
        ({"activation": None}, False),
    ):  # fmt: skip
        assert RERANKS.validate_python(body | change).raw is raw, change
    assert RERANKS.validate_python(body | {"top_n": "1"}).top_n == 1
    for wrong in (
        {"top_n": -1}, {"max_chunks_per_doc": 0}, {"documents": []}, {"documents": ["a", 3]}, {"query": []},
        {"documents": ["a", {"text": "b"}], "rank_fields": ["title"]},
        {"documents": [{"text": "b"}], "rank_fields": ["text", "title"]},
    ):  # fmt: skip
        with pytest.raises(ValidationError):
            RERANKS.validate_python(body | wrong)
    assert RERANKS.validate_python(body | {"rank_fields": ["title"], "documents": ["a", "b"]})  # texts have no fields
    assert RERANKS.validate_python(body | {"rank_fields": ["text"], "documents": [{"text": "b"}]})


@pytest.mark.parametrize("end", ["START", "END"])
def test_texts_may_be_truncated_only_at_the_end_that_the_model_cuts(end: Literal["START", "END"]) -> None:
    """Every combination of the two fields: a text is refused if one of them excludes what the model does."""
    other = {"START": "END", "END": "START"}[end]
    sides = {"left": "START", "Left": "START", "right": "END", "Right": "END", None: end}
    allowed: tuple[Any, ...] = (None, True, "true", end)
    for stated, refuses in (*((one, False) for one in allowed), (False, True), ("NONE", True), (other, True)):
        for name in ("truncate", "truncation"):
            for direction, side in sides.items():
                body = {"input": "a", name: stated, "truncation_direction": direction}
                assert Embed.model_validate(body).whole(end) is (refuses or side != end), body


def test_limits_sides_and_types_have_several_names() -> None:
    for name in ("max_tokens_per_doc", "truncate_prompt_tokens", "max_tokens"):
        assert RERANKS.validate_python({"query": "a", "documents": ["b"], name: 9}).max_tokens == 9
    for name in ("input_type", "task", "prompt_name"):
        for side in ("query", "search_query", "retrieval.query", "Document", "search_document", "clustering"):
            assert Embed.model_validate({"input": "a", name: side}).input_type == side
        with pytest.raises(ValidationError):
            Embed.model_validate({"input": "a", name: "retrieval"})
    for values, listed in (("a", ["a"]), ([{"text": "a"}, "b"], ["a", "b"]), ({"text": "a"}, ["a"]), ([], [])):
        for kind, field in ((Embed, "input"), (CohereEmbed, "texts"), (TeiEmbed, "inputs")):
            assert kind.model_validate({field: values}).listed == listed
    for tokens in ([1, 2], [[1], [2]]):
        with pytest.raises(ValidationError, match="token ids belong to another vocabulary"):
            Embed.model_validate({"input": tokens})
    assert not Embed.model_validate({"input": "a"}).normalize
    assert TeiEmbed.model_validate({"inputs": "a"}).normalize
    forms = ["float", "base64"]
    assert CohereEmbed.model_validate({"texts": ["a"], "embedding_types": forms}).forms == forms


def test_fields_without_an_effect_are_not_reported() -> None:
    body = {"input": "a", "user": "me", "timeout": 3, "nothing": None, "b c": 1, "x" * 50: 2, "a": 1}
    assert Embed.model_validate(body).unknown == ["a", "b?c", "x" * 40]
    many = [f"f{n:02}" for n in range(20)]
    for names in (many, many[::-1], many[10:] + many[:10]):  # the first in the order of the alphabet
        assert Embed.model_validate({"input": "a"} | dict.fromkeys(names, 1)).unknown == many[:8]


def test_pairs_of_vllm_are_told_by_their_first_text() -> None:
    names = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"), ("queries", "items"))
    for first, second in names:
        payload = SCORES.validate_python({first: ["a", "b"], second: ["c", "d"]})
        assert isinstance(payload, VllmScore)
        assert (payload.first, payload.second) == (["a", "b"], ["c", "d"])
    assert not isinstance(SCORES.validate_python({"context": "a", "candidates": ["b"]}), VllmScore)
