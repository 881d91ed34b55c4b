"""Significance tests and confidence intervals. NumPy only."""

from collections.abc import Sequence
from math import atan, cos, pi, sin, sqrt
from statistics import NormalDist

import numpy as np


def student_p(t: float, freedom: int) -> float:
    """Two-sided p value of Student's t.

    Args:
        t: the statistic.
        freedom: degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.3 and 26.7.4.

    >>> round(student_p(12.706, 1), 4), round(student_p(4.303, 2), 4), round(student_p(-2.776, 4), 4)
    (0.05, 0.05, 0.05)
    """
    angle, odd = atan(abs(t) / sqrt(freedom)), freedom % 2
    term = cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= cos(angle) ** 2 * (k - 1) / k
        total += term
    inside = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
    return max(1.0 - inside, 0.0)  # in this order, a t that is not a number stays one


def student_t(p: float, freedom: int) -> float:
    """The t with the two-sided p value ``p``: the inverse of ``student_p``, of many degrees of freedom to eight digits.

    Args:
        p: between 0 and 1.
        freedom: degrees of freedom, at least 1.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5, for more than 1,000 degrees.

    >>> round(student_t(0.05, 1), 3), round(student_t(0.05, 9), 3)
    (12.706, 2.262)
    """
    if freedom > 1_000:
        z = NormalDist().inv_cdf(1 - p / 2)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, freedom) > p else (low, middle)
    return high


def paired_t(differences: Sequence[float]) -> dict[str, float]:
    """Student's paired t-test of whether the mean difference over seeds is 0.

    Args:
        differences: one for each seed, at least two.

    Returns:
        ``n_seeds``, ``difference`` (the mean), ``std`` (of the sample) and the two-sided ``p``. Equal differences,
        which figures of few examples often have, do not show how much seeds vary: p is 1.

    >>> {name: round(value, 3) for name, value in paired_t([1.0, 2.0, 3.0]).items()}
    {'n_seeds': 3, 'difference': 2.0, 'std': 1.0, 'p': 0.074}
    """
    mean, std = float(np.mean(differences)), float(np.std(differences, ddof=1))
    # a smaller deviation is rounding of equal differences
    t = mean / (std / sqrt(len(differences))) if std > 1e-9 * abs(mean) else 0.0
    return {"n_seeds": len(differences), "difference": mean, "std": std, "p": student_p(t, len(differences) - 1)}


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p values of several tests: P(any falls below 0.05 by chance) stays at most 0.05.

    Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979).

    >>> holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        adjusted[index] = largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
    return adjusted


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of the share ``hits / n``; 0 to 1 if n is 0.

    Source: Wilson, Probable Inference, the Law of Succession, and Statistical Inference (1927).

    >>> [round(end, 3) for end in wilson(8, 10)], wilson(0, 0)
    ([0.49, 0.943], (0.0, 1.0))
    """
    if not n:
        return 0.0, 1.0
    z, share = 1.959964, hits / n
    centre, spread = share + z * z / (2 * n), z * sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low, high = (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
    return max(0.0, low) if hits else 0.0, min(1.0, high) if hits < n else 1.0  # exact at both ends
