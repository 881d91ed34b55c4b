"""``polyrank recipe``: what a recipe may contain."""

import json
from typing import Annotated

import typer

recipe_app = typer.Typer(no_args_is_help=True, help="Describe the recipes that train and pretrain read.")


@recipe_app.callback()
def recipe() -> None:
    """Describe the recipes that train and pretrain read."""


@recipe_app.command("schema")
def schema(
    pretrain: Annotated[bool, typer.Option("--pretrain", help="The schema of a recipe for polyrank pretrain.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, with which editors complete and check TOML."""
    from polyrank.config.schema import pretrain_schema, recipe_schema

    print(json.dumps(pretrain_schema() if pretrain else recipe_schema(), ensure_ascii=False, indent=2))
