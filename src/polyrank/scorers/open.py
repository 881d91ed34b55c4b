"""From a reference to a Scorer: a polyrank model, map or sum, a Hugging Face model, BM25 or TF-IDF; two stages."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.config.checked import read_choice
from polyrank.errors import UsageError
from polyrank.loading.answering import RankerRef, resolve_ranker
from polyrank.loading.folders import folder_kind
from polyrank.loading.models import (
    Backend,
    Lengths,
    ModelRef,
    absolute_name,
    resolve_encoder,
    resolve_encoder_of_index,
    resolve_model,
)
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Scorer

if TYPE_CHECKING:  # BM25 needs no torch
    from polyrank.devices.choice import Precision


def load(
    name: str | Path,
    *,
    rerank: str | Path | None = None,
    n_retrieved: int | None = None,
    device: str = "auto",
    precision: "Precision" = "auto",
    backend: Backend = "torch",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
    corpus: Sequence[str] = (),
) -> Scorer:
    """A model that ranks, by its name.

    Args:
        name: the folder of a trained model, map, sum or counts of replies; the folder or the hub name of a
            bi-encoder or Cross-encoder of Hugging Face or sentence-transformers, best as ``hf:OWNER/MODEL``;
            "shipped:convert"; "untuned:embedded" or "untuned:FOLDER", the cosines of an untuned backbone; "bm25" or
            "tfidf".
        rerank: a second stage, which re-ranks the best candidates of the first; None: there is none.
        n_retrieved: how many of the best; None: 100.
        device: "auto", "cpu", "cuda" or "mps".
        precision: "fp32", "bf16", "fp16" or "int8" (8-bit weights, on the CPU); "auto" is the faster of the first two
            on this hardware, int8 on CPUs without bf16 if the model records equal rankings, fp32 for Hugging Face
            models.
        backend: "torch"; or "onnx" or "openvino", for a model folder with such an export, or a sum of such models.
        max_context_tokens, max_candidate_tokens: text lengths, for untuned and for Hugging Face models. None: the
            model's own. A polyrank model keeps the lengths that it was trained with.
        corpus: texts for the word statistics of "bm25" and "tfidf"; without it, each list (``evaluate``: all).

    Returns:
        A Scorer, which is an Encoder unless it is a Cross-encoder or lexical. For a re-ranker that corrects an encoder:
        both stages.

    Raises:
        UsageError: the model does not exist, or does not have a setting.
        ArtifactError: the model is damaged or not supported; the message names the reason.
        OfflineError: the name is of a hub model that is not stored on this machine, and the network is down.

    >>> [reply.text for reply in load("bm25").rank("is tea ready", ["coffee is", "tea is ready"])]
    ['tea is ready', 'coffee is']
    """
    lengths = Lengths(max_context_tokens, max_candidate_tokens)
    if (folder := Path(name)).is_dir() and folder_kind(folder) == "pipeline":
        resolve_model(name)  # which refuses it
    ranker = resolve_ranker(name, rerank=rerank, n_retrieved=n_retrieved, backend=backend, lengths=lengths)
    scorer = open_ranker(ranker, device=device, precision=precision, corpus=corpus)
    if rerank is None:
        scorer.name = absolute_name(str(name))
    return scorer


def load_stage(name: str | Path, *, device: str = "auto", precision: "Precision" = "auto") -> Scorer:
    """As ``load``, but a re-ranker that corrects an encoder comes without it."""
    return open_model(resolve_model(name), device=device, precision=precision)


def open_model(
    ref: ModelRef, *, device: str = "auto", precision: "Precision" = "auto", corpus: Sequence[str] = ()
) -> Scorer:
    """The Scorer of a reference; see ``load``."""
    scorer = _open(ref, device, precision, corpus)
    scorer.name = absolute_name(ref.name)
    if ref.corrects:
        scorer.corrects, scorer.first_stage = ref.corrects, ref.first_stage
    return scorer


def _open(ref: ModelRef, device: str, precision: "Precision", corpus: Sequence[str]) -> Scorer:
    if ref.kind == "lexical":
        lexical = BM25() if ref.name == "bm25" else TfIdf()
        return lexical.fit(list(dict.fromkeys(corpus))) if corpus else lexical
    from polyrank.scorers import load as networks

    if ref.kind == "untuned":
        return networks.untuned_scorer(ref.backbone, device=device, precision=precision, **asdict(ref.lengths))
    assert ref.folder is not None, "all other kinds have a folder"
    if ref.kind == "encoder of an index":
        from polyrank.index import open_index

        with open_index(ref.folder) as index:
            named = index.model
        encoder = resolve_encoder_of_index(named, backend=ref.backend)
        return open_encoder(encoder, device=device, precision=precision)
    if ref.kind == "foreign":
        return networks.foreign_scorer(ref.folder, device=device, precision=precision, **asdict(ref.lengths))
    if ref.kind == "popularity":
        from polyrank.scorers.popularity import load_popularity

        return load_popularity(ref.folder)
    if ref.kind == "repetition":
        from polyrank.scorers.repetition import load_repetition

        others = [open_model(part, device=device, precision=precision) for part in ref.parts]
        return load_repetition(ref.folder, *others)
    parts = [open_encoder(part, device=device, precision=precision) for part in ref.parts]
    if ref.kind == "map":
        from polyrank.scorers.mapped import load_map

        return load_map(ref.folder, *parts)
    if ref.kind == "hubs":
        from polyrank.scorers.hubs import load_hubs

        return load_hubs(ref.folder, *parts)
    if ref.kind == "sum":
        from polyrank.scorers.summed import load_sum

        return load_sum(ref.folder, parts)
    if ref.backend == "torch":
        return networks.saved_scorer(ref.folder, device=device, precision=precision)
    from polyrank.scorers.exported import load_exported

    return load_exported(ref.folder, ref.backend, device=device, precision=precision)


def load_encoder(
    name: str | Path, *, device: str = "auto", precision: "Precision" = "auto", backend: Backend = "torch"
) -> Encoder:
    """As ``load``, for models with vectors.

    Raises:
        UsageError: the model does not exist, or is a lexical scorer or a Cross-encoder, which have no vectors to index.
    """
    return open_encoder(resolve_encoder(name, backend=backend), device=device, precision=precision)


def load_frozen(name: str, purpose: str, *, device: str = "auto") -> Encoder:
    """As ``load``, for a model whose vectors something else is trained on.

    Raises:
        UsageError: the model does not exist or has no vectors; the message names the purpose.
    """
    scorer = load(name, device=device)
    if not isinstance(scorer, Encoder):
        raise UsageError(
            f"{name} has no vectors to {purpose}; give a Bi- or Poly-encoder, a ConveRT or an untuned backbone"
        )
    return scorer


def open_encoder(ref: ModelRef, *, device: str = "auto", precision: "Precision" = "auto") -> Encoder:
    """As ``open_model``, for models with vectors.

    Raises:
        UsageError: it is a Cross-encoder.
    """
    scorer = open_model(ref, device=device, precision=precision)
    if not isinstance(scorer, Encoder):
        if ref.corrects:
            raise UsageError(f"{ref.name} has no vectors; give the encoder whose scores it corrects, {ref.corrected}")
        raise UsageError(f"{ref.name} is a Cross-encoder, which has no vectors to index; give a Bi- or Poly-encoder")
    return scorer


def encoder_of_index(
    built_with: str, moved: Path | None = None, *, device: str = "auto", backend: Backend = "torch"
) -> Encoder:
    """The encoder of an index, see ``resolve_encoder_of_index``."""
    return open_encoder(resolve_encoder_of_index(built_with, moved, backend=backend), device=device)


def open_ranker(
    ref: RankerRef, *, device: str = "auto", precision: "Precision" = "auto", corpus: Sequence[str] = ()
) -> Scorer:
    """A Scorer of one stage or two, which ranks given lists or a pool.

    Args:
        ref: the stages.
        device: for networks.
        precision: likewise, see ``load``.
        corpus: texts for the word statistics of lexical stages.
    """
    stages = [open_model(stage, device=device, precision=precision, corpus=corpus) for stage in ref.stages]
    if len(stages) == 1:
        return stages[0]
    from polyrank.scorers.two_stage import TwoStageScorer

    return TwoStageScorer(*stages, n_retrieved=ref.n_retrieved, ensemble=ref.ensemble)


def probe_encoding(scorer: Scorer, name: str, encoding: str) -> None:
    """Make a multi-context ConveRT rank by one of its encodings of a context.

    Args:
        scorer: of the ConveRT; changed in place.
        name: its name, for errors.
        encoding: "immediate", of the last turn; "earlier", of the turns before it; or "both", the default.

    Raises:
        UsageError: the scorer is of another network, or the encoding is unknown.

    Source: Henderson et al., ConveRT (2020), section 4 and footnote 9.
    """
    from polyrank.models import Convert
    from polyrank.models.convert.network import Probe

    model = getattr(scorer, "model", None)
    if not isinstance(model, Convert) or not model.multi_context:
        raise UsageError(f"{name} is not a multi-context ConveRT, so it cannot be probed; leave `probe` out")
    model.probe = read_choice(encoding, Probe, "probe")
