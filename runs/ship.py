"""Put a trained model among those that come with the package, without the paths of the machine that trained it.

    python runs/ship.py runs/work/convert/permissive/model convert

The model card beside it, README.md, is written by hand and stays.
"""

import sys
from pathlib import Path

from polyrank.models.artifacts import load_model, save_model

SHIPPED = Path(__file__).parents[1] / "src" / "polyrank" / "shipped"


def main(trained: Path, name: str) -> None:
    """Copy the model; its recipe comes along, its files' folders do not."""
    found = load_model(trained)
    recipe = found.metadata["recipe"]
    data = {key: Path(value).name if key in ("train", "valid") else value for key, value in recipe["data"].items()}
    metadata = {**found.metadata, "recipe": {**recipe, "data": data, "output": Path(recipe["output"]).name}}
    card = SHIPPED / name / "README.md"
    text = card.read_text("utf-8") if card.exists() else ""
    place = SHIPPED / name
    fingerprint = save_model(place, found.model, found.texts, found.config, metadata=metadata, replace=place.exists())
    assert fingerprint == found.fingerprint, "storing a stored model must change nothing"
    card.write_text(text, "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
