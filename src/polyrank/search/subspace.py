"""A context's vectors in few columns.

A trained encoder's M vectors of one context lie close to their mean and to a few directions around it: they are
poolings of the same tokens. With orthonormal columns ``Q`` and ``x_i = Q' a_i + r_i``, a candidate's products are
``a_i . (Q y) + r_i . y``, and the last term is at most ``|r_i| |y - Q' Q y|``. A scan over the columns bounds all
scores at the cost of a Bi-encoder's scan. The quality of the columns decides only how many candidates remain.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from polyrank.search.blocks import ROUNDING
from polyrank.search.kernels import Int16Columns, bounds, to_int16
from polyrank.search.scoring import loose_bounds, rounding_of_product

WIDEST = 16  # columns at most; more would cost as much as they save


@dataclass(frozen=True, slots=True)
class Subspace:
    """Context vectors as mixtures of columns.

    Args:
        columns: ``[q, D]``, orthonormal up to rounding: the direction of the mean, then the main directions around it.
        int16: the same in int16, if candidates are read in int8.
        mixing: ``[M, q]``.
        residual: the largest norm of a context vector less its mixture.
        rounding: how far a product may be off in fp32, relative to a candidate's norm.
        skew: how far the columns are from orthonormal: ``|Q Q' - 1|``.
        centre: ``[q]``, the mixture of the mean.
        weights: ``[q]``, squared scales of the columns in the coarse bound.
        radius: the largest norm of ``(mixing - centre) / sqrt(weights)``.
    """

    columns: Tensor
    int16: Int16Columns | None
    mixing: Tensor
    residual: float
    rounding: float
    skew: float
    centre: Tensor
    weights: Tensor
    radius: float

    def coarse_bounds(
        self, products: Tensor, norms: Tensor, row_errors: Tensor | None = None, size: float = 0.0, *, compiled: bool
    ) -> tuple[Tensor, Tensor]:
        """Upper bounds of scores for q operations each, and the errors.

        ``score <= max_i s_i <= centre . z + max_i |(a_i - centre) / d| |d z| + error``, where the error is
        ``residual |y - Q' Q y|`` plus the errors of rounding and int8.

        Args:
            products: ``[n, q]``, of candidates and columns.
            norms: ``[n]``, of the candidates, never too small.
            row_errors: ``[n]``, norms of the rounding errors of int8, if candidates are read in int8.
            size: of the largest context vector, if candidates are read in int8.
            compiled: whether to use the compiled loop, which needs ``row_errors`` and contiguous rows.
        """
        slack = 1.0 + 6.0 * sqrt(len(self.centre)) * rounding_of_product(self.columns.shape[1]) + 2.0 * self.skew
        size *= 1.0 + 1e-6
        if compiled and row_errors is not None:
            numbers = self.radius, self.residual, slack, self.rounding, size
            return bounds(products, norms, row_errors, self.centre, self.weights, numbers)
        centre, weights = self.centre.to(products), self.weights.to(products)  # of one device
        squares = products.square() @ torch.stack([torch.ones_like(weights), weights], 1)
        if row_errors is not None:
            norms = norms + row_errors
        outside = (norms.square() * slack - squares[:, 0]).clamp_(min=0.0).sqrt_()
        error = outside.mul_(self.residual).add_(norms, alpha=self.rounding)
        if row_errors is not None:
            error.add_(row_errors, alpha=size)
        return torch.addmv(error, products, centre).add_(squares[:, 1].sqrt(), alpha=self.radius), error

    def fine_bounds(self, products: Tensor, error: Tensor, *, compiled: bool) -> Tensor:
        """Upper bounds ``[n]`` of scores for q M operations each, with the errors of the same candidates."""
        return loose_bounds(products @ self.mixing.to(products).T, error, compiled=compiled)

    def narrow(self, n_columns: int) -> "Subspace":
        """The same with the first columns only."""
        dropped = self.mixing[:, n_columns:].double().square().sum(1).amax()
        residual = sqrt(self.residual**2 + float(dropped)) * (1.0 + self.skew + 1e-6)
        int16 = self.int16 and Int16Columns(self.int16.values[:n_columns], self.int16.scales[:n_columns])
        columns, mixing = self.columns[:n_columns], self.mixing[:, :n_columns]
        return _with_scales(columns, int16, mixing, residual, self.rounding, self.skew)


def find_subspace(contexts: Tensor, *, int16: bool = False) -> Subspace:
    """Columns for context vectors: their mean's direction, then the main directions around the mean.

    Args:
        contexts: ``[M, D]``.
        int16: whether columns are rounded to int16, for candidates in int8.

    >>> subspace = find_subspace(torch.tensor([[1.0, 1.0, 0.0], [1.0, -1.0, 0.0]]))
    >>> len(subspace.columns), round(subspace.residual, 6)
    (2, 0.0)
    """
    vectors = contexts.double()
    n_vectors, dimension = vectors.shape
    n_more = min(WIDEST - 1, n_vectors - 1, dimension - 1)
    mean = vectors.mean(0)
    length = float(mean.norm())
    first = (mean / length if length > 0.0 else torch.eye(1, dimension, dtype=torch.float64)[0])[None]
    columns = first
    if n_more:
        around = vectors - (vectors @ first.T) @ first
        directions = _main_directions(around, n_more)
        directions -= (directions @ first.T) @ first
        columns = torch.linalg.qr(torch.cat([first, directions]).T)[0].T
    whole = to_int16(columns) if int16 else None
    rounded = whole.as_doubles(dimension) if whole else columns.float().double()
    gram = rounded @ rounded.T
    n_columns = len(rounded)
    skew = float((gram - torch.eye(n_columns, dtype=gram.dtype)).norm())
    mixing = torch.linalg.solve(gram, rounded @ vectors.T).T.float()
    left_out = vectors - mixing.double() @ rounded
    residual = float(left_out.norm(dim=1).max()) * (1.0 + 1e-6)
    norm = float(vectors.norm(dim=1).max())
    rounding = (sqrt(n_columns) + 1.0) * rounding_of_product(dimension) + (2 * n_columns + 16) * ROUNDING + 2.0 * skew
    return _with_scales(rounded.float(), whole, mixing, residual, norm * rounding, skew)


def _main_directions(around: Tensor, n_directions: int) -> Tensor:
    """About the first right singular vectors of ``around`` ``[M, D]``, as rows: ``[n, D]``."""
    if len(around) > 2 * n_directions:  # subspace iteration: close enough, and cheap
        single = around.float()
        generator = torch.Generator().manual_seed(0)
        sketch = single.T @ torch.randn(len(single), min(n_directions + 6, len(single)), generator=generator)
        sketch = single.T @ (single @ torch.linalg.qr(sketch)[0])
        basis: Tensor = torch.linalg.qr(sketch.double())[0]  # [D, n]
        inside = around @ basis
        return _main_axes(inside.T @ inside, n_directions) @ basis.T
    directions = _main_axes(around @ around.T, n_directions) @ around
    return directions.div_(directions.norm(dim=1, keepdim=True).clamp_(min=1e-300))


def _main_axes(products: Tensor, n_axes: int) -> Tensor:
    """Eigenvectors of a symmetric matrix ``[n, n]`` for its largest values, largest first, as rows."""
    axes: Tensor = torch.linalg.eigh(products)[1]
    return axes.flip(1)[:, :n_axes].T


def _with_scales(
    columns: Tensor, int16: Int16Columns | None, mixing: Tensor, residual: float, rounding: float, skew: float
) -> Subspace:
    """A subspace with the numbers that the coarse bound needs."""
    centre = mixing.mean(0)
    around = (mixing - centre).double()
    weights = around.square().mean(0).sqrt() + 1e-9 * float(mixing.abs().max()) + 1e-30
    radius = float((around / weights.sqrt()).norm(dim=1).max()) * (1.0 + 1e-5)
    return Subspace(columns, int16, mixing, residual, rounding, skew, centre, weights.float(), radius)
