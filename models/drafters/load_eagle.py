"""Checkpoints of EAGLE in its versions, of P-EAGLE, and of multi-token prediction modules.

Publishers: SafeAILab, SpecForge, AngelSlim, NVIDIA, vLLM, AngelSpec, and `speculators`' container. Lists of layers mean what their
publisher means: the container and vLLM list the layers whose inputs are read, all others those whose outputs are.
"""

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from drawloom.errors import SettingError
from drawloom.models.drafters.eagle import EagleDrafter, EagleNetwork, EagleOptions, FirstEagleNetwork, ParallelEagleDrafter
from drawloom.models.drafters.load_block import before
from drawloom.models.drafters.mtp import MtpNetwork
from drawloom.models.drafters.vocabulary import offsets
from drawloom.models.drafters.weights import State, fill, place, renamed, same
from drawloom.models.transformer import TransformersModel

TOKENS = 5  # of a draft, where the checkpoint does not say
MODULES = {"llama": LlamaConfig, "mistral": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
MTP_NAMES = {
    # speculators; Qwen3.5; DeepSeek and AngelSpec
    "mtp_layers.0.token_layernorm.": "token_norm.", "mtp_layers.0.hidden_layernorm.": "hidden_norm.", "mtp_layers.0.input_proj.": "fc.",
    "mtp_layers.0.final_layernorm.": "norm.", "mtp_layers.0.": "layer.",
    "mtp.pre_fc_norm_embedding.": "token_norm.", "mtp.pre_fc_norm_hidden.": "hidden_norm.", "mtp.fc.": "fc.", "mtp.norm.": "norm.",
    "mtp.layers.0.": "layer.",
    "enorm.": "token_norm.", "hnorm.": "hidden_norm.", "eh_proj.": "fc.", "shared_head.norm.": "norm.", "final_layernorm.": "norm.",
}  # fmt: skip
MTP_COPIES = ("embed_tokens.", "lm_head.", "shared_head.head.", "t2d", "d2t")


def load_eagle(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> EagleDrafter | ParallelEagleDrafter:
    """EAGLE-3, 3.1 or P-EAGLE. Raises SettingError when the weights are not those that the config describes."""
    inner = told.get("transformer_layer_config") or told
    config = LlamaConfig(**{**inner, "vocab_size": told.get("vocab_size") or inner.get("vocab_size") or target.info.vocab_size})
    same("vocab_size", name, config.vocab_size, target.info.vocab_size)
    taps, container = _taps(name, told, target.num_layers), "speculators_model_type" in told
    if not container and told.get("norm_output") is False:
        raise SettingError(f"drafter {name!r}: norm_output=false (a head on unnormed states) is not supported; take one with a norm there")
    parallel = "mask_hidden" in state
    options = EagleOptions(
        num_taps=len(taps),
        norm_before_residual=bool(told.get("norm_before_residual")),
        own_embeddings="embed_tokens.weight" in state,
        norm_before_fc=bool(told.get("norm_before_fc")),
        fc_norm=bool(told.get("fc_norm")),
        norm_output=container and bool(told.get("norm_output")),
        depth=config.num_hidden_layers,
        parallel=parallel,
    )
    if options.depth < 1:
        raise SettingError(f"drafter {name!r} has num_hidden_layers {options.depth}; at least 1 is needed")
    if not options.own_embeddings:
        same("hidden_size", name, config.hidden_size, target.hidden_size)
    network = EagleNetwork(config, options, target.hidden_size, int(told.get("draft_vocab_size") or config.vocab_size))
    state = {key: value for key, value in state.items() if not key.startswith("verifier_")}
    names = {"midlayer.": "midlayer.", "layers.0.": "midlayer."} | {f"layers.{n + 1}.": f"more.{n}." for n in range(options.depth - 1)}
    state = renamed(state, names)
    if network.lm_head.out_features == config.vocab_size:  # a whole vocabulary needs no map
        state = {"d2t": network.d2t, "t2d": network.t2d} | state
    if "d2t" in state:
        state["d2t"] = offsets(name, state["d2t"].long(), state.get("t2d"), config.vocab_size)
    fill(network, name, state)
    place(network, target.network)
    most = _tokens(told)
    if parallel:
        return ParallelEagleDrafter(network, name, taps, most, int(told["mask_token_id"]))
    return EagleDrafter(network, name, taps, most)


def load_first_eagle(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> EagleDrafter:
    """EAGLE-1 and 2, which read what stands before the target's head."""
    inner = told.get("model") if isinstance(told.get("model"), Mapping) else told
    config = LlamaConfig(**{**(inner or {}), "vocab_size": target.info.vocab_size})
    same("hidden_size", name, config.hidden_size, target.hidden_size)
    state = {key: value for key, value in state.items() if not key.startswith("lm_head.")}  # a copy of the target's
    own = "embed_tokens.weight" in state and state["embed_tokens.weight"].shape[0] == config.vocab_size
    network = FirstEagleNetwork(config, bias="fc.bias" in state, own_embeddings=own)
    fill(network, name, state)
    place(network, target.network)
    return EagleDrafter(network, name, (target.num_layers,), _tokens(told))


def load_mtp(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> EagleDrafter:
    """A multi-token prediction module whose layer is a plain one of the target's kind."""
    inner, family = told.get("transformer_layer_config") or told, str(target.network.config.model_type)
    if family not in MODULES:
        raise SettingError(f"drafter {name!r}: modules of family {family!r} are not supported; supported are {', '.join(sorted(MODULES))}")
    config = MODULES[family](**{**inner, "model_type": family})
    same("hidden_size", name, config.hidden_size, target.hidden_size)
    number = inner.get("num_hidden_layers")
    state = renamed(state, {f"layers.{number}.": ""})
    state = {key: value for key, value in state.items() if not key.startswith(MTP_COPIES)}
    network = MtpNetwork(config)
    fill(network, name, renamed(state, MTP_NAMES, "layer."))
    place(network, target.network)
    return EagleDrafter(network, name, (target.num_layers - 1,), _tokens(told))


def mtp_weight(num_layers: int, key: str) -> bool:
    """Whether a weight of a model's own files belongs to its multi-token prediction module."""
    return key.startswith(("mtp.", "mtp_layers.0.", f"layers.{num_layers}."))


def _taps(name: str, told: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    if "speculators_model_type" in told:
        return before(name, told.get("eagle_aux_hidden_state_layer_ids") or [2, layers // 2, layers - 3])
    listed = told.get("eagle_aux_hidden_state_layer_ids") or (told.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    return tuple(listed or (1, layers // 2 - 1, layers - 4))


def _tokens(told: Mapping[str, Any]) -> int:
    """Tokens of a draft, as the checkpoint says."""
    methods = (told.get("speculators_config") or {}).get("proposal_methods") or [{}]
    return int(told.get("speculative_tokens") or methods[0].get("speculative_tokens") or told.get("num_speculative_steps") or TOKENS)
