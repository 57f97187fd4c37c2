"""The benchmark on a tiny network: answers are compared before speeds, peers speak lines, wrong ones are named."""

import json
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from drawloom.errors import DrawloomError, SettingError
from drawloom.jobs.bench.compare import Measurement, differences, measure
from drawloom.jobs.bench.limits import Machine, Network, limits, measure_machine, size_of
from drawloom.jobs.bench.remote import PEERS, SCRIPTS, PeerError, Remote, requirements
from drawloom.jobs.bench.report import line_of, table_of
from drawloom.jobs.bench.run import Plan, run_peers
from drawloom.jobs.bench.systems import Run
from drawloom.jobs.bench.workload import Prompt, Source, Workload, workloads
from drawloom.jobs.train.tasks import rows as tasks

SENTENCE = "the warp and weft of a loom hold threads in line while shuttles cross from left to right and back again until cloth is made"
WORDS = SENTENCE.split()
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}[go]"
WORKLOAD = Workload("pair", (Prompt((1, 2, 3), 4), Prompt((5,), 3)), 2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama with random weights and a tokenizer of whole words."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, bos_token_id=None, eos_token_id=1, pad_token_id=0, initializer_range=0.4, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(["[pad]", "[eos]", "[unk]", "[go]", *dict.fromkeys(WORDS)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[unk]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="[eos]", pad_token="[pad]", unk_token="[unk]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty chats of 2 to 59 words, half of them of kind extraction."""
    rows = [
        {"kind": "extraction" if i % 2 else "chat", "messages": [{"role": "user", "content": " ".join((WORDS * 3)[i : 4 * i + 2])}]}
        for i in range(20)
    ]
    path = tmp_path_factory.mktemp("prompts") / "prompts.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_every_system_gives_the_same_answers_and_a_speed(checkpoint: Path, prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan(prompts, str(checkpoint), (), ("ragged-16", "extraction-1"), rounds=1, new_tokens=4, threads=1)
    console = Console(record=True, width=200, quiet=False, stderr=True)
    assert run_peers(plan, console)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    systems = ["transformers", "drawloom ar", "drawloom ar, padded", "transformers continuous"]
    assert Counter(line["workload"] for line in lines) == {"ragged-16": 4, "extraction-1": 6}
    assert [line["system"] for line in lines] == [*systems, *systems, "drawloom lookup", "transformers lookup"]
    assert all(line["tokens_per_s"] > 0 and line["ratios"]["transformers"] > 0 for line in lines)
    assert all(line["hardware"]["threads"] == 1 and line["commit"] and line["dtype"] == "float32" for line in lines)
    assert len({sum(line["tokens"]) for line in lines if line["workload"] == "ragged-16"}) == 1
    ours = [line for line in lines if line["system"] == "drawloom ar"]
    assert all(0.0 < line["outside_forward"] < 1.0 and line["forwards"] > 0 for line in ours)
    assert all(line["limits_tokens_per_s"]["memory, packed weights"] >= line["limits_tokens_per_s"]["memory"] for line in lines)
    assert "memory, packed weights " in console.export_text()


def test_a_smaller_model_drafts_in_both(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone and in a batch of ours, alone in transformers'; prompts are tasks."""
    task = {"task": "copy", "prompt": "the the the", "answer": "", "check": ""}
    rows = [{**task, "prompt": " ".join((WORDS * 3)[i : 3 * i + 2])} for i in range(16)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    plan = Plan(tmp_path / "tasks.parquet", str(checkpoint), (), ("single", "padded-8"), 1, 4, 1, assistant=str(checkpoint))
    assert run_peers(plan, Console(quiet=True, stderr=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["system"] for line in lines if line["workload"] == "single"][-2:] == ["drawloom draft-model", "transformers assisted"]
    assert [line["system"] for line in lines if line["workload"] == "padded-8"][-1] == "drawloom draft-model"
    ours = next(line for line in lines if line["system"] == "drawloom draft-model")
    assert ours["acceptance"] == 1.0  # it drafts for itself
    assert ours["tokens_per_forward"] > 1.5


def test_a_drafter_on_hidden_states_drafts_in_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"task": "copy", "prompt": task.prompt, "answer": "", "check": ""} for task in tasks("held-out", 1, 16, ("copy",))]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "tasks.parquet")
    plan = Plan(tmp_path / "tasks.parquet", "tiny-ar", (), ("single",), 1, 8, 1, assistant="tiny-dflash")
    assert run_peers(plan, Console(quiet=True, stderr=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "transformers assisted" not in [line["system"] for line in lines]
    ours = next(line for line in lines if line["system"] == "drawloom dflash")
    assert ours["tokens_per_forward"] > 1.5


def test_unknown_names_are_refused_before_anything_is_loaded(checkpoint: Path, prompts: Path) -> None:
    with pytest.raises(SettingError, match="did you mean 'ctranslate2'"):
        run_peers(Plan(prompts, str(checkpoint), ("ctranslate",), (), 1, 4, 1), Console())
    with pytest.raises(SettingError, match="did you mean 'ragged-16'"):
        run_peers(Plan(prompts, str(checkpoint), (), ("ragged",), 1, 4, 1), Console())


class Fixed:
    """A system with answers fixed beforehand, a new speed every pass."""

    def __init__(self, name: str, *answers: tuple[tuple[int, ...], ...], seconds: float = 1.0) -> None:
        self.name, self.answers, self.seconds, self.passes = name, answers, seconds, 0

    def run(self, workload: Workload) -> Run:
        self.passes += 1
        return Run(self.answers[min(self.passes, len(self.answers)) - 1], self.seconds * self.passes)


RIGHT = ((7, 8, 9, 9), (4, 4, 4))
WRONG = ((7, 8, 9, 9), (4, 5, 4))


def judge_of(gap: float):
    def judge(text, token, expected) -> float:
        assert list(text) == [5, 4]
        assert (token, expected) == (5, 4)
        return gap

    return judge


def test_a_wrong_answer_has_no_speed() -> None:
    right, wrong = measure(WORKLOAD, [Fixed("a", RIGHT), Fixed("b", WRONG)], judge_of(0.5), rounds=2)
    assert len(right.runs) == 2
    assert wrong.fault == "answers differ: prompt 1, token 1: 5 for 4, logit gap 0.5"
    assert wrong.runs == []
    assert "tokens_per_s" not in json.loads(line_of(wrong, [right, wrong], {}, {}))
    console = Console(record=True, width=200, quiet=True)
    console.print(table_of([right, wrong], {"memory": 1.0}))


def test_an_answer_that_turns_wrong_later_loses_its_speed() -> None:
    _, late = measure(WORKLOAD, [Fixed("a", RIGHT), Fixed("b", RIGHT, RIGHT, WRONG)], judge_of(0.5), rounds=3)
    assert late.fault.startswith("answers differ")


def test_a_near_tie_is_counted_and_keeps_its_speed() -> None:
    _, near = measure(WORKLOAD, [Fixed("a", RIGHT), Fixed("b", WRONG)], judge_of(5e-5), rounds=1)
    assert (near.fault, near.near_ties, len(near.runs)) == ("", 1, 1)


def test_ratios_are_medians_within_rounds() -> None:
    first, second = measure(WORKLOAD, [Fixed("a", RIGHT, seconds=2.0), Fixed("b", RIGHT, seconds=1.0)], judge_of(0.0), rounds=3)
    assert first.speeds == [7 / 4, 7 / 6, 7 / 8]
    assert second.ratio(first) == 2.0
    first.runs[0] = Run(RIGHT, 400.0)
    assert second.ratio(first) == 2.0


def test_the_reference_must_not_fail() -> None:
    class Broken:
        name = "broken"

        def run(self, workload: Workload) -> Run:
            raise RuntimeError("no memory")

    with pytest.raises(DrawloomError, match="the reference broken failed on pair: failed: no memory"):
        measure(WORKLOAD, [Broken(), Fixed("a", RIGHT)], judge_of(0.0), rounds=1)
    _, broken = measure(WORKLOAD, [Fixed("a", RIGHT), Broken()], judge_of(0.0), rounds=1)
    assert broken.fault == "failed: no memory"


def test_a_missing_end_is_a_difference() -> None:
    short = Run(((7, 8, 9), (4, 4, 4)), 1.0)
    (found,) = differences(WORKLOAD, short, Run(RIGHT, 1.0), lambda text, token, expected: 3.0)
    assert (found.place, found.token, found.reference, found.is_near_tie) == (3, None, 9, False)


PEER = """
import sys
sys.path.insert(0, {folder!r})
from serve_lines import serve

def build():
    print("noise on stdout")
    def answer(prompts, num_new, ends):
        if ends:
            raise SystemExit(3)
        return [[sum(prompt)] * count for prompt, count in zip(prompts, num_new)]
    return answer

serve(["pytest"], build)
"""


def test_a_peer_answers_lines_and_its_end_is_explained(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(PEER.format(folder=str(SCRIPTS)))
    with Remote("toy", [sys.executable, str(script)], {}, tmp_path / "log") as peer:
        assert peer.versions == {"pytest": pytest.__version__}
        run = peer.run(WORKLOAD)
        assert run.token_ids == ((6, 6, 6, 6), (5, 5, 5))
        assert 0.0 < run.seconds < 5.0
        with pytest.raises(PeerError, match="toy ended with exit code 3: noise on stdout"):
            peer.run(Workload("ending", WORKLOAD.prompts, 1, ends=True))


def test_what_a_peer_needs_is_read_from_its_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "x-1-py3-none-any.whl"
    needs = ["torch==2", "Numpy>=2 ; python_version > '3'", "y ; extra == 'z'"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "".join(f"Requires-Dist: {need}\n" for need in needs))
    assert requirements(wheel, frozenset({"torch"})) == ["Numpy>=2 ; python_version > '3'"]
    assert all((SCRIPTS / recipe.script).is_file() for recipe in PEERS.values())


def test_workloads_hold_what_their_names_say() -> None:
    sources = [Source("extraction" if i % 3 == 0 else "chat", tuple(range(10 + 5 * i))) for i in range(40)]
    found = {workload.name: workload for workload in workloads(sources, 20)}
    assert {name: workload.batch for name, workload in found.items()} == {
        "single": 1, "padded-8": 8, "padded-16": 16, "ragged-16": 16, "extraction-1": 1, "extraction-8": 8,
    }  # fmt: skip
    ragged = found["ragged-16"]
    assert len(ragged.chunks) == 1
    assert max(p.num_new for p in ragged.prompts) == 10 * min(p.num_new for p in ragged.prompts)
    assert max(len(p.token_ids) for p in ragged.prompts) > 10 * min(len(p.token_ids) for p in ragged.prompts)
    assert {p.num_new for p in found["padded-16"].prompts} == {20}
    with pytest.raises(SettingError, match="at least 16 and 8"):
        workloads(sources[:9], 20)


def test_limits_count_forwards_and_rows() -> None:
    bounds = limits(Machine(read_bytes_s=100.0, flops=1000.0), Network(weight_bytes=50, num_parameters=10), WORKLOAD, 7)
    assert bounds == {"memory": 7 / (4 * 0.5), "arithmetic": 7 / ((4 + 7) * 20 / 1000)}


def test_sizes_are_measured(checkpoint: Path) -> None:
    network = LlamaForCausalLM.from_pretrained(checkpoint)
    tied = size_of(network)
    assert tied.weight_bytes == 4 * tied.num_parameters == 4 * sum(p.numel() for p in network.parameters())
    assert Measurement(WORKLOAD, "x").detail("forwards") is None
    machine = measure_machine()
    assert 1e8 < machine.read_bytes_s < 1e13
    assert 1e8 < machine.flops < 1e14
