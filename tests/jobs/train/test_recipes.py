"""Each recipe trains for a few steps on a network of a few thousand weights, goes on where it was broken off, and leaves a checkpoint that
the engine runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from job_rig import command
from rich.console import Console
from safetensors.torch import load_file
from torch import Generator

from drawloom.actors.build import build_engine, build_text
from drawloom.actors.request import Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.jobs.generate import generate
from drawloom.jobs.settings import JobSettings
from drawloom.jobs.train import autoregressive, block, dflash, eagle, jacobi, medusa, multi_block, on_policy
from drawloom.jobs.train.data import batches, read_corpus
from drawloom.jobs.train.features import own_answers
from drawloom.jobs.train.fresh import FreshSettings, fresh
from drawloom.jobs.train.jacobi import first_drafts, iterate, loss_with
from drawloom.jobs.train.loop import Trainee, is_done, make_optimizer, schedule
from drawloom.jobs.train.settings import (
    BlockSettings,
    DFlashSettings,
    EagleSettings,
    JacobiSettings,
    MedusaSettings,
    MultiBlockSettings,
    OnPolicySettings,
    TrainSettings,
)
from drawloom.jobs.train.start import start
from drawloom.jobs.train.tasks import write
from drawloom.jobs.train.workers import run
from drawloom.models.settings import ModelSettings

SMALL: dict[str, Any] = {"steps": 6, "rows": 4, "row_tokens": 96, "log_every": 2, "save_every": 2, "dtype": "float32", "threads": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a fresh network with 2 layers of width 32."""
    folder = tmp_path_factory.mktemp("train")
    write(folder / "data.parquet", "train", 1, 300)
    fresh(
        FreshSettings(
            data=str(folder / "data.parquet"), output=str(folder / "fresh"), vocab=320, hidden=32, layers=2, heads=2, key_heads=1, inner=48
        )
    )
    return folder


RECIPES: list[tuple[str, Callable[[Any], None], type[TrainSettings], dict[str, Any], str]] = [
    ("ar", autoregressive.train, TrainSettings, {}, "ar"),
    ("block", block.train, BlockSettings, {"block": 4}, "block"),
    ("multi-block", multi_block.train, MultiBlockSettings, {"block": 4}, "multi-block"),
    ("on-policy", on_policy.train, OnPolicySettings, {"block": 4}, "dmax"),
    ("jacobi", jacobi.train, JacobiSettings, {"width": 4, "iterations": 3}, "jacobi"),
    ("adapter", multi_block.train, MultiBlockSettings, {"block": 4, "lora_rank": 2}, "multi-block"),
]


@pytest.mark.parametrize(("name", "train", "settings", "more", "decoder"), RECIPES, ids=[row[0] for row in RECIPES])
def test_a_recipe_learns_saves_and_runs(home: Path, name: str, train: Callable, settings: type, more: dict, decoder: str) -> None:
    one = settings(data=str(home / "data.parquet"), output=str(home / name), base=str(home / "fresh"), **SMALL, **more)
    assert not is_done(one)
    train(one)
    assert is_done(one)
    log = [json.loads(line) for line in (home / name / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4, 6]
    assert log[-1]["loss"] < log[0]["loss"] - 0.02
    model = ModelSettings(name=str(home / name))
    engine, text = build_engine(model, EngineSettings(num_pages=40), decoder), build_text(model)
    with pytest.raises(SettingError, match=r"does not fit|needs a masked diffusion model"):
        build_engine(model, EngineSettings(num_pages=40), "ar" if issubclass(settings, BlockSettings) else "multi-block")
    engine.add(
        Request("a", text.encode("Copy the list: ant bear\n"), Sampling(max_tokens=11, temperature=0, ignore_eos=True), decoder=decoder)
    )
    done = []
    while not done:
        done = engine.step()
    assert len(done[0].samples[0].token_ids) == 11


DRAFTERS: list[tuple[str, Callable[[Any], None], type[TrainSettings], dict[str, Any], dict[str, Any]]] = [
    ("dflash", dflash.train, DFlashSettings, {"block": 5, "anchors": 8, "layers": (0, 1)}, {"width": 4}),
    ("eagle", eagle.train, EagleSettings, {"ahead": 3, "layers": (0, 1)}, {"width": 3}),
    ("medusa", medusa.train, MedusaSettings, {"heads": 3}, {"width": 3, "nodes": 7}),
]


@pytest.mark.parametrize(("name", "train", "settings", "more", "params"), DRAFTERS, ids=[row[0] for row in DRAFTERS])
def test_a_drafter_learns_saves_and_drafts(home: Path, name: str, train: Callable, settings: type, more: dict, params: dict) -> None:
    """The target stays as it is, and the same text comes with the drafter as without."""
    folder = home / f"drafter-{name}"
    one = settings(data=str(home / "data.parquet"), output=str(folder), base=str(home / "fresh"), **SMALL, **more)
    before = (home / "fresh" / "model.safetensors").read_bytes()
    train(one)
    assert is_done(one)
    assert (home / "fresh" / "model.safetensors").read_bytes() == before
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [2, 4, 6]
    assert log[-1]["loss"] < log[0]["loss"] - 0.005
    model = ModelSettings(name=str(home / "fresh"))
    params = {"draft": str(folder), **params}
    engine, text = build_engine(model, EngineSettings(num_pages=40, draft_floor=0), name, params), build_text(model)
    prompt = text.encode("Copy the list: ant bear\n")
    for decoder, own in ((name, params), ("ar", {})):
        engine.add(Request(decoder, prompt, Sampling(max_tokens=17, temperature=0.7, ignore_eos=True), 3, decoder, own))
    done = {}
    while engine.num_unfinished:
        done |= {one.id: one for one in engine.step()}
    assert done[name].samples[0].token_ids == done["ar"].samples[0].token_ids
    assert done[name].stats.drafted > 0


@pytest.mark.parametrize("prompts_alone", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a finished job", "prompts alone"])
def test_a_finished_job_trains_the_drafter_of_the_next(home: Path, ray_address: str, prompts_alone: bool) -> None:
    """From the job's own tokens; prompts are answered by the target first, once, in the output's own folder, by the whole command (its Ray
    is another one than that of the other tests)."""
    data, folder = home / "prompts.parquet", home / f"own-{prompts_alone}"
    pq.write_table(pq.read_table(home / "data.parquet", columns=["prompt"]).slice(0, 6), data)
    if not prompts_alone:
        sampling = {"max_tokens": 9, "temperature": 0.0}
        told = {"input": str(data), "output": str(home / "job"), "model": {"name": str(home / "fresh")}, "sampling": sampling}
        generate(JobSettings.parse({**told, "address": ray_address}), Console())
        data = home / "job"
    settings = MedusaSettings(data=str(data), output=str(folder), base=str(home / "fresh"), answer_tokens=9, **SMALL)
    if prompts_alone:
        given = [f"--set={name}={value}" for name, value in {**SMALL, "answer_tokens": 9}.items()]
        train = command("train", "medusa", str(data), str(folder), "--base", str(home / "fresh"), *given)
        assert train.communicate(timeout=300)[0].count('"step"') == 3
        assert train.returncode == 0
    tokenizer = start(settings)[1]
    corpus = own_answers(settings, tokenizer)
    text = build_text(ModelSettings(name=str(home / "fresh")))
    want = []
    for row in pq.read_table(folder / "answers" if prompts_alone else data).to_pylist():
        sample = row["samples"][0]
        end = [tokenizer.eos_token_id] if sample["finish_reason"] == "stop" else []
        want.append([*text.encode(row["prompt"]), *sample["token_ids"], *end])
    assert sorted(corpus.document(number).tolist() for number in range(len(corpus))) == sorted(want)
    assert len(want) == 6


def test_layers_that_are_not_there_are_refused(home: Path) -> None:
    told = {"data": str(home / "data.parquet"), "output": str(home / "none"), "base": str(home / "fresh"), **SMALL}
    with pytest.raises(SettingError, match="layers: 5 is not one of the base's layers, 0 to 1"):
        eagle.train(EagleSettings(**told, layers=(1, 5)))
    with pytest.raises(SettingError, match="Medusa's heads read what stands behind the last norm"):
        medusa.train(MedusaSettings(**told, layers=(1,)))


def test_a_broken_run_ends_as_an_unbroken_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(name: str) -> TrainSettings:
        return TrainSettings(data=str(home / "data.parquet"), output=str(home / name), base=str(home / "fresh"), **SMALL)

    whole, broken = settings("whole"), settings("broken")
    assert not is_done(whole)
    autoregressive.train(whole)
    seen, loss = [], autoregressive.loss

    def breaks(*arguments: Any) -> torch.Tensor:
        seen.append(1)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return loss(*arguments)

    monkeypatch.setattr(autoregressive, "loss", breaks)
    assert not is_done(broken)
    with pytest.raises(KeyboardInterrupt):
        autoregressive.train(broken)
    assert not is_done(broken)
    monkeypatch.setattr(autoregressive, "loss", loss)
    autoregressive.train(broken)
    one, two = (load_file(home / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_two_workers_train_as_one_with_twice_the_rows(home: Path) -> None:
    """Averaged gradients of two batches: the same loss as the mean of both, after the first step too."""
    common: dict[str, Any] = SMALL | {"rows": 2, "steps": 2, "log_every": 1}
    one = TrainSettings(data=str(home / "data.parquet"), output=str(home / "two"), base=str(home / "fresh"), workers=2, **common)
    assert not is_done(one)
    run(autoregressive.train, one)
    assert is_done(one)
    network: Any
    network, tokenizer = start(one)
    trainee = Trainee(network.float().train())
    optimizer = make_optimizer(trainee, one)
    source = batches(read_corpus(one.data, tokenizer, "prompt", "answer"), 2, 96, 0, tokenizer.eos_token_id)
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = one.learning_rate * schedule(step, one)
        for _ in range(2):
            (autoregressive.loss(trainee, next(source), Generator()) / 2).backward()
        torch.nn.utils.clip_grad_norm_(trainee.parameters(), one.clip)
        optimizer.step()
        optimizer.zero_grad()
    found, wanted = load_file(home / "two/model.safetensors"), network.to(torch.bfloat16).state_dict()
    assert all(torch.allclose(found[key].float(), wanted[key].float(), atol=2e-3) for key in found)
    assert len((home / "two/log.jsonl").read_text().splitlines()) == 2


def test_another_run_in_the_same_folder_is_refused(home: Path) -> None:
    one = TrainSettings(data=str(home / "data.parquet"), output=str(home / "taken"), base=str(home / "fresh"), **SMALL)
    autoregressive.train(one)
    with pytest.raises(SettingError, match="other settings"):
        is_done(one.model_copy(update={"seed": 5}))
    refused = one.model_copy(update={"output": str(home / "refused"), "answer_column": "anwser"})
    assert not is_done(refused)
    with pytest.raises(SettingError, match="no column 'anwser'"):
        autoregressive.train(refused)
    assert not is_done(refused.model_copy(update={"answer_column": "answer"}))  # the corrected command finds a free folder
    with pytest.raises(SettingError, match="cannot be a folder"):
        is_done(one.model_copy(update={"output": str(home / "data.parquet")}))


def test_a_missing_column_is_named(home: Path) -> None:
    _, tokenizer = start(TrainSettings(data="", output="", base=str(home / "fresh")))
    with pytest.raises(SettingError, match="no column 'question'; it has task, prompt, answer, check"):
        read_corpus(str(home / "data.parquet"), tokenizer, "question", "answer")


def test_jacobi_drafts_reach_the_greedy_text(home: Path) -> None:
    """With data that are the model's own greedy answers, as many iterations as a block is wide end in the clean text."""
    settings = JacobiSettings(data="", output="", base=str(home / "fresh"), width=4)
    network, tokenizer = start(settings)
    corpus = read_corpus(str(home / "data.parquet"), tokenizer, "prompt", "answer")
    batch = next(batches(corpus, 3, 96, 1, tokenizer.eos_token_id))
    dice = Generator().manual_seed(0)
    for weight in network.parameters():  # a fresh network repeats its input; this one has a will of its own
        weight.data = torch.randn(weight.shape, generator=dice) / max(weight.shape) ** 0.5 if weight.dim() > 1 else weight.data
    trainee = Trainee(network.eval())
    tokens = batch.tokens.clone()
    for at in range(1, 96):  # make every answer the model's own
        view = autoregressive.clean(batch.document, batch.positions)
        with torch.no_grad():
            logits = trainee(tokens, batch.positions, view, torch.ones_like(batch.answer)).view(3, 96, -1)
        tokens[:, at] = torch.where(batch.answer[:, at] & (batch.positions[:, at] > 0), logits[:, at - 1].argmax(-1), tokens[:, at])
    own = type(batch)(tokens, batch.positions, batch.document, batch.answer)
    drafts = first_drafts(own, 4, Generator().manual_seed(0))
    assert (drafts.tokens != tokens)[drafts.covered].any()
    with torch.no_grad():
        for _ in range(4):
            drafts = iterate(trainee, own, drafts)
    assert drafts.tokens[drafts.covered].equal(tokens[drafts.covered])
    assert loss_with(settings)(trainee, own, Generator().manual_seed(1)) > 0
