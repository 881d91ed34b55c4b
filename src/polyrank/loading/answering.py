"""Resolves a path to an index or a pipeline that answers, and a name to a ranker of given lists. Opens nothing."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polyrank.config.checked import from_dict
from polyrank.config.pipeline import SHORTLIST, Ensemble, Mode, PipelineConfig
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.loading.folders import PIPELINE, folder_kind
from polyrank.loading.models import (
    DEFAULT_LENGTHS,
    Backend,
    Lengths,
    ModelRef,
    check_backend,
    resolve_model,
    resolved_name,
)
from polyrank.storage.document import has_document, read_document
from polyrank.storage.durable import AnyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRef:
    """A pipeline folder, or an index folder, which acts as a pipeline with one stage.

    Args:
        path: the folder.
        config: the settings, with absolute paths.
        seen: the calibration record of the settings, with the fingerprints of the models; empty for an index.
    """

    path: Path
    config: PipelineConfig
    seen: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankerRef:
    """One or two models that order given lists.

    Args:
        stages: one model, or two, where the second model re-ranks the shortlist of the first.
        n_retrieved: how many candidates the second model scores.
        ensemble: how the scores of two models are added; None: raw scores are added if the
            second model corrects the first one's; otherwise its score alone decides.
    """

    stages: tuple[ModelRef, ...]
    n_retrieved: int = SHORTLIST
    ensemble: Ensemble | None = None

    @property
    def has_settable_lengths(self) -> bool:
        """Whether the text lengths of at least one stage can be set."""
        return any(stage.has_settable_lengths for stage in self.stages)

    def with_lengths(self, lengths: Lengths) -> "RankerRef":
        """A copy in which each stage with settable lengths has these lengths.

        Raises:
            UsageError: no stage has settable lengths.
        """
        lengths.check(self.stages[0].name, self.has_settable_lengths)
        stages = [replace(each, lengths=lengths) if each.has_settable_lengths else each for each in self.stages]
        return replace(self, stages=tuple(stages))


def resolve_answering(
    path: AnyPath,
    *,
    model: AnyPath | None = None,
    mode: Mode | None = None,
    rerank: str | None = None,
    n_retrieved: int | None = None,
    ensemble: Ensemble | None = None,
    distinct: bool = True,
    backend: Backend = "torch",
) -> PipelineRef:
    """Resolve a path to a pipeline.

    Args:
        path: a pipeline folder, or an index folder.
        model: the encoder's folder, if it has moved.
        mode: of the dense search; None: the pipeline's mode.
        rerank: the second stage over an index; a pipeline already has its stages.
        n_retrieved, ensemble: settings of two stages, for ``rerank``; None: 100, and no ensemble.
        distinct: return each text once, even if several candidates have it.
        backend: of every model.

    Raises:
        ArtifactError: the pipeline is damaged, or a later version wrote it.
        UsageError: the pipeline already has two stages, or no part of it uses one of the settings.
    """
    path = Path(path)
    if path.is_file():
        raise UsageError(
            f"{path} is a file; make an index of its replies with polyrank index build MODEL {path} -o INDEX"
        )
    check_stages(path, rerank, ensemble, n_retrieved)
    seen: dict[str, Any] = {}
    if has_document(path, PIPELINE):
        config, seen = read_pipeline(path)
        if config.retriever != "dense" and (mode or model):
            raise UsageError(
                f"{path} retrieves with {config.retriever}, which has no model and no mode; leave out `model` and"
                " `mode`"
            )
        if config.retriever != "dense" and config.reranker is None and backend != "torch":
            raise UsageError(
                f"{path} retrieves with {config.retriever}, which has no {backend} export; leave out `backend`"
            )
        if config.threshold is not None and not distinct:
            raise UsageError(
                f"the threshold of {path} was calibrated with each text once; query its index to get duplicates"
            )
    else:
        shortlist = SHORTLIST if n_retrieved is None else n_retrieved
        config = PipelineConfig(index=str(path), reranker=rerank, n_retrieved=shortlist, ensemble=ensemble)
    config = replace(config, mode=mode or config.mode, model=str(model) if model is not None else config.model)

    return PipelineRef(path=path, config=config, seen=seen)


def resolve_ranker(
    name: str | Path,
    *,
    rerank: str | Path | None = None,
    n_retrieved: int | None = None,
    ensemble: Ensemble | None = None,
    backend: Backend = "torch",
    lengths: Lengths = DEFAULT_LENGTHS,
) -> RankerRef:
    """Resolve a name to a ranker of given lists.

    Args:
        name: a name that ``polyrank.load`` accepts, or a pipeline folder, whose settings apply and whose candidates
            are ignored.
        rerank: a second stage, as a name that ``polyrank.load`` accepts; a pipeline already has its stages.
        n_retrieved, ensemble: settings of two stages, for ``rerank``; None: 100, and no ensemble.
        backend: of every model.
        lengths: how much of each text the models read, for the stages where it can be set.

    Raises:
        UsageError: the model does not exist, no stage uses a setting, or the pipeline already has two stages.
    """
    ranker = resolve_stages(name, rerank=rerank, n_retrieved=n_retrieved, ensemble=ensemble, backend=backend)
    check_backend(ranker.stages, backend)
    return ranker.with_lengths(lengths)


def resolve_stages(
    name: str | Path,
    *,
    rerank: str | Path | None = None,
    n_retrieved: int | None = None,
    ensemble: Ensemble | None = None,
    backend: Backend = "torch",
) -> RankerRef:
    """As ``resolve_ranker``, but a backend that no stage uses is accepted, because another ranker may use it."""
    is_pipeline = has_document(Path(name), PIPELINE)
    check_stages(name, rerank, ensemble if is_pipeline else None, n_retrieved if is_pipeline else None)
    asked = ensemble, n_retrieved
    n_retrieved = SHORTLIST if n_retrieved is None else n_retrieved
    index: Path | None = None
    if is_pipeline:
        config, _ = read_pipeline(Path(name))
        name, rerank, index = config.retriever, config.reranker, Path(config.index)
        n_retrieved, ensemble = config.n_retrieved, config.ensemble
        if name == "dense" and config.model is not None:
            name = config.model
    if name == "dense" and index is not None:
        first = ModelRef(name=str(index), kind="encoder of an index", folder=index, backend=backend)
    else:
        first = resolve_model(name, backend=backend)
    stages = first.stages(backend) if rerank is None else (first.alone(), resolve_model(rerank, backend=backend))
    if len(stages) == 1 and not is_pipeline:
        check_stages(name, None, *asked)
    return RankerRef(stages=stages, n_retrieved=n_retrieved, ensemble=ensemble)


def check_stages(
    name: AnyPath, rerank: AnyPath | None, ensemble: Ensemble | Literal["auto"] | None, n_retrieved: int | None
) -> None:
    """Refuse a second stage over a pipeline, and settings of two stages without a second stage."""
    first, arrow, second = (part.strip() for part in str(name).partition(">"))
    if arrow and not Path(name).exists():
        raise UsageError(f"{str(name)!r} is the old form of two stages; write {first} with `rerank={second}`")
    if rerank is None and ensemble is not None:
        raise UsageError(f"the ensemble {ensemble} adds the scores of two stages; name the second with `rerank`")
    if rerank is None and n_retrieved is not None:
        raise UsageError(
            f"`n_retrieved={n_retrieved}` is the number of candidates for a second stage; name one with `rerank`"
        )
    if rerank is not None and has_document(Path(name), PIPELINE):
        raise UsageError(f"{name} is a pipeline and already has its stages; leave out `rerank`, or name its index")


def read_pipeline(path: Path) -> tuple[PipelineConfig, dict[str, Any]]:
    """Read a pipeline's settings, with absolute paths, and their calibration record.

    Raises:
        ArtifactError: the file is missing or damaged, or a later version wrote it.
    """
    document = read_document(path, PIPELINE)
    values = document["pipeline"]
    for name in ("index", "model", "reranker"):
        if values.get(name) is not None:
            values[name] = resolved_name(values[name], path)
    if values.get("mode") in ("fast", "certified"):  # names of exact searches in earlier versions
        values["mode"] = "exact"
    try:
        return from_dict(PipelineConfig, values), document["seen"]
    except ConfigError as error:
        raise ArtifactError(f"{path / PIPELINE.file}: {error}") from error


def is_answering(path: Path) -> bool:
    """Whether a folder is an index or a pipeline."""
    return folder_kind(path) in ("pipeline", "index", "remote")
