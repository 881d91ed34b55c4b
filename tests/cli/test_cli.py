"""The command line in real processes: exit codes, data on stdout, one clear line on stderr."""

import errno
import importlib
import inspect
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import polyrank
from polyrank.cli import commands
from polyrank.config.models import BiConfig, CrossConfig, TextPolicy
from polyrank.config.recipe import DataConfig, Recipe
from polyrank.data.pool import text_id
from polyrank.errors import ArtifactError
from polyrank.index import LocalWriter
from polyrank.training import train
from processes import run
from train_settings import train_config


@pytest.fixture(scope="module")
def trained(tiny_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Bi- and a Cross-encoder trained for one step, an index, and input files."""
    folder = tmp_path_factory.mktemp("cli")
    replies = ["restart the router", "the bill is too high", "thanks", "did that"]
    rows = [{"context": ["hi", f"my {word}"], "response": replies[i % 4]} for i, word in enumerate("abcdefgh")]
    (folder / "train.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    (folder / "replies.txt").write_text("".join(r + "\n" for r in replies), "utf-8")
    lists = [{"context": ["my wifi is down"], "candidates": replies, "relevant": [0]}] * 3
    (folder / "test.jsonl").write_text(
        "".join(json.dumps({"id": str(i), **r}) + "\n" for i, r in enumerate(lists)), "utf-8"
    )
    configs: dict[str, Any] = {
        "bi": BiConfig(backbone=str(tiny_backbone)),
        "cross": CrossConfig(backbone=str(tiny_backbone)),
    }
    for name, model in configs.items():
        settings = train_config(
            max_steps=1, batch_size=4, n_negatives=2, method="listwise" if name == "cross" else "in_batch"
        )
        policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
        data = DataConfig(train=str(folder / "train.jsonl"))
        train(Recipe(model=model, text=policy, data=data, train=settings, output=str(folder / name)))
    built = run("index", "build", folder / "bi" / "model", folder / "replies.txt", "-o", folder / "index")
    assert built.returncode == 0, built.stderr
    return {"folder": folder, **{name: folder / name / "model" for name in configs}, "index": folder / "index"}


def test_nothing_imports_torch_before_it_must() -> None:
    code = (
        "import sys, polyrank, polyrank.cli, polyrank.index, polyrank.ranking.metrics, polyrank.records\n"
        "import polyrank.config.recipe\n"
        "print([m for m in ('torch', 'transformers', 'rich.console') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.deep
@pytest.mark.parametrize("group", [(), ("index",), ("import",)])
def test_help_imports_no_arrays(group: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "polyrank", *group, "--help"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    assert " polyrank.cli" in found
    assert " numpy\n" not in found


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ("cli.tuning:tune", "tuning:tune"),
        ("cli.fitting:fit", "fitting:fit"),
        ("cli.splitting:split", "data.splits:split"),
        ("cli.mining:mine", "negatives.hard:HardNegatives"),
    ],
)
def test_defaults_are_the_same_in_commands_and_functions(command: str, function: str) -> None:
    """Options with a number or a switch and arguments of the same name."""
    one, other = (
        inspect.signature(getattr(importlib.import_module(f"polyrank.{module}"), name)).parameters
        for module, name in (command.split(":"), function.split(":"))
    )
    shared = [name for name in one if name in other]
    defaults = [(name, one[name].default, other[name].default) for name in shared]
    plain = [each for each in defaults if isinstance(each[1], int | float) and each[2] is not inspect.Parameter.empty]
    assert defaults
    assert [(name, default) for name, _, default in plain] == [(name, option) for name, option, _ in plain]


def test_every_public_name_is_there() -> None:
    for name in polyrank.__all__:
        assert getattr(polyrank, name) is not None
    assert set(polyrank.__all__) <= set(dir(polyrank))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        polyrank.nothing  # noqa: B018  # the access is the test


@pytest.mark.deep
def test_evaluate_prints_one_json_object(trained: dict[str, Path], tmp_path: Path) -> None:
    scores = tmp_path / "scores.jsonl"
    for model in (str(trained["bi"]), str(trained["cross"]), "bm25", "tfidf"):
        found = run("evaluate", model, trained["folder"] / "test.jsonl", "--json", "--scores", scores, "--overwrite")
        assert found.returncode == 0, found.stderr
        summary = json.loads(found.stdout)
        assert summary["n_examples"] == 3
        assert summary["n_candidates"] == 4
        assert set(summary["metrics"]) == set(summary["intervals"]) >= {"R@1", "MRR"}
        header = json.loads(scores.read_text("utf-8").splitlines()[0])
        assert summary.get("precision") == header.get("precision") == (None if model in ("bm25", "tfidf") else "fp32")
    rows = json.loads(run("compare", scores, scores, "--json").stdout)
    assert rows[0]["metrics"] == summary["metrics"]
    assert rows[1]["against"]["p"] == 1
    table = run("evaluate", "bm25", trained["folder"] / "test.jsonl", "--against", tmp_path / "scores.jsonl")
    assert "R@1" in table.stdout
    assert "p = " in table.stdout


def test_respond_in_a_pipe_prints_json(trained: dict[str, Path]) -> None:
    lines = 'my wifi is down\n["hi", "bill"]\n{"context": ["x"]}\n'
    found = run("respond", trained["index"], "-k", "2", stdin=lines)
    assert found.returncode == 0, found.stderr
    answers = [json.loads(line) for line in found.stdout.splitlines()]
    assert [answer["context"] for answer in answers] == [["my wifi is down"], ["hi", "bill"], ["x"]]
    assert all(len(answer["results"]) == 2 for answer in answers)
    once = run("respond", trained["index"], "hi", "my wifi")
    assert json.loads(once.stdout)["context"] == ["hi", "my wifi"]


@pytest.mark.deep
def test_a_ranker_is_tuned_and_answers(trained: dict[str, Path], tmp_path: Path) -> None:
    replies = (trained["folder"] / "replies.txt").read_text("utf-8").splitlines()
    rows = [{"context": [f"my {reply}"], "candidates": replies, "relevant": [i]} for i, reply in enumerate(replies * 5)]
    rows = [row | {"relevant": [i % 4]} for i, row in enumerate(rows)]
    (tmp_path / "valid.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    options = ["--valid", tmp_path / "valid.jsonl", "--precision", "0.9", "--json"]
    made = run("tune", "shipped:convert", trained["cross"], "bm25", *options, "-o", tmp_path / "best")
    assert made.returncode == 0, made.stderr
    assert {row["kind"] for row in json.loads(made.stdout)["terms"]} >= {"encoder", "cross", "lexical"}
    assert "next: polyrank index build" in made.stderr
    built = run("index", "build", tmp_path / "best", trained["folder"] / "replies.txt", "-o", tmp_path / "i")
    assert built.returncode == 0, built.stderr
    found = run("respond", tmp_path / "i", "the bill is high", "-k", "1")
    assert json.loads(found.stdout)["results"][0]["text"] == "the bill is too high"
    figures = run("evaluate", tmp_path / "best", tmp_path / "valid.jsonl", "--json")
    assert json.loads(figures.stdout)["metrics"]["R@1"] == 1


def test_rank_scores_candidates(trained: dict[str, Path]) -> None:
    row = json.dumps({"context": ["hi", "my wifi"], "candidates": ["thanks", "did that", "restart the router"]})
    found = run("rank", trained["cross"], "--scores-only", stdin=row + "\n")
    assert found.returncode == 0, found.stderr
    assert len(json.loads(found.stdout)["scores"]) == 3


@pytest.mark.deep
def test_an_index_is_changed_from_the_command_line(trained: dict[str, Path], tmp_path: Path) -> None:
    assert run("index", "snapshot", trained["index"], "-o", tmp_path / "i").returncode == 0
    first, second = text_id("restart the router"), text_id("the bill is too high")
    (tmp_path / "more.jsonl").write_text(
        f'{{"id": "m", "text": "purple elephant"}}\n{{"id": "{first}", "text": "new one"}}\n'
    )
    refused = run("index", "add", tmp_path / "i", tmp_path / "more.jsonl")
    assert (refused.returncode, f"candidate 1: id '{first}' is already in the index" in refused.stderr) == (3, True)
    added = run("index", "add", tmp_path / "i", tmp_path / "more.jsonl", "--replace")
    assert added.returncode == 0, added.stderr
    assert "added or replaced 2, now 5 candidates" in added.stderr
    (tmp_path / "ids.txt").write_text(f"{second}\nnothing\n")
    assert "removed 2, now 3" in run("index", "remove", tmp_path / "i", "m", "--file", tmp_path / "ids.txt").stderr
    assert run("index", "compact", tmp_path / "i").returncode == 0
    info = json.loads(run("index", "info", tmp_path / "i").stdout)
    assert (info["n"], info["blocks"]) == (3, [3])
    answer = json.loads(run("respond", tmp_path / "i", "-k", "9", "hi").stdout)
    assert sorted(reply["text"] for reply in answer["results"]) == ["did that", "new one", "thanks"]
    assert run("index", "verify", tmp_path / "i").returncode == 0
    assert run("index", "remove", tmp_path / "i").returncode == 2


def test_a_second_file_of_texts_is_added_to_the_first(trained: dict[str, Path], tmp_path: Path) -> None:
    index, more = tmp_path / "i", tmp_path / "more.txt"
    assert run("index", "snapshot", trained["index"], "-o", index).returncode == 0
    more.write_text("hello\nthanks\n\nhello\nbye\n", "utf-8")
    for said in (
        "added 2 (1 were already in the index), now 6 candidates",
        "added 0 (3 were already in the index), now 6",
    ):
        added = run("index", "add", index, more)
        assert added.returncode == 0, added.stderr
        assert f"{more}: 1 of 4 replies repeat an earlier one and count once" in added.stderr
        assert said in added.stderr


@pytest.mark.deep
def test_an_index_is_listed_and_built_again(trained: dict[str, Path], tmp_path: Path) -> None:
    index, dump = tmp_path / "i", tmp_path / "dump.jsonl"
    rows = [{"id": "a", "text": "one\ntwo", "metadata": {"topic": ["x"]}}, {"id": "é", "text": "thanks"}]
    rows += [{"id": "b", "text": "thanks"}]
    source = tmp_path / "source.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert run("index", "build", trained["bi"], source, "-o", index).returncode == 0
    assert run("index", "list", index).stdout == "a\tone two\né\tthanks\nb\tthanks\n"
    listed = run("index", "list", index, "--json", "--limit", "2").stdout
    assert [json.loads(line) for line in listed.splitlines()] == rows[:2]
    dump.write_text(run("index", "list", index, "--json").stdout, "utf-8")
    assert [json.loads(line) for line in dump.read_text("utf-8").splitlines()] == rows
    assert run("index", "build", trained["bi"], dump, "-o", tmp_path / "again").returncode == 0
    first, again = (run("respond", path, "many thanks", "--duplicates") for path in (index, tmp_path / "again"))
    assert first.stdout == again.stdout
    assert [reply["id"] for reply in json.loads(first.stdout)["results"] if reply["text"] == "thanks"] == ["é", "b"]
    once = json.loads(run("respond", index, "many thanks").stdout)["results"]
    assert sorted(reply["id"] for reply in once) == ["a", "é"]


def test_foreign_files_in_an_index_folder_are_not_lost(trained: dict[str, Path], tmp_path: Path) -> None:
    index = tmp_path / "i"
    assert run("index", "snapshot", trained["index"], "-o", index).returncode == 0
    (index / "notes.txt").write_text("mine", "utf-8")
    command = ["index", "build", trained["bi"], trained["folder"] / "replies.txt", "-o", index, "--overwrite"]
    refused = run(*command)
    assert (refused.returncode, "which would be lost: notes.txt; move them away" in refused.stderr) == (2, True)
    assert (index / "notes.txt").read_text("utf-8") == "mine"
    (index / "notes.txt").unlink()
    assert run(*command).returncode == 0


def test_a_runtime_without_an_export_is_refused(trained: dict[str, Path]) -> None:
    refused = run("respond", trained["index"], "hi", "--backend", "onnx")
    assert (refused.returncode, "no onnx export" in refused.stderr) == (2, True), refused.stderr


@pytest.mark.deep
@pytest.mark.parametrize("variable", [False, True])
def test_threads_are_as_many_as_requested(trained: dict[str, Path], variable: bool) -> None:
    program = "import sys, torch\nfrom polyrank.cli import commands\ncommands.run()\nprint(torch.get_num_threads())"
    command = [sys.executable, "-c", program, "respond", str(trained["index"]), "hi"]
    environment = os.environ | ({"POLYRANK_THREADS": "3"} if variable else {})
    ended = subprocess.run(
        [*command, *([] if variable else ["--threads", "3"])],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[-1] == "3"


def test_index_info_and_verify(trained: dict[str, Path]) -> None:
    assert json.loads(run("index", "info", trained["index"]).stdout)["n"] == 4
    assert run("index", "verify", trained["index"]).returncode == 0


def test_the_formats_named_in_the_help_are_all() -> None:
    from polyrank.data import IMPORTERS

    shown = run("import", "--list").stdout
    assert [name for name in IMPORTERS if name not in shown] == []


def test_import_writes_what_train_reads(tmp_path: Path) -> None:
    source = tmp_path / "convai2.txt"
    source.write_text("1 your persona: i like tea.\n2 hello\thi there\n3 how are you\tfine\n", "utf-8")
    found = run("import", "corpus", "convai2", source, "-o", tmp_path / "out.jsonl.gz")
    assert found.returncode == 0, found.stderr
    examples = polyrank.read_examples(tmp_path / "out.jsonl.gz").examples
    assert [(e.context, e.response, e.background) for e in examples] == [
        (("hello",), "hi there", ("i like tea.",)),
        (("hello", "hi there", "how are you"), "fine", ("i like tea.",)),
    ]


def test_an_untuned_backbone_is_indexed_by_its_weights(tmp_path: Path, tiny_backbone: Path) -> None:
    backbone, index = tmp_path / "backbone", tmp_path / "index"
    shutil.copytree(tiny_backbone, backbone)
    (tmp_path / "replies.txt").write_text("restart the router\nthanks\n", "utf-8")
    built = run("index", "build", f"untuned:{backbone.name}", tmp_path / "replies.txt", "-o", index, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    replies = polyrank.open(index)  # from another folder
    best = replies.answer("thanks", 1, allow_echo=True).ranked[0]
    assert (best.text, best.score) == ("thanks", pytest.approx(1.0, abs=1e-5))
    weights = safetensors.torch.load_file(backbone / "model.safetensors")
    name = sorted(weights)[0]
    weights[name] = weights[name] + 1.0
    safetensors.torch.save_file(weights, backbone / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArtifactError, match="was made by encoder"):
        polyrank.open(index).answer("thanks", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["evaluate", "nothing", "{test}"], 2, "not a model folder"),
        (["evaluate", "bm25", "{folder}/none.jsonl"], 3, "none.jsonl"),
        (["evaluate", "bm25", "{folder}/replies.txt"], 3, "replies.txt:1"),
        (["evaluate", "{folder}", "{test}"], 4, "config.json"),
        (["train", "{folder}/none.toml"], 2, "does not exist"),
        (["index", "build", "{cross}", "{folder}/replies.txt", "-o", "{folder}/x"], 2, "Cross-encoder"),
        (["index", "build", "{bi}", "{folder}/replies.txt", "-o", "{index}"], 2, "already exists"),
        (["index", "info", "{folder}"], 4, "candidates.db"),
        (["respond", "{index}", "hi", "--model", "{cross}"], 2, "Cross-encoder"),
        (
            ["respond", "{index}", "hi", "--model", "{folder}/none"],
            2,
            "give the folder of the model or ranker as --model",
        ),
        (["import", "corpus", "no-such-format", "{test}", "-o", "{folder}/y"], 2, "no-such-format"),
        (["export", "{cross}", "--to", "foo"], 2, "'foo' is not one of 'onnx', 'onnx-int8', 'openvino', 'int8'"),
        (["evaluate"], 2, "Missing argument"),
        (["nonsense"], 2, "nonsense"),
    ],
)
def test_errors_print_one_line_and_set_their_exit_code(
    trained: dict[str, Path], arguments: list[str], code: int, word: str
) -> None:
    names = {**trained, "test": trained["folder"] / "test.jsonl"}
    found = run(*(argument.format(**names) for argument in arguments))
    assert found.returncode == code, found.stderr
    assert word in found.stderr
    assert "Traceback" not in found.stderr
    assert found.stdout == ""


def test_an_index_of_another_model_is_refused(trained: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> None:
    data = DataConfig(train=str(trained["folder"] / "train.jsonl"))
    policy = TextPolicy(max_context_tokens=24, max_candidate_tokens=12)
    settings = train_config(max_steps=1, batch_size=4, lr=1e-2, seeds=(9,))
    model = BiConfig(backbone=str(tiny_backbone), shared_towers=True)
    train(Recipe(model=model, text=policy, data=data, train=settings, output=str(tmp_path / "run")))
    found = run("respond", trained["index"], "hi", "--model", tmp_path / "run" / "model")
    assert found.returncode == 4
    assert "was made by encoder" in found.stderr


def test_an_error_on_stdin_names_its_line(trained: dict[str, Path]) -> None:
    found = run("respond", trained["index"], stdin='hello\n["broken"\n')
    assert found.returncode == 3
    assert "stdin:2" in found.stderr


RunHere = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunHere:
    """Run the command line in this process; returns its exit code, stdout and stderr."""

    def invoke(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["polyrank", *map(str, arguments)])
        capsys.readouterr()
        code = commands.run()
        return code, *capsys.readouterr()

    return invoke


def test_a_chat_lists_its_commands(
    trained: dict[str, Path], run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = io.StringIO("/help\n/start\n/etc/hosts is gone\n/new\n\n/quit\nnever read\n")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    code, answers, said = run_here("respond", trained["index"], "-k", "1")
    assert code == 0
    assert answers.count("→") == len(answers.splitlines()) == 1
    assert all(command in said.splitlines()[0] for command in ("/new", "/help", "/quit", "Ctrl-D"))
    assert "/start is not a command; use /new, /help, /quit" in said
    assert said.count("(new conversation)") == 2
    assert all(f"  {command} " in said for command in ("/new", "/help", "/quit"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("train {folder}/none.toml --resume --overwrite", "--resume and --overwrite exclude each other"),
        ("mine {test} --from bm25 -o {folder}/m --ranks 5", "'5' is not FIRST:LAST"),
        ("mine {test} --from bm25 -o {folder}/m --ranks a:5", "'a:5' is not FIRST:LAST"),
        ("mine {test} --from bm25 -o {test}", "test.jsonl already exists and is read by this command"),
        ("export {folder}/none --to onnx", "none is not a model folder; give a model folder, hf:"),
        ("export {cross} --to sentence-transformers", "give -o FOLDER"),
        ("export {cross} --to onnx -o {folder}/x", "leave out -o"),
        ("index remove {index}", "no ids were given"),
        ("index snapshot {index} -o {folder}", "already exists"),
        ("quickstart --output {folder}", "already exists"),
        ("fit {folder}/none -o {folder}/q --resume --overwrite", "exclude each other"),
        ("info {folder}/none", "is not a model folder"),
    ],
)
def test_wrong_arguments_exit_with_2(trained: dict[str, Path], run_here: RunHere, arguments: str, word: str) -> None:
    names = {**trained, "test": trained["folder"] / "test.jsonl"}
    before = sorted(trained["folder"].iterdir())
    code, out, err = run_here(*(argument.format(**names) for argument in arguments.split()))
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: ")
    assert word in err.splitlines()[-1]
    assert sorted(trained["folder"].iterdir()) == before


def test_a_locked_index_names_its_writer_and_exits_with_6(trained: dict[str, Path], run_here: RunHere) -> None:
    with LocalWriter(trained["index"]):
        code, out, err = run_here("index", "remove", trained["index"], "1")
    assert (code, out) == (6, "")
    assert f"is being written to by process {os.getpid()}" in err
    assert json.loads(run_here("index", "info", trained["index"])[1])["n"] == 4


def test_a_damaged_index_exits_with_4(trained: dict[str, Path], run_here: RunHere, tmp_path: Path) -> None:
    index = tmp_path / "i"
    shutil.copytree(trained["index"], index)
    assert run_here("index", "verify", index) == (0, "", f"{index}: sound\n")
    part = max(index.glob("matrix-*/*"), key=lambda path: path.stat().st_size)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    code, out, err = run_here("index", "verify", index)
    *problems, last = err.splitlines()
    assert (code, out) == (4, "")
    assert problems
    assert last == f"error: {index} has {len(problems)} problem(s), listed above"


def test_a_bug_exits_with_1_and_requests_a_report(run_here: RunHere, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("{}"))  # has no byte buffer, unlike a real stdin
    code, out, err = run_here("rank", "bm25")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: internal error, please report it: AttributeError: ")
    assert err.endswith("run it again as: polyrank --debug ...\n")
    code, out, err = run_here("--debug", "rank", "bm25")
    assert (code, out) == (1, "")
    assert err.startswith("Traceback (most recent call last):")
    assert "polyrank --debug" not in err
    assert "Traceback" not in run_here("rank", "bm25")[2]


class Broken(io.StringIO):
    """A stream of a machine with an error."""

    error: Exception

    @property
    def buffer(self) -> io.BytesIO:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 48.00 MiB."), 5,
         "out of memory; use smaller batches or text budgets, or stop other programs that use this memory"),
        (OSError(errno.ENOSPC, "full", "a/b"), 5, "cannot use a/b: full; free some space or repair the disk"),
        (OSError(errno.EACCES, "not yours", "a/b"), 2, "cannot use a/b: not yours; check the path and its permissions"),
        (OSError("two\n lines"), 2, "cannot use the input or output: two lines; check the path and its permissions"),
    ],
)  # fmt: skip
def test_errors_of_the_machine_are_explained(
    error: Exception, code: int, said: str, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", stdin := Broken())
    stdin.error = error
    assert run_here("rank", "bm25") == (code, "", f"error: {said}\n")


def test_texts_are_printed_as_they_are(
    trained: dict[str, Path], run_here: RunHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"turns": [{"speaker": "agent", "text": ":smile:"}, {"speaker": "b", "text": str(n)}]} for n in range(99)]
    chats = tmp_path / "chats.jsonl"
    chats.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + "{\n")
    code, _, err = run_here("split", chats, "-o", tmp_path / "data")
    assert (code, "chats.jsonl:100: not JSON" in err) == (3, True)
    assert "  agent: :smile:\n" in run_here("import", "chats", chats, "--skip-bad", "-o", tmp_path / "out.jsonl")[2]
    monkeypatch.chdir(shutil.copytree(trained["folder"], tmp_path / "copy"))
    shutil.move(Path(trained["bi"].parent.name, "model"), "m:100:n")
    assert "m:100:n" in run_here("evaluate", "m:100:n", "test.jsonl")[1]


def test_the_version_is_on_stdout(run_here: RunHere) -> None:
    assert run_here("--version") == (0, f"polyrank {polyrank.__version__}\n", "")


def test_changes_of_an_index_are_reported(trained: dict[str, Path], run_here: RunHere, tmp_path: Path) -> None:
    index, replies = tmp_path / "i", trained["folder"] / "replies.txt"
    assert run_here("index", "build", trained["bi"], replies, "-o", index) == (
        0, "", f"{index}: 4 candidates of dimension 32, 4 texts encoded\n",
    )  # fmt: skip
    (tmp_path / "more.txt").write_text("a new one\n", "utf-8")
    rebuilt = run_here("index", "build", trained["bi"], tmp_path / "more.txt", "-o", index, "--overwrite")
    assert rebuilt == (
        0,
        "",
        f"{index}: 1 candidate of dimension 32, 1 text encoded\n",
    )
    _, _, said = run_here("index", "build", "shipped:convert", replies, "-o", index, "--overwrite")
    assert "seem to be" not in said
    (tmp_path / "german.txt").write_text(
        "Thank you very much\nDas ist nicht die Rechnung\nWir rufen Sie morgen an\nWo ist denn Ihr Vertrag?\n", "utf-8"
    )
    for model, warned in (("shipped:convert", True), (trained["bi"], False)):
        said = run_here("index", "build", model, tmp_path / "german.txt", "-o", tmp_path / "de", "--overwrite")[2]
        assert ("most replies seem to be in another language than English (de)" in said) is warned
    (index / "candidates.db").write_bytes(b"damaged")
    assert (
        "replaced"
        not in run_here("index", "build", trained["bi"], tmp_path / "more.txt", "-o", index, "--overwrite")[2]
    )
    assert run_here("index", "compact", index) == (0, "", f"{index}: 1 candidate\n")
    assert run_here("index", "snapshot", index, "-o", tmp_path / "j") == (0, "", f"{tmp_path / 'j'}: 1 candidate\n")


def test_examples_that_cannot_be_ranked_are_counted(run_here: RunHere, tmp_path: Path) -> None:
    rows = [{"context": ["a b"], "candidates": ["a b", "c d", "e f"], "relevant": [0]}] * 3
    rows += [{"context": ["c"], "candidates": ["c"], "relevant": [0]}]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    code, out, err = run_here("evaluate", "bm25", data, "--json", "--metric", "R@1,R@2,R@3")
    found = json.loads(out)
    assert (code, found["n_examples"], found["n_left_out"], found["metrics"]["R@1"]) == (0, 3, 1, 1.0)
    assert "1 of 4 examples left out" in err
    assert "R@3 left out: k must be below 3" in err
    assert json.loads(run_here("evaluate", "bm25", data, "--json", "--limit", "2")[1])["n_examples"] == 2
