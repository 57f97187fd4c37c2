"""Recipe: on-policy uniform training (OPUT), which teaches a model to correct its own guesses. DMax (arXiv 2604.08302).

Most of an answer is hidden; in some documents the hidden places hold what the model itself guesses for them in one forward. Either way
the loss asks for the clean token there, so a filled position that is wrong is seen as wrong. Groups of blocks as in multi_block.py.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.jobs.train.block import denoise, denoised
from drawloom.jobs.train.data import Packed
from drawloom.jobs.train.loop import Loss
from drawloom.jobs.train.noise import blocks_with_answers, grouped, hidden_at, hide, layout
from drawloom.jobs.train.settings import OnPolicySettings


def train(settings: OnPolicySettings) -> None:
    denoise(settings, loss_with)


def loss_with(settings: OnPolicySettings, mask_token: int) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Mean cross entropy at the hidden positions of two views, masked or filled with guesses."""
        whole = blocks_with_answers(batch, settings.block)
        views = []
        for number in range(2):
            view, _, _ = grouped(whole, layout(whole, settings.most, settings.random_layouts, generator), number)
            level = torch.full(whole.clean.shape, settings.masked)
            views.append((hide(whole, hidden_at(whole, level, generator), mask_token), view))
        with torch.no_grad():
            guessed = (
                denoised(trainee, batch, settings.block, views)[0].index_fill(-1, _one(mask_token, trainee), -torch.inf).argmax(-1).cpu()
            )
        filled = torch.cat([part.tokens for part, _ in views], 1)
        filled[torch.cat([part.wanted for part, _ in views], 1)] = guessed
        flagged = torch.rand(len(filled), int(batch.document.max()) + 1, generator=generator) < settings.fed_back
        again = []
        for (part, view), fill in zip(views, filled.split(whole.clean.shape[1], 1), strict=True):
            use = part.wanted & flagged.gather(1, part.document.clamp(min=0))
            again.append((replace(part, tokens=torch.where(use, fill, part.tokens)), view))
        logits, targets = denoised(trainee, batch, settings.block, again)
        return F.cross_entropy(logits, targets)

    return loss


def _one(token: int, trainee: nn.Module) -> Tensor:
    return torch.tensor([token], device=next(trainee.parameters()).device)
