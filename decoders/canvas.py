"""What decoders with a resident canvas share. A canvas [S, C] holds a line's positions 0..C-1: prompt, revealed tokens and masks."""

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from drawloom.decoders.step import Lines, Plain, Step
from drawloom.kernels.attention import FULL

T = TypeVar("T")


class WholeCanvas(Plain):
    """A decoder whose canvas, prompt and max_tokens, is resident and visible to every row from the first step on. Nothing is a prefix."""

    in_place = True
    block_tokens = FULL
    max_rows = max_commit = 1  # the canvas is reserved whole

    def committed(self, length: int) -> int:
        return 0

    def held(self, filled: int, limit: int) -> int:
        return limit

    def room(self, filled: int, limit: int) -> int:
        return limit


def open_canvas(lines: Lines, mask_token: int) -> Tensor:
    """[S, C]: the final tokens, and masks behind them."""
    place = torch.arange(lines.history.shape[1], device=lines.length.device)
    return torch.where(place < lines.length[:, None], lines.history, mask_token)


def widened(state: T, lines: Lines, mask_token: int) -> T:
    """The state with every [S, C] tensor as wide as the lines, which may have grown by joining others."""
    struct: Any = state
    width = struct.tokens.shape[1]
    more = lines.history.shape[1] - width
    if more <= 0:
        return state
    wide = {one.name: getattr(struct, one.name) for one in fields(struct)}
    return replace(
        struct,
        **{
            name: pad(value, (0, more), value=mask_token if name == "tokens" else 0)
            for name, value in wide.items()
            if value.dim() == 2 and value.shape[1] == width
        },
    )


def rows_of(tokens: Tensor, start: Tensor, stop: Tensor, asked: Tensor) -> Step:
    """A step that recomputes positions start..stop [S] of canvases [S, C], scored where asked [S, C]."""
    place = start[:, None] + torch.arange(tokens.shape[1], device=start.device)
    valid = place < stop[:, None]
    place = torch.where(valid, place, start[:, None])
    return Step(tokens.gather(1, place), place, place * 0, valid, valid & asked.gather(1, place), place=place)


def predictor(masked: Tensor, shifted: bool) -> Tensor:
    """[S, C]: the rows that predict the masked positions: the ones before them when logits are shifted."""
    return pad(masked[:, 1:], (0, 1)) if shifted else masked


def spread(step: Step, target: Tensor, width: int, *values: Tensor) -> tuple[Tensor, ...]:
    """[S, width] each: values [S, K] of scored rows at the positions target [S, K] that they predict; 0 elsewhere."""
    index = torch.where(step.scored, target, width)
    return tuple(one.new_zeros(len(one), width + 1).scatter(1, index, one)[:, :-1] for one in values)


def final_run(lines: Lines, tokens: Tensor, mask_token: int) -> tuple[Tensor, Tensor]:
    """Canvas index [S, C] of the tokens behind the last final one, and how many are revealed without a gap."""
    index = lines.length[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    inside = index < lines.limit[:, None]
    index = index.clamp(max=tokens.shape[1] - 1)
    return index, (inside & (tokens.gather(1, index) != mask_token)).long().cumprod(1).sum(1)
