"""Grid search: fit every point of a grid of settings, and leave out those that diverge."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from polyrank.errors import ConfigError, DivergedError

P = TypeVar("P")
F = TypeVar("F")


def fit_grid(points: Sequence[P], fit: Callable[[P], F], report: Callable[[F, int, int], None]) -> list[F]:
    """The fits of all points, in order, without those that diverged.

    Args:
        points: the settings to try.
        fit: fits a point; raises DivergedError to leave it out.
        report: called with each fit, the number of points done, and the number of all points.

    Raises:
        ConfigError: ``points`` is empty.
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
        raise DivergedError(f"every point of the grid diverged, such as {points[0]}; give smaller learning rates")
    return fits
