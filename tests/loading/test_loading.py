"""Names and paths are resolved to references once, before any file is opened."""

import gc
import gzip
import json
import shutil
import socket
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import polyrank.evaluation.models as models_module
from polyrank.cli import arguments
from polyrank.config.models import MODEL, BiConfig, CrossConfig, TextPolicy
from polyrank.config.runs import seeds_inside
from polyrank.data import read_examples
from polyrank.errors import ArtifactError, ConfigError, DataError, OfflineError, UsageError
from polyrank.evaluation import evaluate, evaluate_models, read_task, summarise
from polyrank.loading import Lengths, resolve_backbone, resolve_contestants, resolve_data, resolve_model
from polyrank.loading.backbones import BackboneRef
from polyrank.loading.folders import models_inside, stamp
from polyrank.loading.hub import connect_to_hub, hub_folder
from polyrank.loading.models import (
    absolute_name,
    check_apart,
    model_folder,
    model_is_path,
    moved_name,
    portable_name,
    resolved_name,
)
from polyrank.loading.recipes import _start, load_recipe, resolve_recipe
from polyrank.loading.runs import resolve_runs, unfinished_seeds
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Context, Example
from polyrank.scorers.lexical import corpus_of
from polyrank.scorers.open import load, load_encoder
from polyrank.scorers.ranker import Ranker
from polyrank.scorers.terms.counts import Counts
from polyrank.scorers.terms.encoder import EncoderTerm
from polyrank.scorers.terms.hubs import Hubs
from polyrank.serving.served import Served
from polyrank.storage.document import read_document, seal


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("offline")
def test_a_bare_hub_name_is_announced_before_anything_is_fetched(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OfflineError, match="models/support is not a local folder"):
        resolve_model("models/support")
    assert capsys.readouterr().err == ("models/support is not a local folder; looking it up on the Hugging Face Hub\n")
    with pytest.raises(OfflineError):
        resolve_model("hf:models/support")
    assert capsys.readouterr().err == ""


def test_the_length_of_vectors_is_a_part_of_a_name(tmp_path: Path, tiny_backbone: Path) -> None:
    (tmp_path / "model").mkdir()
    name = f"untuned:{tmp_path / 'model'}#truncate_dim=64"
    assert (resolve_model(name).truncate_dim, resolve_model(name).backbone) == (64, str(tmp_path / "model"))
    assert resolve_model(name).name == name  # with which a ranker or an index stores it
    assert portable_name(name, tmp_path / "ranker") == "untuned:../model#truncate_dim=64"
    assert resolved_name("untuned:../model#truncate_dim=64", tmp_path / "ranker") == absolute_name(name) == name
    assert absolute_name("owner/model#truncate_dim=64") == "hf:owner/model#truncate_dim=64"
    for wrong, why in (
        ("untuned:embedded#truncate_dim=0", "cuts vectors to '0'"),
        ("bm25#truncate_dim=4", "no vectors"),
    ):
        with pytest.raises(UsageError, match=why):
            resolve_model(wrong)
    with pytest.raises(UsageError, match=r"truncate_dim = \d+ is above the model's \d+ dimensions"):
        load(f"untuned:{tiny_backbone}", truncate_dim=400)
    with pytest.raises(UsageError, match=r"the vectors of .* cannot be cut"):
        load("shipped:convert", truncate_dim=64)


@pytest.mark.usefixtures("offline")
def test_a_download_that_fails_names_its_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from polyrank.loading import hub

    def snapshot_download(*_: object, local_files_only: bool = False, **others: object) -> str:
        raise FileNotFoundError if local_files_only else RuntimeError("the connection was reset")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "connect_to_hub", lambda: None)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(OfflineError, match=r"^cannot download hf:me/support from the Hub \(RuntimeError\); "):
        hub.hub_folder("hf:me/support")


@pytest.mark.usefixtures("offline")
def test_a_downloaded_model_is_found_by_the_name_of_its_revision(tmp_path: Path) -> None:
    copy = tmp_path / "hub" / "models--me--support"
    (copy / "refs").mkdir(parents=True)
    commits = {"main": "a" * 40, "v1": "b" * 40, "v2": "c" * 40}
    for name, commit in commits.items():
        (copy / "snapshots" / commit).mkdir(parents=True)
        (copy / "refs" / name).write_text(commit)
        (copy / "snapshots" / commit / "config.json").touch()  # alone: as other programs leave it
        with pytest.raises(OfflineError, match=f"hf:me/support@{name} .* has not been downloaded"):
            hub_folder(f"hf:me/support@{name}")
        (copy / "snapshots" / commit / "model.safetensors").touch()
    for name, commit in commits.items():
        for revision in (name, commit):
            assert hub_folder(f"hf:me/support@{revision}") == copy / "snapshots" / commit
    assert hub_folder("hf:me/support") == copy / "snapshots" / commits["main"]
    with pytest.raises(OfflineError, match="hf:me/support@v3 is not a local folder and has not been downloaded"):
        hub_folder("hf:me/support@v3")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        *((value, "and HF_HUB_OFFLINE is set") for value in ("1", "on", "YES", "True")),
        *((value, "and the Hub cannot be reached") for value in ("", "0", "no", "FALSE")),
    ],
)
def test_a_missing_model_names_why_it_is_not_downloaded(
    value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("polyrank.loading.hub.getproxies", dict)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # but not listening
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(OfflineError, match=f"^hf:me/support is not a local folder .* downloaded, {reason}"):
            hub_folder("hf:me/support")


@pytest.mark.parametrize("scheme", ["http://", ""])
@pytest.mark.parametrize("variable", ["https_proxy", "all_proxy"])
def test_behind_a_proxy_the_hub_need_not_be_reachable_directly(
    variable: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    for name in ("https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        with pytest.raises(socket.gaierror):
            connect_to_hub()
        monkeypatch.setenv(variable, f"{scheme}127.0.0.1:{proxy.getsockname()[1]}")
        connect_to_hub()
        monkeypatch.setenv("no_proxy", "hub.invalid")
        with pytest.raises(socket.gaierror):
            connect_to_hub()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["./models/support", Path("models/support"), "models/support/", "../support"])
def test_a_path_is_never_the_hub(name: str | Path) -> None:
    with pytest.raises(UsageError, match="is not a model folder"):
        resolve_model(name)


@pytest.mark.usefixtures("offline")
def test_a_backbone_in_settings_is_the_hub_only_by_hf() -> None:
    policy = TextPolicy(max_context_tokens=16, max_candidate_tokens=8)
    with pytest.raises(ConfigError, match=r"folder models/support does not exist; .*hf:OWNER/MODEL"):
        new_model(BiConfig(backbone="models/support"), policy, seed=1, sample=["hi"])
    with pytest.raises(OfflineError):
        new_model(BiConfig(backbone="hf:models/support"), policy, seed=1, sample=["hi"])


@pytest.mark.usefixtures("offline")
def test_a_bare_name_is_not_looked_up_where_the_hub_needs_a_prefix(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a model folder"):
        resolve_model("models/support", bare_hub_names=False)
    for name in ("models/support", "bert-base-uncased"):
        with pytest.raises(ConfigError, match=f"folder {name} does not exist"):
            resolve_backbone(name, bare_hub_names=False)
    with pytest.raises(OfflineError):
        resolve_backbone("bert-base-uncased")
    for resolve in (resolve_model, resolve_backbone):
        with pytest.raises(OfflineError):
            resolve("hf:models/support", bare_hub_names=False)
    (tmp_path / "models").mkdir()  # the name could be a folder in models/, so it is not a hub name
    with pytest.raises(UsageError, match="is not a model folder"):
        resolve_model("models/support")


def test_a_stored_path_never_means_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the working directory, once the folder that it names is gone."""
    for where in ("owner/part", "part"):
        (tmp_path / where).mkdir(parents=True)
        stored = portable_name(str(tmp_path / where), tmp_path / "owner")
        assert resolved_name(stored, tmp_path / "owner") == str(tmp_path / where)
        (tmp_path / where).rmdir()
        (tmp_path / "elsewhere" / "part").mkdir(parents=True, exist_ok=True)
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert not Path(resolved_name(stored, tmp_path / "owner")).exists()


def test_the_folder_of_any_training_is_recognized(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    for place in ("model", "retriever/model", "seed-1/model", "seed-2/reranker/model"):
        shutil.copytree(tiny_encoders["bi"], tmp_path / place.partition("/")[0] / "run" / place)
        with pytest.raises(UsageError, match=f"is the folder of a training; give the model in it, .*{place}"):
            resolve_model(tmp_path / place.partition("/")[0] / "run")
    (tmp_path / "other" / "seed-\u00b2").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="is not a model folder"):
        resolve_model(tmp_path / "other")


def test_seeds_in_the_working_directory_are_of_one_model(
    tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):
        shutil.copytree(tiny_encoders["bi"], tmp_path / f"seed-{seed}" / "model")
    monkeypatch.chdir(tmp_path)
    for names in (["seed-1/model", "seed-2/model"], ["."]):
        assert [one.name for one in resolve_contestants(names)] == [".", "."]  # seeds of a model are compared as one
    found = resolve_runs(["seed-1/model", "seed-2/model"])
    assert [(one.group, one.seed) for one in found] == [(".", 1), (".", 2)]


def test_the_seed_of_a_model_is_that_of_its_training_or_else_of_its_folder(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    document = read_document(tiny_encoders["bi"], MODEL)
    wanted: dict[str, int | None] = {"bm25": None}
    for place in ("run", "seed-7"):
        for stated in (None, 0, 3):
            folder = tmp_path / place / f"{stated}"
            folder.mkdir(parents=True)
            (folder / MODEL.file).write_bytes(
                seal({**document, "metadata": {} if stated is None else {"seed": stated}}, MODEL)
            )
            wanted[str(folder)] = (7 if place == "seed-7" else None) if stated is None else stated
    assert {one.name: one.seed for one in resolve_runs(list(wanted))} == wanted


def test_the_models_of_a_mutual_training_are_those_of_each_network_by_seed(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    for place in ("seed-2/reranker", "seed-10/retriever", "seed-2/retriever", "seed-10/reranker"):
        shutil.copytree(tiny_encoders["bi"], tmp_path / "run" / place / "model")
    networks = [(name, seed) for name in ("retriever", "reranker") for seed in (2, 10)]
    assert models_inside(tmp_path / "run") == [
        tmp_path / "run" / f"seed-{seed}" / name / "model" for name, seed in networks
    ]
    found = resolve_runs([str(tmp_path / "run")])
    assert [(one.group, one.seed) for one in found] == [(f"{tmp_path / 'run'}/{name}", seed) for name, seed in networks]
    assert [one.name for one in resolve_contestants([str(tmp_path / "run")])] == [one.group for one in found]
    assert unfinished_seeds(str(tmp_path / "run")) == []
    shutil.rmtree(tmp_path / "run/seed-10/retriever")
    assert unfinished_seeds(str(tmp_path / "run")) == []
    shutil.rmtree(tmp_path / "run/seed-10/reranker")
    assert unfinished_seeds(str(tmp_path / "run")) == [tmp_path / "run/seed-10"]


@pytest.mark.parametrize(
    ("stated", "longest"),
    [({"max_position_embeddings": 512}, 512), ({"max_position_embeddings": 0}, None),
     ({"max_position_embeddings": -1}, None), ({"max_position_embeddings": "512"}, None), ({}, None), ([512], None)],
)  # fmt: skip
def test_the_longest_input_of_a_backbone_is_a_positive_number(
    stated: object, longest: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(stated), "utf-8")
    assert BackboneRef(tmp_path, "a").max_positions == longest
    assert BackboneRef(tmp_path / "gone", "a").max_positions is None


def test_another_version_of_the_embedded_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_backbone("embedded").folder.is_dir()
    monkeypatch.setattr("polyrank.loading.backbones.EMBEDDED_SHA256", "0" * 64)
    with pytest.raises(
        ArtifactError, match=r"is damaged or another version: its SHA-256 is not 000000000000\.\.\.; reinst"
    ):
        resolve_backbone("embedded")


def test_a_stamp_changes_with_a_folder_in_the_same_place_and_with_its_documents(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        shutil.copytree(tiny_encoders["bi"], path)
    seen = {stamp([*map(str, paths)])}
    for n, path in enumerate(paths):
        shutil.copytree(path, tmp_path / "copy")  # the same bytes and times
        shutil.rmtree(path)
        (tmp_path / "copy").rename(path)
        seen.add(stamp([*map(str, paths)]))
        (path / "config.json").touch()
        seen.add(stamp([*map(str, paths)]))
        assert len(seen) == 3 + 2 * n
    (paths[1] / "other.txt").touch()
    assert stamp([*map(str, paths)]) in seen


def test_the_port_of_the_hub_is_that_of_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    asked = list[tuple[str, int]]()

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr("polyrank.loading.hub.getproxies", dict)
    for address in ("https://hub.test", "http://hub.test", "http://hub.test:81", "https://hub.test:82/path"):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        connect_to_hub()
    assert asked == [("hub.test", port) for port in (443, 80, 81, 82)]


def test_a_hub_name_is_saved_with_its_prefix() -> None:
    assert absolute_name("owner/model") == absolute_name("hf:owner/model") == "hf:owner/model"
    assert absolute_name("untuned:owner/model") == "untuned:hf:owner/model"


def test_lengths_apply_to_models_with_that_setting() -> None:
    lengths = Lengths(max_context_tokens=40)
    with pytest.raises(UsageError, match="`max_context_tokens` does not apply to shipped:convert"):
        resolve_model("shipped:convert", lengths=lengths)
    for n in (0, 3):
        with pytest.raises(UsageError, match=f"`max_candidate_tokens` = {n} is not a number of tokens"):
            resolve_model("untuned:embedded", lengths=Lengths(max_candidate_tokens=n))
    resolve_model("untuned:embedded", lengths=Lengths(max_candidate_tokens=4))
    assert resolve_model("untuned:embedded", lengths=lengths).lengths == lengths
    of_all = resolve_contestants(["bm25", "untuned:embedded"], lengths=lengths)
    assert [model.ref.lengths for model in of_all] == [Lengths(), lengths]
    with pytest.raises(UsageError, match="does not apply to bm25"):
        resolve_contestants(["bm25", "tfidf"], lengths=lengths)
    with pytest.raises(UsageError, match="tfidf is named twice; name each model once"):
        resolve_contestants(["bm25", "tfidf", "untuned:embedded", "tfidf"])


@pytest.mark.parametrize(
    "use",
    [
        load,
        lambda name, backend: resolve_contestants([name, "tfidf"], backend=backend),
        lambda name, backend: Served("served", name, backend=backend),
    ],
)
def test_a_backend_is_refused_if_no_model_uses_it(use: Callable[..., object]) -> None:
    with pytest.raises(UsageError, match="bm25 has no onnx export; only polyrank model folders have; use the torch"):
        use("bm25", backend="onnx")


def test_an_empty_name_is_not_the_working_directory(tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_backbone)
    with pytest.raises(ConfigError, match="does not exist; give an existing model folder"):
        resolve_backbone("")


def test_a_model_is_freed_before_the_next_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two large models may not fit into the memory."""
    opened: list[weakref.ref[Any]] = []
    open_ = models_module.open_ranking

    def watched(*given: Any, **options: Any) -> Any:
        gc.collect()
        assert not any(one() for one in opened)
        scorer = open_(*given, **options)
        opened.append(weakref.ref(scorer))
        return scorer

    monkeypatch.setattr(models_module, "open_ranking", watched)
    row = {"context": "my wifi", "candidates": ["wifi", "bill"], "relevant": [0]}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n", "utf-8")
    evaluate_models(resolve_contestants(["bm25", "tfidf", "shipped:convert"]), read_task(tmp_path / "x.jsonl"))
    assert len(opened) == 3


def test_a_backend_applies_to_the_models_that_use_it() -> None:
    of_all = resolve_contestants(["bm25", "shipped:convert"], backend="onnx")
    assert [model.ref.backend for model in of_all] == ["torch", "onnx"]


def test_the_format_of_a_file_follows_from_its_name(tmp_path: Path) -> None:
    names = "b.CSV a.jsonl.gz c.parquet d.tsv.gz e.arrow .f.parquet .g.jsonl notes.md t.txt"
    for name in names.split():
        (tmp_path / name).touch()
    (tmp_path / "h.parquet").mkdir()  # a folder of parts is not a file
    found = resolve_data(tmp_path)
    assert [(each.path.name, each.form, each.stem) for each in found] == [
        ("a.jsonl.gz", "json", "a"), ("b.CSV", "csv", "b"), ("c.parquet", "parquet", "c"), ("d.tsv.gz", "csv", "d"),
        ("e.arrow", "parquet", "e"),
    ]  # fmt: skip
    assert resolve_data(tmp_path / "*.parquet") == found[2:3]  # without hidden files
    assert [each.form for each in resolve_data(tmp_path / "?.t*")] == ["csv", "text"]
    assert resolve_data(tmp_path / "[bc].CSV") == found[1:2]
    (tmp_path / "i.CSV.GZ").write_bytes(gzip.compress(b"context,response\nhi,hello\n"))
    (zipped,) = resolve_data(tmp_path / "i.*")
    assert (zipped.form, zipped.stem) == ("csv", "i")
    assert read_examples(zipped.path).examples == [Example(("hi",), ("hello",), (0,), "i:2")]
    (tmp_path / "x[1].csv").touch()
    for name in ("x[1].csv", "absent.csv"):  # a file of this name, and a name that is not a pattern
        assert [each.path for each in resolve_data(tmp_path / name)] == [tmp_path / name]
    with pytest.raises(DataError, match="matches no data file"):
        resolve_data(tmp_path / "*.xml")


def test_errors_name_arguments_in_python_and_options_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.main import get_command

    from polyrank.cli.commands import app

    message = "`limit=3` and `pool=responses` exclude each other; give one"
    monkeypatch.setattr(arguments, "_options", {})
    assert arguments.as_options(message) == message
    monkeypatch.setattr("sys.argv", ["polyrank", "evaluate", "bm25", "pairs.jsonl"])
    arguments.take_options(get_command(app))
    assert arguments.as_options(message) == "--limit 3 and --pool responses exclude each other; give one"
    assert arguments.as_options("`overwrite=True`, `data` or `unknown`") == "--overwrite, DATA or `unknown`"


def test_comparing_models_is_the_same_in_python_and_on_the_command_line() -> None:
    turns = (("hi",), ("my wifi is down",), ("the bill is wrong",))
    replies = ("hello", "restart the router", "let me see the bill")
    rows = [{"context": list(context), "response": reply} for context, reply in zip(turns, replies, strict=True)]
    said: list[str] = []
    task = read_task(rows, notify=said.append)
    assert said[-1] == (
        "each response is ranked among 2 other responses of the rows; `polyrank split` draws other lists, and"
        " `pool=responses` ranks all responses"
    )
    rows_of = evaluate_models(resolve_contestants(["bm25", "tfidf"]), task, metrics=["R@1"]).rows
    assert [row["name"] for row in rows_of] == ["bm25", "tfidf"]
    wanted = evaluate(load("bm25", corpus=corpus_of(task.examples)), task.examples)
    assert rows_of[0]["metrics"]["R@1"] == summarise(wanted)["metrics"]["R@1"] > 0
    assert rows_of[1]["against"]["scores"] == "bm25"
    assert rows_of[0]["n_left_out"] == 0


def test_a_result_states_the_precision_of_a_rankers_networks(
    tiny_backbone: Path, tiny_encoders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polyrank.devices.choice import cpu_has_int8

    if not cpu_has_int8():
        pytest.skip("this machine multiplies no 8-bit numbers")
    task = read_task([{"context": ["hi"], "candidates": ["hello", "restart"], "relevant": [0]}])
    found, encoders = [], [load(name) for name in (f"untuned:{tiny_backbone}", tiny_encoders["bi"])]
    Ranker([(EncoderTerm(encoder), (1.0,)) for encoder in encoders]).save(tmp_path / "ranker")
    for precision in ("fp32", "int8"):
        monkeypatch.setenv("POLYRANK_PRECISION", precision)
        models = resolve_contestants([str(tmp_path / "ranker")])
        found.append(evaluate_models(models, task, device="cpu").rows[0]["precision"])
    assert found == ["fp32", "int8"]


def test_seeds_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("seed-10", "seed-2", "seed-x", "seed-\u00b2"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-3").write_text("")
    assert [folder.name for folder in seeds_inside(tmp_path)] == ["seed-2", "seed-10"]


def test_a_reranker_comes_only_with_the_encoder_that_it_corrects(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    bi, poly = (resolve_model(tiny_encoders[name]) for name in ("bi", "poly"))
    ref = replace(bi, name="second", corrects=bi.fingerprint, first_stage=bi.name)
    assert ref.stages() == (bi, ref)
    with pytest.raises(
        ArtifactError, match=rf"scores of encoder {bi.fingerprint[:12]}, but .* is now {poly.fingerprint[:12]}"
    ):
        replace(ref, first_stage=poly.name).stages()
    with pytest.raises(UsageError, match="which does not exist; restore it"):
        replace(ref, first_stage=str(tmp_path / "gone")).stages()
    with pytest.raises(
        UsageError, match=f"the scores of another encoder, {bi.fingerprint[:12]}, and cannot rank alone"
    ):
        replace(ref, first_stage="").stages()
    untuned = replace(ref, first_stage="untuned:embedded")  # its fingerprint is computed on opening
    assert [one.name for one in untuned.stages()] == ["untuned:embedded", "second"]
    assert bi.stages() == (bi,)


def test_both_stages_have_the_requested_precision(
    tiny_encoders: dict[str, Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    first = tiny_encoders["bi"]
    metadata = {"first_stage": resolve_model(first).fingerprint, "first_stage_name": str(first)}
    config, policy = CrossConfig(backbone=str(tiny_backbone)), TextPolicy(max_context_tokens=32)
    save_model(tmp_path / "m", *new_model(config, policy, seed=1, sample=["thanks"]), metadata=metadata)
    for precision in ("fp32", "bf16"):
        found = load(tmp_path / "m", precision=precision)
        assert [network.precision for network in found.networks] == [precision] * 2


def test_a_reranker_names_its_first_stage_from_its_folder_or_its_recipe(
    tiny_encoders: dict[str, Path], tmp_path: Path
) -> None:
    document, first = read_document(tiny_encoders["bi"], MODEL), str(tmp_path / "first")
    shipped = "shipped:convert"
    for number, (named, trained_on, wanted) in enumerate((
        ("../first", None, first), (shipped, None, shipped), ("", None, ""), ("../first", shipped, first),
        ("", shipped, shipped), ("", "hf:me/bi", "hf:me/bi"), ("", "untuned:embedded", "untuned:embedded"),
        ("", "runs/bi/model", ""),  # relative to a folder that is not known
    )):  # fmt: skip
        metadata = {"first_stage": "f" * 64, "first_stage_name": named}
        if trained_on:
            metadata["recipe"] = {"train": {"method": {"first_stage": trained_on}}}  # type: ignore[assignment]
        folder = tmp_path / f"{number}"
        folder.mkdir()
        (folder / MODEL.file).write_bytes(seal({**document, "metadata": metadata}, MODEL))
        found = resolve_model(folder)
        assert (found.corrects, found.first_stage, found.corrected) == ("f" * 64, wanted, wanted or "f" * 12)
        with pytest.raises(UsageError, match=f"only corrects the scores of another encoder, {found.corrected}, and"):
            found.alone()
    assert [model_is_path(name) for name in ("a/b", "bm25", "tfidf", "untuned:a/b", "hf:a/b")] == [True, *[False] * 4]


def test_a_setting_of_a_comparison_applies_to_the_models_that_have_it(tiny_backbone: Path, tmp_path: Path) -> None:
    untuned, lengths = f"untuned:{tiny_backbone}", Lengths(9, 8)
    for names in (["bm25", untuned], [untuned, "bm25"]):
        found = resolve_contestants(names, lengths=lengths)
        assert [one.ref.lengths for one in found] == [lengths if name == untuned else Lengths() for name in names]
    shutil.copytree(model_folder("shipped:convert"), exported := tmp_path / "exported")
    (exported / "backends" / "onnx").mkdir(parents=True)
    (exported / "backends" / "onnx" / "export.json").touch()
    for names in (["bm25", str(exported)], [str(exported), "bm25"]):
        backends = [one.ref.backend for one in resolve_contestants(names, backend="onnx")]
        assert backends == ["torch" if name == "bm25" else "onnx" for name in names]
    with pytest.raises(UsageError, match="bm25 has no onnx export; only polyrank model folders have"):
        resolve_contestants(["bm25", "tfidf"], backend="onnx")
    with pytest.raises(UsageError, match=r"^tfidf is named twice; name each model once$"):
        resolve_contestants(["bm25", "tfidf", "tfidf"])
    for key in ("max_context_tokens", "max_candidate_tokens"):
        Lengths(**{key: 4}).check("a", settable=True)
        with pytest.raises(UsageError, match=f"^`{key}` = 3 is not a number of tokens; give 4 or more$"):
            Lengths(**{key: 3}).check("a", settable=True)
        with pytest.raises(UsageError, match=f"^`{key}` does not apply to bm25, whose text lengths are fixed"):
            resolve_contestants(["bm25", "tfidf"], lengths=Lengths(**{key: 4}))


def test_a_first_stage_has_the_backend_that_it_has_an_export_for(tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(model_folder("shipped:convert"), tmp_path / name)
    first = resolve_model(tmp_path / "first")
    ref = replace(first, name=str(tmp_path / "second"), corrects=first.fingerprint, first_stage=str(tmp_path / "first"))
    for name, backend in (("second", "torch"), ("first", "onnx")):
        (tmp_path / name / "backends" / "onnx").mkdir(parents=True)
        (tmp_path / name / "backends" / "onnx" / "export.json").touch()
        assert ref.stages("onnx") == (replace(first, name=str(tmp_path / "first"), backend=backend), ref)
        assert [one.backend for one in ref.stages()] == ["torch", "torch"]


def test_each_network_starts_from_its_own_model(tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    start = {"init_from": str(tiny_encoders["bi"])}
    for first, second in ((True, False), (False, True), (True, True), (False, False)):
        train = {"method": {"kind": "mutual"}, **(start if first else {})}
        tables: dict[str, object] = {"model": {"kind": "bi"}, "output": str(tmp_path), "train": train}
        tables["reranker"] = {"kind": "cross", "train": start if second else {}}
        plan = resolve_recipe(tables, resume=True)
        assert [network.name for network in plan.networks] == ["retriever", "reranker"]
        starts = [tiny_encoders["bi"] if starts else None for starts in (first, second)]
        assert [network.start for network in plan.networks] == starts


@pytest.mark.parametrize("name", ["bm25", "tfidf"])
def test_a_fixed_model_has_what_the_method_needs(name: str, tiny_encoders: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_encoders["bi"], tmp_path / "second")
    document = read_document(tmp_path / "second", MODEL)
    (tmp_path / "second" / MODEL.file).write_bytes(seal({**document, "metadata": {"first_stage": "f" * 64}}, MODEL))
    for method, problem in (
        ({"kind": "distill", "teacher": name}, f"train.method.teacher = {name} was not trained; give a model folder"),
        ({"kind": "rerank", "first_stage": name}, f"train.method.first_stage = {name} has no vectors; give an encoder"),
        ({"kind": "distill", "teacher": str(tmp_path / "second")}, "only corrects the scores of another encoder"),
    ):
        model = {"kind": "bi" if method["kind"] == "distill" else "cross"}
        recipe = {"model": model, "train": {"method": method}, "data": {"train": "pairs.jsonl"}, "output": "run"}
        with pytest.raises((ConfigError, UsageError), match=problem):
            resolve_recipe(recipe, resume=True)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("method", [{"kind": "distill", "teacher": "a/b"}, {"kind": "rerank", "first_stage": "a/b"}])
def test_a_fixed_model_is_on_the_hub_only_by_hf(method: dict[str, str]) -> None:
    model = {"kind": "bi" if method["kind"] == "distill" else "cross", "backbone": "embedded"}
    recipe = {"model": model, "train": {"method": method}, "data": {"train": "pairs.jsonl"}, "output": "run"}
    with pytest.raises(UsageError, match="a/b is not a model folder"):
        resolve_recipe(load_recipe(recipe))


def test_a_folder_that_is_not_a_model_is_named_by_its_kind(tmp_path: Path) -> None:
    for file in ("remote.json", "candidates.db"):
        (tmp_path / file).write_text("{", "utf-8")
        with pytest.raises(UsageError, match="is an index, not a model; get answers from it with polyrank respond"):
            resolve_model(tmp_path)
        (tmp_path / file).unlink()
    for wrong, near in (("bm52", "bm25"), ("tf-idf", "tfidf"), ("shiped:convert", "shipped:convert")):
        with pytest.raises(UsageError, match=f"^{wrong} is not a model folder; did you mean {near}[?]$"):
            resolve_model(wrong)
    for wrong in ("", "wholly/other/", "xyz"):
        with pytest.raises(
            UsageError, match=f"^{wrong or 'an empty name'} is not a model folder; give a model folder, "
        ):
            resolve_model(wrong)


def test_a_ranker_resolves_to_its_models(tmp_path: Path) -> None:
    terms = [(EncoderTerm(load("shipped:convert")), (1.0,)), (Counts.of({"thanks": 3}), (0.5,))]
    Ranker(terms).save(tmp_path / "ranker")
    ref = resolve_model(tmp_path / "ranker")
    assert (ref.kind, ref.fingerprint) == ("ranker", Ranker(terms).fingerprint)
    assert [part.name for part in ref.parts] == ["shipped:convert"]
    hubs = Hubs.encoded(load_encoder("shipped:convert"), [Context(("hi",))], scale=1.0)
    Ranker([*terms, (hubs, (0.5,))]).save(tmp_path / "with hubs")  # which are of the same model
    assert [part.name for part in resolve_model(tmp_path / "with hubs").parts] == ["shipped:convert"]
    (contestant,) = resolve_contestants([str(tmp_path / "ranker")])
    assert contestant.ref.kind == "ranker"
    with pytest.raises(UsageError, match=r"no model of .*ranker has an openvino export \(shipped:convert\)"):
        resolve_model(tmp_path / "ranker", backend="openvino")
    parts = tuple(replace(ref, name=name, folder=tmp_path / name) for name in ("a", "b"))
    several = replace(ref, parts=(*ref.parts, *parts))
    for path in (tmp_path / "ranker", model_folder("shipped:convert"), tmp_path / "a", tmp_path / "b"):
        with pytest.raises(UsageError, match="would be a part of itself; choose another path"):
            check_apart(path, [resolve_model("bm25"), several])
    check_apart(tmp_path / "other", [several])
    with pytest.raises(UsageError, match=r"ranker has no vectors to cut; leave #truncate_dim=4 out"):
        resolve_model(f"{tmp_path / 'ranker'}#truncate_dim=4")
    with pytest.raises(UsageError, match=r"`max_context_tokens` does not apply to .*, whose text lengths are fixed"):
        resolve_model(tmp_path / "ranker", lengths=Lengths(max_context_tokens=40))


def test_a_backend_applies_to_the_parts_of_a_ranker_that_have_an_export(tmp_path: Path) -> None:
    terms = []
    for name in ("a", "b"):
        shutil.copytree(model_folder("shipped:convert"), tmp_path / name)
        terms.append((EncoderTerm(load(tmp_path / name)), (1.0,)))
    Ranker(terms).save(tmp_path / "ranker")
    with pytest.raises(UsageError, match="has an onnx export"):
        resolve_model(tmp_path / "ranker", backend="onnx")
    for number, name in enumerate(("b", "a")):
        (tmp_path / name / "backends" / "onnx").mkdir(parents=True)
        (tmp_path / name / "backends" / "onnx" / "export.json").touch()
        parts = resolve_model(tmp_path / "ranker", backend="onnx").parts
        assert [part.backend for part in parts] == (["onnx", "onnx"] if number else ["torch", "onnx"])
    assert [part.backend for part in resolve_model(tmp_path / "ranker").parts] == ["torch", "torch"]


def test_a_moved_folder_is_the_nearest_one_with_the_longest_end_of_its_path(tmp_path: Path) -> None:
    """An index and its model moved together; other folders of the same name lie around them."""
    near, elsewhere = tmp_path / "new" / "project" / "index", tmp_path / "else" / "runs/a/model"
    elsewhere.mkdir(parents=True)
    places = [
        near.parent / "runs/a/model",
        near.parent / "a/model",
        near.parent / "model",
        tmp_path / "new/runs/a/model",
    ]
    for n, wanted in enumerate(places):
        for place in places[n:]:
            place.mkdir(parents=True, exist_ok=True)
        for name in ("{}", "untuned:{}#truncate_dim=8"):
            assert moved_name(name.format("/gone/runs/a/model"), near) == name.format(wanted)
            assert moved_name(name.format(elsewhere), near) == name.format(elsewhere)  # it has not moved
        shutil.rmtree(wanted)
    assert moved_name("/gone/runs/a/model", near) == "/gone/runs/a/model"


def test_every_backbone_is_looked_up_unless_the_run_may_be_finished(tiny_backbone: Path, tmp_path: Path) -> None:
    gone, there = str(tmp_path / "gone"), str(tiny_backbone)
    for first, second in ((gone, there), (there, gone), (there, there)):
        recipe = {
            "model": {"kind": "bi", "backbone": first},
            "reranker": {"kind": "cross", "backbone": second},
            "text": {"max_context_tokens": 16, "max_candidate_tokens": 8},
            "train": {"method": {"kind": "mutual"}},
            "output": str(tmp_path / "run"),
        }
        assert len(resolve_recipe(recipe, resume=True).networks) == 2
        if gone in (first, second):
            with pytest.raises(ConfigError, match="gone does not exist"):
                resolve_recipe(recipe)
        else:
            resolve_recipe(recipe)


def test_a_recipe_decides_which_settings_of_the_start_still_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the number of a mean of the first outputs, and of the scale of a cosine."""
    stored = {
        "kind": "bi",
        "reduction": "mean_of_first",
        "reduction_tokens": 7,
        "normalize": True,
        "match_self_score": 9.0,
    }
    monkeypatch.setattr("polyrank.loading.recipes.has_document", lambda folder, kind: True)
    monkeypatch.setattr("polyrank.loading.recipes.read_document", lambda folder, kind: {"model": stored, "text": {}})
    for given, kept in (
        ({}, {"reduction_tokens", "match_self_score"}),
        ({"reduction": "mean_of_first"}, {"reduction_tokens", "match_self_score"}),
        ({"reduction": "mean"}, {"match_self_score"}),
        ({"normalize": False, "output_scale": None}, {"reduction_tokens", "match_self_score"}),
        ({"normalize": True, "output_scale": 2.0}, {"reduction_tokens"}),
    ):
        start = _start({"kind": "bi", **given}, {"init_from": str(tmp_path)}, "train")["model"]
        assert {"reduction_tokens", "match_self_score"} & start.keys() == kept


def test_a_network_that_starts_trained_inherits_at_most_the_scale_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored scale may have been fitted to a target; the recipe's own, or a cosine's, takes its place."""
    names = ("output_scale", "match_output_std", "match_self_score")
    monkeypatch.setattr("polyrank.loading.recipes.has_document", lambda folder, kind: True)
    for stored, given in product(range(8), range(8)):
        for normalize, is_given in ((False, False), (True, False), (True, True)):
            settings = {name: 2.0 for bit, name in enumerate(names) if stored >> bit & 1}
            model = {name: 3.0 for bit, name in enumerate(names) if given >> bit & 1} | {"kind": "bi"}
            (model if is_given else settings)["normalize"] = normalize
            document = {"model": {"kind": "bi", "backbone": "b", **settings}, "text": {}}
            monkeypatch.setattr("polyrank.loading.recipes.read_document", lambda folder, kind, it=document: it)
            start = _start(model, {"init_from": str(tmp_path)}, "train")
            kept = names[2:] if normalize else names[:1] if "output_scale" in settings else names
            kept = () if given else kept
            assert {name for name in names if name in start["model"]} == {name for name in kept if name in settings}
            assert start["model"]["backbone"] == "b"
