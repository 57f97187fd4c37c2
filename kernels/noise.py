"""Counter-based noise: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and Gumbel draws from it.

A draw is a pure function of (seed, sample, position, token), so it does not know its batch, its step or how many draws came before.
"""

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ROUNDS = 10
_LANES = 4  # 32-bit words that one Philox call yields
# What noise is for, told apart so that no draw knows another: the target's tokens, a decoder's own chance, tests of drafted tokens, the
# token after a refused draft, drafted tokens.
TOKEN, CHANCE, TEST, REST, DRAFT = range(5)
_PURPOSES = 8


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four 32-bit words for each counter. All tensors int64, broadcastable, holding unsigned 32-bit values."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57  # the low 64 bits are right although int64 is signed
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def gumbel(seed: Tensor, sample: Tensor, position: Tensor, vocab_size: int, purpose: int = TOKEN, index: int = 0) -> Tensor:
    """Standard Gumbel noise [R, vocab_size] float32 for seed [R] int64 (any 64 bits), sample [R] int64, absolute position [R] int64.
    `index` tells several draws of one purpose at one position apart."""
    seed, sample, position = seed[:, None], sample[:, None], position[:, None]
    block = torch.arange(-(-vocab_size // _LANES), device=seed.device)[None]
    last = position.new_full((1, 1), purpose + _PURPOSES * index)
    words = philox((block, position & _MASK, sample & _MASK, last), (seed & _MASK, (seed >> 32) & _MASK))
    return to_gumbel(torch.stack(words, -1).flatten(1)[:, :vocab_size])


def gumbel_at(seed: Tensor, sample: Tensor, position: Tensor, token: Tensor) -> Tensor:
    """The same noise for single tokens: all arguments [M] int64 -> [M] float32; equals gumbel(...)[row, token]."""
    words = philox((token // _LANES, position & _MASK, sample & _MASK, torch.zeros_like(token)), (seed & _MASK, (seed >> 32) & _MASK))
    return to_gumbel(torch.stack(words, -1).gather(-1, (token % _LANES)[..., None])[..., 0])


def uniform_at(seed: Tensor, sample: Tensor, position: Tensor, purpose: int = CHANCE, index: Tensor | None = None) -> Tensor:
    """One number in [0, 1) float64 for each (seed, sample, position, index), independent of the Gumbel draws; all [...] int64."""
    zero = torch.zeros_like(position)
    counter = (zero if index is None else index, position & _MASK, sample & _MASK, zero + purpose)
    words = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return words[0].double() * 2.0**-32


def to_gumbel(word: Tensor) -> Tensor:
    """Uniform 32-bit words (int64) to Gumbel noise, -log(-log(1 - v)): fine steps where the noise is large, never infinite."""
    uniform = ((word.float() + 0.5) * 2.0**-32).clamp_(max=1.0 - 2.0**-24)
    return uniform.neg_().log1p_().neg_().log_().neg_()
