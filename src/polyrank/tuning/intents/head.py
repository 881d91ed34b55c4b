"""The network on frozen encodings: two layers with dropout, trained by SGD with early stopping.

Shapes: N utterances, D dimensions of the encoding, H of the hidden layer, L intents.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.errors import DivergedError

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """Sizes that the grid search chooses.

    Args:
        hidden_dim: H.
        dropout: on the hidden layer.
        lr: of SGD.
    """

    hidden_dim: int = 512
    dropout: float = 0.3
    lr: float = 0.1


class Head(nn.Module):
    """Encodings to one raw score per intent: ``W2 dropout(relu(W1 (x - mean) / scale + b1)) + b2``.

    The vectors of different encoders differ much in size. The mean and the scale of the training encodings remove the
    difference, so one grid of learning rates fits all encoders.

    Args:
        dimension: D.
        hidden_dim: H.
        n_intents: L.
        dropout: on the hidden layer.

    Source: Henderson et al., ConveRT (2020), section 3.2, "Intent Classification"; Casanueva et al., Efficient Intent
    Detection with Dual Sentence Encoders (2020), section 2.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, dimension: int, hidden_dim: int, n_intents: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dimension))
        self.register_buffer("scale", torch.ones(()))
        self.hidden = nn.Linear(dimension, hidden_dim)
        self.output = nn.Linear(hidden_dim, n_intents)
        self.dropout = dropout

    def fit_scale(self, vectors: Tensor) -> None:
        """Set the mean of training encodings ``[N, D]``, and their root mean square after subtracting it."""
        self.mean.copy_(vectors.mean(0))
        self.scale.copy_((vectors - self.mean).square().mean().sqrt().clamp(min=1e-12))

    def forward(self, vectors: Tensor) -> Tensor:
        """Raw scores ``[N, L]`` of encodings ``[N, D]``."""
        hidden = F.relu(self.hidden((vectors - self.mean) / self.scale))
        scores: Tensor = self.output(F.dropout(hidden, self.dropout, self.training))
        return scores


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encodings ``[N, D]`` and the numbers of their intents ``[N]``; -1 is out of scope."""

    vectors: Floats
    labels: Labels

    def rows(self, rows: list[int]) -> "Encoded":
        """Some of the utterances."""
        return Encoded(self.vectors[rows], self.labels[rows])


@dataclass(frozen=True, slots=True)
class HeadFit:
    """The result of a training.

    Args:
        head: with the weights of the best epoch, in evaluation mode.
        config: its sizes.
        accuracy: on the development part.
        loss: cross-entropy on the development part.
        n_epochs: the best epoch.
    """

    head: Head
    config: HeadConfig
    accuracy: float
    loss: float
    n_epochs: int

    @property
    def rank(self) -> tuple[float, float]:
        """Larger is better: accuracy, then loss."""
        return self.accuracy, -self.loss


def fit_head(
    train: Encoded,
    dev: Encoded,
    n_intents: int,
    config: HeadConfig,
    *,
    seed: int,
    batch_size: int = 32,
    patience: int = 5,
    max_epochs: int = 200,
) -> HeadFit:
    """Train until the development part has not improved for ``patience`` epochs, and keep the best epoch's weights.

    Better means a higher accuracy, or the same with a lower loss. Weights, order and dropout depend only on the seed.

    Raises:
        DivergedError: the loss is not finite.
    """
    vectors, labels = torch.from_numpy(train.vectors), torch.from_numpy(train.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(vectors.shape[1], config.hidden_dim, n_intents, config.dropout)
        head.fit_scale(vectors)
        optimizer = torch.optim.SGD(head.parameters(), lr=config.lr)
        best, best_state, best_epoch = (-1.0, -math.inf), head.state_dict(), 0
        for epoch in range(1, max_epochs + 1):
            head.train()
            order = torch.from_numpy(np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(labels)))
            for batch in torch.split(order, batch_size):
                optimizer.zero_grad()
                torch.autograd.backward(F.cross_entropy(head(vectors[batch]), labels[batch]))
                optimizer.step()
            accuracy, loss = _accuracy_and_loss(head, dev)
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss is not finite after {epoch} epochs at lr {config.lr}; give a smaller learning rate"
                )
            if (accuracy, -loss) > best:
                best, best_epoch = (accuracy, -loss), epoch
                best_state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
            elif epoch - best_epoch >= patience:
                break
    head.load_state_dict(best_state)
    return HeadFit(head.eval(), config, best[0], -best[1], best_epoch)


def _accuracy_and_loss(head: Head, part: Encoded) -> tuple[float, float]:
    labels = torch.from_numpy(part.labels)
    with torch.inference_mode():
        scores = head.eval()(torch.from_numpy(part.vectors))
        return float((scores.argmax(1) == labels).double().mean()), float(F.cross_entropy(scores, labels))
