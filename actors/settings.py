"""How one engine is sized."""

from typing import Literal

from pydantic import Field

from drawloom.settings import Settings


class EngineSettings(Settings):
    """None of these changes the text of a reproducible job."""

    max_sequences: int = Field(default=32, ge=1, description="sequences that decode together")
    prefill_rows: int = Field(default=512, ge=1, description="prompt tokens that one step may process")
    page_tokens: int = Field(default=16, ge=1, description="tokens of one K/V page")
    num_pages: int | None = Field(default=None, ge=1, description="K/V pages; null: as many as kv_gib holds")
    kv_gib: float = Field(default=2.0, gt=0, description="memory for K/V pages in GiB")
    share_prefix: bool = True
    window: int = Field(default=256, ge=1, description="waiting requests that may be reordered by prefix and length")
    pack: Literal["auto", "exact", "padded"] = Field(
        default="auto",
        description="padded: every sequence takes its recipe's full row count (fixed shapes for CUDA graphs); auto: exact on CPU",
    )
    draft_floor: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="share of drafted tokens to be accepted when a drafter on hidden states is tried, if its files do not say; 0: no trial",
    )
    drafts_from: str | None = Field(
        default=None, description="output folder of an earlier job, whose texts drafters that remember (suffix) begin with"
    )
