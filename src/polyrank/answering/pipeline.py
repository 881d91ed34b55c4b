"""The pipeline folder: retriever, re-ranker, ensemble and threshold as one artifact, loaded by one path.

It is one file, pipeline.json, that names an index and models (relative to the folder where that is possible) and holds
the settings that were chosen on validation data. Models and index stay where they are.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyrank.answering.protocol import Answering
from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import TwoStage
from polyrank.config.checked import read_choice
from polyrank.config.pipeline import PipelineConfig
from polyrank.index import open_index
from polyrank.loading.answering import read_pipeline
from polyrank.loading.folders import PIPELINE
from polyrank.loading.models import Backend, portable_name
from polyrank.records import Candidate
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.open import encoder_of_index, load
from polyrank.search import Mode
from polyrank.storage.document import has_document, seal
from polyrank.storage.durable import new_folder


def catalogue(path: Path) -> list[Candidate]:
    """All candidates of an index folder, or of the index that a pipeline names."""
    index = Path(read_pipeline(path)[0].index) if has_document(path, PIPELINE) else path
    with open_index(index) as opened:
        return [candidate for _, candidate in opened.iter_candidates()]


def read_mode(name: str | None) -> Mode | None:
    """A way to search by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name is None:
        return None
    mode: Mode = read_choice(name, Mode, "way to search")
    return mode


def make_retriever(
    config: PipelineConfig, *, distinct: bool = True, device: str = "auto", backend: Backend = "torch"
) -> Answering:
    """The stages that the settings name; its paths are absolute or relative to the working directory.

    Args:
        config: the settings.
        distinct: see ``Retriever``.
        device: for networks.
        backend: of every model, see ``polyrank.load``.
    """
    retriever: Answering
    if config.retriever == "dense":
        model = None if config.model is None else Path(config.model)
        retriever = dense(Path(config.index), model, config.mode, distinct, device, backend)
    else:
        lexical = BM25() if config.retriever == "bm25" else TfIdf()
        retriever = LexicalRetriever(lexical, open_index(Path(config.index)), distinct=distinct)
    if config.reranker is None:
        return retriever
    reranker = load(config.reranker, device=device, backend=backend)
    return TwoStage(retriever, reranker, n_retrieved=config.n_retrieved, ensemble=config.ensemble)


def dense(index: Path, model: Path | None, mode: Mode, distinct: bool, device: str, backend: Backend) -> Retriever:
    """An index searched by the encoder that it was made with."""
    candidates = open_index(index)
    encoder = encoder_of_index(candidates.model, model, device=device, backend=backend)
    return Retriever(encoder, candidates, mode=mode, distinct=distinct)


def write_pipeline(
    path: Path, config: PipelineConfig, tuning: dict[str, Any] | None = None, *, replace: bool = False
) -> None:
    """Write a pipeline folder.

    Args:
        path: the folder to make.
        config: its settings; paths as seen from the working directory.
        tuning: what the settings were chosen by.
        replace: whether an earlier one may be replaced.
    """
    names = {
        name: portable_name(value, path)
        for name in ("index", "model", "reranker")
        if (value := getattr(config, name)) is not None
    }
    document = seal({"pipeline": asdict(config) | names, "seen": tuning or {}}, PIPELINE)
    with new_folder(path, replace=replace) as folder:
        (folder / PIPELINE.file).write_bytes(document)
