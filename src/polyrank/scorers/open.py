"""From a name to a Scorer: a model, a map or a sum of ours, somebody else's model, "bm25" or "tfidf"."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from polyrank.config.checked import read_choice
from polyrank.config.models import MODEL
from polyrank.config.names import UNTUNED, is_hub_name, is_there, lasting_name, model_folder
from polyrank.errors import UsageError
from polyrank.records import Candidate, Example
from polyrank.scorers.lexical import BM25, TfIdf
from polyrank.scorers.protocols import Encoder, Scorer

if TYPE_CHECKING:  # whoever asks for BM25 does not wait for torch
    from polyrank.devices.choice import Precision
    from polyrank.scorers.exported import Backend

LEXICAL = ("bm25", "tfidf")
NAMES = (
    "give a model folder, a Hugging Face name such as cross-encoder/ms-marco-MiniLM-L6-v2, bm25, tfidf,"
    " untuned:embedded or shipped:convert"
)


class Lengths(TypedDict):
    """How much of a text is read; None: what the model says."""

    max_context_tokens: int | None
    max_candidate_tokens: int | None


def load(
    name: str | Path,
    *,
    device: str = "auto",
    precision: "Precision" = "auto",
    backend: "Backend" = "torch",
    max_context_tokens: int | None = None,
    max_candidate_tokens: int | None = None,
    corpus: Sequence[str] = (),
) -> Scorer:
    """A model that ranks, by its name.

    Args:
        name: a model folder that training wrote, a map or a sum; a folder or the hub name of a bi-encoder or
            Cross-encoder of Hugging Face or sentence-transformers; "shipped:convert"; "untuned:embedded" or
            "untuned:FOLDER", the cosines of a backbone as it comes; "bm25" or "tfidf".
        device: "auto", "cpu" or "cuda".
        precision: "fp32" or "bf16"; "auto" is what the hardware is fast at, and fp32 for other people's models.
        backend: "torch"; or "onnx" or "openvino", for a model folder that has such an export, or a sum of some that do.
        max_context_tokens, max_candidate_tokens: how much of a text is read, of untuned and of other people's models.
            None: what the model says. Ours read what they were trained with.
        corpus: texts that "bm25" and "tfidf" learn word statistics from; without them, from what they are to rank.

    Returns:
        A Scorer, which is an Encoder unless it is a Cross-encoder or lexical.

    Raises:
        UsageError: there is no such model, or a setting is not for it.
        ArtifactError: the model is damaged, or cannot be read; the message says why.
        OfflineError: a hub name that is not stored on this machine, and no network.

    >>> [reply.text for reply in load("bm25").rank("is tea ready", ["coffee is", "tea is ready"])]
    ['tea is ready', 'coffee is']
    """
    scorer = _load(
        str(name),
        device,
        precision,
        backend,
        Lengths(max_context_tokens=max_context_tokens, max_candidate_tokens=max_candidate_tokens),
        corpus,
    )
    scorer.name = lasting_name(str(name))
    return scorer


def _load(
    name: str, device: str, precision: "Precision", backend: "Backend", lengths: Lengths, corpus: Sequence[str]
) -> Scorer:
    for key, value in lengths.items():
        if value is not None and not has_settable_lengths(name):
            raise UsageError(f"{key} is not for {name}, which reads as much as it was made for; leave it out")
        if value is not None and not (isinstance(value, int) and value > 0):
            raise UsageError(f"{key} = {value!r} is no number of tokens; give one of 4 or more")
    if name in LEXICAL:
        lexical = BM25() if name == "bm25" else TfIdf()
        return lexical.fit(list(dict.fromkeys(corpus))) if corpus else lexical
    if name.startswith(UNTUNED):
        _only_torch(name, backend)
        from polyrank.scorers.load import untuned_scorer

        return untuned_scorer(name.removeprefix(UNTUNED), device=device, precision=precision, **lengths)
    check_name(name)
    from polyrank.index import is_index
    from polyrank.models.foreign import is_foreign
    from polyrank.models.hub import hub_folder
    from polyrank.scorers.load import foreign_scorer, saved_scorer
    from polyrank.scorers.mapped import KIND, load_map
    from polyrank.scorers.summed import is_sum
    from polyrank.storage.document import has_document
    from polyrank.storage.tensors import is_folder_of

    folder = hub_folder(name) if is_hub_name(name) else model_folder(name)
    if not has_document(folder, MODEL):
        if has_document(folder / "model", MODEL) or is_sum(folder / "model"):
            raise UsageError(f"{name} is the folder of a training; give the model in it, {folder / 'model'}")
        if is_index(folder) or (folder / "pipeline.json").is_file():
            raise UsageError(f"{name} answers from a catalogue and ranks no lists; polyrank.open and respond take it")
    if is_foreign(folder):
        _only_torch(name, backend)
        return foreign_scorer(folder, device=device, precision=precision, **lengths)
    if is_folder_of(folder, KIND):
        return load_map(folder, lambda name: load_encoder(name, device=device, precision=precision, backend=backend))
    if is_sum(folder):
        return _sum(folder, device, precision, backend)
    if backend == "torch":
        return saved_scorer(folder, device=device, precision=precision)
    from polyrank.scorers.exported import load_exported

    return load_exported(folder, backend, device=device, precision=precision)


def _sum(folder: Path, device: str, precision: "Precision", backend: "Backend") -> Encoder:
    """A sum, whose parts run in their exports of a backend where they have one, and in torch elsewhere."""
    from polyrank.scorers.summed import load_sum, read_sum

    exported: set[str] = set()
    if backend != "torch":
        from polyrank.scorers.exported import has_export

        names = [part["model"] for part in read_sum(folder)["parts"]]
        exported = {name for name in names if has_export(model_folder(name), backend)}
        if not exported:
            raise UsageError(
                f"none of the encoders of {folder} has an {backend} export ({', '.join(names)}); use the torch backend,"
                f" or export one with: polyrank export MODEL --to {backend}"
            )

    def open_part(name: str) -> Encoder:
        own: Backend = backend if name in exported else "torch"
        return load_encoder(name, device=device, precision=precision, backend=own)

    return load_sum(folder, open_part)


def check_name(name: str) -> None:
    """Refuse a name that means nothing, before anything is loaded.

    Raises:
        UsageError: it is neither a folder nor one of the known names.
    """
    if name not in LEXICAL and not (name and is_there(name)):
        raise UsageError(f"{name or 'an empty name'} is no model folder; {NAMES}")


def has_settable_lengths(name: str) -> bool:
    """Whether ``load`` takes lengths for a model of that name."""
    if name in LEXICAL:
        return False
    if name.startswith(UNTUNED) or is_hub_name(name):
        return True
    from polyrank.models.foreign import is_foreign

    return is_there(name) and is_foreign(model_folder(name))


def probe_encoding(scorer: Scorer, name: str, encoding: str) -> None:
    """From now on rank by one of the encodings that a multi-context ConveRT makes of a context.

    Args:
        scorer: of the ConveRT; changed in place.
        name: of it, for errors.
        encoding: "immediate", of the last turn, or "earlier", of the turns before it; "both" is how it ranks usually.

    Raises:
        UsageError: it is another network, or there is no such encoding.

    Source: Henderson et al., ConveRT (2020), section 4 and footnote 9.
    """
    from polyrank.models import Convert
    from polyrank.models.convert.network import Probe

    model = getattr(scorer, "model", None)
    if not isinstance(model, Convert) or not model.multi_context:
        raise UsageError(f"{name} is no multi-context ConveRT, so there is nothing to probe; leave --probe out")
    model.probe = read_choice(encoding, Probe, "probe")


def _only_torch(name: str, backend: "Backend") -> None:
    if backend != "torch":
        raise UsageError(f"{name} has no {backend} export, only model folders of ours have; use the torch backend")


def corpus_of(examples: Iterable[Example] = (), pool: Iterable[Candidate] | None = None) -> list[str]:
    """What lexical scorers may learn word statistics from: the candidates, nobody told which of them are right."""
    if pool is not None:
        return [candidate.text for candidate in pool]
    return [text for example in examples for text in example.candidates]


def load_encoder(
    name: str | Path, *, device: str = "auto", precision: "Precision" = "auto", backend: "Backend" = "torch"
) -> Encoder:
    """As ``load``, where vectors are wanted.

    Raises:
        UsageError: it is not there, or it is a lexical scorer or a Cross-encoder, which have no vectors to index.
    """
    name = str(name)
    if name in LEXICAL:
        raise UsageError(
            f"{name} has no vectors and needs no index of them; give a Bi- or Poly-encoder, or put {name} over an"
            f" index's texts with: polyrank pipeline create INDEX --retriever {name}"
        )
    scorer = load(name, device=device, precision=precision, backend=backend)
    if not isinstance(scorer, Encoder):
        raise UsageError(f"{name} is a Cross-encoder, which has no vectors to index; give a Bi- or Poly-encoder")
    return scorer


def encoder_of_index(
    built_with: str, moved: Path | None = None, *, device: str = "auto", backend: "Backend" = "torch"
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
