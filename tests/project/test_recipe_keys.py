"""Each recipe key is in use: a recipe under runs/ sets it, or a page of the documentation explains it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `([a-z_]+)` \|", re.M)
GENERATED = ("recipe.md", "commands.md")
MOST = 131  # names


def test_every_key_is_used_by_a_recipe_or_explained_on_a_page() -> None:
    keys = ROW.findall((ROOT / "docs" / "recipe.md").read_text("utf-8"))
    files = [file for pattern in ("*.toml", "*.sh", "*.py") for file in (ROOT / "runs").rglob(pattern)]
    pages = [page for page in (ROOT / "docs").glob("*.md") if page.name not in GENERATED]
    text = "\n".join(file.read_text("utf-8") for file in [*files, *pages])
    words = set(re.findall(r"\w+", text))
    assert [key for key in keys if key not in words] == []
    assert len(set(keys)) <= MOST
