"""The engine on a real network, SmolLM2-135M-Instruct in float32: transformers' own greedy text, and texts that do not know their batch."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from drawloom.actors.engine import Engine
from drawloom.actors.request import Completion, Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.models.embedded import embedded_folder
from drawloom.models.load import load_model
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import load_text

QUESTIONS = [
    "Hi.",
    "What is the capital of France?",
    "List three colours of the rainbow.",
    "Explain gravity to a child in two sentences.",
    "Write a Python function that returns the larger of two numbers, with a docstring and type hints.",
    "Extract the names: " + " ".join(f"{name} met {other} in {city}." for name, other, city in [
        ("Anna", "Boris", "Lyon"), ("Chandra", "Dimitri", "Oslo"), ("Esther", "Farid", "Quito"), ("Grace", "Hugo", "Hanoi"),
    ]),
    "Summarise: " + "The river rose for three days, and on the fourth the mill stood in water up to its windows. " * 8,
]  # fmt: skip
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def text():
    return load_text(ModelSettings())


@pytest.fixture(scope="module")
def machine(text):
    return Engine(load_model(ModelSettings()), text, EngineSettings(kv_gib=0.5))


@pytest.fixture(scope="module")
def reference():
    return AutoModelForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(text) -> list[list[int]]:
    """16 ragged prompts: lengths differ more than tenfold."""
    plain = [text.encode(question) for question in QUESTIONS]
    chats = [text.render([{"role": "user", "content": question}]) for question in QUESTIONS]
    out = [*plain, *chats, plain[-1] * 2, text.encode("Once upon a time")]
    assert len(out) == 16
    assert max(map(len, out)) > 10 * min(map(len, out))
    return out


def run(machine: Engine, requests: list[Request]) -> dict[str, Completion]:
    for request in requests:
        machine.add(request)
    out = {}
    while machine.num_unfinished:
        for done in machine.step():
            out[done.id] = done
    machine.pool.check()
    assert machine.pool.num_held == 0
    return out


def request(name: str, prompt: list[int], decoder: str = "ar", seed: int = 0, temperature: float = 0.0, n: int = NEW_TOKENS) -> Request:
    return Request(name, prompt, Sampling(max_tokens=n, temperature=temperature), seed=seed, decoder=decoder)


def expect_greedy(reference, prompt: list[int], got: list[int]) -> None:
    """Every token of `got` is the argmax of transformers' logits behind the same prefix, or ties with it: a gap below 1e-4.

    By induction over the prefix that is the text of greedy `generate`, up to the first near tie.
    """
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + got])).logits[0, len(prompt) - 1 :]
    for index, token in enumerate([*got, reference.config.eos_token_id][:NEW_TOKENS]):
        gap = float(logits[index].max() - logits[index, token])
        assert gap < 1e-4, f"token {index}: {token} is {gap} below the best"


def test_greedy_alone_is_transformers_generate(machine, reference, prompts):
    for index in (0, 13):
        done = run(machine, [request("x", prompts[index])])["x"]
        got = list(done.samples[0].token_ids)
        expect_greedy(reference, prompts[index], got)
        tokens = torch.tensor([prompts[index]])
        with torch.inference_mode():
            whole = reference.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW_TOKENS, do_sample=False)
        assert [token for token in whole[0, len(prompts[index]) :].tolist() if token != reference.config.eos_token_id] == got


def test_greedy_in_a_ragged_batch_of_16_is_transformers_generate(machine, reference, prompts):
    done = run(machine, [request(str(i), prompt, ("ar", "lookup", "jacobi")[i % 3]) for i, prompt in enumerate(prompts)])
    for index, prompt in enumerate(prompts):
        expect_greedy(reference, prompt, list(done[str(index)].samples[0].token_ids))


def test_same_seed_same_text_alone_in_a_crowd_and_with_lookup(machine, prompts):
    """Temperature 0.8. The crowd are strangers with other seeds, decoders and lengths."""
    mine = [3, 6, 12]
    alone = {i: run(machine, [request("x", prompts[i], seed=100 + i, temperature=0.8)])["x"] for i in mine}
    strangers = [
        request(f"s{i}", prompt[::-1], ("ar", "lookup", "jacobi")[i % 3], seed=i, temperature=0.8, n=5 + i)
        for i, prompt in enumerate(prompts)
    ]
    for decoder in ("ar", "lookup", "jacobi"):
        crowd = run(machine, [*strangers[:8], *(request(str(i), prompts[i], decoder, 100 + i, 0.8) for i in mine), *strangers[8:]])
        for i in mine:
            assert crowd[str(i)].samples[0] == alone[i].samples[0]
    assert len({done.samples[0].token_ids for done in alone.values()}) == 3


def test_other_seeds_give_other_texts(machine, prompts):
    texts = {run(machine, [request("x", prompts[3], seed=seed, temperature=0.8)])["x"].samples[0].text for seed in range(3)}
    assert len(texts) == 3
