"""From settings to an engine, a tokenizer or a fingerprint. Heavy imports happen inside: a driver that only plans never pays for them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drawloom.actors.fake import FakeEngine, FakeText
from drawloom.actors.request import EngineLike
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.models.settings import ModelSettings
from drawloom.models.text import Text

if TYPE_CHECKING:
    from drawloom.decoders.drafting import Drafting
    from drawloom.models.drafters.contract import FeatureDrafter
    from drawloom.models.ragged import Model

PROBE = 'Draft: 3 cats, 17 dogs; naïve café {"x": [1, 2]}\n\tEnd.'  # two tokenizers that agree on this are taken for one


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
    drafts, asked = {}, None if decoder is None else fitting(decoder, decoder_params or {}, network.info).drafting
    if asked is not None:
        drafts = {asked.model: load_draft(asked, model, network)}
    built = Engine(network, build_text(model), engine, device=device, past=past, drafts=drafts)
    if asked is not None and asked.kind != "network" and engine.draft_floor:
        from drawloom.actors.probe import probe

        probe(built, asked.model, getattr(drafts[asked.model], "trial", None), engine.draft_floor)
    return built


def load_draft(asked: "Drafting", target: ModelSettings, running: "Model") -> "Model | FeatureDrafter":
    """A network that drafts for the target, which `running` is. Raises SettingError when it is none, or speaks in other tokens."""
    from drawloom.actors.drafting import why_not_drafting

    name, info = asked.model, running.info
    if asked.kind != "network":
        from drawloom.models.checkpoint import PICKLED, locate
        from drawloom.models.drafters.load import load_drafter
        from drawloom.models.transformer import TransformersModel

        if not isinstance(running, TransformersModel):
            raise SettingError(f"model {info.name!r} has no hidden states that a drafter could read; take a real one")
        drafter = load_drafter(locate(target.model_copy(update={"name": name, "revision": None}), PICKLED), running)
        if drafter is None:
            raise SettingError(f"draft model {name!r} is a model of its own, not one on a target's features; use the decoder draft-model")
        if fault := why_not_drafting(asked, drafter):
            raise SettingError(fault)
        return drafter
    if name == "hash":
        from drawloom.models.hash_lm import HashLM

        network: Model = HashLM()
    else:
        from drawloom.models.load import load_model

        network = load_model(target.model_copy(update={"name": name, "revision": None}))
    own, other = build_text(target), build_text(target.model_copy(update={"name": name, "revision": None}))
    if network.info.mask_token_id is not None and name != "hash":
        raise SettingError(f"draft model {name!r} is a diffusion model; an autoregressive one is needed")
    if network.info.vocab_size != info.vocab_size or own.encode(PROBE) != other.encode(PROBE):
        raise SettingError(
            f"draft model {name!r} has another tokenizer than {target.name!r} ({network.info.vocab_size} and {info.vocab_size} tokens); "
            "a smaller model of the same family is needed"
        )
    return network


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
