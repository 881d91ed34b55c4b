"""Commands check their options before they read, open, load or connect anything.

None of the paths below exist, and no server answers at the addresses. A command that looked for its input first would
report the missing input; these tests require the error of the option.
"""

import shlex
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from polyrank.cli.commands import app
from polyrank.devices import choice
from polyrank.errors import ConfigError, PolyrankError, UsageError
from polyrank.loading.backbones import BackboneRef
from polyrank.training import train

PAIR = '{"context": ["the router"], "response": "thanks"}\n'
WRONG = [
    # a device that torch does not know, for every command with --device
    ("respond none --device quantum", "'quantum' is unknown"),
    ("rank bm25 hello none --device quantum", "'quantum' is unknown"),
    ("evaluate bm25 none --device quantum", "'quantum' is unknown"),
    ("explain none hello --device quantum", "'quantum' is unknown"),
    ("train none --device quantum", "'quantum' is unknown"),
    ("pretrain none --device quantum", "'quantum' is unknown"),
    ("mine none --from bm25 -o out --device quantum", "'quantum' is unknown"),
    ("tune shipped:convert --valid none -o out --device quantum", "'quantum' is unknown"),
    ("intents train none -o out --device quantum", "'quantum' is unknown"),
    ("intents predict none --device quantum", "'quantum' is unknown"),
    ("index build shipped:convert none -o out --device quantum", "'quantum' is unknown"),
    ("index add none none --device quantum", "'quantum' is unknown"),
    ("bench respond bm25 --texts none --device quantum", "'quantum' is unknown"),
    ("serve none --device quantum", "'quantum' is unknown"),
    # a missing model together with a missing file that the command would read before it
    ("evaluate absent none", "absent is not a model folder"),
    ("tune absent --valid none -o out", "absent is not a model folder"),
    ("mine none --from absent -o out", "absent is not a model folder"),
    ("mine none --from bm25 --rerank absent -o out", "absent is not a model folder"),
    ("intents train none -o out --encoder absent", "absent is not a model folder"),
    ("index build absent none -o out", "absent is not a model folder"),
    # choices, lists of numbers and conditions
    ("rank bm25 hello none --backend quick", "'quick' is not one of"),
    ("respond none --mode near", "'near' is not one of"),
    ("respond none --filter 'lang ='", "filter, character 7: expected"),
    ("respond none --filter ''", "filter, character 1: expected a name"),
    ("index list none --filter ''", "filter, character 1: expected a name"),
    ("index remove none --filter ''", "filter, character 1: expected a name"),
    ("evaluate bm25 none --metric none", "--metric 'none' is not one of"),
    ("index build shipped:convert none -o out --ann tree", "unknown kind of inner-product index 'tree'"),
    ("index build shipped:convert none -o out --remote http://h/c --ann tree", "cannot have index type 'tree'"),
    ("index add none none --backend quick", "'quick' is not one of"),
    ("index remove none --filter 'lang ='", "filter, character 7: expected"),
    ("index snapshot none -o .", ". already exists"),
    ("index build shipped:convert none -o .", ". already exists"),
    ("mine none --from bm25 -o out --ranks 5", "--ranks '5' is not FIRST:LAST"),
    ("export none --to paper", "'paper' is not one of"),
    ("export none --to onnx --valid none", "--valid is for int8 and onnx-int8"),
    ("export none --to sentence-transformers", "needs an output folder"),
    ("feedback export none -o out.jsonl --since today", "--since 'today' is not a date"),
    ("feedback report none --since today", "--since 'today' is not a date"),
    ("split none -o out --by size", "'size' is not one of"),
    ("bench respond bm25 --texts none --backend quick", "unknown backend 'quick'"),
    ("bench respond absent --texts none", "absent is not a model folder"),
    ("serve none --host 0.0.0.0", "0.0.0.0 can be reached by other machines"),
]


def refusal(command: str) -> PolyrankError:
    """The error of a command."""
    error = CliRunner().invoke(app, shlex.split(command)).exception
    assert isinstance(error, PolyrankError), error
    return error


@pytest.mark.parametrize(("command", "words"), WRONG, ids=[command for command, _ in WRONG])
def test_a_wrong_option_is_refused_before_any_input_is_opened(
    command: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, shlex.split(command))
    assert isinstance(done.exception, UsageError | ConfigError) or done.exit_code == 2, done.exception  # typer's own
    assert words in f"{done.exception} {done.output}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("backbone", "budget", "words"),
    [
        ("absent", 32, "folder absent does not exist"),
        ("", 129, "text.max_candidate_tokens = 129 is outside 4 to 128"),
        ("", 3, "text.max_candidate_tokens = 3 is outside 4 to 128"),
        ("", 32, "none: no such file"),
    ],
)
def test_a_training_checks_its_backbone_before_it_reads_data(
    backbone: str, budget: int, words: str, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"kind": "bi", "backbone": backbone or str(tiny_backbone)}
    text = {"max_context_tokens": 64, "max_candidate_tokens": budget}
    recipe = {"output": "run", "data": {"train": "none"}, "model": model, "text": text}
    with pytest.raises(PolyrankError, match=words):
        train(recipe)


def test_a_backbone_is_not_needed_where_a_trained_model_has_its_weights(tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"context": ["my wifi"], "response": "hello"}\n' * 2 + PAIR, "utf-8")
    backbone = shutil.copytree(tiny_backbone, tmp_path / "backbone")
    settings = {"data": {"train": str(tmp_path / "d.jsonl")}, "model": {"kind": "bi", "backbone": str(backbone)}}
    texts = {"text": {"max_context_tokens": 16, "max_candidate_tokens": 16}}
    first = settings | texts | {"output": str(tmp_path / "first"), "train": {"max_steps": 1}}
    model = train(first)[0].model
    shutil.rmtree(backbone)
    assert train(first, resume=True)[0].model == model
    more = {"max_steps": 1, "init_from": str(model)}
    assert train(settings | texts | {"output": str(tmp_path / "second"), "train": more})[0].model.is_dir()


@pytest.mark.parametrize(
    ("config", "longest"),
    [('{"max_position_embeddings": 512}', 512), ('{"max_position_embeddings": -1}', None), ("[]", None), ("{}", None),
     ('{"max_position_embeddings": "many"}', None), ("{", None)],
)  # fmt: skip
def test_the_longest_input_of_a_backbone(config: str, longest: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(config, "utf-8")
    assert BackboneRef(tmp_path, "x").max_positions == longest


@pytest.mark.parametrize(
    "command",
    [
        "index build shipped:convert none -o out", "index add none none", "mine none --from bm25 -o out",
        "tune shipped:convert --valid none -o out", "intents train none -o out", "intents predict none",
    ],
)  # fmt: skip
def test_threads_are_set_before_the_work(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice._load, "watched", choice._load.watched)  # restored after set_threads has changed it
    before = torch.get_num_threads()
    try:
        refused = CliRunner().invoke(app, [*shlex.split(command), "--threads", str(before + 1)])
        assert (refused.exit_code != 0, torch.get_num_threads()) == (True, before + 1), refused.output
    finally:
        torch.set_num_threads(before)
