"""The papers' recipes have the papers' values, and each one trains a few steps on data in the published formats."""

import gzip
import json
import os
import random
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyrank.config.recipe import Recipe
from polyrank.data import import_examples, import_pool, write_examples
from polyrank.data.candidate_lists import draw_candidates
from polyrank.errors import DataError
from polyrank.evaluation import evaluate, summarise
from polyrank.loading.recipes import load_pretrain_recipe, load_recipe
from polyrank.records import Example
from polyrank.training import train
from polyrank.training.pretraining import pretrain
from processes import warm_commands

sys.path.insert(0, str(Path(__file__).parents[2] / "runs" / "papers"))

from groups import group_candidates
from published import needs, read_tables

PAPERS = Path(__file__).parents[2] / "runs" / "papers"
WORDS = ["wifi", "router", "light", "bill", "parcel", "password", "printer", "screen", "cable", "mouse"]


def value(recipe: Recipe, key: str) -> Any:
    found: Any = recipe
    for name in key.split("."):
        found = getattr(found, name)
    return found


ICLR = {
    "text.max_context_tokens": 360, "text.max_candidate_tokens": 72, "train.lr": 5e-5, "train.weight_decay": 0.01,
    "train.optimizer": "adamw", "train.train_layers": "all_but_embeddings", "train.schedule.kind": "plateau",
    "train.schedule.factor": 0.4, "train.schedule.patience": 0, "train.evaluate_per_epoch": 2, "train.loss": "mean",
}  # fmt: skip
IN_BATCH = {"train.batch_size": 256, "train.schedule.warmup_steps": 100, "train.method.kind": "in_batch",
            "train.negatives": None, "model.reduction": "first", "model.shared_towers": False}  # fmt: skip
TAO = {
    "text.max_context_tokens": 300, "text.max_candidate_tokens": 72, "train.lr": 3e-5, "train.weight_decay": 0.0,
    "train.optimizer": "adamw", "train.schedule.kind": "linear", "train.clip_norm": 10.0, "train.dropout": 0.1,
    "train.new_dropout": 0.1, "train.batch_size": 8, "train.negatives.n": 32, "train.negatives.sources": ("random",),
    "train.negatives.redraw": False, "text.turn_separator": "[EOT]", "text.close_last_turn": True,
    "text.share_pair_budget": False,
}  # fmt: skip
APART = {"model.kind": "bi", "model.reduction": "first", "model.equal_projections": False}
STATED: dict[str, dict[str, Any]] = {  # values stated in the papers
    "iclr-bi": {**ICLR, **IN_BATCH, "model.kind": "bi"},
    "iclr-poly": {**ICLR, **IN_BATCH, "model.kind": "poly", "model.codes": "learnt"},
    "iclr-cross": {
        **ICLR, "model.kind": "cross", "model.head": "linear", "train.batch_size": 16,
        "train.schedule.warmup_steps": 1000, "train.negatives.n": 15, "train.negatives.sources": ("random",),
        "train.negatives.redraw": True, "train.method.kind": "listwise", "text.share_pair_budget": False,
    },
    "convert": {
        "model.embedding_dim": 512, "model.attention_dim": 64, "model.ffn_dim": 2048, "model.n_heads": 1,
        "model.spans": (3, 5, 48, 48, 48, 48), "model.position_periods": (47, 11), "model.relative_bias": True,
        "model.reduction_heads": 2, "model.side_dim": 1024, "model.side_layers": 3, "model.side_skips": True,
        "model.output_dim": 512, "model.multi_context": True, "text.max_context_tokens": 60,
        "text.max_candidate_tokens": 60, "text.max_earlier_turns": 10, "text.min_count": 250, "text.n_buckets": 1000,
        "train.optimizer": "adadelta", "train.lr": 1.0, "train.schedule.kind": "cosine",
        "train.schedule.final_lr": 0.001, "train.weight_decay": 1e-5, "train.batch_size": 512,
        "train.clip_embeddings_norm": 1.0, "train.clip_norm": None, "train.loss": "sum",
        "train.method.smoothing": 0.2, "train.method.scale_steps": 10_000,
    },
    "tao": {**TAO, **APART, "train.method.kind": "mutual", "train.method.alpha": 1.0, "train.method.temperature": 3.0,
            "reranker.model.kind": "cross", "reranker.model.head": "mlp", "reranker.train.new_dropout": 0.1},
    "tao-bi": {**TAO, **APART, "train.method.kind": "listwise"},
    "tao-cross": {**TAO, "model.kind": "cross", "model.head": "mlp", "train.method.kind": "listwise"},
}  # fmt: skip


def fields_of(recipe: Recipe, keys: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value(recipe, key.rpartition(".")[0]).kind if key.endswith(".kind") else value(recipe, key) for key in keys
    }


@pytest.mark.parametrize("name", STATED)
def test_a_recipe_has_its_papers_values(name: str) -> None:
    recipe = load_recipe(PAPERS / f"{name}.toml")
    assert fields_of(recipe, STATED[name]) == STATED[name]


def test_pretraining_follows_section_4_1() -> None:
    recipe = load_pretrain_recipe(PAPERS / "iclr-pretrain.toml")
    steps, model = recipe.train, recipe.model
    assert (steps.lr, steps.betas, steps.weight_decay, steps.dropout) == (2e-4, (0.9, 0.98), 0.0, 0.1)
    assert (steps.batch_tokens, steps.objectives, steps.schedule.kind) == (32_000, "alternate", "inverse_sqrt")
    assert (model.layers, model.hidden, model.heads, model.ffn) == (12, 768, 12, 3072)  # type: ignore[union-attr]


def test_every_recipe_is_tested() -> None:
    tried = {*STATED, "convert-tune", "iclr-pretrain", "published"}  # published.toml is data
    assert {path.stem for path in PAPERS.glob("*.toml")} == tried
    for script in PAPERS.glob("*.sh"):
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


# data in the published formats


def packed(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic corpora in the formats that write_data.py reads."""
    folder, generator = tmp_path_factory.mktemp("shared"), random.Random(5)

    def text() -> str:
        return " ".join(generator.choices(WORDS, k=3))

    def lists(name: str, n: int, k: int) -> list[dict[str, Any]]:
        rows = []
        for i in range(n):
            facts = {"background": [text()]} if name == "convai2-valid" else {}
            row = {"id": f"{name}-{i}#1", "context": [text()], "candidates": [f"{text()} {j}" for j in range(k)]}
            rows.append({**row, "relevant": [i % k], **facts})
        return rows

    for name, k in (("ubuntu-irc", 100), ("star", 100), ("convai2-valid", 20), ("self-dialogue", 20)):
        for part in ("dev", "test"):
            packed(folder / name / f"{part}.jsonl.gz", lists(name, 12, k))
    pairs = [{"id": f"u{i}", "context": [text(), text()], "response": f"{text()} {i}"} for i in range(60)]
    packed(folder / "ubuntu-irc" / "train.jsonl.gz", pairs)
    packed(folder / "ubuntu-irc" / "pool.jsonl.gz", [{"id": f"p{i}", "text": f"{text()} {i}"} for i in range(30)])
    asked = [{"id": f"u{i}", "context": [text()], "relevant_ids": [f"p{i}"]} for i in range(12)]
    packed(folder / "ubuntu-irc" / "test.pool.jsonl.gz", asked)
    personas = []
    for dialogue in range(20):
        said: list[str] = []
        for number in range(3):
            said = [*said, text()]
            row = {"id": f"c-{dialogue}#{2 * number + 1}", "background": ["i like cats"], "context": said}
            personas.append({**row, "response": (reply := f"{text()} | {number}")})
            said = [*said, reply]
    packed(folder / "convai2-valid" / "train.jsonl.gz", personas)
    for name, speakers in (("star", ("user", "agent")), ("self-dialogue", ("a", "b"))):
        dialogues = [
            {"id": f"{name}{i}", "turns": [{"speaker": speakers[j % 2], "text": f"{text()} {i}"} for j in range(4)]}
            for i in range(40)
        ]
        packed(folder / name / "train.dialogues.jsonl.gz", dialogues)
    answers = [{"id": f"a{i}", "text": f"About {i}. {text().title()}. It is {text()}? Yes."} for i in range(400)]
    packed(folder / "medquad" / "answers.jsonl.gz", answers)
    asked = [{"id": f"q{i}", "context": [f"{text()}?"], "relevant_ids": [f"a{i}"]} for i in range(12)]
    for part in ("dev", "test"):
        packed(folder / "medquad" / f"{part}.pool.jsonl.gz", asked)
    answered = [{"id": f"t{i}", "context": [f"{text()}?"], "response": f"{text()} {i}"} for i in range(40)]
    packed(folder / "medquad" / "train.jsonl.gz", answered)
    (folder / "banking77").mkdir()
    for part in ("train", "test"):
        lines = [f"{text()},{WORDS[i % 4]}" for i in range(40)]
        (folder / "banking77" / f"{part}.csv").write_text("\n".join(["text,category", *lines]) + "\n", "utf-8")
    return folder


FORMATS = {
    "dstc7": "json",
    "dstc7-star": "json",
    "ubuntu-v2": "csv",
    "convai2": "txt",
    "wikipedia": "txt",
    "reddit": "json",
    "amazonqa": "json",
}


@pytest.fixture(scope="module")
def home(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the repository, with recipes, and with data as written by their commands."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(PAPERS, folder / "runs" / "papers")
    data = folder / "runs" / "work" / "papers" / "data"
    runpy.run_path(str(PAPERS / "write_data.py"))["main"](shared, data, [*FORMATS])
    for name, ending in FORMATS.items():
        importer = {"dstc7-star": "dstc7", "reddit": "pairs", "amazonqa": "pairs"}.get(name, name)
        for part in ("train", "valid", "test"):
            options: dict[str, Any] = {"every_turn": True} if part == "train" and name == "dstc7" else {}
            if (answers := data / name / f"{part}.answers.tsv").exists():
                options["answers"] = answers
            loaded = import_examples(importer, data / name / f"{part}.{ending}", **options)
            write_examples(data / name / f"{part}.jsonl", loaded.examples)
    return folder


def read(home: Path, name: str, part: str) -> list[dict[str, Any]]:
    file = home / "runs" / "work" / "papers" / "data" / name / f"{part}.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_written_corpora_are_imported_unchanged(home: Path, shared: Path) -> None:
    def original(path: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in gzip.decompress((shared / path).read_bytes()).splitlines()]

    def right(row: dict[str, Any]) -> str:
        answer = row["response"] if "response" in row else row["candidates"][row["relevant"][0]]
        return str(answer)

    for name, corpus, n in (("dstc7", "ubuntu-irc", 100), ("dstc7-star", "star", 100), ("ubuntu-v2", "ubuntu-irc", 10),
                            ("convai2", "convai2-valid", 20)):  # fmt: skip
        rows, were = read(home, name, "test"), original(f"{corpus}/test.jsonl.gz")
        assert [row["context"] for row in rows] == [row["context"] for row in were]
        assert [right(row) for row in rows] == [right(row) for row in were]
        assert {len(row["candidates"]) for row in rows} == {n}
        if n == 100:
            assert [row["candidates"] for row in rows] == [row["candidates"] for row in were]
    assert all(row["background"] for row in read(home, "convai2", "test"))
    assert len(read(home, "dstc7", "train")) == 2 * 60  # the earlier turn of each example is a response too
    assert len(read(home, "ubuntu-v2", "train")) == 60
    assert len(read(home, "dstc7-star", "train")) == 40
    own = read(home, "convai2", "train")
    first = [row["context"] for row in original("convai2-valid/train.jsonl.gz")[:3]]
    assert [row["context"] for row in own[:3]] == [[turn.replace(" |", "") for turn in turns] for turns in first]
    assert len(own) == 60
    assert len(read(home, "reddit", "train")) == 3 * 40
    assert [len(row["context"]) for row in read(home, "reddit", "train")][:3] == [1, 2, 3]
    articles = [read(home, "wikipedia", part) for part in ("train", "valid", "test")]
    assert list(map(len, articles)) == [20, 40, 40]
    assert [len(read(home, "amazonqa", part)) for part in ("train", "valid", "test")] == [40, 12, 12]
    whole = {row["text"] for row in original("medquad/answers.jsonl.gz")}
    assert all(right(row) in whole for row in read(home, "amazonqa", "test"))
    for row in [row for part in articles for row in part]:
        assert any(sorted(f"{row['context'][0]} {row['response']}".split()) == sorted(text.split()) for text in whole)


def test_the_pool_of_subtask_2(home: Path) -> None:
    data = home / "runs" / "work" / "papers" / "data" / "dstc7"
    assert import_pool(data / "pool.tsv", data / "candidates.jsonl") == 30
    loaded = import_examples("dstc7-pool", data / "pool.json", answers=data / "pool.answers.tsv")
    assert [example.relevant_ids for example in loaded.examples] == [(f"p{i}",) for i in range(12)]


def test_lists_for_the_first_examples_are_drawn_from_all() -> None:
    """1 of 10,001 for only some of the articles."""
    examples = [Example((f"q{i}",), (f"r{i}",), (0,), str(i)) for i in range(30)]
    assert draw_candidates(examples, 25, seed=4, limit=3) == draw_candidates(examples, 25, seed=4)[:3]
    further = [*(f"f{i}" for i in range(30)), "r0"]
    for example in draw_candidates(examples, 31, seed=4, others=further):
        assert {*example.candidates} - {example.response} <= {*further}


# every recipe starts

SMALL = ["train.max_steps=2", "train.batch_size=4", "data.max_valid=2", "text.max_context_tokens=40",
         "text.max_candidate_tokens=20"]  # fmt: skip
NAMES = [name for name in STATED if not name.startswith("convert")]


@pytest.mark.deep
@pytest.mark.parametrize("name", NAMES)
def test_recipes_start_and_run(name: str, home: Path, tiny_backbone: Path) -> None:
    backbone = [f"model.backbone={tiny_backbone}"]
    if name == "tao":
        backbone.append(f"reranker.backbone={tiny_backbone}")
    runs = train(load_recipe(home / "runs" / "papers" / f"{name}.toml", [*SMALL, *backbone]), device="cpu")
    test = read(home, "dstc7", "test")
    lists = [Example(tuple(r["context"]), tuple(r["candidates"]), tuple(r["relevant"]), r["id"]) for r in test[:2]]
    for run in runs:
        assert run.fit.n_steps == 2
        assert run.fit.best_step in (1, 2)
        figures = summarise(evaluate(run.load(device="cpu"), lists))
        assert figures["n_candidates"] == 100


OWN_WEIGHTS = [
    "train.optimizer=adamax",
    "train.weight_decay=0.0",
    "train.train_layers=all",
    "model.match_output_std=0.5",
]
NOTHING_NEW = ["train.new_lr=none", "train.decay_new=false"]
GIVEN = ["train.negatives.n=19", 'train.negatives.sources=["given", "random"]']
VARIANTS: dict[str, tuple[str, str, list[str]]] = {
    "first": ("iclr-poly", "convai2", ["model.codes=first", "model.n_codes=16", *NOTHING_NEW]),
    "last": ("iclr-poly", "ubuntu-v2", ["model.codes=last", "model.n_codes=4", *NOTHING_NEW]),
    "last_h1": ("iclr-poly", "dstc7-star", ["model.codes=last_h1", "model.n_codes=4", *NOTHING_NEW]),
    "given": ("iclr-cross", "convai2", GIVEN),
    "own weights": ("iclr-bi", "wikipedia", [*OWN_WEIGHTS, "data.valid_candidates=3"]),
}


@pytest.mark.deep
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_run_on_other_tasks(variant: str, home: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    name, task, changes = VARIANTS[variant]
    data = home / "runs" / "work" / "papers" / "data" / task
    sets = [f"data.{part}={data / part}.jsonl" for part in ("train", "valid")]
    places = [f"model.backbone={tiny_backbone}", f"output={tmp_path / 'run'}", *sets]
    (run,) = train(load_recipe(home / "runs" / "papers" / f"{name}.toml", [*SMALL, *places, *changes]), device="cpu")
    assert run.fit.n_steps == 2


@pytest.mark.deep
@pytest.mark.slow
def test_convert_trains_at_full_size_and_is_tuned(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    small = ["train.max_steps=1", "train.batch_size=4", "data.max_valid=2", "data.max_train=40", "text.min_count=3"]
    (run,) = train(load_recipe("runs/papers/convert.toml", [*small, "train.checkpoint_steps=none"]), device="cpu")
    assert sum(path.stat().st_size for path in run.model.glob("*.safetensors")) > 20_000_000  # layers in 16 bits
    tuned = ["train.max_steps=1", "train.batch_size=4", "data.max_valid=2", "data.max_train=40"]
    recipe = load_recipe("runs/papers/convert-tune.toml", [*tuned, "train.checkpoint_steps=none"])
    stated = {
        "train.lr": 0.1, "train.schedule.final_lr": 0.0001, "train.batch_size": 4, "train.dropout": 0.2,
        "train.optimizer": "adadelta", "text.number_prefixes": True, "model.multi_context": True,
        "model.spans": (3, 5, 48, 48, 48, 48), "train.method.scale_steps": 0,
    }  # fmt: skip
    assert fields_of(recipe, stated) == stated
    assert load_recipe("runs/papers/convert-tune.toml").train.max_steps == 60_000
    assert train(recipe, device="cpu")[0].fit.n_steps == 1


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.parametrize("script", ["iclr", "convert", "tao"])
def test_a_script_prints_its_tables_from_files_in_the_published_formats(
    script: str, shared: Path, tiny_backbone: Path, tmp_path: Path
) -> None:
    """SMALL=1, on files from write_data.py; DSTC7's answers are in separate files."""
    from transformers import BertConfig, BertModel  # takes seconds

    shutil.copytree(tiny_backbone, backbone := tmp_path / "backbone")
    longer = BertConfig.from_pretrained(backbone, max_position_embeddings=512)  # for the long contexts of runs/timing
    BertModel(longer).save_pretrained(backbone)
    shutil.copytree(PAPERS.parent, tmp_path / "runs", ignore=shutil.ignore_patterns("work", "results"))
    settings = {"SMALL": "1", "DATA": str(shared), "BACKBONE": str(backbone)}
    with warm_commands() as path:  # each script starts dozens of processes
        done = subprocess.run(
            ["bash", f"runs/papers/{script}.sh"], cwd=tmp_path, env={**os.environ, **settings, "PATH": path},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for name, table in read_tables().items():
        if not name.startswith(script):
            continue
        assert f"## {table['title']}" in done.stdout
        known = [list((tmp_path / "runs/work/papers/small").glob(file)) for file in needs(table)]
        assert any(known)
        if script == "tao" or name in ("convert-3", "convert-4", "convert-5"):
            assert all(known), name
    drawn = {path.name for path in (tmp_path / "runs/work/papers/small").glob("*.svg")}
    assert drawn == ({f"tao-figure-{number}.svg" for number in (2, 3, 4)} if script == "tao" else set())


@pytest.mark.slow
def test_pretraining_starts(home: Path) -> None:
    small = ["train.steps=2", "train.batch_tokens=400", "train.micro_batch_tokens=200", "vocabulary.size=80",
             "model.layers=1", "model.hidden=16", "model.heads=2", "model.ffn=32", "text.max_tokens=40",
             "text.max_response_tokens=12", "train.schedule.warmup_steps=1"]  # fmt: skip
    recipe = load_pretrain_recipe(home / "runs" / "papers" / "iclr-pretrain.toml", small)
    pretrain(recipe, device="cpu")
    assert (home / "runs" / "work" / "papers" / "iclr" / "pretrain" / "model" / "model.safetensors").exists()


def test_random_groups_share_their_responses() -> None:
    """Only whole groups, other groups with another seed, copies of the right text are right."""
    many = [Example((f"hi {i}",), (f"reply {i % 240}", "no"), (0,), str(i)) for i in range(250)]
    first, again, other = (group_candidates(many, 100, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len({example.id for example in first}) == 200
    for group in (first[:100], first[100:]):
        shared = tuple(many[int(example.id)].response for example in group)
        assert all(example.candidates == shared for example in group)
        assert [example.relevant for example in group] == [(i,) for i in range(100)]
    with pytest.raises(DataError, match="99 examples with a right answer cannot fill a group of 100"):
        group_candidates(many[:99], 100)
