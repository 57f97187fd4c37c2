"""Recipe: a block drafter on the hidden states of a target (DFlash, arXiv 2602.06036).

Blocks begin at random tokens of the answers. A block is its first token and masks; it sees what the target's layers say of all tokens
before it, and itself; each mask learns its token, near ones more than far ones. Embeddings and head are the target's.
`data`: the target's own answers, as the output folder of a finished job or as rows; or prompts, which the target answers first.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from transformers import Qwen3Config

from drawloom.jobs.train.data import Packed, batches
from drawloom.jobs.train.features import Target, own_answers, publish, shape_of
from drawloom.jobs.train.loop import Loss, fit
from drawloom.jobs.train.settings import DFlashSettings
from drawloom.jobs.train.start import mask_token_of
from drawloom.models.drafters.block import BlockNetwork


@dataclass(frozen=True)
class Blocks:
    """A blocks of K tokens in each packed row, all [B, A * K]; index is a token's place in the row."""

    tokens: Tensor  # int64, the first token of each block, and masks
    index: Tensor  # int64
    first: Tensor  # int64, index of the block's first token
    wanted: Tensor  # bool, places of the same answer


def train(settings: DFlashSettings) -> None:
    target = Target(settings)
    mask_token = mask_token_of(target.tokenizer, settings.base)
    layers = target.config.num_hidden_layers
    taps = target.taps(settings.layers, (1, layers // 2, layers - 3))
    network = BlockNetwork(
        Qwen3Config(**shape_of(target.config), num_hidden_layers=settings.depth, tie_word_embeddings=False),
        target.config.hidden_size,
        len(taps),
    )
    corpus = own_answers(settings, target.tokenizer)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, target.tokenizer.eos_token_id)
    fit(settings, network, source, loss_with(settings, target, taps, mask_token))
    told = {
        **network.config.to_dict(),
        "architectures": ["DFlashDraftModel"],
        "block_size": settings.block,
        "num_target_layers": layers,
        "dflash_config": {"mask_token_id": mask_token, "target_layer_ids": list(taps)},
    }
    names = {key: key.removeprefix("fusion.").removeprefix("body.") for key in network.state_dict()}
    publish(settings, told, {names[key]: value for key, value in network.state_dict().items()})


def loss_with(settings: DFlashSettings, target: Target, taps: tuple[int, ...], mask_token: int) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Cross entropy of the masked tokens, a place k tokens on weighing exp(-(k - 1) / decay)."""
        network: Any = trainee.network
        features, _ = target.read(batch, taps)
        blocks = cut(batch, settings.anchors, settings.block, mask_token, generator)
        there = blocks.index.clamp(max=batch.tokens.shape[1] - 1)
        positions = batch.positions.gather(1, blocks.first) + blocks.index - blocks.first
        both = torch.cat([batch.positions, positions], 1).to(features.device)
        mask = sees(batch, blocks, settings.block).to(features.device)
        hidden = network(features, target.embed(blocks.tokens.to(features.device)), both, mask)
        logits = target.network.get_output_embeddings()(hidden[blocks.wanted.to(features.device)]).float()
        targets = batch.tokens.gather(1, there)[blocks.wanted].to(logits.device)
        weight = torch.exp(-(blocks.index - blocks.first - 1) / settings.decay)[blocks.wanted].to(logits.device)
        return (F.cross_entropy(logits, targets, reduction="none") * weight).sum() / weight.sum().clamp(min=1e-6)

    return loss


def cut(batch: Packed, count: int, block: int, mask_token: int, generator: Generator) -> Blocks:
    """`count` blocks a row that begin at random tokens before a token of an answer."""
    begins = F.pad((batch.document[:, 1:] == batch.document[:, :-1]) & batch.answer[:, 1:], (0, 1)) & (batch.document >= 0)
    weight = begins.float() + 1e-9  # a row without answers still gives blocks, in which nothing is wanted
    first = torch.multinomial(weight, count, replacement=True, generator=generator).repeat_interleave(block, 1)
    place = torch.arange(block).repeat(count)
    index = first + place
    there = index.clamp(max=batch.tokens.shape[1] - 1)
    same = (batch.document.gather(1, there) == batch.document.gather(1, first)) & (index == there)
    wanted = same & batch.answer.gather(1, there) & (place > 0) & begins.gather(1, first)
    return Blocks(torch.where(place == 0, batch.tokens.gather(1, first), mask_token), index, first, wanted)


def sees(batch: Packed, blocks: Blocks, block: int) -> Tensor:
    """[B, 1, A * K, L + A * K] bool: a block's rows see what the target said before the block, and one another."""
    place = torch.arange(batch.tokens.shape[1])
    same = batch.document.gather(1, blocks.first)[..., None] == batch.document[:, None]
    before = same & (place < blocks.first[..., None])
    number = torch.arange(blocks.index.shape[1]) // block
    own = (number[:, None] == number).expand(len(before), -1, -1)
    return torch.cat([before, own], 2)[:, None]
