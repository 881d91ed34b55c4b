"""Writes a Bi-encoder with every second layer of a trained one, to start a smaller Cross-encoder from.

python runs/every_second_layer.py MODEL OUTPUT
"""

import argparse
from pathlib import Path
from typing import Any

from torch import nn

from polyrank.models import BiEncoder
from polyrank.models.artifacts import load_model, save_model


def main(model: Path, output: Path) -> None:
    """Keep the second, the fourth and so on, so that the last layer's outputs stay the network's."""
    trained = load_model(model)
    assert isinstance(trained.model, BiEncoder), "a Bi-encoder"
    for tower in {trained.model.context_tower, trained.model.candidate_tower}:
        network: Any = tower.backbone.network
        network.encoder.layer = nn.ModuleList([*network.encoder.layer][1::2])
        tower.backbone.config.num_hidden_layers = len(network.encoder.layer)
    save_model(output, trained.model, trained.texts, trained.config)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("output", type=Path)
    main(**vars(parser.parse_args()))
