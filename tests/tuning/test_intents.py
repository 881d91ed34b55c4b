"""Intents: readers of published formats, few-shot parts, the network, the threshold, the folder, the commands."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from polyrank.scorers.summed import SumEncoder, save_sum
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.cli.progress import numbers
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, CrossConfig, PolyConfig, TextPolicy
from polyrank.errors import ArtifactError, ConfigError, DataError, DivergedError, UsageError
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.ranking.abstention import Abstention, confidence
from polyrank.records import Context
from polyrank.scorers.protocols import Encoder
from polyrank.tuning.intents import (
    Grid,
    Head,
    HeadConfig,
    IntentSplits,
    Utterance,
    calibrate_rejection,
    confusion,
    encode,
    evaluate_rejection,
    few_shot,
    fit_head,
    load_intents,
    most_confused,
    open_encoder,
    per_intent,
    plot_confusion,
    read_aim,
    read_intents,
    read_layer,
    read_utterances,
    save_intents,
    search,
    split_off,
    train_intents,
)
from polyrank.tuning.intents.head import Encoded
from polyrank.tuning.intents.plots import shown_intents
from processes import run

SHARED = Path(__file__).parents[3] / "shared" / "data"
TEXTS = {
    "wifi": ["my wifi is down", "the wifi is down", "wifi down please", "is the wifi down", "hello wifi is down"],
    "bill": ["my bill is too high", "the bill is high", "bill too high please", "is the bill high", "hello bill high"],
    "light": ["the light is red", "light is green", "red light please", "is it a green light", "hello red light"],
}
GRID = Grid(hidden_dim=(16,), dropout=(0.1,), lr=(0.1, 0.3))
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
    return open_encoder(str(models["bi"]), device="cpu")


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
    found = read_intents(tmp_path)
    assert found.train == (Utterance('set "it" for ten', "alarm_set"),)
    assert found.test == (Utterance("a; b", "alarm_set"),)


def test_plain_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "hi", "intent": "greet"}\n{"text": "7", "intent": "none"}\n')
    (tmp_path / "val.csv").write_text("utterance,label\nhello,greet\n")
    found = read_intents(tmp_path, out_of_scope="none")
    assert found.train == (Utterance("hi", "greet"), Utterance("7", None))
    assert found.dev == (Utterance("hello", "greet"),)
    assert read_intents(tmp_path / "train.jsonl").train == read_utterances(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "text,intent\nhi\n", r"a.csv:2: 1 cells"),
        ("a.csv", "text,intent\n ,greet\n", r"a.csv:2: the text is empty; remove"),
        ("a.csv", "text,intent\nhi,\n", r'a.csv:2: the intent is empty; name it, or write "oos"'),
        ("a.csv", "query,intent\nhi,greet\n", r'a.csv:2: missing field "text"'),
        ("a.csv", "text,intent\n", "holds no utterances"),
        ("a.jsonl", '{"text": "hi", "intent": 3}\n', r'a.jsonl:1: field "intent" holds a number'),
        ("a.json", "{", "not JSON"),
        ("a.json", '{"val": []}', 'has no list "train"'),
        ("a.json", '{"train": [["hi", "greet"], ["hi"]]}', "train item 2 is not"),
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


def test_missing_folders_and_duplicate_parts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        read_intents(tmp_path / "gone")
    for name in ("dev.csv", "valid.csv"):
        (tmp_path / name).write_text("text,intent\nhi,greet\n")
    with pytest.raises(DataError, match="could be its dev part; keep one"):
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
    with pytest.raises(DataError, match=r"'bill' has 20 utterances, fewer than the requested 21"):
        few_shot(pool, 21, seed=3)


def test_a_development_part_is_split_off() -> None:
    pool = (*utterances(), *(Utterance(f"what {i}", None) for i in range(30)), Utterance("once", "rare"))
    rest, dev = split_off(pool, 0.1, seed=1)
    assert sorted((*rest, *dev), key=repr) == sorted(pool, key=repr)
    assert [sum(u.intent == name for u in dev) for name in (*TEXTS, None, "rare")] == [2, 2, 2, 3, 0]
    assert (rest, dev) == split_off(pool, 0.1, seed=1)
    assert dev != split_off(pool, 0.1, seed=2)[1]


def test_no_text_is_in_both_parts_even_with_several_intents() -> None:
    shared = [Utterance(text, intent) for text in ("yes", "no", "ok") for intent in ("a", "b", None)]
    pool = (*shared, *(Utterance(f"{intent} {i}", intent) for intent in ("a", "b") for i in range(10)))
    for seed in range(5):
        rest, part = split_off(pool, 0.5, seed=seed)
        assert not {u.text for u in rest} & {u.text for u in part}
        assert [sum(u.intent == name for u in part) for name in ("a", "b", None)] == [5, 5, 0]


# encodings


def test_encodings_are_the_mean_of_the_real_vectors(models: dict[str, Path]) -> None:
    encoder = open_encoder(str(models["poly"]), device="cpu")
    texts = ["my wifi is down", "hi"]
    vectors, mask = encoder.encode_contexts([Context((text,)) for text in texts])
    want = [row[real].mean(0) for row, real in zip(vectors, mask, strict=True)]
    np.testing.assert_allclose(encode(encoder, texts), want, rtol=1e-6)


@pytest.mark.parametrize("name", ["convert", "multi"])
def test_r_equals_the_reduction(models: dict[str, Path], name: str) -> None:
    encoder = open_encoder(str(models[name]), device="cpu")
    assert read_layer("auto", encoder) == "r"
    r = encode(encoder, ["my wifi is down", "red", ""], "r")
    model = encoder.model  # type: ignore[attr-defined]  # an EncoderScorer, which r needs
    tokens = encoder.texts.contexts([Context(("my wifi is down",))])  # type: ignore[attr-defined]
    with torch.inference_mode():
        want = model.reduced(tokens)
    assert r.shape == (3, model.reduction.dimension)
    np.testing.assert_allclose(r[0], want[0].numpy(), rtol=1e-4, atol=1e-6)
    assert encode(encoder, ["red"], "final").shape == (1, encoder.dimension)


def test_encodings_of_a_sum_are_concatenated(models: dict[str, Path], tmp_path: Path) -> None:
    """Each part is normalized and comes from its encoder's best layer; encoders without r use the default."""
    names = ("poly", "multi")
    parts = [open_encoder(str(models[name]), device="cpu") for name in names]
    save_sum(tmp_path / "sum", SumEncoder(parts, [1, 5]))
    encoder = open_encoder(str(tmp_path / "sum"), device="cpu")
    texts = ["my wifi is down", "red", ""]
    assert read_layer("auto", encoder) == "r"
    calls: list[tuple[int, int]] = []
    for layers in (("final", "r"), ("final", "final")):
        joined = encode(encoder, texts, layers[1], cache=tmp_path / "c", progress=lambda *done: calls.append(done))  # type: ignore[arg-type]
        own = [encode(part, texts, layer) for part, layer in zip(parts, layers, strict=True)]  # type: ignore[arg-type]
        start = 0
        for rows in own:
            block = joined[:, start : start + rows.shape[1]]
            np.testing.assert_allclose(block * np.linalg.norm(rows, axis=1, keepdims=True), rows, rtol=1e-5, atol=1e-6)
            lengths = np.linalg.norm(block, axis=1)
            assert lengths[:2] == pytest.approx(1.0)
            assert lengths[2] == pytest.approx(1.0 if rows[2].any() else 0.0)  # an empty text has no r
            start += rows.shape[1]
        assert joined.shape == (3, start)
        assert joined.dtype == np.float32
    assert calls == [(3, 6), (6, 6), (6, 6)]  # the first encoder's second round comes from the cache
    assert encode(encoder, []).shape[0] == 0
    save_sum(tmp_path / "plain", SumEncoder([parts[0], open_encoder(str(models["bi"]), device="cpu")], [1, 1]))
    assert read_layer("auto", open_encoder(str(tmp_path / "plain"), device="cpu")) == "final"


def test_missing_layers(bi: Encoder, models: dict[str, Path]) -> None:
    assert read_layer("auto", bi) == "final"
    with pytest.raises(UsageError, match="only a ConveRT has a layer r"):
        read_layer("r", bi)
    with pytest.raises(UsageError, match="unknown layer 'pooled'; choose auto, final or r"):
        read_layer("pooled", bi)
    with pytest.raises(UsageError, match="has no vectors"):
        open_encoder(str(models["cross"]))


def test_the_cache_returns_the_same_bytes(bi: Encoder, models: dict[str, Path], tmp_path: Path) -> None:
    texts = ["my wifi is down", "the light is red"]
    calls: list[tuple[int, int]] = []
    first = encode(bi, texts, cache=tmp_path / "c", progress=lambda done, total: calls.append((done, total)))
    again = encode(bi, texts, cache=tmp_path / "c", progress=lambda done, total: calls.append((done, total)))
    assert calls == [(2, 2)]
    assert first.tobytes() == again.tobytes()
    encode(open_encoder(str(models["other"])), texts, cache=tmp_path / "c")
    encode(bi, texts[::-1], cache=tmp_path / "c")
    assert len(list((tmp_path / "c").iterdir())) == 3


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


def test_the_grid_keeps_the_best_and_skips_diverging_settings() -> None:
    train, dev = clusters(60, 1, spread=0.5), clusters(60, 2, spread=0.5)
    seen: list[tuple[int, int]] = []
    grid = Grid(hidden_dim=(8,), dropout=(0.0,), lr=(1e-4, 0.1, 1e30))
    best, trials = search(
        train, dev, 3, grid, seed=1, max_epochs=20, report=lambda fit, done, total: seen.append((done, total))
    )
    assert best.config.lr == 0.1
    assert [trial.config.lr for trial in trials] == [1e-4, 0.1]
    assert seen == [(1, 3), (2, 3)]
    with pytest.raises(DivergedError, match="every point of the grid"):
        search(train, dev, 3, replace(grid, lr=(1e30,)), seed=1)
    with pytest.raises(ConfigError, match="the grid is empty"):
        search(train, dev, 3, replace(grid, lr=()), seed=1)
    for bad in ({"hidden_dim": 0}, {"dropout": 1.0}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(ConfigError):
            HeadConfig(**bad)  # type: ignore[arg-type]


# the threshold and the report


def test_a_threshold_on_known_scores() -> None:
    scores = np.array([[9.0, 0], [8.0, 0], [0, 7.0], [3.0, 0], [0, 2.0], [1.0, 0]], np.float32)
    labels = np.array([0, 0, 1, -1, -1, -1])
    for aim in ("balanced", "accuracy", "f1"):
        abstention, found = calibrate_rejection(scores, labels, aim=read_aim(aim), measure="score")
        assert abstention == Abstention("score", 5.0)  # midway between 3 and 7
        assert (found.in_scope_accuracy, found.recall, found.precision, found.f1, found.accuracy) == (1, 1, 1, 1, 1)
    # one of three in-scope utterances is wrong and has a low score, so rejecting it costs nothing
    labels[2] = 0
    abstention, found = calibrate_rejection(scores, labels, measure="score")
    assert abstention.threshold == 5.0
    assert found.in_scope_accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize("aim", ["balanced", "accuracy", "f1"])
def test_no_other_threshold_is_better(aim: str) -> None:
    generator = np.random.Generator(np.random.PCG64(4))
    scores = generator.normal(size=(60, 4)).astype(np.float32)
    labels = np.where(generator.random(60) < 0.3, -1, scores.argmax(1))
    known = read_aim(aim)
    abstention, found = calibrate_rejection(scores, labels, aim=known)
    assert found == evaluate_rejection(scores, labels, abstention)
    for measure in ("score", "margin", "softmax"):
        for threshold in np.linspace(-1, 4, 101):
            other = evaluate_rejection(scores, labels, Abstention(measure, float(threshold)))  # type: ignore[arg-type]
            assert other.value(known) <= found.value(known) + 1e-12
    assert found.n_in_scope + found.n_out_of_scope == 60


def test_a_threshold_needs_both_kinds() -> None:
    scores = np.zeros((2, 3), np.float32)
    with pytest.raises(DataError, match="is out of scope, and a threshold needs both"):
        calibrate_rejection(scores, np.array([0, 1]))
    with pytest.raises(DataError, match="is in scope, and a threshold needs both"):
        calibrate_rejection(scores, np.array([-1, -1]))
    with pytest.raises(UsageError, match="unknown aim of a threshold 'best'"):
        read_aim("best")


def test_the_report_agrees_with_counting(tmp_path: Path) -> None:
    generator = np.random.Generator(np.random.PCG64(1))
    labels, predictions = generator.integers(-1, 3, size=(2, 200))
    matrix = confusion(labels, predictions, 3)
    assert matrix.sum() == 200
    names = ["a", "b", "c"]
    for row in per_intent(matrix, names):
        number = {**{name: i for i, name in enumerate(names)}, "oos": -1}[row["intent"]]
        hits = int(((labels == number) & (predictions == number)).sum())
        assert row["support"] == (labels == number).sum()
        assert row["precision"] == hits / (predictions == number).sum()
        assert row["recall"] == hits / (labels == number).sum()
        assert row["f1"] == pytest.approx(2 / (1 / row["precision"] + 1 / row["recall"]))
    worst = most_confused(matrix, names, n=100)
    assert sum(row["count"] for row in worst) == (labels != predictions).sum()
    assert worst == sorted(worst, key=lambda row: -row["count"])
    plot_confusion(matrix, names, tmp_path / "all.svg")
    plot_confusion(confusion(labels, labels, 300), [str(i) for i in range(300)], tmp_path / "many.png", n_shown=2)
    plot_confusion(matrix, names, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "all.svg").read_bytes()
    assert (tmp_path / "all.svg").stat().st_size > 1000
    assert (tmp_path / "many.png").stat().st_size > 1000
    assert len(shown_intents(np.ones((300, 300), np.int64), 20)) == 20


# everything together


def outside() -> tuple[Utterance, ...]:
    return tuple(Utterance(text, None) for text in ("restart", "did that", "restart it", "did it", "please", "that it"))


def test_separable_data_is_learned_and_the_saved_folder_predicts_equally(
    bi: Encoder, models: dict[str, Path], tmp_path: Path
) -> None:
    splits = IntentSplits(train=(*utterances(), *outside()), test=(*utterances(2), *outside()))
    seen: list[str] = []
    result = train_intents(
        splits, bi, encoder_name=str(models["bi"]), grid=GRID, seeds=(1, 2),
        report=lambda what, done, total: seen.append(what),
    )  # fmt: skip
    figures = result.figures
    assert figures["accuracy"] == 1.0
    assert figures["accuracy_std"] == 0.0
    assert figures["interval"] == [1.0, 1.0]
    assert (figures["n_train"], figures["n_dev"], figures["n_test"]) == (54, 6, 30)
    assert figures["out_of_scope"]["n_out_of_scope"] == 6
    assert len(figures["grid"]) == 2
    assert result.matrix.sum() == 36
    assert {"encoding train", "seeds"} <= set(seen)
    assert json.loads(json.dumps(figures)) == figures

    save_intents(tmp_path / "c", result.classifier)
    found = load_intents(tmp_path / "c")
    texts = [utterance.text for utterance in splits.test]
    assert found.predict(texts) == result.classifier.predict(texts)
    assert found.scores(texts).tobytes() == result.classifier.scores(texts).tobytes()
    assert found.metadata == json.loads(json.dumps(result.classifier.metadata))
    for prediction in found.predict(texts, k=2):
        assert len(prediction.best) == 2
        assert prediction.best[0][1] >= prediction.best[1][1]
        assert prediction.intent in (None, prediction.best[0][0])
    assert found.predict([]) == []
    with pytest.raises(UsageError, match="k is 0"):
        found.predict(texts, 0)


def test_a_classifier_on_a_sum_stores_all_encoders(models: dict[str, Path], tmp_path: Path) -> None:
    for name in ("bi", "convert"):
        shutil.copytree(models[name], tmp_path / name)
    own = [open_encoder(str(tmp_path / name), device="cpu") for name in ("bi", "convert")]
    save_sum(tmp_path / "sum", SumEncoder(own, [1, 1]))
    splits = IntentSplits(utterances(), utterances(1))
    name = str(tmp_path / "sum")
    result = train_intents(splits, open_encoder(name, device="cpu"), encoder_name=name, grid=GRID, max_epochs=20)
    assert result.figures["layer"] == "r"
    r = encode(own[1], ["red"], "r")
    assert result.classifier.head.hidden.in_features == own[0].dimension + r.shape[1]
    assert result.figures["accuracy"] == 1.0
    save_intents(tmp_path / "c", result.classifier)
    texts = [utterance.text for utterance in utterances(1)]
    assert load_intents(tmp_path / "c", device="cpu").predict(texts) == result.classifier.predict(texts)
    shutil.rmtree(tmp_path / "convert")
    with pytest.raises(UsageError, match=r"needs the encoder .*convert, which does not exist"):
        load_intents(tmp_path / "c")
    shutil.copytree(models["multi"], tmp_path / "convert")
    with pytest.raises(ArtifactError, match=r"was made with encoder .*convert is"):
        load_intents(tmp_path / "c")


def test_repeated_training_writes_the_same_bytes(bi: Encoder, models: dict[str, Path], tmp_path: Path) -> None:
    for name in ("a", "b"):
        result = train_intents(
            IntentSplits(utterances()), bi, encoder_name=str(models["bi"]), grid=GRID, n_few_shot=4, max_epochs=5
        )
        save_intents(tmp_path / name, result.classifier)
        assert result.figures["judged_on"] == "dev"
        assert result.figures["n_train"] == 12
        assert result.figures["n_dev"] == 6
    assert (tmp_path / "a" / "intent.safetensors").read_bytes() == (tmp_path / "b" / "intent.safetensors").read_bytes()


def test_the_first_seed_draws_the_weights_too(bi: Encoder) -> None:
    splits = IntentSplits(utterances(), utterances(1))
    made = [
        train_intents(splits, bi, encoder_name="x", grid=GRID, seeds=(seed,), max_epochs=1).classifier.head
        for seed in (1, 1, 2)
    ]
    first, again, other = (torch.cat([each.flatten() for each in head.parameters()]) for head in made)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_precision_calibrates_without_out_of_scope_data(bi: Encoder) -> None:
    result = train_intents(
        IntentSplits(utterances(), utterances(1)), bi, encoder_name="x", grid=GRID, precision=0.9, max_epochs=20
    )
    assert result.classifier.abstention is not None
    assert result.figures["out_of_scope"]["n_out_of_scope"] == 0


def test_a_precision_out_of_reach_costs_no_training(bi: Encoder) -> None:
    dev = tuple(Utterance(text, intent) for text in ("a a", "b b") for intent in ("x", "y"))  # half right at best
    splits = IntentSplits((*dev, *dev), dev)
    result = train_intents(splits, bi, encoder_name="x", grid=GRID, precision=0.9, max_epochs=2)
    assert result.classifier.abstention is None
    assert "no threshold reaches a precision of 90.0%" in result.unreached
    outside = IntentSplits(utterances(), (*dev, Utterance("c", None)))
    with pytest.raises(UsageError, match=r"precision 0\.9 is set, but the development part has"):
        train_intents(outside, bi, encoder_name="x", grid=GRID, precision=0.9)


def test_impossible_settings_of_intents_are_refused(bi: Encoder) -> None:
    def run(splits: IntentSplits, **options: object) -> None:
        train_intents(splits, bi, encoder_name="x", grid=GRID, **options)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="seeds is empty"):
        run(IntentSplits(utterances()), seeds=())
    with pytest.raises(UsageError, match="0 utterances per intent"):
        run(IntentSplits(utterances()), n_few_shot=0)
    with pytest.raises(DataError, match="has 1 intents"):
        run(IntentSplits((Utterance("hi", "greet"), Utterance("hello", "greet"))))
    with pytest.raises(DataError, match="'fly' of the test part has no training utterance"):
        run(IntentSplits(utterances(), test=(Utterance("up", "fly"),)))
    with pytest.raises(DataError, match="no utterance in scope"):
        run(IntentSplits(utterances(), dev=outside()))
    with pytest.raises(ConfigError, match="max_epochs = 0 is below 1; give at least 1"):
        run(IntentSplits(utterances()), max_epochs=0)


def test_the_folder_refuses_another_encoder_and_damage(bi: Encoder, models: dict[str, Path], tmp_path: Path) -> None:
    result = train_intents(IntentSplits(utterances()), bi, encoder_name=str(models["bi"]), grid=GRID, max_epochs=2)
    place = tmp_path / "c"
    save_intents(place, result.classifier)
    with pytest.raises(ArtifactError, match="give the right encoder as `encoder`"):
        load_intents(place, encoder=str(models["other"]))
    with pytest.raises(UsageError, match="which does not exist; give its folder as `encoder`"):
        load_intents(place, encoder=str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="already exists"):
        save_intents(place, result.classifier)
    save_intents(place, result.classifier, replace=True)
    with pytest.raises(UsageError, match="predicts intents"):
        open_encoder(str(place))
    for command in (["info", str(place)], ["export", str(place), "--to", "onnx"]):
        assert "predicts intents" in str(CliRunner().invoke(app, command).exception), command
    with pytest.raises(ArtifactError, match="not a folder of kind 'intent'"):
        load_intents(tmp_path)
    for name in ("intent.json", "intent.safetensors"):
        data = (place / name).read_bytes()
        for i in range(0, len(data), max(1, len(data) // 40)):
            (place / name).write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
            with pytest.raises(ArtifactError):
                load_intents(place)
        (place / name).write_bytes(data)
    data = (place / "intent.json").read_bytes()
    document = json.loads(data)
    (place / "intent.json").write_text(json.dumps({**document, "format": 9}))
    with pytest.raises(ArtifactError, match="in format 9, this version reads format 1"):
        load_intents(place)
    (place / "intent.json").write_bytes(data)
    (place / "intent.safetensors").unlink()
    with pytest.raises(ArtifactError, match="is missing"):
        load_intents(place)


# the commands


def test_the_commands(models: dict[str, Path], tmp_path: Path) -> None:
    rows = [{"text": u.text, "intent": u.intent or "none"} for u in (*utterances(), *outside())]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    grid = ("--hidden", "16", "--dropout", "0.1", "--lr", "0.3", "--out-of-scope", "none")
    made = run(
        "intents",
        "train", tmp_path / "train.jsonl", "--test", tmp_path / "test.jsonl", "--encoder", models["convert"],
        "-o", tmp_path / "c", *grid, "--seeds", "1,2", "--plot", tmp_path / "plot.svg", "--json",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    figures = json.loads(made.stdout)
    assert figures["layer"] == "r"
    assert figures["n_test"] == 60
    assert len(figures["seeds"]) == 2
    assert "grid, " in made.stderr
    assert (tmp_path / "plot.svg").exists()
    piped = CliRunner().invoke(
        app, ["intents", "predict", str(tmp_path / "c"), "-k", "2"], input="my wifi is down\n\nthe light is red\n"
    )
    assert piped.exit_code == 0, piped.output
    answers = [json.loads(line) for line in piped.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == ["my wifi is down", "the light is red"]
    want = load_intents(tmp_path / "c").predict(["my wifi is down", "the light is red"])
    assert [answer["intent"] for answer in answers] == [prediction.intent for prediction in want]
    assert [len(answer["intents"]) for answer in answers] == [2, 2]


def test_a_precision_and_out_of_scope_utterances_exclude_each_other(models: dict[str, Path], tmp_path: Path) -> None:
    for name, rows in (("train", utterances()), ("dev", (*utterances(1), Utterance("c", None)))):
        lines = [json.dumps({"text": row.text, "intent": row.intent or "none"}) + "\n" for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), "utf-8")
    line = ["intents", "train", "train.jsonl", "--dev", "dev.jsonl", "--out-of-scope", "none", "--precision", "0.8"]
    paths = [str(tmp_path / word) if word.endswith(".jsonl") else word for word in line]
    found = CliRunner().invoke(app, [*paths, "-o", str(tmp_path / "c"), "--encoder", str(models["convert"])])
    assert "precision 0.8 is set, but the development part has out-of-scope" in str(found.exception)


def test_bad_input_leaves_with_3(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("text,intent\nhi\n")
    bad = run("intents", "train", tmp_path / "bad.csv", "-o", tmp_path / "c")
    assert bad.returncode == 3
    assert "bad.csv:2: 1 cells" in bad.stderr
    assert not (tmp_path / "c").exists()
    assert numbers("1, 2", int, "--seeds") == [1, 2]
    with pytest.raises(UsageError, match="--lr 'fast' is not a list of numbers"):
        numbers("fast", float, "--lr")


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


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_a_damaged_cache_is_ignored(bi: Encoder, tmp_path: Path, damage: bytes | None) -> None:
    first = encode(bi, ["hi", "my wifi is down"], cache=tmp_path / "c")
    (place,) = (tmp_path / "c").iterdir()
    data = place.read_bytes()
    place.write_bytes(data[:-4] + bytes(4) if damage is None else damage)
    np.testing.assert_array_equal(encode(bi, ["hi", "my wifi is down"], cache=tmp_path / "c"), first)
    assert place.read_bytes() == data


# comparison with scikit-learn, and edge cases


def test_the_report_equals_scikit_learns() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    generator = np.random.Generator(np.random.PCG64(2))
    labels, predictions = generator.integers(-1, 4, size=(2, 150))
    predictions = np.where(generator.random(150) < 0.5, labels, predictions)
    names = ["a", "b", "c", "d"]
    matrix = confusion(labels, predictions, 4)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(labels, predictions, labels=[0, 1, 2, 3, -1]))
    values = metrics.precision_recall_fscore_support(labels, predictions, labels=[0, 1, 2, 3, -1])
    rows = {row["intent"]: row for row in per_intent(matrix, names)}
    for name, *want in zip([*names, "oos"], *values, strict=True):
        assert [rows[name][key] for key in ("precision", "recall", "f1", "support")] == pytest.approx(want)
    assert [row["f1"] for row in rows.values()] == sorted(row["f1"] for row in rows.values())


def test_intents_that_are_only_true_or_only_predicted() -> None:
    rows = per_intent(confusion(np.array([0, 0]), np.array([1, 1]), 3), ["a", "b", "c"])
    assert rows == [
        {"intent": "a", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2},
        {"intent": "b", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0},
    ]
    generator = np.random.Generator(np.random.PCG64(3))
    matrix = generator.integers(1, 50, size=(5, 5))
    worst = most_confused(matrix, ["a", "b", "c", "d"])
    assert len(worst) == 10
    names = ["a", "b", "c", "d", "oos"]
    wrong = sorted(
        ((int(matrix[i, j]), names[i], names[j]) for i in range(5) for j in range(5) if i != j), reverse=True
    )
    assert [row["count"] for row in worst] == [count for count, _, _ in wrong[:10]]
    assert all((row["count"], row["intent"], row["taken_for"]) in wrong for row in worst)
    assert most_confused(np.diag([3, 4]), ["a"]) == []
    # the report counts false positives and false negatives, and lists only intents that occur
    matrix = np.zeros((5, 5), np.int64)
    matrix[0, 0], matrix[1, 2], matrix[2, 2], matrix[3, 0], matrix[3, 2] = 9, 3, 1, 1, 1
    assert [shown_intents(matrix, n) for n in (1, 2, 3)] == [[2], [1, 2], [1, 2, 3]]
    assert shown_intents(matrix, 9) == [0, 1, 2, 3]


def test_of_equal_thresholds_the_one_that_rejects_least_is_chosen() -> None:
    # the out-of-scope utterance lies between two wrong ones: rejecting those costs nothing and gains nothing
    scores = np.array([[5.0, 0], [4.0, 0], [3.0, 0], [1.0, 0]], np.float32)
    labels = np.array([0, 1, 1, -1])
    found, figures = calibrate_rejection(scores, labels, measure="score")
    assert (found.threshold, figures.recall, figures.in_scope_accuracy) == (2.0, 1.0, pytest.approx(1 / 3))
    assert figures.to_dict() == {
        "n_in_scope": 3, "n_out_of_scope": 1, "in_scope_accuracy": 1 / 3, "recall": 1.0, "precision": 1.0,
        "accuracy": 0.5, "f1": 1.0,
    }  # fmt: skip
    # only a threshold above every score would help, so nothing is rejected
    found, figures = calibrate_rejection(scores, np.array([-1, 0, 0, 0]), measure="score", aim="accuracy")
    assert found.threshold == 1.0
    assert (figures.recall, figures.precision, figures.f1) == (0, 1, 0)


def test_the_more_informative_measure_is_chosen() -> None:
    """Once only the margin separates right from wrong, once only the score."""
    generator = np.random.Generator(np.random.PCG64(5))
    level, lead = generator.normal(size=(2, 60)) * [[20], [0.05]]
    labels = np.repeat([0, -1], 30)
    by_margin = np.stack([level, level - np.where(labels < 0, 0.2, 1.0) - abs(lead)], 1).astype(np.float32)
    found, figures = calibrate_rejection(by_margin, labels)
    assert found.measure in ("margin", "softmax")
    assert figures.accuracy == 1
    by_score = np.stack([np.where(labels < 0, 1.0, 5.0) + lead, np.zeros(60)], 1).astype(np.float32)
    by_score[:, 1] = by_score[:, 0] - 1 - generator.random(60)
    found, figures = calibrate_rejection(by_score, labels)
    assert (found.measure, figures.accuracy) == ("score", 1)


def test_predictions_are_probabilities_and_confidences(bi: Encoder) -> None:
    made = train_intents(IntentSplits(utterances(2)), bi, encoder_name="x", grid=GRID, max_epochs=4).classifier
    texts = ["my wifi is down", "the bill", "restart"]
    scores = made.scores(texts).astype(np.float64)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for measure in (None, "score", "margin", "softmax"):
        threshold = 0.0 if measure is None else float(np.median([confidence(-np.sort(-r), measure) for r in scores]))
        abstention = None if measure is None else Abstention(measure, threshold)
        for row, share, found in zip(scores, shares, replace(made, abstention=abstention).predict(texts), strict=True):
            order = np.argsort(-row)
            assert [name for name, _ in found.best] == [made.intents[i] for i in order[:3]]
            assert [value for _, value in found.best] == pytest.approx(share[order[:3]].tolist(), rel=1e-5)
            want = share.max() if measure is None else confidence(row[order], measure)
            assert found.confidence == pytest.approx(want, rel=1e-5)
            assert found.intent == (None if measure and want < threshold - 1e-6 else made.intents[order[0]])


def test_no_texts_have_no_predictions(models: dict[str, Path]) -> None:
    encoder = open_encoder(str(models["convert"]), device="cpu")
    made = train_intents(IntentSplits(utterances(2)), encoder, encoder_name="x", grid=GRID, max_epochs=1).classifier
    assert made.layer == "r"  # which has other dimensions than the final encoding
    assert made.predict([]) == []
    assert made.scores([]).shape == (0, 3)


def test_scores_thousands_apart_are_probabilities_too(bi: Encoder) -> None:
    made = train_intents(IntentSplits(utterances(2)), bi, encoder_name="x", grid=GRID, max_epochs=1).classifier
    with torch.no_grad():
        for parameter in made.head.parameters():
            parameter.mul_(1e4)
    scores = made.scores(["my wifi is down"])[0]
    assert np.ptp(scores) > 1e4  # exp overflows
    (found,) = made.predict(["my wifi is down"], k=len(made.intents))
    assert found.best[0] == (made.intents[int(scores.argmax())], pytest.approx(1.0))
    assert sum(share for _, share in found.best) == pytest.approx(1.0)
    assert made.intents == ("bill", "light", "wifi")


class Counting:
    """An Encoder with two vectors per text: its length, and a masked one."""

    fingerprint, dimension = "counting", 2

    def __init__(self) -> None:
        self.calls: list[int] = []

    def encode_contexts(self, contexts: list[Context]) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append(len(contexts))
        vectors = np.array([[[len(c.turns[-1]), len(c.turns)], [99, 99]] for c in contexts], np.float32)
        return vectors, np.tile([True, False], (len(contexts), 1))


def test_many_texts_are_encoded_in_parts_and_in_their_order(tmp_path: Path) -> None:
    encoder, seen = Counting(), []
    texts: list[str | Context] = ["x" * (i % 37) for i in range(1030)]
    found = encode(encoder, texts, cache=tmp_path, progress=lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    assert found.tolist() == [[i % 37, 1] for i in range(1030)]
    assert encoder.calls == [512, 512, 6]
    assert seen == [(512, 1030), (1024, 1030), (1030, 1030)]
    assert encode(encoder, [], cache=tmp_path).shape == (0, 2)  # type: ignore[arg-type]
    # turns and background are part of the cache's key
    for context in (Context(("a", "b")), Context(("ab",)), Context(("b",), ("a",)), Context(("b",))):
        assert encode(encoder, [context], cache=tmp_path).tolist() == [[len(context.turns[-1]), len(context.turns)]]  # type: ignore[arg-type]
    assert len(list(tmp_path.iterdir())) == 6


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


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    data = clusters(32, 1, spread=0.8)
    wet, dry = (
        fit_head(data, data, 3, HeadConfig(hidden_dim=16, dropout=p, lr=0.1), seed=7, max_epochs=1) for p in (0.6, 0.0)
    )
    assert not torch.equal(wet.head.hidden.weight, dry.head.hidden.weight)
    vectors = torch.from_numpy(data.vectors)
    assert torch.equal(wet.head(vectors), wet.head(vectors))
    assert not wet.head.training
    assert wet.head.dropout == 0.6


def test_impossible_sizes_are_refused_and_the_smallest_accepted() -> None:
    assert HeadConfig() == HeadConfig(hidden_dim=512, dropout=0.3, lr=0.1)
    assert HeadConfig(hidden_dim=1, dropout=0.0, lr=1e-9).hidden_dim == 1
    points = list(Grid(hidden_dim=(1, 2), dropout=(0.0, 0.5), lr=(0.1, 0.2)).points())
    assert [(p.hidden_dim, p.dropout, p.lr) for p in points] == [
        (h, d, lr) for h in (1, 2) for d in (0.0, 0.5) for lr in (0.1, 0.2)
    ]
    assert len(list(Grid().points())) == 6


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


def test_a_description_of_the_parts() -> None:
    splits = IntentSplits(
        utterances(1), (Utterance("what", None), Utterance("hi", "greet")), (Utterance("hi", "greet"),)
    )
    assert str(splits) == (
        "train 15 utterances of 3 intents; dev 2 utterances of 1 intents (1 out of scope); "
        "test 1 utterances of 1 intents"
    )


def test_an_interval_of_no_utterances_is_none(bi: Encoder) -> None:
    splits = IntentSplits((*utterances(), *outside()), test=outside())
    figures = train_intents(splits, bi, encoder_name="x", grid=GRID, max_epochs=3).figures
    assert (figures["judged_on"], figures["n_test"]) == ("test", 0)
    assert (figures["accuracy"], figures["accuracy_std"], figures["interval"]) == (0, None, [0, 0])


def test_rejection_figures_of_empty_groups() -> None:
    """Cases: no in-scope utterance, no out-of-scope one, no rejection, no utterance."""
    threshold = Abstention("score", 0.5)
    yes, no = [[0.9, 0.1]], [[0.2, 0.1]]
    for scores, labels, expected in (
        (yes + no, [-1, -1], (0.0, 0.5, 1.0, 0.5)),
        (yes + yes, [0, 1], (0.5, 0.0, 1.0, 0.5)),
        (no + no, [0, -1], (0.0, 1.0, 0.5, 0.5)),
    ):
        found = evaluate_rejection(np.array(scores, np.float32), np.array(labels), threshold)
        assert (found.in_scope_accuracy, found.recall, found.precision, found.accuracy) == expected
    nothing = evaluate_rejection(np.zeros((0, 2), np.float32), np.zeros(0, np.int64), threshold)
    assert (nothing.in_scope_accuracy, nothing.recall, nothing.precision, nothing.accuracy) == (0.0, 0.0, 1.0, 0.0)
