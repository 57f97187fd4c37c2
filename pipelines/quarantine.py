"""Rows that take a whole worker down: a reading task, or a replica and not only its engine (which `actors/quarantine.py` deals with).

Such a death has no witness: Ray starts another worker and hands the units out again, for ever. A unit that was started too often is
done row by row, each row noted on the board before it starts, so that the one that kills is known at the next start and becomes an error.
"""

from collections.abc import Awaitable, Callable, Sequence

from drawloom.actors.request import Completion, PostMortem, Request, Stats
from drawloom.pipelines.outcomes import Failure

MAX_STARTS = 3  # of a unit with all its rows at once; machines that come and go take a few
ROW_TRIES = 2  # of a row alone


async def one_by_one(
    requests: Sequence[Request],
    submit: Callable[[Sequence[Request]], Awaitable[list[Completion]]],
    try_row: Callable[[str], Awaitable[int]],
    end_row: Callable[[str], Awaitable[None]],
) -> list[Completion]:
    """Complete requests one after the other. `try_row` notes a row outside of this process and says how often it was tried in vain
    by now, this time included; `end_row` strikes that note out."""
    done = []
    for request in requests:
        tries = await try_row(request.id)
        done += [_given_up(request, tries - 1)] if tries > ROW_TRIES else await submit([request])
        await end_row(request.id)
    return done


def _given_up(request: Request, tries: int) -> Completion:
    message = f"the replica was lost {tries} times while this row ran alone in it (out of memory on its node, or killed from outside)"
    found = PostMortem(tries, None, "")
    return Completion(
        request.id, (), len(request.prompt_token_ids), Stats(), request.decoder, error=("killed_replica", message), post_mortem=found
    )


class ReadGuard:
    """A guard for `requests_of`: notes each row on the board before it is rendered, and stops those that were in vain too often."""

    def __init__(self, try_row: Callable[[str], int], end_row: Callable[[str], None]) -> None:
        self._try_row, self._end_row = try_row, end_row
        self._open: str | None = None

    def __call__(self, row: str) -> Failure | None:
        self.close()
        key = reading(row)
        tries = self._try_row(key)
        self._open = key
        if tries <= ROW_TRIES:
            return None
        message = f"the worker that read this row was lost {tries - 1} times while it rendered the row's prompt (a crash, or out of memory)"
        return Failure("killed_reader", message, attempts=tries - 1)

    def close(self) -> None:
        """The last row has been rendered, too."""
        if self._open is not None:
            self._end_row(self._open)
            self._open = None


def reading(name: str) -> str:
    """The board's key for reading a row or unit; its generation is counted under the name itself."""
    return f"read {name}"
