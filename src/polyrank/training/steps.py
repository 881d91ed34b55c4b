"""Training methods as steps: a batch of examples in, a loss out. They know no optimiser, file or schedule.

A step also says how long each example is (for batches of like length) and what text it could use as negatives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from polyrank.data import sample_negatives
from polyrank.losses import cross_entropy, distinct
from polyrank.models import BiEncoder, Convert, CrossEncoder, PolyEncoder
from polyrank.records import Context, Example
from polyrank.scores import scores
from polyrank.text import ConvertTexts, Texts


class Step(Protocol):
    """What ``fit`` asks of a training method."""

    def length(self, example: Example) -> int:
        """Tokens of an example, for grouping."""
        ...

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int) -> Tensor:
        """The mean loss of a batch of (position in the data, example), in update ``number``: has a gradient."""
        ...


@dataclass(frozen=True, slots=True)
class InBatchStep:
    """Cross-entropy where the other responses of the batch are the negatives; equal texts are masked.

    Given negatives of an example (its other candidates) join as further columns for everyone.

    Args:
        model: a Bi- or Poly-encoder.
        texts: its text policy at work.
        device: where to compute.
        smoothing: how much probability is spread over the wrong candidates.

    Source: Humeau et al., Poly-encoders (ICLR 2020), section 4.2.
    """

    model: BiEncoder | PolyEncoder
    texts: Texts
    device: torch.device
    smoothing: float = 0.0

    def length(self, example: Example) -> int:
        """Tokens of the context; the longer side decides the cost."""
        return len(self.texts.context_ids(example.query))

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        del epoch, number
        examples = [example for _, example in batch]
        responses = [response_of(example) for example in examples]
        given = [
            text
            for e in examples
            for i, text in enumerate(e.candidates)
            if i not in e.relevant and text != response_of(e)
        ]
        columns = [*responses, *dict.fromkeys(given)]
        place = {text: i for i, text in enumerate(dict.fromkeys(columns))}
        unique = self.model.encode_candidates(self.texts.candidates(list(place)).to(self.device))
        keys = torch.tensor([place[text] for text in columns], device=self.device)
        contexts, mask = self.model.encode_contexts(
            self.texts.contexts([example.query for example in examples]).to(self.device)
        )
        values = scores(contexts, unique[keys][None], mask)
        target = torch.arange(len(examples), device=self.device)
        return cross_entropy(values, target, distinct(keys, len(examples)), self.smoothing)


@dataclass(frozen=True, slots=True)
class ListwiseStep:
    """Cross-entropy over each context's own candidates: the response and ``n_negatives`` wrong ones.

    Negatives that come with the example are used first; the rest are other responses of the data, drawn anew each
    epoch as a pure function of (seed, epoch, position).

    Args:
        model: any model here; a Cross-encoder reads B x (1 + n_negatives) pairs.
        texts: its text policy at work.
        device: where to compute.
        pool: distinct responses to draw from.
        n_negatives: per context.
        seed: of the draw.

    Source: Humeau et al., Poly-encoders (ICLR 2020), sections 4.3 and 5.1.
    """

    model: BiEncoder | PolyEncoder | CrossEncoder | Convert
    texts: Texts | ConvertTexts
    device: torch.device
    pool: Sequence[str]
    n_negatives: int
    seed: int

    def length(self, example: Example) -> int:
        """Tokens of the context."""
        return len(self.texts.context_ids(example.query))

    def candidates_of(self, position: int, example: Example, epoch: int) -> list[str]:
        """The response, then its negatives."""
        right = {example.candidates[i] for i in example.relevant}
        wrong = [text for text in dict.fromkeys(example.candidates) if text not in right][: self.n_negatives]
        missing = self.n_negatives - len(wrong)
        if missing > 0:
            taken = right | set(wrong)
            # a few more than needed, since some of them may be among the taken
            drawn = sample_negatives(
                len(self.pool),
                (),
                min(missing + len(taken), len(self.pool)),
                seed=self.seed,
                epoch=epoch,
                index=position,
            )
            wrong += [text for i in drawn if (text := self.pool[int(i)]) not in taken][:missing]
        return [response_of(example), *wrong]

    def __call__(self, batch: Sequence[tuple[int, Example]], epoch: int, number: int = 0) -> Tensor:
        """The mean loss of the batch."""
        del number
        lists = [self.candidates_of(position, example, epoch) for position, example in batch]
        contexts = [example.query for _, example in batch]
        width = max(map(len, lists))
        allowed = torch.tensor([[i < len(row) for i in range(width)] for row in lists], device=self.device)
        values = torch.zeros(len(lists), width, device=self.device)
        values[allowed] = self._score(contexts, lists)
        target = torch.zeros(len(lists), dtype=torch.int64, device=self.device)
        return cross_entropy(values, target, allowed)

    def _score(self, contexts: Sequence[Context], lists: Sequence[Sequence[str]]) -> Tensor:
        """Scores of all pairs, row by row: ``[sum of lengths]``."""
        if isinstance(self.model, CrossEncoder):
            assert isinstance(self.texts, Texts), "only a ConveRT has texts of another kind"
            pairs = [(context, text) for context, row in zip(contexts, lists, strict=True) for text in row]
            return self.model(self.texts.pairs(pairs).to(self.device))  # type: ignore[no-any-return]  # untyped call
        vectors, mask = self.model.encode_contexts(self.texts.contexts(contexts).to(self.device))
        number = {text: i for i, text in enumerate(dict.fromkeys(text for row in lists for text in row))}
        unique = self.model.encode_candidates(self.texts.candidates(list(number)).to(self.device))
        parts = []
        for i, row in enumerate(lists):
            places = torch.tensor([number[text] for text in row], device=self.device)
            parts.append(scores(vectors[i : i + 1], unique[places][None], mask[i : i + 1])[0])
        return torch.cat(parts)


def response_of(example: Example) -> str:
    response = example.response
    assert response is not None, "recipe.py keeps only examples with a response"
    return response
