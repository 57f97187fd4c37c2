"""The suite can fail: one visibility bit, one kept row, one position, one stale page put in on purpose each change the text."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from oracles import MultiBlock, autoregressive
from rig import engine, ids, prompts, request, run

from drawloom.actors.admission import Admission
from drawloom.actors.engine import Engine
from drawloom.decoders.denoise import Denoise
from drawloom.decoders.draft_verify import DraftVerify
from drawloom.models.hash_lm import HashLM

MODEL = 31


def all_right(decoder: str) -> bool:
    """Does a mixed batch of this decoder equal its oracle?"""
    params = {"block": 4, "buffer": 3, "threshold": 0.6} if decoder == "multi-block" else {}
    requests = [request(str(i), p, decoder, i, params, max_tokens=24, temperature=0.8) for i, p in enumerate(prompts(8, 23))]
    done = run(engine(HashLM(MODEL), prefill_rows=7), requests)
    for one in requests:
        if decoder == "multi-block":
            want = MultiBlock(HashLM(MODEL), 4, 3, 0.1, 0.9, 0.6).run(one.prompt_token_ids, one.sampling, one.seed)[0]
        else:
            want = autoregressive(HashLM(MODEL), one.prompt_token_ids, one.sampling, one.seed)[0]
        if ids(done[one.id]) != want:
            return False
    return True


def in_plan(change: Callable) -> Callable:
    """A fault in the steps that both loops plan."""

    def put(monkeypatch: pytest.MonkeyPatch) -> None:
        for loop in (DraftVerify, Denoise):
            plan = loop.plan

            def wrong(self, lines, state, budget, plan=plan):
                state, step = plan(self, lines, state, budget)
                return state, change(step)

            monkeypatch.setattr(loop, "plan", wrong)

    return put


def in_ragged(change: Callable) -> Callable:
    """A fault in the packed batch, on its way to the network."""

    def put(monkeypatch: pytest.MonkeyPatch) -> None:
        forward = HashLM.forward
        monkeypatch.setattr(HashLM, "forward", lambda self, ragged: forward(self, change(ragged)))

    return put


def one_row_kept_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Engine._advance

    def wrong(self, members, deed, now):
        return advance(self, members, replace(deed, kept=deed.kept + (deed.kept > 0)), now)

    monkeypatch.setattr(Engine, "_advance", wrong)


def one_row_kept_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Engine._advance

    def wrong(self, members, deed, now):
        return advance(self, members, replace(deed, kept=deed.kept - (deed.kept > 1)), now)

    monkeypatch.setattr(Engine, "_advance", wrong)


def keys_forget_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages named by their own tokens alone, so that a page is shared between different prefixes."""
    name_pages = Admission.name_pages

    def wrong(self, sequence, before, after):
        sequence.page_keys = [str(index).encode() for index in range(len(sequence.page_keys))]
        name_pages(self, sequence, before, after)

    monkeypatch.setattr(Admission, "name_pages", wrong)
    keys = "drawloom.actors.engine.page_keys"
    monkeypatch.setattr(keys, lambda tokens, target, size, block, ahead: [b"%d" % i for i in range(target // size)])


def one_bit_less(ragged):
    see = ragged.see.clone()
    see[-1] = max(1, int(see[-1]) - 1)
    return replace(ragged, see=see)


def one_bit_more(step):
    see = step.see.clone()
    see[:, 0] += 1
    return replace(step, see=see)


def one_position_off(ragged):
    positions = ragged.positions.clone()
    positions[-1] += 1
    return replace(ragged, positions=positions)


def one_key_of_the_prefix_hidden(ragged):
    return replace(ragged, prefix_lens=ragged.prefix_lens - (ragged.prefix_lens > 8).int())


FAULTS = {
    "a row sees one row too few": in_ragged(one_bit_less),
    "a row sees one row too many": in_plan(one_bit_more),
    "one position is off by one": in_ragged(one_position_off),
    "one prefix key is hidden": in_ragged(one_key_of_the_prefix_hidden),
    "one row kept too many": one_row_kept_too_many,
    "one row kept too few": one_row_kept_too_few,
    "pages shared between different prefixes": keys_forget_the_prefix,
}
# a fault that cannot show in that loop: the last row of an autoregressive chain sees all rows anyway, and so on
HARMLESS = {("a row sees one row too many", "ar"), ("one row kept too few", "ar"), ("a row sees one row too few", "ar")}


@pytest.mark.parametrize("decoder", ["ar", "lookup", "jacobi", "multi-block"])
def test_without_a_fault_all_is_right(decoder):
    assert all_right(decoder)


@pytest.mark.parametrize(("fault", "decoder"), [(f, d) for f in FAULTS for d in ("ar", "jacobi", "multi-block") if (f, d) not in HARMLESS])
def test_a_fault_changes_the_text(fault, decoder, monkeypatch):
    FAULTS[fault](monkeypatch)
    assert not all_right(decoder)
