"""Recipe: MultiTF, which post-trains a block-diffusion model to decode several unfinished blocks at once.

Noise groups of consecutive blocks: a block sees the unfinished blocks of its group before it, and clean text before the group. Within a
group each block is noisier than the one before, as in decoding. Multi-Block Diffusion LMs (MBD-LM).
"""

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.jobs.train.block import denoise, denoised
from drawloom.jobs.train.data import Packed
from drawloom.jobs.train.loop import Loss
from drawloom.jobs.train.noise import Noisy, blocks_with_answers, chain_uniform, grouped, hidden_at, hide, layout
from drawloom.jobs.train.settings import MultiBlockSettings
from drawloom.jobs.train.visibility import View

VIEWS = 2  # layouts that share one clean view


def train(settings: MultiBlockSettings) -> None:
    denoise(settings, loss_with)


def loss_with(settings: MultiBlockSettings, mask_token: int) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Mean cross entropy over the masked answer tokens of two layouts."""
        whole = blocks_with_answers(batch, settings.block)
        views = [noisy_view(whole, settings, mask_token, number, generator) for number in range(VIEWS)]
        logits, targets = denoised(trainee, batch, settings.block, views)
        return F.cross_entropy(logits, targets)

    return loss


def noisy_view(whole: Noisy, settings: MultiBlockSettings, mask_token: int, number: int, generator: Generator) -> tuple[Noisy, View]:
    """A layout and its chain-uniform noise, both drawn."""
    view, group, place = grouped(whole, layout(whole, settings.most, settings.random_layouts, generator), number)
    levels = chain_uniform(len(group), int(group.max()) + 1, settings.most, settings.low, settings.high, generator)
    level = levels.flatten(1).gather(1, group * settings.most + place)
    return hide(whole, hidden_at(whole, level, generator), mask_token), view
