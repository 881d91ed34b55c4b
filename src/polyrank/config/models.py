"""Settings of text policies and networks: one frozen dataclass per kind, converted from and to dictionaries.

Each kind of network names its text settings and its default training, from scratch and from other weights. A default
of ``None`` depends on the backbone: ``polyrank.models.build`` resolves it, and the saved model contains the result.
Networks do not depend on these classes: builders pass them flat keyword arguments.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from polyrank.config import checked
from polyrank.config.train import CONVERT_PRETRAINING, CONVERT_TUNING, TrainConfig
from polyrank.errors import ConfigError
from polyrank.storage.document import DocumentKind

MODEL = DocumentKind(
    name="model folder",
    file="config.json",
    missing="give a folder that training wrote",
    remedy="restore the model folder from a copy",
)
CARD = "README.md"
"""The file of a model folder that describes the model to its readers."""
Reduction = Literal["first", "last", "max", "mean", "mean_but_first", "mean_of_first", "sqrt_n", "weighted_mean"]
PairReduction = Literal["first", "last", "mean", "learnt"]  # of a Cross-encoder
Side = Literal["context", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPolicy(checked.Settings):
    """How strings become token ids. Contexts keep their end, candidates their start.

    Args:
        max_context_tokens: budget of a context in tokens, special ones included.
        max_candidate_tokens: budget of a candidate in tokens, special ones included.
        max_background_tokens: most tokens of background (its start is kept) inside the context's budget.
        max_earlier_turns: maximum number of turns before the last one; None: as many as the context's budget allows.
        turn_separator: text between two turns. A special token of the vocabulary becomes that token. If the vocabulary
            has no "[SEP]", "[SEP]" means the token that ends a text.
        new_tokens: tokens to add to the vocabulary, such as "[EOT]" for a separator or prefix. Their embeddings start
            at random and are trained only with ``train_layers = "all"``, as all word embeddings.
        close_last_turn: add the separator after the last turn too, as Tao et al. do with [EOT]. By default it is only
            between turns, as in the Poly-encoder paper's code.
        speaker_prefixes: prefixes of the turns. The last turn gets the first prefix, and the prefixes alternate
            backwards from there: ("customer: ", "agent: ") for replies by agents. Empty: no prefixes.
        background: the place of persona lines and other facts: "before" or "after" the turns, or "drop".
        share_pair_budget: in a Cross-encoder's pairs, a short candidate leaves its unused budget to the context, so
            that the model reads more of a long context. False: the context is cut to the same tokens for each of its
            candidates, as in the papers.
        start_candidate_of_pair: put the start token before the candidate of a Cross-encoder's pair too, as in ParlAI.
        slots: read order numbers, dates, names and other data of conversations as slots such as {order}, in contexts
            and candidates: for catalogues with slots, see docs/slots.md.
        context_prefix: text before each context, such as "query: ", which is never cut; None: the prompt that the
            backbone's files have for queries, or none.
        candidate_prefix: text before each candidate; None: the backbone's prompt for documents, or none.
    """

    max_context_tokens: int = 360
    max_candidate_tokens: int = 72
    max_background_tokens: checked.NonNegativeInt = 120
    max_earlier_turns: checked.NonNegativeInt | None = None
    turn_separator: str = "[SEP]"
    new_tokens: tuple[str, ...] = ()
    close_last_turn: bool = False
    speaker_prefixes: tuple[str, ...] = ()
    background: Literal["before", "after", "drop"] = "before"
    share_pair_budget: bool = True
    start_candidate_of_pair: bool = False
    slots: bool = False
    context_prefix: str | None = None
    candidate_prefix: str | None = None

    def check_budgets(self, max_positions: int) -> None:
        """Refuse texts that are longer than the network's longest input.

        Args:
            max_positions: the longest input in tokens.

        Raises:
            ConfigError: a budget is below 4 tokens or above ``max_positions``.
        """
        for name in ("max_context_tokens", "max_candidate_tokens"):
            if not 4 <= (budget := getattr(self, name)) <= max_positions:
                raise ConfigError(
                    f"text.{name} = {budget} is outside 4 to {max_positions}, the network's longest input; choose a"
                    " value in this range"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertText(checked.Settings):
    """How strings become token ids for a ConveRT. The defaults are the paper's values.

    Args:
        max_context_tokens: budget of the immediate context (the last turn), in subwords; its end is kept.
        max_candidate_tokens: budget of a candidate; its start is kept.
        max_earlier_tokens: with ``model.multi_context``: budget of all earlier turns together; the newest are kept.
        max_earlier_turns: maximum number of earlier turns.
        number_prefixes: put "0", "1", ... before the earlier turns, 0 before the newest, as for DSTC7.
        background: put persona lines and other facts after the earlier turns ("after"), or ignore them ("drop").
        vocabulary: a file of subwords; None: build the vocabulary from the training data.
        min_count: for a new vocabulary: the minimum count of a subword.
        vocabulary_size: for a new vocabulary: the number of subwords, whatever their counts; None: ``min_count``
            decides.
        count_repeats: for a new vocabulary: count a text each time it is the last turn or the response of an example,
            as in a sample of the corpus. By default each text counts once, so that stock phrases do not fill the
            vocabulary. With ``data.cache``, the sample is 5 million examples, by default 200,000, evenly spaced.
        n_buckets: ids for characters outside the vocabulary.
        slots: as for the other encoders.
    """

    max_context_tokens: int = 60
    max_candidate_tokens: int = 60
    max_earlier_tokens: checked.Count = 60
    max_earlier_turns: checked.Count = 10
    number_prefixes: bool = False
    background: Literal["after", "drop"] = "drop"
    vocabulary: str | None = None
    min_count: checked.Count = 250
    vocabulary_size: checked.Count | None = None
    count_repeats: bool = False
    n_buckets: checked.Count = 1000
    slots: bool = False


TextSettings = TextPolicy | ConvertText


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundBackbone(checked.Settings):
    """The settings that all networks around a backbone have.

    Args:
        backbone: "embedded", a local folder, or hf:OWNER/MODEL of the Hugging Face Hub.
    """

    encodes: ClassVar[bool] = False
    text_kind: ClassVar[type[TextPolicy]] = TextPolicy
    training: ClassVar[TrainConfig] = TrainConfig()
    tuning: ClassVar[TrainConfig] = training

    backbone: str = "embedded"


@dataclass(frozen=True, slots=True, kw_only=True)
class BiConfig(AroundBackbone):
    """A Bi-encoder: one vector for the context, one for the candidate.

    Args:
        reduction: how token outputs become one vector: the "first" or the "last" output, the "max" of each number, the
            "mean", the "weighted_mean" (the n-th output counts n times), the sum divided by the square root of their
            number ("sqrt_n"), the mean of the first n ("mean_of_first"), or the mean without the first boundary token
            ("mean_but_first"), as in the Poly-encoder paper (Table 7). None: the backbone's own reduction; if it has
            none, the "last" of a decoder, whose outputs read earlier tokens only, and the "first" of others.
        reduction_tokens: n for "mean_of_first".
        shared_towers: one network for both sides. By default there are two, with the same initial weights.
        projection_dim: D of a trained linear map on each side; None: no map.
        equal_projections: start both sides' maps from the same weights, so that similar texts have similar vectors
            from the start. False: independent weights, as W_c and W_r of Tao et al.
        output_scale: factor on token outputs; None: fitted (see the next two keys), or 1.
        match_output_std: fit ``output_scale`` so that token outputs have this standard deviation (BERT: 0.5).
        match_self_score: fit ``output_scale`` so that a candidate vector's dot product with itself averages this.
        normalize: normalize every vector, so that a score is ``match_self_score`` (None: 20) times a cosine. None: true
            for a Bi-encoder on a sentence encoder that compares by cosine, so that it starts from its scores; false for
            "embedded" and all others: the lengths of the vectors count too, as in the papers.
    """

    kind: ClassVar[str] = "bi"
    encodes: ClassVar[bool] = True

    reduction: Reduction | None = None
    reduction_tokens: checked.Count = 16
    shared_towers: bool = False
    projection_dim: checked.Count | None = None
    equal_projections: bool = True
    output_scale: checked.Positive | None = None
    match_output_std: checked.Positive | None = None
    match_self_score: checked.Positive | None = None
    normalize: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolyConfig(BiConfig):
    """A Poly-encoder: m vectors for the context, one for the candidate.

    Args:
        codes: "learnt" codes attend over the outputs; "first", "last" and "last_h1" use outputs directly.
        n_codes: m. With "last_h1" a context has m + 1 vectors.
        code_init: "uniform" on [0, 1), as in the released code; "normal", with standard deviation 1; or "near_zero",
            0.02, so that context vectors start as the mean of the outputs. None: near zero on a backbone that pools by
            the mean, else uniform.
    """

    kind: ClassVar[str] = "poly"

    codes: Literal["learnt", "first", "last", "last_h1"] = "learnt"
    n_codes: Annotated[int, checked.Limits(least=1, most=512)] = 64
    code_init: Literal["uniform", "normal", "near_zero"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossConfig(AroundBackbone):
    """A Cross-encoder: one network reads context and candidate together.

    Args:
        head: "linear", h_1 W (ICLR 2020), or "mlp", with a tanh layer before it (Tao et al.).
        reduction: what the head reads: the "first" output, as in both papers; the "last", for a decoder; the "mean" of
            all, which suits the transformer of an encoder that uses means; or their "learnt" mean, with weights by a
            trained code.
    """

    kind: ClassVar[str] = "cross"

    head: Literal["linear", "mlp"] = "linear"
    reduction: PairReduction = "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class LateConfig(AroundBackbone):
    """A late Cross-encoder: each side alone in the lower layers, which are not trained; one side reads the other above.

    What it computes of a candidate alone is kept, so that further contexts cost only the joined layers. Start it from a
    trained encoder (``train.init_from``).

    Args:
        backbone: "embedded", a local folder, or hf:OWNER/MODEL of the Hugging Face Hub; a BERT.
        joined_layers: the number of upper layers in which the reader's tokens attend to both sides.
        reader: whose tokens read the other side: "candidate" or "context". The shorter side costs less.
        reduction: what the head reads of the reader's outputs, as for "cross".
    """

    kind: ClassVar[str] = "late"

    joined_layers: checked.Count = 2
    reader: Literal["candidate", "context"] = "candidate"
    reduction: PairReduction = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertConfig(checked.Settings):
    """A ConveRT: a small dual encoder over subwords. The defaults are the paper's values.

    Args:
        embedding_dim: dimension of subwords, positions and layers.
        attention_dim: dimension of queries and keys, per head.
        ffn_dim: inner dimension of a layer's feed-forward network.
        spans: for each layer, the maximum distance of two subwords that attend to each other. Equal spans: ablation C.
        scale_embeddings: multiply subwords by ``sqrt(embedding_dim)`` before positions are added, as in the released
            graphs. False: without this factor, as in the paper's text; words then weigh no more than positions.
        position_periods: rows of each position table.
        n_heads: attention heads; with more than one, values are projected too. 8: ablation A.
        relative_bias: add a trained bias by relative position to attention scores. False: ablation B.
        reduction_heads: number of weighted sums in r. 1: ablation E. (D is ``text.n_buckets = 1``.)
        side_dim, side_layers: dimension and layers of each side's own network.
        side_skips: skip connections in the sides' networks. False: ablation F.
        equal_sides: start both sides' networks (and that of the earlier turns) from the same weights, so that texts
            with common words score higher from the start; best with ``combination = "mean"``.
        output_dim: D of the final encodings.
        multi_context: read the earlier turns as well.
        combination: of the encodings of the immediate context and of the earlier turns: their "mean", or a
            "feed_forward" network on the mean, as in the released graphs.
        quantization: precision of the weights in training and in the file: 8 bits for embeddings and this type for the
            rest, or "none" for 32 bits.
        dropout: after embeddings and attention; 0 for pre-training, 0.2 for fine-tuning.
    """

    kind: ClassVar[str] = "convert"
    encodes: ClassVar[bool] = True
    text_kind: ClassVar[type[ConvertText]] = ConvertText
    training: ClassVar[TrainConfig] = CONVERT_PRETRAINING
    tuning: ClassVar[TrainConfig] = CONVERT_TUNING

    embedding_dim: checked.Count = 512
    attention_dim: checked.Count = 64
    ffn_dim: checked.Count = 2048
    spans: tuple[checked.NonNegativeInt, ...] = (3, 5, 48, 48, 48, 48)
    scale_embeddings: bool = True
    position_periods: tuple[checked.Count, ...] = (47, 11)
    n_heads: checked.Count = 1
    relative_bias: bool = True
    reduction_heads: checked.Count = 2
    side_dim: checked.Count = 1024
    side_layers: checked.Count = 3
    side_skips: bool = True
    equal_sides: bool = False
    output_dim: checked.Count = 512
    multi_context: bool = False
    combination: Literal["feed_forward", "mean"] = "feed_forward"
    quantization: Literal["float16", "bfloat16", "none"] = "float16"
    dropout: checked.Fraction = 0.0


BackboneConfig = BiConfig | PolyConfig | CrossConfig | LateConfig
"""The kinds of networks around a backbone."""
ModelConfig = BackboneConfig | ConvertConfig
