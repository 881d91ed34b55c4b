"""The JSON Schema of recipes: it accepts what polyrank accepts, and refuses wrong names, types and numbers."""

import json
import re
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from polyrank.cli import app
from polyrank.config.checked import Settings, field_types, without_none
from polyrank.config.models import TextPolicy
from polyrank.config.pretrain import ScratchModel
from polyrank.config.recipe import DataConfig, recipe_from_dict
from polyrank.config.schema import meanings, pretrain_schema, recipe_schema
from polyrank.config.serving import HookKind, ServingSettings, check_reach, checked_name, read_serving
from polyrank.config.train import TrainConfig
from polyrank.errors import ConfigError, UsageError
from polyrank.loading.recipes import load_pretrain_recipe

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "runs/recipes").glob("*.toml"), *(ROOT / "runs/papers").glob("*.toml")])
RECIPES.remove(ROOT / "runs/papers/published.toml")  # the papers' figures
MUTUAL = {"train": {"method": {"kind": "mutual"}}}
SMALLEST = {"output": "run", "model": {"kind": "bi"}, "data": {"train": "train.jsonl"}}


def faults(values: Any, schema: dict[str, Any] | None = None) -> list[str]:
    """The faults that the schema, by default that of a training, reports."""
    return [error.message for error in jsonschema.Draft202012Validator(schema or recipe_schema()).iter_errors(values)]


def test_the_schemas_are_valid() -> None:
    for schema in (recipe_schema(), pretrain_schema()):
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_the_schema_accepts_every_recipe_of_this_repository(path: Path) -> None:
    values = tomllib.loads(path.read_text("utf-8"))
    assert faults(values, recipe_schema() if "kind" in values["model"] else pretrain_schema()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"kind": "no"}},
        {"model": {}},
        {"reranker": {}},
        {"reranker": {"kind": "no"}},
        {"reranker": {"backbone": "embedded"}},
        {"reranker": {"kind": "convert"}},
        {"reranker": {"kind": "cross", "train": {"lr": "fast"}}},
        {"reranker": {"kind": "cross", "train": {"batch_size": 8}}},
        {"reranker": {"kind": "cross", "trian": {}}},
        {"model": {"backbone": "embedded"}},
        {"reranker": {}, **MUTUAL},
        {"reranker": {"backbone": "embedded"}, **MUTUAL},
        {"reranker": {"kind": "convert"}, **MUTUAL},
        {"reranker": {"kind": "cross", "train": {"batch_size": 4}}, **MUTUAL},
        {"reranker": {"kind": "cross", "train": {"lr": "fast"}}, **MUTUAL},
        {"reranker": {"kind": "cross", "n_codes": 4}, **MUTUAL},
        {"model": {"kind": "bi", "n_codes": 4}},
        {"data": {"train": 3}},
        {"train": {"lr": "fast"}},
        {"train": {"batch_size": 0}},
        {"train": {"schedule": {"kind": "step"}}},
        {"text": {"background": "nowhere"}},
        {"trian": {}},
        {"train": {"betas": [0.9, 0.98, 0.99]}},
        {"train": {"betas": [0.9]}},
        {"train": {"clip_norm": 0}},
        {"train": {"dropout": 1.1}},
    ],
)
def test_the_schema_refuses_what_polyrank_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        recipe_from_dict(SMALLEST | change)
    assert faults(SMALLEST | change)


@pytest.mark.parametrize("left_out", ["", *SMALLEST])
def test_a_key_is_required_in_the_schema_if_polyrank_requires_it(left_out: str) -> None:
    values = {name: value for name, value in SMALLEST.items() if name != left_out}
    for more in ({}, {"reranker": {"kind": "cross", "train": {"lr": 1e-3}}, **MUTUAL}):
        required = left_out in ("output", "model")
        with pytest.raises(ConfigError) if required else nullcontext():
            recipe_from_dict(values | more)
        assert bool(faults(values | more)) == required


@pytest.mark.parametrize(("table", "kind"), [("data", DataConfig), ("text", TextPolicy), ("train", TrainConfig)])
def test_every_key_has_a_description_and_a_type(table: str, kind: type[Settings]) -> None:
    for key, hint in field_types(kind).items():
        known = recipe_schema()["properties"][table]
        known = next(option for option in known.get("anyOf", [known]) if key in option["properties"])["properties"][key]
        assert known["description"], key
        assert without_none(hint)
        assert faults(SMALLEST | {table: {**SMALLEST.get(table, {}), key: {"no": "value"}}}), key  # type: ignore[dict-item]


def test_a_pretraining_needs_no_table_of_the_model() -> None:
    values = {"output": "run", "data": {"train": "x.jsonl"}}
    assert faults(values, pretrain_schema()) == []
    assert load_pretrain_recipe(values).model == ScratchModel()
    for name in values:
        fewer = {key: value for key, value in values.items() if key != name}
        with pytest.raises(ConfigError, match=f'missing key "{name}"'):
            load_pretrain_recipe(fewer)
        assert faults(fewer, pretrain_schema()) == [f"'{name}' is a required property"]


def test_the_command_prints_the_schema() -> None:
    for words, wanted in ((["schema"], recipe_schema()), (["schema", "--pretrain"], pretrain_schema())):
        result = CliRunner().invoke(app, ["recipe", *words])
        assert result.exit_code == 0
        assert json.loads(result.stdout) == json.loads(json.dumps(wanted))


def test_keys_that_are_described_together_are_all_described() -> None:
    class Settings:
        """Some settings.

        Args:
            one: the first.
            two, three, four: the others,
                in two lines.
            six: of a ``file``; None: no file, as for NoneType.
        """

    class More(Settings):
        """Some more.

        Args:
            five: another one.
            one: in other words,
                of three
                lines.
        """

    common = dict.fromkeys(("two", "three", "four"), "the others, in two lines.")
    common["six"] = "of a `file`; none: no file, as for NoneType."  # as recipes and their editors write it
    assert meanings(Settings) == {"one": "the first.", **common}
    assert meanings(More) == {"one": "in other words, of three lines.", "five": "another one.", **common}


HOOK = {"url": "https://desk.example", "secret_file": "secret", "token_file": "token", "admin": "7"}


@pytest.mark.parametrize("kind", get_args(HookKind))
def test_a_hook_needs_the_keys_of_its_help_desk(kind: str, tmp_path: Path) -> None:
    needed = [name for name in HOOK if kind and (name != "admin" or kind == "intercom")]
    for left_out in (None, *HOOK):
        rows = [f'{name} = "{value}"' for name, value in HOOK.items() if name != left_out]
        (tmp_path / "serve.toml").write_text("\n".join(["[hook]", f'kind = "{kind}"', *rows]), "utf-8")
        if left_out in needed:
            with pytest.raises(ConfigError, match=f"the hook {kind} needs hook.{left_out}; set it"):
                read_serving(tmp_path / "serve.toml", ["i"])
        else:
            assert read_serving(tmp_path / "serve.toml", ["i"])[1].hook.kind == kind


def test_all_paths_of_a_file_are_relative_to_it(tmp_path: Path) -> None:
    lines = ['api_key_file = "keys"', "[feedback]", 'file = "f.db"', "[hook]", 'secret_file = "s"', 'token_file = "t"']
    (tmp_path / "serve.toml").write_text("\n".join(lines), "utf-8")
    _, settings = read_serving(tmp_path / "serve.toml", ["i"], {"feedback_file": "elsewhere.db", "hook_url": "u"})
    hook, feedback = settings.hook, settings.feedback
    for path, name in ((settings.api_key_file, "keys"), (hook.secret_file, "s"), (hook.token_file, "t")):
        assert path == str(tmp_path / name)
    assert (feedback.file, hook.url) == ("elsewhere.db", "u")
    assert read_serving(tmp_path / "serve.toml", ["i"])[1].feedback.file == str(tmp_path / "f.db")


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("unix:/run/p.sock", True),
     ("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("10.1.2.3", False), ("169.254.1.1", False),
     ("fd00::1", False), ("localhost.example", False), ("desk.example", False)],
)  # fmt: skip
def test_an_address_that_other_machines_can_reach_needs_keys(host: str, is_ours: bool) -> None:
    if is_ours:
        check_reach(ServingSettings(host=host))
    else:
        with pytest.raises(UsageError, match=f"^{host} can be reached by other machines"):
            check_reach(ServingSettings(host=host))
    check_reach(ServingSettings(host=host, api_key_file="keys"))


def test_names_of_served_models_are_distinct_and_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    config = tmp_path / "config" / "serve.toml"
    (config.parent / "index").mkdir(parents=True)
    config.write_text('[models]\nsupport = "index"\nother = "bm25"\n', "utf-8")
    served, _ = read_serving(config, ["x=y=z", "a=b", "runs/My Model/", "hf:owner/Name"])
    assert served == {
        "support": str(config.parent / "index"), "other": "bm25",
        "x": "y=z", "a-b": "a=b", "my-model": "runs/My Model/", "name": "hf:owner/Name",
    }  # fmt: skip
    for again in ("bm25", "elsewhere"):
        with pytest.raises(UsageError, match=f"other is already the name of bm25; give another name, as OTHER={again}"):
            read_serving(config, [f"other={again}"])
    assert checked_name("a" * 128) == "a" * 128
    for path, name in (
        (".", tmp_path.name),
        ("./", tmp_path.name),
        ("m/a#truncate_dim=64", "a-truncate_dim-64"),
        ("C:\\chats\\Shop ", "shop"),
        ("runs/" + "ab " * 40, ("ab-" * 40)[:64]),
    ):
        assert read_serving(None, [path])[0] == {name: path}
    monkeypatch.chdir(config.parent)
    assert read_serving(None, [".."])[0] == {tmp_path.name: ".."}
    for path in ("???", "/", "é="):
        with pytest.raises(UsageError, match=re.escape(f"no valid name can be derived from {path!r}; give one, as")):
            read_serving(None, [path])
    for models, problem in (
        ('"a b" = "index"', "'a b' is not a valid name"),
        ('ok = "index"\nsupport = 3', "models is not a table of names and paths"),
    ):
        config.write_text(f"[models]\n{models}\n", "utf-8")
        with pytest.raises((UsageError, ConfigError), match=problem):
            read_serving(config)
    for wrong in ("", "a" * 129, "-a", "a:query", "a:candidate", "a:latest", "a b"):
        with pytest.raises(UsageError, match="is not a valid name"):
            checked_name(wrong)
    for name in ("a:queries", "query", "x:candidate:y"):
        assert checked_name(name) == name


def test_texts_are_kept_only_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("[feedback]\nkeep_text = true\n", "utf-8")
    for file, changes in ((None, {"feedback_keep_text": True}), (tmp_path / "serve.toml", {})):
        with pytest.raises(ConfigError, match="`keep_text` needs a file"):
            read_serving(file, ["i"], changes)
        _, settings = read_serving(file, ["i"], {**changes, "feedback_file": "f.db"})
        assert settings.feedback.keep_text
