"""Examples on disk equal those in memory, and a training that streams them equals one in memory."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import polyrank
from convert_models import make
from polyrank.config.models import BiConfig, ConvertConfig, ConvertText, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.config.train import NegativesConfig
from polyrank.data import mapped_examples, read_examples, write_examples
from polyrank.data.mapped_examples import StoredExamples, StoredResponses, open_stored
from polyrank.errors import ConfigError, DataError
from polyrank.loading.data import resolve_data
from polyrank.loading.recipes import NetworkPlan
from polyrank.negatives.hard import collect_right_answers
from polyrank.negatives.random import GivenNegatives, RandomNegatives, right_answers, text_key
from polyrank.records import Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.text import BackboneTexts, ConvertTexts, Texts, learn_subwords, load_subwords
from polyrank.training import InBatchStep, ListwiseStep, ranker, stored_tokens, train
from polyrank.training.data import load_data
from polyrank.training.inputs import in_batch
from polyrank.training.methods import make_negatives, make_step
from polyrank.training.stored_tokens import open_tokens
from train_settings import SHORT, toy_recipe, train_config

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
turns = st.lists(words, min_size=1, max_size=4).map(tuple)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    candidates = draw(st.lists(words, min_size=1, max_size=4).map(tuple))
    right = draw(st.sets(st.integers(0, len(candidates) - 1), max_size=2))
    return Example(draw(turns), candidates, tuple(sorted(right)), draw(words.filter(bool)), draw(turns))


def stored(path: Path, **options: Any) -> StoredExamples:
    return open_stored(path, path.parent / "cache", **options)


def right_first(example: Example) -> Example:
    right = [example.candidates[i] for i in example.relevant]
    wrong = [text for i, text in enumerate(example.candidates) if i not in example.relevant]
    return replace(example, candidates=(*right, *wrong), relevant=tuple(range(len(right))))


def test_an_empty_file_is_refused_like_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.touch()
    said = []
    for read in (stored, read_examples):
        with pytest.raises(DataError) as caught:
            read(path)
        said.append(str(caught.value))
    assert said == [f"{path}: holds no rows; give a file with at least one"] * 2


@pytest.mark.deep
@given(st.lists(examples(), min_size=1, max_size=8), st.sampled_from([1, 2, 3, 1000]), st.booleans())
def test_stored_examples_equal_the_read_ones(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Example], n_at_a_time: int, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped_examples, "ROWS", n_at_a_time)
        if collide:  # of all contexts, whose texts decide then
            patch.setattr(mapped_examples, "_key", lambda context: 7)
        check_stored_examples(tmp_path_factory.mktemp("stored") / "train.jsonl", rows)


def check_stored_examples(path: Path, rows: list[Example]) -> None:
    write_examples(path, rows)
    wanted = [right_first(example) for example in rows if example.relevant]
    if not wanted:
        with pytest.raises(DataError, match="no example has the text of a right answer"):
            stored(path)
        return
    found = stored(path)
    assert list(found) == wanted
    assert (found[-1], found[1:]) == (wanted[-1], wanted[1:])
    sizes = [sum(len(text.encode()) for text in (*each.background, *each.context)) for each in wanted]
    assert found.sizes(np.arange(len(wanted))).tolist() == sizes
    assert {context: found.rights[context] for context in found.rights} == collect_right_answers(wanted)
    assert Context("no such context") not in found.rights
    for some in (slice(None), slice(None, None, -2)):
        part = found.choose(np.arange(len(wanted))[some])
        assert list(part) == wanted[some]
        assert part.sizes(np.arange(len(part))).tolist() == sizes[some]
        assert part.repeats().tolist() == found.repeats()[some].tolist()
        assert part.n_given == sum(len(each.candidates) > len(each.relevant) for each in wanted[some])
    assert found.n_given == found.choose(np.arange(len(wanted))).n_given
    assert list(StoredResponses(found)) == [each.response for each in wanted]
    with pytest.raises(IndexError):
        found[len(wanted)]


def test_stored_texts_keep_their_white_space(tmp_path: Path) -> None:
    texts = ["hi ", " hi", "hi\n", "\t", " ", "\u00a0hi\u2003", "h  i", ""]
    rows = [Example((a, b), (b, a, "no "), (0,), f" {n} ", (a,)) for n, (a, b) in enumerate(permutations(texts, 2))]
    check_stored_examples(tmp_path / "train.jsonl", rows)


DIALOGUES: list[dict[str, Any]] = [
    {"id": "a", "turns": [{"speaker": s, "text": f"{s} {i}"} for i, s in enumerate(["customer", "agent", "agent"])]},
    {"turns": ["hi", "hello", "my wifi is down", "restart it"], "background": ["wifi"]},
    {"turns": ["alone"]},
    {"turns": ["a", "b"]},
]  # fmt: skip


@pytest.mark.parametrize("speaker", [None, "agent"])
def test_dialogues_store_each_turn_once(tmp_path: Path, speaker: str | None) -> None:
    rows = DIALOGUES[:1] if speaker else DIALOGUES
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    found = stored(path, kind="dialogues", speaker=speaker)
    assert list(found) == read_examples(path, kind="dialogues", speaker=speaker).examples
    assert found.choose(np.arange(1)).n_given == 0
    (texts,) = (tmp_path / "cache").glob("*/texts.bin")
    assert texts.read_bytes().count(b"customer 0") == 1
    part = found.choose(np.array([1, 0])).choose(np.array([1]))
    assert list(part) == [found[0]]
    assert part.sizes(np.array([0])).tolist() == found.sizes(np.array([0])).tolist()


@pytest.mark.deep
def test_files_of_a_folder_form_one_set_and_are_stored_once(tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    polars = pytest.importorskip("polars")
    rows = [{"context": [f"c{i}"], "response": f"r{i}"} for i in range(6)]
    polars.DataFrame(rows[:2]).write_parquet(folder / "part-0.parquet")
    polars.DataFrame(rows[2:4]).write_parquet(folder / "part-1.parquet")
    (folder / "part-2.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[4:]), "utf-8")
    (folder / "README.md").write_text("about them", "utf-8")
    said: list[str] = []
    found = stored(folder, notify=said.append)
    wanted = list(found)
    assert [example.response for example in wanted] == [f"r{i}" for i in range(6)]
    assert [file.path.name for file in resolve_data(folder / "part-*.parquet")] == ["part-0.parquet", "part-1.parquet"]
    (made,) = (tmp_path / "cache").iterdir()
    before = (made / "texts.bin").stat().st_mtime_ns
    assert list(stored(folder)) == wanted
    assert (made / "texts.bin").stat().st_mtime_ns == before
    assert len(stored(folder / "part-*.parquet")) == 4  # part of another folder
    last = (folder / "part-2.jsonl").read_text("utf-8")
    (folder / "part-2.jsonl").write_text(last.replace("r5", "r6"), "utf-8")
    assert [example.response for example in stored(folder)] == ["r0", "r1", "r2", "r3", "r4", "r6"]
    (folder / "part-2.jsonl").write_text(last, "utf-8")
    with (made / "texts.bin").open("r+b") as stream:
        stream.write(b"X")
    assert list(stored(folder, notify=said.append)) == wanted
    assert any("is damaged" in line and "writes it again" in line for line in said)
    with pytest.raises(DataError, match="matches no data file"):
        resolve_data(tmp_path / "none-*.jsonl")


def test_each_choice_of_one_file_has_its_own_examples(tmp_path: Path) -> None:
    said = [{"speaker": who, "text": f"{who} {i}"} for i, who in enumerate(["customer", "agent"] * 3)]
    write_rows(tmp_path / "dialogues.jsonl", [{"turns": said}])
    both = {"context": ["a"], "response": "b", "candidates": ["b", "c"], "relevant": [0]}
    write_rows(tmp_path / "lists.jsonl", [both])
    choices: list[tuple[str, dict[str, Any]]] = [
        *(("dialogues", {"speaker": speaker}) for speaker in (None, "agent", "customer", "agent")),
        *(("lists", {"kind": kind}) for kind in ("pairs", "candidates", "pairs", None)),
    ]
    for name, options in choices:
        path = tmp_path / f"{name}.jsonl"
        assert list(stored(path, **options)) == read_examples(path, **options).examples, options


def test_bad_rows_are_an_error_or_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"context": "a", "response": "b"}\n{"context": 3}\n', "utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl:2:"):
        stored(path)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").iterdir())
    said: list[str] = []
    assert len(stored(path, skip_bad=True, notify=said.append)) == 1
    assert any("1 bad row left out" in line for line in said)
    with pytest.raises(DataError, match=r"train\.jsonl:2:"):  # what another call skipped is not skipped
        stored(path)


def test_negatives_from_a_pool_with_duplicates_are_distinct() -> None:
    negatives = RandomNegatives(["a"] * 50 + ["b", "c"], 3, seed=1)
    assert sorted(negatives(0, Example(("x",), ("y",), (0,)), 0)) == ["a", "b", "c"]
    assert sorted(negatives(0, Example(("x",), ("a",), (0,)), 0)) == ["b", "c"]


def test_too_few_distinct_responses_on_disk_are_refused_like_in_memory(tmp_path: Path) -> None:
    """Else every list would be drawn from all responses, in search of one more."""
    rows = [Example((f"question {i}",), (f"canned {i % 4}",), (0,)) for i in range(40)]
    write_examples(tmp_path / "train.jsonl", rows)
    for data in (rows, stored(tmp_path / "train.jsonl")):
        with pytest.raises(DataError, match="4 distinct responses are too few to draw 4 negatives"):
            make_negatives([], NegativesConfig(n=4), data, seed=1, folder=tmp_path)
        assert len(make_negatives([], NegativesConfig(n=3), data, seed=1, folder=tmp_path)(0, data[0], 0)) == 3


def test_random_negatives_are_of_a_pool_of_so_many_distinct_responses(tmp_path: Path) -> None:
    rows = [Example((f"question {i}",), (f"answer {i}",), (0,)) for i in range(40)]
    write_examples(tmp_path / "train.jsonl", rows)
    for data in (rows, stored(tmp_path / "train.jsonl")):
        for n_pool in (20, 39, 40, 41):
            negatives = make_negatives([], NegativesConfig(n=9), data, seed=1, folder=tmp_path, n_pool=n_pool)
            drawn = [negatives(place, example, 0) for place, example in enumerate(data)]
            assert len({text for texts in drawn for text in texts}) == min(n_pool, 40)


def recipe(task: dict[str, Path], output: Path, **changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "batch_size": 8, "epochs": 1, "lr": 2e-3, "warmup_steps": 2, "schedule": "linear", "train_layers": "all",
        "precision": "fp32", "dropout": 0.0, "length_window": 1, **changes,
    }  # fmt: skip
    return toy_recipe(task, output, BiConfig(reduction="mean", shared_towers=True), **values)


def curve(run: Path) -> list[Any]:
    records = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    return [(record["step"], record.get("loss"), record.get("valid")) for record in records]


@pytest.mark.deep
@pytest.mark.parametrize("method", [{}, {"method": "listwise", "n_negatives": 3}])
def test_a_training_from_disk_equals_one_from_memory(
    method: dict[str, Any], tiny_backbone: Path, task: dict[str, Path], tmp_path: Path
) -> None:
    memory = recipe(task, tmp_path / "memory", **method)
    memory = replace(memory, model=replace(memory.model, backbone=str(tiny_backbone)))  # type: ignore[arg-type]
    disk = replace(memory, data=replace(memory.data, cache=str(tmp_path / "cache")), output=str(tmp_path / "disk"))
    train(memory)
    train(disk)
    first, second = curve(tmp_path / "memory"), curve(tmp_path / "disk")
    if method:  # memory draws random negatives from distinct responses, disk from all
        assert first != second
        again = replace(disk, output=str(tmp_path / "again"))
        train(again)  # from the current folder
        assert curve(tmp_path / "again") == second
        return
    assert first == second
    half = replace(disk, data=replace(disk.data, max_train=12), output=str(tmp_path / "half"))
    plain = replace(half, data=replace(half.data, cache=None), output=str(tmp_path / "plain"))
    train(half)
    train(plain)
    assert curve(tmp_path / "half") == curve(tmp_path / "plain")


TINY = ConvertConfig(
    embedding_dim=16, attention_dim=8, ffn_dim=32, side_dim=32, output_dim=16, spans=(3,), position_periods=(7, 3)
)


@pytest.mark.deep
def test_a_vocabulary_is_learned_from_disk(task: dict[str, Path], tmp_path: Path) -> None:
    text = ConvertText(min_count=1, n_buckets=10)
    settings = train_config(method="convert", batch_size=8, epochs=1, length_window=1, lr=0.1, train_layers="all")
    data = DataConfig(train=str(task["train"]))
    runs = [
        Recipe(model=TINY, text=text, data=data, train=settings, output=str(tmp_path / "memory")),
        Recipe(
            model=TINY,
            text=text,
            data=replace(data, cache=str(tmp_path / "cache")),
            train=settings,
            output=str(tmp_path / "disk"),
        ),
    ]
    for run in runs:
        train(run)
    assert curve(tmp_path / "memory") == curve(tmp_path / "disk")


@pytest.mark.parametrize("repeats", [False, True])
def test_a_vocabulary_is_learned_from_evenly_spaced_examples(
    repeats: bool, task: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranker, "MAX_WITH_REPEATS" if repeats else "MAX_VOCABULARY_EXAMPLES", 2)
    text = ConvertText(min_count=1, n_buckets=10, count_repeats=repeats)
    settings = train_config(method="convert", batch_size=8, epochs=1, length_window=1, lr=0.1, train_layers="all")
    data = DataConfig(train=str(task["train"]), cache=str(tmp_path / "cache"))
    run = train(Recipe(model=TINY, text=text, data=data, train=settings, output=str(tmp_path / "run")))[0]
    ends = [read_examples(task["train"]).examples[place] for place in (0, -1)]
    learned = learn_subwords([text for e in ends for text in (*e.context, e.response or "")], min_count=1, n_buckets=10)
    scorer = run.load(device="cpu")
    assert isinstance(scorer, EncoderScorer)
    assert isinstance(scorer.texts, ConvertTexts)
    assert {*scorer.texts.subwords.subwords} == {*learned.subwords}


def test_settings_unsupported_on_disk_are_refused(tiny_backbone: Path, task: dict[str, Path], tmp_path: Path) -> None:
    wanted: dict[str, Any] = {
        "method": "listwise",
        "n_negatives": 2,
        "negatives.sources": ["mined"],
        "remine_epochs": 1,
    }
    mined = recipe(task, tmp_path / "run", **wanted)
    mined = replace(mined, data=replace(mined.data, cache=str(tmp_path / "cache")))
    mined = replace(mined, model=replace(mined.model, backbone=str(tiny_backbone)))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mining needs the examples in memory"):
        train(mined)
    nothing = replace(mined, data=replace(mined.data, train=None))
    with pytest.raises(ConfigError, match=r"set data\.train"):
        polyrank.train(nothing)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("", "folder"),
        ("train*.jsonl", "pattern"),
        ("train?1].jsonl", "pattern"),
        ("train[[]1].jsonl", "pattern"),
    ],
)
def test_many_files_without_a_folder_for_examples_are_refused(
    source: str, what: str, task: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "train[1].jsonl").write_bytes(task["train"].read_bytes())
    with pytest.raises(ConfigError, match=f"is a {what}, whose examples are stored on disk; set data.cache"):
        load_data(DataConfig(train=str(tmp_path / source)))
    assert load_data(DataConfig(train=str(tmp_path / "train[1].jsonl")))[0]  # the name of a file, not a pattern


# tokens


def convert_texts() -> ConvertTexts:
    return make(multi_context=True)[1]


@pytest.fixture(params=["backbone", "prefixes", "convert"])
def texts(request: pytest.FixtureRequest, tiny_backbone: Path) -> Texts:
    subwords = load_subwords(tiny_backbone)
    plain = BackboneTexts(subwords, TextPolicy(max_context_tokens=9, max_candidate_tokens=5), 512)
    cut = TextPolicy(max_context_tokens=12, max_candidate_tokens=4, speaker_prefixes=("a ", "b "), background="after")
    made: dict[str, Callable[[], Texts]] = {
        "backbone": lambda: plain,
        "prefixes": lambda: BackboneTexts(subwords, cut, 512),
        "convert": convert_texts,
    }
    return made[request.param]()


ANSWERED = [
    {"context": ["my wifi is down", "since when"], "response": "restart it", "background": ["a customer"]},
    {"context": ["my wifi is down", "since when"], "response": "today", "background": ["a customer"]},
    {"context": ["my wifi is down", "since when"], "response": "today"},
    {"context": ["hello"], "response": "my wifi is down since this morning"},
    {"context": ["hello", ""], "candidates": ["no", "hi", "is it"], "relevant": [1, 2]},
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


@pytest.mark.parametrize("n_at_a_time", [1, 3, stored_tokens.EXAMPLES])
def test_stored_tokens_equal_those_of_the_policy(
    n_at_a_time: int, texts: Texts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_tokens, "EXAMPLES", n_at_a_time)
    path = tmp_path / "train.jsonl"
    write_rows(path, [row for row in ANSWERED if "response" in row])
    for data in ((found := stored(path)), found.choose(np.array([2, 0]))):
        tokens = open_tokens(data, texts)
        everything = range(len(data))
        assert [row.tolist() for row in tokens.contexts(everything)] == [texts.context_ids(e.query) for e in data]
        assert [row.tolist() for row in tokens.responses(everything)] == [
            texts.candidate_ids(e.candidates[0]) for e in data
        ]
    assert len([*(tmp_path / "cache").glob("tokens-*")]) == 2


@pytest.mark.parametrize("n_at_a_time", [1, 2, 3, mapped_examples.MANY])
def test_all_right_answers_are_known_from_disk(
    n_at_a_time: int, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_examples, "MANY", n_at_a_time)
    monkeypatch.setattr(mapped_examples, "ROWS", n_at_a_time)
    monkeypatch.setattr(stored_tokens, "EXAMPLES", n_at_a_time)
    texts = BackboneTexts(load_subwords(tiny_backbone), TextPolicy(), 512)
    for name, rows in (("pairs", ANSWERED[:4]), ("candidates", ANSWERED[4:])):
        write_rows(tmp_path / f"{name}.jsonl", rows)
        data = stored(tmp_path / f"{name}.jsonl")
        assert [*data] == [right_first(example) for example in read_examples(tmp_path / f"{name}.jsonl").examples]
        tokens, rights = open_tokens(data, texts), collect_right_answers([*data])
        batch = [*enumerate(data)]
        memory = in_batch(batch, ["is it", "today"], texts=texts, rights=rights)
        disk = in_batch(batch, ["is it", "today"], texts=texts, stored=tokens, rights=rights)
        assert disk.allowed.tolist() == memory.allowed.tolist()
        assert disk.candidates.tokens.ids.tolist() == memory.candidates.tokens.ids.tolist()
        assert disk.contexts.tokens.ids.tolist() == memory.contexts.tokens.ids.tolist()
        for chosen in (data, data.choose(np.arange(len(data))[::-1])):
            known, asked = open_tokens(chosen, texts), [example.query for example in data]
            for row, example in enumerate(chosen):
                keys = sorted(map(text_key, right_answers(example, rights)))
                assert known.rights(row) in ((keys,) if asked.count(example.query) > 1 else (keys, []))
        for row, example in enumerate(data):
            right = right_answers(example, rights)
            assert memory.allowed[row].tolist() == [text not in right for text in memory.columns]


def test_a_step_tokenizes_no_text_again_whose_tokens_are_stored(tiny_backbone: Path, tmp_path: Path) -> None:
    """Neither contexts nor, if the batch shares them, responses. Candidates of lists are tokenized."""
    write_rows(tmp_path / "train.jsonl", ANSWERED[:4])
    data, texts = stored(tmp_path / "train.jsonl"), BackboneTexts(load_subwords(tiny_backbone), TextPolicy(), 512)
    tokens, rows, device = open_tokens(data, texts), [*enumerate(data)], torch.device("cpu")
    contexts: Any = SimpleNamespace(subwords=texts.subwords)
    candidates: Any = SimpleNamespace(subwords=texts.subwords, candidate_ids=texts.candidate_ids)
    model: Any = None
    batch = InBatchStep(model, contexts, device, rights=collect_right_answers(data), stored=tokens).prepare(rows, 0)
    lists = ListwiseStep(model, candidates, device, GivenNegatives(2, 1), stored=tokens).prepare(rows, 0)
    for found in (batch.contexts, lists.inputs):
        assert found.tokens.ids.tolist() == texts.contexts([example.query for example in data]).ids.tolist()


@pytest.mark.parametrize("method", ["in_batch", "listwise"])
def test_a_training_from_disk_uses_the_stored_tokens(method: str, tiny_backbone: Path, tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ANSWERED[:4])
    data, settings = stored(tmp_path / "train.jsonl"), train_config(method=method, batch_size=4, n_negatives=1)
    config = BiConfig(backbone=str(tiny_backbone))
    network = NetworkPlan(name="", model=config, text=SHORT, train=settings, start=None)
    device = torch.device("cpu")
    for examples, from_disk in ((data, True), ([*data], False)):
        made = ranker.new_ranker(network, examples, precision="fp32", seed=1, device=device)
        step = make_step([made], settings, examples, device=device, seed=1, folder=tmp_path)
        assert isinstance(step, InBatchStep | ListwiseStep)
        assert (step.stored is not None) == from_disk


def test_no_process_receives_the_tokens_of_another(
    tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(path, ANSWERED[:4])
    data, texts = stored(path), BackboneTexts(load_subwords(tiny_backbone), TextPolicy(), 512)
    sent: list[object] = []  # the result of rank 0's work
    monkeypatch.setattr("polyrank.devices.distributed.on_rank_zero", lambda work: sent.append(work()))
    for _ in range(2):  # written, then opened
        assert len(open_tokens(data, texts).contexts(range(4))) == 4
    assert sent == [None, None]


def test_tokens_are_written_once_for_a_policy_and_again_if_damaged(tiny_backbone: Path, tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_rows(path, ANSWERED[:4])
    data, subwords, said = stored(path), load_subwords(tiny_backbone), list[str]()
    texts = BackboneTexts(subwords, TextPolicy(), 512)
    before = [row.tolist() for row in open_tokens(data, texts, said.append).contexts(range(4))]
    open_tokens(data, texts, said.append)
    (folder,) = (tmp_path / "cache").glob("tokens-*")
    assert said == [f"writing the tokens of 4 examples to {folder}"]
    others = [BackboneTexts(subwords, TextPolicy(max_context_tokens=8), 512), convert_texts()]
    for other in others:
        open_tokens(data, other, said.append)
    assert len(said) == 3
    assert len({texts.key, *(other.key for other in others)}) == 3
    for file in (tmp_path / "cache").glob("tokens-*/contexts.bin"):
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    after = open_tokens(data, texts, said.append).contexts(range(4))
    assert [row.tolist() for row in after] == before
    assert "is damaged" in said[3]
