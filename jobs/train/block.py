"""Recipe: block diffusion from an autoregressive or block-diffusion base.

[clean ; noisy ; its complement]: each answer token is hidden in exactly one of the two noisy views, so every token teaches once a step.
No shift: a masked position predicts itself. BD3-LM (arXiv 2503.09573); complementary masks after Fast-dLLM v2 (arXiv 2509.26328).
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.jobs.train.data import Packed, batches, read_corpus
from drawloom.jobs.train.loop import Loss, finish, fit
from drawloom.jobs.train.noise import Noisy, blocks_with_answers, hidden_at, hide, single_blocks
from drawloom.jobs.train.settings import BlockSettings
from drawloom.jobs.train.start import mark_diffusion, mask_token_of, start
from drawloom.jobs.train.visibility import View, clean, join


def train(settings: BlockSettings) -> None:
    denoise(settings, loss_with)


def denoise(settings: Any, loss_of: Callable[[Any, int], Loss]) -> None:
    """What every block-diffusion recipe does around its loss. loss_of: settings, mask token -> loss."""
    network, tokenizer = start(settings)
    mask_token = mask_token_of(tokenizer, settings.base)
    corpus = read_corpus(settings.data, tokenizer, settings.prompt_column, settings.answer_column)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, tokenizer.eos_token_id, settings.block)
    mark_diffusion(network.config, mask_token, settings.block)
    fit(settings, network, source, loss_of(settings, mask_token))
    finish(settings, network, tokenizer)


def loss_with(settings: BlockSettings, mask_token: int) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Mean cross entropy over all answer tokens, the noise level of each block drawn from U(0, 1)."""
        whole = blocks_with_answers(batch, settings.block)
        level = torch.rand(whole.clean.shape, generator=generator).gather(1, whole.ordinal)
        hidden = hidden_at(whole, level, generator)
        views = [(hide(whole, hidden, mask_token), single_blocks(whole, 0)), (hide(whole, ~hidden, mask_token), single_blocks(whole, 1))]
        logits, targets = denoised(trainee, batch, settings.block, views)
        return F.cross_entropy(logits, targets)

    return loss


def denoised(trainee: nn.Module, batch: Packed, block: int, views: list[tuple[Noisy, View]]) -> tuple[Tensor, Tensor]:
    """Logits [M, V] and clean tokens [M] of what the views want, from one forward over [clean ; views]."""
    parts = [noisy for noisy, _ in views]
    tokens = torch.cat([batch.tokens, *(part.tokens for part in parts)], 1)
    positions = torch.cat([batch.positions, *(part.positions for part in parts)], 1)
    wanted = torch.cat([torch.zeros_like(batch.answer), *(part.wanted for part in parts)], 1)
    view = join(clean(batch.document, batch.positions // block), *(view for _, view in views))
    targets = torch.cat([batch.tokens, *(part.clean for part in parts)], 1)[wanted]
    logits = trainee(tokens, positions, view, wanted)
    return logits, targets.to(logits.device)
