"""The page pool: who holds which K/V page, and which pages hold a prefix that another sequence may share. Plain Python, no torch."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from drawloom.models.runs import Runs


class PagePool:
    """Pages 0 .. num_pages-1 of `page_tokens` tokens. A page is free, held (count >= 1) or kept: released, but findable by its key until
    room is needed (least recently released first)."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self.num_pages = num_pages
        self.page_tokens = page_tokens
        self._free = Runs(num_pages)
        self._held: dict[int, int] = {}
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._page_of: dict[Hashable, int] = {}
        self._key_of: dict[int, Hashable] = {}

    @property
    def num_available(self) -> int:
        """Pages that `take` could hand out now."""
        return self._free.count + len(self._kept)

    @property
    def num_held(self) -> int:
        return len(self._held)

    def take(self, count: int, after: int | None = None) -> list[int] | None:
        """`count` pages with one holder each, or None (and nothing changes) when there are not that many.

        Prefers the pages that follow `after`, so that a sequence's K/V tends to lie in one run of memory.
        """
        if count > self.num_available:
            return None
        pages = []
        for _ in range(count):
            page = self._choose(after)
            self._held[page] = 1
            pages.append(page)
            after = page
        return pages

    def num_known(self, keys: Sequence[Hashable]) -> int:
        """How many leading keys have a page."""
        return next((index for index, key in enumerate(keys) if key not in self._page_of), len(keys))

    def share(self, keys: Sequence[Hashable]) -> list[int]:
        """Hold and return the pages of the longest known prefix of `keys`."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            self._hold(page)
            pages.append(page)
        return pages

    def name(self, page: int, key: Hashable) -> None:
        """Let others find a held page by `key`, which must determine the page's K/V. The first page of a key wins."""
        assert page in self._held
        if key not in self._page_of and page not in self._key_of:
            self._page_of[key], self._key_of[page] = page, key

    def give_back(self, pages: Sequence[int]) -> None:
        """Drop one hold of each page. The last page of a prefix is dropped first, so that eviction eats prefixes from their ends."""
        for page in reversed(pages):
            self._held[page] -= 1
            if self._held[page] == 0:
                del self._held[page]
                if page in self._key_of:
                    self._kept[page] = None
                else:
                    self._free.add(page)

    def forget(self) -> None:
        """Drop every kept prefix."""
        while self._kept:
            self._free.add(self._evict())

    def check(self) -> None:
        """Assert the pool's invariants: every page is in exactly one state, and keys and pages match."""
        free = set(self._free)
        assert len(free) == self._free.count, "free pages are miscounted"
        states = [free, set(self._held), set(self._kept)]
        assert sum(map(len, states)) == self.num_pages, "a page is in two states or in none"
        assert set().union(*states) == set(range(self.num_pages)), "unknown pages"
        assert all(count > 0 for count in self._held.values()), "a held page without holders"
        assert {page: key for key, page in self._page_of.items()} == self._key_of, "keys and pages disagree"
        assert not free & set(self._key_of), "a free page with a key"

    def _hold(self, page: int) -> None:
        self._kept.pop(page, None)
        self._held[page] = self._held.get(page, 0) + 1

    def _choose(self, after: int | None) -> int:
        if after is not None and self._free.take_first_of(after + 1):
            return after + 1
        return self._free.take_with_room() if self._free.count else self._evict()

    def _evict(self) -> int:
        page, _ = self._kept.popitem(last=False)
        del self._page_of[self._key_of.pop(page)]
        return page
