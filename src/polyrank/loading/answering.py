"""From a path to what answers there: an index, or a pipeline over one. And what ranks given lists, in one stage or two.

Nothing is opened.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from polyrank.config.checked import from_dict
from polyrank.config.pipeline import SHORTLIST, Ensemble, PipelineConfig
from polyrank.errors import ArtifactError, ConfigError, UsageError
from polyrank.loading.folders import PIPELINE, folder_kind
from polyrank.loading.models import USUAL, Backend, Lengths, ModelRef, resolve_model, resolved_name
from polyrank.storage.document import has_document, read_document
from polyrank.storage.durable import AnyPath


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRef:
    """A pipeline folder; or an index folder as the pipeline of one stage that it is by itself.

    Args:
        path: of the folder that was named.
        config: its settings, with absolute paths.
        seen: what the settings were chosen by, with the fingerprints of the models; empty of an index.
    """

    path: Path
    config: PipelineConfig
    seen: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankerRef:
    """What orders given lists.

    Args:
        stages: one model, or two of which the second orders the best of the first.
        n_retrieved: how many the second sees.
        ensemble: how the scores of two are added; None: the second's alone decide.
    """

    stages: tuple[ModelRef, ...]
    n_retrieved: int = SHORTLIST
    ensemble: Ensemble | None = None

    @property
    def has_settable_lengths(self) -> bool:
        """Whether the user may say how much of a text one of the stages reads."""
        return any(stage.has_settable_lengths for stage in self.stages)

    def with_lengths(self, lengths: Lengths) -> "RankerRef":
        """The same with the lengths of each stage that has such a setting.

        Raises:
            UsageError: none has.
        """
        lengths.check(self.stages[0].name, self.has_settable_lengths)
        stages = [replace(each, lengths=lengths) if each.has_settable_lengths else each for each in self.stages]
        return replace(self, stages=tuple(stages))


def resolve_answering(
    path: AnyPath,
    *,
    model: AnyPath | None = None,
    mode: Literal["exact", "approximate"] | None = None,
    rerank: str | None = None,
    n_retrieved: int = SHORTLIST,
    ensemble: Ensemble | None = None,
    distinct: bool = True,
    backend: Backend = "torch",
) -> PipelineRef:
    """What answers at a path.

    Args:
        path: a pipeline folder, or an index folder.
        model: the encoder's folder, where it has moved.
        mode: of the dense search; None: the pipeline's.
        rerank: the second stage over an index; a pipeline has its own.
        n_retrieved, ensemble: of two stages, with ``rerank``.
        distinct: give each text once, whatever else in the index has that text.
        backend: of every model.

    Raises:
        ArtifactError: the pipeline is damaged, or written by a later version.
        UsageError: there are two stages already, or a setting is one that nothing in the pipeline heeds.
    """
    path = Path(path)
    if path.is_file():
        raise UsageError(
            f"{path} is a file; make an index of its replies with polyrank index build MODEL {path} -o INDEX"
        )
    check_stages(path, rerank, ensemble)
    seen: dict[str, Any] = {}
    if has_document(path, PIPELINE):
        config, seen = read_pipeline(path)
        if config.retriever != "dense" and (mode or model):
            raise UsageError(
                f"{path} retrieves by {config.retriever}, which takes no model and no mode; leave them out"
            )
        if config.retriever != "dense" and config.reranker is None and backend != "torch":
            raise UsageError(f"{path} retrieves by {config.retriever}, which has no {backend} export; leave it out")
        if config.threshold is not None and not distinct:
            raise UsageError(f"the threshold of {path} was chosen with each text once; ask its index for all of them")
    else:
        config = PipelineConfig(index=str(path), reranker=rerank, n_retrieved=n_retrieved, ensemble=ensemble)
    config = replace(config, mode=mode or config.mode, model=str(model) if model is not None else config.model)

    return PipelineRef(path=path, config=config, seen=seen)


def resolve_ranker(
    name: str,
    *,
    rerank: str | None = None,
    n_retrieved: int = SHORTLIST,
    ensemble: Ensemble | None = None,
    backend: Backend = "torch",
    lengths: Lengths = USUAL,
) -> RankerRef:
    """What a name means as a ranker of given lists.

    Args:
        name: what ``polyrank.load`` takes, or a pipeline folder, whose settings count and whose candidates do not.
        rerank: a second stage, what ``polyrank.load`` takes; a pipeline has its own.
        n_retrieved, ensemble: of two stages, with ``rerank``.
        backend: of every model.
        lengths: how much of a text is read, of each stage that has such a setting.

    Raises:
        UsageError: there is no model of that name, a setting is for neither stage, or there are two stages already.
    """
    check_stages(name, rerank, ensemble)
    index: Path | None = None
    if has_document(Path(name), PIPELINE):
        config, _ = read_pipeline(Path(name))
        name, rerank, index = config.retriever, config.reranker, Path(config.index)
        n_retrieved, ensemble = config.n_retrieved, config.ensemble
        if name == "dense" and config.model is not None:
            name = config.model
    if name == "dense" and index is not None:
        first = ModelRef(name=str(index), kind="encoder of an index", folder=index, backend=backend)
    else:
        first = resolve_model(name, backend=backend)
    stages = (first,) if rerank is None else (first, resolve_model(rerank, backend=backend))
    return RankerRef(stages=stages, n_retrieved=n_retrieved, ensemble=ensemble).with_lengths(lengths)


def check_stages(name: AnyPath, rerank: str | None, ensemble: Ensemble | None) -> None:
    """Refuse a second stage where there is one already, and an ensemble without one."""
    first, arrow, second = (part.strip() for part in str(name).partition(">"))
    if arrow and not Path(name).exists():
        raise UsageError(f"two stages are no longer written {str(name)!r}; write {first} with `rerank={second}`")
    if rerank is None and ensemble is not None:
        raise UsageError(f"the ensemble {ensemble} adds up two stages; name the second with `rerank`")
    if rerank is not None and has_document(Path(name), PIPELINE):
        raise UsageError(f"{name} is a pipeline, which has its own stages; leave out `rerank`, or name its index")


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


def is_answering(path: Path) -> bool:
    """Whether a folder answers: a pipeline or an index."""
    return folder_kind(path) in ("pipeline", "index", "remote")
