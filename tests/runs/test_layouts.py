"""Every layout and architecture of runs/layouts.py scores as in its own library, to 1e-5."""

import sys
from pathlib import Path

import pytest

from polyrank import Context, load
from polyrank.errors import ArtifactError, ConfigError

sys.path.insert(0, str(Path(__file__).parents[2] / "runs"))

from layouts import DECODER, DOCUMENTS, LAYOUTS, QUERIES, RERANKER, difference, plain_pairs


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_scores_like_its_library(name: str, tmp_path: Path) -> None:
    assert difference(LAYOUTS[name](tmp_path)) <= 1e-5


def test_a_template_without_the_roles_of_pairs_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    folder = plain_pairs(tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": template})
    with pytest.raises(ArtifactError, match="reads messages, and its chat template leaves out the roles query and"):
        load(folder, device="cpu")


def test_a_template_that_fails_is_the_reason(tmp_path: Path) -> None:
    template = "{{ raise_exception('no roles') }}"
    folder = plain_pairs(tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": template})
    with pytest.raises(ArtifactError, match=r"reads messages, and its chat template fails \(no roles\)"):
        load(folder, device="cpu")


def test_messages_that_are_too_long_keep_their_template(tmp_path: Path) -> None:
    folder = plain_pairs(
        tmp_path, "Qwen3ForSequenceClassification", {**DECODER, "chat_template": RERANKER, "model_max_length": 60}
    )
    found = load(folder, device="cpu")
    texts = found.texts  # type: ignore[attr-defined]  # a network's
    whole, _ = texts.pair_ids(Context(("red",)), "light")
    for context, candidate in (("red " * 90, "light"), ("red", "light " * 90), ("red " * 90, "light " * 90)):
        ids, segments = texts.pair_ids(Context((context,)), candidate)
        assert len(ids) == len(segments) <= 60
        assert len(ids) > 50
        assert ids[:7] == whole[:7]
        assert ids[-1] == whole[-1]
    assert [len(part) for part in found.cut[0].texts] == [2, 2, 0, 0]
    with pytest.raises(ConfigError, match="for its chat template alone, and 10 are allowed"):
        load(folder, device="cpu", max_context_tokens=5, max_candidate_tokens=5).score(["a"], [["b"]])


def test_a_long_message_of_one_side_keeps_its_template(tmp_path: Path) -> None:
    folder = LAYOUTS["Qwen3 encoder, saved with messages"](tmp_path)
    found = load(folder, device="cpu", max_context_tokens=40, max_candidate_tokens=40)
    texts = found.texts  # type: ignore[attr-defined]  # a network's
    context, candidate = texts.context_ids(Context(("red " * 90, "down"))), texts.candidate_ids("light " * 90)
    assert len(context) == len(candidate) == 40
    assert context[:3] == candidate[:3] == texts.context_ids(Context(("hello",)))[:3]  # <s>user:
    assert context[-1] == candidate[-1] == texts.subwords.end_id
    assert len(found.score(QUERIES, [DOCUMENTS] * 4)[0]) == len(DOCUMENTS)
