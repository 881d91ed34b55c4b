import pytest
import torch
from torch import nn

from polyrank.devices.choice import cpu_has_bf16
from polyrank.models.narrow_linear import PackedLinear, pack_linear_layers

needs_packing = pytest.mark.skipif(
    not cpu_has_bf16() or not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"),
    reason="torch or the processor cannot pack linear layers",
)


class Odd(nn.Linear):
    """A subclass of a linear layer."""


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [1, 7, 300])
def test_a_packed_layer_equals_the_layer(bias: bool, n: int) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 96, bias=bias).bfloat16(), torch.randn(2, n, 64).bfloat16()
    with torch.inference_mode():
        packed, plain = PackedLinear(layer)(x), layer(x)
    assert packed.shape == plain.shape
    assert packed.dtype == torch.bfloat16
    torch.testing.assert_close(packed.float(), plain.float(), rtol=2.0**-7, atol=2.0**-7)


@needs_packing
def test_plain_linear_layers_in_bf16_are_packed_and_no_others() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), Odd(4, 4), nn.LayerNorm(4))
    pack_linear_layers(network)
    assert not any(isinstance(module, PackedLinear) for module in network.modules())  # they are in fp32
    network.bfloat16()
    pack_linear_layers(network)
    kinds = [type(module) for module in network.modules() if not list(module.children())]
    assert kinds == [PackedLinear, PackedLinear, Odd, nn.LayerNorm]
