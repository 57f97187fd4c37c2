"""Drive an engine on HashLM in tests."""

import random
from collections.abc import Sequence

from drawloom.actors.engine import Engine
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.models.hash_lm import HashLM, HashText

VOCAB = 64


def engine(model: HashLM | None = None, past: Sequence[Sequence[int]] = (), **settings) -> Engine:
    return Engine(model or HashLM(3), HashText(), EngineSettings(**{"num_pages": 300, "page_tokens": 4, **settings}), past=past)


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
