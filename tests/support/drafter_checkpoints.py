"""Random drafters for the networks of tiny.py, in the formats that publishers use, and what each would draft, from nothing."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tiny
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config

from drawloom.actors.build import load_draft
from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.drafting import Drafting
from drawloom.models.drafters.block import BlockNetwork, BlockOptions
from drawloom.models.drafters.corrections import Confidence, Gru, Hidden, Markov
from drawloom.models.drafters.eagle import EagleNetwork, EagleOptions, FirstEagleNetwork
from drawloom.models.drafters.heads import HeadsNetwork, HydraNetwork, HydraOptions
from drawloom.models.drafters.mtp import MtpNetwork
from drawloom.models.load import load_model
from drawloom.models.settings import ModelSettings

SHAPE: dict[str, Any] = {
    "vocab_size": tiny.VOCAB, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
BLOCK, HEADS, WIDTH, RANK, SAID = 6, 5, 4, 6, 50
FIRST = ("block", "eagle", "heads")  # one of each way to draft
DESCENDANTS = ("dflare", "dfly", "domino", "dspark", "dspark-gated", "dspark-rnn", "part", "p-eagle", "eagle-1", "eagle-3.1", "mtp")
DESCENDANTS += ("hydra", "hydra-prefix", "hydra-ungrounded")
FORMS = FIRST + DESCENDANTS
CORRECTED = ("dfly", "domino", "dspark", "dspark-gated", "dspark-rnn", "hydra", "hydra-prefix")
RECIPES = {"block": "dflash", "eagle": "eagle", "heads": "medusa"}


def kind_of(form: str) -> str:
    """How a form drafts."""
    if form.startswith(("hydra", "heads")):
        return "heads"
    return "eagle" if form in ("eagle", "eagle-1", "eagle-3.1", "mtp") else "block"


def taps_of(form: str) -> tuple[int, ...]:
    if kind_of(form) == "heads" or form == "eagle-1":
        return (2,)
    return (1,) if form == "mtp" else (0, 1, 0) if "eagle" in form else (0, 1)


def llama(**more: Any) -> LlamaConfig:
    return LlamaConfig(**SHAPE, **{"num_hidden_layers": 1, **more})


def blocks(options: BlockOptions | None = None, correction: Any = None, confidence: Any = None) -> BlockNetwork:
    return BlockNetwork(Qwen3Config(**SHAPE, num_hidden_layers=2, tie_word_embeddings=False), 32, 2, options, correction, confidence)


def dspark(kind: str) -> BlockNetwork:
    options = BlockOptions(from_anchor=kind != "vanilla", confidence_reads_token=True)
    return blocks(options, Markov(kind, 32, RANK, tiny.VOCAB, tiny.VOCAB), Confidence(32 + RANK))


MADE: dict[str, Callable[[], Any]] = {
    "block": blocks,
    "dflare": lambda: blocks(BlockOptions("mixed", own_sides=True)),
    "dfly": lambda: blocks(BlockOptions("joined and mixed"), Hidden(32, 20, 1e-6)),
    "domino": lambda: blocks(BlockOptions(from_anchor=True), Gru(32, 12, 10, tiny.VOCAB, 1)),
    "dspark": lambda: dspark("vanilla"),
    "dspark-gated": lambda: dspark("gated"),
    "dspark-rnn": lambda: dspark("rnn"),
    "part": lambda: blocks(BlockOptions(said=SAID)),
    "eagle": lambda: EagleNetwork(llama(), EagleOptions(), 32, tiny.VOCAB),
    "eagle-3.1": lambda: EagleNetwork(llama(), EagleOptions(fc_norm=True, norm_output=True), 32, tiny.VOCAB),
    "eagle-1": lambda: FirstEagleNetwork(llama(), bias=True, own_embeddings=True),
    "p-eagle": lambda: EagleNetwork(llama(num_hidden_layers=3), EagleOptions(depth=3, parallel=True), 32, tiny.VOCAB),
    "mtp": lambda: MtpNetwork(Qwen3Config(**SHAPE, num_hidden_layers=2)),
    "heads": lambda: HeadsNetwork(HEADS, 1, 32, tiny.VOCAB),
    "hydra": lambda: HydraNetwork(Qwen3Config(**SHAPE), HydraOptions(HEADS, 2)),
    "hydra-prefix": lambda: HydraNetwork(Qwen3Config(**{**SHAPE, "intermediate_size": 48}), HydraOptions(HEADS, 2, prefix=True)),
    "hydra-ungrounded": lambda: HydraNetwork(Qwen3Config(**SHAPE), HydraOptions(HEADS, 1, grounded=False)),
}


def network_of(form: str, seed: int = 0) -> Any:
    """Random weights of a form."""
    torch.manual_seed(100 + seed)
    network: Any = MADE[form]()
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1 or "norm" not in name:
                weight.normal_(0, 1.0 if "fusion_weights" in name or "mask_hidden" in name or "embed" in name else 0.35)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    if form == "part":
        network.d2t.copy_(said() - torch.arange(SAID))
    return network.eval()


def said() -> Tensor:
    """The tokens that the form "part" can say, in order."""
    return torch.arange(tiny.VOCAB)[torch.arange(tiny.VOCAB) % 2 == 0][:SAID] if 2 * SAID <= tiny.VOCAB else torch.arange(SAID) + 20


BLOCK_CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "block": ("DFlashDraftModel", {}),
    "part": ("DFlashDraftModel", {}),
    "dflare": ("QwenDFlareDraftModel", {}),
    "dfly": ("Qwen3DFlyModel", {}),
    "domino": ("DominoDraftModel", {"projector_type": "domino", "shift_label": True, "pure_draft_prefix_len": 1}),
    "dspark": ("DSparkDraftModel", {"projector_type": "dspark", "confidence_head_with_markov": True, "markov_rank": RANK}),
    "dspark-gated": ("Qwen3DSparkModel", {"markov_head_type": "gated", "confidence_head_with_markov": True}),
    "dspark-rnn": ("DSparkDraftModel", {"markov_head_type": "rnn", "confidence_head_with_markov": True, "sample_from_anchor": True}),
}


def config_of(form: str, network: Any) -> dict[str, Any]:
    """config.json as its publisher writes it."""
    if form in BLOCK_CONFIGS:
        named, more = BLOCK_CONFIGS[form]
        own = {"mask_token_id": tiny.MASK, "target_layer_ids": list(taps_of(form)), **more}
        return {**network.config.to_dict(), "architectures": [named], "block_size": BLOCK, "dflash_config": own}
    if form.startswith("hydra"):
        arch, options = "prefix-mlp" if network.options.prefix else "mlp", network.options
        return {
            "hydra_num_heads": HEADS,
            "hydra_num_layers": options.num_layers,
            "hydra_head_arch": arch,
            "grounded_heads": options.grounded,
        }
    if form == "heads":
        return {"medusa_num_heads": HEADS, "medusa_num_layers": 1}
    if form == "eagle-1":
        return {**network.config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    if form == "mtp":
        inner = network.config.to_dict()
        return {"speculators_model_type": "mtp", "transformer_layer_config": inner, "num_speculative_steps": WIDTH}
    listed, own = list(taps_of(form)), {"draft_vocab_size": len(network.d2t)}
    if form == "eagle-3.1":
        layers = {"eagle_aux_hidden_state_layer_ids": [tap + 1 for tap in listed], "fc_norm": True, "norm_output": True}
        return {"speculators_model_type": "eagle3", "transformer_layer_config": network.config.to_dict(), **layers, **own}
    own |= {"eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": listed}}
    named = {"architectures": ["PEagleDraftModel" if form == "p-eagle" else "LlamaForCausalLMEagle3"], "mask_token_id": tiny.MASK}
    return {**network.config.to_dict(), **named, **own, "norm_before_residual": network.options.norm_before_residual}


PUBLISHED: dict[str, dict[str, str]] = {  # our names, and the publisher's
    "block": {"fusion.": "", "body.": ""},
    "dfly": {
        "fusion.fc": "context_proj", "fusion.hidden_norm": "context_norm", "body.norm": "final_norm", "correction": "hidden_correction",
    },
    "domino": {
        "correction.gru_in.weight": "prefix_gru.weight_ih_l0", "correction.gru_state.weight": "prefix_gru.weight_hh_l0",
        "correction.down": "embed_proj.0", "correction.up": "embed_proj.2",
    },
    "dspark": {"correction": "markov_head", "confidence": "confidence_head"},
    "eagle-3.1": {"midlayer": "layers.0"},
    "p-eagle": {"midlayer": "layers.0", "more.0": "layers.1", "more.1": "layers.2"},
    "mtp": {
        "token_norm": "mtp_layers.0.token_layernorm", "hidden_norm": "mtp_layers.0.hidden_layernorm", "fc": "mtp_layers.0.input_proj",
        "norm": "mtp_layers.0.final_layernorm", "layer": "mtp_layers.0",
    },
    "heads": {"heads.": ""},
    "hydra-prefix": {"layer": "prefix_embeding_layer.layers.0", "norm": "prefix_embeding_layer.norm"},
}  # fmt: skip


def state_of(form: str, network: Any) -> dict[str, Tensor]:
    """Weights under published names."""
    names = PUBLISHED.get(form.split("-")[0] if form.startswith("dspark") else form, {})
    names |= PUBLISHED["block"] if form in BLOCK_CONFIGS else {}
    state = {}
    for key, value in network.state_dict().items():
        found = next((own for own in names if key.startswith(own)), "")
        named = names.get(found, "") + key.removeprefix(found)
        parts = named.split(".")
        if form == "hydra-prefix" and parts[0] == "hydra_mlp":  # every module stands behind a dropout
            named = ".".join([*parts[:2], str(2 * int(parts[2]) + 1), *parts[3:]])
        elif form == "hydra-prefix" and parts[0] == "hydra_lm_head":
            named = ".".join([*parts[:2], "1", *parts[2:]])
        state[named] = value.clone().contiguous()
    return state


def written(form: str, folder: Path, config: dict[str, Any] | None = None, state: dict[str, Tensor] | None = None, seed: int = 0) -> str:
    network = network_of(form, seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or config_of(form, network)))
    save_file(state or state_of(form, network), folder / "model.safetensors")
    return str(folder)


def engine_of(target: str, drafter: str, form: str, **settings: Any) -> Engine:
    model = load_model(ModelSettings(name=target))
    asked = Drafting(drafter, WIDTH, 0.0, coupled=True, laws=False, kind=kind_of(form))
    draft = load_draft(asked, ModelSettings(name=target), model)
    return Engine(model, tiny.Nothing(), EngineSettings(**{"num_pages": 400, "page_tokens": 4, **settings}), drafts={drafter: draft})


class Naive:
    """What a drafter says of a text at temperature 0: the target and the drafter from nothing, in plain torch."""

    def __init__(self, form: str, target: Any, network: Any) -> None:
        self.form, self.target, self.network = form, target, network
        self.embed, self.head = target.get_input_embeddings(), target.get_output_embeddings()

    @torch.no_grad()
    def draft(self, text: Sequence[int], width: int) -> list[int]:
        """The `width` tokens behind a text, whose last token the target has not read."""
        told = torch.cat([self._layer(tap, text[:-1]) for tap in taps_of(self.form)], -1)
        if self.form == "heads":
            return self.network(told[0, -1])[:width].argmax(-1).tolist()
        if self.form.startswith("hydra"):
            return self._hydra(told, text, width)
        if self.form == "p-eagle":
            return self._parallel(told, text, width)
        return self._serial(told, text, width) if kind_of(self.form) == "eagle" else self._block(told, text, width)

    def _layer(self, tap: int, tokens: Sequence[int]) -> Tensor:
        """[1, N, C]: what a layer puts out, or the norm behind the last one."""
        found: list[Any] = []
        body = self.target.model
        module = body.norm if tap == len(body.layers) else body.layers[tap]
        hook = module.register_forward_hook(lambda _m, _i, out: found.append(out))
        self.target(torch.tensor([list(tokens)]), use_cache=False)
        hook.remove()
        return found[0][0] if isinstance(found[0], tuple) else found[0]

    def _block(self, features: Tensor, text: Sequence[int], width: int) -> list[int]:
        skip = 0 if self.network.options.from_anchor else 1
        rows, before = width + skip, len(text) - 1
        embedded = self.embed(torch.tensor([[text[-1], *[tiny.MASK] * (rows - 1)]]))
        mask = torch.ones(1, 1, rows, before + rows, dtype=torch.bool)
        hidden = self.network(features, embedded, torch.arange(before + rows)[None], mask)[0, skip:]
        if self.form == "part":
            whole = torch.full((width, tiny.VOCAB), -torch.inf)
            whole[:, said()] = self.network.lm_head(hidden)
            return whole.argmax(-1).tolist()
        drafted: list[int] = []
        self.chances = []  # of each place, as a confidence head says
        for place in range(width):
            if self.network.confidence is not None:
                proj, previous = self.network.confidence.proj, self.network.correction.markov_w1.weight[[text[-1], *drafted][-1]]
                self.chances.append(float(torch.sigmoid(proj(torch.cat([hidden[place], previous])))))
            drafted.append(int(self._corrected(hidden, [text[-1], *drafted], place).argmax()))
        return drafted

    def _corrected(self, hidden: Tensor, tokens: list[int], place: int) -> Tensor:
        """Logits [V] of a place behind the block's tokens before it, from the formulas of the papers."""
        own, here = self.network.correction, hidden[place]
        if isinstance(own, Hidden):
            both = torch.cat([own.hidden_norm(here), own.embed_norm(self.embed(torch.tensor(tokens[-1])))])
            gate, up, down = own.gate_proj.weight, own.up_proj.weight, own.down_proj.weight
            return self.head(here + down @ (nn.functional.silu(gate @ both) * (up @ both)))
        logits = self.head(here)
        if isinstance(own, Gru) and place >= 1:
            unit = nn.GRU(32, own.size, bias=False)
            unit.weight_ih_l0.data, unit.weight_hh_l0.data = own.gru_in.weight, own.gru_state.weight
            state = unit(self.embed(torch.tensor(tokens)))[0][-1]
            return logits + own.up.weight @ nn.functional.silu(own.down.weight @ torch.cat([here, state]))
        if isinstance(own, Markov):
            previous = own.markov_w1(torch.tensor(tokens))
            if own.kind == "vanilla":
                return logits + own.markov_w2.weight @ previous[-1]
            if own.kind == "gated":
                gate = torch.sigmoid(own.gate_proj(torch.cat([here, previous[-1]])))
                return logits + own.markov_w2.weight @ (gate * previous[-1])
            state, out = torch.zeros(RANK), torch.zeros(RANK)
            for number, one in enumerate(previous):
                keep, fresh, out = own.joint_proj(torch.cat([state, one, hidden[number]])).chunk(3)
                state = keep.sigmoid() * state + (1 - keep.sigmoid()) * fresh.tanh()
            return logits + own.markov_w2.weight @ out.tanh()
        return logits

    def _hydra(self, features: Tensor, text: Sequence[int], width: int) -> list[int]:
        network, drafted = self.network, []
        base = features[0, -1]
        if network.options.prefix:
            angles = self._angles(features.shape[1])
            base = network.norm(network.layer(features, angles, causal))[0, -1]
        for head in range(width):
            told = self.embed(torch.tensor([text[-1], *drafted])).flatten()
            x = torch.cat([base, told]) if network.options.grounded else base
            for block in network.hydra_mlp[head]:
                x = block.res_connection(x) + nn.functional.silu(block.linear(x))
            drafted.append(int(network.hydra_lm_head[head](x).argmax()))
        return drafted

    def _serial(self, features: Tensor, text: Sequence[int], width: int) -> list[int]:
        hidden, tokens = self.network.enter(features), list(text[1:])
        for _ in range(width):
            carried, normed = self._run(self._embedded(tokens), hidden)
            tokens.append(int(self._said(normed[0, -1]).argmax()))
            hidden = torch.cat([hidden, carried[:, -1:]], 1)
        return tokens[-width:]

    def _parallel(self, features: Tensor, text: Sequence[int], width: int) -> list[int]:
        masks = self.network.mask_hidden.expand(-1, width - 1, -1)
        hidden = self.network.enter(torch.cat([features, masks], 1))
        _, normed = self._run(self._embedded([*text[1:], *[tiny.MASK] * (width - 1)]), hidden)
        return self._said(normed[0, -width:]).argmax(-1).tolist()

    def _embedded(self, tokens: list[int]) -> Tensor:
        return (self.network.embed_tokens if self.network.options.own_embeddings else self.embed)(torch.tensor([tokens]))

    def _said(self, normed: Tensor) -> Tensor:
        return self.network.lm_head(normed) if hasattr(self.network, "lm_head") else self.head(normed)

    def _angles(self, count: int) -> Any:
        return self.network.rotary_emb(torch.zeros(1, 1, 32), torch.arange(count)[None])

    def _run(self, embedded: Tensor, hidden: Tensor) -> Any:
        return self.network(embedded, hidden, self._angles(embedded.shape[1]), [causal] * len(self.network.layers))


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)
