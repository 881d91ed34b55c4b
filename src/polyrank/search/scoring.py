"""Scores from products, and how far a score can be off when its products are.

``f(s) = sum_i softmax(s)_i s_i`` for the products ``s_i = x_i . y`` of a candidate ``y`` with M context vectors. Two
facts carry every bound here. Its partial derivatives are ``w_i (1 + s_i - f)`` with ``w = softmax(s)``, so moving each
product by at most ``e`` moves the score by at most ``e (1 + E_w|s - f|)`` along the way. And
``max(s) - log M <= f(s) <= max(s)``, hence ``E_w|s - f| <= 2 log M`` anywhere.
"""

from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polyrank.errors import UsageError
from polyrank.search.blocks import ROUNDING, Floats, as_tensor
from polyrank.search.kernels import means, moments

LOWEST = (
    -80.0
)  # exp(-80) adds nothing in fp32, and exp of less would be denormal numbers, which are a hundred times slower
ROUNDING_OF_SQUARES = 2e-5  # the difference of a mean square and a squared mean loses digits: added as slack
ROWS_AT_A_TIME = 512  # in fp64


def real_vectors(contexts: Floats, mask: NDArray[np.bool_]) -> Floats:
    """The real context vectors: ``[M', D]`` of ``contexts`` ``[M, D]`` by ``mask`` ``[M]``.

    Raises:
        UsageError: none is real, or one is not finite.
    """
    vectors = np.ascontiguousarray(contexts[mask], np.float32)
    if not len(vectors):
        raise UsageError("a context has 0 vectors; give each context at least one that the mask keeps")
    if not np.isfinite(vectors).all():
        raise UsageError("a context vector is not finite; check the encoder that made it")
    return vectors


def prior_of(counts: NDArray[np.float64], weight: float) -> Floats:
    """``weight * log(1 + count)`` for each count.

    >>> prior_of(np.array([0.0, 1.0, 3.0]), 0.5).round(4)
    array([0.    , 0.3466, 0.6931], dtype=float32)
    """
    offsets: Floats = (weight * np.log1p(counts)).astype(np.float32)
    return offsets


def mean_of(products: Tensor, spare: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Softmax-weighted means of products, in place.

    Args:
        products: ``[n, M]``; overwritten.
        spare: the same shape; overwritten. ``None``: allocated here.

    Returns:
        Scores and maxima, ``[n]`` each.

    >>> mean, best = mean_of(torch.tensor([[3.0, 3.0], [90.0, -900.0]]))
    >>> mean.tolist(), best.tolist()
    ([3.0, 90.0], [3.0, 90.0])
    """
    if products.shape[1] == 1:
        return products[:, 0], products[:, 0]
    best, total, weighted = _weigh(products, spare)
    return weighted.sum(1).div_(total).add_(best), best


def moments_of(products: Tensor, spare: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and standard deviations of the products under their weights, never too small.

    >>> [values.tolist() for values in moments_of(torch.tensor([[1.0, 1.0], [90.0, -900.0]]))[:2]]
    [[1.0, 90.0], [1.0, 90.0]]
    """
    best, total, weighted = _weigh(products, spare)
    mean = weighted.sum(1).div_(total)
    squares = weighted.mul_(products).sum(1).div_(total)
    variance = squares.mul_(1.0 + ROUNDING_OF_SQUARES).sub_(mean.square()).clamp_(min=0.0)
    return mean.add_(best), best, variance.sqrt_()


def _weigh(products: Tensor, spare: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima ``[n]``, sums of weights ``[n]``, and weighted differences from the maxima ``[n, M]``, in the spare."""
    best = products.amax(1)
    products.sub_(best[:, None]).clamp_(min=LOWEST)
    weights = torch.exp(products) if spare is None else torch.exp(products, out=spare)
    return best, weights.sum(1), weights.mul_(products)


def steepness(n_vectors: int) -> float:
    """Moving the products by at most e moves the score by at most this times e.

    >>> steepness(1)
    1.0
    """
    return 1.0 + 2.0 * log(n_vectors)


def rounding_of_mean(n_vectors: int) -> float:
    """How far the weighted mean of given products may be off in fp32, in addition to one rounding of the result."""
    return 0.0 if n_vectors == 1 else 4.0 * (n_vectors + 16) * ROUNDING * (1.0 + log(n_vectors))


def rounding_of_product(dimension: int) -> float:
    """How far an fp32 product may be off, in any order of summation, relative to both norms."""
    return (dimension + 8) * ROUNDING


def upper_bounds(mean: Tensor, best: Tensor, error: Tensor, spread: Tensor | None, n_vectors: int) -> Tensor:
    """No score is above these, ``[n]``.

    The least of three bounds: the maximum moved by ``e``; the mean moved by ``e`` times the steepness anywhere; and
    times the steepness near these products, ``1 + exp(e) (spread + e)``, since weights change by at most ``exp(2 e)``
    and a variance is least about its own mean.

    Args:
        mean, best: ``[n]``, of the approximate products.
        error: ``[n]``, how far any product of a candidate may be off.
        spread: ``[n]``, of the approximate products, never too small; ``None``: unknown.
        n_vectors: M.
    """
    slope = torch.full_like(error, steepness(n_vectors))
    if spread is not None:
        near = error.clamp(max=4.0)
        slope = torch.minimum(slope, torch.where(error < 4.0, 1.0 + near.exp() * (spread * 1.001 + near), slope))
    result = torch.minimum(mean + error * slope, best + error)
    return result + (rounding_of_mean(n_vectors) + 4.0 * ROUNDING * best.abs())


def close_bounds(products: Tensor, error: Tensor, spare: Tensor | None = None) -> Tensor:
    """Upper bounds ``[n]`` of scores, from fp32 products.

    Args:
        products: ``[n, M]``; overwritten.
        error: ``[n]``, how far any product of a candidate may be off.
        spare: the same shape as products; overwritten. ``None``: use the compiled loop.
    """
    mean, best = means(products) if spare is None and products.shape[1] > 1 else mean_of(products, spare)
    return upper_bounds(mean, best, error, None, products.shape[1])


def loose_bounds(products: Tensor, error: Tensor, spare: Tensor | None = None, *, compiled: bool) -> Tensor:
    """The same from products that may be far off, for twice the time.

    Args:
        products: ``[n, M]``; overwritten unless compiled.
        error: ``[n]``
        spare: the same shape as products; overwritten. ``None``: allocated here.
        compiled: whether to use the compiled loop.
    """
    if products.shape[1] == 1:
        return upper_bounds(products[:, 0], products[:, 0], error, None, 1)
    mean, best, spread = moments(products) if compiled else moments_of(products, spare)
    return upper_bounds(mean, best, error, spread, products.shape[1])


def score_rows(contexts: Floats, mask: NDArray[np.bool_], vectors: Floats) -> Floats:
    """Scores of some candidates for one context, computed in fp64 and rounded once.

    So a candidate's score does not depend on the others, and every way of searching returns the same.

    Args:
        contexts: ``[M, D]``.
        mask: ``[M]``, true where a context vector is real.
        vectors: ``[n, D]``.

    Returns:
        ``[n]``

    >>> score_rows(np.array([[1.0, 0.0], [0.0, 2.0]], np.float32), np.array([True, False]), np.eye(2, dtype=np.float32))
    array([1., 0.], dtype=float32)
    """
    return precise_scores(torch.from_numpy(real_vectors(contexts, mask)).double(), vectors)


def precise_scores(contexts: Tensor, vectors: Floats, offsets: Floats | None = None) -> Floats:
    """Scores ``[n]`` for fp64 context vectors ``[M, D]`` and fp32 candidates ``[n, D]``, plus offsets ``[n]``."""
    result = np.empty(len(vectors), np.float32)
    for start in range(0, len(vectors), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        scores = mean_of(as_tensor(vectors[part]).double() @ contexts.T)[0]
        if offsets is not None:
            scores = scores + as_tensor(offsets[part])
        result[part] = scores.float().numpy()
    return result
