"""From a reference to a Scorer: a polyrank model or ranker, a Hugging Face model, BM25 or TF-IDF."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyrank.errors import UsageError
from polyrank.loading import models
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.own import as_scorer
from polyrank.scorers.protocols import Encoder, Scorer

if TYPE_CHECKING:  # BM25 needs no torch
    from polyrank.devices.choice import Precision


def load(
    name: str | Path,
    *,
    device: str = "auto",
    precision: "Precision" = "auto",
    backend: models.Backend = "torch",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
    truncate_dim: int | None = None,
    corpus: Sequence[str] = (),
) -> Scorer:
    """A model or ranker, by its name.

    Args:
        name: the folder of a trained model or of a ranker; the folder or the hub name of a bi-encoder or Cross-encoder
            of Hugging Face or sentence-transformers, best as ``hf:OWNER/MODEL``; "shipped:convert";
            "untuned:embedded" or "untuned:FOLDER", the cosines of an untuned backbone; "bm25" or "tfidf".
        device: "auto", "cpu", "cuda" or "mps".
        precision: "fp32", "bf16", "fp16" or "int8" (8-bit weights, on the CPU); "auto" is the faster of the first two
            on this hardware, int8 on CPUs without bf16 if the model records equal rankings, fp32 for Hugging Face
            models.
        backend: "torch"; or "onnx" or "openvino", for a model folder with such an export, or a ranker of such models.
        max_context_tokens, max_candidate_tokens: text lengths, for untuned and for Hugging Face models. None: the
            model's own. A polyrank model keeps the lengths that it was trained with.
        truncate_dim: keep only so many of the first numbers of each vector, as models with a Matryoshka loss allow.
            Wherever models are named, ``NAME#truncate_dim=64`` means the same.
        corpus: texts for the word statistics of "bm25" and "tfidf"; without it, each list (``evaluate``: all).

    Returns:
        A Scorer, which is an Encoder if it has vectors. For a re-ranker that corrects an encoder: a ranker of both.

    Raises:
        UsageError: the model does not exist, no part of it uses a setting, or it corrects an encoder that is missing.
        ArtifactError: the folder is damaged, or a later version wrote it.

    >>> load("bm25")
    BM25('bm25')
    """
    lengths = models.Lengths(max_context_tokens, max_candidate_tokens)
    whole = name if truncate_dim is None else f"{name}{models.CUT}{truncate_dim}"
    ref = models.resolve_model(whole, backend=backend, lengths=lengths)
    models.check_backend([ref], backend)
    return open_ranking(ref, device=device, precision=precision, corpus=corpus)


def open_ranking(
    ref: models.ModelRef, *, device: str = "auto", precision: "Precision" = "auto", corpus: Sequence[str] = ()
) -> Scorer:
    """The Scorer of a reference, ready to rank; see ``load``."""
    stages = ref.stages(ref.backend)
    if len(stages) == 1:
        return open_model(ref, device=device, precision=precision, corpus=corpus)
    from polyrank.scorers.ranker import corrected

    encoder, reranker = (open_model(stage, device=device, precision=precision) for stage in stages)
    assert isinstance(encoder, Encoder), "only encoders' scores are corrected"
    ranker = corrected(encoder, reranker)
    ranker.name, ranker.relevance = reranker.name, reranker.relevance
    return ranker


def load_stage(name: str | Path, *, device: str = "auto", precision: "Precision" = "auto") -> Scorer:
    """As ``load``, but a re-ranker that corrects an encoder comes without it."""
    return open_model(models.resolve_model(name), device=device, precision=precision)


def open_model(
    ref: models.ModelRef, *, device: str = "auto", precision: "Precision" = "auto", corpus: Sequence[str] = ()
) -> Scorer:
    """The Scorer of a reference; see ``load``. A re-ranker that corrects an encoder comes without it."""
    scorer = _opened(ref, device, precision, corpus)
    scorer.name = models.absolute_name(ref.name)
    if ref.truncate_dim is not None:
        encoder_of(scorer).truncate(ref.truncate_dim)
    if ref.corrects:
        scorer.corrects, scorer.first_stage = ref.corrects, ref.first_stage
    return scorer


def _opened(ref: models.ModelRef, device: str, precision: "Precision", corpus: Sequence[str]) -> Scorer:
    if ref.kind == "lexical":
        lexical = BM25() if ref.name == "bm25" else TfIdf()
        return lexical.fit(list(dict.fromkeys(corpus))) if corpus else lexical
    if ref.kind == "ranker":
        from polyrank.scorers.ranker import load_ranker

        parts = {part.name: part for part in ref.parts}
        return load_ranker(_folder(ref), lambda name: open_model(parts[name], device=device, precision=precision))
    if ref.kind == "trained" and ref.backend != "torch":
        from polyrank.scorers.exported import load_exported

        return load_exported(_folder(ref), ref.backend, device=device, precision=precision)
    from polyrank.scorers import load  # imports torch, which BM25 does not need

    if ref.kind == "trained":
        return load.saved_scorer(_folder(ref), device=device, precision=precision)
    if ref.kind == "foreign":
        return load.foreign_scorer(_folder(ref), ref.lengths, device=device, precision=precision)
    return load.untuned_scorer(ref.backbone, lengths=ref.lengths, device=device, precision=precision)


def _folder(ref: models.ModelRef) -> Path:
    assert ref.folder is not None, "all kinds with weights have a folder"
    return ref.folder


def load_encoder(
    name: str | Path, *, device: str = "auto", precision: "Precision" = "auto", backend: models.Backend = "torch"
) -> Encoder:
    """As ``load``, for models with vectors; of a ranker, the vectors that it searches.

    Raises:
        UsageError: the model does not exist, or is a lexical scorer or a Cross-encoder, which have no vectors to index.
    """
    return encoder_of(load_ranking(name, device=device, precision=precision, backend=backend))


def load_ranking(
    name: str | Path, *, device: str = "auto", precision: "Precision" = "auto", backend: models.Backend = "torch"
) -> Scorer:
    """As ``load``, for models and rankers whose vectors an index can hold; see ``load_encoder``."""
    return open_ranking(models.resolve_encoder(name, backend=backend), device=device, precision=precision)


def encoder_of(scorer: Scorer) -> Encoder:
    """A scorer's vectors: its own, or those that a ranker searches.

    Raises:
        UsageError: it has none.
    """
    scorer = as_scorer(scorer)
    if isinstance(scorer, Encoder):
        return scorer
    encoder: Encoder | None = getattr(scorer, "encoder", None)
    if encoder is None:
        name = scorer.name or repr(scorer)
        if scorer.corrects:
            raise UsageError(f"{name} has no vectors; give the encoder whose scores it corrects")
        raise UsageError(f"{name} has no vectors to index, as a Cross-encoder; give a Bi- or Poly-encoder")
    return encoder
