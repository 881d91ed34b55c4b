"""``polyrank recipe``: describes recipes."""

import json
from typing import Annotated

from typer import Option

from polyrank.cli.help import add_command, command_group

recipe_app = command_group("recipe", "Describe the recipes of train and pretrain.")


@recipe_app.callback()
def recipe() -> None:
    """Describe the recipes of train and pretrain."""  # without a callback, a group of one command is that command


@add_command(recipe_app, "schema", "> recipe.schema.json")
def schema(
    pretrain: Annotated[bool, Option("--pretrain", help="The schema of a recipe for polyrank pretrain.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, with which editors complete and check TOML."""
    from polyrank.config.schema import pretrain_schema, recipe_schema

    print(json.dumps(pretrain_schema() if pretrain else recipe_schema(), ensure_ascii=False, indent=2))
