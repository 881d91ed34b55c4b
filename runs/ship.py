"""Put a trained model among those that come with the package, without the paths of the machine that trained it.

    python runs/ship.py runs/work/convert/permissive/model convert
    python runs/ship.py runs/work/encoder/run/model minilm --more --half --tokens 128 --normalize

The model card beside it, README.md, is written by hand and stays.
"""

import argparse
import dataclasses
from pathlib import Path

from polyrank.models.artifacts import load_model, save_model
from polyrank.models.build import saved_texts

ROOT = Path(__file__).parents[1]
SHIPPED, MORE = ROOT / "src" / "polyrank" / "shipped", ROOT / "models" / "polyrank_models"


def main() -> None:
    """Copy the model; its recipe comes along, its files' folders do not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("trained", type=Path)
    parser.add_argument("name")
    parser.add_argument("--more", action="store_true", help="into the package of larger models")
    parser.add_argument("--half", action="store_true", help="in 16 bits")
    parser.add_argument("--tokens", type=int, help="to read of contexts and of candidates, instead of as in training")
    parser.add_argument("--normalize", action="store_true", help="vectors of one length, whatever it had in training")
    options = parser.parse_args()
    trained = load_model(options.trained)
    recipe = trained.metadata["recipe"]
    data = {key: Path(value).name if key in ("train", "valid") else value for key, value in recipe["data"].items()}
    metadata = {**trained.metadata, "recipe": {**recipe, "data": data, "output": Path(recipe["output"]).name}}
    texts, config = trained.texts, trained.config
    if options.normalize:
        config = dataclasses.replace(config, normalize=True)
    if options.tokens is not None:
        policy = dataclasses.replace(
            texts.policy, max_context_tokens=options.tokens, max_candidate_tokens=options.tokens
        )
        texts = saved_texts(trained.model, policy, (options.trained / "tokenizer.json").read_bytes(), "its tokenizer")
    folder = (MORE if options.more else SHIPPED) / options.name
    card = folder / "README.md"
    text = card.read_text("utf-8") if card.exists() else ""
    card.unlink(missing_ok=True)  # a folder with more in it than a model is not replaced
    save_model(folder, trained.model, texts, config, metadata=metadata, replace=folder.exists(), half=options.half)
    card.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
