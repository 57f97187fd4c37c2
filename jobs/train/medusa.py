"""Recipe: heads on a target's last hidden state, each for one place further on (Medusa-1, arXiv 2401.10774).

`data`: the target's own answers, as the output folder of a finished job or as rows; or prompts, which the target answers first.
"""

import math
import os
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.errors import SettingError
from drawloom.jobs.train.data import Packed, batches
from drawloom.jobs.train.features import Target, ahead, own_answers, publish
from drawloom.jobs.train.loop import Loss, fit
from drawloom.jobs.train.settings import MedusaSettings
from drawloom.models.drafters.heads import HeadsNetwork


def train(settings: MedusaSettings) -> None:
    if settings.layers:
        raise SettingError("layers: Medusa's heads read what stands behind the last norm; leave it out")
    target = Target(settings)
    config = target.config
    network = HeadsNetwork(settings.heads, 1, config.hidden_size, config.vocab_size)
    for head in network.heads:  # a head begins as the target's own, behind a block that changes nothing
        inner: Any = head
        nn.init.zeros_(inner[0].linear.weight)
        nn.init.zeros_(inner[0].linear.bias)
        inner[-1].weight.data.copy_(target.network.get_output_embeddings().weight)
    corpus = own_answers(settings, target.tokenizer)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, target.tokenizer.eos_token_id)
    fit(settings, network, source, loss_with(settings, target))
    base = os.path.relpath(settings.base, settings.output) if Path(settings.base).is_dir() else settings.base
    told = {"medusa_num_heads": settings.heads, "medusa_num_layers": 1, "base_model_name_or_path": base, "version": "2"}
    publish(settings, told, {key.removeprefix("heads."): value for key, value in network.state_dict().items()})


def loss_with(settings: MedusaSettings, target: Target) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Cross entropy of the token k + 1 places behind the next one for head k = 1, 2, ..., weighing exp(-k / decay)."""
        network: Any = trainee.network
        _, hidden = target.read(batch, ())
        total = hidden.new_zeros(())
        for number, head in enumerate(network.heads, 1):
            tokens, wanted = (one.to(hidden.device) for one in ahead(batch, number + 1))
            total = total + math.exp(-number / settings.decay) * F.cross_entropy(head(hidden[wanted]).float(), tokens[wanted])
        return total

    return loss
