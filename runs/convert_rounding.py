"""Cost of rounding: R@1 of a ConveRT checkpoint's 32-bit weights, with and without rounding.

    python runs/convert_rounding.py RUN_FOLDER TEST_FILE LIMIT

The run folder must contain a checkpoint (a finished training deletes its own) and a model folder (for its vocabulary).
Prints one JSON object: R@1 with and without rounding, and how often both rank the same candidate first.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from polyrank.config.models import ConvertConfig
from polyrank.data import read_examples
from polyrank.models import Convert
from polyrank.models.artifacts import load_model
from polyrank.models.convert import build_convert
from polyrank.scorers.load import make_scorer
from polyrank.text import ConvertTexts


def main(run: Path, test: Path, limit: int) -> None:
    """Score with and without rounding and print the result."""
    saved = load_model(run / "model")
    assert isinstance(saved.config, ConvertConfig)
    assert isinstance(saved.model, Convert)
    assert isinstance(saved.texts, ConvertTexts)
    tensors = load_file(run / "checkpoint.safetensors")
    examples = read_examples(test).examples[:limit]
    firsts = {}
    for quantization in ("float16", "none"):
        model = build_convert(dataclasses.replace(saved.config, quantization=quantization), saved.model.n_subwords)
        names = model.state_dict().keys()
        plain = {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if not name.startswith("optimizer.")}
        with torch.no_grad():
            model.load_state_dict({name: plain[name] for name in names})
        scorer = make_scorer(model, saved.texts, device="cpu", precision="fp32")
        lists = scorer.score([e.query for e in examples], [e.candidates for e in examples])
        firsts[quantization] = np.array([int(np.argmax(values)) for values in lists])
    right = np.array([e.relevant[0] for e in examples])
    figures = {name: float((first == right).mean()) for name, first in firsts.items()}
    same = float((firsts["float16"] == firsts["none"]).mean())
    print(json.dumps({"n_examples": len(examples), "R@1": figures, "same_first": same}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
