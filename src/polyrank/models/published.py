"""A published model as the start of a training: its transformer, its vocabulary and the layers after them.

A Bi-encoder starts with the scores of the loaded model: with its pooling, layers, prompts and lower-casing. What
another kind of network leaves out is reported.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from polyrank.config.models import BackboneConfig, BiConfig, Reduction, TextPolicy
from polyrank.errors import ArtifactError, ConfigError
from polyrank.loading.backbones import resolve_backbone
from polyrank.models.backbone import Backbone, load_backbone
from polyrank.models.bert import BertModel
from polyrank.models.foreign import describe
from polyrank.models.foreign.files import CLASSIFIER, Description, read_pooling
from polyrank.models.foreign.networks import read_layers
from polyrank.models.network import without_dropout
from polyrank.models.sentence_layers import SentenceLayer, Unit, without_last_units
from polyrank.text import Subwords, load_subwords, pad

log = logging.getLogger("polyrank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A backbone with what is known of its vectors.

    Args:
        name: of the backbone, for messages.
        backbone: the transformer.
        subwords: the vocabulary.
        poolings: the reductions of its vectors; several are concatenated; empty if it has none.
        layers: after the reduction.
        cosine: whether its vectors are compared by cosine.
        prompts: before contexts and candidates.
        max_tokens: the longest text of its training; None: unknown.
        has_head: whether it has a scoring head, which no training starts from.
    """

    name: str
    backbone: Backbone
    subwords: Subwords
    poolings: tuple[Reduction, ...] = ()
    layers: Sequence[SentenceLayer] = ()
    cosine: bool = False
    prompts: tuple[str, str] = ("", "")
    max_tokens: int | None = None
    has_head: bool = False

    def reduction(self) -> Reduction:
        """The reduction of a new encoder.

        Raises:
            ConfigError: there are several.
        """
        if len(self.poolings) > 1:
            raise ConfigError(
                f"{self.name} pools by {' and '.join(self.poolings)}, and a training by one; set model.reduction"
            )
        return next(iter(self.poolings), "last" if reads_forward(self.backbone) else "first")

    def check_reduction(self, reduction: str) -> None:
        """Refuse the first output of a decoder, which is the same for all texts.

        Raises:
            ConfigError: names the setting.
        """
        if reduction == "first" and reads_forward(self.backbone):
            raise ConfigError(
                f'{self.name} is a decoder, whose first output depends on no text; set model.reduction = "last"'
            )

    def kept_layers(self, config: BackboneConfig) -> Sequence[SentenceLayer]:
        """The layers that a network has after its reduction; ``model.normalize`` replaces a last Normalize."""
        if type(config) is not BiConfig or len(self.poolings) != 1:
            return ()
        return without_last_units(self.layers)

    def texts(self, config: BackboneConfig, policy: TextPolicy) -> TextPolicy:
        """Text settings with this model's prompts where none are set, if it has the same two sides."""
        prefix, candidate_prefix = policy.context_prefix, policy.candidate_prefix
        if config.encodes != self.has_head:
            prefix = self.prompts[0] or None if prefix is None else prefix
            candidate_prefix = self.prompts[1] or None if candidate_prefix is None else candidate_prefix
        return replace(policy, context_prefix=prefix, candidate_prefix=candidate_prefix)

    def report_left_out(self, config: BackboneConfig, policy: TextPolicy) -> None:
        """Log a warning that names what a network has not from its backbone."""
        parts = ["scoring head"] if self.has_head else []
        if isinstance(config, BiConfig) and not self.has_head and self.poolings:
            if self.layers and not self.kept_layers(config) and without_last_units(self.layers):
                parts.append("layers after the pooling")
            if (config.reduction,) != self.poolings:
                parts.append("pooling")
            if self.cosine and not config.normalize and self.name != "embedded":
                parts.append("cosine (model.normalize)")
            own = policy.context_prefix or "", policy.candidate_prefix or ""
            if own != self.prompts:
                parts.append("prompts")
        longest = max(policy.max_context_tokens, policy.max_candidate_tokens)
        if self.max_tokens is not None and longest > self.max_tokens and self.name != "embedded":
            parts.append(f"limit of {self.max_tokens} tokens")
        if parts:
            log.warning("the training starts from %s without its %s", self.name, ", ".join(parts))


def reads_forward(backbone: Backbone) -> bool:
    """Whether an output depends on no later token, as in a decoder."""
    if isinstance(backbone.network, BertModel):
        return False
    words: Any = backbone.embeddings()
    middle = len(words.weight) // 2
    with torch.inference_mode(), without_dropout(backbone):
        first, second = backbone(pad([[middle, middle - 1], [middle, middle + 1]]))[:, 0]
    return torch.allclose(first, second, rtol=1e-5, atol=1e-6)


def read_published(name: str, dropout: float | None = None) -> Published:
    """A backbone by its name.

    Args:
        name: "embedded", a local folder, or hf:OWNER/MODEL of the Hub.
        dropout: of the backbone; None: its own value.

    Raises:
        ArtifactError: a file is damaged or not supported, or the model reads messages.
        ConfigError: the folder does not exist.
    """
    folder = resolve_backbone(name, bare_hub_names=False).folder
    saved = _describe(folder)
    if saved is None:
        backbone, pooling = load_backbone(folder, dropout), read_pooling(folder)
        architecture = next(iter(getattr(backbone.config, "architectures", None) or ()), "")
        return Published(
            name=name,
            backbone=backbone,
            subwords=load_subwords(folder),
            poolings=pooling,
            has_head=architecture.endswith(CLASSIFIER),
        )
    backbone = load_backbone(saved.transformer, dropout)
    pooled = saved.layers and saved.layers[0].kind != "LogitScore"
    modes, layers, _ = read_layers(saved.layers, backbone.dimension) if pooled else ((), [], 0)
    return Published(
        name=name,
        backbone=backbone,
        subwords=load_subwords(saved.transformer, lower_case=saved.lower_case, exact=True),
        poolings=modes,
        layers=layers,
        cosine=saved.kind == "sentences"
        and (saved.output == "cosine" or bool(layers and isinstance(layers[-1], Unit))),
        prompts=saved.prompts,
        max_tokens=saved.max_tokens,
        has_head=saved.kind == "pairs",
    )


def _describe(folder: Path) -> Description | None:
    """The description of a folder of sentence-transformers; None for another.

    Raises:
        ArtifactError: no training starts from it.
    """
    if not (folder / "modules.json").exists():
        return None
    saved = describe(folder)
    odd = {
        "has two paths (a Router)": saved.of_candidates is not None,
        "reads messages": saved.chat is not None,
        "cuts its vectors (truncate_dim)": saved.truncated is not None,
        "leaves its prompts out of the pooling": any(saved.prompts) and not saved.pools_prompts,
    }
    if reasons := [reason for reason, holds in odd.items() if holds]:
        raise ArtifactError(f"{folder} {reasons[0]}, which polyrank does not train; choose another backbone")
    return saved
