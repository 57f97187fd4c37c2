"""Several independent continuations that a network draws, behind a common trunk or from the root: what verifiers of sampled trees take.

Paths from the root are the drafts of SpecInfer (arXiv 2305.09781), SpecTr (2310.15141) and multi-path block verification (2602.16961); a
trunk first is delayed tree expansion (2602.16994): the paths part where drafts usually begin to fail.
"""

import torch

from drawloom.decoders.drafters import Proposed, Unaided
from drawloom.decoders.drafting import Drafted, Drafting
from drawloom.decoders.step import Lines
from drawloom.decoders.trees import Outcome, Tree
from drawloom.decoders.verifiers import SAMPLED


class sampled_paths(Unaided):
    """`asked.paths` draws of what is left of `asked.width` tokens behind `asked.trunk` of them."""

    law = SAMPLED

    def __init__(self, asked: Drafting) -> None:
        self.drafting: Drafting | None = asked
        self.paths, self.rows, self.depth = asked.trunk == 0, asked.nodes + 1, asked.width
        self.parents, self.depths, above = [0], [0], [0]
        for level, count in enumerate(asked.levels, 1):
            here = [len(self.parents) + number for number in range(count)]
            self.parents += above * count if len(above) == 1 else above
            self.depths += [level] * count
            above = here

    def begin(self, lines: Lines) -> Proposed:
        none = lines.history[:, :0]
        return Proposed(none, torch.zeros_like(lines.length), none.float())

    def receive(self, state: Proposed, drafted: Drafted) -> Proposed:
        return Proposed.of(drafted)

    def propose(self, lines: Lines, state: Proposed) -> Tree:
        last = lines.history.gather(1, (lines.length - 1)[:, None])
        parent, depth = (torch.tensor(one, device=last.device).expand(len(last), -1) for one in (self.parents, self.depths))
        q = None
        if state.q.shape[1]:  # the root was drawn from nothing
            q = torch.nn.functional.pad(state.q.unflatten(1, (self.rows - 1, -1)), (0, 0, 1, 0))
        return Tree(torch.cat([last, state.tokens], 1), parent, depth, depth <= state.num[:, None], q)

    def learn(self, lines: Lines, state: Proposed, outcome: Outcome) -> Proposed:
        return state
