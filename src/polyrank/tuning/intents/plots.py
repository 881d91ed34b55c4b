"""The confusion plot. matplotlib is an extra."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from polyrank.evaluation.plots import new_figure, save
from polyrank.tuning.intents.reading import OUT_OF_SCOPE


def plot_confusion(matrix: NDArray[np.int64], intents: Sequence[str], path: Path, *, n_shown: int = 20) -> None:
    """Plot the confusions in percent of each intent; of many intents, only those with the most mistakes.

    Args:
        matrix: from ``confusion``, ``[L + 1, L + 1]``.
        intents: their L names.
        path: .svg, .png or .pdf.
        n_shown: the maximum number of intents.
    """
    shown = shown_intents(matrix, n_shown)
    names = [(*intents, OUT_OF_SCOPE)[i] for i in shown]
    part = matrix[np.ix_(shown, shown)]
    shares = 100 * part / np.maximum(matrix[shown].sum(1, keepdims=True), 1)
    size = 2.5 + 0.3 * len(shown)
    figure = new_figure(size + 1, size)
    axes = figure.subplots()
    image = axes.imshow(shares, vmin=0, vmax=100, cmap="Blues")
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize="x-small")
    axes.set_yticks(range(len(names)), names, fontsize="x-small")
    for i, j in zip(*np.nonzero(part), strict=True):
        colour = "white" if shares[i, j] > 60 else "black"
        axes.text(j, i, f"{shares[i, j]:.0f}", ha="center", va="center", fontsize=5, color=colour)
    title = f"the {len(shown)} most confused of {len(intents)} intents" if len(shown) < len(intents) else ""
    axes.set(xlabel="predicted", ylabel="intent", title=title)
    figure.colorbar(image, ax=axes, label="% of the intent's utterances", shrink=0.8)
    save(figure, path)


def shown_intents(matrix: NDArray[np.int64], n_shown: int) -> list[int]:
    """The intents with the most mistakes, in their own order; intents that never occur are left out.

    >>> shown_intents(np.array([[5, 0, 0], [0, 3, 2], [0, 0, 4]]), 2)
    [1, 2]
    """
    wrong = matrix - np.diag(np.diag(matrix))
    mistakes = wrong.sum(0) + wrong.sum(1)
    rows = np.flatnonzero(matrix.sum(0) + matrix.sum(1))
    return sorted(rows[np.argsort(-mistakes[rows], kind="stable")][:n_shown].tolist())
