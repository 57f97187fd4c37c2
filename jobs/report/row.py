"""One row decoded again, with a trace."""

from collections.abc import Mapping
from pathlib import Path

from drawloom.actors.build import build_engine, build_text
from drawloom.actors.engine import Engine
from drawloom.actors.request import Request, Sampling
from drawloom.actors.settings import EngineSettings
from drawloom.decoders.recipe import Value
from drawloom.errors import SettingError
from drawloom.jobs.report.decode_map import report_map
from drawloom.jobs.train.tasks import rows
from drawloom.models.settings import ModelSettings

MAX_TOKENS = 96  # more would not fit a picture


def held_out_prompt(row: int) -> str:
    """The prompt of a held-out task."""
    return list(rows("held-out", 0, row + 1))[row].prompt


def trace_row(model: str, decoder: str, params: Mapping[str, Value], prompt: str, seed: int, folder: Path) -> list[Path]:
    """Decode a prompt alone and greedily, and draw its map. Raises SettingError and RowError as an engine does."""
    settings = ModelSettings(name=model)
    engine, text = build_engine(settings, EngineSettings(max_sequences=1), decoder, params), build_text(settings)
    if not isinstance(engine, Engine):
        raise SettingError(f"model {model!r} has no network to look into; name another")
    ids, sampling = text.encode(prompt), Sampling(max_tokens=MAX_TOKENS, temperature=0.0)
    engine.add(Request("row", ids, sampling, seed=seed, decoder=decoder, decoder_params=params, trace=True))
    done = []
    while not done:
        done = engine.step()
    sample = done[0].samples[0]
    assert sample.reveals is not None
    tokens = [text.decode([token]) for token in sample.token_ids] + ["■"] * (len(sample.reveals) - len(sample.token_ids))
    block = engine.model.info.block_tokens
    return report_map(sample, tokens, len(ids), block, f"{model}, {decoder}: {prompt.strip()[:80]}", folder)
