"""The texts of a finished job, for drafters that remember: a job drafts from what an earlier one said."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from drawloom.actors.build import build_engine
from drawloom.actors.request import EngineLike
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.models.settings import ModelSettings
from drawloom.pipelines.commits import log_of
from drawloom.pipelines.manifests import decode_part, part_path
from drawloom.pipelines.verify import Folder, read_folder

MOST = 1 << 20  # tokens of earlier texts that a replica reads


def engine_with_past(
    model: ModelSettings, engine: EngineSettings, decoder: str | None, decoder_params: Mapping[str, float | int | str] | None
) -> EngineLike:
    """build_engine with the texts of engine.drafts_from. Raises SettingError as both do."""
    past: Any = past_texts(engine.drafts_from, MOST) if engine.drafts_from else ()
    return build_engine(model, engine, decoder, decoder_params, past)


def past_texts(output: str, most: int) -> list[np.ndarray]:
    """Token ids of the samples of an output folder, at most about `most` tokens: of its last units, in their order. int32 arrays.

    Raises SettingError when the folder holds no job or nothing is committed in it.
    """
    folder, texts, tokens = read_folder(output), [], 0
    for table in _parts_from_the_end(folder):
        if tokens >= most:
            break
        ids = _token_ids(table)
        tokens += sum(map(len, ids))
        texts = ids + texts
    if not texts:
        raise SettingError(f"{folder.store.uri} has no finished texts to draft from; let its job get on, or name another folder")
    return texts


def _parts_from_the_end(folder: Folder) -> Iterator[pa.Table]:
    log = log_of(folder.store, folder.stored, folder.plan)
    for unit in reversed(list(folder.plan.units())):
        if folder.ledger.settled(unit.id) is not None:
            yield decode_part(folder.store.read(part_path(unit.id)), unit, log.job_id, log.schema)


def _token_ids(table: pa.Table) -> list[np.ndarray]:
    """Of every sample: the one column that is a list of structs with token ids."""
    for column in table.columns:
        kind = column.type
        if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index("token_ids") >= 0:
            samples = column.combine_chunks().flatten()
            return [np.array(ids, dtype=np.int32) for ids in samples.field("token_ids").to_pylist() if ids]
    return []
