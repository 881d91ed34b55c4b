"""The interfaces of all networks, for training, storing and ranking, and vectors as sums of token outputs.

Shapes: B contexts, N candidates, T tokens, M vectors per context, D dimensions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from polyrank.errors import ArtifactError
from polyrank.models.backbone import Backbone
from polyrank.text import Tokens


@dataclass(frozen=True, slots=True)
class Mixture:
    """``vectors = weights @ outputs``.

    Args:
        weights: ``[B, M, T]``, zero on padding.
        outputs: of the tokens, ``[B, T, D]``, after all linear maps.
        mask: ``[B, M]``, true for real vectors.
    """

    weights: Tensor
    outputs: Tensor
    mask: Tensor

    def unit(self, length: float = 1.0) -> "Mixture":
        """The mixture with its vectors scaled to ``length``."""
        norms = (self.weights @ self.outputs).norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return Mixture(length * self.weights / norms, self.outputs, self.mask)


class TwoSides:
    """A network with a side for contexts and one for candidates, with defaults of what some of them can do."""

    pairwise = False

    inner_layers: tuple[str, ...] = ()
    """The names of inner encodings that ``inner`` returns."""

    def inner(self, layer: str, tokens: Tokens) -> Tensor:
        """The encoding ``[B, R]`` of contexts by one of ``inner_layers``."""
        raise NotImplementedError(f"this network has no layer {layer!r}")

    def context_mixture(self, tokens: Tokens) -> Mixture | None:
        """Context vectors as weighted sums of token outputs; None if they are not such sums."""
        return None

    def candidate_mixture(self, tokens: Tokens) -> Mixture | None:
        """Candidate vectors (M = 1) as weighted sums of token outputs; None if they are not such sums."""
        return None


class Trunk(Protocol):
    """A transformer, such as a ``Backbone``, in the parts that can be frozen."""

    def embeddings(self) -> nn.Module:
        """The word embeddings."""

    def layers(self) -> list[nn.Module]:
        """Transformer layers from bottom to top."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, those of layers and embeddings."""


class Network(nn.Module, ABC):
    """Any network: can be trained, stored and restored."""

    pairwise: bool
    """Whether it scores pairs of context and candidate, instead of encoding each side."""

    new_rate = 1.0
    """The learning rate of new parameters as a multiple of ``lr``, unless a recipe sets ``new_lr``."""

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """The values that building the network again needs in addition to its settings."""

    @abstractmethod
    def trunks(self) -> Sequence[Trunk]:
        """The network's transformers, each once."""

    @abstractmethod
    def new_parameters(self) -> list[nn.Parameter]:
        """The parameters that are not from a backbone."""

    def stored(self) -> dict[str, Tensor]:
        """The tensors for a file, each once: a shared tower has two names in the state dict."""
        once = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        tensors = {name: tensor.detach() for name, tensor in self.state_dict().items() if name in once}
        for name, module in self.named_modules():  # adapters of peft become a part of the weights
            if (change := getattr(module, "get_delta_weight", None)) is not None:
                tensors[f"{name}.base_layer.weight"] = tensors[f"{name}.base_layer.weight"] + change("default").detach()
        return {name.replace(".base_layer.", "."): t for name, t in tensors.items() if ".lora_" not in name}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Load copies of the tensors that ``stored`` returned, also into a network without memory for its weights.

        Raises:
            ArtifactError: the tensors belong to another network.
        """
        stored = self.stored()
        check_tensor_names(tensors, stored)
        copies = {name: tensor.to(stored[name].dtype, copy=True) for name, tensor in tensors.items()}
        # not strict: a shared tower has two names in the module and one in the file
        self.load_state_dict(copies, strict=False, assign=True)
        for backbone in [module for module in self.modules() if isinstance(module, Backbone)]:
            if tie := getattr(backbone.network, "tie_weights", None):
                tie()  # T5 has two names for its table of words

    def observe_weights(self) -> None:
        """Update anything that depends on the range of the weights; called before each update of a training."""

    def read_first_outputs_only(self) -> None:
        """Skip outputs of the last layers that are not used. The network can no longer be trained or saved."""

    def narrow(self, dtype: torch.dtype) -> bool:
        """Hold the transformers' weights in bf16 or int8 from now on; false if the network has no Backbone.

        Everything after the transformers stays fp32. The network can no longer be trained or saved.
        """
        backbones = [module for module in self.modules() if isinstance(module, Backbone)]
        if backbones:
            self.read_first_outputs_only()
        for backbone in backbones:
            backbone.narrow(dtype)
        return bool(backbones)


class EncoderNetwork(Network, TwoSides):
    """A network that encodes contexts and candidates separately."""

    dimension: int
    """D, the length of each vector."""

    @abstractmethod
    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, M, D]`` and their mask ``[B, M]``, true for real vectors."""

    @abstractmethod
    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[N, D]``."""


def check_tensor_names(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise ArtifactError unless both have tensors of the same names."""
    if odd := sorted(set(expected) ^ set(given))[:3]:
        raise ArtifactError(f"the weights do not fit the configuration: {', '.join(odd)} on one side only")


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; the model's mode is restored afterwards."""
    was_training = model.training
    if was_training:  # visiting all modules takes a millisecond
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()
