"""What the recipes for drafters share: a target that stays as it is, its hidden states on a batch, and published files."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor

from drawloom.actors.build import build_text
from drawloom.errors import SettingError
from drawloom.jobs.generate import generate
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.train.data import Corpus, Packed, columns_of, read_corpus, read_outputs
from drawloom.jobs.train.settings import DrafterSettings
from drawloom.jobs.train.start import start
from drawloom.jobs.train.visibility import clean, mask_for
from drawloom.jobs.train.workers import rank
from drawloom.models.settings import ModelSettings


class Target:
    """A frozen network whose layers are read."""

    def __init__(self, settings: DrafterSettings) -> None:
        network: Any
        network, self.tokenizer = start(settings)
        self.network: Any = network.to(settings.device).float().eval().requires_grad_(False)
        self.config: Any = network.config
        self.embed: Any = self.network.get_input_embeddings()

    def taps(self, told: Sequence[int], usual: Sequence[int]) -> tuple[int, ...]:
        """Layers to read. Raises SettingError for one that is not there."""
        layers = tuple(told or sorted({max(0, layer) for layer in usual}))
        if wrong := [layer for layer in layers if layer >= self.config.num_hidden_layers]:
            raise SettingError(f"layers: {wrong[0]} is not one of the base's layers, 0 to {self.config.num_hidden_layers - 1}")
        return layers

    @torch.no_grad()
    def read(self, batch: Packed, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Outputs of the tapped layers side by side [B, L, T * C], and what the last norm gives [B, L, C]."""
        body, place, found = self.network.base_model, self.network.device, {}

        def keep(tap: int) -> Any:
            def hook(_module: Any, _inputs: Any, output: Any) -> None:
                found[tap] = output[0] if isinstance(output, tuple) else output

            return hook

        hooks = [body.layers[tap].register_forward_hook(keep(tap)) for tap in taps]
        try:
            mask = mask_for(clean(batch.document, batch.positions).to(place))
            out = body(input_ids=batch.tokens.to(place), position_ids=batch.positions.to(place), attention_mask=mask, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
        hidden = out.last_hidden_state
        return torch.cat([found[tap] for tap in taps], -1) if taps else hidden[..., :0], hidden

    @torch.no_grad()
    def chances(self, hidden: Tensor) -> Tensor:
        """Probabilities [..., V] of the next token."""
        return self.network.get_output_embeddings()(hidden).float().softmax(-1)


def shape_of(config: Any) -> dict[str, Any]:
    """What a drafter's layers have in common with those of its target."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    heads = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    own = {name: getattr(config, name) for name in (*names, "rms_norm_eps", "rope_parameters")}
    return {**own, "head_dim": heads}


def own_answers(settings: DrafterSettings, tokenizer: Any) -> Corpus:
    """Texts to learn from: rows with answers, the output of a finished job, or prompts alone, which the base then answers first.

    Raises SettingError when the data is none of these."""
    prompt = settings.prompt_column or "prompt"
    columns, data = columns_of(settings.data), settings.data
    if settings.answer_column in columns:
        return read_corpus(data, tokenizer, settings.prompt_column, settings.answer_column)
    if "samples" not in columns:
        data = f"{settings.output}/answers"
        job = {
            "input": settings.data,
            "output": data,
            "model": {"name": settings.base},
            "columns": {"prompt": prompt},
            "sampling": {"max_tokens": settings.answer_tokens, "temperature": 0.0},
        }
        generate(JobSettings.parse(job), Console())
    text = build_text(ModelSettings(name=settings.base))
    return read_outputs(data, text, tokenizer.eos_token_id, prompt)


def ahead(batch: Packed, steps: int) -> tuple[Tensor, Tensor]:
    """The token `steps` places on [B, L], and where that is one of the same document's answer [B, L] bool."""
    tokens, document, answer = (one.roll(-steps, 1) for one in (batch.tokens, batch.document, batch.answer))
    inside = torch.arange(tokens.shape[1]) < tokens.shape[1] - steps
    return tokens, (document == batch.document) & answer & inside & (batch.document >= 0)


def publish(settings: DrafterSettings, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> None:
    """Write a drafter as its format's publishers do, in bfloat16, and drop the training state."""
    if rank():
        return
    folder = Path(settings.output)
    rounded = {key: value.to(torch.bfloat16) if value.is_floating_point() else value for key, value in state.items()}
    save_file({key: value.contiguous().cpu() for key, value in rounded.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "training.pt").unlink(missing_ok=True)
