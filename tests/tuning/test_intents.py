"""Intents: readers of published formats, few-shot parts, the network, the threshold, the folder, the commands."""

import gzip
import json
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.cli.intents import _show, intents_predict
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, DataError, DivergedError, UsageError
from polyrank.evaluation.tables import mean_with_interval
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Context
from polyrank.scorers.open import load_encoder
from polyrank.scorers.protocols import Encoder
from polyrank.tuning.intents import (
    Encoded,
    Head,
    HeadConfig,
    IntentClassifier,
    IntentResult,
    IntentSplits,
    Utterance,
    few_shot,
    fit_head,
    fit_threshold,
    held_out,
    load_intents,
    read_intents,
    save_intents,
    split_off,
    train_intents,
)
from polyrank.tuning.intents.classifier import encode
from polyrank.tuning.intents.train_intents import GRID as GRID_SEARCHED
from processes import run

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = {
    "wifi": ["my wifi is down", "the wifi is down", "wifi down please", "is the wifi down", "hello wifi is down"],
    "bill": ["my bill is too high", "the bill is high", "bill too high please", "is the bill high", "hello bill high"],
    "light": ["the light is red", "light is green", "red light please", "is it a green light", "hello red light"],
}
GRID = [HeadConfig(hidden_dim=16, dropout=0.1, lr=lr) for lr in (0.1, 0.3)]
SMALL = ConvertConfig(embedding_dim=16, ffn_dim=32, spans=(3, 5), side_dim=16, side_layers=1, output_dim=8)


@pytest.fixture(scope="module")
def models(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model of each kind with random weights, and a second Bi-encoder."""
    folder = tmp_path_factory.mktemp("models")
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
    backbone = str(tiny_backbone)
    configs = {
        "bi": (BiConfig(backbone=backbone), 1),
        "poly": (PolyConfig(backbone=backbone, n_codes=3), 1),
        "cross": (CrossConfig(backbone=backbone), 1),
        "other": (BiConfig(backbone=backbone, projection_dim=32), 2),
    }
    sample = [text for texts in TEXTS.values() for text in texts]
    for name, (config, seed) in configs.items():
        model, texts, resolved = new_model(config, policy, seed=seed, sample=sample)
        save_model(folder / name, model, texts, resolved)
    for name, many in (("convert", False), ("multi", True)):
        made = new_model(
            replace(SMALL, multi_context=many), ConvertText(min_count=1, n_buckets=16), seed=1, sample=(), corpus=sample
        )
        save_model(folder / name, *made)
    return {name: folder / name for name in (*configs, "convert", "multi")}


@pytest.fixture(scope="module")
def bi(models: dict[str, Path]) -> Encoder:
    return load_encoder(str(models["bi"]), device="cpu")


def utterances(copies: int = 4) -> tuple[Utterance, ...]:
    """Separable utterances: each intent has its own words."""
    return tuple(
        Utterance(f"{text}{' thanks' * i}", intent) for intent, texts in TEXTS.items() for text in texts
        for i in range(copies)
    )  # fmt: skip


def clusters(n: int, seed: int, spread: float = 0.1) -> Encoded:
    """Three well separated clusters of vectors."""
    generator = np.random.Generator(np.random.PCG64(seed))
    labels = generator.integers(3, size=n)
    return Encoded((np.eye(3, 8)[labels] + spread * generator.normal(size=(n, 8))).astype(np.float32), labels)


# readers


def test_banking77_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text('text,category\n"Hi, ""you""\nthere",card_arrival\nwhere?,atm\n', "utf-8")
    (tmp_path / "test.csv").write_text("text,category\nwhen?,atm\n", "utf-8")
    (tmp_path / "categories.json").write_text('["card_arrival", "atm"]', "utf-8")
    found = read_intents(tmp_path)
    assert found.train == (Utterance('Hi, "you"\nthere', "card_arrival"), Utterance("where?", "atm"))
    assert found.dev == ()
    assert found.test == (Utterance("when?", "atm"),)


def test_clinc150_file(tmp_path: Path) -> None:
    document = {
        "oos_train": [["x", "oos"]], "train": [["pay it", "pay"], ["oh", "oos"]], "val": [["hi", "greet"]],
        "oos_val": [["y", "oos"]], "test": [["hi", "greet"]], "oos_test": [["z", "oos"], ["w", "oos"]],
    }  # fmt: skip
    (tmp_path / "data_full.json").write_text(json.dumps(document), "utf-8")
    for place in (tmp_path, tmp_path / "data_full.json"):
        found = read_intents(place)
        assert found.train == (Utterance("pay it", "pay"), Utterance("oh", None), Utterance("x", None))
        assert [u.intent for u in found.dev] == ["greet", None]
        assert [u.intent for u in found.test] == ["greet", None, None]


def test_hwu64_files(tmp_path: Path) -> None:
    header = "answerid;scenario;intent;answer_annotation;answer_from_anno;answer_from_user\n"
    for part, text in (("trainset", 'set ""it"" for ten'), ("testset", "a; b")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "alarm_set.csv").write_text(
            f'{header}null;alarm;set;"set [x : it]";"{text}";"Set."\n', "utf-8"
        )
    (tmp_path / "trainset" / "more").mkdir()
    (tmp_path / "trainset" / "more" / "play.csv").write_text(f"{header}null;music;play;x;jazz;x\n", "utf-8")
    found = read_intents(tmp_path)
    assert found.train == (Utterance('set "it" for ten', "alarm_set"), Utterance("jazz", "music_play"))
    assert found.test == (Utterance("a; b", "alarm_set"),)


def test_plain_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "Train.jsonl").write_text('{"text": "hi", "intent": "greet"}\n{"text": "7", "intent": "none"}\n')
    (tmp_path / "val.csv").write_text("utterance,label\nhello, greet \n")
    (tmp_path / "test.txt").write_text("notes")
    found = read_intents(tmp_path, out_of_scope="none")
    (tmp_path / "other.csv").write_text("sentence,category\nhello,greet\n")
    assert read_intents(tmp_path / "other.csv").train == found.dev
    parts = replace(found, test=(*found.train, *found.train, *found.dev))
    assert str(parts) == (
        "train 2 utterances of 1 intents (1 out of scope); dev 1 utterances of 1 intents;"
        " test 5 utterances of 1 intents (2 out of scope)"
    )
    assert found.train == (Utterance("hi", "greet"), Utterance("7", None))
    assert found.dev == (Utterance("hello", "greet"),)
    assert read_intents(tmp_path / "Train.jsonl", out_of_scope="none").train == found.train
    polars = pytest.importorskip("polars")
    (folder := tmp_path / "parquet").mkdir()
    polars.DataFrame({"text": ["hello"], "intent": ["greet"]}).write_parquet(folder / "train.parquet")
    assert read_intents(folder).train == found.dev


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".CSV"])
def test_every_name_of_a_part_is_known_in_every_part(tmp_path: Path, ending: str) -> None:
    """Texts and intents have several names of columns, of which the first counts; each part may be out of scope."""
    content = b"label,utterance,text,intent\nno,no,hi,greet\nno,no,7,none\n"
    for name in ("dev", "valid", "val", "validation", "Dev"):
        for part in ("train", "test", name):
            data = gzip.compress(content) if ending.endswith(".gz") else content
            (tmp_path / f"{part}{ending}").write_bytes(data)
        found = read_intents(tmp_path, out_of_scope="none")
        assert found.train == found.dev == found.test == (Utterance("hi", "greet"), Utterance("7", None)), name
        (tmp_path / f"{name}{ending}").unlink()
    (tmp_path / "empty.csv").write_text("text,intent\nhi,\n", "utf-8")
    with pytest.raises(DataError, match=r'fill both in \(intent "none" means none\)'):
        read_intents(tmp_path / "empty.csv", out_of_scope="none")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "text,intent\nhi\n", r"a.csv:2: 1 cells"),
        ("a.csv", "text,intent\n ,greet\n", r"a.csv:2: the text or the intent is empty"),
        ("a.csv", "text,intent\nhi,\n", r'a.csv:2: the text or the intent is empty; fill both in \(intent "oos"'),
        ("a.csv", "query,intent\nhi,greet\n", r'a.csv:2: missing field "text"'),
        ("a.csv", "text,intent\n", "holds no utterances"),
        ("a.jsonl", '{"text": "hi", "intent": 3}\n', r'a.jsonl:1: field "intent" holds a number'),
        ("a.json", "{", "a.json:1: not JSON"),
        ("a.json", '{"val": []}', r'a.json:1: missing field "text"; add it to the row, which has val'),
        ("a.json", '[{"intents": [{"tag": "greet", "patterns": [" "]}]}]', "a.json:1: the text or the intent is empty"),
        ("a.jsonl", '{"a": ' * 900 + "1" + "}" * 900, 'a.jsonl:1: missing field "text"'),
        ("a.json", "[" * 100_000, "a.json:1: not JSON: .*; download the file again"),
        ("a.json", "[3, 4]", "a.json:1: the list is truncated or holds something other than objects"),
        ("a.json", '{"oos_train": [], "train": [["hi", "greet"], ["hi"]]}', "not the data set's data_full.json"),
        ("trainset/b.csv", "scenario;intent;answer_from_anno\na;b\n", r"b.csv:2: .*download the file again"),
        ("trainset/b.csv", "scenario;intent\na;b\n", r'b.csv:2: missing field "answer_from_anno"'),
        ("other.txt", "hi", "holds no train.csv"),
    ],
)
def test_errors_name_the_line_of_a_broken_file(tmp_path: Path, name: str, text: str, problem: str) -> None:
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(text, "utf-8")
    with pytest.raises(DataError, match=problem):
        read_intents(place if place.parent == tmp_path and place.suffix != ".txt" else tmp_path)


def test_json_of_chatbots_is_read(tmp_path: Path) -> None:
    """Of the forms of tutorials, Rasa and LUIS, and of texts by their intent."""
    said = {"greet": ["hi", "hello"], "leave": ["bye"]}
    found = [{"text": text, "intent": name, "entities": []} for name, texts in said.items() for text in texts]
    tags = [{"tag": name, "patterns": texts, "responses": ["Thanks!"]} for name, texts in said.items()]
    luis = {
        "intents": [{"name": name} for name in said],
        "utterances": found,
        "closedLists": [{"name": "a", "b": ["c"]}],
    }
    lists = [
        {"intents": [{field: name, of: texts} for name, texts in said.items()]}
        for field in ("intent", "tag", "name") for of in ("patterns", "examples", "utterances")
    ]  # fmt: skip
    whole = [Utterance(text, name) for name, texts in said.items() for text in texts]
    none = {**said, "other": []}  # an intent without texts yet
    for document in (said, none, found, {"intents": tags}, {"rasa_nlu_data": {"common_examples": found}}, luis, *lists):
        (tmp_path / "a.json").write_text(json.dumps(document), "utf-8")
        assert [*read_intents(tmp_path / "a.json").train] == whole
    rows = [{"text": one.text, "label": 0, "label_text": one.intent} for one in whole]
    (tmp_path / "train.json").write_text(json.dumps(rows), "utf-8")
    (tmp_path / "a.json").rename(tmp_path / "test.json")
    both = read_intents(tmp_path)
    assert ([*both.train], [*both.test]) == (whole, whole)


def test_missing_folders_and_duplicate_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        read_intents(tmp_path / "gone")
    for name in ("dev.csv", "valid.csv"):
        (tmp_path / name).write_text("text,intent\nhi,greet\n")
    with pytest.raises(DataError, match=r"both dev\.csv and valid\.csv could be its dev part; keep one"):
        read_intents(tmp_path)


# parts


def test_few_shot_has_exactly_n_and_is_nested() -> None:
    pool = (*utterances(), Utterance("what?", None))
    five, ten = few_shot(pool, 5, seed=3), few_shot(pool, 10, seed=3)
    for n, chosen in ((5, five), (10, ten)):
        assert {name: sum(u.intent == name for u in chosen) for name in TEXTS} == dict.fromkeys(TEXTS, n)
        assert len(chosen) == n * len(TEXTS)
    assert set(five) <= set(ten)
    assert five == few_shot(pool, 5, seed=3)
    assert five != few_shot(pool, 5, seed=4)
    # an intent's draw does not depend on the order in which the file names the others
    assert set(few_shot(pool, 20, seed=3)) == {u for u in pool if u.intent}
    for n, of in ((21, pool), (10, (*pool, *(Utterance(f"often {i}", "often") for i in range(30))))):
        some = [u for u in of if u.intent != "bill"] + [u for u in of if u.intent == "bill"][: n - 1]
        with pytest.raises(DataError, match=rf"'bill' has {n - 1} utterances, fewer than the requested {n}"):
            few_shot(some, n, seed=3)


def test_a_development_part_is_split_off() -> None:
    pool = (*utterances(), *(Utterance(f"what {i}", None) for i in range(30)), Utterance("once", "rare"))
    rest, dev = split_off(pool, 0.1, seed=1)
    assert sorted((*rest, *dev), key=repr) == sorted(pool, key=repr)
    assert [sum(u.intent == name for u in dev) for name in (*TEXTS, None, "rare")] == [2, 2, 2, 3, 0]
    assert (rest, dev) == split_off(pool, 0.1, seed=1)
    assert dev != split_off(pool, 0.1, seed=2)[1]
    many = IntentSplits(tuple(Utterance(f"{i}", "x") for i in range(200)))
    parts = held_out(many, 0.2)  # the same ones in every version
    rest, test = split_off(many.train, 0.2, seed=0)
    assert (parts.test, len(parts.train), len(parts.dev)) == (test, 120, 40)
    assert parts.dev == split_off(rest, 0.25, seed=1)[1]


def test_no_text_is_in_both_parts_even_with_several_intents() -> None:
    shared = [Utterance(text, intent) for text in ("yes", "no", "ok") for intent in ("a", "b", None)]
    pool = (*shared, *(Utterance(f"{intent} {i}", intent) for intent in ("a", "b") for i in range(10)))
    for seed in range(5):
        rest, part = split_off(pool, 0.5, seed=seed)
        assert not {u.text for u in rest} & {u.text for u in part}
        assert [sum(u.intent == name for u in part) for name in ("a", "b", None)] == [5, 5, 0]
    for one, other in (("a", "b"), ("a", None), ("b", None)):  # of any two
        pool = tuple(Utterance(f"{n}", intent) for n in range(9) for intent in (one, other))
        assert split_off((*pool, Utterance("x", "a"), Utterance("y", "b")), 0.5, seed=1)[1] == ()


# encodings


def test_encodings_are_the_mean_of_the_real_vectors(models: dict[str, Path]) -> None:
    encoder = load_encoder(str(models["poly"]), device="cpu")
    texts = ["my wifi is down", "hi"]
    vectors, mask = encoder.encode_contexts([Context((text,)) for text in texts])
    want = [row[real].mean(0) for row, real in zip(vectors, mask, strict=True)]
    np.testing.assert_allclose(encode(encoder, texts), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["convert", "multi"])
def test_r_equals_the_reduction(models: dict[str, Path], name: str) -> None:
    encoder = load_encoder(str(models[name]), device="cpu")
    r = encode(encoder, ["my wifi is down", "red", ""])
    model = encoder.model  # type: ignore[attr-defined]  # an EncoderScorer, which r needs
    tokens = encoder.texts.contexts([Context(("my wifi is down",))])  # type: ignore[attr-defined]
    with torch.inference_mode():
        want = model.reduced(tokens)
    assert r.shape == (3, model.reduction.dimension)
    np.testing.assert_allclose(r[0], want[0].numpy(), rtol=1e-4, atol=1e-6)


# the network


def test_clusters_of_any_norm_are_learned() -> None:
    train, dev = clusters(120, 1), clusters(60, 2)
    for size in (1e-3, 1.0, 1e3):
        scaled = [Encoded((part.vectors * size + 5 * size).astype(np.float32), part.labels) for part in (train, dev)]
        fit = fit_head(*scaled, 3, HeadConfig(hidden_dim=16, dropout=0.1), seed=1, max_epochs=20)
        assert fit.accuracy == 1.0


def test_the_network_equals_its_formula() -> None:
    torch.manual_seed(0)
    head = Head(4, 6, 3, dropout=0.5)
    x = torch.randn(5, 4)
    head.fit_scale(x)
    h = torch.clamp((x - x.mean(0)) / (x - x.mean(0)).square().mean().sqrt() @ head.hidden.weight.T + head.hidden.bias,
                    min=0)  # fmt: skip
    torch.testing.assert_close(head.eval()(x), h @ head.output.weight.T + head.output.bias)
    assert not torch.equal(head.train()(x), head(x))
    head.fit_scale(torch.ones(5, 4))  # encodings that are all the same
    assert head(torch.ones(5, 4)).isfinite().all()


def test_a_step_is_sgd_on_the_cross_entropy() -> None:
    """One epoch of one batch without dropout moves the weights by lr times the gradient."""
    data = clusters(16, 1)
    config = HeadConfig(hidden_dim=4, dropout=0.0, lr=0.5)
    fit = fit_head(data, data, 3, config, seed=7, batch_size=16, max_epochs=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        head = Head(8, 4, 3)
    head.fit_scale(torch.from_numpy(data.vectors))
    loss = torch.nn.functional.cross_entropy(head(torch.from_numpy(data.vectors)), torch.from_numpy(data.labels))
    loss.backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None
        want = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(dict(fit.head.named_parameters())[name].detach(), want)


@pytest.mark.deep
def test_seeds_reproduce_bit_for_bit() -> None:
    train, dev = clusters(90, 1, spread=0.6), clusters(60, 2, spread=0.6)
    config = HeadConfig(hidden_dim=8, dropout=0.3)
    torch.manual_seed(1)
    a = fit_head(train, dev, 3, config, seed=5)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    b = fit_head(train, dev, 3, config, seed=5)
    assert torch.equal(state, torch.random.get_rng_state())
    other = fit_head(train, dev, 3, config, seed=6)
    assert (a.accuracy, a.loss, a.n_epochs) == (b.accuracy, b.loss, b.n_epochs)
    assert all(torch.equal(x, y) for x, y in zip(a.head.parameters(), b.head.parameters(), strict=True))
    assert not torch.equal(a.head.hidden.weight, other.head.hidden.weight)


def test_training_stops_without_gain_and_keeps_the_best_epoch() -> None:
    train, dev = clusters(60, 1), clusters(60, 2, spread=2.0)
    config = HeadConfig(hidden_dim=8, dropout=0.0, lr=0.5)
    fit = fit_head(train, dev, 3, config, seed=1, patience=5, max_epochs=200)
    same = fit_head(train, dev, 3, config, seed=1, patience=200, max_epochs=fit.n_epochs)
    assert torch.equal(fit.head.output.weight, same.head.output.weight)
    longer = fit_head(train, dev, 3, config, seed=1, patience=5, max_epochs=fit.n_epochs + 5)
    assert longer.n_epochs == fit.n_epochs


def test_patience_counts_epochs_without_a_gain() -> None:
    """Training stops ``patience`` epochs after the best one, and keeps the best."""
    train, dev = clusters(60, 1, spread=0.8), clusters(60, 2, spread=1.5)
    config = HeadConfig(hidden_dim=8, dropout=0.0, lr=0.3)
    whole = [fit_head(train, dev, 3, config, seed=3, patience=1000, max_epochs=n) for n in range(1, 16)]
    ranks = [fit.rank for fit in whole]
    assert ranks == sorted(ranks)  # the best accuracy so far
    for patience in (1, 2, 4):
        n = next((e for e in range(1, 16) if e - whole[e - 1].n_epochs >= patience), 15)
        stopped = fit_head(train, dev, 3, config, seed=3, patience=patience, max_epochs=15)
        assert stopped.n_epochs == whole[n - 1].n_epochs
        assert stopped.rank == whole[n - 1].rank
    chosen = whole[-1]
    with torch.inference_mode():
        scores = chosen.head(torch.from_numpy(dev.vectors))
    assert chosen.accuracy == (scores.argmax(1).numpy() == dev.labels).mean()
    want = torch.nn.functional.cross_entropy(scores, torch.from_numpy(dev.labels))
    assert chosen.loss == pytest.approx(float(want), rel=1e-5)


def test_each_epoch_has_its_own_order_and_batches_of_32() -> None:
    """Two epochs of plain SGD written out, in the order of the seed and the epoch."""
    data = clusters(50, 1, spread=0.8)
    fit = fit_head(data, data, 3, HeadConfig(hidden_dim=4, dropout=0.0, lr=0.1), seed=7, patience=9, max_epochs=2)
    assert fit.n_epochs == 2
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        head = Head(8, 4, 3)
    head.fit_scale(torch.from_numpy(data.vectors))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for epoch in (1, 2):
        order = np.random.Generator(np.random.PCG64([7, epoch])).permutation(50)
        for batch in (order[:32], order[32:]):
            optimizer.zero_grad()
            scores = head(torch.from_numpy(data.vectors[batch]))
            torch.nn.functional.cross_entropy(scores, torch.from_numpy(data.labels[batch])).backward()
            optimizer.step()
    for name, parameter in head.named_parameters():
        torch.testing.assert_close(dict(fit.head.named_parameters())[name].detach(), parameter.detach())


def test_parts_of_a_share_stay_whole_and_are_drawn_by_their_seed() -> None:
    pool = tuple(Utterance(f"{intent} {i // 2}", intent) for intent in "ab" for i in range(40))  # each text twice
    rest, part = split_off(pool, 0.25, seed=1)
    assert {u.text for u in rest}.isdisjoint({u.text for u in part})
    assert [sum(u.intent == name for u in part) for name in "ab"] == [10, 10]
    places = [pool.index(u) for u in part]
    assert places == sorted(places)
    # draws of different intents are independent
    drawn = [{u.text[2:] for u in part if u.intent == name} for name in "ab"]
    assert drawn[0] != drawn[1]
    assert len(set(few_shot(pool, 40, seed=1))) == 40


# the threshold


def test_a_threshold_has_the_best_mean_of_both_kinds() -> None:
    scores = np.array([[9.0, 0], [8.0, 0], [0, 7.0], [3.0, 0], [0, 2.0], [1.0, 0]], np.float32)
    assert fit_threshold(scores, np.array([0, 0, 1, -1, -1, -1])) == 5.0  # midway between 3 and 7
    # of equally good ones the lowest: rejecting the wrong answers at 3 and 4 gains nothing
    scores = np.array([[5.0, 0], [4.0, 0], [3.0, 0], [1.0, 0]], np.float32)
    assert fit_threshold(scores, np.array([0, 1, 1, -1])) == 2.0
    scores = np.array([[1.0, 0], [2.0, 0], [5.0, 0]], np.float32)
    assert fit_threshold(scores, np.array([0, 0, -1])) == 1.0  # rejects nothing
    for only in (np.array([0, 1]), np.array([-1, -1])):
        assert fit_threshold(scores[:2], only) is None


@pytest.mark.parametrize("wrong", [0.0, 0.3, 0.9])
def test_no_threshold_is_better_than_the_chosen_one(wrong: float) -> None:
    """A share of the answers in scope with scores below the median are wrong; rejecting them costs nothing."""
    generator = np.random.Generator(np.random.PCG64(4))
    for _ in range(5):
        scores = generator.normal(size=(60, 4)).astype(np.float32)
        best, guesses = scores.max(1), scores.argmax(1)
        mistaken = (best < np.median(best)) & (generator.random(60) < wrong)
        labels = np.where(generator.random(60) < 0.3, -1, (guesses + mistaken) % 4)
        right, outside = guesses == labels, labels < 0
        chosen = fit_threshold(scores, labels)
        assert chosen is not None
        value, *others = (  # each of the others answers at least the best one
            (right & (best >= t))[~outside].mean() + (best < t)[outside].mean() for t in (chosen, *best)
        )
        assert value == pytest.approx(max(others), abs=1e-9)


# everything together

D = 6


class Vectors(Encoder):
    """An Encoder of numeric texts: the text determines the vector."""

    fingerprint, dimension = "vectors", D

    def encode_contexts(self, contexts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        vectors = np.array([json.loads(context.turns[-1]) for context in contexts], np.float32).reshape(-1, 1, D)
        return vectors, np.ones(vectors.shape[:2], np.bool_)

    def encode_candidates(self, candidates: Sequence[str]) -> np.ndarray:
        raise NotImplementedError

    def score(self, contexts: Sequence[Any], candidates: Sequence[Sequence[str]]) -> list[np.ndarray]:
        raise NotImplementedError


def near(n: int, seed: int, *, spread: float = 0.8, turned: int = 0, n_outside: int = 0) -> tuple[Utterance, ...]:
    """Utterances of three intents, each near its own direction; ``turned`` shifts the intents' names."""
    generator = np.random.Generator(np.random.PCG64(seed))

    def text(vector: np.ndarray) -> str:
        return json.dumps([round(float(value), 4) for value in vector])

    inside = [Utterance(text(2 * np.eye(D)[i % 3] + spread * generator.normal(size=D)), "abc"[(i + turned) % 3])
              for i in range(n)]  # fmt: skip
    return (*inside, *(Utterance(text(spread * generator.normal(size=D)), None) for _ in range(n_outside)))


def vectors_of(part: Sequence[Utterance]) -> np.ndarray:
    return np.array([json.loads(utterance.text) for utterance in part], np.float32)


def labels_of(part: Sequence[Utterance]) -> np.ndarray:
    return np.array([-1 if u.intent is None else "abc".index(u.intent) for u in part])


def trained(splits: IntentSplits, **options: Any) -> IntentResult:
    grid = [HeadConfig(hidden_dim=8, dropout=0.0, lr=lr) for lr in (0.05, 0.4)]
    return train_intents(splits, Vectors(), encoder_name="vectors", **{"grid": grid, "max_epochs": 12, **options})


def same(a: IntentClassifier, b: IntentClassifier) -> bool:
    weights = zip(a.head.state_dict().values(), b.head.state_dict().values(), strict=True)
    return a.threshold == b.threshold and all(torch.equal(x, y) for x, y in weights)


TRAIN, DEV = near(60, 1), near(45, 2, n_outside=30)
TEST, OTHER_TEST = near(45, 3, n_outside=30), near(60, 4, spread=2.0, turned=1, n_outside=9)


@pytest.mark.parametrize("options", [{}, {"seeds": (1, 2, 3)}, {"n_few_shot": 5, "seeds": (1, 2)}])
def test_choices_depend_on_the_development_part_and_not_on_the_test_part(options: dict[str, Any]) -> None:
    one, other = (trained(IntentSplits(TRAIN, DEV, test), **options) for test in (TEST, OTHER_TEST))
    assert one.figures["accuracy"] > 0.7 > 0.4 > other.figures["accuracy"]
    assert same(one.classifier, other.classifier)
    assert one.figures["chosen"] == other.figures["chosen"]
    moved = trained(IntentSplits(TRAIN, near(45, 5, spread=2.0, n_outside=9), TEST), **options)
    assert not same(one.classifier, moved.classifier)
    scores = one.classifier.scores_of(vectors_of(DEV))
    if "n_few_shot" not in options:
        assert one.classifier.threshold == fit_threshold(scores, labels_of(DEV))


def test_only_the_training_part_scales_the_encodings() -> None:
    found = trained(IntentSplits((*TRAIN, *DEV[-30:]), near(45, 2, spread=3, n_outside=5), TEST)).classifier.head
    want = vectors_of(TRAIN).astype(np.float64)  # without out-of-scope utterances
    np.testing.assert_allclose(found.mean.numpy(), want.mean(0), atol=1e-5)
    assert float(found.scale) == pytest.approx(np.sqrt(((want - want.mean(0)) ** 2).mean()), rel=1e-5)


@pytest.mark.parametrize("seeds", [(1,), (5, 1)])
def test_a_development_part_that_is_split_off_is_not_trained_on(seeds: tuple[int, ...]) -> None:
    rest, part = split_off(TRAIN, 0.1, seed=seeds[0])
    found = trained(IntentSplits(TRAIN, test=TEST), seeds=seeds)
    assert same(found.classifier, trained(IntentSplits(rest, part, TEST), seeds=seeds).classifier)
    assert (found.figures["n_train"], found.figures["n_dev"]) == (54, 6)


def test_few_shot_training_uses_only_the_drawn_utterances() -> None:
    nine = json.dumps([9.0] * D)
    drawn, kept = few_shot(TRAIN, 5, seed=4), few_shot(DEV, 5, seed=4)
    garbled = tuple(u if u in drawn else Utterance(nine, u.intent) for u in TRAIN)
    other_dev = tuple(u if u in kept or u.intent is None else Utterance(nine, u.intent) for u in DEV)
    first, *others = (
        trained(IntentSplits(train, dev, TEST), n_few_shot=5, seeds=(4,)).classifier
        for train, dev in ((TRAIN, DEV), (garbled, DEV), (TRAIN, other_dev))
    )
    assert all(same(first, other) for other in others)
    np.testing.assert_allclose(first.head.mean.numpy(), vectors_of(drawn).mean(0), atol=1e-5)
    # all out-of-scope utterances are used for the threshold
    fewer = trained(IntentSplits(TRAIN, DEV[:-20], TEST), n_few_shot=5, seeds=(4,))
    assert first.threshold != fewer.classifier.threshold


@pytest.mark.deep
def test_each_seed_is_a_training_of_its_own() -> None:
    """The figures of several seeds are those of each alone with the chosen sizes; the best one's head is kept."""
    splits = IntentSplits(TRAIN, near(90, 7, spread=1.5, n_outside=30), near(300, 6, spread=1.5))
    for options in ({}, {"n_few_shot": 5}):
        seeds = (3, 1, 2)
        together = trained(splits, seeds=seeds, **options)
        config = HeadConfig(**{name: together.figures["chosen"][name] for name in ("hidden_dim", "dropout", "lr")})
        alone = {seed: trained(splits, seeds=(seed,), grid=[config], **options) for seed in seeds}
        assert together.figures["seeds"] == [alone[seed].figures["seeds"][0] for seed in seeds]
        assert len({row["accuracy"] for row in together.figures["seeds"]}) > 1
        vectors, labels = vectors_of(splits.test), labels_of(splits.test)
        right = [one.classifier.scores_of(vectors).argmax(1) == labels for one in alone.values()]
        interval = mean_with_interval(np.mean(right, axis=0), np.arange(len(labels)), shares=True)
        assert together.figures["interval"] == [interval["low"], interval["high"]]
        assert same(together.classifier, alone[together.figures["chosen"]["seed"]].classifier)


def test_an_encoding_is_the_mean_of_a_contexts_own_vectors() -> None:
    class Several(Vectors):
        """As many vectors as the first number; the others are filled."""

        def encode_contexts(self, contexts: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
            vectors = super().encode_contexts(contexts)[0]
            mask = np.arange(3) < vectors[:, :, 0]
            return np.where(mask[:, :, None], vectors * np.arange(1, 4)[:, None], 99.0).astype(np.float32), mask

    texts = [json.dumps([n, 2, 3, 4, 5, 6]) for n in (1, 3, 2)]
    means = [1.0, 2.0, 1.5]  # of 1, of 1 to 3, of 1 to 2
    wanted = [[n * mean, *(mean * np.arange(2, 7))] for n, mean in zip((1, 3, 2), means, strict=True)]
    np.testing.assert_allclose(encode(Several(), texts), wanted)


def test_texts_beyond_a_batch_are_encoded_in_their_order(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(str(models["poly"]), device="cpu")
    texts, counted = [f"my wifi is {word}" for word in ("down", "red", "high", "green", "it")], list[tuple[int, int]]()
    whole = encode(encoder, texts)
    monkeypatch.setattr("polyrank.tuning.intents.classifier.TEXTS_AT_A_TIME", 2)
    np.testing.assert_allclose(encode(encoder, texts, lambda *counts: counted.append(counts)), whole, atol=1e-6)
    assert counted == [(2, 5), (4, 5), (5, 5)]


def test_figures_come_from_the_test_part() -> None:
    for n_seeds in (1, 3):
        result = trained(IntentSplits(TRAIN, DEV, OTHER_TEST), seeds=tuple(range(n_seeds)))
        labels, figures = labels_of(OTHER_TEST), result.figures
        inside = labels >= 0
        scores = result.classifier.scores_of(vectors_of(OTHER_TEST))
        right = scores.argmax(1) == labels
        (chosen,) = [s for s in figures["seeds"] if s["seed"] == figures["chosen"]["seed"]]
        assert chosen["accuracy"] == pytest.approx(right[inside].mean())
        values = [s["accuracy"] for s in figures["seeds"]]
        assert figures["accuracy"] == pytest.approx(np.mean(values))
        low, high = figures["interval"]
        assert 0 < low < figures["accuracy"] < high < 1
        if n_seeds == 1:  # the normal approximation of a share
            half = 1.96 * np.sqrt(np.var(right[inside]) / inside.sum())
            assert (low, high) == pytest.approx((values[0] - half, values[0] + half), abs=0.02)
        assert figures["accuracy_std"] == (pytest.approx(np.std(values, ddof=1)) if n_seeds > 1 else None)
        assert (figures["n_train"], figures["n_dev"], figures["n_test"]) == (60, 45, 60)
        threshold = result.classifier.threshold
        assert threshold is not None
        rejected = scores.max(1) < threshold
        assert figures["out_of_scope"]["recall"] == pytest.approx(rejected[~inside].mean())
        assert figures["out_of_scope"]["precision"] == pytest.approx((~inside)[rejected].mean())
        assert figures["out_of_scope"]["in_scope_accuracy"] == pytest.approx((right & ~rejected)[inside].mean())
        wrong = Counter(zip(labels[~right & inside].tolist(), scores.argmax(1)[~right & inside].tolist(), strict=True))
        assert {("abc".index(row["intent"]), "abc".index(row["classified_as"])): row["count"]
                for row in figures["most_confused"]} == wrong  # fmt: skip
        counts = [row["count"] for row in figures["most_confused"]]
        assert counts == sorted(counts, reverse=True)
    alone = trained(IntentSplits(TRAIN, DEV)).figures
    assert (alone["judged_on"], alone["n_test"], alone["accuracy"]) == ("dev", 0, alone["chosen"]["dev"])
    nothing = trained(IntentSplits(TRAIN, DEV, DEV[-30:])).figures  # all out of scope
    assert (nothing["accuracy"], nothing["interval"]) == (0, [0, 1])


def test_utterances_out_of_scope_are_not_among_the_most_frequent_mistakes() -> None:
    """Of twelve intents: three utterances out of scope look like each, and one of the next intent looks like it."""
    texts = [json.dumps([*(float(n == i % D) for n in range(D - 1)), float(i // D)]) for i in range(12)]
    texts = [json.dumps([3 * value - 1 for value in json.loads(text)]) for text in texts]
    named = [Utterance(text, f"intent {i:02}") for i, text in enumerate(texts)]
    test = [Utterance(text, f"intent {(i + 1) % 12:02}") for i, text in enumerate(texts)]
    test += [Utterance(text, None) for text in texts] * 3
    grid = [HeadConfig(hidden_dim=64, dropout=0.0, lr=0.1)]
    splits = IntentSplits(tuple(named) * 20, tuple(named), tuple(test))
    figures = trained(splits, grid=grid, max_epochs=40, patience=40).figures
    assert figures["chosen"]["dev"] == 1
    rows = [(row["intent"], row["classified_as"], row["count"]) for row in figures["most_confused"]]
    assert rows == [(f"intent {i + 1:02}", f"intent {i:02}", 1) for i in range(10)]


@pytest.mark.deep
def test_settings_that_diverge_are_left_out() -> None:
    grid = [HeadConfig(hidden_dim=8, dropout=0.0, lr=lr) for lr in (1e-4, 0.1, 1e30)]
    seen: list[tuple[str, int, int]] = []
    figures = trained(IntentSplits(TRAIN, DEV), grid=grid, report=lambda *done: seen.append(done)).figures
    assert [trial["lr"] for trial in figures["grid"]] == [1e-4, 0.1]
    assert figures["chosen"]["lr"] == 0.1
    assert seen[-3:] == [("grid", 1, 3), ("grid", 2, 3), ("grid", 3, 3)]
    trained(IntentSplits(TRAIN, DEV), seeds=(1, 2, 3), max_epochs=1, report=lambda *done: seen.append(done))
    assert seen[-2:] == [("seeds", 2, 3), ("seeds", 3, 3)]
    short = trained(IntentSplits(TRAIN, DEV), max_epochs=1).figures["grid"]
    assert [trial["n_epochs"] for trial in short] == [1, 1]
    vague = IntentSplits(TRAIN, near(45, 7, spread=2.0))
    hasty, patient = (trained(vague, patience=n, max_epochs=20).figures["grid"] for n in (1, 20))
    assert [trial["n_epochs"] for trial in hasty] != [trial["n_epochs"] for trial in patient]
    with pytest.raises(DivergedError, match="every point of the grid"):
        trained(IntentSplits(TRAIN, DEV), grid=grid[2:])


def test_the_grid_tries_several_values_of_each_setting_with_all_of_the_others() -> None:
    dropouts, rates = ({getattr(config, name) for config in GRID_SEARCHED} for name in ("dropout", "lr"))
    assert min(len(dropouts), len(rates)) > 1
    assert {(config.dropout, config.lr) for config in GRID_SEARCHED} == {*product(dropouts, rates)}


def test_impossible_settings_of_intents_are_refused() -> None:
    for options in ({"seeds": ()}, {"n_few_shot": 0}, {"max_epochs": 0}):
        with pytest.raises(UsageError, match="give at least one seed, one epoch, and one utterance"):
            trained(IntentSplits(TRAIN), **options)
    for splits, message in (
        (IntentSplits(TRAIN[::3]), "has 1 intents"),
        (IntentSplits(TRAIN, test=(Utterance("[]", "fly"),)), "'fly' of the test part has no training utterance"),
        (IntentSplits(TRAIN, DEV[-3:]), "no utterance in scope"),
    ):
        with pytest.raises(DataError, match=message):
            trained(splits)


def test_predictions_are_probabilities(bi: Encoder, models: dict[str, Path], tmp_path: Path) -> None:
    splits = IntentSplits(utterances(2))
    made = train_intents(splits, bi, encoder_name=str(models["bi"]), grid=GRID, max_epochs=4).classifier
    texts = ["my wifi is down", "the bill", "restart"]
    scores = made.scores_of(encode(bi, texts)).astype(np.float64)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    threshold = float(np.median(scores.max(1)))
    for row, share, found in zip(scores, shares, replace(made, threshold=threshold).predict(texts), strict=True):
        order = np.argsort(-row)
        assert found.best == tuple((made.intents[i], pytest.approx(share[i], rel=1e-5)) for i in order)
        assert found.intent == (None if row.max() < threshold else made.intents[order[0]])
    with torch.no_grad():
        made.head.output.weight.mul_(1e6)  # exp overflows
    (found,) = made.predict(texts[:1], k=2)
    assert len(found.best) == 2
    assert found.best[0][1] == pytest.approx(1.0)
    assert made.predict([]) == []
    with pytest.raises(UsageError, match="k is 0"):
        made.predict(texts, 0)


def test_the_folder_predicts_equally_and_refuses_another_encoder_and_damage(
    bi: Encoder, models: dict[str, Path], tmp_path: Path
) -> None:
    outside = tuple(Utterance(text, None) for text in ("restart", "did that", "restart it", "did it", "that it"))
    splits = IntentSplits((*utterances(), *outside), test=utterances(2))
    name, place = str(models["bi"]), tmp_path / "c"
    results = [train_intents(splits, bi, encoder_name=name, grid=GRID, max_epochs=20) for _ in range(2)]
    assert results[0].figures["accuracy"] == 1.0
    assert results[0].figures["interval"] == pytest.approx([30 / (30 + 1.96**2), 1.0], abs=1e-3)  # Wilson's of 30
    assert json.loads(json.dumps(results[0].figures)) == results[0].figures
    assert same(*(result.classifier for result in results))
    save_intents(place, results[0].classifier)
    texts = [utterance.text for utterance in splits.test]
    found = load_intents(place)
    assert found.predict(texts) == results[0].classifier.predict(texts)
    assert found.metadata == results[0].classifier.metadata
    wanted, other = (load_encoder(str(models[key]), device="cpu").fingerprint[:12] for key in ("bi", "other"))
    message = f"trained on encoder {wanted}, and .* is {other}; give the right encoder as `encoder`"
    with pytest.raises(ArtifactError, match=message):
        load_intents(place, encoder=str(models["other"]))
    with pytest.raises(UsageError, match="which does not exist; give its folder as `encoder`"):
        load_intents(place, encoder=str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="already exists"):
        save_intents(place, found)
    with pytest.raises(UsageError, match="device 'nowhere' is unknown"):
        load_intents(place, device="nowhere")
    save_intents(place, found, replace=True)
    with pytest.raises(UsageError, match="predicts intents"):
        load_encoder(str(place))
    with pytest.raises(UsageError, match="has no vectors"):
        load_encoder(str(models["cross"]))
    for file in ("intent.json", "intent.safetensors"):
        data = (place / file).read_bytes()
        for i in range(0, len(data), max(1, len(data) // 40)):
            (place / file).write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
            with pytest.raises(ArtifactError):
                load_intents(place)
        (place / file).write_bytes(data)


def test_a_classifier_moves_with_its_encoder(models: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(models["bi"], tmp_path / "a" / "bi")
    encoder, name = load_encoder(str(tmp_path / "a" / "bi"), device="cpu"), str(tmp_path / "a" / "bi")
    made = train_intents(IntentSplits(utterances(2)), encoder, encoder_name=name, grid=GRID, max_epochs=2).classifier
    save_intents(tmp_path / "a" / "c", made)
    (tmp_path / "a").rename(tmp_path / "b")
    assert load_intents(tmp_path / "b" / "c").predict(["the bill"]) == made.predict(["the bill"])


# the commands


def test_the_figures_of_intents_are_shown_in_percent(capsys: pytest.CaptureFixture[str]) -> None:
    confused = [{"intent": f"i{n}", "classified_as": f"j{n}", "count": 9 - n} for n in range(7)]
    figures: dict[str, Any] = {
        "judged_on": "test", "chosen": {"hidden_dim": 32, "dropout": 0.25, "lr": 0.5}, "interval": [0.5, 0.625],
        "accuracy": 0.5625, "accuracy_std": 0.0125, "most_confused": confused, "n_test": 1234, "n_train": 5678,
        "n_dev": 91, "out_of_scope": {"threshold": 0.123456, "n_out_of_scope": 2000, "recall": 0.75, "precision": None,
                                      "in_scope_accuracy": 0.0},
    }  # fmt: skip
    _show(figures)
    *pairs, line, rejected = capsys.readouterr().out.splitlines()
    assert pairs == [f"i{n} classified as j{n}: {9 - n}" for n in range(5)]
    assert line == (
        "test accuracy 56.2% ± 1.2 (95%: 50.0-62.5) on 1,234 in scope; 5,678 train, 91 dev; H 32, dropout 0.25, lr 0.5"
    )
    assert rejected == (
        "rejecting scores below 0.1235: 75.0% of 2,000 out of scope are rejected, - of rejected ones are out of scope,"
        " 0.0% in scope get their intent"
    )
    _show(figures | {"accuracy_std": None, "out_of_scope": None, "most_confused": []})
    assert capsys.readouterr().out.splitlines() == [line.replace(" ± 1.2", "")]


def test_the_commands(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"text": u.text, "intent": u.intent}
        for u in (*utterances(2), *(Utterance(f"x {i}", "oos") for i in "abcdefghij"))
    ]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    made = run("intents", "train", tmp_path / "all.jsonl", "--encoder", models["convert"], "-o", tmp_path / "c",
               "--seeds", "2", "--json")  # fmt: skip
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert (figures["n_train"], figures["n_dev"], figures["n_test"], len(figures["seeds"])) == (24, 3, 3, 2)
    assert figures["out_of_scope"]["n_out_of_scope"] == 1
    assert figures["data"] == "all.jsonl"
    shown = run("intents", "train", tmp_path / "all.jsonl", "--encoder", models["convert"], "-o", tmp_path / "d",
                "--few-shot", "2")  # fmt: skip
    assert "test accuracy" in shown.stdout
    assert " 6 train, " in shown.stdout
    assert "rejecting scores below" in shown.stdout
    piped = CliRunner().invoke(
        app, ["intents", "predict", str(tmp_path / "c"), "-k", "2"], input="my wifi is down\n\nthe light is red\n"
    )
    assert piped.exit_code == 0, piped.output
    answers = [json.loads(line) for line in piped.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == ["my wifi is down", "the light is red"]
    want = load_intents(tmp_path / "c").predict(["my wifi is down", "the light is red"])
    assert [answer["intent"] for answer in answers] == [prediction.intent for prediction in want]
    assert [len(answer["intents"]) for answer in answers] == [2, 2]
    texts = ["my wifi is down", "x b"]
    again = CliRunner().invoke(app, ["intents", "predict", str(tmp_path / "c"), *texts])
    rows = [json.loads(line) for line in again.stdout.splitlines()]
    assert [(row["text"], len(row["intents"])) for row in rows] == [(text, 3) for text in texts]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    intents_predict(tmp_path / "c", texts, k=2, encoder=str(models["convert"]))
    want = load_intents(tmp_path / "c").predict(texts, 2)
    for line, prediction in zip(capsys.readouterr().out.splitlines(), want, strict=True):
        best = ", ".join(f"{name} {round(100 * share)}%" for name, share in prediction.best)
        assert line == f"{prediction.intent or '(out of scope)'}  [{best}]"
    for command in (["info", tmp_path / "c"], ["export", tmp_path / "c", "--to", "onnx"]):
        assert "predicts intents" in str(CliRunner().invoke(app, [*map(str, command)]).exception), command
    (tmp_path / "bad.csv").write_text("text,intent\nhi\n")
    bad = run("intents", "train", tmp_path / "bad.csv", "-o", tmp_path / "e")
    assert (bad.returncode, "bad.csv:2: 1 cells" in bad.stderr, (tmp_path / "e").exists()) == (3, True, False)


@pytest.mark.skipif(not SHARED.exists(), reason="needs the shared data")
@pytest.mark.parametrize(
    ("name", "counts", "n_intents"),
    [("banking77", (10003, 0, 3080), 77), ("clinc150", (15100, 3100, 5500), 150), ("hwu64", (9960, 0, 1076), 64)],
)
def test_the_published_files(name: str, counts: tuple[int, int, int], n_intents: int) -> None:
    found = read_intents(SHARED / name)
    assert (len(found.train), len(found.dev), len(found.test)) == counts
    assert len({u.intent for u in found.train} - {None}) == n_intents
    assert {u.intent for u in found.test} <= {u.intent for u in found.train}
