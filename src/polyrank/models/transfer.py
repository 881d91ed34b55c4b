"""The weights that two networks have in common."""

import torch
from torch import Tensor

from polyrank.errors import ConfigError
from polyrank.models.late_cross_encoder import LateCrossEncoder
from polyrank.models.network import Network


def common_weights(model: Network, trained: Network) -> dict[str, Tensor]:
    """The weights of a trained network by the names that they have in another one.

    Names are equal, or those of one transformer in place of two: a Cross-encoder's has a counterpart on an encoder's
    context side, and an encoder's sides both have one in a Cross-encoder.
    """
    saved, common = trained.state_dict(), {}
    for name in model.state_dict():
        for source in (name, f"context_tower.{name}", name.partition("_tower.")[2]):
            if source in saved:
                common[name] = saved[source]
                break
    return common


def transfer_weights(model: Network, trained: Network, where: str, *, same_words: bool = False) -> frozenset[str]:
    """Copy a trained model's weights into another model.

    A Poly-encoder that starts from a Bi-encoder keeps its codes. A Cross-encoder gets the transformer of an encoder's
    context side and keeps its head; an encoder gets a Cross-encoder's transformer on both sides.

    Args:
        model: changed in place.
        trained: has the weights.
        where: names the trained model in errors.
        same_words: whether the first words of the model's vocabulary are those of the trained one; further ones keep
            their embeddings.

    Returns:
        The names of the copied weights.

    Raises:
        ConfigError: no weight has a counterpart, or one has another shape; two towers would become one; or another
            kind of network would start from a late Cross-encoder.
    """
    if isinstance(trained, LateCrossEncoder) and trained.reader != getattr(model, "reader", None):
        raise ConfigError(
            f"{where} is a late Cross-encoder, of which only the {trained.reader} has all layers; start from the"
            " encoder that it corrects"
        )
    state, copied = model.state_dict(), common_weights(model, trained)
    for name in copied.keys() & word_tables(model) if same_words else ():
        if len(old := copied[name]) < len(new := state[name]) and old.shape[1:] == new.shape[1:]:
            copied[name] = torch.cat([old, new[len(old) :]])
    odd = [name for name, tensor in copied.items() if tensor.shape != state[name].shape]
    if odd or not any(name in copied for name, _ in model.named_parameters()):  # a scale alone is not a model
        raise ConfigError(f"the weights in {where} do not fit this model ({(odd or ['no common part'])[0]})")
    sources: dict[int, Tensor] = {}  # by the tensor that gets them: shared towers have two names for one
    for name, tensor in copied.items():
        if not torch.equal(sources.setdefault(state[name].data_ptr(), tensor), tensor):
            raise ConfigError(
                f"{where} has two towers, and model.shared_towers = true has one network for both sides; set it to"
                " false, or start from a model with shared towers"
            )
    model.load_state_dict(copied, strict=False)
    return frozenset(copied)


def word_tables(model: Network) -> set[str]:
    """The names of the tables of word embeddings."""
    tables = {id(table) for trunk in model.trunks() for table in trunk.embeddings().parameters()}
    return {name for name, weight in model.named_parameters(remove_duplicate=False) if id(weight) in tables}
