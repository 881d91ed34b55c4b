"""Networks to scorers: polyrank's models, untuned backbones, and models of Hugging Face."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyrank.config.checked import to_dict
from polyrank.config.models import BiConfig, TextPolicy
from polyrank.devices.choice import DTYPES, Precision, choose_device, choose_dtype, choose_weights
from polyrank.errors import UsageError
from polyrank.loading.backbones import resolve_backbone
from polyrank.loading.models import DEFAULT_LENGTHS, Lengths
from polyrank.models import BiEncoder, LateCrossEncoder, Network, new_model
from polyrank.models.artifacts import Artifact, load_model
from polyrank.models.bert import BertConfig
from polyrank.models.foreign import Description, PairEncoder, SentenceEncoder, build_foreign, check_padding, describe
from polyrank.models.foreign.files import CLASSIFIER
from polyrank.models.hugging_face import read_pretrained_config
from polyrank.ranking.relevance import RELEVANCE, Relevance
from polyrank.records import Context
from polyrank.scorers.cross import CrossScorer
from polyrank.scorers.encoder import EncoderScorer
from polyrank.scorers.late import LateScorer
from polyrank.text import BackboneTexts, MessageTexts, RoutedTexts, TemplateTexts, Texts, load_template_texts

IN_INT8 = "int8"
"""The key of a model's metadata that records whether it ranks in int8 as in fp32; see ``in_int8``."""


def ranks_in_int8(artifact: Artifact) -> bool:
    """Whether the model's folder records that these weights rank in int8 as in fp32."""
    record = artifact.metadata.get(IN_INT8, {})
    return bool(record.get("kept")) and record["fingerprint"] == artifact.fingerprint


def freeze(model: Network | PairEncoder, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """Make a model faster in bf16 or int8. It can then be neither trained nor saved.

    The backbones' weights are held in this type, which is faster than converting them in every pass and takes less
    memory; the layers after them stay in fp32. If only the first output is used, the last layer computes no other. In
    fp32 nothing changes: a loaded model scores bit for bit as the saved one.

    Args:
        model: to be changed.
        dtype: of the large products, from ``choose_weights``.

    Returns:
        The type of the large products, and that for autocast: fp32, which means none, if the weights are now in
        ``dtype``. A ConveRT is not changed, because its weights have other types; in fp16 no model is.
    """
    if dtype in (torch.bfloat16, torch.int8) and model.narrow(dtype):
        return dtype, torch.float32
    return (torch.float32, torch.float32) if dtype == torch.int8 else (dtype, dtype)


def make_scorer(
    model: Network | PairEncoder,
    texts: Texts,
    *,
    fingerprint: str = "",
    device: str = "auto",
    precision: Precision = "auto",
    frozen: bool = False,
    ranks_in_int8: bool = False,
) -> EncoderScorer | CrossScorer:
    """Bind a model to a device and a precision.

    Args:
        model, texts, fingerprint: of the artifact.
        device: "auto", "cpu", "cuda" or "mps".
        precision: "auto" is bf16 if the hardware is fast at it.
        frozen: whether to call ``freeze``, because the model will be neither trained nor saved.
        ranks_in_int8: whether "auto" may be int8 for a frozen model.
    """
    chosen = choose_device(device)
    model.to(chosen)
    products = dtype = choose_dtype(precision, chosen)
    if frozen:
        products, dtype = freeze(model, choose_weights(precision, chosen, ranks_in_int8=ranks_in_int8))
    kind: Any = EncoderScorer
    if model.pairwise:
        kind = LateScorer if isinstance(model, LateCrossEncoder) else CrossScorer
    scorer: EncoderScorer | CrossScorer = kind(model, texts, fingerprint=fingerprint, device=chosen, dtype=dtype)
    scorer.precision = next(name for name, stated in DTYPES.items() if stated == products)
    return scorer


def saved_scorer(path: Path, *, device: str = "auto", precision: Precision = "auto") -> EncoderScorer | CrossScorer:
    """A polyrank model folder as a Scorer, which is an Encoder unless the model is a Cross-encoder.

    Raises:
        ArtifactError: the folder is damaged, missing or too new.
    """
    artifact = load_model(path)
    scorer = make_scorer(
        artifact.model,
        artifact.texts,
        fingerprint=artifact.fingerprint,
        device=device,
        precision=precision,
        frozen=True,
        ranks_in_int8=ranks_in_int8(artifact),
    )
    scorer.relevance = Relevance.read(artifact.metadata.get(RELEVANCE))
    return scorer


def untuned_scorer(
    name: str,
    policy: TextPolicy | None = None,
    *,
    lengths: Lengths = DEFAULT_LENGTHS,
    device: str = "auto",
    precision: Precision = "auto",
) -> EncoderScorer:
    """An untuned backbone: its own reduction, with cosine as the score. The baseline that fine-tuning must beat.

    A folder of sentence-transformers is scored as its author meant it, as without ``untuned:``.

    Args:
        name: of the backbone.
        policy: its text settings; None: the defaults, limited to what the network supports.
        lengths: budgets that replace the policy's.
        device, precision: see ``make_scorer``.

    Raises:
        UsageError: it is a Cross-encoder, whose outputs are meaningless without its head.
    """
    folder = resolve_backbone(name).folder
    if policy is None and name != "embedded" and (folder / "modules.json").exists():  # that states its reduction
        scorer = foreign_scorer(folder, lengths, device=device, precision=precision)
        if not isinstance(scorer, EncoderScorer):
            raise UsageError(f"{name} is a Cross-encoder, whose head untuned: ignores; give {name} without untuned:")
        return scorer
    stated = BertConfig.read(folder) or read_pretrained_config(folder)
    architecture = next(iter(getattr(stated, "architectures", None) or ()), "")
    if architecture.endswith(CLASSIFIER):
        raise UsageError(f"{name} is a {architecture}, whose head untuned: ignores; give {name} without untuned:")
    cosines = BiConfig(backbone=name, shared_towers=True, normalize=True, match_self_score=1.0)
    model, texts, config = new_model(cosines, policy, seed=0, sample=())
    assert isinstance(model, BiEncoder)
    assert isinstance(texts, BackboneTexts)
    policy = replace(texts.policy, **{name: n for name, n in asdict(lengths).items() if n})
    texts = BackboneTexts(texts.subwords, policy, texts.max_positions)
    settings = to_dict(config)
    del settings["backbone"]  # a path does not identify it
    fingerprint = _fingerprint("cosine", settings, texts, model)
    scorer = make_scorer(model, texts, fingerprint=fingerprint, device=device, precision=precision, frozen=True)
    assert isinstance(scorer, EncoderScorer), "of a BiEncoder"
    return scorer


def foreign_scorer(
    folder: Path, lengths: Lengths = DEFAULT_LENGTHS, *, device: str = "auto", precision: Precision = "auto"
) -> EncoderScorer | CrossScorer:
    """A model of Hugging Face or sentence-transformers, with the same scores as in that library.

    Args:
        folder: of the model.
        lengths: budgets; None: those of the model's files.
        device: see ``make_scorer``.
        precision: "auto" is fp32, so that scores are the library's.

    Raises:
        ArtifactError: it is damaged or not supported; the message names the reason.
        ConfigError: the network does not support a budget.
    """
    description = describe(folder)
    model = build_foreign(description)
    networks: Sequence[Any] = [model] if isinstance(model, PairEncoder) else model.trunks()
    sides = [
        load_template_texts(
            side.transformer,
            network.max_positions,
            max_tokens=side.max_tokens,
            max_context_tokens=lengths.max_context_tokens or side.max_context_tokens,
            max_candidate_tokens=lengths.max_candidate_tokens or side.max_candidate_tokens,
            lower_case=side.lower_case,
            prompts=side.prompts,
            pair_parts=side.pair_parts,
            chat=None if side.chat is None else astuple(side.chat),
        )
        for side, network in zip(description.sides, networks, strict=True)
    ]
    if isinstance(sides[0], MessageTexts) and description.kind == "pairs":
        sides[0].check_pairs()
    for described, side, network in zip(description.sides, sides, networks, strict=True):
        side.pads_left |= described.pads_left
        text = Context(("a",))
        is_pair = isinstance(network, PairEncoder)
        tokens = side.pairs([(text, "b")]) if is_pair else side.contexts([text])
        check_padding(network.network if is_pair else network, tokens, side, folder)
    layers = [[layer.kind, layer.settings] for layer in description.layers]
    settings: dict[str, Any] = {"layers": layers, "output": description.output, "truncated": description.truncated}
    if isinstance(sides[0], MessageTexts):
        settings["chat"] = sides[0].key
    texts: Texts = sides[0]
    if isinstance(model, SentenceEncoder):
        model.skipped = _unpooled(description.sides[0], sides[0], 0), _unpooled(description.sides[-1], sides[-1], 1)
        if description.of_candidates is not None:
            texts, model.pad_id = RoutedTexts(*sides), sides[1].subwords.pad_id
            settings["candidates"] = [
                sides[1].key,
                *([one.kind, one.settings] for one in description.of_candidates.layers),
            ]
    fingerprint = _fingerprint(description.kind, settings, texts, model)
    wanted = "fp32" if precision == "auto" else precision
    return make_scorer(model, texts, fingerprint=fingerprint, device=device, precision=wanted, frozen=True)


def _unpooled(description: Description, texts: TemplateTexts | MessageTexts, side: int) -> int:
    """How many tokens of the prompt of a side are not pooled."""
    prompt = description.prompts[side]
    if description.pools_prompts or not prompt or isinstance(texts, MessageTexts):
        return 0
    return len(texts.before) + len(texts.subwords.encode(prompt))


def _fingerprint(kind: str, settings: Mapping[str, Any], texts: Texts, model: nn.Module) -> str:
    """A digest of everything that determines the scores of a model without a sealed config.json."""
    policy = {key: value for key, value in asdict(texts.policy).items() if value is not None}  # new keys change nothing
    digest = hashlib.sha256(kind.encode() + json.dumps([settings, policy], sort_keys=True).encode())
    digest.update(texts.subwords.to_bytes())
    for _, weight in sorted((model.stored() if isinstance(model, Network) else model.state_dict()).items()):
        digest.update(weight.contiguous().numpy().tobytes())
    return digest.hexdigest()
