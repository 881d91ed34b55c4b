"""The networks of Hugging Face folders: a transformer of the transformers library, and the layers after it.

Shapes: B texts or pairs, T tokens, H dimensions of the transformer, D of a vector.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from polyrank.config.models import Reduction
from polyrank.devices.choice import full_precision
from polyrank.errors import ArtifactError
from polyrank.loading.folders import check_weights
from polyrank.models.backbone import Backbone, load_backbone
from polyrank.models.bert import BertModel
from polyrank.models.bi_encoder import BiEncoder, Tower
from polyrank.models.foreign.files import CAUSAL, Description, HeadLayer, poolings
from polyrank.models.hugging_face import CLASSIFIER, load_pretrained, max_positions, read_pretrained_config
from polyrank.models.narrow_linear import narrow_weights
from polyrank.models.network import Mixture
from polyrank.models.reductions import pool
from polyrank.models.sentence_layers import SentenceLayer, Unit, build_layer, without_last_units
from polyrank.models.static import StaticNetwork
from polyrank.storage.tensors import read_file
from polyrank.text import Texts, Tokens

POSITIVE = ("label_1", "1", "yes", "true", "positive", "relevant", "entailment", "duplicate")
"""Names of the label of pairs that belong together, in lower case."""
UNEQUAL = 1e-4  # a share of an output's length: far more than rounding changes


class SentenceEncoder(BiEncoder):
    """A Bi-encoder whose outputs may be pooled in several ways, without the tokens of a prompt.

    Args:
        towers: from contexts and from candidates to vectors; one if they are the same.
        poolings: of each tower, the reductions of outputs; the vectors of several are concatenated.
    """

    skipped = (0, 0)
    """Tokens at the start of contexts and of candidates, of their prompts, that are not pooled."""
    pad_id: int | None = None
    """The padding of candidates, if their vocabulary has another one than that of contexts."""

    def __init__(self, towers: Sequence[Tower], poolings: Sequence[tuple[Reduction, ...]]) -> None:
        super().__init__(towers[0], towers[-1], reduction=poolings[0][0], reduction_tokens=0)
        self.poolings = poolings[0], poolings[-1]

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, 1, D]`` and their mask ``[B, 1]``."""
        vectors = self._encoded(tokens, 0)[:, None, :]
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[B, D]``."""
        if self.pad_id is not None:
            tokens = replace(tokens, ids=tokens.ids.masked_fill(~tokens.mask, self.pad_id))
        return self._encoded(tokens, 1)

    def _encoded(self, tokens: Tokens, side: int) -> Tensor:
        tower = (self.context_tower, self.candidate_tower)[side]
        return tower.finish(pool(tower(tokens), tokens.mask, self.poolings[side], self.skipped[side]))

    @property
    def is_plain(self) -> bool:
        """Whether vectors are one reduction of all tokens."""
        return {*self.poolings} == {(self.reduction,)} and self.skipped == (0, 0) and self.pad_id is None

    def reduced_mixture(self, tower: Tower, tokens: Tokens) -> Mixture | None:
        """See ``TwoTowers``."""
        return super().reduced_mixture(tower, tokens) if self.is_plain else None

    def read_first_outputs_only(self) -> None:
        """See ``BiEncoder``."""
        if self.is_plain:
            super().read_first_outputs_only()


class PairEncoder(nn.Module):
    """A Cross-encoder.

    Args:
        network: of the transformers library, with a classification head or that of a language model; or a Backbone.
        layers: after a Backbone and its poolings, ending in one number.
        activation: of the scores.
        label: whose output is the score.
        against: of a language model: the token whose logit is subtracted from that of ``label``; None: none.
        poolings: of a Backbone's outputs.
    """

    pairwise = True

    def __init__(
        self,
        network: nn.Module,
        layers: Sequence[SentenceLayer],
        activation: nn.Module,
        *,
        label: int = 0,
        against: int | None = None,
        poolings: tuple[Reduction, ...] = (),
    ) -> None:
        super().__init__()
        self.network, self.layers, self.activation = network, nn.Sequential(*layers), activation
        self.label, self.against, self.poolings = label, against, poolings
        self.generates = not poolings and type(network).__name__.endswith(CAUSAL)
        config: Any = network.config
        config.use_cache = False  # no token follows
        self._takes_segments = int(getattr(config, "type_vocab_size", 0) or 0) > 1

    @property
    def max_positions(self) -> int:
        """The longest pair in tokens."""
        return self.network.max_positions if isinstance(self.network, Backbone) else max_positions(self.network)

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores ``[B]`` of pairs."""
        if self.poolings:
            outputs = self.network(tokens)
            with full_precision(outputs):
                values = self.layers(pool(outputs.float(), tokens.mask, self.poolings))
        else:
            segments = {"token_type_ids": tokens.segments} if self._takes_segments else {}
            ids, mask, last = tokens.ids, tokens.mask, {}
            if self.generates:  # with padding on the left, all rows end at the same place
                places = torch.arange(ids.shape[1], device=ids.device) + mask.sum(1, keepdim=True)
                ids, mask = (values.gather(1, places % ids.shape[1]) for values in (ids, mask))
                last = {"logits_to_keep": 1}
            values = self.network(input_ids=ids, attention_mask=mask.long(), **segments, **last).logits.float()
            if self.generates:
                others = 0.0 if self.against is None else values[:, -1, self.against]
                values = (values[:, -1, self.label] - others)[:, None]
        scores: Tensor = self.activation(values.float())  # of all labels, as a softmax needs
        return scores[:, 0 if self.generates else self.label]

    def narrow(self, dtype: torch.dtype) -> bool:
        """Hold the transformer's weights in bf16 or int8 from now on; its pooler and its head stay fp32."""
        if isinstance(self.network, Backbone):
            self.network.narrow(dtype)
            return True
        trunk: Any = self.network.base_model
        pooler, trunk.pooler = getattr(trunk, "pooler", None), None
        narrow_weights(trunk, dtype)
        trunk.register_forward_hook(_widen_outputs)
        if pooler is not None:
            pooler.register_forward_pre_hook(lambda _, inputs: tuple(x.float() for x in inputs))
            trunk.pooler = pooler
        return True


def _widen_outputs(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
    for name, value in list(outputs.items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            outputs[name] = value.float()
    return outputs


def read_layers(
    descriptions: Sequence[HeadLayer], dimension: int
) -> tuple[tuple[Reduction, ...], list[SentenceLayer], int]:
    """The modules after a transformer: its poolings, the layers after them with their weights, and their dimension.

    Args:
        descriptions: a Pooling and the layers after it.
        dimension: of token outputs.

    Raises:
        ArtifactError: a file is damaged, a layer is not supported, or does not fit the layer before it.
    """
    pooling, *others = [layer for layer in descriptions if layer.kind != "Dropout"]
    if pooling.kind != "Pooling":
        raise ArtifactError(
            f"{pooling.folder} is a {pooling.kind} before the Pooling, which polyrank does not support; choose another"
            " model"
        )
    modes, layers = poolings(pooling), []
    dimension *= len(modes)
    for layer in others:
        made = read_layer(layer)
        if (n_in := made.settings.get("n_in", made.n_out) or dimension) != dimension:
            raise ArtifactError(
                f"{layer.folder} needs vectors of dimension {n_in}, and gets {dimension}; download the model again"
            )
        layers.append(made)
        dimension = made.n_out or dimension
    return modes, layers, dimension


def read_layer(layer: HeadLayer) -> SentenceLayer:
    """A layer with its weights.

    Raises:
        ArtifactError: a file is damaged, or the layer is not supported.
    """
    if layer.settings.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise ArtifactError(f"{layer.folder} reads {layer.settings['module_input_name']}; choose another model")
    if (output := layer.settings.get("module_output_name")) not in (None, "sentence_embedding", "scores"):
        raise ArtifactError(f"{layer.folder} writes {output}; choose another model")
    if layer.kind not in ("Dense", "LayerNorm", "Normalize"):
        raise ArtifactError(f"{layer.folder} is a second {layer.kind}; choose a model with one")
    if layer.kind == "Normalize":
        return build_layer({"kind": layer.kind})
    check_weights(layer.folder)
    try:
        tensors, _ = read_file(layer.folder / "model.safetensors")
        if layer.kind == "LayerNorm":
            made = build_layer({"kind": layer.kind, "n_out": len(tensors["norm.weight"])})
        else:
            n_out, n_in = tensors["linear.weight"].shape
            name = str(layer.settings.get("activation_function"))
            name = name if name.startswith("torch.") else "torch.nn.modules.activation.Tanh"
            activation(name, layer.folder)
            made = build_layer(
                {
                    "kind": layer.kind,
                    "n_in": n_in,
                    "n_out": n_out,
                    "bias": "linear.bias" in tensors,
                    "residual": "residual.weight" in tensors,
                    "adds_inputs": bool(layer.settings.get("use_residual")),
                    "activation": name.rpartition(".")[2],
                }
            )
        made.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    except (ValueError, KeyError, RuntimeError) as error:
        raise ArtifactError(f"{layer.folder} is damaged ({error}); download the model again") from error
    return made


def activation(name: str, folder: Path) -> nn.Module:
    """A module of torch.nn by its full name.

    Raises:
        ArtifactError: torch.nn has no module of that name.
    """
    kind: Any = getattr(nn, name.rpartition(".")[2], None)
    try:
        if not name.startswith("torch.nn.") or not issubclass(kind, nn.Module):
            raise TypeError(name)
        return nn.Softmax(-1) if kind is nn.Softmax else kind()
    except TypeError as error:  # it is not a class, or needs arguments
        raise ArtifactError(
            f"{folder} uses the activation {name}, which torch.nn does not have without settings; choose another model"
        ) from error


def build_foreign(description: Description) -> SentenceEncoder | PairEncoder:
    """The network with its weights.

    Raises:
        ArtifactError: a file is damaged or does not fit the others, or the network returns more than one score.
    """
    folder = description.transformer
    if description.kind == "sentences":
        towers, modes = zip(*map(_tower, description.sides), strict=True)
        sizes = [tower.dimension for tower in towers]
        if len({*sizes}) > 1:
            raise ArtifactError(
                f"{folder} has query vectors of dimension {sizes[0]} and document vectors of {sizes[1]}; choose another"
                " model"
            )
        return SentenceEncoder(towers, modes)
    config = read_pretrained_config(folder)
    output = activation(description.output, folder)
    if scored := next((layer.settings for layer in description.layers if layer.kind == "LogitScore"), None):
        network = load_pretrained(folder, config, "AutoModelForCausalLM")
        label, against = scored.get("true_token_id", -1), scored.get("false_token_id")
        if not all(
            type(token) is int and 0 <= token < config.vocab_size
            for token in (label, 0 if against is None else against)
        ):
            raise ArtifactError(f"{folder} scores by the tokens {label} and {against}; download the model again")
        return PairEncoder(network, (), output, label=label, against=against)
    if not description.layers:
        label = positive_label(config.id2label)
        if label is None:
            labels = ", ".join(map(str, list(config.id2label.values())[:5]))
            raise ArtifactError(
                f"{folder} has {config.num_labels} labels ({labels}), and ranking needs a single score; choose a model"
                " with one label, or with a positive and a negative one"
            )
        if config.get_text_config().pad_token_id is None:
            raise ArtifactError(f"{folder / 'config.json'} has no pad_token_id, which pairs of a batch need; set it")
        return PairEncoder(load_pretrained(folder, config, CLASSIFIER), (), output, label=label)
    backbone = load_backbone(folder)
    modes, layers, n_scores = read_layers(description.layers, backbone.dimension)
    if n_scores != 1:
        raise ArtifactError(
            f"{folder} has {n_scores} scores per pair, and ranking needs one; choose a model with one label"
        )
    return PairEncoder(backbone, layers, output, poolings=modes)


def check_padding(network: nn.Module, tokens: Tokens, texts: Texts, where: Path) -> None:
    """Refuse a network whose outputs depend on the padding of a batch, or on types of tokens that polyrank leaves out.

    Args:
        network: a Backbone, or of a PairEncoder.
        tokens: of one text or pair.
        texts: made them; states how its library pads and types them.
        where: names the model in errors.

    Raises:
        ArtifactError: they do.
    """
    backbone = network.network if isinstance(network, Backbone) else network
    if isinstance(backbone, StaticNetwork) or (isinstance(backbone, BertModel) and not texts.pads_left):
        return
    config: Any = backbone.config
    n_types, inputs = int(getattr(config, "type_vocab_size", 0) or 0), inspect.signature(backbone.forward).parameters
    # a network with a single type has no other, whatever its tokenizer gives
    takes, typed = n_types > 1, n_types > 1 or (n_types == 0 and texts.has_types and "token_type_ids" in inputs)

    @torch.inference_mode()
    def outputs(before: int, after: int, *, typed: bool) -> Tensor:
        ids, mask, types = (
            F.pad(values, (before, after), value=value)
            for values, value in ((tokens.ids, texts.subwords.pad_id), (tokens.mask.long(), 0), (tokens.segments, 0))
        )
        made = backbone(input_ids=ids, attention_mask=mask, **({"token_type_ids": types} if typed else {}))
        values: Tensor = made.logits if hasattr(made, "logits") else made.last_hidden_state
        return values[0, before : before + tokens.ids.shape[1]] if values.dim() == 3 else values[0]

    generates, n = type(backbone).__name__.endswith(CAUSAL), min(9, texts.max_positions - tokens.ids.shape[1])
    alone, sides = outputs(0, 0, typed=takes), [(0, n)] * (not generates) + [(n, 0)] * (texts.pads_left or generates)
    if any(float((outputs(*side, typed=typed) - alone).norm() / alone.norm()) > UNEQUAL for side in sides):
        remedy = "set its padding_side to right" if texts.pads_left else "choose another model"
        raise ArtifactError(
            f"{where} is of the type {config.model_type}, whose scores in its library depend on the padding of a batch"
            f" or on types of tokens; {remedy}"
        )


def _tower(description: Description) -> tuple[Tower, tuple[Reduction, ...]]:
    """The network of sentences, and its poolings."""
    backbone, truncated = load_backbone(description.transformer), description.truncated
    modes, layers, dimension = read_layers(description.layers, backbone.dimension)
    unit = description.output == "cosine"
    if unit or truncated is None:  # then a last normalization is that of the tower
        unit = unit or bool(layers and isinstance(layers[-1], Unit))
        layers = without_last_units(layers)
    tower = Tower(backbone, None, 1.0, length=1.0 if unit else None, layers=layers)
    tower.dimension = min(dimension, truncated or dimension)
    return tower, modes


def positive_label(labels: Mapping[int, str]) -> int | None:
    """The label whose output is the score; None if it is not clear.

    >>> positive_label({0: "LABEL_0", 1: "LABEL_1"}), positive_label({0: "no", 1: "maybe", 2: "yes"})
    (1, None)
    """
    if len(labels) == 1:
        return 0
    chosen = [number for number, name in labels.items() if str(name).lower() in POSITIVE]
    return chosen[0] if len(labels) == 2 and len(chosen) == 1 else None
