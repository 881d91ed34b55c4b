"""The pipeline folder: retriever, re-ranker, ensemble and threshold as one artifact, loaded by one path.

It is one file, pipeline.json, that names an index and models (relative to the folder where that is possible) and holds
the settings that were chosen on validation data. Models and index stay where they are.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from polyrank.answering.retrievers import LexicalRetriever, Retriever
from polyrank.answering.two_stage import SHORTLIST, TwoStage, TwoStageScorer
from polyrank.config.checked import Settings, from_dict, read_choice
from polyrank.config.names import portable_name, resolved_name
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.index import open_index
from polyrank.ranking.ensembles import Ensemble
from polyrank.records import Candidate, Example
from polyrank.scorers.exported import Backend
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.open import corpus_of, encoder_of_index, has_settable_lengths, load
from polyrank.scorers.protocols import Responds, Scorer
from polyrank.search import Mode
from polyrank.storage.document import DocumentKind, has_document, read_document, seal
from polyrank.storage.durable import new_folder

PIPELINE = DocumentKind(
    name="pipeline",
    file="pipeline.json",
    missing="make one with polyrank pipeline create",
    remedy="make the pipeline again",
    spaced=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(Settings):
    """What a pipeline is made of.

    Args:
        index: folder of candidates.
        retriever: "dense", the index's own encoder; or "bm25" or "tfidf" over the index's texts.
        model: the encoder's folder where it is not the one that the index names.
        mode: of the dense search, see ``polyrank.search.search``.
        reranker: a model folder; None: one stage.
        n_retrieved: how many the re-ranker sees.
        ensemble: see ``polyrank.ranking.ensembles.combine``; None: the re-ranker's score alone decides.
        measure, threshold: see ``polyrank.ranking.abstention``; None: always answer.
    """

    index: str
    retriever: Literal["dense", "bm25", "tfidf"] = "dense"
    model: str | None = None
    mode: Literal["exact", "approximate"] = "exact"
    reranker: str | None = None
    n_retrieved: int = SHORTLIST
    ensemble: Ensemble | None = None
    measure: Literal["score", "margin", "softmax"] | None = None
    threshold: float | None = None


def check_stages(name: str | Path, rerank: str | None, ensemble: Ensemble | None) -> None:
    """Refuse a second stage where there is one already, and an ensemble without one."""
    first, arrow, second = (part.strip() for part in str(name).partition(">"))
    if arrow and not Path(name).exists():
        raise UsageError(f"two stages are no longer written {str(name)!r}; write {first} --rerank {second}")
    if rerank is None and ensemble is not None:
        raise UsageError(f"the ensemble {ensemble} adds up two stages; name the second with --rerank")
    if rerank is not None and has_document(Path(name), PIPELINE):
        raise UsageError(f"{name} is a pipeline, which has its own stages; leave out --rerank, or name its index")


def fingerprints(retriever: Responds) -> dict[str, str]:
    """Of the networks in a retriever: what its threshold and its ensemble depend on."""
    result: dict[str, str] = {}
    if isinstance(retriever, TwoStage):
        result["re-ranker"] = getattr(retriever.reranker, "fingerprint", "")
        retriever = retriever.retriever
    if isinstance(retriever, Retriever):
        result["retriever"] = retriever.encoder.fingerprint
    return {name: value for name, value in result.items() if value}


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
) -> Responds:
    """The stages that the settings name; its paths are absolute or relative to the working directory.

    Args:
        config: the settings.
        distinct: see ``Retriever``.
        device: for networks.
        backend: of every model, see ``polyrank.load``.
    """
    retriever: Responds
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


def open_ranker(
    name: str,
    examples: Sequence[Example] = (),
    pool: Sequence[Candidate] | None = None,
    *,
    rerank: str | None = None,
    n_retrieved: int = SHORTLIST,
    ensemble: Ensemble | None = None,
    device: str = "auto",
    backend: Backend = "torch",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
) -> Scorer:
    """A Scorer of one stage or two, to rank given lists or a pool.

    Args:
        name: what ``polyrank.load`` takes, or a pipeline folder, whose settings count and whose index is not looked at.
        examples, pool: their candidates are what lexical scorers learn word statistics from.
        rerank: a second stage, what ``polyrank.load`` takes; a pipeline has its own.
        n_retrieved, ensemble: see ``TwoStageScorer``; with ``rerank``.
        device: for networks.
        backend: of every model, see ``polyrank.load``.
        max_context_tokens, max_candidate_tokens: of each stage that has such a setting, see ``polyrank.load``.

    Raises:
        UsageError: there is no model of that name, a setting is for neither stage, or the folder leaves no room for a
            second one.
    """
    check_stages(name, rerank, ensemble)
    if has_document(Path(name), PIPELINE):
        config, _ = read_pipeline(Path(name))
        name, rerank = config.retriever, config.reranker
        n_retrieved, ensemble = config.n_retrieved, config.ensemble
        if name == "dense":
            name = config.model or open_index(Path(config.index)).model
    names = [name] if rerank is None else [name, rerank]
    adjustable = [stage for stage in names if has_settable_lengths(stage)] or names[:1]
    stages = [
        load(
            stage,
            device=device,
            backend=backend,
            max_context_tokens=max_context_tokens if stage in adjustable else None,
            max_candidate_tokens=max_candidate_tokens if stage in adjustable else None,
            corpus=corpus_of(examples, pool),
        )
        for stage in names
    ]
    if rerank is None:
        return stages[0]
    return TwoStageScorer(*stages, n_retrieved=n_retrieved, ensemble=ensemble)


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


def read_pipeline(path: Path) -> tuple[PipelineConfig, dict[str, Any]]:
    """A pipeline's settings, its paths made absolute, and what they were chosen by.

    Raises:
        ArtifactError: it is missing, damaged, or newer than this program.
    """
    document = read_document(path, PIPELINE)
    values = document["pipeline"]
    for name in ("index", "model", "reranker"):
        if values.get(name) is not None:
            values[name] = resolved_name(values[name], path)
    if values.get("mode") in ("fast", "certified"):  # earlier names of searches that are exact
        values["mode"] = "exact"
    try:
        return from_dict(PipelineConfig, values), document["seen"]
    except ConfigError as error:
        raise ArtifactError(f"{path / PIPELINE.file}: {error}") from error
