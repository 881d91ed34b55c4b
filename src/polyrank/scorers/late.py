"""A late Cross-encoder bound to its text policy, device and precision: a Scorer that reads each candidate once.

It reads no text that a first stage with the same lower layers has just read.
Shapes: B contexts, P pairs, T tokens, S inputs of joined layers per token, D dimensions.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from polyrank.config.models import Side
from polyrank.devices import distributed
from polyrank.models.bert import BertModel
from polyrank.models.bi_encoder import TwoTowers
from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.records import Context, ContextLike, contexts_of
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.kept import Kept
from polyrank.scorers.network import inference
from polyrank.scorers.one_pass import Collector, Encode
from polyrank.scorers.protocols import Floats, Scorer
from polyrank.text import Tokens, pad
from polyrank.text.tokens import to_device, token_batches

Inputs = NDArray[np.float16]
"""The inputs ``[T, S, D]`` of the joined layers for one text, in 16 bits."""

MAX_KEPT = 2 << 30
"""Bytes of kept inputs of candidates; a token of 384 dimensions takes 768 for each of its S inputs."""

MAX_OFFERED = 64 << 20
"""Bytes of inputs from the first stage's passes, which are dropped when they are used."""

PAIRS_LONGER = 4
"""Padded tokens of a batch of pairs, as a multiple of a batch of texts: the layers that join compute a part of them."""

PROBE = Context(("how are you today ?",))


class LateScorer(CrossScorer):
    """A late Cross-encoder as a Scorer. A candidate is read once, however many contexts it is scored for."""

    model: LateCrossEncoder  # type: ignore[assignment]  # scores pairs as a Cross-encoder, from other inputs

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.kept = Kept[str, Inputs](MAX_KEPT)
        self._offered = Kept[tuple[Side, tuple[int, ...]], Inputs](MAX_OFFERED)
        self._followed = WeakSet[EncoderScorer]()  # they refer to this object

    def _scores(self, queries: Sequence[Context], lists: Sequence[Sequence[str]]) -> Floats:
        if not any(lists):
            return np.empty(0, np.float32)
        with inference(self.model, self.device, self.dtype):
            scores: Floats = self.joined_scores(queries, lists, range(len(lists))).cpu().numpy()
        return scores

    def joined_scores(
        self,
        contexts: Sequence[ContextLike],
        lists: Sequence[Sequence[str]],
        rows: Sequence[int],
        chunk_size: int | None = None,
    ) -> Tensor:
        """Scores ``[P]`` of the candidates of some contexts, one list after the other, with a graph in training.

        Args:
            contexts: B of them; processes compute the inputs of all together.
            lists: the candidates of each.
            rows: the numbers of the contexts to score, with at least one candidate.
            chunk_size: see ``joined``.
        """
        place = {text: i for i, text in enumerate(dict.fromkeys(text for texts in lists for text in texts))}
        pairs = [(row, place[text]) for row in rows for text in lists[row]]
        return self.joined(self.context_inputs(contexts), self.candidate_inputs(list(place)), pairs, chunk_size)

    def context_inputs(self, contexts: Sequence[ContextLike]) -> list[Inputs]:
        """The inputs of the joined layers for each context."""
        return self._inputs("context", [self.texts.context_ids(context) for context in contexts_of(contexts)])

    def candidate_inputs(self, texts: Sequence[str]) -> list[Inputs]:
        """The inputs of the joined layers for each of some distinct candidates; kept ones are not computed again."""
        inputs_of = {text: self.kept.get(text) for text in texts}
        new = [text for text, inputs in inputs_of.items() if inputs is None]
        computed = list(zip(new, self._inputs("candidate", self.texts.all_candidate_ids(new)), strict=True))
        self.kept.add(computed)
        return [*(inputs_of | dict(computed)).values()]  # type: ignore[list-item]  # none is missing

    def _inputs(self, side: Side, rows: Sequence[Sequence[int]]) -> list[Inputs]:
        """The inputs for each text's ids: the first stage's, or else this network's."""
        inputs_of = {ids: self._offered.pop((side, ids)) for ids in dict.fromkeys(map(tuple, rows))}
        new = [ids for ids, inputs in inputs_of.items() if inputs is None]
        for batch, inputs in self.batches(partial(self.model.inputs, side), new):
            lengths = [len(new[row]) for row in batch]
            inputs_of |= zip([new[row] for row in batch], _narrow(inputs, lengths), strict=True)
        return [inputs_of[tuple(row)] for row in rows]  # type: ignore[misc]  # none is missing

    def follow(self, first_stage: Scorer, sides: Sequence[Side] = ("context",)) -> None:
        """Take the same inputs from the passes of a first stage whose network begins with the same layers.

        Args:
            first_stage: scores the same texts just before; any other one changes nothing.
            sides: of the texts.
        """
        for encoder in first_stage.networks:
            if isinstance(encoder, EncoderScorer) and encoder not in self._followed:
                self._followed.add(encoder)
                for side in sides:
                    if (collector := self._collector(encoder, side)) is not None:
                        encoder.around[side] = partial(self._offer, side, collector)

    def _collector(self, encoder: EncoderScorer, side: Side) -> Collector | None:
        """A collector of inputs during the encoder's passes, if those of one sentence equal this network's."""
        if not isinstance(network := encoder.model, TwoTowers) or encoder.device != self.device:
            return None
        bert, layers = (tower := network.tower(side)).backbone.network, self.model.layers_of(side)
        words: Any = self.model.transformer(side).backbone.embeddings().weight
        if not isinstance(bert, BertModel) or len(bert.encoder.layer) < layers.stop:
            return None
        if not _equal(bert.get_input_embeddings().weight, words):
            return None
        tokens = pad([self.texts.context_ids(PROBE)]).to(self.device)
        with inference(self.model, self.device, self.dtype):
            expected = self.model.inputs(side, tokens)
        collector = Collector(bert, layers)
        with inference(network, encoder.device, encoder.dtype):
            _, collected = collector.during(tower, tokens)
        if _equal(collected, expected):
            return collector
        collector.close()
        return None

    def _offer(self, side: Side, collector: Collector, encode: Encode, tokens: Tokens) -> Any:
        """An encoder's pass, whose inputs are kept for the next scores."""
        if distributed.world_size() > 1:  # each process sees only its own passes, but must compute what all compute
            return encode(tokens)
        result, inputs = collector.during(encode, tokens)
        ids, lengths = tokens.on_host()
        keys = [(side, tuple(row[:n].tolist())) for row, n in zip(ids, lengths, strict=True)]
        self._offered.add(zip(keys, _narrow(inputs, lengths), strict=True))
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
        alike: dict[tuple[int, int], list[int]] = {}
        for pair, (a, b) in enumerate(pairs):
            widths = self.width(len(contexts[a])), self.width(len(candidates[b]))
            alike.setdefault(widths if self.rounds else (0, 0), []).append(pair)
        groups = []
        for some in alike.values():
            lengths = [len(contexts[pairs[i][0]]) + len(candidates[pairs[i][1]]) for i in some]
            groups += [[some[i] for i in group] for group in token_batches(lengths, PAIRS_LONGER * self.max_tokens)]
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
        mask = np.arange(self.width(lengths.max())) < lengths[:, None]
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


def _narrow(inputs: Tensor, lengths: Iterable[int]) -> Iterator[Inputs]:
    """The inputs of real tokens, for each text of a padded batch ``[B, T, S, D]``."""
    rows: Inputs = inputs.half().cpu().numpy()
    return (row[:n].copy() for row, n in zip(rows, lengths, strict=True))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
