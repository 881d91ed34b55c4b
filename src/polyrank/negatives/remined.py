"""Negatives that the network in training ranks highest itself, mined again every few epochs.

An epoch's negatives are a function of the seed and of the weights at its start. A file next to the checkpoint holds
them, so a run that resumes in the middle of an epoch has the same ones.
"""

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from polyrank.config.runs import NETWORK_FOLDERS
from polyrank.devices import distributed
from polyrank.errors import ArtifactError
from polyrank.negatives.hard import SPARE, HardNegatives, choose, collect_right_answers, hard_candidates
from polyrank.negatives.mine import Retrieve, from_pool
from polyrank.records import Context, Example
from polyrank.scorers.encoder import EncoderScorer
from polyrank.storage.durable import write_file

Rows = NDArray[np.int32]


def _n_examples_seen(folder: Path) -> int:
    """The examples that a run's networks were trained on so far, from their metrics; each epoch adds every example."""
    n_seen = 0
    for file in (folder / name / "metrics.jsonl" for name in NETWORK_FOLDERS):
        if not file.exists():
            continue
        for line in file.read_text("utf-8").splitlines():
            n_seen = max(n_seen, json.loads(line).get("n_examples", 0))
    return n_seen


class MinedNegatives:
    """The wrong responses of the data that the network ranks highest for each context.

    Args:
        examples: the training data.
        scorer: the network in training.
        pool: distinct responses to rank.
        settings: which ranks to use.
        every: epochs between two minings; the first is before the first epoch.
        folder: for the mined lists.
        notify: called with a line before each mining, which may take minutes.

    Raises:
        ArtifactError: when called, if a run that resumes in the middle of an epoch has lost the epoch's file.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        scorer: EncoderScorer,
        pool: Sequence[str],
        settings: HardNegatives,
        *,
        every: int,
        folder: Path,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.examples, self.scorer, self.pool, self.settings = examples, scorer, pool, settings
        self.every, self.folder, self.notify = every, folder, notify
        self._rights = collect_right_answers(examples)
        self._epoch = -1
        self._rows: Rows = np.zeros((0, 0), np.int32)

    def __call__(self, position: int, example: Example, epoch: int) -> list[str]:
        """``n_negatives`` texts, hardest first; fewer if the ranks hold fewer."""
        mined = epoch // self.every * self.every
        if mined != self._epoch:
            self._load_or_mine(mined)
        return [self.pool[i] for i in self._rows[position].tolist() if i >= 0]

    def _load_or_mine(self, epoch: int) -> None:
        """Read the lists of an epoch from their file, or mine and write them, before the epoch's first update."""
        file = self.folder / f"mined-{epoch}.npy"
        shape = (len(self.examples), self.settings.n_negatives)
        saved = distributed.on_rank_zero(lambda: self._read(file, epoch))
        self._rows = self._mine(epoch, np.full(shape, -1, np.int32)) if saved is None else saved
        if saved is None and distributed.is_rank_zero():
            stream = io.BytesIO()
            np.save(stream, self._rows)
            write_file(file, stream.getvalue())
        self._epoch = epoch

    def _read(self, file: Path, epoch: int) -> Rows | None:
        """The lists of an epoch; None if they have not been mined yet."""
        if file.exists():
            try:
                rows: Rows = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
            except (ValueError, EOFError) as error:
                raise ArtifactError(f"{file} is damaged ({error}); train again with `overwrite=True`") from error
            fits = rows.shape == (len(self.examples), self.settings.n_negatives) and rows.dtype == np.int32
            if not fits or rows.min(initial=-1) < -1 or rows.max(initial=-1) >= len(self.pool):
                raise ArtifactError(f"{file} does not fit the examples; train again with `overwrite=True`")
            return rows
        if _n_examples_seen(self.folder) > epoch * len(self.examples):
            raise ArtifactError(
                f"{file} is missing, and the weights that it was mined with are gone; train again with `overwrite=True`"
            )
        return None

    def _mine(self, epoch: int, rows: Rows) -> Rows:
        self.notify(f"mining wrong responses for {len(self.examples):,} examples among {len(self.pool):,} responses")
        row_of = {text: row for row, text in enumerate(self.pool)}
        self.scorer.forget()
        retrieve = from_pool(self.scorer, self.pool)
        for start in range(0, len(self.examples), 32):
            part = self.examples[start : start + 32]
            first = retrieve([example.query for example in part], self.settings.last_rank + SPARE)
            for offset, texts in enumerate(first):
                index, example = start + offset, part[offset]
                right = self._rights[example.query]
                ranked = self._further(retrieve, example.query, texts)
                wrong = hard_candidates(ranked, right, self.settings, turns=example.context)
                negatives = choose(wrong, self.settings, epoch, index)
                rows[index, : len(negatives)] = [row_of[text] for text in negatives]
        self.scorer.forget()
        torch.clear_autocast_cache()  # else training would use cached weights that were cast without a gradient
        return rows

    def _further(self, retrieve: Retrieve, query: Context, texts: Sequence[str]) -> Iterator[str]:
        """All of the pool, best first, if so many are read: right answers and their copies may fill the first ranks."""
        yield from texts
        while len(texts) < len(self.pool):
            n = len(texts)
            texts = retrieve([query], 4 * n)[0]
            yield from texts[n:]
