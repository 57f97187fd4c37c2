"""Recipe: Jacobi forcing, which teaches an autoregressive model to reach its own greedy text in fewer Jacobi iterations.

Noisy blocks stand behind the clean text they continue. They begin as a Jacobi draft does (the last known token, repeated), a few
iterations of the model's own answers are taken without gradient, and from that state every position learns the final token. The
autoregressive loss on the clean text keeps the text itself. Consistency LLMs (arXiv 2403.00835); Jacobi Forcing (arXiv 2512.14681).
`data` should hold the base's own greedy answers: write them with `drawloom generate`.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.jobs.train.autoregressive import loss as plain_loss
from drawloom.jobs.train.data import Packed, batches, read_corpus
from drawloom.jobs.train.loop import Loss, finish, fit
from drawloom.jobs.train.settings import JacobiSettings
from drawloom.jobs.train.start import start
from drawloom.jobs.train.visibility import View, clean, join


@dataclass(frozen=True)
class Drafts:
    """Jacobi blocks over the answers of a batch, all [B, L]; a token that no block covers has group -1 in `group`."""

    tokens: Tensor  # int64, the state of the draft
    group: Tensor  # int64
    start: Tensor  # int64, first position of the block
    covered: Tensor  # bool


def train(settings: JacobiSettings) -> None:
    network, tokenizer = start(settings)
    corpus = read_corpus(settings.data, tokenizer, settings.prompt_column, settings.answer_column)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, tokenizer.eos_token_id)
    fit(settings, network, source, loss_with(settings))
    finish(settings, network, tokenizer)


def loss_with(settings: JacobiSettings) -> Loss:
    def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
        """Autoregressive loss, plus cross entropy of the final tokens given a draft after 0..iterations-1 iterations."""
        drafts = first_drafts(batch, settings.width, generator)
        for _ in range(int(torch.randint(settings.iterations, (), generator=generator))):
            with torch.no_grad():
                drafts = iterate(trainee, batch, drafts)
        wanted = follows(batch) & drafts.covered
        logits = over(trainee, batch, drafts, torch.cat([torch.zeros_like(wanted), wanted], 1))
        targets = batch.tokens.roll(-1, 1)[wanted].to(logits.device)
        return plain_loss(trainee, batch, generator) + F.cross_entropy(logits, targets)

    return loss


def first_drafts(batch: Packed, width: int, generator: Generator) -> Drafts:
    """Cut every answer into blocks of `width`, from an offset that differs from row to row, and fill each with the token before it."""
    covered = batch.answer & (batch.positions > 0) & (batch.document >= 0)
    offset = torch.randint(width, (len(batch.tokens), 1), generator=generator)
    part = (batch.positions + offset) // width
    opens = covered & ~(_before(covered, False) & (part == _before(part, -1)) & (batch.document == _before(batch.document, -1)))
    group = torch.where(covered, opens.long().cumsum(1) - 1, -1)
    index = torch.arange(batch.tokens.shape[1]).expand_as(group)
    first = torch.where(opens, index, 0).cummax(1).values
    seed = batch.tokens.gather(1, (first - 1).clamp(min=0))
    return Drafts(seed, group, batch.positions.gather(1, first), covered)


def iterate(trainee: nn.Module, batch: Packed, drafts: Drafts) -> Drafts:
    """Every draft token becomes what the model says at the row before it: a clean row for the first of a block, else a draft row."""
    next_covered = F.pad(drafts.covered[:, 1:], (0, 1)) & follows(batch)
    inside = next_covered & (drafts.group == _after(drafts.group, -2))
    wanted = torch.cat([next_covered & ~inside, inside], 1)
    both = torch.zeros_like(wanted, dtype=torch.int64)
    both[wanted] = over(trainee, batch, drafts, wanted).argmax(-1).cpu()
    from_clean, from_draft = both.chunk(2, 1)
    said = torch.where(inside, from_draft, from_clean)
    return replace(drafts, tokens=torch.where(drafts.covered, _before(said, 0), drafts.tokens))


def over(trainee: nn.Module, batch: Packed, drafts: Drafts, wanted: Tensor) -> Tensor:
    """Logits of the rows `wanted` [B, 2 L] of [clean ; drafts]."""
    document = torch.where(drafts.covered, batch.document, -1)
    noisy = View(document, batch.positions, drafts.group.clamp(min=0), drafts.start)
    tokens, positions = torch.cat([batch.tokens, drafts.tokens], 1), torch.cat([batch.positions] * 2, 1)
    return trainee(tokens, positions, join(clean(batch.document, batch.positions), noisy), wanted)


def follows(batch: Packed) -> Tensor:
    """[B, L] bool: the next token belongs to the same document's answer."""
    return F.pad((batch.document[:, 1:] == batch.document[:, :-1]) & batch.answer[:, 1:], (0, 1)) & (batch.document >= 0)


def _before(values: Tensor, fill: int | bool) -> Tensor:
    return F.pad(values[:, :-1], (1, 0), value=fill)


def _after(values: Tensor, fill: int) -> Tensor:
    return F.pad(values[:, 1:], (0, 1), value=fill)
