"""Drive an engine on HashLM in tests."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from drawloom.actors.engine import Engine
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.models.drafters.contract import Begun, ParallelDrafter, SerialDrafter
from drawloom.models.hash_lm import HashLM, HashText, mix, unit, visible
from drawloom.models.ragged import Ragged

VOCAB = 64


class Similar(HashLM):
    """Says nearly what another HashLM of the same seed says: its logits with noise, from K/V of its own."""

    def logits(self, total: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return super().logits(total, position) + unit(mix(mix(total + 7 * position)[:, None] + self._token)).float()


class AtOnce(ParallelDrafter):
    """Says what HashLM would for other hashes: its favourites are often the target's. Its hashes are those of the tokens it has read."""

    taps, most, max_context = (), 1024, 4096

    def __init__(self, kind: str) -> None:
        self.kind, self.name, self.where = kind, kind, {}

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self.seen = torch.zeros(num_pages * page_tokens, dtype=torch.int64)

    def page_bytes(self, page_tokens: int) -> int:
        return 8 * page_tokens

    def begin(self, target: Any, reading: Any, width: int) -> Begun:
        positions, slots = reading.unread()
        read = target.features(slots, ())[:, 0]
        self.seen[slots] = read
        self.where |= dict(zip(read.tolist(), positions.tolist(), strict=True))
        last, place = target.features(reading.newest(), ()), torch.arange(1, width + 1)
        position = torch.tensor([self.where[one] for one in last[:, 0].tolist()])[:, None] + place
        total = mix(last + place)
        if self.kind == "block":  # of all tokens that it has read, so that a wrong slot shows
            ragged = reading.block(width + 1, 0)
            index, seen = visible(replace(ragged, see=ragged.see * 0))
            total = total + (self.seen[index] * seen).sum(1).view(len(last), -1)[:, 1:]
        return Begun(last, target.logits(total.flatten(), position.flatten()).unflatten(0, (len(last), width)))

    def logits(self, target: Any, begun: Begun) -> torch.Tensor:
        assert begun.logits is not None
        return begun.logits


class OneByOne(SerialDrafter):
    """The same, told what it said before."""

    kind, name, taps, most, max_context, ahead = "eagle", "eagle", (), 1024, 4096, 1

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        self.seen = torch.zeros(num_pages * page_tokens, dtype=torch.int64)

    def page_bytes(self, page_tokens: int) -> int:
        return 8 * page_tokens

    def enter(self, features: torch.Tensor) -> torch.Tensor:
        return features

    def forward(self, target: Any, ragged: Ragged, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen[ragged.slots] = mix(hidden[:, 0] + ragged.tokens)
        index, seen = visible(ragged)
        total = (self.seen[index] * seen).sum(1)
        rows = ragged.logit_rows
        return total[:, None], target.logits(total[rows], ragged.positions[rows] + 1)


def engine(model: HashLM | None = None, past: Sequence[Sequence[int]] = (), draft: HashLM | None = None, **settings) -> Engine:
    """With networks that draft, under the names that recipes ask for by default."""
    model = model or HashLM(3)
    drafts: dict[str, Any] = {
        "tiny-draft": draft or Similar(model.seed, model.info.vocab_size, period=model.period, sway=model.sway),
        "tiny-dflash": AtOnce("block"),
        "tiny-eagle3": OneByOne(),
        "tiny-medusa": AtOnce("heads"),
    }
    asked = EngineSettings(**{"num_pages": 300, "page_tokens": 4, **settings})
    return Engine(model, HashText(model.info.vocab_size), asked, past=past, drafts=drafts)


def run(machine: Engine, requests: Sequence[Request], most_steps: int = 20_000) -> dict[str, Completion]:
    """All completions; the pool's invariants hold after every step and nothing is held at the end."""
    for request in requests:
        machine.add(request)
    out = {}
    for _ in range(most_steps):
        if not machine.num_unfinished:
            break
        for done in machine.step():
            out[done.id] = done
        machine.pool.check()
    assert machine.num_unfinished == 0
    assert machine.pool.num_held == 0
    return out


def same_in_company(model: HashLM, asked: Sequence[Request], **settings) -> dict[str, Completion]:
    """Completions of all requests in one engine with `settings`; each says what it says alone in a roomy one."""
    together = run(engine(model, **settings), asked)
    for one in asked:
        assert ids(together[one.id]) == ids(run(engine(model), [one])[one.id]), one.id
    return together


def prompts(count: int, seed: int, most: int = 30) -> list[list[int]]:
    """Random prompts; some share a prefix of several pages, some are one token long."""
    rng = random.Random(seed)
    shared = [rng.randrange(VOCAB - 2) for _ in range(11)]
    out = []
    for index in range(count):
        own = [rng.randrange(VOCAB - 2) for _ in range(rng.randrange(1, most))]
        out.append(shared + own if index % 3 == 0 else own)
    return out


def ids(completion: Completion, index: int = 0) -> list[int]:
    return list(completion.samples[index].token_ids)


def request(name: str, prompt: list[int], decoder: str = "ar", seed: int = 0, params: dict | None = None, **sampling) -> Request:
    return Request(name, prompt, Sampling(**sampling), seed=seed, decoder=decoder, decoder_params=params or {})


def same_texts(first: Counter, second: Counter) -> float:
    """p-value of a two-sample chi-square test; texts that came fewer than 10 times in all are counted together."""
    common = [text for text in {*first, *second} if first[text] + second[text] >= 10]
    bins = [(first[text], second[text]) for text in common]
    bins.append((first.total() - sum(a for a, _ in bins), second.total() - sum(b for _, b in bins)))
    scale = math.sqrt(second.total() / first.total())
    statistic = sum((a * scale - b / scale) ** 2 / (a + b) for a, b in bins if a + b)
    return float(torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2).double(), torch.tensor(statistic / 2).double()))
