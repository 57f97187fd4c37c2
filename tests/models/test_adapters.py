"""Adapters are read as PEFT itself merges them; what cannot be read is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from drawloom.errors import SettingError
from drawloom.models.checkpoint import locate
from drawloom.models.load import load_model, load_network
from drawloom.models.settings import ModelSettings

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # by PEFT itself
TOKENS = torch.arange(12)[None] % 40


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A base in bfloat16, and an adapter on it that PEFT wrote."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Qwen3Config(vocab_size=40, hidden_size=32, intermediate_size=48, max_position_embeddings=64, tie_word_embeddings=True, **shape)
    config.eos_token_id = 0
    Qwen3ForCausalLM(config).bfloat16().save_pretrained(tmp_path / "base")
    adapted = get_peft_model(
        Qwen3ForCausalLM.from_pretrained(tmp_path / "base"), LoraConfig(r=3, lora_alpha=5, target_modules="all-linear")
    )
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    config.mask_token_id, config.block_size, config.dtype = 39, 4, torch.bfloat16
    config.save_pretrained(tmp_path / "adapter")
    described = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(described | {"base_model_name_or_path": "../base"}))
    return tmp_path / "base", tmp_path / "adapter"


def test_merged_as_peft_merges(folders: tuple[Path, Path]) -> None:
    base, adapter = folders
    checkpoint = locate(ModelSettings(name=str(adapter)))
    ours = load_network(checkpoint, torch.float32, "cpu").eval()
    theirs = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).merge_and_unload().eval()
    with torch.no_grad():
        found, wanted, plain = (
            network(TOKENS).logits for network in (ours, theirs, Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32))
        )
    assert (found - wanted).abs().max() < 0.02 * (wanted - plain).abs().max()  # rounded to the base's bfloat16
    for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert own.equal(other.bfloat16().float())


def test_an_adapter_as_peft_alone_writes_it_takes_the_rest_from_its_base(folders: tuple[Path, Path]) -> None:
    base, adapter = folders
    (adapter / "config.json").unlink()
    checkpoint = locate(ModelSettings(name=str(adapter)))
    assert checkpoint.place_of("config.json") == checkpoint.place_of("tokenizer_config.json") == base.resolve()
    assert checkpoint.eos_token_ids(None) == (0,)
    info = load_model(ModelSettings(name=str(adapter))).info
    assert (info.mask_token_id, info.block_tokens, info.shifted) == (None, 1, True)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("adapter_config.json", "{", "is not JSON"),
        ("adapter_config.json", '{"peft_type": "LORA"}', "names no base"),
        ("adapter_model.safetensors", "", "cannot be read"),
    ],
)
def test_a_damaged_adapter_is_named(folders: tuple[Path, Path], name: str, text: str, said: str) -> None:
    _, adapter = folders
    (adapter / name).write_text(text)
    with pytest.raises(SettingError, match=said):
        load_model(ModelSettings(name=str(adapter)))


def test_its_own_config_describes_it_and_its_base_is_in_its_fingerprint(folders: tuple[Path, Path]) -> None:
    base, adapter = folders
    before = load_model(ModelSettings(name=str(adapter))).info
    assert (before.mask_token_id, before.block_tokens, before.shifted) == (39, 4, False)
    assert load_model(ModelSettings(name=str(base))).info.mask_token_id is None
    state = load_file(base / "model.safetensors")
    state["model.norm.weight"] += 1
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    assert locate(ModelSettings(name=str(adapter))).fingerprint() != before.fingerprint


@pytest.mark.parametrize(("change", "said"), [({"use_dora": True}, "use_dora"), ({"peft_type": "IA3"}, "IA3"), ({"bias": "all"}, "bias")])
def test_other_kinds_are_refused(folders: tuple[Path, Path], change: dict, said: str) -> None:
    _, adapter = folders
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(SettingError, match=f"{said} is not supported; merge it"):
        load_model(ModelSettings(name=str(adapter)))


def test_tensors_that_do_not_fit_are_named(folders: tuple[Path, Path]) -> None:
    _, adapter = folders
    state = load_file(adapter / "adapter_model.safetensors")
    name = next(iter(state))
    save_file({**state, name.replace("layers.0", "layers.7"): state[name].clone()}, adapter / "adapter_model.safetensors")
    with pytest.raises(SettingError, match=r"layers\.7\S* does not fit this base"):
        load_model(ModelSettings(name=str(adapter)))


def test_a_diffusion_model_without_a_block_size_is_refused(folders: tuple[Path, Path]) -> None:
    _, adapter = folders
    config = json.loads((adapter / "config.json").read_text())
    del config["block_size"]
    (adapter / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingError, match="mask_token_id but no block_size"):
        load_model(ModelSettings(name=str(adapter)))
