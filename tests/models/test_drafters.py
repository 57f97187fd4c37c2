"""What layers say is kept where it can be found, and published drafter files load whole or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drafter_checkpoints as checkpoints
import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config

from drawloom.errors import SettingError
from drawloom.models.checkpoint import Checkpoint
from drawloom.models.drafters.kinds import kind_of
from drawloom.models.drafters.load import load_drafter
from drawloom.models.drafters.mtp import MtpNetwork
from drawloom.models.load import load_model
from drawloom.models.native import PackedLinear
from drawloom.models.ragged import ModelInfo
from drawloom.models.settings import ModelSettings
from drawloom.models.transformer import TransformersModel


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.written(tmp_path_factory.mktemp("target") / "x")


@pytest.fixture
def running(target: str) -> TransformersModel:
    return load_model(ModelSettings(name=target))


def loaded(folder: str | Path, running: TransformersModel) -> Any:
    return load_drafter(Checkpoint("it", Path(folder)), running)


def outputs(network: Any, text: list[int]) -> list[torch.Tensor]:
    """What each layer and the last norm put out, [N, C]."""
    found: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, out: Any) -> None:
        found.append((out[0] if isinstance(out, tuple) else out).view(len(text), -1))

    hooks = [module.register_forward_hook(keep) for module in (*network.model.layers, network.model.norm)]
    network(torch.tensor([text]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("layout", ["native", "paged", "triton", "padded", "reference"])
@pytest.mark.parametrize("taps", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
@torch.inference_mode()
def test_features_are_the_layers_outputs(layout: str, taps: tuple[int, ...], target: str, drive: Callable) -> None:
    """In every layout, in steps, in shuffled pages; the logits are what they are without taps; moved rows take them along."""
    network = tiny.plain(target)
    tokens = {0: list(range(3, 14)), 1: list(range(20, 50))}
    wanted = {}
    for name, text in tokens.items():
        found = outputs(network, text)
        wanted[name] = torch.cat([found[tap] for tap in taps], 1)
    info = ModelInfo("x", tiny.VOCAB, 512, (), None, 1, shifted=True, fingerprint="")
    model, other = (TransformersModel(tiny.plain(target), info, layout) for _ in range(2))
    plain = other.page_bytes(4)
    model.tap(taps)
    assert model.page_bytes(4) == plain + 4 * len(taps) * 32 * 4
    driver, untapped = drive(model, num_pages=20, page_tokens=4), drive(other, num_pages=20, page_tokens=4)
    for step in ({0: tokens[0][:5], 1: tokens[1][:17]}, {1: tokens[1][17:], 0: tokens[0][5:]}):
        said, same = driver.step(step), untapped.step(step)
        for name in step:
            torch.testing.assert_close(said[name], same[name], rtol=1e-5, atol=1e-5)
    slots = {name: torch.tensor([driver.slot(name, place) for place in range(len(text))]) for name, text in tokens.items()}
    for name, own in slots.items():
        torch.testing.assert_close(model.features(own, taps), wanted[name], rtol=2e-5, atol=2e-5)
    model.move_rows(slots[0][:3], slots[1][:3])
    torch.testing.assert_close(model.features(slots[1][:3], taps), wanted[0][:3], rtol=2e-5, atol=2e-5)


def test_a_layer_that_is_not_there_is_refused(running: TransformersModel) -> None:
    with pytest.raises(SettingError, match=r"layer 3 of .* is wanted, which has 2; this drafter is for another model"):
        running.tap((1, 3))


def test_what_a_config_describes() -> None:
    assert kind_of({"architectures": ["Qwen3ForCausalLM"]}) is None
    assert kind_of({"architectures": ["LlamaForCausalLM"]}) is None
    assert kind_of({"architectures": ["LlamaForCausalLM"], "draft_vocab_size": 32000}) == "eagle"
    assert kind_of({"architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3"}) == "eagle"
    assert kind_of({"architectures": ["DFlashDraftModel"], "dflash_config": {"mask_token_id": 1}}) == "block"
    assert kind_of({"medusa_num_heads": 4}) == kind_of({"hydra_num_heads": 4}) == "heads"
    assert kind_of({"speculators_model_type": "peagle"}) == kind_of({"architectures": ["Qwen3DFlyModel"]}) == "block"
    assert kind_of({"speculators_model_type": "mtp"}) == kind_of({"model_type": "eagle"}) == "eagle"
    for config, says in (
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"causal": True}}, "causal"),
        ({"architectures": ["DFlash2DraftModel"]}, "DFlash2DraftModel"),
        ({"architectures": ["Gemma4DSparkModel"]}, "Gemma4DSparkModel"),
        ({"speculators_model_type": "independent"}, "independent"),
    ):
        with pytest.raises(SettingError, match=says):
            kind_of(config)


@pytest.mark.parametrize("kind", checkpoints.FORMS)
def test_every_weight_is_there_and_known(kind: str, tmp_path: Path, running: TransformersModel) -> None:
    network = checkpoints.network_of(kind)
    config, state = checkpoints.config_of(kind, network), checkpoints.state_of(kind, network)
    chosen = [key for key in sorted(state) if state[key].dim() == 2]  # of which one format may lack some
    first = next(key for key in chosen if not any(part in key for part in ("embed", "fusion", "confidence", "fc.")))
    assert loaded(checkpoints.written(kind, tmp_path / "whole"), running).kind == checkpoints.kind_of(kind)
    for name, wrong, says in (
        ("missing", {key: value for key, value in state.items() if key != first}, "1 weights are missing|weights are unknown"),
        ("unknown", state | {"odd.weight": torch.zeros(2)}, "1 weights are unknown, such as .*odd.weight"),
        ("shape", state | {first: torch.zeros(2, state[first].shape[1])}, "of another shape|are missing|are unknown"),
    ):
        with pytest.raises(SettingError, match=says):
            loaded(checkpoints.written(kind, tmp_path / name, config, wrong), running)
    (tmp_path / "whole" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(SettingError, match="cannot be read"):
        loaded(tmp_path / "whole", running)
    (tmp_path / "whole" / "model.safetensors").unlink()
    with pytest.raises(SettingError, match="no weight file"):
        loaded(tmp_path / "whole", running)


def flat_fields(config: dict[str, Any]) -> dict[str, Any]:
    """As AngelSpec writes them; its num_target_layers counts the layers that are read."""
    own = config.pop("dflash_config")
    return config | own | {"num_target_layers": len(own["target_layer_ids"]), "target_num_hidden_layers": 2}


def container(config: dict[str, Any]) -> dict[str, Any]:
    """As vLLM's speculators writes them."""
    kept = {
        key: config.pop(key)
        for key in ("architectures", "block_size", "dflash_config", "draft_vocab_size", "eagle_config")
        if key in config
    }
    layers = (kept.pop("eagle_config", None) or {}).get("eagle_aux_hidden_state_layer_ids")
    own = kept.pop("dflash_config", None)
    named = {"eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in layers]} if layers else {}
    if own:  # whose layers are counted from the embeddings
        named = {"aux_hidden_state_layer_ids": [layer + 1 for layer in own["target_layer_ids"]], "mask_token_id": own["mask_token_id"]}
    outside = kept | named
    return outside | {"speculators_model_type": "eagle3" if layers else "dflash", "transformer_layer_config": config}


def prefixed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"model.{key}": value for key, value in state.items()}


def layer_zero(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As NVIDIA and vLLM name EAGLE's layer."""
    return {key.replace("midlayer.", "layers.0."): value for key, value in state.items()}


def without_maps(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if key not in ("d2t", "t2d")}


def with_copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return state | {"embed_tokens.weight": torch.zeros(tiny.VOCAB, 32)}


def same(value: Any) -> Any:
    return value


def angel(config: dict[str, Any]) -> dict[str, Any]:
    """AngelSpec's DFlare says that it is a DFlash, in flat fields."""
    return flat_fields(config) | {"architectures": ["DFlashDraftModel"], "model_arch": "dflare"}


def deepspec(config: dict[str, Any]) -> dict[str, Any]:
    return flat_fields(config) | {"architectures": ["Qwen3DSparkModel"], "markov_rank": checkpoints.RANK}


def of_speculators(config: dict[str, Any]) -> dict[str, Any]:
    own = config["dflash_config"]
    return container(flat_fields(config) | {"dflash_config": own}) | {"speculators_model_type": "dspark"} | own


def deepseek(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A module behind the layers of its model."""
    names = {"token_layernorm": "enorm", "hidden_layernorm": "hnorm", "input_proj": "eh_proj", "final_layernorm": "shared_head.norm"}
    plain = {key.removeprefix("mtp_layers.0."): value for key, value in state.items()}
    for own, theirs in names.items():
        plain = {key.replace(own, theirs) if key.startswith(own) else key: value for key, value in plain.items()}
    copies = {"embed_tokens.weight": torch.zeros(tiny.VOCAB, 32), "shared_head.head.weight": torch.zeros(tiny.VOCAB, 32)}
    return {f"model.layers.2.{key}": value for key, value in (plain | copies).items()}


def qwen(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    names = {
        "token_layernorm": "pre_fc_norm_embedding",
        "hidden_layernorm": "pre_fc_norm_hidden",
        "input_proj": "fc",
        "final_layernorm": "norm",
    }
    out = {}
    for key, value in state.items():
        part, rest = key.removeprefix("mtp_layers.0.").split(".", 1)
        out[f"mtp.{names[part]}.{rest}" if part in names else f"mtp.layers.0.{part}.{rest}"] = value
    return out


def whole_config(config: dict[str, Any]) -> dict[str, Any]:
    return config["transformer_layer_config"] | {"architectures": ["MTPDraftModel"], "speculative_tokens": checkpoints.WIDTH}


def vllm(config: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "eagle", "model": config}


def hydra_head(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"hydra_head.{key}": value for key, value in state.items()} | {
        "hydra_head.prefix_embeding_layer.embed_tokens.weight": torch.ones(1)
    }


PUBLISHED = [
    ("dflare", angel, same),
    ("dspark-gated", deepspec, with_copies),
    ("dspark", of_speculators, same),
    ("mtp", same, qwen),
    ("mtp", whole_config, deepseek),
    ("eagle-1", vllm, same),
    ("hydra-prefix", same, hydra_head),
    ("block", flat_fields, same),
    ("block", container, same),
    ("block", same, prefixed),
    ("block", same, with_copies),
    ("eagle", container, layer_zero),
    ("eagle", same, layer_zero),
    ("eagle", same, prefixed),
    ("eagle", same, without_maps),
]


@pytest.mark.parametrize(("kind", "config", "state"), PUBLISHED, ids=lambda one: getattr(one, "__name__", one))
def test_publishers_forms_give_the_same_drafter(kind: str, config: Callable, state: Callable, tmp_path: Path, target: str) -> None:
    network = checkpoints.network_of(kind)
    told, weights = config(checkpoints.config_of(kind, network)), state(checkpoints.state_of(kind, network))
    drafters = [
        loaded(checkpoints.written(kind, tmp_path / name, *more), load_model(ModelSettings(name=target)))
        for name, more in (("usual", ()), ("theirs", (told, weights)))
    ]
    assert drafters[0].taps == drafters[1].taps == checkpoints.taps_of(kind)
    assert drafters[0].__dict__.keys() == drafters[1].__dict__.keys()
    first, second = (values_of(one._network) for one in drafters)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    if kind != "dspark":  # whose container begins with the anchor, the usual file does not
        assert drafters[0].most == drafters[1].most


def values_of(network: Any) -> dict[str, torch.Tensor]:
    """Parameters and packed weights by name."""
    packed = {name: module.packed.panels for name, module in network.named_modules() if isinstance(module, PackedLinear)}
    return dict(network.state_dict()) | packed


def test_a_model_brings_its_own_drafter(tmp_path: Path) -> None:
    """Its files hold a module behind its layers; only that is read, and its layer is one of the model's kind."""
    folder = Path(tiny.written(tmp_path / "x"))
    config = json.loads((folder / "config.json").read_text())
    network = MtpNetwork(Qwen3Config(**config))
    module = deepseek(checkpoints.state_of("mtp", network))
    save_file(load_file(folder / "model.safetensors") | module, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    running = load_model(ModelSettings(name=str(folder)))
    drafter = loaded(folder, running)
    assert (drafter.kind, drafter.taps) == ("eagle", (1,))
    hidden = torch.randn(3, 32)
    torch.testing.assert_close(drafter._network.fc(hidden.repeat(1, 2)), network.fc(hidden.repeat(1, 2)))


def test_rotary_frequencies_stay_exact(tmp_path: Path, target: str) -> None:
    """In bfloat16 a frequency is off by up to 0.4 %: far tokens would be turned to other places than they were trained for."""
    running = load_model(ModelSettings(name=target, dtype="bfloat16"))
    for kind in ("block", "eagle", "mtp", "hydra-prefix"):
        drafter = loaded(checkpoints.written(kind, tmp_path / kind), running)
        rotary = drafter._network.body.rotary_emb if kind == "block" else drafter._network.rotary_emb
        own = checkpoints.network_of(kind)
        assert torch.equal(rotary.inv_freq, (own.body if kind == "block" else own).rotary_emb.inv_freq)


def test_layers_that_eagle_reads_when_its_config_does_not_say(tmp_path: Path) -> None:
    """Its authors read the inputs of layers 2, L / 2 and L - 3; vLLM and its containers list those, others the outputs before them."""
    running = load_model(ModelSettings(name=tiny.written(tmp_path / "deep", layers=8)))
    network = checkpoints.network_of("eagle")
    config, state = checkpoints.config_of("eagle", network), checkpoints.state_of("eagle", network)
    del config["eagle_config"]
    for name, told in (("plain", config), ("container", {"speculators_model_type": "eagle3", "transformer_layer_config": config})):
        assert loaded(checkpoints.written("eagle", tmp_path / name, told, state), running).taps == (1, 3, 4)
    listed = {"speculators_model_type": "eagle3", "transformer_layer_config": config, "eagle_aux_hidden_state_layer_ids": [0, 2, 4]}
    with pytest.raises(SettingError, match="embeddings"):
        loaded(checkpoints.written("eagle", tmp_path / "odd", listed, state), running)


def test_pickled_weights_hold_tensors_alone(tmp_path: Path, running: TransformersModel) -> None:
    """Medusa's files are .pt: read as tensors, never as objects that could run something."""
    network = checkpoints.network_of("heads")
    folder = Path(checkpoints.written("heads", tmp_path / "h"))
    (folder / "model.safetensors").unlink()
    torch.save(checkpoints.state_of("heads", network), folder / "medusa_lm_head.pt")
    assert loaded(folder, running).most == checkpoints.HEADS
    torch.save({"0.0.linear.weight": Path("x")}, folder / "medusa_lm_head.pt")
    with pytest.raises(SettingError, match="cannot be read"):
        loaded(folder, running)


def test_a_part_of_the_vocabulary(tmp_path: Path, running: TransformersModel) -> None:
    """Offsets or tokens: the draft says the same; tokens that it cannot say have no chance; maps that disagree are refused."""
    network = checkpoints.network_of("eagle")
    config, state = checkpoints.config_of("eagle", network), checkpoints.state_of("eagle", network)
    can_say = torch.tensor([token for token in range(tiny.VOCAB) if token % 3])
    t2d = torch.zeros(tiny.VOCAB, dtype=torch.bool).index_fill_(0, can_say, True)
    state |= {"lm_head.weight": state["lm_head.weight"][can_say], "t2d": t2d}
    config["draft_vocab_size"] = len(can_say)
    offsets = can_say - torch.arange(len(can_say))
    hidden = torch.randn(4, 32)
    said = [
        loaded(checkpoints.written("eagle", tmp_path / name, config, state | {"d2t": d2t}), running)._network.said(hidden)
        for name, d2t in (("offsets", offsets), ("tokens", can_say))
    ]
    assert torch.equal(*said)
    assert (said[0] > -torch.inf).all(0).nonzero()[:, 0].tolist() == can_say.tolist()
    with pytest.raises(SettingError, match="do not agree"):
        loaded(checkpoints.written("eagle", tmp_path / "odd", config, state | {"d2t": can_say.flip(0) * 0}), running)


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("block", {"hidden_size": 64}, "hidden_size 64, the target 32; it was made for another model"),
        ("block", {"vocab_size": 100}, "vocab_size 100"),
        ("eagle", {"vocab_size": 100}, "vocab_size 100"),
        ("eagle", {"fc_norm": True}, "3 weights are missing, such as .*fc_norm"),
        ("eagle", {"norm_output": False}, "norm_output=false"),
        ("dspark", {"dflash_config": {"markov_head_type": "odd", "target_layer_ids": [0, 1], "mask_token_id": 1}}, "'odd' is unknown"),
        ("hydra", {"hydra_head_arch": "cross-attn"}, "cross-attn"),
        ("mtp", {"transformer_layer_config": {"hidden_size": 64}}, "hidden_size 64"),
        ("p-eagle", {"mask_token_id": None}, "lacks 'mask_token_id'"),
        ("block", {"block_size": None}, "block_size"),
        ("block", {"dflash_config": {"target_layer_ids": [0, 7], "mask_token_id": 1}}, "layer 7 of .* is wanted"),
    ],
    ids=str,
)
def test_what_is_for_another_target_is_refused(
    kind: str, change: dict[str, Any], says: str, tmp_path: Path, running: TransformersModel
) -> None:
    network = checkpoints.network_of(kind)
    config = checkpoints.config_of(kind, network) | change
    config = {key: value for key, value in config.items() if value is not None}
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(checkpoints.state_of(kind, network), folder / "model.safetensors")
    with pytest.raises(SettingError, match=says):
        loaded(folder, running)


DAMAGED: list[tuple[str, dict[str, Any], str]] = [
    ("block", {"block_size": "abc"}, "makes no network: invalid literal"),
    ("block", {"block_size": 1}, "says 0 tokens at most"),
    ("block", {"block_size": -3}, "says -4 tokens at most"),
    ("block", {"dflash_config": {"target_layer_ids": None, "mask_token_id": 1}}, "makes no network"),
    ("block", {"dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": 1000}}, "mask_token_id 1000 is no token of 96"),
    ("block", {"dflash_config": {"target_layer_ids": [0, 1], "mask_token_id": -1}}, "mask_token_id -1"),
    ("block", {"dflash_config": [1]}, "dflash_config is"),
    ("block", {"hidden_size": "32"}, "makes no network"),
    ("block", {"num_attention_heads": 0}, "makes no network"),
    ("block", {"architectures": ["DominoDraftModel"]}, "missing, such as .*gru_state"),
    ("block", {"architectures": ["Qwen3DFlyModel"]}, "missing"),
    ("block", {"markov_rank": 8}, "missing, such as .*markov_w1"),
    ("block", {"enable_confidence_head": True}, "missing, such as .*confidence"),
    ("block", {"speculators_model_type": "dspark"}, "missing, such as .*markov_w1"),
    ("eagle", {"draft_vocab_size": -1}, "makes no network"),
    ("eagle", {"num_hidden_layers": 0}, "num_hidden_layers 0"),
    ("eagle", {"eagle_config": "x"}, "makes no network"),
    ("eagle", {"speculative_tokens": "many"}, "makes no network"),
    ("heads", {"medusa_num_layers": "x"}, "makes no network"),
]


@pytest.mark.parametrize(("form", "change", "says"), DAMAGED, ids=[f"{form} {change}" for form, change, _ in DAMAGED])
def test_a_config_that_makes_no_drafter_is_named(form: str, change: dict[str, Any], says: str, tmp_path: Path, running: Any) -> None:
    network = checkpoints.network_of(form)
    config, state = checkpoints.config_of(form, network), checkpoints.state_of(form, network)
    with pytest.raises(SettingError, match=says):
        loaded(checkpoints.written(form, tmp_path / "x", config | change, state), running)


@pytest.mark.parametrize(("name", "text"), [("probe.json", "{"), ("probe.json", "{}"), ("config.json", "{"), ("config.json", "[]")])
def test_files_that_are_no_json_are_named(name: str, text: str, tmp_path: Path, running: TransformersModel) -> None:
    folder = checkpoints.written("block", tmp_path / "x")
    (Path(folder) / name).write_text(text)
    with pytest.raises(SettingError, match=name):
        loaded(folder, running)
