"""From a name on the command line to a Scorer: a model or map, "bm25" or "tfidf"; see ``polyrank.config.names``."""

from collections.abc import Sequence
from pathlib import Path

from polyrank.config.models import TextPolicy
from polyrank.config.names import UNTUNED, is_there, model_folder
from polyrank.errors import UsageError
from polyrank.records import Candidate, Example
from polyrank.scorers.exported import Backend, load_exported
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.load import load_scorer, untuned_scorer
from polyrank.scorers.mapped import KIND as MAP
from polyrank.scorers.mapped import load_map
from polyrank.scorers.protocols import Encoder, Scorer
from polyrank.storage.tensors import is_folder_of

LEXICAL = ("bm25", "tfidf")


def open_scorer(
    name: str,
    examples: Sequence[Example] = (),
    pool: Sequence[Candidate] | None = None,
    *,
    device: str = "auto",
    policy: TextPolicy | None = None,
    backend: Backend = "torch",
) -> Scorer:
    """The Scorer that ``name`` means.

    Args:
        name: "bm25", "tfidf", "untuned:embedded", "untuned:FOLDER", "shipped:convert", or a model or map folder.
        examples, pool: lexical scorers learn word statistics from their distinct candidates; nobody is told which of
            them are right.
        device: for networks.
        policy: for untuned backbones; a model folder has its own.
        backend: of model folders; "onnx" and "openvino" need an export, see ``polyrank.scorers.exported``.
    """
    if name in LEXICAL:
        texts = [c.text for c in pool] if pool is not None else [text for e in examples for text in e.candidates]
        lexical = BM25() if name == "bm25" else TfIdf()
        return lexical.fit(list(dict.fromkeys(texts))) if texts else lexical
    if name.startswith(UNTUNED):
        if backend != "torch":
            raise UsageError(f"{name} has no {backend} export, only model folders have; use --backend torch")
        return untuned_scorer(name.removeprefix(UNTUNED), policy, device=device)
    check_name(name)
    return _open_folder(model_folder(name), device, backend)


def check_name(name: str) -> None:
    """Refuse a name that means nothing, before anything is loaded.

    Raises:
        UsageError: it is neither a folder nor one of the known names.
    """
    if name not in LEXICAL and not is_there(name):
        raise UsageError(f"{name} is no model folder; give one, or bm25, tfidf, untuned:embedded or shipped:convert")


def _open_folder(path: Path, device: str, backend: Backend) -> Scorer:
    """A model folder, or a map with the frozen encoder that it belongs to."""
    if not is_folder_of(path, MAP):
        return load_scorer(path, device=device) if backend == "torch" else load_exported(path, backend, device=device)

    def open_encoder(name: str) -> Encoder:
        scorer = open_scorer(name, device=device, backend=backend)
        if not isinstance(scorer, Encoder):
            raise UsageError(f"{name} has no vectors to map; {path} needs the encoder that it was fitted on")
        return scorer

    return load_map(path, open_encoder)


def load_encoder(name: str | Path, *, device: str = "auto", backend: Backend = "torch") -> Encoder:
    """A model or map folder, or "untuned:BACKBONE", as an Encoder.

    Raises:
        UsageError: it is not there, or it is a lexical scorer or a Cross-encoder, which have no vectors to index.
    """
    name = str(name)
    if name in LEXICAL:
        raise UsageError(
            f"{name} has no vectors and needs no index of them; give a Bi- or Poly-encoder, or put {name} over an"
            f" index's texts with: polyrank pipeline create INDEX --retriever {name}"
        )
    scorer = open_scorer(name, device=device, backend=backend)
    if not isinstance(scorer, Encoder):
        raise UsageError(f"{name} is a Cross-encoder, which has no vectors to index; give a Bi- or Poly-encoder")
    return scorer


def encoder_of_index(
    built_with: str, moved: Path | None = None, *, device: str = "auto", backend: Backend = "torch"
) -> Encoder:
    """The encoder of an index.

    Args:
        built_with: what the index says.
        moved: its folder, where that has moved.
        device: for the network.
        backend: of a model folder.

    Raises:
        UsageError: it is not there.
    """
    name = str(moved or built_with)
    if not is_there(name):
        instead = f" and is to be searched with {moved}" if moved else ""
        raise UsageError(
            f"the index was built with {built_with}{instead}, which is not there; give the model's folder with --model"
        )
    return load_encoder(name, device=device, backend=backend)
