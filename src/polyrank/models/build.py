"""Building networks from settings; only this module resolves defaults that depend on the backbone."""

import copy
import dataclasses
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from polyrank.config.models import (
    BackboneConfig,
    BiConfig,
    ConvertConfig,
    ConvertText,
    CrossConfig,
    LateConfig,
    ModelConfig,
    PolyConfig,
    Reduction,
    TextPolicy,
)
from polyrank.errors import ConfigError
from polyrank.models.backbone import Backbone, empty_backbone
from polyrank.models.bi_encoder import BiEncoder, Tower, TwoTowers
from polyrank.models.convert import Convert, empty_convert, new_convert
from polyrank.models.cross_encoder import CrossEncoder
from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.models.network import Network, without_dropout
from polyrank.models.poly_encoder import PolyEncoder
from polyrank.models.published import Published, read_published
from polyrank.models.reductions import reduce
from polyrank.models.sentence_layers import LAYERS, SentenceLayer, build_layer
from polyrank.text import BackboneTexts, ConvertTexts, Subwords, Texts, read_convert_subwords, read_subwords

log = logging.getLogger("polyrank")
BackboneModel = BiEncoder | PolyEncoder | CrossEncoder | LateCrossEncoder
Model: TypeAlias = tuple[Network, Texts, ModelConfig]
"""A network, its tokenized text policy, and its settings."""


def resolve(config: BackboneConfig, start: Published) -> BackboneConfig:
    """Replace each None by its default. A sentence encoder starts with its own reduction and with scores in the range
    of cosine x 20, and after a mean with codes near zero (each context vector starts as the mean). Other backbones get
    the papers' settings.
    """
    if config.reduction is not None:
        start.check_reduction(config.reduction)
    if isinstance(config, CrossConfig | LateConfig):
        return config
    changes: dict[str, Any] = {}
    if config.reduction is None:
        changes["reduction"] = start.reduction()
    if config.normalize is None:
        is_set = (config.output_scale, config.match_output_std) != (None, None)
        exact = type(config) is BiConfig and start.cosine and start.name != "embedded" and not is_set
        config = dataclasses.replace(config, normalize=exact)
    mean_pooled = start.poolings == ("mean",)
    fits = (config.output_scale, config.match_output_std, config.match_self_score)
    if sum(value is not None for value in fits) > 1:
        raise ConfigError("set only one of model.output_scale, match_output_std and match_self_score")
    if config.normalize and fits[:2] != (None, None):
        raise ConfigError(
            "model.normalize = true makes scores match_self_score times a cosine; leave out output_scale and"
            " match_output_std"
        )
    if (start.poolings or config.normalize) and all(value is None for value in fits):
        changes["match_self_score"] = 20.0
    if isinstance(config, PolyConfig) and config.code_init is None:
        changes["code_init"] = "near_zero" if mean_pooled else "uniform"
    return dataclasses.replace(config, **changes)


def build_model(
    config: BackboneConfig, backbone: Backbone, new_dropout: float = 0.0, layers: Sequence[SentenceLayer] = ()
) -> BackboneModel:
    """The network of a resolved configuration, around ``backbone`` and the layers after it.

    Two towers start as copies, except for their projections if ``equal_projections`` is false.

    Raises:
        ConfigError: ``equal_projections`` is false and there are not two projections.
    """
    if isinstance(config, CrossConfig):
        return CrossEncoder(backbone, head=config.head, reduction=config.reduction, dropout=new_dropout)
    if isinstance(config, LateConfig):
        return LateCrossEncoder(
            backbone,
            joined_layers=config.joined_layers,
            reader=config.reader,
            reduction=config.reduction,
            dropout=new_dropout,
        )
    if not config.equal_projections and (config.shared_towers or config.projection_dim is None):
        raise ConfigError(
            "model.equal_projections = false needs two projections; set projection_dim, and leave shared_towers false"
        )
    assert config.reduction is not None, "resolve() comes first"
    scale = 1.0 if config.output_scale is None else config.output_scale
    assert config.match_self_score or not config.normalize, "resolve() comes first"
    length = math.sqrt(config.match_self_score) if config.match_self_score and config.normalize else None
    contexts = Tower(backbone, config.projection_dim, scale, length=length, dropout=new_dropout, layers=layers)
    candidates = contexts if config.shared_towers else copy.deepcopy(contexts)
    if isinstance(candidates.projection, nn.Linear) and not config.equal_projections:
        candidates.projection.reset_parameters()
    if isinstance(config, PolyConfig):
        assert config.code_init is not None, "resolve() comes first"
        return PolyEncoder(
            contexts,
            candidates,
            reduction=config.reduction,
            reduction_tokens=config.reduction_tokens,
            codes=config.codes,
            n_codes=config.n_codes,
            code_init=config.code_init,
        )
    return BiEncoder(contexts, candidates, reduction=config.reduction, reduction_tokens=config.reduction_tokens)


def empty_model(config: ModelConfig, shape: dict[str, Any], dropout: float | None = None) -> Network:
    """A network from saved settings, for weights to be loaded into.

    Args:
        config: resolved settings.
        shape: ``Network.shape`` of the saved model.
        dropout: see ``new_model``.
    """
    if isinstance(config, ConvertConfig):
        return empty_convert(config, int(shape["n_subwords"]), dropout)
    layers = [build_layer(settings) for settings in shape.get(LAYERS, ())]
    values = {key: value for key, value in shape.items() if key != LAYERS}
    return build_model(config, empty_backbone(values, dropout), layers=layers)


def saved_texts(network: Network, policy: TextPolicy | ConvertText, tokenizer: bytes, where: str) -> Texts:
    """The tokenized text policy of a saved model.

    Args:
        network: limits the length of texts, and determines whether earlier turns are used.
        policy: its text settings.
        tokenizer: the bytes of its vocabulary.
        where: names the file in errors.
    """
    if isinstance(policy, ConvertText):
        assert isinstance(network, Convert), "text_from_dict() returns ConvertText for a ConveRT only"
        return ConvertTexts(read_convert_subwords(tokenizer, where), policy, network.multi_context)
    assert isinstance(network, BackboneModel), "all others have a backbone"
    return BackboneTexts(read_subwords(tokenizer, where), policy, network.backbone.max_positions)


def new_model(
    config: ModelConfig,
    policy: TextPolicy | ConvertText | None,
    *,
    seed: int,
    sample: Sequence[str],
    dropout: float | None = None,
    new_dropout: float = 0.0,
    corpus: Iterable[str] = (),
    start: Model | None = None,
) -> Model:
    """A new model: on a trained backbone, or a ConveRT.

    Args:
        config: settings of the model; each None is resolved by the backbone.
        policy: text settings; None: the defaults, with budgets within the network's limit.
        seed: of codes and heads; for a ConveRT, of all weights.
        sample: some candidate texts of the data, to fit the output scale on.
        dropout: of the backbone; None: the backbone's own value.
        new_dropout: before the linear layers of projections and heads.
        corpus: for a ConveRT, texts to learn the vocabulary from.
        start: a trained model whose weights will be copied. Its vocabulary is used, and its transformer too if it was
            trained from the same backbone, whose files are then not needed.

    Returns:
        The model, its tokenized text policy, and the resolved configuration to save.

    Raises:
        ConfigError: the text settings are for another kind of model, or a value is out of range.
    """
    if isinstance(config, ConvertConfig):
        policy = ConvertText() if policy is None else policy
        if not isinstance(policy, ConvertText):
            raise ConfigError("a ConveRT has its own text settings; give ConvertText instead of TextPolicy")
        texts = None if start is None else start[1]
        _warn_of_unused(config, policy, texts)
        return *new_convert(config, policy, seed=seed, corpus=corpus, start=texts, dropout=dropout), config
    if isinstance(policy, ConvertText):
        raise ConfigError("ConvertText is for a ConveRT; give TextPolicy")
    known = _trained_backbone(config, start) or read_published(config.backbone, dropout)
    backbone, subwords = known.backbone, known.subwords
    if policy is None:
        usual, longest = TextPolicy(), backbone.max_positions
        budgets = min(usual.max_context_tokens, longest), min(usual.max_candidate_tokens, longest)
        policy = dataclasses.replace(usual, max_context_tokens=budgets[0], max_candidate_tokens=budgets[1])
    if subwords.add(policy.new_tokens):
        grow_embeddings(backbone, subwords, seed)
    policy = known.texts(config, policy)
    texts = BackboneTexts(subwords, policy, backbone.max_positions)
    config = resolve(config, known)
    _warn_of_unused(config, policy, None if start is None else start[1])
    if start is None or known.layers:
        known.report_left_out(config, policy)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build_model(config, backbone, new_dropout, known.kept_layers(config))
    return model, texts, refit_output_scale(model, texts, config, config, sample)


def _warn_of_unused(config: ModelConfig, policy: TextPolicy | ConvertText, start: Texts | None) -> None:
    """Log one warning that names the settings without effect, unless they are the defaults or those of ``start``."""
    unused: list[str] = []
    if isinstance(policy, ConvertText):
        if start is not None or policy.vocabulary is not None:
            unused += ["min_count", "vocabulary_size", "count_repeats"]
        elif policy.vocabulary_size is not None:
            unused.append("min_count")
        if not (isinstance(config, ConvertConfig) and config.multi_context):
            unused += ["max_earlier_tokens", "max_earlier_turns", "number_prefixes", "background"]
    elif policy.background == "drop":
        unused.append("max_background_tokens")
    usual = [type(policy)(), *([] if start is None else [start.policy])]
    names = [f"text.{key}" for key in unused if all(getattr(policy, key) != getattr(p, key, None) for p in usual)]
    if isinstance(config, BiConfig) and config.reduction != "mean_of_first":
        names += ["model.reduction_tokens"] * (config.reduction_tokens != BiConfig().reduction_tokens)
    if names:
        log.warning("settings without effect on this model: %s", ", ".join(names))


def _trained_backbone(config: BackboneConfig, start: Model | None) -> Published | None:
    """The same from a trained model; None if it has another backbone, or an encoder would need its reduction."""
    if start is None:
        return None
    network, texts, trained = start
    if not isinstance(trained, BackboneConfig) or trained.backbone != config.backbone:
        return None
    if config.encodes and not trained.encodes:
        return None
    assert isinstance(network, BackboneModel), "its settings name a backbone"
    assert isinstance(texts, BackboneTexts), "and its texts have the vocabulary of a backbone"
    layers: Any = network.candidate_tower.layers if isinstance(network, TwoTowers) else ()
    reduction: Reduction | None = getattr(trained, "reduction", "mean")
    return Published(
        name=config.backbone,
        backbone=copy.deepcopy(network.backbone),
        subwords=copy.deepcopy(texts.subwords),
        poolings=(reduction,) if reduction and (layers or reduction == "mean") else (),
        layers=[copy.deepcopy(layer) for layer in layers],
        prompts=texts.prompts,
    )


def grow_embeddings(backbone: Backbone, subwords: Subwords, seed: int) -> None:
    """Draw the embeddings of new tokens like those of other words: distinct, because they may not be trained."""
    network: Any = backbone.network
    with torch.no_grad():
        old = network.get_input_embeddings().weight
        n_old, mean, std = old.shape[0], old.mean(0), old.std(0)
        if len(subwords) > n_old:
            network.resize_token_embeddings(len(subwords), mean_resizing=False)
            noise = torch.randn(len(subwords) - n_old, len(mean), generator=torch.Generator().manual_seed(seed))
            network.get_input_embeddings().weight[n_old:] = mean + std * noise


def refit_output_scale(
    model: Network, texts: Texts, config: ModelConfig, settings: ModelConfig, sample: Sequence[str]
) -> ModelConfig:
    """Fit the output scale of a new model, or of one whose transformers got other weights.

    Models without an output scale are not changed.

    Args:
        model: changed in place.
        texts: its tokenized text policy.
        config: resolved settings.
        settings: before they were resolved.
        sample: some candidate texts; at least one must not be empty.

    Returns:
        ``config`` with the new scale; unchanged if ``settings`` fix the scale.

    Raises:
        ConfigError: every text is empty.
    """
    if not isinstance(model, BiEncoder | PolyEncoder) or not isinstance(config, BiConfig):
        return config
    if config.normalize or (isinstance(settings, BiConfig) and settings.output_scale is not None):
        return config  # normalized vectors have no scale
    candidates = model.candidate_tower
    projection = nn.Sequential(candidates.layers, candidates.projection)
    scale = fit_output_scale(candidates.backbone, texts, config, sample, projection=projection)
    for tower in (model.context_tower, model.candidate_tower):
        tower.scale.fill_(scale)
    return dataclasses.replace(config, output_scale=scale)


def fit_output_scale(
    backbone: Backbone, texts: Texts, config: BiConfig, sample: Sequence[str], *, projection: nn.Module | None = None
) -> float:
    """The constant that scales token outputs, so that outputs or scores have the size of the settings.

    ``match_output_std``: standard deviation, about their mean, of all numbers of the real tokens' outputs (Humeau et
    al., ICLR 2020, section 5.3). ``match_self_score``: mean of ``|candidate vector|^2``.

    Args:
        backbone: the network.
        texts: the tokenized text policy.
        config: sets one of the two, or neither.
        sample: texts to measure on; at most 256 are used.
        projection: the linear map of reduced outputs to vectors; None: no map.
    """
    if config.match_output_std is None and config.match_self_score is None:
        return 1.0
    chosen = [text for text in sample if text][:256]
    if not chosen:
        raise ConfigError("no candidate text to fit the output scale on; set model.output_scale, for example to 1.0")
    total, squares, count = 0.0, 0.0, 0
    with torch.inference_mode(), without_dropout(backbone):
        for start in range(0, len(chosen), 32):
            tokens = texts.candidates(chosen[start : start + 32])
            outputs = backbone(tokens)
            if config.match_output_std is not None:
                real = outputs[tokens.mask].double()
                total, count = total + float(real.sum()), count + real.numel()
                squares += float(real.square().sum())
            else:
                assert config.reduction is not None, "resolve() comes first"
                reduced = reduce(outputs, tokens.mask, config.reduction, config.reduction_tokens)
                vectors = reduced if projection is None else projection(reduced)
                squares, count = squares + float(vectors.square().sum()), count + len(vectors)
    if config.match_output_std is not None:
        return config.match_output_std / math.sqrt(squares / count - (total / count) ** 2)
    assert config.match_self_score is not None
    return math.sqrt(config.match_self_score / (squares / count))
