"""What every network here offers to those who train it, store it and rank with it. They are told apart nowhere else.

Interfaces, with the few lines that are the same for all. Shapes: B contexts, N candidates, T tokens, M vectors per
context, D dimensions.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from polyrank.errors import ArtifactError
from polyrank.models.backbone import Backbone
from polyrank.models.mixture import MixtureSource
from polyrank.text import Tokens


class Trunk(Protocol):
    """A transformer in the parts that may be kept from training (a ``Backbone`` is one)."""

    def embeddings(self) -> nn.Module:
        """The word embeddings."""
        ...

    def layers(self) -> list[nn.Module]:
        """Transformer layers from bottom to top."""
        ...

    def parameters(self) -> Iterator[nn.Parameter]:
        """All of it, layers and what is below them."""
        ...


class Network(nn.Module, ABC):
    """Any network: can be trained, stored and restored."""

    new_rate = 1.0
    """How many times the learning rate new parameters start with, unless a recipe says otherwise."""

    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """What it takes besides the settings to build the network again."""

    @abstractmethod
    def trunks(self) -> Sequence[Trunk]:
        """Its transformers, each once."""

    @abstractmethod
    def new_parameters(self) -> list[nn.Parameter]:
        """Parameters that did not come with a backbone."""

    def stored(self) -> dict[str, Tensor]:
        """The state as a file holds it: each tensor once, though a shared tower has two names for its own."""
        once = {name for name, _ in (*self.named_parameters(), *self.named_buffers())}
        return {name: tensor.detach() for name, tensor in self.state_dict().items() if name in once}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what ``stored`` gave; an empty network, whose weights have no memory yet, takes that of copies.

        Raises:
            ArtifactError: the tensors are another network's.
        """
        own = self.stored()
        check_tensor_names(tensors, own)
        copies = {name: tensor.to(own[name].dtype, copy=True) for name, tensor in tensors.items()}
        # a shared tower has two names in the module and one in the file
        self.load_state_dict(copies, strict=False, assign=True)

    def observe_weights(self) -> None:
        """Take in that the weights have moved, where something depends on their range."""

    def read_first_outputs_only(self) -> None:
        """Compute no more of the last layers than is read. Scores stay; training and saving are over."""

    def hold_in_bf16(self) -> bool:
        """Hold the transformers' weights in bf16 from now on; false where there are none of that kind.

        What is behind them stays fp32. Training and saving are over.
        """
        backbones = [module for module in self.modules() if isinstance(module, Backbone)]
        if backbones:
            self.read_first_outputs_only()
        for backbone in backbones:
            backbone.narrow()
        return bool(backbones)


class EncoderNetwork(Network, MixtureSource):
    """A network whose two sides are computed apart."""

    dimension: int
    """D, the length of each vector."""

    inner_layers: tuple[str, ...] = ()
    """Names of encodings before the last one that ``inner`` gives."""

    @abstractmethod
    def encode_contexts(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Context vectors ``[B, M, D]`` and their mask ``[B, M]``, true where a vector is real."""

    @abstractmethod
    def encode_candidates(self, tokens: Tokens) -> Tensor:
        """Candidate vectors ``[N, D]``."""

    def inner(self, layer: str, tokens: Tokens) -> Tensor:
        """One of ``inner_layers`` for contexts: ``[B, R]``."""
        raise NotImplementedError(f"this network has no layer {layer!r}")


def check_tensor_names(given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raises ArtifactError unless both hold tensors of the same names."""
    if odd := sorted(set(expected) ^ set(given))[:3]:
        raise ArtifactError(f"the weights do not fit the configuration: {', '.join(odd)} on one side only")
