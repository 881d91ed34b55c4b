"""How networks are trained, as frozen dataclasses: what every training has, methods and negatives.

Each method is a class of its own with the keys that it reads; no other key can be given to it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from polyrank.config.checked import Count, NotNegative, Positive, Settings, Share, Whole, field_types
from polyrank.config.schedules import PLATEAU, CosineSchedule, ScheduleConfig
from polyrank.errors import ConfigError

Precision = Literal["auto", "fp32", "bf16"]
NegativeSource = Literal["given", "random", "mined"]
NegativesWeighting = Literal["as_said", "uniform", "logq"]


def _check_weighting(weighting: NegativesWeighting, added_by: str, path: str = "") -> None:
    """Refuse a correction of frequencies where candidates join that come once each, however often they are said.

    Raises:
        ConfigError: both are set.
    """
    if weighting != "as_said":
        raise ConfigError(
            f'{path}negatives_weighting = "{weighting}" corrects the frequency of the other responses of the batch, and'
            f" {added_by} adds candidates that come once each; set one of the two"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InBatchMethod(Settings):
    """The other responses of the batch are the negatives.

    Args:
        smoothing: this much of the probability is spread over the wrong candidates.
        queue: so many candidates of earlier batches are negatives too, by the vectors that they had then; 0: none.
        negatives_weighting: how often a wrong response of the batch counts. "as_said": as often as it is in the data,
            so that a model learns to score frequent responses lower than their probability. "logq": the log of its
            count is subtracted from every candidate's score, right or wrong (Yi et al. 2019). "uniform": it stays a
            negative with the chance 1 / count, so that negatives are drawn uniformly from the distinct responses, and
            are fewer. The last two learn the log of the probability, and change nothing where no response comes
            twice. They hold the distinct responses in memory, also with ``data.cache``.

    Source of ``negatives_weighting``: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
        Recommendations (2019), eqs. 3 and 4; Ma and Collins, Noise Contrastive Estimation and Negative Sampling for
        Conditional Models (2018), section 3.2.
    """

    kind: ClassVar[str] = "in_batch"
    dropped: ClassVar[Mapping[str, Any]] = {"uniform_negatives": False}
    ranks_lists: ClassVar[bool] = False

    smoothing: Share = 0.0
    queue: Whole = 0
    negatives_weighting: NegativesWeighting = "as_said"

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.queue:
            _check_weighting(self.negatives_weighting, f"queue = {self.queue}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertMethod(Settings):
    """The other responses of the batch are the negatives, for a ConveRT: cosines whose scale grows.

    Args:
        smoothing: this much of the probability is spread over the wrong candidates.
        scale_steps: steps in which the scale of the cosine grows from 1 to its end; 0: at its end at once.
        loss_weights: with multiple contexts: of the losses of the immediate context, of the earlier turns and of both
            together.
        range_steps: steps between two looks at the range of the 8-bit embeddings.
        queue, negatives_weighting: as for "in_batch".
    """

    kind: ClassVar[str] = "convert"
    ranks_lists: ClassVar[bool] = False

    smoothing: Share = 0.2
    scale_steps: Whole = 10_000
    loss_weights: tuple[NotNegative, NotNegative, NotNegative] = (1.0, 1.0, 1.0)
    range_steps: Count = 100
    queue: Whole = 0
    negatives_weighting: NegativesWeighting = "as_said"

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.queue:
            _check_weighting(self.negatives_weighting, f"queue = {self.queue}")
        if not any(self.loss_weights):
            raise ConfigError(f"loss_weights = {list(self.loss_weights)} weigh nothing; give one above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListwiseMethod(Settings):
    """Each context ranks a list of its own: its response and the negatives that ``[train.negatives]`` asks for.

    Args:
        sigmoid: a Cross-encoder's scores pass a sigmoid before the loss, as printed in Tao et al. (Eq. 5). Not by
            default: a softmax of numbers from 0 to 1 gives the right one of 33 candidates 8% at most.
    """

    kind: ClassVar[str] = "listwise"
    ranks_lists: ClassVar[bool] = True

    sigmoid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitatingMethod(Settings):
    """Lists, and another network's scores to be like.

    Args:
        imitation: of the other network, by "kl" (of probabilities) or "margin_mse" (of differences between scores).
        alpha: weight of the imitation.
        label_weight: weight of the cross-entropy beside it; 0 learns from the other network alone.
        temperature: for "kl": scores are divided by it before they become probabilities.
    """

    ranks_lists: ClassVar[bool] = True

    imitation: Literal["kl", "margin_mse"] = "kl"
    alpha: NotNegative = 1.0
    label_weight: NotNegative = 1.0
    temperature: Positive = 3.0

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.imitation != "kl" and self.temperature != 3.0:
            raise ConfigError(f'temperature = {self.temperature} is for imitation = "kl"; leave it out')


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillMethod(ImitatingMethod):
    """Lists as for "listwise", learnt from the labels and from a teacher, which stays as it is.

    Args:
        teacher: a trained model's folder, a sum's, or anything else that ranks by a name.
        teacher_scores: file for its scores, which other runs may share, as seen from the working directory; None: in
            the run's folder.
    """

    kind: ClassVar[str] = "distill"

    teacher: str
    teacher_scores: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualMethod(ImitatingMethod):
    """Lists as for "listwise", for two networks that learn from the labels and from each other; see ``[reranker]``.

    Args:
        sigmoid: see "listwise".
    """

    kind: ClassVar[str] = "mutual"

    sigmoid: bool = False


LENGTH_WINDOW = 50  # batches that are sorted by length together where nothing speaks against it
Method = InBatchMethod | ConvertMethod | ListwiseMethod | DistillMethod | MutualMethod


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativesConfig(Settings):
    """Wrong candidates of each context. Methods that rank lists have them in their lists; for "in_batch" and "convert"
    they join the other responses of the batch, for all its contexts, and without this table those are alone.

    Args:
        n: per context; fewer where the sources have no more.
        sources: where they come from, each filling up what those before it left: "given" with the example (drawn where
            they are more than ``n``), "random" responses of the training data, or "mined" by the network in training.
            None: ["given", "random"], behind "mined" where ``remine_epochs`` is given. The Poly-encoder paper has
            ["given"] for ConvAI2's Cross-encoder and ["random"] elsewhere.
        redraw: draw at random anew each epoch. False: the same for the whole run, as in Tao et al.
        remine_epochs: of "mined": every so many epochs, from the first on, find the wrong responses that the network
            (of two, the one that encodes) ranks highest.
        remine_ranks: the ranks that they are drawn from, first and last, counted from 1 without right answers.
    """

    dropped: ClassVar[Mapping[str, Any]] = {"limits": None}

    n: Count = 15
    sources: tuple[NegativeSource, ...] | None = None
    redraw: bool = True
    remine_epochs: Count | None = None
    remine_ranks: tuple[Count, Count] = (1, 50)

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        first, last = self.remine_ranks
        if first > last:
            raise ConfigError(f"remine_ranks = {[first, last]} holds no rank; give the lower one first")
        if self.remine_epochs is None and (first, last) != (1, 50):
            raise ConfigError(f"remine_ranks = {[first, last]} is for lists mined anew; give remine_epochs too")
        if self.sources is not None and (not self.sources or len(set(self.sources)) < len(self.sources)):
            raise ConfigError(f"sources = {list(self.sources)} is empty or holds one twice; give each once")
        if ("mined" in self.order) != (self.remine_epochs is not None):
            raise ConfigError(
                f"sources = {list(self.order)} with remine_epochs = {self.remine_epochs} have one of two things that go"
                ' together; give "mined" and remine_epochs, or neither'
            )

    @property
    def order(self) -> tuple[NegativeSource, ...]:
        """The sources, with what None means.

        >>> NegativesConfig(remine_epochs=1).order
        ('mined', 'given', 'random')
        """
        usual: tuple[NegativeSource, ...] = ("given", "random")
        return self.sources or (usual if self.remine_epochs is None else ("mined", *usual))


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates(Settings):
    """How the weights of a network are updated, in a training and in a pre-training.

    Args:
        betas: of AdamW and Adamax; None: 0.9 and 0.999.
        lr: peak learning rate.
        weight_decay: decoupled for AdamW, L2 regularization for the others; not applied to biases, norms and codes.
            None: 0.01, but none for Adamax.
        schedule: of the learning rate.
        clip_norm: largest gradient norm; None for no limit.
        dropout: of the backbone; None: its own.
    """

    betas: tuple[Share, Share] | None = None
    lr: NotNegative = 5e-5
    weight_decay: NotNegative | None = None
    schedule: ScheduleConfig = PLATEAU
    clip_norm: Positive | None = 1.0
    dropout: Share | None = None

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if self.betas is not None and max(self.betas) >= 1.0:
            raise ConfigError(f"betas = {list(self.betas)} never forget; give numbers below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTraining(Updates):
    """How one network is trained: what two in one training may have apart.

    Args:
        init_from: a model folder, "shipped:minilm" or "shipped:convert", whose weights to start from; None: the
            backbone's. Another kind gives what both have: an encoder's context side becomes a Cross-encoder's
            transformer, say.
        optimizer: "adamw", "adamax" or "adadelta" (rho 0.9).
        new_lr: learning rate of codes, projections and heads; None: ``lr``, and 25 times that for a Poly-encoder whose
            codes start near zero. Of a sum: of its weights, and 25 times ``lr`` too.
        decay_new: apply ``weight_decay`` to the matrices of codes, projections and heads too, as the Poly-encoder
            paper's code does. Not by default: codes that start near zero would be held there. A sum's parts come
            trained, so theirs decay as other matrices do.
        train_layers: "all", "all_but_embeddings", or the top n layers as "top-n".
        clip_embeddings_norm: largest norm of the word embeddings' gradient, before ``clip_norm``; None for no limit.
        new_dropout: before the linear layers of projections and heads, as in Tao et al. (0.1). None by default, as in
            the Poly-encoder paper's code.
        early_stopping: stop after so many validations without a better R@1; None never.
    """

    moved: ClassVar[Mapping[str, str]] = {
        "warmup_steps": "schedule.warmup_steps",
        "final_lr": "schedule.final_lr",
        "plateau_factor": "schedule.factor",
        "plateau_patience": "schedule.patience",
    }

    init_from: str | None = None
    optimizer: Literal["adamw", "adamax", "adadelta"] = "adamw"
    new_lr: NotNegative | None = None
    decay_new: bool = False
    train_layers: str = "all_but_embeddings"
    clip_embeddings_norm: Positive | None = None
    new_dropout: Share = 0.0
    early_stopping: Count | None = None

    def __post_init__(self) -> None:
        Updates.__post_init__(self)
        if self.betas is not None and self.optimizer == "adadelta":
            raise ConfigError(f"betas = {list(self.betas)} are for adamw and adamax; leave them out for adadelta")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(NetworkTraining):
    """How to train: what a network's training has, and what is one for all networks of a training.

    Args:
        method: what is learnt from.
        negatives: wrong candidates besides the other responses of the batch; None: none for "in_batch" and "convert",
            the usual ones for methods that rank lists.
        loss: of a batch: the "mean" over its contexts, or their "sum", as the formulas of ConveRT and of Tao et al.
            have it. Adam hardly sees which; ``clip_norm``, ``clip_embeddings_norm`` and an L2 term do. The mean by
            default, so that they mean the same whatever the batch; curves show the mean in either case.
        batch_size: contexts per step.
        chunk_size: texts (of a Cross-encoder: pairs) whose activations are in memory at once. The gradients are those
            of the whole batch, whatever its size, and each text is encoded twice; None: all at once.
        epochs: passes over the data.
        max_steps: stop after so many steps; None for no limit.
        precision: "fp32", "bf16" (autocast), or "auto": bf16 where the hardware has it.
        evaluate_per_epoch: validations (and checkpoints) per epoch.
        checkpoint_steps: also checkpoint every so many steps; None: only at validations.
        length_window: batches that are sorted by length together, which saves what padding is left in the groups that
            a batch is computed in; 1 for no sorting. none: 50 for lists; 1 for in-batch negatives, which would come
            from contexts of like length, at the cost of accuracy.
        seeds: one run for each.
    """

    moved: ClassVar[Mapping[str, str]] = {
        **NetworkTraining.moved,
        "n_negatives": "negatives.n",
        "redraw_negatives": "negatives.redraw",
        **{key: f"negatives.{key}" for key in ("remine_epochs", "remine_ranks")},
        **{key: f"method.{key}" for kind in (ConvertMethod, DistillMethod) for key in field_types(kind)},
    }

    dropped: ClassVar[Mapping[str, Any]] = {"max_bad_steps": 10}

    method: Method = InBatchMethod()
    negatives: NegativesConfig | None = None
    loss: Literal["mean", "sum"] = "mean"
    batch_size: Count = 64
    chunk_size: Count | None = None
    epochs: Count = 1
    max_steps: Count | None = None
    precision: Precision = "auto"
    evaluate_per_epoch: Count = 2
    checkpoint_steps: Count | None = None
    length_window: Count | None = None
    seeds: tuple[Whole, ...] = (1,)

    def __post_init__(self) -> None:
        NetworkTraining.__post_init__(self)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds = {list(self.seeds)} is empty or holds one twice; give each once")
        if not self.method.ranks_lists and self.batch_size == 1:
            raise ConfigError(
                "batch_size = 1 leaves no other response of the batch to be told from; take 2 or more, or"
                ' method.kind = "listwise"'
            )
        if self.method.ranks_lists and self.negatives is None:
            object.__setattr__(self, "negatives", NegativesConfig())
        if self.negatives is not None and isinstance(self.method, InBatchMethod | ConvertMethod):
            _check_weighting(self.method.negatives_weighting, "[train.negatives]", "method.")
        most = self.batch_size * (1 if self.negatives is None else 1 + self.negatives.n)
        if self.chunk_size is not None and self.chunk_size >= most:
            raise ConfigError(
                f"chunk_size = {self.chunk_size} is no less than the {most} texts of a batch, which would be encoded at"
                " once; lower it or leave it out"
            )

    def of_one_network(self) -> NetworkTraining:
        """What another network of this training may have apart."""
        return NetworkTraining(**{key: getattr(self, key) for key in field_types(NetworkTraining)})

    @property
    def window(self) -> int:
        """``length_window``, or what stands for none."""
        return self.length_window or (1 if isinstance(self.method, InBatchMethod | ConvertMethod) else LENGTH_WINDOW)


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
"""Its fine-tuning (section 4), with AdamW: Adadelta at the paper's rate of 0.1 hardly moves in hundreds of steps."""
