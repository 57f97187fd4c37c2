"""The training loop that all recipes share: optimizers, schedule, logs, checkpoints, resume. A recipe gives it a loss."""

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.optim import AdamW, Muon

from drawloom.errors import SettingError
from drawloom.jobs.train.data import Packed
from drawloom.jobs.train.lora import save_adapter
from drawloom.jobs.train.settings import TrainSettings
from drawloom.jobs.train.visibility import View, mask_for

STATE, LOG, SETTINGS = "training", "log.jsonl", "settings.json"


class Trainee(nn.Module):
    """A network as training sees it: own masks, logits only where they are wanted. What it is given may lie on the CPU."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, positions: Tensor, view: View, wanted: Tensor) -> Tensor:
        """tokens, positions [B, N]; who sees whom; wanted [B, N] bool -> logits [wanted.sum(), V] float32."""
        body, head, place = self.network.base_model, self.network.get_output_embeddings(), self.network.device
        mask = mask_for(view.to(place))
        out = body(input_ids=tokens.to(place), position_ids=positions.to(place), attention_mask=mask, use_cache=False)
        return head(out.last_hidden_state[wanted.to(place)]).float()


Loss = Callable[[nn.Module, Packed, Generator], Tensor]


def fit(settings: TrainSettings, network: Any, source: Iterator[Packed], loss_of: Loss) -> None:
    """Train for settings.steps steps, from the last checkpoint in settings.output if there is one. Step k of a run sees the same batch and
    the same noise however often the run was broken off."""
    trainee = Trainee(network.to(settings.device).float().train())
    optimizers = make_optimizers(trainee, settings)
    folder = Path(settings.output)
    first = _resume(folder, settings, trainee, optimizers)
    precision = torch.autocast(settings.device, getattr(torch, settings.dtype)) if settings.dtype != "float32" else nullcontext()
    started, tokens, losses = time.perf_counter(), 0, []
    for step, batch in enumerate(islice(source, first, settings.steps), first):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * schedule(step, settings)
        with precision:
            loss = loss_of(trainee, batch, Generator().manual_seed(settings.seed * 1_000_003 + step))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(trainee.parameters(), settings.clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        tokens, losses = tokens + int((batch.document >= 0).sum()), [*losses, loss.item()]
        if (step + 1) % settings.log_every == 0 or step + 1 == settings.steps:
            passed = time.perf_counter() - started
            _log(folder, {"step": step + 1, "loss": sum(losses) / len(losses), "norm": float(norm), "tokens_per_s": round(tokens / passed)})
            started, tokens, losses = time.perf_counter(), 0, []
        if (step + 1) % settings.save_every == 0 or step + 1 == settings.steps:
            _save(folder, step + 1, trainee, optimizers)


def make_optimizers(trainee: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, norms, biases and adapters."""
    tables = {id(table.weight) for table in trainee.modules() if isinstance(table, nn.Embedding)}
    tables |= {id(trainee.network.get_output_embeddings().weight)}  # type: ignore[union-attr,operator]
    live = [weight for weight in trainee.parameters() if weight.requires_grad]
    matrices = [weight for weight in live if weight.dim() == 2 and id(weight) not in tables and not settings.lora_rank]
    rest = [weight for weight in live if not any(weight is matrix for matrix in matrices)]
    found: list[torch.optim.Optimizer] = [AdamW(rest, lr=settings.small_learning_rate, betas=(0.9, 0.95), weight_decay=0.0)]
    if matrices:
        found.append(Muon(matrices, lr=settings.learning_rate, weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"))
    for optimizer in found:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return found


def schedule(step: int, settings: TrainSettings) -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to nothing."""
    rise = max(1, round(settings.warmup * settings.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, settings.steps - rise)))


def _log(folder: Path, record: dict[str, Any]) -> None:
    print(json.dumps(record), flush=True)
    with (folder / LOG).open("a") as file:
        file.write(json.dumps(record) + "\n")


def _save(folder: Path, step: int, trainee: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """One file, replaced whole: a run that is killed while it saves resumes from the one before."""
    state = {"step": step, "weights": trainee.state_dict(), "optimizers": [one.state_dict() for one in optimizers]}
    torch.save(state, folder / f"{STATE}.tmp")
    (folder / f"{STATE}.tmp").replace(folder / f"{STATE}.pt")


def is_done(settings: TrainSettings) -> bool:
    """Whether settings.output holds the finished run already. Raises SettingError when it holds one with other settings."""
    folder = Path(settings.output)
    folder.mkdir(parents=True, exist_ok=True)
    own, told = settings.model_dump_json(exclude={"threads", "log_every", "save_every"}), folder / SETTINGS
    if told.exists() and told.read_text() != own:
        raise SettingError(f"{folder} holds a training run with other settings ({told}); choose another output, or remove it")
    told.write_text(own)
    return (folder / "config.json").exists()


def _resume(folder: Path, settings: TrainSettings, trainee: nn.Module, optimizers: list[torch.optim.Optimizer]) -> int:
    """The step to go on from."""
    if not (folder / f"{STATE}.pt").exists():
        return 0
    state = torch.load(folder / f"{STATE}.pt", map_location=settings.device, weights_only=True)
    trainee.load_state_dict(state["weights"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])


def finish(settings: TrainSettings, network: Any, tokenizer: Any) -> None:
    """Write the checkpoint in bfloat16 and drop the training state."""
    folder = Path(settings.output)
    tokenizer.save_pretrained(folder)
    network.config.dtype = torch.bfloat16
    if settings.lora_rank:
        base = Path(settings.base)
        named = os.path.relpath(base, folder) if base.is_dir() else settings.base
        save_adapter(network, settings.lora_rank, named, folder)
        network.config.save_pretrained(folder)
    else:
        network.to(torch.bfloat16).save_pretrained(folder)
    (folder / f"{STATE}.pt").unlink(missing_ok=True)
