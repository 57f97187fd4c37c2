"""On tiny-ar: every recipe whose verifier keeps the text gives that of autoregression; the others keep its law, over 20,000 samples."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from rig import ids, request, run
from tiny import Plain

from drawloom.actors.build import build_engine
from drawloom.actors.engine import Engine
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.recipes import RECIPES
from drawloom.jobs.train.tasks import rows
from drawloom.models.checkpoint import ZOO
from drawloom.models.settings import ModelSettings

LOSSLESS = [name for name, row in RECIPES.items() if not row.diffusion and row.lossless and name != "ar"]
TREES: dict[str, dict[str, Any]] = {"dflash": {"nodes": 10}, "eagle": {"nodes": 10}, "medusa": {"nodes": 0}}
CASES = [(name, {}) for name in LOSSLESS] + list(TREES.items())
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "ignore_eos": True},
    {"temperature": 0.8, "top_p": 0.9, "ignore_eos": True},
    {"temperature": 1.5, "n": 3, "ignore_eos": True},
    {"temperature": 0.8, "frequency_penalty": 0.8, "repetition_penalty": 1.2, "logit_bias": {40: 2.0}},
    {"temperature": 0.0, "stop": (" = ", "\n")},
    {"temperature": 1.5, "top_k": 20, "presence_penalty": 0.5},
]


def engine_of(name: str, params: dict[str, Any], **settings: Any) -> Engine:
    own = EngineSettings(**{"num_pages": 300, "page_tokens": 8, "max_sequences": 12, **settings})
    machine = build_engine(ModelSettings(name="tiny-ar"), own, name, params)
    assert isinstance(machine, Engine)
    return machine


ROOMY: dict[str, Any] = {}
NARROW = {"num_pages": 40, "page_tokens": 4, "prefill_rows": 16}
ALWAYS = ("dflash", "eagle", "draft-model", "suffix")  # the others are preempted among the slow tests
RUNS = [
    pytest.param(
        name, params, settings, id=" ".join([name, *params, *settings]), marks=[] if name in ALWAYS or not settings else pytest.mark.slow
    )
    for name, params in CASES
    for settings in (ROOMY, NARROW)
]


@pytest.mark.parametrize(("name", "params", "settings"), RUNS)
def test_the_text_is_that_of_autoregression(name: str, params: dict[str, Any], settings: dict[str, Any]) -> None:
    machine = engine_of(name, params, **settings)
    tasks = rows("held-out", 3, len(SAMPLINGS))
    asked = [
        request(f"{decoder} {k}", machine.text.encode(task.prompt), decoder, k, own, max_tokens=30, **SAMPLINGS[k])
        for k, task in enumerate(tasks)
        for decoder, own in ((name, params), ("ar", {}))
    ]
    done = run(machine, asked)
    if settings:
        assert machine.stats().preemptions > 0
    for k, sampling in enumerate(SAMPLINGS):
        for index in range(sampling.get("n", 1)):
            assert ids(done[f"{name} {k}"], index) == ids(done[f"ar {k}"], index)
    assert sum(done[f"{name} {k}"].stats.drafted for k in range(len(SAMPLINGS))) > 0


LENGTH, SAMPLES, LEAST, WARM = 3, 20_000, 10, 0.8
TESTED = [
    ("draft-model", {"verifier": "rejection", "width": 2}),
    ("draft-model", {"verifier": "block", "width": 3}),
    ("draft-model", {"verifier": "kseq", "width": 2}),
    ("draft-model", {"verifier": "best-path", "width": 3}),
    ("draft-model", {"verifier": "topk", "width": 2}),
    ("dflash", {"verifier": "rejection", "width": 3}),
    ("dflash", {"verifier": "block", "width": 3}),
    ("dflash", {"verifier": "topk", "nodes": 12}),
    ("dflash", {"verifier": "rejection", "nodes": 12}),
    ("eagle", {"verifier": "rejection", "width": 3}),
    ("eagle", {"verifier": "block", "width": 3}),
    ("eagle", {"verifier": "topk", "nodes": 12}),
    ("medusa", {"verifier": "topk", "nodes": 12}),
    ("lookup", {"verifier": "rejection"}),
]


def chances(counts: Counter[tuple[int, ...]], prompt: list[int], temperature: float) -> dict[tuple[int, ...], float]:
    """The exact probability of every text that came at least LEAST times, by transformers' own forward."""
    network, found = Plain(str(ZOO / "tiny-ar")).network, {}
    with torch.no_grad():
        for text in [text for text, count in counts.items() if count >= LEAST]:
            logits = network(input_ids=torch.tensor([[*prompt, *text]]), use_cache=False).logits[0, len(prompt) - 1 : -1].double()
            said = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(text)[:, None])
            found[text] = math.exp(said.sum().item())
    return found


def p_value(counts: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """Pearson's chi-square; texts without a probability of their own are one bin. Bins are chosen from another draw of samples."""
    total = counts.total()
    bins = [(counts[text], total * chance) for text, chance in wanted.items()]
    bins.append((total - sum(seen for seen, _ in bins), total - sum(expected for _, expected in bins)))
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in bins)
    return float(torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2).double(), torch.tensor(statistic / 2).double()))


def sampled(name: str, params: dict[str, Any], prompt: list[int], seed: int, temperature: float) -> Counter[tuple[int, ...]]:
    machine = engine_of(name, params, num_pages=3000, max_sequences=400)
    settings: dict[str, Any] = {"n": 100, "max_tokens": LENGTH, "temperature": temperature, "ignore_eos": True}
    done = run(machine, [request(str(k), prompt, name, seed + k, params, **settings) for k in range(SAMPLES // 100)])
    return Counter(sample.token_ids for one in done.values() for sample in one.samples)


@pytest.fixture(scope="module")
def law() -> tuple[list[int], float, dict[tuple[int, ...], float]]:
    """A prompt whose next tokens are open, a temperature, and the probabilities of the texts that plain autoregression gives often."""
    prompt = engine_of("ar", {}).text.encode("Shuffle the list: cat ant bear lime wolf dew\n")
    return prompt, WARM, chances(sampled("ar", {}, prompt, 10**6, WARM), prompt, WARM)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "params"), TESTED, ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one.values())))
def test_08_the_law_is_the_targets(name: str, params: dict[str, Any], law: Any) -> None:
    prompt, temperature, wanted = law
    counts = sampled(name, params, prompt, 0, temperature)
    assert p_value(counts, wanted) > 0.001
    # As if a rejected token were drawn anew from the whole law: what is likely comes more often.
    middle = sorted(wanted.values())[len(wanted) // 2]
    biased = Counter({text: round(count * (1.25 if wanted.get(text, 0.0) > middle else 1.0)) for text, count in counts.items()})
    assert p_value(biased, wanted) < 1e-6
