"""A late Cross-encoder bound to its text policy, device and precision: a Scorer that reads each candidate once.

Shapes: B contexts, P pairs, T tokens, S inputs of joined layers per token, D dimensions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.records import ContextLike, contexts_of
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.inputs import matched_lists
from polyrank.scorers.network import inference
from polyrank.scorers.protocols import Floats
from polyrank.text import Tokens
from polyrank.text.tokens import to_device, token_batches

Inputs = NDArray[np.float16]
"""The inputs ``[T, S, D]`` of the joined layers for one text, in 16 bits."""

PAIRS_LONGER = 4
"""Padded tokens of a batch of pairs, as a multiple of a batch of texts: the layers that join compute a part of them."""


class LateScorer(CrossScorer):
    """A late Cross-encoder as a Scorer. A candidate is read once, however many contexts it is scored for."""

    model: LateCrossEncoder  # type: ignore[assignment]  # scores pairs as a Cross-encoder, from other inputs

    max_kept = 2 << 30
    """Bytes of kept inputs of candidates; a token of 384 dimensions takes 768 for each of its S inputs."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._kept: dict[str, Inputs] = {}
        self._n_bytes = 0

    def score(self, contexts: Sequence[ContextLike], candidates: Sequence[Sequence[str]]) -> list[Floats]:
        """Each context's own candidates: one array of length ``len(candidates[i])`` per context."""
        queries, lists = matched_lists(contexts, candidates)
        place = {text: i for i, text in enumerate(dict.fromkeys(text for texts in lists for text in texts))}
        pairs = [(row, place[text]) for row, texts in enumerate(lists) for text in texts]
        if not pairs:
            return [np.zeros(0, np.float32) for _ in lists]
        with inference(self.model, self.device, self.dtype):
            flat = self.joined(self.context_inputs(queries), self.candidate_inputs(list(place)), pairs).cpu().numpy()
        ends = np.cumsum([len(texts) for texts in lists])
        return [flat[end - len(texts) : end] for end, texts in zip(ends, lists, strict=True)]

    def context_inputs(self, contexts: Sequence[ContextLike]) -> list[Inputs]:
        """The inputs of the joined layers for each context."""
        rows = [self.texts.context_ids(context) for context in contexts_of(contexts)]
        return self._inputs(self.model.context_inputs, rows)

    def candidate_inputs(self, texts: Sequence[str]) -> list[Inputs]:
        """The inputs of the joined layers for each of some distinct candidates; kept ones are not computed again."""
        new = [text for text in texts if text not in self._kept]
        found = dict(
            zip(new, self._inputs(self.model.candidate_inputs, self.texts.all_candidate_ids(new)), strict=True)
        )
        result = [found[text] if text in found else self._kept[text] for text in texts]
        self._kept |= found
        self._n_bytes += sum(inputs.nbytes for inputs in found.values())
        while self._n_bytes > self.max_kept:
            self._n_bytes -= self._kept.pop(next(iter(self._kept))).nbytes  # the oldest
        return result

    def _inputs(self, compute: Callable[[Tokens], Tensor], rows: Sequence[Sequence[int]]) -> list[Inputs]:
        result: list[Inputs] = [np.zeros((0, 0, 0), np.float16)] * len(rows)
        for batch, inputs in self.batches(compute, rows):
            narrow: Inputs = inputs.half().cpu().numpy()
            for row, own in zip(batch, narrow, strict=True):
                result[row] = own[: len(rows[row])].copy()
        return result

    def joined(
        self,
        contexts: Sequence[Inputs],
        candidates: Sequence[Inputs],
        pairs: Sequence[tuple[int, int]],
        chunk_size: int | None = None,
    ) -> Tensor:
        """Scores ``[P]`` of pairs by the joined layers, with a graph in training.

        Args:
            contexts, candidates: from ``context_inputs`` and ``candidate_inputs``.
            pairs: the numbers of the context and the candidate of each pair; at least one pair.
            chunk_size: pairs whose activations are in memory at once, which are computed again in the backward pass;
                None: all.
        """
        lengths = [len(contexts[a]) + len(candidates[b]) for a, b in pairs]
        groups = token_batches(lengths, PAIRS_LONGER * self.max_tokens)
        if chunk_size is not None:
            groups = [group[i : i + chunk_size] for group in groups for i in range(0, len(group), chunk_size)]
        parts = []
        for group in groups:
            sides = [(side, [pairs[i][n] for i in group]) for n, side in enumerate((contexts, candidates))]
            (own, numbers), (other, others) = sides if self.model.reader == "context" else reversed(sides)
            read, real, own_of = self._padded(own, numbers)
            shown, shown_real, other_of = self._padded(other, others)
            n_tokens = np.array([len(own[number]) for number in numbers])
            inputs = (read, real, shown, shown_real, own_of, other_of, n_tokens)
            if chunk_size is None or not torch.is_grad_enabled():
                parts.append(self.model(*inputs))
            else:
                parts.append(checkpoint(self.model, *inputs, use_reentrant=False))
        back = torch.tensor([i for group in groups for i in group]).argsort()
        return torch.cat(parts)[to_device(back, self.device)]

    def _padded(self, texts: Sequence[Inputs], numbers: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The inputs of the texts with these numbers, each once, their mask, and the row of each number."""
        row_of = {number: row for row, number in enumerate(dict.fromkeys(numbers))}
        chosen = [texts[number] for number in row_of]
        lengths = np.array([len(inputs) for inputs in chosen])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros((*mask.shape, *chosen[0].shape[1:]), np.float16)
        padded[mask] = np.concatenate(chosen)
        rows = torch.tensor([row_of[number] for number in numbers])
        return (
            to_device(torch.from_numpy(padded), self.device).float(),
            to_device(torch.from_numpy(mask), self.device),
            to_device(rows, self.device),
        )

    def forget(self) -> None:
        """Does nothing: what is kept comes from layers that are not trained."""
