"""Packed products: formats that lose nothing, errors like torch's, rows that do not know their batch."""

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from drawloom.kernels.matmul import FORMATS, Packed, linear, linear_reference, pack, unpack


def quantised(kind: str, outputs: int, inputs: int) -> torch.Tensor:
    """Float32 weights as a checkpoint of that kind holds them."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs * inputs))
    if kind == "bfloat16":
        return weight.bfloat16().float()
    if kind in ("q4", "q8"):
        file_type = GGMLQuantizationType.Q4_1 if kind == "q4" else GGMLQuantizationType.Q8_0
        return torch.from_numpy(dequantize(quantize(weight.numpy(), file_type), file_type)).clone()
    return weight


@pytest.fixture(params=FORMATS)
def kind(request) -> str:
    return request.param


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (37, 96), (1, 64), (100, 320), (48, 1536)])
def test_narrowest_format_keeps_every_bit(kind, outputs, inputs):
    weight = quantised(kind, outputs, inputs)
    packed = pack(weight)
    assert packed.format == kind
    assert torch.equal(unpack(packed), weight)
    assert (unpack(packed).view(torch.int32) == weight.view(torch.int32)).all()


@pytest.mark.parametrize("kind", ["q4", "q8"])
def test_one_changed_bit_widens_the_format(kind):
    weight = quantised(kind, 32, 64)
    weight[17, 40] = torch.nextafter(weight[17, 40], torch.tensor(9.0))
    packed = pack(weight)
    assert packed.format == "float32"
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("value", [-0.0, float("inf"), float("nan"), 1e-40, 3e38])
def test_odd_values_survive(value):
    weight = quantised("q4", 16, 64)
    weight[3, 5] = value
    assert (unpack(pack(weight)).view(torch.int32) == weight.view(torch.int32)).all()


def test_constant_and_zero_weights():
    for weight in (torch.zeros(20, 64), torch.full((20, 64), 0.75)):
        packed = pack(weight)
        assert packed.format in ("q4", "q8")
        assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 6, 7, 12, 13, 31, 96, 97, 200])
def test_products_as_exact_as_torch(kind, num_rows):
    """Against float64, at odd sizes: at most twice the error of torch's own product in float32."""
    weight, bias = quantised(kind, 53, 352), torch.randn(53)
    x = torch.randn(num_rows, 352, generator=torch.Generator().manual_seed(num_rows))
    exact = x.double() @ weight.double().T + bias.double()
    packed = pack(weight, bias)
    own = (linear(x, packed).double() - exact).abs().max()
    torchs = (linear_reference(x, packed).double() - exact).abs().max()
    assert own <= 2 * torchs


def test_inputs_that_fill_no_block(kind):
    """70 inputs are no multiple of 32: bfloat16 and float32 take them, the block formats step aside."""
    weight, x = torch.randn(19, 70).bfloat16().float(), torch.randn(9, 70)
    packed = pack(weight)
    assert packed.format == "bfloat16"
    assert torch.allclose(linear(x, packed), x @ weight.T, atol=1e-4)


def test_a_row_does_not_depend_on_its_batch(kind):
    """Bit for bit: alone, beside others, and with more threads."""
    packed, x = pack(quantised(kind, 80, 608)), torch.randn(150, 608)
    together = linear(x, packed)
    for first, end in [(0, 1), (3, 5), (7, 10), (20, 24), (30, 35), (40, 47), (50, 146)]:
        assert torch.equal(linear(x[first:end].contiguous(), packed), together[first:end])
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    assert torch.equal(linear(x, packed), together)
    torch.set_num_threads(threads)


def test_no_rows():
    packed: Packed = pack(torch.randn(8, 32))
    assert linear(torch.empty(0, 32), packed).shape == (0, 8)
