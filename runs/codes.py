"""How far apart a Poly-encoder's context vectors are: the mean cosine of two vectors of one context (a Bi-encoder: 1).

python runs/codes.py MODEL DATA [N]
"""

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np

from polyrank.data import read_examples
from polyrank.scorers.open import load_encoder


def main(model: Path, data: Path, n: int = 200) -> None:
    """Print one JSON object."""
    encoder = load_encoder(model)
    examples = read_examples(data).examples
    vectors, mask = encoder.encode_contexts([example.query for example in islice(examples, n)])
    cosines = []
    for found, real in zip(vectors, mask, strict=True):
        unit = found[real] / np.linalg.norm(found[real], axis=1, keepdims=True)
        if len(unit) > 1:
            cosines.append((np.square(unit.sum(0)).sum() - len(unit)) / (len(unit) * (len(unit) - 1)))
    print(json.dumps({"model": str(model), "n_contexts": len(cosines), "mean_cosine": float(np.mean(cosines))}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
