"""Trying every point of a grid of settings; those that diverge are left out."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from polyrank.errors import ConfigError, DivergedError

P = TypeVar("P")
F = TypeVar("F")


def fit_grid(points: Sequence[P], fit: Callable[[P], F], report: Callable[[F, int, int], None]) -> list[F]:
    """What fitting each point gave, in their order.

    Args:
        points: the settings to try.
        fit: fits one; DivergedError leaves it out.
        report: told each fit, how many points are done, and of how many.

    Raises:
        ConfigError: there are no points.
        DivergedError: every point diverged.

    >>> fit_grid([1, 2], lambda point: 10 * point, lambda fit, done, total: print(fit, done, total))
    10 1 2
    20 2 2
    [10, 20]
    """
    if not points:
        raise ConfigError("the grid is empty; give at least one value for each setting")
    fits: list[F] = []
    for number, point in enumerate(points, 1):
        try:
            fits.append(fit(point))
        except DivergedError:
            continue
        report(fits[-1], number, len(points))
    if not fits:
        raise DivergedError(f"every learning rate of the grid diverged, such as {points[0]}; give smaller ones")
    return fits
