"""Checkpoints of block drafters. Publishers: z-lab, SpecForge, DeepSpec, AngelSlim, AngelSpec (flat fields), `speculators` (a container).

How a drafter fuses layers is told by its config; which corrections it has, by its weights.
"""

from collections.abc import Mapping
from typing import Any

from transformers import Qwen3Config

from drawloom.errors import SettingError
from drawloom.models.drafters.block import BlockDrafter, BlockNetwork, BlockOptions
from drawloom.models.drafters.corrections import Confidence, Gru, Hidden, Markov
from drawloom.models.drafters.vocabulary import offsets
from drawloom.models.drafters.weights import State, fill, place, renamed, same
from drawloom.models.transformer import TransformersModel

NAMES = {
    "fc.": "fusion.fc.", "context_proj.": "fusion.fc.", "hidden_norm.": "fusion.hidden_norm.", "context_norm.": "fusion.hidden_norm.",
    "layer_fusion_weights": "fusion.layer_fusion_weights", "final_norm.": "body.norm.", "lm_head.": "lm_head.", "d2t": "d2t",
    "markov_head.": "correction.", "hidden_correction.": "correction.", "confidence_head.": "confidence.",
    "prefix_gru.weight_ih_l0": "correction.gru_in.weight", "prefix_gru.weight_hh_l0": "correction.gru_state.weight",
    "embed_proj.0.": "correction.down.", "embed_proj.2.": "correction.up.",
}  # fmt: skip
COPIES = ("embed_tokens.", "verifier_norm.", "verifier_lm_head.")  # of the target's, in some files
ANCHORED = ("Qwen3DSparkModel",)  # architectures whose first row says a token, whatever else their config tells


def load_block(name: str, told: Mapping[str, Any], state: State, target: TransformersModel) -> BlockDrafter:
    """Raises SettingError when the weights are not those that the config describes, KeyError for a field that it lacks."""
    own = {**told, **(told.get("dflash_config") or {})}
    config = Qwen3Config(**(told.get("transformer_layer_config") or dict(told)))
    same("hidden_size", name, config.hidden_size, target.hidden_size)
    same("vocab_size", name, config.vocab_size, target.info.vocab_size)
    taps = taps_of(name, own)
    state = {key: value for key, value in state.items() if not key.startswith(COPIES)}
    said = 0 if state.get("d2t") is None else len(state["d2t"])
    if said:
        state["d2t"] = offsets(name, state["d2t"].long(), state.pop("t2d", None), config.vocab_size)
    else:
        state = {key: value for key, value in state.items() if not key.startswith(("lm_head.", "t2d"))}
    state = renamed(state, NAMES, "body.")
    correction = _correction(name, own, state, config, said or config.vocab_size)
    _as_told(name, told, own, state)
    looks_up = isinstance(correction, Markov) and bool(own.get("confidence_head_with_markov"))
    width = config.hidden_size + (correction.rank if looks_up and isinstance(correction, Markov) else 0)
    options = BlockOptions(
        fusion=_fusion(told),
        own_sides=_fusion(told) == "mixed",
        from_anchor=_anchored(told, own),
        confidence_reads_token=looks_up,
        said=said,
    )
    mask_token = int(own["mask_token_id"])
    if not 0 <= mask_token < config.vocab_size:
        raise SettingError(f"drafter {name!r}: its mask_token_id {mask_token} is no token of {config.vocab_size}")
    confidence = Confidence(width) if "confidence.proj.weight" in state else None
    network = BlockNetwork(config, target.hidden_size, len(taps), options, correction, confidence)
    fill(network, name, state)
    place(network, target.network)
    return BlockDrafter(network, target, name, taps, int(own["block_size"]), mask_token)


def taps_of(name: str, own: Mapping[str, Any]) -> tuple[int, ...]:
    """Layers of the target whose output is read. The container counts the embeddings as the first; the others count layers."""
    if "target_layer_ids" in own:
        return tuple(own["target_layer_ids"])
    return before(name, own["aux_hidden_state_layer_ids"])


def before(name: str, listed: list[int]) -> tuple[int, ...]:
    """The layers whose outputs are the inputs of those listed, as vLLM and `speculators` count."""
    if min(listed) < 1:
        raise SettingError(f"drafter {name!r} reads the target's embeddings (layer 0), which are not kept; take one that reads layers")
    return tuple(layer - 1 for layer in listed)


def _fusion(told: Mapping[str, Any]) -> str:
    """DFlare mixes layers and has matrices of its own for them; AngelSpec's says so in model_arch."""
    named = (told.get("architectures") or [""])[0]
    if named == "QwenDFlareDraftModel" or told.get("model_arch") == "dflare":
        return "mixed"
    return "joined and mixed" if named == "Qwen3DFlyModel" else "joined"


def _as_told(name: str, told: Mapping[str, Any], own: Mapping[str, Any], state: State) -> None:
    """Raise SettingError for a part that the config promises and the weights have not: without it the drafter would be another one."""
    named, container = (told.get("architectures") or [""])[0], told.get("speculators_model_type") == "dspark"
    promised = {
        "correction.gru_state.weight": named == "DominoDraftModel" or own.get("projector_type") == "domino",
        "correction.markov_w1.weight": bool(own.get("markov_rank", 256 if container else 0)),
        "correction.down_proj.weight": named == "Qwen3DFlyModel" and bool(own.get("enable_hidden_correction", True)),
        "confidence.proj.weight": bool(own.get("enable_confidence_head", container)),
    }
    if missing := [key for key, there in promised.items() if there and key not in state]:
        raise SettingError(f"drafter {name!r}: 1 weights are missing, such as {missing}; it is not of the format its config says")


def _anchored(told: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    if told.get("speculators_model_type") == "dspark":
        return bool(own.get("sample_from_anchor", True))
    shifted = own.get("projector_type") == "domino" and own.get("shift_label")
    return (told.get("architectures") or [""])[0] in ANCHORED or bool(own.get("sample_from_anchor") or shifted)


def _correction(name: str, own: Mapping[str, Any], state: State, config: Qwen3Config, said: int) -> Markov | Gru | Hidden | None:
    hidden = config.hidden_size
    if "correction.markov_w1.weight" in state:
        kind = str(own.get("markov_head_type", "vanilla"))
        if kind not in Markov.KINDS:
            raise SettingError(f"drafter {name!r}: markov_head_type {kind!r} is unknown; known are {', '.join(Markov.KINDS)}")
        return Markov(kind, hidden, state["correction.markov_w1.weight"].shape[1], config.vocab_size, said)
    if {"correction.gru_state.weight", "correction.down.weight"} <= state.keys():
        size, middle = state["correction.gru_state.weight"].shape[1], state["correction.down.weight"].shape[0]
        return Gru(hidden, size, middle, said, int(own.get("pure_draft_prefix_len", 0)))
    if "correction.down_proj.weight" in state:
        return Hidden(hidden, state["correction.down_proj.weight"].shape[1], config.rms_norm_eps)
    return None
