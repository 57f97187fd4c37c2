"""The texts of a finished job, for drafters that remember: a job drafts from what an earlier one said."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from drawloom.actors.build import build_engine
from drawloom.actors.request import EngineLike
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.models.settings import ModelSettings
from drawloom.pipelines.commits import log_of
from drawloom.pipelines.manifests import decode_part, part_path
from drawloom.pipelines.verify import read_folder

MOST = 1 << 20  # tokens of earlier texts that a replica reads


def engine_with_past(
    model: ModelSettings, engine: EngineSettings, decoder: str | None, decoder_params: Mapping[str, float | int | str] | None
) -> EngineLike:
    """build_engine with the texts of engine.drafts_from. Raises SettingError as both do."""
    past: Any = past_texts(engine.drafts_from, MOST) if engine.drafts_from else ()
    return build_engine(model, engine, decoder, decoder_params, past)


def past_texts(output: str, most: int) -> list[np.ndarray]:
    """Token ids of the samples of an output folder, int32: of its last units, in their order, and no more units than give `most` tokens.

    Raises SettingError when the folder holds no job or nothing is committed in it.
    """
    folder, parts, tokens = read_folder(output), [], 0
    log = log_of(folder.store, folder.stored, folder.plan)
    for unit in reversed(list(folder.plan.units())):
        if tokens >= most:
            break
        if folder.ledger.settled(unit.id) is not None:
            table = decode_part(folder.store.read(part_path(unit.id)), unit, log.job_id, log.schema)
            samples = table[log.roles.outputs["samples"]].combine_chunks().flatten()
            parts.append([np.array(ids, dtype=np.int32) for ids in samples.field("token_ids").to_pylist() if ids])
            tokens += sum(map(len, parts[-1]))
    if not tokens:
        raise SettingError(f"{folder.store.uri} has no finished texts to draft from; let its job get on, or name another folder")
    return [text for part in reversed(parts) for text in part]
