"""Settings of the training methods: a class for each, with only its own keys, so a recipe cannot give another key."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from polyrank.config.checked import Count, Fraction, NonNegativeFloat, NonNegativeInt, Positive, Settings
from polyrank.errors import ConfigError

NegativesWeighting = Literal["as_said", "logq"]


class TrainingMethod(Settings):
    """Properties that all training methods have."""

    __slots__ = ()
    ranks_lists: ClassVar[bool] = True
    """Whether each context ranks its own list."""

    @property
    def corrects(self) -> str | None:
        """The first stage whose scores the network learns to correct; None: it learns to rank alone."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class InBatchNegatives(TrainingMethod):
    """The other responses of the batch are the negatives.

    Args:
        smoothing: share of the probability that is spread over the wrong candidates.
        negatives_weighting: how often a wrong response of the batch counts. "as_said": as often as it is in the data,
            so that a model learns to score frequent responses lower than their probability. "logq": the log of a
            candidate's count is subtracted from its score, right or wrong (Yi et al. 2019), so that scores learn the
            log of the probability; it has no effect if no response repeats. It keeps the distinct responses in memory,
            also with ``data.cache``.

    Source of ``negatives_weighting``: Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
        Recommendations (2019), eqs. 3 and 4; Ma and Collins, Noise Contrastive Estimation and Negative Sampling for
        Conditional Models (2018), section 3.2.
    """

    ranks_lists: ClassVar[bool] = False

    smoothing: Fraction = 0.0
    negatives_weighting: NegativesWeighting = "as_said"


@dataclass(frozen=True, slots=True, kw_only=True)
class InBatchMethod(InBatchNegatives):
    """The other responses of the batch are the negatives.

    Args:
        matryoshka_dims: the loss is the mean of that of whole vectors and of those of their first so many numbers, so
            that ``MODEL#truncate_dim=N`` ranks nearly as well as MODEL; for Bi- and Poly-encoders.

    Source of ``matryoshka_dims``: Kusupati et al., Matryoshka Representation Learning (NeurIPS 2022), section 3.
    """

    kind: ClassVar[str] = "in_batch"

    matryoshka_dims: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertMethod(InBatchNegatives):
    """The other responses of the batch are the negatives, for a ConveRT: scaled cosines, with a scale that grows.

    Args:
        scale_steps: steps in which the scale of the cosine grows from 1 to its final value; 0: final from the start.
    """

    kind: ClassVar[str] = "convert"

    smoothing: Fraction = 0.2
    scale_steps: NonNegativeInt = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListwiseMethod(TrainingMethod):
    """Each context ranks its own list: its response and the negatives of ``[train.negatives]``.

    Args:
        sigmoid: apply a sigmoid to a Cross-encoder's scores before the loss, as printed in Tao et al. (Eq. 5). Off by
            default: a softmax of numbers from 0 to 1 gives the right one of 33 candidates at most 8%.
    """

    kind: ClassVar[str] = "listwise"

    sigmoid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitatingMethod(TrainingMethod):
    """Lists, with the scores of another network as targets.

    Args:
        alpha: weight of the imitation loss, the Kullback-Leibler divergence of the other network's probabilities.
        label_weight: weight of the cross-entropy with the labels; 0: train on the other network's scores alone.
        temperature: scores are divided by it before the softmax of the imitation loss.
    """

    alpha: NonNegativeFloat = 1.0
    label_weight: NonNegativeFloat = 1.0
    temperature: Positive = 3.0

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if not (self.alpha or self.label_weight):
            raise ConfigError(
                f"alpha = {self.alpha} and label_weight = {self.label_weight} leave no loss; give one above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillMethod(ImitatingMethod):
    """Lists as for "listwise"; trains on the labels and on the scores of a teacher, which is not trained.

    Args:
        teacher: a model folder, or another name that ``polyrank.load`` accepts.
    """

    kind: ClassVar[str] = "distill"

    teacher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualMethod(ImitatingMethod):
    """Lists as for "listwise", for two networks that train on the labels and on each other; see ``[reranker]``.

    Args:
        sigmoid: see "listwise".
    """

    kind: ClassVar[str] = "mutual"

    sigmoid: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankMethod(TrainingMethod):
    """A Cross-encoder learns to correct the scores of a trained encoder, the first stage, which is not trained.

    The loss is that of lists, of the sum g + s of the first stage's score and the Cross-encoder's (Tao et al., Eq. 10).
    The Cross-encoder's head starts at zero, so the sum first ranks exactly as the first stage does. Each list holds the
    response and the ``train.negatives.n`` wrong candidates that the first stage ranks highest among 300 from the
    sources of ``train.negatives``; an example whose response it does not rank among these is left out, as in a search.
    Two stages with this Cross-encoder add raw scores by default.

    Args:
        first_stage: an encoder: a model folder, or another name that ``polyrank.load`` accepts.
    """

    kind: ClassVar[str] = "rerank"

    first_stage: str

    @property
    def corrects(self) -> str:
        """The first stage."""
        return self.first_stage


Method = InBatchMethod | ConvertMethod | ListwiseMethod | DistillMethod | MutualMethod | RerankMethod
IN_BATCH = InBatchMethod()
