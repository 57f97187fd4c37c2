"""Runs of free numbers 0 .. n-1, so that neighbours can be handed out together without looking at every number."""

import heapq
from collections.abc import Iterator


class Runs:
    """A set of free numbers as maximal runs. Every operation takes logarithmic time in the number of runs."""

    def __init__(self, count: int) -> None:
        self._length = {0: count} if count else {}  # of the run that starts here
        self._start = {count - 1: 0} if count else {}  # of the run that ends here
        self._longest = [(-count, 0)] if count else []  # a heap; runs that are gone stay in it until they come up
        self.count = count

    def __iter__(self) -> Iterator[int]:
        for start, length in self._length.items():
            yield from range(start, start + length)

    def add(self, number: int) -> None:
        """Free a number, which must not be free."""
        start, length = number, 1
        if number - 1 in self._start:
            start = self._start.pop(number - 1)
            length += self._length.pop(start)
        if number + 1 in self._length:
            behind = self._length.pop(number + 1)
            del self._start[number + behind]
            length += behind
        self._put(start, length)
        self.count += 1

    def take_first_of(self, start: int) -> bool:
        """Take `start` if a run begins there."""
        if start not in self._length:
            return False
        length = self._cut(start)
        self._put(start + 1, length - 1)
        return True

    def take_with_room(self) -> int:
        """Take the middle of the longest run (its start when that is 0), so that who stands before it and who takes it can both grow."""
        while self._length.get(self._longest[0][1]) != -self._longest[0][0]:
            heapq.heappop(self._longest)
        start = self._longest[0][1]
        length = self._cut(start)
        before = 0 if start == 0 else length // 2
        self._put(start, before)
        self._put(start + before + 1, length - before - 1)
        return start + before

    def _cut(self, start: int) -> int:
        length = self._length.pop(start)
        del self._start[start + length - 1]
        self.count -= 1
        return length

    def _put(self, start: int, length: int) -> None:
        if length:
            self._length[start], self._start[start + length - 1] = length, start
            heapq.heappush(self._longest, (-length, start))
