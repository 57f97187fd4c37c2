"""Verifiers of sampled drafts in the engine: the law of the text is the target's, under every setting, in mixed batches; a biased one is
found out. What keeps the law alone still gives one text for a seed, alone and in company."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from bigram import BINARY, CHAIN, PATHS, bigram, table
from oracles import hash_logits
from rig import engine, ids, request, run, same_in_company

from drawloom.actors.request import Sampling
from drawloom.decoders import recipes
from drawloom.decoders.recipe import Recipe
from drawloom.decoders.recipes import build
from drawloom.decoders.trees import TreeVerify
from drawloom.decoders.verifiers import VERIFIERS, Verifier, verifier_named
from drawloom.errors import SettingError
from drawloom.kernels.pick import Draw, law
from drawloom.kernels.verify_sampled import Draft, specinfer
from drawloom.models.hash_lm import HashLM

VOCAB, SAMPLES, LENGTH = 7, 2000, 3
SHAPES: dict[str, Callable[[], bigram]] = {
    "chain": lambda: bigram(table(VOCAB, 1), CHAIN, paths=True),
    "binary": lambda: bigram(table(VOCAB, 2), BINARY),
    "paths": lambda: bigram(table(VOCAB, 3), PATHS, paths=True),
    "distinct": lambda: bigram(table(VOCAB, 4), BINARY, distinct=True),
}
PAIRS = [
    ("match", "binary"),
    ("rejection", "chain"),
    ("rejection", "binary"),
    ("block", "chain"),
    ("block", "binary"),
    ("kseq", "paths"),
    ("best-path", "paths"),
    ("without-replacement", "distinct"),
    ("topk", "distinct"),
]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Verifier], str]:
    """Makes a recipe of a verifier and a shape of draft; returns its name."""

    def add(name: str, shape: str, verifier: Verifier) -> str:
        decoder = TreeVerify(SHAPES[shape](), verifier)
        monkeypatch.setitem(recipes.RECIPES, name, Recipe(lambda: decoder, "", ""))
        recipes._made.cache_clear()
        return name

    return add


def texts_of(model: HashLM, prompt: list[int], settings: dict[str, Any]) -> dict[tuple[int, ...], float]:
    """Every text of at most LENGTH tokens and its probability: after an end token nothing follows."""
    sampling = Sampling(**settings)
    found: dict[tuple[int, ...], float] = {(): 1.0}
    done: dict[tuple[int, ...], float] = {}
    for _ in range(LENGTH):
        grown: dict[tuple[int, ...], float] = {}
        for text, chance in found.items():
            logits = hash_logits(model, [*prompt, *text], lambda i, j: j <= i)[-1]
            for token, share in enumerate(processed(logits, sampling, model).tolist()):
                if share and token in model.info.eos_token_ids:
                    done[text] = done.get(text, 0.0) + chance * share
                elif share:
                    grown[(*text, token)] = chance * share
        found = grown
    return {**done, **found}


def processed(logits: torch.Tensor, sampling: Sampling, model: HashLM) -> torch.Tensor:
    """Probabilities [V] after bias, temperature and top-p, written plainly."""
    logits = logits.double()
    logits[model.info.mask_token_id] = -torch.inf
    for token, bias in sampling.logit_bias.items():
        logits[token] += bias
    prob = (logits / sampling.temperature).softmax(0)
    kept, total = torch.zeros_like(prob), 0.0
    for token in prob.argsort(descending=True).tolist():
        if total < sampling.top_p:
            kept[token] = prob[token]
        total += float(prob[token])
    return kept / kept.sum()


def p_value(counts: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """Pearson's chi-square test; texts that should come fewer than 8 times are counted together."""
    total = sum(counts.values())
    rare = [text for text, chance in wanted.items() if chance * total < 8]
    bins = [(counts[text], chance * total) for text, chance in wanted.items() if text not in set(rare)]
    bins.append((total - sum(seen for seen, _ in bins), max(total * sum(wanted[text] for text in rare), 1e-9)))
    bins = [one for one in bins if one[1] > 1 or one[0]]
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in bins)
    return float(torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2).double(), torch.tensor(statistic / 2).double()))


Found = Iterator[tuple[str, Counter[tuple[int, ...]]]]


def sampled(model: HashLM, prompt: list[int], names: list[str], settings: dict[str, Any], samples: int = SAMPLES) -> Found:
    """Texts of each recipe, all in one engine."""
    per = 100
    asked = [
        request(f"{name} {number}", prompt, name, number, n=per, max_tokens=LENGTH, **settings)
        for name in names
        for number in range(samples // per)
    ]
    done = run(engine(model, max_sequences=600, num_pages=4000), asked)
    for name in names:
        yield name, Counter(sample.token_ids for number in range(samples // per) for sample in done[f"{name} {number}"].samples)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 1.4, "top_p": 0.8, "logit_bias": {2: 1.5}}, pytest.param({"temperature": 0.8}, marks=pytest.mark.slow)],
    ids=["narrowed", "whole"],
)
def test_the_law_of_the_text_is_the_targets(settings: dict[str, Any], known: Any) -> None:
    model, prompt = HashLM(5, VOCAB, sway=2.0), [1, 3]
    wanted = texts_of(model, prompt, settings)
    assert math.isclose(sum(wanted.values()), 1.0)
    names = [known(f"{verifier}/{shape}", shape, verifier_named(verifier)) for verifier, shape in PAIRS]
    found = {name: p_value(counts, wanted) for name, counts in sampled(model, prompt, names, settings)}
    assert min(found.values()) > 0.001, found


def test_a_biased_verifier_is_found_out(known: Any) -> None:
    """Refused drafts are followed by the target's own law instead of what is left of it."""

    def resample(draft: Draft, p: torch.Tensor, coin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        path = specinfer(draft, p, coin)[0]
        return path, p[torch.arange(len(p)), (path.sum(1) - 1)]

    model, prompt, settings = HashLM(5, VOCAB, sway=2.0), [1, 3], {"temperature": 0.8}
    known("biased", "chain", Verifier("biased", True, VERIFIERS["rejection"].laws, "", resample))
    ((_, counts),) = sampled(model, prompt, ["biased"], settings, 6000)
    assert p_value(counts, texts_of(model, prompt, settings)) < 1e-6


@pytest.mark.parametrize("settings", [{}, {"num_pages": 60}, {"pack": "padded"}], ids=["many pages", "preempting", "fixed shapes"])
def test_one_text_for_a_seed_in_any_company(settings: dict[str, Any], known: Any) -> None:
    names = [known(f"{verifier}/{shape}", shape, verifier_named(verifier)) for verifier, shape in PAIRS]
    asked = [
        request(f"{name} {k}", [k + 1, 3], name, k, max_tokens=20, temperature=(0.0, 0.9)[k % 2], frequency_penalty=0.3)
        for name in names
        for k in range(2)
    ]
    asked += [request(f"{name} {k}", [5, k], name, k, max_tokens=20) for name in ("ar", "multi-block") for k in range(2)]
    same_in_company(HashLM(6, VOCAB, sway=3.0), asked, **settings)


@pytest.mark.parametrize(("verifier", "shape"), PAIRS)
def test_at_temperature_zero_the_text_is_that_of_autoregression(verifier: str, shape: str, known: Any) -> None:
    model, name = HashLM(6, VOCAB, sway=3.0), known("x", shape, verifier_named(verifier))
    asked = [request(f"{k}", [k], name, k, max_tokens=30, temperature=0.0) for k in range(6)]
    plain = [request(f"ar {k}", [k], "ar", k, max_tokens=30, temperature=0.0) for k in range(6)]
    done = run(engine(model), [*asked, *plain])
    assert all(ids(done[f"{k}"]) == ids(done[f"ar {k}"]) for k in range(6))
    assert sum(done[f"{k}"].stats.accepted for k in range(6)) > 0
    assert all(done[f"{k}"].lossless for k in range(6))


@pytest.mark.parametrize(("verifier", "shape"), PAIRS)
def test_logprobs_are_those_of_the_emitted_tokens(verifier: str, shape: str, known: Any) -> None:
    """Of the target, one for each token, the one after a refused draft among them."""
    model, name = HashLM(8, VOCAB, sway=2.0), known("x", shape, verifier_named(verifier))
    sample = run(engine(model), [request("x", [3, 1], name, 5, max_tokens=25, temperature=0.9, logprobs=2, ignore_eos=True)])["x"].samples[
        0
    ]
    logits = hash_logits(model, [3, 1, *sample.token_ids], lambda i, j: j <= i)
    logits[:, model.info.mask_token_id] = -torch.inf
    want = logits.double().log_softmax(-1)
    assert sample.logprobs is not None
    assert len(sample.logprobs) == len(sample.token_ids) == 25
    for offset, (own, *top) in enumerate(sample.logprobs):
        row = want[1 + offset]
        assert own.token_id == sample.token_ids[offset]
        assert own.logprob == pytest.approx(float(row[own.token_id]), abs=1e-4)
        assert own.rank == int((row > row[own.token_id]).sum()) + 1
        assert [one.token_id for one in top] == row.sort(descending=True).indices[:2].tolist()


LOOKUP = ["coupled", "rejection", "block", "topk"]


@pytest.mark.parametrize("verifier", LOOKUP)
def test_looked_up_drafts_keep_the_law(verifier: str) -> None:
    """Drafts that are a function of the text, under every verifier that takes them."""
    model, prompt, settings = HashLM(5, VOCAB, sway=2.0), [1, 3, 1, 3, 1], {"temperature": 0.8}
    asked = [
        request(f"{number}", prompt, "lookup", number, {"verifier": verifier, "width": 3, "least": 1}, n=100, max_tokens=LENGTH, **settings)
        for number in range(SAMPLES // 100)
    ]
    done = run(engine(model, max_sequences=600, num_pages=4000), asked)
    counts = Counter(sample.token_ids for one in done.values() for sample in one.samples)
    assert p_value(counts, texts_of(model, prompt, settings)) > 0.001
    assert sum(one.stats.accepted for one in done.values()) > 0


@pytest.mark.parametrize("verifier", [one.name for one in VERIFIERS.values() if not one.lossless])
def test_lossy_verifiers_say_so(verifier: str) -> None:
    done = run(engine(HashLM(5)), [request("x", [1, 2, 1, 2, 1], "lookup", 1, {"verifier": verifier}, max_tokens=20)])["x"]
    assert not done.lossless
    assert done.samples[0].token_ids


@pytest.mark.parametrize("name", list(VERIFIERS))
def test_pairs_that_would_lose_the_law_are_refused(name: str) -> None:
    verifier = VERIFIERS[name]
    for make in SHAPES.values():
        fits = make().law in verifier.laws and (make().paths or not verifier.paths)
        if fits:
            TreeVerify(make(), verifier)
        else:
            with pytest.raises(SettingError, match=r"takes (drafts that are|independent paths)"):
                TreeVerify(make(), verifier)
    if "one_hot" not in verifier.laws:
        with pytest.raises(SettingError, match=f"verifier '{name}' takes drafts that are .*, and these are one_hot"):
            build("lookup", {"verifier": name}, None)


def test_a_verifier_that_does_not_exist_is_told() -> None:
    with pytest.raises(SettingError, match="verifier 'rejecton' is unknown; did you mean 'rejection'"):
        build("lookup", {"verifier": "rejecton"}, None)


def test_the_law_of_a_draw() -> None:
    choice = torch.tensor([[1.0, 2.0, 2.0], [0.0, 1.0, -torch.inf]])
    zero = torch.zeros(2).long()
    draw = Draw(torch.tensor([0.0, 0.5]), zero, torch.ones(2), torch.zeros(2), zero, zero, zero)
    warm = torch.tensor([0.0, 2.0]).softmax(0)
    torch.testing.assert_close(law(choice, draw), torch.tensor([[0.0, 1.0, 0.0], [float(warm[0]), float(warm[1]), 0.0]]))
    torch.testing.assert_close(law(choice, None)[1], torch.tensor([0.0, 1.0, 0.0]))
