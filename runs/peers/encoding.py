"""The speed of encoding texts and scoring pairs: by torch, by exports, and by the caller's libraries.

Forms take turns in one process on the same texts, with the same backbone. They differ in batching, precision and
padding. Figures are medians.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyrank.bench.machine import describe_machine, median_seconds
from polyrank.bench.responding import long_context
from polyrank.config.models import BiConfig, CrossConfig, LateConfig, ModelConfig, TextPolicy
from polyrank.devices.choice import Precision
from polyrank.errors import ArtifactError, ConfigError
from polyrank.loading.models import Backend
from polyrank.models import new_model
from polyrank.models.artifacts import save_model
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.exported import export_model, load_exported
from polyrank.scorers.exported.sessions import check_installed
from polyrank.scorers.load import saved_scorer, untuned_scorer

CONTEXT_WORDS = 100
LATE = "late Cross-encoder"
TWO_STAGES = f"Bi-encoder and {LATE}"
"""The time of a context's vector and of the re-ranking together: both networks have the same lower layers."""

POLICY = TextPolicy(max_context_tokens=256, max_candidate_tokens=72)
Run = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library with the same backbone.

    Args:
        encode: texts to unit vectors ``[N, D]``.
        rank: a query and texts to scores ``[N]``.
    """

    encode: Callable[[Sequence[str]], NDArray[np.float32]]
    rank: Callable[[str, Sequence[str]], NDArray[np.float32]]


def bench_encoding(
    texts: Sequence[str],
    *,
    n_pairs: int = 100,
    n_words: int = CONTEXT_WORDS,
    repeats: int = 3,
    backends: Sequence[Backend] = (),
    precisions: Sequence[Precision] = (),
    models: Sequence[Path] = (),
    backbone: str = "embedded",
    device: str = "auto",
    peers: Mapping[str, Peer] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Time bulk encoding, the encoding of one context, and the re-ranking of a shortlist.

    Args:
        texts: to encode; the first ``n_pairs`` are the shortlist.
        n_pairs: length of the shortlist.
        n_words: of the context.
        repeats: rounds; each times every form once.
        backends: "onnx", "openvino": exports of the same network, in addition to torch.
        precisions: further precisions of the same network.
        models: folders of other models, to time on the same texts.
        backbone: "embedded", a folder or hf:OWNER/MODEL.
        device: of polyrank's networks in torch: "auto", "cpu", "cuda" or "mps".
        peers: other libraries by name, the reference first.
        progress: called with the name of the next step.

    Returns:
        ``machine``, and ``rows`` of ``what``, ``n`` (texts or pairs), ``d``, ``form``, ``ms`` (median), ``ratio`` (the
        first peer's time divided by this; None without peers), ``per_second`` and ``max_abs_error`` (against polyrank's
        fp32; None for other networks), and ``left_out``, the refused exports and the reasons.
    """
    for backend in backends:
        check_installed(backend)
    progress("loading")
    untuned, saved = partial(untuned_scorer, backbone, POLICY, device=device), partial(saved_scorer, device=device)
    encoder, exact = untuned(), untuned_scorer(backbone, POLICY, device="cpu", precision="fp32")
    encoders: dict[str, EncoderScorer] = {"polyrank": encoder}
    crosses: dict[str, CrossScorer] = {}
    left_out: list[str] = []
    with TemporaryDirectory() as folder:
        bi = _saved(Path(folder) / "bi", BiConfig(backbone=backbone, shared_towers=True, output_scale=1.0))
        cross = _saved(Path(folder) / "cross", CrossConfig(backbone=backbone))
        _add_scorer("polyrank", saved(cross), encoders, crosses)
        _add_scorer("exact", saved_scorer(cross, device="cpu", precision="fp32"), encoders, crosses)
        try:
            late = _saved(Path(folder) / "late", LateConfig(backbone=backbone))
            crosses |= {LATE: saved(late)}  # type: ignore[dict-item]
            crosses |= {f"{LATE} {name}": saved(late, precision=name) for name in precisions}  # type: ignore[misc]
            first, second = saved(bi), saved(late)
            second.follow(first)
        except ConfigError as error:  # it is not a BERT
            left_out.append(f"{LATE}: {error}")
        for name in precisions:
            encoders[f"polyrank {name}"] = untuned(precision=name)
            _add_scorer(f"polyrank {name}", saved(cross, precision=name), encoders, crosses)
        for backend in backends:
            progress(f"exporting to {backend}")
            for model in (bi, cross):
                try:
                    export_model(model, backend)
                except ArtifactError as error:  # an untrained head's scores are nearly equal, so bf16 reorders them
                    left_out.append(f"{model.name} {backend}: {error}".replace(f"{folder}/", ""))
                    continue
                _add_scorer(f"polyrank {backend}", load_exported(model, backend), encoders, crosses)
    for model in models:
        _add_scorer(str(model), saved(model), encoders, crosses)
    exact_cross = crosses.pop("exact")
    context = long_context(texts, n_words)
    distinct, shortlist = list(dict.fromkeys(texts)), list(texts[:n_pairs])
    peers = peers or {}
    usual = next(iter(peers), "")

    progress(f"encoding {len(distinct):,} texts")
    bulk: dict[str, Run] = {name: partial(_fresh, scorer, distinct) for name, scorer in encoders.items()}
    bulk |= {name: partial(peer.encode, distinct) for name, peer in peers.items()}
    rows = _compare("bulk", len(distinct), encoder.dimension, bulk, _fresh(exact, distinct), repeats, usual)

    progress("encoding one context")
    one: dict[str, Run] = {name: partial(_one, scorer, context) for name, scorer in encoders.items()}
    one |= {name: partial(peer.encode, list(context.turns)) for name, peer in peers.items()}
    rows += _compare("context", 1, encoder.dimension, one, _one(exact, context), 4 * repeats, usual)

    progress(f"re-ranking {n_pairs} candidates")
    pairs: dict[str, Run] = {name: partial(_rerank, scorer, context, shortlist) for name, scorer in crosses.items()}
    pairs |= {name: partial(peer.rank, context.turns[0], shortlist) for name, peer in peers.items()}
    if LATE in crosses:
        pairs[TWO_STAGES] = partial(_two_stages, first, second, context, shortlist)  # type: ignore[arg-type]
    reference = _rerank(exact_cross, context, shortlist)
    rows += _compare("rerank", n_pairs, encoder.dimension, pairs, reference, repeats, usual)
    return {"machine": describe_machine(), "rows": rows, "left_out": left_out}


def _saved(path: Path, config: ModelConfig) -> Path:
    model, texts, config = new_model(config, POLICY, seed=0, sample=())
    save_model(path, model, texts, config)
    return path


def _add_scorer(
    name: str,
    scorer: EncoderScorer | CrossScorer,
    encoders: dict[str, EncoderScorer],
    crosses: dict[str, CrossScorer],
) -> None:
    if isinstance(scorer, CrossScorer):
        crosses[name] = scorer
    else:
        encoders[name] = scorer


def _fresh(encoder: EncoderScorer, texts: Sequence[str]) -> NDArray[np.float32]:
    encoder.forget()
    return _unit(encoder.encode_candidates(texts))


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True), np.float32)


def _one(encoder: EncoderScorer, context: Context) -> NDArray[np.float32]:
    return _unit(encoder.encode_contexts([context])[0][:, 0])


def _rerank(cross: CrossScorer, context: Context, texts: Sequence[str]) -> NDArray[np.float32]:
    return cross.score([context], [texts])[0]


def _two_stages(
    first: EncoderScorer, second: CrossScorer, context: Context, texts: Sequence[str]
) -> NDArray[np.float32]:
    first.encode_contexts([context])
    return _rerank(second, context, texts)


def _compare(
    what: str, n: int, d: int, forms: dict[str, Run], reference: NDArray[np.float32], repeats: int, usual: str
) -> list[dict[str, Any]]:
    answers = {form: run() for form, run in forms.items()}  # the first round includes lazy loading
    rows, times = [], median_seconds(forms, repeats)
    for form, seconds in times.items():
        row: dict[str, Any] = {"what": what, "n": n, "d": d, "m": 1, "form": form, "ms": round(1e3 * seconds, 3)}
        row["ratio"] = round(times[usual] / seconds, 2) if usual else None
        row["per_second"] = round(n / seconds, 1)
        # a peer's Cross-encoder has another random head, so its scores cannot be compared
        same = form.startswith("polyrank") or (bool(usual) and form.startswith(usual) and what != "rerank")
        row["max_abs_error"] = float(np.abs(answers[form] - reference).max()) if same else None
        rows.append(row)
    return rows
