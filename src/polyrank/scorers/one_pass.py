"""One pass for two stages: an encoder's pass that also gives the inputs of some layers of its network.

Shapes: B texts, T tokens, L layers, D dimensions.
"""

from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from polyrank.models.bert import BertModel
from polyrank.text import Tokens

Encode = Callable[[Tokens], Any]
"""The pass of an encoder, for one side."""


class Collector:
    """Collects the inputs of some layers of a BERT during a pass.

    Args:
        network: the BERT.
        layers: by number from the bottom.
    """

    def __init__(self, network: BertModel, layers: range) -> None:
        self._inputs: dict[int, list[Tensor]] = {}  # by thread, since several may compute at once
        self._hooks = [network.encoder.layer[n].register_forward_pre_hook(self._collect) for n in layers]

    def during(self, encode: Encode, tokens: Tokens) -> tuple[Any, Tensor]:
        """The result of a pass, and the inputs ``[B, T, L, D]``, in fp32."""
        inputs: list[Tensor] = []
        self._inputs[get_ident()] = inputs
        try:
            result = encode(tokens)
        finally:
            del self._inputs[get_ident()]
        return result, torch.stack(inputs, 2).float()

    def close(self) -> None:
        """Collect nothing from now on."""
        for hook in self._hooks:
            hook.remove()

    def _collect(self, layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        del layer
        if (inputs := self._inputs.get(get_ident())) is not None:
            inputs.append(arguments[0])
