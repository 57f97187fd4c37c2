"""The embedded network in its native layout: transformers' own logits, and bits that do not know batch, steps or threads."""

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from drawloom.models.embedded import embedded_folder
from drawloom.models.load import load_model
from drawloom.models.settings import ModelSettings
from drawloom.models.tokenizer import load_text

TOPICS = ["rivers", "the history of clocks in three sentences, please", "cats " * 20, "Why is the sky blue? Answer as a pirate would."]


@pytest.fixture(scope="module")
def texts() -> dict[int, list[int]]:
    """Eight real prompts, plain and chat, 1 to 80 tokens."""
    text = load_text(ModelSettings())
    chats = [text.render([{"role": "user", "content": topic}]) for topic in TOPICS]
    return dict(enumerate([text.encode(topic) for topic in TOPICS] + chats))


@pytest.fixture(scope="module")
def model():
    return load_model(ModelSettings())


@pytest.fixture(scope="module")
def driver(model, drive):
    return drive(model, num_pages=600, page_tokens=16, seed=4)


def fresh(driver, texts) -> dict[int, list[int]]:
    """The texts under names that the driver has not seen."""
    first = len(driver.committed)
    return {first + name: tokens for name, tokens in texts.items()}


@torch.inference_mode()
def test_ragged_forward_is_as_exact_as_transformers(driver, texts):
    """Against the network in float64: errors at most twice those of transformers' float32, and logits within 1e-3 of its own."""
    assert driver.model.layout == "native"
    assert driver.model.describe() == "native layout, q4+q8 weights, 111 MB"
    network = AutoModelForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32, attn_implementation="eager").eval()
    batch = fresh(driver, texts)
    ours = torch.cat(list(driver.step(batch).values())).double()
    theirs = torch.cat([network(torch.tensor([tokens])).logits[0] for tokens in batch.values()]).double()
    exact = torch.cat([network.double()(torch.tensor([tokens])).logits[0] for tokens in batch.values()])
    assert (ours - exact).abs().max() <= 2 * (theirs - exact).abs().max()
    assert (ours - exact).pow(2).mean() <= 4 * (theirs - exact).pow(2).mean()
    assert (ours - theirs).abs().max() <= 1e-3


def test_same_bits_however_a_text_is_cut_and_batched(driver, texts):
    """All at once in a batch of eight; alone, in random chunks; token by token beside the others."""
    whole = fresh(driver, texts)
    logits = {name - min(whole): values for name, values in driver.step(whole).items()}
    draw = random.Random(1)
    cut = fresh(driver, texts)
    for name, tokens in cut.items():
        parts, done = [], 0
        while done < len(tokens):
            count = draw.randint(1, 23)
            parts.append(driver.step({name: tokens[done : done + count]})[name])
            done += count
        assert torch.equal(torch.cat(parts), logits[name - min(cut)])
    single = fresh(driver, texts)
    for index in range(12):
        got = driver.step({name: tokens[index : index + 1] for name, tokens in single.items() if index < len(tokens)})
        for name, row in got.items():
            assert torch.equal(row[0], logits[name - min(single)][index])


def test_same_bits_for_any_number_of_threads(driver, texts):
    threads, seen = torch.get_num_threads(), []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        batch = fresh(driver, texts)
        seen.append(torch.cat(list(driver.step(batch).values())))
    torch.set_num_threads(threads)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])


def test_no_logits_wanted(driver, texts):
    """A prefill chunk that ends nothing asks for no logits and still leaves its keys."""
    name, tokens = next(iter(fresh(driver, {0: texts[7]}).items()))
    whole = driver.step({name: tokens})[name]
    name = len(driver.committed)
    ragged = driver.ragged({name: tokens[:-1]})
    ragged = type(ragged)(**{**vars(ragged), "logit_rows": torch.empty(0, dtype=torch.int64)})
    assert driver.model.forward(ragged).shape == (0, 49152)
    driver.committed[name] = len(tokens) - 1
    assert torch.equal(driver.step({name: tokens[-1:]})[name][0], whole[-1])
