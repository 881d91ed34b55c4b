"""Models ready to be trained: built new or from a folder, with functions that validate and save them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyrank.config.models import ConvertText
from polyrank.config.runs import MODEL_FOLDER
from polyrank.config.train import NetworkTraining, Precision
from polyrank.data.mapped_examples import StoredExamples
from polyrank.loading.recipes import NetworkPlan
from polyrank.models import Convert, Network
from polyrank.models.artifacts import save_model
from polyrank.models.lora import add_adapters
from polyrank.models.start import start_model
from polyrank.ranking.metrics import metric_values, placement_of, with_duplicates
from polyrank.records import Example
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.load import make_scorer
from polyrank.scorers.protocols import Scorer
from polyrank.storage.durable import make_folders
from polyrank.text import Texts
from polyrank.training.learner import Learner, Report


@dataclass(frozen=True, slots=True)
class Ranker:
    """A model to train.

    Args:
        model: the network, on its device.
        texts: its tokenized text policy.
        scorer: ranks with the current weights, for validation and mining.
        save: writes the current weights as a model folder, over any earlier one, given its path and metadata.
    """

    model: Network
    texts: Texts
    scorer: CrossScorer | EncoderScorer
    save: Callable[[Path, dict[str, Any]], None]

    def length(self, example: Example) -> int:
        """The length of an example's context, the longer side: in tokens, or for a ConveRT in characters.

        Characters of the last turn group texts as well as subwords do, without segmenting them.
        """
        if isinstance(self.model, Convert):
            return len(example.context[-1]) if example.context else 0
        return len(self.texts.context_ids(example.query))


MAX_VOCABULARY_EXAMPLES = 200_000  # a vocabulary is learned from at most so many examples on disk
MAX_WITH_REPEATS = 5_000_000  # the same with text.count_repeats: the 10 million sentences of the ConveRT paper


def new_ranker(
    network: NetworkPlan,
    examples: Sequence[Example],
    *,
    precision: Precision,
    seed: int,
    device: torch.device,
    lora_rank: int | None = None,
) -> Ranker:
    """The network of a plan, with the weights that it starts from; with ``lora_rank``, only adapters are trained.

    Raises:
        ConfigError: the weights do not fit the model.
    """
    repeats = isinstance(network.text, ConvertText) and network.text.count_repeats
    if isinstance(examples, StoredExamples):
        n = min(len(examples), MAX_WITH_REPEATS if repeats else MAX_VOCABULARY_EXAMPLES)
        examples = examples.choose(np.linspace(0, len(examples) - 1, n, dtype=np.int64))
    responses = (response for example in examples if (response := example.response))
    model, texts, config = start_model(
        network.model,
        network.text,
        seed=seed,
        sample=list(islice(responses, 256)),
        dropout=network.train.dropout,
        new_dropout=network.train.new_dropout,
        corpus=own_texts(examples) if repeats else distinct_texts(examples),
        start=network.start,
    )

    if lora_rank is not None:
        add_adapters(model, lora_rank, seed)

    def save(path: Path, metadata: dict[str, Any]) -> None:
        save_model(path, model, texts, config, metadata=metadata, replace=True)

    return Ranker(model, texts, make_scorer(model, texts, device=str(device), precision=precision), save)


def make_learner(
    ranker: Ranker,
    settings: NetworkTraining,
    folder: Path,
    valid: Sequence[Example],
    *,
    metadata: dict[str, Any],
    report: Report,
    name: str = "",
    judged: Scorer | None = None,
) -> Learner:
    """A ranker with a folder for its best version and its metrics.

    Args:
        ranker: to train.
        settings: how to train it.
        folder: for ``model/`` and ``metrics.jsonl``.
        valid: validation lists; if empty, the last version counts as the best.
        metadata: saved with the model.
        report: called with each record of ``metrics.jsonl``.
        name: of the network, if there are several.
        judged: ranks the validation lists, with the ranker as a part; None: the ranker alone.
    """

    def evaluate() -> dict[str, float]:
        ranker.scorer.forget()
        return validation_figures(judged or ranker.scorer, valid)

    def save_best(figures: dict[str, float]) -> None:
        ranker.save(folder / MODEL_FOLDER, {**metadata, "validation": figures})

    make_folders(folder)
    return Learner(
        model=ranker.model,
        settings=settings,
        folder=folder,
        save_best=save_best,
        evaluate=evaluate if valid else None,
        report=report,
        name=name,
    )


def distinct_texts(examples: Sequence[Example]) -> Iterator[str]:
    """Every turn and candidate once, in order of appearance; the contexts of a dialogue repeat its turns."""
    seen: set[str] = set()
    for example in examples:
        for text in (*example.context, *example.candidates, *example.background):
            if text not in seen:
                seen.add(text)
                yield text


def own_texts(examples: Sequence[Example]) -> Iterator[str]:
    """The last turn and response of every example, with repetitions; then every other text once.

    >>> pairs = [Example(turns, (text,), (0,)) for turns, text in ((("hi",), "yes"), (("hi", "yes", "ok"), "yes"))]
    >>> list(own_texts(pairs))
    ['hi', 'yes', 'ok', 'yes']
    """
    seen: set[str] = set()
    for example in examples:
        said = [*example.context[-1:], *(example.candidates[i] for i in example.relevant[:1])]
        yield from said
        seen.update(said)
    for text in distinct_texts(examples):
        if text not in seen:
            yield text


def validation_figures(scorer: Scorer, examples: Sequence[Example]) -> dict[str, float]:
    """Mean cross-entropy ("loss"), R@1 and MRR over candidate lists."""
    losses, placements = [], []
    for start in range(0, len(examples), 32):
        part = examples[start : start + 32]
        lists = scorer.score([e.query for e in part], [e.candidates for e in part])
        for example, values in zip(part, lists, strict=True):
            if not np.isfinite(values).all():
                return {"loss": math.inf, "R@1": 0.0, "MRR": 0.0}
            right = with_duplicates(example.candidates, example.relevant)
            top, wrong = values.max(), np.delete(values, list(right))
            first = values[example.relevant[0]]  # the loss has a single right answer, as in training
            losses.append(float(top + np.log(np.exp(np.append(wrong, first) - top).sum()) - first))
            placements.append(placement_of(values, right))
    values_of = metric_values(placements, (1,))
    return {
        "loss": float(np.mean(losses)),
        "R@1": float(values_of["R@1"].mean()),
        "MRR": float(values_of["MRR"].mean()),
    }
