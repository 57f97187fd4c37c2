"""Rows that are kept but not leading: ancestor bits, positions by depth and compaction, with a small tree decoder on the same contract."""

import pytest
import torch
from oracles import autoregressive
from rig import engine, ids, prompts, request

from drawloom.decoders import recipes
from drawloom.decoders.draft_verify import DraftState, DraftVerify
from drawloom.decoders.drafters import jacobi
from drawloom.decoders.recipe import Recipe
from drawloom.decoders.step import Commit, Step
from drawloom.kernels.verify import walk_chain
from drawloom.models.hash_lm import HashLM


class Decoys(DraftVerify):
    """A chain draft in which every drafted row has a decoy sibling before it: rows are last, decoy 1, draft 1, decoy 2, draft 2, ...

    Rows see their own ancestors alone, so only the odd ancestor bits are right, and kept rows are never the leading ones.
    """

    keeps_leading = False
    drafts_trees = True

    def __init__(self, width: int) -> None:
        super().__init__(jacobi(width), width)
        self.max_rows = 2 * width + 1
        self.place = torch.tensor([0, *range(2, 2 * width + 1, 2)])  # rows of the real chain

    def plan(self, lines, state: DraftState, budget):
        state, chain = super().plan(lines, state, budget.clamp(max=self.width + 1))
        rows, count = self.max_rows, chain.tokens.shape[0]
        depth = (torch.arange(rows) + 1) // 2
        tokens = chain.tokens[:, depth].clone()
        tokens[:, 1::2] = (tokens[:, 1::2] + 1) % 60  # decoys
        bits = torch.zeros(rows, dtype=torch.int64)
        for row in range(rows):
            real = [2 * d for d in range((row + 1) // 2)]
            bits[row] = sum(1 << r for r in (*real, row))
        see = (torch.arange(rows) + 1).expand(count, -1)
        valid = depth[None] <= state.num_draft[:, None]
        step = Step(tokens, chain.positions[:, depth], see, valid, valid, bits.expand(count, -1)[..., None])
        return state, step

    def accept(self, lines, state: DraftState, step: Step, picks):
        token, logprob = picks.token[:, self.place], picks.logprob[:, self.place]
        accepted = walk_chain(state.draft, state.num_draft, token)
        keep = torch.zeros_like(step.valid)
        keep[:, self.place] = torch.arange(self.width + 1) <= accepted[:, None]
        commit = Commit(token, logprob, accepted + 1, keep, state.num_draft, accepted)
        learned = self.drafter.learn(lines, state.drafter, token.clamp(min=0), accepted + 1, state.num_draft)
        return DraftState(learned, state.draft, state.num_draft), commit


@pytest.fixture
def with_decoys(monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "decoys", Recipe(lambda width=6: Decoys(width), "a test's tree", ""))


def run_all(requests, **settings):
    machine, out = engine(HashLM(13), **settings), {}
    for one in requests:
        machine.add(one)
    while machine.num_unfinished:
        for done in machine.step():
            out[done.id] = done
        machine.pool.check()
    return out, machine.stats()


@pytest.mark.usefixtures("with_decoys")
@pytest.mark.parametrize("settings", [{}, {"num_pages": 36, "prefill_rows": 5}, {"pack": "padded"}, {"page_tokens": 16}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_tree_rows_are_compacted_and_the_text_is_the_same(settings, temperature):
    kinds = ("decoys", "ar", "decoys", "multi-block")
    requests = [
        request(str(i), p, kinds[i % 4], i, {"block": 4} if i % 4 == 3 else {}, max_tokens=30, temperature=temperature)
        for i, p in enumerate(prompts(12, 17))
    ]
    done, stats = run_all(requests, **settings)
    assert stats.accepted > 0
    for one in requests:
        if one.decoder != "multi-block":
            assert ids(done[one.id]) == autoregressive(HashLM(13), one.prompt_token_ids, one.sampling, one.seed)[0]


@pytest.mark.usefixtures("with_decoys")
@pytest.mark.parametrize("fault", ["bits", "compaction"])
def test_a_wrong_tree_is_noticed(fault, monkeypatch):
    requests = [request(str(i), p, "decoys", i, max_tokens=30, temperature=0.8) for i, p in enumerate(prompts(8, 17))]
    if fault == "compaction":
        monkeypatch.setattr(HashLM, "move_rows", lambda self, source, target: None)
    else:
        plan = Decoys.plan

        def all_seen(self, lines, state, budget):
            state, step = plan(self, lines, state, budget)
            return state, Step(**{**vars(step), "ancestors": torch.full((*step.see.shape, 1), -1)})

        monkeypatch.setattr(Decoys, "plan", all_seen)
    done, _ = run_all(requests)
    wrong = [one for one in requests if ids(done[one.id]) != autoregressive(HashLM(13), one.prompt_token_ids, one.sampling, one.seed)[0]]
    assert wrong
