"""Rows that take the whole replica down, not only their engine's process (which `actors/quarantine.py` deals with).

Such a death has no witness: Ray restarts the actor and hands its units out again. A unit that was started too often is run row by row,
each row noted on the board before it starts, so that the one that kills is known at the next start and becomes an error.
"""

from collections.abc import Awaitable, Callable, Sequence

from drawloom.actors.request import Completion, PostMortem, Request, Stats

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
