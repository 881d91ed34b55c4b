"""Settings of a training: negatives, updates and batches. ``methods`` holds those of its method."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from polyrank.config.checked import Count, Fraction, NonNegativeFloat, NonNegativeInt, Positive, Settings
from polyrank.config.methods import IN_BATCH, ConvertMethod, Method
from polyrank.config.schedules import PLATEAU, CosineSchedule, ScheduleConfig
from polyrank.errors import ConfigError

Precision = Literal["auto", "fp32", "bf16", "fp16"]
NegativeSource = Literal["given", "random", "mined"]
LENGTH_WINDOW = 50
"""The default of ``length_window`` for methods that rank lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativesConfig(Settings):
    """Wrong candidates of each context; "in_batch" and "convert" share them among all contexts of the batch.

    Methods that rank lists add them to the lists. "in_batch" and "convert" add them to the other responses of the
    batch, and use those responses alone without this table.

    Args:
        n: negatives per context; fewer if the sources have fewer.
        sources: the sources in order; each fills the places that the sources before it left free. "given" with the
            example (a random choice if there are more than ``n``), "random" responses of the training data, or "mined"
            by the network in training. The Poly-encoder paper uses ["given"] for ConvAI2's Cross-encoder and ["random"]
            elsewhere.
        redraw: draw new random negatives each epoch. False: keep them for the whole run, as in Tao et al.
        weighting: how often "random" draws a response: "uniform", each distinct one equally, as in a catalogue, or
            "as_said", as often as the data repeat it, as in lists taken from conversations (always with
            ``data.cache``). With "uniform" the network also learns how frequent a reply is; with "as_said" it learns
            less of it, but not nothing, because a list holds each text once.
        remine_epochs: for "mined": every N epochs, from the first on, find the wrong responses that the network
            ranks highest (in a mutual training, the network that encodes).
        remine_ranks: first and last rank to draw mined negatives from, counted from 1 without right answers.
    """

    n: Count = 15
    sources: tuple[NegativeSource, ...] = ("given", "random")
    redraw: bool = True
    weighting: Literal["uniform", "as_said"] = "uniform"
    remine_epochs: Count = 1
    remine_ranks: tuple[Count, Count] = (1, 50)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        first, last = self.remine_ranks
        if first > last:
            raise ConfigError(f"remine_ranks = {[first, last]} is an empty range; give the lower rank first")
        if not self.sources or len(set(self.sources)) < len(self.sources):
            raise ConfigError(f"sources = {list(self.sources)} is empty or repeats a source; give each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates(Settings):
    """How an optimizer updates the weights of a network, in a training and in a pre-training.

    Args:
        betas: of AdamW and Adamax; None: 0.9 and 0.999.
        lr: peak learning rate.
        weight_decay: decoupled for AdamW, L2 regularization for the others; not applied to biases, norms and codes.
            None: 0.01, but 0 for Adamax.
        schedule: learning-rate schedule.
        clip_norm: maximum gradient norm; None: no limit.
        dropout: of the backbone; None: the backbone's own value.
    """

    betas: tuple[Fraction, Fraction] | None = None
    lr: NonNegativeFloat = 5e-5
    weight_decay: NonNegativeFloat | None = None
    schedule: ScheduleConfig = PLATEAU
    clip_norm: Positive | None = 1.0
    dropout: Fraction | None = None

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.betas is not None and max(self.betas) >= 1.0:
            raise ConfigError(f"betas = {list(self.betas)} must be below 1; lower them")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraining(Updates):
    """How to train one network: the settings that the two networks of a mutual training may set separately.

    Args:
        init_from: a model folder, "shipped:minilm" or "shipped:convert", to start from; None: the backbone's weights.
            From another kind of model only the common parts are used: for example, an encoder's context side becomes a
            Cross-encoder's transformer.
        optimizer: "adamw", "adamax" or "adadelta" (rho 0.9).
        new_lr: learning rate of codes, projections and heads; None: ``lr``, or 25 times ``lr`` for a Poly-encoder whose
            codes start near zero.
        decay_new: apply ``weight_decay`` to the matrices of codes, projections and heads too, as the Poly-encoder
            paper's code does. Off by default, because it would keep codes that start near zero there.
        train_layers: "all", "all_but_embeddings", or the top n layers as "top-n".
        clip_embeddings_norm: maximum norm of the word embeddings' gradient, before ``clip_norm``; None: no limit.
        new_dropout: dropout before the linear layers of projections and heads; 0.1 in Tao et al. The default, 0, is
            that of the Poly-encoder paper's code.
    """

    init_from: str | None = None
    optimizer: Literal["adamw", "adamax", "adadelta"] = "adamw"
    new_lr: NonNegativeFloat | None = None
    decay_new: bool = False
    train_layers: str = "all_but_embeddings"
    clip_embeddings_norm: Positive | None = None
    new_dropout: Fraction = 0.0

    @property
    def decay(self) -> float:
        """``weight_decay`` with the default filled in."""
        usual = 0.0 if self.optimizer == "adamax" else 0.01
        return usual if self.weight_decay is None else self.weight_decay


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(NetworkTraining):
    """How to train: the settings of one network, and those of the whole training.

    Args:
        method: the training method.
        negatives: wrong candidates in addition to the other responses of the batch; None: none for "in_batch" and
            "convert", the defaults for methods that rank lists.
        loss: of a batch: the "mean" over its contexts, or their "sum", as in the formulas of ConveRT and of Tao et al.
            The choice hardly affects Adam, but it affects ``clip_norm``, ``clip_embeddings_norm`` and an L2 term. With
            the mean these do not depend on the batch size. Curves always show the mean.
        batch_size: contexts per step.
        chunk_size: texts (for a Cross-encoder: pairs) whose activations are in memory at once. The gradients are those
            of the whole batch, whatever its size, and each text is encoded twice; None: all at once.
        epochs: passes over the data.
        max_steps: stop after this many steps; None: no limit.
        minutes: stop the training of each seed after this many minutes and keep its best model so far; ``--resume``
            continues, for as many minutes again. None: no limit.
        precision: "fp32" (products in TF32 on GPUs that have it), "bf16" or "fp16" (autocast), or "auto": bf16 if the
            hardware supports it, else fp32. "fp16", with a loss scale, is for GPUs without bf16 such as T4 and V100.
        early_stopping: stop after this many validations without a better R@1 (of two networks, when both have); None:
            never.
        evaluate_per_epoch: validations (and checkpoints) per epoch.
        checkpoint_steps: also checkpoint every N steps; None: only at validations.
        length_window: number of batches to sort by length together, which reduces padding; 1: no sorting. None: 50 for
            lists; 1 for in-batch negatives, which would otherwise come from contexts of similar length and lower the
            accuracy.
        lora_rank: train adapters of this rank in all linear layers of the backbones (LoRA), with the extra ``lora``, so
            that a decoder of billions of weights fits on a small GPU; they are merged into the saved model. None: train
            the weights of ``train_layers``.
        tensorboard: draw curves of metrics.jsonl for TensorBoard, in the run folder.
        seeds: one run for each seed.
    """

    method: Method = IN_BATCH
    negatives: NegativesConfig | None = None
    loss: Literal["mean", "sum"] = "mean"
    batch_size: Count = 64
    chunk_size: Count | None = None
    epochs: Count = 1
    max_steps: Count | None = None
    minutes: Positive | None = None
    precision: Precision = "auto"
    early_stopping: Count | None = None
    evaluate_per_epoch: Count = 2
    checkpoint_steps: Count | None = None
    length_window: Count | None = None
    lora_rank: Count | None = None
    tensorboard: bool = False
    seeds: tuple[NonNegativeInt, ...] = (1,)

    def __post_init__(self) -> None:
        NetworkTraining.__post_init__(self)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds = {list(self.seeds)} is empty or repeats a seed; give each once")
        if self.lora_rank is not None and self.train_layers.startswith("top-"):
            raise ConfigError(
                f"lora_rank = {self.lora_rank} trains adapters in all layers; leave train_layers ="
                f" {self.train_layers!r} out"
            )
        if not self.method.ranks_lists and self.batch_size == 1:
            raise ConfigError(
                'batch_size = 1 has no other responses as negatives; use 2 or more, or method.kind = "listwise"'
            )
        if self.method.ranks_lists and self.negatives is None:
            object.__setattr__(self, "negatives", NegativesConfig())
        weighting = getattr(self.method, "negatives_weighting", "as_said")
        if self.negatives is not None and weighting != "as_said":
            raise ConfigError(
                f'method.negatives_weighting = "{weighting}" corrects the frequency of the other responses of the'
                " batch, and [train.negatives] adds candidates that count once each; set one of the two"
            )
        most = self.batch_size * (1 if self.negatives is None else 1 + self.negatives.n)
        if self.chunk_size is not None and self.chunk_size >= most:
            raise ConfigError(
                f"chunk_size = {self.chunk_size} is not below the {most} texts of a batch, so there is only one chunk;"
                " lower it or leave it out"
            )

    @property
    def window(self) -> int:
        """``length_window`` with the default filled in."""
        return self.length_window or (LENGTH_WINDOW if self.method.ranks_lists else 1)


CONVERT_PRETRAINING = TrainConfig(
    method=ConvertMethod(),
    optimizer="adadelta",
    lr=1.0,
    weight_decay=1e-5,
    schedule=CosineSchedule(warmup_steps=0, final_lr=0.001),
    train_layers="all",
    clip_norm=None,
    clip_embeddings_norm=1.0,
    batch_size=512,
    length_window=1,
)
"""The ConveRT paper's pre-training (section 3)."""

CONVERT_TUNING = dataclasses.replace(
    CONVERT_PRETRAINING,
    method=ConvertMethod(scale_steps=0),
    optimizer="adamw",
    lr=5e-4,
    weight_decay=0.01,
    schedule=CosineSchedule(warmup_steps=20, final_lr=5e-7),
    clip_norm=1.0,
    dropout=0.2,
    batch_size=256,
)
"""The ConveRT paper's fine-tuning (section 4), with AdamW: Adadelta at the paper's rate of 0.1 is far slower."""
