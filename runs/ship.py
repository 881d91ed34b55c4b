"""Copies a trained model into the package, without the paths of the machine that trained it.

    python runs/ship.py runs/work/convert/permissive/model convert
    python runs/ship.py runs/work/encoder/third/model minilm --more --half --tokens 128 --share 0.25
        --earlier runs/work/encoder/average
    python runs/ship.py runs/work/second/run/model late --more --half --base shipped:minilm

The model card, README.md, is written by hand and stays in the folder.
"""

import argparse
from pathlib import Path

from mixtures import mix, with_tokens

from polyrank.models.artifacts import load_model, save_model

ROOT = Path(__file__).parents[1]
SHIPPED, MORE = ROOT / "src" / "polyrank" / "shipped", ROOT / "models" / "polyrank_models"


def main() -> None:
    """Copy the model with its recipe; paths in the recipe keep only their last part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("trained", type=Path)
    parser.add_argument("name")
    parser.add_argument("--more", action="store_true", help="copy into the package of larger models")
    parser.add_argument("--half", action="store_true", help="store the weights in 16 bits")
    parser.add_argument("--tokens", type=int, help="maximum per context and per candidate; default: as in training")
    parser.add_argument("--share", type=float, help="share of the trained weights in a mixture with earlier ones")
    parser.add_argument("--earlier", type=Path, help="a model with the earlier weights; default: the backbone")
    parser.add_argument("--base", help="leave out the weights that are those of this model")
    options = parser.parse_args()
    trained = load_model(options.trained)
    recipe = trained.metadata["recipe"]
    data = {
        key: Path(value).name if value and key in ("train", "valid") else value for key, value in recipe["data"].items()
    }
    start = recipe["train"].get("init_from")
    if start and not start.startswith("shipped:"):
        start = Path(start).parent.name  # RUN of RUN/model
    how = {**recipe["train"], "init_from": start}
    metadata = {
        **trained.metadata, "recipe": {**recipe, "data": data, "train": how, "output": Path(recipe["output"]).name}
    }  # fmt: skip
    texts = trained.texts
    if options.tokens is not None:
        texts = with_tokens(trained, options.trained, options.tokens)
    if options.share is not None:
        mix(trained, options.share, options.earlier)
        metadata["share"] = options.share
    folder = (MORE if options.more else SHIPPED) / options.name
    card = folder / "README.md"
    text = card.read_text("utf-8") if card.exists() else ""
    card.unlink(missing_ok=True)  # save_model only replaces a folder that holds nothing but a model
    save_model(
        folder, trained.model, texts, trained.config, metadata=metadata, replace=folder.exists(), half=options.half,
        base=options.base,
    )  # fmt: skip
    card.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
