"""The command: exit codes, messages, and what it prints into a pipe. Jobs that need Ray run once."""

import subprocess
from pathlib import Path

import pytest
from job_rig import command, content, job, plainly, prompts, write


def drawloom(*arguments: str) -> tuple[int, str]:
    process = command(*arguments)
    try:
        said, _ = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, said


@pytest.fixture
def source(tmp_path: Path) -> str:
    return write(tmp_path / "in.parquet", prompts(40, {5: "[[fake rowerror no such yarn]]", 6: "[[fake slow 1]]"}))


def test_a_whole_job_in_a_pipe(source: str, tmp_path: Path) -> None:
    """Its own Ray, a config file, a row that fails: 3. Run again: the same, at once. Then status and verify."""
    config = tmp_path / "job.yaml"
    settings = ["model: fake", "replicas: 2", "rows_per_unit: 8", "sampling: {max_tokens: 16}", "engine: {max_sequences: 4}"]
    config.write_text("\n".join(settings))
    output = str(tmp_path / "out")
    code, said = drawloom("generate", "--config", str(config), "--seed", "9", source, output)
    assert code == 3, said
    words = ["40, 39 completed, 1 errors", "error fake", "tokens per forward", "slowest rows of this run", "in.parquet:6", "ETA"]
    assert [word for word in [*words, f"output: {output}"] if word not in said] == []
    assert "ray" not in said.lower()
    assert "\x1b" not in said
    assert content(output) == plainly(job(source, tmp_path / "plain", seed=9))
    code, said = drawloom("generate", "--config", str(config), "--seed", "9", source, output)
    assert (code, said.count("\n")) == (3, 1)
    assert "nothing to do: all 40 rows" in said
    code, said = drawloom("generate", "--config", str(config), "--seed", "8", source, output)
    assert code == 2
    assert "belongs to another job: seed is 9 there, 8 here" in " ".join(said.split())
    code, said = drawloom("status", output)
    assert (code, "finished" in said) == (0, True)
    code, said = drawloom("verify", output, "--deep")
    assert (code, "40 of 40 rows have exactly one outcome" in " ".join(said.split())) == (0, True)
    next(Path(output).glob("part-00000002*")).unlink()
    code, said = drawloom("verify", output)
    assert code == 1, said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "none.parquet", "out", "--model", "fake"], "none.parquet"),
        (["generate", "IN", "out", "--model", "fake", "--temperature", "-1"], "sampling.temperature"),
        (["generate", "IN", "out", "--model", "fake", "--prompt-column", "promt"], "did you mean 'prompt'"),
        (["generate", "IN", "out", "--model", "no/such-model"], "no/such-model"),
        (["generate", "IN", "out", "--model", "fake", "--decoder", "lokup"], "did you mean 'lookup'?"),
        (["generate", "IN", "IN", "--model", "fake"], "is a file; name a folder"),
        (["generate", "IN", "out", "--model", "fak"], "did you mean 'fake'?"),
        (["generate", "IN", "out", "--decoder-params", "block"], "NAME=VALUE"),
        (["generate", "IN", "out", "--temprature", "1"], "--temperature"),
        (["generate", "IN"], "output: Field required"),
        (["status", "out"], "holds no job"),
        (["verify", "out"], "holds no job"),
    ],
)
def test_wrong_settings_are_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = drawloom(*[source if argument == "IN" else argument for argument in arguments])
    assert code == 2, said
    assert words in " ".join(said.split())
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/part-*"))
    assert not (tmp_path / "out/_drawloom/job.yaml").exists()  # the corrected command finds a free folder


def test_recipes_are_listed() -> None:
    code, said = drawloom("recipes")
    assert (code, "lookup" in said) == (0, True)
