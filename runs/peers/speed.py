"""Compares polyrank's speed with sentence-transformers', measured in alternation; prints one JSON object.

python runs/peers/speed.py encode POOL [--limit N] [--pairs N] [--repeats N] [--backend onnx ...] [--precision int8 ...]
    [--model FOLDER ...]
python runs/peers/speed.py train DATA [--limit N] [--batch N] [--cache N] [--speaker NAME]
Both: [--device cpu or cuda] [--backbone FOLDER] [--threads N]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.util import batch_to_device

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers.encoding import Peer, bench_encoding
from peers.training import POLICY, Update, bench_training

from polyrank.config.names import Backend
from polyrank.data import read_examples, read_pool
from polyrank.devices.choice import Precision, choose_dtype
from polyrank.loading.backbones import resolve_backbone
from polyrank.records import Example

NAME = "sentence-transformers"


def peers(backbone: str, device: str) -> dict[str, Peer]:
    """The library's encoder and Cross-encoder on polyrank's backbone: by default, and in bf16 where that is fast."""
    forms: dict[str, dict[str, Any]] = {NAME: {}}
    if choose_dtype("auto", torch.device(device)) == torch.bfloat16:
        forms[f"{NAME} bf16"] = {"model_kwargs": {"dtype": torch.bfloat16}}
    return {name: peer(backbone, device, options) for name, options in forms.items()}


def peer(backbone: str, device: str, options: dict[str, Any]) -> Peer:
    """The library's two models, loaded with ``options``."""
    folder = str(resolve_backbone(backbone).folder)
    encoder = SentenceTransformer(folder, device=device, **options)
    cross = CrossEncoder(folder, num_labels=1, device=device, **options)

    def encode(texts: Sequence[str]) -> Any:
        return np.asarray(encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False), np.float32)

    def rank(query: str, texts: Sequence[str]) -> Any:
        return np.asarray(cross.predict([(query, text) for text in texts], show_progress_bar=False), np.float32)

    return Peer(encode, rank)


def learner(examples: Sequence[Example], folder: Path, *, backbone: str, device: str) -> tuple[list[int], Update]:
    """A plain loop around the library's model and loss."""
    del folder
    dtype = choose_dtype("auto", torch.device(device))
    model = SentenceTransformer(str(resolve_backbone(backbone).folder), device=device)
    model.max_seq_length = POLICY.max_context_tokens
    loss_of = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    pairs = [(" ".join((*e.background, *e.context)), e.response or "") for e in examples]

    def update(batch: Sequence[int]) -> None:
        model.train()
        sides = zip(*(pairs[i] for i in batch), strict=True)
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            inputs = [batch_to_device(model.preprocess(list(side)), torch.device(device)) for side in sides]
            loss = loss_of(inputs, torch.empty(0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return [1] * len(examples), update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("encode", "train"))
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--backend", action="append", choices=get_args(Backend), default=[])
    parser.add_argument("--precision", action="append", default=[], choices=get_args(Precision))
    parser.add_argument("--model", type=Path, action="append", default=[])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--cache", type=int, help="also updates of N contexts, in chunks of a batch")
    parser.add_argument("--speaker")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="embedded")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.what == "encode":
        texts = [candidate.text for candidate in read_pool(options.data)][: options.limit]
        table = bench_encoding(
            texts,
            n_pairs=options.pairs,
            repeats=options.repeats,
            backends=options.backend,
            precisions=options.precision,
            models=options.model,
            backbone=options.backbone,
            device=options.device,
            peers=peers(options.backbone, options.device),
        )
    else:
        examples = [e for e in read_examples(options.data, speaker=options.speaker).examples if e.response is not None]
        examples = examples[:: max(1, len(examples) // options.limit)][: options.limit]
        place = {"backbone": options.backbone, "device": options.device}
        table = bench_training(
            examples,
            batch_size=options.batch,
            large_batch=options.cache,
            peers={NAME: partial(learner, **place)},
            **place,
        )
    print(json.dumps(table))


if __name__ == "__main__":
    main()
