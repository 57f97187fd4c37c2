"""HashLM: a network whose logits are a hash of exactly what a row may see. It makes "lossless" an equality test.

Like a two-layer transformer, it keeps two numbers per K/V slot: a hash of (position, token), and a hash of all such pairs that the row
saw when its slot was written. Logits hash the second numbers of everything visible. So one wrong visibility bit, kept row, position,
stale page or slot computed from a draft's context changes the text, with no tolerance and on a CPU.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drawloom.models.ragged import ModelInfo, Ragged

_GOLD = -7046029254386353131  # 0x9E3779B97F4A7C15, the increment of splitmix64
_ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?-+*/=()[]{}<>@#$%&_|~^'"


def mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser on int64 (logical shifts written with masks)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


class HashLM:
    """Vocabulary of `vocab_size` tokens: the last is the mask token, the one before it ends a text. `period` and `sway` make text
    predictable enough that drafts and confident reveals happen: with weight up to `sway` the next token is a function of position."""

    def __init__(self, seed: int = 0, vocab_size: int = 64, *, period: int = 7, sway: float = 14.0, max_context: int = 4096) -> None:
        self.seed, self.period, self.sway = seed, period, sway
        self.info = ModelInfo(
            name=f"hash-{seed}",
            vocab_size=vocab_size,
            max_context=max_context,
            eos_token_ids=(vocab_size - 2,),
            mask_token_id=vocab_size - 1,
            block_tokens=0,
            shifted=False,
            fingerprint=f"hash-{seed}-{vocab_size}-{period}-{sway}",
        )
        self._token = torch.arange(vocab_size)

    def allocate(self, num_pages: int, page_tokens: int) -> None:
        """Slots start with garbage, as fresh device memory does."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        self.pairs, self.deep = torch.randint(-(2**62), 2**62, (2, num_pages * page_tokens), generator=generator)

    def page_bytes(self, page_tokens: int) -> int:
        return 16 * page_tokens

    def forward(self, ragged: Ragged) -> Tensor:
        self.pairs[ragged.slots] = self.pair(ragged.positions, ragged.tokens, ragged.weight)
        index, seen = visible(ragged)
        self.deep[ragged.slots] = mix((self.pairs[index] * seen).sum(1) + ragged.positions * _GOLD)
        total = (self.deep[index] * seen).sum(1)[ragged.logit_rows]
        return self.logits(total, ragged.positions[ragged.logit_rows])

    def features(self, slots: Tensor, layers: Sequence[int]) -> Tensor:
        """What a drafter may read of tokens in `slots` [N]: the hash of everything that each saw, [N, 1] int64."""
        return self.deep[slots][:, None]

    def move_rows(self, source: Tensor, target: Tensor) -> None:
        for store in (self.pairs, self.deep):
            store[target] = store[source]

    def pair(self, position: Tensor, token: Tensor, weight: Tensor | None = None) -> Tensor:
        """Hash of (position, token, weight of a soft input in sixteenths), int64."""
        soft = 0 if weight is None else ((1 - weight.double()) * 16).round().long()
        return mix(mix(position * _GOLD + self.seed) + token + soft * self.info.vocab_size)

    def logits(self, total: Tensor, position: Tensor) -> Tensor:
        """[L, V] float32 from the hash of everything visible [L] and the row's position [L]."""
        base = mix(total + position)
        noise = unit(mix(base[:, None] + self._token * _GOLD)) * 4.0
        favourite = mix(position % self.period + self.seed) % (len(self._token) - 2)
        weight = unit(mix(base ^ _GOLD)) * self.sway
        return (noise + weight[:, None] * (self._token == favourite[:, None])).float()


def visible(ragged: Ragged) -> tuple[Tensor, Tensor]:
    """Slots that each row may see: index [R, L] into the slots, seen [R, L] bool. Written plainly, for tests and HashLM."""
    owner = torch.repeat_interleave(torch.arange(ragged.num_sequences), ragged.row_starts.diff())
    prefix = ragged.prefix_lens[owner].long()
    widest = int((ragged.prefix_lens + ragged.row_starts.diff()).max())
    place = torch.arange(widest)
    page = ragged.pages[owner][:, place // ragged.page_tokens].long()
    index = page * ragged.page_tokens + place % ragged.page_tokens
    row = place[None] - prefix[:, None]
    seen = (row < 0) | (row < ragged.see[:, None])
    seen &= place[None] < (ragged.prefix_lens + ragged.row_starts.diff())[owner][:, None]
    if ragged.ancestors is not None:
        row = row.clamp(max=64 * ragged.ancestors.shape[1] - 1)  # beyond: other sequences' places
        word = ragged.ancestors.gather(1, row.clamp(min=0) // 64)
        seen &= (row < 0) | ((word >> (row.clamp(min=0) % 64)) & 1).bool()
    return index, seen


def unit(x: Tensor) -> Tensor:
    """int64 hash -> float64 in [0, 1)."""
    return ((x >> 11) & 0x1FFFFFFFFFFFFF).double() / 2.0**53


class HashText:
    """One character a token; the two special tokens have no text."""

    def __init__(self, vocab_size: int = 64) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = (vocab_size - 2,)

    def encode(self, prompt: str) -> list[int]:
        return [ord(char) % (self.vocab_size - 2) for char in prompt]

    def render(self, messages: object) -> list[int]:
        assert isinstance(messages, (list, tuple))
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    def decode(self, token_ids: object) -> str:
        assert isinstance(token_ids, (list, tuple))
        return "".join(_ALPHABET[token % len(_ALPHABET)] for token in token_ids if token < self.vocab_size - 2)
