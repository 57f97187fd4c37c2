"""From settings to an engine, a tokenizer or a fingerprint. Heavy imports happen inside: a driver that only plans never pays for them."""

from drawloom.actors.fake import FakeEngine, FakeText
from drawloom.actors.request import EngineLike
from drawloom.models.settings import ModelSettings
from drawloom.models.text import Text


def build_engine(model: ModelSettings) -> EngineLike:
    """The engine of a replica. Raises SettingError when the checkpoint cannot be found, read or run here."""
    if model.name == "fake":
        return FakeEngine()
    raise AssertionError(model.name)


def build_text(model: ModelSettings) -> Text:
    """The tokenizer that belongs to a model, without its weights. Raises SettingError when there is none."""
    if model.name == "fake":
        return FakeText()
    raise AssertionError(model.name)
