"""The networks of Hugging Face folders: a transformer of the transformers library, and the layers after it.

Shapes: B texts or pairs, T tokens, H dimensions of the transformer, D of a vector.
"""

from collections.abc import Mapping, Sequence
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
from polyrank.models.foreign.files import CAUSAL, Description, HeadLayer, poolings
from polyrank.models.hugging_face import CLASSIFIER, load_pretrained, max_positions, read_pretrained_config
from polyrank.models.narrow_linear import narrow_weights
from polyrank.models.network import Mixture, TwoSides
from polyrank.models.reductions import reduce, reduction_weights
from polyrank.models.sentence_layers import SentenceLayer, Unit, build_layer
from polyrank.storage.tensors import read_file
from polyrank.text import Tokens

POSITIVE = ("label_1", "1", "yes", "true", "positive", "relevant", "entailment", "duplicate")
"""Names of the label of pairs that belong together, in lower case."""
MEANS = ("mean", "sqrt_n", "weighted_mean")


class SentenceEncoder(nn.Module, TwoSides):
    """An encoder with one vector per text, for contexts and candidates.

    Args:
        backbone: the transformer.
        layers: from its outputs to a vector.
        unit: whether vectors are normalized at the end, so that dot products are cosines.
    """

    skipped = (0, 0)
    """Tokens at the start of contexts and of candidates, of their prompts, that are not pooled."""

    def __init__(self, backbone: Backbone, layers: "Layers", *, unit: bool) -> None:
        super().__init__()
        self.backbone, self.layers, self.unit = backbone, layers, unit
        self.dimension = layers.dimension

    @property
    def max_positions(self) -> int:
        """The longest text in tokens."""
        return self.backbone.max_positions

    def truncate(self, dimension: int) -> None:
        """Keep only the first numbers of every vector from now on."""
        self.dimension = self.layers.truncated = dimension

    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, 1, D]`` and their mask ``[B, 1]``."""
        vectors = self._encoded(tokens, self.skipped[0])[:, None, :]
        return vectors, torch.ones(vectors.shape[:2], dtype=torch.bool, device=vectors.device)

    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[B, D]``."""
        return self._encoded(tokens, self.skipped[1])

    def _encoded(self, tokens: Tokens, skipped: int) -> Tensor:
        vectors: Tensor = self.layers(self.backbone(tokens), tokens.mask, skipped)
        return F.normalize(vectors, dim=-1) if self.unit else vectors

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """As ``candidate_mixture``."""
        return self._mixture(tokens, self.skipped[0])

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """Vectors as mixtures of token outputs; None if the layers are not linear."""
        return self._mixture(tokens, self.skipped[1])

    def _mixture(self, tokens: Tokens, skipped: int) -> Mixture | None:
        if skipped:
            return None
        mixture = self.layers.mixture(self.backbone(tokens).float(), tokens.mask)
        return mixture.unit() if mixture is not None and self.unit else mixture

    def narrow(self, dtype: torch.dtype) -> bool:
        """Hold the transformer's weights in bf16 or int8 from now on."""
        self.backbone.narrow(dtype)
        return True


class PairEncoder(nn.Module):
    """A Cross-encoder.

    Args:
        network: of the transformers library, with a classification head or that of a language model; or a Backbone.
        layers: after a Backbone, ending in one number.
        activation: of the scores.
        label: whose output is the score.
        against: of a language model: the token whose logit is subtracted from that of ``label``; None: none.
    """

    pairwise = True

    def __init__(
        self,
        network: nn.Module,
        layers: "Layers | None",
        activation: nn.Module,
        *,
        label: int = 0,
        against: int | None = None,
    ) -> None:
        super().__init__()
        self.network, self.layers, self.activation = network, layers, activation
        self.label, self.against = label, against
        self.generates = layers is None and type(network).__name__.endswith(CAUSAL)
        config: Any = network.config
        self._takes_segments = int(getattr(config, "type_vocab_size", 0) or 0) > 1

    @property
    def max_positions(self) -> int:
        """The longest pair in tokens."""
        return self.network.max_positions if isinstance(self.network, Backbone) else max_positions(self.network)

    def forward(self, tokens: Tokens) -> Tensor:
        """Scores ``[B]`` of pairs."""
        if self.layers is not None:
            values = self.layers(self.network(tokens), tokens.mask)
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
                values = values[:, -1, self.label] - others
            else:
                values = values[:, self.label]
            return self.activation(values)  # type: ignore[no-any-return]  # nn.Module calls are untyped
        return self.activation(values.float())[:, 0]  # type: ignore[no-any-return]

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


def _widen_outputs(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    for name, value in list(outputs.items()):
        if isinstance(value, Tensor) and value.is_floating_point():
            outputs[name] = value.float()
    return outputs


class Layers(nn.Module):
    """The modules after a transformer, from token outputs ``[B, T, H]`` to vectors ``[B, D]``.

    Args:
        descriptions: a Pooling and the layers after it.
        dimension: H.
        truncated: how many of the first numbers of a vector are kept; None: all.
    """

    def __init__(self, descriptions: Sequence[HeadLayer], dimension: int, truncated: int | None = None) -> None:
        super().__init__()
        pooling, *others = [layer for layer in descriptions if layer.kind != "Dropout"]
        if pooling.kind != "Pooling":
            raise ArtifactError(
                f"{pooling.folder} is a {pooling.kind} before the Pooling, which polyrank does not support; choose"
                " another model"
            )
        self.poolings, self.truncated = poolings(pooling), truncated
        self.dimension = dimension * len(self.poolings)
        self.others = nn.ModuleList()
        for layer in others:
            made = read_layer(layer)
            n_in = made.settings.get("n_in", made.n_out) or self.dimension
            if n_in != self.dimension:
                raise ArtifactError(
                    f"{layer.folder} needs vectors of dimension {n_in}, and gets {self.dimension}; download the model"
                    " again"
                )
            self.others.append(made)
            self.dimension = made.n_out or self.dimension
        if truncated is not None:
            self.dimension = min(self.dimension, truncated)

    def forward(self, outputs: Tensor, mask: Tensor, skipped: int = 0) -> Tensor:
        """Token outputs ``[B, T, H]`` and their mask ``[B, T]`` to vectors ``[B, D]``, in fp32.

        Args:
            outputs, mask: of the tokens.
            skipped: the number of tokens at the start, of a prompt, that are not pooled.
        """
        with full_precision(outputs):
            mask = mask & (torch.arange(mask.shape[1], device=mask.device) >= skipped)
            vectors = torch.cat([_pool(outputs.float(), mask, mode, skipped) for mode in self.poolings], -1)
            for layer in self.others:
                vectors = layer(vectors)
        return vectors[:, : self.truncated]

    def mixture(self, outputs: Tensor, mask: Tensor) -> Mixture | None:
        """The vectors as mixtures; None unless they are a single mean, at most normalized."""
        units = all(isinstance(layer, Unit) for layer in self.others) and self.truncated is None
        if len(self.poolings) > 1 or self.poolings[0] not in MEANS or not units:
            return None
        weights = reduction_weights(mask, self.poolings[0], 0)[:, None]
        mixture = Mixture(weights, outputs, torch.ones_like(mask[:, :1]))
        return mixture.unit() if len(self.others) else mixture


def _pool(outputs: Tensor, mask: Tensor, mode: Reduction, skipped: int) -> Tensor:
    if mode == "first":
        return outputs[:, skipped]
    return reduce(outputs, mask, mode, 0)


def read_layer(layer: HeadLayer) -> SentenceLayer:
    """A layer with its weights.

    Raises:
        ArtifactError: a file is damaged, or the layer is not supported.
    """
    if layer.settings.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise ArtifactError(f"{layer.folder} reads {layer.settings['module_input_name']}; choose another model")
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
    kind = getattr(nn, name.rpartition(".")[2], None)
    if not name.startswith("torch.nn.") or not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ArtifactError(f"{folder} uses the activation {name}, which torch.nn does not have; choose another model")
    return kind()


def build_foreign(description: Description) -> SentenceEncoder | PairEncoder:
    """The network with its weights.

    Raises:
        ArtifactError: a file is damaged or does not fit the others, or the network returns more than one score.
    """
    folder = description.transformer
    if description.kind == "sentences":
        backbone = load_backbone(folder)
        layers = Layers(description.layers, backbone.dimension, description.truncated)
        return SentenceEncoder(backbone, layers, unit=description.output == "cosine")
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
        return PairEncoder(network, None, output, label=label, against=against)
    if not description.layers:
        label = positive_label(config.id2label)
        if label is None:
            labels = ", ".join(map(str, list(config.id2label.values())[:5]))
            raise ArtifactError(
                f"{folder} has {config.num_labels} labels ({labels}), and ranking needs a single score; choose a model"
                " with one label, or with a positive and a negative one"
            )
        network = load_pretrained(folder, config, CLASSIFIER)
        return PairEncoder(network, None, output, label=label)
    backbone = load_backbone(folder)
    layers = Layers(description.layers, backbone.dimension)
    if layers.dimension != 1:
        raise ArtifactError(
            f"{folder} has {layers.dimension} scores per pair, and ranking needs one; choose a model with one label"
        )
    return PairEncoder(backbone, layers, output)


def positive_label(labels: Mapping[int, str]) -> int | None:
    """The label whose output is the score; None if it is not clear.

    >>> positive_label({0: "LABEL_0", 1: "LABEL_1"}), positive_label({0: "no", 1: "maybe", 2: "yes"})
    (1, None)
    """
    if len(labels) == 1:
        return 0
    chosen = [number for number, name in labels.items() if str(name).lower() in POSITIVE]
    return chosen[0] if len(labels) == 2 and len(chosen) == 1 else None
