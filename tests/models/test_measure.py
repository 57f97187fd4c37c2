"""The measurement runs the same work in every contender, and its ratios are taken within a round."""

import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from drawloom.models.measure import LAYOUTS, Shape, batch_of, measure, ours, table, transformers_own
from drawloom.models.ragged import ModelInfo
from drawloom.models.transformer import TransformersModel

SHAPE = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
INFO = ModelInfo("tiny", 50, 256, (1,), None, 1, True, "0")


def network():
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).eval()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [Shape(1, 5, 1), Shape(3, 20, 4), Shape(2, 0, 9)])
@torch.inference_mode()
def test_layouts_answer_what_transformers_answers(layout, shape):
    model = TransformersModel(network(), INFO, layout)
    model.allocate(8, 16)
    got = ours(model)(shape)()
    assert isinstance(got, torch.Tensor)
    context = batch_of(shape._replace(prefix=0, rows=shape.prefix), 50).tokens.view(shape.sequences, -1)
    tokens = torch.cat([context, batch_of(shape, 50).tokens.view(shape.sequences, -1)], 1)
    assert torch.allclose(got, network()(tokens).logits[:, -1], atol=1e-4)


def test_transformers_cache_is_as_before_after_each_run():
    run = transformers_own(network())(Shape(2, 6, 3))
    for _ in range(3):
        run()


def test_ratios_are_medians_within_rounds():
    ticks = itertools.count()
    seconds = iter([0.0, 1.0, 0.0, 0.5, 0.0, 4.0, 0.0, 1.0, 0.0, 3.0, 0.0, 3.0])
    shape = Shape(1, 0, 1)
    found = measure({"slow": lambda _: lambda: next(ticks), "fast": lambda _: lambda: next(ticks)}, (shape,), 3, lambda: next(seconds))
    assert found[shape] == {"slow": [1.0, 4.0, 3.0], "fast": [0.5, 1.0, 3.0]}
    assert next(ticks) == 8
    assert table(found, "slow").splitlines()[-1] == "| 1 x 1, 0 | 3000.0 | 1000.0 (2.00x) |"
