"""From settings to an engine, a tokenizer or a fingerprint. Heavy imports happen inside: a driver that only plans never pays for them."""

from collections.abc import Mapping, Sequence

from drawloom.actors.fake import FakeEngine, FakeText
from drawloom.actors.request import EngineLike
from drawloom.actors.settings import EngineSettings
from drawloom.models.settings import ModelSettings
from drawloom.models.text import Text


def build_engine(
    model: ModelSettings,
    engine: EngineSettings,
    decoder: str | None = None,
    decoder_params: Mapping[str, float | int | str] | None = None,
    past: Sequence[Sequence[int]] = (),
) -> EngineLike:
    """The engine of a replica, for jobs whose rows use `decoder` unless they say otherwise (None: every row will say). `past`: token ids
    of texts that drafters which remember begin with.

    Raises SettingError when the checkpoint cannot be found, read or run here, or that decoder does not fit it.
    """
    if model.name == "fake":
        return FakeEngine(engine.max_sequences)
    from drawloom.actors.checks import fitting
    from drawloom.actors.engine import Engine

    if model.name == "hash":
        from drawloom.models.hash_lm import HashLM

        network, device = HashLM(), "cpu"
    else:
        from drawloom.models.load import device_of, load_model

        network, device = load_model(model), device_of(model)
    if decoder is not None:
        fitting(decoder, decoder_params or {}, network.info)
    return Engine(network, build_text(model), engine, device=device, past=past)


def build_text(model: ModelSettings) -> Text:
    """The tokenizer that belongs to a model, without its weights. Raises SettingError when there is none."""
    if model.name == "fake":
        return FakeText()
    if model.name == "hash":
        from drawloom.models.hash_lm import HashText

        return HashText()
    from drawloom.models.tokenizer import load_text

    return load_text(model)


def fingerprint(model: ModelSettings) -> str:
    """What changes when weights, config or tokenizer do; reads files, loads nothing. Raises SettingError when there are none."""
    if model.name in ("fake", "hash"):
        return f"{model.name}-1"
    from drawloom.models.checkpoint import locate

    return locate(model).fingerprint()
