"""Every tested family: paged ragged rows equal the network's own eager attention; other families are refused by name or proved."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from drawloom.errors import SettingError
from drawloom.models.families import TESTED, check_family
from drawloom.models.prove import prove
from drawloom.models.ragged import ModelInfo
from drawloom.models.transformer import TransformersModel

VOCAB = 101
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
WINDOWED = {"sliding_window": 7}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
CONFIGS = {
    "llama": {},
    "mistral": WINDOWED,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "gemma2": {**WINDOWED, **MIXED, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**WINDOWED, **MIXED, "query_pre_attn_scalar": 24},
    "olmo2": {},
    "gpt_oss": {**WINDOWED, **MIXED, "num_local_experts": 4, "num_experts_per_tok": 2},
}
INFO = ModelInfo("tiny", VOCAB, 256, (1,), None, 1, True, "0")


def network_of(family: str, **changes):
    """A random network whose weights are large enough that attention decides the logits."""
    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **{**SHAPE, **CONFIGS.get(family, {}), **changes})
    network = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, weight in network.named_parameters():
        torch.nn.init.normal_(weight, 1.0 if "norm" in name else 0.0, 0.3)
    return network


NATIVE = ("llama", "mistral", "qwen2", "qwen3")
CASES = [*((family, layout) for family in sorted(TESTED) for layout in ("paged", "padded", "reference")), *((f, "native") for f in NATIVE)]


def config_named(family: str, **features) -> PretrainedConfig:
    config = PretrainedConfig()
    for name, value in {"model_type": family, **features}.items():
        setattr(config, name, value)
    return config


@pytest.mark.parametrize(("family", "layout"), CASES)
@torch.inference_mode()
def test_mixed_ragged_steps_equal_own_attention(family, layout, drive):
    network = network_of(family)
    texts = {name: torch.randint(VOCAB, (length,)).tolist() for name, length in enumerate([5, 23, 40])}
    wanted = {name: network(torch.tensor([text]), use_cache=False).logits[0] for name, text in texts.items()}
    model = TransformersModel(network, INFO, layout)
    assert model.describe().startswith(f"{layout} layout")
    driver = drive(model, num_pages=40, page_tokens=4)
    steps = [{0: 3, 1: 9}, {1: 1, 0: 2, 2: 20}, {2: 1, 1: 1}, {2: 4, 1: 12}, {2: 15}]
    done = dict.fromkeys(texts, 0)
    for step in steps:
        logits = driver.step({name: texts[name][done[name] : done[name] + count] for name, count in step.items()})
        for name, count in step.items():
            own = wanted[name][done[name] : done[name] + count]
            assert (logits[name] - own).abs().max() <= 2e-5 * own.abs().max()
            done[name] += count
    assert done == {name: len(text) for name, text in texts.items()}


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "gpt_oss"])
@torch.inference_mode()
def test_window_matters(family, drive):
    """The comparison above would fail if windows were ignored: a wider window changes the logits of the same weights."""
    text = torch.arange(1, 30)[None]
    narrow = network_of(family)(text, use_cache=False).logits
    wide = network_of(family, sliding_window=200)(text, use_cache=False).logits
    assert (narrow - wide).abs().max() > 1e-2 * wide.abs().max()


@pytest.mark.parametrize("layout", ["native", "paged", "padded"])
@torch.inference_mode()
def test_llama_ignores_a_window_in_its_config(layout, drive):
    network = network_of("llama", sliding_window=3)
    text = torch.arange(1, 20).tolist()
    own = network(torch.tensor([text]), use_cache=False).logits[0]
    got = drive(TransformersModel(network, INFO, layout), num_pages=8, page_tokens=4).step({0: text})[0]
    assert torch.allclose(got, own, atol=1e-4)


@pytest.mark.parametrize("family", ["bloom", "mamba", "deepseek_v3", "jamba", "llama4_text"])
def test_inexpressible_family_is_refused_by_name(family):
    config = config_named(family)
    with pytest.raises(SettingError, match=f"'{family}' cannot run here.*tested: .*llama"):
        check_family(config)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "depend on the longest text"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"use_bidirectional_attention": True}, "both ways"),
        ({"kv_lora_rank": 16}, "latent"),
    ],
)
def test_inexpressible_feature_is_refused(change, reason):
    config = config_named("newcomer", **change)
    with pytest.raises(SettingError, match=f"newcomer.*{reason}"):
        check_family(config)


def test_untested_family_is_proved():
    """SmolLM3 (some layers without rotary) is in no table, and passes the proof."""
    network = network_of("smollm3", no_rope_layers=[1, 0, 1])
    assert network.config.model_type not in TESTED
    prove(network, INFO)


def test_proof_fails_for_a_network_that_attends_differently():
    network = network_of("llama")
    attention = network.model.layers[1].self_attn
    own = attention.forward

    def rescaled(*args, **kwargs):
        attention.scaling = 0.1 if network.config._attn_implementation == "eager" else 0.25
        return own(*args, **kwargs)

    attention.forward = rescaled
    with pytest.raises(SettingError, match="differ from its own"):
        prove(network, INFO)


@torch.inference_mode()
def test_moved_rows_are_what_later_rows_see(drive):
    network = network_of("qwen3")
    text = torch.randint(VOCAB, (12,)).tolist()
    wanted = copy.deepcopy(network)
    model = TransformersModel(network, INFO)
    driver = drive(model, num_pages=8, page_tokens=4)
    driver.step({0: text[:8]})
    driver.step({0: text[8:9]})
    source, target = driver.slot(0, 8), 31  # the last committed key moves to a free slot and back
    model.move_rows(torch.tensor([source]), torch.tensor([target]))
    model.move_rows(torch.tensor([driver.slot(0, 7)]), torch.tensor([source]))
    model.move_rows(torch.tensor([target]), torch.tensor([source]))
    own = wanted(torch.tensor([text]), use_cache=False).logits[0, 9:]
    assert torch.allclose(driver.step({0: text[9:]})[0], own, atol=1e-4)
