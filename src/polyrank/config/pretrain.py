"""A recipe of a pre-training as frozen dataclasses, with strict parsing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from polyrank.config import checked
from polyrank.config.schedules import ConstantSchedule, CosineSchedule, InverseSqrtSchedule, LinearSchedule
from polyrank.config.train import NetworkTraining, Precision, Updates
from polyrank.errors import ConfigError

WARMUP = InverseSqrtSchedule(warmup_steps=10_000)
Objective = Literal["masked_lm", "next_utterance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchModel(checked.Settings):
    """A BERT with random weights. The defaults are those of BERT-base.

    Args:
        layers: transformer layers.
        hidden: D, the dimension of the outputs.
        heads: attention heads; D must be a multiple of them.
        ffn: inner dimension of a layer's feed-forward network.
        positions: maximum input length in tokens.
    """

    layers: checked.Count = 12
    hidden: checked.Count = 768
    heads: checked.Count = 12
    ffn: checked.Count = 3072
    positions: checked.AtLeastTwo = 512

    def __post_init__(self) -> None:
        checked.Settings.__post_init__(self)
        if self.hidden % self.heads:
            raise ConfigError(
                f"hidden = {self.hidden} is not a multiple of heads = {self.heads}; choose a multiple of {self.heads}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedModel(checked.Settings):
    """A trained backbone to continue pre-training, with its own vocabulary.

    Args:
        backbone: "embedded", a local folder, or hf:OWNER/MODEL of the Hugging Face Hub.
    """

    backbone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyConfig(checked.Settings):
    """The vocabulary of a BERT from scratch, built from the training texts before pre-training.

    Args:
        kind: "wordpiece", or "bpe": byte-pair encoding of characters, as in the papers.
        size: number of subwords, special tokens included; a small corpus yields fewer.
        lower_case: lower-case the texts and remove accents.
    """

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    size: checked.Count = 30_000
    lower_case: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainText(checked.Settings):
    """How a context and a response form one input. The context keeps its end, the response its start.

    Args:
        max_tokens: budget of an input, special tokens included.
        max_response_tokens: budget of the response; the context has the rest.
        turn_separator: token between two turns. If the vocabulary does not have it, it is added, such as "[NEWLINE]"
            in the first version of the paper.
    """

    max_tokens: int = 256
    max_response_tokens: checked.Count = 72
    turn_separator: str = "[SEP]"

    def __post_init__(self) -> None:
        checked.Settings.__post_init__(self)
        if self.max_tokens < self.max_response_tokens + 4:
            raise ConfigError(
                f"max_tokens = {self.max_tokens} leaves no tokens for a context after max_response_tokens ="
                f" {self.max_response_tokens} and 3 special tokens; give {self.max_response_tokens + 4} or more"
            )
        if not self.turn_separator.strip():
            raise ConfigError('turn_separator is empty; give a token, such as "[SEP]"')


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainData(checked.Settings):
    """The training texts, without labels; each turn is a response to the turns before it.

    Args:
        train: file of dialogues or pairs (JSON lines, gzip, CSV or Parquet).
        valid: file for validation, which selects the best step; None: keep the network of the last step.
        max_valid: use at most this many pairs of ``valid``, from its start.
        skip_bad: count and skip bad rows instead of stopping.
        cache: folder for the texts as token ids, which runs may share; None: in the run's folder.
    """

    train: str
    valid: str | None = None
    max_valid: checked.AtLeastTwo = 2000
    skip_bad: bool = False
    cache: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainSteps(Updates):
    """How to train, with AdamW. The defaults are the paper's; it does not give steps, warm-up and clipping.

    Args:
        objectives: the losses of words and of pairs in alternation ("alternate"), both on the same batch ("joint", as
            in BERT), or one of them, "masked_lm" or "next_utterance".
        steps: number of updates.
        minutes: stop after this many minutes and keep the best network so far; ``--resume`` continues, for as many
            minutes again. None: no limit.
        batch_tokens: tokens in the batch of an update, padding included.
        micro_batch_tokens: tokens to compute at a time; the update is that of the whole batch. None: all at once.
        length_window: number of pairs to sort by length together; 1: no sorting.
        precision: as in ``[train]`` of other recipes.
        evaluate_steps: validate every N steps, and keep the network if it is the best so far.
        checkpoint_steps: checkpoint every N steps.
        tensorboard: draw curves of metrics.jsonl for TensorBoard, in the run folder.
        seed: of weights, order, masks and dropout.
    """

    objectives: Literal["alternate", "joint", "masked_lm", "next_utterance"] = "alternate"
    steps: checked.Count = 100_000
    minutes: checked.Positive | None = None
    batch_tokens: checked.Count = 32_000
    micro_batch_tokens: checked.Count | None = None
    length_window: checked.Count = 10_000
    lr: checked.NonNegativeFloat = 2e-4
    betas: tuple[checked.Fraction, checked.Fraction] = (0.9, 0.98)
    weight_decay: checked.NonNegativeFloat = 0.0
    schedule: LinearSchedule | CosineSchedule | InverseSqrtSchedule | ConstantSchedule = WARMUP
    precision: Precision = "auto"
    evaluate_steps: checked.Count = 1000
    checkpoint_steps: checked.Count = 500
    tensorboard: bool = False
    seed: checked.NonNegativeInt = 1

    loss: ClassVar[Literal["mean"]] = "mean"
    early_stopping: ClassVar[None] = None  # a pre-training has neither setting of [train] of other recipes

    @property
    def of_network(self) -> NetworkTraining:
        """The settings of the optimizer, in the form that every training has."""
        updates = {key: getattr(self, key) for key in checked.field_types(Updates)}
        return NetworkTraining(**updates, train_layers="all", decay_new=self.weight_decay != 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRecipe(checked.Settings):
    """A complete pre-training.

    Args:
        output: the folder to make; its subfolder ``model`` is the best network.
        vocabulary: the vocabulary to build; None for a backbone, which has one.
    """

    model: ScratchModel | ContinuedModel
    output: str
    data: PretrainData
    vocabulary: VocabularyConfig | None = None
    text: PretrainText = field(default_factory=PretrainText)
    train: PretrainSteps = field(default_factory=PretrainSteps)

    def __post_init__(self) -> None:
        if isinstance(self.model, ContinuedModel):
            if self.vocabulary is not None:
                raise ConfigError("a backbone already has a vocabulary; leave out [vocabulary] or model.backbone")
        else:
            if self.vocabulary is None:
                object.__setattr__(self, "vocabulary", VocabularyConfig())
            if self.text.max_tokens > self.model.positions:
                raise ConfigError(
                    f"text.max_tokens = {self.text.max_tokens} is above model.positions = {self.model.positions}; lower"
                    " it or raise model.positions"
                )
        for name in ("batch_tokens", "micro_batch_tokens"):
            if (budget := getattr(self.train, name)) is not None and budget < self.text.max_tokens:
                raise ConfigError(
                    f"train.{name} = {budget} is less than one input of text.max_tokens = {self.text.max_tokens}; give"
                    f" {self.text.max_tokens} or more"
                )


def pretrain_recipe_from_dict(values: Mapping[str, Any]) -> PretrainRecipe:
    """Build a PretrainRecipe from its tables and the key ``output``.

    Raises:
        ConfigError: a key is unknown, missing or wrong.
    """
    tables = checked.recipe_tables(PretrainRecipe, values, ("output", "data"))
    model, vocabulary = tables["model"], tables["vocabulary"]
    continued = "backbone" in model
    if continued and (sizes := [key for key in model if key in checked.field_types(ScratchModel)]):
        raise ConfigError(f"model.{sizes[0]} applies to a network from scratch; leave out that key or model.backbone")
    return PretrainRecipe(
        model=checked.from_dict(ContinuedModel, model, "model")
        if continued
        else checked.from_dict(ScratchModel, model, "model"),
        output=tables["output"],
        data=checked.from_dict(PretrainData, tables["data"], "data"),
        vocabulary=None if vocabulary is None else checked.from_dict(VocabularyConfig, vocabulary, "vocabulary"),
        text=checked.from_dict(PretrainText, tables["text"], "text"),
        train=checked.from_dict(PretrainSteps, tables["train"], "train"),
    )
