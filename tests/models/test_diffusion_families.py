"""Diffusion checkpoints whose own classes are remote code: their files, as those classes write them, give the same logits here."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusion_checkpoints import written
from safetensors.torch import save_file

from drawloom.errors import SettingError
from drawloom.jobs.train.start import mark_diffusion
from drawloom.kernels.attention import FULL
from drawloom.models.checkpoint import ZOO, locate
from drawloom.models.diffusion import FAMILIES
from drawloom.models.load import load_model, load_network
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import load_text

TEXT = [7, 9, 3, 41, 22, 60, 1, 17, 62, 62]


def own_logits(network: Any, block: int) -> torch.Tensor:
    """[T, V] of transformers' own eager attention under a block-causal mask."""
    position = torch.arange(len(TEXT))
    seen = position[None, :] // block <= position[:, None] // block
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        return network(input_ids=torch.tensor([TEXT]), attention_mask=mask, use_cache=False).logits[0]


@pytest.mark.parametrize(
    ("family", "block", "shifted", "mask"),
    [("sdar", 4, False, 62), ("Fast_dLLM_Qwen", 4, True, 61), ("Dream", FULL, True, 62), ("llada", FULL, False, 62)],
)
def test_logits_equal_those_of_their_layers(family: str, block: int, shifted: bool, mask: int, tmp_path: Path, drive: Any) -> None:
    network = written(tmp_path / family, family)
    model = load_model(ModelSettings(name=str(tmp_path / family)))
    assert (model.info.block_tokens, model.info.shifted, model.info.mask_token_id) == (block, shifted, mask)
    assert model.info.eos_token_ids == (3,)
    driver = drive(model, 20, 4)
    see = [min(len(TEXT), (row // block + 1) * block) for row in range(len(TEXT))]
    got = driver.step({0: TEXT}, see={0: see})[0]
    torch.testing.assert_close(got, own_logits(network, block), atol=2e-4, rtol=1e-4)


def test_llada_weights_under_the_names_of_llama(tmp_path: Path, drive: Any) -> None:
    """As conversions for other engines name them."""
    network = written(tmp_path / "x", "llada")
    save_file(
        {name: weight.contiguous() for name, weight in network.state_dict().items()}, tmp_path / "x/model.safetensors", {"format": "pt"}
    )
    got = drive(load_model(ModelSettings(name=str(tmp_path / "x"))), 20, 4).step({0: TEXT}, see={0: [len(TEXT)] * len(TEXT)})[0]
    torch.testing.assert_close(got, own_logits(network, FULL), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "missing", "told"),
    [
        ("sdar", "mask_token_id", "no mask_token_id"),
        ("sdar", "block_size", "no block_size"),
        ("Fast_dLLM_Qwen", "bd_size", "no bd_size"),
        ("Dream", "mask_token_id", "no mask_token_id"),
    ],
)
def test_nothing_that_was_trained_in_is_guessed(family: str, missing: str, told: str, tmp_path: Path) -> None:
    without: dict[str, Any] = {missing: None}
    written(tmp_path / "x", family, **without)
    with pytest.raises(SettingError, match=told):
        load_model(ModelSettings(name=str(tmp_path / "x")))


def test_a_mask_that_only_the_tokenizer_knows(tmp_path: Path) -> None:
    written(tmp_path / "x", "Fast_dLLM_Qwen")
    (tmp_path / "x/tokenizer_config.json").write_text("{}")
    with pytest.raises(SettingError, match=r"\|<MASK>\|"):
        load_model(ModelSettings(name=str(tmp_path / "x")))


@pytest.mark.parametrize("family", ["llada2_moe", "wedlm"])
def test_families_that_cannot_run_are_refused_by_name(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(SettingError, match=f"'{family}' cannot run here") as caught:
        load_model(ModelSettings(name=str(tmp_path)))
    assert all(name in str(caught.value) for name in FAMILIES)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.json"])
def test_their_tokenizers_are_read_without_their_code(family: str, files: str, tmp_path: Path) -> None:
    """A config that names code of its own raises no question and runs nothing."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "auto_map": {"AutoConfig": "configuration_x.Config"}}))
    (tmp_path / "configuration_x.py").write_text("raise SystemExit('this must not run')")
    (tmp_path / "tokenizer_x.py").write_text("raise SystemExit('this must not run')")
    named = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["tokenizer_x.OwnTokenizer", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    if files == "tokenizer.json":
        shutil.copy(ZOO / "tiny-ar/tokenizer.json", tmp_path)
    else:
        (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
        (tmp_path / "merges.txt").write_text("a b\n")
    text = load_text(ModelSettings(name=str(tmp_path)))
    assert text.decode(text.encode("ab")) == "ab"


@pytest.mark.parametrize("family", [*FAMILIES, "llama", "qwen3", "gemma2"])
def test_a_missing_tokenizer_is_named(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(SettingError, match=r"(?s)no usable tokenizer .* put tokenizer\.json"):
        load_text(ModelSettings(name=str(tmp_path)))


def test_an_adapter_on_such_a_base(tmp_path: Path) -> None:
    written(tmp_path / "base", "sdar")
    (tmp_path / "adapter").mkdir()
    told = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "../base", "target_modules": ["q_proj"]}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(told))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": torch.ones(2, 32), f"{name}.lora_B.weight": torch.ones(32, 2)}
    save_file(tensors, tmp_path / "adapter/adapter_model.safetensors")
    plain, adapted = (load_model(ModelSettings(name=str(tmp_path / one))) for one in ("base", "adapter"))
    assert (adapted.info.block_tokens, adapted.info.shifted, adapted.info.mask_token_id) == (4, False, 62)
    assert adapted.info.fingerprint != plain.info.fingerprint


@pytest.mark.parametrize("family", ["Fast_dLLM_Qwen", "Dream"])
def test_trained_on_as_block_diffusion_its_masks_predict_themselves(family: str, tmp_path: Path) -> None:
    """The recipes train without a shift, so the checkpoint that they write says so, whatever its base was."""
    written(tmp_path / "x", family)
    own: Any = load_network(locate(ModelSettings(name=str(tmp_path / "x"))), torch.float32, "cpu")
    assert own.config.shifted_logits
    mark_diffusion(own.config, 62, 8)
    own.save_pretrained(tmp_path / "y")
    info = load_model(ModelSettings(name=str(tmp_path / "y"))).info
    assert (info.block_tokens, info.shifted, info.mask_token_id) == (8, False, 62)
