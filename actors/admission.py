"""Who runs: order of the waiting requests, pages for every row of a step, preemption when they run out. Host side, no tensors.

What a step does to the pool happens in three phases: running sequences reserve (and may preempt), prefixes being filled reserve, and
only then new ones are admitted into what is left; nothing is preempted after a page of this step has been named for sharing.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from drawloom.actors.sequence import Sequence
from drawloom.actors.settings import EngineSettings
from drawloom.models.pages import PagePool


def page_keys(tokens: list[int], target: int, page_tokens: int, block_tokens: int, ahead: int = 0) -> list[bytes]:
    """Key of every page that `tokens[:target]` fills and that others may share: it determines all K/V in the page.

    With block-causal visibility a page's K/V depends on the whole blocks in it, so pages are named in units of whole blocks. `ahead`: K/V
    of a drafter in the page depends on so many tokens behind it, too.
    """
    unit = math.lcm(page_tokens, block_tokens)
    keys, chain = [], (block_tokens + (ahead << 32)).to_bytes(8, "little")
    for start in range(0, target // unit * unit, unit):
        body = np.array(tokens[start : start + unit + ahead], dtype=np.int64).tobytes()
        chain = hashlib.blake2b(chain + body, digest_size=16).digest()
        keys.extend(chain + page.to_bytes(4, "little") for page in range(unit // page_tokens))
    return keys


def order(waiting: Iterable[Sequence], window: int) -> list[Sequence]:
    """The oldest `window` waiting sequences, best first: priority, then preempted ones, then groups of equal first page by their oldest
    member, and within a group the longest first. Old ones cannot starve: a group is as old as its oldest member."""
    head = [sequence for sequence, _ in zip(waiting, range(window), strict=False)]
    oldest: dict[bytes, int] = {}
    for sequence in head:
        group = _family(sequence)
        oldest[group] = min(oldest.get(group, sequence.serial), sequence.serial)
    return sorted(
        head,
        key=lambda one: (
            -one.request.priority,
            one.saved is None,
            oldest[_family(one)],
            -one.request.sampling.max_tokens,
            one.serial,
        ),
    )


def _family(sequence: Sequence) -> bytes:
    return sequence.page_keys[0] if sequence.page_keys else sequence.serial.to_bytes(8, "little")


@dataclass
class Admission:
    """The waiting line, the prefixes being filled, and the page pool."""

    pool: PagePool
    settings: EngineSettings
    waiting: deque[Sequence] = field(default_factory=deque)
    filling: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.pool.page_tokens)

    def reserve(self, sequence: Sequence, num_tokens: int, running: list[Sequence]) -> list[Sequence]:
        """Pages for the sequence's first num_tokens tokens. Returns the sequences preempted to make room, itself as the last resort."""
        missing = self.pages_for(num_tokens) - len(sequence.pages)
        gone: list[Sequence] = []
        while missing > self.pool.num_available:
            victim = max(
                (one for one in running if one.pages and one not in gone),
                key=lambda one: (-one.request.priority, one.serial),
            )
            self.preempt(victim)
            gone.append(victim)
            if victim is sequence:
                return gone
        self._grow(sequence, missing)
        return gone

    def _grow(self, sequence: Sequence, missing: int) -> None:
        if missing > 0:
            pages = self.pool.take(missing, after=sequence.pages[-1] if sequence.pages else None)
            assert pages is not None
            sequence.pages.extend(pages)

    def preempt(self, sequence: Sequence) -> None:
        """Give its pages back and queue it again; what it needs to go on is filled in anew, its tokens and decoder state stay."""
        self.release(sequence)
        sequence.target = max(sequence.target, sequence.filled)
        sequence.filled = 0
        if sequence.decoder.in_place:
            sequence.start_over()
        sequence.preemptions += 1
        self.preemptions += 1
        if sequence in self.filling:
            self.filling.remove(sequence)
        self.waiting.appendleft(sequence)

    def release(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.pages)
        sequence.pages, sequence.draft_filled = [], 0

    def admit(self, num_running: int) -> list[Sequence]:
        """Move waiting sequences into `filling` while there is room for their whole prefix and their first decoding rows."""
        admitted: list[Sequence] = []
        if not self.waiting:
            return admitted
        for sequence in order(self.waiting, self.settings.window):
            if num_running + len(self.filling) >= self.settings.max_sequences:
                break
            if self._being_filled(sequence):
                continue
            pages = self._share(sequence)
            need = self.pages_for(sequence.room(sequence.target)) - len(pages)
            if need > self.pool.num_available:
                self.pool.give_back(pages)
                break
            sequence.pages = pages
            sequence.filled = len(pages) * self.pool.page_tokens
            if not sequence.preemptions:
                sequence.cached = sequence.filled
            self.prefix_hit_tokens += sequence.filled
            self._grow(sequence, need)
            self.waiting.remove(sequence)
            self.filling.append(sequence)
            admitted.append(sequence)
        return admitted

    def name_pages(self, sequence: Sequence, before: int, after: int) -> None:
        """Let others share the prefix pages that tokens before..after complete."""
        if self.settings.share_prefix:
            size = self.pool.page_tokens
            for page in range(before // size, min(after // size, len(sequence.page_keys))):
                self.pool.name(sequence.pages[page], sequence.page_keys[page])

    def _share(self, sequence: Sequence) -> list[int]:
        """Known pages of the prefix, in whole units of block and page."""
        if not self.settings.share_prefix:
            return []
        pages = self.pool.share(sequence.page_keys)
        unit = math.lcm(self.pool.page_tokens, sequence.decoder.block_tokens) // self.pool.page_tokens
        whole = len(pages) // unit * unit
        self.pool.give_back(pages[whole:])
        return pages[:whole]

    def _being_filled(self, sequence: Sequence) -> bool:
        """Another sequence is about to fill the next page that this one could share: wait for it."""
        if not self.settings.share_prefix or not self.filling:
            return False
        known = self.pool.num_known(sequence.page_keys)
        return known < len(sequence.page_keys) and any(
            len(other.page_keys) > known and other.page_keys[known] == sequence.page_keys[known] for other in self.filling
        )
