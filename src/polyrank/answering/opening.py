"""Opens an index folder under the model or ranker with which it was built, or another one of the same vectors."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from polyrank.answering.replies import WAIT_S, Replies
from polyrank.devices.choice import choose_device
from polyrank.errors import UsageError
from polyrank.index import open_index
from polyrank.loading.models import Backend, model_exists, moved_name, resolve_encoder
from polyrank.records import Candidate
from polyrank.scorers.open import open_ranking
from polyrank.scorers.protocols import Scorer
from polyrank.search import Mode
from polyrank.storage.durable import AnyPath


def open_replies(
    path: AnyPath,
    *,
    model: Any = None,
    mode: Mode | None = None,
    distinct: bool = True,
    device: str = "auto",
    backend: Backend = "torch",
    wait_s: float = WAIT_S,
) -> Replies:
    """Open an index folder under its model or ranker: ``polyrank.open``.

    Args:
        path: the folder.
        model: the folder of the model or ranker, if it has moved or another ranker searches the same vectors; or an
            opened one, or an object of yours with which the index was built.
        mode: of the search; None: "exact".
        distinct: return each text once.
        device: for networks and the search of a local index.
        backend: of every model, see ``polyrank.load``.
        wait_s: seconds that a change waits while another process changes the index.

    Raises:
        ArtifactError: the folder is not an index, something in it is damaged, or the model has changed since.
        UsageError: the model is missing, or has no vectors.
    """
    if Path(path).is_file():
        raise UsageError(
            f"{path} is a file; make an index of its replies with polyrank index build MODEL {path} -o INDEX"
        )
    with ExitStack() as opened:  # closes the index if the model is missing or another one
        index = opened.enter_context(open_index(path))
        if model is None or isinstance(model, str | os.PathLike):
            built_with = moved_name(index.model, Path(path))
            model = scorer_of_index(built_with, model, device=device, backend=backend)
        searched_on = str(choose_device(device))
        replies = Replies(model, index, mode=mode or "exact", distinct=distinct, device=searched_on, wait_s=wait_s)
        opened.pop_all()
    return replies


def scorer_of_index(
    built_with: str, moved: AnyPath | None = None, *, device: str = "auto", backend: Backend = "torch"
) -> Scorer:
    """The model or ranker of an index.

    Args:
        built_with: the name that the index recorded.
        moved: its folder, if it has moved.
        device, backend: see ``polyrank.load``.

    Raises:
        UsageError: it does not exist.
    """
    name = str(moved or built_with)
    if not model_exists(name):
        raise UsageError(
            f"{name} does not exist, and the index needs it (it was built with {built_with}); move it together with"
            " the index, or give the folder of the model or ranker as `model`"
        )
    return open_ranking(resolve_encoder(name, backend=backend), device=device)


def catalogue(path: AnyPath) -> list[Candidate]:
    """All candidates of an index folder."""
    with open_index(path) as opened:
        return [candidate for _, candidate in opened.iter_candidates()]
