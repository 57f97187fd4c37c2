"""Recipe: next-token prediction on packed answers."""

import torch.nn.functional as F
from torch import Generator, Tensor, nn

from drawloom.jobs.train.data import Packed, batches, read_corpus
from drawloom.jobs.train.loop import finish, fit
from drawloom.jobs.train.settings import TrainSettings
from drawloom.jobs.train.start import start
from drawloom.jobs.train.visibility import clean


def train(settings: TrainSettings) -> None:
    network, tokenizer = start(settings)
    corpus = read_corpus(settings.data, tokenizer, settings.prompt_column, settings.answer_column)
    source = batches(corpus, settings.rows, settings.row_tokens, settings.seed, tokenizer.eos_token_id)
    fit(settings, network, source, loss)
    finish(settings, network, tokenizer)


def loss(trainee: nn.Module, batch: Packed, generator: Generator) -> Tensor:
    """Mean cross entropy of answer tokens, each given all tokens of its document before it."""
    follows = (batch.document[:, 1:] == batch.document[:, :-1]) & batch.answer[:, 1:]
    wanted = F.pad(follows, (0, 1))
    logits = trainee(batch.tokens, batch.positions, clean(batch.document, batch.positions), wanted)
    return F.cross_entropy(logits, batch.tokens[:, 1:][follows].to(logits.device))
