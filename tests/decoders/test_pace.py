"""How much is drafted: the moving average of a text, and the rows of a batch."""

import dataclasses
from typing import Any

import pytest
import torch
from rig import engine, ids, request, run

from drawloom.actors.request import Request
from drawloom.decoders.drafters import lookup
from drawloom.decoders.pace import best_total, paced, share_out
from drawloom.decoders.recipes import build
from drawloom.decoders.step import lines_of
from drawloom.errors import SettingError
from drawloom.models.hash_lm import HashLM


def test_the_known_answer_of_the_budget() -> None:
    """KA-11: survivals (.9, .81, .4) and (.5, .1), three rows: two and one of them, worth 2.21 tokens beside the two that are sure."""
    survival = torch.tensor([[0.9, 0.81, 0.4], [0.5, 0.1, 0.0]])
    rows = share_out(survival, 3)
    assert rows.tolist() == [2, 1]
    worth = sum(survival[line, :count].sum().item() for line, count in enumerate(rows.tolist()))
    assert worth == pytest.approx(2.21)
    assert share_out(survival, 6).tolist() == [3, 2]  # what has no chance gets no row
    flat = torch.full((4,), 1.0)
    assert best_total(survival, flat) == 3
    assert best_total(survival, torch.tensor([1.0, 1.2, 1.9, 2.6])) == 1
    assert best_total(survival, torch.tensor([1.0, 2.0, 3.0, 4.0])) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_text_gets_its_first_rows(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    survival = torch.rand(6, 8, generator=generator).cumprod(1)
    for rows in (0, 1, 7, 20, 48):
        counts = share_out(survival, rows)
        assert int(counts.sum()) == rows
        kept = torch.arange(8) < counts[:, None]
        if 0 < rows < 48:
            assert survival[kept].min() >= survival[~kept].max()


def some(verifier: str, pace: float, **params: Any) -> list[Request]:
    own = {"verifier": verifier, "width": 8, "pace": pace, **params}
    return [request(f"{k}", [k, 5, k % 3], "draft-model", k, own, max_tokens=24, temperature=(0.0, 0.9)[k % 2]) for k in range(6)]


@pytest.mark.parametrize("verifier", ["coupled", "rejection", "block"])
def test_drafts_as_long_as_they_were_worth(verifier: str) -> None:
    """Less is drafted in vain, the text is one for a seed in any company, and with `coupled` it is that of autoregression."""
    always, slow = (run(engine(), some(verifier, pace)) for pace in (0.0, 0.3))
    wasted = [sum(one.stats.drafted - one.stats.accepted for one in done.values()) for done in (always, slow)]
    assert wasted[1] < wasted[0]
    hopeless = [run(engine(draft=HashLM(99)), some(verifier, pace)) for pace in (0.0, 0.3)]
    drafted = [sum(one.stats.drafted for one in done.values()) for done in hopeless]
    assert drafted[1] < 0.5 * drafted[0]
    crowd = run(engine(num_pages=40), some(verifier, 0.3))
    assert {name: ids(one) for name, one in crowd.items()} == {name: ids(one) for name, one in slow.items()}
    if verifier == "coupled":
        plain = run(engine(), [dataclasses.replace(one, decoder="ar", decoder_params={}) for one in some(verifier, 0.3)])
        assert {name: ids(one) for name, one in slow.items()} == {name: ids(one) for name, one in plain.items()}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SettingError, match=r"pace is 1\.5"):
        build("lookup", {"pace": 1.5}, None)
    with pytest.raises(SettingError, match="pace is for chains"):
        build("dflash", {"pace": 0.2, "nodes": 8}, None)


def test_a_forward_without_a_draft_changes_no_average() -> None:
    """Two of four accepted, then nothing drafted, then one of three: the average is that of the two drafts, and none before the first."""
    lines = lines_of([[5, 6]], [40], [[0]], 8)
    drafter = paced(lookup(2, 1, 9), 0.5)
    state, picked = drafter.begin(lines), torch.zeros(1, 9, dtype=torch.int64)
    averages = []
    for emitted, num in ((1, 0), (3, 4), (1, 0), (2, 3)):
        state = drafter.learn(lines, state, picked, torch.tensor([emitted]), torch.tensor([num]))
        averages.append(state.average.item())
    assert averages[0] > 1e6
    assert averages[1:] == [2.0, 2.0, 1.5]
