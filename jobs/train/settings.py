"""Everything that a training run can be told."""

from typing import Annotated, Literal

from pydantic import Field

from drawloom.settings import Settings

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class TrainSettings(Settings):
    """What all recipes share. A run is a function of these, the data and the base."""

    data: str  # Parquet file or folder
    output: str
    base: str  # folder of the checkpoint to start from
    prompt_column: str | None = "prompt"  # None: the whole text is learned
    answer_column: str = "answer"
    steps: Positive = 2000
    rows: Positive = 32  # packed rows in a step
    row_tokens: Positive = 256
    learning_rate: Annotated[float, Field(gt=0)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    warmup: Share = 0.02  # share of the steps
    clip: Annotated[float, Field(gt=0)] = 1.0
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of products; weights and sums stay float32
    threads: Annotated[int, Field(ge=0)] = 0  # 0: torch's own count
    log_every: Positive = 20
    save_every: Positive = 200
    lora_rank: Annotated[int, Field(ge=0)] = 0  # 0 trains all weights; else an adapter, which is all that is saved
    workers: Positive = 1  # more than one: Ray Train

    @property
    def precision(self) -> str:
        """auto is bfloat16 on a GPU and float32 on a CPU, many of which only emulate bfloat16."""
        return self.dtype if self.dtype != "auto" else "bfloat16" if self.device == "cuda" else "float32"


class BlockSettings(TrainSettings):
    """Block diffusion."""

    block: Positive = 8


class MultiBlockSettings(BlockSettings):
    """MultiTF (MBD-LM): noise groups of up to `most` blocks."""

    most: Annotated[int, Field(ge=2)] = 4
    low: Share = 0.001
    high: Share = 1.0
    random_layouts: Annotated[int, Field(ge=0)] = 1


class OnPolicySettings(MultiBlockSettings):
    """On-policy uniform training (DMax): the model's own guesses fed back."""

    masked: Share = 0.75
    fed_back: Share = 0.5  # share of the documents whose masked positions hold guesses


class DrafterSettings(TrainSettings):
    """A drafter on the hidden states of `base`, which stays as it is."""

    layers: tuple[Annotated[int, Field(ge=0)], ...] = ()  # of the base, counted from 0, whose output it reads; (): a usual choice
    answer_tokens: Positive = 256  # of an answer, when the data holds prompts alone and the base has to write them


class DFlashSettings(DrafterSettings):
    """A block drafter."""

    block: Annotated[int, Field(ge=2)] = 8  # the last token and masks
    depth: Positive = 2  # its own layers
    anchors: Positive = 16  # blocks in a packed row
    decay: Annotated[float, Field(gt=0)] = 4.0  # a place k tokens on weighs exp(-(k - 1) / decay)


class EagleSettings(DrafterSettings):
    """EAGLE-3: one layer, trained on its own output."""

    ahead: Positive = 5  # tokens it is trained to go on by itself


class MedusaSettings(DrafterSettings):
    """Medusa heads on the last hidden state."""

    heads: Positive = 4
    decay: Annotated[float, Field(gt=0)] = 4.5  # head k weighs exp(-k / decay)


class JacobiSettings(TrainSettings):
    """Jacobi forcing: learn the fixed point from states of one's own trajectories."""

    width: Positive = 16  # tokens of a Jacobi block
    iterations: Positive = 8  # at most, in a trajectory
