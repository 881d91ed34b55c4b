"""Low-rank adapters (LoRA) of a network's linear layers, by peft: few weights to train, merged into the network's own.

Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (ICLR 2022).
"""

import torch
from torch import nn

from polyrank.errors import ConfigError, needs
from polyrank.models.backbone import Backbone
from polyrank.models.network import Network


def add_adapters(model: Network, rank: int, seed: int) -> None:
    """Add an adapter, which changes no output yet, to each linear layer of the backbones, and freeze all other weights.

    ``y = W x + 2 B A x`` with B = 0 at the start; ``A [rank, in]`` and ``B [out, rank]`` are trained.

    Args:
        model: changed in place; what is not part of a backbone is still trained.
        rank: of the adapters.
        seed: of A.

    Raises:
        ConfigError: it has no linear layers of a backbone.
        MissingExtraError: peft is not installed.
    """
    with needs("peft", "lora"):
        import peft
    networks = [trunk.network for trunk in model.trunks() if isinstance(trunk, Backbone)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for network in networks:
            linear = [name for name, module in network.named_modules() if type(module) is nn.Linear]
            if linear:
                settings = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=linear)
                peft.inject_adapter_in_model(settings, network)
    if not any(".lora_A." in name for name, _ in model.named_parameters()):
        raise ConfigError(f"train.lora_rank = {rank} needs linear layers of a backbone; leave it out")
