"""The JSON Schema of recipes: it accepts what polyrank accepts, and refuses wrong names, types and numbers."""

import json
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from polyrank.cli import app
from polyrank.config.checked import Settings, field_types, without_none
from polyrank.config.models import TextPolicy
from polyrank.config.recipe import DataConfig, recipe_from_dict
from polyrank.config.schema import meanings, pretrain_schema, recipe_schema
from polyrank.config.serving import HookKind, read_serving
from polyrank.config.train import TrainConfig
from polyrank.errors import ConfigError

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*(ROOT / "runs/recipes").glob("*.toml"), *(ROOT / "runs/papers").glob("*.toml")])
RECIPES.remove(ROOT / "runs/papers/published.toml")  # the papers' figures
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
        {"model": {"backbone": "embedded"}},
        {"model": {"kind": "bi", "n_codes": 4}},
        {"data": {"train": 3}},
        {"train": {"lr": "fast"}},
        {"train": {"batch_size": 0}},
        {"train": {"schedule": {"kind": "step"}}},
        {"text": {"background": "nowhere"}},
        {"trian": {}},
    ],
)
def test_the_schema_refuses_what_polyrank_refuses(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        recipe_from_dict(SMALLEST | change)
    assert faults(SMALLEST | change)


@pytest.mark.parametrize(("table", "kind"), [("data", DataConfig), ("text", TextPolicy), ("train", TrainConfig)])
def test_every_key_has_a_description_and_a_type(table: str, kind: type[Settings]) -> None:
    for key, hint in field_types(kind).items():
        known = recipe_schema()["properties"][table]
        known = next(option for option in known.get("anyOf", [known]) if key in option["properties"])["properties"][key]
        assert known["description"], key
        assert without_none(hint)
        assert faults(SMALLEST | {table: {**SMALLEST.get(table, {}), key: {"no": "value"}}}), key  # type: ignore[dict-item]


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
        """

    both = "the others, in two lines."
    assert meanings(Settings) == {"one": "the first.", "two": both, "three": both, "four": both}


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
