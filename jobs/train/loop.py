"""The training loop that all recipes share: optimizer, schedule, logs, checkpoints, resume. A recipe gives it a loss."""

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
from torch.optim import AdamW

from drawloom.errors import SettingError
from drawloom.jobs.folders import made
from drawloom.jobs.train.data import Packed
from drawloom.jobs.train.lora import save_adapter
from drawloom.jobs.train.settings import TrainSettings
from drawloom.jobs.train.visibility import View, mask_for
from drawloom.jobs.train.workers import average, rank, share

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
    optimizer = make_optimizer(trainee, settings)
    folder = made(Path(settings.output))
    if not rank():
        (folder / SETTINGS).write_text(_identity(settings))  # only now: a run that was refused takes no folder
    first = _resume(folder, settings, trainee, optimizer)
    precision = nullcontext() if settings.precision == "float32" else torch.autocast(settings.device, getattr(torch, settings.precision))
    started, tokens, losses = time.perf_counter(), 0, []
    for step, batch in enumerate(islice(share(source, settings), first, settings.steps), first):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * schedule(step, settings)
        with precision:
            loss = loss_of(trainee, batch, noise_of(step, settings))
        loss.backward()
        average(trainee, settings)
        norm = nn.utils.clip_grad_norm_(trainee.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens, losses = tokens + int((batch.document >= 0).sum()), [*losses, loss.item()]
        if (step + 1) % settings.log_every == 0 or step + 1 == settings.steps:
            passed = time.perf_counter() - started
            record = {"step": step + 1, "loss": sum(losses) / len(losses), "norm": float(norm), "tokens_per_s": round(tokens / passed)}
            _log(folder, {**record, "seconds": round(passed, 1)})
            started, tokens, losses = time.perf_counter(), 0, []
        if (step + 1) % settings.save_every == 0 or step + 1 == settings.steps:
            _save(folder, step + 1, trainee, optimizer)


def make_optimizer(trainee: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """AdamW; matrices decay, norms and biases do not."""
    live = [weight for weight in trainee.parameters() if weight.requires_grad]
    groups = [
        {"params": [weight for weight in live if weight.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [weight for weight in live if weight.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW([group for group in groups if group["params"]], lr=settings.learning_rate, betas=(0.9, 0.95), fused=True)


def noise_of(step: int, settings: TrainSettings) -> Generator:
    """The noise of a step, another one for every worker."""
    return Generator().manual_seed((settings.seed * 1_000_003 + step) * settings.workers + rank())


def schedule(step: int, settings: TrainSettings) -> float:
    """Share of the peak learning rate: a linear rise, then half a cosine down to nothing."""
    rise = max(1, round(settings.warmup * settings.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, settings.steps - rise)))


def _log(folder: Path, record: dict[str, Any]) -> None:
    if rank():
        return
    print(json.dumps(record), flush=True)
    with (folder / LOG).open("a") as file:
        file.write(json.dumps(record) + "\n")


def _save(folder: Path, step: int, trainee: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One file, replaced whole: a run that is killed while it saves resumes from the one before."""
    if rank():
        return
    state = {"step": step, "weights": trainee.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / f"{STATE}.tmp")
    (folder / f"{STATE}.tmp").replace(folder / f"{STATE}.pt")


def is_done(settings: TrainSettings) -> bool:
    """Whether settings.output holds the finished run already. Raises SettingError when it holds one with other settings."""
    folder = made(Path(settings.output))
    told = folder / SETTINGS
    if told.exists() and told.read_text() != _identity(settings):
        raise SettingError(f"{folder} holds a training run with other settings ({told}); choose another output, or remove it")
    return told.exists() and (folder / "config.json").exists()


def _identity(settings: TrainSettings) -> str:
    return settings.model_dump_json(exclude={"threads", "log_every", "save_every"})


def _resume(folder: Path, settings: TrainSettings, trainee: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step to go on from."""
    if not (folder / f"{STATE}.pt").exists():
        return 0
    state = torch.load(folder / f"{STATE}.pt", map_location=settings.device, weights_only=True)
    trainee.load_state_dict(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def finish(settings: TrainSettings, network: Any, tokenizer: Any) -> None:
    """Write the checkpoint in bfloat16 and drop the training state."""
    if rank():
        return
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
