"""Settings of text policies and networks as frozen dataclasses, one per kind, and their way from and to dictionaries.

Each kind of network says which text it reads, and how it is trained by default: from scratch, and from other weights.
``None`` where a default depends on the backbone: ``polyrank.models.build`` resolves it and the saved model states it.
Settings never reach into classes: builders turn them into flat keyword arguments.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, overload

from polyrank.config.checked import (
    Count,
    NotNegative,
    Positive,
    Settings,
    Share,
    Whole,
    from_dict,
    kind_from_dict,
    to_dict,
)
from polyrank.config.training import CONVERT_PRETRAINING, CONVERT_TUNING, TrainConfig
from polyrank.errors import ConfigError
from polyrank.storage.document import DocumentKind

MODEL = DocumentKind(
    name="model folder",
    file="config.json",
    missing="give a folder that training wrote",
    remedy="restore the model folder from a copy",
)
TWO = ("retriever", "reranker")
"""The names of two networks in one training, and of their folders."""
Reduction = Literal["first", "mean", "mean_but_first", "mean_of_first", "sqrt_n"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPolicy(Settings):
    """How strings become token ids. Contexts keep their end, candidates their start.

    Args:
        max_context_tokens: budget of a context in tokens, special ones included.
        max_candidate_tokens: budget of a candidate in tokens, special ones included.
        max_background_tokens: most tokens of background (its start is kept) inside the context's budget.
        turn_separator: text between two turns. A special token of the vocabulary becomes that token; "[SEP]", where
            the vocabulary has another name for it, the one that ends a text.
        new_tokens: tokens to add to the vocabulary, such as "[EOT]" for use as a separator or prefix. They start at
            random and are trained where word embeddings are (``train_layers = "all"``).
        close_last_turn: put the separator behind the last turn too, as Tao et al. do with [EOT]. By default it stands
            between turns only, as the Poly-encoder paper's code has it.
        speaker_prefixes: put before each turn, the first before the last turn and then alternating backwards:
            ("customer: ", "agent: ") for replies by agents. Empty for none.
        background: where persona lines and other facts go, "before" or "after" the turns, or "drop".
        share_pair_budget: in a Cross-encoder's pairs a candidate leaves to the context what it does not need of its
            budget, so that more of a long context is read. False: the context is cut once, to the same tokens beside
            each of its candidates, as in the papers.
        start_candidate_of_pair: put the start token before the candidate of a Cross-encoder's pair too, as ParlAI does.
    """

    max_context_tokens: int = 360
    max_candidate_tokens: int = 72
    max_background_tokens: Whole = 120
    turn_separator: str = "[SEP]"
    new_tokens: tuple[str, ...] = ()
    close_last_turn: bool = False
    speaker_prefixes: tuple[str, ...] = ()
    background: Literal["before", "after", "drop"] = "before"
    share_pair_budget: bool = True
    start_candidate_of_pair: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertText(Settings):
    """How strings become ids for a ConveRT. The paper's figures are the defaults.

    Args:
        max_context_tokens: budget of the immediate context (the last turn), in subwords; its end is kept.
        max_candidate_tokens: budget of a candidate; its start is kept.
        max_earlier_tokens: budget of the earlier turns together, newest first; the newest are kept.
        max_earlier_turns: most earlier turns that are read.
        number_prefixes: put "0", "1", ... before the earlier turns, 0 before the newest, as for DSTC7.
        background: read persona lines and other facts behind the earlier turns ("after"), or not ("drop").
        vocabulary: a file of subwords; None: learnt from the training data.
        min_count: when learning: how often a subword must be seen.
        vocabulary_size: when learning: so many subwords, whatever their counts; None: as ``min_count`` gives.
        count_repeats: when learning: count a text each time that it is some example's last turn or response, as a
            sample of the corpus would have it. By default each text counts once, so that stock phrases do not fill
            the vocabulary.
        n_buckets: ids for characters outside the vocabulary.
    """

    max_context_tokens: int = 60
    max_candidate_tokens: int = 60
    max_earlier_tokens: Count = 60
    max_earlier_turns: Whole = 10
    number_prefixes: bool = False
    background: Literal["after", "drop"] = "drop"
    vocabulary: str | None = None
    min_count: Count = 250
    vocabulary_size: Count | None = None
    count_repeats: bool = False
    n_buckets: Count = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SumText(Settings):
    """A sum has no text settings of its own: each of its encoders goes on reading as it was trained to."""


TextSettings = TextPolicy | ConvertText | SumText


@dataclass(frozen=True, slots=True, kw_only=True)
class BiConfig(Settings):
    """A Bi-encoder: one vector for the context, one for the candidate.

    Args:
        backbone: "embedded", a local folder, or hf:OWNER/MODEL of the Hugging Face Hub.
        reduction: how token outputs become one vector: the "first", their "mean", their sum by "sqrt_n" of their
            number, "mean_of_first" n, or "mean_but_first", which leaves the first boundary token out, as the
            Poly-encoder paper's averages do (Table 7). None: what the backbone was trained with, else "first".
        reduction_tokens: for "mean_of_first", how many tokens.
        shared_towers: one network for both sides. Two, with the same initial weights, by default.
        projection_dim: D of a learnt linear map on each side; None for no map.
        equal_projections: whether both sides' maps start from the same weights, so that alike texts start with alike
            vectors. False: each from its own, as W_c and W_r of Tao et al.
        output_scale: token outputs are multiplied by this; None: fitted (see the next two) or 1.
        match_output_std: fit ``output_scale`` so that token outputs have this standard deviation (BERT: 0.5).
        match_self_score: fit it so that a candidate vector's product with itself is this on average.
        normalize: bring every vector to one length, so that a score is ``match_self_score`` (None: 20) times a cosine.
            By default lengths count too, as in the papers.
    """

    kind: ClassVar[str] = "bi"
    encodes: ClassVar[bool] = True
    text_kind: ClassVar[type[TextPolicy]] = TextPolicy
    training: ClassVar[TrainConfig] = TrainConfig()
    tuning: ClassVar[TrainConfig] = training

    backbone: str = "embedded"
    reduction: Reduction | None = None
    reduction_tokens: Count = 16
    shared_towers: bool = False
    projection_dim: Count | None = None
    equal_projections: bool = True
    output_scale: Positive | None = None
    match_output_std: Positive | None = None
    match_self_score: Positive | None = None
    normalize: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolyConfig(BiConfig):
    """A Poly-encoder: m vectors for the context, one for the candidate.

    Args:
        codes: "learnt" codes attend over the outputs; "first", "last" or "last_h1" take outputs as they are.
        n_codes: m. With "last_h1" there are m + 1 vectors.
        code_init: "uniform" on [0, 1) as in the released code, or "normal" with std ``code_std``; None: by backbone.
        code_std: standard deviation for "normal". Near zero every context vector starts as the mean of the outputs.
    """

    kind: ClassVar[str] = "poly"

    codes: Literal["learnt", "first", "last", "last_h1"] = "learnt"
    n_codes: int = 64
    code_init: Literal["uniform", "normal"] | None = None
    code_std: NotNegative = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossConfig(Settings):
    """A Cross-encoder: context and candidate read together.

    Args:
        backbone: "embedded", a local folder, or hf:OWNER/MODEL of the Hugging Face Hub.
        head: "linear", h_1 W (ICLR 2020), or "mlp", a tanh layer first (Tao et al.).
    """

    kind: ClassVar[str] = "cross"
    encodes: ClassVar[bool] = False
    text_kind: ClassVar[type[TextPolicy]] = TextPolicy
    training: ClassVar[TrainConfig] = TrainConfig()
    tuning: ClassVar[TrainConfig] = training

    backbone: str = "embedded"
    head: Literal["linear", "mlp"] = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig(Settings):
    """A ConveRT: a small dual encoder over subwords. The paper's figures are the defaults.

    Args:
        embedding_dim: of subwords, positions and layers.
        attention_dim: of the projections that attention weights are computed from, per head.
        ffn_dim: inside a layer's feed-forward network.
        spans: for each layer, how far apart two subwords may be to attend to each other. Equal ones: ablation C.
        scale_embeddings: multiply subwords by ``sqrt(embedding_dim)`` before positions are added, as in the released
            graphs. False: as the paper's text, which has no such factor; words then weigh no more than positions.
        position_periods: rows of each position table.
        n_heads: of attention; above one, values are projected too. 8: ablation A.
        relative_bias: whether attention scores get a learnt bias by relative position. False: ablation B.
        reduction_heads: how many weighted sums make r. 1: ablation E. (D is ``text.n_buckets = 1``.)
        side_dim, side_layers: the networks that each side has for itself.
        side_skips: their skip connections. False: ablation F.
        equal_sides: start both sides' networks (and that of the earlier turns) from the same weights, so that training
            starts from the likeness of words instead of from chance; wants ``combination = "mean"``.
        output_dim: D of the final encodings.
        multi_context: read the earlier turns as well.
        combination: of the immediate and the earlier context's encodings: their "mean", or one more "feed_forward"
            network on it, as in the released graphs.
        quantization: what the weights are rounded to, in training and in the file: 8 bits for embeddings and this
            type for the rest, or "none" for 32 bits.
        dropout: after embeddings and attention; 0 for pre-training, 0.2 for fine-tuning.
    """

    kind: ClassVar[str] = "convert"
    encodes: ClassVar[bool] = True
    text_kind: ClassVar[type[ConvertText]] = ConvertText
    training: ClassVar[TrainConfig] = CONVERT_PRETRAINING
    tuning: ClassVar[TrainConfig] = CONVERT_TUNING

    embedding_dim: Count = 512
    attention_dim: Count = 64
    ffn_dim: Count = 2048
    spans: tuple[Whole, ...] = (3, 5, 48, 48, 48, 48)
    scale_embeddings: bool = True
    position_periods: tuple[Count, ...] = (47, 11)
    n_heads: Count = 1
    relative_bias: bool = True
    reduction_heads: Count = 2
    side_dim: Count = 1024
    side_layers: Count = 3
    side_skips: bool = True
    equal_sides: bool = False
    output_dim: Count = 512
    multi_context: bool = False
    combination: Literal["feed_forward", "mean"] = "feed_forward"
    quantization: Literal["float16", "bfloat16", "none"] = "float16"
    dropout: Share = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumConfig(Settings):
    """A sum of trained encoders that go on together: the loss is that of the weighted sum of their scores.

    Args:
        parts: two or more folders of trained encoders, or "shipped:convert". At most one may give a context several
            vectors.
        weights: of their scores at the start, 1 for a Poly-encoder, which attends by its scores; None: 1 for each.
        train_weights: train the weights too, all but a Poly-encoder's.
    """

    kind: ClassVar[str] = "sum"
    encodes: ClassVar[bool] = True
    text_kind: ClassVar[type[SumText]] = SumText
    training: ClassVar[TrainConfig] = TrainConfig()
    tuning: ClassVar[TrainConfig] = training

    parts: tuple[str, ...]
    weights: tuple[Positive, ...] | None = None
    train_weights: bool = True

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if len(self.parts) < 2:
            raise ConfigError(f"parts = {list(self.parts)} are no sum; name two encoders or more")
        if self.weights is not None and len(self.weights) != len(self.parts):
            raise ConfigError(f"weights = {list(self.weights)} are not one for each part; give {len(self.parts)}")


ModelConfig = BiConfig | PolyConfig | CrossConfig | ConvertConfig
RecipeModel = ModelConfig | SumConfig
"""What a recipe can train: any one network, or several whose scores are added up."""


def model_from_dict(values: dict[str, Any], where: str = "model") -> ModelConfig:
    """Build the configuration that ``kind`` ("bi", "poly", "cross", "convert") names.

    >>> model_from_dict({"kind": "poly", "n_codes": 16}).n_codes
    16
    """
    config: ModelConfig = kind_from_dict(ModelConfig, values, where)
    return config


def model_to_dict(config: RecipeModel) -> dict[str, Any]:
    """The inverse of ``model_from_dict``, ready for JSON."""
    return to_dict(config)


@overload
def text_from_dict(config: ModelConfig, values: dict[str, Any], where: str = "text") -> TextPolicy | ConvertText: ...


@overload
def text_from_dict(config: RecipeModel, values: dict[str, Any], where: str = "text") -> TextSettings: ...


def text_from_dict(config: RecipeModel, values: dict[str, Any], where: str = "text") -> TextSettings:
    """Build the text settings that go with a model.

    >>> text_from_dict(ConvertConfig(), {}).max_context_tokens
    60
    """
    return from_dict(config.text_kind, values, where)
