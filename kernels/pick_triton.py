"""The Triton kernels of kernels/pick.py: one pass over the vocabulary of each row, from logits or, fused with the head, from hidden states.

Of a row these are kept: the token with the largest (noisy) score, its logit, the largest logit and the second, and two sums, from which the
log-sum-exp and the entropy follow. The fused kernel multiplies hidden states by tiles of the head's weight, keeps these of every tile, and
forgets the logits; a second pass joins the tiles in their order.
"""
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawloom.kernels.noise_triton import gumbel_tile
from drawloom.kernels.sizes import next_power

KEPT = 7  # numbers of a row and tile: score, token, its logit, largest, second largest, sum of exp(x - largest), of x exp(x - largest)


class Statistics(NamedTuple):
    """What one pass over each row's vocabulary gives."""

    token: Tensor  # [L] int64
    logprob: Tensor  # [L] float32, of token, natural logarithm
    margin: Tensor  # [L] float32, best probability minus second best
    entropy: Tensor  # [L] float32, nats


@triton.jit
def _take(x, score, token, b_score, b_token, b_own, b_max, b_second, b_sum, b_dot):
    """A row's running values [B] with logits x and scores [B, N] of tokens [1, N] taken up."""
    top = tl.max(score, 1)
    here = tl.min(tl.where(score == top[:, None], token, 2147483647), 1)
    own = tl.max(tl.where(token == here[:, None], x, float("-inf")), 1)
    wins = top > b_score  # tiles come in the order of their tokens, so the lower one among equals is there already
    b_score, b_token, b_own = tl.where(wins, top, b_score), tl.where(wins, here, b_token), tl.where(wins, own, b_own)
    most = tl.max(x, 1)
    first = tl.min(tl.where(x == most[:, None], token, 2147483647), 1)
    second = tl.max(tl.where(token == first[:, None], float("-inf"), x), 1)
    b_second = tl.maximum(tl.minimum(b_max, most), tl.maximum(b_second, second))
    fresh = tl.maximum(b_max, most)
    calm = tl.where(fresh == float("-inf"), 0.0, fresh)
    shrink, weight = tl.exp(b_max - calm), tl.exp(x - calm[:, None])
    b_sum = b_sum * shrink + tl.sum(weight, 1)
    b_dot = b_dot * shrink + tl.sum(weight * tl.where(x == float("-inf"), 0.0, x), 1)
    return b_score, b_token, b_own, fresh, b_second, b_sum, b_dot


@triton.jit
def _nothing(ROWS: tl.constexpr):
    """Running values of rows before anything was seen."""
    least, zero = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    return least, tl.full([ROWS], 2147483647, tl.int32), least, least, least, zero, zero


@triton.jit
def _scores(choice, p_temperature, p_seed, p_sample, p_position, row, there, first, ROWS: tl.constexpr, N: tl.constexpr):
    """What rows [ROWS] choose by among tokens from `first` on: choice [ROWS, N] / temperature + noise, or as it is at temperature 0."""
    temperature = tl.load(p_temperature + row, mask=there, other=0.0)
    seed, sample = tl.load(p_seed + row, mask=there, other=0), tl.load(p_sample + row, mask=there, other=0)
    position = tl.load(p_position + row, mask=there, other=0)
    noise = gumbel_tile(seed[:, None], sample[:, None], position[:, None], first, 0, ROWS, N // 4)
    warm = (temperature > 0)[:, None]
    return tl.where(warm, choice / tl.where(warm, temperature[:, None], 1.0) + noise, choice)


@triton.jit
def _end(p_token, p_logprob, p_stat, row, there, b_token, b_own, b_max, b_second, b_sum, b_dot):
    """Write rows' results."""
    total = b_max + tl.log(b_sum)
    tl.store(p_token + row, b_token.to(tl.int64), mask=there)
    tl.store(p_logprob + row, b_own - total, mask=there)
    tl.store(p_stat + row * 2, tl.exp(b_max - total) - tl.exp(b_second - total), mask=there)
    tl.store(p_stat + row * 2 + 1, total - b_dot / b_sum, mask=there)


@triton.jit
def _pick_kernel(
    p_logits, p_choice, p_token, p_logprob, p_stat, p_temperature, p_seed, p_sample, p_position, vocab, forbidden,
    BV: tl.constexpr, NOISE: tl.constexpr, CHOICE: tl.constexpr,
):  # fmt: skip
    """One row, from its first token to its last."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    there = row >= 0
    b_score, b_token, b_own, b_max, b_second, b_sum, b_dot = _nothing(1)
    for first in range(0, vocab, BV):
        token = (first + tl.arange(0, BV))[None, :]
        inside = (token < vocab) & (token != forbidden)
        x = tl.load(p_logits + row[:, None] * vocab + token, mask=inside, other=float("-inf")).to(tl.float32)
        score = x
        if CHOICE:  # drawn from other numbers than those that are reported
            score = tl.load(p_choice + row[:, None] * vocab + token, mask=inside, other=float("-inf")).to(tl.float32)
        if NOISE:
            score = _scores(score, p_temperature, p_seed, p_sample, p_position, row, there, first, 1, BV)
        b_score, b_token, b_own, b_max, b_second, b_sum, b_dot = _take(
            x, score, token, b_score, b_token, b_own, b_max, b_second, b_sum, b_dot
        )
    _end(p_token, p_logprob, p_stat, row, there, b_token, b_own, b_max, b_second, b_sum, b_dot)


@triton.jit
def _head_kernel(
    p_hidden, p_weight, p_kept, p_temperature, p_seed, p_sample, p_position, num_rows, vocab, width, forbidden, num_tiles,
    BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, NOISE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """BR rows of hidden states times one tile of BV tokens; programs that share a tile of the weight run one after the other."""
    i_tile, i_rows = tl.program_id(1), tl.program_id(0)
    row = (i_rows * BR + tl.arange(0, BR)).to(tl.int64)
    there = row < num_rows
    token = i_tile * BV + tl.arange(0, BV)
    inside = token < vocab
    o_weight = token.to(tl.int64)[:, None] * width
    x = tl.zeros([BR, BV], tl.float32)
    for start in range(0, width, BC):
        o_c = start + tl.arange(0, BC)
        b_hidden = tl.load(p_hidden + row[:, None] * width + o_c[None, :], mask=there[:, None] & (o_c < width)[None, :], other=0.0)
        b_weight = tl.load(p_weight + o_weight + o_c[None, :], mask=inside[:, None] & (o_c < width)[None, :], other=0.0)
        if UPCAST:
            b_hidden, b_weight = b_hidden.to(tl.float32), b_weight.to(tl.float32)
        x = tl.dot(b_hidden, tl.trans(b_weight), x, input_precision="ieee")
    x = tl.where((inside & (token != forbidden))[None, :], x, float("-inf"))
    score = x
    if NOISE:
        score = _scores(x, p_temperature, p_seed, p_sample, p_position, row, there, i_tile * BV, BR, BV)
    b_score, b_token, b_own, b_max, b_second, b_sum, b_dot = _nothing(BR)
    b_score, b_token, b_own, b_max, b_second, b_sum, b_dot = _take(
        x, score, token[None, :], b_score, b_token, b_own, b_max, b_second, b_sum, b_dot
    )
    p_kept += (row * num_tiles + i_tile) * 7
    tl.store(p_kept, b_score, mask=there)
    tl.store(p_kept + 1, b_token.to(tl.float32, bitcast=True), mask=there)
    tl.store(p_kept + 2, b_own, mask=there)
    tl.store(p_kept + 3, b_max, mask=there)
    tl.store(p_kept + 4, b_second, mask=there)
    tl.store(p_kept + 5, b_sum, mask=there)
    tl.store(p_kept + 6, b_dot, mask=there)


@triton.jit
def _join_kernel(p_kept, p_token, p_logprob, p_stat, num_tiles, BT: tl.constexpr):
    """The tiles of one row, BT at a time."""
    row = tl.program_id(0).to(tl.int64) + tl.zeros([1], tl.int64)
    there = row >= 0
    b_score, b_token, b_own, b_max, b_second, b_sum, b_dot = _nothing(1)
    for start in range(0, num_tiles, BT):
        o_t = (start + tl.arange(0, BT))[None, :]
        p_here, inside = p_kept + (row[:, None] * num_tiles + o_t) * 7, o_t < num_tiles
        score = tl.load(p_here, mask=inside, other=float("-inf"))
        token = tl.load(p_here + 1, mask=inside, other=0.0).to(tl.int32, bitcast=True)
        token = tl.where(inside, token, 2147483647)
        own, most = tl.load(p_here + 2, mask=inside, other=float("-inf")), tl.load(p_here + 3, mask=inside, other=float("-inf"))
        second = tl.load(p_here + 4, mask=inside, other=float("-inf"))
        total, dot = tl.load(p_here + 5, mask=inside, other=0.0), tl.load(p_here + 6, mask=inside, other=0.0)
        top = tl.max(score, 1)
        here = tl.min(tl.where(score == top[:, None], token, 2147483647), 1)
        wins = top > b_score
        b_own = tl.where(wins, tl.max(tl.where(token == here[:, None], own, float("-inf")), 1), b_own)
        b_score, b_token = tl.where(wins, top, b_score), tl.where(wins, here, b_token)
        high = tl.max(most, 1)
        tile = tl.min(tl.where(most == high[:, None], o_t, 2147483647), 1)
        beside = tl.max(tl.where(o_t == tile[:, None], second, most), 1)
        b_second = tl.maximum(tl.minimum(b_max, high), tl.maximum(b_second, beside))
        fresh = tl.maximum(b_max, high)
        calm = tl.where(fresh == float("-inf"), 0.0, fresh)
        shrink, share = tl.exp(b_max - calm), tl.exp(most - calm[:, None])
        b_sum, b_dot = b_sum * shrink + tl.sum(total * share, 1), b_dot * shrink + tl.sum(dot * share, 1)
        b_max = fresh
    _end(p_token, p_logprob, p_stat, row, there, b_token, b_own, b_max, b_second, b_sum, b_dot)


class Drawn(Protocol):
    """How each row draws, [L] each: kernels/pick.py, Draw."""

    @property
    def temperature(self) -> Tensor: ...

    @property
    def seed(self) -> Tensor: ...

    @property
    def sample(self) -> Tensor: ...

    @property
    def position(self) -> Tensor: ...


def pick_statistics(logits: Tensor, choice: Tensor, draw: Drawn | None, forbidden: int = -1) -> Statistics:
    """A token for each row of choice [L, V], and statistics of logits [L, V]; both contiguous. `forbidden`: a token without mass."""
    rows, vocab = logits.shape
    token, logprob, stat = _empty(rows, logits.device)
    launch: Any = _pick_kernel[(rows,)]
    launch(
        logits, choice, token, logprob, stat, *_told(draw, logits), vocab, forbidden,
        BV=min(4096, max(16, next_power(vocab))), NOISE=draw is not None, CHOICE=choice is not logits, num_warps=8,
    )  # fmt: skip
    return Statistics(token, logprob, stat[:, 0], stat[:, 1])


def head_statistics(hidden: Tensor, weight: Tensor, draw: Drawn | None, forbidden: int = -1) -> Statistics:
    """The same for hidden states [L, C] and the head's weight [V, C], both contiguous, without logits in memory."""
    (rows, width), vocab = hidden.shape, weight.shape[0]
    token, logprob, stat = _empty(rows, hidden.device)
    tall, wide, deep = 16 if rows <= 16 else 64, 128, 32 if hidden.dtype == torch.float32 else 64
    tiles = -(-vocab // wide)
    kept = hidden.new_empty(rows, tiles, KEPT, dtype=torch.float32)
    launch: Any = _head_kernel[(-(-rows // tall), tiles)]
    launch(
        hidden, weight, kept, *_told(draw, hidden), rows, vocab, width, forbidden, tiles,
        BR=tall, BV=wide, BC=deep, NOISE=draw is not None, UPCAST=interpreted() and hidden.dtype == torch.bfloat16,
        num_warps=4 if tall == 16 else 8, num_stages=3,
    )  # fmt: skip
    join: Any = _join_kernel[(rows,)]
    join(kept, token, logprob, stat, tiles, BT=min(1024, next_power(tiles)), num_warps=4)
    return Statistics(token, logprob, stat[:, 0], stat[:, 1])


def pick_triton(logits: Tensor, choice: Tensor, draw: Drawn | None) -> tuple[Tensor, Tensor]:
    """pick_reference by the kernel."""
    found = pick_statistics(logits.contiguous(), choice.contiguous(), draw)
    return found.token, found.logprob


def _empty(rows: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    numbers = torch.empty(rows, device=device), torch.empty(rows, 2, device=device)
    return torch.empty(rows, dtype=torch.int64, device=device), *numbers


def _told(draw: Drawn | None, like: Tensor) -> tuple[Tensor, ...]:
    """Temperature, seed, sample and position of rows; anything where nothing is drawn."""
    return (like,) * 4 if draw is None else (draw.temperature, draw.seed, draw.sample, draw.position)


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which cannot compute in bfloat16."""
    knobs: Any = triton.knobs
    return bool(knobs.runtime.interpret)
