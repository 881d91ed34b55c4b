"""Each recipe key is in use: a recipe under runs/ sets it, or a page of the documentation explains it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from polyrank.config.schema import pretrain_schema, recipe_schema

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([a-z_]+)` \|", re.M)
GENERATED = ("recipe.md", "commands.md")
MOST = 160


def test_every_key_is_used_by_a_recipe_or_explained_on_a_page() -> None:
    keys = ROW.findall((ROOT / "docs" / "recipe.md").read_text("utf-8"))
    files = [file for pattern in ("*.toml", "*.sh", "*.py") for file in (ROOT / "runs").rglob(pattern)]
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    text = "\n".join(file.read_text("utf-8") for file in [*files, *pages])
    words = set(re.findall(r"\w+", text))
    assert [key for key in keys if key not in words] == []


def test_there_are_few_keys() -> None:
    """The dotted keys of both kinds of recipes, the second network's too; ``kind`` selects a table and is none."""
    keys = {*dotted(recipe_schema()), *dotted(pretrain_schema())}
    assert "train.method.smoothing" in keys
    assert "reranker.train.schedule.final_lr" in keys
    assert len(keys) <= MOST


def dotted(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in schema["properties"].items():
        tables = [option for option in (value, *value.get("anyOf", ())) if "properties" in option]
        for table in tables:
            yield from dotted(table, f"{prefix}{name}.")
        if not tables and "const" not in value:
            yield prefix + name
