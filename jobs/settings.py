"""Everything a `generate` job can be told, from flags, a YAML file or Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator

import drawloom
from drawloom.actors.build import fingerprint
from drawloom.actors.keeper import ReplicaSettings
from drawloom.actors.settings import EngineSettings
from drawloom.errors import SettingError
from drawloom.models.settings import ModelSettings
from drawloom.pipelines.identity import JobIdentity
from drawloom.pipelines.rows import RowSettings
from drawloom.pipelines.shape import Shape, local_cores

TEXT_OF_MODEL = {"dtype", "device", "compile"}  # its weights are in the fingerprint, wherever they lie
WORDS = {"embedded", "hash", "fake"}  # models that are no path
TEXT_OF_ROWS = {"columns", "sampling", "decoder", "decoder_params", "seed"}


class JobSettings(RowSettings):
    """A job: what is read, which model completes it and how, where the outcome goes, and on how many replicas."""

    input: str | tuple[str, ...] = Field(description="file, folder or glob of Parquet, JSONL or CSV, local or s3://; or a list of these")
    output: str = Field(description="folder for the completed rows, local or s3://bucket/prefix")
    model: ModelSettings = ModelSettings()
    engine: EngineSettings = EngineSettings()
    rows_per_unit: int | None = Field(None, ge=1, description="rows that are committed together; null: by the size of the input")
    replicas: int = Field(1, ge=1, le=4096, description="engines that work side by side")
    cpus_per_replica: float | None = Field(None, gt=0, description="null: this machine's cores divided by the replicas; 1 on a cluster")
    gpus_per_replica: float = Field(0.0, ge=0, description="0 runs on CPU; 0.5 lets two replicas share a GPU")
    address: str | None = Field(None, description="of a Ray cluster, or 'auto' for this machine's; null: a Ray of its own")
    wait_for_nodes_s: float = Field(0.0, ge=0, description="how long a cluster may take to grow until the replicas fit")
    units_in_flight: int | None = Field(None, ge=1, le=256, description="units that a replica works on at a time; null: by its sequences")
    step_timeout_s: float = Field(900.0, gt=0, description="a single step of an engine that takes longer is a hang")
    start_timeout_s: float = Field(1800.0, gt=0, description="for an engine to load its model")
    lost_after_s: float = Field(120.0, gt=0, description="silence after which a replica counts as lost")
    progress: Literal["auto", "bar", "lines", "none"] = Field("auto", description="auto: a bar on a terminal, lines elsewhere")

    @field_validator("model", mode="before")
    @classmethod
    def _one_word_is_its_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @field_validator("model")
    @classmethod
    def _found_from_anywhere(cls, value: ModelSettings) -> ModelSettings:
        """Workers stand elsewhere: a path in this working directory becomes absolute."""
        is_path = value.name not in WORDS and Path(value.name).expanduser().exists()
        return value.model_copy(update={"name": str(Path(value.name).expanduser().resolve())}) if is_path else value

    @property
    def threads(self) -> int:
        """Threads of an engine's network: the CPUs of its replica; on this machine, if nobody says, its share of the cores."""
        if self.cpus_per_replica is None:
            return 1 if self.address else max(1, local_cores() // self.replicas)
        return max(1, int(self.cpus_per_replica))

    @property
    def shape(self) -> Shape:
        """What the replicas take of the cluster. A Ray of our own counts one CPU each: nobody else competes for them."""
        return Shape(self.replicas, (self.cpus_per_replica or 1.0) if self.address else 1.0, self.gpus_per_replica)

    @property
    def replica(self) -> ReplicaSettings:
        return ReplicaSettings(threads=self.threads, start_timeout_s=self.start_timeout_s, step_timeout_s=self.step_timeout_s)

    def in_flight(self, rows_per_unit: int) -> int:
        """Units that one replica works on at a time: enough rows that a finished sequence always has a successor at hand."""
        return self.units_in_flight or max(2, -(-2 * self.engine.max_sequences // rows_per_unit))

    def identity(self) -> JobIdentity:
        """What may not change within one output folder. Reads the model's files; raises SettingError when there are none."""
        told = self.model_dump(mode="json", exclude={"input", "output"})
        config = {name: told[name] for name in sorted(TEXT_OF_ROWS)}
        config["model"] = {name: told["model"][name] for name in sorted(TEXT_OF_MODEL)}
        return JobIdentity(config, fingerprint(self.model), drawloom.__version__, {name: told[name] for name in told.keys() - TEXT_OF_ROWS})


def load_settings(config: str | None, flags: Mapping[str, Any]) -> JobSettings:
    """Settings from a YAML file, overridden by flags (nested as in the file). Raises SettingError naming file, key and nearest name."""
    if config is None:
        return JobSettings.parse(flags)
    return JobSettings.parse(merged(_read_yaml(config), flags), f"{config} and flags")


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below` with the leaves of `above` put over it."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _read_yaml(path: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError(f"{path}: cannot be read as a YAML file: {error}") from None
    if not isinstance(found, dict):
        raise SettingError(f"{path} holds {type(found).__name__}, but a mapping of settings is needed, such as `model: embedded`")
    if isinstance(found.get("model"), str):
        found["model"] = {"name": found["model"]}
    return found
