"""The network on frozen encodings: two layers with dropout, trained by SGD with early stopping.

Shapes: N utterances, D dimensions of the encoding, H of the hidden layer, L intents.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from polyrank.config.checked import Count, Positive, Settings, Share
from polyrank.errors import ConfigError, DivergedError
from polyrank.tuning.grid import fit_grid

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig(Settings):
    """Sizes that the grid search chooses.

    Args:
        hidden_dim: H.
        dropout: on the hidden layer.
        lr: of SGD.
    """

    hidden_dim: Count = 512
    dropout: Share = 0.3
    lr: Positive = 0.1

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.dropout == 1:
            raise ConfigError("dropout = 1.0 removes all of the hidden layer; give for example 0.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The values to try, in every combination.

    >>> len(list(Grid(hidden_dim=(8, 16), dropout=(0.1,), lr=(0.1, 0.3)).points()))
    4
    """

    hidden_dim: tuple[int, ...] = (512,)
    dropout: tuple[float, ...] = (0.3, 0.6)
    lr: tuple[float, ...] = (0.02, 0.06, 0.2)

    def points(self) -> Iterator[HeadConfig]:
        """Every combination."""
        for hidden_dim, dropout, lr in product(self.hidden_dim, self.dropout, self.lr):
            yield HeadConfig(hidden_dim=hidden_dim, dropout=dropout, lr=lr)


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


@dataclass(frozen=True, slots=True)
class Encoded:
    """Encodings ``[N, D]`` and the numbers of their intents ``[N]``."""

    vectors: Floats
    labels: Labels


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
        ConfigError: ``max_epochs`` is below 1.
        DivergedError: the loss is not finite.
    """
    if max_epochs < 1:
        raise ConfigError(f"max_epochs = {max_epochs} is below 1; give at least 1")
    vectors, labels = torch.from_numpy(train.vectors), torch.from_numpy(train.labels)
    dev_vectors, dev_labels = torch.from_numpy(dev.vectors), torch.from_numpy(dev.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head(vectors.shape[1], config.hidden_dim, n_intents, config.dropout)
        head.fit_scale(vectors)
        # scaled once, instead of in every step
        inputs = (vectors - head.mean) / head.scale
        parameters: list[Tensor] = list(head.parameters())
        best, best_state, best_epoch = (-1.0, -math.inf), {}, 0
        for epoch in range(1, max_epochs + 1):
            order = torch.from_numpy(np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(labels)))
            for batch in torch.split(order, batch_size):
                hidden = F.dropout(F.relu(head.hidden(inputs[batch])), config.dropout, True)
                loss = F.cross_entropy(head.output(hidden), labels[batch])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-config.lr)
            figures = _loss_and_accuracy(head, dev_vectors, dev_labels)
            if not math.isfinite(figures[1]):
                raise DivergedError(
                    f"the loss is not finite after {epoch} epochs at lr {config.lr}; give a smaller learning rate"
                )
            if figures > best:
                best, best_epoch = figures, epoch
                best_state = {name: tensor.clone() for name, tensor in head.state_dict().items()}
            elif epoch - best_epoch >= patience:
                break
    head.load_state_dict(best_state)
    return HeadFit(head.eval(), config, best[0], -best[1], best_epoch)


def _loss_and_accuracy(head: Head, vectors: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and negative loss, both higher for a better head."""
    head.eval()
    with torch.no_grad():
        scores = head(vectors)
        return float((scores.argmax(1) == labels).double().mean()), -float(F.cross_entropy(scores, labels))


def search(
    train: Encoded,
    dev: Encoded,
    n_intents: int,
    grid: Grid,
    *,
    seed: int,
    patience: int = 5,
    max_epochs: int = 200,
    report: Callable[[HeadFit, int, int], None] = lambda fit, done, total: None,
) -> tuple[HeadFit, list[HeadFit]]:
    """Fit every point of the grid; returns the best fit and all fits, without points that diverge.

    Raises:
        ConfigError: the grid is empty.
        DivergedError: every point diverged.
    """

    def fit(config: HeadConfig) -> HeadFit:
        return fit_head(train, dev, n_intents, config, seed=seed, patience=patience, max_epochs=max_epochs)

    fits = fit_grid(list(grid.points()), fit, report)
    return max(fits, key=lambda fit: fit.rank), fits
